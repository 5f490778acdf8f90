// SPDX-License-Identifier: Apache-2.0
// Some tokens of a prompt: `observe` has them chosen, `seal` gathers their rows.
//
// A layer's memory is what its budget allows until it is observed. A selector that kept less has it
// made as small as that: nothing but positions has been written there yet.
//
// With a reader all heads keep as many, and a head's rows are read by pieces: runs of pages, each with
// its index, which is made when the last block of the prompt is sealed.
#include "gpuworker/resident/kept_prompt.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/partials.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select/selector.h"

#define ROWS_MAX     256u // of one attend
#define PAGES_PADDED 16u  // what a reader's index is padded to, in pages
#define WAVE_FIRST   2u   // of the partials in an attend's scratch: [0] the total, [1] the queries

typedef struct layer {
    uint32_t sealed; // blocks
    uint32_t room;   // tokens of all KV heads that the memory is for
    uint8_t *memory; // NULL: not reserved, or nothing is kept
} layer_t;

struct gpw_segment {
    as_shape_t shape;
    const krn_ops_t *ops;
    gpw_compressor_params_t params;
    uint32_t prompt_blocks, prompt_tokens;
    layer_t *layers;
    uint32_t *counts;     // [layers][kv heads]: tokens that are kept
    uint64_t kept_bytes;  // of all layers' memory
    gpw_read_plan_t plan; // where there is a reader
    gpw_read_t *read;     // NULL: all that is kept is read
    gpw_segment_t *later; // the codec's: blocks behind the prompt
};

static size_t row_bytes(const as_shape_t *shape)
{
    return 2 * (size_t)shape->head_dim * sizeof(krn_f16);
}

static size_t memory_bytes(const as_shape_t *shape, uint32_t tokens)
{
    return tokens * (row_bytes(shape) + sizeof(uint32_t));
}

static uint32_t budget_of(const gpw_segment_options_t *options, uint32_t layer)
{
    return gpw_select_budget(options->params, options->shape.layers, layer,
                             options->prompt_blocks * options->shape.block_tokens);
}

// Where the indices lie behind these, one KV head's behind the other's.
static size_t indices_at(const as_shape_t *shape, uint32_t room)
{
    return gpw_codes_whole_units(memory_bytes(shape, room));
}

// Of what a layer keeps; `plan` is empty where there is no reader.
static size_t layer_bytes(const as_shape_t *shape, const gpw_read_plan_t *plan, uint32_t room)
{
    return plan->reader ? indices_at(shape, room) +
                              shape->kv_heads * gpw_read_index_bytes(plan, room / shape->kv_heads)
                        : memory_bytes(shape, room);
}

static uint64_t fixed_bytes(const as_shape_t *shape, const gpw_read_plan_t *plan)
{
    return sizeof(gpw_segment_t) + shape->layers * sizeof(layer_t) +
           (uint64_t)shape->layers * shape->kv_heads * sizeof(uint32_t) +
           (plan->reader ? gpw_read_bytes(plan) : 0);
}

// Of what a reader indexes together: whole pages, and as many of them as its index has places for.
static uint32_t piece_tokens_of(const gpw_segment_options_t *options)
{
    uint32_t most = KRN_RUN_PAGES * options->shape.block_tokens;
    uint32_t whole = options->params->page_tokens * PAGES_PADDED;
    return whole > 0 && whole <= most ? most / whole * whole : most;
}

static as_status_t plan_for(const gpw_segment_options_t *options, gpw_read_plan_t *plan_p)
{
    uint32_t most = 0;
    if (!options->params->reader) {
        *plan_p = (gpw_read_plan_t){0};
        return AS_OK;
    }
    if (options->params->head_floor_percent > 0 || options->params->selector->data_sized) {
        return AS_ERR_UNSUPPORTED; // heads would keep different numbers
    }
    for (uint32_t l = 0; l < options->shape.layers; l++) {
        uint32_t budget = budget_of(options, l);
        most = budget > most ? budget : most;
    }
    return gpw_read_plan(options, piece_tokens_of(options), most, plan_p);
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
    return options->shape.element == AS_ELEMENT_F16 && params->selector &&
           params->selector->choose && params->selector->observes && params->codec &&
           params->window_tokens > 0 && params->window_tokens <= GPW_RESIDUAL_TOKENS &&
           params->pool_tokens % 2 == 1 && params->keep_percent > 0 &&
           params->keep_percent <= 100 && params->recent_percent <= 100 &&
           params->head_floor_percent <= 100 && params->norm_drop_permille <= 1000 &&
           options->prompt_blocks <= options->blocks_max;
}

