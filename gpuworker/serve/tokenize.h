// SPDX-License-Identifier: Apache-2.0
// Requests become tokens on a thread of their own, so that a long one does not hold up the io loop.
//
// The worst prompt that a context of 8192 tokens allows takes seconds to encode, and 8 MiB of JSON
// take a quarter of one to parse. A short request is done where it is asked for; of those that wait
// for the thread the shortest is next.
#ifndef GPW_TOKENIZE_H
#define GPW_TOKENIZE_H

#include "common/loop.h"
#include "gpuworker/model/tokenizer.h"

#define GPW_TOKENIZE_SHORT_BYTES 4096u // a few milliseconds at worst

typedef struct gpw_tokenize gpw_tokenize_t;

// The caller's, with all that it points to, until `done` has run or gpw_tokenize_free.
typedef struct gpw_tokenize_job {
    size_t bytes; // of the request: what it is judged by
    // Reads the request and sets what follows. False: there is nothing to encode. NULL: it is set.
    // Gets the ctx of `done`; must leave alone all that the loop's thread may touch meanwhile.
    bool (*prepare)(void *ctx);
    const char *text;
    size_t text_bytes;
    const gpw_prompt_t *conversation; // whose text that is; NULL: a raw prompt, encoded by options
    gpw_encode_options_t options;
    int32_t *tokens;
    size_t tokens_max;
    as_task_t done; // fn and ctx; posted to the loop
    // The outcome: of gpw_tokenizer_encode or gpw_tokenizer_encode_prompt.
    as_status_t status;
    size_t token_count;
    struct gpw_tokenize_job *next;
} gpw_tokenize_job_t;

as_status_t gpw_tokenize_alloc(as_loop_t *loop, const gpw_tokenizer_t *tokenizer,
                               gpw_tokenize_t **tokenize_p) AS_MUST_USE;
// True: the outcome is there, and `done` will not run. False: `done` will.
bool gpw_tokenize_start(gpw_tokenize_t *tokenize, gpw_tokenize_job_t *job);
// Waits for the job that is under way and drops the others. Those that are done may still be posted
// (as_loop_unpost). NULL is fine.
void gpw_tokenize_free(gpw_tokenize_t *tokenize);

#endif
