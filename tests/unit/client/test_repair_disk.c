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

static void enter_with(uint32_t tenant, uint32_t rights)
{
    as_cluster_keys_t read;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_token_sealed_t sealed;
    as_token_t token = {.tenant = tenant, .rights = rights, .not_after_s = as_token_now_s() + 600};
    assert_int_equal(as_cluster_keys_read(keys, &read, why), AS_OK);
    assert_int_equal(as_token_sign(&read, &token, &sealed), AS_OK);
    assay_client_set_token(world.client, &sealed);
}

static void enter(uint32_t tenant)
{
    enter_with(tenant, AS_TOKEN_READ | AS_TOKEN_WRITE);
}

// As the scheduler tells: so many stores of the world, and `more` that are not here.
static void tell_of(uint32_t here, uint32_t more, uint64_t more_bytes)
{
    Assay__StoreNode nodes[WORLD_STORES_MAX], *list[WORLD_STORES_MAX];
    for (uint32_t i = 0; i < here + more; i++) {
        assay__store_node__init(&nodes[i]);
        list[i] = &nodes[i];
        nodes[i].node_id = i < here ? kvs_store_node_id(world.stores[i]) : 99;
        nodes[i].data_address =
            (char *)(uintptr_t)(i < here ? kvs_store_address(world.stores[i]) : "127.0.0.1:1");
        nodes[i].capacity_bytes = i < here ? 1u << 30 : more_bytes;
        nodes[i].state = ASSAY__NODE_STATE__NODE_STATE_ALIVE;
    }
    kvs_peers_set_replicas(world.stores[0], 2);
    kvs_peers_set(world.stores[0], list, here + more);
}

static void tell_peers(uint32_t more)
{
    tell_of(2, more, 1u << 30);
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

static bool is_drained;

static bool has(uint32_t store, uint32_t i, uint32_t tenant)
{
    return kvs_index_find(world.stores[store]->index, &world.keys[i],
                          kvs_realm(tenant, AS_WIRE_FULL)) != NULL;
}

static kvs_drain_stat_t drain_now(void)
{
    kvs_drain_stat_t stat;
    kvs_store_drain_stat(world.stores[0], &stat);
    return stat;
}

// Two stores; the first has blocks of these tenants on its disk, and four of the first one's in RAM, too.
static void begin_drain(uint32_t first_tenant, uint32_t last_tenant, uint32_t count)
{
    world_options_t options = world_defaults(false);
    options.store.cluster_key = keys;
    options.store.repair_bytes_per_second = 0;
    world_options_t with_disk = options;
    with_disk.store.disk_directory = directory;
    with_disk.store.disk_bytes = 32u << 20;
    with_disk.store.on_drained = on_drained;
    with_disk.store.drained_ctx = &is_drained;
    is_drained = false;
    world_open(&world, &with_disk);
    world.durable = true;
    enter_with(AS_TENANT_NONE, AS_TOKEN_READ | AS_TOKEN_WRITE | AS_TOKEN_PEER);
    for (world.tenant = first_tenant; world.tenant <= last_tenant; world.tenant++) {
        put_chain(&world, count);
    }
    start_again(&with_disk);
    world.tenant = first_tenant;
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).block_count, 4);
    assert_int_equal(world_store_start(&world, 1, &options.store), AS_OK);
    world.store_count = 2;
}

static void assert_all_handed(uint32_t first_tenant, uint32_t last_tenant, uint32_t count)
{
    uint32_t all = (last_tenant - first_tenant + 1) * count;
    assert_true(world_run(&world, &is_drained));
    kvs_drain_stat_t stat = drain_now();
    assert_int_equal(stat.handed_blocks, all);
    assert_int_equal(stat.handed_bytes, all * as_block_bytes(&world.shape));
    assert_int_equal(stat.kept_blocks, 0);
    assert_int_equal(stat.blocks, all);
    for (uint32_t i = 0; i < all; i++) {
        assert_true(has(1, i % count, first_tenant + i / count));
    }
}

// Turns of the loop until the drain has counted so many blocks.
static void wait_for_blocks(uint64_t count)
{
    while (drain_now().blocks != count) {
        assert_false(drain_now().is_over);
        as_loop_run_once(world.loop, true);
    }
}

static void promote(uint32_t i)
{
    const kvs_spec_t *spec =
        kvs_tier_find(world.stores[0], &world.keys[i], kvs_realm(7, AS_WIRE_FULL));
    assert_non_null(spec);
    kvs_tier_restore(world.stores[0], spec);
}

