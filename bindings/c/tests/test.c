/* The library from outside.
 * usage: test BLOB CHAT_BLOB LOGITS DIRECTORY
 *
 * LOGITS is what `smolrun logits BLOB --ids 1,2,3,4,5,6,7` prints, CHAT_BLOB a blob of the same model with a chat template,
 * DIRECTORY one to write to. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static const uint32_t IDS[] = {1, 2, 3, 4, 5, 6, 7};
enum { COUNT = sizeof IDS / sizeof *IDS };

static smolrun_model *model;
static size_t vocab_size;

static smolrun_session *new_session(size_t threads) {
    smolrun_session_options options;
    smolrun_session *session = NULL;
    OK(smolrun_session_options_init(&options, sizeof options));
    options.threads = threads;
    OK(smolrun_session_new(model, &options, &session));
    return session;
}

static smolrun_generate_options generate_options(size_t max_tokens) {
    smolrun_generate_options options;
    OK(smolrun_generate_options_init(&options, sizeof options));
    options.max_tokens = max_tokens;
    return options;
}

/* All text of what is being generated, which the caller frees. */
static char *rest(smolrun_session *session) {
    char *text = calloc(1, 1);
    size_t len = 0;
    const smolrun_token *token;
    for (;;) {
        OK(smolrun_session_next(session, &token));
        if (token == NULL) return text;
        CHECK(token->text[token->text_len] == '\0');
        text = realloc(text, len + token->text_len + 1);
        memcpy(text + len, token->text, token->text_len + 1);
        len += token->text_len;
    }
}

static uint8_t *read_file(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *len = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*len + 1);
    CHECK(fread(bytes, 1, *len, file) == *len);
    bytes[*len] = 0;
    fclose(file);
    return bytes;
}

static void versions(void) {
    CHECK(smolrun_abi_version() == SMOLRUN_ABI_VERSION);
    CHECK(strlen(smolrun_version()) >= 5);
    CHECK(strcmp(smolrun_last_error(), "") == 0);
    CHECK(strcmp(smolrun_status_name(SMOLRUN_BLOB_MAGIC), "blob.magic") == 0);
    CHECK(strcmp(smolrun_status_name((smolrun_status)12345), "unknown") == 0);
}

static void models(const char *path, const char *directory) {
    smolrun_model *other = (smolrun_model *)&other;
    FAILS(SMOLRUN_NULL, smolrun_model_open(NULL, &other));
    CHECK(other == NULL);
    FAILS(SMOLRUN_NULL, smolrun_model_open(path, NULL));
    FAILS(SMOLRUN_IO, smolrun_model_open("/no such file", &other));
    CHECK(strstr(smolrun_last_error(), "/no such file") != NULL);
    FAILS(SMOLRUN_IO, smolrun_model_open(directory, &other));
    FAILS(SMOLRUN_BLOB_TOO_SHORT, smolrun_model_from_bytes("no blob", 7, &other));
    FAILS(SMOLRUN_NULL, smolrun_model_from_bytes(NULL, 7, &other));
    FAILS(SMOLRUN_ARGUMENT, smolrun_model_from_bytes("", SIZE_MAX, &other));

    size_t len = 0;
    uint8_t *bytes = read_file(path, &len), *shifted = malloc(len + 1);
    memcpy(shifted + 1, bytes, len);
    OK(smolrun_model_from_bytes(shifted + 1, len, &other)); /* aligned or not */
    memset(shifted, 'x', len + 1);
    OK(smolrun_model_verify(other));
    smolrun_model_free(other);
    FAILS(SMOLRUN_BLOB_MAGIC, smolrun_model_from_bytes(shifted, len, &other));
    bytes[len - 1] ^= 1;
    OK(smolrun_model_from_bytes(bytes, len, &other));
    FAILS(SMOLRUN_BLOB_CHECKSUM, smolrun_model_verify(other));
    smolrun_model_free(other);
    free(shifted);
    free(bytes);
    OK(smolrun_model_read(path, &other));
    smolrun_model_free(other);
    smolrun_model_free(NULL);
    FAILS(SMOLRUN_NULL, smolrun_model_verify(NULL));

    smolrun_model_info info = {.size = sizeof info};
    OK(smolrun_model_info_get(model, &info));
    CHECK(info.size == sizeof info && info.bytes == len && info.parameters > 0 && info.hidden_size > 0);
    CHECK(info.has_chat_template == 0 && info.num_hidden_layers > 0 && info.max_position_embeddings > 0);
    vocab_size = info.vocab_size;
    uint32_t eos[8];
    size_t n = 99;
    OK(smolrun_model_eos_token_ids(model, eos, 8, &n));
    CHECK(n >= 1 && n <= 8 && eos[0] < vocab_size);
}

