// SPDX-License-Identifier: Apache-2.0
// The tail while drafting: provisional pages.
#include "gpuworker/resident/tail.h"

#include <string.h>

#include "common/assert.h"

// A draft of `horizon` rows that begins anywhere in a block.
static uint32_t pages_for(const as_shape_t *shape, uint32_t horizon)
{
    return (horizon + 2 * shape->block_tokens - 2) / shape->block_tokens;
}

uint64_t gpw_tail_bytes(const as_shape_t *shape, uint32_t horizon)
{
    return (uint64_t)pages_for(shape, horizon) * as_block_bytes(shape);
}

as_status_t gpw_tail_init(gpw_tail_t *tail, const as_shape_t *shape, gpw_budget_t *budget,
                          uint32_t horizon)
{
    gpw_tail_t t = {.budget = budget, .shape = *shape, .pages_max = pages_for(shape, horizon)};
    if (t.pages_max > 0) {
        t.memory = gpw_budget_alloc(budget, gpw_tail_bytes(shape, horizon));
        if (!t.memory) {
            return AS_ERR_NO_MEMORY;
        }
    }
    *tail = t;
    return AS_OK;
}

void gpw_tail_fini(gpw_tail_t *tail)
{
    gpw_budget_free(tail->budget, tail->memory,
                    (size_t)tail->pages_max * as_block_bytes(&tail->shape));
    memset(tail, 0, sizeof(*tail));
}

void gpw_tail_begin(gpw_tail_t *tail, const gpw_blocks_t *blocks)
{
    const as_shape_t *shape = &tail->shape;
    tail->first_block = blocks->tokens / shape->block_tokens;
    size_t rows_bytes =
        (size_t)(blocks->tokens % shape->block_tokens) * shape->head_dim * sizeof(krn_f16);
    if (rows_bytes == 0) {
        return;
    }
    size_t head_bytes = (size_t)shape->block_tokens * shape->head_dim * sizeof(krn_f16);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        const uint8_t *from = gpw_blocks_extent(blocks, tail->first_block, layer);
        uint8_t *to = gpw_tail_extent(tail, tail->first_block, layer);
        for (uint32_t h = 0; h < 2 * shape->kv_heads; h++) {
            tail->budget->device->ops->copy(to + h * head_bytes, from + h * head_bytes, rows_bytes);
        }
    }
}

uint8_t *gpw_tail_extent(const gpw_tail_t *tail, uint32_t block, uint32_t layer)
{
    if (block < tail->first_block) {
        return NULL;
    }
    AS_ASSERT(block - tail->first_block < tail->pages_max);
    return tail->memory + (size_t)(block - tail->first_block) * as_block_bytes(&tail->shape) +
           layer * as_extent_bytes(&tail->shape);
}
