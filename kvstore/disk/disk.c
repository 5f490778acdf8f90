// SPDX-License-Identifier: Apache-2.0
// The loop's side of the disk tier: which blocks are on disk, which segment is written, and what is
// under way. See disk.h.
#include "kvstore/disk/disk.h"

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/state.h"

#define FAILURES_MAX 8u // in a row; of what is written together one counts

// ---- jobs

kvs_job_t *kvs_disk_job(kvs_disk_t *disk, kvs_job_kind_t kind)
{
    kvs_job_t *job = as_mem_zalloc(1, sizeof(*job));
    if (job) {
        job->kind = kind;
        job->disk = disk;
        job->task = (as_task_t){.fn = kvs_disk_job_done, .ctx = job};
        job->next_open = disk->jobs;
        if (disk->jobs) {
            disk->jobs->prev_open = job;
        }
        disk->jobs = job;
    }
    return job;
}

static void job_free(kvs_job_t *job)
{
    if (job->next_open) {
        job->next_open->prev_open = job->prev_open;
    }
    if (job->prev_open) {
        job->prev_open->next_open = job->next_open;
    } else {
        job->disk->jobs = job->next_open;
    }
    as_mem_free(job->dropped);
    as_mem_free(job);
}

// ---- the end of jobs

static void was_not_forgotten(kvs_disk_t *disk)
{
    if (!disk->unforgotten) {
        AS_ERROR("disk", "a removed block could not be taken out of the catalog: it may be there "
                         "again at the next start; see to the disk, start the store again and "
                         "drop it once more");
    }
    disk->unforgotten = true;
}

static void forget(kvs_disk_t *disk, uint32_t at)
{
    const kvs_record_t *record = &disk->entries[at].record;
    kvs_job_t *job = disk->writer ? kvs_disk_job(disk, KVS_JOB_FORGET) : NULL;
    if (job) {
        job->record = *record;
        job->durable = true;
        kvs_worker_give(disk->writer, job);
    } else if (!disk->writer) { // the tier ends, and commits this
        kvs_catalog_delete(kvs_files_catalog(disk->files), &record->spec);
        disk->forgot_late = true;
    } else {
        was_not_forgotten(disk);
    }
    kvs_table_remove(disk, at);
}

// Those that wait for a block that was written, or not.
static void wake_syncs(kvs_disk_t *disk, const kvs_job_t *write, kvs_job_t *waiting)
{
    for (kvs_job_t *job = waiting, *next; job; job = next) {
        next = job->next;
        if (write->status == AS_OK && !write->durable && disk->writer) {
            kvs_worker_give(disk->writer, job);
            continue;
        }
        job->status = write->status == AS_OK && !write->durable ? AS_ERR_CANCELLED : write->status;
        as_loop_post(disk->options.loop, &job->task);
    }
}

// True: the disk was full, and what was given anew now would find room soon.
static bool is_room_made(kvs_disk_t *disk, const kvs_job_t *job)
{
    if (job->status != AS_ERR_LIMIT) {
        return false;
    }
    return job->segment && job->segment->failed != 0 ? disk->segment_count > 0
                                                     : kvs_segments_make_room(disk);
}

// A sync of the segment has failed: what of it is not safe yet may never have come to the disk, and is
// forgotten. Its owner may write it again, elsewhere. What is still `writing` has its turn when it ends.
static void spoil(kvs_disk_t *disk, kvs_segment_t *segment)
{
    if (!segment->spoiled) {
        AS_ERROR("disk",
                 "a sync of segment %u failed: its blocks that were not safe yet are forgotten",
                 segment->number);
    }
    segment->spoiled = true;
    kvs_spec_t *gone = as_mem_zalloc(segment->entries + 1, sizeof(*gone));
    uint32_t count = 0;
    for (uint32_t at = segment->first_entry, next; gone && at != KVS_DISK_NONE; at = next) {
        next = disk->entries[at].next;
        if (!disk->entries[at].writing && !disk->entries[at].durable) {
            gone[count++] = disk->entries[at].record.spec;
            forget(disk, at);
        }
    }
    for (uint32_t i = 0; disk->writer && i < count; i++) {
        disk->options.on_gone(disk->options.ctx, &gone[i]);
    }
    as_mem_free(gone);
}

