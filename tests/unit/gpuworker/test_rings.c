// SPDX-License-Identifier: Apache-2.0
// The reservation rings: no window is ever over-booked, and what is booked is what was asked for.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "gpuworker/decode/rings.h"
#include "tiny_model.h"

enum { BYTES_MAX = 1000, BOOKINGS = 48, WINDOW = GPW_RINGS_WINDOW_US, AHEAD = GPW_RINGS_WINDOWS };

typedef struct random {
    uint64_t state;
} random_t;

static uint64_t draw(random_t *random, uint64_t below)
{
    return tiny_mix(random->state++) % below;
}

static uint64_t link_of(const gpw_booking_t *b)
{
    uint64_t windows = b->end - b->begin;
    return windows < 2 ? b->head_us : b->head_us + b->tail_us + (windows - 2) * (uint64_t)WINDOW;
}

// Sums of all bookings against the rings: a reference made anew each time.
static void check(const gpw_rings_t *rings, const gpw_booking_t *bookings)
{
    static uint64_t link[AHEAD], bytes[AHEAD];
    memset(link, 0, sizeof(link));
    memset(bytes, 0, sizeof(bytes));
    for (uint32_t i = 0; i < BOOKINGS; i++) {
        const gpw_booking_t *b = &bookings[i];
        for (uint64_t w = b->begin; w < b->end; w++) {
            if (w >= rings->first) {
                link[w - rings->first] += w == b->begin     ? b->head_us
                                          : w + 1 == b->end ? b->tail_us
                                                            : WINDOW;
                bytes[w - rings->first] += b->bytes;
            }
        }
    }
    for (uint64_t w = 0; w < AHEAD; w++) {
        assert_int_equal(rings->link_us[(rings->first + w) % AHEAD], link[w]);
        assert_int_equal(rings->bytes[(rings->first + w) % AHEAD], bytes[w]);
        assert_true(link[w] <= WINDOW && bytes[w] <= BYTES_MAX);
    }
}

static void no_window_is_ever_over_booked_in_a_million_random_steps(void **state)
{
    static gpw_rings_t rings;
    static gpw_booking_t bookings[BOOKINGS];
    random_t random = {.state = 1};
    uint64_t now_us = 0, booked = 0, refused = 0;
    uint32_t steps = getenv("ASSAY_TEST_SANITIZED") ? 100000 : 1000000;
    (void)state;
    gpw_rings_init(&rings, BYTES_MAX);
    for (uint32_t step = 0; step < steps; step++) {
        gpw_booking_t *b = &bookings[draw(&random, BOOKINGS)];
        now_us += draw(&random, draw(&random, 5000) == 0 ? 2ull * WINDOW * AHEAD : WINDOW);
        gpw_rings_advance(&rings, now_us);
        gpw_rings_cancel(&rings, b);
        gpw_rings_ask_t ask = {.now_us = now_us,
                               .earliest_us = now_us + draw(&random, AHEAD / 4 * WINDOW),
                               .link_us =
                                   1 + draw(&random, draw(&random, 2) ? WINDOW : 40 * WINDOW),
                               .bytes = draw(&random, BYTES_MAX + 1)};
        if (gpw_rings_book(&rings, &ask, b)) {
            booked++;
            assert_int_equal(link_of(b), ask.link_us);
            assert_int_equal(b->bytes, ask.bytes);
            assert_true(b->begin >= ask.earliest_us / WINDOW && b->end <= rings.first + AHEAD);
        } else {
            refused++;
            assert_true(gpw_booking_is_empty(b));
        }
        if (step % 997 == 0) {
            check(&rings, bookings);
        }
    }
    check(&rings, bookings);
    assert_true(booked > steps / 2 && refused > 0);
}

static void swaps_that_are_wanted_at_once_follow_each_other(void **state)
{
    static gpw_rings_t rings;
    gpw_booking_t bookings[8];
    (void)state;
    gpw_rings_init(&rings, BYTES_MAX);
    for (uint32_t i = 0; i < 8; i++) {
        const gpw_rings_ask_t ask = {
            .now_us = 0, .earliest_us = WINDOW, .link_us = 3 * WINDOW, .bytes = BYTES_MAX / 2};
        assert_true(gpw_rings_book(&rings, &ask, &bookings[i]));
        assert_int_equal(gpw_booking_begin_us(&bookings[i]), (1 + 3 * i) * WINDOW);
    }
}

// The bytes are the narrow place: one at a time, though the link has room.
static void the_device_may_be_what_there_is_too_little_of(void **state)
{
    static gpw_rings_t rings;
    gpw_booking_t bookings[3];
    (void)state;
    gpw_rings_init(&rings, BYTES_MAX);
    for (uint32_t i = 0; i < 3; i++) {
        const gpw_rings_ask_t ask = {.link_us = WINDOW / 4, .bytes = BYTES_MAX / 2 + 1};
        assert_true(gpw_rings_book(&rings, &ask, &bookings[i]));
        assert_int_equal(bookings[i].begin, i);
    }
    const gpw_rings_ask_t too_large = {.link_us = 1, .bytes = BYTES_MAX + 1};
    gpw_booking_t none;
    assert_false(gpw_rings_book(&rings, &too_large, &none));
}

static void a_booking_that_is_cancelled_makes_room(void **state)
{
    static gpw_rings_t rings;
    gpw_booking_t whole, next;
    (void)state;
    gpw_rings_init(&rings, BYTES_MAX);
    const gpw_rings_ask_t all = {.link_us = (uint64_t)AHEAD * WINDOW, .bytes = 1};
    const gpw_rings_ask_t little = {.link_us = 1, .bytes = 1};
    assert_true(gpw_rings_book(&rings, &all, &whole));
    assert_false(gpw_rings_book(&rings, &little, &next));
    gpw_rings_cancel(&rings, &whole);
    assert_true(gpw_rings_book(&rings, &little, &next));
    assert_int_equal(next.begin, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_window_is_ever_over_booked_in_a_million_random_steps),
        cmocka_unit_test(swaps_that_are_wanted_at_once_follow_each_other),
        cmocka_unit_test(the_device_may_be_what_there_is_too_little_of),
        cmocka_unit_test(a_booking_that_is_cancelled_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
