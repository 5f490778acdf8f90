// SPDX-License-Identifier: Apache-2.0
// What is under way from stores.
#include "gpuworker/decode/stream.h"

#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/mem.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/stored.h"

#define OVERDUE_FACTOR 2u       // of the time that was expected
#define OVERDUE_US_MIN 1000000u // and at least so long; also where nothing is known
// A swap slower than that takes longer than computing the blocks again.
#define LEAST_BYTES_PER_US 20u
#define RINGS_MAX          2u // that bookings count with: one is read while the next fills

// ---- Memory ------------------------------------------------------------------------------------

void gpw_streams_init(gpw_engine_t *engine)
{
    engine->streams.budget.device = &engine->device;
    gpw_rings_init(&engine->streams.rings, 0);
}

static void set_base(gpw_engine_t *engine, uint64_t bytes)
{
    engine->streams.base_bytes = bytes;
    engine->streams.rings.bytes_max = RINGS_MAX * bytes;
}

bool gpw_streams_admit(gpw_engine_t *engine, uint64_t ring_bytes)
{
    gpw_streams_t *streams = &engine->streams;
    uint64_t has = streams->budget.reserved_bytes;
    if (ring_bytes > has && !gpw_budget_reserve(&streams->budget, ring_bytes - has)) {
        return false;
    }
    if (ring_bytes > streams->base_bytes) {
        set_base(engine, ring_bytes);
    }
    return true;
}

static void shrink(gpw_engine_t *engine)
{
    gpw_budget_t *budget = &engine->streams.budget;
    uint64_t keep = engine->streams.base_bytes;
    keep = budget->used_bytes > keep ? budget->used_bytes : keep;
    if (budget->reserved_bytes > keep) {
        gpw_budget_shrink(budget, budget->reserved_bytes - keep);
        engine->load_changed = true; // a tick tells of it
        gpw_engine_freed(engine);
        gpw_engine_kick(engine);
    }
}

void gpw_streams_settle(gpw_engine_t *engine)
{
    uint64_t base = 0;
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        base = r->holds_session && r->ring_bytes > base ? r->ring_bytes : base;
    }
    if (base < engine->streams.base_bytes) {
        // Bookings of before may need more: their windows pass.
        engine->streams.base_bytes = base;
        shrink(engine);
    }
}

static uint8_t *take_ring(gpw_engine_t *engine, size_t bytes)
{
    gpw_budget_t *budget = &engine->streams.budget;
    uint64_t free_bytes = budget->reserved_bytes - budget->used_bytes;
    if (bytes > free_bytes && !gpw_budget_reserve(budget, bytes - free_bytes)) {
        return NULL;
    }
    return gpw_budget_alloc(budget, bytes);
}

// ---- Time that is hidden -----------------------------------------------------------------------

void gpw_streams_count(gpw_engine_t *engine, uint64_t busy_us)
{
    gpw_streams_t *streams = &engine->streams;
    if (streams->moving == 0) {
        return;
    }
    uint64_t now_us = as_loop_now_us(engine->loop);
    uint64_t us = now_us - streams->moving_since_us;
    streams->moving_since_us = now_us;
    gpw_metric_add(GPW_METRIC_SWAP_MOVING_US_TOTAL, (int64_t)us);
    gpw_metric_add(GPW_METRIC_SWAP_HIDDEN_US_TOTAL, (int64_t)(busy_us < us ? busy_us : us));
}

static void begin_moving(gpw_engine_t *engine)
{
    gpw_streams_count(engine, 0);
    engine->streams.moving_since_us = as_loop_now_us(engine->loop);
    engine->streams.moving++;
}

static void trace(const gpw_stream_t *stream)
{
    const gpw_engine_t *engine = stream->engine;
    const gpw_trace_span_t span = {.lane = GPW_TRACE_SWAP,
                                   .session = stream->session,
                                   .begin_us = stream->begin_us,
                                   .end_us = as_loop_now_us(engine->loop),
                                   .noun = "blocks",
                                   .amount = stream->block_count};
    if (!stream->pushed) { // else it is the verification's lane
        gpw_trace_add(engine->trace, &span);
    }
}

static void end_moving(gpw_stream_t *stream)
{
    if (!stream->arrived) {
        gpw_streams_count(stream->engine, 0);
        stream->engine->streams.moving -= !stream->pushed;
        stream->arrived = true;
        trace(stream);
        gpw_engine_kick(stream->engine); // without overlap everything waited for it
    }
}

// ---- Turns of the link -------------------------------------------------------------------------

// Whether the next may begin beside it.
static bool makes_way(const gpw_stream_t *stream)
{
    const gpw_engine_t *engine = stream->engine;
    if (!stream->readers) {
        return true; // it only runs out
    }
    if (stream->pushed || stream->arrived) {
        return engine->options.overlap || stream->pushed;
    }
    const gpw_transfer_news_t *news = gpw_transfer_news(stream->transfer);
    bool is_asked_for = news->layers + stream->layer_slots > stream->layers;
    bool is_overdue = as_loop_now_us(engine->loop) >= stream->overdue_us;
    return is_overdue || (is_asked_for && engine->options.overlap);
}

