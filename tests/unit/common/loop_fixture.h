// SPDX-License-Identifier: Apache-2.0
// What the tests of the loops share: a loop of either kind, and a list of what ran.
#ifndef TEST_LOOP_FIXTURE_H
#define TEST_LOOP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>

#include "common/loop.h"

#define EVENTS_MAX 4096

static as_loop_t *loop;
static int events[EVENTS_MAX];
static int event_count;

static inline int open_uv(void **state)
{
    (void)state;
    event_count = 0;
    return as_loop_alloc_uv(&loop) != AS_OK;
}

static inline int open_sim(void **state)
{
    (void)state;
    event_count = 0;
    return as_loop_alloc_sim(&loop) != AS_OK;
}

static inline int close_loop(void **state)
{
    (void)state;
    as_loop_free(loop);
    loop = NULL;
    return 0;
}

static inline void note(int event)
{
    assert_true(event_count < EVENTS_MAX);
    events[event_count++] = event;
}

static inline void note_ctx(void *ctx)
{
    note((int)(intptr_t)ctx);
}

static inline void stop(void *ctx)
{
    (void)ctx;
    as_loop_stop(loop);
}

static inline void assert_events(int count, const int *expected)
{
    assert_int_equal(event_count, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(events[i], expected[i]);
    }
}
#define ASSERT_EVENTS(...)                                                                         \
    assert_events((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})

static inline as_timer_t *new_timer(as_loop_fn fn, void *ctx)
{
    as_timer_t *timer = NULL;
    assert_int_equal(as_timer_alloc(loop, fn, ctx, &timer), AS_OK);
    return timer;
}

#define ON(loop_kind, test) cmocka_unit_test_setup_teardown(test, open_##loop_kind, close_loop)
#define ON_BOTH(test)                                                                              \
    {#test " (uv)", test, open_uv, close_loop, NULL},                                              \
    {                                                                                              \
#test " (sim)", test, open_sim, close_loop, NULL                                           \
    }

#endif
