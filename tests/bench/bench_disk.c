// SPDX-License-Identifier: Apache-2.0
// The disk tier by itself: blocks of 1 MiB written behind and durably, read cold, each checked; and
// how long a start takes with many small blocks. Prints a line of JSON for each; store.py sets them
// beside fio.
//
//     bench_disk DIRECTORY [BLOCKS [SMALL_BLOCKS]]
//
// The file system's own cache is not in the way: segment files are read with direct I/O.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/checksum.h"
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "proto/wire.h"
#include "tests/bench/clock.h"

#define LAYERS       4u
#define EXTENT_BYTES (256u << 10)
#define DEPTH        8u // in flight

static as_loop_t *loop;
static kvs_disk_t *disk;
static uint32_t in_flight, done_count;

static void check(as_status_t status, const char *what)
{
    if (status != AS_OK) {
        fprintf(stderr, "bench_disk: %s: %s\n", what, as_status_str(status));
        exit(1);
    }
}

static void on_gone(void *ctx, const kvs_spec_t *spec)
{
    (void)ctx;
    (void)spec;
}

static void on_done(void *ctx, as_status_t status)
{
    (void)ctx;
    check(status, "a block");
    in_flight--;
    done_count++;
}

static bool slots[DEPTH]; // buffers that are being read into

static uint32_t take_slot(void)
{
    uint32_t slot = 0;
    while (slots[slot]) {
        slot++;
    }
    slots[slot] = true;
    return slot;
}

static void on_read(void *ctx, as_status_t status)
{
    *(bool *)ctx = false;
    on_done(NULL, status);
}

static void nothing(void *ctx)
{
    (void)ctx;
}

static void wait_below(uint32_t count)
{
    while (in_flight > count) {
        as_loop_run_once(loop, true);
    }
}

static void open_disk(const char *directory, uint64_t bytes)
{
    const kvs_disk_options_t options = {.loop = loop,
                                        .directory = directory,
                                        .bytes_max = bytes,
                                        .queue_bytes_max = 1u << 30,
                                        .reads_max = 256,
                                        .on_gone = on_gone};
    check(kvs_disk_alloc(&options, &disk), "opening");
}

static kvs_spec_t spec_of(uint32_t n, uint32_t layers, uint32_t extent_bytes)
{
    kvs_spec_t spec = {
        .kind = AS_WIRE_FULL, .layers = layers, .extent_bytes = extent_bytes, .tokens = 64};
    memcpy(spec.key.bytes, &n, sizeof(n));
    return spec;
}

static uint8_t *image_of(const kvs_spec_t *spec)
{
    uint8_t *image = as_mem_aligned(4096, kvs_image_bytes(spec));
    check(image ? AS_OK : AS_ERR_NO_MEMORY, "memory");
    memset(image, 0, kvs_image_bytes(spec));
    for (size_t i = 0; i < kvs_image_crcs_at(spec); i++) {
        image[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    uint32_t *crcs = (uint32_t *)(void *)(image + kvs_image_crcs_at(spec));
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        crcs[layer] = as_crc32c(0, image + (size_t)layer * spec->extent_bytes, spec->extent_bytes);
    }
    return image;
}

static double write_all(uint32_t first, uint32_t count, const kvs_spec_t *like, bool durable)
{
    uint8_t *image = image_of(like);
    double began = now_s();
    for (uint32_t n = first; n < first + count; n++) {
        kvs_spec_t spec = spec_of(n, like->layers, like->extent_bytes);
        const kvs_disk_write_t params = {&spec, image, durable, on_done, NULL};
        check(kvs_disk_write(disk, &params), "writing");
        in_flight++;
        wait_below(durable ? DEPTH - 1 : 255);
    }
    wait_below(0);
    double seconds = now_s() - began;
    as_mem_free(image);
    return seconds;
}

// Blocks in another order than they were written in.
static double read_all(uint32_t count, const kvs_spec_t *like)
{
    uint8_t *images[DEPTH];
    for (uint32_t i = 0; i < DEPTH; i++) {
        images[i] = as_mem_aligned(4096, kvs_image_bytes(like));
    }
    double began = now_s();
    for (uint32_t i = 0; i < count; i++) {
        kvs_spec_t spec =
            spec_of((uint32_t)((uint64_t)i * 7919 % count), like->layers, like->extent_bytes);
        uint32_t slot = take_slot();
        check(kvs_disk_read(disk, &spec, images[slot], on_read, &slots[slot]), "reading");
        in_flight++;
        wait_below(DEPTH - 1);
    }
    wait_below(0);
    double seconds = now_s() - began;
    for (uint32_t i = 0; i < DEPTH; i++) {
        as_mem_free(images[i]);
    }
    return seconds;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_disk DIRECTORY [BLOCKS [SMALL_BLOCKS]]\n");
        return 2;
    }
    uint32_t blocks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512;
    uint32_t small = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 100000;
    as_timer_t *timer; // keeps the loop alive
    as_log_set_level(AS_LOG_WARN);
    check(as_loop_alloc_uv(&loop), "loop");
    check(as_timer_alloc(loop, nothing, NULL, &timer), "timer");
    as_timer_start(timer, 3600000000u);
    kvs_spec_t large = spec_of(0, LAYERS, EXTENT_BYTES), tiny = spec_of(0, 1, 2048);
    double bytes = (double)kvs_image_crcs_at(&large);
    uint64_t room = (uint64_t)(2 * blocks + 64) * (kvs_image_bytes(&large) + 4096);
    open_disk(argv[1], room + (uint64_t)small * 8192 + (64u << 20));
    double behind = write_all(0, blocks, &large, false);
    double durable = write_all(blocks, blocks / 4, &large, true);
    double cold = read_all(blocks, &large);
    write_all(1u << 24, small, &tiny, false);
    kvs_disk_free(disk);
    double began = now_s();
    open_disk(argv[1], room + (uint64_t)small * 8192 + (64u << 20));
    double start = now_s() - began;
    kvs_disk_stat_t stat;
    kvs_disk_stat(disk, &stat);
    printf("{\"bench\":\"disk\",\"block_bytes\":%.0f,\"depth\":%u,\"write_gb_per_s\":%.3f,"
           "\"durable_gb_per_s\":%.3f,\"read_gb_per_s\":%.3f,\"start_blocks\":%llu,"
           "\"start_seconds\":%.3f}\n",
           bytes, DEPTH, bytes * blocks / behind * 1e-9, bytes * (blocks / 4) / durable * 1e-9,
           bytes * blocks / cold * 1e-9, (unsigned long long)stat.blocks, start);
    kvs_disk_free(disk);
    as_timer_free(timer);
    as_loop_free(loop);
    return 0;
}
