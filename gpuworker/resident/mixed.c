// SPDX-License-Identifier: Apache-2.0
// Segments of mixed widths: `observe` has the bits chosen and packs the prompt, all of which it sees;
// `seal` only counts the prompt's blocks.
//
// Attention splits into (KV head, run of GPW_MIXED_PART_TOKENS held tokens) parts, whatever the number
// of threads; the runs' partials are merged in ascending order.
#include "gpuworker/resident/mixed.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/codec.h"
#include "gpuworker/resident/partials.h"
#include "gpuworker/resident/sealed.h"

#define BITS_MAX    16u
#define SLACK_BYTES GPW_CODES_UNIT_BYTES // a unit behind the last one may be read, for nothing

struct gpw_segment {
    as_shape_t shape;
    const krn_ops_t *ops;
    gpw_compressor_params_t params;
    gpw_mixed_attend_fn *attend_part;
    uint32_t prompt_blocks, prompt_tokens;
    size_t head_bytes;
    uint8_t **memory;     // [layers]: [kv heads][head_bytes]; NULL: not reserved
    gpw_rates_t *rates;   // [layers][kv heads]
    uint32_t *sealed;     // [layers]: blocks
    gpw_segment_t *later; // the codec's: blocks behind the prompt
};

static size_t head_bytes_of(const gpw_segment_options_t *options)
{
    const as_shape_t *shape = &options->shape;
    size_t elements = 2 * (size_t)options->prompt_blocks * shape->block_tokens * shape->head_dim;
    return elements * options->params->bits / 8 / GPW_CODES_UNIT_BYTES * GPW_CODES_UNIT_BYTES;
}

static size_t memory_bytes(const as_shape_t *shape, size_t head_bytes)
{
    return shape->kv_heads * head_bytes + SLACK_BYTES;
}

static uint64_t fixed_bytes(const as_shape_t *shape)
{
    return sizeof(gpw_segment_t) + shape->layers * (sizeof(uint8_t *) + sizeof(uint32_t)) +
           (uint64_t)shape->layers * shape->kv_heads * sizeof(gpw_rates_t);
}

static gpw_segment_options_t later_options(const gpw_segment_options_t *options)
{
    gpw_segment_options_t later = *options;
    later.params = &options->params->codec->params;
    later.blocks_max = options->blocks_max - options->prompt_blocks;
    later.prompt_blocks = 0;
    return later;
}

// The window has to lie in the tail, wherever the last sealed block ends.
static bool is_supported(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    const as_shape_t *shape = &options->shape;
    return shape->element == AS_ELEMENT_F16 && shape->head_dim % 16 == 0 &&
           shape->head_dim <= KRN_HEAD_DIM_MAX && params->codec && params->bits > 0 &&
           params->bits <= BITS_MAX && params->window_tokens > 0 &&
           params->window_tokens <= GPW_RESIDUAL_TOKENS && params->pool_tokens % 2 == 1 &&
           options->prompt_blocks <= options->blocks_max;
}

as_status_t gpw_mixed_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (!is_supported(options)) {
        return AS_ERR_UNSUPPORTED;
    }
    const as_shape_t *shape = &options->shape;
    gpw_segment_options_t later = later_options(options);
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    gpw_mixed_attend_fn *attends[4];
    gpw_mixed_attends(attends);
    s->attend_part = attends[0];
    s->shape = *shape;
    s->ops = options->ops;
    s->params = *options->params;
    s->prompt_blocks = options->prompt_blocks;
    s->prompt_tokens = options->prompt_blocks * shape->block_tokens;
    s->head_bytes = head_bytes_of(options);
    s->memory = as_mem_zalloc(shape->layers, sizeof(*s->memory));
    s->rates = as_mem_zalloc((size_t)shape->layers * shape->kv_heads, sizeof(*s->rates));
    s->sealed = as_mem_zalloc(shape->layers, sizeof(*s->sealed));
    as_status_t status = s->params.codec->open(&later, &s->later);
    if (status == AS_OK && (!s->memory || !s->rates || !s->sealed)) {
        status = AS_ERR_NO_MEMORY;
    }
    if (status != AS_OK) {
        gpw_mixed_close(s);
        return status;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_mixed_reserve(gpw_segment_t *s, uint32_t blocks)
{
    for (uint32_t l = 0; blocks > 0 && s->prompt_blocks > 0 && l < s->shape.layers; l++) {
        if (!s->memory[l]) {
            s->memory[l] =
                as_mem_aligned(GPW_CODES_UNIT_BYTES, memory_bytes(&s->shape, s->head_bytes));
        }
        if (!s->memory[l]) {
            return AS_ERR_NO_MEMORY;
        }
    }
    return blocks > s->prompt_blocks ? s->params.codec->reserve(s->later, blocks - s->prompt_blocks)
                                     : AS_OK;
}

// ---- Packing -----------------------------------------------------------------------------------

static gpw_rates_t *rates_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    return s->rates + (size_t)layer * s->shape.kv_heads + kv_head;
}

