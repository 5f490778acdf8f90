// SPDX-License-Identifier: Apache-2.0
// The engine: turns in rotation, the alarm, and what requests share.
#include "gpuworker/engine.h"

#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/worker_internal.h"

// ---- Turns -------------------------------------------------------------------------------------

// Who waits hears of the place in line that it has now.
static void tell_places(gpw_engine_t *engine)
{
    uint32_t place = 0;
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->step != GPW_STEP_ADMIT) {
            continue;
        }
        place++;
        if (r->in_line && r->place != place && r->io_events.on_place) {
            r->place = place;
            atomic_store(&r->place_told, place);
            gpw_worker_post_io(r->worker, &r->place_task);
        }
    }
}

static void update_load(gpw_engine_t *engine)
{
    engine->load_changed = false;
    tell_places(engine);
    uint64_t queued = 0;
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        queued += r->step <= GPW_STEP_PREFILL ? r->token_count : 0;
    }
    atomic_store(&engine->load_used_bytes, engine->device.reserved_bytes);
    atomic_store(&engine->load_sessions, engine->sessions);
    atomic_store(&engine->load_queued_tokens, queued);
    gpw_metric_set(GPW_METRIC_SESSIONS, engine->sessions);
    gpw_metric_set(GPW_METRIC_RESERVED_BYTES, (int64_t)engine->device.reserved_bytes);
    gpw_metric_set(GPW_METRIC_SHARED_BYTES, (int64_t)gpw_shared_bytes(engine->shared));
}

void gpw_engine_kick(gpw_engine_t *engine)
{
    if (engine->ticking) {
        return;
    }
    engine->ticking = true;
    if (engine->options.tick_us) {
        as_timer_start(engine->tick_timer, engine->options.tick_us);
    } else {
        as_loop_post(engine->loop, &engine->tick_task);
    }
}

// One that computes is given its turn by the batch.
static bool wants_turn(const gpw_request_t *request)
{
    return request->runnable && !request->computing;
}

// The next runnable request after the one that went last; NULL: none.
static gpw_request_t *next_in_turn(gpw_engine_t *engine)
{
    for (gpw_request_t *r = engine->turn; r; r = r->next) {
        if (wants_turn(r)) {
            return r;
        }
    }
    for (gpw_request_t *r = engine->first; r != engine->turn; r = r->next) {
        if (wants_turn(r)) {
            return r;
        }
    }
    return NULL;
}

static void remove_request(gpw_engine_t *engine, gpw_request_t *request)
{
    gpw_request_t *previous = NULL;
    for (gpw_request_t *r = engine->first; r != request; r = r->next) {
        previous = r;
    }
    if (previous) {
        previous->next = request->next;
    } else {
        engine->first = request->next;
    }
    if (engine->last == request) {
        engine->last = previous;
    }
    if (engine->turn == request) {
        engine->turn = request->next;
    }
    struct gpw_worker *worker = request->worker;
    gpw_request_free(request);
    gpw_worker_request_gone(worker);
}

static void take_turn(gpw_engine_t *engine, gpw_request_t *request)
{
    engine->turn = request->next;
    request->runnable = false;
    gpw_turn_t turn = gpw_steps[request->step].turn(request);
    request->runnable |= turn == GPW_TURN_AGAIN;
    request->computing = turn == GPW_TURN_COMPUTE;
    engine->load_changed |= request->finished; // it lets go of its memory in a later turn
    if (request->released && request->goodbye) {
        remove_request(engine, request);
    }
}

static void tick(void *ctx)
{
    gpw_engine_t *engine = ctx;
    engine->ticking = false;
    gpw_request_t *request = next_in_turn(engine);
    if (request) {
        take_turn(engine, request);
    } else {
        gpw_batch_run(engine);
    }
    if (engine->load_changed) {
        update_load(engine);
    }
    if (next_in_turn(engine) || gpw_batch_busy(engine)) {
        gpw_engine_kick(engine);
    }
}

// ---- The alarm ---------------------------------------------------------------------------------

void gpw_engine_wake_at(gpw_engine_t *engine, uint64_t at_us)
{
    if (at_us >= engine->alarm_us) {
        return;
    }
    uint64_t now_us = as_loop_now_us(engine->loop);
    engine->alarm_us = at_us;
    as_timer_start(engine->alarm, at_us > now_us ? at_us - now_us : 0);
}

static void wake_for(gpw_engine_t *engine, uint64_t at_us, uint64_t now_us)
{
    if (at_us > now_us) {
        gpw_engine_wake_at(engine, at_us);
    }
}

