// SPDX-License-Identifier: Apache-2.0
// What a client asks for: the body of POST /v1/completions or /v1/chat/completions, checked.
//
// Parsing is a pure function of the bytes. Every parameter is known, of the right type and in
// range, or the request is refused with an error that names it and says what to do: nothing is
// ignored. A parameter that is null counts as left out; a parameter of a feature that is not
// offered is accepted at the value at which it does nothing.
#ifndef GPW_OPENAI_H
#define GPW_OPENAI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gpuworker/model/tokenizer.h"
#include "gpuworker/serve/text.h"
#include "gpuworker/worker.h"

#define GPW_API_CHOICES_MAX     8u
#define GPW_API_MESSAGES_MAX    1024u
#define GPW_API_SALT_BYTES_MAX  256u
#define GPW_API_DEADLINE_MS_MAX 3600000u
#define GPW_API_JSON_DEPTH_MAX  16u // a body needs 6
#define GPW_API_JSON_VALUES_MAX                                                                    \
    1048576u // bounds the memory of a parsed body; far above any context
#define GPW_API_COMPLETION_MAX_TOKENS 16u // default of /v1/completions, as in OpenAI's

typedef enum gpw_api_kind { GPW_API_COMPLETION, GPW_API_CHAT } gpw_api_kind_t;

// An answer other than 200.
typedef struct gpw_api_error {
    int code;           // HTTP
    const char *type;   // "invalid_request_error"
    const char *reason; // OpenAI's `code`: "unknown_parameter"; may be NULL
    char param[64];     // "" when no parameter is at fault
    char message[512];
} gpw_api_error_t;

typedef struct gpw_api_fault {
    int code;
    const char *reason, *param; // may be NULL
} gpw_api_fault_t;

void gpw_api_error_set(gpw_api_error_t *error, gpw_api_fault_t fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// What this worker can take.
typedef struct gpw_api_limits {
    int32_t vocab;
    uint32_t context_max;
    const char *const *compressors; // NULL-terminated
} gpw_api_limits_t;

typedef struct gpw_api_request {
    gpw_api_kind_t kind;
    const char *model;  // NULL: left out
    const char *prompt; // completions: text, or
    int32_t *tokens;    // token ids
    uint32_t token_count;
    gpw_chat_message_t *messages; // chat
    uint32_t message_count;
    uint32_t max_tokens;   // 0: left out
    int32_t *continuation; // what the answer is to be; NULL: it is chosen
    uint32_t continuation_count;
    gpw_choose_params_t choose;
    bool seed_set;
    const char *stops[GPW_STOPS_MAX];
    uint32_t stop_count;
    bool stream, include_usage, include_queue;
    bool want_logprobs;
    uint32_t logprobs; // alternatives a position
    uint32_t choices;  // n
    const char *cache_salt;
    const char *compressor;
    gpw_verify_t verify;
    uint32_t horizon;
    uint32_t prompt_lookup;
    bool prompt_lookup_set;
    bool horizon_set, logits_hash, ignore_end;
    uint64_t deadline_us; // 0: the worker's
    void *json;           // owns the strings
} gpw_api_request_t;

typedef struct gpw_api_body {
    gpw_api_kind_t kind; // by the path it was sent to
    const char *bytes;
    size_t count;
} gpw_api_body_t;

// False: `error` is set and there is nothing to free.
bool gpw_api_parse(const gpw_api_body_t *body, const gpw_api_limits_t *limits,
                   gpw_api_request_t *request, gpw_api_error_t *error);
void gpw_api_request_fini(gpw_api_request_t *request);

#endif
