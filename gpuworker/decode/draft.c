// SPDX-License-Identifier: Apache-2.0
// The step DRAFT: tokens decoded on the resident cache, one forward pass of one row a turn.
//
// Attention is the segment's partial merged with that of the tail: exact blocks behind the segment,
// then the provisional pages with the draft's own K and V. Without verification (verify: off) there
// are no provisional pages: the tokens leave at once and their K and V, lossy as they are, become
// the tail.
#include <math.h>

#include "common/assert.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/partials.h"

#define EARLY_STEPS                                                                                \
    4u // draft steps before a draft's end at which its swap begins: they hide the first layers' way

typedef struct draft_row {
    gpw_request_t *request;
    int32_t token, position;
} draft_row_t;

static uint8_t *tail_extent(const gpw_request_t *request, uint32_t block, uint32_t layer)
{
    uint8_t *extent = request->drafting ? gpw_tail_extent(&request->tail, block, layer) : NULL;
    return extent ? extent : gpw_blocks_extent(&request->blocks, block, layer);
}

static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    draft_row_t *row = ctx;
    gpw_request_t *request = row->request;
    gpw_engine_t *engine = request->engine;
    const as_shape_t *shape = &engine->shape;
    const gpw_sealed_t *sealed = &request->sealed;
    AS_ASSERT(row0 == 0 && rows == 1);
    uint32_t last = (uint32_t)row->position / shape->block_tokens;
    gpw_extent_store(shape, tail_extent(request, last, layer), (uint32_t)row->position, k, v);
    uint32_t count = 0;
    for (uint32_t b = sealed->blocks; b <= last; b++) {
        engine->pages[count++] = gpw_page(shape, tail_extent(request, b, layer), b);
    }
    krn_partials_t total = gpw_partials_carve(engine->partials[0], shape->q_heads, shape->head_dim);
    gpw_segment_attend_t segment_args = {.pool = engine->pool,
                                         .layer = layer,
                                         .rows = 1,
                                         .scale = 1.0f / sqrtf((float)shape->head_dim),
                                         .q = q,
                                         .out = &total,
                                         .scratch = engine->segment_scratch};
    sealed->compressor->attend(sealed->segment, &segment_args);
    krn_attention_args_t args = {.rows = 1,
                                 .q_heads = shape->q_heads,
                                 .kv_heads = shape->kv_heads,
                                 .dim = shape->head_dim,
                                 .capacity = shape->block_tokens,
                                 .scale = segment_args.scale,
                                 .q = q,
                                 .positions = &row->position,
                                 .pages = engine->pages,
                                 .page_count = count};
    gpw_pages_attend(engine->options.ops, engine->pool, &args, engine->partials[1], &total);
    engine->options.ops->normalise(&total, shape->q_heads, shape->head_dim, out);
}

// Runs the row; logits are in engine->logits. Returns the token that follows.
static int32_t step(gpw_request_t *request, draft_row_t *row)
{
    gpw_engine_t *engine = request->engine;
    gpw_forward_t *forward = request->forward->forward;
    gpw_forward_begin(forward, &row->token, &row->position, 1);
    for (uint32_t layer = 0; layer < engine->shape.layers; layer++) {
        gpw_forward_layer(forward, attend, row);
    }
    uint32_t first = 0;
    gpw_forward_logits(forward, &first, 1, engine->logits);
    return gpw_reply_choose(request, engine->logits, (uint32_t)row->position + 1);
}

static gpw_turn_t emit_unverified(gpw_request_t *request)
{
    gpw_blocks_t *blocks = &request->blocks;
    as_status_t status = gpw_blocks_cover(blocks, request->token_count);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the tail");
    }
    draft_row_t row = {request, request->tokens[request->token_count - 1],
                       (int32_t)request->token_count - 1};
    int32_t token = step(request, &row);
    blocks->tokens = request->token_count;
    request->usage.drafted_tokens++;
    gpw_metric_add(GPW_METRIC_DRAFTED_TOKENS_TOTAL, 1);
    bool complete = gpw_reply_token(request, token, request->engine->logits);
    gpw_reply_flush(request);
    if (complete) {
        return gpw_reply_complete(request);
    }
    bool sealable = gpw_sealed_target(&blocks->shape, blocks->tokens) > request->sealed.blocks;
    return sealable ? gpw_request_go(request, GPW_STEP_SEAL) : GPW_TURN_AGAIN;
}

static void start_swap_early(gpw_request_t *request)
{
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->blocks.stored, &first);
    bool under_way = request->swap.transfer != NULL;
    if (count == 0 || under_way || as_loop_now_us(request->engine->loop) < request->swap_retry_us) {
        return;
    }
    // Too early to fail: the step SWAP tries again and says why.
    as_status_t status = gpw_swap_start(request, first, count, NULL);
    (void)status;
}

static bool is_end(const gpw_request_t *request, int32_t token)
{
    const struct gpw_tokenizer *tokenizer = request->engine->options.model->tokenizer;
    return !request->params.ignore_end && tokenizer && gpw_tokenizer_is_end(tokenizer, token);
}

gpw_turn_t gpw_draft_turn(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    if (request->keep_full || !request->sealed.segment) {
        return gpw_request_go(request, GPW_STEP_SWAP);
    }
    if (!request->verify) {
        return emit_unverified(request);
    }
    uint32_t left = gpw_request_drafts_left(request);
    uint32_t horizon = gpw_horizon_get(&request->horizon);
    horizon = horizon < left ? horizon : left;
    if (!request->drafting && horizon > 0) {
        gpw_tail_begin(&request->tail, &request->blocks);
        request->drafting = true;
        request->draft_us = as_loop_now_us(engine->loop);
    }
    if (request->draft_count + EARLY_STEPS >= horizon) {
        start_swap_early(request);
    }
    if (request->draft_count < horizon) {
        uint32_t last = request->token_count + request->draft_count;
        draft_row_t row = {request, request->tokens[last - 1], (int32_t)last - 1};
        request->tokens[last] = step(request, &row);
        request->draft_count++;
        if (request->draft_count < horizon && !is_end(request, request->tokens[last])) {
            return GPW_TURN_AGAIN;
        }
    }
    request->drafting = false;
    request->draft_us = horizon ? as_loop_now_us(engine->loop) - request->draft_us : 0;
    return gpw_request_go(request, GPW_STEP_SWAP);
}
