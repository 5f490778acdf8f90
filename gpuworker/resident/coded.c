// SPDX-License-Identifier: Apache-2.0
// Segments of codes behind the compressor table.
//
// Attention splits into (KV head, run of GPW_CODEC_PART_BLOCKS blocks) parts, whatever the number of threads;
// the runs' partials are merged in ascending order, so the bits do not depend on the threads.
//
// Where the codec rotates, the last of the wave's slices of scratch holds the rotated queries; the output is
// rotated back once, when all runs are merged.
#include "gpuworker/resident/coded.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/partials.h"

#define WAVE_RUNS (GPW_SEGMENT_WAVE_RUNS - 1) // the last slice is the rotated queries

struct gpw_segment {
    const gpw_codec_t *codec;
    gpw_codes_layout_t layout;
    as_shape_t shape;
    const krn_ops_t *ops;
    gpw_codec_attend_fn *attend_part;
    uint32_t blocks_max, blocks_reserved;
    uint8_t **blocks; // [blocks_max]
    uint32_t *sealed; // [layers]: blocks folded in
    float *unpacked;  // [2][tokens][dim]: one head of the block that is being sealed
};

static size_t fixed_bytes(const as_shape_t *shape, uint32_t blocks_max)
{
    return sizeof(gpw_segment_t) + blocks_max * sizeof(uint8_t *) +
           shape->layers * sizeof(uint32_t) +
           2 * (size_t)shape->block_tokens * shape->head_dim * sizeof(float);
}

static as_status_t layout_of(const gpw_codec_t *codec, const gpw_segment_options_t *options,
                             gpw_codes_layout_t *layout_p)
{
    as_status_t status = codec->layout(options, layout_p);
    layout_p->layer_bytes = layout_p->head_bytes * options->shape.kv_heads;
    return status;
}

as_status_t gpw_coded_open(const gpw_codec_t *codec, const gpw_segment_options_t *options,
                           gpw_segment_t **segment_p)
{
    gpw_codes_layout_t layout;
    as_status_t status = layout_of(codec, options, &layout);
    if (status != AS_OK) {
        return status;
    }
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->codec = codec;
    s->layout = layout;
    s->shape = options->shape;
    s->ops = options->ops;
    gpw_codec_attend_fn *attends[4];
    codec->attends(attends);
    s->attend_part = attends[0];
    s->blocks_max = options->blocks_max;
    s->blocks = as_mem_zalloc(options->blocks_max ? options->blocks_max : 1, sizeof(*s->blocks));
    s->sealed = as_mem_zalloc(options->shape.layers, sizeof(*s->sealed));
    s->unpacked = as_mem_zalloc(2 * (size_t)layout.tokens * layout.dim, sizeof(float));
    if (!s->blocks || !s->sealed || !s->unpacked) {
        gpw_coded_close(s);
        return AS_ERR_NO_MEMORY;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_coded_reserve(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_max);
    while (s->blocks_reserved < blocks) {
        size_t bytes = s->shape.layers * s->layout.layer_bytes;
        uint8_t *block = as_mem_aligned(GPW_CODES_UNIT_BYTES, bytes);
        if (!block) {
            return AS_ERR_NO_MEMORY;
        }
        memset(block, 0, bytes); // scales of tokens that only pad
        s->blocks[s->blocks_reserved++] = block;
    }
    return AS_OK;
}

void gpw_coded_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    const gpw_codes_layout_t *l = &s->layout;
    AS_ASSERT(layer < s->shape.layers && block == s->sealed[layer] && block < s->blocks_reserved);
    size_t head_elements = (size_t)l->tokens * l->dim;
    const krn_f16 *k = extent;
    const krn_f16 *v = k + l->kv_heads * head_elements;
    uint8_t *to = s->blocks[block] + layer * l->layer_bytes;
    for (uint32_t h = 0; h < l->kv_heads; h++) {
        s->ops->f16_to_f32(k + h * head_elements, head_elements, s->unpacked);
        s->ops->f16_to_f32(v + h * head_elements, head_elements, s->unpacked + head_elements);
        s->codec->pack(l, s->unpacked, s->unpacked + head_elements, to + h * l->head_bytes);
    }
    s->sealed[layer]++;
}

