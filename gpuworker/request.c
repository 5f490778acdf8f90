// SPDX-License-Identifier: Apache-2.0
// The step table and what drives a request from one step to the next.
//
// Who owns what, and until when:
//
//   forward, a session's place   ADMIT .. the outcome (gpw_request_finish), or a restart
//   long_forward                 FETCH or PREFILL, RECOMPUTE: while many rows are computed
//   blocks, segment, tail        ADMIT .. the outcome; blocks to the end of PUBLISH, puts read them
//   budget                       reserved at ADMIT for the worst case; shrinks as blocks are let go
//   swap's ring                  the engine's (decode/stream.h); ring_bytes is what ADMIT made sure of
//   booking                      DRAFT, until its stream begins or gpw_swap_end
//   place in line                from a step that joins a stream, until that begins or gpw_swap_end
//   stream                       joined in FETCH, SEAL (a prefix's), DRAFT, SWAP or RECOMPUTE; left at
//                                the end of the pass, or when the prefix is sealed
//   pass                         the batch has it from GPW_TURN_COMPUTE until it is complete or waits
//
// A step that cannot go on says WAIT and has seen to it that something wakes it: a transfer's news, a
// turn of the link, memory given back (gpw_engine_freed), the alarm. A request in a step of the batch
// is given its turn by the batch (`computing`), never by the rotation.
#include "gpuworker/request.h"

#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/decode/proposals.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"
#include "gpuworker/worker_internal.h"

// A finished request publishes for at most this many put deadlines: each put ends within one.
#define LINGER_PUTS 4u
// Blocks of a session that stores do not have: those of the newest tokens, which are not sealed yet.
#define OWN_BLOCKS 3u

const gpw_step_entry_t gpw_steps[GPW_STEP_COUNT] = {
    [GPW_STEP_ADMIT] = {"admit", gpw_admit_turn},
    [GPW_STEP_ROUTE] = {"route", gpw_route_turn},
    [GPW_STEP_FETCH] = {"fetch", gpw_fetch_turn},
    [GPW_STEP_PREFILL] = {"prefill", gpw_prefill_turn},
    [GPW_STEP_SEAL] = {"seal", gpw_seal_turn},
    [GPW_STEP_DRAFT] = {"draft", gpw_draft_turn},
    [GPW_STEP_SWAP] = {"swap", gpw_swap_turn},
    [GPW_STEP_VERIFY] = {"verify", gpw_verify_turn},
    [GPW_STEP_RECOMPUTE] = {"recompute", gpw_recompute_turn},
    [GPW_STEP_PUBLISH] = {"publish", gpw_publish_turn},
};
_Static_assert(GPW_METRIC_STEP_US - GPW_METRIC_STEP_TOTAL == GPW_STEP_COUNT, "a counter a step");

gpw_turn_t gpw_request_go(gpw_request_t *request, gpw_step_t step)
{
    uint64_t now_us = as_loop_now_us(request->engine->loop);
    gpw_metric_observe(GPW_METRIC_STEP_US + request->step, now_us - request->step_us);
    gpw_metric_add(GPW_METRIC_STEP_TOTAL + step, 1);
    request->step = step;
    request->step_us = now_us;
    request->engine->load_changed = true;
    return GPW_TURN_AGAIN;
}

void gpw_request_wake(gpw_request_t *request)
{
    request->runnable = true;
    gpw_engine_kick(request->engine);
}

uint32_t gpw_request_drafts_left(const gpw_request_t *request)
{
    uint32_t left = request->params.max_tokens - request->usage.completion_tokens;
    return left > 0 ? left - 1 : 0;
}

// ---- Memory ------------------------------------------------------------------------------------

