/* llama.cpp as a peer of smolrun: the same measurements, for scripts/compare_peers.py, and the smallest program that
 * brings a first token.
 *
 *     llama_peer bench MODEL THREADS N_PROMPT N_TOKENS   one JSON line on standard output
 *     llama_peer first MODEL THREADS N_CONTEXT PROMPT    the first token on standard output, a JSON line on standard error
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "llama.h"

#define CHECK(condition, ...) do { if (!(condition)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } } while (0)

static struct llama_model * model;
static struct llama_context * context;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void only_errors(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int positive(const char * text) {
    int n = atoi(text);
    CHECK(n >= 0 && n < 1 << 20, "%s: expected a count", text);
    return n;
}

/* Maps the model; tensors stay where they are in the file. */
static void load(const char * path) {
    llama_log_set(only_errors, NULL);
    struct llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    model = llama_model_load_from_file(path, params);
    CHECK(model, "%s: llama.cpp could not load it", path);
}

/* A context of `size` tokens that takes a prompt of as many in one batch. */
static void make_context(int size, int threads) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = size;
    params.n_threads = params.n_threads_batch = threads;
    context = llama_init_from_model(model, params);
    CHECK(context, "no context of %d tokens", size);
}

static void decode(llama_token * tokens, int count) {
    int status = llama_decode(context, llama_batch_get_one(tokens, count));
    CHECK(status == 0, "llama_decode returned %d", status);
}

/* Tokens per second of `n` tokens, `step` at a time, from an empty context. Which tokens does not matter to the time. */
static double speed(int n, int step) {
    if (n == 0) return 0;
    llama_token * tokens = calloc(n, sizeof *tokens);
    CHECK(tokens, "out of memory");
    for (int i = 0; i < n; i++) {
        tokens[i] = (llama_token) (i * 2654435761u % (unsigned) llama_vocab_n_tokens(llama_model_get_vocab(model)));
    }
    llama_memory_clear(llama_get_memory(context), true);
    double start = now_ms();
    for (int i = 0; i < n; i += step) decode(tokens + i, step);
    llama_synchronize(context);
    double seconds = (now_ms() - start) / 1e3;
    free(tokens);
    return n / seconds;
}

static void bench(char ** args) {
    int threads = positive(args[1]), n_prompt = positive(args[2]), n_tokens = positive(args[3]);
    load(args[0]);
    make_context(n_prompt > n_tokens ? n_prompt : n_tokens, threads);
    int short_prompt = n_prompt < 32 ? n_prompt : 32;
    speed(short_prompt, short_prompt); /* to warm up */
    speed(n_tokens < 4 ? n_tokens : 4, 1);
    double pp = speed(n_prompt, n_prompt);
    double tg = speed(n_tokens, 1);
    printf("{\"pp\": %.3f, \"tg\": %.3f}\n", pp, tg);
}

static llama_token most_likely(void) {
    const float * logits = llama_get_logits_ith(context, -1);
    CHECK(logits, "no logits");
    int best = 0, count = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 1; i < count; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

static void first(char ** args) {
    double start = now_ms();
    int threads = positive(args[1]), size = positive(args[2]);
    load(args[0]);
    double model_at = now_ms() - start;
    make_context(size, threads);
    double context_at = now_ms() - start;

    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    llama_token * tokens = calloc(size, sizeof *tokens);
    CHECK(tokens, "out of memory");
    int count = llama_tokenize(vocab, args[3], (int) strlen(args[3]), tokens, size, true, false);
    CHECK(count > 0, "the prompt is not 1 to %d tokens", size);
    decode(tokens, count);
    char text[256];
    int length = llama_token_to_piece(vocab, most_likely(), text, sizeof text, 0, true);
    CHECK(length >= 0, "a token of more than %zu bytes", sizeof text);
    printf("%.*s\n", length, text);
    fflush(stdout);
    fprintf(stderr, "{\"model\": %.2f, \"context\": %.2f, \"token\": %.2f}\n", model_at, context_at, now_ms() - start);
}

int main(int argc, char ** argv) {
    int is_bench = argc == 6 && strcmp(argv[1], "bench") == 0;
    int is_first = argc == 6 && strcmp(argv[1], "first") == 0;
    CHECK(is_bench || is_first, "usage: llama_peer bench MODEL THREADS N_PROMPT N_TOKENS | first MODEL THREADS N_CONTEXT PROMPT");
    (is_bench ? bench : first)(argv + 2);
    fflush(NULL);
    _exit(0); /* the kernel frees faster than llama.cpp */
}
