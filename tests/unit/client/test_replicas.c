// SPDX-License-Identifier: Apache-2.0
// Copies of blocks: written to several stores at once, and read from the next one when one does not
// have them, sends wrong bytes, lets its lease end, or is gone. While a good copy lives, a fetch
// brings it.
#include "client/internal.h"
#include "tests/unit/client/world.h"

static world_t world;
static bool over_sim, by_messages;

static void begin(uint32_t stores, uint32_t replicas)
{
    world_options_t options = world_defaults(over_sim);
    options.messages = by_messages;
    options.stores = stores;
    if (over_sim) {
        options.client.connect_timeout_us = options.client.stall_timeout_us = 200000;
    }
    world_open(&world, &options);
    assay_client_set_replicas(world.client, replicas);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static int64_t metric(assay_metric_t which)
{
    return as_metric_value(&assay_metrics[which]);
}

static uint64_t blocks_at(uint32_t store)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[store], &stat);
    return stat.blocks;
}

// The store where the run of `block` has its copy number `copy`.
static uint32_t store_of(uint32_t block, uint32_t copy)
{
    uint64_t ids[ASSAY_REPLICAS_MAX];
    uint32_t count = assay_client_rank(
        world.client, &world.keys[block / AS_RUN_BLOCKS * AS_RUN_BLOCKS], ids, ASSAY_REPLICAS_MAX);
    assert_true(copy < count);
    for (uint32_t i = 0; i < world.store_count; i++) {
        if (world.stores[i] && kvs_store_node_id(world.stores[i]) == ids[copy]) {
            return i;
        }
    }
    fail();
    return 0;
}

static void must_be_whole(fetch_ask_t ask)
{
    fetch_result_t result = fetch_chain(&world, ask);
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, ask.count);
}

// ---- puts

static uint32_t put_copies(uint32_t block, as_status_t expected)
{
    put_result_t result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, block, world_deadline_us(&world), &result, &put), AS_OK);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, expected);
    return result.copies;
}

static void a_block_is_written_to_as_many_stores_as_there_are_to_be_copies(void **state)
{
    (void)state;
    begin(4, 2);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(put_copies(i, AS_OK), 2);
    }
    assert_int_equal(blocks_at(0) + blocks_at(1) + blocks_at(2) + blocks_at(3), 128);
    assert_int_equal(put_copies(0, AS_ERR_EXISTS), 2);
    world.replicas = 3; // a put may ask for its own number
    assert_int_equal(put_copies(0, AS_OK), 3);
    assert_int_equal(blocks_at(0) + blocks_at(1) + blocks_at(2) + blocks_at(3), 129);
}

static void with_fewer_stores_than_copies_a_put_is_degraded_and_says_so(void **state)
{
    (void)state;
    begin(2, 2);
    int64_t degraded = metric(ASSAY_METRIC_PUT_DEGRADED);
    assert_int_equal(put_copies(0, AS_OK), 2);
    assert_int_equal(metric(ASSAY_METRIC_PUT_DEGRADED), degraded);
    world_store_lose(&world, store_of(0, 0));
    put_result_t result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 1, world_deadline_us(&world), &result, &put), AS_OK);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.copies, 1);
    uint32_t left = world.stores[0] ? 0 : 1;
    assert_int_equal(result.node_id, kvs_store_node_id(world.stores[left])); // who has it
    world_tell_stores(&world);
    assert_int_equal(put_copies(2, AS_OK), 1);
    assert_int_equal(metric(ASSAY_METRIC_PUT_DEGRADED), degraded + 2);
}

static void a_store_with_other_bytes_is_told_though_another_took_these(void **state)
{
    (void)state;
    begin(2, 2);
    for (uint32_t copy = 0; copy < 2; copy++) {
        uint32_t block = copy * AS_RUN_BLOCKS;
        uint32_t hidden = store_of(block, 1 - copy);
        kvs_store_t *store = world.stores[hidden];
        world.stores[hidden] = NULL;
        world_tell_stores(&world);
        world.twist = 1;
        assert_int_equal(put_block(&world, block), AS_OK);
        world.stores[hidden] = store;
        world_tell_stores(&world);
        world.twist = 0;
        assert_int_equal(put_copies(block, AS_ERR_CONFLICT), 1);
    }
}

// What a store hands on is held to the checksums that it was given, not to those of what it has now.
static void a_copy_of_damaged_bytes_is_refused(void **state)
{
    (void)state;
    begin(2, 2);
    world.copying = true;
    world.twist = 1;
    as_log_set_level(AS_LOG_ERROR + 1);
    assert_int_equal(put_copies(0, AS_ERR_CHECKSUM), 0);
    world.twist = 0;
    assert_int_equal(put_copies(0, AS_OK), 2);
    assert_int_equal(put_copies(0, AS_ERR_EXISTS), 2);
    must_be_whole((fetch_ask_t){.count = 1});
    world.copying = false;
    assert_int_equal(put_copies(0, AS_ERR_EXISTS), 2); // it is the same block
}

