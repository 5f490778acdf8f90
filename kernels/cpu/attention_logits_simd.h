// SPDX-License-Identifier: Apache-2.0
// Attention, first half: what a block of (row, head) pairs works on, and its logits for one page.
//
// What the rule of kernels.h leaves free is how the 16 lanes of a dot product lie in vectors:
//
//  - many pairs: K is converted and transposed once to [dim][token], so that 16 tokens are one
//    vector, the 16 lane sums of the rule are 16 vectors, and the tree is additions of whole
//    vectors (qk_tile);
//  - few pairs (decode): K is read as it lies, the 16 lane sums are one vector, and 16 tokens'
//  trees
//    are done together by shuffles (qk_few). Transposing would cost more than it saves.
#include <string.h>

#include "common/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"

#define KRN_INLINE static inline __attribute__((always_inline))

#define BLOCK_PAIRS  192u
#define FEW_PAIRS    8u  // below: no conversion buffers; where transposing K begins to pay
#define CHUNK_TOKENS 64u // tokens converted at a time
#define SOME_PAIRS   48u // pairs that go through a page together: what they work on stays in L1

// What a block of pairs works on; all of it in the thread's scratch but io.
typedef struct block {
    const krn_attention_args_t *args;
    uint32_t kv_head, group, row0, pairs;
    uint32_t logits_stride; // capacity rounded up to 16
    float *keys;            // [dim][CHUNK_TOKENS]: some of the page's K, converted
    float *values;          // [CHUNK_TOKENS][dim]: of its V
    float *q;               // [pairs][dim]
    float *logits;          // [pairs][logits_stride]; then p = exp(s - max)
    float *page_out;        // [pairs][dim]
    float *page_max, *page_sum, *total_max, *total_sum; // [pairs]
    float *page_scale, *total_scale;                    // [pairs]: exp(max - merged max)
    const krn_f16 *ahead; // read next, laid out as what is read now: prefetched
    const krn_f16 *next;  // K of the next page
    uint32_t *at;         // [pairs]: index among all (row, head) pairs
    int32_t *position;    // [pairs]
    uint32_t *visible;    // [pairs]
    uint32_t visible_max;
} block_t;

#define SCRATCH_FLOATS                                                                             \
    (2 * CHUNK_TOKENS * KRN_HEAD_DIM_MAX +                                                         \
     BLOCK_PAIRS * (2 * KRN_HEAD_DIM_MAX + KRN_PAGE_TOKENS_MAX + 9) + 64)

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t round_up16(uint32_t n)
{
    return (n + 15) / 16 * 16;
}

// ---- Logits -------------------------------------------------------------------------

// K of tokens [t0, t0 + count) to keys[dim][CHUNK_TOKENS].
static void transpose_keys(const block_t *b, const krn_f16 *k, uint32_t t0, uint32_t count)
{
    uint32_t dim = b->args->dim;

    for (uint32_t t = 0; t < count; t += 16) {
        for (uint32_t d = 0; d < dim; d += 16) {
            v16 rows[16];
            for (uint32_t i = 0; i < 16; i++) {
                const krn_f16 *from = k + (size_t)(t0 + t + i) * dim + d;
                rows[i] = t + i < count ? v16_load_f16(from) : v16_set1(0.0f);
            }
            v16_transpose(rows);
            for (uint32_t i = 0; i < 16; i++)
                v16_store(b->keys + (size_t)(d + i) * CHUNK_TOKENS + t, rows[i]);
        }
    }
}

// Where a tile lies: its first pair, and its first token in the converted chunk that begins at t0.
typedef struct tile {
    uint32_t pair, token, t0;
} tile_t;

// Logits of R pairs and T times 16 tokens. Lane sums are made in the order 0 8 4 12 2 10 6 14 1 ...
// and added up like a binary counter: two of equal size become one. That is the tree, with five
// sums alive instead of sixteen.
KRN_INLINE void qk_tile(const block_t *b, tile_t at, const uint32_t dim, const int R, const int T)
{
    static const uint8_t order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    const float *q = b->q + (size_t)at.pair * dim, *k = b->keys + at.token;
    float *logits = b->logits + (size_t)at.pair * b->logits_stride + at.t0 + at.token;
    v16 level[5][4][4];

#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        v16 sum[4][4];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < T; i++)
                sum[r][i] = v16_set1(0.0f);
        for (uint32_t d = order[j]; d < dim; d += 16) {
            v16 keys[4];
#pragma GCC unroll 4
            for (int i = 0; i < T; i++)
                keys[i] = v16_pin(v16_load(k + (size_t)d * CHUNK_TOKENS + 16 * i));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                v16 x = v16_set1(q[r * dim + d]);
#pragma GCC unroll 4
                for (int i = 0; i < T; i++)
                    sum[r][i] = v16_fma(x, keys[i], sum[r][i]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < T; i++) {
                v16 x = sum[r][i];
                x = (j & 1) == 1 ? v16_add(level[0][r][i], x) : x;
                x = (j & 3) == 3 ? v16_add(level[1][r][i], x) : x;
                x = (j & 7) == 7 ? v16_add(level[2][r][i], x) : x;
                x = (j & 15) == 15 ? v16_add(level[3][r][i], x) : x;
                level[(j & 1) == 0    ? 0
                      : (j & 3) == 1  ? 1
                      : (j & 7) == 3  ? 2
                      : (j & 15) == 7 ? 3
                                      : 4][r][i] = x;
            }
    }
    v16 scale = v16_set1(b->args->scale);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < T; i++)
            v16_store(logits + (size_t)r * b->logits_stride + 16 * i,
                      v16_mul(level[4][r][i], scale));
}

