// SPDX-License-Identifier: Apache-2.0
// Selectors: which tokens of a segment survive.
//
// A selector looks at one layer at a time and gives each KV head its tokens, ascending. It scores
// them and leaves the rest to gpw_select_scored, which keeps the greatest, of equal ones the lower
// position; or it decides by itself. Query heads that share a KV head choose together: else the
// cache of a grouped model would be as many times larger.
//
// What a selector may look at decides what becomes of its choice. One that looks at keys and values
// alone chooses the same for every session on a chain: with kept_blocks.h it chooses within each
// block, and sealed blocks are shared and stored. One that looks at queries (`observes`) makes
// segments of one session (kept_prompt.h). The functions that a row of the table names refuse the
// other kind.
//
// Keys are taken as the cache has them, rotated by their absolute positions, and so they stay: what
// is kept is attended to as if the rest had never been there, and the next token's position is that
// of all tokens.
#ifndef GPW_SELECTOR_H
#define GPW_SELECTOR_H

#include "gpuworker/resident/compressor.h"

// What a choice works on.
typedef struct gpw_select_scratch {
    // Products of queries with some keys at a time (window_scores.h); NULL for one that does not
    // look at queries.
    krn_f16 *keys; // in panels
    float *q;      // [rows][dim]: of one KV head
    float *lse;    // [rows]
    float *logits; // [rows][chunk]
    // For all.
    uint32_t stride;   // of scores and spare: tokens, rounded up
    float *scores;     // [kv_heads][stride]
    float *spare;      // [query heads of a KV head][stride]
    float *unpacked;   // [block tokens][dim]
    float *directions; // [2][dim]
} gpw_select_scratch_t;

// Where that lies in `memory` (NULL: only counts), for choices among pages of up to `tokens_max`
// tokens; returns its bytes.
size_t gpw_select_carve(const as_shape_t *shape, uint32_t tokens_max, bool observes, void *memory,
                        gpw_select_scratch_t *scratch_p);

// One layer to choose from.
typedef struct gpw_selection {
    const gpw_compressor_params_t *params;
    const as_shape_t *shape;
    const krn_ops_t *ops;
    const krn_page_t *pages; // by index
    uint32_t tokens;         // of them it chooses among the first
    uint32_t sinks;          // of these the first are kept whatever they score
    uint32_t budget;         // tokens that a KV head keeps, in the mean; sinks <= budget <= tokens
    const gpw_segment_observe_t *seen; // NULL where queries are not looked at
    const gpw_select_scratch_t *scratch;
} gpw_selection_t;

// What was chosen: the positions of KV head 0, ascending, behind them those of head 1, and so on.
typedef struct gpw_kept {
    uint32_t *positions; // room for kv_heads * budget
    uint32_t *counts;    // [kv_heads]
} gpw_kept_t;

typedef struct gpw_selector {
    const char *name;
    bool observes;   // looks at the prompt's last queries
    bool data_sized; // may keep fewer than the budget
    // NULL: chooses by whole blocks as they are sealed (exact.h).
    void (*choose)(const gpw_selection_t *choice, gpw_kept_t *kept);
} gpw_selector_t;

// Each in the file of its name, with its formula and where it comes from.
extern const gpw_selector_t gpw_select_positions; // StreamingLLM (exact.c)
extern const gpw_selector_t gpw_select_norms;     // Knorm
extern const gpw_selector_t gpw_select_key_difference;
extern const gpw_selector_t gpw_select_expected;   // Expected Attention
extern const gpw_selector_t gpw_select_window;     // SnapKV
extern const gpw_selector_t gpw_select_last_query; // TOVA
extern const gpw_selector_t gpw_select_cumulative; // H2O
extern const gpw_selector_t gpw_select_norm_stop;  // DBudgetKV

// ---- Budgets (budgets.c) -----------------------------------------------------------------------

// How many of `tokens` tokens a KV head of a layer keeps, in the mean over the layer's heads:
// ceil(tokens * keep_percent / 100) in the mean over the layers, where params->layer_slope is 0 in
// each of them.
uint32_t gpw_select_budget(const gpw_compressor_params_t *params, uint32_t layers, uint32_t layer,
                           uint32_t tokens);
// Keeps what scores most. scratch->scores has [kv_heads][tokens]; anything but NaN. The heads of
// a layer keep choice->budget tokens each, or share these out (params->head_floor_percent).
void gpw_select_scored(const gpw_selection_t *choice, gpw_kept_t *kept);

// Keys (part 0) or values (part 1) of one KV head and page to scratch->unpacked: f32 [tokens][dim].
void gpw_select_unpack(const gpw_selection_t *choice, uint32_t part, uint32_t kv_head,
                       uint32_t page);

// Of `count` elements, a multiple of 16.
static inline float gpw_select_dot(const float *a, const float *b, uint32_t count)
{
    float lane[16] = {0}, sum = 0;
    for (uint32_t c = 0; c < count; c += 16) {
        for (uint32_t i = 0; i < 16; i++) {
            lane[i] += a[c + i] * b[c + i];
        }
    }
    for (uint32_t i = 0; i < 16; i++) {
        sum += lane[i];
    }
    return sum;
}

#endif
