// SPDX-License-Identifier: Apache-2.0
// Large extents, and blocks that are put, that come in pieces: on the simulated network, where pieces overtake each other and
// vanish, and over TCP.
#include "tests/unit/client/world.h"

#include <unistd.h>

#include "client/internal.h"

#define PIECE_BYTES (16u << 10)

static world_t world;

// Two layers of 200 KiB: 13 pieces each, the last one shorter.
static const as_shape_t uneven = {2, 10, 10, 80, 64, AS_ELEMENT_F16};

static void begin(const as_shape_t *shape, uint64_t seed, size_t piece_bytes)
{
    world_options_t options = world_defaults(piece_bytes > 0);
    options.messages = true;
    options.seed = seed;
    options.shape = *shape;
    bool is_large = as_block_bytes(shape) > 1u << 20;
    options.store.ram_bytes = is_large ? 64u << 20 : 16u << 20;
    if (piece_bytes > 0 && !is_large) {
        options.client.connect_timeout_us = options.client.stall_timeout_us = 300000;
    }
    world_open(&world, &options);
    if (piece_bytes > 0) {
        as_sim_set_piece_bytes(world.sim, piece_bytes);
    }
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static void delay(uint64_t us_min, uint64_t us_max)
{
    const as_sim_faults_t faults = {.delay_us_min = us_min, .delay_us_max = us_max};
    as_sim_set_faults(world.sim, &faults);
}

static kvs_stat_t stat_of_store(void)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    return stat;
}

static void run_until_sent(uint64_t bytes)
{
    while (stat_of_store().bytes_read < bytes) {
        assert_true(as_loop_run_once(world.loop, true));
    }
}

static void pieces_that_come_in_order_are_an_extent(void **state)
{
    (void)state;
    begin(&uneven, 1, PIECE_BYTES);
    put_chain(&world, 4);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).status, AS_OK);
    world_pass(&world, 200000);
    assert_int_equal(stat_of_store().bytes_read, 4 * as_block_bytes(&world.shape));
    assert_nothing_is_held(&world);
}

static void pieces_that_overtake_each_other_are_too(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        begin(&uneven, seed, PIECE_BYTES);
        put_chain(&world, 4);
        delay(50, 5000);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).status, AS_OK);
        world_close(&world);
    }
    begin(&uneven, 1, PIECE_BYTES);
}

static void a_damaged_piece_is_found(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        begin(&uneven, 1, PIECE_BYTES);
        put_chain(&world, 2);
        delay(50, i == 0 ? 50 : 5000);
        as_fault_arm(AS_FAULT_serve_read_corrupt, 1);
        fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 2});
        assert_int_equal(as_fault_fired(AS_FAULT_serve_read_corrupt), 1);
        assert_int_equal(result.status, AS_ERR_CHECKSUM);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 2}).status, AS_OK);
        world_close(&world);
    }
    begin(&uneven, 1, PIECE_BYTES);
}

static void a_piece_that_vanishes_ends_the_wait_for_the_others(void **state)
{
    (void)state;
    uint32_t failed = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        begin(&uneven, seed, PIECE_BYTES);
        put_chain(&world, 4);
        const as_sim_faults_t loss = {.loss_ppm = 20000, .delay_us_min = 50, .delay_us_max = 5000};
        as_sim_set_faults(world.sim, &loss);
        failed += fetch_chain(&world, (fetch_ask_t){.count = 4}).status != AS_OK;
        delay(50, 5000);
        world_pass(&world, 3000000); // until the link is tried again
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).status, AS_OK);
        world_pass(&world, 3000000);
        assert_nothing_is_held(&world);
        world_close(&world);
    }
    assert_in_range(failed, 5, 20);
    begin(&uneven, 1, PIECE_BYTES);
}

static void of_a_fetch_that_is_over_no_piece_is_sent_or_written(void **state)
{
    (void)state;
    begin(&uneven, 1, PIECE_BYTES);
    put_chain(&world, 20);
    const as_sim_faults_t slow = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 10000000};
    as_sim_set_faults(world.sim, &slow);
    fetch_result_t result;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 20}, &result), AS_OK);
    run_until_sent(5 * PIECE_BYTES);
    assay_fetch_cancel(result.fetch);
    assert_true(world_run(&world, &result.done));
    uint32_t before = as_crc32c(0, result.buffer, result.buffer_bytes);
    world_pass(&world, 2000000);
    assert_int_equal(as_crc32c(0, result.buffer, result.buffer_bytes), before);
    assert_true(stat_of_store().bytes_read < 3u << 20); // of 8 MiB
    assert_nothing_is_held(&world);
    fetch_free(&result);
}

