/* smolrun.h: small language models from one mapped file, on a plain CPU.
 *
 * A program in a few lines, without a look at what the calls return:
 *
 *     smolrun_model *model = NULL;
 *     smolrun_session *session = NULL;
 *     uint32_t ids[512];
 *     size_t n = 0;
 *     const smolrun_token *token = NULL;
 *
 *     smolrun_model_open("smol.bin", &model);
 *     smolrun_session_new(model, NULL, &session);
 *     smolrun_encode_prompt(model, "Once upon a time", SMOLRUN_NUL_TERMINATED, 0, ids, 512, &n);
 *     smolrun_session_generate(session, ids, n, NULL);
 *     while (smolrun_session_next(session, &token) == SMOLRUN_OK && token != NULL)
 *         fwrite(token->text, 1, token->text_len, stdout);
 *     smolrun_session_free(session);
 *     smolrun_model_free(model);
 *
 * ERRORS. A function that can fail returns a smolrun_status: SMOLRUN_OK, which is 0, or why it failed.
 * smolrun_last_error() has the same in words. After a failure an output is as it was, unless its function says
 * otherwise; an object that was to be made is NULL. No argument makes the library crash or exit: NULL where something
 * is needed is SMOLRUN_NULL, a text that is not UTF-8 SMOLRUN_UTF8. Only pointers that are neither NULL nor what is
 * asked for, and objects that were freed, are beyond its reach. The library never prints, but for one case: a bug
 * that panics (SMOLRUN_PANIC) has a line on standard error.
 *
 * OWNERSHIP. What a function whose name ends in _new, _open, _read, _from_bytes or _fork gives is the caller's, who
 * frees it with the _free of its type, which takes NULL, too. The library keeps nothing that it is given: texts,
 * arrays and options may go as soon as the call returns. What it gives a pointer to (a text, logits, a token, an
 * event) stays its own, and how long it is there is said at each. Objects may be freed in any order: a session keeps
 * its model.
 *
 * THREADS. A model and a cancel token may be used by any number of threads at once. A session or a scheduler may be
 * used by any thread, by one at a time: a second call meanwhile is SMOLRUN_BUSY, does nothing and does not wait.
 * Nobody may use an object while it is freed. A session starts threads of its own, unless it has only one, and ends
 * them when it is freed. They do not survive fork(): make sessions in the process that uses them. The library calls
 * nobody back and has no state but its objects and each thread's last error.
 *
 * STRUCTS. Options begin with their own size, so that programs go on working with later versions of the library:
 * smolrun_..._options_init() sets it, and every default. Instead of options NULL means the defaults.
 *
 * NUMBERS. Logits do not depend on threads, on how a prompt is split or on the processor, to the last bit.
 */
#ifndef SMOLRUN_H
#define SMOLRUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI that this header describes. A program built with it runs with every library of the same number. */
#define SMOLRUN_ABI_VERSION 1

/* As the length of a text: it ends with NUL. */
#define SMOLRUN_NUL_TERMINATED ((size_t)-1)

/* As smolrun_chat_options.now: the template knows no time. */
#define SMOLRUN_NO_TIME INT64_MIN

