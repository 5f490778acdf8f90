// SPDX-License-Identifier: Apache-2.0
// The loop in virtual time: a whole cluster on one clock, the same run from the same calls.
//
// Every timer start and every post takes the next order number. Events run by (time, order). Timers
// wait in a binary heap; its array always has room for every timer that is allocated, so starting
// one cannot fail. Tasks are posted at the present time, and the clock does not move while one
// waits: a queue in order of posting is enough for them.
#include "common/loop.h"

#include <stddef.h>

#include "common/assert.h"
#include "common/loop_impl.h"
#include "common/mem.h"
#include "common/siphash.h"

#define NOT_IN_HEAP UINT32_MAX

typedef struct timer_sim {
    as_timer_t head;
    uint64_t due_us;
    uint64_t order;
    uint32_t position; // in the heap, or NOT_IN_HEAP
} timer_sim_t;

typedef struct loop_sim {
    as_loop_t head;
    uint64_t now_us;
    uint64_t order_next;
    as_task_t *oldest, *newest;
    timer_sim_t **heap; // heap[0] is due first
    uint32_t heap_count;
    uint32_t heap_capacity; // at least the number of timers allocated
    bool stopping;
} loop_sim_t;

static loop_sim_t *loop_of(as_loop_t *loop)
{
    return (loop_sim_t *)loop;
}

