// SPDX-License-Identifier: Apache-2.0
// When pushing a verification down pays, by what was measured.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpuworker/engine.h"

#define NOW_US 1000000000u

static gpw_push_question_t question(uint64_t bytes, uint64_t units, uint64_t now_us)
{
    return (gpw_push_question_t){bytes, units, now_us, false};
}

static void what_is_not_known_is_measured_by_a_swap_then_by_a_push(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {0};
    gpw_push_question_t q = question(100 << 20, 1000000, NOW_US);
    assert_false(gpw_push_pays(&rates, &q));
    gpw_push_saw_load(&rates, 1000000, 100 << 20, NOW_US);
    assert_true(gpw_push_pays(&rates, &q));
    gpw_push_saw_wait(&rates, 2000000, 1000000, NOW_US);
    assert_false(gpw_push_pays(&rates, &q));
}

// As where nothing that is not pushed would measure.
static void a_bold_question_is_answered_by_a_push_where_nothing_is_known(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {0};
    gpw_push_question_t q = question(100 << 20, 1000000, NOW_US);
    q.bold = true;
    assert_true(gpw_push_pays(&rates, &q));
    rates.refused_until_us = NOW_US + 1;
    assert_false(gpw_push_pays(&rates, &q));
    gpw_push_saw_load(&rates, 100000, 100 << 20, NOW_US);
    gpw_push_saw_wait(&rates, 2000000, 1000000, NOW_US);
    q.now_us += 1;
    assert_false(gpw_push_pays(&rates, &q)); // now it is known
}

static void the_one_that_is_expected_to_take_less_time_is_chosen(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {0};
    gpw_push_saw_load(&rates, 1000000, 100 << 20, NOW_US); // a second for 100 MiB
    gpw_push_saw_wait(&rates, 300000, 1000000, NOW_US);
    gpw_push_question_t large = question(100 << 20, 1000000, NOW_US);
    gpw_push_question_t small = question(20 << 20, 1000000, NOW_US);
    assert_true(gpw_push_pays(&rates, &large));
    assert_false(gpw_push_pays(&rates, &small));
}

static void a_refusal_is_respected_for_a_while(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {.refused_until_us = NOW_US + 1000};
    gpw_push_saw_load(&rates, 1000000, 100 << 20, NOW_US);
    gpw_push_question_t q = question(100 << 20, 1000000, NOW_US);
    assert_false(gpw_push_pays(&rates, &q));
    q.now_us += 1000;
    assert_true(gpw_push_pays(&rates, &q));
}

static void what_was_measured_long_ago_is_measured_anew_the_worse_the_later(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {0};
    gpw_push_saw_load(&rates, 1000000, 100 << 20, NOW_US);
    gpw_push_saw_wait(&rates, 1500000, 1000000, NOW_US); // half as slow again
    gpw_push_question_t q = question(100 << 20, 1000000, NOW_US + 31000000);
    assert_true(gpw_push_pays(&rates, &q));
    gpw_push_rates_t far = {0};
    gpw_push_saw_load(&far, 1000000, 100 << 20, NOW_US);
    gpw_push_saw_wait(&far, 9000000, 1000000, NOW_US);
    assert_false(gpw_push_pays(&far, &q));
    q.now_us = NOW_US + 301000000; // then the link is not known any more either
    assert_false(gpw_push_pays(&far, &q));
    gpw_push_saw_load(&far, 1000000, 100 << 20, q.now_us);
    assert_true(gpw_push_pays(&far, &q));
}

static void nothing_is_tried_where_a_swap_is_over_at_once(void **state)
{
    (void)state;
    gpw_push_rates_t rates = {0};
    gpw_push_saw_load(&rates, 1000000, 100 << 20, NOW_US);
    gpw_push_question_t q = question(1 << 20, 10000, NOW_US);
    assert_false(gpw_push_pays(&rates, &q));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_known_is_measured_by_a_swap_then_by_a_push),
        cmocka_unit_test(a_bold_question_is_answered_by_a_push_where_nothing_is_known),
        cmocka_unit_test(the_one_that_is_expected_to_take_less_time_is_chosen),
        cmocka_unit_test(a_refusal_is_respected_for_a_while),
        cmocka_unit_test(what_was_measured_long_ago_is_measured_anew_the_worse_the_later),
        cmocka_unit_test(nothing_is_tried_where_a_swap_is_over_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
