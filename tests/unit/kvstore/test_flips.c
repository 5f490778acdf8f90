// SPDX-License-Identifier: Apache-2.0
// Bytes flipped at random in a store's memory, in its segment files and on the wire: each is found, by
// the count of who found it, none is handed out, and where there is another copy the block comes from
// there. Those in the files of its catalog, one before a start, cost blocks, not all of them, and nothing
// else; the store tells of each, or it hit what nobody reads. 10,000 beside the catalog's with
// ASSAY_TEST_FULL=1, else some hundreds; ASSAY_TEST_SEED repeats a run.
#include "../client/disk_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/internal.h"
#include "kvstore/disk/state.h"

#define BLOCKS      20u
#define FLIPS_START 8u // in the catalog before each start, at most
#define COPIES      2u

static uint64_t seed, state_of_chance;
static uint32_t share;  // of the flips that this run makes: 1 of so many
static uint32_t starts; // with one in the catalog before each, which take longer
static uint32_t flips_scrubbed, flips_asked, flips_with_a_copy, flips_on_the_wire; // all found
static uint32_t flips_in_catalog; // told of, or without effect

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

static kvs_disk_stat_t disk_stat(void)
{
    kvs_disk_stat_t stat;
    kvs_tier_stat(world.stores[0], &stat);
    return stat;
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
    flips_scrubbed = in_ram + on_disk;
    assert_true(in_ram > flips_scrubbed / 4 && on_disk > flips_scrubbed / 4);
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
        flips_asked += BLOCKS;
        assert_int_equal(disk_stat().corrupt_blocks, flips_asked);
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

// Flips a byte of one of the catalog's files, the larger the likelier. True: of RocksDB's list of its files.
static bool flip_in_catalog(void)
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
            return strstr(names[i], "MANIFEST") != NULL;
        }
    }
    return false;
}

// What became of flips, one before a start.
typedef struct tally {
    uint32_t cost;   // blocks, and the store told
    uint32_t healed; // it told, and has all blocks
    uint32_t untold; // cost blocks, and nothing was told
    uint32_t dead;   // nobody reads what was there: it has all blocks, and each is right
    uint32_t kept, of;
} tally_t;

static void open_with_catalog(world_options_t *options)
{
    *options = disk_world_options(8u << 20);
    world_open(&world, options);
    world.durable = true;
}

// All blocks are there; bytes of the catalog flip while the store is down. Whatever it says then, the store
// starts, and it knows when something may be missing, but for where a length in the list of files makes it look
// as if a kill had cut its end, which RocksDB takes for what it is. How many blocks it says that it has.
static uint32_t start_after_flips(const world_options_t *options, uint32_t flips)
{
    for (uint32_t n = 0; n < BLOCKS; n++) {
        as_status_t status = put_block(&world, n);
        assert_true(status == AS_OK || status == AS_ERR_EXISTS);
    }
    assert_int_equal(disk_stat().blocks, BLOCKS);
    kvs_store_free(world.stores[0]);
    world.stores[0] = NULL;
    bool listed = false;
    for (uint32_t i = 0; i < flips; i++) {
        listed |= flip_in_catalog();
    }
    assert_int_equal(world_store_start(&world, 0, &options->store), AS_OK);
    world_tell_stores(&world);
    uint32_t kept = (uint32_t)disk_stat().blocks;
    assert_true(kept == BLOCKS || disk_stat().catalog_faults > 0 || listed);
    return kept;
}

static void note(tally_t *tally, uint32_t kept)
{
    bool told = disk_stat().catalog_faults > 0;
    tally->cost += kept < BLOCKS && told;
    tally->untold += kept < BLOCKS && !told;
    tally->healed += kept == BLOCKS && told;
    tally->dead += kept == BLOCKS && !told;
    tally->kept += kept;
    tally->of += BLOCKS;
}

// What lies behind the flip in its file is gone, which is half or so. A store that kept nothing fails.
static void check_tally(const tally_t *tally, uint32_t flips)
{
    printf("%u flips in the catalog: %u cost blocks and were told of, %u untold, %u were told of "
           "and healed, "
           "%u hit what "
           "nobody reads; %u of %u blocks were kept\n",
           flips, tally->cost, tally->untold, tally->healed, tally->dead, tally->kept, tally->of);
    assert_int_equal(tally->cost + tally->untold + tally->healed + tally->dead, flips);
    assert_true(tally->untold <= flips / 100);
    assert_true(tally->kept > tally->of / 8);
}