as_status_t gpw_kept_prompt_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    gpw_read_plan_t plan;
    if (!is_supported(options) || plan_for(options, &plan) != AS_OK) {
        return AS_ERR_UNSUPPORTED;
    }
    const as_shape_t *shape = &options->shape;
    gpw_segment_options_t later = later_options(options);
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->shape = *shape;
    s->ops = options->ops;
    s->params = *options->params;
    s->plan = plan;
    s->plan.params = &s->params;
    s->prompt_blocks = options->prompt_blocks;
    s->prompt_tokens = options->prompt_blocks * shape->block_tokens;
    s->layers = as_mem_zalloc(shape->layers, sizeof(*s->layers));
    s->counts = as_mem_zalloc((size_t)shape->layers * shape->kv_heads, sizeof(*s->counts));
    as_status_t status = s->params.codec->open(&later, &s->later);
    if (status == AS_OK && plan.reader) {
        status = gpw_read_open(&s->plan, options->ops, &s->read);
    }
    if (status == AS_OK && (!s->layers || !s->counts)) {
        status = AS_ERR_NO_MEMORY;
    }
    if (status != AS_OK) {
        gpw_kept_prompt_close(s);
        return status;
    }
    for (uint32_t l = 0; l < shape->layers; l++) {
        s->layers[l].room = shape->kv_heads * budget_of(options, l);
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_kept_prompt_reserve(gpw_segment_t *s, uint32_t blocks)
{
    for (uint32_t l = 0; blocks > 0 && l < s->shape.layers; l++) {
        layer_t *layer = &s->layers[l];
        if (layer->memory || layer->room == 0) {
            continue;
        }
        size_t bytes = layer_bytes(&s->shape, &s->plan, layer->room);
        layer->memory = as_mem_aligned(64, bytes);
        if (!layer->memory) {
            return AS_ERR_NO_MEMORY;
        }
        memset(layer->memory + memory_bytes(&s->shape, layer->room), 0,
               bytes - memory_bytes(&s->shape, layer->room)); // what only pads an index
        s->kept_bytes += bytes;
    }
    return blocks > s->prompt_blocks ? s->params.codec->reserve(s->later, blocks - s->prompt_blocks)
                                     : AS_OK;
}

// ---- Choosing ----------------------------------------------------------------------------------

static uint32_t *positions_of(const gpw_segment_t *s, uint32_t layer)
{
    const layer_t *l = &s->layers[layer];
    return (uint32_t *)(void *)(l->memory + l->room * row_bytes(&s->shape));
}

static uint32_t *counts_of(const gpw_segment_t *s, uint32_t layer)
{
    return s->counts + (size_t)layer * s->shape.kv_heads;
}

// How many tokens the KV heads before this one keep.
static uint32_t kept_before(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    uint32_t before = 0;
    for (uint32_t h = 0; h < kv_head; h++) {
        before += counts_of(s, layer)[h];
    }
    return before;
}

const gpw_read_t *gpw_kept_prompt_read(const gpw_segment_t *s)
{
    return s->read;
}

const uint32_t *gpw_kept_prompt_positions(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head,
                                          uint32_t *count_p)
{
    *count_p = counts_of(s, layer)[kv_head];
    return *count_p ? positions_of(s, layer) + kept_before(s, layer, kv_head) : NULL;
}

// Without memory for a smaller piece the larger one stays.
static void shrink(gpw_segment_t *s, uint32_t layer)
{
    layer_t *l = &s->layers[layer];
    uint32_t kept = kept_before(s, layer, s->shape.kv_heads);
    uint8_t *memory = NULL;
    if (kept == l->room) {
        return;
    }
    AS_ASSERT(!s->read);
    if (kept > 0) {
        memory = as_mem_aligned(64, memory_bytes(&s->shape, kept));
        if (!memory) {
            return;
        }
        memcpy(memory + kept * row_bytes(&s->shape), positions_of(s, layer),
               kept * sizeof(uint32_t));
    }
    as_mem_free(l->memory);
    s->kept_bytes -= memory_bytes(&s->shape, l->room - kept);
    l->memory = memory;
    l->room = kept;
}

void gpw_kept_prompt_observe(gpw_segment_t *s, const gpw_segment_observe_t *args)
{
    layer_t *layer = &s->layers[args->layer];
    gpw_select_scratch_t scratch;
    if (layer->room == 0) {
        return;
    }
    AS_ASSERT(args->layer < s->shape.layers && layer->sealed == 0 && layer->memory);
    AS_ASSERT(args->rows > 0 && args->rows <= args->tokens &&
              args->tokens - args->rows >= s->prompt_tokens);
    gpw_select_carve(&s->shape, args->tokens, true, args->scratch, &scratch);
    gpw_selection_t choice = {.params = &s->params,
                              .shape = &s->shape,
                              .ops = s->ops,
                              .pages = args->pages,
                              .tokens = s->prompt_tokens,
                              .sinks = s->params.sink_tokens,
                              .budget = layer->room / s->shape.kv_heads,
                              .seen = args,
                              .scratch = &scratch};
    gpw_kept_t kept = {positions_of(s, args->layer), counts_of(s, args->layer)};
    choice.sinks = choice.sinks < choice.budget ? choice.sinks : choice.budget;
    s->params.selector->choose(&choice, &kept);
    shrink(s, args->layer);
}

// ---- Sealing -----------------------------------------------------------------------------------

// Keys (part 0) or values (part 1) of a KV head, behind `before` tokens of other heads.
static krn_f16 *rows_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head, uint32_t part)
{
    size_t dim = s->shape.head_dim;
    krn_f16 *memory = (krn_f16 *)(void *)s->layers[layer].memory;
    return memory + (2 * (size_t)kept_before(s, layer, kv_head) +
                     part * (size_t)counts_of(s, layer)[kv_head]) *
                        dim;
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

// Copies the rows that one head keeps of one block to their places.
static void gather(gpw_segment_t *s, uint32_t layer, uint32_t kv_head, uint32_t block,
                   const krn_f16 *extent)
{
    uint32_t size = s->shape.block_tokens, dim = s->shape.head_dim, count;
    const uint32_t *positions = gpw_kept_prompt_positions(s, layer, kv_head, &count);
    krn_f16 *k = rows_of(s, layer, kv_head, 0), *v = rows_of(s, layer, kv_head, 1);
    uint32_t row = count_below(positions, count, block * size);
    for (; row < count && positions[row] < (block + 1) * size; row++) {
        uint32_t token = positions[row] % size;
        memcpy(k + (size_t)row * dim, extent + as_extent_offset(&s->shape, 0, kv_head, token),
               dim * sizeof(*k));
        memcpy(v + (size_t)row * dim, extent + as_extent_offset(&s->shape, 1, kv_head, token),
               dim * sizeof(*v));
    }
}

// ---- Indices -----------------------------------------------------------------------------------

static uint32_t kept_each(const gpw_segment_t *s, uint32_t layer)
{
    return s->layers[layer].room / s->shape.kv_heads;
}

// Piece `piece` of what a head keeps.
static gpw_read_piece_t piece_at(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head,
                                 uint32_t piece)
{
    const layer_t *l = &s->layers[layer];
    size_t row = (size_t)piece * s->plan.piece_tokens * s->shape.head_dim;
    return (gpw_read_piece_t){.k = rows_of(s, layer, kv_head, 0) + row,
                              .v = rows_of(s, layer, kv_head, 1) + row,
                              .index =
                                  l->memory + indices_at(&s->shape, l->room) +
                                  kv_head * gpw_read_index_bytes(&s->plan, kept_each(s, layer)) +
                                  gpw_read_index_bytes(&s->plan, piece * s->plan.piece_tokens)};
}

static void make_indices(gpw_segment_t *s, uint32_t layer)
{
    uint32_t kept = kept_each(s, layer), size = s->plan.piece_tokens;
    for (uint32_t i = 0; i < s->shape.kv_heads * gpw_read_piece_count(&s->plan, kept); i++) {
        uint32_t number = i / s->shape.kv_heads, left = kept - number * size;
        gpw_read_piece_t piece = piece_at(s, layer, i % s->shape.kv_heads, number);
        const gpw_read_rows_t rows = {.ops = s->ops,
                                      .k = piece.k,
                                      .v = piece.v,
                                      .first = number * size,
                                      .tokens = left < size ? left : size};
        uint8_t *memory = s->layers[layer].memory;
        s->plan.reader->index(&s->plan, &rows, memory + (piece.index - memory));
    }
}

void gpw_kept_prompt_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    layer_t *l = &s->layers[layer];
    AS_ASSERT(layer < s->shape.layers && block == l->sealed);
    if (block >= s->prompt_blocks) {
        s->params.codec->seal(s->later, layer, block - s->prompt_blocks, extent);
    } else {
        for (uint32_t h = 0; h < s->shape.kv_heads && l->memory; h++) {
            gather(s, layer, h, block, extent);
        }
    }
    if (block + 1 == s->prompt_blocks && s->read && l->memory) {
        make_indices(s, layer);
    }
    l->sealed++;
}

