// SPDX-License-Identifier: Apache-2.0
// One pass of rows through the layers, in chunks of bounded scratch.
//
// The residual stream of all rows stays for the whole pass; everything else is scratch of one
// chunk. The work between two products is done row by row, spread over the pool when there are rows
// enough to pay for waking it: a row's bits depend on that row alone either way.
#include "gpuworker/model/forward.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define FORWARD_MAGIC 0x64777266775f7067ull // "gp_wfrwd"
#define ROWS_PER_TASK 8u // about 50 us of a 576-wide row's work: well above a wake-up
#define SCRATCH_ALIGN 64u

struct gpw_forward {
    uint64_t magic;
    const gpw_model_t *model;
    const krn_ops_t *ops;
    krn_pool_t *pool;
    uint32_t rows_max;
    uint32_t rows; // of the pass
    uint32_t next_layer;
    int32_t *positions; // [rows_max]
    float *stream;      // [rows_max][embed], the residual stream
    void *scratch;      // all below, of one chunk
    float *norm;        // [chunk][embed]
    float *qkv;         // [chunk][q + 2 kv]
    float *q;           // [chunk][q]
    krn_f16 *k, *v;     // [chunk][kv]
    float *attention;   // [chunk][q]
    float *branch;      // [chunk][embed], what a branch adds to the stream
    float *gate_up;     // [chunk][2 ffn]
    float *hidden;      // [chunk][ffn]
};

// One chunk of rows of one layer, or of the logits.
typedef struct chunk {
    gpw_forward_t *forward;
    const gpw_layer_t *layer;
    uint32_t row0; // in the pass
    uint32_t rows;
    const uint32_t *wanted; // logits: the rows of the pass, else NULL
    void (*row)(const struct chunk *chunk, uint32_t row);
} chunk_t;

static uint32_t chunk_rows(uint32_t rows_max)
{
    return rows_max < GPW_FORWARD_CHUNK_ROWS ? rows_max : GPW_FORWARD_CHUNK_ROWS;
}

static uint32_t q_width(const gpw_model_t *model)
{
    return model->q_heads * model->head_dim;
}

static uint32_t kv_width(const gpw_model_t *model)
{
    return model->kv_heads * model->head_dim;
}

static char *carve(char **at_p, size_t bytes)
{
    char *memory = *at_p;
    *at_p += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return memory;
}

// Sets the scratch pointers from `base` and returns the bytes used.
static size_t lay_out(gpw_forward_t *forward, char *base)
{
    const gpw_model_t *model = forward->model;
    size_t rows = chunk_rows(forward->rows_max);
    size_t q = q_width(model), kv = kv_width(model);
    char *at = base;
    forward->norm = (float *)carve(&at, rows * model->embed * sizeof(float));
    forward->qkv = (float *)carve(&at, rows * (q + 2 * kv) * sizeof(float));
    forward->q = (float *)carve(&at, rows * q * sizeof(float));
    forward->k = (krn_f16 *)carve(&at, rows * kv * sizeof(krn_f16));
    forward->v = (krn_f16 *)carve(&at, rows * kv * sizeof(krn_f16));
    forward->attention = (float *)carve(&at, rows * q * sizeof(float));
    forward->branch = (float *)carve(&at, rows * model->embed * sizeof(float));
    forward->gate_up = (float *)carve(&at, rows * 2 * model->ffn * sizeof(float));
    forward->hidden = (float *)carve(&at, rows * model->ffn * sizeof(float));
    return (size_t)(at - base);
}