// How many of the blocks read back; each that does not is a miss.
static uint32_t blocks_read(void)
{
    uint32_t right = 0, missing = 0;
    for (uint32_t n = 0; n < BLOCKS; n++) { // what is handed out is compared there
        as_status_t status = fetch_chain(&world, (fetch_ask_t){.first = n, .count = 1}).status;
        right += status == AS_OK;
        missing += status == AS_ERR_NOT_FOUND;
    }
    assert_int_equal(right + missing, BLOCKS);
    return right;
}

static void a_flip_in_the_catalog_costs_blocks_at_most_and_is_told_of(void **state)
{
    (void)state;
    world_options_t options;
    tally_t tally = {0};
    open_with_catalog(&options);
    for (; flips_in_catalog < starts; flips_in_catalog++) {
        uint32_t kept = start_after_flips(&options, 1);
        note(&tally, kept);
        assert_int_equal(blocks_read(), kept);
    }
    check_tally(&tally, flips_in_catalog);
    world_close(&world);
}

static void many_flips_in_the_catalog_cost_blocks_and_nothing_else(void **state)
{
    (void)state;
    world_options_t options;
    open_with_catalog(&options);
    for (uint32_t flips = 0; flips < 2 * starts;) {
        uint32_t some = 2 + chance(FLIPS_START - 1);
        flips += some;
        uint32_t kept = start_after_flips(&options, some);
        assert_int_equal(blocks_read(), kept);
    }
    world_close(&world);
}

// The end of each table file says that nothing seals its blocks: it is put aside and told of, and no other byte
// of it is believed.
static void a_table_that_says_it_has_no_checksums_is_not_believed(void **state)
{
    (void)state;
    world_options_t options;
    char path[128], file[512];
    uint32_t tables = 0;
    open_with_catalog(&options);
    start_after_flips(&options, 0); // which writes its log into tables
    assert_int_equal(disk_stat().catalog_faults, 0);
    assert_int_equal(blocks_read(), BLOCKS);
    kvs_store_free(world.stores[0]);
    world.stores[0] = NULL;
    snprintf(path, sizeof(path), "%s/catalog", directory);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat stat;
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (strstr(entry->d_name, ".sst") && lstat(file, &stat) == 0) {
            int fd = open(file, O_WRONLY);
            assert_int_equal(pwrite(fd, "", 1, stat.st_size - 53), 1);
            close(fd);
            tables++;
        }
    }
    closedir(folder);
    assert_true(tables > 0);
    assert_int_equal(world_store_start(&world, 0, &options.store), AS_OK);
    world_tell_stores(&world);
    assert_true(disk_stat().catalog_faults >= tables);
    assert_int_equal(blocks_read(), disk_stat().blocks);
    world_close(&world);
}

// ---- with a second copy

static int64_t metric(assay_metric_t which)
{
    return as_metric_value(&assay_metrics[which]);
}

static kvs_stat_t stat_of(uint32_t store)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[store], &stat);
    return stat;
}

// Two stores, each of which has all blocks.
static void open_copies(bool messages)
{
    world_options_t options = world_defaults(true);
    options.stores = COPIES;
    options.messages = messages;
    options.seed = seed;
    options.client.stage_bytes = 0; // else puts do not go by the wire
    world_open(&world, &options);
    assay_client_set_replicas(world.client, COPIES);
    put_chain(&world, BLOCKS);
    assert_true(stat_of(0).blocks == BLOCKS && stat_of(1).blocks == BLOCKS);
}

// A run up to block n is fetched, from the stores of its copies in their order or first of all from one, and
// one copy of one block is bad: all is right, with that block from the other.
static void fetch_is_rescued(uint32_t n, const uint64_t *node_ids, assay_metric_t cause)
{
    int64_t fallbacks = metric(cause), rescued = metric(ASSAY_METRIC_RESCUED);
    uint32_t first = n / AS_RUN_BLOCKS * AS_RUN_BLOCKS;
    fetch_result_t result = fetch_chain(
        &world, (fetch_ask_t){.first = first, .count = n - first + 1, .node_ids = node_ids});
    assert_int_equal(result.status, AS_OK); // and its bytes were compared
    assert_int_equal(result.wrong, 0);
    assert_int_equal(metric(cause), fallbacks + 1);
    assert_int_equal(metric(ASSAY_METRIC_RESCUED), rescued + 1);
}

