// SPDX-License-Identifier: Apache-2.0
// Quest (Tang et al. 2024): pages whose keys could have the largest logits.
//
//   score[page] = sum over the group's query heads q of
//                 sum over channels c of max(q[c] * most[page][c], q[c] * least[page][c])
//
// with the greatest and the least value that each channel has among the page's keys: no key of the
// page has a larger sum. Of two products the greater is that with `most` where q[c] is positive,
// else that with `least`; so the heads need not be gone through page by page:
//
//   score[page] = sum over c of most[page][c] * p[c] + least[page][c] * n[c],
//   p[c] = sum over q of max(q[c], 0), n[c] = sum over q of min(q[c], 0).
//
// The greatest are read whole, as many as it takes to read the budget. The paper's heads choose each
// for itself; those of a group would then read each other's pages, too.
//
// Index of a piece: [pages][most, least][dim] f16.
#include <string.h>

#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/top.h"

static as_status_t prepare(gpw_read_plan_t *plan)
{
    return plan->params->page_tokens > 0 ? AS_OK : AS_ERR_UNSUPPORTED;
}

static size_t index_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (size_t)gpw_read_page_count(plan, tokens) * 2 * plan->shape.head_dim * sizeof(krn_f16);
}

static void index_piece(const gpw_read_plan_t *plan, const gpw_read_rows_t *rows, uint8_t *index)
{
    uint32_t dim = plan->shape.head_dim, size = plan->params->page_tokens;
    krn_f16 *to = (krn_f16 *)(void *)index;
    for (uint32_t t = 0; t < rows->tokens; t += size, to += 2 * (size_t)dim) {
        uint32_t left = rows->tokens - t;
        gpw_read_page_bounds_of(rows->k + (size_t)t * dim, left < size ? left : size, dim, to,
                                to + dim);
    }
}

static void add_queries(const gpw_reading_t *reading, float *positive, float *negative)
{
    uint32_t dim = reading->plan->shape.head_dim;
    memset(positive, 0, dim * sizeof(float));
    memset(negative, 0, dim * sizeof(float));
    for (uint32_t i = 0; i < gpw_read_group(reading->plan) * dim; i++) {
        float x = reading->q[i];
        positive[i % dim] += x > 0 ? x : 0;
        negative[i % dim] += x < 0 ? x : 0;
    }
}

static uint32_t choose(const gpw_reading_t *reading, uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t dim = plan->shape.head_dim, stride = gpw_read_page_count(plan, plan->piece_tokens);
    uint32_t pieces = gpw_read_piece_count(plan, reading->tokens), pages = 0;
    float x[2 * KRN_HEAD_DIM_MAX];
    add_queries(reading, x, x + dim);
    for (uint32_t p = 0; p < pieces; p++) {
        const gpw_read_piece_t *piece = &reading->pieces[p];
        uint32_t own = gpw_read_page_count(plan, gpw_read_piece_size(reading, p));
        if (p + 1 < pieces) {
            gpw_read_ahead(piece[1].index, index_bytes(plan, gpw_read_piece_size(reading, p + 1)));
        }
        plan->products->dots(x, (const krn_f16 *)(const void *)piece->index, own, 2 * dim,
                             reading->scores + pages);
        pages += own; // but for the last, a piece has `stride`
    }
    gpw_read_page_sizes(reading, stride);
    gpw_select_top_units(reading->scores, reading->sizes, pages, reading->budget, reading->taken);
    for (uint32_t u = 0; u < pages; u++) {
        reading->taken[u] = reading->taken[u] ? reading->sizes[u] : 0;
    }
    memset(reading->taken + pages, 0, (pieces * stride - pages) * sizeof(*reading->taken));
    return gpw_read_page_tokens(reading, stride, tokens);
}

const gpw_reader_t gpw_read_page_bounds = {.name = "page bounds",
                                           .prepare = prepare,
                                           .index_bytes = index_bytes,
                                           .units = gpw_read_page_count,
                                           .index = index_piece,
                                           .choose = choose};