/* A struct of another version of the library. */
static void structs(void) {
    struct {
        size_t size, vocab_size, other;
    } small = {2 * sizeof(size_t), 0, 77};
    OK(smolrun_model_info_get(model, (smolrun_model_info *)&small));
    CHECK(small.vocab_size == vocab_size && small.other == 77);
    struct {
        smolrun_model_info known;
        uint64_t unknown[2];
    } large = {.unknown = {5, 5}};
    large.known.size = sizeof large;
    OK(smolrun_model_info_get(model, &large.known));
    CHECK(large.known.vocab_size == vocab_size && large.unknown[0] == 0 && large.unknown[1] == 0);

    smolrun_session *session = NULL;
    struct {
        size_t size, threads;
    } older = {sizeof older, 1};
    OK(smolrun_session_new(model, (smolrun_session_options *)&older, &session));
    struct {
        smolrun_generate_options known;
        uint64_t unknown;
    } newer;
    OK(smolrun_generate_options_init(&newer.known, sizeof newer));
    CHECK(newer.known.size == sizeof newer && newer.unknown == 0 && newer.known.max_tokens == 256);
    OK(smolrun_session_generate(session, IDS, COUNT, &newer.known));
    newer.unknown = 1;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, COUNT, &newer.known));
    CHECK(strstr(smolrun_last_error(), "newer") != NULL);
    size_t wrong[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t) + 1, (size_t)1 << 40, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        newer.known.size = wrong[i];
        FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, COUNT, &newer.known));
    }
    FAILS(SMOLRUN_NULL, smolrun_generate_options_init(NULL, sizeof newer));
    FAILS(SMOLRUN_ARGUMENT, smolrun_generate_options_init(&newer.known, 0));
    FAILS(SMOLRUN_NULL, smolrun_model_info_get(model, NULL));

    smolrun_session_options options;
    OK(smolrun_session_options_init(&options, sizeof options));
    smolrun_session *other = NULL;
    options.reserved = 1;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_new(model, &options, &other));
    options.reserved = 0, options.kv = 9;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_new(model, &options, &other));
    options.kv = 0, options.overflow = -1;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_new(model, &options, &other));
    smolrun_session_free(session);
}

