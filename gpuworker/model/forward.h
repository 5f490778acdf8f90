// SPDX-License-Identifier: Apache-2.0
// The forward pass, one layer at a time.
//
// A pass carries `rows` (token at position) of one or several sessions through the layers. The
// engine runs layer l when the attention of layer l can be computed (its extents have arrived), so
// a pass can be suspended between layers. Rows never influence each other except through attention:
// the bits of a row do not depend on the batch.
//
// Per layer and chunk of rows: norm, q k v (+ bias, norm), RoPE, K and V rounded to f16 once,
// attention by the caller (which stores the new K and V where they belong, then attends), o,
// residual, norm, gate up, SwiGLU, down, residual. Rows are taken in chunks ascending, so that row
// r's attention may read the K and V of all rows before it in the pass and of itself.
#ifndef GPW_FORWARD_H
#define GPW_FORWARD_H

#include "gpuworker/model/model.h"

#define GPW_FORWARD_CHUNK_ROWS 256u // rows of one chunk: bounds scratch memory

typedef struct gpw_forward gpw_forward_t;

// Attention of one chunk: rows [row0, row0 + rows) of the pass. Must store k and v of these rows
// before it attends. q [rows][q_heads][dim] f32 after RoPE; k, v [rows][kv_heads][dim] f16; out
// [rows][q_heads][dim].
typedef void (*gpw_attend_fn)(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows,
                              const float *q, const krn_f16 *k, const krn_f16 *v, float *out);

// Scratch for passes of up to rows_max rows; one pass at a time.
as_status_t gpw_forward_alloc(const gpw_model_t *model, const krn_ops_t *ops, krn_pool_t *pool,
                              uint32_t rows_max, gpw_forward_t **forward_p) AS_MUST_USE;
void gpw_forward_free(gpw_forward_t *forward);
// Begins a pass: looks up the embeddings. Abandons a pass in progress.
void gpw_forward_begin(gpw_forward_t *forward, const int32_t *tokens, const int32_t *positions,
                       uint32_t rows);
// Runs the next layer (the first call: layer 0).
void gpw_forward_layer(gpw_forward_t *forward, gpw_attend_fn attend, void *ctx);
uint32_t gpw_forward_next_layer(const gpw_forward_t *forward); // == model->layers when all are done
// After the last layer: logits [count][vocab] of the given rows of the pass.
void gpw_forward_logits(gpw_forward_t *forward, const uint32_t *rows, uint32_t count,
                        float *logits);

#endif
