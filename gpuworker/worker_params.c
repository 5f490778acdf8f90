// SPDX-License-Identifier: Apache-2.0
// What a request asks for, checked before it is one: each refusal says what to change.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gpuworker/worker_internal.h"

as_status_t gpw_refuse(const gpw_refusal_t *refusal, as_status_t status, const char *format, ...)
{
    if (refusal->bytes > 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(refusal->text, refusal->bytes, format, arguments);
        va_end(arguments);
    }
    return status;
}

static as_status_t check_ids(const char *what, const int32_t *tokens, uint32_t count,
                             uint32_t vocab, const gpw_refusal_t *refusal)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab) {
            return gpw_refuse(refusal, AS_ERR_INVALID,
                              "%s token %u is %d: ids are 0 to %u in this model", what, i,
                              tokens[i], vocab - 1);
        }
    }
    return AS_OK;
}

static as_status_t check_tokens(const gpw_worker_t *worker, const gpw_request_params_t *p,
                                const gpw_refusal_t *refusal)
{
    uint32_t vocab = worker->options.model->vocab;
    uint32_t context = worker->options.context_max;
    if (p->token_count == 0 || !p->tokens) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "prompt is empty: give at least one token");
    }
    if (p->max_tokens == 0) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "max_tokens must be at least 1");
    }
    if (p->token_count >= context || p->max_tokens > context - p->token_count) {
        return gpw_refuse(refusal, AS_ERR_LIMIT,
                          "prompt of %u tokens and max_tokens %u exceed the context of %u tokens: "
                          "shorten the prompt or lower max_tokens",
                          p->token_count, p->max_tokens, context);
    }
    as_status_t status = check_ids("prompt", p->tokens, p->token_count, vocab, refusal);
    if (status == AS_OK && p->continuation) {
        status = check_ids("continuation", p->continuation, p->max_tokens, vocab, refusal);
    }
    return status;
}

static as_status_t check_choices(const gpw_request_params_t *p, const gpw_refusal_t *refusal)
{
    if (!(p->choose.temperature >= 0.0f) || !isfinite(p->choose.temperature)) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "temperature must be a number from 0 on");
    }
    if (!(p->choose.top_p > 0.0f && p->choose.top_p <= 1.0f)) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "top_p must be above 0 and at most 1");
    }
    if (p->logprobs > GPW_LOGPROBS_MAX) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "logprobs must be at most %u", GPW_LOGPROBS_MAX);
    }
    if (p->horizon_set && p->horizon > GPW_HORIZON_MAX) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "horizon must be at most %u", GPW_HORIZON_MAX);
    }
    if (p->prompt_lookup_set && p->prompt_lookup > GPW_LOOKUP_MAX) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "prompt_lookup must be at most %u",
                          GPW_LOOKUP_MAX);
    }
    return AS_OK;
}

as_status_t gpw_params_check(const gpw_worker_t *worker, const gpw_request_params_t *params,
                             const gpw_refusal_t *refusal)
{
    as_status_t status = check_tokens(worker, params, refusal);
    return status == AS_OK ? check_choices(params, refusal) : status;
}

as_status_t gpw_params_compressor(const gpw_worker_t *worker, const char *name,
                                  const gpw_refusal_t *refusal,
                                  const gpw_compressor_t **compressor_p)
{
    const gpw_compressor_t *found = gpw_compressor_find(name);
    *compressor_p = NULL;
    if (!found && strcmp(name, "none") != 0 && strcmp(name, GPW_COMPRESSOR_AUTO) != 0) {
        return gpw_refuse(refusal, AS_ERR_INVALID, "compressor \"%s\" is not known: use %s", name,
                          gpw_compressor_list());
    }
    if (!found) {
        return AS_OK;
    }
    if (found->flags & GPW_COMPRESSOR_CALIBRATED && !worker->calibrated) {
        return gpw_refuse(refusal, AS_ERR_INVALID,
                          "compressor \"%s\" needs a calibration of the model: start the worker "
                          "with --calibration FILE, which `assay calibrate` makes",
                          name);
    }
    if (found->flags & GPW_COMPRESSOR_SUMMARIZES && !worker->calibration.maps) {
        return gpw_refuse(refusal, AS_ERR_INVALID,
                          "compressor \"%s\" needs a summary, which the worker's calibration was "
                          "made without: make it again by `assay calibrate`, without "
                          "--summary-epochs 0",
                          name);
    }
    *compressor_p = gpw_worker_compressor_table(worker) + (found - gpw_compressors());
    return AS_OK;
}