static void texts(void) {
    uint32_t ids[64], few[2] = {77, 77};
    size_t n = 0, m = 0;
    char text[64] = "unchanged";
    OK(smolrun_tokenize(model, "Once upon a time", NUL, 0, ids, 64, &n));
    CHECK(n > 2);
    OK(smolrun_tokenize(model, "Once upon a time, and then", 16, 0, ids, 64, &m));
    CHECK(m == n);
    FAILS(SMOLRUN_TOO_SMALL, smolrun_tokenize(model, "Once upon a time", NUL, 0, few, 2, &m));
    CHECK(m == n && few[0] == 77 && few[1] == 77);
    FAILS(SMOLRUN_TOO_SMALL, smolrun_tokenize(model, "Once upon a time", NUL, 0, NULL, 0, &m));
    OK(smolrun_tokenize(model, "", 0, 0, NULL, 0, NULL));
    OK(smolrun_tokenize(model, NULL, 0, 0, ids, 64, &m));
    CHECK(m == 0);
    FAILS(SMOLRUN_UTF8, smolrun_tokenize(model, "ab\xff", NUL, 0, ids, 64, &m));
    CHECK(strstr(smolrun_last_error(), "at 2") != NULL);
    FAILS(SMOLRUN_NULL, smolrun_tokenize(model, NULL, NUL, 0, ids, 64, &m));
    FAILS(SMOLRUN_NULL, smolrun_tokenize(NULL, "a", NUL, 0, ids, 64, &m));
    FAILS(SMOLRUN_NULL, smolrun_tokenize(model, "a", NUL, 0, NULL, 64, &m));
    FAILS(SMOLRUN_ARGUMENT, smolrun_tokenize(model, "a", NUL, 2, ids, 64, &m));
    FAILS(SMOLRUN_ARGUMENT, smolrun_tokenize(model, "a", SIZE_MAX - 1, 0, ids, 64, &m));
    OK(smolrun_detokenize(model, ids, n, 0, text, sizeof text, &m));
    CHECK(strcmp(text, "Once upon a time") == 0 && m == 16);
    OK(smolrun_detokenize(model, ids, n, 0, text, 17, NULL));
    FAILS(SMOLRUN_TOO_SMALL, smolrun_detokenize(model, ids, n, 0, text, 16, &m));
    CHECK(m == 16);
    ids[0] = (uint32_t)vocab_size;
    FAILS(SMOLRUN_ARGUMENT_TOKEN_ID, smolrun_detokenize(model, ids, n, 0, text, sizeof text, &m));
    OK(smolrun_encode_prompt(model, "Once upon a time", NUL, 0, ids, 64, &m));
    CHECK(m >= n);
    OK(smolrun_tokenize(model, "a\0b", 3, 0, ids, 64, &n)); /* a NUL is a character */
    OK(smolrun_detokenize(model, ids, n, 0, text, sizeof text, &m));
    CHECK(m == 3 && memcmp(text, "a\0b", 4) == 0);
}

static void chats(const char *path) {
    smolrun_model *chat = NULL;
    smolrun_message messages[] = {{"system", "Be short."}, {"user", "Hello"}};
    uint32_t ids[256], other[256];
    size_t n = 0, m = 0;
    FAILS(SMOLRUN_CHAT_TEMPLATE, smolrun_encode_chat(model, messages, 2, NULL, ids, 256, &n));
    OK(smolrun_model_open(path, &chat));
    OK(smolrun_encode_chat(chat, messages, 2, NULL, ids, 256, &n));
    const char *json = "[{\"role\": \"system\", \"content\": \"Be short.\"}, {\"role\": \"user\", \"content\": \"Hello\"}]";
    OK(smolrun_encode_chat_json(chat, json, NUL, NULL, other, 256, &m));
    CHECK(n == m && n > 10 && memcmp(ids, other, n * sizeof *ids) == 0);
    FAILS(SMOLRUN_ARGUMENT, smolrun_encode_chat_json(chat, "{", NUL, NULL, other, 256, &m));

    smolrun_chat_options options;
    smolrun_template_variable variables[] = {{"shout", NULL, 1}};
    OK(smolrun_chat_options_init(&options, sizeof options));
    options.add_generation_prompt = 0;
    OK(smolrun_encode_chat(chat, messages, 2, &options, ids, 256, &m));
    CHECK(m < n);
    options.variables = variables, options.variables_len = 1;
    OK(smolrun_encode_chat(chat, messages, 2, &options, ids, 256, &n));
    CHECK(n != m);
    options.max_tokens = 3;
    FAILS(SMOLRUN_TEXT_TOO_LONG, smolrun_encode_chat(chat, messages, 2, &options, ids, 256, &m));
    options.max_tokens = SIZE_MAX, options.tools = "not JSON";
    FAILS(SMOLRUN_ARGUMENT, smolrun_encode_chat(chat, messages, 2, &options, ids, 256, &m));
    messages[1].content = NULL;
    FAILS(SMOLRUN_NULL, smolrun_encode_chat(chat, messages, 2, NULL, ids, 256, &n));
    messages[1].content = "\xc3(";
    FAILS(SMOLRUN_UTF8, smolrun_encode_chat(chat, messages, 2, NULL, ids, 256, &n));
    smolrun_model_free(chat);
}

