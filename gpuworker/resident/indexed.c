// SPDX-License-Identifier: Apache-2.0
// All tokens as they are, with a reader's index.
#include "gpuworker/resident/indexed.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

struct gpw_segment {
    gpw_compressor_params_t params;
    gpw_read_plan_t plan;
    const krn_ops_t *ops;
    uint32_t blocks_max, blocks_reserved;
    uint8_t **blocks; // [blocks_max]
    uint32_t *sealed; // [layers]
    float *scratch;   // [2][tokens][dim]: of the block that is being sealed
    gpw_read_t *read;
};

static as_status_t plan_for(const gpw_segment_options_t *options, gpw_read_plan_t *plan_p)
{
    uint32_t size = options->shape.block_tokens;
    if (options->params->selector || options->params->codec) {
        return AS_ERR_UNSUPPORTED; // all tokens stay, and as they are
    }
    return gpw_read_plan(options, size, options->blocks_max * size, plan_p);
}

static size_t layer_bytes(const gpw_read_plan_t *plan)
{
    return as_extent_bytes(&plan->shape) +
           plan->shape.kv_heads * gpw_read_index_bytes(plan, plan->piece_tokens);
}

static size_t block_bytes(const gpw_read_plan_t *plan)
{
    return plan->shape.layers * layer_bytes(plan);
}

static size_t scratch_floats(const as_shape_t *shape)
{
    return 2 * (size_t)shape->block_tokens * shape->head_dim;
}

static uint64_t fixed_bytes(const gpw_read_plan_t *plan, uint32_t blocks_max)
{
    return sizeof(gpw_segment_t) + (blocks_max + 1) * sizeof(uint8_t *) +
           plan->shape.layers * sizeof(uint32_t) + scratch_floats(&plan->shape) * sizeof(float) +
           gpw_read_bytes(plan);
}

as_status_t gpw_indexed_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    gpw_read_plan_t plan;
    as_status_t status = plan_for(options, &plan);
    if (status != AS_OK) {
        return status;
    }
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->params = *options->params;
    s->plan = plan;
    s->plan.params = &s->params;
    s->ops = options->ops;
    s->blocks_max = options->blocks_max;
    s->blocks = as_mem_zalloc(options->blocks_max + 1, sizeof(*s->blocks));
    s->sealed = as_mem_zalloc(options->shape.layers, sizeof(*s->sealed));
    s->scratch = as_mem_zalloc(scratch_floats(&options->shape), sizeof(float));
    status = gpw_read_open(&s->plan, options->ops, &s->read);
    if (status != AS_OK || !s->blocks || !s->sealed || !s->scratch) {
        gpw_indexed_close(s);
        return AS_ERR_NO_MEMORY;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_indexed_reserve(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_max);
    while (s->blocks_reserved < blocks) {
        uint8_t *block = as_mem_aligned(64, block_bytes(&s->plan));
        if (!block) {
            return AS_ERR_NO_MEMORY;
        }
        memset(block, 0, block_bytes(&s->plan)); // what only pads an index
        s->blocks[s->blocks_reserved++] = block;
    }
    return AS_OK;
}

static uint8_t *extent_at(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return s->blocks[block] + layer * layer_bytes(&s->plan);
}

// What a KV head has of a block.
static gpw_read_piece_t piece_at(const gpw_segment_t *s, uint32_t layer, uint32_t block,
                                 uint32_t kv_head)
{
    const as_shape_t *shape = &s->plan.shape;
    const uint8_t *extent = extent_at(s, layer, block);
    const krn_f16 *rows = (const krn_f16 *)(const void *)extent;
    return (gpw_read_piece_t){.k = rows + as_extent_offset(shape, 0, kv_head, 0),
                              .v = rows + as_extent_offset(shape, 1, kv_head, 0),
                              .index =
                                  extent + as_extent_bytes(shape) +
                                  kv_head * gpw_read_index_bytes(&s->plan, s->plan.piece_tokens)};
}

void gpw_indexed_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    const as_shape_t *shape = &s->plan.shape;
    AS_ASSERT(layer < shape->layers && block == s->sealed[layer] && block < s->blocks_reserved);
    memcpy(extent_at(s, layer, block), extent, as_extent_bytes(shape));
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        gpw_read_piece_t piece = piece_at(s, layer, block, h);
        const gpw_read_rows_t rows = {.ops = s->ops,
                                      .k = piece.k,
                                      .v = piece.v,
                                      .first = block * shape->block_tokens,
                                      .tokens = shape->block_tokens,
                                      .scratch = s->scratch};
        uint8_t *index = s->blocks[block] + (piece.index - s->blocks[block]);
        s->plan.reader->index(&s->plan, &rows, index);
    }
    s->sealed[layer]++;
}

void gpw_indexed_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    const as_shape_t *shape = &s->plan.shape;
    uint32_t blocks = s->sealed[args->layer];
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        gpw_read_piece_t *pieces = gpw_read_pieces(s->read, h);
        for (uint32_t b = 0; b < blocks; b++) {
            pieces[b] = piece_at(s, args->layer, b, h);
        }
    }
    krn_partials_clear(args->out, args->rows * shape->q_heads, shape->head_dim);
    gpw_read_attend(s->read, blocks * shape->block_tokens, args);
}

const void *gpw_indexed_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return block < s->sealed[layer] ? extent_at(s, layer, block) : NULL;
}

uint64_t gpw_indexed_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->plan, s->blocks_max) +
           (uint64_t)s->blocks_reserved * block_bytes(&s->plan);
}

uint64_t gpw_indexed_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    gpw_read_plan_t plan;
    if (plan_for(options, &plan) != AS_OK) {
        return 0;
    }
    return fixed_bytes(&plan, options->blocks_max) + (uint64_t)blocks * block_bytes(&plan);
}

uint8_t **gpw_indexed_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    AS_ASSERT(block < s->blocks_reserved);
    *bytes_p = block_bytes(&s->plan);
    return &s->blocks[block];
}

void gpw_indexed_adopt(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_reserved);
    for (uint32_t layer = 0; layer < s->plan.shape.layers; layer++) {
        s->sealed[layer] = blocks;
    }
}

const gpw_read_t *gpw_indexed_read(const gpw_segment_t *s)
{
    return s->read;
}

void gpw_indexed_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t b = 0; s->blocks && b < s->blocks_reserved; b++) {
        as_mem_free(s->blocks[b]);
    }
    gpw_read_close(s->read);
    as_mem_free(s->blocks);
    as_mem_free(s->sealed);
    as_mem_free(s->scratch);
    as_mem_free(s);
}