// ---- fetches

static void what_one_store_lost_another_has(void **state)
{
    (void)state;
    for (uint32_t store = 0; store < 3; store++) {
        begin(3, 2);
        put_chain(&world, 64);
        int64_t before = metric(ASSAY_METRIC_FALLBACKS_MISSING);
        bool was_first = false;
        for (uint32_t run = 0; run < 64; run += AS_RUN_BLOCKS) {
            was_first |= store_of(run, 0) == store;
        }
        kvs_store_drop_all(world.stores[store]);
        must_be_whole((fetch_ask_t){.count = 64});
        assert_true(!was_first || metric(ASSAY_METRIC_FALLBACKS_MISSING) > before);
        must_be_whole((fetch_ask_t){.first = 21, .count = 40}); // from inside of a run
        must_be_whole((fetch_ask_t){.first = 5, .count = 9});
        world_pass(&world, 300000);
        assert_nothing_is_held(&world);
        world_close(&world);
    }
}

static void a_block_of_which_no_copy_is_left_is_the_hole(void **state)
{
    (void)state;
    begin(3, 2);
    put_chain(&world, 40);
    for (uint32_t i = 0; i < 3; i++) {
        kvs_store_drop(world.stores[i], &world.keys[23], 0);
    }
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 40});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 23);
}

static void a_damaged_extent_comes_from_the_other_copy(void **state)
{
    (void)state;
    for (uint32_t slots = 0; slots <= 2; slots++) {
        begin(3, 2);
        put_chain(&world, 6);
        for (uint32_t nth = 1; nth <= 24; nth++) {
            int64_t fallbacks = metric(ASSAY_METRIC_FALLBACKS_CHECKSUM);
            int64_t rescued = metric(ASSAY_METRIC_RESCUED);
            uint64_t fired = as_fault_fired(AS_FAULT_fetch_extent_corrupt);
            as_fault_arm(AS_FAULT_fetch_extent_corrupt, nth);
            must_be_whole((fetch_ask_t){.count = 6, .slots = slots});
            assert_int_equal(as_fault_fired(AS_FAULT_fetch_extent_corrupt), fired + 1);
            assert_int_equal(metric(ASSAY_METRIC_FALLBACKS_CHECKSUM), fallbacks + 1);
            assert_int_equal(metric(ASSAY_METRIC_RESCUED), rescued + 1);
        }
        world_close(&world);
    }
}

static void a_store_lost_in_mid_fetch_is_replaced_by_the_other_copies(void **state)
{
    (void)state;
    for (uint32_t slots = 0; slots <= 1; slots++) {
        begin(3, 2);
        put_chain(&world, 40);
        fetch_result_t result;
        int64_t before = metric(ASSAY_METRIC_FALLBACKS_STORE);
        assert_int_equal(fetch_begin(&world,
                                     (fetch_ask_t){.count = 40, .slots = slots, .hold = slots > 0},
                                     &result),
                         AS_OK);
        assert_true(world_run(&world, &result.located));
        world_store_lose(&world, store_of(0, 0));
        while (result.hold && result.layers < 1) {
            as_loop_run_once(world.loop, true);
        }
        result.hold = false;
        if (slots > 0) {
            assay_fetch_release(result.fetch, 0);
        }
        assert_true(world_run(&world, &result.done));
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.wrong, 0);
        assert_true(slots == 0 || metric(ASSAY_METRIC_FALLBACKS_STORE) > before);
        fetch_free(&result);
        world_close(&world);
    }
}

static void a_store_that_is_gone_from_the_beginning_costs_no_block(void **state)
{
    (void)state;
    begin(3, 2);
    put_chain(&world, 64);
    world_store_lose(&world, store_of(0, 0));
    must_be_whole((fetch_ask_t){.count = 64});
    must_be_whole((fetch_ask_t){.first = 7, .count = 40});
    world_tell_stores(&world); // and when the scheduler has noticed
    must_be_whole((fetch_ask_t){.count = 64});
}

