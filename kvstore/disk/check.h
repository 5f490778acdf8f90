// SPDX-License-Identifier: Apache-2.0
// Checking blocks on disk a piece at a time, so that it takes little memory and holds up no read: the
// checksums first, whose digest the catalog has, then the extents in their order.
#ifndef KVS_DISK_CHECK_H
#define KVS_DISK_CHECK_H

#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"

#define KVS_CHECK_PIECE_BYTES (256u << 10) // a multiple of 4096

typedef struct kvs_check {
    kvs_record_t record;
    kvs_image_progress_t progress;
    bool crcs_here;
    uint32_t crcs[AS_LAYERS_MAX];
    uint8_t *piece; // KVS_CHECK_PIECE_BYTES, aligned to 4096
} kvs_check_t;

// The first block at or behind *cursor_p (0 to begin), which moves behind it. False: the end.
bool kvs_disk_check_begin(const kvs_disk_t *disk, uint32_t *cursor_p, kvs_check_t *check);
// Reads the next piece and checks it. AS_ERR_NOT_FOUND: the block has gone meanwhile; AS_ERR_BUSY: too
// many reads wait. In `done` AS_ERR_IO or AS_ERR_CHECKSUM: then the block is gone from disk.
as_status_t kvs_disk_check_next(kvs_disk_t *disk, kvs_check_t *check, kvs_disk_done_fn done,
                                void *ctx) AS_MUST_USE;
bool kvs_check_is_over(const kvs_check_t *check);
// For the reader's thread: `piece` was read.
as_status_t kvs_check_take(kvs_check_t *check);

#endif
