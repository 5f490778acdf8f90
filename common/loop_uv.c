// SPDX-License-Identifier: Apache-2.0
// The loop in real time, on libuv.
//
// Posting is an intrusive stack with many producers and one consumer: a producer pushes by
// compare-and-swap, and only the one that found the stack empty wakes the loop; the consumer takes
// the whole stack and runs it oldest first. No allocation and no lock, so posting cannot fail.
// `queued` is exchanged atomically: of several posters one pushes.
//
// libuv's timers count milliseconds of a cached clock. Delays are rounded up against the true
// clock, so a timer is never early and less than a millisecond late by rounding.
#include "common/loop.h"

#include <stdatomic.h>
#include <stddef.h>
#include <uv.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/loop_impl.h"
#include "common/mem.h"

typedef struct loop_uv {
    as_loop_t head;
    uv_loop_t uv;
    uv_async_t wake;
    _Atomic(as_task_t *) posted; // newest first
    as_task_t *taken;            // by the loop, oldest first, and not run yet
    atomic_bool stopping;        // a stop that no run has taken yet
    bool freeing;
} loop_uv_t;

typedef struct timer_uv {
    as_timer_t head;
    uv_timer_t uv;
} timer_uv_t;

static loop_uv_t *loop_of(as_loop_t *loop)
{
    return (loop_uv_t *)loop;
}

static uint64_t uv_now_us(const as_loop_t *loop)
{
    (void)loop;
    return uv_hrtime() / 1000;
}

// Moves what is posted, oldest first, behind what was taken before.
static void take_posted(loop_uv_t *loop)
{
    as_task_t *task = atomic_exchange_explicit(&loop->posted, NULL, memory_order_acquire);
    as_task_t *oldest = NULL;
    while (task) {
        as_task_t *next = task->next;
        task->next = oldest;
        oldest = task;
        task = next;
    }
    as_task_t **end = &loop->taken;
    while (*end) {
        end = &(*end)->next;
    }
    *end = oldest;
}

// A later post queues the task again; an earlier one, which found it queued and did nothing, has
// ordered what its thread wrote before it: read-modify-write on both sides, so that the run that
// comes now sees it. A plain store could be overtaken by the loads of that run.
static void set_unqueued(as_task_t *task)
{
    (void)__atomic_exchange_n(&task->queued, false, __ATOMIC_ACQ_REL);
}

static void on_wake(uv_async_t *wake)
{
    loop_uv_t *loop = wake->data;
    take_posted(loop);
    while (loop->taken) {
        as_task_t *task = loop->taken;
        loop->taken = task->next;
        as_loop_fn fn = task->fn;
        void *ctx = task->ctx;
        // From here the task may be posted again by any thread, and fn may free it.
        set_unqueued(task);
        fn(ctx);
    }
}

static void uv_unpost(as_loop_t *head, as_task_t *task)
{
    loop_uv_t *loop = loop_of(head);
    take_posted(loop); // the wake-up that is under way will run the others
    for (as_task_t **link = &loop->taken; *link; link = &(*link)->next) {
        if (*link == task) {
            *link = task->next;
            set_unqueued(task);
            return;
        }
    }
}

static void uv_post(as_loop_t *head, as_task_t *task)
{
    loop_uv_t *loop = loop_of(head);
    if (__atomic_exchange_n(&task->queued, true, __ATOMIC_ACQ_REL) || loop->freeing) {
        return;
    }
    as_task_t *newest = atomic_load_explicit(&loop->posted, memory_order_relaxed);
    do {
        task->next = newest;
    } while (!atomic_compare_exchange_weak_explicit(&loop->posted, &newest, task,
                                                    memory_order_release, memory_order_relaxed));
    if (!newest) {
        uv_async_send(&loop->wake);
    }
}

static void uv_stop_run(as_loop_t *head)
{
    loop_uv_t *loop = loop_of(head);
    atomic_store(&loop->stopping, true);
    uv_async_send(&loop->wake);
}

static void uv_run_until_stop(as_loop_t *head)
{
    loop_uv_t *loop = loop_of(head);
    while (!atomic_exchange(&loop->stopping, false)) {
        uv_run(&loop->uv, UV_RUN_ONCE);
    }
}

