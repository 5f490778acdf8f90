// SPDX-License-Identifier: Apache-2.0
// The steps FETCH and PREFILL: the prefix that stores hold, then everything behind it, layer by
// layer.
//
// FETCH only waits until the stores have said how much there is. Then the rows of the rest run
// layer l as soon as the prefix's layer l is here; each layer is sealed before the ring lets go of
// it. So the first token comes one layer's computation after the last byte, from exact logits.
#include "common/assert.h"
#include "gpuworker/decode/prefix.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"

#define FETCH_TRIES  2u   // of a prefix, each shorter than the one before; then it is computed here
#define MEASURE_ROWS 16u  // fewer tell more of what else a turn costs
#define NEWEST       0.25 // weight of the newest measurement

// ---- FETCH -------------------------------------------------------------------------------------

static gpw_turn_t begin_without_prefix(gpw_request_t *request)
{
    gpw_swap_end(request);
    request->hit_limit = 0;
    return gpw_request_go(request, GPW_STEP_PREFILL);
}

// Whether the request has a forward pass for so many rows; takes one of the few long ones if it
// must.
static bool has_forward_for(gpw_request_t *request, uint32_t rows)
{
    if (rows > request->forward->rows_max && !request->long_forward) {
        request->long_forward = gpw_engine_take_forward(request->engine, true);
    }
    return rows <= request->forward->rows_max || request->long_forward;
}

// The stores did not attend: the prefix is fetched.
static gpw_turn_t fetch_instead(gpw_request_t *request)
{
    gpw_push_give_up(request);
    gpw_request_close_cache(request);
    as_status_t status = gpw_request_open_cache(request);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the request's cache");
    }
    return gpw_request_go(request, GPW_STEP_FETCH);
}

// Where the scheduler said that each block is; NULL: by placement.
static const uint64_t *route_nodes(const gpw_request_t *request)
{
    return request->route ? gpw_transfer_news(request->route)->node_ids : NULL;
}

// The rest's attention over the prefix is computed where the prefix is.
static gpw_turn_t push_prefix(gpw_request_t *request)
{
    if (request->blocks.stored == 0) {
        gpw_blocks_adopt(&request->blocks, route_nodes(request), request->hit_limit);
    }
    as_status_t status = gpw_push_prefix(request);
    if (status == AS_ERR_BUSY) {
        return GPW_TURN_WAIT;
    }
    return status == AS_OK ? gpw_request_go(request, GPW_STEP_PREFILL) : fetch_instead(request);
}

gpw_turn_t gpw_fetch_turn(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    bool adopted = request->blocks.stored > 0; // it waits for its turn
    if (!swap->stream && gpw_swap_is_too_early(request)) {
        return GPW_TURN_WAIT;
    }
    if (!swap->stream && (adopted || gpw_prefix_is_pushed(request, request->hit_limit))) {
        return push_prefix(request);
    }
    if (!swap->stream) {
        // Before the fetch: its lease and its deadline must not run while others prefill.
        uint32_t hit_tokens = request->hit_limit * request->blocks.shape.block_tokens;
        if (!has_forward_for(request, request->token_count - hit_tokens)) {
            return GPW_TURN_WAIT;
        }
        as_status_t status = gpw_swap_start(request, 0, request->hit_limit, route_nodes(request));
        if (status == AS_OK || status == AS_ERR_BUSY) {
            return GPW_TURN_WAIT;
        }
        return begin_without_prefix(request);
    }
    gpw_stream_t *stream = swap->stream;
    const gpw_transfer_news_t *news = gpw_transfer_news(stream->transfer);
    bool failed = news->done && news->status != AS_OK;
    if (failed && news->layers == 0 && (!news->located || news->hole_block == 0)) {
        if (!gpw_swap_is_refused(request) || ++request->swap_failures == FETCH_TRIES) {
            return begin_without_prefix(request);
        }
        gpw_swap_end(request);
        return GPW_TURN_AGAIN;
    }
    if (!news->located) {
        return GPW_TURN_WAIT;
    }
    if (news->located_blocks == 0) {
        return begin_without_prefix(request);
    }
    stream->block_count =
        news->located_blocks < stream->block_count ? news->located_blocks : stream->block_count;
    gpw_blocks_adopt(&request->blocks, route_nodes(request), stream->block_count);
    return gpw_request_go(request, GPW_STEP_PREFILL);
}

// ---- PREFILL -----------------------------------------------------------------------------------

// The stored prefix is sealed whole: none of it is held, so none of it can be tail.
static uint32_t sealed_target(const gpw_request_t *request)
{
    uint32_t target = gpw_sealed_target(&request->blocks.shape, request->token_count);
    return target > request->blocks.stored ? target : request->blocks.stored;
}

static void seal_layer(gpw_request_t *request, uint32_t layer)
{
    gpw_sealed_t *sealed = &request->sealed;
    uint64_t start_us = as_loop_now_us(request->engine->loop);
    if (!sealed->segment) {
        return;
    }
    if (request->observer.rows) {
        gpw_observe_layer(request, layer);
    }
    uint32_t target = sealed_target(request);
    for (uint32_t b = 0; b < target; b++) {
        sealed->compressor->seal(sealed->segment, layer, b, gpw_pass_extent(request, b, layer));
    }
    uint64_t us = as_loop_now_us(request->engine->loop) - start_us;
    request->chosen.sealing_us += (double)us;
    gpw_metric_add(GPW_METRIC_SEALING_US_TOTAL, (int64_t)us);
}

