// SPDX-License-Identifier: Apache-2.0
// The swap: stored blocks brought to a pass, layer by layer.
//
// An abandoned transfer keeps the ring until its `done`: the client may still write into it. So a
// new swap waits for the old one's end, never for more than the client takes to cancel.
#include "gpuworker/decode/swap.h"

#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"

uint32_t gpw_swap_range(const gpw_request_t *request, uint32_t limit, uint32_t *first_p)
{
    const gpw_sealed_t *sealed = &request->sealed;
    uint32_t end = request->blocks.stored < limit ? request->blocks.stored : limit;
    uint32_t first = end, last = 0;
    for (uint32_t b = 0; b < end; b++) {
        if (sealed->segment && sealed->compressor->extent(sealed->segment, 0, b)) {
            continue;
        }
        first = first == end ? b : first;
        last = b;
    }
    *first_p = first;
    return first == end ? 0 : last - first + 1;
}

static void count_bytes(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    if (swap->pushed) {
        uint64_t moved = gpw_transfer_news(swap->transfer)->bytes;
        request->usage.pushed_bytes += moved;
        gpw_metric_add(GPW_METRIC_PUSHED_BYTES_TOTAL, (int64_t)moved);
        return;
    }
    uint64_t bytes = (uint64_t)gpw_transfer_news(swap->transfer)->layers * swap->block_count *
                     as_extent_bytes(&request->blocks.shape);
    if (swap->prefix) {
        request->usage.fetched_bytes += bytes;
        gpw_metric_add(GPW_METRIC_FETCHED_BYTES_TOTAL, (int64_t)bytes);
    } else {
        request->usage.swapped_bytes += bytes;
        gpw_metric_add(GPW_METRIC_SWAPPED_BYTES_TOTAL, (int64_t)bytes);
    }
}

static void retire(gpw_swap_t *swap)
{
    gpw_transfer_retire(swap->transfer);
    swap->transfer = NULL;
    swap->abandoned = swap->pushed = false;
    swap->block_count = 0;
}

static void on_news(void *ctx, gpw_transfer_t *transfer)
{
    gpw_request_t *request = ctx;
    gpw_swap_t *swap = &request->swap;
    AS_ASSERT(swap->transfer == transfer);
    const gpw_transfer_news_t *news = gpw_transfer_news(transfer);
    if (news->done) {
        gpw_push_saw_load(&request->engine->push, news->load_us,
                          swap->block_count * as_block_bytes(&request->blocks.shape),
                          as_loop_now_us(request->engine->loop));
    }
    if (news->done && swap->abandoned) {
        retire(swap);
    }
    gpw_request_wake(request);
}

as_status_t gpw_swap_fit(gpw_request_t *request, size_t bytes)
{
    gpw_swap_t *swap = &request->swap;
    if (swap->transfer) {
        AS_ASSERT(swap->abandoned);
        return AS_ERR_BUSY;
    }
    if (swap->ring_bytes >= bytes) {
        return AS_OK;
    }
    gpw_swap_free_ring(request);
    swap->ring = gpw_budget_alloc(&request->budget, bytes);
    swap->ring_bytes = swap->ring ? bytes : 0;
    return swap->ring ? AS_OK : AS_ERR_NO_MEMORY;
}

as_status_t gpw_swap_begin(gpw_request_t *request, const gpw_swap_range_t *range,
                           const gpw_transfer_params_t *own)
{
    gpw_swap_t *swap = &request->swap;
    gpw_engine_t *engine = request->engine;
    for (uint32_t b = 0; b < range->count; b++) {
        const gpw_block_t *block = &request->blocks.block[range->first + b];
        engine->block_keys[b] = block->key;
        engine->block_nodes[b] = range->node_ids ? range->node_ids[b] : block->node_id;
    }
    uint64_t deadline_us = as_loop_now_us(engine->loop) + engine->options.fetch_deadline_us;
    gpw_transfer_params_t params = *own;
    params.on_news = on_news;
    params.ctx = request;
    params.deadline_us = deadline_us < request->deadline_us ? deadline_us : request->deadline_us;
    params.shape = engine->shape;
    params.namespace_key = request->blocks.namespace_key;
    params.keys = engine->block_keys;
    params.node_ids = engine->block_nodes;
    params.first_block = range->first;
    params.block_count = range->count;
    as_status_t status = gpw_transfer_start(engine->link, &params, &swap->transfer);
    if (status == AS_OK) {
        swap->first_block = range->first;
        swap->block_count = range->count;
        swap->released = 0;
        swap->prefix = request->step == GPW_STEP_FETCH;
        swap->pushed = params.kind == GPW_TRANSFER_ATTEND;
        swap->waited_since_us = 0;
    }
    return status;
}