static void on_alarm(void *ctx)
{
    gpw_engine_t *engine = ctx;
    uint64_t now_us = as_loop_now_us(engine->loop);
    engine->alarm_us = UINT64_MAX;
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->finished) {
            gpw_request_wake(r);
            wake_for(engine, r->released ? 0 : r->linger_until_us, now_us);
        } else if (now_us >= r->deadline_us) {
            gpw_request_finish(r, GPW_FINISH_ERROR, AS_ERR_DEADLINE,
                               "the request was not complete by its deadline");
            gpw_engine_kick(engine);
        } else {
            if (r->publish_retry_us && now_us >= r->publish_retry_us) {
                gpw_publish_pump(r);
            }
            gpw_request_wake(r);
            wake_for(engine, r->deadline_us, now_us);
        }
        wake_for(engine, r->swap_retry_us, now_us);
        wake_for(engine, r->publish_retry_us, now_us);
    }
    gpw_streams_next(engine);
}

// ---- What is shared ----------------------------------------------------------------------------

void gpw_engine_add(gpw_engine_t *engine, gpw_request_t *request)
{
    request->budget.device = &engine->device;
    request->step_us = as_loop_now_us(engine->loop);
    if (engine->last) {
        engine->last->next = request;
    } else {
        engine->first = request;
    }
    engine->last = request;
    gpw_metric_add(GPW_METRIC_STEP_TOTAL + GPW_STEP_ADMIT, 1);
    gpw_engine_wake_at(engine, request->deadline_us);
    gpw_request_wake(request);
    update_load(engine);
}

void gpw_engine_farewell(gpw_engine_t *engine, gpw_request_t *request)
{
    request->goodbye = true;
    if (request->released) {
        remove_request(engine, request);
    }
}

void gpw_engine_freed(gpw_engine_t *engine)
{
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->step == GPW_STEP_ADMIT || r->step == GPW_STEP_FETCH || r->step == GPW_STEP_PREFILL ||
            r->step == GPW_STEP_RECOMPUTE) {
            gpw_request_wake(r);
        }
    }
}

bool gpw_engine_is_short(const gpw_engine_t *engine)
{
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->step == GPW_STEP_ADMIT && !r->finished && r->lacks_memory) {
            return true;
        }
    }
    return false;
}

void gpw_engine_hurry_lingerers(gpw_engine_t *engine)
{
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->finished && !r->released) {
            r->linger_until_us = 0;
            gpw_request_wake(r);
        }
    }
}

gpw_forward_slot_t *gpw_engine_take_forward(gpw_engine_t *engine, bool many_rows)
{
    gpw_forward_slot_t *slots = many_rows ? engine->long_forwards : engine->forwards;
    uint32_t count = many_rows ? GPW_PREFILLS_MAX : engine->options.sessions_max;
    for (uint32_t i = 0; i < count; i++) {
        if (!slots[i].used) {
            slots[i].used = true;
            return &slots[i];
        }
    }
    return NULL;
}

void gpw_engine_give_forward(gpw_engine_t *engine, gpw_forward_slot_t *slot)
{
    AS_ASSERT(slot->used);
    slot->used = false;
    gpw_engine_freed(engine);
}

// ---- Life --------------------------------------------------------------------------------------

static as_status_t slot_init(gpw_engine_t *engine, gpw_forward_slot_t *slot, uint32_t rows_max)
{
    slot->rows_max = rows_max;
    slot->positions = as_mem_zalloc(rows_max, sizeof(int32_t));
    if (!slot->positions) {
        return AS_ERR_NO_MEMORY;
    }
    return gpw_forward_alloc(engine->batch.workspace, rows_max, &slot->forward);
}

static as_status_t alloc_scratch(gpw_engine_t *engine)
{
    size_t blocks = engine->options.context_max / engine->shape.block_tokens + 2;
    size_t vocab = engine->options.model->vocab;
    engine->observe_scratch =
        as_mem_aligned(64, gpw_segment_observe_bytes(&engine->shape, engine->options.context_max));
    engine->block_keys = as_mem_zalloc(blocks, sizeof(*engine->block_keys));
    engine->block_nodes = as_mem_zalloc(blocks, sizeof(*engine->block_nodes));
    engine->choose_scratch = as_mem_aligned(64, 2 * vocab * sizeof(float));
    bool complete = engine->observe_scratch && engine->block_keys && engine->block_nodes &&
                    engine->choose_scratch;
    return complete ? AS_OK : AS_ERR_NO_MEMORY;
}

static as_status_t alloc_forwards(gpw_engine_t *engine)
{
    as_status_t status = AS_OK;
    for (uint32_t i = 0; i < engine->options.sessions_max && status == AS_OK; i++) {
        status = slot_init(engine, &engine->forwards[i], GPW_HORIZON_MAX + 1);
    }
    for (uint32_t i = 0; i < GPW_PREFILLS_MAX && status == AS_OK; i++) {
        status = slot_init(engine, &engine->long_forwards[i], engine->options.context_max);
    }
    return status;
}

