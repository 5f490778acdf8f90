// SPDX-License-Identifier: Apache-2.0
// Steps of rows through the layers, in scratch of bounded size.
//
// The residual stream of a forward's rows stays for its whole pass; everything else is scratch of
// one step. A step's rows lie wherever their forwards keep them, so it begins by noting where. The
// work between two products is done row by row, spread over the pool when there are rows enough to
// pay for waking it: a row's bits depend on that row alone either way.
#include "gpuworker/model/forward.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define FORWARD_MAGIC 0x64777266775f7067ull // "gp_wfrwd"
#define ROWS_PER_TASK 8u // about 50 us of a 576-wide row's work: well above a wake-up
#define SCRATCH_ALIGN 64u

struct gpw_workspace {
    const gpw_model_t *model;
    const krn_ops_t *ops;
    krn_pool_t *pool;
    uint32_t rows_max;
    float *stream[GPW_FORWARD_STEP_ROWS]; // of each row of the step
    int32_t position[GPW_FORWARD_STEP_ROWS];
    void *scratch;    // all below
    float *norm;      // [rows_max][embed]
    float *qkv;       // [rows_max][q + 2 kv]
    float *q;         // [rows_max][q]
    krn_f16 *k, *v;   // [rows_max][kv]
    float *attention; // [rows_max][q]
    float *branch;    // [rows_max][embed], what a branch adds to the stream
    float *gate_up;   // [rows_max][2 ffn]
    float *hidden;    // [rows_max][ffn]
};

struct gpw_forward {
    uint64_t magic;
    gpw_workspace_t *workspace;
    uint32_t rows_max;
    uint32_t rows; // of the pass
    uint32_t next_layer, next_row;
    int32_t *positions; // [rows_max]
    float *stream;      // [rows_max][embed], the residual stream
};

// The rows of one step in one layer, or of the logits.
typedef struct step {
    gpw_workspace_t *workspace;
    const gpw_layer_t *layer;
    uint32_t rows;
    void (*row)(const struct step *step, uint32_t row);
} step_t;

static uint32_t q_width(const gpw_model_t *model)
{
    return model->q_heads * model->head_dim;
}

static uint32_t kv_width(const gpw_model_t *model)
{
    return model->kv_heads * model->head_dim;
}

// ---- Life --------------------------------------------------------------------------------------

static char *carve(char **at_p, size_t bytes)
{
    char *memory = *at_p;
    *at_p += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return memory;
}

// Sets the scratch pointers from `base` and returns the bytes used.
static size_t lay_out(gpw_workspace_t *w, char *base)
{
    const gpw_model_t *model = w->model;
    size_t rows = w->rows_max;
    size_t q = q_width(model), kv = kv_width(model);
    char *at = base;
    w->norm = (float *)carve(&at, rows * model->embed * sizeof(float));
    w->qkv = (float *)carve(&at, rows * (q + 2 * kv) * sizeof(float));
    w->q = (float *)carve(&at, rows * q * sizeof(float));
    w->k = (krn_f16 *)carve(&at, rows * kv * sizeof(krn_f16));
    w->v = (krn_f16 *)carve(&at, rows * kv * sizeof(krn_f16));
    w->attention = (float *)carve(&at, rows * q * sizeof(float));
    w->branch = (float *)carve(&at, rows * model->embed * sizeof(float));
    w->gate_up = (float *)carve(&at, rows * 2 * model->ffn * sizeof(float));
    w->hidden = (float *)carve(&at, rows * model->ffn * sizeof(float));
    return (size_t)(at - base);
}

as_status_t gpw_workspace_alloc(const gpw_model_t *model, const krn_ops_t *ops, krn_pool_t *pool,
                                uint32_t rows_max, gpw_workspace_t **workspace_p)
{
    if (rows_max == 0 || rows_max > GPW_FORWARD_STEP_ROWS) {
        return AS_ERR_INVALID;
    }
    gpw_workspace_t *w = as_mem_zalloc(1, sizeof(*w));
    if (!w) {
        return AS_ERR_NO_MEMORY;
    }
    w->model = model;
    w->ops = ops;
    w->pool = pool;
    w->rows_max = rows_max;
    static char origin[1];
    w->scratch = as_mem_aligned(SCRATCH_ALIGN, lay_out(w, origin));
    if (!w->scratch) {
        gpw_workspace_free(w);
        return AS_ERR_NO_MEMORY;
    }
    lay_out(w, w->scratch);
    *workspace_p = w;
    return AS_OK;
}

