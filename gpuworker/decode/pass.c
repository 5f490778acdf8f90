// SPDX-License-Identifier: Apache-2.0
// One forward pass of consecutive positions over the full cache, a layer at a time.
#include "gpuworker/decode/pass.h"

#include <math.h>

#include "common/assert.h"
#include "gpuworker/engine.h"

void gpw_pass_begin(gpw_request_t *request, gpw_forward_slot_t *slot, uint32_t position,
                    uint32_t rows)
{
    AS_ASSERT(!request->passing && rows > 0 && rows <= slot->rows_max);
    request->passing = true;
    request->pass = (gpw_pass_t){.slot = slot, .position = position, .rows = rows};
    for (uint32_t r = 0; r < rows; r++) {
        slot->positions[r] = (int32_t)(position + r);
    }
    gpw_forward_begin(slot->forward, request->tokens + position, slot->positions, rows);
}

void gpw_pass_end(gpw_request_t *request)
{
    request->passing = false;
}

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

static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    gpw_request_t *request = ctx;
    gpw_engine_t *engine = request->engine;
    const gpw_pass_t *pass = &request->pass;
    const as_shape_t *shape = &engine->shape;
    gpw_rows_t new_rows = {.position = pass->position + row0, .count = rows, .k = k, .v = v};
    gpw_blocks_store(&request->blocks, layer, &new_rows);
    krn_attention_args_t args = {
        .rows = rows,
        .q_heads = shape->q_heads,
        .kv_heads = shape->kv_heads,
        .dim = shape->head_dim,
        .capacity = shape->block_tokens,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .q = q,
        .positions = pass->slot->positions + row0,
        .pages = engine->pages,
        .page_count = (pass->position + row0 + rows - 1) / shape->block_tokens + 1,
    };
    float *lse = request->observer.rows ? engine->lse : NULL;
    krn_attention(engine->options.ops, engine->pool, &args, out, lse, engine->attention_scratch);
    if (lse) {
        gpw_observed_rows_t observed = {.row0 = row0, .rows = rows, .q = q, .lse = lse};
        gpw_observe_rows(request, &observed);
    }
}

// A session that keeps its full cache takes what the swap brought into its own blocks.
static void keep_layer(gpw_request_t *request, uint32_t layer)
{
    for (uint32_t b = 0; b < request->swap.block_count; b++) {
        const uint8_t *from = gpw_swap_extent(&request->swap, b, layer);
        if (from) {
            request->budget.device->ops->copy(gpw_blocks_extent(&request->blocks, b, layer), from,
                                              as_extent_bytes(&request->blocks.shape));
        }
    }
}

static void run_layer(gpw_request_t *request, uint32_t layer)
{
    gpw_engine_t *engine = request->engine;
    gpw_pass_t *pass = &request->pass;
    if (request->keep_full) {
        keep_layer(request, layer);
    }
    pass->page_count = (pass->position + pass->rows - 1) / engine->shape.block_tokens + 1;
    for (uint32_t b = 0; b < pass->page_count; b++) {
        engine->pages[b] = gpw_page(&engine->shape, gpw_pass_extent(request, b, layer), b);
    }
    gpw_forward_layer(pass->slot->forward, attend, request);
}

gpw_pass_state_t gpw_pass_run(gpw_request_t *request, gpw_pass_layer_fn after_layer,
                              uint32_t *hole_p)
{
    gpw_engine_t *engine = request->engine;
    gpw_pass_t *pass = &request->pass;
    uint32_t layers = engine->shape.layers;
    // A simulated tick is one layer: so that more can happen in between.
    uint32_t unit = engine->options.tick_us ? 1 : GPW_UNIT_ROWS / pass->rows;
    uint32_t layer = gpw_forward_next_layer(pass->slot->forward);
    for (uint32_t done = 0; layer < layers && (done == 0 || done < unit); layer++, done++) {
        gpw_swap_state_t state = gpw_swap_layer(request, layer, hole_p);
        if (state == GPW_SWAP_FAILED) {
            return GPW_PASS_FAILED;
        }
        if (state == GPW_SWAP_WAITING) {
            return done ? GPW_PASS_MORE : GPW_PASS_WAITING;
        }
        run_layer(request, layer);
        if (after_layer) {
            after_layer(request, layer);
        }
        gpw_swap_release(&request->swap, layer + 1);
    }
    return layer == layers ? GPW_PASS_DONE : GPW_PASS_MORE;
}
