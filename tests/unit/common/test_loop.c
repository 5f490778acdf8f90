// SPDX-License-Identifier: Apache-2.0
// The loops: what both promise, run once on each, and what virtual time promises alone.
#include "loop_fixture.h"

#include <stdlib.h>

#include "common/mem.h"

#define SEED        20260102u
#define WAIT_US_MAX 20000000u // no test may wait longer

// ---- Both loops

static void tasks_run_in_the_order_of_posting(void **state)
{
    (void)state;
    as_task_t tasks[5];
    for (intptr_t i = 0; i < 5; i++) {
        tasks[i] = (as_task_t){.fn = note_ctx, .ctx = (void *)i};
        as_loop_post(loop, &tasks[i]);
    }
    as_task_t last = {.fn = stop};
    as_loop_post(loop, &last);
    assert_int_equal(event_count, 0); // never from inside post
    as_loop_run(loop);
    ASSERT_EVENTS(0, 1, 2, 3, 4);
}

static as_task_t again;
static void note_and_post_twice(void *ctx)
{
    (void)ctx;
    note(event_count);
    if (event_count < 3) {
        as_loop_post(loop, &again);
        as_loop_post(loop, &again);
    } else {
        as_loop_stop(loop);
    }
}

static void a_queued_task_is_not_queued_again_but_a_running_one_is(void **state)
{
    (void)state;
    again = (as_task_t){.fn = note_and_post_twice};
    as_loop_post(loop, &again);
    as_loop_post(loop, &again);
    as_loop_run(loop);
    ASSERT_EVENTS(0, 1, 2);
    assert_false(again.queued);
}

static void free_task(void *ctx)
{
    as_mem_free(ctx);
    note(1);
    as_loop_stop(loop);
}

static void a_task_may_free_itself(void **state)
{
    (void)state;
    as_task_t *task = as_mem_zalloc(1, sizeof(*task));
    task->fn = free_task;
    task->ctx = task;
    as_loop_post(loop, task);
    as_loop_run(loop);
    ASSERT_EVENTS(1);
}

static as_task_t unposted[4];
static void note_and_unpost(void *ctx)
{
    note(0);
    as_loop_unpost(loop, ctx);
}

static void a_task_that_was_taken_back_does_not_run(void **state)
{
    (void)state;
    unposted[0] = (as_task_t){.fn = note_and_unpost, .ctx = &unposted[2]};
    for (intptr_t i = 1; i < 4; i++) {
        unposted[i] = (as_task_t){.fn = note_ctx, .ctx = (void *)i};
    }
    as_task_t last = {.fn = stop};
    for (int i = 0; i < 4; i++) {
        as_loop_post(loop, &unposted[i]);
    }
    as_loop_unpost(loop, &unposted[1]); // before it is taken; the third from within a task
    as_loop_post(loop, &last);
    as_loop_run(loop);
    ASSERT_EVENTS(0, 3);
    as_loop_unpost(loop, &unposted[1]); // not queued: nothing happens
    as_loop_post(loop, &unposted[1]);
    as_loop_post(loop, &last);
    as_loop_run(loop);
    ASSERT_EVENTS(0, 3, 1);
}

static void timers_run_in_the_order_of_their_times_and_never_early(void **state)
{
    (void)state;
    as_timer_t *timers[4];
    static const uint64_t delays_us[] = {9000, 1, 20000, 4500};
    uint64_t start_us = as_loop_now_us(loop);
    for (intptr_t i = 0; i < 4; i++) {
        timers[i] = new_timer(note_ctx, (void *)i);
        as_timer_start(timers[i], delays_us[i]);
    }
    for (int seen = 0; seen < 4;) {
        as_loop_run_once(loop, true);
        for (; seen < event_count; seen++) {
            assert_true(as_loop_now_us(loop) - start_us >= delays_us[events[seen]]);
        }
        assert_true(as_loop_now_us(loop) - start_us < WAIT_US_MAX);
    }
    ASSERT_EVENTS(1, 3, 0, 2);
    for (int i = 0; i < 4; i++) {
        as_timer_free(timers[i]);
    }
}

