// SPDX-License-Identifier: Apache-2.0
// Reading: each row chooses, for each KV head, and attends to what it chose.
//
// Rows are taken one after the other, so what they choose in is one row's, however many there are. Of
// a row the KV heads choose at the same time, and each thread attends to one run of what one of them
// chose.
//
// What is chosen is gathered into pages of PAGE_TOKENS (of a block, where that is shorter), one at a time, in
// the thread's own memory; where a page's tokens lie one behind the other it is read where it is. Pages
// and runs are counted by chosen tokens and fold as kernels.h says: the bits are those of attention over
// a cache that holds nothing else.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/partials.h"
#include "gpuworker/resident/read/reader.h"

#define PAGE_TOKENS 64u

// Choices of the rows of one layer's newest attend, by which the rows after them read.
typedef struct predicted {
    uint32_t position, rows; // of the first row; 0 rows: none
} predicted_t;

struct gpw_read {
    gpw_read_plan_t plan;
    const krn_ops_t *ops;
    uint32_t page_tokens, tokens; // tokens: held by each KV head, of the attend under way
    // [kv heads], as many of each as tokens_max tokens make
    gpw_read_piece_t *pieces;
    uint32_t *chosen, *counts;
    float *scores, *apart;
    uint16_t *sizes, *taken;
    // Of a reader that scans: [layers], [layers][GPW_READ_ROWS_MAX][kv heads][predicted_max]
    predicted_t *predicted;
    uint32_t *predicted_tokens;
    uint8_t *memory;
};

// ---- Sizes -------------------------------------------------------------------------------------

uint32_t gpw_read_budget(const gpw_compressor_params_t *params, uint32_t layer, uint32_t tokens)
{
    uint64_t share = ((uint64_t)tokens * params->read_percent + 99) / 100;
    uint64_t budget = share > params->read_tokens ? share : params->read_tokens;
    return layer < params->whole_layers || budget > tokens ? tokens : (uint32_t)budget;
}

as_status_t gpw_read_plan(const gpw_segment_options_t *options, uint32_t piece_tokens,
                          uint32_t tokens_max, gpw_read_plan_t *plan_p)
{
    const gpw_products_t *products[4];
    const gpw_compressor_params_t *params = options->params;
    gpw_read_plan_t plan = {.reader = params->reader,
                            .params = params,
                            .shape = options->shape,
                            .piece_tokens = piece_tokens,
                            .tokens_max = tokens_max};
    if (!plan.reader || options->shape.element != AS_ELEMENT_F16 || params->read_percent > 100 ||
        (params->read_percent == 0 && params->read_tokens == 0) ||
        (plan.reader->by_blocks && piece_tokens != options->shape.block_tokens)) {
        return AS_ERR_UNSUPPORTED;
    }
    gpw_products_all(products);
    plan.products = products[0];
    as_status_t status = plan.reader->prepare(&plan);
    *plan_p = plan;
    return status;
}

size_t gpw_read_index_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    uint32_t whole = tokens / plan->piece_tokens, rest = tokens % plan->piece_tokens;
    return whole * plan->reader->index_bytes(plan, plan->piece_tokens) +
           (rest ? plan->reader->index_bytes(plan, rest) : 0);
}

// Places for units of one KV head.
static size_t places_of(const gpw_read_plan_t *plan)
{
    return (size_t)gpw_read_piece_count(plan, plan->tokens_max) *
           plan->reader->units(plan, plan->piece_tokens);
}

static uint32_t predicted_max(const gpw_read_plan_t *plan)
{
    return gpw_read_budget(plan->params, UINT32_MAX, plan->tokens_max);
}

// Choices of one row, each with its length before it.
static size_t predicted_stride(const gpw_read_plan_t *plan)
{
    return (size_t)plan->shape.kv_heads * (1 + predicted_max(plan));
}

static void *carve(uint8_t *memory, size_t *at_p, size_t bytes)
{
    uint8_t *piece = memory ? memory + *at_p : NULL;
    *at_p += gpw_codes_whole_units(bytes);
    return piece;
}