static void logits(const char *printed) {
    size_t len = 0;
    char *text = (char *)read_file(printed, &len), *at = text;
    float *expected = malloc(vocab_size * sizeof(float));
    CHECK(*at == '[');
    for (size_t i = 0; i < vocab_size; i++) expected[i] = strtof(at + 1, &at); /* after "[" or "," */
    CHECK(*at == ']');

    smolrun_session *session = new_session(2);
    const float *found = NULL;
    size_t bytes = vocab_size * sizeof(float), position = 0;
    OK(smolrun_session_feed(session, IDS, COUNT, &found));
    CHECK(memcmp(found, expected, bytes) == 0); /* those of the program, to the last bit */
    OK(smolrun_session_position(session, &position));
    FAILS(SMOLRUN_NULL, smolrun_session_position(session, NULL));
    CHECK(position == COUNT);
    OK(smolrun_session_truncate(session, 3));
    OK(smolrun_session_feed(session, IDS + 3, 1, NULL));
    smolrun_session *fork = NULL;
    OK(smolrun_session_fork(session, &fork));
    OK(smolrun_session_feed(fork, IDS + 4, COUNT - 4, &found));
    CHECK(memcmp(found, expected, bytes) == 0);
    smolrun_session_free(fork);
    OK(smolrun_session_position(session, &position));
    CHECK(position == 4);
    OK(smolrun_session_keep_common_prefix(session, IDS, COUNT, &position));
    CHECK(position == 4);
    uint32_t ids[8];
    OK(smolrun_session_tokens(session, ids, 8, &position));
    CHECK(position == 4 && memcmp(ids, IDS, 4 * sizeof *ids) == 0);

    float *all = malloc(COUNT * bytes);
    OK(smolrun_session_truncate(session, 0));
    FAILS(SMOLRUN_TOO_SMALL, smolrun_session_feed_all(session, IDS, COUNT, all, COUNT * vocab_size - 1));
    OK(smolrun_session_feed_all(session, IDS, COUNT, all, COUNT * vocab_size));
    CHECK(memcmp(all + (COUNT - 1) * vocab_size, expected, bytes) == 0);
    free(all);

    FAILS(SMOLRUN_NULL, smolrun_session_feed(NULL, IDS, COUNT, NULL));
    FAILS(SMOLRUN_NULL, smolrun_session_feed(session, NULL, COUNT, NULL));
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_feed(session, NULL, 0, NULL));
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_feed(session, (const uint32_t *)((const char *)IDS + 1), 1, NULL));
    ids[0] = UINT32_MAX;
    FAILS(SMOLRUN_ARGUMENT_TOKEN_ID, smolrun_session_feed(session, ids, 1, NULL));
    smolrun_session_free(session);
    free(expected);
    free(text);
}

static void vectors(void) {
    smolrun_model_info info = {.size = sizeof info};
    OK(smolrun_model_info_get(model, &info));
    smolrun_session *session = new_session(1);
    float *states = malloc(COUNT * info.hidden_size * sizeof(float));
    float *vector = malloc(info.hidden_size * sizeof(float)), *last = states + (COUNT - 1) * info.hidden_size;
    FAILS(SMOLRUN_TOO_SMALL, smolrun_session_hidden(session, IDS, COUNT, states, COUNT * info.hidden_size - 1));
    OK(smolrun_session_hidden(session, IDS, COUNT, states, COUNT * info.hidden_size));
    OK(smolrun_session_truncate(session, 0));
    OK(smolrun_session_embed(session, IDS, COUNT, SMOLRUN_POOLING_LAST, vector, info.hidden_size));
    CHECK(memcmp(vector, last, info.hidden_size * sizeof(float)) == 0);
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_embed(session, IDS, COUNT, 2, vector, info.hidden_size));
    FAILS(SMOLRUN_TOO_SMALL, smolrun_session_embed(session, IDS, COUNT, 1, vector, 3));
    free(states);
    free(vector);
    smolrun_session_free(session);
}

