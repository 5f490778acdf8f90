// SPDX-License-Identifier: Apache-2.0
// The swap: stored blocks brought to a pass, layer by layer.
//
//   (none) -> booked -> in line -> under way -> left
//
// A rider may skip "in line", and who has no booking skips "booked".
//
// Booked: a draft has begun, and its link time is known (gpw_swap_book). In line: it wants the link
// (gpw_swap_start was BUSY); streams begin one after the other in the order of want_us. Under way:
// it reads a stream, its own or one it rides in (decode/riders.h); layer l is READY once it has
// arrived (with --overlap off, once all have), and is released when this pass has attended to it.
// Left: gpw_swap_end, from any of these states, by the session alone; what is still to come of a
// stream without readers runs out behind (stream.c).
//
// One swap of b blocks moves b * as_block_bytes over the link, takes load_us_per_byte of it for each,
// and ring layers * b * as_extent_bytes of the device. load_us_per_byte is by the newest fetch or swap
// that ended: what the client then expected of the same blocks, by bytes. The client's expectation
// (client/rate.c) is made of running means of each link, over the time in which bytes are owed.
#include "gpuworker/decode/swap.h"

#include <string.h>

#include "common/assert.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/decode/riders.h"
#include "gpuworker/engine.h"

#define RETRY_US 10000u // after stores or the client were too busy

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

uint32_t gpw_swap_ring_slots(const gpw_engine_t *engine)
{
    uint32_t layers = engine->shape.layers;
    uint32_t slots = engine->options.overlap ? engine->options.swap_ring_layers : layers;
    return slots < layers ? slots : layers;
}

size_t gpw_swap_ring_bytes(const gpw_engine_t *engine, uint32_t blocks)
{
    return (size_t)gpw_swap_ring_slots(engine) * blocks * as_extent_bytes(&engine->shape);
}

double gpw_swap_link_us(const gpw_engine_t *engine, uint32_t blocks)
{
    return engine->push.load_us_per_byte * blocks * (double)as_block_bytes(&engine->shape);
}

// ---- Its beginning -----------------------------------------------------------------------------

void gpw_swap_book(gpw_request_t *request, uint64_t at_us)
{
    gpw_engine_t *engine = request->engine;
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->blocks.stored, &first);
    uint64_t link_us = (uint64_t)gpw_swap_link_us(engine, count);
    if (link_us == 0 || !engine->options.overlap || request->swap.stream) {
        return; // nothing to be brought, or not known how long it takes: first come, first served
    }
    const gpw_rings_ask_t ask = {.now_us = as_loop_now_us(engine->loop),
                                 .earliest_us = at_us,
                                 .link_us = link_us,
                                 .bytes = gpw_swap_ring_bytes(engine, count)};
    gpw_rings_cancel(&engine->streams.rings, &request->swap.booking);
    // None as far ahead as the rings go: it stands in line when its draft is complete.
    (void)gpw_rings_book(&engine->streams.rings, &ask, &request->swap.booking);
}

as_status_t gpw_swap_start(gpw_request_t *request, uint32_t first, uint32_t count,
                           const uint64_t *node_ids)
{
    gpw_engine_t *engine = request->engine;
    if (gpw_riders_board(request, first, count)) {
        return AS_OK;
    }
    if (!gpw_streams_may_begin(request)) {
        return AS_ERR_BUSY;
    }
    gpw_stream_range_t range = {.first = first, .count = count, .node_ids = node_ids};
    gpw_riders_widen(request, &range);
    as_status_t status = gpw_stream_open(request, gpw_swap_ring_bytes(engine, range.count));
    if (status != AS_OK) {
        return status;
    }
    gpw_stream_t *stream = request->swap.stream;
    request->swap.first_block = first;
    request->swap.end_block = first + count;
    stream->layer_slots = gpw_swap_ring_slots(engine);
    stream->layer_stride = range.count * as_extent_bytes(&engine->shape);
    const gpw_transfer_params_t params = {
        .kind = GPW_TRANSFER_FETCH,
        .buffer = stream->ring,
        .layer_stride = stream->layer_stride,
        .layer_slots = stream->layer_slots,
        .urgency = request->step == GPW_STEP_FETCH ? ASSAY_URGENCY_PREFIX : ASSAY_URGENCY_VERIFY,
    };
    status = gpw_stream_begin(request, &range, &params);
    if (status == AS_OK) {
        gpw_riders_join(request, &range);
    }
    return status;
}