// A session that keeps its blocks holds its prefix too; it is still known where it is stored.
static as_status_t hold_prefix(gpw_request_t *request)
{
    gpw_blocks_t *blocks = &request->blocks;
    uint32_t count = blocks->stored;
    for (uint32_t b = 0; b < count; b++) {
        request->engine->block_nodes[b] = blocks->block[b].node_id;
    }
    as_status_t status = gpw_blocks_hold(blocks, 0);
    for (uint32_t b = 0; b < count && status == AS_OK; b++) {
        blocks->block[b].node_id = request->engine->block_nodes[b];
    }
    return status;
}

// What stores have is not held here: the memory of it is others', as is what the segment spared. A
// recompute reserves its own.
static void give_back(gpw_request_t *request)
{
    const gpw_blocks_t *blocks = &request->blocks;
    gpw_sealed_t *sealed = &request->sealed;
    gpw_budget_shrink(&request->budget, blocks->stored * (uint64_t)as_block_bytes(&blocks->shape) +
                                            sealed->spared_bytes);
    sealed->spared_bytes = 0;
    gpw_engine_freed(request->engine);
}

static void let_go(gpw_request_t *request)
{
    gpw_pass_end(request);
    gpw_swap_end(request);
    gpw_observe_end(request);
    if (request->long_forward) {
        gpw_engine_give_forward(request->engine, request->long_forward);
        request->long_forward = NULL;
    }
}

// How long a token of a prompt takes, with all that the worker does beside it.
static void measure(gpw_request_t *request, uint32_t rows)
{
    gpw_engine_t *engine = request->engine;
    if (request->prefill_us == 0 || rows < MEASURE_ROWS) {
        return;
    }
    double us = (double)(as_loop_now_us(engine->loop) - request->prefill_us) / rows;
    double *mean = &engine->prefill_us_per_token;
    *mean = *mean > 0 ? *mean + NEWEST * (us - *mean) : us;
}

static gpw_turn_t complete(gpw_request_t *request, const float *logits, uint32_t count)
{
    AS_ASSERT(count == 1);
    measure(request, request->pass.rows);
    int32_t token = gpw_reply_choose(request, logits, request->token_count);
    bool pushed = gpw_swap_is_pushed(&request->swap);
    if (pushed) {
        gpw_push_prefix_done(request);
    }
    request->sealed.blocks = request->sealed.segment && !pushed ? sealed_target(request) : 0;
    request->blocks.tokens = request->token_count;
    gpw_blocks_filled(&request->blocks);
    request->exact_tokens = request->token_count;
    let_go(request);
    gpw_candidates_sealed(request, request->sealed.blocks * request->blocks.shape.block_tokens);
    give_back(request);
    gpw_metric_add(GPW_METRIC_CACHED_TOKENS_TOTAL, request->usage.cached_tokens);
    if (request->route) {
        gpw_transfer_retire(request->route);
        request->route = NULL;
    }
    bool is_complete = gpw_reply_token(request, token, logits);
    gpw_reply_flush(request);
    return is_complete ? gpw_reply_complete(request) : gpw_request_go(request, GPW_STEP_SEAL);
}

// The prefix broke off: everything begins anew with what lies before the hole.
static gpw_turn_t shorten(gpw_request_t *request, uint32_t hole)
{
    if (gpw_swap_is_pushed(&request->swap)) {
        return fetch_instead(request);
    }
    uint32_t lost = request->swap.stream->block_count - hole;
    request->usage.recomputed_blocks += lost;
    gpw_metric_add(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL, lost);
    let_go(request);
    gpw_request_close_cache(request);
    as_status_t status = gpw_request_open_cache(request);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the request's cache");
    }
    request->swap_failures++;
    request->hit_limit = request->swap_failures < FETCH_TRIES ? hole : 0;
    return gpw_request_go(request, request->hit_limit ? GPW_STEP_FETCH : GPW_STEP_PREFILL);
}

static const gpw_pass_kind_t prefill_pass = {.full = true,
                                             .logits = GPW_LOGITS_LAST,
                                             .attend = gpw_pass_attend_full,
                                             .after_layer = seal_layer,
                                             .complete = complete,
                                             .failed = shorten};

static gpw_turn_t begin(gpw_request_t *request)
{
    gpw_blocks_t *blocks = &request->blocks;
    uint32_t position = blocks->tokens;
    uint32_t rows = request->token_count - position;
    if (!has_forward_for(request, rows)) {
        return GPW_TURN_WAIT;
    }
    bool few = rows <= request->forward->rows_max;
    gpw_forward_slot_t *slot = few ? request->forward : request->long_forward;
    request->usage.cached_tokens = request->restarts ? request->usage.cached_tokens : position;
    as_status_t status = gpw_blocks_cover(blocks, request->token_count);
    bool pushed = gpw_swap_is_pushed(&request->swap); // it is sealed when the first token has left
    if (status == AS_OK && !pushed && gpw_request_keeps_blocks(request)) {
        status = hold_prefix(request);
    }
    if (status == AS_OK && !pushed && request->sealed.segment) {
        status = gpw_sealed_reserve(&request->sealed, sealed_target(request));
    }
    if (status == AS_OK) {
        status = gpw_observe_begin(request, rows);
    }
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the prompt's cache");
    }
    request->prefill_us = request->swap.stream ? 0 : as_loop_now_us(request->engine->loop);
    gpw_turn_t turn = gpw_pass_begin(request, &prefill_pass, slot, position, rows);
    return pushed ? gpw_pass_turn(request) : turn;
}

gpw_turn_t gpw_prefill_turn(gpw_request_t *request)
{
    return request->passing ? gpw_pass_turn(request) : begin(request);
}
