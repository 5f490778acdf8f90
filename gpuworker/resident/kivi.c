// SPDX-License-Identifier: Apache-2.0
// KIVI behind the compressor table: one allocation a block, [layer][kv head] packed codes.
//
// Attention splits into (KV head, run of GPW_KIVI_PART_BLOCKS blocks) parts, whatever the number of threads;
// the runs' partials are merged in ascending order, so the bits do not depend on the threads.
#include "gpuworker/resident/kivi.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/partials.h"

struct gpw_segment {
    gpw_kivi_layout_t layout;
    as_shape_t shape;
    const krn_ops_t *ops;
    gpw_kivi_attend_fn *attend_part;
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

void gpw_kivi_attends(gpw_kivi_attend_fn *fns_p[4])
{
    uint32_t count = 0;
#if defined(__x86_64__)
    if (krn_cpu_named("avx512") && __builtin_cpu_supports("avx512vnni")) {
        fns_p[count++] = gpw_kivi_attend_avx512;
    }
    if (krn_cpu_named("avx2")) {
        fns_p[count++] = gpw_kivi_attend_avx2;
    }
#endif
    fns_p[count++] = gpw_kivi_attend_portable;
    fns_p[count] = NULL;
}

as_status_t gpw_kivi_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    gpw_kivi_layout_t layout;
    as_status_t status = gpw_kivi_layout(options, &layout);
    if (status != AS_OK) {
        return status;
    }
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->layout = layout;
    s->shape = options->shape;
    s->ops = options->ops;
    gpw_kivi_attend_fn *attends[4];
    gpw_kivi_attends(attends);
    s->attend_part = attends[0];
    s->blocks_max = options->blocks_max;
    s->blocks = as_mem_zalloc(options->blocks_max ? options->blocks_max : 1, sizeof(*s->blocks));
    s->sealed = as_mem_zalloc(options->shape.layers, sizeof(*s->sealed));
    s->unpacked = as_mem_zalloc(2 * (size_t)layout.tokens * layout.dim, sizeof(float));
    if (!s->blocks || !s->sealed || !s->unpacked) {
        gpw_kivi_close(s);
        return AS_ERR_NO_MEMORY;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_kivi_reserve(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_max);
    while (s->blocks_reserved < blocks) {
        size_t bytes = s->shape.layers * s->layout.layer_bytes;
        uint8_t *block = as_mem_aligned(GPW_KIVI_UNIT_BYTES, bytes);
        if (!block) {
            return AS_ERR_NO_MEMORY;
        }
        memset(block, 0, bytes); // scales of tokens that only pad
        s->blocks[s->blocks_reserved++] = block;
    }
    return AS_OK;
}

void gpw_kivi_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    const gpw_kivi_layout_t *l = &s->layout;
    AS_ASSERT(layer < s->shape.layers && block == s->sealed[layer] && block < s->blocks_reserved);
    size_t head_elements = (size_t)l->tokens * l->dim;
    const krn_f16 *k = extent;
    const krn_f16 *v = k + l->kv_heads * head_elements;
    uint8_t *to = s->blocks[block] + layer * l->layer_bytes;
    for (uint32_t h = 0; h < l->kv_heads; h++) {
        s->ops->f16_to_f32(k + h * head_elements, head_elements, s->unpacked);
        s->ops->f16_to_f32(v + h * head_elements, head_elements, s->unpacked + head_elements);
        gpw_kivi_pack(l, s->unpacked, s->unpacked + head_elements, to + h * l->head_bytes);
    }
    s->sealed[layer]++;
}

typedef struct wave {
    const gpw_segment_t *segment;
    const gpw_segment_attend_t *args;
    krn_partials_t runs[GPW_SEGMENT_WAVE_RUNS];
    uint32_t first_block;
} wave_t;

static void attend_item(void *ctx, uint32_t index)
{
    wave_t *wave = ctx;
    const gpw_segment_t *s = wave->segment;
    uint32_t run = index / s->shape.kv_heads;
    uint32_t first = wave->first_block + run * GPW_KIVI_PART_BLOCKS;
    uint32_t left = s->sealed[wave->args->layer] - first;
    gpw_kivi_part_t part = {
        .layout = &s->layout,
        .blocks = (const uint8_t *const *)s->blocks + first,
        .block_count = left < GPW_KIVI_PART_BLOCKS ? left : GPW_KIVI_PART_BLOCKS,
        .layer_offset = wave->args->layer * s->layout.layer_bytes,
        .kv_head = index % s->shape.kv_heads,
        .rows = wave->args->rows,
        .group_heads = s->shape.q_heads / s->shape.kv_heads,
        .q_heads = s->shape.q_heads,
        .scale = wave->args->scale,
        .q = wave->args->q,
        .out = wave->runs[run],
    };
    s->attend_part(&part);
}

void gpw_kivi_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    wave_t wave = {.segment = s, .args = args};
    uint32_t dim = s->shape.head_dim;
    uint32_t pairs = args->rows * s->shape.q_heads;
    for (uint32_t r = 0; r < GPW_SEGMENT_WAVE_RUNS; r++) {
        wave.runs[r] =
            gpw_partials_carve((float *)args->scratch + (size_t)r * pairs * (dim + 2), pairs, dim);
    }
    krn_partials_clear(args->out, pairs, dim);
    uint32_t sealed = s->sealed[args->layer];
    while (wave.first_block < sealed) {
        uint32_t runs =
            (sealed - wave.first_block + GPW_KIVI_PART_BLOCKS - 1) / GPW_KIVI_PART_BLOCKS;
        runs = runs < GPW_SEGMENT_WAVE_RUNS ? runs : GPW_SEGMENT_WAVE_RUNS;
        krn_pool_run(args->pool, runs * s->shape.kv_heads, attend_item, &wave);
        for (uint32_t r = 0; r < runs; r++) {
            s->ops->merge(args->out, &wave.runs[r], pairs, dim);
        }
        wave.first_block += runs * GPW_KIVI_PART_BLOCKS;
    }
}

const void *gpw_kivi_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    (void)s;
    (void)layer;
    (void)block;
    return NULL;
}

uint64_t gpw_kivi_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape, s->blocks_max) +
           (uint64_t)s->blocks_reserved * s->shape.layers * s->layout.layer_bytes;
}

uint64_t gpw_kivi_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    gpw_kivi_layout_t layout;
    if (gpw_kivi_layout(options, &layout) != AS_OK) {
        return 0;
    }
    return fixed_bytes(&options->shape, options->blocks_max) +
           (uint64_t)blocks * options->shape.layers * layout.layer_bytes;
}

uint8_t **gpw_kivi_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    AS_ASSERT(block < s->blocks_reserved);
    *bytes_p = s->shape.layers * s->layout.layer_bytes;
    return &s->blocks[block];
}

void gpw_kivi_adopt(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(blocks <= s->blocks_reserved);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        s->sealed[layer] = blocks;
    }
}

void gpw_kivi_close(gpw_segment_t *s)
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