void gpw_workspace_free(gpw_workspace_t *workspace)
{
    if (workspace) {
        as_mem_free(workspace->scratch);
        as_mem_free(workspace);
    }
}

uint32_t gpw_workspace_rows_max(const gpw_workspace_t *workspace)
{
    return workspace->rows_max;
}

as_status_t gpw_forward_alloc(gpw_workspace_t *workspace, uint32_t rows_max,
                              gpw_forward_t **forward_p)
{
    const gpw_model_t *model = workspace->model;
    if (rows_max == 0 || rows_max > model->context_max) {
        return AS_ERR_INVALID;
    }
    gpw_forward_t *forward = as_mem_zalloc(1, sizeof(*forward));
    if (!forward) {
        return AS_ERR_NO_MEMORY;
    }
    forward->magic = FORWARD_MAGIC;
    forward->workspace = workspace;
    forward->rows_max = rows_max;
    forward->next_layer = model->layers;
    forward->positions = as_mem_zalloc(rows_max, sizeof(int32_t));
    forward->stream =
        as_mem_aligned(SCRATCH_ALIGN, (size_t)rows_max * model->embed * sizeof(float));
    if (!forward->positions || !forward->stream) {
        gpw_forward_free(forward);
        return AS_ERR_NO_MEMORY;
    }
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
    as_mem_free(forward->stream);
    as_mem_free(forward->positions);
    as_mem_free(forward);
}

// ---- A pass ------------------------------------------------------------------------------------