static uint32_t first_store_of(uint32_t n)
{
    uint64_t first =
        assay_client_place(world.client, &world.keys[n / AS_RUN_BLOCKS * AS_RUN_BLOCKS]);
    return kvs_store_node_id(world.stores[0]) == first ? 0 : 1;
}

// In the copy that is read first, among the extents and their checksums.
static void a_flip_in_the_memory_of_one_store_costs_nothing_where_there_is_a_copy(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        open_copies(messages);
        for (uint32_t i = 0; i < 500 / share; i++, flips_with_a_copy++) {
            uint32_t n = i % BLOCKS;
            kvs_index_t *index = world.stores[first_store_of(n)]->index;
            uint8_t *bytes =
                kvs_index_extent(index, kvs_index_find(index, &world.keys[n], AS_WIRE_FULL), 0);
            uint32_t at = chance((uint32_t)image_bytes());
            uint8_t flip = other_byte();
            bytes[at] ^= flip;
            fetch_is_rescued(n, NULL, ASSAY_METRIC_FALLBACKS_CHECKSUM);
            bytes[at] ^= flip;
        }
        world_close(&world);
    }
}

// The second of two, for copies.
static void add_store_without_disk(world_options_t options)
{
    options.store.disk_directory = NULL;
    assert_int_equal(world_store_start(&world, 1, &options.store), AS_OK);
    world.store_count = COPIES;
    world_tell_stores(&world);
    assay_client_set_replicas(world.client, COPIES);
}

static void a_flip_in_a_segment_costs_nothing_where_there_is_a_copy(void **state)
{
    (void)state;
    world_options_t options = disk_world_options(8u << 20);
    world_open(&world, &options);
    add_store_without_disk(options);
    world.durable = true;
    put_chain(&world, BLOCKS);
    uint64_t on_disk[AS_RUN_BLOCKS];
    for (uint32_t i = 0; i < AS_RUN_BLOCKS; i++) {
        on_disk[i] = kvs_store_node_id(world.stores[0]);
    }
    for (uint32_t i = 0; i < 500 / share; i++, flips_with_a_copy++) {
        uint32_t n = i % BLOCKS;
        kvs_index_doom(world.stores[0]->index,
                       kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL));
        flip_in_segment(n);
        uint64_t corrupt = disk_stat().corrupt_blocks;
        fetch_is_rescued(n, on_disk, ASSAY_METRIC_FALLBACKS_MISSING);
        assert_int_equal(disk_stat().corrupt_blocks, corrupt + 1);
        assert_int_equal(put_block(&world, n), AS_OK); // to the one that has lost it
    }
    world_close(&world);
}

// What the catalog of one store has lost comes from the other: every block.
static void a_flip_in_a_catalog_costs_nothing_where_there_is_a_copy(void **state)
{
    (void)state;
    world_options_t options;
    tally_t tally = {0};
    open_with_catalog(&options);
    add_store_without_disk(options);
    uint64_t on_disk[BLOCKS];
    for (uint32_t i = 0; i < starts; i++, flips_in_catalog++) {
        uint32_t kept = start_after_flips(&options, 1);
        note(&tally, kept);
        for (uint32_t n = 0; n < BLOCKS; n++) {
            on_disk[n] = kvs_store_node_id(world.stores[0]);
        }
        int64_t rescued = metric(ASSAY_METRIC_RESCUED);
        fetch_result_t result =
            fetch_chain(&world, (fetch_ask_t){.count = BLOCKS, .node_ids = on_disk});
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(metric(ASSAY_METRIC_RESCUED) - rescued, BLOCKS - kept);
    }
    check_tally(&tally, starts);
    world_close(&world);
}

// ---- the wire

// In an extent, on its way to a reader: keys and checksums are smaller.
static void a_flip_in_an_extent_on_the_wire_is_found_and_the_other_copy_read(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        open_copies(messages);
        for (uint32_t i = 0; i < 1000 / share; i++, flips_on_the_wire++) {
            int64_t found = metric(ASSAY_METRIC_CHECKSUM_FAILURES);
            as_sim_flip(world.sim, as_extent_bytes(&world.shape), chance(world.shape.layers));
            fetch_is_rescued(i % BLOCKS, NULL, ASSAY_METRIC_FALLBACKS_CHECKSUM);
            assert_int_equal(as_sim_flips(world.sim), i + 1);
            assert_int_equal(metric(ASSAY_METRIC_CHECKSUM_FAILURES), found + 1);
        }
        world_close(&world);
    }
}