static gpw_segment_options_t segment_options(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t size = engine->shape.block_tokens;
    gpw_segment_options_t options = {
        .params = request->compressor ? &request->compressor->params : NULL,
        .shape = engine->shape,
        .ops = engine->options.ops,
        .blocks_max = (request->tokens_max + size - 1) / size,
        // Of one that begins again as before, when it was said that it fits.
        .prompt_blocks = gpw_sealed_target(&engine->shape, request->prompt_count)};
    return options;
}

uint64_t gpw_request_segment_bytes(const gpw_request_t *request)
{
    gpw_segment_options_t options = segment_options(request);
    return request->compressor ? request->compressor->bytes_max(&options, options.blocks_max) : 0;
}

// With so many blocks of the full cache.
static uint64_t session_bytes(const gpw_request_t *request, uint64_t blocks)
{
    const as_shape_t *shape = &request->engine->shape;
    uint64_t bytes = blocks * as_block_bytes(shape) + gpw_draft_window_bytes(request) +
                     gpw_request_segment_bytes(request);
    return request->compressor ? bytes + gpw_tail_bytes(shape, request->horizon.max) : bytes;
}

// All but the ring.
static uint64_t cache_bytes_max(const gpw_request_t *request)
{
    return session_bytes(request, segment_options(request).blocks_max) + gpw_observe_bytes(request);
}

uint64_t gpw_request_resident_bytes(const gpw_request_t *request)
{
    uint64_t blocks = segment_options(request).blocks_max;
    bool stored = request->compressor && gpw_link_has_client(request->engine->link);
    return session_bytes(request, stored && blocks > OWN_BLOCKS ? OWN_BLOCKS : blocks);
}

uint64_t gpw_request_ring_bytes(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    if (!gpw_link_has_client(engine->link)) {
        return 0;
    }
    uint64_t ring = gpw_swap_ring_bytes(engine, segment_options(request).blocks_max);
    uint64_t others = cache_bytes_max(request), limit = engine->options.cache_bytes_max;
    return gpw_push_ring(request, ring, limit > others ? limit - others : 0);
}

uint64_t gpw_request_bytes_max(const gpw_request_t *request)
{
    return cache_bytes_max(request) + gpw_request_ring_bytes(request);
}

static void close_tail(gpw_request_t *request)
{
    if (request->tail.budget) {
        gpw_tail_fini(&request->tail);
    }
}

as_status_t gpw_request_open_cache(gpw_request_t *request)
{
    const as_shape_t *shape = &request->engine->shape;
    gpw_segment_options_t options = segment_options(request);
    as_status_t status =
        gpw_blocks_init(&request->blocks, shape, &request->budget, request->tokens_max);
    if (status != AS_OK) {
        return status;
    }
    request->blocks.namespace_key = request->namespace_key;
    gpw_blocks_key(&request->blocks, request->tokens, request->token_count);
    status = gpw_sealed_open(&request->sealed, request->compressor, &request->budget, &options);
    if (status != AS_OK) {
        goto fail_blocks;
    }
    if (request->compressor) {
        status = gpw_tail_init(&request->tail, shape, &request->budget, request->horizon.max);
        if (status != AS_OK) {
            goto fail_sealed;
        }
    }
    status = gpw_lookup_open(&request->lookup, request->tokens_max);
    if (status != AS_OK) {
        goto fail_tail;
    }
    status = gpw_draft_window_open(request);
    if (status != AS_OK) {
        goto fail_lookup;
    }
    request->cached = true;
    return AS_OK;
fail_lookup:
    gpw_lookup_close(&request->lookup);
fail_tail:
    close_tail(request);
fail_sealed:
    gpw_sealed_close(&request->sealed);
fail_blocks:
    gpw_blocks_fini(&request->blocks);
    return status;
}

static void close_resident(gpw_request_t *request)
{
    gpw_draft_window_close(request);
    gpw_lookup_close(&request->lookup);
    gpw_sealed_close(&request->sealed);
    close_tail(request);
    gpw_observe_end(request);
}

void gpw_request_close_cache(gpw_request_t *request)
{
    if (request->cached) {
        close_resident(request);
        gpw_blocks_fini(&request->blocks);
        request->cached = false;
    }
}