/* What came of a call. Numbers keep their meaning for ever; there may be more of them one day. */
typedef enum smolrun_status {
    SMOLRUN_OK = 0,
    SMOLRUN_ARGUMENT = 1,          /* an option or argument has a value it may not have */
    SMOLRUN_ARGUMENT_TOKEN_ID = 2, /* a token id is not in the vocabulary */
    SMOLRUN_BLOB_ALIGNMENT = 3,    /* the blob's bytes do not start where they must */
    SMOLRUN_BLOB_CHECKSUM = 4,     /* verifying: a section's bytes are not those that were written */
    SMOLRUN_BLOB_CONFIG = 5,       /* a hyperparameter has a value it may not have */
    SMOLRUN_BLOB_DIRECTORY = 6,    /* the header or the directory was changed after it was written */
    SMOLRUN_BLOB_ENTRY = 7,        /* a directory entry has a field it may not have */
    SMOLRUN_BLOB_HEADER = 8,       /* a header field has a value it may not have, as in a file that was cut off */
    SMOLRUN_BLOB_MAGIC = 9,        /* it is no blob */
    SMOLRUN_BLOB_MISSING = 10,     /* a section is missing */
    SMOLRUN_BLOB_PADDING = 11,     /* verifying: bytes between sections are not zero */
    SMOLRUN_BLOB_RESERVED = 12,    /* reserved bytes are not zero */
    SMOLRUN_BLOB_TABLE = 13,       /* a table contradicts itself */
    SMOLRUN_BLOB_TOO_SHORT = 14,   /* there are fewer bytes than a header has */
    SMOLRUN_BLOB_VERSION = 15,     /* it was written by an incompatible version */
    SMOLRUN_CHAT_TEMPLATE = 16,    /* the chat template cannot be used */
    SMOLRUN_CONTEXT_FULL = 17,     /* more tokens than the model's context has room for */
    SMOLRUN_IO = 18,               /* a file could not be opened, mapped or read */
    SMOLRUN_KV_BUDGET = 19,        /* a request's keys and values are more than a scheduler may ever keep */
    SMOLRUN_NOT_FINITE = 20,       /* the model computed NaN or infinity */
    SMOLRUN_OUT_OF_MEMORY = 21,    /* there is no memory for something */
    SMOLRUN_PANIC = 22,            /* a bug of the library; the session or scheduler can only be freed */
    SMOLRUN_SAVED_SESSION = 23,    /* a file is no session to go on from */
    SMOLRUN_TEXT_TOO_LONG = 24,    /* a text makes more tokens than there is room for */
    SMOLRUN_THREADS = 25,          /* no other thread could be started */
    SMOLRUN_CANCELLED = 26,        /* a session's work was ended from elsewhere */
    SMOLRUN_UNKNOWN = 99,          /* an error that this table has no number for */
    SMOLRUN_NULL = 100,            /* a pointer that may not be NULL is */
    SMOLRUN_UTF8 = 101,            /* a text is not UTF-8 */
    SMOLRUN_BUSY = 102,            /* another call uses the object now */
    SMOLRUN_TOO_SMALL = 103,       /* the output has no room for the result */
} smolrun_status;

/* Why a generation ended. */
typedef enum smolrun_finish_reason {
    SMOLRUN_FINISH_NONE = 0,      /* it has not */
    SMOLRUN_FINISH_EOS = 1,       /* the model generated one of its end ids */
    SMOLRUN_FINISH_STOP = 2,      /* a stop string came */
    SMOLRUN_FINISH_LENGTH = 3,    /* max_tokens were generated */
    SMOLRUN_FINISH_CONTEXT = 4,   /* the model's context is full */
    SMOLRUN_FINISH_CANCELLED = 5, /* its cancel token was used */
} smolrun_finish_reason;

/* How keys and values are kept. */
typedef enum smolrun_kv {
    SMOLRUN_KV_DEFAULT = 0, /* f16 for quantized blobs, else f32 */
    SMOLRUN_KV_F32 = 1,     /* exactly as computed */
    SMOLRUN_KV_F16 = 2,     /* rounded: half the memory, nearly the same logits */
    SMOLRUN_KV_Q8 = 3,      /* rounded to 8 bits: about a quarter of the memory */
} smolrun_kv;

/* What happens to a sequence that is as long as the model's context. */
typedef enum smolrun_overflow {
    SMOLRUN_OVERFLOW_STOP = 0,  /* it ends */
    SMOLRUN_OVERFLOW_SLIDE = 1, /* it forgets the oldest 256 tokens after the first 256, and goes on */
} smolrun_overflow;

/* How the hidden states of a text become one vector. */
typedef enum smolrun_pooling {
    SMOLRUN_POOLING_LAST = 0, /* that of the last token */
    SMOLRUN_POOLING_MEAN = 1, /* the mean of all */
} smolrun_pooling;

