// SPDX-License-Identifier: Apache-2.0
// KIVI's attention, straight from the codes: included by kivi_attend_*.c, each compiled for its own
// instruction set.
//
// q . (code * scale + min) over the channels of one token group is sum((q * scale) * code) + sum(q
// * min): the scales go into the query, so a code is only unpacked, converted and multiplied.
// Likewise sum(p * (code * scale + min)) over tokens is sum((p * scale) * code) + sum(p * min).
// Both are one loop, `accumulate`: eight codes of each of `count` rows, weighted by a number a row.
// Nothing is dequantised in memory.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/exp8.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/partials.h"

#define QUERIES 4u // query heads (of all rows) that share one unpacking

// What `accumulate` reads: eight codes at codes + r * row_bytes for each row r, weights[q][r].
typedef struct code_rows {
    const uint8_t *codes;
    uint32_t row_bytes, count, bits;
    const float *weights;
    uint32_t weights_stride;
} code_rows_t;

INLINE void unpack(const uint8_t *codes, uint32_t bits, v8f *out)
{
    if (bits == 4) {
        uint32_t word;
        memcpy(&word, codes, sizeof(word));
        v8u shifts = {0, 4, 8, 12, 16, 20, 24, 28};
        v8u all = {word, word, word, word, word, word, word, word};
        *out = __builtin_convertvector((v8i)((all >> shifts) & 15u), v8f);
    } else {
        uint16_t word;
        memcpy(&word, codes, sizeof(word));
        uint32_t w = word;
        v8u shifts = {0, 2, 4, 6, 8, 10, 12, 14};
        v8u all = {w, w, w, w, w, w, w, w};
        *out = __builtin_convertvector((v8i)((all >> shifts) & 3u), v8f);
    }
}

INLINE void accumulate(const code_rows_t *rows, uint32_t bits, uint32_t queries, v8f *sums)
{
    v8f sum[QUERIES] = {0};
    const uint8_t *codes = rows->codes;
    for (uint32_t r = 0; r < rows->count; r++, codes += rows->row_bytes) {
        v8f code;
        unpack(codes, bits, &code);
        for (uint32_t q = 0; q < queries; q++) {
            sum[q] += code * rows->weights[q * rows->weights_stride + r];
        }
    }
    for (uint32_t q = 0; q < queries; q++) {
        sums[q] = sum[q];
    }
}

// With constants the compiler keeps the sums in registers.
static void accumulate_any(const code_rows_t *rows, uint32_t queries, v8f *sums)
{
    bool four = rows->bits == 4;
    switch (queries) {
    case 1:
        four ? accumulate(rows, 4, 1, sums) : accumulate(rows, 2, 1, sums);
        break;
    case 2:
        four ? accumulate(rows, 4, 2, sums) : accumulate(rows, 2, 2, sums);
        break;
    case 3:
        four ? accumulate(rows, 4, 3, sums) : accumulate(rows, 2, 3, sums);
        break;
    default:
        four ? accumulate(rows, 4, 4, sums) : accumulate(rows, 2, 4, sums);
        break;
    }
}

// Scratch of one block and up to QUERIES queries.
typedef struct block_work {
    float scale_min[2 * AS_BLOCK_TOKENS_MAX * (KRN_HEAD_DIM_MAX / 8)];
    float weights[QUERIES * KRN_HEAD_DIM_MAX > QUERIES *AS_BLOCK_TOKENS_MAX
                      ? QUERIES *KRN_HEAD_DIM_MAX
                      : QUERIES *AS_BLOCK_TOKENS_MAX];
    float p[QUERIES][AS_BLOCK_TOKENS_MAX + 8]; // logits, then exp(logit - max)
    float max[QUERIES], sum[QUERIES];
    float out[QUERIES][KRN_HEAD_DIM_MAX];
    const float *q[QUERIES];
    uint32_t queries;
} block_work_t;

// Weights q[c] * scale of one token group; returns the sums of q[c] * min in base.
static void key_weights(const gpw_kivi_layout_t *l, block_work_t *w, uint32_t group, float *base)
{
    for (uint32_t q = 0; q < w->queries; q++) {
        float sum = 0.0f;
        for (uint32_t c = 0; c < l->dim; c++) {
            const float *scale_min = w->scale_min + 2 * ((size_t)c * l->token_groups + group);
            w->weights[q * l->dim + c] = w->q[q][c] * scale_min[0];
            sum += w->q[q][c] * scale_min[1];
        }
        base[q] = sum;
    }
}

