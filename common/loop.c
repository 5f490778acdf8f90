// SPDX-License-Identifier: Apache-2.0
// Dispatch of the loop's calls to the implementation that made it, with the checks that both share.
#include "common/loop.h"

#include <stddef.h>

#include "common/assert.h"
#include "common/loop_impl.h"

void as_loop_free(as_loop_t *loop)
{
    if (!loop) {
        return;
    }
    AS_ASSERT(loop->magic == AS_LOOP_MAGIC);
    AS_ASSERT(loop->timer_count == 0);
    loop->ops->free(loop);
}

uint64_t as_loop_now_us(const as_loop_t *loop)
{
    return loop->ops->now_us(loop);
}

void as_loop_run(as_loop_t *loop)
{
    AS_ASSERT(loop->magic == AS_LOOP_MAGIC);
    loop->ops->run(loop);
}

bool as_loop_run_once(as_loop_t *loop, bool wait)
{
    AS_ASSERT(loop->magic == AS_LOOP_MAGIC);
    return loop->ops->run_once(loop, wait);
}

void as_loop_stop(as_loop_t *loop)
{
    loop->ops->stop(loop);
}

void as_loop_post(as_loop_t *loop, as_task_t *task)
{
    AS_ASSERT(task->fn != NULL);
    loop->ops->post(loop, task);
}

void as_loop_unpost(as_loop_t *loop, as_task_t *task)
{
    loop->ops->unpost(loop, task);
}

struct uv_loop_s *as_loop_uv(as_loop_t *loop)
{
    return loop->ops->uv(loop);
}

as_status_t as_timer_alloc(as_loop_t *loop, as_loop_fn fn, void *ctx, as_timer_t **timer_p)
{
    AS_ASSERT(loop->magic == AS_LOOP_MAGIC && fn != NULL);
    as_timer_t *timer;
    as_status_t status = loop->ops->timer_alloc(loop, &timer);
    if (status != AS_OK) {
        return status;
    }
    timer->magic = AS_TIMER_MAGIC;
    timer->loop = loop;
    timer->fn = fn;
    timer->ctx = ctx;
    loop->timer_count++;
    *timer_p = timer;
    return AS_OK;
}

void as_timer_start(as_timer_t *timer, uint64_t delay_us)
{
    AS_ASSERT(timer->magic == AS_TIMER_MAGIC);
    timer->loop->ops->timer_start(timer, delay_us);
}

void as_timer_stop(as_timer_t *timer)
{
    AS_ASSERT(timer->magic == AS_TIMER_MAGIC);
    timer->loop->ops->timer_stop(timer);
}

void as_timer_free(as_timer_t *timer)
{
    if (!timer) {
        return;
    }
    AS_ASSERT(timer->magic == AS_TIMER_MAGIC);
    timer->magic = 0;
    timer->loop->timer_count--;
    timer->loop->ops->timer_free(timer);
}
