// SPDX-License-Identifier: Apache-2.0
// KIVI's attention, straight from the codes (codec_attend.h): included by kivi_attend_*.c, each after the
// integer dot products of its instruction set.
//
// With x the query's channels and a code's value = code * scale + min, the logit of a token is
//   sum(x * value) = sum(w * (code - mid)) + sum(x * centre)
// where w = x * scale, mid = (2^bits - 1) / 2 and centre = min + mid * scale. The second sum is one
// for all tokens of a group, in f32. In the first w is rounded to whole steps, of which the block's
// largest |w| has 127, so that it is a product of small integers, exact in whatever order and on any
// processor:
//   step * (sum(steps * code) - mid * sum(steps)).
// Rounding a weight costs up to step / 2 * |code - mid|; rounding the code has already cost up to
// w / 2 for each channel, some ten times as much. Values are summed in the same way: x are then the
// tokens' exp(logit - max), w what these weigh times the token's scale.
#include "gpuworker/resident/codec_attend.h"
#include "gpuworker/resident/kivi.h"

#define GROUPS_MAX   (WIDTH_MAX / 16)
#define STEPS_STRIDE ((size_t)GROUPS_MAX * WIDTH_MAX)

struct weights {
    _Alignas(64) int8_t steps[QUERIES][STEPS_STRIDE]; // of each group
    float step[QUERIES], offset[QUERIES][GROUPS_MAX]; // sum = step * dot + offset
};

// ---- Weights ------------------------------------------------------------------------

// What weighs the codes of all groups of a block: `count` channels or tokens in each.
typedef struct weighing {
    const gpw_codes_layout_t *layout;
    const krn_f16 *scales;   // [groups][scale, min][count]
    const float *x[QUERIES]; // [count] each
    uint32_t groups, count;  // count: a multiple of 16
    ptrdiff_t ahead;
} weighing_t;

static float mid_of(const gpw_codes_layout_t *l)
{
    return (float)((1u << l->bits) - 1) / 2;
}

// The step of each query: a 127th of its largest weight.
INLINE void choose_steps(const weighing_t *g, weights_t *w, const uint32_t queries)
{
    const uint32_t count = g->count, groups = g->groups;
    const krn_f16 *scales = g->scales;
    v16 largest[QUERIES];
    const float *x[QUERIES];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        largest[q] = v16_set1(TINY);
        x[q] = g->x[q];
    }
    for (uint32_t i = 0; i < count; i += 16) {
        v16 scale = v16_load_f16(scales + i);
        for (uint32_t n = 1; n < groups; n++) {
            scale = v16_max(scale, v16_load_f16(scales + 2 * (size_t)n * count + i));
        }
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            largest[q] = v16_max(largest[q], v16_abs(v16_mul(v16_load(x[q] + i), scale)));
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        w->step[q] = v16_max_all(largest[q]) * (1.0f / STEPS);
    }
}

INLINE void weigh_group(const weighing_t *g, weights_t *w, uint32_t group, const v16 *inverse,
                        const uint32_t queries)
{
    const uint32_t count = g->count;
    const ptrdiff_t ahead = g->ahead;
    const krn_f16 *scales = g->scales + 2 * (size_t)group * count, *mins = scales + count;
    const v16 magic = v16_set1(ROUND_BITS), mid = v16_set1(mid_of(g->layout));
    int8_t *steps_out = w->steps[0] + (size_t)group * count;
    v16 exact[QUERIES], rounded[QUERIES];
    const float *x_of[QUERIES]; // copies: writing steps may change anything that is in memory
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        exact[q] = rounded[q] = v16_set1(0.0f);
        x_of[q] = g->x[q];
    }
    for (uint32_t i = 0; i < count; i += 16) {
        v16 scale = v16_load_f16(scales + i);
        v16 centre = v16_fma(scale, mid, v16_load_f16(mins + i));
        v16_prefetch((const char *)(scales + i) + ahead);
        v16_prefetch((const char *)(mins + i) + ahead);
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            v16 x = v16_load(x_of[q] + i);
            v16 steps = v16_fma(v16_mul(x, inverse[q]), scale, magic);
            v16_store_low8(steps_out + q * STEPS_STRIDE + i, steps);
            rounded[q] = v16_add(rounded[q], v16_sub(steps, magic));
            exact[q] = v16_fma(x, centre, exact[q]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        v16 back = v16_set1(-mid_of(g->layout) * w->step[q]);
        w->offset[q][group] = v16_tree(v16_fma(rounded[q], back, exact[q]));
    }
}

INLINE void weigh_queries(const weighing_t *g, weights_t *w, const uint32_t queries)
{
    v16 inverse[QUERIES];
    choose_steps(g, w, queries);
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        inverse[q] = v16_set1(1.0f / w->step[q]);
    }
    for (uint32_t group = 0; group < g->groups; group++) {
        weigh_group(g, w, group, inverse, queries);
    }
}

// ---- Codes --------------------------------------------------------------------------

// Sixteen lanes of codes, and what each lane is multiplied with.
typedef struct lanes {
    const uint8_t *codes;
    size_t bytes; // of a row of units
    ptrdiff_t ahead;
    const int8_t *steps; // [queries][STEPS_STRIDE]
    const float *step;   // [queries]
    float offset[QUERIES];
    v16 sums[QUERIES]; // what comes out
} lanes_t;

