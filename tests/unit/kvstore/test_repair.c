// SPDX-License-Identifier: Apache-2.0
// Copies that went with a store: the best of those that hold a block gives it another one, once, at a
// stated rate; whatever else goes meanwhile, in the end all have as many copies as they should.
#include "peers_world.h"

#include "kvstore/pace.h"

#define S       1000000ull
#define DEAD_US (10 * S) // until the scheduler gives a store up

static int end(void **state)
{
    (void)state;
    peers_close();
    as_log_set_level(AS_LOG_INFO);
    return 0;
}

static void begin_with(uint32_t stores, uint32_t replicas, uint64_t rate)
{
    world_options_t options = world_defaults(true);
    options.stores = stores;
    options.store.repair_wait_us = S;
    options.store.repair_bytes_per_second = rate;
    as_log_set_level(AS_LOG_ERROR);
    peers_open(&options, replicas);
    world_pass(&world, 5 * S); // the first to come had no others: that is settled now
}

static void begin(uint32_t stores, uint64_t rate)
{
    begin_with(stores, 2, rate);
}

static uint64_t repaired(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < world.store_count; i++) {
        sum += world.stores[i] ? peers_stat(i).repaired_blocks : 0;
    }
    return sum;
}

static bool all_have(uint32_t copies, uint32_t blocks)
{
    for (uint32_t i = 0; i < blocks; i++) {
        if (peers_copies(i) != copies) {
            return false;
        }
    }
    return true;
}

// Until all blocks have so many copies; returns how long it took.
static uint64_t wait_for_copies(uint32_t copies, uint32_t blocks, uint64_t us)
{
    uint64_t began_us = as_loop_now_us(world.loop);
    while (!all_have(copies, blocks)) {
        assert_true(as_loop_now_us(world.loop) < began_us + us);
        world_pass(&world, 10000);
    }
    return as_loop_now_us(world.loop) - began_us;
}

static void all_must_be_read(uint32_t count)
{
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = count});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, count);
}

static void lose_and_count(uint32_t victim, uint32_t replicas)
{
    begin_with(4, replicas, 64u << 20);
    put_chain(&world, 64);
    bool lost[64];
    for (uint32_t i = 0; i < 64; i++) {
        lost[i] = peers_has(victim, i);
    }
    peers_store_end(victim, true);
    wait_for_copies(replicas, 64, DEAD_US + 5 * S);
    world_pass(&world, 2 * S); // and nothing more comes
    uint64_t expected[4] = {0}, sum = 0;
    for (uint32_t i = 0; i < 64; i++) {
        uint64_t place = as_key_hash(&world.keys[i / AS_RUN_BLOCKS * AS_RUN_BLOCKS]);
        uint32_t best = 0;
        for (uint32_t s = 0; s < 4; s++) {
            if (s != victim && kvs_peers_share(world.stores[s], place).rank == 0) {
                best++;
                expected[s] += lost[i];
                sum += lost[i];
            }
        }
        assert_int_equal(best, 1); // they agree
        assert_int_equal(peers_copies(i), replicas);
    }
    for (uint32_t s = 0; s < 4; s++) {
        assert_true(s == victim || peers_stat(s).repaired_blocks == expected[s]);
        assert_true(s == victim || peers_stat(s).repair_pending == 0);
    }
    assert_int_equal(repaired(), sum);
    all_must_be_read(64);
}

static void a_lost_copy_is_given_once_by_the_best_that_holds_the_block(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++) {
        lose_and_count(victim, 2);
        peers_close();
        lose_and_count(victim, 3); // two hold it still
        if (victim < 3) {
            peers_close();
        }
    }
}

