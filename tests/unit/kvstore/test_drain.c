// SPDX-License-Identifier: Apache-2.0
// A store that drains: what only it has goes to other stores, hottest first and no child before its
// parent; reads go on; whatever happens to the others, it ends in time.
#include "peers_world.h"

#define S 1000000ull

static int end(void **state)
{
    (void)state;
    peers_close();
    as_log_set_level(AS_LOG_INFO);
    return 0;
}

static void begin(uint32_t stores, uint32_t replicas)
{
    world_options_t options = world_defaults(true);
    options.stores = stores;
    as_log_set_level(AS_LOG_WARN);
    peers_open(&options, replicas);
}

static kvs_drain_stat_t drain_of(uint32_t store)
{
    kvs_drain_stat_t stat;
    kvs_store_drain_stat(world.stores[store], &stat);
    return stat;
}

static void drain(uint32_t store, uint64_t timeout_us)
{
    kvs_store_drain(world.stores[store], timeout_us);
    assert_false(peers.drained[store]); // never from inside
    assert_true(world_run(&world, &peers.drained[store]));
}

// The store with the most blocks.
static uint32_t fullest(void)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < world.store_count; i++) {
        best = peers_stat(i).blocks > peers_stat(best).blocks ? i : best;
    }
    return best;
}

static void what_only_it_has_is_at_the_other_stores_afterwards(void **state)
{
    (void)state;
    begin(3, 1);
    put_chain(&world, 64);
    uint32_t from = fullest();
    uint64_t own = peers_stat(from).blocks;
    assert_true(own > 0);
    uint64_t began_us = as_loop_now_us(world.loop);
    drain(from, 30 * S);
    assert_true(as_loop_now_us(world.loop) - began_us < 3 * S);
    kvs_drain_stat_t stat = drain_of(from);
    assert_true(stat.is_over && !stat.running);
    assert_int_equal(stat.blocks, own);
    assert_int_equal(stat.handed_blocks, own);
    assert_int_equal(stat.handed_bytes, own * as_block_bytes(&world.shape));
    assert_int_equal(stat.kept_blocks, 0);
    peers_store_end(from, false);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 64}); // by placement
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 64);
    sch_node_t *node = sch_cluster_at(peers.scheduler->cluster, from);
    assert_int_equal(node->state, ASSAY__NODE_STATE__NODE_STATE_DEAD); // it said so
}

static void of_what_has_copies_enough_nothing_is_sent(void **state)
{
    (void)state;
    begin(3, 2);
    put_chain(&world, 64);
    uint64_t own = peers_stat(0).blocks, sent = 0;
    for (uint32_t i = 0; i < 64; i++) {
        sent += peers_has(0, i);
    }
    assert_int_equal(own, sent);
    drain(0, 30 * S);
    kvs_drain_stat_t stat = drain_of(0);
    assert_int_equal(stat.handed_blocks, own); // a third store takes the second copy
    peers_store_end(0, false);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(peers_copies(i), 2);
    }
    world_pass(&world, 2 * S);
    drain(1, 30 * S); // the last but one: all are at the other
    assert_int_equal(drain_of(1).handed_blocks, 0);
    assert_int_equal(drain_of(1).kept_blocks, 64);
}

static void nothing_new_is_taken_and_all_can_be_read(void **state)
{
    (void)state;
    begin(2, 1);
    put_chain(&world, 32);
    kvs_store_drain(world.stores[0], 30 * S);
    world_pass(&world, 100); // the client does not know yet
    for (uint32_t i = 32; i < 64; i++) {
        as_status_t status = put_block(&world, i);
        assert_true(status == AS_OK || status == AS_ERR_BUSY);
        assert_false(peers_has(0, i));
    }
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 32});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 32);
    assert_true(world_run(&world, &peers.drained[0]));
}

static void slow_down(void)
{
    const as_sim_faults_t slow = {
        .delay_us_min = 20, .delay_us_max = 50, .bandwidth_bytes_per_s = 1 << 20};
    as_sim_set_faults(world.sim, &slow); // 8 KiB blocks: 128 a second
}

