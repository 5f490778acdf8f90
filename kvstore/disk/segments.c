// SPDX-License-Identifier: Apache-2.0
// The segments of the disk tier in their order: the newest is written, the oldest goes when the limit
// is reached.
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/state.h"

void kvs_segment_link(kvs_disk_t *disk, kvs_segment_t *segment)
{
    segment->older = disk->newest;
    segment->newer = NULL;
    if (disk->newest) {
        disk->newest->newer = segment;
    } else {
        disk->oldest = segment;
    }
    disk->newest = segment;
    disk->segment_count++;
}

void kvs_segment_unlink(kvs_disk_t *disk, kvs_segment_t *segment)
{
    if (segment->older) {
        segment->older->newer = segment->newer;
    } else {
        disk->oldest = segment->newer;
    }
    if (segment->newer) {
        segment->newer->older = segment->older;
    } else {
        disk->newest = segment->older;
    }
    disk->segment_count--;
}

kvs_segment_t *kvs_segment_begin(kvs_disk_t *disk, uint32_t number)
{
    for (uint32_t i = 0; i <= disk->slots_last; i++) {
        if (disk->segments[i].number == 0) {
            disk->segments[i] =
                (kvs_segment_t){.number = number, .fd = -1, .first_entry = KVS_DISK_NONE};
            disk->last_number = number > disk->last_number ? number : disk->last_number;
            return &disk->segments[i];
        }
    }
    return NULL;
}

void kvs_segment_remove_if_unread(kvs_disk_t *disk, kvs_segment_t *segment)
{
    if (!segment->going || segment->reads > 0 || !disk->writer) {
        return;
    }
    kvs_job_t *job = kvs_disk_job(disk, KVS_JOB_REMOVE);
    if (job) {                          // else with the next read, or at the next start
        segment->reads = KVS_DISK_NONE; // once
        job->segment = segment;
        kvs_worker_give(disk->writer, job);
    }
}

// Lets the oldest segment go, with its blocks.
static as_status_t drop_oldest(kvs_disk_t *disk)
{
    kvs_segment_t *segment = disk->oldest;
    if (!segment || segment->writing > 0) {
        return AS_ERR_BUSY;
    }
    kvs_record_t *dropped = as_mem_zalloc(segment->entries + 1, sizeof(kvs_record_t));
    kvs_job_t *job = dropped ? kvs_disk_job(disk, KVS_JOB_DROP) : NULL;
    if (!job) {
        as_mem_free(dropped);
        return AS_ERR_NO_MEMORY;
    }
    job->dropped = dropped;
    kvs_segment_unlink(disk, segment);
    segment->going = true;
    while (segment->first_entry != KVS_DISK_NONE) {
        dropped[job->dropped_count++] = disk->entries[segment->first_entry].record;
        kvs_table_remove(disk, segment->first_entry);
    }
    disk->stat.dropped_blocks += job->dropped_count;
    job->segment = segment;
    // The owner is told once the job is done: it may write, and must not from in here.
    kvs_worker_give(disk->writer, job);
    return AS_OK;
}

// Also those that go.
static uint32_t file_count(const kvs_disk_t *disk)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= disk->slots_last; i++) {
        count += disk->segments[i].number != 0 && !disk->segments[i].broken;
    }
    return count;
}

// The segment that has room for so many bytes.
as_status_t kvs_segment_for(kvs_disk_t *disk, size_t bytes, kvs_segment_t **segment_p)
{
    kvs_segment_t *newest = disk->newest;
    if (newest && !newest->broken && !newest->spoiled &&
        newest->used_bytes + bytes <= disk->options.segment_bytes) {
        *segment_p = newest;
        return AS_OK;
    }
    while (disk->segment_count >= disk->segments_max) {
        as_status_t status = drop_oldest(disk);
        if (status != AS_OK) {
            return status;
        }
    }
    if (disk->files_max > 0 && file_count(disk) >= disk->files_max) {
        return AS_ERR_BUSY; // until one that goes is gone
    }
    kvs_segment_t *segment = kvs_segment_begin(disk, disk->last_number + 1);
    if (!segment) {
        return AS_ERR_BUSY; // the one that goes is not gone yet
    }
    kvs_segment_link(disk, segment);
    *segment_p = segment;
    return AS_OK;
}

static void keep_to(kvs_disk_t *disk, uint32_t files_max)
{
    disk->files_max = files_max;
    disk->segments_max = files_max > 1 ? files_max - 1 : 1;
    AS_WARN("disk", "the disk is full: the tier keeps to %u segments", disk->segments_max);
}

static bool is_any_going(const kvs_disk_t *disk)
{
    for (uint32_t i = 0; i <= disk->slots_last; i++) {
        if (disk->segments[i].number != 0 && disk->segments[i].going) {
            return true;
        }
    }
    return false;
}

// No room is left beside the segments: for the catalog, or for blocks where the file system reserves
// nothing. The oldest goes, and the limit becomes one less.
bool kvs_segments_make_room(kvs_disk_t *disk)
{
    if (is_any_going(disk)) {
        return true;
    }
    if (!disk->writer || disk->segment_count < 2 || drop_oldest(disk) != AS_OK) {
        return false;
    }
    keep_to(disk, disk->segment_count);
    return true;
}

// The file of a segment could not be made. On a full disk the limit becomes one less than what there
// is, so that the next can be made while the oldest goes.
void kvs_segment_broke(kvs_disk_t *disk, kvs_segment_t *segment)
{
    if (!segment->broken) {
        segment->broken = true;
        kvs_segment_unlink(disk, segment);
        if (kvs_is_full(segment->failed) && disk->segment_count > 0) {
            keep_to(disk, file_count(disk));
        }
    }
    if (segment->writing == 0) {
        segment->number = 0; // it has no block and no file
    }
}