// Two sums a query, since one alone would wait for each product.
INLINE void accumulate_queries(lanes_t *l, const uint32_t bits, const uint32_t queries)
{
    const uint32_t slices = 8 / bits;
    const uint8_t *codes = l->codes, *end = codes + l->bytes;
    const int8_t *steps = l->steps;
    const ptrdiff_t ahead = l->ahead;
    dots_t dots[QUERIES][2];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        dots[q][0] = dots[q][1] = dots_zero();
    }
    for (; codes < end; codes += GPW_CODES_UNIT_BYTES, steps += 4 * slices) {
        codes_t packed = codes_load(codes);
        v16_prefetch((const char *)codes + ahead);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < slices; i++) {
            codes_t slice = codes_slice(packed, i * bits, (1u << bits) - 1);
#pragma GCC unroll 4
            for (uint32_t q = 0; q < queries; q++) {
                dots[q][i % 2] =
                    dots_add(dots[q][i % 2], slice, steps + (size_t)q * STEPS_STRIDE + 4 * i);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        v16 dot = v16_add(dots_float(dots[q][0]), dots_float(dots[q][1]));
        l->sums[q] = v16_fma(v16_set1(l->step[q]), dot, v16_set1(l->offset[q]));
    }
}

// With constants the compiler keeps the sums in registers.
#define WEIGH(QUERIES_)                                                                            \
    static void weigh_##QUERIES_(const weighing_t *g, weights_t *w)                                \
    {                                                                                              \
        weigh_queries(g, w, QUERIES_);                                                             \
    }
#define ACCUMULATE(BITS, QUERIES_)                                                                 \
    static void accumulate_##BITS##_##QUERIES_(lanes_t *l)                                         \
    {                                                                                              \
        accumulate_queries(l, BITS, QUERIES_);                                                     \
    }
#define EACH_QUERIES(QUERIES_) WEIGH(QUERIES_) ACCUMULATE(2, QUERIES_) ACCUMULATE(4, QUERIES_)

EACH_QUERIES(1)
EACH_QUERIES(2)
EACH_QUERIES(3)
EACH_QUERIES(4)

static void (*const weigh_of[QUERIES])(const weighing_t *g, weights_t *w) = {weigh_1, weigh_2,
                                                                             weigh_3, weigh_4};
static void (*const accumulate_of[2][QUERIES])(lanes_t *l) = {
    {accumulate_2_1, accumulate_2_2, accumulate_2_3, accumulate_2_4},
    {accumulate_4_1, accumulate_4_2, accumulate_4_3, accumulate_4_4},
};

static void accumulate(lanes_t *lanes, const weighing_t *g, const work_t *w, uint32_t group)
{
    lanes->steps = w->weights->steps[0] + (size_t)group * g->count;
    for (uint32_t q = 0; q < w->queries; q++) {
        lanes->offset[q] = w->weights->offset[q][group];
    }
    accumulate_of[g->layout->bits == 4][w->queries - 1](lanes);
}

// ---- Blocks -------------------------------------------------------------------------

static void queries_begin(const gpw_codec_part_t *part, work_t *w)
{
    (void)part; // keys' scales weigh with the queries: each block anew
    (void)w;
}

static void block_logits(const gpw_codec_part_t *part, const block_t *block, work_t *w)
{
    const gpw_codes_layout_t *l = part->layout;
    weighing_t g = {.layout = l,
                    .scales = (const krn_f16 *)(const void *)(block->head + l->k_scales),
                    .groups = l->token_groups,
                    .count = l->dim,
                    .ahead = block->ahead};
    lanes_t lanes = {.codes = block->head,
                     .bytes = l->k_row_bytes,
                     .ahead = block->ahead,
                     .step = w->weights->step};
    memcpy(g.x, w->q, sizeof(g.x));
    weigh_of[w->queries - 1](&g, w->weights);
    for (uint32_t t = 0; t < l->tokens_padded; t += 16) {
        accumulate(&lanes, &g, w, t / l->group);
        lanes.codes += l->k_row_bytes;
        for (uint32_t q = 0; q < w->queries; q++) {
            v16_store(w->p[q] + block->first + t, lanes.sums[q]);
        }
    }
    hide_padding(l, block, w);
}

static void block_values(const gpw_codec_part_t *part, const block_t *block, work_t *w)
{
    const gpw_codes_layout_t *l = part->layout;
    weighing_t g = {.layout = l,
                    .scales = (const krn_f16 *)(const void *)(block->head + l->v_scales),
                    .groups = l->channel_groups,
                    .count = l->tokens_padded,
                    .ahead = block->ahead};
    lanes_t lanes = {.codes = block->head + l->v_codes,
                     .bytes = l->v_row_bytes,
                     .ahead = block->ahead,
                     .step = w->weights->step};
    for (uint32_t q = 0; q < w->queries; q++) {
        g.x[q] = w->p[q] + block->first;
    }
    weigh_of[w->queries - 1](&g, w->weights);
    for (uint32_t c = 0; c < l->dim; c += 16) {
        accumulate(&lanes, &g, w, c / l->group);
        lanes.codes += l->v_row_bytes;
        for (uint32_t q = 0; q < w->queries; q++) {
            v16_store(w->out[q] + c, v16_add(v16_load(w->out[q] + c), lanes.sums[q]));
        }
    }
}

static void attend(const gpw_codec_part_t *part)
{
    weights_t weights;
    work_t w;
    w.weights = &weights;
    attend_part(part, &w);
}