// What the workspace leaves of the device is for caches.
static as_status_t set_limit(gpw_engine_t *engine, uint64_t workspace_bytes)
{
    gpw_worker_options_t *o = &engine->options;
    gpw_metric_set(GPW_METRIC_WORKSPACE_BYTES, (int64_t)workspace_bytes);
    if (o->device_bytes_max > 0) {
        if (workspace_bytes >= o->device_bytes_max) {
            AS_ERROR("engine",
                     "the workspace of the computation takes %llu bytes of the device's %llu: give "
                     "more --device-memory, or less --context, --sessions or --batch-rows",
                     (unsigned long long)workspace_bytes, (unsigned long long)o->device_bytes_max);
            return AS_ERR_LIMIT;
        }
        o->cache_bytes_max = o->device_bytes_max - workspace_bytes;
    }
    engine->device.bytes_max = o->cache_bytes_max;
    return AS_OK;
}

as_status_t gpw_engine_alloc(const gpw_worker_options_t *options, gpw_link_t *link,
                             const gpw_compressor_t *compressors, gpw_engine_t **engine_p)
{
    gpw_engine_t *engine = as_mem_zalloc(1, sizeof(*engine));
    if (!engine) {
        return AS_ERR_NO_MEMORY;
    }
    engine->options = *options;
    engine->shape = gpw_model_shape(options->model, options->block_tokens);
    engine->loop = options->engine_loop;
    engine->link = link;
    engine->compressors = compressors;
    engine->alarm_us = UINT64_MAX;
    engine->device = (gpw_device_t){.ops = gpw_device_host()};
    gpw_streams_init(engine);
    engine->tick_task = (as_task_t){.fn = tick, .ctx = engine};
    uint64_t before_bytes = as_mem_requested();
    as_status_t status = gpw_trace_alloc(options->trace_path, &engine->trace);
    if (status == AS_OK) {
        status = gpw_shared_alloc(&engine->device, &engine->shared);
    }
    if (status == AS_OK) {
        status = krn_pool_alloc(options->threads, &engine->pool);
    }
    if (status == AS_OK) {
        status = alloc_scratch(engine);
    }
    if (status == AS_OK) {
        status = gpw_batch_init(engine);
    }
    if (status == AS_OK) {
        status = gpw_draft_model_init(engine);
    }
    if (status == AS_OK) {
        status = alloc_forwards(engine);
    }
    if (status == AS_OK) {
        status = gpw_candidates_init(engine);
    }
    if (status == AS_OK) {
        status = set_limit(engine, as_mem_requested() - before_bytes);
    }
    if (status == AS_OK) {
        status = as_timer_alloc(engine->loop, on_alarm, engine, &engine->alarm);
    }
    if (status == AS_OK && options->tick_us) {
        status = as_timer_alloc(engine->loop, tick, engine, &engine->tick_timer);
    }
    if (status != AS_OK) {
        gpw_engine_free(engine);
        return status;
    }
    gpw_metrics_register();
    *engine_p = engine;
    return AS_OK;
}

static void free_requests(gpw_engine_t *engine)
{
    while (engine->first) {
        gpw_request_t *request = engine->first;
        engine->first = request->next;
        // The transfers are over, or die with the link: nobody reads this memory any more.
        for (uint32_t b = 0; request->cached && b < request->blocks.count; b++) {
            request->blocks.block[b].publishing = false;
        }
        gpw_request_close_cache(request);
        gpw_budget_end(&request->budget);
        gpw_request_unpost(request);
        gpw_request_free(request);
    }
}

static void slot_fini(gpw_forward_slot_t *slot)
{
    gpw_forward_free(slot->forward);
    as_mem_free(slot->positions);
}

void gpw_engine_free(gpw_engine_t *engine)
{
    if (!engine) {
        return;
    }
    free_requests(engine);
    gpw_streams_fini(engine);
    as_loop_unpost(engine->loop, &engine->tick_task);
    gpw_shared_free(engine->shared);
    gpw_trace_free(engine->trace);
    AS_ASSERT(engine->device.reserved_bytes == 0);
    for (uint32_t i = 0; i < GPW_REQUESTS_MAX; i++) {
        slot_fini(&engine->forwards[i]);
    }
    for (uint32_t i = 0; i < GPW_PREFILLS_MAX; i++) {
        slot_fini(&engine->long_forwards[i]);
    }
    gpw_draft_model_fini(engine);
    gpw_batch_fini(engine); // the last that uses the pool
    as_timer_free(engine->alarm);
    as_timer_free(engine->tick_timer);
    krn_pool_free(engine->pool);
    as_mem_free(engine->observe_scratch);
    as_mem_free(engine->block_keys);
    as_mem_free(engine->block_nodes);
    as_mem_free(engine->choose_scratch);
    as_mem_free(engine);
}