// ---- Layers ------------------------------------------------------------------------------------

static bool has_arrived(const gpw_stream_t *stream, uint32_t layer)
{
    uint32_t wanted = stream->engine->options.overlap ? layer + 1 : stream->layers;
    return gpw_transfer_news(stream->transfer)->layers >= wanted;
}

gpw_swap_state_t gpw_swap_layer(gpw_request_t *request, uint32_t layer, uint32_t *hole_p)
{
    gpw_swap_t *swap = &request->swap;
    const gpw_stream_t *stream = swap->stream;
    if (!stream) {
        return GPW_SWAP_READY; // nothing to wait for: every page is here
    }
    const gpw_transfer_news_t *news = gpw_transfer_news(stream->transfer);
    uint64_t now_us = as_loop_now_us(request->engine->loop);
    if (news->located && news->located_blocks < stream->block_count) {
        *hole_p = stream->first_block + news->located_blocks;
        return GPW_SWAP_FAILED;
    }
    if (has_arrived(stream, layer)) {
        if (swap->waited_since_us) {
            gpw_metric_observe(GPW_METRIC_SWAP_WAIT_US, now_us - swap->waited_since_us);
            swap->waited_since_us = 0;
        }
        return GPW_SWAP_READY;
    }
    if (news->done) {
        uint32_t hole = news->hole_block < stream->block_count ? news->hole_block : 0;
        *hole_p = stream->first_block + hole;
        return GPW_SWAP_FAILED;
    }
    swap->waited_since_us = swap->waited_since_us ? swap->waited_since_us : now_us;
    return GPW_SWAP_WAITING;
}

bool gpw_swap_is_here(const gpw_request_t *request)
{
    const gpw_stream_t *stream = request->swap.stream;
    return has_arrived(stream, 0) || gpw_transfer_news(stream->transfer)->done;
}

const uint8_t *gpw_swap_extent(const gpw_swap_t *swap, uint32_t block, uint32_t layer)
{
    const gpw_stream_t *stream = swap->stream;
    if (!stream || stream->pushed || block < swap->first_block || block >= swap->end_block) {
        return NULL;
    }
    size_t extent_bytes = as_extent_bytes(&stream->engine->shape);
    return stream->ring + (layer % stream->layer_slots) * stream->layer_stride +
           (block - stream->first_block) * extent_bytes;
}

void gpw_swap_release(gpw_request_t *request, uint32_t layers)
{
    if (request->swap.stream) {
        gpw_stream_release(request, layers);
    }
}

void gpw_swap_end(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    swap->waits = false;
    gpw_rings_cancel(&request->engine->streams.rings, &swap->booking);
    if (swap->stream) {
        gpw_stream_leave(request);
    }
    gpw_streams_next(request->engine);
}

bool gpw_swap_is_refused(gpw_request_t *request)
{
    const gpw_transfer_news_t *news = gpw_transfer_news(request->swap.stream->transfer);
    bool refused = news->done && news->status == AS_ERR_BUSY;
    if (refused) {
        request->swap_retry_us = as_loop_now_us(request->engine->loop) + RETRY_US;
    }
    return refused;
}

bool gpw_swap_is_too_early(const gpw_request_t *request)
{
    bool early = as_loop_now_us(request->engine->loop) < request->swap_retry_us;
    if (early) {
        gpw_engine_wake_at(request->engine, request->swap_retry_us);
    }
    return early;
}

// ---- The step ----------------------------------------------------------------------------------

gpw_turn_t gpw_swap_turn(gpw_request_t *request)
{
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->blocks.stored, &first);
    if (count == 0 || request->swap.stream) {
        return gpw_request_go(request, GPW_STEP_VERIFY);
    }
    if (gpw_swap_is_too_early(request)) {
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
