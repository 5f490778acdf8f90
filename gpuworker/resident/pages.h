// SPDX-License-Identifier: Apache-2.0
// Attention over exact pages that yields partials (not yet normalised), for merging with a
// segment's.
#ifndef GPW_PAGES_H
#define GPW_PAGES_H

#include "common/block.h"
#include "kernels/kernels.h"

// The page that is one block's extent.
static inline krn_page_t gpw_page(const as_shape_t *shape, const void *extent, uint32_t index)
{
    const krn_f16 *k = extent;
    krn_page_t page = {k, k + (size_t)shape->kv_heads * shape->block_tokens * shape->head_dim,
                       index};
    return page;
}

// Attention of rows of queries, q: [rows][q_heads][head_dim], over pages of this shape. Their positions and the pages are
// for the caller to add.
static inline krn_attention_args_t gpw_page_attention(const as_shape_t *shape, uint32_t rows,
                                                      float scale, const float *q)
{
    return (krn_attention_args_t){.rows = rows,
                                  .q_heads = shape->q_heads,
                                  .kv_heads = shape->kv_heads,
                                  .dim = shape->head_dim,
                                  .capacity = shape->block_tokens,
                                  .scale = scale,
                                  .q = q};
}

// Folds the attention over args->pages (any number of runs) into io, which covers earlier tokens or
// is clear. `scratch` holds partials of all rows: rows * q_heads * (dim + 2) floats.
void gpw_pages_attend(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                      float *scratch, krn_partials_t *io);

#endif
