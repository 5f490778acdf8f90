// SPDX-License-Identifier: Apache-2.0
// The engine: whose turn it is, and when the batch computes. It owns what requests share: kernels'
// pool, batch, forward passes, the device's budget.
//
// One tick takes one turn of one runnable request, in rotation, or, when nobody wants one, runs a
// unit of the batch (decode/batch.h); then it posts itself again: so the loop's events run between
// ticks, and the same code runs on a thread of its own or inside a simulation. Turns come first
// since they compute little, and what they hand to the batch shares its steps.
#ifndef GPW_ENGINE_H
#define GPW_ENGINE_H

#include "gpuworker/decode/batch.h"
#include "gpuworker/decode/candidates.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/decode/stream.h"
#include "gpuworker/metrics.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/shared.h"
#include "gpuworker/request.h"
#include "gpuworker/trace.h"

#define GPW_PREFILLS_MAX                                                                           \
    2u // passes of many rows at once: one computes while the other waits for a fetch

typedef struct gpw_engine {
    gpw_worker_options_t options;
    as_shape_t shape;
    as_loop_t *loop;
    gpw_link_t *link;
    const gpw_compressor_t *compressors; // the worker's table
    krn_pool_t *pool;
    gpw_device_t device;
    gpw_shared_t *shared;
    gpw_batch_t batch;
    gpw_draft_model_t draft_model;
    gpw_push_rates_t push;
    gpw_candidates_t candidates;
    gpw_streams_t streams;
    gpw_trace_t *trace; // NULL: none is written
    gpw_forward_slot_t forwards[GPW_REQUESTS_MAX];
    gpw_forward_slot_t long_forwards[GPW_PREFILLS_MAX];
    void *observe_scratch; // gpw_segment_observe_bytes of the longest context
    as_key_t *block_keys;  // [blocks of the longest context]: arguments of a transfer
    uint64_t *block_nodes;
    float *choose_scratch; // [2][vocab]

    gpw_request_t *first, *last; // all, in order of arrival
    gpw_request_t *turn;         // who goes next; NULL: the first
    uint32_t sessions;           // that hold a cache and are not finished
    as_task_t tick_task;
    as_timer_t *tick_timer; // simulation: a tick takes tick_us
    bool ticking;
    bool load_changed;           // since it was last noted for heartbeats
    as_timer_t *alarm;           // deadlines and retries
    uint64_t alarm_us;           // when it is due; UINT64_MAX: not set
    bool warned_block_too_large; // for a store
    double prefill_us_per_token; // running mean, of prompts computed whole; 0: not known
    _Atomic uint64_t load_used_bytes, load_sessions, load_queued_tokens; // for heartbeats
} gpw_engine_t;

as_status_t gpw_engine_alloc(const gpw_worker_options_t *options, gpw_link_t *link,
                             const gpw_compressor_t *compressors,
                             gpw_engine_t **engine_p) AS_MUST_USE;
// Frees all requests with it. Both loops have stopped.
void gpw_engine_free(gpw_engine_t *engine);

void gpw_engine_add(gpw_engine_t *engine, gpw_request_t *request);
void gpw_engine_kick(gpw_engine_t *engine); // someone is runnable
// Something that requests in ADMIT, FETCH, PREFILL or RECOMPUTE wait for was given back.
void gpw_engine_freed(gpw_engine_t *engine);
void gpw_engine_wake_at(gpw_engine_t *engine, uint64_t at_us); // runs the alarm not later than this
// The io loop will not touch the request again.
void gpw_engine_farewell(gpw_engine_t *engine, gpw_request_t *request);
// Whether somebody waits for memory: who can do with less gives it back.
bool gpw_engine_is_short(const gpw_engine_t *engine);
// Wakes all requests that only linger to publish, so that they let go of their memory.
void gpw_engine_hurry_lingerers(gpw_engine_t *engine);
gpw_forward_slot_t *gpw_engine_take_forward(gpw_engine_t *engine,
                                            bool many_rows); // NULL: all in use
void gpw_engine_give_forward(gpw_engine_t *engine, gpw_forward_slot_t *slot);

#endif
