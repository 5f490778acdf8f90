// SPDX-License-Identifier: Apache-2.0
#include "gpuworker/serve/tokenize.h"

#include <pthread.h>

#include "common/mem.h"

struct gpw_tokenize {
    as_loop_t *loop;
    const gpw_tokenizer_t *tokenizer;
    pthread_t thread;
    pthread_mutex_t lock; // of what follows
    pthread_cond_t changed;
    gpw_tokenize_job_t *waiting; // shortest first
    bool ending;
};

static void encode(const gpw_tokenize_t *tokenize, gpw_tokenize_job_t *job)
{
    job->token_count = 0;
    if (job->prepare && !job->prepare(job->done.ctx)) {
        job->status = AS_OK;
        return;
    }
    if (job->conversation) {
        job->status = gpw_tokenizer_encode_prompt(tokenize->tokenizer, job->conversation,
                                                  job->tokens, job->tokens_max, &job->token_count);
        return;
    }
    job->status =
        gpw_tokenizer_encode(tokenize->tokenizer, job->text, job->text_bytes, job->options,
                             job->tokens, job->tokens_max, &job->token_count);
}

// The next job; NULL at the end.
static gpw_tokenize_job_t *take(gpw_tokenize_t *tokenize)
{
    pthread_mutex_lock(&tokenize->lock);
    while (!tokenize->waiting && !tokenize->ending) {
        pthread_cond_wait(&tokenize->changed, &tokenize->lock);
    }
    gpw_tokenize_job_t *job = tokenize->ending ? NULL : tokenize->waiting;
    if (job) {
        tokenize->waiting = job->next;
    }
    pthread_mutex_unlock(&tokenize->lock);
    return job;
}

static void *thread_main(void *ctx)
{
    gpw_tokenize_t *tokenize = ctx;
    pthread_setname_np(pthread_self(), "tokenizer");
    for (gpw_tokenize_job_t *job = take(tokenize); job; job = take(tokenize)) {
        encode(tokenize, job);
        as_loop_post(tokenize->loop, &job->done);
    }
    return NULL;
}

bool gpw_tokenize_start(gpw_tokenize_t *tokenize, gpw_tokenize_job_t *job)
{
    if (job->bytes <= GPW_TOKENIZE_SHORT_BYTES) {
        encode(tokenize, job);
        return true;
    }
    pthread_mutex_lock(&tokenize->lock);
    gpw_tokenize_job_t **link = &tokenize->waiting;
    while (*link && (*link)->bytes <= job->bytes) {
        link = &(*link)->next;
    }
    job->next = *link;
    *link = job;
    pthread_cond_signal(&tokenize->changed);
    pthread_mutex_unlock(&tokenize->lock);
    return false;
}

as_status_t gpw_tokenize_alloc(as_loop_t *loop, const gpw_tokenizer_t *tokenizer,
                               gpw_tokenize_t **tokenize_p)
{
    gpw_tokenize_t *tokenize = as_mem_zalloc(1, sizeof(*tokenize));
    if (!tokenize) {
        return AS_ERR_NO_MEMORY;
    }
    tokenize->loop = loop;
    tokenize->tokenizer = tokenizer;
    pthread_mutex_init(&tokenize->lock, NULL);
    pthread_cond_init(&tokenize->changed, NULL);
    if (pthread_create(&tokenize->thread, NULL, thread_main, tokenize) != 0) {
        pthread_cond_destroy(&tokenize->changed);
        pthread_mutex_destroy(&tokenize->lock);
        as_mem_free(tokenize);
        return AS_ERR_NO_MEMORY;
    }
    *tokenize_p = tokenize;
    return AS_OK;
}

void gpw_tokenize_free(gpw_tokenize_t *tokenize)
{
    if (!tokenize) {
        return;
    }
    pthread_mutex_lock(&tokenize->lock);
    tokenize->ending = true;
    pthread_cond_signal(&tokenize->changed);
    pthread_mutex_unlock(&tokenize->lock);
    pthread_join(tokenize->thread, NULL);
    pthread_cond_destroy(&tokenize->changed);
    pthread_mutex_destroy(&tokenize->lock);
    as_mem_free(tokenize);
}