/* A step of the sampler, for smolrun_generate_options.sampler_order. */
typedef enum smolrun_sampler_step {
    SMOLRUN_SAMPLER_BIAS = 0,
    SMOLRUN_SAMPLER_PENALTIES = 1,
    SMOLRUN_SAMPLER_TEMPERATURE = 2,
    SMOLRUN_SAMPLER_TOP_K = 3,
    SMOLRUN_SAMPLER_TOP_P = 4,
    SMOLRUN_SAMPLER_MIN_P = 5,
    SMOLRUN_SAMPLER_TYPICAL = 6,
} smolrun_sampler_step;

typedef struct smolrun_model smolrun_model;               /* an opened blob */
typedef struct smolrun_cancel_token smolrun_cancel_token; /* what ends generations from elsewhere */
typedef struct smolrun_session smolrun_session;           /* one sequence of tokens over a model */
typedef struct smolrun_scheduler smolrun_scheduler;       /* many requests at once over a model */

/* -- The library ------------------------------------------------------------------------------------------------- */

/* SMOLRUN_ABI_VERSION of the library that is loaded: it should be this header's. */
uint32_t smolrun_abi_version(void);

/* The library's version, such as "0.1.0". It is there as long as the library. */
const char *smolrun_version(void);

/* What went wrong in this thread's last call that failed, in one line of UTF-8; "" before the first. It is there
 * until another call of this thread fails, or the thread ends. A call that succeeds leaves it as it is. */
const char *smolrun_last_error(void);

/* The name of a status, such as "blob.magic", by which the programs and the other languages know it, too; "unknown"
 * for a number that is none. It is there as long as the library. */
const char *smolrun_status_name(smolrun_status status);

/* -- Models ------------------------------------------------------------------------------------------------------ */

/* Maps the blob at `path`, which smolconv made. It takes about a millisecond: no weight is read or copied, and
 * processes share the file's pages. The header, the directory and all sections' places and shapes are checked.
 *
 * While the model is open, nobody may change or truncate the file in place: replace it by a rename. Where that cannot
 * be promised use smolrun_model_read(). A path is bytes as the system has them; on Windows UTF-8. */
smolrun_status smolrun_model_open(const char *path, smolrun_model **out);

/* Reads the blob at `path` into memory instead: for network mounts, and for files that others may change. */
smolrun_status smolrun_model_read(const char *path, smolrun_model **out);

/* Copies a blob of `len` bytes from memory, aligned or not. */
smolrun_status smolrun_model_from_bytes(const void *bytes, size_t len, smolrun_model **out);

/* Frees a model. Sessions and schedulers that use it go on: its memory goes with the last of them. */
void smolrun_model_free(smolrun_model *model);

/* Checks every checksum of the blob and its tables: all of the file is read once. */
smolrun_status smolrun_model_verify(const smolrun_model *model);

/* What a model is. */
typedef struct smolrun_model_info {
    size_t size;                    /* sizeof(smolrun_model_info), set by the caller */
    size_t vocab_size;              /* every token id is below this; as many logits follow a token */
    size_t hidden_size;             /* numbers in a hidden state */
    size_t num_hidden_layers;
    size_t max_position_embeddings; /* the context: most tokens of a sequence */
    uint64_t parameters;
    uint64_t bytes;                 /* the blob's length */
    int64_t bos_token_id;           /* the id that begins a text, or -1 */
    int32_t has_chat_template;      /* 1 if smolrun_encode_chat() can be used */
    int32_t is_quantized;           /* 1 if some matrix has fewer than 16 bits per weight */
} smolrun_model_info;

/* Fills `info`, whose `size` the caller has set. */
smolrun_status smolrun_model_info_get(const smolrun_model *model, smolrun_model_info *info);

/* The ids that end a generation: see smolrun_tokenize() for `ids`, `capacity` and `len`. */
smolrun_status smolrun_model_eos_token_ids(const smolrun_model *model, uint32_t *ids, size_t capacity, size_t *len);

/* -- Texts and tokens -------------------------------------------------------------------------------------------- */

