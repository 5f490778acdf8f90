// SPDX-License-Identifier: Apache-2.0
// Readers: which of the tokens that a segment holds a step reads.
//
// A reader makes an index of held tokens when they are sealed, and chooses by it, in every step, for each
// row and KV head the tokens that this row attends to. Query heads that share a KV head choose
// together: else what is read would be the union of their choices.
//
// Two functions, and what each is shown decides what becomes of its result. `index` is shown keys
// and values alone: so an index follows from the chain, stands in its block and is shared with it.
// `choose` is shown one row's queries, and an index that it may not write: what it chooses lies in
// the session's own memory (gpw_read_t), until the next step.
//
// Tokens lie in pieces, of which the last may be shorter: a block each (indexed.h), or a run of
// what a prompt keeps (kept_prompt.h). Each piece has its index; a reader scores units of a piece:
// pages, clusters or tokens. Tokens are numbered through, as they are held.
#ifndef GPW_READER_H
#define GPW_READER_H

#include "gpuworker/resident/codec.h"
#include "gpuworker/resident/read/products.h"

#define GPW_READ_ROWS_MAX 16u // rows of a step of which a reader that predicts keeps choices

struct gpw_reader;

// What follows from the options alone.
typedef struct gpw_read_plan {
    const struct gpw_reader *reader;
    const gpw_compressor_params_t *params;
    const gpw_products_t *products;
    as_shape_t shape;
    uint32_t piece_tokens, tokens_max; // of one KV head
    gpw_codes_layout_t codes;          // scan: of a piece, as if it had one KV head
    gpw_codec_attend_fn *attend_codes;
} gpw_read_plan_t;

// A piece that one KV head holds.
typedef struct gpw_read_piece {
    const krn_f16 *k, *v; // [tokens][dim]
    const uint8_t *index;
} gpw_read_piece_t;

// What an index is made of. Nothing else may go into it.
typedef struct gpw_read_rows {
    const krn_ops_t *ops;
    const krn_f16 *k, *v;   // [tokens][dim]
    uint32_t first, tokens; // first: its number among all
    float *scratch;         // [2][tokens][dim]; where pieces are blocks
} gpw_read_rows_t;

// What one row's choice of one KV head works on.
typedef struct gpw_reading {
    const gpw_read_plan_t *plan;
    const gpw_read_piece_t *pieces;
    uint32_t tokens, budget; // held; to be chosen of them, fewer
    float scale;             // of logits
    const float *q;          // [query heads of the KV head][dim]
    // Scratch: a place for each unit, those of a piece behind those of the piece before, as many for
    // each as a whole piece has; of `apart` one row for each query head.
    float *scores, *apart;
    uint16_t *sizes, *taken; // tokens of units; those that are taken of them
    size_t apart_stride;
} gpw_reading_t;

// Some pieces that are attended to by their index; those tokens that are chosen are left out.
typedef struct gpw_read_scan {
    const gpw_reading_t *reading;
    uint32_t first, count;  // pieces, at most GPW_CODEC_PART_BLOCKS
    const uint32_t *hidden; // tokens, ascending
    uint32_t hidden_count;
    krn_partials_t out; // [query heads of the KV head]
} gpw_read_scan_t;

typedef struct gpw_reader {
    const char *name;
    bool by_blocks;   // its pieces are blocks
    bool heads_apart; // scores query heads apart before it adds them up
    // Completes the plan. AS_ERR_UNSUPPORTED when parameters or pieces do not fit.
    as_status_t (*prepare)(gpw_read_plan_t *plan) AS_MUST_USE;
    // Of the index of a piece of so many tokens, a multiple of 64.
    size_t (*index_bytes)(const gpw_read_plan_t *plan, uint32_t tokens);
    // Scored units of such a piece.
    uint32_t (*units)(const gpw_read_plan_t *plan, uint32_t tokens);
    // `index` was zeroed when it was allocated.
    void (*index)(const gpw_read_plan_t *plan, const gpw_read_rows_t *rows, uint8_t *index);
    // Writes the chosen tokens, ascending; returns how many: about the budget.
    uint32_t (*choose)(const gpw_reading_t *reading, uint32_t *tokens);
    // NULL: what is not chosen is not attended to. Else attention over it, which leaves the logits of
    // all tokens in reading->apart, where `choose` finds them. As they come too late for the row
    // itself, what is chosen by one row is read by the next.
    void (*scan)(const gpw_read_scan_t *scan);
} gpw_reader_t;