// In the time for some blocks only those used last go, each with all its parents.
static void the_hottest_go_first_and_parents_before_children(void **state)
{
    (void)state;
    begin(2, 1);
    put_chain(&world, 60);
    uint32_t from = fullest(), own = 0;
    uint64_t ids[60];
    for (uint32_t i = 0; i < 60; i++) {
        own += peers_has(from, i);
        ids[i] = kvs_store_node_id(world.stores[peers_has(from, i) ? from : 1 - from]);
    }
    assert_true(own >= 28); // two runs of the chain, at least
    uint32_t hot = 0;       // the first run that is here is used again
    while (!peers_has(from, hot)) {
        hot++;
    }
    // Then what follows it here is no longer its child.
    uint32_t last = hot + AS_RUN_BLOCKS - 1;
    assert_true(kvs_store_drop(world.stores[from], &world.keys[last], AS_TENANT_NONE));
    fetch_result_t result = fetch_chain(
        &world, (fetch_ask_t){.first = hot, .count = AS_RUN_BLOCKS - 1, .node_ids = ids + hot});
    assert_int_equal(result.status, AS_OK);
    slow_down();
    drain(from, 150000);
    kvs_drain_stat_t stat = drain_of(from);
    assert_in_range(stat.handed_blocks, AS_RUN_BLOCKS - 1, own - 2);
    for (uint32_t i = 0; i < AS_RUN_BLOCKS - 1; i++) {
        assert_true(peers_has(1 - from, hot + i));
    }
    for (uint32_t i = 1; i < 60; i++) {
        bool is_run_start = i % AS_RUN_BLOCKS == 0;
        assert_true(is_run_start || !peers_has(1 - from, i) || peers_has(1 - from, i - 1));
    }
}

static kvs_block_t *block_at(uint32_t store, uint32_t i)
{
    return kvs_index_find(world.stores[store]->index, &world.keys[i], AS_WIRE_FULL);
}

static void begin_small(size_t ram_bytes, uint32_t replicas)
{
    world_options_t options = world_defaults(true);
    options.stores = 2;
    options.store.ram_bytes = ram_bytes;
    as_log_set_level(AS_LOG_ERROR);
    peers_open(&options, replicas);
    put_chain(&world, 64);
}

// Reads the first blocks of each run that the store has.
static void use(uint32_t store, uint32_t count)
{
    uint64_t ids[AS_RUN_BLOCKS];
    for (uint32_t n = 0; n < AS_RUN_BLOCKS; n++) {
        ids[n] = kvs_store_node_id(world.stores[store]);
    }
    for (uint32_t i = 0; i < 64; i += AS_RUN_BLOCKS) {
        if (peers_has(store, i)) {
            fetch_result_t result =
                fetch_chain(&world, (fetch_ask_t){.first = i, .count = count, .node_ids = ids});
            assert_int_equal(result.status, AS_OK);
        }
    }
}

// Else they would be the first to go, before what nobody has asked for at the other store either.
static void what_was_used_is_not_new_where_it_goes_to(void **state)
{
    (void)state;
    begin_small(16u << 20, 1);
    uint32_t from = fullest();
    bool had[64];
    for (uint32_t i = 0; i < 64; i++) {
        had[i] = peers_has(from, i);
    }
    use(from, 4);
    drain(from, 30 * S);
    for (uint32_t i = 0; i < 64; i++) {
        bool is_used = had[i] && i % AS_RUN_BLOCKS < 4;
        assert_int_equal(block_at(1 - from, i)->queue, is_used ? KVS_MAIN : KVS_SMALL);
    }
}

static void a_drain_does_not_push_out_what_is_used_at_the_other_store(void **state)
{
    (void)state;
    const size_t ram_bytes = 900u << 10;
    begin_small(ram_bytes, 1);
    uint32_t from = fullest(), in_main = 0;
    uint64_t own = peers_stat(from).blocks;
    use(from, AS_RUN_BLOCKS);
    drain(from, 30 * S);
    assert_int_equal(drain_of(from).handed_blocks, own);
    for (uint32_t i = 0; i < 64; i++) {
        in_main += block_at(1 - from, i)->queue == KVS_MAIN;
    }
    assert_int_equal(in_main, ram_bytes / KVS_GIVEN_PART / as_block_bytes(&world.shape));
    assert_true(in_main < own);
}

static void pin_eight(uint32_t store)
{
    for (uint32_t i = 0, pinned = 0; i < 64 && pinned < 8; i++) {
        if (peers_has(store, i)) {
            kvs_guard_t guard = pinned++ < 3 ? KVS_GUARD_SOFT : KVS_GUARD_HARD;
            assert_int_equal(
                kvs_store_pin(world.stores[store], &world.keys[i], AS_TENANT_NONE, guard), AS_OK);
        }
    }
}