/* The tokens of a text of `text_len` bytes of UTF-8, or up to its NUL if that is SMOLRUN_NUL_TERMINATED. Nothing is
 * added around them. `special`: 1 parses control tokens that the text spells, such as <|im_start|>, which what a user
 * wrote never should; 0 takes them as text.
 *
 * They go to `ids`, which has room for `capacity`. `len`, if it is not NULL, is set to how many there are, even if
 * they do not fit, which is SMOLRUN_TOO_SMALL: then `ids` is not changed. A text of n bytes has at most n + 2 tokens
 * or so, mostly a quarter of that. */
smolrun_status smolrun_tokenize(const smolrun_model *model, const char *text, size_t text_len, int32_t special,
                                uint32_t *ids, size_t capacity, size_t *len);

/* The tokens of a text that is to be continued: as smolrun_tokenize(), after what the model's prompts begin with. An
 * empty text is the beginning of one, for models that have a token for it. */
smolrun_status smolrun_encode_prompt(const smolrun_model *model, const char *text, size_t text_len, int32_t special,
                                     uint32_t *ids, size_t capacity, size_t *len);

/* A message of a conversation: both are texts that end with NUL. */
typedef struct smolrun_message {
    const char *role; /* "system", "user", "assistant", "tool", or another one that the template knows */
    const char *content;
} smolrun_message;

/* A variable for the chat template, such as enable_thinking. */
typedef struct smolrun_template_variable {
    const char *name;
    const char *text; /* its value, or NULL if it is `flag` */
    int64_t flag;     /* 0 is false, all else true */
} smolrun_template_variable;

/* What a chat template is told besides the messages. */
typedef struct smolrun_chat_options {
    size_t size;           /* sizeof(smolrun_chat_options) */
    size_t max_tokens;     /* more tokens are SMOLRUN_TEXT_TOO_LONG, found early; SIZE_MAX for no limit [SIZE_MAX] */
    const char *tools;     /* the tools that the model may call, a JSON array of objects, or NULL [NULL] */
    const char *documents; /* documents to answer from, a JSON array of objects, or NULL [NULL] */
    const smolrun_template_variable *variables; /* [NULL] */
    size_t variables_len;                       /* [0] */
    int64_t now;                   /* the time that the template may tell: seconds since 1970, UTC [SMOLRUN_NO_TIME] */
    int32_t add_generation_prompt; /* 1 if the prompt ends with what begins the answer [1] */
    int32_t reserved;              /* 0 */
} smolrun_chat_options;

/* Sets the defaults, which are in brackets above. `size` is sizeof(smolrun_chat_options). */
smolrun_status smolrun_chat_options_init(smolrun_chat_options *options, size_t size);

/* The tokens of a conversation, by the blob's own chat template. What a message says never becomes a control token.
 * `options` may be NULL. As to `ids`, `capacity` and `len`, see smolrun_tokenize(). */
smolrun_status smolrun_encode_chat(const smolrun_model *model, const smolrun_message *messages, size_t messages_len,
                                   const smolrun_chat_options *options, uint32_t *ids, size_t capacity, size_t *len);

/* As smolrun_encode_chat(), of a conversation in JSON: an array of messages, or an object that has it as "messages".
 * They may have whatever the template reads: "tool_calls", "reasoning_content", "name". */
smolrun_status smolrun_encode_chat_json(const smolrun_model *model, const char *json, size_t json_len,
                                        const smolrun_chat_options *options, uint32_t *ids, size_t capacity,
                                        size_t *len);

/* The text of tokens, with a NUL after it: `text` has room for `capacity` bytes, the NUL's included. `len`, if it is
 * not NULL, is set to the text's bytes, without the NUL, even if they do not fit (SMOLRUN_TOO_SMALL). `skip_special`:
 * 1 leaves out control tokens. Bytes that are not UTF-8 become U+FFFD. */
smolrun_status smolrun_detokenize(const smolrun_model *model, const uint32_t *ids, size_t ids_len, int32_t skip_special,
                                  char *text, size_t capacity, size_t *len);

/* -- Cancel tokens ----------------------------------------------------------------------------------------------- */

/* A handle for the `cancel` of options: one can serve any number of generations and sessions. Those that use it go on
 * when it is freed. */
smolrun_status smolrun_cancel_token_new(smolrun_cancel_token **out);

