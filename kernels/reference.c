// SPDX-License-Identifier: Apache-2.0
// The slow, obvious truth: every operation in plain scalar C, one value after another.
//
// These functions define the bits. fmaf is the exact fused multiply-add of IEEE 754, whether the
// machine has the instruction or the C library emulates it, so a compiler without contraction
// (-ffp-contract=off) has no freedom left. The implementations under cpu/ are tested against this
// file by memcmp; when the two differ, this one is right. Nothing here is threaded: a pool is
// accepted and ignored.
//
// Errors, tested against double precision: expf below 1e-6 relative, and 0 where the result would
// be below 1.2e-38; logf below 2e-7 of max(1, |log x|); a matmul of length k below k * 2^-24 * sum
// |x w|.
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "kernels/f16.h"
#include "kernels/internal.h"

#define LANES 16u

// ---- Scalars ------------------------------------------------------------------------

// exp(x) = 2^n * exp(r), n = nearest integer to x / ln 2, |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds
// to an integer and leaves it in the low bits. The polynomial is that of Cephes' expf. Outside
// [EXP_MIN, EXP_MAX] the exponent would leave the normal range. In range and at n = 128, exp(r) is
// below 1, so adding n to the exponent never overflows.
#define EXP_MAX 88.72283f
#define EXP_MIN (-87.3f)

float krn_expf(float x)
{
    if (x < EXP_MIN)
        return 0.0f;
    if (x > EXP_MAX)
        return INFINITY;
    float shifted = fmaf(x, 1.44269504088896341f, 12582912.0f);
    float n = shifted - 12582912.0f;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    uint32_t bits, n_bits;
    memcpy(&n_bits, &shifted, 4);
    memcpy(&bits, &y, 4);
    bits += n_bits << 23;
    memcpy(&y, &bits, 4);
    return y;
}

// log(x) = e * ln 2 + log(1 + m), with 1 + m in [sqrt 1/2, sqrt 2); the polynomial is that of
// Cephes' logf.
float krn_logf(float x)
{
    float e = 0.0f;
    uint32_t bits;

    if (!(x > 0.0f))
        return x == 0.0f ? -INFINITY : NAN;
    if (x > FLT_MAX)
        return INFINITY;
    if (x < FLT_MIN) {
        x *= 0x1p23f;
        e = -23.0f;
    }
    memcpy(&bits, &x, 4);
    e += (float)((int)(bits >> 23) - 126);
    bits = (bits & 0x7fffffu) | 0x3f000000u;
    float m;
    memcpy(&m, &bits, 4);
    if (m < 0.707106781186547524f) {
        e -= 1.0f;
        m = (m + m) - 1.0f;
    } else {
        m = m - 1.0f;
    }
    static const float c[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                              -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                              2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    float p = c[0];
    for (size_t i = 1; i < sizeof c / sizeof c[0]; i++)
        p = fmaf(p, m, c[i]);
    float z = m * m;
    float y = (p * m) * z;
    y = fmaf(e, -2.12194440e-4f, y);
    y = fmaf(-0.5f, z, y);
    return fmaf(e, 0.693359375f, m + y);
}

static float tree(float *lanes)
{
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

// ---- Products, norm, rotation and elements ------------------------------------------

static float weight_at(const krn_weight_t *w, uint32_t n, uint32_t k)
{
    size_t at = ((size_t)(n / KRN_PANEL) * w->k + k) * KRN_PANEL + n % KRN_PANEL;

    return w->type == KRN_WEIGHT_F32 ? ((const float *)w->data)[at]
                                     : krn_f16_to_float(((const krn_f16 *)w->data)[at]);
}

static void ref_matmul(krn_pool_t *pool, const krn_weight_t *w, const float *x, uint32_t rows,
                       float *out)
{
    (void)pool;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t n = 0; n < w->n; n++) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < w->k; k++)
                sum = fmaf(x[(size_t)r * w->k + k], weight_at(w, n, k), sum);
            out[(size_t)r * w->n + n] = sum;
        }
    }
}

static void ref_rmsnorm(const float *x, const float *weight, uint32_t rows, uint32_t n, float eps,
                        float *out)
{
    for (uint32_t r = 0; r < rows; r++, x += n, out += n) {
        float lanes[LANES] = {0};
        for (uint32_t i = 0; i < n; i++)
            lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
        float mean = tree(lanes) / (float)n;
        float scale = 1.0f / sqrtf(mean + eps);
        for (uint32_t i = 0; i < n; i++)
            out[i] = (x[i] * scale) * weight[i];
    }
}

static void rotate_head(float *x, const krn_rope_t *rope, const float *cos_sin)
{
    uint32_t half = rope->dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float *a = rope->neox ? x + i : x + 2 * i;
        float *b = rope->neox ? x + half + i : x + 2 * i + 1;
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
        float x0 = *a, x1 = *b;
        *a = fmaf(x0, c, -(x1 * s));
        *b = fmaf(x1, c, x0 * s);
    }
}

static void ref_rope(float *x, uint32_t rows, uint32_t heads, uint32_t dim, const krn_rope_t *rope,
                     const int32_t *positions)
{
    for (uint32_t r = 0; r < rows; r++) {
        AS_ASSERT(positions[r] >= 0 && (uint32_t)positions[r] < rope->position_count);
        const float *cos_sin = rope->cos_sin + (size_t)positions[r] * rope->dim;
        for (uint32_t h = 0; h < heads; h++)
            rotate_head(x + ((size_t)r * heads + h) * dim, rope, cos_sin);
    }
}

static void ref_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (gate[i] / (1.0f + krn_expf(-gate[i]))) * up[i];
}

static void ref_add(float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        a[i] += b[i];
}

