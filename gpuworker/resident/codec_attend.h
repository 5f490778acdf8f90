// SPDX-License-Identifier: Apache-2.0
// Attention straight from codes, but for the codes: the frame that kivi_attend.h and turbo_attend.h fill.
//
// Included after the v16 of an instruction set and its integer dot products (dots_*.h). The codec gives
// weights_t and three functions, all of them below.
//
// A part's blocks are gone through twice: logits of all tokens, then, with the maximum known, values.
// While one block is read, the next is prefetched. All in f32 is operations of v16 alone, each defined
// to the bit, so all copies of this code give the same bits.
#include <string.h>

#include "gpuworker/resident/attend_steps.h"
#include "gpuworker/resident/codec.h"
#include "gpuworker/resident/partials.h"

#define TOKENS_MAX (GPW_CODEC_PART_BLOCKS * WIDTH_MAX)

typedef struct weights weights_t; // the codec's: what weighs codes

typedef struct work {
    _Alignas(64) float p[QUERIES][TOKENS_MAX]; // logits, then exp(logit - max)
    _Alignas(64) float out[QUERIES][WIDTH_MAX];
    const float *q[QUERIES];
    uint32_t queries;
    weights_t *weights;
} work_t;

typedef struct block {
    const uint8_t *head; // its codes
    ptrdiff_t ahead;     // from there to what is read next
    uint32_t first;      // its first token's place in work's p
} block_t;

// Before the first block: the queries are w->q.
static void queries_begin(const gpw_codec_part_t *part, work_t *w);
// Logits of one block's tokens, but for the scale, to w->p; -inf for tokens that only pad.
static void block_logits(const gpw_codec_part_t *part, const block_t *block, work_t *w);
// Adds one block's values, weighed by w->p (which is free afterwards), to w->out.
static void block_values(const gpw_codec_part_t *part, const block_t *block, work_t *w);

// Tokens that only pad a block: exp gives 0.
static void hide_padding(const gpw_codes_layout_t *l, const block_t *block, work_t *w)
{
    for (uint32_t t = l->tokens; t < l->tokens_padded; t++) {
        for (uint32_t q = 0; q < w->queries; q++) {
            w->p[q][block->first + t] = -INFINITY;
        }
    }
}

// Pair `index` of the part's KV head: [row][head of the group].
static size_t pair_of(const gpw_codec_part_t *part, uint32_t index)
{
    return (size_t)(index / part->group_heads) * part->q_heads + part->kv_head * part->group_heads +
           index % part->group_heads;
}

static const uint8_t *head_of(const gpw_codec_part_t *part, uint32_t block)
{
    return part->blocks[block] + part->layer_offset + part->kv_head * part->layout->head_bytes;
}

// A block's keys (part 0) or values (1). Behind the last block's keys the first block's values are
// read, behind its values the keys of the next KV head.
static block_t block_at(const gpw_codec_part_t *part, uint32_t b, int values)
{
    const gpw_codes_layout_t *l = part->layout;
    bool last = b + 1 == part->block_count;
    block_t block = {.head = head_of(part, b), .first = b * l->tokens_padded};
    uintptr_t here = (uintptr_t)block.head, next = (uintptr_t)head_of(part, last ? 0 : b + 1);
    if (last) {
        next += values ? l->head_bytes - l->v_codes : l->v_codes;
    }
    block.ahead = (ptrdiff_t)(next - here);
    return block;
}

static void attend_pairs(const gpw_codec_part_t *part, uint32_t first, work_t *w)
{
    uint32_t dim = part->layout->dim;
    for (uint32_t q = 0; q < w->queries; q++) {
        w->q[q] = part->q + pair_of(part, first + q) * dim;
        memset(w->out[q], 0, dim * sizeof(float));
    }
    queries_begin(part, w);
    for (uint32_t b = 0; b < part->block_count; b++) {
        block_t block = block_at(part, b, 0);
        block_logits(part, &block, w);
    }
    for (uint32_t q = 0; part->look && q < w->queries; q++) {
        part->look(part->look_ctx, first + q, w->p[q]);
    }
    for (uint32_t q = 0; q < w->queries; q++) {
        size_t pair = pair_of(part, first + q);
        softmax(w->p[q], part->block_count * part->layout->tokens_padded, part->scale,
                part->out.max + pair, part->out.sum + pair);
    }
    for (uint32_t b = 0; b < part->block_count; b++) {
        block_t block = block_at(part, b, 1);
        block_values(part, &block, w);
    }
    for (uint32_t q = 0; q < w->queries; q++) {
        memcpy(part->out.out + pair_of(part, first + q) * dim, w->out[q], dim * sizeof(float));
    }
}

static void attend_part(const gpw_codec_part_t *part, work_t *w)
{
    uint32_t pairs = part->rows * part->group_heads;
    _Static_assert(WIDTH_MAX >= KRN_HEAD_DIM_MAX && WIDTH_MAX >= AS_BLOCK_TOKENS_MAX, "both fit");
    for (uint32_t first = 0; first < pairs; first += QUERIES) {
        w->queries = pairs - first < QUERIES ? pairs - first : QUERIES;
        attend_pairs(part, first, w);
    }
}