as_status_t gpw_swap_start(gpw_request_t *request, uint32_t first, uint32_t count,
                           const uint64_t *node_ids)
{
    gpw_swap_t *swap = &request->swap;
    gpw_engine_t *engine = request->engine;
    size_t extent_bytes = as_extent_bytes(&engine->shape);
    uint32_t slots = engine->options.swap_ring_layers;
    as_status_t status = gpw_swap_fit(request, slots * count * extent_bytes);
    if (status != AS_OK) {
        return status;
    }
    swap->layer_slots = slots;
    swap->extent_bytes = extent_bytes;
    swap->layer_stride = count * extent_bytes;
    const gpw_transfer_params_t params = {
        .kind = GPW_TRANSFER_FETCH,
        .buffer = swap->ring,
        .layer_stride = swap->layer_stride,
        .layer_slots = swap->layer_slots,
        .urgency = request->step == GPW_STEP_FETCH ? ASSAY_URGENCY_PREFIX : ASSAY_URGENCY_VERIFY,
    };
    const gpw_swap_range_t range = {first, count, node_ids};
    return gpw_swap_begin(request, &range, &params);
}

gpw_swap_state_t gpw_swap_layer(gpw_request_t *request, uint32_t layer, uint32_t *hole_p)
{
    gpw_swap_t *swap = &request->swap;
    if (!swap->transfer || swap->abandoned) {
        return GPW_SWAP_READY; // nothing to wait for: every page is here
    }
    const gpw_transfer_news_t *news = gpw_transfer_news(swap->transfer);
    uint64_t now_us = as_loop_now_us(request->engine->loop);
    if (news->located && news->located_blocks < swap->block_count) {
        *hole_p = swap->first_block + news->located_blocks;
        return GPW_SWAP_FAILED;
    }
    if (news->layers > layer) {
        if (swap->waited_since_us) {
            gpw_metric_observe(GPW_METRIC_SWAP_WAIT_US, now_us - swap->waited_since_us);
            swap->waited_since_us = 0;
        }
        return GPW_SWAP_READY;
    }
    if (news->done) {
        uint32_t hole = news->hole_block < swap->block_count ? news->hole_block : 0;
        *hole_p = swap->first_block + hole;
        return GPW_SWAP_FAILED;
    }
    swap->waited_since_us = swap->waited_since_us ? swap->waited_since_us : now_us;
    return GPW_SWAP_WAITING;
}

const uint8_t *gpw_swap_extent(const gpw_swap_t *swap, uint32_t block, uint32_t layer)
{
    if (!swap->transfer || swap->abandoned || swap->pushed || block < swap->first_block ||
        block - swap->first_block >= swap->block_count) {
        return NULL;
    }
    return swap->ring + (layer % swap->layer_slots) * swap->layer_stride +
           (block - swap->first_block) * swap->extent_bytes;
}

void gpw_swap_release(gpw_swap_t *swap, uint32_t layers)
{
    if (!swap->transfer || swap->abandoned) {
        return;
    }
    for (; swap->released < layers; swap->released++) {
        if (as_fault(AS_FAULT_swap_slot_reused)) {
            memset(swap->ring + (swap->released % swap->layer_slots) * swap->layer_stride, 0xff,
                   swap->block_count * swap->extent_bytes);
        }
    }
    gpw_transfer_release(swap->transfer, layers);
}

void gpw_swap_end(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    if (!swap->transfer || swap->abandoned) {
        return;
    }
    count_bytes(request);
    if (gpw_transfer_news(swap->transfer)->done) {
        retire(swap);
        return;
    }
    swap->abandoned = true;
    gpw_transfer_cancel(swap->transfer);
}

void gpw_swap_free_ring(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    AS_ASSERT(!swap->transfer);
    gpw_budget_free(&request->budget, swap->ring, swap->ring_bytes);
    swap->ring = NULL;
    swap->ring_bytes = 0;
}

// ---- The step ----------------------------------------------------------------------------------

gpw_turn_t gpw_swap_turn(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->blocks.stored, &first);
    bool started_early = request->swap.transfer && !request->swap.abandoned;
    if (count == 0 || started_early) {
        return gpw_request_go(request, GPW_STEP_VERIFY);
    }
    if (as_loop_now_us(engine->loop) < request->swap_retry_us) {
        gpw_engine_wake_at(engine, request->swap_retry_us);
        return GPW_TURN_WAIT;
    }
    as_status_t status = gpw_push_or_swap(request, first, count);
    if (status == AS_ERR_BUSY) {
        return GPW_TURN_WAIT;
    }
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory to bring the cache for a verification");
    }
    return gpw_request_go(request, GPW_STEP_VERIFY);
}
