// SPDX-License-Identifier: Apache-2.0
// The event loop as a seam: real time on libuv (loop_uv.c) or virtual time (loop_sim.c).
//
// Everything that waits is written against this header, so a whole cluster can run in one process,
// on one virtual clock, from one seed. A loop belongs to the thread that runs it; only as_loop_post
// and as_loop_stop may be called from another thread (on the simulated loop: from none).
//
// Contract of every asynchronous call in the project: start returned a status other than AS_OK
// means no callback; AS_OK means exactly one callback, on the loop that started it, never from
// inside the start call.
#ifndef AS_LOOP_H
#define AS_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include "common/status.h"

struct uv_loop_s;
typedef struct as_loop as_loop_t;
typedef struct as_timer as_timer_t;
typedef void (*as_loop_fn)(void *ctx);

// A piece of work to run on a loop. Caller's storage; must live until fn has run. All but fn and
// ctx belongs to the loop. Posting a task that is still queued queues nothing, but the run to come
// sees all that was written before the post: so a task doubles as a wake-up flag.
typedef struct as_task {
    as_loop_fn fn;
    void *ctx;
    struct as_task *next;
    uint64_t order;
    bool queued;
} as_task_t;

as_status_t as_loop_alloc_uv(as_loop_t **loop_p) AS_MUST_USE;
// Virtual time starts at 0. Events due at the same time run in the order in which they were made.
as_status_t as_loop_alloc_sim(as_loop_t **loop_p) AS_MUST_USE;
// All timers must be freed. Pending tasks are dropped. NULL is fine.
void as_loop_free(as_loop_t *loop);

// Monotonic microseconds: CLOCK_MONOTONIC, or virtual time.
uint64_t as_loop_now_us(const as_loop_t *loop);
// Runs until as_loop_stop (uv), or until nothing is due any more or as_loop_stop (sim).
void as_loop_run(as_loop_t *loop);
// Handles what is due now; if nothing is and `wait`, waits for the next event. Returns true if the
// loop still has something to wait for. On the simulated loop it runs exactly one event and moves
// the clock to it; with wait false only if that event is due at the present time.
bool as_loop_run_once(as_loop_t *loop, bool wait);
void as_loop_stop(as_loop_t *loop);

// Runs task->fn(task->ctx) on the loop soon, after what is already posted. Thread-safe on uv.
void as_loop_post(as_loop_t *loop, as_task_t *task);
// The task will not run, if it has not: its storage may go. On the loop's thread only, and while no
// other posts it.
void as_loop_unpost(as_loop_t *loop, as_task_t *task);

// One-shot timers. Starting a running timer moves it. Free from any callback of the loop, also its
// own.
as_status_t as_timer_alloc(as_loop_t *loop, as_loop_fn fn, void *ctx,
                           as_timer_t **timer_p) AS_MUST_USE;
void as_timer_start(as_timer_t *timer, uint64_t delay_us);
void as_timer_stop(as_timer_t *timer);
void as_timer_free(as_timer_t *timer); // NULL is fine

// The libuv loop underneath, or NULL on the simulated loop.
struct uv_loop_s *as_loop_uv(as_loop_t *loop);

#endif
