// SPDX-License-Identifier: Apache-2.0
// A store with a disk and a client, over UCX: what is put comes back from disk, to the byte, and the
// disk failing is a miss and nothing else.
#include "disk_world.h"

#include <sys/stat.h>
#include <unistd.h>

#include "kvstore/disk/disk.h"
#include "kvstore/locate.h"

static uint32_t added, removed;

static world_options_t with_disk(size_t ram_bytes)
{
    world_options_t options = disk_world_options(32u << 20);
    options.store.ram_bytes = ram_bytes;
    return options;
}

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR);
    added = removed = 0;
    return 0;
}

static void on_event(void *ctx, kvs_event_t event, const as_key_t *key)
{
    (void)ctx;
    (void)key;
    added += event == KVS_BLOCK_ADDED;
    removed += event == KVS_BLOCK_REMOVED;
}

// Until so many are on disk.
static void wait_for_disk(uint64_t blocks)
{
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (stat_now().disk_blocks < blocks) {
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 1000);
    }
}

static void durable_blocks_come_back_after_a_new_start(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 20);
    assert_int_equal(stat_now().disk_blocks, 20);
    start_again(&options);
    assert_int_equal(stat_now().blocks, 0);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 20});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(stat_now().promotions, 20);
    assert_int_equal(stat_now().blocks, 20);
    assert_int_equal(put_block(&world, 3), AS_ERR_EXISTS);
}

static void the_others_are_written_behind(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    put_chain(&world, 20);
    wait_for_disk(20);
    start_again(&options);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 20}).status, AS_OK);
}

static void use_chain(uint32_t chain)
{
    char numerics[16];
    snprintf(numerics, sizeof(numerics), "chain %u", chain);
    world_use_namespace(&world, numerics);
}

static void a_chain_larger_than_ram_is_kept(void **state)
{
    (void)state;
    world_options_t options = with_disk(24 * 12288); // 24 blocks
    world_open(&world, &options);
    kvs_store_set_listener(world.stores[0], on_event, NULL);
    for (uint32_t i = 0; i < 60; i++) {
        as_status_t status;
        while ((status = put_block(&world, i)) == AS_ERR_BUSY) {
            world_pass(&world, 1000); // until there is room
        }
        assert_int_equal(status, AS_OK);
        wait_for_disk(i + 1);
    }
    assert_true(stat_now().evictions > 30);
    assert_int_equal(added, 60);
    assert_int_equal(removed, 0); // the node still has them
    for (uint32_t first = 0; first + 12 <= 60; first += 12) {
        fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.first = first, .count = 12});
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.block_count, 12);
    }
    assert_int_equal(added, 60);
    assert_int_equal(removed, 0);
}

// `chains` chains of `count` blocks, in namespaces of their own, are on disk and nothing in RAM.
static void leave_on_disk(const world_options_t *options, uint32_t chains, uint32_t count)
{
    for (uint32_t chain = 0; chain < chains; chain++) {
        use_chain(chain);
        put_chain(&world, count);
    }
    wait_for_disk(chains * count);
    start_again(options);
    assert_int_equal(stat_now().blocks, 0);
}

// More than are read from disk at a time, and more questions than there is room for answers.
static void many_cold_readers_at_once_miss_nothing(void **state)
{
    (void)state;
    enum { CHAINS = 5, EACH = 12, READERS = CHAINS * EACH };
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    leave_on_disk(&options, CHAINS, WORLD_BLOCKS_MAX);
    fetch_result_t *results = calloc(READERS, sizeof(*results));
    for (uint32_t i = 0; i < READERS; i++) { // the whole chain, and parts of it
        use_chain(i % CHAINS);
        uint32_t first = i / CHAINS * 5;
        fetch_ask_t ask = {.first = first, .count = WORLD_BLOCKS_MAX - first};
        assert_int_equal(fetch_begin(&world, ask, &results[i]), AS_OK);
    }
    for (uint32_t i = 0; i < READERS; i++) {
        assert_true(world_run(&world, &results[i].done));
        assert_int_equal(results[i].status, AS_OK);
        assert_int_equal(results[i].block_count, results[i].count);
        assert_int_equal(results[i].wrong, 0);
        fetch_free(&results[i]);
    }
    assert_int_equal(stat_now().promotions, CHAINS * WORLD_BLOCKS_MAX);
    assert_int_equal(stat_now().misses, 0);
    world_let_go(&world);
    free(results);
}

