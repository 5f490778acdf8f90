// SPDX-License-Identifier: Apache-2.0
// The attention of an observation window, some tokens at a time.
//
// Keys become the panels of a weight matrix (they are f16 already, so nothing is rounded), and the
// logits of all rows are one product. Its columns are then summed over the rows in ascending order,
// so scores do not depend on the threads.
#include "gpuworker/resident/select/window_scores.h"

#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/exp8.h"

#define TILE_TOKENS 64u // columns that one thread sums
#define ALIGN_BYTES 64u

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

size_t gpw_select_carve(const as_shape_t *shape, uint32_t tokens_max, bool observes, void *memory,
                        gpw_select_scratch_t *scratch_p)
{
    uint32_t group = shape->q_heads / shape->kv_heads, dim = shape->head_dim;
    size_t rows = (size_t)(GPW_OBSERVED_ROWS_MAX + 1) * group; // and a mean of them
    size_t bytes = 0;
    gpw_select_scratch_t scratch = {.stride = round_up(tokens_max, KRN_PANEL)};
    if (observes) {
        scratch.keys =
            carve(memory, &bytes, krn_weight_bytes(KRN_WEIGHT_F16, GPW_PRODUCT_TOKENS, dim));
        scratch.q = carve(memory, &bytes, rows * dim * sizeof(float));
        scratch.lse = carve(memory, &bytes, rows * sizeof(float));
        scratch.logits = carve(memory, &bytes, rows * GPW_PRODUCT_TOKENS * sizeof(float));
    }
    size_t list = (size_t)scratch.stride * sizeof(float);
    scratch.scores = carve(memory, &bytes, shape->kv_heads * list);
    scratch.spare = carve(memory, &bytes, group * list);
    scratch.unpacked = carve(memory, &bytes, (size_t)shape->block_tokens * dim * sizeof(float));
    scratch.directions = carve(memory, &bytes, 2 * (size_t)dim * sizeof(float));
    *scratch_p = scratch;
    return bytes;
}

void gpw_select_unpack(const gpw_selection_t *choice, uint32_t part, uint32_t kv_head,
                       uint32_t block)
{
    const as_shape_t *shape = choice->shape;
    size_t elements = (size_t)shape->block_tokens * shape->head_dim;
    const krn_page_t *page = &choice->pages[block];
    choice->ops->f16_to_f32((part ? page->v : page->k) + kv_head * elements, elements,
                            choice->scratch->unpacked);
}

// Keys of the tokens [first, end) as panels [count / 16][dim][16]; the last is padded.
static void pack_keys(const gpw_selection_t *choice, uint32_t kv_head, const krn_weight_t *keys,
                      uint32_t first, uint32_t end)
{
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    for (uint32_t t = 0; t < keys->n; t++) {
        uint32_t token = first + t;
        krn_f16 *to =
            (krn_f16 *)keys->data + (size_t)(t / KRN_PANEL) * dim * KRN_PANEL + t % KRN_PANEL;
        if (token >= end) {
            for (uint32_t c = 0; c < dim; c++) {
                to[(size_t)c * KRN_PANEL] = 0;
            }
            continue;
        }
        const krn_f16 *k =
            choice->pages[token / size].k + ((size_t)kv_head * size + token % size) * dim;
        for (uint32_t c = 0; c < dim; c++) {
            to[(size_t)c * KRN_PANEL] = k[c];
        }
    }
}

uint32_t gpw_window_products(const gpw_selection_t *choice, uint32_t kv_head, uint32_t rows,
                             uint32_t first, uint32_t end)
{
    uint32_t count = end - first < GPW_PRODUCT_TOKENS ? end - first : GPW_PRODUCT_TOKENS;
    krn_weight_t keys = {.type = KRN_WEIGHT_F16,
                         .n = round_up(count, KRN_PANEL),
                         .k = choice->shape->head_dim,
                         .data = choice->scratch->keys};
    pack_keys(choice, kv_head, &keys, first, end);
    choice->ops->matmul(choice->seen->pool, &keys, choice->scratch->q, rows,
                        choice->scratch->logits);
    return keys.n;
}

// The queries of the window and their log-sum-exps, without those of other heads in between.
static void gather_queries(const gpw_selection_t *choice, const gpw_window_t *window)
{
    const gpw_segment_observe_t *seen = choice->seen;
    const as_shape_t *shape = choice->shape;
    size_t width = (size_t)window->heads * shape->head_dim;
    for (uint32_t r = 0; r < window->rows; r++) {
        size_t at = (size_t)(window->row + r) * shape->q_heads + window->head;
        memcpy(choice->scratch->q + r * width, seen->q + at * shape->head_dim,
               width * sizeof(float));
        memcpy(choice->scratch->lse + (size_t)r * window->heads, seen->lse + at,
               window->heads * sizeof(float));
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

void gpw_window_scores(const gpw_selection_t *choice, const gpw_window_t *window, float *scores)
{
    const gpw_segment_observe_t *seen = choice->seen;
    uint32_t group = choice->shape->q_heads / choice->shape->kv_heads;
    AS_ASSERT(window->row + window->rows <= seen->rows && seen->rows <= GPW_OBSERVED_ROWS_MAX);
    AS_ASSERT(window->tokens <= seen->tokens - seen->rows + window->row + 1);
    AS_ASSERT(window->head % group + window->heads <= group);
    gather_queries(choice, window);
    sum_t sum = {.logits = choice->scratch->logits,
                 .lse = choice->scratch->lse,
                 .rows = window->rows * window->heads,
                 .scale = seen->scale};
    for (uint32_t first = 0; first < window->tokens; first += GPW_PRODUCT_TOKENS) {
        sum.scores = scores + first;
        sum.columns =
            gpw_window_products(choice, window->head / group, sum.rows, first, window->tokens);
        krn_pool_run(seen->pool, (sum.columns + TILE_TOKENS - 1) / TILE_TOKENS, sum_tile, &sum);
    }
}
