// SPDX-License-Identifier: Apache-2.0
// What RocksDB's blob files do with blocks of 1 MiB, to be set beside bench_disk's figures for segment
// files on the same disk: as many blocks, as many in flight, direct I/O, written behind (with RocksDB's log, and
// without it, when a kill loses what is in memory) and durably (the log is synced before each is acknowledged),
// and read cold, each checked. Prints a line of JSON.
//
//     bench_blobs DIRECTORY [BLOCKS]
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/block.h"
#include "common/checksum.h"
#include "tests/bench/clock.h"
#include "tests/tools/numbered.h"

#define BYTES        (1u << 20)
#define DEPTH        8u
#define WRITE_BUFFER (64u << 20)

typedef enum work { BEHIND, DURABLE, UNLOGGED, COLD } work_t;

static rocksdb_t *db;
static rocksdb_writeoptions_t *write_options[COLD];
static rocksdb_readoptions_t *read_options;
static work_t work;
static uint32_t first, count;
static atomic_uint next;

static void check(char *error, const char *what)
{
    if (error) {
        fprintf(stderr, "bench_blobs: %s: %s\n", what, error);
        exit(1);
    }
}

// No two are alike: nothing is compressed or found twice.
static void fill(uint32_t number, uint8_t *bytes)
{
    uint64_t state = number * 0x2545f4914f6cdd1dull + 1;
    for (size_t i = 0; i < BYTES; i += sizeof(state)) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(bytes + i, &state, sizeof(state));
    }
    uint32_t crc = as_crc32c(0, bytes + sizeof(crc), BYTES - sizeof(crc));
    memcpy(bytes, &crc, sizeof(crc));
}

static void put(uint32_t number, const uint8_t *bytes)
{
    char *error = NULL;
    as_key_t key = numbered_key(number);
    rocksdb_put(db, write_options[work], (char *)key.bytes, sizeof(key), (const char *)bytes, BYTES,
                &error);
    check(error, "writing");
}

static void get(uint32_t number)
{
    char *error = NULL;
    as_key_t key = numbered_key(number);
    rocksdb_pinnableslice_t *slice =
        rocksdb_get_pinned(db, read_options, (char *)key.bytes, sizeof(key), &error);
    check(error, "reading");
    size_t bytes = 0;
    const uint8_t *value = (const uint8_t *)rocksdb_pinnableslice_value(slice, &bytes);
    uint32_t crc;
    if (bytes != BYTES) {
        check("a block of another size", "reading");
    }
    memcpy(&crc, value, sizeof(crc));
    if (as_crc32c(0, value + sizeof(crc), bytes - sizeof(crc)) != crc) {
        check("wrong bytes", "reading");
    }
    rocksdb_pinnableslice_destroy(slice);
}

// Each thread writes one block of its own under many keys: making them is not what is timed.
static void *run(void *ctx)
{
    uint8_t *bytes = malloc(BYTES);
    fill((uint32_t)(uintptr_t)ctx, bytes);
    for (uint32_t n; (n = atomic_fetch_add(&next, 1)) < count;) {
        if (work == COLD) {
            get(first + (uint32_t)((uint64_t)n * 7919 % count));
        } else {
            put(first + n, bytes);
        }
    }
    free(bytes);
    return NULL;
}

static double time_all(work_t what, uint32_t from, uint32_t blocks)
{
    pthread_t threads[DEPTH];
    work = what;
    first = from;
    count = blocks;
    atomic_store(&next, 0);
    double began = now_s();
    for (uintptr_t i = 0; i < DEPTH; i++) {
        pthread_create(&threads[i], NULL, run, (void *)i);
    }
    for (uint32_t i = 0; i < DEPTH; i++) {
        pthread_join(threads[i], NULL);
    }
    if (what == BEHIND || what == UNLOGGED) { // as bench_disk waits until all is written
        char *error = NULL;
        rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
        rocksdb_flush(db, flush, &error);
        check(error, "flushing");
        rocksdb_flushoptions_destroy(flush);
    }
    return now_s() - began;
}

static void open_database(rocksdb_options_t *options, const char *directory)
{
    char *error = NULL;
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER);
    rocksdb_options_set_max_background_jobs(options, 4);
    rocksdb_options_set_use_direct_reads(options, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
    rocksdb_options_set_enable_blob_files(options, 1);
    rocksdb_options_set_min_blob_size(options, 4096);
    db = rocksdb_open(options, directory, &error);
    check(error, directory);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_blobs DIRECTORY [BLOCKS]\n");
        return 2;
    }
    uint32_t blocks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512;
    rocksdb_options_t *options = rocksdb_options_create();
    open_database(options, argv[1]);
    read_options = rocksdb_readoptions_create();
    for (uint32_t i = 0; i < COLD; i++) {
        write_options[i] = rocksdb_writeoptions_create();
        rocksdb_writeoptions_set_sync(write_options[i], i == DURABLE);
        rocksdb_writeoptions_disable_WAL(write_options[i], i == UNLOGGED);
    }
    double behind = time_all(BEHIND, 0, blocks);
    double durable = time_all(DURABLE, blocks, blocks / 4);
    double unlogged = time_all(UNLOGGED, 2 * blocks, blocks);
    rocksdb_close(db);
    open_database(options, argv[1]); // cold, and all of it in blob files
    double cold = time_all(COLD, 0, blocks);
    printf("{\"bench\":\"blobs\",\"block_bytes\":%u,\"depth\":%u,\"write_gb_per_s\":%.3f,"
           "\"unlogged_gb_per_s\":%.3f,\"durable_gb_per_s\":%.3f,\"read_gb_per_s\":%.3f}\n",
           BYTES, DEPTH, BYTES * 1e-9 * blocks / behind, BYTES * 1e-9 * blocks / unlogged,
           BYTES * 1e-9 * (blocks / 4) / durable, BYTES * 1e-9 * blocks / cold);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
    rocksdb_readoptions_destroy(read_options);
    for (uint32_t i = 0; i < COLD; i++) {
        rocksdb_writeoptions_destroy(write_options[i]);
    }
    return 0;
}