static void a_cold_chain_makes_room_for_itself(void **state)
{
    (void)state;
    world_options_t options = with_disk(24 * 12288);
    world_open(&world, &options);
    for (uint32_t i = 0; i < 40; i++) {
        use_chain(i / 20);
        assert_int_equal(put_until_it_fits(&world, i % 20), AS_OK);
        wait_for_disk(i + 1);
    }
    for (uint32_t round = 0; round < 6; round++) { // each needs nearly all of RAM
        use_chain(round % 2);
        fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 20});
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.block_count, 20);
    }
}

static void a_chain_that_ram_cannot_hold_comes_as_far_as_it_goes(void **state)
{
    (void)state;
    world_options_t options = with_disk(24 * 12288);
    options.client.connect_timeout_us = 700000; // so long it waits for room
    world_open(&world, &options);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(put_until_it_fits(&world, i), AS_OK);
        wait_for_disk(i + 1);
    }
    start_again(&options);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 40});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 24);
    assert_int_equal(stat_now().promotions, 24);
    world_let_go(&world);
}

// It was in RAM when it was asked for, and its answer had to wait.
static void what_goes_to_disk_while_its_answer_waits_is_no_miss(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    put_chain(&world, 3);
    wait_for_disk(3);
    kvs_store_t *store = world.stores[0];
    kvs_locates_t *locates = store->locates;
    fetch_result_t result;
    uint32_t answers_left = locates->answers_left;
    locates->answers_left = 0;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 3}, &result), AS_OK);
    while (!locates->first) {
        as_loop_run_once(world.loop, true);
    }
    kvs_index_evict(store->index, kvs_index_find(store->index, &world.keys[2], AS_WIRE_FULL));
    locates->answers_left = answers_left;
    kvs_locates_wake(store);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 3);
    fetch_free(&result);
    assert_int_equal(stat_now().misses, 0);
    assert_int_equal(stat_now().promotions, 1);
}

// Whoever waits for room is looked at now and then, however often others are woken meanwhile.
static void a_store_without_room_seldom_looks_for_it(void **state)
{
    (void)state;
    enum { PASS_US = 60000, AGAIN_US = 2000 };
    world_options_t options = with_disk(24 * 12288);
    options.client.connect_timeout_us = 700000; // so long the fetch waits for room
    world_open(&world, &options);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(put_until_it_fits(&world, i), AS_OK);
        wait_for_disk(i + 1);
    }
    start_again(&options);
    kvs_store_t *store = world.stores[0];
    fetch_result_t result;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 40}, &result), AS_OK);
    while (stat_now().promotions < 24) { // what is here is held for those that find no room
        as_loop_run_once(world.loop, true);
    }
    uint32_t looks = 0;
    uint64_t looked_us = store->evict_vain_us, began_us = as_loop_now_us(world.loop), now_us;
    while ((now_us = as_loop_now_us(world.loop)) < began_us + PASS_US) {
        kvs_locates_wake(store);
        as_loop_run_once(world.loop, false);
        looks += store->evict_vain_us != looked_us;
        looked_us = store->evict_vain_us;
    }
    assert_in_range(looks, 1, (now_us - began_us) / AGAIN_US + 2);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.block_count, 24);
    fetch_free(&result);
    world_let_go(&world);
}

static void what_disk_gives_back_wrong_is_a_miss_and_is_told(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 6);
    start_again(&options);
    kvs_store_set_listener(world.stores[0], on_event, NULL);
    as_fault_arm(AS_FAULT_disk_read_corrupt, 3);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.block_count, 2); // located up to the hole
    assert_int_equal(removed, 1);
    assert_int_equal(stat_now().disk_blocks, 5);
    assert_int_equal(put_block(&world, 2), AS_OK); // as whoever computes it again does
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 6}).status, AS_OK);
}

static void without_a_disk_a_durable_put_fails_and_says_so(void **state)
{
    (void)state;
    world_options_t options = world_defaults(false);
    world_open(&world, &options);
    world.durable = true;
    assert_int_equal(put_block(&world, 0), AS_ERR_IO);
}