static void files(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/session", directory);
    smolrun_session *session = new_session(1);
    size_t position = 0;
    OK(smolrun_session_feed(session, IDS, COUNT, NULL));
    OK(smolrun_session_save(session, path));
    OK(smolrun_session_truncate(session, 0));
    OK(smolrun_session_load(session, path));
    OK(smolrun_session_position(session, &position));
    CHECK(position == COUNT);
    FAILS(SMOLRUN_IO, smolrun_session_load(session, "/no such file"));
    FAILS(SMOLRUN_NULL, smolrun_session_save(session, NULL));
    FILE *file = fopen(path, "wb");
    fputs("no session", file);
    fclose(file);
    FAILS(SMOLRUN_SAVED_SESSION, smolrun_session_load(session, path));
    unlink(path);
    smolrun_session_free(session);
}

static void generations(void) {
    smolrun_session *session = new_session(1);
    smolrun_generate_options options = generate_options(30);
    const smolrun_token *token = (const smolrun_token *)&token;
    int32_t reason = -1;
    OK(smolrun_session_next(session, &token));
    CHECK(token == NULL); /* nothing was begun */
    FAILS(SMOLRUN_NULL, smolrun_session_next(session, NULL));
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    char *greedy = rest(session);
    CHECK(strlen(greedy) > 20);
    OK(smolrun_session_finish_reason(session, &reason));
    FAILS(SMOLRUN_NULL, smolrun_session_finish_reason(session, NULL));
    CHECK(reason == SMOLRUN_FINISH_LENGTH);

    /* The same again, with what is told of each token. */
    OK(smolrun_session_truncate(session, 0));
    options.logprobs = 3;
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    CHECK(token->top_len == 3 && token->top[0].id == token->id && token->top[0].logprob == token->logprob);
    CHECK(token->logprob <= 0 && token->top[1].logprob <= token->logprob && strncmp(greedy, token->text, 1) == 0);
    options.logprobs = -1;

    /* Until a text comes. */
    OK(smolrun_session_truncate(session, 0));
    char stop[4] = {greedy[10], greedy[11], greedy[12], 0};
    const char *stops[] = {"never in a tale", stop};
    options.stop = stops, options.stop_len = 2;
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    char *stopped = rest(session);
    CHECK(strncmp(stopped, greedy, strlen(stopped)) == 0 && strlen(stopped) <= 10);
    OK(smolrun_session_finish_reason(session, &reason));
    CHECK(reason == SMOLRUN_FINISH_STOP);
    free(stopped);
    stops[1] = "";
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, COUNT, &options));
    stops[1] = NULL;
    FAILS(SMOLRUN_NULL, smolrun_session_generate(session, IDS, COUNT, &options));
    options.stop = NULL;
    FAILS(SMOLRUN_NULL, smolrun_session_generate(session, IDS, COUNT, &options));
    options.stop_len = 0;

    /* Drawn, the same with the same seed. */
    char *drawn[3];
    options.temperature = 1.2f, options.top_p = 0.95f, options.top_k = 50;
    for (int i = 0; i < 3; i++) {
        OK(smolrun_session_truncate(session, 0));
        options.seed = i / 2;
        OK(smolrun_session_generate(session, IDS, COUNT, &options));
        drawn[i] = rest(session);
    }
    CHECK(strcmp(drawn[0], drawn[1]) == 0 && strcmp(drawn[0], drawn[2]) != 0);
    for (int i = 0; i < 3; i++) free(drawn[i]);
    int32_t order[] = {SMOLRUN_SAMPLER_TOP_K, SMOLRUN_SAMPLER_TEMPERATURE, 7};
    options.sampler_order = order, options.sampler_order_len = 2;
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    options.sampler_order_len = 3;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, COUNT, &options));
    options = generate_options(5);
    options.temperature = -1;
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, COUNT, &options));
    CHECK(strstr(smolrun_last_error(), "temperature") != NULL);

    /* A token that is ruled out, and what ends a text. */
    OK(smolrun_session_truncate(session, 0));
    options = generate_options(1);
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    smolrun_logit_bias bias = {token->id, -INFINITY};
    OK(smolrun_session_truncate(session, 0));
    options.logit_bias = &bias, options.logit_bias_len = 1, options.ignore_eos = 1;
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    CHECK(token->id != bias.id && token->finish_reason == SMOLRUN_FINISH_LENGTH);
    FAILS(SMOLRUN_NULL, smolrun_session_generate(session, NULL, 3, NULL));
    FAILS(SMOLRUN_ARGUMENT, smolrun_session_generate(session, IDS, 0, NULL));

    options = generate_options(0);
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    CHECK(token == NULL);
    smolrun_session_free(session);
    free(greedy);
}

