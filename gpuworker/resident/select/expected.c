// SPDX-License-Identifier: Apache-2.0
// Expected Attention (Devoto et al. 2025): what queries that are still to come would attend to, were
// they Gaussian.
//
// For one query head, of the prompt's last queries before their rotation: mean mu and covariance S.
// With R the mean of the rotations over the next FUTURE_TOKENS positions, mu' = R mu, S' = R S R^T:
//   z[t]     = k[t] . mu' * scale + k[t]^T S' k[t] * scale^2 / 2   (log of the expected exp(q . k))
//   score[t] = mean over the group's query heads of softmax(z)[t], times |v[t]|
// The softmax is over all tokens of the prompt but the sinks, which are kept.
//
// S is that of the observed rows q[r], so k^T S' k = mean over r of (k . R (q[r] - mu))^2: products
// with some more rows, and no matrix of dim * dim. The paper takes all queries of the prompt, or of
// a calibration; those of the end are the nearest to what comes, and make the choice one prompt's.
#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/exp8.h"
#include "gpuworker/resident/select/window_scores.h"

#define FUTURE_TOKENS 512u

// Where pair i of a head's rotated elements lies.
static void pair_of(const krn_rope_t *rope, uint32_t i, uint32_t *x_p, uint32_t *y_p)
{
    *x_p = rope->neox ? i : 2 * i;
    *y_p = rope->neox ? i + rope->dim / 2 : 2 * i + 1;
}

// Undoes the rotation of a query at `position`.
static void unrotate(const krn_rope_t *rope, uint32_t position, float *q)
{
    const float *table = rope->cos_sin + (size_t)position * rope->dim;
    for (uint32_t i = 0; i < rope->dim / 2; i++) {
        uint32_t x, y;
        pair_of(rope, i, &x, &y);
        float c = table[2 * i], s = table[2 * i + 1], length = c * c + s * s;
        float qx = (q[x] * c + q[y] * s) / length, qy = (q[y] * c - q[x] * s) / length;
        q[x] = qx;
        q[y] = qy;
    }
}

// Cosine and sine of each pair in the mean over the positions that follow `tokens`; those beyond the
// model's context are left out.
static void mean_rotation(const krn_rope_t *rope, uint32_t tokens, float *mean)
{
    uint32_t last = rope->position_count - 1;
    uint32_t first = tokens < last ? tokens : last;
    uint32_t count = rope->position_count - first;
    count = count < FUTURE_TOKENS ? count : FUTURE_TOKENS;
    for (uint32_t c = 0; c < rope->dim; c++) {
        double sum = 0;
        for (uint32_t p = first; p < first + count; p++) {
            sum += rope->cos_sin[(size_t)p * rope->dim + c];
        }
        mean[c] = (float)(sum / count);
    }
}

static void rotate(const krn_rope_t *rope, const float *mean, float *q)
{
    for (uint32_t i = 0; i < rope->dim / 2; i++) {
        uint32_t x, y;
        pair_of(rope, i, &x, &y);
        float c = mean[2 * i], s = mean[2 * i + 1], qx = q[x];
        q[x] = qx * c - q[y] * s;
        q[y] = qx * s + q[y] * c;
    }
}

// Row 0 of q[1 + rows][dim] becomes mu', the others R (q[r] - mu), of one query head.
static void expect_queries(const gpw_selection_t *choice, uint32_t head, float *q)
{
    const gpw_segment_observe_t *seen = choice->seen;
    uint32_t dim = choice->shape->head_dim, rows = seen->rows;
    const float *rotation = choice->scratch->directions;
    memset(q, 0, dim * sizeof(*q));
    for (uint32_t r = 0; r < rows; r++) {
        float *row = q + (size_t)(1 + r) * dim;
        memcpy(row, seen->q + ((size_t)r * choice->shape->q_heads + head) * dim,
               dim * sizeof(*row));
        if (seen->rope) {
            unrotate(seen->rope, seen->tokens - rows + r, row);
        }
        for (uint32_t c = 0; c < dim; c++) {
            q[c] += row[c] / (float)rows;
        }
    }
    for (uint32_t r = 0; r <= rows; r++) {
        float *row = q + (size_t)r * dim;
        for (uint32_t c = 0; c < dim && r > 0; c++) {
            row[c] -= q[c];
        }
    }
    for (uint32_t r = 0; r <= rows && seen->rope; r++) {
        rotate(seen->rope, rotation, q + (size_t)r * dim);
    }
}

// z of the columns of a product, for one query head and the logits of its rows.
static void exponents(const gpw_selection_t *choice, const float *logits, uint32_t columns,
                      float *z)
{
    uint32_t rows = choice->seen->rows;
    float scale = choice->seen->scale, spread = scale * scale / (2 * (float)rows);
    for (uint32_t t = 0; t < columns; t += 8) {
        v8f mean, x, squares = {0};
        memcpy(&mean, logits + t, sizeof(mean));
        for (uint32_t r = 1; r <= rows; r++) {
            memcpy(&x, logits + (size_t)r * columns + t, sizeof(x));
            squares += x * x;
        }
        mean = mean * scale + squares * spread;
        memcpy(z + t, &mean, sizeof(mean));
    }
}

// z becomes its softmax over [first, end), added to scores[t].
static void add_softmax(const float *z, uint32_t first, uint32_t end, float *scores)
{
    float max = -INFINITY;
    double sum = 0;
    for (uint32_t t = first; t < end; t++) {
        max = z[t] > max ? z[t] : max;
    }
    for (uint32_t t = first; t < end; t++) {
        sum += krn_expf(z[t] - max);
    }
    for (uint32_t t = first; t < end; t++) {
        scores[t] += krn_expf(z[t] - max) / (float)sum;
    }
}

static void score_head(const gpw_selection_t *choice, uint32_t kv_head)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t group = choice->shape->q_heads / choice->shape->kv_heads;
    uint32_t dim = choice->shape->head_dim, size = choice->shape->block_tokens;
    uint32_t rows = 1 + choice->seen->rows, tokens = choice->seen->tokens;
    float *scores = scratch->scores + (size_t)kv_head * scratch->stride;
    for (uint32_t g = 0; g < group; g++) {
        expect_queries(choice, kv_head * group + g, scratch->q + (size_t)g * rows * dim);
    }
    for (uint32_t first = 0; first < tokens; first += GPW_PRODUCT_TOKENS) {
        uint32_t columns = gpw_window_products(choice, kv_head, group * rows, first, tokens);
        for (uint32_t g = 0; g < group; g++) {
            exponents(choice, scratch->logits + (size_t)g * rows * columns, columns,
                      scratch->spare + (size_t)g * scratch->stride + first);
        }
    }
    memset(scores, 0, tokens * sizeof(*scores));
    for (uint32_t g = 0; g < group; g++) {
        add_softmax(scratch->spare + (size_t)g * scratch->stride, choice->sinks, tokens, scores);
    }
    for (uint32_t t = 0; t < choice->tokens; t++) {
        if (t % size == 0) {
            gpw_select_unpack(choice, 1, kv_head, t / size);
        }
        const float *v = scratch->unpacked + (size_t)(t % size) * dim;
        scores[t] *= sqrtf(gpw_select_dot(v, v, dim));
    }
}

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_segment_observe_t *seen = choice->seen;
    AS_ASSERT(!seen->rope || seen->tokens <= seen->rope->position_count);
    if (seen->rope) {
        mean_rotation(seen->rope, seen->tokens, choice->scratch->directions);
    }
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        score_head(choice, h);
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_expected = {
    .name = "expected attention", .observes = true, .choose = choose};
