// SPDX-License-Identifier: Apache-2.0
// The full cache of one session, as blocks.
#include "gpuworker/resident/blocks.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

as_status_t gpw_blocks_init(gpw_blocks_t *blocks, const as_shape_t *shape, gpw_budget_t *budget,
                            uint32_t tokens_max)
{
    gpw_blocks_t b = {.shape = *shape, .budget = budget};
    b.count_max = (tokens_max + shape->block_tokens - 1) / shape->block_tokens;
    b.block = as_mem_zalloc(b.count_max ? b.count_max : 1, sizeof(*b.block));
    if (!b.block) {
        return AS_ERR_NO_MEMORY;
    }
    *blocks = b;
    return AS_OK;
}

static void release(gpw_blocks_t *blocks, gpw_block_t *block)
{
    AS_ASSERT(!block->publishing);
    gpw_budget_free(blocks->budget, block->memory, as_block_bytes(&blocks->shape));
    block->memory = NULL;
}

void gpw_blocks_fini(gpw_blocks_t *blocks)
{
    for (uint32_t b = 0; b < blocks->count; b++) {
        release(blocks, &blocks->block[b]);
    }
    as_mem_free(blocks->block);
    memset(blocks, 0, sizeof(*blocks));
}

void gpw_blocks_key(gpw_blocks_t *blocks, const int32_t *tokens, uint32_t token_count)
{
    uint32_t size = blocks->shape.block_tokens;
    uint32_t full = token_count / size;
    AS_ASSERT(full <= blocks->count_max);
    for (uint32_t b = blocks->keyed; b < full; b++) {
        const as_key_t *parent = b ? &blocks->block[b - 1].key : &blocks->namespace_key;
        as_block_key(parent, tokens + (size_t)b * size, size, &blocks->block[b].key);
    }
    blocks->keyed = full > blocks->keyed ? full : blocks->keyed;
}

void gpw_blocks_adopt(gpw_blocks_t *blocks, const uint64_t *node_ids, uint32_t count)
{
    AS_ASSERT(blocks->count == 0 && count <= blocks->keyed);
    for (uint32_t b = 0; b < count; b++) {
        blocks->block[b].node_id = node_ids ? node_ids[b] : 0;
    }
    blocks->count = count;
    blocks->stored = count;
    blocks->tokens = count * blocks->shape.block_tokens;
}

static as_status_t hold_one(gpw_blocks_t *blocks, uint32_t b)
{
    gpw_block_t *block = &blocks->block[b];
    AS_ASSERT(!block->memory);
    block->memory = gpw_budget_alloc(blocks->budget, as_block_bytes(&blocks->shape));
    return block->memory ? AS_OK : AS_ERR_NO_MEMORY;
}

as_status_t gpw_blocks_cover(gpw_blocks_t *blocks, uint32_t tokens)
{
    uint32_t need = (tokens + blocks->shape.block_tokens - 1) / blocks->shape.block_tokens;
    AS_ASSERT(need <= blocks->count_max);
    while (blocks->count < need) {
        as_status_t status = hold_one(blocks, blocks->count);
        if (status != AS_OK) {
            return status;
        }
        // The unwritten end of a last block must not hold another session's bytes: a put of a full
        // block sends only what was written, but a checksum over garbage would hide a bug.
        memset(blocks->block[blocks->count].memory, 0, as_block_bytes(&blocks->shape));
        blocks->count++;
    }
    return AS_OK;
}

as_status_t gpw_blocks_hold(gpw_blocks_t *blocks, uint32_t from)
{
    while (blocks->stored > from) {
        uint32_t b = blocks->stored - 1;
        as_status_t status = hold_one(blocks, b);
        if (status != AS_OK) {
            return status;
        }
        blocks->block[b].node_id = 0;
        blocks->block[b].hollow = true;
        blocks->stored = b;
    }
    return AS_OK;
}

void gpw_blocks_filled(gpw_blocks_t *blocks)
{
    for (uint32_t b = 0; b < blocks->count; b++) {
        blocks->block[b].hollow = false;
    }
}

uint32_t gpw_blocks_drop(gpw_blocks_t *blocks, uint32_t limit)
{
    uint32_t before = blocks->stored;
    while (blocks->stored < limit) {
        gpw_block_t *block = &blocks->block[blocks->stored];
        if ((!block->node_id && !block->lossy) || block->publishing || block->hollow) {
            break;
        }
        release(blocks, block);
        blocks->stored++;
    }
    return blocks->stored - before;
}

uint8_t *gpw_blocks_extent(const gpw_blocks_t *blocks, uint32_t block, uint32_t layer)
{
    uint8_t *memory = block < blocks->count ? blocks->block[block].memory : NULL;
    return memory ? memory + layer * as_extent_bytes(&blocks->shape) : NULL;
}

uint32_t gpw_blocks_full(const gpw_blocks_t *blocks)
{
    return blocks->tokens / blocks->shape.block_tokens;
}

void gpw_extent_store(const as_shape_t *shape, uint8_t *extent, uint32_t position, const krn_f16 *k,
                      const krn_f16 *v)
{
    size_t head = (size_t)shape->block_tokens * shape->head_dim;
    size_t row_bytes = shape->head_dim * sizeof(krn_f16);
    krn_f16 *to_k =
        (krn_f16 *)(void *)extent + (size_t)(position % shape->block_tokens) * shape->head_dim;
    krn_f16 *to_v = to_k + shape->kv_heads * head;
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        memcpy(to_k + h * head, k + (size_t)h * shape->head_dim, row_bytes);
        memcpy(to_v + h * head, v + (size_t)h * shape->head_dim, row_bytes);
    }
}

void gpw_blocks_store(gpw_blocks_t *blocks, uint32_t layer, const gpw_rows_t *rows)
{
    size_t row = (size_t)blocks->shape.kv_heads * blocks->shape.head_dim;
    for (uint32_t r = 0; r < rows->count; r++) {
        uint32_t position = rows->position + r;
        uint8_t *extent = gpw_blocks_extent(blocks, position / blocks->shape.block_tokens, layer);
        AS_ASSERT(extent);
        gpw_extent_store(&blocks->shape, extent, position, rows->k + r * row, rows->v + r * row);
    }
}
