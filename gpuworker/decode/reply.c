// SPDX-License-Identifier: Apache-2.0
// REPLY: the one place where a token is accepted into a request's answer, and from where it leaves.
#include "gpuworker/engine.h"

#include <string.h>
#include <openssl/sha.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/worker_internal.h"

int32_t gpw_reply_choose(gpw_request_t *request, const float *logits, uint32_t position)
{
    gpw_engine_t *engine = request->engine;
    if (request->continuation) {
        AS_ASSERT(position - request->prompt_count < request->params.max_tokens);
        return request->continuation[position - request->prompt_count];
    }
    return gpw_choose(logits, engine->options.model->vocab, position, &request->params.choose,
                      engine->choose_scratch);
}

static bool is_end(const gpw_request_t *request, int32_t token)
{
    const struct gpw_tokenizer *tokenizer = request->engine->options.model->tokenizer;
    return !request->params.ignore_end && tokenizer && gpw_tokenizer_is_end(tokenizer, token);
}

static void describe(gpw_request_t *request, const float *logits, gpw_token_event_t *event)
{
    const gpw_request_params_t *params = &request->params;
    uint32_t vocab = request->engine->options.model->vocab;
    if (params->logits_hash) {
        uint8_t digest[SHA256_DIGEST_LENGTH];
        SHA256((const unsigned char *)logits, vocab * sizeof(float), digest);
        memcpy(&event->logits_hash, digest, sizeof(event->logits_hash));
    }
    if (params->want_logprobs) {
        event->logprob = gpw_logprob(logits, vocab, event->token);
        event->top_count = params->logprobs;
        if (params->logprobs > 0) {
            gpw_top_logprobs(logits, vocab, params->logprobs, event->top_tokens,
                             event->top_logprobs);
        }
    }
}

// Room for one more token in the batch of this turn.
static gpw_token_event_t *next_event(gpw_request_t *request)
{
    gpw_token_batch_t *batch = request->batch;
    if (!batch) {
        size_t bytes = sizeof(*batch) + (GPW_HORIZON_MAX + 1) * sizeof(gpw_token_event_t);
        batch = as_mem_alloc(bytes);
        if (!batch) {
            return NULL;
        }
        batch->next = NULL;
        batch->count = 0;
        request->batch = batch;
    }
    gpw_token_event_t *event = &batch->tokens[batch->count++];
    memset(event, 0, sizeof(*event));
    return event;
}

bool gpw_reply_token(gpw_request_t *request, int32_t token, const float *logits)
{
    request->tokens[request->token_count++] = token;
    request->usage.completion_tokens++;
    gpw_metric_add(GPW_METRIC_TOKENS_TOTAL, 1);
    if (!request->first_us) {
        request->first_us = as_loop_now_us(request->engine->loop);
        request->usage.first_token_us = request->first_us - request->submitted_us;
        gpw_metric_observe(GPW_METRIC_FIRST_TOKEN_US, request->usage.first_token_us);
    }
    gpw_token_event_t *event = next_event(request);
    if (!event) {
        request->out_of_memory = true;
        return true;
    }
    event->token = token;
    describe(request, logits, event);
    return is_end(request, token) || request->usage.completion_tokens == request->params.max_tokens;
}

void gpw_reply_flush(gpw_request_t *request)
{
    gpw_token_batch_t *batch = request->batch;
    if (!batch) {
        return;
    }
    request->batch = NULL;
    gpw_token_batch_t *newest = atomic_load(&request->handed);
    do {
        batch->next = newest;
    } while (!atomic_compare_exchange_weak(&request->handed, &newest, batch));
    gpw_worker_post_io(request->worker, &request->tokens_task);
}

gpw_turn_t gpw_reply_complete(gpw_request_t *request)
{
    if (request->out_of_memory) {
        return gpw_request_fail(request, AS_ERR_NO_MEMORY, "no memory for the answer's tokens");
    }
    bool end = is_end(request, request->tokens[request->token_count - 1]);
    return gpw_request_finish(request, end ? GPW_FINISH_STOP : GPW_FINISH_LENGTH, AS_OK, NULL);
}
