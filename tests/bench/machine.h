// SPDX-License-Identifier: Apache-2.0
// What the benches of kernels share: a pool, the best of several rounds, and what the machine allows,
// measured beside: a loop of fused multiply-adds and a loop that reads memory.
#ifndef TESTS_BENCH_MACHINE_H
#define TESTS_BENCH_MACHINE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/assert.h"
#include "common/mem.h"
#include "kernels/kernels.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define ROUNDS     15
#define ROUND_MIN  0.01 // seconds

static krn_pool_t *pool;
static double peak_gflops, peak_gbps;

static double now(void)
{
    struct timespec time;
    clock_gettime(krn_pool_threads(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void *memory(size_t bytes)
{
    void *block = as_mem_aligned(bytes < HUGE_BYTES ? 64 : HUGE_BYTES, bytes);
    AS_ASSERT(block != NULL);
    krn_memory_huge(block, bytes);
    return block;
}

static float *floats(size_t count)
{
    float *values = memory(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((i * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f;
    return values;
}

// Seconds of one fn(ctx), the best of ROUNDS rounds.
static double best_seconds(void (*fn)(void *ctx), void *ctx)
{
    double best = 1e9;
    long repeat = 1;

    fn(ctx);
    for (int round = 0; round < ROUNDS;) {
        double start = now();
        for (long i = 0; i < repeat; i++)
            fn(ctx);
        double seconds = now() - start;
        if (seconds < ROUND_MIN && round == 0) {
            repeat *= 2;
            continue;
        }
        best = seconds / (double)repeat < best ? seconds / (double)repeat : best;
        round++;
    }
    return best;
}

// ---- The machine --------------------------------------------------------------------

#define FMA_COUNT 200000

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static float fma_loop_avx512(void)
{
    __m512 a[12], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (long n = 0; n < FMA_COUNT; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, y);
        __asm__ volatile("");
    }
#pragma GCC unroll 12
    for (int i = 1; i < 12; i++)
        a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_reduce_add_ps(a[0]);
}

__attribute__((target("avx2,fma"))) static float fma_loop_avx2(void)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (long n = 0; n < FMA_COUNT; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, y);
        __asm__ volatile("");
    }
#pragma GCC unroll 12
    for (int i = 1; i < 12; i++)
        a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_cvtss_f32(a[0]);
}
#endif

static volatile float sink;
static int lanes; // floats of the widest vector of the implementation measured

static void fma_item(void *ctx, uint32_t index)
{
    (void)ctx;
    (void)index;
#if defined(__x86_64__)
    sink = lanes == 16 ? fma_loop_avx512() : fma_loop_avx2();
#endif
}

static void fma_job(void *ctx)
{
    krn_pool_run(pool, krn_pool_threads(pool), fma_item, ctx);
}

typedef struct reading {
    const uint64_t *words;
    size_t count; // of one thread
} reading_t;

// 32 bytes at a time wherever the compiler knows how; 8 sums, so that additions do not bind.
typedef uint64_t words_t __attribute__((vector_size(32)));

#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void
read_item(void *ctx, uint32_t index)
{
    const reading_t *reading = ctx;
    const words_t *words = (const words_t *)(reading->words + index * reading->count);
    words_t sums[8] = {{0}};

    for (size_t i = 0; i < reading->count / 4; i += 8) {
        for (size_t j = 0; j < 8; j += 2)
            __builtin_prefetch(words + i + j + 64);
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; j++)
            sums[j] += words[i + j];
    }
    for (size_t j = 1; j < 8; j++)
        sums[0] += sums[j];
    sink = (float)sums[0][0];
}

static void read_job(void *ctx)
{
    krn_pool_run(pool, krn_pool_threads(pool), read_item, ctx);
}

static void measure_reading(size_t bytes)
{
    uint32_t threads = krn_pool_threads(pool);
    reading_t reading = {.words = memory(bytes + 4096), .count = bytes / 8 / threads / 32 * 32};

    memset((void *)reading.words, 1, bytes + 4096);
    peak_gbps = (double)(reading.count * threads * 8) / best_seconds(read_job, &reading) / 1e9;
    as_mem_free((void *)reading.words);
    printf("%-10s reading %.1f MB %25.1f GB/s\n", "machine", (double)bytes * 1e-6, peak_gbps);
}

static void measure_machine(void)
{
    double flop = (double)krn_pool_threads(pool) * FMA_COUNT * 12 * lanes * 2;

    peak_gflops = lanes ? flop / best_seconds(fma_job, NULL) / 1e9 : 0;
    if (lanes)
        printf("%-10s multiply-adds of %d bits %15.1f GFLOP/s\n", "machine", 32 * lanes,
               peak_gflops);
}

static void report(const char *name, const char *what, double gflop, double gbyte, double seconds)
{
    double gflops = gflop / seconds, gbps = gbyte / seconds;

    printf("%-10s %-28s %9.1f GFLOP/s", name, what, gflops);
    if (peak_gflops > 0)
        printf(" %3.0f %%", 100 * gflops / peak_gflops);
    printf(" %8.1f GB/s %3.0f %%  %10.1f us\n", gbps, 100 * gbps / peak_gbps, seconds * 1e6);
}

#endif
