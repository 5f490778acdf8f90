// SPDX-License-Identifier: Apache-2.0
// Some tokens of each block: chosen and gathered into a shorter block, which the codec seals.
#include "gpuworker/resident/kept_blocks.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/select/selector.h"

struct gpw_segment {
    as_shape_t shape, kept; // as it comes; as the codec sees it
    const krn_ops_t *ops;
    gpw_compressor_params_t params;
    gpw_segment_t *held;          // the codec's
    gpw_select_scratch_t scratch; // of the block that is being sealed, as what follows
    uint8_t *scratch_memory;
    krn_f16 *gathered;   // an extent of `kept`
    uint32_t *positions; // [kv heads][kept tokens]
    uint32_t *counts;    // [kv heads]
};

static as_shape_t kept_shape(const gpw_segment_options_t *options)
{
    as_shape_t kept = options->shape;
    kept.block_tokens = (kept.block_tokens * options->params->keep_percent + 99) / 100;
    return kept;
}

static bool is_supported(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    return options->shape.element == AS_ELEMENT_F16 && params->selector &&
           params->selector->choose && !params->selector->observes &&
           !params->selector->data_sized && params->head_floor_percent == 0 && params->codec &&
           params->codec->slot && params->keep_percent > 0 && params->keep_percent <= 100;
}

static gpw_segment_options_t held_options(const gpw_segment_options_t *options)
{
    gpw_segment_options_t held = *options;
    held.params = &options->params->codec->params;
    held.shape = kept_shape(options);
    return held;
}

static uint64_t fixed_bytes(const gpw_segment_options_t *options)
{
    gpw_select_scratch_t scratch;
    as_shape_t kept = kept_shape(options);
    return sizeof(gpw_segment_t) +
           gpw_select_carve(&options->shape, options->shape.block_tokens, false, NULL, &scratch) +
           as_extent_bytes(&kept) +
           (uint64_t)kept.kv_heads * (kept.block_tokens + 1) * sizeof(uint32_t);
}

as_status_t gpw_kept_blocks_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (!is_supported(options)) {
        return AS_ERR_UNSUPPORTED;
    }
    const as_shape_t *shape = &options->shape;
    gpw_segment_options_t held = held_options(options);
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->shape = *shape;
    s->kept = held.shape;
    s->ops = options->ops;
    s->params = *options->params;
    size_t bytes = gpw_select_carve(shape, shape->block_tokens, false, NULL, &s->scratch);
    s->scratch_memory = as_mem_aligned(64, bytes);
    s->gathered = as_mem_aligned(64, as_extent_bytes(&s->kept));
    s->positions =
        as_mem_zalloc((size_t)shape->kv_heads * s->kept.block_tokens, sizeof(*s->positions));
    s->counts = as_mem_zalloc(shape->kv_heads, sizeof(*s->counts));
    as_status_t status = s->params.codec->open(&held, &s->held);
    if (status == AS_OK && (!s->scratch_memory || !s->gathered || !s->positions || !s->counts)) {
        status = AS_ERR_NO_MEMORY;
    }
    if (status != AS_OK) {
        gpw_kept_blocks_close(s);
        return status;
    }
    gpw_select_carve(shape, shape->block_tokens, false, s->scratch_memory, &s->scratch);
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_kept_blocks_reserve(gpw_segment_t *s, uint32_t blocks)
{
    return s->params.codec->reserve(s->held, blocks);
}

static void choose(gpw_segment_t *s, uint32_t block, const void *extent)
{
    uint32_t size = s->shape.block_tokens, before = block * size;
    uint32_t sinks = s->params.sink_tokens > before ? s->params.sink_tokens - before : 0;
    krn_page_t page = gpw_page(&s->shape, extent, 0);
    gpw_selection_t choice = {.params = &s->params,
                              .shape = &s->shape,
                              .ops = s->ops,
                              .pages = &page,
                              .tokens = size,
                              .budget = s->kept.block_tokens,
                              .sinks = sinks < s->kept.block_tokens ? sinks : s->kept.block_tokens,
                              .scratch = &s->scratch};
    gpw_kept_t kept = {s->positions, s->counts};
    s->params.selector->choose(&choice, &kept);
}

void gpw_kept_blocks_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    const krn_f16 *from = extent;
    uint32_t kept = s->kept.block_tokens;
    choose(s, block, extent);
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        AS_ASSERT(s->counts[h] == kept);
        for (uint32_t row = 0; row < kept; row++) {
            for (uint32_t part = 0; part < 2; part++) {
                memcpy(s->gathered + as_extent_offset(&s->kept, part, h, row),
                       from + as_extent_offset(&s->shape, part, h,
                                               s->positions[(size_t)h * kept + row]),
                       s->shape.head_dim * sizeof(krn_f16));
            }
        }
    }
    s->params.codec->seal(s->held, layer, block, s->gathered);
}

const uint32_t *gpw_kept_blocks_chosen(const gpw_segment_t *s, uint32_t kv_head, uint32_t *count_p)
{
    *count_p = s->counts[kv_head];
    return s->positions + (size_t)kv_head * s->kept.block_tokens;
}

void gpw_kept_blocks_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    s->params.codec->attend(s->held, args);
}

const void *gpw_kept_blocks_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    bool is_whole = s->kept.block_tokens == s->shape.block_tokens;
    return is_whole ? s->params.codec->extent(s->held, layer, block) : NULL;
}

uint64_t gpw_kept_blocks_bytes(const gpw_segment_t *s)
{
    gpw_segment_options_t options = {.params = &s->params, .shape = s->shape};
    return fixed_bytes(&options) + s->params.codec->bytes(s->held);
}

uint64_t gpw_kept_blocks_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    if (!is_supported(options)) {
        return 0;
    }
    gpw_segment_options_t held = held_options(options);
    return fixed_bytes(options) + options->params->codec->bytes_max(&held, blocks);
}

uint8_t **gpw_kept_blocks_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    return s->params.codec->slot(s->held, block, bytes_p);
}

void gpw_kept_blocks_adopt(gpw_segment_t *s, uint32_t blocks)
{
    s->params.codec->adopt(s->held, blocks);
}

void gpw_kept_blocks_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    if (s->held) {
        s->params.codec->close(s->held);
    }
    as_mem_free(s->scratch_memory);
    as_mem_free(s->gathered);
    as_mem_free(s->positions);
    as_mem_free(s->counts);
    as_mem_free(s);
}
