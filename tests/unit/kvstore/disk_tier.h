// SPDX-License-Identifier: Apache-2.0
// The disk tier by itself, on a real clock and in a folder of its own, and blocks that follow from their
// number: what the tests of it share.
#ifndef DISK_TIER_H
#define DISK_TIER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/temporary_folder.h"
#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "proto/wire.h"

#define LAYERS       3u
#define EXTENT_BYTES 21000u
#define SEGMENT      (1u << 20)
#define PER_SEGMENT  16u // images of 64 KiB

static char directory[TEMPORARY_FOLDER_BYTES];
static as_loop_t *loop;
static kvs_disk_t *disk;
static uint32_t gone;
static as_key_t last_gone;

static void on_gone(void *ctx, const kvs_spec_t *spec)
{
    (void)ctx;
    gone++;
    last_gone = spec->key;
}

static kvs_disk_options_t defaults(void)
{
    return (kvs_disk_options_t){.loop = loop,
                                .directory = directory,
                                .bytes_max = 8 * SEGMENT,
                                .segment_bytes = SEGMENT,
                                .queue_bytes_max = 64 << 20,
                                .reads_max = 64,
                                .on_gone = on_gone};
}

static void open_disk(void)
{
    const kvs_disk_options_t options = defaults();
    assert_int_equal(kvs_disk_alloc(&options, &disk), AS_OK);
}

static void open_again(void)
{
    kvs_disk_free(disk);
    open_disk();
}

static int begin(void **state)
{
    (void)state;
    temporary_folder_make(directory);
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    as_log_set_level(AS_LOG_ERROR);
    gone = 0;
    open_disk();
    return 0;
}

static int end(void **state)
{
    (void)state;
    as_fault_clear();
    kvs_disk_free(disk);
    disk = NULL;
    as_loop_free(loop);
    as_log_set_level(AS_LOG_INFO);
    return temporary_folder_remove(directory);
}

// ---- blocks

static kvs_spec_t spec_of(uint32_t n)
{
    kvs_spec_t spec = {
        .kind = AS_WIRE_FULL, .layers = LAYERS, .extent_bytes = EXTENT_BYTES, .tokens = 64};
    memcpy(spec.key.bytes, &n, sizeof(n));
    spec.key.bytes[31] = 7;
    memset(spec.parent.bytes, (int)(n % 251), sizeof(spec.parent.bytes));
    return spec;
}

static uint8_t byte_of(uint32_t n, size_t at)
{
    return (uint8_t)(at * 31 + n * 7 + at / 4096);
}

static uint8_t *image_of(uint32_t n)
{
    kvs_spec_t spec = spec_of(n);
    uint8_t *image = as_mem_aligned(4096, kvs_image_bytes(&spec));
    memset(image, 0, kvs_image_bytes(&spec));
    for (size_t i = 0; i < kvs_image_crcs_at(&spec); i++) {
        image[i] = byte_of(n, i);
    }
    uint32_t *crcs = (uint32_t *)(void *)(image + kvs_image_crcs_at(&spec));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        crcs[layer] = as_crc32c(0, image + (size_t)layer * EXTENT_BYTES, EXTENT_BYTES);
    }
    return image;
}

typedef struct waited {
    uint32_t done;
    as_status_t status;
} waited_t;

static void on_done(void *ctx, as_status_t status)
{
    waited_t *waited = ctx;
    waited->done++;
    waited->status = status;
}

static as_status_t give(const kvs_spec_t *spec, void *image, bool durable, waited_t *waited)
{
    const kvs_disk_write_t params = {spec, image, durable, on_done, waited};
    return kvs_disk_write(disk, &params);
}

static void nothing(void *ctx)
{
    (void)ctx;
}

// Turns of the loop until so many are done; the loop stays alive by a timer.
static void wait_for(const waited_t *waited, uint32_t count)
{
    as_timer_t *timer;
    assert_int_equal(as_timer_alloc(loop, nothing, NULL, &timer), AS_OK);
    as_timer_start(timer, 60000000);
    while (waited->done < count) {
        as_loop_run_once(loop, true);
    }
    as_timer_free(timer);
}

static void pass(void)
{
    as_timer_t *timer;
    assert_int_equal(as_timer_alloc(loop, nothing, NULL, &timer), AS_OK);
    as_timer_start(timer, 1000);
    as_loop_run_once(loop, true);
    as_timer_free(timer);
}

static as_status_t write_block(uint32_t n, bool durable)
{
    kvs_spec_t spec = spec_of(n);
    uint8_t *image = image_of(n);
    waited_t waited = {0};
    as_status_t status = give(&spec, image, durable, &waited);
    if (status == AS_OK) {
        wait_for(&waited, 1);
        assert_int_equal(waited.done, 1);
        status = waited.status;
    }
    as_mem_free(image);
    return status;
}

// Reads it; what comes as AS_OK is right.
static as_status_t read_block(uint32_t n)
{
    kvs_spec_t spec = spec_of(n);
    uint8_t *image = as_mem_aligned(4096, kvs_image_bytes(&spec));
    waited_t waited = {0};
    as_status_t status = kvs_disk_read(disk, &spec, image, on_done, &waited);
    if (status == AS_OK) {
        wait_for(&waited, 1);
        status = waited.status;
    }
    for (size_t i = 0; status == AS_OK && i < kvs_image_crcs_at(&spec); i++) {
        assert_int_equal(image[i], byte_of(n, i));
    }
    as_mem_free(image);
    return status;
}

static bool is_found(uint32_t n)
{
    kvs_spec_t spec = spec_of(n);
    const kvs_spec_t *found = kvs_disk_find(disk, &spec.key, AS_WIRE_FULL);
    if (found) {
        assert_memory_equal(found, &spec, sizeof(spec));
    }
    return found != NULL;
}

static kvs_disk_stat_t stat_now(void)
{
    kvs_disk_stat_t stat;
    kvs_disk_stat(disk, &stat);
    return stat;
}

static uint32_t files(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/segments", directory);
    DIR *open_directory = opendir(path);
    assert_non_null(open_directory);
    uint32_t count = 0;
    for (struct dirent *entry; (entry = readdir(open_directory)) != NULL;) {
        count += strstr(entry->d_name, ".seg") != NULL;
    }
    closedir(open_directory);
    return count;
}

#endif
