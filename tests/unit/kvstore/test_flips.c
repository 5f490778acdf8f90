// SPDX-License-Identifier: Apache-2.0
// Bytes flipped at random in a store's memory, in its segment files, in the files of its catalog and
// on the wire: each is found and none is handed out. 10,000 of them with ASSAY_TEST_FULL=1, else some
// hundreds; ASSAY_TEST_SEED repeats a run.
#include "../client/disk_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvstore/disk/state.h"

#define BLOCKS      20u
#define FLIPS_START 8u // in the catalog before each start, at most

static uint64_t seed, state_of_chance;
static uint32_t share; // of the flips that this run makes: 1 of so many

static uint32_t chance(uint32_t below)
{
    state_of_chance = state_of_chance * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state_of_chance >> 33) % below;
}

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR + 1);
    state_of_chance = seed;
    return 0;
}

// Each test has closed its worlds.
static int end(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_INFO);
    return temporary_folder_remove(directory);
}

static void open_with_disk(void)
{
    world_options_t options = disk_world_options(8u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, BLOCKS);
}

// What belongs to a block: its extents and their checksums.
static size_t image_bytes(void)
{
    return as_block_bytes(&world.shape) + world.shape.layers * sizeof(uint32_t);
}

static uint8_t other_byte(void)
{
    return (uint8_t)(1 + chance(255));
}

static void flip_in_ram(uint32_t n)
{
    kvs_block_t *block = kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL);
    assert_non_null(block);
    kvs_index_extent(world.stores[0]->index, block, 0)[chance((uint32_t)image_bytes())] ^=
        other_byte();
}

static void flip_in_file(const char *path, off_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= other_byte();
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void flip_in_segment(uint32_t n)
{
    const kvs_disk_t *disk = kvs_tier_disk(world.stores[0]);
    uint32_t at = kvs_table_find(disk, &world.keys[n], AS_WIRE_FULL);
    assert_true(at != KVS_DISK_NONE);
    const kvs_record_t *record = &disk->entries[at].record;
    char path[128];
    snprintf(path, sizeof(path), "%s/segments/%08u.seg", directory, record->segment);
    flip_in_file(path, (off_t)(record->offset + chance((uint32_t)image_bytes())));
}

static void scrub(void)
{
    kvs_scrub_stat_t stat;
    kvs_store_scrub(world.stores[0], 1u << 30);
    do {
        world_pass(&world, 200);
        kvs_store_scrub_stat(world.stores[0], &stat);
    } while (stat.running);
}

// One in each block, in RAM or on disk. A fetch before the scrubber came gives nothing wrong; the
// scrubber finds each, and every block is mended from its other copy.
static void flips_in_ram_and_in_segments_are_all_found_and_mended(void **state)
{
    (void)state;
    open_with_disk();
    uint32_t rounds = 6000 / BLOCKS / share, in_ram = 0, on_disk = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t n = 0; n < BLOCKS; n++) {
            bool ram = chance(2);
            in_ram += ram;
            on_disk += !ram;
            if (ram) {
                flip_in_ram(n);
            } else {
                flip_in_segment(n);
            }
        }
        fetch_chain(&world, (fetch_ask_t){.count = BLOCKS});
        scrub();
        assert_int_equal(stat_now().scrub_bad_ram, in_ram);
        assert_int_equal(stat_now().scrub_bad_disk, on_disk);
        uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
        while (stat_now().disk_blocks < BLOCKS) { // written again
            assert_true(as_loop_now_us(world.loop) < end_us);
            world_pass(&world, 200);
        }
        assert_int_equal(stat_now().blocks, BLOCKS);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
    }
    assert_int_equal(in_ram + on_disk, rounds * BLOCKS);
    world_close(&world);
}

// Those that nobody scrubs are found by who asks: here a promotion.
static void flips_in_segments_are_found_when_a_block_is_asked_for(void **state)
{
    (void)state;
    open_with_disk();
    uint32_t rounds = 1000 / BLOCKS / share;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t n = 0; n < BLOCKS; n++) {
            kvs_index_doom(world.stores[0]->index,
                           kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL));
            flip_in_segment(n);
        }
        fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = BLOCKS});
        assert_int_equal(result.status, AS_ERR_NOT_FOUND);
        assert_int_equal(stat_now().disk_blocks, 0);
        put_chain(&world, BLOCKS);
    }
    world_close(&world);
}

// ---- the catalog

