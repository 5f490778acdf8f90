// SPDX-License-Identifier: Apache-2.0
// Blocks that were dropped stay dropped: once that is answered, no start of a store finds them again,
// however the one before it ended. A kill at that moment is the copy of the directory that is made
// then.
#include "disk_world.h"

#include <unistd.h>

#include "proto/kvstore.pb-c.h"

static char killed[TEMPORARY_FOLDER_BYTES + 16];

static struct {
    bool answered;
    uint64_t dropped;
} told;

static world_options_t options_of(const char *folder)
{
    world_options_t options = world_defaults(false);
    options.store.disk_directory = folder;
    options.store.disk_bytes = 32u << 20;
    return options;
}

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR);
    snprintf(killed, sizeof(killed), "%s/killed", directory);
    const world_options_t options = options_of(directory);
    world_open(&world, &options);
    return 0;
}

// What kill -9 would leave now.
static void copy_directory(void)
{
    char command[512];
    snprintf(command, sizeof(command), "rm -rf %s && mkdir %s && cp -r %s/catalog %s/segments %s",
             killed, killed, directory, directory, killed);
    assert_int_equal(system(command), 0);
}

static void on_drop(const Assay__StoreDropReply *reply, void *ctx)
{
    (void)ctx;
    assert_non_null(reply);
    told.dropped = reply->dropped;
    told.answered = true;
    copy_directory();
}

// keys: none stands for all.
static uint64_t drop(uint32_t first, uint32_t count)
{
    ProtobufCBinaryData keys[WORLD_BLOCKS_MAX];
    Assay__StoreDropRequest request = ASSAY__STORE_DROP_REQUEST__INIT;
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = (ProtobufCBinaryData){32, world.keys[first + i].bytes};
    }
    request.keys = keys;
    request.n_keys = count;
    told.answered = false;
    assay__store__drop(kvs_admin_service(world.stores[0]), &request, on_drop, NULL);
    assert_true(world_run(&world, &told.answered));
    return told.dropped;
}

static bool is_stored(uint32_t block)
{
    return fetch_chain(&world, (fetch_ask_t){.first = block, .count = 1}).status == AS_OK;
}

static void start_from_the_copy(void)
{
    const world_options_t options = options_of(killed);
    start_again(&options);
}

static void a_dropped_block_is_not_found_after_a_kill(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 6; n++) {
        world.durable = n % 2; // else it may be on its way to disk
        assert_int_equal(put_block(&world, n), AS_OK);
        assert_int_equal(drop(n, 1), 1);
    }
    world.durable = true;
    assert_int_equal(put_block(&world, 10), AS_OK);
    copy_directory();
    start_from_the_copy();
    assert_int_equal(stat_now().disk_blocks, 1);
    for (uint32_t n = 0; n < 6; n++) {
        assert_false(is_stored(n));
    }
    assert_true(is_stored(10));
}

static void a_block_dropped_on_its_way_to_disk_is_not_found_after_a_kill(void **state)
{
    (void)state;
    put_chain(&world, 24);
    assert_int_equal(drop(0, 24), 24);
    start_from_the_copy();
    assert_int_equal(stat_now().disk_blocks, 0);
}

static void nothing_is_found_after_all_was_dropped_while_it_was_written(void **state)
{
    (void)state;
    put_chain(&world, 24);
    assert_int_equal(drop(0, 0), 24);
    assert_int_equal(stat_now().blocks + stat_now().disk_blocks, 0);
    start_from_the_copy();
    assert_int_equal(stat_now().disk_blocks, 0);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 24}).status, AS_ERR_NOT_FOUND);
}

static void nor_after_an_end_in_order_that_did_not_wait(void **state)
{
    (void)state;
    const world_options_t options = options_of(directory);
    put_chain(&world, 24);
    assert_int_equal(kvs_store_drop_all(world.stores[0]), 24);
    start_again(&options);
    assert_int_equal(stat_now().disk_blocks, 0);
}

static void a_block_put_again_after_its_drop_is_found(void **state)
{
    (void)state;
    world.durable = true;
    put_chain(&world, 4);
    assert_int_equal(drop(0, 4), 4);
    put_chain(&world, 2);
    copy_directory();
    start_from_the_copy();
    assert_true(is_stored(0) && is_stored(1));
    assert_false(is_stored(2) || is_stored(3));
}

static void a_store_may_end_before_a_drop_is_answered(void **state)
{
    (void)state;
    const world_options_t options = options_of(directory);
    put_chain(&world, 4);
    Assay__StoreDropRequest request = ASSAY__STORE_DROP_REQUEST__INIT;
    told.answered = false;
    assay__store__drop(kvs_admin_service(world.stores[0]), &request, on_drop, NULL);
    start_again(&options);
    assert_false(told.answered);
    assert_int_equal(stat_now().disk_blocks, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_dropped_block_is_not_found_after_a_kill),
        TEST(a_block_dropped_on_its_way_to_disk_is_not_found_after_a_kill),
        TEST(nothing_is_found_after_all_was_dropped_while_it_was_written),
        TEST(nor_after_an_end_in_order_that_did_not_wait),
        TEST(a_block_put_again_after_its_drop_is_found),
        TEST(a_store_may_end_before_a_drop_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
