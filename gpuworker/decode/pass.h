// SPDX-License-Identifier: Apache-2.0
// One forward pass of consecutive positions of one session: what prefill, drafts, recompute and
// verification have in common.
//
// A step of a request begins a pass and hands it to the batch (GPW_TURN_COMPUTE), which carries it
// through the layers beside the passes of other sessions and calls its kind's functions. Between
// layers a pass over the full cache may have to wait for the swap; then it leaves the batch, and
// the swap's news bring the request a turn, which hands the pass back.
#ifndef GPW_PASS_H
#define GPW_PASS_H

#include <stdbool.h>
#include <stdint.h>
#include "gpuworker/model/forward.h"
#include "gpuworker/worker.h"

struct gpw_request;

#define GPW_DRAFT_ROWS_MAX (1 + GPW_LOOKUP_MAX) // of a pass on the resident cache

typedef enum gpw_turn {
    GPW_TURN_WAIT,   // nothing to do before something wakes the request
    GPW_TURN_AGAIN,  // something was done, or the step changed
    GPW_TURN_COMPUTE // its pass is ready: the batch has it until it is done or must wait
} gpw_turn_t;

// A forward pass's residual stream, one of the engine's fixed number.
typedef struct gpw_forward_slot {
    gpw_forward_t *forward;
    int32_t *positions; // [rows_max]
    uint32_t rows_max;
    bool used;
} gpw_forward_slot_t;

// Scratch of one session's attention in one step. With the engine's pool for all threads, or with a
// pool of one for each of them.
typedef struct gpw_attend_scratch {
    krn_pool_t *pool;
    void *attention;    // krn_attention_scratch_bytes of any number of rows that a step has
    void *segment;      // gpw_segment_scratch_bytes of GPW_DRAFT_ROWS_MAX
    float *lse;         // [rows of a step][q_heads]
    float *partials[2]; // of GPW_DRAFT_ROWS_MAX: the total, one run of the tail
    krn_page_t *pages;  // [blocks of the longest context]
} gpw_attend_scratch_t;

// Rows [row0, row0 + rows) of a pass in a layer: arguments and result of attention, as
// gpw_attend_fn has them.
typedef struct gpw_pass_rows {
    uint32_t layer, row0, rows;
    const float *q;
    const krn_f16 *k, *v;
    float *out;
    const gpw_attend_scratch_t *scratch;
} gpw_pass_rows_t;

typedef enum gpw_pass_logits { GPW_LOGITS_NONE, GPW_LOGITS_LAST, GPW_LOGITS_ALL } gpw_pass_logits_t;

typedef struct gpw_pass_kind {
    bool full;                // over the full cache: waits for the swap
    gpw_pass_logits_t logits; // of which rows
    void (*attend)(struct gpw_request *request, const gpw_pass_rows_t *rows);
    // After each layer, while its pages are still there; may be NULL.
    void (*after_layer)(struct gpw_request *request, uint32_t layer);
    // All layers are done; logits are [count][vocab] of rows [pass.logits_row, + count). Of
    // GPW_LOGITS_ALL a first part comes; gpw_pass_more_logits asks for the next.
    gpw_turn_t (*complete)(struct gpw_request *request, const float *logits, uint32_t count);
    // The swap failed; `hole` is the first missing block of the chain. NULL unless `full`.
    gpw_turn_t (*failed)(struct gpw_request *request, uint32_t hole);
} gpw_pass_kind_t;

typedef struct gpw_pass {
    const gpw_pass_kind_t *kind;
    gpw_forward_slot_t *slot;
    uint32_t position, rows;            // first position
    uint32_t logits_row, logits_wanted; // rows whose logits it waits for once all layers are done
    bool streams;                       // the swap brings its layers while it runs
    double
        busy_us; // device time so far: its own attention, and of what it shared the part of its rows
    double attend_us; // of this, attention
} gpw_pass_t;

// Tokens are request->tokens[position ...]. For a full pass the blocks must cover the rows. Returns
// GPW_TURN_COMPUTE.
gpw_turn_t gpw_pass_begin(struct gpw_request *request, const gpw_pass_kind_t *kind,
                          gpw_forward_slot_t *slot, uint32_t position, uint32_t rows);
// The turn of a request whose pass is in progress and not in the batch.
gpw_turn_t gpw_pass_turn(struct gpw_request *request);
void gpw_pass_end(struct gpw_request *request);
// From `complete`, after `count` rows: asks for those of the next. False: there are none.
bool gpw_pass_more_logits(struct gpw_request *request, uint32_t count);

// For the batch: whether the present layer may run. False: the pass leaves the batch.
bool gpw_pass_ready(struct gpw_request *request);
void gpw_pass_layer_done(struct gpw_request *request, uint32_t layer);

// The `attend` of all full passes.
void gpw_pass_attend_full(struct gpw_request *request, const gpw_pass_rows_t *rows);
// One layer of a block, wherever it lies.
const uint8_t *gpw_pass_extent(const struct gpw_request *request, uint32_t block, uint32_t layer);

#endif
