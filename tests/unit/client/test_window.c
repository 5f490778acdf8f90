// SPDX-License-Identifier: Apache-2.0
// How much a client asks for at a time: on the simulated network, where a link's rate and delay are
// known.
#include "tests/unit/client/world.h"

#define BLOCKS      48u // of 256 KiB
#define LEAST_BYTES (2u << 20)
#define BYTES_PER_S 250000000u

static world_t world;

static void begin(void)
{
    world_options_t options = world_defaults(true);
    options.messages = true;
    options.store.ram_bytes = 32u << 20;
    options.shape = (as_shape_t){1, 16, 16, 64, 64, AS_ELEMENT_F16};
    world_open(&world, &options);
    assert_int_equal(as_block_bytes(&world.shape), 256u << 10);
    as_sim_set_piece_bytes(world.sim, 256u << 10);
    put_chain(&world, BLOCKS);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static void set_link(uint64_t bytes_per_s, uint64_t round_trip_us)
{
    const as_sim_faults_t link = {.delay_us_min = round_trip_us / 2,
                                  .delay_us_max = round_trip_us / 2,
                                  .bandwidth_bytes_per_s = bytes_per_s};
    as_sim_set_faults(world.sim, &link);
}

// How long it took.
static uint64_t load(void)
{
    uint64_t began_us = as_loop_now_us(world.loop);
    const fetch_ask_t all = {.count = BLOCKS, .deadline_us = WAIT_US};
    assert_int_equal(fetch_chain(&world, all).status, AS_OK);
    return as_loop_now_us(world.loop) - began_us;
}

static uint64_t window_bytes(void)
{
    assay_rate_t rate;
    assert_int_equal(assay_client_rates(world.client, &rate, 1), 1);
    return rate.window_bytes;
}

static void a_near_store_has_the_least_window(void **state)
{
    (void)state;
    begin();
    set_link(BYTES_PER_S, 100);
    load();
    load();
    assert_int_equal(window_bytes(), LEAST_BYTES);
}

static void a_far_one_has_as_much_as_uses_the_link_and_little_more(void **state)
{
    (void)state;
    begin();
    uint64_t carried = BYTES_PER_S / 100; // in 10 ms
    set_link(BYTES_PER_S, 10000);
    load();
    assert_in_range(window_bytes(), 2 * carried, 3 * carried);
    uint64_t bytes = BLOCKS * as_block_bytes(&world.shape);
    // A LOCATE, and then the link's own time and delay.
    assert_in_range(load(), bytes * 1000000 / BYTES_PER_S, bytes * 1100000 / BYTES_PER_S + 20000);
    assert_in_range(window_bytes(), 2 * carried, 3 * carried);
}

static void it_shrinks_as_soon_as_the_store_is_near_again(void **state)
{
    (void)state;
    begin();
    set_link(BYTES_PER_S, 10000);
    load();
    assert_true(window_bytes() > 2 * LEAST_BYTES);
    set_link(BYTES_PER_S, 100);
    load();
    assert_int_equal(window_bytes(), LEAST_BYTES);
}

static void it_grows_again_once_the_near_time_is_past(void **state)
{
    (void)state;
    begin();
    set_link(BYTES_PER_S, 100);
    load();
    set_link(BYTES_PER_S, 10000);
    for (uint32_t i = 0; i < 12; i++) {
        load();
        world_pass(&world, 1000000);
    }
    assert_true(window_bytes() > 2 * LEAST_BYTES);
}

static void it_shrinks_when_the_link_has_become_slow(void **state)
{
    (void)state;
    begin();
    set_link(BYTES_PER_S, 10000);
    load();
    set_link(BYTES_PER_S / 10, 10000);
    for (uint32_t i = 0; i < 12; i++) {
        load();
        world_pass(&world, 1000000);
    }
    assert_int_equal(window_bytes(), LEAST_BYTES);
}

static void it_has_a_bound_however_far_the_store(void **state)
{
    (void)state;
    begin();
    set_link(2000000000, 100000);
    load();
    load();
    assert_int_equal(window_bytes(), 16u << 20);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_near_store_has_the_least_window),
        TEST(a_far_one_has_as_much_as_uses_the_link_and_little_more),
        TEST(it_shrinks_as_soon_as_the_store_is_near_again),
        TEST(it_grows_again_once_the_near_time_is_past),
        TEST(it_shrinks_when_the_link_has_become_slow),
        TEST(it_has_a_bound_however_far_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
