// SPDX-License-Identifier: Apache-2.0
// Client and store on the simulated network, with every kind of fault: nothing hangs, no wrong byte
// is handed out, and once all timeouts have passed nothing is held.
#include "tests/unit/client/world.h"

static world_t world;

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static world_options_t short_timeouts(uint64_t seed)
{
    world_options_t options = world_defaults(true);
    options.seed = seed;
    options.store.lease_us_max = 2000000;
    options.store.reservation_us = 1000000;
    options.client.connect_timeout_us = 200000;
    options.client.stall_timeout_us = 200000;
    options.client.retry_after_us = 50000;
    return options;
}

static void begin(void)
{
    world_options_t options = short_timeouts(1);
    world_open(&world, &options);
}

// After the longest lease and reservation nothing is left.
static void pass_all_timeouts(void)
{
    world_pass(&world, 4000000);
    assert_nothing_is_held(&world);
}

static void faults(uint32_t loss_ppm, uint32_t corrupt_ppm, uint64_t delay_us_max)
{
    const as_sim_faults_t plan = {.loss_ppm = loss_ppm,
                                  .corrupt_ppm = corrupt_ppm,
                                  .delay_us_min = 10,
                                  .delay_us_max = delay_us_max};
    as_sim_set_faults(world.sim, &plan);
}

// ---- one fault at a time

static void a_stopped_store_costs_a_fetch_its_deadline_at_most(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 10);
    fetch_result_t result;
    faults(0, 0, 1000);
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 10, .deadline_us = 100000}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    as_sim_stop(world.sim, world.store_nets[0]);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_true(world_run(&world, &result.done));
    assert_true(as_loop_now_us(world.loop) - began_us <= 201000);
    assert_int_equal(result.status, AS_ERR_DEADLINE);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    as_sim_resume(world.sim, world.store_nets[0]);
    pass_all_timeouts();
}

static void a_store_that_stalls_is_given_up_before_the_deadline(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 10);
    fetch_result_t result;
    faults(0, 0, 1000);
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 10}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    as_sim_stop(world.sim, world.store_nets[0]);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_true(world_run(&world, &result.done));
    assert_true(as_loop_now_us(world.loop) - began_us < 1000000);
    assert_int_not_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    as_sim_resume(world.sim, world.store_nets[0]);
    pass_all_timeouts();
}

static void a_stopped_store_costs_a_put_its_deadline_or_the_time_of_a_stall(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 1); // connected
    put_result_t result;
    assay_put_t *put;
    as_sim_stop(world.sim, world.store_nets[0]);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_int_equal(put_start(&world, 1, 100000, &result, &put), AS_OK);
    assert_true(world_run(&world, &result.done));
    assert_true(as_loop_now_us(world.loop) - began_us <= 201000);
    assert_int_equal(result.status, AS_ERR_DEADLINE);
    as_sim_resume(world.sim, world.store_nets[0]);
    pass_all_timeouts();
}

static void a_store_killed_in_mid_fetch_leaves_a_hole_and_is_not_tried_at_once(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 20);
    fetch_result_t result;
    faults(0, 0, 1000);
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 20}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    as_sim_kill(world.sim, world.store_nets[0]);
    assert_true(world_run(&world, &result.done));
    assert_int_not_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    put_result_t put_result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 20, 1000000, &put_result, &put), AS_ERR_UNREACHABLE);
}

static void of_two_stores_the_dead_one_makes_the_hole(void **state)
{
    (void)state;
    world_options_t options = short_timeouts(1);
    options.stores = 2;
    world_open(&world, &options);
    put_chain(&world, 64);
    uint64_t first = assay_client_place(world.client, &world.keys[0]);
    uint32_t dead = kvs_store_node_id(world.stores[0]) == first ? 1 : 0;
    uint32_t hole = 0;
    while (hole < 64 && assay_client_place(world.client, &world.keys[hole]) == first) {
        hole += AS_RUN_BLOCKS;
    }
    assert_true(hole < 64); // the other store has a run
    fetch_result_t result;
    faults(0, 0, 1000);
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 64}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    as_sim_kill(world.sim, world.store_nets[dead]);
    assert_true(world_run(&world, &result.done));
    assert_int_not_equal(result.status, AS_OK);
    assert_int_equal(result.hole, hole);
    assert_int_equal(result.wrong, 0); // and all blocks before it are there
    fetch_free(&result);
}