static gpw_request_t *first_in_line(gpw_engine_t *engine)
{
    gpw_request_t *first = NULL;
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->swap.waits && (!first || r->swap.want_us < first->swap.want_us)) {
            first = r;
        }
    }
    return first;
}

static bool link_is_free(const gpw_engine_t *engine)
{
    for (const gpw_stream_t *s = engine->streams.first; s; s = s->next) {
        if (!makes_way(s)) {
            return false;
        }
    }
    return true;
}

static void stand_in_line(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    if (!swap->waits) {
        swap->waits = true;
        uint64_t now_us = as_loop_now_us(request->engine->loop);
        bool booked = !gpw_booking_is_empty(&swap->booking);
        uint64_t begin_us = booked ? gpw_booking_begin_us(&swap->booking) : now_us;
        swap->want_us = begin_us < now_us ? begin_us : now_us;
    }
}

bool gpw_streams_may_begin(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    stand_in_line(request);
    if (link_is_free(engine) && first_in_line(engine) == request) {
        return true;
    }
    for (const gpw_stream_t *s = engine->streams.first; s; s = s->next) {
        if (!makes_way(s)) {
            gpw_engine_wake_at(engine, s->overdue_us);
        }
    }
    return false;
}

void gpw_streams_next(gpw_engine_t *engine)
{
    gpw_request_t *first = first_in_line(engine);
    if (!first || !link_is_free(engine)) {
        return;
    }
    if (first->step == GPW_STEP_DRAFT) {
        gpw_draft_start_swap(first);
    } else {
        gpw_request_wake(first);
    }
}

// ---- Life --------------------------------------------------------------------------------------

static void unlink_stream(gpw_stream_t *stream)
{
    gpw_stream_t **from = &stream->engine->streams.first;
    while (*from != stream) {
        from = &(*from)->next;
    }
    *from = stream->next;
}

static void stream_free(gpw_stream_t *stream)
{
    gpw_engine_t *engine = stream->engine;
    AS_ASSERT(!stream->readers);
    unlink_stream(stream);
    gpw_budget_free(&engine->streams.budget, stream->ring, stream->ring_bytes);
    as_mem_free(stream);
    shrink(engine);
    gpw_streams_next(engine);
}

as_status_t gpw_stream_open(gpw_request_t *request, size_t ring_bytes)
{
    gpw_engine_t *engine = request->engine;
    AS_ASSERT(!request->swap.stream);
    gpw_stream_t *stream = as_mem_zalloc(1, sizeof(*stream));
    if (!stream) {
        return AS_ERR_NO_MEMORY;
    }
    stream->ring = take_ring(engine, ring_bytes);
    if (!stream->ring) {
        as_mem_free(stream);
        stand_in_line(request);
        return engine->streams.first ? AS_ERR_BUSY : AS_ERR_NO_MEMORY;
    }
    stream->engine = engine;
    stream->ring_bytes = ring_bytes;
    stream->next = engine->streams.first;
    engine->streams.first = stream;
    gpw_stream_join(stream, request);
    return AS_OK;
}

static void count_bytes(const gpw_stream_t *stream, gpw_request_t *request)
{
    uint64_t bytes = gpw_transfer_news(stream->transfer)->bytes;
    if (stream->pushed) {
        request->usage.pushed_bytes += bytes;
        gpw_metric_add(GPW_METRIC_PUSHED_BYTES_TOTAL, (int64_t)bytes);
        return;
    }
    bytes = (uint64_t)gpw_transfer_news(stream->transfer)->layers * stream->block_count *
            stream->extent_bytes / stream->joined; // each reader's share
    if (stream->prefix) {
        request->usage.fetched_bytes += bytes;
        gpw_metric_add(GPW_METRIC_FETCHED_BYTES_TOTAL, (int64_t)bytes);
    } else {
        request->usage.swapped_bytes += bytes;
        gpw_metric_add(GPW_METRIC_SWAPPED_BYTES_TOTAL, (int64_t)bytes);
    }
}

static void on_news(void *ctx, gpw_transfer_t *transfer)
{
    gpw_stream_t *stream = ctx;
    gpw_engine_t *engine = stream->engine;
    AS_ASSERT(stream->transfer == transfer);
    const gpw_transfer_news_t *news = gpw_transfer_news(transfer);
    if (news->done) {
        gpw_push_saw_load(&engine->push, news->load_us,
                          stream->block_count * as_block_bytes(&engine->shape),
                          as_loop_now_us(engine->loop));
    }
    if (news->done || (!stream->pushed && news->layers == stream->layers)) {
        end_moving(stream);
    }
    for (gpw_request_t *r = stream->readers; r; r = r->swap.next_reader) {
        gpw_request_wake(r);
    }
    if (news->done && !stream->readers) {
        gpw_transfer_retire(transfer);
        stream_free(stream);
    } else {
        gpw_streams_next(engine);
    }
}