as_status_t gpw_forward_alloc(const gpw_model_t *model, const krn_ops_t *ops, krn_pool_t *pool,
                              uint32_t rows_max, gpw_forward_t **forward_p)
{
    if (rows_max == 0 || rows_max > model->context_max) {
        return AS_ERR_INVALID;
    }
    gpw_forward_t *forward = as_mem_zalloc(1, sizeof(*forward));
    if (!forward) {
        return AS_ERR_NO_MEMORY;
    }
    forward->magic = FORWARD_MAGIC;
    forward->model = model;
    forward->ops = ops;
    forward->pool = pool;
    forward->rows_max = rows_max;
    forward->next_layer = model->layers;
    static char origin[1];
    size_t scratch_bytes = lay_out(forward, origin);
    forward->positions = as_mem_zalloc(rows_max, sizeof(int32_t));
    forward->stream =
        as_mem_aligned(SCRATCH_ALIGN, (size_t)rows_max * model->embed * sizeof(float));
    forward->scratch = as_mem_aligned(SCRATCH_ALIGN, scratch_bytes);
    if (!forward->positions || !forward->stream || !forward->scratch) {
        gpw_forward_free(forward);
        return AS_ERR_NO_MEMORY;
    }
    lay_out(forward, forward->scratch);
    *forward_p = forward;
    return AS_OK;
}

void gpw_forward_free(gpw_forward_t *forward)
{
    if (!forward) {
        return;
    }
    AS_ASSERT(forward->magic == FORWARD_MAGIC);
    forward->magic = 0;
    as_mem_free(forward->scratch);
    as_mem_free(forward->stream);
    as_mem_free(forward->positions);
    as_mem_free(forward);
}

void gpw_forward_begin(gpw_forward_t *forward, const int32_t *tokens, const int32_t *positions,
                       uint32_t rows)
{
    const gpw_model_t *model = forward->model;
    AS_ASSERT(forward->magic == FORWARD_MAGIC);
    AS_ASSERT(rows > 0 && rows <= forward->rows_max);
    forward->rows = rows;
    forward->next_layer = 0;
    for (uint32_t row = 0; row < rows; row++) {
        AS_ASSERT(tokens[row] >= 0 && (uint32_t)tokens[row] < model->vocab);
        AS_ASSERT(positions[row] >= 0 && (uint32_t)positions[row] < model->rope.position_count);
        forward->positions[row] = positions[row];
        krn_weight_row(&model->embedding, (uint32_t)tokens[row],
                       forward->stream + (size_t)row * model->embed);
    }
}

uint32_t gpw_forward_next_layer(const gpw_forward_t *forward)
{
    return forward->next_layer;
}

static void run_task(void *ctx, uint32_t index)
{
    const chunk_t *chunk = ctx;
    uint32_t end = (index + 1) * ROWS_PER_TASK;
    for (uint32_t row = index * ROWS_PER_TASK; row < end && row < chunk->rows; row++) {
        chunk->row(chunk, row);
    }
}

