// SPDX-License-Identifier: Apache-2.0
// SnapKV behind the compressor table: `observe` chooses positions, `seal` gathers their rows.
//
// Pages [0, prompt_pages) hold what is kept of the prompt, packed; those behind them the blocks that
// were sealed later, one each.
#include "gpuworker/resident/snapkv.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select.h"
#include "gpuworker/resident/window_scores.h"

#define ROWS_MAX 256u // of one attend

// What follows from the options alone.
typedef struct plan {
    uint32_t prompt_blocks, prompt_tokens;
    uint32_t kept; // tokens of the prompt that each KV head keeps
    uint32_t prompt_pages, pages_max;
} plan_t;

struct gpw_segment {
    as_shape_t shape;
    const krn_ops_t *ops;
    gpw_compressor_params_t params;
    plan_t plan;
    uint32_t pages_reserved;
    uint8_t **pages;     // [pages_max]: a block each, extents in layer order
    uint32_t *positions; // [layers][kv heads][kept]
    uint32_t *sealed;    // [layers]
    krn_page_t *list;    // [pages_max]: the pages of one attend
    int32_t *last_seen;  // [ROWS_MAX]
};

static plan_t plan_for(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    uint32_t size = options->shape.block_tokens;
    plan_t plan = {.prompt_blocks = options->prompt_blocks,
                   .prompt_tokens = options->prompt_blocks * size};
    uint64_t kept = ((uint64_t)plan.prompt_tokens * params->keep_percent + 99) / 100;
    kept = kept > params->sink_tokens ? kept : params->sink_tokens;
    plan.kept = kept < plan.prompt_tokens ? (uint32_t)kept : plan.prompt_tokens;
    plan.prompt_pages = (plan.kept + size - 1) / size;
    plan.pages_max = plan.prompt_pages + options->blocks_max - plan.prompt_blocks;
    return plan;
}

static uint64_t fixed_bytes(const as_shape_t *shape, const plan_t *plan)
{
    return sizeof(gpw_segment_t) +
           (uint64_t)(plan->pages_max + 1) * (sizeof(uint8_t *) + sizeof(krn_page_t)) +
           ((uint64_t)shape->layers * shape->kv_heads * plan->kept + 1) * sizeof(uint32_t) +
           shape->layers * sizeof(uint32_t) + ROWS_MAX * sizeof(int32_t);
}

static uint32_t pages_for(const plan_t *plan, uint32_t blocks)
{
    uint32_t later = blocks > plan->prompt_blocks ? blocks - plan->prompt_blocks : 0;
    return blocks ? plan->prompt_pages + later : 0;
}

// The window has to lie in the tail, wherever the last sealed block ends.
static bool is_supported(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    return options->shape.element == AS_ELEMENT_F16 && params->window_tokens > 0 &&
           params->window_tokens <= GPW_RESIDUAL_TOKENS && params->pool_tokens % 2 == 1 &&
           params->keep_percent > 0 && params->keep_percent <= 100 &&
           options->prompt_blocks <= options->blocks_max;
}

as_status_t gpw_snapkv_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (!is_supported(options)) {
        return AS_ERR_UNSUPPORTED;
    }
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->shape = options->shape;
    s->ops = options->ops;
    s->params = *options->params;
    s->plan = plan_for(options);
    size_t positions = (size_t)s->shape.layers * s->shape.kv_heads * s->plan.kept;
    s->pages = as_mem_zalloc(s->plan.pages_max + 1, sizeof(*s->pages));
    s->positions = as_mem_zalloc(positions + 1, sizeof(*s->positions));
    s->sealed = as_mem_zalloc(s->shape.layers, sizeof(*s->sealed));
    s->list = as_mem_zalloc(s->plan.pages_max + 1, sizeof(*s->list));
    s->last_seen = as_mem_zalloc(ROWS_MAX, sizeof(*s->last_seen));
    if (!s->pages || !s->positions || !s->sealed || !s->list || !s->last_seen) {
        gpw_snapkv_close(s);
        return AS_ERR_NO_MEMORY;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_snapkv_reserve(gpw_segment_t *s, uint32_t blocks)
{
    uint32_t pages = pages_for(&s->plan, blocks);
    AS_ASSERT(pages <= s->plan.pages_max);
    while (s->pages_reserved < pages) {
        uint8_t *page = as_mem_aligned(64, as_block_bytes(&s->shape));
        if (!page) {
            return AS_ERR_NO_MEMORY;
        }
        s->pages[s->pages_reserved++] = page;
    }
    return AS_OK;
}

// ---- Choosing ----------------------------------------------------------------------------------

static uint32_t *positions_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    return s->positions + ((size_t)layer * s->shape.kv_heads + kv_head) * s->plan.kept;
}

const uint32_t *gpw_snapkv_kept(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head,
                                uint32_t *count_p)
{
    *count_p = s->plan.kept;
    return positions_of(s, layer, kv_head);
}

void gpw_snapkv_observe(gpw_segment_t *s, const gpw_segment_observe_t *args)
{
    const plan_t *plan = &s->plan;
    gpw_window_scratch_t scratch;
    if (plan->kept == 0) {
        return;
    }
    AS_ASSERT(args->layer < s->shape.layers && s->sealed[args->layer] == 0);
    AS_ASSERT(args->rows <= args->tokens && args->tokens - args->rows >= plan->prompt_tokens);
    gpw_window_carve(&s->shape, args->tokens, args->scratch, &scratch);
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        gpw_window_scores(s->ops, &s->shape, args, h, &scratch);
        gpw_select_pool_max(scratch.scores, args->tokens - args->rows, s->params.pool_tokens,
                            scratch.smoothed);
        for (uint32_t t = 0; t < s->params.sink_tokens && t < plan->prompt_tokens; t++) {
            scratch.smoothed[t] = INFINITY;
        }
        gpw_select_top(scratch.smoothed, plan->prompt_tokens, plan->kept,
                       positions_of(s, args->layer, h));
    }
}

