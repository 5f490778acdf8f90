// SPDX-License-Identifier: Apache-2.0
// Pages of a few tokens in a row, and what bounds their keys.
#include <string.h>

#include "gpuworker/resident/read/reader.h"

uint32_t gpw_read_page_count(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (tokens + plan->params->page_tokens - 1) / plan->params->page_tokens;
}

// The order of f16 as that of whole numbers, and back: -0 before +0.
static inline int16_t ordered(int16_t bits)
{
    return (int16_t)(bits ^ ((bits >> 15) & 0x7fff));
}

void gpw_read_page_bounds_of(const krn_f16 *k, uint32_t tokens, uint32_t dim, krn_f16 *most,
                             krn_f16 *least)
{
    int16_t high[KRN_HEAD_DIM_MAX], low[KRN_HEAD_DIM_MAX];
    for (uint32_t c = 0; c < dim; c++) {
        high[c] = low[c] = ordered((int16_t)k[c]);
    }
    for (uint32_t t = 1; t < tokens; t++) {
        for (uint32_t c = 0; c < dim; c++) {
            int16_t x = ordered((int16_t)k[(size_t)t * dim + c]);
            high[c] = x > high[c] ? x : high[c];
            low[c] = x < low[c] ? x : low[c];
        }
    }
    for (uint32_t c = 0; c < dim; c++) {
        most[c] = (krn_f16)ordered(high[c]);
        least[c] = (krn_f16)ordered(low[c]);
    }
}

static uint32_t page_size(const gpw_reading_t *reading, uint32_t piece, uint32_t page)
{
    uint32_t size = reading->plan->params->page_tokens;
    uint32_t left = gpw_read_piece_size(reading, piece) - page * size;
    return left < size ? left : size;
}

uint32_t gpw_read_page_sizes(const gpw_reading_t *reading, uint32_t stride)
{
    uint32_t pieces = gpw_read_piece_count(reading->plan, reading->tokens);
    for (uint32_t p = 0; p < pieces; p++) {
        uint16_t *sizes = reading->sizes + (size_t)p * stride;
        uint32_t pages = gpw_read_page_count(reading->plan, gpw_read_piece_size(reading, p));
        memset(sizes, 0, stride * sizeof(*sizes));
        for (uint32_t u = 0; u < pages; u++) {
            sizes[u] = (uint16_t)page_size(reading, p, u);
        }
    }
    return pieces * stride;
}

uint32_t gpw_read_page_tokens(const gpw_reading_t *reading, uint32_t stride, uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t pieces = gpw_read_piece_count(plan, reading->tokens), count = 0;
    for (uint32_t p = 0; p < pieces; p++) {
        const uint16_t *taken = reading->taken + (size_t)p * stride;
        for (uint32_t u = 0; u < stride; u++) {
            uint32_t first = p * plan->piece_tokens + u * plan->params->page_tokens;
            for (uint32_t t = 0; t < taken[u]; t++) {
                tokens[count++] = first + t;
            }
        }
    }
    return count;
}
