// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/check.h"

#include <string.h>

#include "kvstore/disk/state.h"

bool kvs_disk_check_begin(const kvs_disk_t *disk, uint32_t *cursor_p, kvs_check_t *check)
{
    const kvs_spec_t *spec = kvs_disk_next(disk, cursor_p);
    if (!spec) {
        return false;
    }
    check->record = disk->entries[*cursor_p - 1].record;
    check->progress = (kvs_image_progress_t){0};
    check->crcs_here = false;
    return true;
}

bool kvs_check_is_over(const kvs_check_t *check)
{
    return check->crcs_here && check->progress.bytes == kvs_image_crcs_at(&check->record.spec);
}

// Where the next piece begins in the image.
static size_t next_at(const kvs_check_t *check)
{
    size_t crcs_at = kvs_image_crcs_at(&check->record.spec);
    return check->crcs_here ? check->progress.bytes : crcs_at - crcs_at % KVS_POOL_GRAIN_BYTES;
}

as_status_t kvs_disk_check_next(kvs_disk_t *disk, kvs_check_t *check, kvs_disk_done_fn done,
                                void *ctx)
{
    const kvs_spec_t *spec = &check->record.spec;
    uint32_t at = kvs_table_find(disk, &spec->key, kvs_realm_of(spec));
    const kvs_entry_t *entry = at == KVS_DISK_NONE ? NULL : &disk->entries[at];
    if (!entry || entry->writing || entry->record.segment != check->record.segment ||
        entry->record.offset != check->record.offset) {
        return AS_ERR_NOT_FOUND;
    }
    kvs_job_t *job = kvs_disk_read_job(disk, at);
    if (!job) {
        return AS_ERR_BUSY;
    }
    size_t left = kvs_image_bytes(spec) - next_at(check);
    job->check = check;
    job->at = next_at(check);
    job->image = check->piece;
    job->bytes = left < KVS_CHECK_PIECE_BYTES ? left : KVS_CHECK_PIECE_BYTES;
    job->done = done;
    job->ctx = ctx;
    kvs_disk_give_read(disk, job);
    return AS_OK;
}

static as_status_t take_crcs(kvs_check_t *check)
{
    const kvs_spec_t *spec = &check->record.spec;
    memcpy(check->crcs, check->piece + kvs_image_crcs_at(spec) % KVS_POOL_GRAIN_BYTES,
           spec->layers * sizeof(uint32_t));
    check->crcs_here = true;
    bool right = as_block_digest(&spec->key, check->crcs, spec->layers) == check->record.digest;
    return right ? AS_OK : AS_ERR_CHECKSUM;
}

as_status_t kvs_check_take(kvs_check_t *check)
{
    const kvs_spec_t *spec = &check->record.spec;
    if (!check->crcs_here) {
        return take_crcs(check);
    }
    size_t left = kvs_image_crcs_at(spec) - check->progress.bytes;
    size_t bytes = left < KVS_CHECK_PIECE_BYTES ? left : KVS_CHECK_PIECE_BYTES;
    bool right = kvs_image_check_piece(spec, check->crcs, &check->progress,
                                       &(kvs_image_piece_t){check->piece, bytes});
    return right ? AS_OK : AS_ERR_CHECKSUM;
}
