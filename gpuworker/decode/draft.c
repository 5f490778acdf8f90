// SPDX-License-Identifier: Apache-2.0
// The step DRAFT: tokens decoded on the resident cache, a pass of one row each, in step with the
// drafts of other sessions.
//
// Attention is the segment's partial merged with that of the tail: exact blocks behind the segment,
// then the provisional pages with the draft's own K and V. Without verification (verify: off) there
// are no provisional pages: the tokens leave at once and their K and V, lossy as they are, become
// the tail.
#include <math.h>

#include "common/assert.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/partials.h"

static uint8_t *tail_extent(const gpw_request_t *request, uint32_t block, uint32_t layer)
{
    uint8_t *extent = request->drafting ? gpw_tail_extent(&request->tail, block, layer) : NULL;
    return extent ? extent : gpw_blocks_extent(&request->blocks, block, layer);
}

static void attend(gpw_request_t *request, const gpw_pass_rows_t *rows)
{
    const gpw_engine_t *engine = request->engine;
    const gpw_attend_scratch_t *scratch = rows->scratch;
    const as_shape_t *shape = &engine->shape;
    const gpw_sealed_t *sealed = &request->sealed;
    AS_ASSERT(rows->rows == 1);
    uint32_t position = request->pass.position;
    uint32_t last = position / shape->block_tokens;
    gpw_extent_store(shape, tail_extent(request, last, rows->layer), position, rows->k, rows->v);
    uint32_t count = 0;
    for (uint32_t b = sealed->blocks; b <= last; b++) {
        scratch->pages[count++] = gpw_page(shape, tail_extent(request, b, rows->layer), b);
    }
    krn_partials_t total =
        gpw_partials_carve(scratch->partials[0], shape->q_heads, shape->head_dim);
    gpw_segment_attend_t segment_args = {.pool = scratch->pool,
                                         .layer = rows->layer,
                                         .rows = 1,
                                         .scale = 1.0f / sqrtf((float)shape->head_dim),
                                         .q = rows->q,
                                         .out = &total,
                                         .scratch = scratch->segment};
    sealed->compressor->attend(sealed->segment, &segment_args);
    krn_attention_args_t args = gpw_page_attention(shape, 1, segment_args.scale, rows->q);
    args.positions = request->pass.slot->positions;
    args.pages = scratch->pages;
    args.page_count = count;
    gpw_pages_attend(engine->options.ops, scratch->pool, &args, scratch->partials[1], &total);
    engine->options.ops->normalise(&total, shape->q_heads, shape->head_dim, rows->out);
}

static bool is_end(const gpw_request_t *request, int32_t token)
{
    const struct gpw_tokenizer *tokenizer = request->engine->options.model->tokenizer;
    return !request->params.ignore_end && tokenizer && gpw_tokenizer_is_end(tokenizer, token);
}

// ---- Without verification ----------------------------------------------------------------------

static gpw_turn_t emit_unverified(gpw_request_t *request, int32_t token, const float *logits)
{
    gpw_blocks_t *blocks = &request->blocks;
    blocks->tokens = request->token_count;
    request->usage.drafted_tokens++;
    gpw_metric_add(GPW_METRIC_DRAFTED_TOKENS_TOTAL, 1);
    bool complete = gpw_reply_token(request, token, logits);
    gpw_reply_flush(request);
    if (complete) {
        return gpw_reply_complete(request);
    }
    bool sealable = gpw_sealed_target(&blocks->shape, blocks->tokens) > request->sealed.blocks;
    return sealable ? gpw_request_go(request, GPW_STEP_SEAL) : gpw_draft_turn(request);
}

// ---- Drafts ------------------------------------------------------------------------------------

// The row of the last token or draft is done: `logits` choose what follows it.
static gpw_turn_t complete(gpw_request_t *request, const float *logits, uint32_t count)
{
    AS_ASSERT(count == 1);
    uint32_t next = request->pass.position + 1;
    int32_t token = gpw_reply_choose(request, logits, next);
    request->round.draft_us += request->pass.busy_us;
    gpw_pass_end(request);
    if (!request->verify) {
        return emit_unverified(request, token, logits);
    }
    request->tokens[next] = token;
    request->draft_count++;
    return gpw_draft_turn(request);
}

static const gpw_pass_kind_t draft_pass = {
    .logits = GPW_LOGITS_LAST, .attend = attend, .complete = complete};

static gpw_turn_t draft_next(gpw_request_t *request)
{
    uint32_t last = request->token_count + request->draft_count - 1;
    return gpw_pass_begin(request, &draft_pass, request->forward, last, 1);
}

// Too early to fail: the step SWAP tries again and says why.
void gpw_draft_start_swap(gpw_request_t *request)
{
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->blocks.stored, &first);
    as_status_t status = AS_OK;
    if (count > 0 && !request->swap.stream) {
        status = gpw_push_or_swap(request, first, count);
    }
    request->swap.waits = status == AS_ERR_BUSY;
}

static gpw_turn_t draft_unverified(gpw_request_t *request)
{
    as_status_t status = gpw_blocks_cover(&request->blocks, request->token_count);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the tail");
    }
    return draft_next(request);
}

static void begin(gpw_request_t *request)
{
    gpw_tail_begin(&request->tail, &request->blocks);
    request->drafting = true;
    gpw_round_begin(request);
}

static bool has_end(const gpw_request_t *request)
{
    uint32_t count = request->draft_count;
    return count > 0 && is_end(request, request->tokens[request->token_count + count - 1]);
}

gpw_turn_t gpw_draft_turn(gpw_request_t *request)
{
    if (request->passing) {
        return gpw_pass_turn(request);
    }
    if (request->keep_full || !request->sealed.segment) {
        return gpw_request_go(request, GPW_STEP_SWAP);
    }
    if (!request->verify) {
        return draft_unverified(request);
    }
    if (!request->drafting) {
        begin(request);
    }
    if (gpw_round_wants_swap(request)) {
        gpw_draft_start_swap(request);
    }
    if (!gpw_round_is_drafted(request) && !has_end(request)) {
        return draft_next(request);
    }
    request->drafting = false;
    gpw_round_drafted(request);
    return gpw_request_go(request, GPW_STEP_SWAP);
}
