// SPDX-License-Identifier: Apache-2.0
// Eviction against reads: chains are fetched from a store that evicts all the time for a flood of
// puts. What a reader is given is right to the last byte, or a miss.
#include "../common/temporary_folder.h"
#include "world.h"

#include "kvstore/disk/disk.h"
#include "kvstore/store.h"

#define CHAIN       16u
#define FLOOD       20u // blocks of each wave, beside each fetch
#define FIRST       32u // of their numbers, so that their bytes are others
#define IMAGE_BYTES 12288u

static world_t world;

static int begin(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    as_log_set_level(AS_LOG_INFO);
    return 0;
}

// Other keys for the blocks of the next wave.
static void new_flood(uint32_t wave)
{
    char id[16];
    snprintf(id, sizeof(id), "wave %u", wave);
    const as_namespace_t ns = {.shape = world.shape, .numerics_id = id};
    as_key_t owner;
    as_namespace_key(&ns, &owner);
    int32_t tokens[WORLD_BLOCKS_MAX * 16] = {0};
    assert_int_equal(as_chain_keys(&owner, tokens, FLOOD * world.shape.block_tokens,
                                   world.shape.block_tokens, &world.keys[FIRST], FLOOD),
                     FLOOD);
}

static void put_what_is_missing(void)
{
    for (uint32_t n = 0; n < CHAIN; n++) {
        as_status_t status = put_block(&world, n);
        assert_true(status == AS_OK || status == AS_ERR_EXISTS || status == AS_ERR_BUSY);
    }
}

// What is on disk is read from there.
static void leave_to_disk(void)
{
    kvs_store_t *store = world.stores[0];
    if (!store->tier) {
        return;
    }
    world_let_go(&world); // until all is written
    for (uint32_t n = 0; n < CHAIN; n++) {
        kvs_block_t *block = kvs_index_find(store->index, &world.keys[n], AS_WIRE_FULL);
        if (block && kvs_tier_find(store, &world.keys[n], AS_WIRE_FULL)) {
            kvs_index_evict(store->index, block);
        }
    }
}

// One fetch beside one wave; returns the blocks that were read whole.
static uint32_t wave(uint32_t number)
{
    static put_result_t puts[FLOOD];
    static fetch_result_t fetch;
    assay_put_t *put;
    new_flood(number);
    put_what_is_missing();
    leave_to_disk();
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = CHAIN, .slots = 2}, &fetch), AS_OK);
    for (uint32_t i = 0; i < FLOOD; i++) {
        assert_int_equal(put_start(&world, FIRST + i, 5000000, &puts[i], &put), AS_OK);
    }
    assert_true(world_run(&world, &fetch.done));
    for (uint32_t i = 0; i < FLOOD; i++) {
        assert_true(world_run(&world, &puts[i].done));
        assert_true(puts[i].status == AS_OK || puts[i].status == AS_ERR_BUSY);
    }
    assert_int_equal(fetch.wrong, 0);
    uint32_t whole = fetch.status == AS_OK ? fetch.block_count : 0;
    fetch_free(&fetch);
    return whole;
}

static void race(const world_options_t *from, uint32_t waves)
{
    world_options_t options = *from;
    options.store.ram_bytes = 64 * IMAGE_BYTES;
    options.store.evict_high_percent = 80;
    options.store.evict_low_percent = 50;
    world_open(&world, &options);
    uint64_t read = 0;
    for (uint32_t number = 0; number < waves; number++) {
        read += wave(number);
    }
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    printf("%llu blocks read beside %llu evictions\n", (unsigned long long)read,
           (unsigned long long)stat.evictions);
    assert_true(stat.evictions > 5 * waves);
    assert_true(read > waves); // it is no race if nothing is read
    world_let_go(&world);
}

static void over_the_simulated_network(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    race(&options, 200);
}

static void over_the_simulated_network_by_messages(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    options.messages = true;
    options.seed = 9;
    race(&options, 200);
}

// A disk that holds little more than memory does: segments go with blocks that are asked for, or are on
// their way into memory.
static void from_a_disk_whose_segments_go(void **state)
{
    (void)state;
    char directory[TEMPORARY_FOLDER_BYTES];
    temporary_folder_make(directory);
    world_options_t options = world_defaults(false);
    options.store.disk_directory = directory;
    options.store.disk_bytes = 8u << 20; // eight segments of 85 blocks
    race(&options, 60);
    kvs_disk_stat_t stat;
    kvs_tier_stat(world.stores[0], &stat);
    printf("%llu blocks read from disk, %llu went with their segments\n",
           (unsigned long long)stat.read_blocks, (unsigned long long)stat.dropped_blocks);
    assert_true(stat.read_blocks > 0 && stat.dropped_blocks > 0);
    world_close(&world);
    memset(&world, 0, sizeof(world));
    temporary_folder_remove(directory);
}

static void out_of_the_stores_memory(void **state)
{
    (void)state;
    world_options_t options = world_defaults(false);
    race(&options, 60);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(over_the_simulated_network),
        TEST(over_the_simulated_network_by_messages),
        TEST(out_of_the_stores_memory),
        TEST(from_a_disk_whose_segments_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