// Where everything lies in read->memory (NULL: only counts); returns its bytes.
static size_t lay_out(gpw_read_t *read)
{
    const gpw_read_plan_t *plan = &read->plan;
    size_t heads = plan->shape.kv_heads, places = places_of(plan), bytes = 0;
    size_t pieces = gpw_read_piece_count(plan, plan->tokens_max);
    read->pieces = carve(read->memory, &bytes, heads * pieces * sizeof(*read->pieces));
    read->chosen = carve(read->memory, &bytes, heads * plan->tokens_max * sizeof(*read->chosen));
    read->counts = carve(read->memory, &bytes, heads * sizeof(*read->counts));
    read->scores = carve(read->memory, &bytes, heads * places * sizeof(*read->scores));
    read->sizes = carve(read->memory, &bytes, heads * places * sizeof(*read->sizes));
    read->taken = carve(read->memory, &bytes, heads * places * sizeof(*read->taken));
    if (plan->reader->heads_apart) {
        read->apart =
            carve(read->memory, &bytes, plan->shape.q_heads * places * sizeof(*read->apart));
    }
    if (plan->reader->scan) {
        size_t rows = (size_t)plan->shape.layers * GPW_READ_ROWS_MAX;
        read->predicted =
            carve(read->memory, &bytes, plan->shape.layers * sizeof(*read->predicted));
        read->predicted_tokens =
            carve(read->memory, &bytes, rows * predicted_stride(plan) * sizeof(uint32_t));
    }
    return bytes;
}

uint64_t gpw_read_bytes(const gpw_read_plan_t *plan)
{
    gpw_read_t read = {.plan = *plan};
    return sizeof(read) + lay_out(&read);
}

as_status_t gpw_read_open(const gpw_read_plan_t *plan, const krn_ops_t *ops, gpw_read_t **read_p)
{
    gpw_read_t *read = as_mem_zalloc(1, sizeof(*read));
    if (!read) {
        return AS_ERR_NO_MEMORY;
    }
    read->plan = *plan;
    read->ops = ops;
    read->page_tokens =
        plan->shape.block_tokens < PAGE_TOKENS ? plan->shape.block_tokens : PAGE_TOKENS;
    size_t bytes = lay_out(read);
    read->memory = as_mem_aligned(64, bytes);
    if (!read->memory) {
        gpw_read_close(read);
        return AS_ERR_NO_MEMORY;
    }
    memset(read->memory, 0, bytes);
    lay_out(read);
    *read_p = read;
    return AS_OK;
}

void gpw_read_close(gpw_read_t *read)
{
    if (read) {
        as_mem_free(read->memory);
        as_mem_free(read);
    }
}

gpw_read_piece_t *gpw_read_pieces(gpw_read_t *read, uint32_t kv_head)
{
    return read->pieces +
           (size_t)kv_head * gpw_read_piece_count(&read->plan, read->plan.tokens_max);
}

static uint32_t *chosen_of(const gpw_read_t *read, uint32_t kv_head)
{
    return read->chosen + (size_t)kv_head * read->plan.tokens_max;
}

const uint32_t *gpw_read_chosen(const gpw_read_t *read, uint32_t kv_head, uint32_t *count_p)
{
    *count_p = read->counts[kv_head];
    return chosen_of(read, kv_head);
}

// ---- Choosing ----------------------------------------------------------------------------------

typedef struct row {
    gpw_read_t *read;
    const gpw_segment_attend_t *args;
    uint32_t number, budget;
    uint32_t *to; // where choices go, each with its length before it; NULL: read->chosen
    krn_partials_t slots[GPW_SEGMENT_WAVE_RUNS]; // in the scratch: of one row's query heads each
    uint32_t first;                              // run or part of the wave under way
} row_t;

static const float *queries_of(const row_t *row, uint32_t kv_head)
{
    const as_shape_t *shape = &row->read->plan.shape;
    size_t head =
        (size_t)row->number * shape->q_heads + (size_t)kv_head * gpw_read_group(&row->read->plan);
    return row->args->q + head * shape->head_dim;
}

static gpw_reading_t reading_of(const row_t *row, uint32_t kv_head)
{
    gpw_read_t *read = row->read;
    size_t places = places_of(&read->plan);
    gpw_reading_t reading = {.plan = &read->plan,
                             .pieces = gpw_read_pieces(read, kv_head),
                             .tokens = read->tokens,
                             .budget = row->budget,
                             .scale = row->args->scale,
                             .q = queries_of(row, kv_head),
                             .scores = read->scores + kv_head * places,
                             .sizes = read->sizes + kv_head * places,
                             .taken = read->taken + kv_head * places,
                             .apart_stride = places};
    if (read->apart) {
        reading.apart = read->apart + kv_head * gpw_read_group(&read->plan) * places;
    }
    return reading;
}

static void choose_item(void *ctx, uint32_t kv_head)
{
    const row_t *row = ctx;
    gpw_read_t *read = row->read;
    gpw_reading_t reading = reading_of(row, kv_head);
    if (row->to) {
        uint32_t *to = row->to + (size_t)kv_head * (1 + predicted_max(&read->plan));
        to[0] = read->plan.reader->choose(&reading, to + 1);
    } else {
        read->counts[kv_head] = read->plan.reader->choose(&reading, chosen_of(read, kv_head));
    }
}

static void choose(row_t *row, uint32_t *to)
{
    row->to = to;
    krn_pool_run(row->args->pool, row->read->plan.shape.kv_heads, choose_item, row);
}