static void a_store_that_is_removed_hands_over_what_is_on_its_disk(void **state)
{
    (void)state;
    begin_drain(7, 7, BLOCKS);
    tell_peers(0);
    assert_true(kvs_store_drain_disk(world.stores[0], WAIT_US));
    assert_all_handed(7, 7, BLOCKS);
}

// It is in no list of RAM, and not on disk only.
static void what_a_reader_brings_back_late_is_handed_over_too(void **state)
{
    (void)state;
    begin_drain(7, 7, BLOCKS);
    tell_of(1, 1, 1u << 30); // nobody who could take what is in RAM
    assert_true(kvs_store_drain_disk(world.stores[0], WAIT_US));
    wait_for_blocks(BLOCKS);
    promote(10);
    while (!has(0, 10, 7)) {
        as_loop_run_once(world.loop, true);
    }
    tell_peers(0);
    wait_for_blocks(BLOCKS + 1); // it was listed, and counted as one on disk before
    promote(11);
    assert_all_handed(7, 7, BLOCKS);
}

static void a_block_that_is_not_taken_now_does_not_hold_up_the_others_on_disk(void **state)
{
    (void)state;
    const uint32_t count = 6;
    begin_drain(7, 8, count);
    kvs_store_t *first = world.stores[0];
    world.stores[0] = NULL;
    world_tell_stores(&world);
    world.durable = false;
    world.tenant = 8;
    assert_int_equal(put_block(&world, count), AS_OK); // all that the tenant may have at the other
    world.stores[0] = first;
    assert_int_equal(kvs_store_pin(world.stores[1], &world.keys[count], 8, KVS_GUARD_HARD), AS_OK);
    assert_int_equal(kvs_store_set_total(world.stores[1], 8, 20000), AS_OK);
    tell_peers(0);
    assert_true(kvs_store_drain_disk(world.stores[0], WAIT_US));
    while (drain_now().handed_blocks < count) {
        assert_false(drain_now().is_over);
        as_loop_run_once(world.loop, true);
    }
    assert_int_equal(kvs_store_set_total(world.stores[1], 8, SIZE_MAX), AS_OK);
    assert_all_handed(7, 8, count);
}

static void on_image_pushed(void *ctx, kvs_block_t *block, as_status_t status, uint32_t sent)
{
    (void)block;
    (void)sent;
    *(as_status_t *)ctx = status;
}

static void a_block_from_disk_finds_another_store_where_its_own_is_out_of_reach(void **state)
{
    (void)state;
    begin_drain(7, 7, 4);
    tell_of(2, 1, 1ull << 50); // where every block belongs
    kvs_peers_set_replicas(world.stores[0], 1);
    kvs_store_drain(world.stores[0], WAIT_US); // none is placed here any more
    const kvs_block_t *block =
        kvs_index_find(world.stores[0]->index, &world.keys[2], kvs_realm(7, AS_WIRE_FULL));
    const kvs_spec_t spec = kvs_index_spec(world.stores[0]->index, block);
    const void *image = kvs_index_extent(world.stores[0]->index, block, 0);
    for (uint32_t spare = 0; spare < 2; spare++) {
        as_status_t status = AS_STATUS_COUNT;
        const kvs_push_image_t push = {&spec, image, spare, on_image_pushed, &status};
        assert_int_equal(kvs_push_image(world.stores[0], &push), AS_OK);
        while (status == AS_STATUS_COUNT) {
            as_loop_run_once(world.loop, true);
        }
        assert_int_equal(status == AS_OK, spare == 1);
        assert_int_equal(has(1, 2, 7), spare == 1);
    }
}

static void a_drain_that_has_begun_goes_on_with_the_disk(void **state)
{
    (void)state;
    begin_drain(7, 7, BLOCKS);
    tell_of(1, 1, 1u << 30);
    kvs_store_drain(world.stores[0], 2000000);
    wait_for_blocks(4);
    assert_true(kvs_store_drain_disk(world.stores[0], WAIT_US));
    assert_int_equal(drain_now().blocks, BLOCKS);
    tell_peers(0);
    assert_all_handed(7, 7, BLOCKS);
    assert_true(kvs_store_drain_disk(world.stores[0], WAIT_US)); // as it was asked for
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocks_on_disk_are_given_their_copies_as_their_tenants),
        TEST(a_store_that_is_removed_hands_over_what_is_on_its_disk),
        TEST(what_a_reader_brings_back_late_is_handed_over_too),
        TEST(a_block_that_is_not_taken_now_does_not_hold_up_the_others_on_disk),
        TEST(a_block_from_disk_finds_another_store_where_its_own_is_out_of_reach),
        TEST(a_drain_that_has_begun_goes_on_with_the_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
