// SPDX-License-Identifier: Apache-2.0
// ATTEND: attention of a client's queries over blocks that it has leased, computed here.
//
//   arriving -> waiting -> computed, on a thread -> being answered -> over
//
// Its blocks are pinned from when it comes until it is over: a lease that ends meanwhile does no harm,
// and nothing moves under the thread that reads. One job is computed at a time, by all threads of
// --attend-threads together, in the order in which they came; so the loop decides what is next, and
// cancels, times out and refuses what waits without a word to the thread. What is being computed for
// nobody any more is given up at its next extent.
//
// A store that has no room or no time says BUSY, at once or by the time that the client names: it can
// bring the blocks to where it is instead. On a simulated loop the computing is done on the loop.
#include "kvstore/attend.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"

#define GROUP_MAX 192u // query heads to a KV head: more would not fit the kernels' scratch
#define ALIGN     64u

_Static_assert(sizeof(KRN_NUMERICS_VERSION) <= sizeof(((as_wire_attend_t *)0)->numerics),
               "it fits");

static void on_done(void *ctx);

as_status_t kvs_attends_alloc(kvs_store_t *store)
{
    const kvs_store_options_t *options = &store->options;
    if (options->attend_threads == 0) {
        return AS_OK;
    }
    kvs_attends_t *attends = as_mem_zalloc(1, sizeof(*attends));
    if (!attends) {
        return AS_ERR_NO_MEMORY;
    }
    store->attends = attends;
    attends->store = store;
    attends->last = &attends->first;
    attends->done = (as_task_t){.fn = on_done, .ctx = attends};
    attends->ops = krn_cpu();
    if (!attends->ops) {
        AS_ERROR("attend", "ASSAY_KERNELS names no kernels of this machine: unset it, or give "
                           "--attend-threads=0");
        return AS_ERR_CONFIG;
    }
    as_status_t status = krn_pool_alloc(options->attend_threads, &attends->pool);
    if (status == AS_OK && as_loop_uv(options->loop)) {
        status = kvs_attender_alloc(attends, &attends->thread);
    }
    return status;
}

// ---- their life

static void job_end(kvs_attend_job_t *job)
{
    kvs_conn_t *conn = job->conn;
    kvs_attends_t *attends = conn->store->attends;
    kvs_index_t *index = conn->store->index;
    AS_ASSERT(!job->waiting && job != attends->running);
    for (uint32_t i = 0; i < job->extent_count; i++) {
        kvs_index_unpin(index, kvs_index_at(index, job->blocks[i]));
    }
    attends->count--;
    attends->bytes -= job->bytes;
    conn->attends--;
    as_metric_set(&kvs_metrics[KVS_METRIC_ATTENDS_OUT], attends->count);
    as_mem_free(job);
    kvs_conn_drop(conn);
}