static void choose_all(gpw_read_t *read)
{
    for (uint32_t h = 0; h < read->plan.shape.kv_heads; h++) {
        uint32_t *chosen = chosen_of(read, h);
        read->counts[h] = read->tokens;
        for (uint32_t t = 0; t < read->tokens; t++) {
            chosen[t] = t;
        }
    }
}

// ---- Choices of the row before -----------------------------------------------------------------

// Where those of row `number` of a layer's newest attend are.
static uint32_t *predicted_at(const gpw_read_t *read, uint32_t layer, uint32_t number)
{
    AS_ASSERT(number < GPW_READ_ROWS_MAX);
    return read->predicted_tokens +
           ((size_t)layer * GPW_READ_ROWS_MAX + number) * predicted_stride(&read->plan);
}

// False: there is no row before it in its draft, or none that is remembered.
static bool recall(const row_t *row)
{
    gpw_read_t *read = row->read;
    const gpw_segment_attend_t *args = row->args;
    const predicted_t *last = &read->predicted[args->layer];
    uint32_t before = args->position - last->position - 1; // number of the row before the first
    bool follows = args->position > args->since && args->position > last->position;
    if (row->number > 0) {
        before = row->number - 1;
    } else if (!follows || before >= last->rows) {
        return false;
    }
    const uint32_t *from = predicted_at(read, args->layer, before);
    for (uint32_t h = 0; h < read->plan.shape.kv_heads; h++) {
        read->counts[h] = from[0];
        memcpy(chosen_of(read, h), from + 1, from[0] * sizeof(*from));
        from += 1 + predicted_max(&read->plan);
    }
    return true;
}

// ---- Attending ---------------------------------------------------------------------------------

// Adds the slots [0, count) to what the row has so far.
static void fold(const row_t *row, uint32_t count)
{
    const as_shape_t *shape = &row->read->plan.shape;
    krn_partials_t out =
        gpw_partials_at(row->args->out, (size_t)row->number * shape->q_heads, shape->head_dim);
    for (uint32_t s = 0; s < count; s++) {
        row->read->ops->merge(&out, &row->slots[s], shape->q_heads, shape->head_dim);
    }
}

// Chosen tokens [first, first + count) of a KV head: where they lie, or copied to `gathered`.
static krn_page_t page_of(const row_t *row, uint32_t kv_head, uint32_t first, uint32_t count,
                          krn_f16 *gathered)
{
    gpw_read_t *read = row->read;
    const gpw_read_piece_t *pieces = gpw_read_pieces(read, kv_head);
    const uint32_t *tokens = chosen_of(read, kv_head) + first;
    uint32_t size = read->plan.piece_tokens;
    size_t dim = read->plan.shape.head_dim;
    krn_f16 *k = gathered, *v = gathered + read->page_tokens * dim;
    for (uint32_t i = 0, run; i < count; i += run) {
        const gpw_read_piece_t *piece = &pieces[tokens[i] / size];
        size_t at = tokens[i] % size * dim;
        uint32_t end = size - tokens[i] % size;
        for (run = 1; run < end && i + run < count && tokens[i + run] == tokens[i] + run; run++) {
        }
        if (run == read->page_tokens) {
            return (krn_page_t){piece->k + at, piece->v + at, first / read->page_tokens};
        }
        memcpy(k + i * dim, piece->k + at, run * dim * sizeof(*k));
        memcpy(v + i * dim, piece->v + at, run * dim * sizeof(*v));
    }
    return (krn_page_t){k, v, first / read->page_tokens};
}

// One run of what one KV head chose.
static void attend_item(void *ctx, uint32_t index)
{
    _Alignas(64) krn_f16 gathered[2 * PAGE_TOKENS * KRN_HEAD_DIM_MAX];
    const row_t *row = ctx;
    gpw_read_t *read = row->read;
    const as_shape_t *shape = &read->plan.shape;
    uint32_t group = gpw_read_group(&read->plan), kv_head = index % shape->kv_heads;
    uint32_t first = (row->first + index / shape->kv_heads) * KRN_RUN_PAGES * read->page_tokens;
    uint32_t end = first + KRN_RUN_PAGES * read->page_tokens, count = read->counts[kv_head];
    krn_partials_t out = gpw_partials_at(&row->slots[index / shape->kv_heads],
                                         (size_t)kv_head * group, shape->head_dim);
    krn_partials_clear(&out, group, shape->head_dim);
    int32_t position = (int32_t)count - 1;
    krn_page_t page;
    krn_attention_args_t attention = {.rows = 1,
                                      .q_heads = group,
                                      .kv_heads = 1,
                                      .dim = shape->head_dim,
                                      .capacity = read->page_tokens,
                                      .scale = row->args->scale,
                                      .q = queries_of(row, kv_head),
                                      .positions = &position,
                                      .pages = &page,
                                      .page_count = 1};
    const krn_attention_part_t part = {.rows = 1, .pages = 1};
    end = end < count ? end : count;
    for (uint32_t t = first; t < end; t += read->page_tokens) {
        uint32_t left = end - t;
        page =
            page_of(row, kv_head, t, left < read->page_tokens ? left : read->page_tokens, gathered);
        read->ops->attention_part(&attention, &part, &out);
    }
}