// Its process is stopped: no network tells. What the store keeps for it would be kept for ever.
static void a_client_that_stands_still_is_let_go(void **state)
{
    (void)state;
    for (int reading = 0; reading < 2; reading++) {
        world_options_t options = short_timeouts(1);
        options.messages = true;
        options.store.stall_us = 3000000;
        world_open(&world, &options);
        put_chain(&world, 8);
        kvs_stat_t stat;
        put_result_t put = {0};
        fetch_result_t fetch = {0};
        assay_put_t *putting;
        const as_sim_faults_t slow = {
            .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 20000};
        as_sim_set_faults(world.sim, &slow); // 4 KiB take 200 ms
        if (reading) {
            assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 8}, &fetch), AS_OK);
        } else {
            assert_int_equal(put_start(&world, 9, 60000000, &put, &putting), AS_OK);
        }
        do {
            as_loop_run_once(world.loop, true);
            kvs_store_stat(world.stores[0], &stat);
        } while (stat.leases + stat.reservations == 0);
        world_pass(&world, 100000);
        as_sim_stop(world.sim, world.client_net);
        world_pass(&world, 10000000);
        kvs_store_stat(world.stores[0], &stat);
        assert_int_equal(stat.leases + stat.reservations + stat.pins + stat.dying, 0);
        as_sim_resume(world.sim, world.client_net);
        assert_true(world_run(&world, reading ? &fetch.done : &put.done));
        fetch_free(&fetch);
        if (!reading) {
            world_close(&world);
        }
    }
}

static void a_lease_is_renewed_for_as_long_as_it_is_needed(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        world_options_t options = short_timeouts(1);
        options.store.lease_us_max = 50000;
        options.messages = messages;
        world_open(&world, &options);
        put_chain(&world, 3);
        fetch_result_t result;
        assert_int_equal(
            fetch_begin(&world, (fetch_ask_t){.count = 3, .slots = 1, .hold = true}, &result),
            AS_OK);
        for (uint32_t layer = 0; layer < world.shape.layers; layer++) {
            world_pass(&world, 300000); // six times as long as a lease lasts
            assert_int_equal(result.layers, layer + 1);
            if (!result.done) { // by the last layer
                assay_fetch_release(result.fetch, layer);
            }
        }
        assert_true(world_run(&world, &result.done));
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.wrong, 0);
        fetch_free(&result);
        pass_all_timeouts();
        if (messages == 0) {
            world_close(&world);
        }
    }
}

static void a_lease_that_expires_under_a_read_is_a_hole(void **state)
{
    (void)state;
    world_options_t options = short_timeouts(1);
    options.store.lease_us_max = 50000;
    world_open(&world, &options);
    as_fault_arm_chance(AS_FAULT_serve_renew_drop, 1000000, 1);
    put_chain(&world, 3);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 3, .slots = 1, .hold = true}, &result), AS_OK);
    world_pass(&world, 300000); // the caller holds layer 0 for longer than the lease lasts
    assert_int_equal(result.layers, 1);
    assay_fetch_release(result.fetch, 0);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_ERR_LEASE);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    pass_all_timeouts();
}

static void a_block_dropped_under_a_lease_stays_readable_until_its_end(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 3);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 3, .slots = 1, .hold = true}, &result), AS_OK);
    world_pass(&world, 100000);
    assert_int_equal(kvs_store_drop_all(world.stores[0]), 3);
    put_chain(&world, 3); // the keys are free at once
    result.hold = false;
    assay_fetch_release(result.fetch, 0);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    pass_all_timeouts();
}

static void a_writer_that_dies_in_the_middle_of_a_put_leaves_nothing(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 1);
    faults(0, 0, 1000);
    static put_result_t result; // the put ends when the world does, after this function
    assay_put_t *put;
    assert_int_equal(put_start(&world, 1, 5000000, &result, &put), AS_OK);
    kvs_stat_t stat = {0};
    for (int i = 0; i < 10000 && stat.reservations == 0; i++) {
        as_loop_run_once(world.loop, true);
        kvs_store_stat(world.stores[0], &stat);
    }
    assert_int_equal(stat.reservations, 1);
    as_sim_kill(world.sim, world.client_net);
    pass_all_timeouts();
    kvs_store_stat(world.stores[0], &stat);
    assert_int_equal(stat.blocks, 1);
}

static void a_put_that_is_not_answered_ends_by_its_deadline(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 1);
    as_fault_arm(AS_FAULT_put_answer_drop, 1);
    put_result_t result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 1, 3000000, &result, &put), AS_OK);
    assert_true(world_run(&world, &result.done)); // by its own deadline
    assert_int_equal(result.status, AS_ERR_DEADLINE);
    assert_int_equal(as_fault_fired(AS_FAULT_put_answer_drop), 1);
    pass_all_timeouts();
    assert_int_equal(put_block(&world, 1), AS_ERR_EXISTS); // it had come
}