static bool due_before(const timer_sim_t *a, const timer_sim_t *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static void heap_set(loop_sim_t *loop, uint32_t position, timer_sim_t *timer)
{
    loop->heap[position] = timer;
    timer->position = position;
}

// Moves the timer from `position`, a hole, to its place nearer to the root.
static void heap_rise(loop_sim_t *loop, uint32_t position, timer_sim_t *timer)
{
    while (position > 0) {
        uint32_t parent = (position - 1) / 2;
        if (!due_before(timer, loop->heap[parent])) {
            break;
        }
        heap_set(loop, position, loop->heap[parent]);
        position = parent;
    }
    heap_set(loop, position, timer);
}

// Moves the timer from `position`, a hole, to its place farther from the root.
static void heap_sink(loop_sim_t *loop, uint32_t position, timer_sim_t *timer)
{
    for (;;) {
        uint32_t child = 2 * position + 1;
        if (child >= loop->heap_count) {
            break;
        }
        if (child + 1 < loop->heap_count && due_before(loop->heap[child + 1], loop->heap[child])) {
            child++;
        }
        if (!due_before(loop->heap[child], timer)) {
            break;
        }
        heap_set(loop, position, loop->heap[child]);
        position = child;
    }
    heap_set(loop, position, timer);
}

static void heap_remove(loop_sim_t *loop, timer_sim_t *timer)
{
    uint32_t position = timer->position;
    if (position == NOT_IN_HEAP) {
        return;
    }
    timer->position = NOT_IN_HEAP;
    timer_sim_t *last = loop->heap[--loop->heap_count];
    if (last == timer) {
        return;
    }
    heap_sink(loop, position, last);
    heap_rise(loop, last->position, last);
}

static uint64_t sim_now_us(const as_loop_t *loop)
{
    return ((const loop_sim_t *)loop)->now_us;
}

static void run_task(loop_sim_t *loop)
{
    as_task_t *task = loop->oldest;
    loop->oldest = task->next;
    if (!loop->oldest) {
        loop->newest = NULL;
    }
    task->queued = false;
    task->fn(task->ctx);
}

static void run_timer(loop_sim_t *loop)
{
    timer_sim_t *timer = loop->heap[0];
    heap_remove(loop, timer);
    AS_ASSERT(timer->due_us >= loop->now_us);
    loop->now_us = timer->due_us;
    timer->head.fn(timer->head.ctx);
}

// Runs the next event; with `move` false only if it needs no move of the clock. False when there
// was none to run.
static bool run_next(loop_sim_t *loop, bool move)
{
    const timer_sim_t *timer = loop->heap_count > 0 ? loop->heap[0] : NULL;
    bool timer_is_due = timer && timer->due_us == loop->now_us;
    if (loop->oldest && !(timer_is_due && timer->order < loop->oldest->order)) {
        run_task(loop);
        return true;
    }
    if (timer_is_due || (timer && move)) {
        run_timer(loop);
        return true;
    }
    return false;
}

static bool sim_run_once(as_loop_t *head, bool wait)
{
    loop_sim_t *loop = loop_of(head);
    run_next(loop, wait);
    return loop->oldest != NULL || loop->heap_count > 0;
}

static void sim_run(as_loop_t *head)
{
    loop_sim_t *loop = loop_of(head);
    while (!loop->stopping && run_next(loop, true)) {
    }
    loop->stopping = false;
}

static void sim_stop(as_loop_t *head)
{
    loop_of(head)->stopping = true;
}

static void sim_post(as_loop_t *head, as_task_t *task)
{
    loop_sim_t *loop = loop_of(head);
    if (task->queued) {
        return;
    }
    task->queued = true;
    task->order = loop->order_next++;
    task->next = NULL;
    if (loop->newest) {
        loop->newest->next = task;
    } else {
        loop->oldest = task;
    }
    loop->newest = task;
}

static void sim_unpost(as_loop_t *head, as_task_t *task)
{
    loop_sim_t *loop = loop_of(head);
    as_task_t *before = NULL;
    for (as_task_t *at = loop->oldest; at; before = at, at = at->next) {
        if (at != task) {
            continue;
        }
        if (before) {
            before->next = task->next;
        } else {
            loop->oldest = task->next;
        }
        if (loop->newest == task) {
            loop->newest = before;
        }
        task->queued = false;
        return;
    }
}

static as_status_t sim_timer_alloc(as_loop_t *head, as_timer_t **timer_p)
{
    loop_sim_t *loop = loop_of(head);
    if (head->timer_count == loop->heap_capacity) {
        uint32_t capacity = loop->heap_capacity ? 2 * loop->heap_capacity : 64;
        timer_sim_t **heap = as_mem_realloc(loop->heap, capacity * sizeof(timer_sim_t *));
        if (!heap) {
            return AS_ERR_NO_MEMORY;
        }
        loop->heap = heap;
        loop->heap_capacity = capacity;
    }
    timer_sim_t *timer = as_mem_zalloc(1, sizeof(*timer));
    if (!timer) {
        return AS_ERR_NO_MEMORY;
    }
    timer->position = NOT_IN_HEAP;
    *timer_p = &timer->head;
    return AS_OK;
}

static void sim_timer_start(as_timer_t *head, uint64_t delay_us)
{
    timer_sim_t *timer = (timer_sim_t *)head;
    loop_sim_t *loop = loop_of(head->loop);
    heap_remove(loop, timer);
    uint64_t due_us = loop->now_us + delay_us;
    timer->due_us = due_us < loop->now_us ? UINT64_MAX : due_us;
    timer->order = loop->order_next++;
    AS_ASSERT(loop->heap_count < loop->heap_capacity);
    heap_rise(loop, loop->heap_count++, timer);
}

static void sim_timer_stop(as_timer_t *head)
{
    heap_remove(loop_of(head->loop), (timer_sim_t *)head);
}

static void sim_timer_free(as_timer_t *head)
{
    sim_timer_stop(head);
    as_mem_free(head);
}

static struct uv_loop_s *sim_uv(as_loop_t *loop)
{
    (void)loop;
    return NULL;
}

static void sim_free(as_loop_t *head)
{
    loop_sim_t *loop = loop_of(head);
    head->magic = 0;
    as_mem_free(loop->heap);
    as_mem_free(loop);
}

static const as_loop_ops_t sim_ops = {
    .free = sim_free,
    .now_us = sim_now_us,
    .run = sim_run,
    .run_once = sim_run_once,
    .stop = sim_stop,
    .post = sim_post,
    .unpost = sim_unpost,
    .timer_alloc = sim_timer_alloc,
    .timer_start = sim_timer_start,
    .timer_stop = sim_timer_stop,
    .timer_free = sim_timer_free,
    .uv = sim_uv,
};

as_status_t as_loop_alloc_sim(as_loop_t **loop_p)
{
    as_siphash_own_known(); // the order of a table is part of what is to be repeated
    loop_sim_t *loop = as_mem_zalloc(1, sizeof(*loop));
    if (!loop) {
        return AS_ERR_NO_MEMORY;
    }
    loop->head.magic = AS_LOOP_MAGIC;
    loop->head.ops = &sim_ops;
    *loop_p = &loop->head;
    return AS_OK;
}