static void pins_go_over(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) { // 2: it has the blocks, but no pins
        begin_small(2u << 20, replicas);
        uint32_t from = fullest();
        uint64_t bytes = as_block_bytes(&world.shape);
        pin_eight(from);
        world.stores[1 - from]->options.pin_percent = 1; // two blocks: the others are soft there
        drain(from, 30 * S);
        assert_int_equal(drain_of(from).pinned_blocks, 8);
        assert_int_equal(drain_of(from).handed_pins, 8);
        assert_int_equal(peers_stat(1 - from).hard_bytes, 2 * bytes);
        assert_int_equal(peers_stat(1 - from).soft_bytes, 6 * bytes);
        if (replicas < 2) {
            peers_close();
        }
    }
}

static void pins_that_nobody_takes_are_told(void **state)
{
    (void)state;
    begin(2, 1);
    put_chain(&world, 16);
    uint32_t from = fullest();
    pin_eight(from);
    kvs_store_drop(world.stores[1 - from], &world.keys[3], AS_TENANT_NONE); // refused there
    as_log_set_level(AS_LOG_ERROR);
    drain(from, 30 * S);
    assert_int_equal(drain_of(from).pinned_blocks, 8);
    assert_int_equal(drain_of(from).handed_pins, 7);
}

static void the_last_store_ends_at_once(void **state)
{
    (void)state;
    begin(1, 1);
    put_chain(&world, 5);
    uint64_t began_us = as_loop_now_us(world.loop);
    drain(0, 30 * S);
    assert_true(as_loop_now_us(world.loop) - began_us < S / 10);
    assert_int_equal(drain_of(0).blocks, 5);
    assert_int_equal(drain_of(0).handed_blocks, 0);
    assert_false(kvs_store_drain_disk(world.stores[0], 30 * S)); // too late for that
}

// What it had begun with may still come, however long nothing else is handed over.
static void a_writer_that_hangs_is_waited_for(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    options.stores = 2;
    options.client.stage_bytes = 0;
    options.shape.layers = 16; // blocks whose bytes do not come with their message
    as_log_set_level(AS_LOG_ERROR);
    peers_open(&options, 1);
    put_chain(&world, 5);
    uint32_t from = peers_has(0, 0) ? 0 : 1;
    put_result_t result;
    assay_put_t *put;
    as_sim_set_faults(world.sim, &(as_sim_faults_t){.delay_us_min = 50000, .delay_us_max = 50000});
    assert_int_equal(put_start(&world, 5, 30 * S, &result, &put), AS_OK);
    world_pass(&world, 10000); // the message is on its way; the bytes are asked for and come
    as_sim_set_faults(world.sim, &(as_sim_faults_t){.delay_us_min = 4 * S, .delay_us_max = 4 * S});
    while (peers_stat(from).reservations == 0) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    as_sim_set_faults(world.sim, &(as_sim_faults_t){.delay_us_max = 100});
    drain(from, 30 * S);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_true(drain_of(from).took_us > 7 * S);
    assert_int_equal(drain_of(from).handed_blocks, 6);
    assert_true(peers_has(1 - from, 5));
}

static void without_a_scheduler_it_ends_too(void **state)
{
    (void)state;
    begin(2, 1);
    put_chain(&world, 5);
    as_sim_rpc_set_down(world.sim, "scheduler", true);
    uint32_t from = peers_has(0, 0) ? 0 : 1;
    drain(from, 30 * S); // it goes by what it knew
    assert_int_equal(drain_of(from).handed_blocks, 5);
    peers_store_end(from, false);
    drain(1 - from, 30 * S);
    assert_int_equal(drain_of(1 - from).handed_blocks, 0);
    as_sim_rpc_set_down(world.sim, "scheduler", false);
}

static void all_that_drain_at_once_end_soon(void **state)
{
    (void)state;
    begin(3, 2);
    put_chain(&world, 64);
    for (uint32_t i = 0; i < 3; i++) {
        kvs_store_drain(world.stores[i], 30 * S);
    }
    uint64_t began_us = as_loop_now_us(world.loop);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(world_run(&world, &peers.drained[i]));
    }
    assert_true(as_loop_now_us(world.loop) - began_us < 3 * S);
}

