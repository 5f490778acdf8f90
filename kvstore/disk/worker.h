// SPDX-License-Identifier: Apache-2.0
// A thread with a queue of jobs, which it takes all at once: so that what has gathered while it
// worked shares one wait for the disk.
#ifndef KVS_DISK_WORKER_H
#define KVS_DISK_WORKER_H

#include <errno.h>

#include "common/loop.h"
#include "kvstore/disk/catalog.h"
#include "kvstore/disk/io.h"

// Whether an errno says that there is no room: the disk is full, or the store's share of it.
static inline bool kvs_is_full(int error)
{
    return error == ENOSPC || error == EDQUOT;
}

typedef enum kvs_job_kind {
    KVS_JOB_WRITE,  // a block into its segment, then into the catalog
    KVS_JOB_SYNC,   // what was written of a block: safe from a power cut
    KVS_JOB_READ,   // a block from its segment, checked
    KVS_JOB_FORGET, // a block out of the catalog, for good
    KVS_JOB_SETTLE, // nothing; what was given before it has been done
    KVS_JOB_DROP,   // the blocks of a segment out of the catalog
    KVS_JOB_REMOVE, // then its file, once nothing reads it
} kvs_job_kind_t;

// A file of blocks. `fd` and `failed` are the writer's until a block of it is found; the rest is
// the loop's.
typedef struct kvs_segment {
    uint32_t number; // 0: unused
    int fd;          // -1: not open
    int failed;      // errno of making it
    int unsafe;      // the writer's: errno of a sync, which a later one does not tell again
    uint64_t used_bytes;
    uint32_t first_entry; // of the list of its entries
    uint32_t entries, writing, reads;
    bool broken;  // its file could not be made
    bool spoiled; // a sync of it failed: nothing more is written to it
    bool going;   // its blocks are forgotten, its file goes once nothing reads it
    struct kvs_segment *older, *newer;
} kvs_segment_t;

typedef struct kvs_job {
    struct kvs_job *next;                  // in the queue, or of those that wait for a WRITE
    struct kvs_job *prev_open, *next_open; // of all that are out
    kvs_job_kind_t kind;
    as_task_t task; // posted to the loop when it is done
    struct kvs_disk *disk;
    kvs_segment_t *segment;
    kvs_record_t record;
    uint32_t entry;          // WRITE: of the table
    void *image;             // WRITE, READ: the extents, then their checksums
    size_t at;               // READ of a piece: where it begins in the image
    size_t bytes;            // of the image on disk, or of the piece; a multiple of 4096
    struct kvs_check *check; // READ: a piece for check.c; NULL: a whole block
    bool durable;
    bool unsafe;           // a sync of its segment has failed
    bool again;            // SETTLE: once more, behind what the first one let go on
    kvs_record_t *dropped; // DROP: owned
    uint32_t dropped_count;
    kvs_io_op_t io;
    as_status_t status;
    int error;        // errno behind it
    bool failed_with; // another WRITE that was done together with this one has failed
    void (*done)(void *ctx, as_status_t status);
    void *ctx;
} kvs_job_t;

typedef struct kvs_worker kvs_worker_t;

// `run` gets a list of jobs, sets their statuses and calls kvs_worker_finish for each.
as_status_t kvs_worker_alloc(as_loop_t *loop,
                             void (*run)(void *ctx, kvs_worker_t *worker, kvs_job_t *jobs),
                             void *ctx, kvs_worker_t **worker_p) AS_MUST_USE;
// Runs what is queued, then ends. NULL is fine.
void kvs_worker_free(kvs_worker_t *worker);
void kvs_worker_give(kvs_worker_t *worker, kvs_job_t *job);
// For `run`: what has been given meanwhile, or NULL; and the end of a job, which the loop may free.
kvs_job_t *kvs_worker_more(kvs_worker_t *worker);
void kvs_worker_finish(kvs_worker_t *worker, kvs_job_t *job);

// What the two threads do (files.c).
typedef struct kvs_files kvs_files_t;
as_status_t kvs_files_open(const char *directory, uint64_t segment_bytes,
                           kvs_files_t **files_p) AS_MUST_USE;
void kvs_files_close(kvs_files_t *files); // NULL is fine
kvs_catalog_t *kvs_files_catalog(kvs_files_t *files);
as_status_t kvs_files_open_segment(kvs_files_t *files, kvs_segment_t *segment) AS_MUST_USE;
// Calls with the number of every segment file there is.
as_status_t kvs_files_each_segment(kvs_files_t *files, void (*each)(void *ctx, uint32_t number),
                                   void *ctx) AS_MUST_USE;
void kvs_files_remove_segment(kvs_files_t *files, uint32_t number);
void kvs_files_write(void *files, kvs_worker_t *worker, kvs_job_t *jobs); // all but READ
void kvs_files_read(void *files, kvs_worker_t *worker, kvs_job_t *jobs);  // READ
void kvs_files_wake_reader(kvs_files_t *files);                           // it was given more

#endif
