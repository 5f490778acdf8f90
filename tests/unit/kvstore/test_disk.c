// SPDX-License-Identifier: Apache-2.0
// The disk tier by itself: real files, RocksDB and io_uring (or none), in a directory of its own.
#include "disk_tier.h"

static void a_block_comes_back_as_it_was(void **state)
{
    (void)state;
    assert_false(is_found(1));
    assert_int_equal(read_block(1), AS_ERR_NOT_FOUND);
    assert_int_equal(write_block(1, false), AS_OK);
    assert_true(is_found(1));
    assert_int_equal(read_block(1), AS_OK);
    assert_int_equal(write_block(1, false), AS_ERR_EXISTS);
    assert_int_equal(stat_now().blocks, 1);
}

static void blocks_are_found_after_a_new_start(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 40; n++) {
        assert_int_equal(write_block(n, n % 2), AS_OK);
    }
    open_again();
    assert_int_equal(stat_now().blocks, 40);
    assert_in_range(stat_now().catalog_memory_bytes, 1, 64 << 20);
    for (uint32_t n = 0; n < 40; n++) {
        assert_true(is_found(n));
        assert_int_equal(read_block(n), AS_OK);
    }
    assert_int_equal(write_block(100, false), AS_OK);
    assert_int_equal(read_block(100), AS_OK);
}

// Else a store that is started again and again would lose its oldest blocks each time.
static void a_start_goes_on_with_the_newest_segment(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 3 * PER_SEGMENT; n++) {
        open_again();
        assert_int_equal(write_block(n, n % 2), AS_OK);
        assert_int_equal(files(), 1 + n / PER_SEGMENT);
    }
    open_again();
    assert_int_equal(gone, 0);
    for (uint32_t n = 0; n < 3 * PER_SEGMENT; n++) {
        assert_int_equal(read_block(n), AS_OK);
    }
}

static void the_table_grows_with_its_blocks(void **state)
{
    (void)state;
    kvs_disk_options_t options = defaults();
    options.bytes_max = 200 * SEGMENT;
    kvs_disk_free(disk);
    assert_int_equal(kvs_disk_alloc(&options, &disk), AS_OK);
    uint8_t *image = image_of(0);
    waited_t waited = {0};
    for (uint32_t n = 0; n < 2500; n++) { // the same bytes under many keys: only found, not read
        kvs_spec_t spec = spec_of(n);
        as_status_t status = give(&spec, image, false, &waited);
        assert_int_equal(status, AS_OK);
        wait_for(&waited, n + 1 > 30 ? n - 30 : 0);
    }
    wait_for(&waited, 2500);
    for (uint32_t n = 0; n < 2500; n++) {
        assert_true(is_found(n));
    }
    uint32_t cursor = 0, listed = 0;
    while (kvs_disk_next(disk, &cursor)) {
        listed++;
    }
    assert_int_equal(listed, 2500);
    as_mem_free(image);
}

static void at_the_limit_the_oldest_segment_goes_whole(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 10 * PER_SEGMENT; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
        assert_true(files() <= 9); // one more while it is removed
    }
    assert_int_equal(stat_now().segments, 8);
    assert_int_equal(gone, 2 * PER_SEGMENT);
    assert_int_equal(stat_now().blocks, 8 * PER_SEGMENT);
    for (uint32_t n = 0; n < 10 * PER_SEGMENT; n++) {
        assert_int_equal(read_block(n), n < 2 * PER_SEGMENT ? AS_ERR_NOT_FOUND : AS_OK);
    }
    open_again();
    assert_int_equal(stat_now().blocks, 8 * PER_SEGMENT);
    assert_true(files() <= 8);
}

