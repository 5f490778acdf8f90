// SPDX-License-Identifier: Apache-2.0
// Blocks with a time to live: a miss from their time on, in RAM and on disk, and freed though nobody
// asks.
#include "../client/disk_world.h"

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR + 1);
    return 0;
}

static kvs_block_t *block_of(uint32_t n)
{
    return kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL);
}

static void put_with(uint32_t n, uint32_t ttl_ms)
{
    world.ttl_ms = ttl_ms;
    assert_int_equal(put_block(&world, n), AS_OK);
}

static void locate_misses_from_the_very_time_on(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_with(0, 50);
    put_with(1, 0);
    uint64_t expires_us = block_of(0)->expires_us;
    world_pass(&world, expires_us - as_loop_now_us(world.loop) - 2000);
    uint32_t hits = 0, misses = 0;
    uint64_t last_hit_us = 0, first_miss_us = 0;
    while (misses < 20) {
        uint64_t asked_us = as_loop_now_us(world.loop);
        fetch_result_t got = fetch_chain(&world, (fetch_ask_t){.first = 0, .count = 1});
        if (got.block_count == 1) {
            assert_true(asked_us < expires_us && misses == 0);
            last_hit_us = asked_us;
            hits++;
        } else {
            assert_true(as_loop_now_us(world.loop) >= expires_us);
            first_miss_us = first_miss_us ? first_miss_us : as_loop_now_us(world.loop);
            misses++;
        }
        world_pass(&world, 7);
    }
    assert_true(hits > 5 && first_miss_us - last_hit_us < 2000);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.first = 1, .count = 1}).block_count, 1);
    assert_int_equal(stat_now().expired, 1);
    assert_int_equal(stat_now().evictions, 0);
}

static void the_time_is_kept_to_the_microsecond(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_with(0, 30);
    uint64_t expires_us = block_of(0)->expires_us;
    world_pass(&world, expires_us - 1 - as_loop_now_us(world.loop));
    assert_int_equal(as_loop_now_us(world.loop), expires_us - 1);
    kvs_expire_key(world.stores[0], &world.keys[0], AS_WIRE_FULL);
    assert_non_null(block_of(0));
    world_pass(&world, 1);
    assert_int_equal(as_loop_now_us(world.loop), expires_us);
    kvs_expire_key(world.stores[0], &world.keys[0], AS_WIRE_FULL);
    assert_null(block_of(0));
}

static void what_nobody_asks_for_is_freed_too(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    for (uint32_t n = 0; n < 20; n++) {
        put_with(n, n % 2 ? 100 : 1000000);
    }
    size_t used = stat_now().ram_bytes_used;
    world_pass(&world, 400000);
    assert_int_equal(stat_now().blocks, 10);
    assert_int_equal(stat_now().expired, 10);
    assert_int_equal(stat_now().ram_bytes_used, used / 2);
}

static void a_block_whose_time_is_over_can_be_put_again(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_with(0, 40);
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    world_pass(&world, 40000);
    world.twist = 1; // other bytes: the old ones are no longer there to differ from
    put_with(0, 0);
    assert_int_equal(block_of(0)->expires_us, 0);
    world_pass(&world, 1000000);
    assert_non_null(block_of(0));
}

static void a_reader_keeps_what_it_leased(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_with(0, 20);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 1, .slots = 1, .hold = true}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    assert_int_equal(result.block_count, 1);
    world_pass(&world, 200000);
    assert_null(block_of(0));
    assert_int_equal(stat_now().dying, 1);
    result.hold = false;
    for (uint32_t layer = 0; layer < result.layers; layer++) {
        assay_fetch_release(result.fetch, layer);
    }
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    world_pass(&world, 100000);
    assert_nothing_is_held(&world);
}

static void the_time_passes_on_disk_and_over_a_start(void **state)
{
    (void)state;
    world_options_t options = disk_world_options(32u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_with(0, 600000);
    put_with(1, 600);
    put_with(2, 0);
    uint64_t expires_us = block_of(0)->expires_us;
    kvs_store_free(world.stores[0]);
    assert_int_equal(world_store_start(&world, 0, &options.store), AS_OK);
    world_tell_stores(&world);
    assert_int_equal(stat_now().blocks, 0);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.first = 0, .count = 1}).block_count, 1);
    assert_int_equal(block_of(0)->expires_us, expires_us);
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (stat_now().disk_blocks == 3) { // nobody asks
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 1000);
    }
    assert_int_equal(stat_now().expired, 1);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.first = 1, .count = 1}).block_count, 0);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.first = 2, .count = 1}).block_count, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(locate_misses_from_the_very_time_on),
        TEST(the_time_is_kept_to_the_microsecond),
        TEST(what_nobody_asks_for_is_freed_too),
        TEST(a_block_whose_time_is_over_can_be_put_again),
        TEST(a_reader_keeps_what_it_leased),
        TEST(the_time_passes_on_disk_and_over_a_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
