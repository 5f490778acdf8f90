// SPDX-License-Identifier: Apache-2.0
// The scrubber: bits are flipped in the memory of a store and in its segment files, and a pass finds
// each of them, drops what is bad, and mends from the other copy where that is good.
#include "../client/disk_world.h"

#include <fcntl.h>
#include <unistd.h>

#include "kvstore/disk/image.h"

#define IMAGE_BYTES 12288u // of the blocks of a small world
#define BLOCKS      20u

static uint32_t removed;

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR + 1);
    removed = 0;
    return 0;
}

static void on_event(void *ctx, kvs_event_t event, const as_key_t *key)
{
    (void)ctx;
    (void)key;
    removed += event == KVS_BLOCK_REMOVED;
}

static world_options_t options_of(bool disk)
{
    return disk ? disk_world_options(32u << 20) : world_defaults(false);
}

static void open_with(const world_options_t *options)
{
    world_open(&world, options);
    world.durable = options->store.disk_directory != NULL;
    put_chain(&world, BLOCKS);
    kvs_store_set_listener(world.stores[0], on_event, NULL);
}

static void open_world(bool disk)
{
    world_options_t options = options_of(disk);
    open_with(&options);
}

static kvs_scrub_stat_t scrub_now(void)
{
    kvs_scrub_stat_t stat;
    kvs_store_scrub_stat(world.stores[0], &stat);
    return stat;
}

static void wait_for_pass(uint64_t pass)
{
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (scrub_now().pass < pass || scrub_now().running) {
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 200);
    }
}

static kvs_scrub_stat_t scrub_all(void)
{
    uint64_t before = scrub_now().pass;
    kvs_store_scrub(world.stores[0], 1u << 30);
    wait_for_pass(before + 1);
    world_let_go(&world); // what was bad in one tier comes from the other
    return scrub_now();
}

static kvs_block_t *block_of(uint32_t n)
{
    kvs_block_t *block = kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL);
    assert_non_null(block);
    return block;
}

// `at`: from the first extent; behind the extents lie their checksums.
static void flip_in_ram(uint32_t n, size_t at)
{
    uint8_t *image = kvs_index_extent(world.stores[0]->index, block_of(n), 0);
    image[at] ^= (uint8_t)(1u << n % 8);
}

static void flip_on_disk(uint32_t n, size_t at)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/segments/00000001.seg", directory);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint8_t byte;
    off_t offset = (off_t)n * IMAGE_BYTES + (off_t)at;
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= (uint8_t)(1u << n % 8);
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

// ---- tests

static void a_pass_over_sound_blocks_finds_nothing(void **state)
{
    (void)state;
    open_world(true);
    assert_int_equal(scrub_now().pass, 0);
    kvs_scrub_stat_t stat = scrub_all();
    assert_int_equal(stat.pass, 1);
    assert_int_equal(stat.ram_blocks, BLOCKS);
    assert_int_equal(stat.disk_blocks, BLOCKS);
    assert_int_equal(stat.ram_bytes, BLOCKS * as_block_bytes(&world.shape));
    assert_int_equal(stat.disk_bytes, stat.ram_bytes);
    assert_int_equal(stat.bad_ram_blocks + stat.bad_disk_blocks + stat.restored_blocks, 0);
    assert_int_equal(stat_now().scrub_bytes, 2 * stat.ram_bytes);
    assert_int_equal(stat_now().scrub_passes, 1);
    assert_int_equal(removed, 0);
}

static void bad_blocks_in_ram_are_brought_back_from_disk(void **state)
{
    (void)state;
    open_world(true);
    size_t block_bytes = as_block_bytes(&world.shape);
    for (uint32_t n = 0; n < BLOCKS; n += 2) { // also in the last checksum
        flip_in_ram(n, n == 2 ? block_bytes + 4 * world.shape.layers - 1 : n * 409 % block_bytes);
    }
    kvs_scrub_stat_t stat = scrub_all();
    assert_int_equal(stat.bad_ram_blocks, BLOCKS / 2);
    assert_int_equal(stat_now().scrub_bad_ram, BLOCKS / 2);
    assert_int_equal(stat_now().blocks, BLOCKS);
    assert_int_equal(scrub_now().restored_blocks, BLOCKS / 2);
    assert_int_equal(stat_now().scrub_restored, BLOCKS / 2);
    assert_int_equal(removed, 0);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
    assert_int_equal(scrub_all().bad_ram_blocks, 0);
}

