// SPDX-License-Identifier: Apache-2.0
// The loop in real time: posts and stops of other threads, and the clock.
#include "loop_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define POSTS 20000

typedef struct poster {
    as_task_t own;
    int own_runs;
    pthread_t thread;
} poster_t;

static void count_own(void *ctx)
{
    ((poster_t *)ctx)->own_runs++;
}

static void *post_many(void *ctx)
{
    poster_t *poster = ctx;
    for (int i = 0; i < POSTS; i++) {
        as_loop_post(loop, &poster->own);
    }
    return NULL;
}

// The last post of a thread must lead to a run after it, however the runs before it fell.
static void posts_of_other_threads_are_never_lost(void **state)
{
    (void)state;
    static poster_t posters[3];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++) {
            posters[i] = (poster_t){.own = {.fn = count_own, .ctx = &posters[i]}};
            assert_int_equal(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]), 0);
        }
        while (posters[0].own_runs == 0 || posters[1].own_runs == 0 || posters[2].own_runs == 0) {
            as_loop_run_once(loop, true);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(posters[i].thread, NULL);
        }
        as_task_t end = {.fn = stop};
        as_loop_post(loop, &end); // after all that is posted
        as_loop_run(loop);
        for (int i = 0; i < 3; i++) {
            assert_false(posters[i].own.queued);
            assert_in_range(posters[i].own_runs, 1, POSTS);
        }
    }
}

typedef struct message {
    as_task_t task;
    int thread, number;
} message_t;

static int last_number[3];
static int messages_seen;

static void see_message(void *ctx)
{
    message_t *message = ctx;
    assert_int_equal(message->number, last_number[message->thread] + 1);
    last_number[message->thread]++;
    if (++messages_seen == 3 * 1000) {
        as_loop_stop(loop);
    }
}

static message_t messages[3][1000];

static void *post_messages(void *ctx)
{
    int thread = (int)(intptr_t)ctx;
    for (int i = 0; i < 1000; i++) {
        messages[thread][i] = (message_t){.task = {.fn = see_message, .ctx = &messages[thread][i]},
                                          .thread = thread,
                                          .number = i};
        as_loop_post(loop, &messages[thread][i].task);
    }
    return NULL;
}

static void posts_of_one_thread_keep_their_order(void **state)
{
    (void)state;
    pthread_t threads[3];
    messages_seen = 0;
    for (int i = 0; i < 3; i++) {
        last_number[i] = -1;
        assert_int_equal(pthread_create(&threads[i], NULL, post_messages, (void *)(intptr_t)i), 0);
    }
    as_loop_run(loop);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(messages_seen, 3000);
}

// ---- A task as a wake-up flag

typedef struct flag {
    as_task_t task;
    uint32_t value; // plain: only the posts order it. The thread sanitizer sees it if they do not
    uint32_t seen;
    bool posted; // relaxed: says when, orders nothing
} flag_t;

static void see_flag(void *ctx)
{
    flag_t *flag = ctx;
    flag->seen = flag->value;
}

static void *post_twice(void *ctx)
{
    flag_t *flag = ctx;
    as_loop_post(loop, &flag->task);
    flag->value = 7;
    as_loop_post(loop, &flag->task); // still queued: does nothing but order what was written
    __atomic_store_n(&flag->posted, true, __ATOMIC_RELAXED);
    return NULL;
}

static void a_post_of_a_queued_task_orders_what_was_written_before_it(void **state)
{
    (void)state;
    static flag_t flag;
    flag = (flag_t){.task = {.fn = see_flag, .ctx = &flag}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, post_twice, &flag), 0);
    while (!__atomic_load_n(&flag.posted, __ATOMIC_RELAXED)) {
        sched_yield();
    }
    as_loop_run_once(loop, true);
    assert_int_equal(flag.seen, 7);
    pthread_join(thread, NULL);
}

static void *stop_from_thread(void *ctx)
{
    (void)ctx;
    as_loop_stop(loop);
    return NULL;
}

static void another_thread_can_stop_an_idle_loop(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_from_thread, NULL), 0);
    as_loop_run(loop);
    pthread_join(thread, NULL);
}

static void real_time_is_the_monotonic_clock(void **state)
{
    (void)state;
    struct timespec now;
    uint64_t before_us = as_loop_now_us(loop);
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t after_us = as_loop_now_us(loop);
    assert_in_range((uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, before_us,
                    after_us);
    assert_non_null(as_loop_uv(loop));
}

static void a_delay_without_end_does_not_overflow(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(note_ctx, (void *)1), *end = new_timer(stop, NULL);
    as_timer_start(timer, UINT64_MAX);
    as_timer_start(end, 3000);
    as_loop_run(loop);
    assert_int_equal(event_count, 0);
    as_timer_free(timer);
    as_timer_free(end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(uv, posts_of_other_threads_are_never_lost),
        ON(uv, posts_of_one_thread_keep_their_order),
        ON(uv, another_thread_can_stop_an_idle_loop),
        ON(uv, real_time_is_the_monotonic_clock),
        ON(uv, a_delay_without_end_does_not_overflow),
        ON(uv, a_post_of_a_queued_task_orders_what_was_written_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
