// SPDX-License-Identifier: Apache-2.0
// The step ROUTE: asks the scheduler which prefix of the prompt is stored, and where. Any failure
// is a missing prefix.
//
// A hit never covers the whole prompt: the last token is always computed, since its logits choose
// the first token; and so is what a query-aware compressor looks at, so that what it chooses does
// not depend on what was stored. That costs a block more to compute at most.
#include "gpuworker/engine.h"

// Loading must be expected to take this much longer than computing, since neither is known well.
#define MARGIN 1.25

static void on_news(void *ctx, gpw_transfer_t *transfer)
{
    (void)transfer;
    gpw_request_wake(ctx);
}

static as_status_t start(gpw_request_t *request, uint32_t block_count)
{
    gpw_engine_t *engine = request->engine;
    for (uint32_t b = 0; b < block_count; b++) {
        engine->block_keys[b] = request->blocks.block[b].key;
    }
    uint64_t deadline_us = as_loop_now_us(engine->loop) + engine->options.route_deadline_us;
    gpw_transfer_params_t params = {
        .kind = GPW_TRANSFER_ROUTE,
        .on_news = on_news,
        .ctx = request,
        .deadline_us = deadline_us < request->deadline_us ? deadline_us : request->deadline_us,
        .shape = engine->shape,
        .namespace_key = request->blocks.namespace_key,
        .keys = engine->block_keys,
        .block_count = block_count,
        .prompt_tokens = request->token_count,
    };
    return gpw_transfer_start(engine->link, &params, &request->route);
}

// Whether the hit's tokens are computed sooner than its blocks are loaded, by what was measured of
// both. What is not known is loaded.
static bool is_recompute_faster(const gpw_request_t *request, const gpw_transfer_news_t *news)
{
    const gpw_engine_t *engine = request->engine;
    double own = engine->options.recompute_tokens_per_s;
    double us_per_token = own > 0 ? 1e6 / own : engine->prefill_us_per_token;
    double recompute_us = us_per_token * news->located_blocks * engine->shape.block_tokens;
    return own >= 0 && recompute_us > 0 && (double)news->load_us > MARGIN * recompute_us;
}

// Without a scheduler the whole prefix is asked for where placement would put it.
gpw_turn_t gpw_route_turn(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    uint32_t window = gpw_observe_window(request);
    uint32_t computed = window ? window : 1; // at least
    uint32_t left = request->token_count > computed ? request->token_count - computed : 0;
    uint32_t blocks = left / engine->shape.block_tokens;
    blocks = blocks < AS_CHAIN_BLOCKS_MAX ? blocks : AS_CHAIN_BLOCKS_MAX;
    request->hit_limit = 0;
    // A request that began again for want of memory does without: it would only meet the same
    // fault.
    if (blocks == 0 || !gpw_link_has_client(engine->link) || request->restarts > 0) {
        return gpw_request_go(request, GPW_STEP_PREFILL);
    }
    if (!gpw_link_has_scheduler(engine->link)) {
        request->hit_limit = blocks;
        return gpw_request_go(request, GPW_STEP_FETCH);
    }
    if (!request->route) {
        return start(request, blocks) == AS_OK ? GPW_TURN_WAIT
                                               : gpw_request_go(request, GPW_STEP_PREFILL);
    }
    const gpw_transfer_news_t *news = gpw_transfer_news(request->route);
    if (!news->done) {
        return GPW_TURN_WAIT;
    }
    request->hit_limit = news->status == AS_OK ? news->located_blocks : 0;
    if (request->hit_limit > 0 && is_recompute_faster(request, news)) {
        request->usage.chosen_blocks += request->hit_limit;
        gpw_metric_add(GPW_METRIC_CHOSEN_BLOCKS_TOTAL, request->hit_limit);
        request->hit_limit = 0;
    }
    return gpw_request_go(request, request->hit_limit ? GPW_STEP_FETCH : GPW_STEP_PREFILL);
}