static smolrun_cancel_token *cancel;

static void on_alarm(int signal) {
    (void)signal;
    smolrun_cancel_token_cancel(cancel);
}

static void cancelled(void) {
    OK(smolrun_cancel_token_new(&cancel));
    signal(SIGALRM, on_alarm);
    smolrun_session *session = new_session(1);
    smolrun_generate_options options = generate_options(100000);
    options.cancel = cancel, options.ignore_eos = 1;
    const smolrun_token *token = NULL;
    int32_t reason = 0;

    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    raise(SIGALRM);
    CHECK(smolrun_cancel_token_is_cancelled(cancel) == 1);
    OK(smolrun_session_next(session, &token));
    CHECK(token != NULL && token->finish_reason == SMOLRUN_FINISH_CANCELLED);
    OK(smolrun_session_next(session, &token));
    CHECK(token == NULL);

    /* Within a prompt there is no token. */
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    OK(smolrun_session_next(session, &token));
    OK(smolrun_session_finish_reason(session, &reason));
    CHECK(token == NULL && reason == SMOLRUN_FINISH_CANCELLED);
    smolrun_cancel_token_reset(cancel);
    OK(smolrun_session_truncate(session, 0));
    OK(smolrun_session_generate(session, IDS, COUNT, &options));
    smolrun_cancel_token_free(cancel); /* what uses it keeps it */
    OK(smolrun_session_next(session, &token));
    CHECK(token != NULL);
    smolrun_session_free(session);

    /* What ends more than generations is an error, after which the session goes on. */
    smolrun_session_options cancellable;
    OK(smolrun_cancel_token_new(&cancel));
    OK(smolrun_session_options_init(&cancellable, sizeof cancellable));
    cancellable.cancel = cancel;
    OK(smolrun_session_new(model, &cancellable, &session));
    smolrun_cancel_token_cancel(cancel);
    FAILS(SMOLRUN_CANCELLED, smolrun_session_feed(session, IDS, COUNT, NULL));
    smolrun_cancel_token_reset(cancel);
    OK(smolrun_session_generate(session, IDS, COUNT, NULL));
    smolrun_cancel_token_cancel(cancel);
    FAILS(SMOLRUN_CANCELLED, smolrun_session_next(session, &token));
    OK(smolrun_session_finish_reason(session, &reason));
    CHECK(reason == SMOLRUN_FINISH_CANCELLED);
    OK(smolrun_session_next(session, &token));
    CHECK(token == NULL);
    smolrun_cancel_token_reset(cancel);
    OK(smolrun_session_feed(session, IDS, COUNT, NULL));
    smolrun_session_free(session);
    smolrun_cancel_token_free(cancel);
    smolrun_cancel_token_cancel(NULL);
    smolrun_cancel_token_free(NULL);
}

/* A long prompt in another thread: meanwhile its session is busy, and this thread's last error its own. */
static void *feed(void *session) {
    uint32_t ids[200];
    for (size_t i = 0; i < 200; i++) ids[i] = (uint32_t)(i % 100) + 1;
    smolrun_status status = SMOLRUN_OK;
    size_t position = 0;
    while (status == SMOLRUN_OK && position < 200) {
        status = smolrun_session_feed(session, ids, 200, NULL);
        if (status == SMOLRUN_BUSY) status = SMOLRUN_OK;
        else OK(smolrun_session_position(session, &position));
    }
    CHECK(strcmp(smolrun_last_error(), "") == 0 || strstr(smolrun_last_error(), "in use") != NULL);
    return NULL;
}

