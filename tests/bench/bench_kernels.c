// SPDX-License-Identifier: Apache-2.0
// How close the kernels come to the machine: rates of the operations of a small model's forward
// pass, as ratios of what the same threads reach in a loop of fused multiply-adds and in a loop
// that reads memory.
//
//   bench_kernels [threads] [implementation ...]     ONLY=products|attention|elements for a part
//
// The shapes are those of a 135M-parameter model: dim 576, 9 query and 3 KV heads of 64, ffn 1536,
// vocabulary 49152, 30 layers. Decoding reads different weights for every layer, so that caches
// help as much as they do in a model. A row is the best of several rounds: other load on the
// machine only ever slows a round down.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/assert.h"
#include "common/mem.h"
#include "kernels/f16.h"
#include "kernels/kernels.h"

#define LAYERS     30u
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

// ---- Products -----------------------------------------------------------------------

typedef struct product {
    const krn_ops_t *ops;
    krn_weight_t weights[LAYERS];
    uint32_t layers, rows;
    float *x, *out;
} product_t;

static void product_job(void *ctx)
{
    product_t *p = ctx;
    for (uint32_t i = 0; i < p->layers; i++)
        p->ops->matmul(pool, &p->weights[i], p->x, p->rows, p->out);
}

static void bench_product(const krn_ops_t *ops, uint32_t n, uint32_t k, uint32_t layers)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
    product_t p = {.ops = ops, .layers = layers, .x = floats((size_t)512 * k)};
    float *source = floats((size_t)n * k);
    size_t bytes = krn_weight_bytes(KRN_WEIGHT_F16, n, k);

    p.out = memory((size_t)512 * n * sizeof(float));
    char *arena = memory(layers * bytes); // as a model has
    for (uint32_t i = 0; i < layers; i++) {
        p.weights[i] =
            (krn_weight_t){.type = KRN_WEIGHT_F16, .n = n, .k = k, .data = arena + i * bytes};
        memset(p.weights[i].data, 0, bytes);
        krn_weight_pack(&p.weights[i], 0, n, source);
    }
    measure_reading(layers * bytes);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char what[64];
        p.rows = rows[i];
        if (lanes == 0 && rows[i] > 1)
            break; // the portable product takes minutes
        if (n > 10000 && rows[i] > 16)
            break;
        snprintf(what, sizeof what, "matmul %u x %u x %u", rows[i], n, k);
        double seconds = best_seconds(product_job, &p) / layers;
        report(ops->name, what, 2e-9 * rows[i] * n * k, 1e-9 * (double)bytes, seconds);
    }
    as_mem_free(arena);
    as_mem_free(source);
    as_mem_free(p.x);
    as_mem_free(p.out);
}

static void bench_products(const krn_ops_t *ops)
{
    bench_product(ops, 1536, 576, LAYERS);
    bench_product(ops, 576, 1536, LAYERS);
    bench_product(ops, 960, 576, LAYERS);
    bench_product(ops, 49152, 576, 2);
}

// ---- Attention ----------------------------------------------------------------------

typedef struct attending {
    const krn_ops_t *ops;
    krn_attention_args_t args;
    krn_f16 *caches; // [layers][pages][2][kv_heads][capacity][dim]
    krn_page_t *pages;
    uint32_t layers;
    size_t half; // elements of K of one page
    float *out, *scratch;
} attending_t;

static void attending_job(void *ctx)
{
    attending_t *a = ctx;
    for (uint32_t l = 0; l < a->layers; l++) {
        for (uint32_t p = 0; p < a->args.page_count; p++) {
            krn_f16 *page = a->caches + ((size_t)l * a->args.page_count + p) * 2 * a->half;
            a->pages[p] = (krn_page_t){.k = page, .v = page + a->half, .index = p};
        }
        krn_attention(a->ops, pool, &a->args, a->out, NULL, a->scratch);
    }
}

static void bench_attention(const krn_ops_t *ops, uint32_t rows, uint32_t context)
{
    enum { CAPACITY = 64, Q_HEADS = 9, KV_HEADS = 3, DIM = 64 };
    uint32_t pages = context / CAPACITY;
    attending_t a = {
        .ops = ops, .layers = rows > 8 ? 1 : LAYERS, .half = (size_t)KV_HEADS * CAPACITY * DIM};
    size_t cached = a.layers * pages * 2 * a.half, queries = (size_t)rows * Q_HEADS * DIM;
    float *q = floats(queries), *values = floats(a.half);
    int32_t *positions = memory(rows * sizeof *positions);
    double seen = 0; // tokens, over rows
    char what[64];

    for (uint32_t r = 0; r < rows; r++) {
        positions[r] = (int32_t)(context - rows + r);
        seen += positions[r] + 1;
    }
    a.caches = memory(cached * sizeof(krn_f16));
    for (size_t i = 0; i < cached; i += a.half)
        krn_cpu()->f32_to_f16(values, a.half, a.caches + i);
    measure_reading(cached * sizeof(krn_f16));
    a.pages = memory(pages * sizeof *a.pages);
    a.out = memory(queries * sizeof(float));
    a.scratch = memory(krn_attention_scratch_bytes(rows, Q_HEADS, DIM));
    a.args = (krn_attention_args_t){.rows = rows,
                                    .q_heads = Q_HEADS,
                                    .kv_heads = KV_HEADS,
                                    .dim = DIM,
                                    .capacity = CAPACITY,
                                    .scale = 0.125f,
                                    .q = q,
                                    .positions = positions,
                                    .pages = a.pages,
                                    .page_count = pages};
    snprintf(what, sizeof what, "attention %u rows of %u", rows, context);
    double seconds = best_seconds(attending_job, &a) / a.layers;
    report(ops->name, what, 4e-9 * seen * Q_HEADS * DIM,
           1e-9 * (double)(pages * 2 * a.half * sizeof(krn_f16)), seconds);
    as_mem_free(a.caches);
    as_mem_free(a.pages);
    as_mem_free(a.out);
    as_mem_free(a.scratch);
    as_mem_free(q);
    as_mem_free(values);
    as_mem_free(positions);
}