static void written(kvs_disk_t *disk, kvs_job_t *job)
{
    kvs_segment_t *segment = job->segment;
    segment->writing--;
    disk->stat.queued_bytes -= job->bytes;
    wake_syncs(disk, job, disk->entries[job->entry].waiting);
    disk->entries[job->entry].waiting = NULL;
    if (job->status == AS_OK) {
        kvs_table_found(disk, job->entry);
        disk->entries[job->entry].durable = job->durable;
        disk->stat.written_blocks++;
        disk->stat.written_bytes += job->bytes;
        disk->failures_in_a_row = 0;
        if (disk->entries[job->entry].unwanted) {
            disk->unwanted--;
            forget(disk, job->entry);
        }
        return;
    }
    disk->unwanted -= disk->entries[job->entry].unwanted;
    kvs_table_remove(disk, job->entry);
    disk->stat.failures++;
    if (segment->failed != 0) {
        kvs_segment_broke(disk, segment);
    }
    bool counts = !job->failed_with && !is_room_made(disk, job);
    disk->failures_in_a_row += counts;
    if (counts && disk->failures_in_a_row == FAILURES_MAX) {
        disk->stat.read_only = true;
        AS_ERROR("disk",
                 "%u writes in a row failed: the tier only reads from here; see to the disk "
                 "and start the store again",
                 FAILURES_MAX);
    }
}

// The entry of a job's block, where it still lies there.
static uint32_t entry_of(const kvs_disk_t *disk, const kvs_job_t *job)
{
    const kvs_spec_t *spec = &job->record.spec;
    uint32_t at = kvs_table_find(disk, &spec->key, kvs_realm_of(spec));
    bool same = at != KVS_DISK_NONE && !disk->entries[at].writing &&
                disk->entries[at].record.segment == job->record.segment &&
                disk->entries[at].record.offset == job->record.offset;
    return same ? at : KVS_DISK_NONE;
}

// At the end of the tier a SYNC is called back before the WRITE that it waits for.
static void wait_no_more(kvs_disk_t *disk, const kvs_job_t *job)
{
    uint32_t at = kvs_table_find(disk, &job->record.spec.key, kvs_realm_of(&job->record.spec));
    kvs_job_t **link = at == KVS_DISK_NONE ? NULL : &disk->entries[at].waiting;
    while (link && *link) {
        if (*link == job) {
            *link = job->next;
            return;
        }
        link = &(*link)->next;
    }
}

static void was_synced(kvs_disk_t *disk, const kvs_job_t *job)
{
    wait_no_more(disk, job);
    uint32_t at = entry_of(disk, job);
    if (job->status != AS_OK) {
        disk->stat.failures++;
        AS_WARN("disk", "a block could not be made durable: %s", as_status_str(job->status));
    } else if (at != KVS_DISK_NONE) {
        disk->entries[at].durable = true;
        disk->stat.synced_blocks++;
    }
}

static void was_read(kvs_disk_t *disk, kvs_job_t *job)
{
    const kvs_spec_t *spec = &job->record.spec;
    job->segment->reads--;
    disk->reads--;
    kvs_segment_remove_if_unread(disk, job->segment);
    if (job->status == AS_OK) {
        disk->stat.read_blocks += !job->check;
        disk->stat.read_bytes += job->check ? 0 : job->bytes;
        return;
    }
    disk->stat.failures += job->status != AS_ERR_CHECKSUM;
    disk->stat.corrupt_blocks += job->status == AS_ERR_CHECKSUM;
    AS_WARN("disk", "a block of segment %u at %llu: %s: taken as a miss", job->record.segment,
            (unsigned long long)job->record.offset, as_status_str(job->status));
    uint32_t at = entry_of(disk, job);
    if (at != KVS_DISK_NONE) {
        forget(disk, at);
        disk->options.on_gone(disk->options.ctx, spec);
    }
}

static void was_dropped(kvs_disk_t *disk, kvs_job_t *job)
{
    kvs_segment_remove_if_unread(disk, job->segment);
    for (uint32_t i = 0; i < job->dropped_count; i++) {
        disk->options.on_gone(disk->options.ctx, &job->dropped[i].spec);
    }
}

// True: it goes round once more, behind the FORGETs of blocks that were being written.
static bool was_settled(kvs_disk_t *disk, kvs_job_t *job)
{
    if (job->again && disk->writer) {
        job->again = false;
        kvs_worker_give(disk->writer, job);
        return true;
    }
    job->status = disk->unforgotten ? AS_ERR_IO : AS_OK;
    return false;
}