static void what_the_best_store_has_lost_comes_from_the_other(void **state)
{
    (void)state;
    begin(3, 64u << 20);
    put_chain(&world, 32);
    uint64_t place = as_key_hash(&world.keys[0]);
    uint32_t best = 0, third = 0;
    for (uint32_t s = 0; s < 3; s++) {
        uint32_t rank = kvs_peers_share(world.stores[s], place).rank;
        best = rank == 0 ? s : best;
        third = rank == 2 ? s : third;
    }
    kvs_index_t *index = world.stores[best]->index;
    kvs_index_doom(index, kvs_index_find(index, &world.keys[3], AS_WIRE_FULL));
    assert_int_equal(peers_copies(3), 1);
    peers_store_end(third, true);
    wait_for_copies(2, 32, DEAD_US + 5 * S);
    assert_true(peers_has(best, 3));
}

static uint64_t ghost_hits(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < world.store_count; i++) {
        sum += world.stores[i] ? peers_stat(i).ghost_hits : 0;
    }
    return sum;
}

static void what_a_full_store_has_evicted_is_not_given_to_it_again(void **state)
{
    (void)state;
    begin(3, 64u << 20);
    put_chain(&world, 64);
    bool is_evicted[64] = {false};
    kvs_index_t *index = world.stores[1]->index;
    uint32_t evicted = 0;
    for (uint32_t i = 63; i > 0; i--) { // children first
        if (peers_has(1, i) && peers_has(2, i) && evicted < 5) {
            kvs_index_evict(index, kvs_index_find(index, &world.keys[i], AS_WIRE_FULL));
            is_evicted[i] = true;
            evicted++;
        }
    }
    assert_int_equal(evicted, 5);
    world.stores[1]->options.evict_low_percent = 0; // it is full
    peers_store_end(0, true);
    world_pass(&world, DEAD_US + 20 * S);
    for (uint32_t change = 0; change < 2; change++) {
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(peers_copies(i), is_evicted[i] ? 1 : 2);
        }
        assert_int_equal(peers_stat(2).repair_pending, 0);
        kvs_repair_on_peers(world.stores[2], true, true);
        world_pass(&world, 20 * S);
    }
    world.stores[1]->options.evict_low_percent = 90; // it has room again
    kvs_repair_on_peers(world.stores[2], true, true);
    wait_for_copies(2, 64, 5 * S);
    assert_int_equal(ghost_hits(), 0); // nobody asked for it
    for (uint32_t i = 0; i < 64; i++) {
        const kvs_block_t *block = kvs_index_find(index, &world.keys[i], AS_WIRE_FULL);
        assert_int_equal(block->queue, KVS_SMALL);
    }
}

static void with_fewer_stores_than_copies_it_is_done_when_another_comes(void **state)
{
    (void)state;
    begin(2, 64u << 20);
    put_chain(&world, 20);
    peers_store_end(1, true);
    world_pass(&world, DEAD_US + 5 * S);
    assert_true(all_have(1, 20));
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    options.ram_bytes = 16u << 20;
    options.incarnation = 2;
    as_sim_rpc_set_down(world.sim, "store1", false);
    assert_int_equal(world_store_start(&world, 1, &options), AS_OK);
    peers_report_start(1);
    wait_for_copies(2, 20, 5 * S);
}

static void it_goes_at_its_rate_while_requests_are_served(void **state)
{
    (void)state;
    begin(3, 64u << 10); // 8 blocks a second
    put_chain(&world, 32);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < 32; i++) {
        lost += peers_has(0, i);
    }
    assert_true(lost > 0);
    peers_store_end(0, true);
    while (repaired() == 0) {
        world_pass(&world, 1000);
    }
    uint64_t pending = peers_stat(1).repair_pending + peers_stat(2).repair_pending;
    assert_true(pending > 0);
    uint64_t began_us = as_loop_now_us(world.loop);
    all_must_be_read(32);
    assert_true(as_loop_now_us(world.loop) - began_us < S / 10);
    uint64_t took_us = wait_for_copies(2, 32, 60 * S);
    // Two stores share the work at worst, and up to four blocks were under way when it was seen.
    uint64_t at_least_us = (lost - 5) * as_block_bytes(&world.shape) * S / (64u << 10) / 2;
    assert_true(took_us >= at_least_us);
}