void gpw_forward_begin(gpw_forward_t *forward, const int32_t *tokens, const int32_t *positions,
                       uint32_t rows)
{
    const gpw_model_t *model = forward->workspace->model;
    AS_ASSERT(forward->magic == FORWARD_MAGIC);
    AS_ASSERT(rows > 0 && rows <= forward->rows_max);
    forward->rows = rows;
    forward->next_layer = 0;
    forward->next_row = 0;
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

const float *gpw_forward_stream(const gpw_forward_t *forward, uint32_t row)
{
    AS_ASSERT(row < forward->rows);
    return forward->stream + (size_t)row * forward->workspace->model->embed;
}

uint32_t gpw_forward_next_row(const gpw_forward_t *forward)
{
    return forward->next_row;
}

uint32_t gpw_forward_rows_left(const gpw_forward_t *forward)
{
    return forward->rows - forward->next_row;
}

// ---- A step ------------------------------------------------------------------------------------

static void run_task(void *ctx, uint32_t index)
{
    const step_t *step = ctx;
    uint32_t end = (index + 1) * ROWS_PER_TASK;
    for (uint32_t row = index * ROWS_PER_TASK; row < end && row < step->rows; row++) {
        step->row(step, row);
    }
}

static void for_rows(step_t *step, void (*row)(const step_t *step, uint32_t row))
{
    step->row = row;
    uint32_t tasks = (step->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    if (tasks == 1) {
        run_task(step, 0);
        return;
    }
    krn_pool_run(step->workspace->pool, tasks, run_task, step);
}

static void norm_attention(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    const gpw_model_t *model = w->model;
    w->ops->rmsnorm(w->stream[row], step->layer->attention_norm, 1, model->embed, model->norm_eps,
                    w->norm + (size_t)row * model->embed);
}

// Bias, head norms and rotation; q is gathered, K and V are rounded to f16, once.
static void finish_qkv(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    const gpw_model_t *model = w->model;
    const gpw_layer_t *layer = step->layer;
    const krn_ops_t *ops = w->ops;
    uint32_t dim = model->head_dim;
    size_t q_count = q_width(model), kv_count = kv_width(model);
    float *q = w->qkv + row * (q_count + 2 * kv_count);
    float *k = q + q_count;
    float *v = k + kv_count;
    if (layer->qkv_bias) {
        ops->add(q, layer->qkv_bias, q_count + 2 * kv_count);
    }
    if (layer->q_norm) {
        ops->rmsnorm(q, layer->q_norm, model->q_heads, dim, model->norm_eps, q);
        ops->rmsnorm(k, layer->k_norm, model->kv_heads, dim, model->norm_eps, k);
    }
    const int32_t *position = &w->position[row];
    ops->rope(q, 1, model->q_heads, dim, &model->rope, position);
    ops->rope(k, 1, model->kv_heads, dim, &model->rope, position);
    memcpy(w->q + row * q_count, q, q_count * sizeof(float));
    ops->f32_to_f16(k, kv_count, w->k + row * kv_count);
    ops->f32_to_f16(v, kv_count, w->v + row * kv_count);
}

static void add_attention(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    const gpw_model_t *model = w->model;
    float *stream = w->stream[row];
    w->ops->add(stream, w->branch + (size_t)row * model->embed, model->embed);
    w->ops->rmsnorm(stream, step->layer->ffn_norm, 1, model->embed, model->norm_eps,
                    w->norm + (size_t)row * model->embed);
}

static void activate(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    size_t ffn = w->model->ffn;
    const float *gate = w->gate_up + row * 2 * ffn;
    w->ops->swiglu(gate, gate + ffn, ffn, w->hidden + row * ffn);
}

static void add_ffn(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    uint32_t embed = w->model->embed;
    w->ops->add(w->stream[row], w->branch + (size_t)row * embed, embed);
}

// Up to queries, keys and values.
static void before_attention(step_t *step)
{
    gpw_workspace_t *w = step->workspace;
    for_rows(step, norm_attention);
    w->ops->matmul(w->pool, &step->layer->qkv, w->norm, step->rows, w->qkv);
    for_rows(step, finish_qkv);
}

static void after_attention(step_t *step, const float *attention)
{
    gpw_workspace_t *w = step->workspace;
    const gpw_layer_t *layer = step->layer;
    const krn_ops_t *ops = w->ops;
    uint32_t rows = step->rows;
    ops->matmul(w->pool, &layer->o, attention, rows, w->branch);
    for_rows(step, add_attention);
    ops->matmul(w->pool, &layer->gate_up, w->norm, rows, w->gate_up);
    for_rows(step, activate);
    ops->matmul(w->pool, &layer->down, w->hidden, rows, w->branch);
    for_rows(step, add_ffn);
}

static void layer_rows(step_t *step, uint32_t row0, gpw_attend_fn attend, void *ctx)
{
    gpw_workspace_t *w = step->workspace;
    uint32_t number = (uint32_t)(step->layer - w->model->layer);
    before_attention(step);
    attend(ctx, number, row0, step->rows, w->q, w->k, w->v, w->attention);
    after_attention(step, w->attention);
}

// Notes where the part's rows are, behind `rows` others.
static uint32_t gather(gpw_workspace_t *w, const gpw_forward_part_t *part, uint32_t rows)
{
    const gpw_forward_t *forward = part->forward;
    AS_ASSERT(forward->magic == FORWARD_MAGIC && forward->workspace == w);
    AS_ASSERT(part->rows > 0 && part->rows <= forward->rows - forward->next_row);
    AS_ASSERT(part->rows <= w->rows_max - rows);
    for (uint32_t i = 0; i < part->rows; i++, rows++) {
        uint32_t row = forward->next_row + i;
        w->stream[rows] = forward->stream + (size_t)row * w->model->embed;
        w->position[rows] = forward->positions[row];
    }
    return rows;
}

static void advance(const gpw_forward_part_t *part)
{
    gpw_forward_t *forward = part->forward;
    forward->next_row += part->rows;
    if (forward->next_row == forward->rows) {
        forward->next_row = 0;
        forward->next_layer++;
    }
}

void gpw_forward_step(gpw_workspace_t *workspace, const gpw_forward_part_t *parts, uint32_t count,
                      gpw_attend_fn attend, void *ctx)
{
    AS_ASSERT(count > 0);
    uint32_t layer = parts[0].forward->next_layer;
    AS_ASSERT(layer < workspace->model->layers);
    step_t step = {.workspace = workspace, .layer = &workspace->model->layer[layer]};
    for (uint32_t i = 0; i < count; i++) {
        AS_ASSERT(parts[i].forward->next_layer == layer);
        step.rows = gather(workspace, &parts[i], step.rows);
    }
    layer_rows(&step, parts[0].forward->next_row, attend, ctx);
    for (uint32_t i = 0; i < count; i++) {
        advance(&parts[i]);
    }
}

void gpw_forward_layer(gpw_forward_t *forward, gpw_attend_fn attend, void *ctx)
{
    uint32_t most = forward->workspace->rows_max;
    uint32_t layer = forward->next_layer;
    while (forward->next_layer == layer) {
        uint32_t left = gpw_forward_rows_left(forward);
        gpw_forward_part_t part = {forward, left < most ? left : most};
        gpw_forward_step(forward->workspace, &part, 1, attend, ctx);
    }
}

// ---- A layer in two halves ---------------------------------------------------------------------

// As many of the layer's next rows as a step may have.
static step_t next_rows(const gpw_forward_t *forward)
{
    gpw_workspace_t *w = forward->workspace;
    AS_ASSERT(forward->next_layer < w->model->layers);
    uint32_t left = gpw_forward_rows_left(forward);
    const gpw_forward_part_t part = {(gpw_forward_t *)forward,
                                     left < w->rows_max ? left : w->rows_max};
    step_t step = {.workspace = w, .layer = &w->model->layer[forward->next_layer]};
    step.rows = gather(w, &part, 0);
    return step;
}

void gpw_forward_layer_begin(gpw_forward_t *forward, gpw_take_fn take, void *ctx)
{
    const gpw_workspace_t *w = forward->workspace;
    AS_ASSERT(forward->next_row == 0);
    while (forward->next_row < forward->rows) {
        step_t step = next_rows(forward);
        before_attention(&step);
        const gpw_forward_rows_t rows = {forward->next_row, step.rows, w->q, w->k, w->v};
        take(ctx, &rows);
        forward->next_row += step.rows;
    }
    forward->next_row = 0;
}

void gpw_forward_layer_end(gpw_forward_t *forward, const float *attention)
{
    uint32_t layer = forward->next_layer;
    AS_ASSERT(forward->next_row == 0);
    while (forward->next_layer == layer) {
        step_t step = next_rows(forward);
        after_attention(&step,
                        attention + forward->next_row * (size_t)q_width(step.workspace->model));
        advance(&(gpw_forward_part_t){forward, step.rows});
    }
}

// ---- Logits ------------------------------------------------------------------------------------

static void norm_output(const step_t *step, uint32_t row)
{
    gpw_workspace_t *w = step->workspace;
    const gpw_model_t *model = w->model;
    w->ops->rmsnorm(w->stream[row], model->output_norm, 1, model->embed, model->norm_eps,
                    w->norm + (size_t)row * model->embed);
}

void gpw_forward_logits(gpw_workspace_t *workspace, const gpw_forward_row_t *rows, uint32_t count,
                        float *logits)
{
    const gpw_model_t *model = workspace->model;
    for (uint32_t first = 0; first < count; first += workspace->rows_max) {
        step_t step = {.workspace = workspace};
        for (; step.rows < workspace->rows_max && first + step.rows < count; step.rows++) {
            const gpw_forward_t *forward = rows[first + step.rows].forward;
            uint32_t row = rows[first + step.rows].row;
            AS_ASSERT(forward->magic == FORWARD_MAGIC && forward->workspace == workspace);
            AS_ASSERT(forward->next_layer == model->layers && row < forward->rows);
            workspace->stream[step.rows] = forward->stream + (size_t)row * model->embed;
        }
        for_rows(&step, norm_output);
        workspace->ops->matmul(workspace->pool, &model->output, workspace->norm, step.rows,
                               logits + (size_t)first * model->vocab);
    }
}
