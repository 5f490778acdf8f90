// SPDX-License-Identifier: Apache-2.0
// The attention of an observation window, a chunk of tokens at a time.
//
// A chunk's keys become the panels of a weight matrix (they are f16 already, so nothing is rounded),
// and the logits of all rows are one product. Its columns are then summed over the rows in ascending
// order, so scores do not depend on the threads.
#include "gpuworker/resident/window_scores.h"

#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/exp8.h"

#define CHUNK_TOKENS 512u // keys of one product: 64 KiB at head size 64, and their logits 200 KiB
#define TILE_TOKENS  64u  // columns that one thread sums
#define ALIGN_BYTES  64u

static uint32_t round_up(uint32_t count, uint32_t to)
{
    return (count + to - 1) / to * to;
}

static void *carve(char *memory, size_t *at_p, size_t bytes)
{
    char *piece = memory ? memory + *at_p : NULL;
    *at_p += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return piece;
}

size_t gpw_window_carve(const as_shape_t *shape, uint32_t tokens_max, void *memory,
                        gpw_window_scratch_t *scratch_p)
{
    size_t pairs = (size_t)GPW_OBSERVED_ROWS_MAX * (shape->q_heads / shape->kv_heads);
    size_t scores_bytes = round_up(tokens_max, KRN_PANEL) * sizeof(float);
    size_t bytes = 0;
    *scratch_p = (gpw_window_scratch_t){
        .keys =
            carve(memory, &bytes, krn_weight_bytes(KRN_WEIGHT_F16, CHUNK_TOKENS, shape->head_dim)),
        .q = carve(memory, &bytes, pairs * shape->head_dim * sizeof(float)),
        .lse = carve(memory, &bytes, pairs * sizeof(float)),
        .logits = carve(memory, &bytes, pairs * CHUNK_TOKENS * sizeof(float)),
        .scores = carve(memory, &bytes, scores_bytes),
        .smoothed = carve(memory, &bytes, scores_bytes),
    };
    return bytes;
}

// The queries of one KV head and their log-sum-exps, without those of other heads in between.
static void gather_queries(const as_shape_t *shape, const gpw_segment_observe_t *args,
                           uint32_t kv_head, const gpw_window_scratch_t *scratch)
{
    uint32_t group = shape->q_heads / shape->kv_heads;
    size_t width = (size_t)group * shape->head_dim;
    for (uint32_t r = 0; r < args->rows; r++) {
        size_t head = (size_t)r * shape->q_heads + kv_head * group;
        memcpy(scratch->q + r * width, args->q + head * shape->head_dim, width * sizeof(float));
        memcpy(scratch->lse + (size_t)r * group, args->lse + head, group * sizeof(float));
    }
}

// Keys of the tokens [first, first + count) as panels [count / 16][dim][16]; the last is padded.
static void pack_keys(const as_shape_t *shape, const gpw_segment_observe_t *args, uint32_t kv_head,
                      const krn_weight_t *keys, uint32_t first)
{
    uint32_t size = shape->block_tokens, dim = shape->head_dim;
    for (uint32_t t = 0; t < keys->n; t++) {
        uint32_t token = first + t;
        krn_f16 *to =
            (krn_f16 *)keys->data + (size_t)(t / KRN_PANEL) * dim * KRN_PANEL + t % KRN_PANEL;
        if (token >= args->tokens) {
            for (uint32_t c = 0; c < dim; c++) {
                to[(size_t)c * KRN_PANEL] = 0;
            }
            continue;
        }
        const krn_f16 *k =
            args->pages[token / size].k + ((size_t)kv_head * size + token % size) * dim;
        for (uint32_t c = 0; c < dim; c++) {
            to[(size_t)c * KRN_PANEL] = k[c];
        }
    }
}

typedef struct sum {
    const float *logits, *lse;
    uint32_t rows, columns; // columns: a multiple of 8
    float scale;
    float *scores;
} sum_t;

static void sum_tile(void *ctx, uint32_t index)
{
    const sum_t *sum = ctx;
    uint32_t end = (index + 1) * TILE_TOKENS;
    end = end < sum->columns ? end : sum->columns;
    for (uint32_t t = index * TILE_TOKENS; t < end; t += 8) {
        v8f total = {0};
        for (uint32_t r = 0; r < sum->rows; r++) {
            v8f x;
            memcpy(&x, sum->logits + (size_t)r * sum->columns + t, sizeof(x));
            x = x * sum->scale - sum->lse[r];
            exp8(&x);
            total += x;
        }
        memcpy(sum->scores + t, &total, sizeof(total));
    }
}

void gpw_window_scores(const krn_ops_t *ops, const as_shape_t *shape,
                       const gpw_segment_observe_t *args, uint32_t kv_head,
                       const gpw_window_scratch_t *scratch)
{
    AS_ASSERT(args->rows <= GPW_OBSERVED_ROWS_MAX && args->rows <= args->tokens);
    uint32_t scored = args->tokens - args->rows;
    gather_queries(shape, args, kv_head, scratch);
    for (uint32_t first = 0; first < scored; first += CHUNK_TOKENS) {
        uint32_t count = scored - first < CHUNK_TOKENS ? scored - first : CHUNK_TOKENS;
        krn_weight_t keys = {.type = KRN_WEIGHT_F16,
                             .n = round_up(count, KRN_PANEL),
                             .k = shape->head_dim,
                             .data = scratch->keys};
        sum_t sum = {.logits = scratch->logits,
                     .lse = scratch->lse,
                     .rows = args->rows * (shape->q_heads / shape->kv_heads),
                     .columns = keys.n,
                     .scale = args->scale,
                     .scores = scratch->scores + first};
        pack_keys(shape, args, kv_head, &keys, first);
        ops->matmul(args->pool, &keys, scratch->q, sum.rows, scratch->logits);
        krn_pool_run(args->pool, (keys.n + TILE_TOKENS - 1) / TILE_TOKENS, sum_tile, &sum);
    }
}