static void bench_attentions(const krn_ops_t *ops)
{
    bench_attention(ops, 1, 512);
    bench_attention(ops, 1, 2048);
    bench_attention(ops, 1, 8192);
    if (!lanes)
        return;
    bench_attention(ops, 8, 2048);
    bench_attention(ops, 32, 2048);
    bench_attention(ops, 512, 512);
    bench_attention(ops, 512, 4096);
}

// ---- Elements -----------------------------------------------------------------------

typedef struct elements {
    const krn_ops_t *ops;
    uint32_t rows, n;
    float *a, *b, *out;
    int32_t *positions;
    krn_rope_t rope;
} elements_t;

static void rmsnorm_job(void *ctx)
{
    elements_t *e = ctx;
    e->ops->rmsnorm(e->a, e->b, e->rows, e->n, 1e-5f, e->out);
}
static void swiglu_job(void *ctx)
{
    elements_t *e = ctx;
    e->ops->swiglu(e->a, e->b, (size_t)e->rows * e->n, e->out);
}
static void add_job(void *ctx)
{
    elements_t *e = ctx;
    e->ops->add(e->out, e->b, (size_t)e->rows * e->n);
}
static void rope_job(void *ctx)
{
    elements_t *e = ctx;
    e->ops->rope(e->out, e->rows, 9, 64, &e->rope, e->positions);
}
static void empty_item(void *ctx, uint32_t index)
{
    (void)ctx;
    (void)index;
}
static void empty_job(void *ctx)
{
    krn_pool_run(pool, 2 * krn_pool_threads(pool), empty_item, ctx);
}

static void report_elements(const elements_t *e, const char *op, void (*job)(void *ctx),
                            double bytes)
{
    char what[64];

    snprintf(what, sizeof what, "%s %u x %u", op, e->rows, e->n);
    report(e->ops->name, what, 0, 1e-9 * bytes * e->rows * e->n, best_seconds(job, (void *)e));
}

static void bench_elements(const krn_ops_t *ops)
{
    double inv_freq[32];
    elements_t e = {.ops = ops, .rows = 64, .n = 576};
    size_t count = (size_t)64 * 1536;
    float *table = memory(64 * 64 * sizeof(float));

    measure_reading(1 << 20);
    e.a = floats(count);
    e.b = floats(count);
    e.out = floats(count);
    e.positions = memory(64 * sizeof(int32_t));
    for (int32_t i = 0; i < 64; i++)
        e.positions[i] = i;
    for (int i = 0; i < 32; i++)
        inv_freq[i] = pow(1e5, -i / 32.0);
    krn_rope_fill(table, 64, inv_freq, 1.0f, 0, 64);
    e.rope = (krn_rope_t){.dim = 64, .position_count = 64, .cos_sin = table};
    report_elements(&e, "rmsnorm", rmsnorm_job, 8);
    report_elements(&e, "rope", rope_job, 8);
    report_elements(&e, "add", add_job, 12);
    e.n = 1536;
    report_elements(&e, "swiglu", swiglu_job, 12);
    as_mem_free(e.a);
    as_mem_free(e.b);
    as_mem_free(e.out);
    as_mem_free(e.positions);
    as_mem_free(table);
}

static void bench_one(const char *name)
{
    const krn_ops_t *ops = krn_cpu_named(name);

    if (!ops) {
        printf("%-10s not on this processor\n", name);
        return;
    }
    lanes = strcmp(name, "avx512") == 0 ? 16 : strcmp(name, "avx2") == 0 ? 8 : 0;
    measure_machine();
    const char *only = getenv("ONLY");
    if (!only || strcmp(only, "products") == 0)
        bench_products(ops);
    if (!only || strcmp(only, "attention") == 0)
        bench_attentions(ops);
    if (!only || strcmp(only, "elements") == 0)
        bench_elements(ops);
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"avx512", "avx2", "portable"};
    long threads = argc > 1 ? strtol(argv[1], NULL, 10) : 2;

    if (threads < 1 || krn_pool_alloc((uint32_t)threads, &pool) != AS_OK) {
        fprintf(stderr, "usage: bench_kernels [threads] [implementation ...]\n");
        return 2;
    }
    printf("%ld threads; an empty job takes %.2f us\n", threads,
           best_seconds(empty_job, NULL) * 1e6);
    for (int i = 2; i < argc; i++)
        bench_one(argv[i]);
    for (int i = 0; argc <= 2 && i < 3; i++)
        bench_one(all[i]);
    krn_pool_free(pool);
    return 0;
}