static void without_another_copy_a_bad_block_is_a_miss_and_is_told(void **state)
{
    (void)state;
    open_world(false);
    flip_in_ram(7, 1000);
    assert_int_equal(scrub_all().bad_ram_blocks, 1);
    assert_int_equal(removed, 1);
    assert_int_equal(stat_now().blocks, BLOCKS - 1);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).block_count, 7);
    assert_int_equal(put_block(&world, 7), AS_OK);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
}

static void bad_blocks_on_disk_are_written_again_from_ram(void **state)
{
    (void)state;
    world_options_t options = options_of(true);
    open_with(&options);
    size_t whole = as_block_bytes(&world.shape) + 4 * world.shape.layers;
    for (uint32_t n = 0; n < BLOCKS; n += 2) {
        flip_on_disk(n, n == 2 ? whole - 1 : n * 409 % whole);
    }
    assert_int_equal(scrub_all().bad_disk_blocks, BLOCKS / 2);
    assert_int_equal(stat_now().scrub_bad_disk, BLOCKS / 2);
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (stat_now().disk_blocks < BLOCKS) {
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 1000);
    }
    assert_int_equal(removed, 0);
    start_again(&options);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
    kvs_scrub_stat_t stat = scrub_all();
    assert_int_equal(stat.disk_blocks, BLOCKS);
    assert_int_equal(stat.bad_disk_blocks, 0);
}

static void a_block_that_is_bad_in_both_is_gone_and_told_once(void **state)
{
    (void)state;
    open_world(true);
    flip_in_ram(3, 5);
    flip_on_disk(3, 6);
    scrub_all();
    assert_int_equal(stat_now().blocks, BLOCKS - 1);
    assert_int_equal(stat_now().disk_blocks, BLOCKS - 1);
    assert_int_equal(scrub_now().restored_blocks, 0);
    assert_int_equal(removed, 1);
}

// Extents and blocks that are longer than a piece, and end in the middle of one.
static void long_blocks_are_checked_a_piece_at_a_time(void **state)
{
    (void)state;
    world_options_t options = options_of(true);
    options.shape = (as_shape_t){3, 4, 4, 80, 240, AS_ELEMENT_F16}; // extents of 307200 bytes
    options.store.ram_bytes = 64u << 20;
    open_with(&options);
    size_t block_bytes = as_block_bytes(&world.shape);
    assert_int_equal(block_bytes, 921600);
    assert_int_equal(scrub_all().ram_bytes, BLOCKS * block_bytes);
    assert_int_equal(scrub_now().disk_bytes, BLOCKS * block_bytes);
    assert_int_equal(scrub_now().bad_ram_blocks + scrub_now().bad_disk_blocks, 0);
    const size_t at[] = {0, 262143, 262144, 307199, 307200, 600000, 921599};
    for (uint32_t n = 0; n < sizeof(at) / sizeof(at[0]); n++) {
        flip_in_ram(n, at[n]);
    }
    assert_int_equal(scrub_all().bad_ram_blocks, sizeof(at) / sizeof(at[0]));
    assert_int_equal(scrub_now().bad_disk_blocks, 0);
}

static void a_pass_keeps_to_its_rate(void **state)
{
    (void)state;
    open_world(true);
    kvs_store_scrub(world.stores[0], 2u << 20);
    wait_for_pass(1);
    uint64_t bytes = 2 * BLOCKS * as_block_bytes(&world.shape);
    assert_int_equal(stat_now().scrub_bytes, bytes);
    // Its first turn is on credit, and the last is not waited for.
    assert_true(scrub_now().took_us + 20000 > bytes * 1000000 / (2u << 20));
}

static void passes_come_by_themselves(void **state)
{
    (void)state;
    world_options_t options = options_of(true);
    options.store.scrub_bytes_per_second = 1u << 30;
    options.store.scrub_pause_us = 2000;
    open_with(&options);
    flip_in_ram(4, 44);
    wait_for_pass(stat_now().scrub_passes + 3);
    assert_int_equal(stat_now().scrub_bad_ram, 1);
    while (stat_now().scrub_restored == 0) {
        world_pass(&world, 1000);
    }
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
}

