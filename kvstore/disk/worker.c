// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/worker.h"

#include <pthread.h>

#include "common/log.h"
#include "common/mem.h"

struct kvs_worker {
    as_loop_t *loop;
    void (*run)(void *ctx, kvs_worker_t *worker, kvs_job_t *jobs);
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given;
    kvs_job_t *first, **last;
    bool ending;
};

static kvs_job_t *take_all(kvs_worker_t *worker, bool wait)
{
    pthread_mutex_lock(&worker->lock);
    while (wait && !worker->first && !worker->ending) {
        pthread_cond_wait(&worker->given, &worker->lock);
    }
    kvs_job_t *jobs = worker->first;
    worker->first = NULL;
    worker->last = &worker->first;
    pthread_mutex_unlock(&worker->lock);
    return jobs;
}

kvs_job_t *kvs_worker_more(kvs_worker_t *worker)
{
    return take_all(worker, false);
}

void kvs_worker_finish(kvs_worker_t *worker, kvs_job_t *job)
{
    as_loop_post(worker->loop, &job->task);
}

static void *work(void *ctx)
{
    kvs_worker_t *worker = ctx;
    kvs_job_t *jobs;
    while ((jobs = take_all(worker, true)) != NULL) {
        worker->run(worker->ctx, worker, jobs);
    }
    return NULL;
}

as_status_t kvs_worker_alloc(as_loop_t *loop,
                             void (*run)(void *ctx, kvs_worker_t *worker, kvs_job_t *jobs),
                             void *ctx, kvs_worker_t **worker_p)
{
    kvs_worker_t *worker = as_mem_zalloc(1, sizeof(*worker));
    if (!worker) {
        return AS_ERR_NO_MEMORY;
    }
    worker->loop = loop;
    worker->run = run;
    worker->ctx = ctx;
    worker->last = &worker->first;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->given, NULL);
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
        AS_ERROR("disk", "no thread");
        pthread_cond_destroy(&worker->given);
        pthread_mutex_destroy(&worker->lock);
        as_mem_free(worker);
        return AS_ERR_NO_MEMORY;
    }
    *worker_p = worker;
    return AS_OK;
}

void kvs_worker_free(kvs_worker_t *worker)
{
    if (!worker) {
        return;
    }
    pthread_mutex_lock(&worker->lock);
    worker->ending = true;
    pthread_cond_signal(&worker->given);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->given);
    pthread_mutex_destroy(&worker->lock);
    as_mem_free(worker);
}

void kvs_worker_give(kvs_worker_t *worker, kvs_job_t *job)
{
    job->next = NULL;
    pthread_mutex_lock(&worker->lock);
    *worker->last = job;
    worker->last = &job->next;
    pthread_cond_signal(&worker->given);
    pthread_mutex_unlock(&worker->lock);
}