// Dead, or stopped in a way that the scheduler does not see: its part goes to the third store.
static void a_store_that_dies_or_stalls_under_a_drain_is_left_out(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 2; run++) {
        begin(3, 1);
        put_chain(&world, 64);
        uint32_t from = fullest(), first = from == 0 ? 1 : 0, second = 3 - from - first;
        uint64_t own = peers_stat(from).blocks;
        bool is_own[64], was_handed[64];
        for (uint32_t i = 0; i < 64; i++) {
            is_own[i] = peers_has(from, i);
        }
        slow_down();
        kvs_store_drain(world.stores[from], 20 * S);
        while (peers_stat(first).reservations + peers_stat(second).reservations == 0) {
            world_pass(&world, 500);
        }
        // It is just being handed a block.
        uint32_t victim = peers_stat(first).reservations > 0 ? first : second;
        for (uint32_t i = 0; i < 64; i++) {
            was_handed[i] = peers_has(victim, i);
        }
        if (run == 0) {
            peers_store_end(victim, true);
        } else {
            as_sim_stop(world.sim, world.store_nets[victim]);
        }
        uint64_t began_us = as_loop_now_us(world.loop);
        assert_true(world_run(&world, &peers.drained[from]));
        assert_true(as_loop_now_us(world.loop) - began_us < 15 * S);
        assert_int_equal(drain_of(from).handed_blocks, own);
        for (uint32_t i = 0; i < 64; i++) {
            assert_true(!is_own[i] || was_handed[i] || peers_has(3 - from - victim, i));
        }
        if (run == 0) {
            peers_close();
        } else {
            as_sim_resume(world.sim, world.store_nets[victim]);
        }
    }
}

static void a_block_whose_bytes_are_bad_is_not_passed_on(void **state)
{
    (void)state;
    begin(2, 1);
    put_chain(&world, 16);
    uint32_t from = peers_has(0, 0) ? 0 : 1;
    kvs_block_t *block = kvs_index_find(world.stores[from]->index, &world.keys[3], AS_WIRE_FULL);
    kvs_index_extent(world.stores[from]->index, block, 1)[7] ^= 4;
    as_log_set_level(AS_LOG_ERROR);
    drain(from, 3 * S);
    assert_int_equal(drain_of(from).handed_blocks, 15);
    assert_false(peers_has(1 - from, 3));
}

static void a_network_that_loses_and_damages_costs_no_block(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        world_options_t options = world_defaults(true);
        options.stores = 3;
        options.seed = seed;
        as_log_set_level(AS_LOG_ERROR + 1);
        peers_open(&options, 1);
        put_chain(&world, 64);
        uint32_t from = fullest();
        uint64_t own = peers_stat(from).blocks;
        const as_sim_faults_t faults = {
            .loss_ppm = 5000, .corrupt_ppm = 5000, .delay_us_min = 20, .delay_us_max = 3000};
        as_sim_set_faults(world.sim, &faults);
        drain(from, 60 * S);
        kvs_drain_stat_t stat = drain_of(from);
        assert_int_equal(stat.handed_blocks + stat.kept_blocks, own);
        as_sim_set_faults(world.sim, &(as_sim_faults_t){.delay_us_max = 100});
        peers_store_end(from, false);
        uint64_t ids[64]; // as the directory tells: what its own store did not take is at the other
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t at = 0;
            while (at < 3 && !peers_has(at, i)) {
                at++;
            }
            assert_true(at < 3);
            ids[i] = kvs_store_node_id(world.stores[at]);
        }
        fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 64, .node_ids = ids});
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.block_count, 64);
        if (seed < 10) {
            peers_close();
        }
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_only_it_has_is_at_the_other_stores_afterwards),
        TEST(of_what_has_copies_enough_nothing_is_sent),
        TEST(nothing_new_is_taken_and_all_can_be_read),
        TEST(the_hottest_go_first_and_parents_before_children),
        TEST(what_was_used_is_not_new_where_it_goes_to),
        TEST(a_drain_does_not_push_out_what_is_used_at_the_other_store),
        TEST(pins_go_over),
        TEST(pins_that_nobody_takes_are_told),
        TEST(the_last_store_ends_at_once),
        TEST(a_writer_that_hangs_is_waited_for),
        TEST(without_a_scheduler_it_ends_too),
        TEST(all_that_drain_at_once_end_soon),
        TEST(a_store_that_dies_or_stalls_under_a_drain_is_left_out),
        TEST(a_block_whose_bytes_are_bad_is_not_passed_on),
        TEST(a_network_that_loses_and_damages_costs_no_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