// Each block lacks two copies, which are sent at once.
static void the_rate_is_of_all_copies(void **state)
{
    (void)state;
    const uint64_t rate = 64u << 10;
    begin_with(4, 3, rate);
    world.replicas = 1;
    put_chain(&world, AS_RUN_BLOCKS);
    peers_store_end(peers_has(0, 0) ? 1 : 0, true); // one that holds nothing
    while (repaired() == 0) {
        world_pass(&world, 1000);
    }
    uint64_t took_us = wait_for_copies(3, AS_RUN_BLOCKS, 60 * S);
    uint64_t at_least_us = (AS_RUN_BLOCKS - 4) * 2 * as_block_bytes(&world.shape) * S / rate;
    assert_true(took_us >= at_least_us);
    world_pass(&world, S);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 4; i++) {
        bytes += world.stores[i] ? peers_stat(i).repaired_bytes : 0;
    }
    assert_int_equal(repaired(), AS_RUN_BLOCKS);
    assert_int_equal(bytes, 2 * AS_RUN_BLOCKS * as_block_bytes(&world.shape));
}

static void when_another_store_goes_meanwhile_it_begins_anew(void **state)
{
    (void)state;
    begin(4, 128u << 10);
    put_chain(&world, 64);
    peers_store_end(0, true);
    while (repaired() < 4) {
        world_pass(&world, 1000);
    }
    bool lives[64];
    peers_store_end(1, true);
    for (uint32_t i = 0; i < 64; i++) {
        lives[i] = peers_copies(i) > 0;
    }
    world_pass(&world, DEAD_US + 30 * S);
    uint32_t two = 0;
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(peers_copies(i), lives[i] ? 2 : 0);
        two += lives[i];
    }
    assert_true(two > 0);
}

// The list of stores changes every three seconds, and a second of them is waited each time: what can be
// done in between is a part of a pass.
static void stores_that_come_and_go_do_not_keep_it_at_the_beginning(void **state)
{
    (void)state;
    const uint64_t rate = 16u << 10; // 2 blocks a second
    begin(4, rate);
    put_chain(&world, 64);
    uint64_t lost = peers_stat(0).blocks;
    peers_store_end(0, true);
    while (repaired() == 0) {
        world_pass(&world, 10000);
    }
    uint64_t began_us = as_loop_now_us(world.loop);
    for (uint32_t change = 0; !all_have(2, 64); change++) {
        assert_true(change < 30);
        for (uint32_t i = 1; i < 4; i++) {
            kvs_repair_on_peers(world.stores[i], true, true);
        }
        world_pass(&world, 3 * S);
    }
    uint64_t at_least_us = (lost - 6) * as_block_bytes(&world.shape) * S / rate / 3;
    assert_true(as_loop_now_us(world.loop) - began_us >= at_least_us);
    assert_int_equal(repaired(), lost);
}

// A scheduler that has just started knows none of the stores, then some, then all of them.
static void a_scheduler_that_starts_again_makes_nobody_send(void **state)
{
    (void)state;
    begin(3, 64u << 20);
    put_chain(&world, 64);
    as_rpc_server_free(peers.server);
    sch_scheduler_free(peers.scheduler);
    world_pass(&world, 3 * S);
    peers_scheduler_start();
    world_pass(&world, 20 * S);
    assert_int_equal(repaired(), 0);
    assert_true(all_have(2, 64));
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(kvs_report_is_settled(peers.reports[i]));
    }
}

static void after_a_drain_only_questions_are_asked(void **state)
{
    (void)state;
    begin(4, 64u << 20);
    put_chain(&world, 64);
    kvs_store_drain(world.stores[2], 20 * S);
    assert_true(world_run(&world, &peers.drained[2]));
    peers_store_end(2, false);
    assert_true(all_have(2, 64));
    world_pass(&world, 10 * S);
    assert_int_equal(repaired(), 0);
    assert_true(all_have(2, 64));
}

static bool can_be_two(const bool *lives, uint32_t blocks)
{
    for (uint32_t i = 0; i < blocks; i++) {
        if (lives[i] && peers_copies(i) < 2) {
            return false;
        }
    }
    return true;
}

