// SPDX-License-Identifier: Apache-2.0
// The forward pass, one layer of one batch of rows at a time.
//
// A forward (a pass in progress) carries `rows` (token at position) of one session through the
// layers. A step takes rows of one or several forwards that are at the same layer: each matrix is
// read once for all of them. So a pass can be suspended between layers (until the extents of the
// next one have arrived), and a layer of many rows can be done in several steps. Rows never
// influence each other except through attention: the bits of a row do not depend on what else is in
// its step.
//
// A step: norm, q k v (+ bias, norm), RoPE, K and V rounded to f16 once, attention by the caller
// (which stores the new K and V where they belong, then attends), o, residual, norm, gate up,
// SwiGLU, down, residual. A forward's rows are taken ascending, so that row r's attention may read
// the K and V of all rows before it in the pass and of itself.
#ifndef GPW_FORWARD_H
#define GPW_FORWARD_H

#include "gpuworker/model/model.h"

#define GPW_FORWARD_STEP_ROWS 256u // most rows of a step: more share no better, and need scratch

typedef struct gpw_workspace gpw_workspace_t; // scratch of one step
typedef struct gpw_forward gpw_forward_t;     // a pass in progress: its residual stream

// The next `rows` rows of a forward in its present layer.
typedef struct gpw_forward_part {
    gpw_forward_t *forward;
    uint32_t rows;
} gpw_forward_part_t;

// One row of a forward that has done all layers.
typedef struct gpw_forward_row {
    gpw_forward_t *forward;
    uint32_t row;
} gpw_forward_row_t;

// Attention of a step's rows: q [rows][q_heads][dim] f32 after RoPE; k, v [rows][kv_heads][dim] f16;
// out [rows][q_heads][dim]; the rows of all parts one after another. Must store k and v of these
// rows before it attends. row0 is the first part's first row in its pass.
typedef void (*gpw_attend_fn)(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows,
                              const float *q, const krn_f16 *k, const krn_f16 *v, float *out);

// Scratch for steps of up to rows_max rows (at most GPW_FORWARD_STEP_ROWS); one step at a time.
as_status_t gpw_workspace_alloc(const gpw_model_t *model, const krn_ops_t *ops, krn_pool_t *pool,
                                uint32_t rows_max, gpw_workspace_t **workspace_p) AS_MUST_USE;
void gpw_workspace_free(gpw_workspace_t *workspace); // NULL is fine
uint32_t gpw_workspace_rows_max(const gpw_workspace_t *workspace);

// For passes of up to rows_max rows, one at a time; computed in `workspace`, which must outlive it.
as_status_t gpw_forward_alloc(gpw_workspace_t *workspace, uint32_t rows_max,
                              gpw_forward_t **forward_p) AS_MUST_USE;
void gpw_forward_free(gpw_forward_t *forward); // NULL is fine
// Begins a pass: looks up the embeddings. Abandons a pass in progress.
void gpw_forward_begin(gpw_forward_t *forward, const int32_t *tokens, const int32_t *positions,
                       uint32_t rows);
uint32_t gpw_forward_next_layer(const gpw_forward_t *forward); // == model->layers when all are done
uint32_t gpw_forward_next_row(const gpw_forward_t *forward);   // of that layer
uint32_t gpw_forward_rows_left(const gpw_forward_t *forward);  // of that layer, from next_row on

// The residual stream of one of its rows, [embed]; behind the layers that are done.
const float *gpw_forward_stream(const gpw_forward_t *forward, uint32_t row);

// One step: the parts are of different forwards, all at the same layer, of rows_max rows in all at
// most.
void gpw_forward_step(gpw_workspace_t *workspace, const gpw_forward_part_t *parts, uint32_t count,
                      gpw_attend_fn attend, void *ctx);
// What is left of a forward's present layer, in as many steps as it needs.
void gpw_forward_layer(gpw_forward_t *forward, gpw_attend_fn attend, void *ctx);
// The present layer of a whole pass, whose attention is computed elsewhere meanwhile, in two halves; other
// forwards may be computed in between. The first gives queries, keys and values, a step's rows at a time,
// which are the workspace's until `take` returns. The second takes the attention of all rows,
// [rows][q_heads][dim].
typedef struct gpw_forward_rows {
    uint32_t row0, rows;
    const float *q;
    const krn_f16 *k, *v;
} gpw_forward_rows_t;
typedef void (*gpw_take_fn)(void *ctx, const gpw_forward_rows_t *rows);
void gpw_forward_layer_begin(gpw_forward_t *forward, gpw_take_fn take, void *ctx);
void gpw_forward_layer_end(gpw_forward_t *forward, const float *attention);
// Logits [count][vocab] of rows of any forwards.
void gpw_forward_logits(gpw_workspace_t *workspace, const gpw_forward_row_t *rows, uint32_t count,
                        float *logits);

#endif