static void for_rows(chunk_t *chunk, void (*row)(const chunk_t *chunk, uint32_t row))
{
    chunk->row = row;
    uint32_t tasks = (chunk->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    if (tasks == 1) {
        run_task(chunk, 0);
        return;
    }
    krn_pool_run(chunk->forward->pool, tasks, run_task, chunk);
}

static float *stream_row(const chunk_t *chunk, uint32_t row)
{
    return chunk->forward->stream + (size_t)(chunk->row0 + row) * chunk->forward->model->embed;
}

static void norm_attention(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    const gpw_model_t *model = forward->model;
    forward->ops->rmsnorm(stream_row(chunk, row), chunk->layer->attention_norm, 1, model->embed,
                          model->norm_eps, forward->norm + (size_t)row * model->embed);
}

// Bias, head norms and rotation; q is gathered, K and V are rounded to f16, once.
static void finish_qkv(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    const gpw_model_t *model = forward->model;
    const gpw_layer_t *layer = chunk->layer;
    const krn_ops_t *ops = forward->ops;
    uint32_t dim = model->head_dim;
    size_t q_count = q_width(model), kv_count = kv_width(model);
    float *q = forward->qkv + row * (q_count + 2 * kv_count);
    float *k = q + q_count;
    float *v = k + kv_count;
    if (layer->qkv_bias) {
        ops->add(q, layer->qkv_bias, q_count + 2 * kv_count);
    }
    if (layer->q_norm) {
        ops->rmsnorm(q, layer->q_norm, model->q_heads, dim, model->norm_eps, q);
        ops->rmsnorm(k, layer->k_norm, model->kv_heads, dim, model->norm_eps, k);
    }
    const int32_t *position = &forward->positions[chunk->row0 + row];
    ops->rope(q, 1, model->q_heads, dim, &model->rope, position);
    ops->rope(k, 1, model->kv_heads, dim, &model->rope, position);
    memcpy(forward->q + row * q_count, q, q_count * sizeof(float));
    ops->f32_to_f16(k, kv_count, forward->k + row * kv_count);
    ops->f32_to_f16(v, kv_count, forward->v + row * kv_count);
}

static void add_attention(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    const gpw_model_t *model = forward->model;
    float *stream = stream_row(chunk, row);
    forward->ops->add(stream, forward->branch + (size_t)row * model->embed, model->embed);
    forward->ops->rmsnorm(stream, chunk->layer->ffn_norm, 1, model->embed, model->norm_eps,
                          forward->norm + (size_t)row * model->embed);
}

static void activate(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    size_t ffn = forward->model->ffn;
    const float *gate = forward->gate_up + row * 2 * ffn;
    forward->ops->swiglu(gate, gate + ffn, ffn, forward->hidden + row * ffn);
}

static void add_ffn(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    uint32_t embed = forward->model->embed;
    forward->ops->add(stream_row(chunk, row), forward->branch + (size_t)row * embed, embed);
}

static void layer_chunk(chunk_t *chunk, gpw_attend_fn attend, void *ctx)
{
    gpw_forward_t *forward = chunk->forward;
    const gpw_layer_t *layer = chunk->layer;
    const krn_ops_t *ops = forward->ops;
    krn_pool_t *pool = forward->pool;
    uint32_t rows = chunk->rows;
    for_rows(chunk, norm_attention);
    ops->matmul(pool, &layer->qkv, forward->norm, rows, forward->qkv);
    for_rows(chunk, finish_qkv);
    attend(ctx, forward->next_layer, chunk->row0, rows, forward->q, forward->k, forward->v,
           forward->attention);
    ops->matmul(pool, &layer->o, forward->attention, rows, forward->branch);
    for_rows(chunk, add_attention);
    ops->matmul(pool, &layer->gate_up, forward->norm, rows, forward->gate_up);
    for_rows(chunk, activate);
    ops->matmul(pool, &layer->down, forward->hidden, rows, forward->branch);
    for_rows(chunk, add_ffn);
}

void gpw_forward_layer(gpw_forward_t *forward, gpw_attend_fn attend, void *ctx)
{
    AS_ASSERT(forward->magic == FORWARD_MAGIC);
    AS_ASSERT(forward->next_layer < forward->model->layers);
    uint32_t step = chunk_rows(forward->rows_max);
    for (uint32_t row0 = 0; row0 < forward->rows; row0 += step) {
        uint32_t rows = forward->rows - row0 < step ? forward->rows - row0 : step;
        chunk_t chunk = {.forward = forward,
                         .layer = &forward->model->layer[forward->next_layer],
                         .row0 = row0,
                         .rows = rows};
        layer_chunk(&chunk, attend, ctx);
    }
    forward->next_layer++;
}

static void norm_output(const chunk_t *chunk, uint32_t row)
{
    gpw_forward_t *forward = chunk->forward;
    const gpw_model_t *model = forward->model;
    const float *stream = forward->stream + (size_t)chunk->wanted[row] * model->embed;
    forward->ops->rmsnorm(stream, model->output_norm, 1, model->embed, model->norm_eps,
                          forward->norm + (size_t)row * model->embed);
}

void gpw_forward_logits(gpw_forward_t *forward, const uint32_t *rows, uint32_t count, float *logits)
{
    const gpw_model_t *model = forward->model;
    AS_ASSERT(forward->magic == FORWARD_MAGIC);
    AS_ASSERT(forward->next_layer == model->layers);
    uint32_t step = chunk_rows(forward->rows_max);
    for (uint32_t i = 0; i < count; i++) {
        AS_ASSERT(rows[i] < forward->rows);
    }
    for (uint32_t first = 0; first < count; first += step) {
        chunk_t chunk = {.forward = forward,
                         .rows = count - first < step ? count - first : step,
                         .wanted = rows + first};
        for_rows(&chunk, norm_output);
        forward->ops->matmul(forward->pool, &model->output, forward->norm, chunk.rows,
                             logits + (size_t)first * model->vocab);
    }
}
