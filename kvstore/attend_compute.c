// SPDX-License-Identifier: Apache-2.0
// Attention over pinned extents, off the loop.
//
// The store is the reader here, so it checks what readers check: each extent's CRC32C, before its
// first use in a job, against what the block's writer promised. That costs some 3 % of the attention of
// thirty rows, and finds a bit that flipped in RAM before it becomes a token.
#include <pthread.h>

#include "common/checksum.h"
#include "common/log.h"
#include "kvstore/attend.h"

typedef struct kvs_attender attender_t;

struct kvs_attender {
    kvs_attends_t *attends;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given;
    kvs_attend_job_t *job;
    bool ending;
};

// ---- one job

static bool is_sound(const kvs_attend_job_t *job, uint32_t extent)
{
    return as_crc32c(0, job->extents[extent], job->extent_bytes) == job->crcs[extent];
}

// The pages of a piece count from 0, and every row sees all of them: it stands behind them.
static void attend_piece(const kvs_attends_t *attends, const kvs_attend_job_t *job, uint32_t piece)
{
    const kvs_attend_piece_t *part = &job->pieces[piece];
    size_t pairs = (size_t)job->rows * job->q_heads;
    size_t half = job->extent_bytes / 2;
    for (uint32_t i = 0; i < part->count; i++) {
        const uint8_t *extent = job->extents[part->first + i];
        job->pages[i] = (krn_page_t){(const krn_f16 *)(const void *)extent,
                                     (const krn_f16 *)(const void *)(extent + half), i};
    }
    const krn_attention_args_t args = {.rows = job->rows,
                                       .q_heads = job->q_heads,
                                       .kv_heads = job->kv_heads,
                                       .dim = job->dim,
                                       .capacity = job->tokens,
                                       .scale = job->scale,
                                       .q = job->q,
                                       .positions = job->positions,
                                       .pages = job->pages,
                                       .page_count = part->count};
    float *out = (float *)(void *)(job->answer + piece * job->piece_bytes);
    krn_partials_t io = {out, out + pairs * job->dim, out + pairs * job->dim + pairs};
    krn_attention_piece(attends->ops, attends->pool, &args, &io, job->scratch);
}

void kvs_attend_compute(const kvs_attends_t *attends, kvs_attend_job_t *job)
{
    job->bad = KVS_ATTEND_NONE;
    job->status = AS_ERR_CHECKSUM;
    if (as_crc32c(0, job->q, job->q_bytes) != job->q_crc) {
        return;
    }
    for (uint32_t r = 0; r < job->rows; r++) {
        job->positions[r] = INT32_MAX;
    }
    for (uint32_t p = 0; p < job->piece_count; p++) {
        const kvs_attend_piece_t *piece = &job->pieces[p];
        for (uint32_t i = piece->first; i < piece->first + piece->count; i++) {
            if (atomic_load(&job->abandoned)) {
                job->status = AS_ERR_CANCELLED;
                return;
            }
            if (!is_sound(job, i)) {
                job->bad = i;
                return;
            }
        }
        attend_piece(attends, job, p);
    }
    job->answer_crc = as_crc32c(0, job->answer, job->piece_count * job->piece_bytes);
    job->status = AS_OK;
}

// ---- the thread

static kvs_attend_job_t *take(attender_t *thread)
{
    pthread_mutex_lock(&thread->lock);
    while (!thread->job && !thread->ending) {
        pthread_cond_wait(&thread->given, &thread->lock);
    }
    kvs_attend_job_t *job = thread->job;
    thread->job = NULL;
    pthread_mutex_unlock(&thread->lock);
    return job;
}

static void *work(void *ctx)
{
    attender_t *thread = ctx;
    kvs_attends_t *attends = thread->attends;
    kvs_attend_job_t *job;
    while ((job = take(thread)) != NULL) {
        kvs_attend_compute(attends, job);
        as_loop_post(attends->store->options.loop, &attends->done);
    }
    return NULL;
}

as_status_t kvs_attender_alloc(kvs_attends_t *attends, attender_t **thread_p)
{
    attender_t *thread = as_mem_zalloc(1, sizeof(*thread));
    if (!thread) {
        return AS_ERR_NO_MEMORY;
    }
    thread->attends = attends;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->given, NULL);
    if (pthread_create(&thread->thread, NULL, work, thread) != 0) {
        AS_ERROR("attend", "no thread: the process has as many as it may");
        pthread_cond_destroy(&thread->given);
        pthread_mutex_destroy(&thread->lock);
        as_mem_free(thread);
        return AS_ERR_NO_MEMORY;
    }
    *thread_p = thread;
    return AS_OK;
}

void kvs_attender_free(attender_t *thread)
{
    if (!thread) {
        return;
    }
    pthread_mutex_lock(&thread->lock);
    thread->ending = true;
    pthread_cond_signal(&thread->given);
    pthread_mutex_unlock(&thread->lock);
    pthread_join(thread->thread, NULL);
    pthread_cond_destroy(&thread->given);
    pthread_mutex_destroy(&thread->lock);
    as_mem_free(thread);
}

void kvs_attender_give(attender_t *thread, kvs_attend_job_t *job)
{
    pthread_mutex_lock(&thread->lock);
    thread->job = job;
    pthread_cond_signal(&thread->given);
    pthread_mutex_unlock(&thread->lock);
}