void gpw_request_release(gpw_request_t *request)
{
    gpw_request_close_cache(request);
    gpw_budget_end(&request->budget);
    gpw_engine_freed(request->engine);
}

bool gpw_request_keeps_blocks(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    return request->keep_full ||
           (request->verify && engine->options.keep_while_room && !gpw_engine_is_short(engine));
}

bool gpw_request_moving(gpw_request_t *request)
{
    if (request->route && gpw_transfer_news(request->route)->done) {
        gpw_transfer_retire(request->route);
        request->route = NULL;
    }
    return request->route || request->puts_used > 0;
}

void gpw_request_unpost(gpw_request_t *request)
{
    const gpw_worker_options_t *options = &request->worker->options;
    as_loop_unpost(options->engine_loop, &request->submit_task);
    as_loop_unpost(options->engine_loop, &request->cancel_task);
    as_loop_unpost(options->engine_loop, &request->stop_task);
    as_loop_unpost(options->engine_loop, &request->goodbye_task);
    as_loop_unpost(options->io_loop, &request->tokens_task);
    as_loop_unpost(options->io_loop, &request->place_task);
    as_loop_unpost(options->io_loop, &request->finish_task);
}

void gpw_request_free(gpw_request_t *request)
{
    gpw_token_batch_t *batch = atomic_load(&request->handed);
    while (batch) {
        gpw_token_batch_t *next = batch->next;
        as_mem_free(batch);
        batch = next;
    }
    for (uint32_t p = 0; p < GPW_PUTS_MAX; p++) {
        as_mem_free(request->puts[p].sealed);
    }
    as_mem_free(request->batch);
    as_mem_free(request->continuation);
    as_mem_free(request->tokens);
    as_mem_free(request);
}

// ---- ADMIT -------------------------------------------------------------------------------------

static bool is_first_in_line(const gpw_request_t *request)
{
    for (const gpw_request_t *r = request->engine->first; r != request; r = r->next) {
        if (r->step == GPW_STEP_ADMIT) {
            return false;
        }
    }
    return true;
}

static gpw_turn_t stand_in_line(gpw_request_t *request)
{
    request->in_line = true;
    request->engine->load_changed = true; // tells it its place
    return GPW_TURN_WAIT;
}

// The session's own memory, and a ring for its swaps where that of others does not do.
static bool reserve(gpw_request_t *request)
{
    uint64_t ring_bytes = gpw_request_ring_bytes(request);
    if (!gpw_budget_reserve(&request->budget, cache_bytes_max(request))) {
        return false;
    }
    if (!gpw_streams_admit(request->engine, ring_bytes)) {
        gpw_budget_end(&request->budget);
        return false;
    }
    request->ring_bytes = ring_bytes;
    return true;
}

gpw_turn_t gpw_admit_turn(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    if (request->cached || request->budget.reserved_bytes) { // it begins again
        if (gpw_request_moving(request)) {
            return GPW_TURN_WAIT;
        }
        gpw_request_release(request);
    }
    if (!is_first_in_line(request) || engine->sessions == engine->options.sessions_max) {
        return stand_in_line(request);
    }
    gpw_candidates_choose(request);
    request->lacks_memory = !reserve(request);
    if (request->lacks_memory) {
        gpw_engine_hurry_lingerers(engine);
        return stand_in_line(request);
    }
    request->in_line = false;
    request->place = 0;
    request->forward = gpw_engine_take_forward(engine, false);
    AS_ASSERT(request->forward); // there are as many as sessions
    request->holds_session = true;
    engine->sessions++;
    as_status_t status = gpw_request_open_cache(request);
    if (status != AS_OK) {
        return gpw_request_fail(request, status,
                                status == AS_ERR_UNSUPPORTED
                                    ? "the compressor does not fit the shape of this model"
                                    : "no memory for the request's cache");
    }
    if (request->restarts == 0) {
        request->usage.queue_us = as_loop_now_us(engine->loop) - request->submitted_us;
    }
    gpw_engine_freed(engine); // the next in line may try
    return gpw_request_go(request, GPW_STEP_ROUTE);
}