static void a_key_written_anew_outlives_its_old_segment(void **state)
{
    (void)state;
    assert_int_equal(write_block(1, false), AS_OK);
    kvs_spec_t spec = spec_of(1);
    assert_true(kvs_disk_remove(disk, &spec.key, AS_WIRE_FULL));
    assert_false(is_found(1));
    for (uint32_t n = 100; n < 100 + PER_SEGMENT; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
    }
    assert_int_equal(write_block(1, false), AS_OK); // now in the second segment
    for (uint32_t n = 200; n < 200 + 7 * PER_SEGMENT - 1; n++) {
        assert_int_equal(write_block(n, false), AS_OK); // the first goes
    }
    open_again();
    assert_int_equal(read_block(1), AS_OK);
}

static void a_limit_lowered_holds_from_the_start(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 6 * PER_SEGMENT; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
    }
    kvs_disk_free(disk);
    kvs_disk_options_t options = defaults();
    options.bytes_max = 3 * SEGMENT;
    assert_int_equal(kvs_disk_alloc(&options, &disk), AS_OK);
    assert_int_equal(files(), 3);
    assert_int_equal(stat_now().blocks, 3 * PER_SEGMENT);
    assert_int_equal(read_block(6 * PER_SEGMENT - 1), AS_OK);
    assert_false(is_found(0));
}

static void a_second_store_is_kept_out(void **state)
{
    (void)state;
    const kvs_disk_options_t options = defaults();
    kvs_disk_t *other;
    assert_int_equal(kvs_disk_alloc(&options, &other), AS_ERR_EXISTS);
}

// Flips one bit of the n-th block of a new tier.
static void flip(uint32_t n, off_t at)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/segments/%08u.seg", directory, 1 + n / PER_SEGMENT);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint8_t byte;
    at += (off_t)(n % PER_SEGMENT) * 65536;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1u << n % 8);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void every_flipped_bit_of_a_segment_is_found(void **state)
{
    (void)state;
    const uint32_t count = 8 * PER_SEGMENT; // a block for each flip
    kvs_spec_t spec = spec_of(0);
    size_t whole = kvs_image_crcs_at(&spec) + LAYERS * sizeof(uint32_t);
    for (uint32_t n = 0; n < count; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
    }
    kvs_disk_free(disk);
    for (uint32_t n = 0; n < count; n++) { // all over the block, and each byte of its end
        flip(n, n < 16 ? (off_t)(whole - 1 - n) : (off_t)(n * 509 % whole));
    }
    open_disk();
    for (uint32_t n = 0; n < count; n++) {
        assert_int_equal(read_block(n), AS_ERR_CHECKSUM);
        assert_false(is_found(n)); // it is not offered again
    }
    assert_int_equal(stat_now().corrupt_blocks, count);
}

static void the_bytes_of_another_block_are_found_out(void **state)
{
    (void)state;
    kvs_spec_t spec = spec_of(1);
    uint8_t *other = image_of(2); // sound in itself
    kvs_record_t record = {.spec = spec};
    uint8_t *image = image_of(1);
    record.digest = kvs_image_digest(&spec, image);
    assert_int_equal(kvs_image_check(&record, image), AS_OK);
    assert_int_equal(kvs_image_check(&record, other), AS_ERR_CHECKSUM);
    record.spec = spec_of(2);
    assert_int_equal(kvs_image_check(&record, image), AS_ERR_CHECKSUM);
    as_mem_free(image);
    as_mem_free(other);
}

static void reads_that_fail_are_misses(void **state)
{
    (void)state;
    assert_int_equal(write_block(1, false), AS_OK);
    assert_int_equal(write_block(2, false), AS_OK);
    as_fault_arm(AS_FAULT_disk_read_fails, 1);
    assert_int_equal(read_block(1), AS_ERR_IO);
    assert_int_equal(gone, 1);
    assert_false(is_found(1));
    as_fault_arm(AS_FAULT_disk_read_corrupt, 1);
    assert_int_equal(read_block(2), AS_ERR_CHECKSUM);
    assert_int_equal(gone, 2);
    assert_int_equal(stat_now().corrupt_blocks, 1);
    assert_int_equal(write_block(2, false), AS_OK); // the key is free again
    open_again();
    assert_false(is_found(1));
    assert_int_equal(read_block(2), AS_OK);
}

