/* A conversation: a line of standard input, an answer, and so on. Ctrl-C ends an answer.
 * usage: chat BLOB [SYSTEM MESSAGE] */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include <signal.h>
#include <smolrun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGES = 256, MAX_TOKENS = 8192, MAX_TEXT = 1 << 16 };

static smolrun_cancel_token *cancel;

static void on_interrupt(int signal) {
    (void)signal;
    smolrun_cancel_token_cancel(cancel);
}

static void check(smolrun_status status) {
    if (status == SMOLRUN_OK) return;
    fprintf(stderr, "chat: %s (%s)\n", smolrun_last_error(), smolrun_status_name(status));
    exit(1);
}

/* Prints the answer to a conversation as it comes, and returns it. */
static char *answer(smolrun_model *model, smolrun_session *session, const smolrun_message *messages, size_t count) {
    static uint32_t ids[MAX_TOKENS];
    static char text[MAX_TEXT];
    size_t len = 0, kept = 0, end = 0;
    smolrun_generate_options options;
    const smolrun_token *token;

    check(smolrun_generate_options_init(&options, sizeof options));
    options.temperature = 0.7f, options.top_p = 0.9f, options.cancel = cancel;
    check(smolrun_encode_chat(model, messages, count, NULL, ids, MAX_TOKENS, &len));
    check(smolrun_session_keep_common_prefix(session, ids, len, &kept)); /* only what is new is computed */
    check(smolrun_session_generate(session, ids + kept, len - kept, &options));
    for (;;) {
        check(smolrun_session_next(session, &token));
        if (token == NULL || end + token->text_len >= MAX_TEXT) break;
        memcpy(text + end, token->text, token->text_len);
        end += token->text_len;
        fwrite(token->text, 1, token->text_len, stdout);
        fflush(stdout);
    }
    text[end] = '\0';
    puts("");
    return strdup(text);
}

int main(int argc, char **argv) {
    smolrun_model *model = NULL;
    smolrun_session *session = NULL;
    smolrun_message messages[MAX_MESSAGES] = {{"system", argc > 2 ? argv[2] : "You are a helpful assistant."}};
    char line[4096];
    size_t count = 1;

    if (argc < 2) return fprintf(stderr, "usage: chat BLOB [SYSTEM MESSAGE]\n"), 2;
    check(smolrun_model_open(argv[1], &model));
    check(smolrun_session_new(model, NULL, &session));
    check(smolrun_cancel_token_new(&cancel));
    signal(SIGINT, on_interrupt);
    while (count + 2 <= MAX_MESSAGES && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        smolrun_cancel_token_reset(cancel); /* Ctrl-C before there was an answer to end */
        messages[count++] = (smolrun_message){"user", strdup(line)};
        messages[count] = (smolrun_message){"assistant", answer(model, session, messages, count)};
        count++;
    }
    for (size_t i = 1; i < count; i++) free((char *)messages[i].content);
    smolrun_cancel_token_free(cancel);
    smolrun_session_free(session);
    smolrun_model_free(model);
    return 0;
}
