// SPDX-License-Identifier: Apache-2.0
// A fixed pool of threads that runs one indexed job at a time.
//
// A forward pass is some hundreds of short jobs (20 us to 10 ms), so handing one out must cost
// about a microsecond; between passes the cores belong to the network threads, so nobody may spin
// for long. Hence: a waiter spins for SPIN_US and then sleeps on a futex.
//
// A job is published by storing `ticket` = generation << 32 | next index. Threads take an index by
// compare and swap of the whole word. A thread that comes late therefore fails to take anything
// from a job that has ended, and need not be waited for: a caller whose helpers are still asleep
// does all the work alone and returns. A taken index means that the job has not ended, so that fn,
// ctx and count, read before the swap, belong to it; they are atomics since a late thread may read
// them while the next job is written, and then fails the swap.
//
// The caller waits for `done` to reach count. Sleepers announce themselves (sleepers, caller_waits)
// before they look a last time, and wakers change the word before they look for sleepers; all of it
// sequentially consistent, so one of the two sees the other. Sleeps are bounded all the same.
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/mem.h"
#include "kernels/internal.h"

#define KRN_POOL_MAGIC  0x6b726e70u
#define KRN_THREADS_MAX 256u
#define SPIN_US         30 // about the gap between two jobs of one forward pass
#define SLEEP_MAX_MS                                                                               \
    200 // bound of one futex wait; a lost wake-up would cost this much, not for ever
#define CACHE_LINE 64

typedef void krn_job_fn(void *ctx, uint32_t index);

struct krn_pool {
    uint32_t magic;
    uint32_t threads;
    pthread_t *handles;   // threads - 1
    uint8_t *scratch;     // threads * KRN_SCRATCH_BYTES
    atomic_uint starting; // number given to the next helper thread
    atomic_uint in_use;
    _Alignas(CACHE_LINE) atomic_ullong ticket;
    _Alignas(CACHE_LINE) _Atomic(krn_job_fn *) fn;
    _Atomic(void *) ctx;
    atomic_uint count;
    atomic_uint stopping;
    _Alignas(CACHE_LINE) atomic_uint epoch; // futex: the generation last published
    atomic_uint sleepers;
    _Alignas(CACHE_LINE) atomic_uint done; // futex: indices finished
    atomic_uint caller_waits;
};

static _Thread_local void *thread_scratch;

void *krn_pool_scratch(void)
{
    AS_ASSERT(thread_scratch != NULL);
    return thread_scratch;
}

