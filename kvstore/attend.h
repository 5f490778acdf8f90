// SPDX-License-Identifier: Apache-2.0
// ATTENDs that a store has: being received, waiting, being computed, being answered. Not for others:
// see kvstore.h.
#ifndef KVS_ATTEND_H
#define KVS_ATTEND_H

#include <stdatomic.h>
#include "kernels/kernels.h"
#include "kvstore/store.h"

// Of all connections; one of them has at most as many as it leaves to the others, so no client keeps
// another's from being computed for longer than its own share of the queue.
#define KVS_ATTENDS_MAX       64u
#define KVS_ATTENDS_BYTES_MAX ((size_t)128 << 20) // of them: queries, answers, scratch
// One waits at most so long, whatever its client allows: well within the time in which a client takes
// a store that says nothing for dead.
#define KVS_ATTEND_WAIT_US_MAX 500000u
#define KVS_ATTEND_NONE        UINT32_MAX

typedef struct kvs_attend_piece {
    uint32_t first, count; // of the job's extents
} kvs_attend_piece_t;

typedef struct kvs_attend_job {
    kvs_conn_t *conn;
    struct kvs_attend_job *next; // of those that wait
    uint64_t request, lease_id, came_us, until_us;
    size_t bytes; // of memory
    bool waiting;
    // what is to be computed: constant once it waits
    uint32_t layer, rows, q_heads, kv_heads, dim, tokens;
    float scale;
    uint32_t q_crc;
    size_t q_bytes, extent_bytes, piece_bytes;
    uint32_t piece_count, extent_count;
    kvs_attend_piece_t *pieces;
    uint32_t *blocks;        // [extent_count]: ids of the index; pinned
    uint16_t *places;        // [extent_count]: in the lease
    const uint8_t **extents; // [extent_count]
    uint32_t *crcs;          // [extent_count]: promised
    krn_page_t *pages;       // [extent_count]
    int32_t *positions;      // [rows]
    float *q;
    void *scratch;
    // what became of it: written by the thread that computes, read once it is done
    _Atomic bool abandoned; // nobody waits for it
    uint8_t *answer;        // piece_count * piece_bytes
    as_status_t status;
    uint32_t bad; // the extent that was not what was promised, or KVS_ATTEND_NONE
    uint32_t answer_crc;
} kvs_attend_job_t;

struct kvs_attends {
    kvs_store_t *store;
    kvs_attend_job_t *first, **last; // that wait, in the order in which they came
    kvs_attend_job_t *running;
    uint32_t count;
    size_t bytes;
    as_task_t done;              // the running one is computed; without a thread: is to be
    struct kvs_attender *thread; // NULL: computed on the loop
    krn_pool_t *pool;
    const krn_ops_t *ops;
};

// attend_compute.c: one job at a time, on a thread of its own and the pool's.
void kvs_attend_compute(const kvs_attends_t *attends, kvs_attend_job_t *job);
// `done` is posted to the store's loop after each job.
as_status_t kvs_attender_alloc(kvs_attends_t *attends, struct kvs_attender **thread_p) AS_MUST_USE;
void kvs_attender_free(struct kvs_attender *thread); // after its job; NULL is fine
void kvs_attender_give(struct kvs_attender *thread, kvs_attend_job_t *job);

#endif
