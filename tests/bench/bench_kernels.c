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

#include "kernels/f16.h"
#include "kernels/kernels.h"
#include "tests/bench/machine.h"

#define LAYERS 30u
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
    static const uint32_t rows[] = {1, 2, 4, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 65, 136, 256};
    product_t p = {.ops = ops, .layers = layers, .x = floats((size_t)256 * k)};
    float *source = floats((size_t)n * k);
    size_t bytes = krn_weight_bytes(KRN_WEIGHT_F16, n, k);

    p.out = memory((size_t)256 * n * sizeof(float));
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
        if (n > 10000 && rows[i] > 33)
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
    static const uint32_t rows[] = {2, 5, 9, 17, 33, 65}; // of a verification
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        bench_attention(ops, rows[i], 8192);
    bench_attention(ops, 256, 8192); // a chunk of a prompt
    bench_attention(ops, 512, 512);
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