// ---- Ends --------------------------------------------------------------------------------------

static void give_up_session(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    if (request->long_forward) {
        gpw_engine_give_forward(engine, request->long_forward);
        request->long_forward = NULL;
    }
    if (request->forward) {
        gpw_engine_give_forward(engine, request->forward);
        request->forward = NULL;
    }
    if (request->holds_session) {
        request->holds_session = false;
        engine->sessions--;
        gpw_streams_settle(engine);
    }
    request->passing = false;
    request->computing = false;
    request->drafting = false;
    request->draft_count = 0;
    request->recompute_to = 0;
    gpw_proposals_stop(request);
    gpw_swap_end(request);
    if (request->route && !gpw_transfer_news(request->route)->done) {
        gpw_transfer_cancel(request->route);
    }
    gpw_engine_freed(engine);
}

gpw_turn_t gpw_request_restart(gpw_request_t *request)
{
    AS_INFO("request", "request %llu begins again: no memory for lost blocks",
            (unsigned long long)request->id);
    gpw_metric_add(GPW_METRIC_RESTARTS_TOTAL, 1);
    request->restarts++;
    request->swap_failures = 0;
    request->push_failed = false;
    gpw_publish_cancel(request);
    give_up_session(request);
    return gpw_request_go(request, GPW_STEP_ADMIT);
}

static void account(gpw_request_t *request)
{
    const as_shape_t *shape = &request->blocks.shape;
    if (!request->cached) {
        return;
    }
    uint64_t held = request->blocks.count - request->blocks.stored;
    request->usage.resident_bytes =
        held * as_block_bytes(shape) + request->sealed.bytes + request->sealed.shared_bytes +
        request->draft_window.bytes +
        (request->compressor ? gpw_tail_bytes(shape, request->horizon.max) : 0);
    request->usage.full_bytes =
        (uint64_t)request->blocks.tokens * (as_block_bytes(shape) / shape->block_tokens);
}

gpw_turn_t gpw_request_finish(gpw_request_t *request, gpw_finish_t finish, as_status_t status,
                              const char *text)
{
    gpw_engine_t *engine = request->engine;
    AS_ASSERT(!request->finished);
    uint64_t now_us = as_loop_now_us(engine->loop);
    account(request);
    gpw_candidates_end(request, status == AS_OK);
    give_up_session(request);
    if (request->cached) {
        close_resident(request);
        // Nothing is allocated any more.
        gpw_budget_shrink(&request->budget,
                          request->budget.reserved_bytes - request->budget.used_bytes);
    }
    gpw_reply_flush(request);
    request->usage.total_us = now_us - request->submitted_us;
    request->finished = true;
    request->finish = finish;
    request->finish_status = status;
    request->finish_text = text;
    request->finish_usage = request->usage;
    request->linger_until_us = now_us + LINGER_PUTS * engine->options.put_deadline_us;
    if (status != AS_OK) {
        gpw_publish_cancel(request);
        gpw_metric_add(GPW_METRIC_REQUESTS_FAILED_TOTAL, finish == GPW_FINISH_ERROR);
    }
    gpw_request_go(request, GPW_STEP_PUBLISH);
    request->runnable = true;
    gpw_worker_post_io(request->worker, &request->finish_task);
    return GPW_TURN_AGAIN;
}

gpw_turn_t gpw_request_fail(gpw_request_t *request, as_status_t status, const char *text)
{
    AS_WARN("request", "request %llu step %s: %s: %s", (unsigned long long)request->id,
            gpw_steps[request->step].name, text, as_status_str(status));
    return gpw_request_finish(request, GPW_FINISH_ERROR, status, text);
}
