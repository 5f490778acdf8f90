// SPDX-License-Identifier: Apache-2.0
// What was dropped stays so while stores hand blocks to each other: a drop goes from store to store, and
// between two of them the block must not wander to one that has already been told.
#include "peers_world.h"

#define S     1000000ull
#define CHAIN 16u

static int end(void **state)
{
    (void)state;
    peers_close();
    as_log_set_level(AS_LOG_INFO);
    return 0;
}

static uint32_t holder(void)
{
    return peers_has(0, 0) ? 0 : 1;
}

// Two stores, and a chain of one run at one of them.
static void begin(void)
{
    world_options_t options = world_defaults(true);
    options.stores = 2;
    as_log_set_level(AS_LOG_WARN);
    peers_open(&options, 1);
    put_chain(&world, CHAIN);
}

static void slow_down(void)
{
    const as_sim_faults_t slow = {
        .delay_us_min = 20, .delay_us_max = 50, .bandwidth_bytes_per_s = 1 << 20};
    as_sim_set_faults(world.sim, &slow); // 8 KiB blocks: 8 ms each
}

static bool is_coming(uint32_t store)
{
    return peers_stat(store).reservations > 0;
}

typedef enum how { BY_KEY, BY_NAMESPACE, ALL, HOWS } how_t;

static void drop(uint32_t store, how_t how)
{
    const kvs_owner_t owner = {world.namespace_key, AS_TENANT_NONE};
    for (uint32_t i = 0; how == BY_KEY && i < CHAIN; i++) {
        kvs_store_drop(world.stores[store], &world.keys[i], AS_TENANT_NONE);
    }
    if (how == BY_NAMESPACE) {
        kvs_store_purge(world.stores[store], &owner);
    } else if (how == ALL) {
        kvs_store_drop_all(world.stores[store]);
    }
}

static void nothing_may_be_left_at(uint32_t store)
{
    for (uint32_t i = 0; i < CHAIN; i++) {
        assert_false(peers_has(store, i));
    }
}

static void a_copy_on_its_way_ends_with_the_drop(void **state)
{
    (void)state;
    for (how_t how = 0; how < HOWS; how++) {
        begin();
        uint32_t from = holder();
        slow_down();
        kvs_store_drain(world.stores[from], 30 * S);
        while (!is_coming(1 - from)) {
            world_pass(&world, 500);
        }
        for (uint32_t order = 0; order < 2; order++) {
            drop(how % 2 ? order : 1 - order, how);
        }
        nothing_may_be_left_at(1 - from);
        assert_true(world_run(&world, &peers.drained[from]));
        world_pass(&world, 10 * S);
        nothing_may_be_left_at(1 - from);
        assert_int_equal(peers_stat(1 - from).reservations, 0);
        if (how + 1 < HOWS) {
            peers_close();
        }
    }
}

// The one that hands over has not been told yet: it ends soon, and hands over what was not dropped.
static void what_was_dropped_is_not_taken_as_a_copy(void **state)
{
    (void)state;
    for (how_t how = 0; how < HOWS; how++) {
        begin();
        uint32_t from = holder();
        drop(1 - from, how);
        uint64_t began_us = as_loop_now_us(world.loop);
        kvs_store_drain(world.stores[from], 30 * S);
        assert_true(world_run(&world, &peers.drained[from]));
        assert_true(as_loop_now_us(world.loop) - began_us < 3 * S);
        nothing_may_be_left_at(1 - from);
        if (how + 1 < HOWS) {
            peers_close();
        }
    }
}

static void another_tenants_block_of_that_key_is_taken(void **state)
{
    (void)state;
    begin();
    uint32_t from = holder();
    kvs_store_drop(world.stores[1 - from], &world.keys[2], 7);
    kvs_store_drop(world.stores[1 - from], &world.keys[40], AS_TENANT_NONE);
    kvs_store_drain(world.stores[from], 30 * S);
    assert_true(world_run(&world, &peers.drained[from]));
    for (uint32_t i = 0; i < CHAIN; i++) {
        assert_true(peers_has(1 - from, i));
    }
}

static as_status_t put_copy(uint32_t block)
{
    world.copying = true;
    as_status_t status = put_block(&world, block);
    world.copying = false;
    return status;
}

static void a_worker_puts_it_again_and_copies_are_taken_after_a_while(void **state)
{
    (void)state;
    begin();
    uint32_t at = holder();
    for (uint32_t i = 0; i < 3; i++) {
        kvs_store_drop(world.stores[at], &world.keys[i], AS_TENANT_NONE);
    }
    assert_int_equal(put_copy(0), AS_ERR_NOT_FOUND);
    assert_int_equal(put_block(&world, 0), AS_OK);
    assert_int_equal(put_copy(0), AS_ERR_EXISTS);
    kvs_index_t *index = world.stores[at]->index;
    kvs_index_doom(index, kvs_index_find(index, &world.keys[0], AS_WIRE_FULL)); // not by a drop
    assert_int_equal(put_copy(0), AS_OK);
    world_pass(&world, 59 * S);
    assert_int_equal(put_copy(1), AS_ERR_NOT_FOUND);
    world_pass(&world, 61 * S);
    assert_int_equal(put_copy(1), AS_OK);
}

// More drops than are remembered: then no copy is taken at all, for as long.
static void of_very_many_drops_none_is_forgotten_too_soon(void **state)
{
    (void)state;
    begin();
    uint32_t at = holder();
    kvs_store_drop(world.stores[at], &world.keys[0], AS_TENANT_NONE);
    for (uint32_t i = 0; i < 200000; i++) {
        as_key_t key = {{1}};
        memcpy(key.bytes + 1, &i, sizeof(i));
        kvs_store_drop(world.stores[at], &key, AS_TENANT_NONE);
    }
    assert_int_equal(put_copy(0), AS_ERR_NOT_FOUND);
    kvs_index_t *index = world.stores[at]->index;
    kvs_index_doom(index, kvs_index_find(index, &world.keys[5], AS_WIRE_FULL)); // not by a drop
    assert_int_equal(put_copy(5), AS_ERR_NOT_FOUND);
    assert_int_equal(put_block(&world, 5), AS_OK); // a worker's put is taken
    world_pass(&world, 121 * S);
    assert_int_equal(put_copy(0), AS_OK);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_copy_on_its_way_ends_with_the_drop),
        TEST(what_was_dropped_is_not_taken_as_a_copy),
        TEST(another_tenants_block_of_that_key_is_taken),
        TEST(a_worker_puts_it_again_and_copies_are_taken_after_a_while),
        TEST(of_very_many_drops_none_is_forgotten_too_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