static void starting_a_running_timer_moves_it(void **state)
{
    (void)state;
    as_timer_t *first = new_timer(note_ctx, (void *)1), *second = new_timer(note_ctx, (void *)2);
    as_timer_t *third = new_timer(stop, NULL);
    as_timer_start(first, 1000);
    as_timer_start(second, 6000);
    as_timer_start(first, 12000);
    as_timer_start(third, 20000);
    as_loop_run(loop);
    ASSERT_EVENTS(2, 1);
    as_timer_free(first);
    as_timer_free(second);
    as_timer_free(third);
}

static void a_stopped_timer_does_not_run_and_can_be_started_again(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(note_ctx, (void *)1), *end = new_timer(stop, NULL);
    as_timer_start(timer, 1000);
    as_timer_stop(timer);
    as_timer_stop(timer);
    as_timer_start(end, 5000);
    as_loop_run(loop);
    assert_int_equal(event_count, 0);
    as_timer_start(timer, 1000);
    as_timer_start(end, 8000);
    as_loop_run(loop);
    ASSERT_EVENTS(1);
    as_timer_free(timer);
    as_timer_free(end);
}

static as_task_t victim;
static void unpost_victim(void *ctx)
{
    (void)ctx;
    note(1);
    as_loop_unpost(loop, &victim);
}

static void an_unposted_task_does_not_run_and_the_others_do(void **state)
{
    (void)state;
    as_task_t first = {.fn = note_ctx, .ctx = (void *)0}, second = {.fn = unpost_victim};
    as_task_t third = {.fn = note_ctx, .ctx = (void *)3}, last = {.fn = stop};
    as_task_t gone = {.fn = note_ctx, .ctx = (void *)9};
    victim = gone;
    as_loop_unpost(loop, &victim); // not posted: nothing happens
    as_loop_post(loop, &first);
    as_loop_post(loop, &gone);
    as_loop_post(loop, &second);
    as_loop_post(loop, &victim);
    as_loop_post(loop, &third);
    as_loop_unpost(loop, &gone); // before any ran; `second` does it while they run
    assert_false(gone.queued);
    as_loop_post(loop, &last);
    as_loop_run(loop);
    ASSERT_EVENTS(0, 1, 3);
    as_loop_post(loop, &gone); // and it may be posted again
    as_loop_post(loop, &last);
    as_loop_run(loop);
    ASSERT_EVENTS(0, 1, 3, 9);
}

static as_timer_t *self;
static void free_self(void *ctx)
{
    (void)ctx;
    as_timer_free(self);
    note(1);
    as_loop_stop(loop);
}

static void a_timer_may_free_itself(void **state)
{
    (void)state;
    self = new_timer(free_self, NULL);
    as_timer_start(self, 500);
    as_loop_run(loop);
    ASSERT_EVENTS(1);
}

static as_timer_t *other;
static void free_other(void *ctx)
{
    (void)ctx;
    as_timer_free(other);
    note(1);
}

static void a_timer_freed_by_another_that_is_due_with_it_does_not_run(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(free_other, NULL), *end = new_timer(stop, NULL);
    other = new_timer(note_ctx, (void *)2);
    as_timer_start(timer, 1000);
    as_timer_start(other, 1001);
    as_timer_start(end, 8000);
    as_loop_run(loop);
    ASSERT_EVENTS(1);
    as_timer_free(timer);
    as_timer_free(end);
}

static void restart_self(void *ctx)
{
    (void)ctx;
    note(1);
    as_timer_start(self, 0);
}

static void a_timer_that_restarts_itself_at_once_does_not_starve_the_loop(void **state)
{
    (void)state;
    as_timer_t *end = new_timer(stop, NULL);
    self = new_timer(restart_self, NULL);
    as_timer_start(self, 0);
    as_task_t task = {.fn = note_ctx, .ctx = (void *)2};
    as_loop_post(loop, &task);
    for (int turn = 0; turn < 10 && event_count < 5; turn++) {
        as_loop_run_once(loop, true);
    }
    bool task_ran = false;
    for (int i = 0; i < event_count; i++) {
        task_ran = task_ran || events[i] == 2;
    }
    assert_true(task_ran);
    as_timer_free(self);
    as_timer_free(end);
}