static void a_store_that_is_lost_between_two_pieces_holds_up_nothing(void **state)
{
    (void)state;
    begin(&uneven, 1, PIECE_BYTES);
    put_chain(&world, 20);
    delay(100, 100);
    fetch_result_t result;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 20}, &result), AS_OK);
    run_until_sent(5 * PIECE_BYTES);
    as_sim_kill(world.sim, world.store_nets[0]);
    assert_true(world_run(&world, &result.done));
    assert_int_not_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
}

// One extent of 8 MiB would have the link to itself for 0.8 s.
static void what_is_urgent_overtakes_the_rest_of_a_large_extent(void **state)
{
    (void)state;
    const as_shape_t large = {1, 64, 64, 512, 64, AS_ELEMENT_F16};
    begin(&large, 1, 256u << 10);
    assert_int_equal(as_block_bytes(&world.shape), 8u << 20);
    put_chain(&world, 2);
    const as_sim_faults_t link = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 10000000};
    as_sim_set_faults(world.sim, &link);
    fetch_result_t bulk, urgent;
    const fetch_ask_t later = {.count = 1, .deadline_us = WAIT_US};
    const fetch_ask_t now = {
        .first = 1, .count = 1, .deadline_us = WAIT_US, .urgency = ASSAY_URGENCY_KVFETCH};
    assert_int_equal(fetch_begin(&world, later, &bulk), AS_OK);
    run_until_sent(1);
    assert_int_equal(fetch_begin(&world, now, &urgent), AS_OK);
    assert_true(world_run(&world, &urgent.done));
    assert_int_equal(urgent.status, AS_OK);
    assert_false(bulk.done);
    assert_true(world_run(&world, &bulk.done));
    assert_int_equal(bulk.status, AS_OK);
    assert_int_equal(bulk.wrong + urgent.wrong, 0);
    fetch_free(&bulk);
    fetch_free(&urgent);
}

// 8 MiB at 10 MB/s take 0.8 s.
static void of_a_block_that_the_store_has_few_pieces_are_sent(void **state)
{
    (void)state;
    const as_shape_t large = {1, 64, 64, 512, 64, AS_ELEMENT_F16};
    begin(&large, 1, 256u << 10);
    const as_sim_faults_t link = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 10000000};
    as_sim_set_faults(world.sim, &link);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_int_equal(put_block(&world, 0), AS_OK);
    uint64_t first_us = as_loop_now_us(world.loop) - began_us;
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_true(first_us > 800000);
    assert_true(as_loop_now_us(world.loop) - began_us - first_us < first_us / 2);
    assert_nothing_is_held(&world);
}

static void a_block_that_is_given_up_between_two_pieces_is_free_at_once(void **state)
{
    (void)state;
    begin(&uneven, 1, PIECE_BYTES);
    const as_sim_faults_t link = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 10000000};
    as_sim_set_faults(world.sim, &link);
    put_result_t result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &result, &put), AS_OK);
    while (stat_of_store().reservations == 0) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    assay_put_cancel(put);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_ERR_CANCELLED);
    assert_int_equal(put_block(&world, 0), AS_OK); // and not EXISTS, of what never comes
    assert_nothing_is_held(&world);
}

static void over_tcp_extents_of_any_size_are_right(void **state)
{
    (void)state;
    // 64 KiB, 200 KiB, 1 MiB, 3 MiB: alone in a message, with others, in pieces.
    static const as_shape_t shapes[] = {{2, 4, 4, 64, 64, AS_ELEMENT_F16},
                                        {2, 10, 10, 80, 64, AS_ELEMENT_F16},
                                        {2, 16, 16, 256, 64, AS_ELEMENT_F16},
                                        {1, 48, 48, 256, 64, AS_ELEMENT_F16}};
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (i > 0) {
            world_close(&world);
        }
        begin(&shapes[i], 1, 0);
        put_chain(&world, 6);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 6}).status, AS_OK);
        uint64_t bytes = stat_of_store().bytes_read;
        assert_true(bytes <= 6 * as_block_bytes(&world.shape) && bytes > 0);
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

// ---- puts that nobody waits for any longer