static void a_locate_that_is_not_answered_is_a_miss(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 3);
    as_fault_arm(AS_FAULT_serve_locate_drop, 1);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 3});
    assert_int_equal(result.status, AS_ERR_NOT_FOUND);
    assert_int_equal(as_fault_fired(AS_FAULT_serve_locate_drop), 1);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_OK);
}

static void an_extent_that_arrives_damaged_is_a_hole(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 6);
    as_fault_arm(AS_FAULT_fetch_extent_corrupt, 3); // layer 0 of block 2 where blocks come in order
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.status, AS_ERR_CHECKSUM);
    assert_int_equal(as_fault_fired(AS_FAULT_fetch_extent_corrupt), 1);
    assert_true(result.hole < 6);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 6}).status, AS_OK);
}

static void an_extent_that_the_store_damages_is_a_hole_and_stays_right_there(void **state)
{
    (void)state;
    world_options_t options = short_timeouts(1);
    options.messages = true;
    world_open(&world, &options);
    put_chain(&world, 6);
    as_fault_arm(AS_FAULT_serve_read_corrupt, 1);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.status, AS_ERR_CHECKSUM);
    assert_int_equal(as_fault_fired(AS_FAULT_serve_read_corrupt), 1);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 6}).status, AS_OK);
}

// Whichever extent it is, and however its bytes come: 2 blocks come with their message, 6 after it.
static void a_damaged_extent_ends_a_fetch_into_a_ring(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 3 * 2 * 2 * 8; run++) {
        world_options_t options = short_timeouts(run);
        options.messages = run % 3 > 0;
        world_open(&world, &options);
        uint32_t count = run / 3 % 2 ? 2 : 6, nth = 1 + run / 12;
        put_chain(&world, count);
        as_fault_arm(AS_FAULT_fetch_extent_corrupt, nth);
        fetch_result_t result =
            fetch_chain(&world, (fetch_ask_t){.count = count, .slots = 1 + run / 6 % 2});
        assert_int_equal(result.status, AS_ERR_CHECKSUM);
        pass_all_timeouts();
        as_fault_clear();
        world_close(&world);
    }
}

static void a_full_store_makes_room_for_what_is_put(void **state)
{
    (void)state;
    world_options_t options = short_timeouts(1);
    options.store.ram_bytes = 20 * 12288; // a block takes 3 pages
    options.store.evict_high_percent = options.store.evict_low_percent = 100;
    world_open(&world, &options);
    uint32_t stored = 0;
    as_status_t status = AS_OK;
    while (stored < WORLD_BLOCKS_MAX && (status = put_block(&world, stored)) == AS_OK) {
        stored++;
    }
    assert_true(stored >= 10);
    assert_int_equal(status, AS_ERR_BUSY); // but not at the cost of the blocks before it
    world_pass(&world, 100000);
    assert_int_equal(put_block(&world, stored), AS_ERR_BUSY);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = stored}).block_count, stored);
    world_pass(&world, 2000);
    assert_int_equal(put_block(&world, stored + 10), AS_OK); // of no chain that is here
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    assert_true(stat.evictions > 0);
    // Children went before their parents: what is left of the chain begins at its beginning.
    assert_true(fetch_chain(&world, (fetch_ask_t){.count = stored}).block_count > 0);
}

static void the_failure_of_each_allocation_is_survived(void **state)
{
    (void)state;
    uint32_t whole = 0;
    as_log_set_level(AS_LOG_ERROR);
    for (uint64_t n = 1; n <= 150; n++) {
        world_options_t options = short_timeouts(n);
        options.messages = n % 2 == 0;
        world_open(&world, &options);
        put_chain(&world, 6);
        fetch_result_t fetch = {0};
        put_result_t put = {0};
        assay_put_t *handle;
        as_mem_fail_nth(n);
        bool fetching =
            fetch_begin(&world, (fetch_ask_t){.count = 6, .deadline_us = 500000}, &fetch) == AS_OK;
        bool putting = put_start(&world, 6, 500000, &put, &handle) == AS_OK;
        assert_true(!fetching || world_run(&world, &fetch.done));
        assert_true(!putting || world_run(&world, &put.done));
        as_mem_fail_nth(0);
        assert_int_equal(fetch.wrong, 0);
        whole += fetching && fetch.status == AS_OK;
        fetch_free(&fetch);
        pass_all_timeouts();
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 6}).status,
                         AS_OK); // as if nothing had been
        world_close(&world);
    }
    as_log_set_level(AS_LOG_INFO);
    assert_in_range(whole, 1, 149); // some failed, and the last did not
}