const void *gpw_kept_prompt_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return block >= s->prompt_blocks && block < s->layers[layer].sealed
               ? s->params.codec->extent(s->later, layer, block - s->prompt_blocks)
               : NULL;
}

// ---- Attending ---------------------------------------------------------------------------------

// While attending, pairs of (row, query head) lie by KV head: [kv head][row][head of its group].
typedef struct wave {
    const gpw_segment_t *segment;
    const gpw_segment_attend_t *args;
    const float *q;
    krn_partials_t runs[GPW_SEGMENT_WAVE_RUNS - WAVE_FIRST];
    uint32_t first_run;
} wave_t;

static krn_partials_t slot(const gpw_segment_t *s, const gpw_segment_attend_t *args, uint32_t index)
{
    uint32_t pairs = args->rows * s->shape.q_heads, dim = s->shape.head_dim;
    return gpw_partials_carve((float *)args->scratch + (size_t)index * pairs * (dim + 2), pairs,
                              dim);
}

static uint32_t runs_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    uint32_t run_tokens = KRN_RUN_PAGES * s->shape.block_tokens;
    return (counts_of(s, layer)[kv_head] + run_tokens - 1) / run_tokens;
}

// One run of one KV head.
static void attend_item(void *ctx, uint32_t index)
{
    const wave_t *wave = ctx;
    const gpw_segment_t *s = wave->segment;
    const gpw_segment_attend_t *args = wave->args;
    uint32_t heads = s->shape.kv_heads, group = s->shape.q_heads / heads, dim = s->shape.head_dim;
    uint32_t kv_head = index % heads, run = wave->first_run + index / heads;
    size_t first_pair = (size_t)kv_head * args->rows * group;
    krn_partials_t out = gpw_partials_at(&wave->runs[index / heads], first_pair, dim);
    krn_partials_clear(&out, args->rows * group, dim);
    if (run >= runs_of(s, args->layer, kv_head)) {
        return;
    }
    int32_t positions[ROWS_MAX];
    krn_page_t pages[KRN_RUN_PAGES];
    uint32_t count = counts_of(s, args->layer)[kv_head], size = s->shape.block_tokens, used = 0;
    const krn_f16 *k = rows_of(s, args->layer, kv_head, 0);
    const krn_f16 *v = rows_of(s, args->layer, kv_head, 1);
    for (uint32_t p = run * KRN_RUN_PAGES; used < KRN_RUN_PAGES && p * size < count; p++) {
        size_t at = (size_t)p * size * dim;
        pages[used++] = (krn_page_t){k + at, v + at, p};
    }
    for (uint32_t r = 0; r < args->rows; r++) {
        positions[r] = (int32_t)count - 1;
    }
    krn_attention_args_t attention = {.rows = args->rows,
                                      .q_heads = group,
                                      .kv_heads = 1,
                                      .dim = dim,
                                      .capacity = size,
                                      .scale = args->scale,
                                      .q = wave->q + first_pair * dim,
                                      .positions = positions,
                                      .pages = pages,
                                      .page_count = used};
    krn_attention_part_t part = {.rows = args->rows, .pages = used};
    s->ops->attention_part(&attention, &part, &out);
}