// One store dies, another is stopped and goes on, the scheduler is away, messages are lost, late and
// damaged: in the end every block that lives has its copies.
static void whatever_happens_all_that_lives_has_its_copies_in_the_end(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world_options_t options = world_defaults(true);
        options.stores = 4;
        options.seed = seed;
        options.store.repair_wait_us = S;
        as_log_set_level((as_log_level_t)(AS_LOG_ERROR + 1));
        peers_open(&options, 2);
        put_chain(&world, 64);
        const as_sim_faults_t faults = {
            .loss_ppm = 20000, .corrupt_ppm = 20000, .delay_us_min = 20, .delay_us_max = 5000};
        as_sim_set_faults(world.sim, &faults);
        uint64_t random = as_sim_random(world.sim);
        uint32_t victim = random % 4, stopped = (victim + 1 + random / 4 % 3) % 4;
        peers_store_end(victim, true);
        world_pass(&world, random / 16 % (12 * S));
        as_sim_stop(world.sim, world.store_nets[stopped]);
        as_sim_rpc_set_down(world.sim, peers.names[stopped], true);
        world_pass(&world, random / 64 % (15 * S));
        as_sim_rpc_set_down(world.sim, "scheduler", random / 8 % 2);
        world_pass(&world, 3 * S);
        as_sim_rpc_set_down(world.sim, "scheduler", false);
        as_sim_rpc_set_down(world.sim, peers.names[stopped], false);
        as_sim_resume(world.sim, world.store_nets[stopped]);
        as_sim_set_faults(world.sim, &(as_sim_faults_t){.delay_us_max = 100});
        bool lives[64];
        for (uint32_t i = 0; i < 64; i++) {
            lives[i] = peers_copies(i) > 0;
        }
        uint64_t until_us = as_loop_now_us(world.loop) + 200 * S;
        while (!can_be_two(lives, 64)) {
            if (as_loop_now_us(world.loop) > until_us) {
                fail_msg("seed %llu: some block has one copy only", (unsigned long long)seed);
            }
            world_pass(&world, S / 10);
        }
        all_must_be_read(64);
        if (seed < 20) {
            peers_close();
        }
    }
}

static void a_rate_of_zero_is_none(void **state)
{
    (void)state;
    begin(3, 0);
    put_chain(&world, 64);
    peers_store_end(0, true);
    world_pass(&world, DEAD_US + 10 * S);
    assert_int_equal(repaired(), 0);
}

// ---- the pace alone

static void a_pace_spreads_bytes_and_makes_up_for_little(void **state)
{
    (void)state;
    kvs_pace_t pace = {.due_us = 5 * S};
    assert_int_equal(kvs_pace_spend(&pace, 1000, 1000000, 5 * S), 1000);
    assert_int_equal(kvs_pace_spend(&pace, 0, 1000000, 5 * S), 1000);
    assert_int_equal(kvs_pace_spend(&pace, 500, 1000000, 5 * S + 400), 1100);
    // A second late: of that, 10 ms count.
    assert_int_equal(kvs_pace_spend(&pace, 10000, 1000000, 6 * S), 0);
    assert_int_equal(kvs_pace_spend(&pace, 10000, 1000000, 6 * S), 10000);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pace_spreads_bytes_and_makes_up_for_little),
        TEST(a_lost_copy_is_given_once_by_the_best_that_holds_the_block),
        TEST(what_the_best_store_has_lost_comes_from_the_other),
        TEST(what_a_full_store_has_evicted_is_not_given_to_it_again),
        TEST(with_fewer_stores_than_copies_it_is_done_when_another_comes),
        TEST(it_goes_at_its_rate_while_requests_are_served),
        TEST(the_rate_is_of_all_copies),
        TEST(when_another_store_goes_meanwhile_it_begins_anew),
        TEST(stores_that_come_and_go_do_not_keep_it_at_the_beginning),
        TEST(a_scheduler_that_starts_again_makes_nobody_send),
        TEST(after_a_drain_only_questions_are_asked),
        TEST(whatever_happens_all_that_lives_has_its_copies_in_the_end),
        TEST(a_rate_of_zero_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