static void ref_f32_to_f16(const float *in, size_t count, krn_f16 *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = krn_f16_from_float(in[i]);
}

static void ref_f16_to_f32(const krn_f16 *in, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = krn_f16_to_float(in[i]);
}

// ---- Attention ----------------------------------------------------------------------

static float dot(const float *q, const krn_f16 *k, uint32_t dim)
{
    float lanes[LANES] = {0};

    for (uint32_t d = 0; d < dim; d++)
        lanes[d % LANES] = fmaf(q[d], krn_f16_to_float(k[d]), lanes[d % LANES]);
    return tree(lanes);
}

// a = a merged with b: the one rule by which pages, runs and segments join.
static void merge_one(krn_partials_t a, krn_partials_t b, uint32_t dim)
{
    if (*b.max == -INFINITY)
        return;
    if (*a.max == -INFINITY) {
        *a.max = *b.max;
        *a.sum = *b.sum;
        memcpy(a.out, b.out, dim * sizeof(float));
        return;
    }
    float max = *a.max > *b.max ? *a.max : *b.max;
    float ea = krn_expf(*a.max - max), eb = krn_expf(*b.max - max);
    for (uint32_t d = 0; d < dim; d++)
        a.out[d] = fmaf(eb, b.out[d], ea * a.out[d]);
    *a.sum = fmaf(eb, *b.sum, ea * *a.sum);
    *a.max = max;
}

// Attention of one query over the first `visible` (> 0) tokens of one head of a page.
static void attend_page(const krn_attention_args_t *args, const float *q, const krn_f16 *k,
                        const krn_f16 *v, uint32_t visible, krn_partials_t page)
{
    float s[KRN_PAGE_TOKENS_MAX], lanes[LANES] = {0};
    float max = -INFINITY;

    for (uint32_t t = 0; t < visible; t++) {
        s[t] = dot(q, k + (size_t)t * args->dim, args->dim) * args->scale;
        max = s[t] > max ? s[t] : max;
    }
    max += 0.0f; // -0 becomes +0: else the order of comparing would show
    for (uint32_t t = 0; t < visible; t++) {
        s[t] = krn_expf(s[t] - max);
        lanes[t % LANES] += s[t];
    }
    *page.max = max;
    *page.sum = tree(lanes);
    for (uint32_t d = 0; d < args->dim; d++) {
        page.out[d] = 0.0f;
        for (uint32_t t = 0; t < visible; t++)
            page.out[d] = fmaf(s[t], krn_f16_to_float(v[(size_t)t * args->dim + d]), page.out[d]);
    }
}

static void attend_row(const krn_attention_args_t *args, uint32_t row, uint32_t head,
                       const krn_page_t *page, krn_partials_t *io)
{
    float out[KRN_HEAD_DIM_MAX], max, sum;
    uint32_t kv_head = head / (args->q_heads / args->kv_heads);
    uint32_t visible = krn_page_visible(page, args->capacity, args->positions[row]);
    size_t pair = (size_t)row * args->q_heads + head;
    size_t base = (size_t)kv_head * args->capacity * args->dim;

    if (visible == 0)
        return;
    krn_partials_t one = {.out = out, .max = &max, .sum = &sum};
    attend_page(args, args->q + pair * args->dim, page->k + base, page->v + base, visible, one);
    krn_partials_t total = {io->out + pair * args->dim, io->max + pair, io->sum + pair};
    merge_one(total, one, args->dim);
}

static void ref_attention_part(const krn_attention_args_t *args, const krn_attention_part_t *part,
                               krn_partials_t *io)
{
    uint32_t group = args->q_heads / args->kv_heads;

    for (uint32_t p = part->page0; p < part->page0 + part->pages; p++)
        for (uint32_t r = part->row0; r < part->row0 + part->rows; r++)
            for (uint32_t g = 0; g < group; g++)
                attend_row(args, r, part->kv_head * group + g, &args->pages[p], io);
}

static void ref_attention(krn_pool_t *pool, const krn_attention_args_t *args, krn_partials_t *io)
{
    (void)pool;
    krn_attention_check(args);
    for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
        krn_attention_part_t part = {
            .kv_head = kv_head, .rows = args->rows, .pages = args->page_count};
        ref_attention_part(args, &part, io);
    }
}

static void ref_merge(krn_partials_t *a, const krn_partials_t *b, uint32_t count, uint32_t dim)
{
    for (uint32_t i = 0; i < count; i++) {
        krn_partials_t one_a = {a->out + (size_t)i * dim, a->max + i, a->sum + i};
        krn_partials_t one_b = {b->out + (size_t)i * dim, b->max + i, b->sum + i};
        merge_one(one_a, one_b, dim);
    }
}

static void ref_normalise(const krn_partials_t *partials, uint32_t count, uint32_t dim, float *out)
{
    for (uint32_t i = 0; i < count; i++) {
        float sum = partials->sum[i];
        for (uint32_t d = 0; d < dim; d++) {
            size_t at = (size_t)i * dim + d;
            out[at] = sum == 0.0f ? 0.0f : partials->out[at] / sum;
        }
    }
}

const krn_ops_t *krn_reference(void)
{
    static const krn_ops_t ops = {
        .name = "reference",
        .matmul = ref_matmul,
        .rmsnorm = ref_rmsnorm,
        .rope = ref_rope,
        .swiglu = ref_swiglu,
        .add = ref_add,
        .f32_to_f16 = ref_f32_to_f16,
        .f16_to_f32 = ref_f16_to_f32,
        .attention = ref_attention,
        .attention_part = ref_attention_part,
        .merge = ref_merge,
        .normalise = ref_normalise,
    };
    return &ops;
}
