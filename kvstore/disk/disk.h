// SPDX-License-Identifier: Apache-2.0
// The disk tier of a store: blocks in segment files, found by key.
//
// A log with second chances left to RAM: blocks are appended to the newest segment; when all
// segments that the limit allows are full, the oldest goes whole, with its blocks. Its owner is told
// of each and may write again those that it still has and wants. So a block is never moved on disk,
// nothing is compacted, and the limit holds at every moment.
//
// Life of an entry: WRITING (nobody finds it) -> ON DISK -> gone: its segment went, it was removed,
// or it could not be read or had other bytes than were promised.
//
// Every call is made on the loop's thread and never waits for the disk, except kvs_disk_alloc and
// kvs_disk_free. Two threads (files.c) do what waits: one writes, one reads. The disk failing is
// never an error of the store: a write that fails leaves the block in RAM only, a read that fails is
// a miss; after FAILURES_MAX writes in a row that fail (what is written together fails once), the tier
// only reads.
#ifndef KVS_DISK_H
#define KVS_DISK_H

#include "kvstore/index.h"

#define KVS_DISK_SEGMENT_BYTES_MIN (1u << 20)
#define KVS_DISK_SEGMENTS_MAX      65536u

typedef struct kvs_disk kvs_disk_t;

typedef struct kvs_disk_options {
    as_loop_t *loop;          // real time
    const char *directory;    // of this store alone; made when it is missing
    uint64_t bytes_max;       // of all segment files; at least two of them
    uint64_t segment_bytes;   // of one; 0: an eighth of bytes_max, of 1 MiB to 1 GiB
    uint64_t queue_bytes_max; // waiting to be written; more are AS_ERR_BUSY
    uint32_t reads_max;       // waiting to be read; more are AS_ERR_BUSY
    // A block went without having been asked to. May call kvs_disk_write.
    void (*on_gone)(void *ctx, const kvs_spec_t *spec);
    void *ctx;
} kvs_disk_options_t;

typedef struct kvs_disk_stat {
    uint64_t blocks, bytes; // on disk, and their images
    uint64_t mortal_blocks; // of them: that expire
    uint64_t bytes_max;
    uint64_t segments;
    uint64_t queued_bytes;
    uint64_t written_blocks, written_bytes, read_blocks, read_bytes;
    uint64_t synced_blocks;  // made durable after they were written
    uint64_t dropped_blocks; // with their segments
    uint64_t failures;       // of writes and reads
    uint64_t corrupt_blocks; // whose bytes were not what was promised
    // Of the catalog, found at the start: damage, records that are none or whose file is gone.
    uint64_t catalog_faults;
    uint64_t catalog_memory_bytes;
    bool read_only;
} kvs_disk_stat_t;

typedef void (*kvs_disk_done_fn)(void *ctx, as_status_t status);

// Opens the directory and finds what is in it, without reading blocks. AS_ERR_EXISTS: another store
// holds it.
as_status_t kvs_disk_alloc(const kvs_disk_options_t *options, kvs_disk_t **disk_p) AS_MUST_USE;
// Writes what is queued; every `done` has been called when it returns. NULL is fine.
void kvs_disk_free(kvs_disk_t *disk);
// The spec of a block on disk; NULL: it is not there. Valid until the next call.
const kvs_spec_t *kvs_disk_find(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm);
typedef struct kvs_disk_write {
    const kvs_spec_t *spec; // copied
    void *image;           // as in the pool (disk/image.h), aligned to 4096; unchanged until `done`
    bool durable;          // `done` comes when a power cut can no longer lose it
    kvs_disk_done_fn done; // may be NULL
    void *ctx;
} kvs_disk_write_t;

// Writes a block. AS_ERR_EXISTS: it is there or being written; AS_ERR_BUSY: the queue is full, or one
// that was removed while it was written is about to go; AS_ERR_LIMIT: larger than a segment;
// AS_ERR_IO: the tier only reads.
as_status_t kvs_disk_write(kvs_disk_t *disk, const kvs_disk_write_t *params) AS_MUST_USE;
// `done` when a power cut can no longer lose a block that is there or being written. AS_ERR_EXISTS: it
// cannot now; AS_ERR_NOT_FOUND: it is not there; AS_ERR_BUSY: it is about to go.
as_status_t kvs_disk_sync(kvs_disk_t *disk, const kvs_spec_t *spec, kvs_disk_done_fn done,
                          void *ctx) AS_MUST_USE;
// The digest (as_block_digest) of a block that is there or being written. False: there is none.
bool kvs_disk_digest(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm,
                     uint32_t *digest_p);
// Reads a block into `image` (kvs_image_bytes long, aligned to 4096) and checks it. AS_ERR_NOT_FOUND
// at once, or in `done` AS_ERR_IO or AS_ERR_CHECKSUM: then the block is gone from disk.
as_status_t kvs_disk_read(kvs_disk_t *disk, const kvs_spec_t *spec, void *image,
                          kvs_disk_done_fn done, void *ctx) AS_MUST_USE;
// Also what is being written, which then is never found.
bool kvs_disk_remove(kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm);
uint64_t kvs_disk_remove_all(kvs_disk_t *disk);
// `done` when what was removed until now cannot be there again, after kill -9 and power cuts alike;
// with AS_ERR_IO: some of it may.
as_status_t kvs_disk_settle(kvs_disk_t *disk, kvs_disk_done_fn done, void *ctx) AS_MUST_USE;
// Lists: the first block at or behind *cursor_p (0 to begin), which moves behind it; NULL at the
// end. Blocks that come or go meanwhile may be missed.
const kvs_spec_t *kvs_disk_next(const kvs_disk_t *disk, uint32_t *cursor_p);
void kvs_disk_stat(const kvs_disk_t *disk, kvs_disk_stat_t *stat_p);

#endif
