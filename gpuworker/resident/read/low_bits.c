// SPDX-License-Identifier: Apache-2.0
// SpeCache (Jie et al. 2025): all tokens in few bits, and the few that matter exactly.
//
// Index of a piece: its keys and values in KIVI's codes (kivi.h; params->bits and ->group). A step
// attends to every token by its codes, but to those that were chosen by their exact keys and values.
// What is chosen are the budget's greatest
//
//   score[t] = sum over the group's query heads of softmax over the held tokens of q . code of k[t] / sqrt(dim)
//
// of the row before: the scan of one row says what the next will read, so that the exact rows can be
// brought while the rest of the step is computed. The first row of a draft has none before it, and
// is scanned twice: to choose, then to attend.
//
// The authors let every step carry a second row with a guess of the next token, and choose by that row; here
// the row itself is the guess, which costs no second one. Their scores have the exact logits of what
// was chosen before in place of those of codes; here a choice depends on one row alone, and so not
// on how the rows before it were batched.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/top.h"

static as_status_t prepare(gpw_read_plan_t *plan)
{
    gpw_segment_options_t options = {.params = plan->params, .shape = plan->shape};
    gpw_codec_attend_fn *attends[4];
    gpw_kivi_attends(attends);
    plan->attend_codes = attends[0];
    options.shape.kv_heads = 1;
    return gpw_kivi_layout(&options, &plan->codes);
}

static size_t index_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    (void)tokens; // all pieces are alike
    return plan->codes.head_bytes;
}

static uint32_t units(const gpw_read_plan_t *plan, uint32_t tokens)
{
    (void)tokens;
    return plan->codes.tokens_padded;
}

static void index_piece(const gpw_read_plan_t *plan, const gpw_read_rows_t *rows, uint8_t *index)
{
    size_t elements = (size_t)rows->tokens * plan->shape.head_dim;
    rows->ops->f16_to_f32(rows->k, elements, rows->scratch);
    rows->ops->f16_to_f32(rows->v, elements, rows->scratch + elements);
    gpw_kivi_pack(&plan->codes, rows->scratch, rows->scratch + elements, index);
}

// How many of `tokens` lie below `limit`.
static uint32_t count_below(const uint32_t *tokens, uint32_t count, uint32_t limit)
{
    uint32_t below = 0;
    while (below < count && tokens[below] < limit) {
        below++;
    }
    return below;
}

// Keeps the logits of a query head's tokens, then hides those that are attended to exactly.
static void look(void *ctx, uint32_t pair, float *logits)
{
    const gpw_read_scan_t *scan = ctx;
    const gpw_reading_t *reading = scan->reading;
    uint32_t size = reading->plan->piece_tokens, padded = reading->plan->codes.tokens_padded;
    uint32_t first = scan->first * size, end = first + scan->count * size;
    memcpy(reading->apart + pair * reading->apart_stride + (size_t)scan->first * padded, logits,
           (size_t)scan->count * padded * sizeof(*logits));
    for (uint32_t i = count_below(scan->hidden, scan->hidden_count, first);
         i < scan->hidden_count && scan->hidden[i] < end; i++) {
        uint32_t at = scan->hidden[i] - first;
        logits[at / size * padded + at % size] = -INFINITY;
    }
}

static void scan_pieces(const gpw_read_scan_t *scan)
{
    const gpw_reading_t *reading = scan->reading;
    const gpw_read_plan_t *plan = reading->plan;
    const uint8_t *codes[GPW_CODEC_PART_BLOCKS];
    for (uint32_t p = 0; p < scan->count; p++) {
        codes[p] = reading->pieces[scan->first + p].index;
    }
    gpw_codec_part_t part = {.layout = &plan->codes,
                             .blocks = codes,
                             .block_count = scan->count,
                             .rows = 1,
                             .group_heads = gpw_read_group(plan),
                             .q_heads = gpw_read_group(plan),
                             .scale = reading->scale,
                             .q = reading->q,
                             .out = scan->out,
                             .look = look,
                             .look_ctx = (void *)(uintptr_t)scan};
    plan->attend_codes(&part);
}

static uint32_t choose(const gpw_reading_t *reading, uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t size = plan->piece_tokens, padded = plan->codes.tokens_padded;
    uint32_t pieces = gpw_read_piece_count(plan, reading->tokens);
    memset(reading->scores, 0, (size_t)pieces * padded * sizeof(*reading->scores));
    for (uint32_t g = 0; g < gpw_read_group(plan); g++) {
        plan->products->add_softmax(reading->apart + g * reading->apart_stride, pieces * padded,
                                    reading->scale, reading->scores);
    }
    for (uint32_t p = 1; p < pieces && padded > size; p++) {
        memmove(reading->scores + (size_t)p * size, reading->scores + (size_t)p * padded,
                size * sizeof(*reading->scores));
    }
    gpw_select_top(reading->scores, reading->tokens, reading->budget, tokens);
    return reading->budget;
}

const gpw_reader_t gpw_read_low_bits = {.name = "low bits",
                                        .by_blocks = true,
                                        .heads_apart = true,
                                        .prepare = prepare,
                                        .index_bytes = index_bytes,
                                        .units = units,
                                        .index = index_piece,
                                        .choose = choose,
                                        .scan = scan_pieces};