void kvs_disk_job_done(void *ctx)
{
    kvs_job_t *job = ctx;
    kvs_disk_t *disk = job->disk;
    if (job->kind == KVS_JOB_SETTLE && was_settled(disk, job)) {
        return;
    }
    bool makes_record = job->kind == KVS_JOB_SYNC || job->kind == KVS_JOB_FORGET;
    if (makes_record && job->status == AS_ERR_LIMIT) {
        kvs_segments_make_room(disk); // for those that come after it
    }
    if (job->kind == KVS_JOB_WRITE) {
        written(disk, job);
    } else if (job->kind == KVS_JOB_FORGET && job->status != AS_OK) {
        was_not_forgotten(disk);
    } else if (job->kind == KVS_JOB_SYNC) {
        was_synced(disk, job);
    } else if (job->kind == KVS_JOB_READ) {
        was_read(disk, job);
    } else if (job->kind == KVS_JOB_DROP) {
        was_dropped(disk, job);
    } else if (job->kind == KVS_JOB_REMOVE) {
        job->segment->number = 0;
    }
    if (job->unsafe && (job->kind == KVS_JOB_WRITE || job->kind == KVS_JOB_SYNC)) {
        spoil(disk, job->segment);
    }
    kvs_disk_done_fn done = job->done;
    void *done_ctx = job->ctx;
    as_status_t status = job->status;
    job_free(job);
    if (done) {
        done(done_ctx, status);
    }
}

// ---- what the store asks

const kvs_spec_t *kvs_disk_find(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t at = kvs_table_find(disk, key, realm);
    return at == KVS_DISK_NONE || disk->entries[at].writing ? NULL : &disk->entries[at].record.spec;
}

as_status_t kvs_disk_write(kvs_disk_t *disk, const kvs_disk_write_t *params)
{
    const kvs_spec_t *spec = params->spec;
    size_t bytes = kvs_image_bytes(spec);
    if (disk->stat.read_only) {
        return AS_ERR_IO;
    }
    if (bytes > disk->options.segment_bytes) {
        return AS_ERR_LIMIT;
    }
    uint32_t at = kvs_table_find(disk, &spec->key, kvs_realm_of(spec));
    if (at != KVS_DISK_NONE) {
        return disk->entries[at].unwanted ? AS_ERR_BUSY : AS_ERR_EXISTS;
    }
    if (disk->stat.queued_bytes > 0 &&
        disk->stat.queued_bytes + bytes > disk->options.queue_bytes_max) {
        return AS_ERR_BUSY;
    }
    kvs_segment_t *segment;
    as_status_t status = kvs_segment_for(disk, bytes, &segment);
    if (status != AS_OK) {
        return status;
    }
    kvs_record_t record = {.spec = *spec,
                           .segment = segment->number,
                           .offset = segment->used_bytes,
                           .digest = kvs_image_digest(spec, params->image)};
    kvs_job_t *job = kvs_disk_job(disk, KVS_JOB_WRITE);
    status = job ? kvs_table_add(disk, &record, segment, &job->entry) : AS_ERR_NO_MEMORY;
    if (status != AS_OK) {
        if (job) {
            job_free(job);
        }
        return status;
    }
    disk->entries[job->entry].writing = true;
    segment->used_bytes += bytes;
    segment->writing++;
    disk->stat.queued_bytes += bytes;
    job->segment = segment;
    job->record = record;
    job->image = params->image;
    job->bytes = bytes;
    job->durable = params->durable;
    job->done = params->done;
    job->ctx = params->ctx;
    kvs_worker_give(disk->writer, job);
    return AS_OK;
}

bool kvs_disk_digest(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm,
                     uint32_t *digest_p)
{
    uint32_t at = kvs_table_find(disk, key, realm);
    if (at == KVS_DISK_NONE || disk->entries[at].unwanted) {
        return false;
    }
    *digest_p = disk->entries[at].record.digest;
    return true;
}