static bool uv_run_some(as_loop_t *head, bool wait)
{
    loop_uv_t *loop = loop_of(head);
    uv_run(&loop->uv, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    // The wake-up handle is always there; it is nothing to wait for.
    uv_unref((uv_handle_t *)&loop->wake);
    bool alive = uv_loop_alive(&loop->uv) || loop->taken ||
                 atomic_load_explicit(&loop->posted, memory_order_relaxed);
    uv_ref((uv_handle_t *)&loop->wake);
    return alive;
}

static struct uv_loop_s *uv_underneath(as_loop_t *loop)
{
    return &loop_of(loop)->uv;
}

static void on_timer(uv_timer_t *uv)
{
    timer_uv_t *timer = uv->data;
    timer->head.fn(timer->head.ctx);
}

static as_status_t uv_timer_new(as_loop_t *loop, as_timer_t **timer_p)
{
    timer_uv_t *timer = as_mem_zalloc(1, sizeof(*timer));
    if (!timer) {
        return AS_ERR_NO_MEMORY;
    }
    int error = uv_timer_init(&loop_of(loop)->uv, &timer->uv);
    AS_ASSERT(error == 0); // libuv: always succeeds
    timer->uv.data = timer;
    *timer_p = &timer->head;
    return AS_OK;
}

static void uv_timer_begin(as_timer_t *head, uint64_t delay_us)
{
    timer_uv_t *timer = (timer_uv_t *)head;
    uint64_t now_us = uv_hrtime() / 1000;
    uint64_t due_us = now_us + delay_us < now_us ? UINT64_MAX : now_us + delay_us;
    uint64_t due_ms = due_us / 1000 + (due_us % 1000 != 0);
    // libuv adds the loop's cached clock again. At least 1: a timer that is due at the cached time
    // and is started by its own callback would run for ever without the loop seeing anything else.
    uint64_t loop_ms = uv_now(timer->uv.loop);
    uint64_t delay_ms = due_ms > loop_ms ? due_ms - loop_ms : 1;
    int error = uv_timer_start(&timer->uv, on_timer, delay_ms, 0);
    AS_ASSERT(error == 0); // fails only on a closing handle
}

static void uv_timer_end(as_timer_t *head)
{
    uv_timer_stop(&((timer_uv_t *)head)->uv);
}

static void on_timer_closed(uv_handle_t *handle)
{
    as_mem_free(handle->data);
}

static void uv_timer_release(as_timer_t *head)
{
    uv_close((uv_handle_t *)&((timer_uv_t *)head)->uv, on_timer_closed);
}

static void check_closing(uv_handle_t *handle, void *ctx)
{
    (void)ctx;
    // Whoever opened a handle on the loop closes it before the loop is freed.
    AS_ASSERT(uv_is_closing(handle));
}

static void uv_release(as_loop_t *head)
{
    loop_uv_t *loop = loop_of(head);
    loop->freeing = true;
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_walk(&loop->uv, check_closing, NULL);
    uv_run(
        &loop->uv,
        UV_RUN_DEFAULT); // runs the close callbacks, and requests that are under way to their end
    int error = uv_loop_close(&loop->uv);
    AS_ASSERT(error == 0);
    loop->head.magic = 0;
    as_mem_free(loop);
}

static const as_loop_ops_t uv_ops = {
    .free = uv_release,
    .now_us = uv_now_us,
    .run = uv_run_until_stop,
    .run_once = uv_run_some,
    .stop = uv_stop_run,
    .post = uv_post,
    .unpost = uv_unpost,
    .timer_alloc = uv_timer_new,
    .timer_start = uv_timer_begin,
    .timer_stop = uv_timer_end,
    .timer_free = uv_timer_release,
    .uv = uv_underneath,
};

as_status_t as_loop_alloc_uv(as_loop_t **loop_p)
{
    loop_uv_t *loop = as_mem_zalloc(1, sizeof(*loop));
    if (!loop) {
        return AS_ERR_NO_MEMORY;
    }
    int error = uv_loop_init(&loop->uv);
    if (error) {
        AS_ERROR("loop", "cannot make an event loop: %s", uv_strerror(error));
        as_mem_free(loop);
        return AS_ERR_IO;
    }
    error = uv_async_init(&loop->uv, &loop->wake, on_wake);
    if (error) {
        AS_ERROR("loop", "cannot make a wake-up handle: %s", uv_strerror(error));
        uv_loop_close(&loop->uv);
        as_mem_free(loop);
        return AS_ERR_IO;
    }
    loop->wake.data = loop;
    loop->head.magic = AS_LOOP_MAGIC;
    loop->head.ops = &uv_ops;
    *loop_p = &loop->head;
    return AS_OK;
}
