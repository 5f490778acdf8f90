// SPDX-License-Identifier: Apache-2.0
// Proposals of a session, and what became of them.
#include "gpuworker/decode/proposals.h"

#include "gpuworker/engine.h"

bool gpw_proposals_get(gpw_request_t *request, uint32_t room, uint32_t *count_p)
{
    if (gpw_draft_model_is_asked(request)) {
        return gpw_draft_model_take(request, room, count_p);
    }
    gpw_lookup_t *lookup = &request->lookup;
    gpw_lookup_index(lookup, request->tokens, request->token_count);
    uint32_t end = request->token_count + request->draft_count;
    float price = gpw_row_price_get(&request->engine->batch.price);
    *count_p = gpw_lookup_propose(lookup, request->tokens, end, room, price);
    return *count_p > 0 || room == 0 || !gpw_draft_model_ask(request, room);
}

static void count(uint32_t amount, uint32_t *usage, gpw_metric_t metric)
{
    *usage += amount;
    gpw_metric_add(metric, amount);
}

void gpw_proposals_learn(gpw_request_t *request, int32_t next, uint32_t accepted)
{
    gpw_usage_t *usage = &request->usage;
    bool was_proposed =
        request->drafting || request->keep_full; // else it verified what was drafted
    double row_us = was_proposed ? request->pass.busy_us / request->pass.rows : 0;
    uint32_t modelled = gpw_draft_model_learn(request, accepted, row_us);
    uint32_t looked_up = request->lookup.count;
    uint32_t right = accepted < looked_up ? accepted : looked_up;
    gpw_lookup_learn(&request->lookup, next, right);
    request->lookup.count = 0;
    count(looked_up, &usage->proposed_tokens, GPW_METRIC_PROPOSED_TOKENS_TOTAL);
    count(right, &usage->proposals_accepted, GPW_METRIC_PROPOSALS_ACCEPTED_TOTAL);
    right = accepted < modelled ? accepted : modelled;
    count(modelled, &usage->model_proposed_tokens, GPW_METRIC_MODEL_PROPOSED_TOKENS_TOTAL);
    count(right, &usage->model_proposals_accepted, GPW_METRIC_MODEL_PROPOSALS_ACCEPTED_TOTAL);
}

void gpw_proposals_stop(gpw_request_t *request)
{
    if (gpw_draft_model_is_asked(request)) {
        request->lookup.length = 0; // nobody sees what follows its match
    }
    gpw_draft_model_stop(request);
}