static void a_pass_that_is_asked_for_begins_anew(void **state)
{
    (void)state;
    open_world(true);
    kvs_store_scrub(world.stores[0], 200000); // would take 1.6 s
    while (scrub_now().disk_blocks == 0) {
        world_pass(&world, 1000);
    }
    kvs_store_scrub(world.stores[0], 1u << 30);
    kvs_store_scrub(world.stores[0], 1u << 30);
    wait_for_pass(2);
    assert_int_equal(scrub_now().ram_blocks, BLOCKS);
    assert_int_equal(scrub_now().disk_blocks, BLOCKS);
    assert_true(stat_now().scrub_passes <= 2); // those cut short have not ended
}

// Between two passes: whoever computed it again puts it again, and that is enough.
static void a_bad_block_that_is_put_again_is_found_without_a_pass(void **state)
{
    (void)state;
    for (uint32_t disk = 0; disk < 2; disk++) {
        world_options_t options = options_of(disk);
        options.store.scrub_bytes_per_second = 1u << 30;
        options.store.scrub_pause_us = 1000000000;
        open_with(&options);
        flip_in_ram(7, 1000);
        for (uint32_t n = 0; n < BLOCKS; n++) {
            assert_int_equal(put_block(&world, n), AS_ERR_EXISTS);
        }
        uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
        while (stat_now().scrub_bad_ram == 0 || world_held(&world) > 0) {
            assert_true(as_loop_now_us(world.loop) < end_us);
            world_pass(&world, 1000);
        }
        assert_int_equal(stat_now().blocks, disk ? BLOCKS : BLOCKS - 1);
        assert_int_equal(put_block(&world, 7), disk ? AS_ERR_EXISTS : AS_OK);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = BLOCKS}).status, AS_OK);
        assert_int_equal(stat_now().scrub_bad_ram, 1);
        assert_int_equal(stat_now().scrub_passes, 0);
        if (!disk) {
            world_close(&world);
        }
    }
}

static void what_goes_during_a_pass_is_passed_over(void **state)
{
    (void)state;
    open_world(true);
    uint64_t pass = 0;
    while (!scrub_now().running) { // once more, should a request have taken longer than a pass
        kvs_store_scrub(world.stores[0], 400000);
        pass++;
        while (scrub_now().running && scrub_now().disk_blocks < 2) {
            world_pass(&world, 1000);
            assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS); // requests are served meanwhile
        }
    }
    assert_int_equal(kvs_store_drop_all(world.stores[0]), BLOCKS);
    wait_for_pass(pass);
    assert_true(scrub_now().disk_blocks < BLOCKS);
    assert_int_equal(scrub_now().bad_ram_blocks + scrub_now().bad_disk_blocks, 0);
    assert_int_equal(stat_now().blocks + stat_now().disk_blocks, 0);
}

static void a_store_ends_in_the_middle_of_a_pass(void **state)
{
    (void)state;
    world_options_t options = options_of(true);
    open_with(&options);
    kvs_store_scrub(world.stores[0], 400000);
    while (scrub_now().disk_blocks < 2) {
        world_pass(&world, 1000);
    }
    start_again(&options);
    assert_int_equal(scrub_all().disk_blocks, BLOCKS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_pass_over_sound_blocks_finds_nothing),
        TEST(bad_blocks_in_ram_are_brought_back_from_disk),
        TEST(without_another_copy_a_bad_block_is_a_miss_and_is_told),
        TEST(bad_blocks_on_disk_are_written_again_from_ram),
        TEST(a_block_that_is_bad_in_both_is_gone_and_told_once),
        TEST(long_blocks_are_checked_a_piece_at_a_time),
        TEST(a_pass_keeps_to_its_rate),
        TEST(passes_come_by_themselves),
        TEST(a_pass_that_is_asked_for_begins_anew),
        TEST(a_bad_block_that_is_put_again_is_found_without_a_pass),
        TEST(what_goes_during_a_pass_is_passed_over),
        TEST(a_store_ends_in_the_middle_of_a_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