static void refuse(kvs_conn_t *conn, uint64_t request, as_status_t status, uint32_t bad_index)
{
    const as_wire_attended_t reply = {
        .head = as_wire_head(AS_WIRE_ATTENDED, request),
        .status = status == AS_ERR_UNSUPPORTED ? AS_WIRE_UNSUPPORTED : as_wire_status_of(status),
        .bad_index = bad_index};
    if (status == AS_ERR_BUSY) {
        as_metric_add(&kvs_metrics[KVS_METRIC_BUSY], 1);
    }
    as_metric_add(&kvs_metrics[KVS_METRIC_ATTENDS_REFUSED], 1);
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

static void compute_next(kvs_attends_t *attends)
{
    kvs_attend_job_t *job = attends->first;
    if (attends->running || !job) {
        return;
    }
    attends->first = job->next;
    attends->last = attends->first ? attends->last : &attends->first;
    job->waiting = false;
    attends->running = job;
    if (attends->thread) {
        kvs_attender_give(attends->thread, job);
    } else {
        as_loop_post(attends->store->options.loop, &attends->done);
    }
}

// Those that wait and of which `is_over` says so are refused with `status` (AS_OK: without a word).
typedef struct sieve {
    const kvs_conn_t *conn; // NULL: of all
    uint64_t lease_id;      // 0: of all
    uint64_t until_us;      // that should have begun by then
} sieve_t;

static void end_waiting(kvs_attends_t *attends, const sieve_t *sieve, as_status_t status)
{
    kvs_attend_job_t **link = &attends->first;
    while (*link) {
        kvs_attend_job_t *job = *link;
        bool is_over = (!sieve->conn || job->conn == sieve->conn) &&
                       (sieve->lease_id == 0 || job->lease_id == sieve->lease_id) &&
                       job->until_us <= sieve->until_us;
        if (!is_over) {
            link = &job->next;
            continue;
        }
        *link = job->next;
        attends->last = *link ? attends->last : link;
        job->waiting = false;
        if (status != AS_OK) {
            refuse(job->conn, job->request, status, 0);
        }
        job_end(job);
    }
}

static void abandon(kvs_attends_t *attends, const sieve_t *sieve)
{
    kvs_attend_job_t *job = attends->running;
    if (job && job->conn == sieve->conn &&
        (sieve->lease_id == 0 || job->lease_id == sieve->lease_id)) {
        atomic_store(&job->abandoned, true);
    }
    end_waiting(attends, sieve, AS_OK);
}

void kvs_attends_end_conn(kvs_conn_t *conn)
{
    if (conn->store->attends) {
        abandon(conn->store->attends, &(sieve_t){.conn = conn, .until_us = UINT64_MAX});
    }
}

void kvs_attends_end_lease(kvs_conn_t *conn, uint64_t lease_id)
{
    if (conn->store->attends && lease_id != 0) {
        abandon(conn->store->attends,
                &(sieve_t){.conn = conn, .lease_id = lease_id, .until_us = UINT64_MAX});
    }
}

bool kvs_attends_sweep(kvs_store_t *store, uint64_t now_us)
{
    kvs_attends_t *attends = store->attends;
    if (!attends) {
        return false;
    }
    end_waiting(attends, &(sieve_t){.until_us = now_us}, AS_ERR_BUSY);
    return attends->first != NULL;
}

void kvs_attends_stop(kvs_store_t *store)
{
    kvs_attends_t *attends = store->attends;
    if (!attends) {
        return;
    }
    AS_ASSERT(!attends->first); // their connections are closed
    kvs_attender_free(attends->thread);
    attends->thread = NULL;
    as_loop_unpost(store->options.loop, &attends->done);
    kvs_attend_job_t *job = attends->running;
    attends->running = NULL;
    if (job) {
        job_end(job);
    }
}

void kvs_attends_free(kvs_store_t *store)
{
    if (store->attends) {
        AS_ASSERT(store->attends->count == 0);
        krn_pool_free(store->attends->pool);
        as_mem_free(store->attends);
        store->attends = NULL;
    }
}

// ---- the answer

static void on_answered(void *ctx, as_status_t status)
{
    kvs_attend_job_t *job = ctx;
    if (status == AS_OK) {
        as_metric_add(&kvs_metrics[KVS_METRIC_ATTEND_BYTES],
                      (int64_t)(job->piece_count * job->piece_bytes));
    }
    kvs_conn_awaited(job->conn, status == AS_OK);
    job_end(job);
}

static void answer(kvs_attend_job_t *job)
{
    kvs_conn_t *conn = job->conn;
    const as_wire_attended_t reply = {.head = as_wire_head(AS_WIRE_ATTENDED, job->request),
                                      .crc = job->answer_crc};
    as_status_t status = as_net_send(conn->net, &reply, sizeof(reply), job->answer,
                                     job->piece_count * job->piece_bytes, on_answered, job);
    if (status != AS_OK) {
        refuse(conn, job->request, AS_ERR_BUSY, 0);
        job_end(job);
        return;
    }
    kvs_conn_await(conn);
    as_metric_add(&kvs_metrics[KVS_METRIC_ATTENDS], 1);
    as_metric_add(&kvs_metrics[KVS_METRIC_ATTEND_PAGES], job->extent_count);
    as_metric_observe(&kvs_metrics[KVS_METRIC_ATTEND_US],
                      as_loop_now_us(conn->store->options.loop) - job->came_us);
}

static void drop_bad(const kvs_attend_job_t *job)
{
    kvs_store_t *store = job->conn->store;
    kvs_block_t *block =
        job->bad == KVS_ATTEND_NONE ? NULL : kvs_index_at(store->index, job->blocks[job->bad]);
    if (block && block->state == KVS_SEALED) { // else it has gone meanwhile
        kvs_scrub_bad(store, block);
    }
}

static void on_done(void *ctx)
{
    kvs_attends_t *attends = ctx;
    kvs_attend_job_t *job = attends->running;
    if (!attends->thread) {
        kvs_attend_compute(attends, job);
    }
    attends->running = NULL;
    compute_next(attends);
    if (!job->conn->net || atomic_load(&job->abandoned) || as_fault(AS_FAULT_attend_answer_drop)) {
        job_end(job);
    } else if (job->status == AS_OK) {
        answer(job);
    } else {
        drop_bad(job);
        refuse(job->conn, job->request, job->status,
               job->bad == KVS_ATTEND_NONE ? UINT32_MAX : job->places[job->bad]);
        job_end(job);
    }
}

// ---- ATTEND

static size_t carve(size_t *at, size_t bytes)
{
    size_t place = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return place;
}

// Where each part of a job lies; returns the bytes of all of it.
static size_t lay_out(kvs_attend_job_t *job, uint8_t *base)
{
    size_t at = 0, blocks = job->extent_count;
    carve(&at, sizeof(*job));
    job->pieces = (void *)(base + carve(&at, job->piece_count * sizeof(*job->pieces)));
    job->blocks = (void *)(base + carve(&at, blocks * sizeof(*job->blocks)));
    job->places = (void *)(base + carve(&at, blocks * sizeof(*job->places)));
    job->extents = (void *)(base + carve(&at, blocks * sizeof(*job->extents)));
    job->crcs = (void *)(base + carve(&at, blocks * sizeof(*job->crcs)));
    job->pages = (void *)(base + carve(&at, blocks * sizeof(*job->pages)));
    job->positions = (void *)(base + carve(&at, job->rows * sizeof(*job->positions)));
    job->q = (void *)(base + carve(&at, job->q_bytes));
    job->answer = base + carve(&at, job->piece_count * job->piece_bytes);
    job->scratch =
        base + carve(&at, krn_attention_scratch_bytes(job->rows, job->q_heads, job->dim));
    return at;
}

// What the kernels rely on, and what a block must be for it. Bytes of all sizes are within the limits.
static as_status_t measure(const as_wire_attend_t *ask, kvs_attend_job_t *job)
{
    char numerics[sizeof(ask->numerics)] = KRN_NUMERICS_VERSION;
    if (memcmp(ask->numerics, numerics, sizeof(numerics)) != 0) {
        return AS_ERR_UNSUPPORTED;
    }
    if (ask->dim % 16 != 0 || ask->dim > KRN_HEAD_DIM_MAX || ask->kv_heads == 0 ||
        ask->q_heads % ask->kv_heads != 0 || ask->q_heads / ask->kv_heads > GROUP_MAX ||
        !isfinite(ask->scale)) {
        return AS_ERR_INVALID;
    }
    *job = (kvs_attend_job_t){.request = ask->head.request,
                              .lease_id = ask->lease_id,
                              .layer = ask->layer,
                              .rows = ask->rows,
                              .q_heads = ask->q_heads,
                              .kv_heads = ask->kv_heads,
                              .dim = ask->dim,
                              .scale = ask->scale,
                              .q_crc = ask->crc,
                              .piece_count = ask->piece_count};
    uint64_t pairs = (uint64_t)ask->rows * ask->q_heads;
    job->q_bytes = pairs * ask->dim * sizeof(float);
    job->piece_bytes = pairs * (ask->dim + 2) * sizeof(float);
    if (job->piece_bytes * ask->piece_count > AS_WIRE_ATTEND_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    for (uint32_t p = 0; p < ask->piece_count; p++) {
        job->extent_count += ask->pieces[p].index_count;
    }
    return job->extent_count <= AS_WIRE_KEYS_MAX ? AS_OK : AS_ERR_LIMIT;
}

// A block of the piece, pinned. AS_ERR_LEASE: the connection may not read it (any more).
static as_status_t gather_block(kvs_attend_job_t *job, uint32_t index_in_lease)
{
    kvs_store_t *store = job->conn->store;
    kvs_block_t *block =
        kvs_lease_block(store->leases, &job->conn->leases, job->lease_id, index_in_lease);
    if (!block) {
        return AS_ERR_LEASE;
    }
    uint64_t half = (uint64_t)job->kv_heads * block->tokens * job->dim * sizeof(krn_f16);
    bool fits = job->layer < block->layers && block->tokens > 0 &&
                block->tokens <= KRN_PAGE_TOKENS_MAX && block->extent_bytes == 2 * half &&
                (job->extent_count == 0 || block->tokens == job->tokens);
    if (!fits) {
        return AS_ERR_INVALID;
    }
    uint32_t i = job->extent_count++;
    job->tokens = block->tokens;
    job->extent_bytes = block->extent_bytes;
    job->blocks[i] = kvs_index_id(store->index, block);
    job->places[i] = (uint16_t)index_in_lease;
    job->extents[i] = kvs_index_extent(store->index, block, job->layer);
    job->crcs[i] = kvs_index_crcs(store->index, block)[job->layer];
    kvs_index_pin(store->index, block);
    return AS_OK;
}

static as_status_t gather(kvs_attend_job_t *job, const as_wire_attend_t *ask)
{
    as_status_t status = AS_OK;
    job->extent_count = 0;
    for (uint32_t p = 0; p < ask->piece_count && status == AS_OK; p++) {
        const as_wire_chain_piece_t *piece = &ask->pieces[p];
        job->pieces[p] = (kvs_attend_piece_t){job->extent_count, piece->index_count};
        for (uint32_t i = 0; i < piece->index_count && status == AS_OK; i++) {
            status = gather_block(job, (uint32_t)piece->index_first + i);
        }
    }
    return status;
}

// Makes the job, with its memory. AS_ERR_BUSY: there is no room.
static as_status_t job_make(kvs_conn_t *conn, const as_wire_attend_t *ask, kvs_attend_job_t **job_p)
{
    kvs_attends_t *attends = conn->store->attends;
    kvs_attend_job_t plan;
    as_status_t status = attends ? measure(ask, &plan) : AS_ERR_UNSUPPORTED;
    if (status != AS_OK) {
        return status;
    }
    // A connection has at most as many as it leaves to the others.
    static uint8_t nowhere[1];
    size_t bytes = lay_out(&plan, nowhere);
    if (conn->attends >= KVS_ATTENDS_MAX - attends->count ||
        bytes > KVS_ATTENDS_BYTES_MAX - attends->bytes) {
        return AS_ERR_BUSY;
    }
    uint8_t *memory = as_mem_aligned(ALIGN, bytes);
    if (!memory) {
        return AS_ERR_BUSY;
    }
    kvs_attend_job_t *job = (void *)memory;
    *job = plan;
    lay_out(job, memory);
    job->conn = conn;
    job->bytes = bytes;
    atomic_init(&job->abandoned, false);
    attends->count++;
    attends->bytes += bytes;
    conn->attends++;
    kvs_conn_hold(conn);
    status = gather(job, ask);
    if (status != AS_OK) {
        job_end(job);
        return status;
    }
    as_metric_set(&kvs_metrics[KVS_METRIC_ATTENDS_OUT], attends->count);
    *job_p = job;
    return AS_OK;
}

static void on_queries(void *ctx, as_status_t status)
{
    kvs_attend_job_t *job = ctx;
    kvs_conn_t *conn = job->conn;
    kvs_attends_t *attends = conn->store->attends;
    kvs_conn_awaited(conn, false);
    if (status != AS_OK || !conn->net) {
        job_end(job);
        return;
    }
    job->waiting = true;
    job->next = NULL;
    *attends->last = job;
    attends->last = &job->next;
    compute_next(attends);
}

void kvs_attend_serve(kvs_conn_t *conn, const as_wire_attend_t *ask, as_net_msg_t *msg)
{
    uint64_t pairs =
        (uint64_t)ask->rows * ask->q_heads; // below 2^64; so are the bytes, by the limits
    bool sound = pairs > 0 && pairs <= AS_WIRE_ATTEND_BYTES_MAX && ask->dim > 0 &&
                 ask->dim <= AS_WIRE_ATTEND_BYTES_MAX &&
                 pairs * ask->dim <= AS_WIRE_ATTEND_BYTES_MAX / sizeof(float) &&
                 msg->data_bytes == pairs * ask->dim * sizeof(float);
    for (uint32_t p = 0; sound && p < ask->piece_count; p++) {
        const as_wire_chain_piece_t *piece = &ask->pieces[p];
        sound = piece->index_count > 0 && piece->index_count <= AS_WIRE_KEYS_MAX &&
                piece->index_first < AS_WIRE_KEYS_MAX;
    }
    if (!sound) {
        kvs_conn_offend(conn, "a malformed ATTEND");
        return;
    }
    kvs_attend_job_t *job;
    as_status_t status = job_make(conn, ask, &job);
    if (status != AS_OK) {
        refuse(conn, ask->head.request, status, 0);
        return;
    }
    uint64_t wait_us = (uint64_t)ask->wait_ms * 1000;
    job->came_us = as_loop_now_us(conn->store->options.loop);
    job->until_us =
        job->came_us + (wait_us < KVS_ATTEND_WAIT_US_MAX ? wait_us : KVS_ATTEND_WAIT_US_MAX);
    kvs_conn_await(conn);
    status = as_net_msg_recv(msg, job->q, on_queries, job);
    if (status != AS_OK) {
        kvs_conn_awaited(conn, false);
        job_end(job);
        refuse(conn, ask->head.request, AS_ERR_BUSY, 0);
    }
}