typedef struct wave {
    const gpw_segment_t *segment;
    const gpw_segment_attend_t *args;
    const float *q;
    krn_partials_t runs[WAVE_RUNS];
    uint32_t first_block;
} wave_t;

static void attend_item(void *ctx, uint32_t index)
{
    wave_t *wave = ctx;
    const gpw_segment_t *s = wave->segment;
    uint32_t run = index / s->shape.kv_heads;
    uint32_t first = wave->first_block + run * GPW_CODEC_PART_BLOCKS;
    uint32_t left = s->sealed[wave->args->layer] - first;
    gpw_codec_part_t part = {
        .layout = &s->layout,
        .blocks = (const uint8_t *const *)s->blocks + first,
        .block_count = left < GPW_CODEC_PART_BLOCKS ? left : GPW_CODEC_PART_BLOCKS,
        .layer_offset = wave->args->layer * s->layout.layer_bytes,
        .kv_head = index % s->shape.kv_heads,
        .rows = wave->args->rows,
        .group_heads = s->shape.q_heads / s->shape.kv_heads,
        .q_heads = s->shape.q_heads,
        .scale = wave->args->scale,
        .q = wave->q,
        .out = wave->runs[run],
    };
    s->attend_part(&part);
}

static const float *rotated(const gpw_segment_t *s, const gpw_segment_attend_t *args,
                            uint32_t pairs, float *to)
{
    if (!s->codec->rotate) {
        return args->q;
    }
    memcpy(to, args->q, (size_t)pairs * s->shape.head_dim * sizeof(*to));
    s->codec->rotate(to, pairs, s->shape.head_dim);
    return to;
}

void gpw_coded_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    wave_t wave = {.segment = s, .args = args};
    uint32_t dim = s->shape.head_dim, sealed = s->sealed[args->layer];
    uint32_t pairs = args->rows * s->shape.q_heads;
    float *last = (float *)args->scratch + (size_t)WAVE_RUNS * pairs * (dim + 2);
    for (uint32_t r = 0; r < WAVE_RUNS; r++) {
        wave.runs[r] =
            gpw_partials_carve((float *)args->scratch + (size_t)r * pairs * (dim + 2), pairs, dim);
    }
    krn_partials_clear(args->out, pairs, dim);
    if (sealed == 0) {
        return;
    }
    wave.q = rotated(s, args, pairs, last);
    while (wave.first_block < sealed) {
        uint32_t runs =
            (sealed - wave.first_block + GPW_CODEC_PART_BLOCKS - 1) / GPW_CODEC_PART_BLOCKS;
        runs = runs < WAVE_RUNS ? runs : WAVE_RUNS;
        krn_pool_run(args->pool, runs * s->shape.kv_heads, attend_item, &wave);
        for (uint32_t r = 0; r < runs; r++) {
            s->ops->merge(args->out, &wave.runs[r], pairs, dim);
        }
        wave.first_block += runs * GPW_CODEC_PART_BLOCKS;
    }
    if (s->codec->rotate_back) {
        s->codec->rotate_back(args->out->out, pairs, dim);
    }
}

const void *gpw_coded_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    (void)s;
    (void)layer;
    (void)block;
    return NULL;
}

uint64_t gpw_coded_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape, s->blocks_max) +
           (uint64_t)s->blocks_reserved * s->shape.layers * s->layout.layer_bytes;
}

uint64_t gpw_coded_bytes_max(const gpw_codec_t *codec, const gpw_segment_options_t *options,
                             uint32_t blocks)
{
    gpw_codes_layout_t layout;
    if (layout_of(codec, options, &layout) != AS_OK) {
        return 0;
    }
    return fixed_bytes(&options->shape, options->blocks_max) +
           (uint64_t)blocks * options->shape.layers * layout.layer_bytes;
}

uint8_t **gpw_coded_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    AS_ASSERT(block < s->blocks_reserved);
    *bytes_p = s->shape.layers * s->layout.layer_bytes;
    return &s->blocks[block];
}

void gpw_coded_adopt(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_reserved);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        s->sealed[layer] = blocks;
    }
}

void gpw_coded_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t b = 0; b < s->blocks_reserved; b++) {
        as_mem_free(s->blocks[b]);
    }
    as_mem_free(s->blocks);
    as_mem_free(s->sealed);
    as_mem_free(s->unpacked);
    as_mem_free(s);
}