static uint8_t *head_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    return s->memory[layer] + kv_head * s->head_bytes;
}

// Positions that a KV head holds, where they are in scratch.
static uint32_t *positions_of(const gpw_select_scratch_t *scratch, uint32_t kv_head)
{
    return (uint32_t *)(void *)(scratch->scores + (size_t)kv_head * scratch->stride);
}

typedef struct packing {
    const gpw_segment_t *segment;
    const gpw_segment_observe_t *args;
    const gpw_select_scratch_t *scratch;
} packing_t;

static void pack_head(void *ctx, uint32_t kv_head)
{
    const packing_t *packing = ctx;
    const gpw_segment_t *s = packing->segment;
    uint32_t layer = packing->args->layer;
    gpw_mixed_source_t source = {.shape = &s->shape,
                                 .pages = packing->args->pages,
                                 .kv_head = kv_head,
                                 .rates = rates_of(s, layer, kv_head),
                                 .tokens = positions_of(packing->scratch, kv_head)};
    gpw_mixed_pack(&source, head_of(s, layer, kv_head));
}

// A prompt so short that there is no room for the scales of its keys.
static bool is_too_short(const gpw_segment_t *s)
{
    const uint32_t no_bits[GPW_RATES] = {0};
    return s->head_bytes < gpw_mixed_key_bytes(s->shape.head_dim, 0, no_bits);
}

void gpw_mixed_observe(gpw_segment_t *s, const gpw_segment_observe_t *args)
{
    gpw_select_scratch_t scratch;
    packing_t packing = {s, args, &scratch};
    AS_ASSERT(args->layer < s->shape.layers && s->sealed[args->layer] == 0);
    AS_ASSERT(args->rows > 0 && args->rows <= args->tokens &&
              args->tokens - args->rows >= s->prompt_tokens);
    if (is_too_short(s)) {
        for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
            *rates_of(s, args->layer, h) = (gpw_rates_t){.tokens = {s->prompt_tokens}};
        }
        return;
    }
    AS_ASSERT(s->memory[args->layer]);
    gpw_select_carve(&s->shape, args->tokens, true, args->scratch, &scratch);
    gpw_selection_t choice = {.params = &s->params,
                              .shape = &s->shape,
                              .ops = s->ops,
                              .pages = args->pages,
                              .tokens = s->prompt_tokens,
                              .seen = args,
                              .scratch = &scratch};
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        gpw_rate_request_t request = {.kv_head = h,
                                      .bytes = s->head_bytes,
                                      .rates = rates_of(s, args->layer, h),
                                      .tokens = positions_of(&scratch, h),
                                      .channels = head_of(s, args->layer, h)};
        gpw_rate_choose(&choice, &request);
    }
    krn_pool_run(args->pool, s->shape.kv_heads, pack_head, &packing);
}

void gpw_mixed_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    AS_ASSERT(layer < s->shape.layers && block == s->sealed[layer]);
    if (block >= s->prompt_blocks) {
        s->params.codec->seal(s->later, layer, block - s->prompt_blocks, extent);
    }
    s->sealed[layer]++;
}

const void *gpw_mixed_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return block >= s->prompt_blocks && block < s->sealed[layer]
               ? s->params.codec->extent(s->later, layer, block - s->prompt_blocks)
               : NULL;
}

// ---- Attending ---------------------------------------------------------------------------------

typedef struct wave {
    const gpw_segment_t *segment;
    const gpw_segment_attend_t *args;
    krn_partials_t runs[GPW_SEGMENT_WAVE_RUNS];
    uint32_t first_run;
} wave_t;

static uint32_t held_tokens(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    return s->prompt_tokens - rates_of(s, layer, kv_head)->tokens[0];
}