as_status_t kvs_disk_sync(kvs_disk_t *disk, const kvs_spec_t *spec, kvs_disk_done_fn done,
                          void *ctx)
{
    uint32_t at = kvs_table_find(disk, &spec->key, kvs_realm_of(spec));
    if (at == KVS_DISK_NONE) {
        return AS_ERR_NOT_FOUND;
    }
    kvs_entry_t *entry = &disk->entries[at];
    if (entry->unwanted) {
        return AS_ERR_BUSY;
    }
    if (entry->durable) {
        return AS_ERR_EXISTS;
    }
    if (disk->stat.read_only) {
        return AS_ERR_IO;
    }
    kvs_job_t *job = kvs_disk_job(disk, KVS_JOB_SYNC);
    if (!job) {
        return AS_ERR_NO_MEMORY;
    }
    job->record = entry->record;
    job->segment = entry->segment;
    job->durable = true;
    job->status = AS_ERR_CANCELLED; // should the tier end before its turn comes
    job->done = done;
    job->ctx = ctx;
    if (entry->writing) { // else its record could be made before its bytes, or without them
        job->next = entry->waiting;
        entry->waiting = job;
    } else {
        kvs_worker_give(disk->writer, job);
    }
    return AS_OK;
}

kvs_job_t *kvs_disk_read_job(kvs_disk_t *disk, uint32_t at)
{
    kvs_job_t *job = disk->reads < disk->options.reads_max && disk->reader
                         ? kvs_disk_job(disk, KVS_JOB_READ)
                         : NULL;
    if (job) {
        job->record = disk->entries[at].record;
        job->segment = disk->entries[at].segment;
        job->segment->reads++;
        disk->reads++;
    }
    return job;
}

void kvs_disk_give_read(kvs_disk_t *disk, kvs_job_t *job)
{
    kvs_worker_give(disk->reader, job);
    kvs_files_wake_reader(disk->files);
}

as_status_t kvs_disk_read(kvs_disk_t *disk, const kvs_spec_t *spec, void *image,
                          kvs_disk_done_fn done, void *ctx)
{
    uint32_t at = kvs_table_find(disk, &spec->key, kvs_realm_of(spec));
    if (at == KVS_DISK_NONE || disk->entries[at].writing) {
        return AS_ERR_NOT_FOUND;
    }
    kvs_job_t *job = kvs_disk_read_job(disk, at);
    if (!job) {
        return AS_ERR_BUSY;
    }
    job->image = image;
    job->bytes = kvs_image_bytes(spec);
    job->done = done;
    job->ctx = ctx;
    kvs_disk_give_read(disk, job);
    return AS_OK;
}

static void remove_entry(kvs_disk_t *disk, uint32_t at)
{
    if (disk->entries[at].writing) {
        disk->entries[at].unwanted = true;
        disk->unwanted++;
    } else {
        forget(disk, at);
    }
}

as_status_t kvs_disk_settle(kvs_disk_t *disk, kvs_disk_done_fn done, void *ctx)
{
    kvs_job_t *job = kvs_disk_job(disk, KVS_JOB_SETTLE);
    if (!job) {
        return AS_ERR_NO_MEMORY;
    }
    job->again = disk->unwanted > 0;
    job->done = done;
    job->ctx = ctx;
    kvs_worker_give(disk->writer, job);
    return AS_OK;
}

bool kvs_disk_remove(kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t at = kvs_table_find(disk, key, realm);
    if (at == KVS_DISK_NONE || disk->entries[at].unwanted) {
        return false;
    }
    remove_entry(disk, at);
    return true;
}

uint64_t kvs_disk_remove_all(kvs_disk_t *disk)
{
    uint64_t removed = 0;
    for (uint32_t at = 0; at < disk->entries_max; at++) {
        if (disk->entries[at].segment && !disk->entries[at].unwanted) {
            remove_entry(disk, at);
            removed++;
        }
    }
    return removed;
}

const kvs_spec_t *kvs_disk_next(const kvs_disk_t *disk, uint32_t *cursor_p)
{
    for (uint32_t at = *cursor_p; at < disk->entries_max; at++) {
        if (disk->entries[at].segment && !disk->entries[at].writing) {
            *cursor_p = at + 1;
            return &disk->entries[at].record.spec;
        }
    }
    *cursor_p = disk->entries_max;
    return NULL;
}

void kvs_disk_stat(const kvs_disk_t *disk, kvs_disk_stat_t *stat_p)
{
    *stat_p = disk->stat;
    stat_p->segments = disk->segment_count;
    stat_p->catalog_memory_bytes = kvs_catalog_memory(kvs_files_catalog(disk->files));
}