static void block_logits(const gpw_kivi_part_t *part, const uint8_t *head, block_work_t *w)
{
    const gpw_kivi_layout_t *l = part->layout;
    part->ops->f16_to_f32((const krn_f16 *)(const void *)(head + l->k_scales),
                          2 * (size_t)l->dim * l->token_groups, w->scale_min);
    float base[QUERIES];
    for (uint32_t t = 0; t < l->tokens; t += 8) {
        if (t % l->group == 0) {
            key_weights(l, w, t / l->group, base);
        }
        code_rows_t rows = {.codes = head + t * l->bits / 8,
                            .row_bytes = l->k_row_bytes,
                            .count = l->dim,
                            .bits = l->bits,
                            .weights = w->weights,
                            .weights_stride = l->dim};
        v8f sums[QUERIES];
        accumulate_any(&rows, w->queries, sums);
        for (uint32_t q = 0; q < w->queries; q++) {
            v8f logits = (sums[q] + base[q]) * part->scale;
            memcpy(&w->p[q][t], &logits, sizeof(logits));
        }
    }
}

static void block_softmax(const gpw_kivi_layout_t *l, block_work_t *w)
{
    for (uint32_t q = 0; q < w->queries; q++) {
        float *p = w->p[q];
        float max = p[0];
        for (uint32_t t = 1; t < l->tokens; t++) {
            max = p[t] > max ? p[t] : max;
        }
        float sum = 0.0f;
        for (uint32_t t = 0; t < l->tokens; t += 8) {
            v8f x;
            memcpy(&x, p + t, sizeof(x));
            x -= max;
            x = (v8f)((v8i)x & (v8i)(x <= 0.0f)); // padding behind the last token may be anything
            exp8(&x);
            memcpy(p + t, &x, sizeof(x));
        }
        for (uint32_t t = 0; t < l->tokens; t++) {
            sum += p[t];
        }
        w->max[q] = max;
        w->sum[q] = sum;
    }
}

static void value_weights(const gpw_kivi_layout_t *l, block_work_t *w, uint32_t group, float *base)
{
    for (uint32_t q = 0; q < w->queries; q++) {
        float sum = 0.0f;
        for (uint32_t t = 0; t < l->tokens; t++) {
            const float *scale_min = w->scale_min + 2 * ((size_t)t * l->channel_groups + group);
            w->weights[q * l->tokens + t] = w->p[q][t] * scale_min[0];
            sum += w->p[q][t] * scale_min[1];
        }
        base[q] = sum;
    }
}

static void block_values(const gpw_kivi_part_t *part, const uint8_t *head, block_work_t *w)
{
    const gpw_kivi_layout_t *l = part->layout;
    part->ops->f16_to_f32((const krn_f16 *)(const void *)(head + l->v_scales),
                          2 * (size_t)l->tokens * l->channel_groups, w->scale_min);
    float base[QUERIES];
    for (uint32_t c = 0; c < l->dim; c += 8) {
        if (c % l->group == 0) {
            value_weights(l, w, c / l->group, base);
        }
        code_rows_t rows = {.codes = head + l->v_codes + c * l->bits / 8,
                            .row_bytes = l->v_row_bytes,
                            .count = l->tokens,
                            .bits = l->bits,
                            .weights = w->weights,
                            .weights_stride = l->tokens};
        v8f sums[QUERIES];
        accumulate_any(&rows, w->queries, sums);
        for (uint32_t q = 0; q < w->queries; q++) {
            v8f out = sums[q] + base[q];
            memcpy(&w->out[q][c], &out, sizeof(out));
        }
    }
}

// (row, query head) pairs of this KV head, numbered row by row.
static size_t pair_of(const gpw_kivi_part_t *part, uint32_t index)
{
    return (size_t)(index / part->group_heads) * part->q_heads + part->kv_head * part->group_heads +
           index % part->group_heads;
}

static void attend(const gpw_kivi_part_t *part)
{
    const gpw_kivi_layout_t *l = part->layout;
    block_work_t w;
    uint32_t pairs = part->rows * part->group_heads;
    for (uint32_t b = 0; b < part->block_count; b++) {
        const uint8_t *head = part->blocks[b] + part->layer_offset + part->kv_head * l->head_bytes;
        for (uint32_t first = 0; first < pairs; first += QUERIES) {
            w.queries = pairs - first < QUERIES ? pairs - first : QUERIES;
            for (uint32_t q = 0; q < w.queries; q++) {
                w.q[q] = part->q + pair_of(part, first + q) * l->dim;
            }
            block_logits(part, head, &w);
            block_softmax(l, &w);
            block_values(part, head, &w);
            for (uint32_t q = 0; q < w.queries; q++) {
                krn_partials_t io = gpw_partials_at(&part->out, pair_of(part, first + q), l->dim);
                krn_partials_t one = {w.out[q], &w.max[q], &w.sum[q]};
                part->ops->merge(&io, &one, 1, l->dim);
            }
        }
    }
}
