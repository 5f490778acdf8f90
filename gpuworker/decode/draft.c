// SPDX-License-Identifier: Apache-2.0
// The step DRAFT: tokens decoded on the resident cache, in step with the drafts of other sessions.
//
// A pass has the row of the last token or draft, and behind it rows of what is proposed
// (decode/proposals.h): each row's choice is a draft, up to the first that is not what was proposed.
// The rows behind it leave K and V in the provisional pages at positions that nobody attends to
// before the next pass writes them.
//
// A session that drafts on nothing has its proposals verified directly: they are its draft.
//
// Attention is the segment's partial merged with that of the tail: exact blocks behind the segment,
// then the provisional pages with the draft's own K and V. Without verification (verify: off) there
// are no provisional pages: the tokens leave at once and their K and V, lossy as they are, become
// the tail.
#include <math.h>

#include "common/assert.h"
#include "gpuworker/decode/proposals.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/partials.h"
#include "gpuworker/resident/read/reader.h"

_Static_assert(GPW_DRAFT_ROWS_MAX <= GPW_READ_ROWS_MAX, "the choices of every row are remembered");

static uint8_t *tail_extent(const gpw_request_t *request, uint32_t block, uint32_t layer)
{
    uint8_t *extent = request->drafting ? gpw_tail_extent(&request->tail, block, layer) : NULL;
    return extent ? extent : gpw_blocks_extent(&request->blocks, block, layer);
}

// Returns the last position.
static uint32_t store_rows(gpw_request_t *request, const gpw_pass_rows_t *rows)
{
    const as_shape_t *shape = &request->engine->shape;
    size_t width = (size_t)shape->kv_heads * shape->head_dim;
    uint32_t position = request->pass.position + rows->row0;
    for (uint32_t r = 0; r < rows->rows; r++) {
        uint8_t *extent = tail_extent(request, (position + r) / shape->block_tokens, rows->layer);
        gpw_extent_store(shape, extent, position + r, rows->k + r * width, rows->v + r * width);
    }
    return position + rows->rows - 1;
}

static void attend(gpw_request_t *request, const gpw_pass_rows_t *rows)
{
    const gpw_engine_t *engine = request->engine;
    const gpw_attend_scratch_t *scratch = rows->scratch;
    const as_shape_t *shape = &engine->shape;
    const gpw_sealed_t *sealed = &request->sealed;
    AS_ASSERT(rows->rows <= GPW_DRAFT_ROWS_MAX);
    uint32_t last = store_rows(request, rows) / shape->block_tokens;
    uint32_t pairs = rows->rows * shape->q_heads;
    uint32_t count = 0;
    for (uint32_t b = sealed->blocks; b <= last; b++) {
        scratch->pages[count++] = gpw_page(shape, tail_extent(request, b, rows->layer), b);
    }
    krn_partials_t total = gpw_partials_carve(scratch->partials[0], pairs, shape->head_dim);
    gpw_segment_attend_t segment_args = {.pool = scratch->pool,
                                         .layer = rows->layer,
                                         .rows = rows->rows,
                                         .position = request->pass.position + rows->row0,
                                         .since = request->verify ? request->token_count - 1 : 0,
                                         .scale = 1.0f / sqrtf((float)shape->head_dim),
                                         .q = rows->q,
                                         .out = &total,
                                         .scratch = scratch->segment};
    sealed->compressor->attend(sealed->segment, &segment_args);
    krn_attention_args_t args = gpw_page_attention(shape, rows->rows, segment_args.scale, rows->q);
    args.positions = request->pass.slot->positions + rows->row0;
    args.pages = scratch->pages;
    args.page_count = count;
    gpw_pages_attend(engine->options.ops, scratch->pool, &args, scratch->partials[1], &total);
    engine->options.ops->normalise(&total, pairs, shape->head_dim, rows->out);
}

static bool is_end(const gpw_request_t *request, int32_t token)
{
    const struct gpw_tokenizer *tokenizer = request->engine->options.model->tokenizer;
    return !request->params.ignore_end && tokenizer && gpw_tokenizer_is_end(tokenizer, token);
}

// ---- Proposals ---------------------------------------------------------------------------------

// Drafts that were not drafted: where there is nothing to draft on.
static gpw_turn_t propose_only(gpw_request_t *request)
{
    uint32_t left = gpw_request_drafts_left(request), most = request->horizon.max;
    if (!gpw_proposals_get(request, left < most ? left : most, &request->draft_count)) {
        return GPW_TURN_WAIT;
    }
    return gpw_request_go(request, GPW_STEP_SWAP);
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

// What row `row` chose is a draft. True to go on with the next row: it was proposed, and there is
// another.
static bool take_row(gpw_request_t *request, uint32_t row, const float *logits)
{
    uint32_t next = request->pass.position + 1 + row;
    int32_t token = gpw_reply_choose(request, logits, next);
    bool agrees = row + 1 < request->pass.rows && token == request->tokens[next];
    request->tokens[next] = token;
    request->draft_count++;
    return agrees && !is_end(request, token);
}

// The row of the last token or draft is done, and those of what was proposed to follow it.
static gpw_turn_t complete(gpw_request_t *request, const float *logits, uint32_t count)
{
    uint32_t first = request->pass.position + 1;
    if (!request->verify) {
        AS_ASSERT(count == 1);
        int32_t token = gpw_reply_choose(request, logits, first);
        gpw_pass_end(request);
        return emit_unverified(request, token, logits);
    }
    uint32_t vocab = request->engine->options.model->vocab;
    bool more = true;
    for (uint32_t i = 0; i < count && more; i++) {
        more = take_row(request, request->pass.logits_row + i, logits + (size_t)i * vocab);
    }
    if (more && gpw_pass_more_logits(request, count)) {
        return GPW_TURN_COMPUTE;
    }
    uint32_t drafts = request->token_count + request->draft_count - first; // of this pass
    request->round.draft_us += request->pass.busy_us;
    request->round.draft_attend_us += request->pass.attend_us;
    gpw_proposals_learn(request, request->tokens[first], drafts - 1);
    gpw_pass_end(request);
    return gpw_draft_turn(request);
}

static const gpw_pass_kind_t draft_pass = {
    .logits = GPW_LOGITS_ALL, .attend = attend, .complete = complete};

// A pass for up to `most` drafts.
static gpw_turn_t draft_next(gpw_request_t *request, uint32_t most)
{
    uint32_t last = request->token_count + request->draft_count - 1;
    uint32_t proposed = 0;
    if (most > 1 && !gpw_proposals_get(request, most - 1, &proposed)) {
        return GPW_TURN_WAIT;
    }
    return gpw_pass_begin(request, &draft_pass, request->forward, last, 1 + proposed);
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
    return draft_next(request, 1);
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

// Drafts that the next pass may give.
static uint32_t room(const gpw_request_t *request)
{
    const gpw_round_t *round = &request->round;
    uint32_t end = request->draft_count < round->target ? round->target : round->limit;
    return end - request->draft_count;
}

gpw_turn_t gpw_draft_turn(gpw_request_t *request)
{
    if (request->passing) {
        return gpw_pass_turn(request);
    }
    if (request->keep_full || !request->sealed.segment) {
        return propose_only(request);
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
        return draft_next(request, room(request));
    }
    gpw_proposals_stop(request);
    request->drafting = false;
    gpw_round_drafted(request);
    return gpw_request_go(request, GPW_STEP_SWAP);
}