static bool is_text(const char *name) // RocksDB's own log and options, not read for blocks
{
    return strncmp(name, "LOG", 3) == 0 || strncmp(name, "LOCK", 4) == 0 ||
           strncmp(name, "OPTIONS", 7) == 0 || strncmp(name, "IDENTITY", 8) == 0 || name[0] == '.';
}

// Flips a byte of one of the catalog's files, the larger the likelier.
static void flip_in_catalog(void)
{
    char path[128], names[64][400];
    off_t sizes[64], all = 0;
    uint32_t count = 0;
    snprintf(path, sizeof(path), "%s/catalog", directory);
    DIR *open_directory = opendir(path);
    assert_non_null(open_directory);
    for (struct dirent *entry; (entry = readdir(open_directory)) != NULL && count < 64;) {
        struct stat stat;
        snprintf(names[count], sizeof(names[count]), "%s/%s", path, entry->d_name);
        if (!is_text(entry->d_name) && lstat(names[count], &stat) == 0 && S_ISREG(stat.st_mode) &&
            stat.st_size > 0) {
            all += sizes[count++] = stat.st_size;
        }
    }
    closedir(open_directory);
    off_t at = (off_t)chance((uint32_t)all);
    for (uint32_t i = 0; i < count; at -= sizes[i++]) {
        if (at < sizes[i]) {
            flip_in_file(names[i], at);
            return;
        }
    }
}

// Whatever the catalog says after them, the store starts, and what it gives is right.
static void flips_in_the_catalog_cost_blocks_and_nothing_else(void **state)
{
    (void)state;
    world_options_t options = disk_world_options(8u << 20);
    world_open(&world, &options);
    world.durable = true;
    uint32_t flips = 0, starts = 0, kept = 0;
    for (; flips < 2000 / share; starts++) {
        for (uint32_t n = 0; n < BLOCKS; n++) {
            as_status_t status = put_block(&world, n);
            assert_true(status == AS_OK || status == AS_ERR_EXISTS);
        }
        kvs_store_free(world.stores[0]);
        world.stores[0] = NULL;
        for (uint32_t i = chance(FLIPS_START); i < FLIPS_START; i++, flips++) {
            flip_in_catalog();
        }
        assert_int_equal(world_store_start(&world, 0, &options.store), AS_OK);
        world_tell_stores(&world);
        for (uint32_t n = 0; n < BLOCKS; n++) { // what is handed out is compared there
            kept += fetch_chain(&world, (fetch_ask_t){.first = n, .count = 1}).status == AS_OK;
        }
        assert_int_equal(stat_now().disk_blocks, stat_now().blocks);
    }
    printf("%u flips, %u of %u blocks were kept\n", flips, kept, starts * BLOCKS);
    world_close(&world);
}

// ---- the wire

static void open_sim(bool messages)
{
    world_options_t options = world_defaults(true);
    options.messages = messages;
    options.seed = seed;
    world_open(&world, &options);
}

// Every payload of every message has a flipped byte: keys, checksums and blocks, on the way there and
// back, and those that are read one-sidedly.
static void flips_on_the_wire_are_found_by_the_one_or_the_other(void **state)
{
    (void)state;
    uint32_t puts = 0, fetches = 0;
    for (int messages = 0; messages < 2; messages++) {
        open_sim(messages);
        put_chain(&world, BLOCKS);
        as_sim_set_faults(world.sim, &(as_sim_faults_t){.corrupt_ppm = 1000000});
        for (uint32_t i = 0; i < 500 / share; i++) {
            assert_int_not_equal(put_block(&world, BLOCKS + i % 20), AS_OK);
            puts++;
            fetch_result_t result =
                fetch_chain(&world, (fetch_ask_t){.first = i % BLOCKS, .count = 1});
            assert_int_not_equal(result.status, AS_OK);
            fetches++;
        }
        as_sim_set_faults(world.sim, &(as_sim_faults_t){0});
        kvs_stat_t stat = stat_now();
        assert_int_equal(stat.blocks, BLOCKS); // nothing wrong came in
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
        world_close(&world);
    }
    assert_true(puts == fetches && puts >= 2 * (500 / share));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const char *given = getenv("ASSAY_TEST_SEED");
    seed = given ? strtoull(given, NULL, 10) : 1;
    share = getenv("ASSAY_TEST_FULL") ? 1 : getenv("ASSAY_TEST_SANITIZED") ? 50 : 20;
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        TEST(flips_in_ram_and_in_segments_are_all_found_and_mended),
        TEST(flips_in_segments_are_found_when_a_block_is_asked_for),
        TEST(flips_in_the_catalog_cost_blocks_and_nothing_else),
        TEST(flips_on_the_wire_are_found_by_the_one_or_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