static void a_durable_put_that_finds_no_disk_is_no_success(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    as_fault_arm(AS_FAULT_disk_write_fails, 1);
    assert_int_not_equal(put_block(&world, 0), AS_OK);
    assert_int_equal(put_block(&world, 1), AS_OK);
    assert_int_equal(stat_now().disk_blocks, 1);
}

static void a_durable_put_of_a_block_in_ram_alone_writes_it(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    as_fault_arm_chance(AS_FAULT_disk_write_fails, 1000000, 1);
    put_chain(&world, 1);
    world.durable = true;
    assert_int_equal(put_block(&world, 0), AS_ERR_IO); // it is there, and not safe
    as_fault_clear();
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_int_equal(stat_now().disk_blocks, 1);
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_nothing_is_held(&world);
    start_again(&options);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 1}).status, AS_OK);
}

static void a_disk_that_hangs_fails_durable_puts_and_no_others(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    options.store.reservation_us = 200000; // so long the disk is waited for
    options.store.stall_us = 600000;
    options.store.reservations_max = 8;
    world_open(&world, &options);
    as_fault_arm_chance(AS_FAULT_disk_hangs, 1000000, 1);
    as_log_set_level(AS_LOG_ERROR);
    world.durable = true;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(put_block(&world, i), AS_ERR_IO);
    }
    assert_int_equal(put_block(&world, 4), AS_ERR_BUSY); // half of the room
    world.durable = false;
    for (uint32_t i = 4; i < 12; i++) {
        assert_int_equal(put_block(&world, i), AS_OK);
    }
    uint64_t connections = stat_now().connections;
    world_pass(&world, 700000); // nobody is closed for it
    assert_int_equal(stat_now().connections, connections);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 12}).status, AS_OK);
    as_fault_clear();
    wait_for_disk(12);
    world.durable = true;
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_int_equal(put_block(&world, 12), AS_OK);
    world_let_go(&world);
}

static kvs_disk_stat_t disk_now(void)
{
    kvs_disk_stat_t stat;
    kvs_tier_stat(world.stores[0], &stat);
    return stat;
}

static void a_durable_put_of_a_block_written_behind_syncs_it(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    put_chain(&world, 3);
    wait_for_disk(3);
    world.durable = true;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(put_block(&world, i), AS_ERR_EXISTS);
        assert_int_equal(disk_now().synced_blocks, i + 1);
        assert_int_equal(put_block(&world, i), AS_ERR_EXISTS);
        assert_int_equal(disk_now().synced_blocks, i + 1); // it was safe
    }
    start_again(&options);                         // a start makes safe what it finds
    assert_int_equal(put_block(&world, 0), AS_OK); // into RAM again
    assert_int_equal(disk_now().synced_blocks, 0);
}

// A write behind and a durable put of the same block right after it: whatever comes first, the answer
// comes once the block is on disk, or says that it is not.
static void a_durable_put_waits_for_a_write_that_is_under_way(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    for (uint32_t i = 0; i < 40; i++) {
        bool fails = i % 4 == 3;
        world.durable = false;
        if (fails) {
            as_fault_arm(AS_FAULT_disk_write_fails, 1);
        }
        assert_int_equal(put_block(&world, i), AS_OK);
        world.durable = true;
        as_status_t status = put_block(&world, i);
        as_fault_clear();
        const kvs_disk_t *disk = kvs_tier_disk(world.stores[0]);
        bool on_disk = kvs_disk_find(disk, &world.keys[i], AS_WIRE_FULL) != NULL;
        assert_true(status == AS_ERR_EXISTS ? on_disk : fails && status == AS_ERR_IO);
    }
    assert_nothing_is_held(&world);
}

static void other_bytes_for_a_block_on_disk_are_a_conflict(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 2);
    start_again(&options);
    world.twist = 4;
    as_log_set_level(AS_LOG_ERROR + 1);
    assert_int_equal(put_block(&world, 1), AS_ERR_CONFLICT);
    assert_int_equal(stat_now().conflicts, 1);
    world.twist = 0;
    assert_int_equal(put_block(&world, 1), AS_OK); // into RAM again
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 2}).status, AS_OK);
}