// In a block, on its way to one of two stores: that one refuses it.
static void a_flip_in_a_block_on_its_way_to_a_store_is_found_there(void **state)
{
    (void)state;
    open_copies(true);
    for (uint32_t i = 0; i < 1000 / share; i++, flips_on_the_wire++) {
        uint32_t n = i % BLOCKS;
        for (uint32_t store = 0; store < COPIES; store++) {
            assert_true(kvs_store_drop(world.stores[store], &world.keys[n], 0));
        }
        as_sim_flip(world.sim, as_extent_bytes(&world.shape), chance(COPIES));
        put_result_t result;
        assay_put_t *put;
        assert_int_equal(put_start(&world, n, world_deadline_us(&world), &result, &put), AS_OK);
        assert_true(world_run(&world, &result.done));
        assert_int_equal(result.status, AS_OK);
        assert_int_equal(result.copies, COPIES - 1);
        assert_int_equal(as_sim_flips(world.sim), i + 1);
        assert_int_equal(stat_of(0).checksum_failures + stat_of(1).checksum_failures, i + 1);
        assert_int_equal(stat_of(0).blocks + stat_of(1).blocks, COPIES * BLOCKS - 1);
        assert_int_equal(put_block(&world, n), AS_OK); // what the one refused it takes now
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.first = n, .count = 1}).status, AS_OK);
    }
    world_close(&world);
}

// Keys, checksums and places, too: every payload of every message, on the way there and back.
static void where_every_payload_is_flipped_nothing_is_stored_or_read(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        open_copies(messages);
        as_sim_set_faults(world.sim, &(as_sim_faults_t){.corrupt_ppm = 1000000});
        for (uint32_t i = 0; i < 200 / share; i++) {
            assert_int_not_equal(put_block(&world, BLOCKS + i % 20), AS_OK);
            assert_int_not_equal(
                fetch_chain(&world, (fetch_ask_t){.first = i % BLOCKS, .count = 1}).status, AS_OK);
        }
        as_sim_set_faults(world.sim, &(as_sim_faults_t){0});
        assert_true(stat_of(0).blocks == BLOCKS && stat_of(1).blocks == BLOCKS);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
        world_close(&world);
    }
}

// Of which each was found, one by one.
static void they_were_ten_thousand(void **state)
{
    (void)state;
    printf("%u in RAM and segments, %u of them asked for, %u with a copy, %u on the wire\n",
           flips_scrubbed + flips_asked, flips_asked, flips_with_a_copy, flips_on_the_wire);
    assert_true(flips_scrubbed >= 5500 / share);
    assert_true(flips_asked >= 500 / share);
    assert_int_equal(flips_with_a_copy, 3 * (500 / share));
    assert_int_equal(flips_on_the_wire, 3 * (1000 / share));
    assert_int_equal(flips_in_catalog, 2 * starts);
    uint32_t all = flips_scrubbed + flips_asked + flips_with_a_copy + flips_on_the_wire;
    assert_true(share > 1 || all >= 10000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const char *given = getenv("ASSAY_TEST_SEED");
    seed = given ? strtoull(given, NULL, 10) : 1;
    share = getenv("ASSAY_TEST_FULL") ? 1 : getenv("ASSAY_TEST_SANITIZED") ? 50 : 20;
    starts = share == 1 ? 1000 : 400 / share;
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        TEST(flips_in_ram_and_in_segments_are_all_found_and_mended),
        TEST(flips_in_segments_are_found_when_a_block_is_asked_for),
        TEST(a_flip_in_the_catalog_costs_blocks_at_most_and_is_told_of),
        TEST(many_flips_in_the_catalog_cost_blocks_and_nothing_else),
        TEST(a_table_that_says_it_has_no_checksums_is_not_believed),
        TEST(a_flip_in_the_memory_of_one_store_costs_nothing_where_there_is_a_copy),
        TEST(a_flip_in_a_segment_costs_nothing_where_there_is_a_copy),
        TEST(a_flip_in_a_catalog_costs_nothing_where_there_is_a_copy),
        TEST(a_flip_in_an_extent_on_the_wire_is_found_and_the_other_copy_read),
        TEST(a_flip_in_a_block_on_its_way_to_a_store_is_found_there),
        TEST(where_every_payload_is_flipped_nothing_is_stored_or_read),
        cmocka_unit_test(they_were_ten_thousand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