static void after_many_failed_writes_the_tier_only_reads(void **state)
{
    (void)state;
    assert_int_equal(write_block(1, false), AS_OK);
    as_fault_arm_chance(AS_FAULT_disk_write_fails, 1000000, 1);
    uint32_t failed = 0;
    while (!stat_now().read_only) {
        assert_int_equal(write_block(10 + failed++, false), AS_ERR_IO);
        assert_true(failed < 20);
    }
    as_fault_clear();
    assert_int_equal(write_block(50, false), AS_ERR_IO);
    assert_int_equal(read_block(1), AS_OK);
    open_again(); // as an operator would
    assert_int_equal(write_block(50, false), AS_OK);
    assert_int_equal(read_block(1), AS_OK);
}

// Whatever the catalog's trouble is, it is one for all that was written together.
static void a_failed_commit_of_many_blocks_is_one_failure(void **state)
{
    (void)state;
    uint8_t *image = image_of(0);
    waited_t waited = {0};
    as_fault_arm_chance(AS_FAULT_disk_catalog_fails, 1000000, 1);
    for (uint32_t n = 0; n < 2 * PER_SEGMENT; n++) { // the first makes its segment meanwhile
        kvs_spec_t spec = spec_of(n);
        assert_int_equal(give(&spec, image, false, &waited), AS_OK);
    }
    wait_for(&waited, 2 * PER_SEGMENT);
    as_fault_clear();
    assert_int_equal(waited.status, AS_ERR_IO);
    assert_int_equal(stat_now().failures, 2 * PER_SEGMENT);
    assert_false(stat_now().read_only);
    assert_int_equal(write_block(50, false), AS_OK);
    assert_int_equal(read_block(50), AS_OK);
    as_mem_free(image);
}

static void makes_room(as_fault_site_t site)
{
    for (uint32_t n = 0; n < 3 * PER_SEGMENT; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
    }
    as_fault_arm(site, 1);
    assert_int_equal(write_block(900, false), AS_ERR_LIMIT);
    for (uint32_t n = 901; n < 901 + 2 * PER_SEGMENT; n++) {
        as_status_t status;
        while ((status = write_block(n, false)) == AS_ERR_BUSY) { // until the oldest has gone
            pass();
        }
        assert_int_equal(status, AS_OK);
        assert_true(files() <= 3); // never more than there is room for
    }
    assert_int_equal(stat_now().segments, 2);
    assert_false(stat_now().read_only);
    assert_int_equal(gone, 3 * PER_SEGMENT);
    assert_int_equal(read_block(901), AS_OK);
}

static void on_a_full_disk_the_oldest_makes_room(void **state)
{
    (void)state;
    makes_room(AS_FAULT_disk_full);
}

static void where_the_file_system_has_a_quota_the_oldest_makes_room(void **state)
{
    (void)state;
    makes_room(AS_FAULT_disk_quota);
}

// The catalog lies on the same disk: it finds no room either, also to forget what goes.
static void where_the_catalog_finds_no_room_the_oldest_makes_it(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 4 * PER_SEGMENT - 4; n++) {
        assert_int_equal(write_block(n, false), AS_OK);
    }
    as_fault_arm_chance(AS_FAULT_disk_catalog_full, 1000000, 1);
    assert_int_equal(write_block(900, true), AS_ERR_LIMIT);
    while (files() > 3) {
        pass();
    }
    as_fault_clear();
    assert_int_equal(write_block(900, true), AS_OK);
    assert_false(stat_now().read_only);
    assert_int_equal(gone, PER_SEGMENT);
    for (uint32_t n = 901; n < 901 + 3 * PER_SEGMENT; n++) {
        while (write_block(n, false) == AS_ERR_BUSY) {
            pass();
        }
        assert_true(files() <= 3);
    }
    open_again(); // records of what went are still there
    assert_int_equal(read_block(0), AS_ERR_NOT_FOUND);
    assert_int_equal(read_block(901 + 3 * PER_SEGMENT - 1), AS_OK);
}