static void gather_queries(const gpw_segment_t *s, const gpw_segment_attend_t *args, float *q)
{
    uint32_t group = s->shape.q_heads / s->shape.kv_heads;
    size_t width = (size_t)group * s->shape.head_dim;
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        for (uint32_t r = 0; r < args->rows; r++) {
            memcpy(q + ((size_t)h * args->rows + r) * width,
                   args->q + ((size_t)r * s->shape.kv_heads + h) * width, width * sizeof(*q));
        }
    }
}

// Attention over what is kept of the prompt, by KV head.
static krn_partials_t attend_kept(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    uint32_t pairs = args->rows * s->shape.q_heads, dim = s->shape.head_dim, runs = 0;
    krn_partials_t total = slot(s, args, 0);
    float *q = slot(s, args, 1).out;
    wave_t wave = {.segment = s, .args = args, .q = q};
    uint32_t wave_runs = GPW_SEGMENT_WAVE_RUNS - WAVE_FIRST;
    for (uint32_t r = 0; r < wave_runs; r++) {
        wave.runs[r] = slot(s, args, WAVE_FIRST + r);
    }
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        uint32_t own = runs_of(s, args->layer, h);
        runs = own > runs ? own : runs;
    }
    gather_queries(s, args, q);
    krn_partials_clear(&total, pairs, dim);
    for (; wave.first_run < runs; wave.first_run += wave_runs) {
        uint32_t count = runs - wave.first_run;
        count = count < wave_runs ? count : wave_runs;
        krn_pool_run(args->pool, count * s->shape.kv_heads, attend_item, &wave);
        for (uint32_t r = 0; r < count; r++) {
            s->ops->merge(&total, &wave.runs[r], pairs, dim);
        }
    }
    return total;
}

