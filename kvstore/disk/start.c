// SPDX-License-Identifier: Apache-2.0
// Opening and closing the disk tier. What is on disk is found from the catalog and from the names of
// the files; no block is read.
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/state.h"

#define SEGMENT_BYTES  (1ull << 30)
#define SEGMENTS_USUAL 8u

typedef struct found {
    kvs_disk_t *disk;
    uint64_t lost; // records whose file is not there
    as_status_t status;
} found_t;

static kvs_segment_t *segment_find(const kvs_disk_t *disk, uint32_t number)
{
    kvs_segment_t *segment = disk->oldest;
    while (segment && segment->number != number) {
        segment = segment->newer;
    }
    return segment;
}

static void on_record(void *ctx, const kvs_record_t *record)
{
    found_t *found = ctx;
    kvs_disk_t *disk = found->disk;
    // Neighbours mostly lie in the same segment.
    kvs_segment_t *segment = segment_find(disk, record->segment);
    uint32_t at;
    if (!segment || record->offset + kvs_image_bytes(&record->spec) > disk->options.segment_bytes) {
        found->lost++;
        kvs_catalog_delete(kvs_files_catalog(disk->files), &record->spec);
        return;
    }
    as_status_t status = kvs_table_add(disk, record, segment, &at);
    if (status != AS_OK) {
        found->status = status;
        return;
    }
    // What lies behind the last block that is known belongs to none: it is written over.
    uint64_t end = record->offset + kvs_image_bytes(&record->spec);
    segment->used_bytes = segment->used_bytes > end ? segment->used_bytes : end;
    kvs_table_found(disk, at);
    disk->entries[at].durable = true; // opening has synced both
}

typedef struct numbers {
    uint32_t *all;
    uint32_t count, max;
} numbers_t;

static void on_segment(void *ctx, uint32_t number)
{
    numbers_t *numbers = ctx;
    if (numbers->count < numbers->max) {
        numbers->all[numbers->count] = number;
    }
    numbers->count++;
}

static int ascending(const void *a, const void *b)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    return first < second ? -1 : first > second;
}