static void attend_chosen(row_t *row)
{
    const gpw_read_t *read = row->read;
    uint32_t heads = read->plan.shape.kv_heads, run = KRN_RUN_PAGES * read->page_tokens, most = 0;
    for (uint32_t h = 0; h < heads; h++) {
        most = read->counts[h] > most ? read->counts[h] : most;
    }
    uint32_t runs = (most + run - 1) / run;
    for (row->first = 0; row->first < runs; row->first += GPW_SEGMENT_WAVE_RUNS) {
        uint32_t count = runs - row->first;
        count = count < GPW_SEGMENT_WAVE_RUNS ? count : GPW_SEGMENT_WAVE_RUNS;
        krn_pool_run(row->args->pool, count * heads, attend_item, row);
        fold(row, count);
    }
}

// One part of the pieces of one KV head, by their index.
static void scan_item(void *ctx, uint32_t index)
{
    const row_t *row = ctx;
    gpw_read_t *read = row->read;
    const gpw_read_plan_t *plan = &read->plan;
    uint32_t kv_head = index % plan->shape.kv_heads, slot = index / plan->shape.kv_heads;
    uint32_t first = (row->first + slot) * GPW_CODEC_PART_BLOCKS;
    uint32_t left = gpw_read_piece_count(plan, read->tokens) - first;
    gpw_reading_t reading = reading_of(row, kv_head);
    gpw_read_scan_t scan = {.reading = &reading,
                            .first = first,
                            .count = left < GPW_CODEC_PART_BLOCKS ? left : GPW_CODEC_PART_BLOCKS,
                            .hidden = chosen_of(read, kv_head),
                            .hidden_count = read->counts[kv_head],
                            .out = gpw_partials_at(&row->slots[slot],
                                                   (size_t)kv_head * gpw_read_group(plan),
                                                   plan->shape.head_dim)};
    plan->reader->scan(&scan);
}

// All but what is chosen. Where it is not folded only the logits matter.
static void scan(row_t *row, bool folds)
{
    gpw_read_t *read = row->read;
    uint32_t heads = read->plan.shape.kv_heads;
    uint32_t pieces = gpw_read_piece_count(&read->plan, read->tokens);
    uint32_t parts = (pieces + GPW_CODEC_PART_BLOCKS - 1) / GPW_CODEC_PART_BLOCKS;
    for (row->first = 0; row->first < parts; row->first += GPW_SEGMENT_WAVE_RUNS) {
        uint32_t count = parts - row->first;
        count = count < GPW_SEGMENT_WAVE_RUNS ? count : GPW_SEGMENT_WAVE_RUNS;
        krn_pool_run(row->args->pool, count * heads, scan_item, row);
        fold(row, folds ? count : 0);
    }
}

// What a row without one before it chooses by: its own logits.
static void scan_and_choose(row_t *row)
{
    memset(row->read->counts, 0, row->read->plan.shape.kv_heads * sizeof(*row->read->counts));
    scan(row, false);
    choose(row, NULL);
}

static void read_row(row_t *row)
{
    gpw_read_t *read = row->read;
    uint32_t layer = row->args->layer;
    if (row->budget == read->tokens) {
        choose_all(read);
    } else if (!read->plan.reader->scan) {
        choose(row, NULL);
    } else {
        if (!recall(row)) {
            scan_and_choose(row);
        }
        scan(row, true);
        choose(row, predicted_at(read, layer, row->number));
        read->predicted[layer] = (predicted_t){row->args->position, row->number + 1};
    }
    attend_chosen(row);
}

void gpw_read_attend(gpw_read_t *read, uint32_t tokens, const gpw_segment_attend_t *args)
{
    const as_shape_t *shape = &read->plan.shape;
    row_t row = {.read = read,
                 .args = args,
                 .budget = gpw_read_budget(read->plan.params, args->layer, tokens)};
    AS_ASSERT(tokens <= read->plan.tokens_max);
    for (uint32_t s = 0; s < GPW_SEGMENT_WAVE_RUNS; s++) {
        float *slot = (float *)args->scratch + (size_t)s * shape->q_heads * (shape->head_dim + 2);
        row.slots[s] = gpw_partials_carve(slot, shape->q_heads, shape->head_dim);
    }
    read->tokens = tokens;
    for (; tokens > 0 && row.number < args->rows; row.number++) {
        read_row(&row);
    }
}