void *krn_pool_caller_scratch(krn_pool_t *pool)
{
    AS_ASSERT(pool->magic == KRN_POOL_MAGIC);
    return pool->scratch;
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_nsec / 1000u;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, uint32_t seen)
{
    struct timespec limit = {.tv_nsec = SLEEP_MAX_MS * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

// Spins while *word is `seen`; false if it still is after SPIN_US.
static int spin_while(atomic_uint *word, uint32_t seen)
{
    uint64_t start_us = now_us();

    do {
        for (int i = 0; i < 8; i++) {
            if (atomic_load(word) != seen)
                return 1;
            cpu_relax();
        }
    } while (now_us() - start_us < SPIN_US);
    return atomic_load(word) != seen;
}

static void finish_one(krn_pool_t *pool, uint32_t count)
{
    if (atomic_fetch_add(&pool->done, 1) + 1 == count && atomic_load(&pool->caller_waits))
        futex_wake(&pool->done, 1);
}

// Takes and runs indices of generation `generation` until none is left.
static void work(krn_pool_t *pool, uint32_t generation)
{
    for (;;) {
        unsigned long long ticket = atomic_load(&pool->ticket);
        krn_job_fn *fn = atomic_load(&pool->fn);
        void *ctx = atomic_load(&pool->ctx);
        uint32_t count = atomic_load(&pool->count);

        if ((uint32_t)(ticket >> 32) != generation || (uint32_t)ticket >= count)
            return;
        if (!atomic_compare_exchange_strong(&pool->ticket, &ticket, ticket + 1))
            continue;
        fn(ctx, (uint32_t)ticket);
        finish_one(pool, count);
    }
}

static void *helper_main(void *arg)
{
    krn_pool_t *pool = arg;
    uint32_t seen = 0;

    thread_scratch =
        pool->scratch + (size_t)atomic_fetch_add(&pool->starting, 1) * KRN_SCRATCH_BYTES;
    while (!atomic_load(&pool->stopping)) {
        uint32_t epoch = atomic_load(&pool->epoch);
        if (epoch != seen) {
            seen = epoch;
            work(pool, epoch);
            continue;
        }
        if (spin_while(&pool->epoch, seen))
            continue;
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(&pool->epoch) == seen && !atomic_load(&pool->stopping))
            futex_wait(&pool->epoch, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return NULL;
}

static void stop_helpers(krn_pool_t *pool, uint32_t started)
{
    atomic_store(&pool->stopping, 1);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, INT32_MAX);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(pool->handles[i], NULL);
}

as_status_t krn_pool_alloc(uint32_t threads, krn_pool_t **pool_p)
{
    krn_pool_t *pool;
    uint32_t started = 0;

    if (threads == 0 || threads > KRN_THREADS_MAX)
        return AS_ERR_INVALID;
    pool = as_mem_aligned(CACHE_LINE, sizeof *pool);
    if (!pool)
        return AS_ERR_NO_MEMORY;
    *pool = (krn_pool_t){.magic = KRN_POOL_MAGIC, .threads = threads, .starting = 1};
    pool->scratch = as_mem_aligned(4096, (size_t)threads * KRN_SCRATCH_BYTES);
    if (!pool->scratch)
        goto fail_pool;
    pool->handles = as_mem_zalloc(threads, sizeof *pool->handles);
    if (!pool->handles)
        goto fail_scratch;
    for (; started < threads - 1; started++)
        if (pthread_create(&pool->handles[started], NULL, helper_main, pool) != 0)
            goto fail_threads;
    *pool_p = pool;
    return AS_OK;

fail_threads:
    stop_helpers(pool, started);
    as_mem_free(pool->handles);
fail_scratch:
    as_mem_free(pool->scratch);
fail_pool:
    as_mem_free(pool);
    return AS_ERR_NO_MEMORY;
}

void krn_pool_free(krn_pool_t *pool)
{
    if (!pool)
        return;
    AS_ASSERT(pool->magic == KRN_POOL_MAGIC);
    AS_ASSERT(!atomic_load(&pool->in_use));
    stop_helpers(pool, pool->threads - 1);
    pool->magic = 0;
    as_mem_free(pool->handles);
    as_mem_free(pool->scratch);
    as_mem_free(pool);
}

uint32_t krn_pool_threads(const krn_pool_t *pool)
{
    return pool->threads;
}

uint32_t krn_pool_sleepers(krn_pool_t *pool)
{
    return atomic_load(&pool->sleepers);
}

static uint32_t publish(krn_pool_t *pool, uint32_t count, krn_job_fn *fn, void *ctx)
{
    uint32_t generation = atomic_load(&pool->epoch) + 1;

    // Late helpers look at the ticket first and swap it last: close it before the fields change.
    atomic_store(&pool->ticket, (unsigned long long)generation << 32 | UINT32_MAX);
    atomic_store(&pool->done, 0);
    atomic_store(&pool->fn, fn);
    atomic_store(&pool->ctx, ctx);
    atomic_store(&pool->count, count);
    atomic_store(&pool->ticket, (unsigned long long)generation << 32);
    atomic_store(&pool->epoch, generation);
    uint32_t sleepers = atomic_load(&pool->sleepers);
    if (sleepers)
        futex_wake(&pool->epoch, (int)(sleepers < count - 1 ? sleepers : count - 1));
    return generation;
}

static void wait_done(krn_pool_t *pool, uint32_t count)
{
    for (uint32_t done; (done = atomic_load(&pool->done)) != count;) {
        if (spin_while(&pool->done, done))
            continue;
        atomic_store(&pool->caller_waits, 1);
        if ((done = atomic_load(&pool->done)) != count)
            futex_wait(&pool->done, done);
        atomic_store(&pool->caller_waits, 0);
    }
}

void krn_pool_run(krn_pool_t *pool, uint32_t count, void (*fn)(void *ctx, uint32_t index),
                  void *ctx)
{
    void *outer_scratch = thread_scratch;

    AS_ASSERT(pool->magic == KRN_POOL_MAGIC);
    AS_ASSERT(count < UINT32_MAX);
    AS_ASSERT(!atomic_exchange(&pool->in_use, 1));
    thread_scratch = pool->scratch;
    if (pool->threads == 1 || count <= 1) {
        for (uint32_t i = 0; i < count; i++)
            fn(ctx, i);
    } else {
        work(pool, publish(pool, count, fn, ctx));
        wait_done(pool, count);
    }
    thread_scratch = outer_scratch;
    atomic_store(&pool->in_use, 0);
}