// The newest files that the limit allows; the others go now, their records with the next step.
static as_status_t find_segments(kvs_disk_t *disk)
{
    numbers_t numbers = {.max = 2 * KVS_DISK_SEGMENTS_MAX};
    numbers.all = as_mem_alloc(numbers.max * sizeof(uint32_t));
    if (!numbers.all) {
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status = kvs_files_each_segment(disk->files, on_segment, &numbers);
    if (status == AS_OK && numbers.count > numbers.max) {
        AS_ERROR("disk", "more than %u segment files in %s", numbers.max, disk->options.directory);
        status = AS_ERR_LIMIT;
    }
    if (status == AS_OK) {
        qsort(numbers.all, numbers.count, sizeof(uint32_t), ascending);
    }
    uint32_t skip = numbers.count > disk->segments_max ? numbers.count - disk->segments_max : 0;
    for (uint32_t i = 0; status == AS_OK && i < numbers.count; i++) {
        disk->last_number = numbers.all[i];
        if (i < skip) {
            kvs_files_remove_segment(disk->files, numbers.all[i]);
            continue;
        }
        kvs_segment_t *segment = kvs_segment_begin(disk, numbers.all[i]);
        if (kvs_files_open_segment(disk->files, segment) == AS_OK) {
            kvs_segment_link(disk, segment);
        } else {
            segment->number = 0;
        }
    }
    for (kvs_segment_t *at = disk->oldest; at && at->newer; at = at->newer) {
        at->used_bytes = disk->options.segment_bytes; // only the newest is appended to
    }
    as_mem_free(numbers.all);
    return status;
}

// A catalog that could not be read to its end would not be written to either.
static as_status_t renew(kvs_disk_t *disk)
{
    kvs_catalog_t *catalog = kvs_files_catalog(disk->files);
    as_status_t status = kvs_catalog_renew(catalog);
    for (uint32_t at = 0; status == AS_OK && at < disk->entries_max; at++) {
        if (disk->entries[at].segment) {
            kvs_catalog_put(catalog, &disk->entries[at].record);
        }
    }
    return status == AS_OK ? kvs_catalog_commit(catalog, true) : status;
}

static as_status_t find_blocks(kvs_disk_t *disk)
{
    found_t found = {.disk = disk};
    kvs_catalog_t *catalog = kvs_files_catalog(disk->files);
    bool damaged;
    uint64_t unsound = kvs_catalog_each(catalog, on_record, &found, &damaged);
    as_status_t status = damaged ? renew(disk) : kvs_catalog_commit(catalog, false);
    if (damaged && status != AS_OK) {
        return status;
    } // else logged; they are found again at the next start
    disk->stat.catalog_faults = kvs_catalog_faults(catalog) + unsound + found.lost;
    AS_INFO("disk", "%llu blocks in %u segments of %s; %llu records were lost, %llu unsound",
            (unsigned long long)disk->stat.blocks, disk->segment_count, disk->options.directory,
            (unsigned long long)found.lost, (unsigned long long)unsound);
    return found.status;
}

static as_status_t options_check(kvs_disk_options_t *options)
{
    if (options->segment_bytes == 0) {
        uint64_t part = options->bytes_max / SEGMENTS_USUAL / KVS_POOL_GRAIN_BYTES;
        options->segment_bytes = part * KVS_POOL_GRAIN_BYTES;
        options->segment_bytes =
            options->segment_bytes < SEGMENT_BYTES ? options->segment_bytes : SEGMENT_BYTES;
        options->segment_bytes = options->segment_bytes > KVS_DISK_SEGMENT_BYTES_MIN
                                     ? options->segment_bytes
                                     : KVS_DISK_SEGMENT_BYTES_MIN;
    }
    bool sound = options->loop && options->directory && options->on_gone &&
                 options->segment_bytes >= KVS_DISK_SEGMENT_BYTES_MIN &&
                 options->segment_bytes % KVS_POOL_GRAIN_BYTES == 0 &&
                 options->bytes_max / options->segment_bytes >= 2 && options->queue_bytes_max > 0 &&
                 options->reads_max > 0;
    if (!sound) {
        AS_ERROR("disk", "the disk tier needs at least two segments of 1MiB");
    }
    return sound ? AS_OK : AS_ERR_CONFIG;
}

as_status_t kvs_disk_alloc(const kvs_disk_options_t *options, kvs_disk_t **disk_p)
{
    kvs_disk_options_t checked = *options;
    as_status_t status = options_check(&checked);
    if (status != AS_OK) {
        return status;
    }
    kvs_disk_t *disk = as_mem_zalloc(1, sizeof(*disk));
    if (!disk) {
        return AS_ERR_NO_MEMORY;
    }
    disk->options = checked;
    uint64_t segments = checked.bytes_max / checked.segment_bytes;
    disk->segments_max =
        (uint32_t)(segments < KVS_DISK_SEGMENTS_MAX ? segments : KVS_DISK_SEGMENTS_MAX);
    disk->slots_last = disk->segments_max;
    disk->stat.bytes_max = disk->segments_max * checked.segment_bytes;
    disk->segments = as_mem_zalloc(disk->segments_max + 1, sizeof(kvs_segment_t));
    status = disk->segments ? kvs_table_init(disk) : AS_ERR_NO_MEMORY;
    if (status == AS_OK) {
        status = kvs_files_open(checked.directory, checked.segment_bytes, &disk->files);
    }
    if (status == AS_OK) {
        status = find_segments(disk);
    }
    if (status == AS_OK) {
        status = find_blocks(disk);
    }
    if (status == AS_OK) {
        status = kvs_worker_alloc(checked.loop, kvs_files_write, disk->files, &disk->writer);
    }
    if (status == AS_OK) {
        status = kvs_worker_alloc(checked.loop, kvs_files_read, disk->files, &disk->reader);
    }
    if (status != AS_OK) {
        kvs_disk_free(disk);
        return status;
    }
    *disk_p = disk;
    return AS_OK;
}

// Also of a tier that is only half made.
void kvs_disk_free(kvs_disk_t *disk)
{
    if (!disk) {
        return;
    }
    disk->stat.read_only = true; // whoever is called back from here cannot write again
    kvs_worker_free(disk->reader);
    kvs_worker_free(disk->writer);
    disk->reader = disk->writer = NULL;
    while (disk->jobs) { // done, and posted
        as_loop_unpost(disk->options.loop, &disk->jobs->task);
        kvs_disk_job_done(disk->jobs);
    }
    if (disk->forgot_late && kvs_catalog_commit(kvs_files_catalog(disk->files), true) != AS_OK) {
        AS_WARN("disk", "blocks that were removed while they were written may be there again");
    }
    for (uint32_t i = 0; disk->segments && i <= disk->slots_last; i++) {
        if (disk->segments[i].number != 0 && disk->segments[i].fd >= 0) {
            close(disk->segments[i].fd);
        }
    }
    kvs_files_close(disk->files);
    as_mem_free(disk->segments);
    kvs_table_free(disk);
    as_mem_free(disk);
}
