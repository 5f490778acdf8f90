// SPDX-License-Identifier: Apache-2.0
// One forward pass of one session, and attention over the full cache.
//
// In layer l a full pass waits until the swap (if any) has brought layer l; writes the rows' K and
// V into the held blocks; attends over the pages of all blocks up to its last row, in absolute
// order, wherever each lies: held, in the swap's ring, or exact in the segment. The pages' content
// is the same bits in each place, so the results are too.
#include "gpuworker/decode/pass.h"

#include <math.h>

#include "common/assert.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"

// Logits rows of one pass computed at once: those behind the first wrong draft are for nothing.
#define LOGITS_ROWS_ONCE 16u

static uint32_t rows_at_once(uint32_t rows)
{
    return rows < LOGITS_ROWS_ONCE ? rows : LOGITS_ROWS_ONCE;
}

gpw_turn_t gpw_pass_begin(gpw_request_t *request, const gpw_pass_kind_t *kind,
                          gpw_forward_slot_t *slot, uint32_t position, uint32_t rows)
{
    AS_ASSERT(!request->passing && rows > 0 && rows <= slot->rows_max);
    request->passing = true;
    request->pass = (gpw_pass_t){.kind = kind,
                                 .slot = slot,
                                 .position = position,
                                 .rows = rows,
                                 .streams = kind->full && request->swap.stream};
    if (kind->logits == GPW_LOGITS_LAST) {
        request->pass.logits_row = rows - 1;
        request->pass.logits_wanted = 1;
    } else if (kind->logits == GPW_LOGITS_ALL) {
        request->pass.logits_wanted = rows_at_once(rows);
    }
    for (uint32_t r = 0; r < rows; r++) {
        slot->positions[r] = (int32_t)(position + r);
    }
    gpw_forward_begin(slot->forward, request->tokens + position, slot->positions, rows);
    return GPW_TURN_COMPUTE;
}

void gpw_pass_end(gpw_request_t *request)
{
    request->passing = false;
}

bool gpw_pass_more_logits(gpw_request_t *request, uint32_t count)
{
    gpw_pass_t *pass = &request->pass;
    pass->logits_row += count;
    pass->logits_wanted = rows_at_once(pass->rows - pass->logits_row);
    return pass->logits_wanted > 0;
}

// ---- Between layers ----------------------------------------------------------------------------

static gpw_swap_state_t state_of(gpw_request_t *request, uint32_t *hole_p)
{
    uint32_t layer = gpw_forward_next_layer(request->pass.slot->forward);
    if (!request->pass.kind->full || layer == request->engine->shape.layers) {
        return GPW_SWAP_READY;
    }
    return gpw_swap_layer(request, layer, hole_p);
}

gpw_turn_t gpw_pass_turn(gpw_request_t *request)
{
    if (request->pass.kind->full && gpw_swap_is_pushed(&request->swap)) {
        return gpw_push_turn(request);
    }
    uint32_t hole = 0;
    switch (state_of(request, &hole)) {
    case GPW_SWAP_READY:
        return GPW_TURN_COMPUTE;
    case GPW_SWAP_FAILED:
        return request->pass.kind->failed(request, hole);
    default:
        return GPW_TURN_WAIT;
    }
}

bool gpw_pass_ready(gpw_request_t *request)
{
    uint32_t hole = 0;
    gpw_swap_state_t state = state_of(request, &hole);
    request->computing = state == GPW_SWAP_READY;
    request->runnable |= state == GPW_SWAP_FAILED; // its turn says what follows
    return request->computing;
}

void gpw_pass_layer_done(gpw_request_t *request, uint32_t layer)
{
    const gpw_pass_kind_t *kind = request->pass.kind;
    if (kind->after_layer) {
        kind->after_layer(request, layer);
    }
    if (kind->full) {
        gpw_swap_release(request, layer + 1);
    }
}

// ---- Attention over the full cache -------------------------------------------------------------

const uint8_t *gpw_pass_extent(const gpw_request_t *request, uint32_t block, uint32_t layer)
{
    const uint8_t *extent = gpw_blocks_extent(&request->blocks, block, layer);
    if (extent) {
        return extent;
    }
    extent = gpw_swap_extent(&request->swap, block, layer);
    if (extent) {
        return extent;
    }
    AS_ASSERT(request->sealed.segment);
    extent = request->sealed.compressor->extent(request->sealed.segment, layer, block);
    AS_ASSERT(extent);
    return extent;
}

// What the swap brought of blocks that the session holds as well goes there.
static void keep_layer(gpw_request_t *request, uint32_t layer)
{
    for (uint32_t b = 0; request->swap.stream && b < request->swap.stream->block_count; b++) {
        const uint8_t *from = gpw_swap_extent(&request->swap, b, layer);
        uint8_t *to = gpw_blocks_extent(&request->blocks, b, layer);
        if (from && to) {
            request->budget.device->ops->copy(to, from, as_extent_bytes(&request->blocks.shape));
        }
    }
}

void gpw_pass_attend_full(gpw_request_t *request, const gpw_pass_rows_t *rows)
{
    gpw_engine_t *engine = request->engine;
    const gpw_pass_t *pass = &request->pass;
    const as_shape_t *shape = &engine->shape;
    if (rows->row0 == 0) {
        keep_layer(request, rows->layer);
    }
    gpw_rows_t new_rows = {
        .position = pass->position + rows->row0, .count = rows->rows, .k = rows->k, .v = rows->v};
    gpw_blocks_store(&request->blocks, rows->layer, &new_rows);
    uint32_t last = pass->position + rows->row0 + rows->rows - 1;
    uint32_t pages = last / shape->block_tokens + 1;
    for (uint32_t b = 0; b < pages; b++) {
        rows->scratch->pages[b] = gpw_page(shape, gpw_pass_extent(request, b, rows->layer), b);
    }
    krn_attention_args_t args =
        gpw_page_attention(shape, rows->rows, 1.0f / sqrtf((float)shape->head_dim), rows->q);
    args.positions = pass->slot->positions + rows->row0;
    args.pages = rows->scratch->pages;
    args.page_count = pages;
    float *lse = request->observer.rows ? rows->scratch->lse : NULL;
    krn_attention(engine->options.ops, rows->scratch->pool, &args, rows->out, lse,
                  rows->scratch->attention);
    if (lse) {
        gpw_observed_rows_t observed = {
            .row0 = rows->row0, .rows = rows->rows, .q = rows->q, .lse = lse};
        gpw_observe_rows(request, &observed);
    }
}
