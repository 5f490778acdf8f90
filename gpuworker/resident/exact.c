// SPDX-License-Identifier: Apache-2.0
// Exact blocks: slots of whole blocks; slot s < sinks holds block s, the others are a ring. Where all
// blocks stay, all are sinks.
//
// A layer's sealed count says which blocks its slots hold: the ring moves on layer by layer while a
// prompt is sealed.
#include "gpuworker/resident/exact.h"

#include <limits.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/select/selector.h"

#define ROWS_MAX 256u // of one attend

// What follows from the options alone.
typedef struct plan {
    uint32_t sinks, window, slots_max; // blocks
} plan_t;

struct gpw_segment {
    as_shape_t shape;
    const krn_ops_t *ops;
    plan_t plan;
    uint32_t slots_reserved;
    uint8_t **slots;    // [slots_max]: a block each, extents in layer order
    uint32_t *sealed;   // [layers]
    krn_page_t *pages;  // [slots_max]: the pages of one attend
    int32_t *positions; // [ROWS_MAX]: all see everything
};

static uint32_t blocks_of(uint32_t tokens, const as_shape_t *shape)
{
    return (tokens + shape->block_tokens - 1) / shape->block_tokens;
}

static plan_t plan_for(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    if (params->selector != &gpw_select_positions) {
        return (plan_t){options->blocks_max, 1, options->blocks_max};
    }
    plan_t plan = {.sinks = blocks_of(params->sink_tokens, &options->shape),
                   .window = blocks_of(params->window_tokens, &options->shape)};
    plan.window = plan.window ? plan.window : 1;
    plan.slots_max = plan.sinks + plan.window;
    plan.slots_max = plan.slots_max < options->blocks_max ? plan.slots_max : options->blocks_max;
    return plan;
}

static size_t fixed_bytes(const as_shape_t *shape, uint32_t slots)
{
    return sizeof(gpw_segment_t) + slots * (sizeof(uint8_t *) + sizeof(krn_page_t)) +
           shape->layers * sizeof(uint32_t) + ROWS_MAX * sizeof(int32_t);
}

as_status_t gpw_exact_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (options->shape.element != AS_ELEMENT_F16) {
        return AS_ERR_UNSUPPORTED;
    }
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->shape = options->shape;
    s->ops = options->ops;
    s->plan = plan_for(options);
    s->slots = as_mem_zalloc(s->plan.slots_max + 1, sizeof(*s->slots));
    s->sealed = as_mem_zalloc(options->shape.layers, sizeof(*s->sealed));
    s->pages = as_mem_zalloc(s->plan.slots_max + 1, sizeof(*s->pages));
    s->positions = as_mem_zalloc(ROWS_MAX, sizeof(*s->positions));
    if (!s->slots || !s->sealed || !s->pages || !s->positions) {
        gpw_exact_close(s);
        return AS_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < ROWS_MAX; r++) {
        s->positions[r] = INT32_MAX;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_exact_reserve(gpw_segment_t *s, uint32_t blocks)
{
    while (s->slots_reserved < blocks && s->slots_reserved < s->plan.slots_max) {
        uint8_t *slot = as_mem_aligned(64, as_block_bytes(&s->shape));
        if (!slot) {
            return AS_ERR_NO_MEMORY;
        }
        s->slots[s->slots_reserved++] = slot;
    }
    return AS_OK;
}

static uint32_t slot_of(const gpw_segment_t *s, uint32_t block)
{
    return block < s->plan.sinks ? block : s->plan.sinks + (block - s->plan.sinks) % s->plan.window;
}

static uint8_t *extent_at(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return s->slots[slot_of(s, block)] + layer * as_extent_bytes(&s->shape);
}

void gpw_exact_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    AS_ASSERT(layer < s->shape.layers && block == s->sealed[layer]);
    AS_ASSERT(slot_of(s, block) < s->slots_reserved);
    memcpy(extent_at(s, layer, block), extent, as_extent_bytes(&s->shape));
    s->sealed[layer]++;
}

// The oldest block of the ring.
static uint32_t window_start(const gpw_segment_t *s, uint32_t layer)
{
    uint32_t sealed = s->sealed[layer];
    return sealed > s->plan.sinks + s->plan.window ? sealed - s->plan.window : s->plan.sinks;
}

const void *gpw_exact_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    bool held =
        block < s->sealed[layer] && (block < s->plan.sinks || block >= window_start(s, layer));
    return held ? extent_at(s, layer, block) : NULL;
}

const void *gpw_exact_leaving(const gpw_segment_t *s, uint32_t layer)
{
    uint32_t sealed = s->sealed[layer];
    return sealed >= s->plan.sinks + s->plan.window ? extent_at(s, layer, sealed - s->plan.window)
                                                    : NULL;
}

void gpw_exact_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    AS_ASSERT(args->rows <= ROWS_MAX);
    uint32_t count = 0;
    for (uint32_t b = 0; b < s->sealed[args->layer]; b++) {
        if (b == s->plan.sinks) {
            b = window_start(s, args->layer);
        }
        s->pages[count++] = gpw_page(&s->shape, extent_at(s, args->layer, b), b);
    }
    krn_attention_args_t attention =
        gpw_page_attention(&s->shape, args->rows, args->scale, args->q);
    attention.positions = s->positions;
    attention.pages = s->pages;
    attention.page_count = count;
    krn_partials_clear(args->out, args->rows * s->shape.q_heads, s->shape.head_dim);
    gpw_pages_attend(s->ops, args->pool, &attention, args->scratch, args->out);
}

uint64_t gpw_exact_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape, s->plan.slots_max) +
           (uint64_t)s->slots_reserved * as_block_bytes(&s->shape);
}

uint64_t gpw_exact_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    uint32_t slots = plan_for(options).slots_max;
    return fixed_bytes(&options->shape, slots) +
           (uint64_t)(blocks < slots ? blocks : slots) * as_block_bytes(&options->shape);
}

uint8_t **gpw_exact_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    AS_ASSERT(s->plan.sinks == s->plan.slots_max && block < s->slots_reserved);
    *bytes_p = as_block_bytes(&s->shape);
    return &s->slots[block];
}

void gpw_exact_adopt(gpw_segment_t *s, uint32_t blocks)
{
    AS_ASSERT(s->plan.sinks == s->plan.slots_max && blocks <= s->slots_reserved);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        s->sealed[layer] = blocks;
    }
}

void gpw_exact_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t i = 0; i < s->slots_reserved; i++) {
        as_mem_free(s->slots[i]);
    }
    as_mem_free(s->slots);
    as_mem_free(s->sealed);
    as_mem_free(s->pages);
    as_mem_free(s->positions);
    as_mem_free(s);
}

const gpw_selector_t gpw_select_positions = {.name = "positions"};

const gpw_compressor_t gpw_codec_exact = {
    .name = "f16",
    .summary = "all tokens as they are",
    .flags = GPW_COMPRESSOR_QUERY_FREE,
    GPW_EXACT_FUNCTIONS,
    .slot = gpw_exact_slot,
    .adopt = gpw_exact_adopt,
};