/* Ends every generation that has this token, without an error: with its next token, or within 256 tokens of a prompt.
 * It may be called from any thread, and from a signal handler. NULL does nothing. */
void smolrun_cancel_token_cancel(const smolrun_cancel_token *token);

/* 1 if smolrun_cancel_token_cancel() was called since the last reset. It may be called from a signal handler. */
int32_t smolrun_cancel_token_is_cancelled(const smolrun_cancel_token *token);

/* Makes the token ready for the next generation. It may be called from a signal handler. */
void smolrun_cancel_token_reset(const smolrun_cancel_token *token);

/* Frees a token. */
void smolrun_cancel_token_free(smolrun_cancel_token *token);

/* -- Sessions ---------------------------------------------------------------------------------------------------- */

/* How a session computes. */
typedef struct smolrun_session_options {
    size_t size;      /* sizeof(smolrun_session_options) */
    size_t threads;   /* the caller's included; 1 starts none; 0: as many as the process may use at once [0] */
    int32_t kv;       /* smolrun_kv [SMOLRUN_KV_DEFAULT] */
    int32_t overflow; /* smolrun_overflow [SMOLRUN_OVERFLOW_STOP] */
    int32_t fast;     /* 1: prompts may be rounded for speed, where the processor has a unit for it: not bit-exact [0] */
    int32_t reserved; /* 0 */
    const smolrun_cancel_token *cancel; /* what ends whatever the session does, with SMOLRUN_CANCELLED, before its next
                                           pass of at most 256 tokens; it keeps those of the passes before [NULL] */
} smolrun_session_options;

/* Sets the defaults, which are in brackets above. `size` is sizeof(smolrun_session_options). */
smolrun_status smolrun_session_options_init(smolrun_session_options *options, size_t size);

/* An empty sequence over `model`, with worker threads and memory of its own. `options` may be NULL. The environment
 * variable SMOLRUN_ISA forces an instruction set: scalar, avx2, avxvnni, avx512, avx512vnni, avx512amx, neon,
 * neondotprod or neoni8mm. */
smolrun_status smolrun_session_new(const smolrun_model *model, const smolrun_session_options *options,
                                   smolrun_session **out);

/* Another session that goes on from the same tokens, with the same options and threads of its own. What both have in
 * common lies in memory once. A generation is not continued in it. */
smolrun_status smolrun_session_fork(const smolrun_session *session, smolrun_session **out);

/* Ends a session's threads and frees it. */
void smolrun_session_free(smolrun_session *session);

/* How many tokens the sequence has. */
smolrun_status smolrun_session_position(const smolrun_session *session, size_t *position);

/* These tokens: see smolrun_tokenize() for `ids`, `capacity` and `len`. */
smolrun_status smolrun_session_tokens(const smolrun_session *session, uint32_t *ids, size_t capacity, size_t *len);

/* Appends tokens, at least one. `logits`, if it is not NULL, is set to the vocab_size logits after the last of them,
 * which are there until the next call on the session. After an error in a long prompt smolrun_session_position() says
 * how many tokens were taken. A generation ends by it. */
smolrun_status smolrun_session_feed(smolrun_session *session, const uint32_t *ids, size_t ids_len,
                                    const float **logits);

/* Appends tokens and writes the logits after each of them to `logits`, [ids_len][vocab_size], which has room for
 * `capacity` numbers; after an error those of some tokens may be there. A generation ends by it. */
smolrun_status smolrun_session_feed_all(smolrun_session *session, const uint32_t *ids, size_t ids_len, float *logits,
                                        size_t capacity);

/* Forgets everything from where the sequence and `ids` begin to differ. `kept` is set to how many tokens are left:
 * feed what follows these in `ids`, which is at least one token. So a conversation is computed once. A generation
 * ends. */
smolrun_status smolrun_session_keep_common_prefix(smolrun_session *session, const uint32_t *ids, size_t ids_len,
                                                  size_t *kept);

/* Forgets all tokens from `position` on; nothing if there are fewer. A generation ends by it. */
smolrun_status smolrun_session_truncate(smolrun_session *session, size_t position);