// One run of one KV head.
static void attend_item(void *ctx, uint32_t index)
{
    const wave_t *wave = ctx;
    const gpw_segment_t *s = wave->segment;
    const gpw_segment_attend_t *args = wave->args;
    uint32_t heads = s->shape.kv_heads, group = s->shape.q_heads / heads, kv_head = index % heads;
    uint32_t first = (wave->first_run + index / heads) * GPW_MIXED_PART_TOKENS;
    uint32_t held = held_tokens(s, args->layer, kv_head);
    gpw_mixed_part_t part = {.rates = rates_of(s, args->layer, kv_head),
                             .memory = head_of(s, args->layer, kv_head),
                             .dim = s->shape.head_dim,
                             .first = first,
                             .rows = args->rows,
                             .q_heads = s->shape.q_heads,
                             .group_heads = group,
                             .kv_head = kv_head,
                             .scale = args->scale,
                             .q = args->q,
                             .out = wave->runs[index / heads]};
    if (first < held) {
        part.tokens = held - first < GPW_MIXED_PART_TOKENS ? held - first : GPW_MIXED_PART_TOKENS;
        s->attend_part(&part);
        return;
    }
    for (uint32_t r = 0; r < args->rows; r++) { // other heads hold more
        size_t pair = ((size_t)r * heads + kv_head) * group;
        krn_partials_t none = gpw_partials_at(&part.out, pair, part.dim);
        krn_partials_clear(&none, group, part.dim);
    }
}

// Later blocks come first: the codec has the whole scratch for them.
void gpw_mixed_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    wave_t wave = {.segment = s, .args = args};
    uint32_t pairs = args->rows * s->shape.q_heads, dim = s->shape.head_dim, runs = 0;
    AS_ASSERT(s->sealed[args->layer] == 0 || s->sealed[args->layer] >= s->prompt_blocks);
    s->params.codec->attend(s->later, args);
    if (s->sealed[args->layer] == 0 || s->prompt_blocks == 0) {
        return;
    }
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        uint32_t held = held_tokens(s, args->layer, h);
        uint32_t own = (held + GPW_MIXED_PART_TOKENS - 1) / GPW_MIXED_PART_TOKENS;
        runs = own > runs ? own : runs;
    }
    for (uint32_t r = 0; r < GPW_SEGMENT_WAVE_RUNS; r++) {
        float *slice = (float *)args->scratch + (size_t)r * pairs * (dim + 2);
        wave.runs[r] = gpw_partials_carve(slice, pairs, dim);
    }
    for (; wave.first_run < runs; wave.first_run += GPW_SEGMENT_WAVE_RUNS) {
        uint32_t count = runs - wave.first_run;
        count = count < GPW_SEGMENT_WAVE_RUNS ? count : GPW_SEGMENT_WAVE_RUNS;
        krn_pool_run(args->pool, count * s->shape.kv_heads, attend_item, &wave);
        for (uint32_t r = 0; r < count; r++) {
            s->ops->merge(args->out, &wave.runs[r], pairs, dim);
        }
    }
}

// ---- Bytes -------------------------------------------------------------------------------------

uint64_t gpw_mixed_bytes(const gpw_segment_t *s)
{
    uint64_t bytes = fixed_bytes(&s->shape) + s->params.codec->bytes(s->later);
    for (uint32_t l = 0; l < s->shape.layers; l++) {
        bytes += s->memory[l] ? memory_bytes(&s->shape, s->head_bytes) : 0;
    }
    return bytes;
}

uint64_t gpw_mixed_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    if (!is_supported(options)) {
        return 0;
    }
    gpw_segment_options_t later = later_options(options);
    uint32_t later_blocks = blocks > options->prompt_blocks ? blocks - options->prompt_blocks : 0;
    uint64_t bytes =
        fixed_bytes(&options->shape) + options->params->codec->bytes_max(&later, later_blocks);
    if (blocks > 0 && options->prompt_blocks > 0) {
        bytes += options->shape.layers * memory_bytes(&options->shape, head_bytes_of(options));
    }
    return bytes;
}

void gpw_mixed_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t l = 0; s->memory && l < s->shape.layers; l++) {
        as_mem_free(s->memory[l]);
    }
    if (s->later) {
        s->params.codec->close(s->later);
    }
    as_mem_free(s->memory);
    as_mem_free(s->rates);
    as_mem_free(s->sealed);
    as_mem_free(s);
}