// Attention over what the reader chooses of it.
static void read_kept(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    uint32_t kept = kept_each(s, args->layer);
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        gpw_read_piece_t *pieces = gpw_read_pieces(s->read, h);
        for (uint32_t p = 0; p < gpw_read_piece_count(&s->plan, kept); p++) {
            pieces[p] = piece_at(s, args->layer, h, p);
        }
    }
    gpw_read_attend(s->read, kept, args);
}

// Later blocks come first: the codec has the whole scratch for them.
void gpw_kept_prompt_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    const layer_t *layer = &s->layers[args->layer];
    uint32_t heads = s->shape.kv_heads, group = s->shape.q_heads / heads, dim = s->shape.head_dim;
    AS_ASSERT(args->rows <= ROWS_MAX);
    AS_ASSERT(layer->sealed == 0 || layer->sealed >= s->prompt_blocks);
    s->params.codec->attend(s->later, args);
    if (layer->sealed == 0 || !layer->memory) {
        return;
    }
    if (s->read) {
        read_kept(s, args);
        return;
    }
    krn_partials_t kept = attend_kept(s, args);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < args->rows; r++) {
            krn_partials_t to = gpw_partials_at(args->out, ((size_t)r * heads + h) * group, dim);
            krn_partials_t from = gpw_partials_at(&kept, ((size_t)h * args->rows + r) * group, dim);
            s->ops->merge(&to, &from, group, dim);
        }
    }
}

// ---- Bytes -------------------------------------------------------------------------------------

uint64_t gpw_kept_prompt_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape, &s->plan) + s->kept_bytes + s->params.codec->bytes(s->later);
}

uint64_t gpw_kept_prompt_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    gpw_read_plan_t plan;
    if (!is_supported(options) || plan_for(options, &plan) != AS_OK) {
        return 0;
    }
    gpw_segment_options_t later = later_options(options);
    uint32_t later_blocks = blocks > options->prompt_blocks ? blocks - options->prompt_blocks : 0;
    uint64_t bytes = fixed_bytes(&options->shape, &plan) +
                     options->params->codec->bytes_max(&later, later_blocks);
    for (uint32_t l = 0; blocks > 0 && l < options->shape.layers; l++) {
        bytes +=
            layer_bytes(&options->shape, &plan, options->shape.kv_heads * budget_of(options, l));
    }
    return bytes;
}

void gpw_kept_prompt_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    for (uint32_t l = 0; s->layers && l < s->shape.layers; l++) {
        as_mem_free(s->layers[l].memory);
    }
    if (s->later) {
        s->params.codec->close(s->later);
    }
    gpw_read_close(s->read);
    as_mem_free(s->layers);
    as_mem_free(s->counts);
    as_mem_free(s);
}