static void a_stop_before_the_run_ends_that_run(void **state)
{
    (void)state;
    as_loop_stop(loop);
    as_loop_run(loop);
    as_task_t task = {.fn = stop};
    as_loop_post(loop, &task);
    as_loop_run(loop); // and only that one
    assert_false(task.queued);
}

static void run_once_says_whether_there_is_something_to_wait_for(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(note_ctx, (void *)1);
    assert_false(as_loop_run_once(loop, false));
    as_timer_start(timer, 5000);
    assert_true(as_loop_run_once(loop, false));
    assert_int_equal(event_count, 0);
    while (as_loop_run_once(loop, true)) {
    }
    ASSERT_EVENTS(1);
    as_task_t task = {.fn = note_ctx, .ctx = (void *)2};
    as_loop_post(loop, &task);
    as_loop_run_once(loop, false);
    ASSERT_EVENTS(1, 2);
    as_timer_free(timer);
}

static void freeing_drops_pending_tasks(void **state)
{
    (void)state;
    static as_task_t task = {.fn = note_ctx};
    task.queued = false;
    as_loop_post(loop, &task);
    as_loop_free(loop);
    assert_int_equal(event_count, 0);
    loop = NULL;
}

static void freeing_nothing_is_fine(void **state)
{
    (void)state;
    as_timer_free(NULL);
    as_loop_free(NULL);
}

// Makes a loop and 100 timers, and undoes what was made.
static as_status_t make_and_free(as_status_t (*alloc)(as_loop_t **loop_p))
{
    as_loop_t *made;
    as_timer_t *timers[100];
    as_status_t status = alloc(&made);
    if (status != AS_OK) {
        return status;
    }
    int count = 0;
    while (count < 100 && status == AS_OK) {
        status = as_timer_alloc(made, note_ctx, NULL, &timers[count]);
        count += status == AS_OK;
    }
    for (int i = 0; i < count; i++) {
        as_timer_start(timers[i], (uint64_t)i);
        as_timer_free(timers[i]);
    }
    as_loop_free(made);
    return status;
}

static void the_failure_of_each_allocation_is_survived(void **state)
{
    (void)state;
    as_status_t (*const allocs[])(as_loop_t **) = {as_loop_alloc_uv, as_loop_alloc_sim};
    for (int i = 0; i < 2; i++) {
        uint64_t n = 0;
        as_status_t status = AS_ERR_NO_MEMORY;
        while (status != AS_OK) {
            as_mem_fail_nth(++n);
            status = make_and_free(allocs[i]);
            assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
            assert_true(n < 1000);
        }
        as_mem_fail_nth(0);
        assert_true(n > 100);
    }
}

// ---- Virtual time

static void virtual_time_starts_at_zero_and_jumps(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(note_ctx, (void *)1);
    assert_int_equal(as_loop_now_us(loop), 0);
    assert_null(as_loop_uv(loop));
    as_timer_start(timer, 3600000000ull); // an hour
    as_loop_run(loop);
    assert_int_equal(as_loop_now_us(loop), 3600000000ull);
    ASSERT_EVENTS(1);
    as_timer_free(timer);
}

static void events_of_one_time_run_in_the_order_they_were_made(void **state)
{
    (void)state;
    as_timer_t *first = new_timer(note_ctx, (void *)1), *second = new_timer(note_ctx, (void *)2);
    as_task_t task = {.fn = note_ctx, .ctx = (void *)3}, last = {.fn = note_ctx, .ctx = (void *)4};
    as_timer_start(second, 0);
    as_loop_post(loop, &task);
    as_timer_start(first, 0);
    as_loop_post(loop, &last);
    as_timer_start(second, 0); // made anew
    as_loop_run(loop);
    ASSERT_EVENTS(3, 1, 4, 2);
    assert_int_equal(as_loop_now_us(loop), 0);
    as_timer_free(first);
    as_timer_free(second);
}

