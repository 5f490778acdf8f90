// SPDX-License-Identifier: Apache-2.0
// Repair and drain over UCX of blocks that are on disk only, between stores that ask for tokens: the copies are
// the tenant's, and right.
#include "disk_world.h"

#include <sys/stat.h>

#define BLOCKS 20u

static char keys[TEMPORARY_FOLDER_BYTES + 16];

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR);
    snprintf(keys, sizeof(keys), "%s/keys", directory);
    FILE *file = fopen(keys, "w");
    assert_non_null(file);
    fputs("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n", file);
    fclose(file);
    assert_int_equal(chmod(keys, 0600), 0);
    return 0;
}

static void enter(uint32_t tenant)
{
    as_cluster_keys_t read;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_token_sealed_t sealed;
    as_token_t token = {.tenant = tenant,
                        .rights = AS_TOKEN_READ | AS_TOKEN_WRITE,
                        .not_after_s = as_token_now_s() + 600};
    assert_int_equal(as_cluster_keys_read(keys, &read, why), AS_OK);
    assert_int_equal(as_token_sign(&read, &token, &sealed), AS_OK);
    assay_client_set_token(world.client, &sealed);
}

// As the scheduler tells: the stores of the world, and `more` that are not here.
static void tell_peers(uint32_t more)
{
    Assay__StoreNode nodes[WORLD_STORES_MAX], *list[WORLD_STORES_MAX];
    for (uint32_t i = 0; i < 2 + more; i++) {
        assay__store_node__init(&nodes[i]);
        list[i] = &nodes[i];
        nodes[i].node_id = i < 2 ? kvs_store_node_id(world.stores[i]) : 99;
        nodes[i].data_address =
            (char *)(uintptr_t)(i < 2 ? kvs_store_address(world.stores[i]) : "127.0.0.1:1");
        nodes[i].capacity_bytes = 1u << 30;
        nodes[i].state = ASSAY__NODE_STATE__NODE_STATE_ALIVE;
    }
    kvs_peers_set_replicas(world.stores[0], 2);
    kvs_peers_set(world.stores[0], list, 2 + more);
}

static void blocks_on_disk_are_given_their_copies_as_their_tenants(void **state)
{
    (void)state;
    world_options_t options = world_defaults(false);
    options.store.cluster_key = keys;
    options.store.repair_wait_us = 1000;
    world_options_t with_disk = options;
    with_disk.store.disk_directory = directory;
    with_disk.store.disk_bytes = 32u << 20;
    world_open(&world, &with_disk);
    enter(7);
    world.durable = true;
    put_chain(&world, BLOCKS);
    start_again(&with_disk);
    assert_int_equal(stat_now().blocks, 0);
    assert_int_equal(world_store_start(&world, 1, &options.store), AS_OK);
    world.store_count = 2;
    tell_peers(1);
    tell_peers(0); // the third is gone
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    kvs_stat_t other = {0};
    while (other.blocks < BLOCKS) {
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 1000);
        kvs_store_stat(world.stores[1], &other);
    }
    world_pass(&world, 100000);
    assert_int_equal(stat_now().repaired_blocks, BLOCKS);
    assert_int_equal(stat_now().blocks, 0); // it takes no room in RAM here
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const kvs_block_t *block =
            kvs_index_find(world.stores[1]->index, &world.keys[i], kvs_realm(7, AS_WIRE_FULL));
        assert_non_null(block);
        assert_int_equal(block->place, as_key_hash(&world.keys[i / AS_RUN_BLOCKS * AS_RUN_BLOCKS]));
    }
    kvs_store_free(world.stores[0]);
    world.stores[0] = NULL;
    world_tell_stores(&world);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).block_count, BLOCKS);
    world_pass(&world, 100000); // leases are given back behind the fetch
    assert_nothing_is_held(&world);
}

static void on_drained(void *ctx)
{
    *(bool *)ctx = true;
}

static void a_store_that_is_removed_hands_over_what_is_on_its_disk(void **state)
{
    (void)state;
    bool is_drained = false;
    world_options_t options = world_defaults(false);
    options.store.cluster_key = keys;
    options.store.repair_bytes_per_second = 0;
    world_options_t with_disk = options;
    with_disk.store.disk_directory = directory;
    with_disk.store.disk_bytes = 32u << 20;
    with_disk.store.on_drained = on_drained;
    with_disk.store.drained_ctx = &is_drained;
    world_open(&world, &with_disk);
    enter(7);
    world.durable = true;
    put_chain(&world, BLOCKS);
    start_again(&with_disk);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).block_count, 4); // in RAM, too
    assert_int_equal(world_store_start(&world, 1, &options.store), AS_OK);
    world.store_count = 2;
    tell_peers(0);
    kvs_store_drain_disk(world.stores[0], WAIT_US);
    assert_true(world_run(&world, &is_drained));
    kvs_drain_stat_t stat;
    kvs_store_drain_stat(world.stores[0], &stat);
    assert_int_equal(stat.blocks, BLOCKS);
    assert_int_equal(stat.handed_blocks, BLOCKS);
    assert_int_equal(stat.handed_bytes, BLOCKS * as_block_bytes(&world.shape));
    assert_int_equal(stat.kept_blocks, 0);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_non_null(
            kvs_index_find(world.stores[1]->index, &world.keys[i], kvs_realm(7, AS_WIRE_FULL)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(blocks_on_disk_are_given_their_copies_as_their_tenants,
                                        begin, disk_world_end),
        cmocka_unit_test_setup_teardown(a_store_that_is_removed_hands_over_what_is_on_its_disk,
                                        begin, disk_world_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