// The copies of a block differ, which they never should: what came from one is not completed from
// the other.
static void copies_that_differ_are_not_mixed(void **state)
{
    (void)state;
    begin(2, 2);
    const uint32_t nodes[2] = {store_of(0, 0), store_of(0, 1)};
    for (uint32_t i = 0; i < 2; i++) {
        kvs_store_t *hidden = world.stores[nodes[1 - i]];
        world.stores[nodes[1 - i]] = NULL;
        world_tell_stores(&world);
        uint8_t *bytes = malloc(as_block_bytes(&world.shape));
        world_fill(&world, i == 0 ? 0 : 9, bytes);
        put_result_t result = {.bytes = bytes};
        const assay_put_args_t args = {
            .shape = world.shape,
            .namespace_key = world.namespace_key,
            .key = world.keys[0],
            .parent = world.namespace_key,
            .run_key = world.keys[0],
            .token_count = world.shape.block_tokens,
            .block = bytes,
            .deadline_us = world_deadline_us(&world),
            .on_done = on_put_done,
            .ctx = &result,
        };
        assay_put_t *put;
        assert_int_equal(assay_put_start(world.client, &args, &put), AS_OK);
        assert_true(world_run(&world, &result.done));
        assert_int_equal(result.status, AS_OK);
        world.stores[nodes[1 - i]] = hidden;
        world_tell_stores(&world);
    }
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 1, .slots = 1, .hold = true}, &result), AS_OK);
    while (result.layers < 1) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    assert_int_equal(result.wrong, 0); // layer 0 of the first copy
    world_store_lose(&world, nodes[0]);
    result.hold = false;
    assay_fetch_release(result.fetch, 0);
    assert_true(world_run(&world, &result.done));
    assert_int_not_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
}

// ---- what only the simulation can do

static void a_lease_that_ends_under_a_read_is_taken_at_the_other_copy(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    options.stores = 2;
    options.store.lease_us_max = 50000;
    world_open(&world, &options);
    assay_client_set_replicas(world.client, 2);
    as_fault_arm_chance(AS_FAULT_serve_renew_drop, 1000000, 1);
    put_chain(&world, 3);
    int64_t before = metric(ASSAY_METRIC_FALLBACKS_LEASE);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 3, .slots = 1, .hold = true}, &result), AS_OK);
    world_pass(&world, 300000); // the caller holds layer 0 for longer than the lease lasts
    assert_int_equal(result.layers, 1);
    result.hold = false;
    assay_fetch_release(result.fetch, 0);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    assert_int_equal(metric(ASSAY_METRIC_FALLBACKS_LEASE), before + 3);
    fetch_free(&result);
}

static void run_until_bytes(const fetch_result_t *result, uint64_t bytes)
{
    while (assay_fetch_bytes(result->fetch) < bytes) {
        assert_true(as_loop_run_once(world.loop, true));
    }
}

// All stores are asked. The first that answers sends a bad byte; the next answers while the rest of what the
// first was asked for is on its way: the same extents must not come from both.
static void a_copy_that_answers_late_waits_for_what_another_still_sends(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    options.stores = 3;
    options.messages = true;
    options.shape = (as_shape_t){16, 32, 8, 32, 32, AS_ELEMENT_F16}; // 16 extents of 32 KiB
    world_open(&world, &options);
    assay_client_set_replicas(world.client, 3);
    put_chain(&world, 2);
    const as_sim_faults_t slow = {
        .delay_us_min = 100, .delay_us_max = 100, .bandwidth_bytes_per_s = 1000000};
    as_sim_set_faults(world.sim, &slow);
    const uint64_t nodes[1] = {kvs_store_node_id(world.stores[0])};
    fetch_result_t result;
    const fetch_ask_t ask = {
        .first = 1, .count = 1, .node_ids = nodes}; // of a run that begins before it
    assert_int_equal(fetch_begin(&world, ask, &result), AS_OK);
    run_until_bytes(&result, 64u << 10);
    as_sim_stop(world.sim, world.store_nets[2]);
    world_store_lose(&world, 0);
    run_until_bytes(&result, 160u << 10);
    as_fault_arm(AS_FAULT_fetch_extent_corrupt, 1);
    while (as_fault_fired(AS_FAULT_fetch_extent_corrupt) == 0) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    as_sim_resume(world.sim, world.store_nets[2]);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
}

static void a_stopped_store_is_replaced_before_the_deadline(void **state)
{
    (void)state;
    begin(3, 2);
    put_chain(&world, 40);
    const as_sim_faults_t slow = {.delay_us_min = 10, .delay_us_max = 1000};
    as_sim_set_faults(world.sim, &slow);
    for (uint32_t run = 0; run < 2; run++) { // stopped before LOCATE, and after
        uint32_t store = store_of(0, 0);
        fetch_result_t result;
        uint64_t began_us = as_loop_now_us(world.loop);
        if (run == 0) {
            as_sim_stop(world.sim, world.store_nets[store]);
        }
        assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 40}, &result), AS_OK);
        if (run == 1) {
            assert_true(world_run(&world, &result.located));
            as_sim_stop(world.sim, world.store_nets[store]);
        }
        assert_true(world_run(&world, &result.done));
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.wrong, 0);
        assert_true(as_loop_now_us(world.loop) - began_us < 1000000);
        fetch_free(&result);
        as_sim_resume(world.sim, world.store_nets[store]);
        world_pass(&world, 40000000); // its leases and the client's patience run out
    }
    assert_nothing_is_held(&world);
}