/* Writes the sequence with its keys and values to a file, which only the user may read: it holds their text. A
 * generation ends by it. */
smolrun_status smolrun_session_save(smolrun_session *session, const char *path);

/* Loads what smolrun_session_save() wrote, with the same blob and the same `kv`. After an error the sequence is
 * empty. Where the model came from smolrun_model_open(), this file is mapped, too: while the session lives, nobody may
 * change or truncate it in place. */
smolrun_status smolrun_session_load(smolrun_session *session, const char *path);

/* Appends tokens and writes their last hidden states, after the final norm, to `states`, [ids_len][hidden_size],
 * which has room for `capacity` numbers. A generation ends by it. */
smolrun_status smolrun_session_hidden(smolrun_session *session, const uint32_t *ids, size_t ids_len, float *states,
                                      size_t capacity);

/* Appends tokens and writes one vector of their hidden states to `vector`, [hidden_size], which has room for
 * `capacity` numbers. `pooling` is a smolrun_pooling. A generation ends by it. */
smolrun_status smolrun_session_embed(smolrun_session *session, const uint32_t *ids, size_t ids_len, int32_t pooling,
                                     float *vector, size_t capacity);

/* -- Generations ------------------------------------------------------------------------------------------------- */

/* A number that is added to a token's logit. */
typedef struct smolrun_logit_bias {
    uint32_t id;
    float bias; /* negative infinity rules the token out */
} smolrun_logit_bias;

/* What to generate. The names are those of the program's options. */
typedef struct smolrun_generate_options {
    size_t size;                        /* sizeof(smolrun_generate_options) */
    size_t max_tokens;                  /* most tokens to generate [256] */
    const char *const *stop;            /* texts that end it and are not part of it, each with a NUL [NULL] */
    size_t stop_len;                    /* how many of them [0] */
    const smolrun_cancel_token *cancel; /* what ends it from elsewhere, or NULL [NULL] */
    uint64_t seed;                      /* decides every draw, the same on every machine [0] */
    float temperature;                  /* divides logits; 0 always takes the likeliest token [0] */
    float top_p;                        /* the likeliest tokens that together reach this probability; 1: all [1] */
    size_t top_k;                       /* the top_k likeliest tokens; 0: all [0] */
    float min_p;                        /* tokens at least so many times as likely as the likeliest; 0: all [0] */
    float typical_p;          /* the tokens closest to the expected information, up to this probability; 1: all [1] */
    float repetition_penalty; /* divides logits above 0 of tokens in the window, multiplies those below; 1: none [1] */
    float frequency_penalty;  /* subtracted for each time that a token is in the window [0] */
    float presence_penalty;   /* subtracted if a token is in the window [0] */
    int32_t ignore_eos;       /* 1 rules out the tokens that end a generation [0] */
    size_t penalty_window;    /* how many of the last tokens the penalties look at, the prompt's included; 0: all [0] */
    const smolrun_logit_bias *logit_bias; /* [NULL] */
    size_t logit_bias_len;                /* [0] */
    const int32_t *sampler_order; /* smolrun_sampler_steps, each at most once; what is missing is not applied; NULL: all
                                     of them, in the order of their numbers [NULL] */
    size_t sampler_order_len;     /* [0] */
    int64_t logprobs; /* how many of the likeliest tokens to name with each; -1: no log-probabilities at all [-1] */
} smolrun_generate_options;

/* Sets the defaults, which are in brackets above. `size` is sizeof(smolrun_generate_options). */
smolrun_status smolrun_generate_options_init(smolrun_generate_options *options, size_t size);

/* A token that could have been chosen. */
typedef struct smolrun_alternative {
    uint32_t id;
    float logprob; /* the natural logarithm of its probability, before any option */
} smolrun_alternative;

/* A generated token. The library makes it: later versions may add fields at its end. */
typedef struct smolrun_token {
    uint32_t id;
    int32_t finish_reason; /* smolrun_finish_reason: SMOLRUN_FINISH_NONE unless it is the last one */
    const char *text;      /* the UTF-8 that is complete with it, which may be "", with a NUL at its end */
    size_t text_len;       /* its bytes, without that NUL */
    const smolrun_alternative *top; /* the likeliest tokens, likeliest first */
    size_t top_len;
    float logprob; /* of this token; NaN if none were asked for */
    int32_t reserved;
} smolrun_token;