// Each in the file of its name, with its formula and where it comes from.
extern const gpw_reader_t gpw_read_page_bounds;     // Quest
extern const gpw_reader_t gpw_read_clusters;        // ClusterKV
extern const gpw_reader_t gpw_read_two_dimensional; // RocketKV's second stage
extern const gpw_reader_t gpw_read_low_bits;        // SpeCache

// How many of `tokens` held tokens a KV head reads in a layer: read_percent, at least read_tokens; all
// in the first whole_layers.
uint32_t gpw_read_budget(const gpw_compressor_params_t *params, uint32_t layer, uint32_t tokens);

// ---- For who holds tokens (read.c) -------------------------------------------------------------

// AS_ERR_UNSUPPORTED when params->reader, its parameters and pieces of so many tokens do not fit.
as_status_t gpw_read_plan(const gpw_segment_options_t *options, uint32_t piece_tokens,
                          uint32_t tokens_max, gpw_read_plan_t *plan_p) AS_MUST_USE;
// Of the indices of `tokens` tokens of one KV head: what its pieces have one behind the other.
size_t gpw_read_index_bytes(const gpw_read_plan_t *plan, uint32_t tokens);

// One session's reading: what its steps have chosen, and what they choose in. Not shared; one
// attend at a time.
typedef struct gpw_read gpw_read_t;

as_status_t gpw_read_open(const gpw_read_plan_t *plan, const krn_ops_t *ops,
                          gpw_read_t **read_p) AS_MUST_USE;
void gpw_read_close(gpw_read_t *read); // NULL is fine
uint64_t gpw_read_bytes(const gpw_read_plan_t *plan);
// The pieces of a KV head, for the holder to fill before it attends; room for all that
// plan->tokens_max tokens make.
gpw_read_piece_t *gpw_read_pieces(gpw_read_t *read, uint32_t kv_head);
// Folds the attention over what is chosen of `tokens` held tokens of each KV head into args->out,
// which covers earlier ones or is clear.
void gpw_read_attend(gpw_read_t *read, uint32_t tokens, const gpw_segment_attend_t *args);
// What the last row that was attended with has read exactly of one KV head, ascending.
const uint32_t *gpw_read_chosen(const gpw_read_t *read, uint32_t kv_head, uint32_t *count_p);

// ---- For readers -------------------------------------------------------------------------------

static inline uint32_t gpw_read_piece_count(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (tokens + plan->piece_tokens - 1) / plan->piece_tokens;
}

// Tokens of piece `piece`.
static inline uint32_t gpw_read_piece_size(const gpw_reading_t *reading, uint32_t piece)
{
    uint32_t left = reading->tokens - piece * reading->plan->piece_tokens;
    return left < reading->plan->piece_tokens ? left : reading->plan->piece_tokens;
}

static inline uint32_t gpw_read_group(const gpw_read_plan_t *plan)
{
    return plan->shape.q_heads / plan->shape.kv_heads;
}

// Asks for memory that is read soon.
static inline void gpw_read_ahead(const void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch((const char *)memory + at);
    }
}

// Pages of params->page_tokens tokens, the last of a piece may be shorter (pages.c).
uint32_t gpw_read_page_count(const gpw_read_plan_t *plan, uint32_t tokens);
// The least and the greatest of each channel: most[dim], least[dim].
void gpw_read_page_bounds_of(const krn_f16 *k, uint32_t tokens, uint32_t dim, krn_f16 *most,
                             krn_f16 *least);
// Fills reading->sizes, where a piece has `stride` places; returns how many of them all have.
uint32_t gpw_read_page_sizes(const gpw_reading_t *reading, uint32_t stride);
// Writes the tokens that reading->taken says, a page's first ones; returns how many.
uint32_t gpw_read_page_tokens(const gpw_reading_t *reading, uint32_t stride, uint32_t *tokens);

#endif