static void one_run(uint64_t seed)
{
    world_options_t options = world_defaults(true);
    options.seed = seed;
    options.messages = seed % 2 == 0;
    options.stores = 3;
    options.store.lease_us_max = 2000000;
    options.client.connect_timeout_us = options.client.stall_timeout_us = 100000;
    world_open(&world, &options);
    assay_client_set_replicas(world.client, 2);
    put_chain(&world, 48);
    uint64_t r = as_sim_random(world.sim);
    const as_sim_faults_t slow = {.delay_us_min = 10, .delay_us_max = 20 + r % 3000};
    as_sim_set_faults(world.sim, &slow);
    static fetch_result_t fetches[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = (uint32_t)(as_sim_random(world.sim) % 40);
        uint32_t slots = (uint32_t)(as_sim_random(world.sim) % 3);
        assert_int_equal(
            fetch_begin(&world, (fetch_ask_t){.first = first, .count = 48 - first, .slots = slots},
                        &fetches[i]),
            AS_OK);
        for (uint64_t n = as_sim_random(world.sim) % 80; n > 0; n--) {
            as_loop_run_once(world.loop, true);
        }
        uint32_t which = (uint32_t)(as_sim_random(world.sim) % 3);
        if (i != 2) {
            continue;
        }
        switch (seed % 3) {
        case 0:
            world_store_lose(&world, which);
            break;
        case 1:
            as_sim_stop(world.sim, world.store_nets[which]);
            break;
        default:
            kvs_store_drop_all(world.stores[which]);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(world_run(&world, &fetches[i].done));
        if (fetches[i].status != AS_OK || fetches[i].wrong > 0 ||
            fetches[i].block_count != fetches[i].count) {
            fail_msg("seed %llu, fetch %u: %s, %u of %u blocks", (unsigned long long)seed, i,
                     as_status_str(fetches[i].status), fetches[i].block_count, fetches[i].count);
        }
        fetch_free(&fetches[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (world.stores[i]) {
            as_sim_resume(world.sim, world.store_nets[i]);
        }
    }
    world_pass(&world, 4000000);
    assert_nothing_is_held(&world);
    world_close(&world);
}

static void whichever_store_goes_every_fetch_is_whole(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    bool is_sample = getenv("ASSAY_TEST_SANITIZED") && !getenv("ASSAY_TEST_FULL");
    for (uint64_t seed = 1; seed <= (is_sample ? 40 : 150); seed++) {
        one_run(seed);
    }
    as_log_set_level(AS_LOG_INFO);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_block_is_written_to_as_many_stores_as_there_are_to_be_copies),
        TEST(with_fewer_stores_than_copies_a_put_is_degraded_and_says_so),
        TEST(a_store_with_other_bytes_is_told_though_another_took_these),
        TEST(a_copy_of_damaged_bytes_is_refused),
        cmocka_unit_test(what_one_store_lost_another_has),
        TEST(a_block_of_which_no_copy_is_left_is_the_hole),
        cmocka_unit_test(a_damaged_extent_comes_from_the_other_copy),
        cmocka_unit_test(a_store_lost_in_mid_fetch_is_replaced_by_the_other_copies),
        TEST(a_store_that_is_gone_from_the_beginning_costs_no_block),
        TEST(copies_that_differ_are_not_mixed),
    };
    const struct CMUnitTest simulated[] = {
        TEST(a_lease_that_ends_under_a_read_is_taken_at_the_other_copy),
        TEST(a_copy_that_answers_late_waits_for_what_another_still_sends),
        TEST(a_stopped_store_is_replaced_before_the_deadline),
        cmocka_unit_test(whichever_store_goes_every_fetch_is_whole),
    };
    if (argc > 1) { // again, since UCX reads its settings once
        return cmocka_run_group_tests_name("by TCP", tests, NULL, NULL);
    }
    over_sim = true;
    int failed = cmocka_run_group_tests_name("simulated, one-sided", tests, NULL, NULL);
    failed += cmocka_run_group_tests_name("simulated", simulated, NULL, NULL);
    by_messages = true;
    failed += cmocka_run_group_tests_name("simulated, by messages", tests, NULL, NULL);
    over_sim = by_messages = false;
    failed += cmocka_run_group_tests_name("by shared memory", tests, NULL, NULL);
    return failed > 0 ? failed : world_again_by_tcp(argv[0]);
}