// ---- all at once

static uint32_t one_run(uint64_t seed)
{
    world_options_t options = short_timeouts(seed);
    options.stores = 3;
    options.messages = seed % 2 == 0;
    options.store.lease_us_max = 500000;
    world_open(&world, &options);
    put_chain(&world, 48); // before the faults begin
    uint64_t r = as_sim_random(world.sim);
    faults((uint32_t)(r % 30000), (uint32_t)(r / 7 % 30000), 100 + r / 11 % 20000);
    static fetch_result_t fetches[6];
    put_result_t puts[6];
    uint32_t good = 0;
    bool put_began[6];
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t first = (uint32_t)(as_sim_random(world.sim) % 40);
        uint32_t slots = (uint32_t)(as_sim_random(world.sim) % 3);
        assay_put_t *put;
        assert_int_equal(
            fetch_begin(&world, (fetch_ask_t){.first = first, .count = 48 - first, .slots = slots},
                        &fetches[i]),
            AS_OK);
        put_began[i] = put_start(&world, 48 + i, 3000000, &puts[i], &put) == AS_OK;
        for (uint64_t n = as_sim_random(world.sim) % 60; n > 0; n--) {
            as_loop_run_once(world.loop, true);
        }
        if (i == 3) {
            uint32_t which = (uint32_t)(as_sim_random(world.sim) % 3);
            switch (as_sim_random(world.sim) % 4) {
            case 0:
                world_store_lose(&world, which);
                break;
            case 1:
                as_sim_stop(world.sim, world.store_nets[which]);
                break;
            case 2:
                if (!fetches[i].done) {
                    assay_fetch_cancel(fetches[i].fetch);
                }
                break;
            default:
                break;
            }
        }
    }
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(world_run(&world, &fetches[i].done));
        assert_int_equal(fetches[i].wrong, 0);
        good += fetches[i].status == AS_OK;
        fetch_free(&fetches[i]);
        if (put_began[i]) {
            assert_true(world_run(&world, &puts[i].done));
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (world.stores[i]) {
            as_sim_resume(world.sim, world.store_nets[i]);
        }
    }
    pass_all_timeouts();
    world_close(&world);
    return good;
}

static void under_random_faults_nothing_hangs_nothing_is_wrong_nothing_leaks(void **state)
{
    (void)state;
    bool is_sample = getenv("ASSAY_TEST_SANITIZED") && !getenv("ASSAY_TEST_FULL");
    uint32_t runs = is_sample ? 20 : 60, good = 0;
    as_log_set_level(AS_LOG_ERROR);
    for (uint64_t seed = 1; seed <= runs; seed++) {
        printf("seed %llu\r", (unsigned long long)seed);
        fflush(stdout);
        good += one_run(seed);
    }
    printf("%u of %u fetches were whole\n", good, 6 * runs);
    assert_true(good > runs); // the faults did not eat everything
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stopped_store_costs_a_fetch_its_deadline_at_most),
        TEST(a_store_that_stalls_is_given_up_before_the_deadline),
        TEST(a_stopped_store_costs_a_put_its_deadline_or_the_time_of_a_stall),
        TEST(a_store_killed_in_mid_fetch_leaves_a_hole_and_is_not_tried_at_once),
        TEST(of_two_stores_the_dead_one_makes_the_hole),
        TEST(a_client_that_stands_still_is_let_go),
        TEST(a_lease_is_renewed_for_as_long_as_it_is_needed),
        TEST(a_lease_that_expires_under_a_read_is_a_hole),
        TEST(a_block_dropped_under_a_lease_stays_readable_until_its_end),
        TEST(a_writer_that_dies_in_the_middle_of_a_put_leaves_nothing),
        TEST(a_put_that_is_not_answered_ends_by_its_deadline),
        TEST(a_locate_that_is_not_answered_is_a_miss),
        TEST(an_extent_that_arrives_damaged_is_a_hole),
        TEST(an_extent_that_the_store_damages_is_a_hole_and_stays_right_there),
        cmocka_unit_test(a_damaged_extent_ends_a_fetch_into_a_ring),
        TEST(a_full_store_makes_room_for_what_is_put),
        cmocka_unit_test(the_failure_of_each_allocation_is_survived),
        cmocka_unit_test(under_random_faults_nothing_hangs_nothing_is_wrong_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