as_status_t gpw_stream_begin(gpw_request_t *request, const gpw_stream_range_t *range,
                             const gpw_transfer_params_t *own)
{
    gpw_stream_t *stream = request->swap.stream;
    gpw_engine_t *engine = request->engine;
    const gpw_request_t *chain = range->chain ? range->chain : request;
    uint64_t now_us = as_loop_now_us(engine->loop);
    for (uint32_t b = 0; b < range->count; b++) {
        const gpw_block_t *block = &chain->blocks.block[range->first + b];
        engine->block_keys[b] = block->key;
        engine->block_nodes[b] = range->node_ids ? range->node_ids[b] : block->node_id;
        if (range->sealed) {
            gpw_stored_key(range->sealed, &block->key, &engine->block_keys[b]);
        }
    }
    uint64_t late_us = OVERDUE_FACTOR * (uint64_t)gpw_swap_link_us(engine, range->count);
    uint64_t slow_us = range->count * as_block_bytes(&engine->shape) / LEAST_BYTES_PER_US;
    uint64_t deadline_us = now_us + engine->options.fetch_deadline_us;
    deadline_us += late_us > slow_us ? late_us : slow_us;
    gpw_transfer_params_t params = *own;
    params.on_news = on_news;
    params.ctx = stream;
    // Not by that of the request: others may come along, and who ends leaves (gpw_stream_leave).
    params.deadline_us = deadline_us;
    params.shape = range->sealed ? own->shape : engine->shape;
    params.namespace_key = request->blocks.namespace_key;
    params.keys = engine->block_keys;
    params.node_ids = engine->block_nodes;
    params.load_block_bytes = range->sealed ? as_block_bytes(&engine->shape) : 0;
    params.first_block = range->first;
    params.block_count = range->count;
    as_status_t status = gpw_transfer_start(engine->link, &params, &stream->transfer);
    if (status != AS_OK) {
        stream->readers = NULL;
        request->swap.stream = NULL;
        stream_free(stream);
        return status;
    }
    stream->begin_us = now_us;
    stream->session = request->id;
    stream->first_block = range->first;
    stream->block_count = range->count;
    stream->extent_bytes = as_extent_bytes(&params.shape);
    stream->layers = params.shape.layers;
    stream->sealed = range->sealed != NULL;
    stream->prefix = request->step == GPW_STEP_FETCH || request->step == GPW_STEP_SEAL;
    stream->pushed = params.kind == GPW_TRANSFER_ATTEND;
    stream->overdue_us = now_us + (late_us > OVERDUE_US_MIN ? late_us : OVERDUE_US_MIN);
    if (!stream->pushed) {
        begin_moving(engine);
    }
    return AS_OK;
}

// ---- Readers -----------------------------------------------------------------------------------

void gpw_stream_join(gpw_stream_t *stream, gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    AS_ASSERT(!swap->stream && stream->released == 0);
    swap->stream = stream;
    swap->released = 0;
    swap->first_block = swap->end_block = 0; // none of it is its own before it says so
    swap->waits = false;
    swap->waited_since_us = 0;
    swap->next_reader = stream->readers;
    stream->readers = request;
    stream->joined++;
    gpw_rings_cancel(&request->engine->streams.rings, &swap->booking);
}

// Slots of the layers that every reader has read are free again.
static void release(gpw_stream_t *stream)
{
    uint32_t layers = UINT32_MAX;
    for (const gpw_request_t *r = stream->readers; r; r = r->swap.next_reader) {
        layers = r->swap.released < layers ? r->swap.released : layers;
    }
    if (!stream->readers || layers <= stream->released || stream->pushed) {
        return;
    }
    for (; stream->released < layers; stream->released++) {
        if (as_fault(AS_FAULT_swap_slot_reused)) {
            memset(stream->ring + (stream->released % stream->layer_slots) * stream->layer_stride,
                   0xff, stream->layer_stride);
        }
    }
    gpw_transfer_release(stream->transfer, layers);
}

void gpw_stream_release(gpw_request_t *request, uint32_t layers)
{
    request->swap.released = layers;
    release(request->swap.stream);
}

void gpw_stream_leave(gpw_request_t *request)
{
    gpw_stream_t *stream = request->swap.stream;
    gpw_request_t **from = &stream->readers;
    while (*from != request) {
        from = &(*from)->swap.next_reader;
    }
    *from = request->swap.next_reader;
    request->swap.stream = NULL;
    count_bytes(stream, request);
    if (stream->readers) {
        release(stream);
        return;
    }
    if (gpw_transfer_news(stream->transfer)->done) {
        gpw_transfer_retire(stream->transfer);
        stream_free(stream);
    } else {
        gpw_transfer_cancel(stream->transfer);
    }
}

void gpw_streams_fini(gpw_engine_t *engine)
{
    gpw_stream_t *next;
    for (gpw_stream_t *s = engine->streams.first; s; s = next) {
        next = s->next;
        gpw_budget_free(&engine->streams.budget, s->ring, s->ring_bytes);
        as_mem_free(s);
    }
    engine->streams.first = NULL;
    gpw_budget_end(&engine->streams.budget);
}