static void where_nothing_can_make_room_for_the_catalog_the_tier_only_reads(void **state)
{
    (void)state;
    assert_int_equal(write_block(1, false), AS_OK);
    as_fault_arm_chance(AS_FAULT_disk_catalog_full, 1000000, 1);
    for (uint32_t n = 0; n < 8; n++) {
        assert_false(stat_now().read_only);
        assert_int_equal(write_block(10 + n, false), AS_ERR_LIMIT);
    }
    assert_true(stat_now().read_only);
    assert_int_equal(read_block(1), AS_OK);
}

static void a_block_removed_while_it_is_written_is_never_found(void **state)
{
    (void)state;
    uint8_t *image = image_of(1);
    waited_t waited = {0};
    kvs_spec_t spec = spec_of(1), other = spec_of(2);
    assert_int_equal(give(&spec, image, false, &waited), AS_OK);
    assert_int_equal(give(&other, image, false, &waited), AS_OK);
    assert_true(kvs_disk_remove(disk, &spec.key, AS_WIRE_FULL)); // the loop has not turned
    assert_false(kvs_disk_remove(disk, &spec.key, AS_WIRE_FULL));
    assert_int_equal(kvs_disk_remove_all(disk), 1);
    assert_int_equal(give(&spec, image, false, &waited), AS_ERR_BUSY); // it would go with the first
    wait_for(&waited, 2);
    assert_false(is_found(1) || is_found(2));
    assert_int_equal(stat_now().blocks, 0);
    assert_int_equal(gone, 0);
    open_again();
    assert_int_equal(stat_now().blocks, 0);
    assert_int_equal(give(&spec, image, false, &waited), AS_OK); // it is free again
    wait_for(&waited, 3);
    assert_true(is_found(1));
    as_mem_free(image);
}

static void a_small_disk_has_small_segments(void **state)
{
    (void)state;
    kvs_disk_options_t options = defaults();
    options.segment_bytes = 0;
    for (options.bytes_max = 2u << 20; options.bytes_max <= 9u << 20;
         options.bytes_max += 1u << 20) {
        kvs_disk_free(disk);
        disk = NULL;
        assert_int_equal(kvs_disk_alloc(&options, &disk), AS_OK);
        assert_true(stat_now().bytes_max > options.bytes_max - (1u << 20));
        assert_true(stat_now().bytes_max <= options.bytes_max);
        assert_int_equal(write_block((uint32_t)(options.bytes_max >> 20), false), AS_OK);
    }
    options.bytes_max = (2u << 20) - 1;
    as_log_set_level(AS_LOG_ERROR + 1);
    kvs_disk_t *other;
    assert_int_equal(kvs_disk_alloc(&options, &other), AS_ERR_CONFIG);
}

static void a_full_queue_says_busy(void **state)
{
    (void)state;
    kvs_disk_options_t options = defaults();
    options.queue_bytes_max = 100000; // one block
    kvs_disk_free(disk);
    assert_int_equal(kvs_disk_alloc(&options, &disk), AS_OK);
    uint8_t *image = image_of(1);
    waited_t waited = {0};
    kvs_spec_t first = spec_of(1), second = spec_of(2);
    assert_int_equal(give(&first, image, false, &waited), AS_OK);
    assert_int_equal(give(&second, image, false, &waited), AS_ERR_BUSY);
    wait_for(&waited, 1);
    assert_int_equal(give(&second, image, false, &waited), AS_OK);
    wait_for(&waited, 2);
    as_mem_free(image);
}

static void everything_is_called_back_at_the_end(void **state)
{
    (void)state;
    uint8_t *image = image_of(1);
    waited_t waited = {0};
    for (uint32_t n = 0; n < 30; n++) {
        kvs_spec_t spec = spec_of(n);
        assert_int_equal(give(&spec, image, n % 3 == 0, &waited), AS_OK);
    }
    kvs_disk_free(disk);
    assert_int_equal(waited.done, 30);
    assert_int_equal(waited.status, AS_OK);
    as_mem_free(image);
    open_disk();
    assert_int_equal(stat_now().blocks, 30);
}

