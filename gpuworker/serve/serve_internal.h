// SPDX-License-Identifier: Apache-2.0
// Between the files of the face: the server, one generation (an HTTP request that waits for tokens)
// and its choices.
//
// A generation lives from its HTTP request until every choice that was submitted to the worker has
// finished, also when the client has left meanwhile (`http` is NULL then). Only generation.c frees
// it.
#ifndef GPW_SERVE_INTERNAL_H
#define GPW_SERVE_INTERNAL_H

#include <jansson.h>
#include "common/http.h"
#include "gpuworker/serve/openai.h"
#include "gpuworker/serve/serve.h"
#include "gpuworker/serve/tokenize.h"

#define GPW_GENERATION_MAGIC 0x656e65675f777067ull                   // "gpw_gene"
#define GPW_REPLY_JSON       (JSON_COMPACT | JSON_REAL_PRECISION(9)) // a float needs 9 digits
#define GPW_TOKEN_BYTES_MAX  1024u // text of one token; longer ones are cut

typedef struct gpw_generation gpw_generation_t;

// The log-probabilities of a token whose text is still held back.
typedef struct gpw_entry {
    uint64_t start; // of its bytes among all that arrived
    size_t bytes;
    json_t *json;
} gpw_entry_t;

typedef struct gpw_choice {
    gpw_generation_t *generation;
    uint32_t index;
    uint64_t request_id; // with the worker
    bool active;         // its on_finish is still to come
    gpw_text_t text;
    uint64_t arrived_bytes, arrived_characters;
    uint32_t token_count;
    gpw_finish_t finish;
    gpw_usage_t usage;
    // To be sent: everything so far, or in a stream what came since the last chunk.
    gpw_string_t shown;
    json_t *logprobs, *token_ids, *hashes; // arrays
    gpw_entry_t *entries;
    uint32_t entry_count, entry_capacity;
} gpw_choice_t;

struct gpw_generation {
    uint64_t magic;
    gpw_serve_t *serve;
    gpw_generation_t *previous, *next;
    as_http_request_t *http; // NULL: answered, or the client has left
    gpw_api_request_t request;
    gpw_tokenize_job_t tokenizing;
    // `done` is to come; until then `request`, `error`, `failed` and what the job is made of are the
    // thread's.
    bool is_tokenizing;
    gpw_api_body_t body;       // until it is parsed
    gpw_prompt_t conversation; // what is tokenized, of a chat
    char id[40];
    int64_t created_s;
    bool only_tokens;
    bool streaming; // 200 and the first chunk are out
    bool failed;    // `error` is the answer
    gpw_api_error_t error;
    uint32_t active_count;
    gpw_choice_t choices[GPW_API_CHOICES_MAX];
};

typedef enum gpw_drain {
    GPW_DRAIN_NO,
    GPW_DRAIN_WAITING,
    GPW_DRAIN_CANCELLED,
    GPW_DRAIN_LINGERING
} gpw_drain_t;

struct gpw_serve {
    gpw_serve_options_t options;
    gpw_worker_t *worker; // once open
    gpw_api_limits_t limits;
    as_http_t *http;
    gpw_generation_t *generations;
    uint32_t generation_count;
    uint64_t service_us; // mean of the recent choices, without their time in the queue
    uint64_t ids;        // random start
    gpw_tokenize_t *tokenize;
    gpw_drain_t drain;
    as_timer_t *drain_timer;
    as_loop_fn drained;
    void *drained_ctx;
};

// http.c
void gpw_serve_reply_json(as_http_request_t *http, int code,
                          json_t *json); // takes json; NULL: out of memory
void gpw_serve_reply_error(gpw_serve_t *serve, as_http_request_t *http,
                           const gpw_api_error_t *error);
void gpw_serve_generation_ended(gpw_serve_t *serve);

// generation.c: answers the request now or later. only_tokens: with those of its prompt.
void gpw_generation_start(gpw_serve_t *serve, as_http_request_t *http, gpw_api_kind_t kind,
                          const as_http_call_t *call, bool only_tokens);
void gpw_generation_abort(gpw_generation_t *generation); // the client has left
void gpw_generation_cancel(gpw_generation_t *generation);
void gpw_generation_free(gpw_generation_t *generation);

// choice.c: one choice's tokens become text and log-probabilities.
as_status_t gpw_choice_init(gpw_choice_t *choice, gpw_generation_t *generation,
                            uint32_t index) AS_MUST_USE;
void gpw_choice_fini(gpw_choice_t *choice);
as_status_t gpw_choice_take(gpw_choice_t *choice, const gpw_token_event_t *event) AS_MUST_USE;
as_status_t gpw_choice_finish(gpw_choice_t *choice) AS_MUST_USE;
bool gpw_choice_has_news(const gpw_choice_t *choice);
void gpw_choice_sent(gpw_choice_t *choice); // forgets what was to be sent

// reply.c: JSON of answers, NULL when out of memory; the HTTP code of a failure.
int gpw_reply_code(as_status_t status);
json_t *gpw_reply_tokens(const gpw_generation_t *generation, const int32_t *tokens,
                         size_t token_count);
json_t *gpw_reply_error(const gpw_api_error_t *error);
json_t *gpw_reply_whole(const gpw_generation_t *generation);
json_t *gpw_reply_place(const gpw_generation_t *generation, const gpw_choice_t *choice,
                        uint32_t place);
json_t *gpw_reply_role(const gpw_generation_t *generation, const gpw_choice_t *choice);
json_t *gpw_reply_chunk(const gpw_generation_t *generation, const gpw_choice_t *choice, bool last);
json_t *gpw_reply_usage_chunk(const gpw_generation_t *generation);
json_t *gpw_reply_models(const gpw_serve_t *serve);
json_t *gpw_reply_model(const gpw_serve_t *serve);

// compressors.c: the methods of the table, NULL when out of memory.
json_t *gpw_reply_compressors(const gpw_serve_t *serve);

// metrics.c
typedef enum gpw_http_metric {
    GPW_HTTP_REQUESTS,
    GPW_HTTP_REFUSED,
    GPW_HTTP_FAILED,
    GPW_HTTP_BUSY,
    GPW_HTTP_ABORTED,
    GPW_HTTP_STREAMS,
    GPW_HTTP_TOKENS,
    GPW_HTTP_GENERATIONS,
    GPW_HTTP_FIRST_TOKEN,
    GPW_HTTP_TOTAL,
    GPW_HTTP_METRIC_COUNT
} gpw_http_metric_t;
void gpw_http_metrics_register(void);
void gpw_http_metric_add(gpw_http_metric_t metric, int64_t amount);
void gpw_http_metric_observe(gpw_http_metric_t metric, uint64_t value);

#endif