static const kvs_spec_t *spec_on_disk(uint32_t block)
{
    return kvs_disk_find(kvs_tier_disk(world.stores[0]), &world.keys[block], AS_WIRE_FULL);
}

static void a_copy_of_a_block_on_disk_is_not_sent_again(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 1);
    start_again(&options);
    world.copying = true;
    world.durable = false;
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_int_equal(stat_now().blocks, 0);
    assert_int_equal(put_block(&world, 1), AS_OK);
}

static void a_store_knows_what_places_a_block_also_after_a_new_start(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, AS_RUN_BLOCKS + 2);
    for (uint32_t start = 0; start < 2; start++) {
        for (uint32_t i = 0; i < AS_RUN_BLOCKS + 2; i++) {
            const as_key_t *run_key = &world.keys[i / AS_RUN_BLOCKS * AS_RUN_BLOCKS];
            assert_int_equal(spec_on_disk(i)->place, as_key_hash(run_key));
        }
        start_again(&options);
    }
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 2}).status, AS_OK);
    const kvs_block_t *block = kvs_index_find(world.stores[0]->index, &world.keys[1], AS_WIRE_FULL);
    assert_int_equal(block->place, as_key_hash(&world.keys[0]));
}

static void dropped_blocks_leave_disk_too(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 6);
    kvs_store_set_listener(world.stores[0], on_event, NULL);
    assert_true(kvs_store_drop(world.stores[0], &world.keys[5], 0));
    assert_int_equal(removed, 1);
    start_again(&options);
    assert_int_equal(stat_now().disk_blocks, 5);
    assert_int_equal(kvs_store_drop_all(world.stores[0]), 5);
    start_again(&options);
    assert_int_equal(stat_now().disk_blocks, 0);
}

static void a_block_dropped_on_its_way_from_disk_stays_dropped(void **state)
{
    (void)state;
    world_options_t options = with_disk(16u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 1);
    fetch_result_t result;
    for (;;) { // until it is seen while the store reads it, and not only afterwards
        start_again(&options);
        kvs_store_set_listener(world.stores[0], on_event, NULL);
        result = (fetch_result_t){0};
        assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 1}, &result), AS_OK);
        while (stat_now().pins == 0 && stat_now().promotions == 0) {
            as_loop_run_once(world.loop, true);
        }
        if (stat_now().promotions == 0) {
            break;
        }
        assert_true(world_run(&world, &result.done));
        fetch_free(&result);
    }
    assert_true(kvs_store_drop(world.stores[0], &world.keys[0], 0));
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_ERR_NOT_FOUND);
    assert_int_equal(stat_now().blocks + stat_now().disk_blocks, 0);
    assert_int_equal(added, 0);
    assert_int_equal(removed, 1);
    fetch_free(&result);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(durable_blocks_come_back_after_a_new_start),
        TEST(the_others_are_written_behind),
        TEST(a_chain_larger_than_ram_is_kept),
        TEST(many_cold_readers_at_once_miss_nothing),
        TEST(a_cold_chain_makes_room_for_itself),
        TEST(a_chain_that_ram_cannot_hold_comes_as_far_as_it_goes),
        TEST(what_goes_to_disk_while_its_answer_waits_is_no_miss),
        TEST(a_store_without_room_seldom_looks_for_it),
        TEST(what_disk_gives_back_wrong_is_a_miss_and_is_told),
        TEST(without_a_disk_a_durable_put_fails_and_says_so),
        TEST(a_durable_put_that_finds_no_disk_is_no_success),
        TEST(a_disk_that_hangs_fails_durable_puts_and_no_others),
        TEST(a_durable_put_of_a_block_in_ram_alone_writes_it),
        TEST(a_durable_put_of_a_block_written_behind_syncs_it),
        TEST(a_durable_put_waits_for_a_write_that_is_under_way),
        TEST(other_bytes_for_a_block_on_disk_are_a_conflict),
        TEST(a_copy_of_a_block_on_disk_is_not_sent_again),
        TEST(a_store_knows_what_places_a_block_also_after_a_new_start),
        TEST(dropped_blocks_leave_disk_too),
        TEST(a_block_dropped_on_its_way_from_disk_stays_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