// The tile of most of the work. With the most usual dim as a constant nothing but loads and
// multiply-adds is left of its inner loop; larger dims would be too much code for that.
static void qk_tile_full(const block_t *b, tile_t at)
{
    if (b->args->dim == 64)
        qk_tile(b, at, 64, KRN_QK_PAIRS, KRN_QK_VECTORS);
    else
        qk_tile(b, at, b->args->dim, KRN_QK_PAIRS, KRN_QK_VECTORS);
}

// Pairs that are left, taken together where as many are.
#define QK_REST (KRN_QK_PAIRS > 1 ? KRN_QK_PAIRS - 1 : 1)

static void qk_tile_rest(const block_t *b, tile_t at)
{
    if (b->args->dim == 64)
        qk_tile(b, at, 64, QK_REST, KRN_QK_VECTORS);
    else
        qk_tile(b, at, b->args->dim, QK_REST, KRN_QK_VECTORS);
}

static void qk_tile_one(const block_t *b, tile_t at)
{
    qk_tile(b, at, b->args->dim, 1, 1);
}

// Some of a block's pairs.
typedef struct pairs {
    uint32_t first, end;
} pairs_t;

static void logits_chunk(const block_t *b, uint32_t t0, uint32_t count, pairs_t pairs)
{
    for (uint32_t pair = pairs.first, step; pair < pairs.end; pair += step) {
        uint32_t left = pairs.end - pair;
        tile_t at = {.pair = pair, .t0 = t0};
        step = left >= KRN_QK_PAIRS ? KRN_QK_PAIRS : left >= QK_REST ? QK_REST : 1;
        for (; step > 1 && at.token + 16 * KRN_QK_VECTORS <= round_up16(count);
             at.token += 16 * KRN_QK_VECTORS)
            if (step == KRN_QK_PAIRS)
                qk_tile_full(b, at);
            else
                qk_tile_rest(b, at);
        for (; at.token < count; at.token += 16)
            for (at.pair = pair; at.pair < pair + step; at.pair++)
                qk_tile_one(b, at);
    }
}

// K stays converted for the pairs that follow, where the page is one chunk.
static void logits_many(const block_t *b, const krn_f16 *k, pairs_t pairs)
{
    for (uint32_t t0 = 0; t0 < b->visible_max; t0 += CHUNK_TOKENS) {
        uint32_t count = min_u32(b->visible_max - t0, CHUNK_TOKENS);
        if (pairs.first == 0)
            transpose_keys(b, k, t0, count);
        logits_chunk(b, t0, count, pairs);
    }
}

// Lane sums of R pairs with one token's K, to lanes[pair][token].
KRN_INLINE void dot_lanes(const float *q, const krn_f16 *k, float (*lanes)[16][16],
                          const uint32_t dim, const int R)
{
    v16 sum[4];

#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        sum[r] = v16_set1(0.0f);
    for (uint32_t d = 0; d < dim; d += 16) {
        v16 keys = v16_load_f16(k + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            sum[r] = v16_fma(v16_load(q + r * dim + d), keys, sum[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        v16_store(lanes[r][0], sum[r]);
}

KRN_INLINE void qk_few(const block_t *b, const krn_f16 *k, uint32_t pair, const uint32_t dim,
                       const int R)
{
    const float *q = b->q + (size_t)pair * dim;
    _Alignas(64) float lanes[4][16][16];

    memset(lanes, 0, sizeof lanes);
    for (uint32_t t = 0; t < b->visible_max; t++) {
        dot_lanes(q, k + (size_t)t * dim, (float(*)[16][16])lanes[0][t % 16], dim, R);
        for (uint32_t d = 0; d < dim; d += 32)
            v16_prefetch(b->ahead + (size_t)t * dim + d);
        if (t % 16 < 15 && t + 1 < b->visible_max)
            continue;
        for (int r = 0; r < R; r++) {
            v16 dots = v16_tree16((const float(*)[16])lanes[r]);
            v16_store(b->logits + (size_t)(pair + r) * b->logits_stride + t / 16 * 16,
                      v16_mul(dots, v16_set1(b->args->scale)));
        }
    }
}

KRN_INLINE void qk_few_pairs(const block_t *b, const krn_f16 *k, uint32_t pair, const int R)
{
    switch (b->args->dim) {
    case 64:
        qk_few(b, k, pair, 64, R);
        break;
    case 128:
        qk_few(b, k, pair, 128, R);
        break;
    default:
        qk_few(b, k, pair, b->args->dim, R);
        break;
    }
}

static void logits_few(const block_t *b, const krn_f16 *k)
{
    uint32_t pair = 0;

    for (; b->pairs - pair >= 4; pair += 4)
        qk_few_pairs(b, k, pair, 4);
    if (b->pairs - pair == 3)
        qk_few_pairs(b, k, pair, 3);
    else if (b->pairs - pair == 2)
        qk_few_pairs(b, k, pair, 2);
    else if (b->pairs - pair == 1)
        qk_few_pairs(b, k, pair, 1);
}