static void threads(void) {
    smolrun_session *session = new_session(1);
    FAILS(SMOLRUN_IO, smolrun_session_load(session, "/no such file"));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, feed, session) == 0);
    CHECK(strstr(smolrun_last_error(), "/no such file") != NULL);
    size_t position = 0, busy = 0;
    while (position < 200) {
        smolrun_status status = smolrun_session_position(session, &position);
        CHECK(status == SMOLRUN_OK || status == SMOLRUN_BUSY);
        busy += status == SMOLRUN_BUSY;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); /* the other thread wants it, too */
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(busy > 0);
    smolrun_session_free(session);
}

static void schedulers(void) {
    enum { REQUESTS = 5 };
    char *expected[REQUESTS], got[REQUESTS][1024] = {{0}};
    size_t ended = 0;
    smolrun_generate_options options = generate_options(25);
    options.temperature = 1;
    for (size_t i = 0; i < REQUESTS; i++) {
        smolrun_session *session = new_session(1);
        options.seed = i;
        OK(smolrun_session_generate(session, IDS, COUNT - i, &options));
        expected[i] = rest(session);
        smolrun_session_free(session);
    }
    smolrun_scheduler *scheduler = NULL;
    smolrun_scheduler_options sharing;
    OK(smolrun_scheduler_options_init(&sharing, sizeof sharing));
    sharing.max_sequences = 3, sharing.threads = 2;
    OK(smolrun_scheduler_new(model, &sharing, &scheduler));
    for (uint64_t i = 0, request = 99; i < REQUESTS; i++) {
        options.seed = i;
        OK(smolrun_scheduler_submit(scheduler, IDS, COUNT - i, &options, 0, &request));
        CHECK(request == i);
    }
    FAILS(SMOLRUN_ARGUMENT, smolrun_scheduler_submit(scheduler, NULL, 0, &options, 0, NULL));
    FAILS(SMOLRUN_ARGUMENT_TOKEN_ID, smolrun_scheduler_submit(scheduler, &(uint32_t){UINT32_MAX}, 1, NULL, 0, NULL));
    const smolrun_event *event = NULL;
    for (;;) {
        OK(smolrun_scheduler_next(scheduler, &event));
        if (event == NULL) break;
        CHECK(event->request < REQUESTS && event->status == SMOLRUN_OK && *event->message == '\0');
        if (event->token != NULL) strcat(got[event->request], event->token->text);
        ended += event->finish_reason != SMOLRUN_FINISH_NONE;
    }
    CHECK(ended == REQUESTS);
    for (size_t i = 0; i < REQUESTS; i++) {
        CHECK(strcmp(got[i], expected[i]) == 0);
        free(expected[i]);
    }
    OK(smolrun_cancel_token_new(&cancel));
    options.cancel = cancel;
    uint64_t request = 0;
    OK(smolrun_scheduler_submit(scheduler, IDS, COUNT, &options, 5, &request));
    smolrun_cancel_token_cancel(cancel);
    OK(smolrun_scheduler_next(scheduler, &event));
    CHECK(event->request == request && event->token == NULL && event->finish_reason == SMOLRUN_FINISH_CANCELLED);
    smolrun_cancel_token_free(cancel);
    OK(smolrun_scheduler_submit(scheduler, IDS, COUNT, NULL, 0, NULL)); /* left undone */
    smolrun_scheduler_free(scheduler);
    sharing.pace = 0;
    FAILS(SMOLRUN_ARGUMENT, smolrun_scheduler_new(model, &sharing, &scheduler));
    FAILS(SMOLRUN_NULL, smolrun_scheduler_new(NULL, NULL, &scheduler));
    FAILS(SMOLRUN_NULL, smolrun_scheduler_next(NULL, &event));
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    versions();
    OK(smolrun_model_open(argv[1], &model));
    models(argv[1], argv[4]);
    structs();
    texts();
    chats(argv[2]);
    logits(argv[3]);
    vectors();
    files(argv[4]);
    generations();
    cancelled();
    threads();
    schedulers();

    smolrun_session *session = new_session(2);
    smolrun_model_free(model); /* the session keeps it */
    OK(smolrun_session_feed(session, IDS, COUNT, NULL));
    smolrun_session_free(session);
    smolrun_session_free(NULL);
    smolrun_scheduler_free(NULL);
    puts("all of the library in C passed");
    return 0;
}