/* Begins to generate what comes after `prompt`, at least one token, which comes after what the session has. Nothing
 * is computed yet. `options` may be NULL. What was being generated before ends. */
smolrun_status smolrun_session_generate(smolrun_session *session, const uint32_t *prompt, size_t prompt_len,
                                        const smolrun_generate_options *options);

/* Generates the next token: `token` is set to it, or to NULL after the last one, after an error, or if nothing is
 * being generated. It is there, with its text, until the next call on the session. The first call runs the prompt.
 * The session has the tokens before the last one. */
smolrun_status smolrun_session_next(smolrun_session *session, const smolrun_token **token);

/* Why the last generation ended, a smolrun_finish_reason. Its last token mostly says so; if it was cancelled within
 * its prompt there is none. */
smolrun_status smolrun_session_finish_reason(const smolrun_session *session, int32_t *reason);

/* -- Many requests ----------------------------------------------------------------------------------------------- */

/* How a scheduler shares the processor between requests. */
typedef struct smolrun_scheduler_options {
    size_t size;          /* sizeof(smolrun_scheduler_options) */
    size_t threads;       /* as in smolrun_session_options [0] */
    size_t max_sequences; /* most requests that run at the same time, 1 to 256; others wait [64] */
    size_t max_rows;      /* most tokens in one pass, of all requests together, up to 256 [256] */
    size_t kv_bytes;      /* most bytes of keys and values of running requests [SIZE_MAX] */
    size_t prefix_bytes;  /* bytes of keys and values to keep for prompts that begin alike; 0: none [268435456] */
    int32_t kv;           /* smolrun_kv [SMOLRUN_KV_DEFAULT] */
    int32_t overflow;     /* smolrun_overflow [SMOLRUN_OVERFLOW_STOP] */
    float pace;           /* how many times as long a pass may take for parts of prompts in it, from 1 up [2] */
    int32_t reserved;     /* 0 */
} smolrun_scheduler_options;

/* Sets the defaults, which are in brackets above. `size` is sizeof(smolrun_scheduler_options). */
smolrun_status smolrun_scheduler_options_init(smolrun_scheduler_options *options, size_t size);

/* What happened to a request. The library makes it: later versions may add fields at its end. */
typedef struct smolrun_event {
    uint64_t request;
    const smolrun_token *token; /* its next token, or NULL */
    int32_t finish_reason;      /* smolrun_finish_reason: why nothing more comes of it */
    smolrun_status status;      /* why it failed, which also ends it; SMOLRUN_OK if it did not */
    const char *message;        /* the same in words */
} smolrun_event;

/* A scheduler without requests. `options` may be NULL. */
smolrun_status smolrun_scheduler_new(const smolrun_model *model, const smolrun_scheduler_options *options,
                                     smolrun_scheduler **out);

/* Frees a scheduler and forgets its requests. */
void smolrun_scheduler_free(smolrun_scheduler *scheduler);

/* Takes a request in, at any time. What it generates is what a session of its own would give, whatever the others
 * are. `options` may be NULL; a cancel token in them ends this request. `priority` is 0 for most; higher goes first.
 * `request`, if it is not NULL, is set to its number: 0 for the first, 1 for the second. */
smolrun_status smolrun_scheduler_submit(smolrun_scheduler *scheduler, const uint32_t *prompt, size_t prompt_len,
                                        const smolrun_generate_options *options, int8_t priority, uint64_t *request);

/* The next thing that happened: `event` is set to it, after as many passes over all requests as it takes, or to NULL
 * if there is nothing left to do. It is there until the next call of this function. Of each request the last event
 * has a finish_reason or a status. */
smolrun_status smolrun_scheduler_next(smolrun_scheduler *scheduler, const smolrun_event **event);

#ifdef __cplusplus
}
#endif

#endif /* SMOLRUN_H */