// A link of 10 MB/s and a block of 8 MiB on it, of which so much is under way.
static void begin_slow_put(uint64_t deadline_us, put_result_t *result, assay_put_t **put_p)
{
    const as_shape_t large = {1, 64, 64, 512, 64, AS_ELEMENT_F16};
    begin(&large, 1, 256u << 10);
    assert_int_equal(put_block(&world, 0), AS_OK);
    const as_sim_faults_t link = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 10000000};
    as_sim_set_faults(world.sim, &link);
    assert_int_equal(put_start(&world, 1, deadline_us, result, put_p), AS_OK);
    world_pass(&world, 50000);
}

// Others at the same store go on, and the store is not taken for one that is down.
static void others_go_on_beside(put_result_t *given_up, as_status_t status)
{
    int64_t lost = as_metric_value(&assay_metrics[ASSAY_METRIC_LINKS_LOST]);
    fetch_result_t fetch;
    put_result_t other;
    assay_put_t *put;
    const fetch_ask_t ask = {.count = 1, .deadline_us = WAIT_US};
    assert_int_equal(fetch_begin(&world, ask, &fetch), AS_OK);
    assert_int_equal(put_start(&world, 2, WAIT_US, &other, &put), AS_OK);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_true(world_run(&world, &given_up->done));
    assert_int_equal(given_up->status, status);
    assert_in_range(as_loop_now_us(world.loop) - began_us, 0, 1000000);
    assert_true(world_run(&world, &fetch.done) && world_run(&world, &other.done));
    assert_int_equal(fetch.status, AS_OK);
    assert_int_equal(other.status, AS_OK);
    assert_int_equal(as_metric_value(&assay_metrics[ASSAY_METRIC_LINKS_LOST]), lost);
    assert_true(assay_link_is(world.client->links, 1)); // its first connection
    fetch_free(&fetch);
}

static void a_put_that_is_late_leaves_the_link_to_others(void **state)
{
    (void)state;
    put_result_t late;
    assay_put_t *put;
    begin_slow_put(200000, &late, &put);
    others_go_on_beside(&late, AS_ERR_DEADLINE);
}

static void a_put_that_is_cancelled_leaves_the_link_to_others(void **state)
{
    (void)state;
    put_result_t cancelled;
    assay_put_t *put;
    begin_slow_put(WAIT_US, &cancelled, &put);
    assay_put_cancel(put);
    others_go_on_beside(&cancelled, AS_ERR_CANCELLED);
}

// It has the caller's block until the link, on which nothing moves, is closed.
static void a_put_to_a_store_that_takes_nothing_ends_with_its_link(void **state)
{
    (void)state;
    begin(&uneven, 1, SIZE_MAX); // what is large stays until it is taken
    put_chain(&world, 1);
    put_result_t stuck;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 1, 100000, &stuck, &put), AS_OK);
    as_sim_stop(world.sim, world.store_nets[0]);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_true(world_run(&world, &stuck.done));
    assert_int_equal(stuck.status, AS_ERR_DEADLINE);
    assert_in_range(as_loop_now_us(world.loop) - began_us, 300000, 350000); // stall_timeout_us
    assert_false(assay_link_is(world.client->links, 1));
    as_sim_resume(world.sim, world.store_nets[0]);
    world_let_go(&world);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest simulated[] = {
        TEST(pieces_that_come_in_order_are_an_extent),
        TEST(pieces_that_overtake_each_other_are_too),
        TEST(a_damaged_piece_is_found),
        TEST(a_piece_that_vanishes_ends_the_wait_for_the_others),
        TEST(of_a_fetch_that_is_over_no_piece_is_sent_or_written),
        TEST(a_store_that_is_lost_between_two_pieces_holds_up_nothing),
        TEST(what_is_urgent_overtakes_the_rest_of_a_large_extent),
        TEST(of_a_block_that_the_store_has_few_pieces_are_sent),
        TEST(a_block_that_is_given_up_between_two_pieces_is_free_at_once),
        TEST(a_put_that_is_late_leaves_the_link_to_others),
        TEST(a_put_that_is_cancelled_leaves_the_link_to_others),
        TEST(a_put_to_a_store_that_takes_nothing_ends_with_its_link),
    };
    const struct CMUnitTest over_tcp[] = {TEST(over_tcp_extents_of_any_size_are_right)};
    if (argc > 1) {
        return cmocka_run_group_tests_name("over UCX by TCP", over_tcp, NULL, NULL);
    }
    int failed = cmocka_run_group_tests_name("simulated", simulated, NULL, NULL);
    return failed > 0 ? failed : world_again_by_tcp(argv[0]);
}