static void run_once_runs_exactly_one_event(void **state)
{
    (void)state;
    as_timer_t *timer = new_timer(note_ctx, (void *)1);
    as_task_t a = {.fn = note_ctx, .ctx = (void *)2}, b = {.fn = note_ctx, .ctx = (void *)3};
    as_timer_start(timer, 10);
    as_loop_post(loop, &a);
    as_loop_post(loop, &b);
    assert_true(as_loop_run_once(loop, true));
    ASSERT_EVENTS(2);
    assert_true(as_loop_run_once(loop, true));
    ASSERT_EVENTS(2, 3);
    assert_true(as_loop_run_once(loop, false)); // not due at the present time
    ASSERT_EVENTS(2, 3);
    assert_int_equal(as_loop_now_us(loop), 0);
    assert_false(as_loop_run_once(loop, true));
    ASSERT_EVENTS(2, 3, 1);
    assert_int_equal(as_loop_now_us(loop), 10);
    as_timer_free(timer);
}

enum { TIMERS = 200 };
typedef struct expected {
    uint64_t due_us, order;
    bool running;
} expected_t;
static expected_t model[TIMERS];

static void check_against_model(void *ctx)
{
    int index = (int)(intptr_t)ctx;
    for (int i = 0; i < TIMERS; i++) {
        bool before =
            model[i].due_us < model[index].due_us ||
            (model[i].due_us == model[index].due_us && model[i].order < model[index].order);
        assert_false(i != index && model[i].running && before);
    }
    assert_true(model[index].running);
    assert_int_equal(as_loop_now_us(loop), model[index].due_us);
    model[index].running = false;
    event_count++;
}

static void any_mix_of_starts_and_stops_runs_in_order(void **state)
{
    (void)state;
    unsigned seed = SEED;
    uint64_t order = 0;
    as_timer_t *timers[TIMERS];
    print_message("seed %u\n", SEED);
    for (intptr_t i = 0; i < TIMERS; i++) {
        timers[i] = new_timer(check_against_model, (void *)i);
        model[i] = (expected_t){0};
    }
    for (int step = 0; step < 20000; step++) {
        int index = rand_r(&seed) % TIMERS, kind = rand_r(&seed) % 10;
        uint64_t delay_us = (uint64_t)rand_r(&seed) % 50;
        if (kind < 5) {
            as_timer_start(timers[index], delay_us);
            model[index] = (expected_t){as_loop_now_us(loop) + delay_us, order++, true};
        } else if (kind < 7) {
            as_timer_stop(timers[index]);
            model[index].running = false;
        } else {
            as_loop_run_once(loop, true);
        }
    }
    as_loop_run(loop);
    for (int i = 0; i < TIMERS; i++) {
        assert_false(model[i].running);
        as_timer_free(timers[i]);
    }
    assert_true(event_count > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(tasks_run_in_the_order_of_posting),
        ON_BOTH(a_queued_task_is_not_queued_again_but_a_running_one_is),
        ON_BOTH(a_task_may_free_itself),
        ON_BOTH(a_task_that_was_taken_back_does_not_run),
        ON_BOTH(an_unposted_task_does_not_run_and_the_others_do),
        ON_BOTH(timers_run_in_the_order_of_their_times_and_never_early),
        ON_BOTH(starting_a_running_timer_moves_it),
        ON_BOTH(a_stopped_timer_does_not_run_and_can_be_started_again),
        ON_BOTH(a_timer_may_free_itself),
        ON_BOTH(a_timer_freed_by_another_that_is_due_with_it_does_not_run),
        ON_BOTH(a_timer_that_restarts_itself_at_once_does_not_starve_the_loop),
        ON_BOTH(a_stop_before_the_run_ends_that_run),
        ON_BOTH(run_once_says_whether_there_is_something_to_wait_for),
        ON_BOTH(freeing_drops_pending_tasks),
        cmocka_unit_test(freeing_nothing_is_fine),
        cmocka_unit_test(the_failure_of_each_allocation_is_survived),
        ON(sim, virtual_time_starts_at_zero_and_jumps),
        ON(sim, events_of_one_time_run_in_the_order_they_were_made),
        ON(sim, run_once_runs_exactly_one_event),
        ON(sim, any_mix_of_starts_and_stops_runs_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
