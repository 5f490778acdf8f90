// SPDX-License-Identifier: Apache-2.0
// A block as it lies in the pool and on disk: its extents, padding to 4 bytes, a CRC32C for each
// extent, padding to 4096.
#ifndef KVS_DISK_IMAGE_H
#define KVS_DISK_IMAGE_H

#include "common/checksum.h"
#include "kvstore/disk/catalog.h"

static inline size_t kvs_image_crcs_at(const kvs_spec_t *spec)
{
    return (size_t)spec->layers * spec->extent_bytes; // a multiple of 4
}

static inline size_t kvs_image_bytes(const kvs_spec_t *spec)
{
    size_t bytes = kvs_image_crcs_at(spec) + spec->layers * sizeof(uint32_t);
    return (bytes + KVS_POOL_GRAIN_BYTES - 1) / KVS_POOL_GRAIN_BYTES * KVS_POOL_GRAIN_BYTES;
}

// Ties the checksums to the key: the bytes of another block are found out.
static inline uint32_t kvs_image_digest(const kvs_spec_t *spec, const void *image)
{
    return as_block_digest(&spec->key, (const uint8_t *)image + kvs_image_crcs_at(spec),
                           spec->layers);
}

// How far the extents of a block were checked, a piece at a time.
typedef struct kvs_image_progress {
    uint64_t bytes;
    uint32_t crc; // of the extent in which it ends
} kvs_image_progress_t;

typedef struct kvs_image_piece {
    const uint8_t *bytes; // those behind the progress
    size_t count;
} kvs_image_piece_t;

// False: an extent that ends in this piece has not the checksum that it should.
static inline bool kvs_image_check_piece(const kvs_spec_t *spec, const uint32_t *crcs,
                                         kvs_image_progress_t *progress,
                                         const kvs_image_piece_t *piece)
{
    for (size_t done = 0; done < piece->count;) {
        uint64_t layer = progress->bytes / spec->extent_bytes;
        size_t extent_left = spec->extent_bytes - progress->bytes % spec->extent_bytes;
        size_t left = piece->count - done, now = left < extent_left ? left : extent_left;
        progress->crc = as_crc32c(progress->crc, piece->bytes + done, now);
        progress->bytes += now;
        done += now;
        if (now == extent_left) {
            if (progress->crc != crcs[layer]) {
                return false;
            }
            progress->crc = 0;
        }
    }
    return true;
}

// AS_ERR_CHECKSUM when these are not the bytes of that block.
static inline as_status_t kvs_image_check(const kvs_record_t *record, const void *image)
{
    const kvs_spec_t *spec = &record->spec;
    if (kvs_image_digest(spec, image) != record->digest) {
        return AS_ERR_CHECKSUM;
    }
    const uint8_t *extents = image;
    const uint32_t *crcs = (const uint32_t *)(const void *)(extents + kvs_image_crcs_at(spec));
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        if (as_crc32c(0, extents + (size_t)layer * spec->extent_bytes, spec->extent_bytes) !=
            crcs[layer]) {
            return AS_ERR_CHECKSUM;
        }
    }
    return AS_OK;
}

#endif