// ---- Sealing -----------------------------------------------------------------------------------

static uint8_t *page_extent(const gpw_segment_t *s, uint32_t layer, uint32_t page)
{
    AS_ASSERT(page < s->pages_reserved);
    return s->pages[page] + layer * as_extent_bytes(&s->shape);
}

static uint32_t page_of(const gpw_segment_t *s, uint32_t later_block)
{
    return s->plan.prompt_pages + later_block - s->plan.prompt_blocks;
}

// How many of `positions` lie below `limit`.
static uint32_t count_below(const uint32_t *positions, uint32_t count, uint32_t limit)
{
    uint32_t low = 0;
    while (low < count) {
        uint32_t middle = low + (count - low) / 2;
        if (positions[middle] < limit) {
            low = middle + 1;
        } else {
            count = middle;
        }
    }
    return low;
}

// Copies the rows that one head keeps of one block to their slots.
static void gather(gpw_segment_t *s, uint32_t layer, uint32_t kv_head, uint32_t block,
                   const krn_f16 *extent)
{
    const as_shape_t *shape = &s->shape;
    uint32_t size = shape->block_tokens;
    const uint32_t *positions = positions_of(s, layer, kv_head);
    uint32_t slot = count_below(positions, s->plan.kept, block * size);
    for (; slot < s->plan.kept && positions[slot] < (block + 1) * size; slot++) {
        krn_f16 *page = (krn_f16 *)(void *)page_extent(s, layer, slot / size);
        for (uint32_t part = 0; part < 2; part++) {
            memcpy(page + as_extent_offset(shape, part, kv_head, slot % size),
                   extent + as_extent_offset(shape, part, kv_head, positions[slot] % size),
                   shape->head_dim * sizeof(krn_f16));
        }
    }
}

void gpw_snapkv_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    AS_ASSERT(layer < s->shape.layers && block == s->sealed[layer]);
    if (block >= s->plan.prompt_blocks) {
        memcpy(page_extent(s, layer, page_of(s, block)), extent, as_extent_bytes(&s->shape));
    } else {
        for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
            gather(s, layer, h, block, extent);
        }
    }
    s->sealed[layer]++;
}

// A block that was sealed later; one of the prompt only where all of the prompt is kept.
const void *gpw_snapkv_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    const plan_t *plan = &s->plan;
    if (block >= s->sealed[layer]) {
        return NULL;
    }
    if (block >= plan->prompt_blocks) {
        return page_extent(s, layer, page_of(s, block));
    }
    return plan->kept == plan->prompt_tokens ? page_extent(s, layer, block) : NULL;
}

// ---- Attending ---------------------------------------------------------------------------------

// Adds the pages [first, end) to args->out; of them the slots up to `last` are seen, counted from
// page 0.
static void attend_pages(const gpw_segment_t *s, const gpw_segment_attend_t *args, uint32_t first,
                         uint32_t end, int32_t last)
{
    for (uint32_t p = first; p < end; p++) {
        s->list[p] = gpw_page(&s->shape, page_extent(s, args->layer, p), p);
    }
    for (uint32_t r = 0; r < args->rows; r++) {
        s->last_seen[r] = last;
    }
    krn_attention_args_t attention =
        gpw_page_attention(&s->shape, args->rows, args->scale, args->q);
    attention.positions = s->last_seen;
    attention.pages = s->list + first;
    attention.page_count = end - first;
    gpw_pages_attend(s->ops, args->pool, &attention, args->scratch, args->out);
}

// The prompt's last page may be part empty: so it and the later blocks' pages see different ends.
void gpw_snapkv_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    const plan_t *plan = &s->plan;
    uint32_t sealed = s->sealed[args->layer];
    AS_ASSERT(args->rows <= ROWS_MAX && (sealed == 0 || sealed >= plan->prompt_blocks));
    krn_partials_clear(args->out, args->rows * s->shape.q_heads, s->shape.head_dim);
    if (sealed > 0 && plan->prompt_pages > 0) {
        attend_pages(s, args, 0, plan->prompt_pages, (int32_t)plan->kept - 1);
    }
    if (sealed > plan->prompt_blocks) {
        attend_pages(s, args, plan->prompt_pages, page_of(s, sealed), INT32_MAX);
    }
}

// ---- Bytes -------------------------------------------------------------------------------------

uint64_t gpw_snapkv_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape, &s->plan) +
           (uint64_t)s->pages_reserved * as_block_bytes(&s->shape);
}

uint64_t gpw_snapkv_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    if (!is_supported(options)) {
        return 0;
    }
    plan_t plan = plan_for(options);
    return fixed_bytes(&options->shape, &plan) +
           (uint64_t)pages_for(&plan, blocks) * as_block_bytes(&options->shape);
}

void gpw_snapkv_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t p = 0; p < s->pages_reserved; p++) {
        as_mem_free(s->pages[p]);
    }
    as_mem_free(s->pages);
    as_mem_free(s->positions);
    as_mem_free(s->sealed);
    as_mem_free(s->list);
    as_mem_free(s->last_seen);
    as_mem_free(s);
}