static void a_sync_that_waits_at_the_end_is_called_back(void **state)
{
    (void)state;
    uint8_t *image = image_of(1);
    waited_t writes = {0}, syncs = {0};
    for (uint32_t n = 0; n < 10; n++) { // the loop does not turn: all wait
        kvs_spec_t spec = spec_of(n);
        assert_int_equal(give(&spec, image, false, &writes), AS_OK);
        assert_int_equal(kvs_disk_sync(disk, &spec, on_done, &syncs), AS_OK);
    }
    kvs_disk_free(disk);
    assert_true(writes.done == 10 && syncs.done == 10);
    assert_int_equal(syncs.status, AS_ERR_CANCELLED); // nobody may take them for safe
    as_mem_free(image);
    open_disk();
}

static void a_segment_whose_sync_failed_is_not_trusted_again(void **state)
{
    (void)state;
    assert_int_equal(write_block(0, true), AS_OK);
    assert_int_equal(write_block(1, false), AS_OK);
    as_fault_arm(AS_FAULT_disk_sync_fails, 1);
    assert_int_equal(write_block(2, true), AS_ERR_IO);
    as_fault_clear();
    kvs_spec_t spec = spec_of(1);
    waited_t waited = {0};
    assert_int_equal(kvs_disk_sync(disk, &spec, on_done, &waited), AS_ERR_NOT_FOUND);
    assert_false(is_found(1) || is_found(2));
    assert_int_equal(read_block(0), AS_OK); // it was safe
    assert_int_equal(files(), 1);
    assert_int_equal(write_block(1, true), AS_OK);
    assert_int_equal(write_block(2, true), AS_OK);
    assert_int_equal(files(), 2);
    assert_int_equal(read_block(1), AS_OK);
}

static void nor_is_what_was_written_beside_it(void **state)
{
    (void)state;
    uint8_t *image = image_of(1);
    waited_t waited = {0};
    as_fault_arm(AS_FAULT_disk_hangs, 1); // the others come meanwhile, and are written together
    as_fault_arm(AS_FAULT_disk_sync_fails, 1);
    for (uint32_t n = 0; n < 4; n++) {
        kvs_spec_t spec = spec_of(n);
        assert_int_equal(give(&spec, image, n == 2, &waited), AS_OK);
    }
    wait_for(&waited, 4);
    for (uint32_t n = 0; n < 4; n++) { // the last, too, whose end was told after the failure
        assert_false(is_found(n));
    }
    assert_true(gone >= 2);
    as_mem_free(image);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_segment_whose_sync_failed_is_not_trusted_again),
        TEST(nor_is_what_was_written_beside_it),
        TEST(a_block_comes_back_as_it_was),
        TEST(blocks_are_found_after_a_new_start),
        TEST(a_start_goes_on_with_the_newest_segment),
        TEST(the_table_grows_with_its_blocks),
        TEST(at_the_limit_the_oldest_segment_goes_whole),
        TEST(a_key_written_anew_outlives_its_old_segment),
        TEST(a_limit_lowered_holds_from_the_start),
        TEST(a_second_store_is_kept_out),
        TEST(every_flipped_bit_of_a_segment_is_found),
        TEST(the_bytes_of_another_block_are_found_out),
        TEST(reads_that_fail_are_misses),
        TEST(after_many_failed_writes_the_tier_only_reads),
        TEST(a_failed_commit_of_many_blocks_is_one_failure),
        TEST(on_a_full_disk_the_oldest_makes_room),
        TEST(where_the_file_system_has_a_quota_the_oldest_makes_room),
        TEST(where_the_catalog_finds_no_room_the_oldest_makes_it),
        TEST(where_nothing_can_make_room_for_the_catalog_the_tier_only_reads),
        TEST(a_small_disk_has_small_segments),
        TEST(a_block_removed_while_it_is_written_is_never_found),
        TEST(a_full_queue_says_busy),
        TEST(everything_is_called_back_at_the_end),
        TEST(a_sync_that_waits_at_the_end_is_called_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
