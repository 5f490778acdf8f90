// SPDX-License-Identifier: Apache-2.0
// Passes over passages of a text, as the model is and with layers that share.
#include "gpuworker/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/forward.h"

#define TOKENS GPW_CALIBRATE_PASSAGE_TOKENS

typedef struct pair {
    uint32_t layer, source;
    double distance;
} pair_t;

typedef struct calibrator {
    const gpw_calibrate_options_t *options;
    const gpw_model_t *model;
    uint32_t passages;
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    gpw_forward_t *forward;
    int32_t positions[TOKENS];
    void *scratch;  // of attention
    krn_f16 *pages; // of a pass: [layer][K, V][kv head][token][dim]
    float *means;   // in the mean over the passages, the same
    float *hidden,
        *before; // of a pass; of all passages as the model is: [token][embed], of length 1
    pair_t *pairs;
    const uint16_t *source; // of each layer, in the pass at hand
} calibrator_t;

static size_t layer_elements(const gpw_model_t *model)
{
    return 2 * (size_t)model->kv_heads * TOKENS * model->head_dim;
}

// ---- Passes ------------------------------------------------------------------------------------

static krn_page_t page_of(const calibrator_t *c, uint32_t layer)
{
    const krn_f16 *k = c->pages + layer * layer_elements(c->model);
    return (krn_page_t){.k = k, .v = k + layer_elements(c->model) / 2};
}

static void store(const calibrator_t *c, uint32_t layer, uint32_t token, const krn_f16 *k,
                  const krn_f16 *v)
{
    uint32_t dim = c->model->head_dim;
    krn_f16 *page = c->pages + layer * layer_elements(c->model);
    for (uint32_t h = 0; h < c->model->kv_heads; h++) {
        size_t at = ((size_t)h * TOKENS + token) * dim;
        memcpy(page + at, k + (size_t)h * dim, dim * sizeof(*k));
        memcpy(page + layer_elements(c->model) / 2 + at, v + (size_t)h * dim, dim * sizeof(*v));
    }
}

// All rows of a passage are one step, so the source has all its keys before this layer comes.
static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    const calibrator_t *c = ctx;
    const gpw_model_t *model = c->model;
    size_t width = (size_t)model->kv_heads * model->head_dim;
    for (uint32_t r = 0; r < rows; r++) {
        store(c, layer, row0 + r, k + r * width, v + r * width);
    }
    krn_page_t page = page_of(c, c->source[layer]);
    krn_attention_args_t args = {.rows = rows,
                                 .q_heads = model->q_heads,
                                 .kv_heads = model->kv_heads,
                                 .dim = model->head_dim,
                                 .capacity = TOKENS,
                                 .scale = 1.0f / sqrtf((float)model->head_dim),
                                 .q = q,
                                 .positions = c->positions + row0,
                                 .pages = &page,
                                 .page_count = 1};
    krn_attention(c->options->ops, c->pool, &args, out, NULL, c->scratch);
}

// The hidden states of a passage behind the last norm, each of length 1.
static void run_passage(calibrator_t *c, uint32_t passage, float *hidden)
{
    const gpw_model_t *model = c->model;
    gpw_forward_begin(c->forward, c->options->tokens + (size_t)passage * TOKENS, c->positions,
                      TOKENS);
    while (gpw_forward_next_layer(c->forward) < model->layers) {
        gpw_forward_layer(c->forward, attend, c);
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        float *row = hidden + (size_t)t * model->embed;
        double square = 0;
        c->options->ops->rmsnorm(gpw_forward_stream(c->forward, t), model->output_norm, 1,
                                 model->embed, model->norm_eps, row);
        for (uint32_t i = 0; i < model->embed; i++) {
            square += (double)row[i] * row[i];
        }
        float inverse = square > 0 ? (float)(1 / sqrt(square)) : 0;
        for (uint32_t i = 0; i < model->embed; i++) {
            row[i] *= inverse;
        }
    }
}

// As the model is: the hidden states, and keys and values in the mean.
static void run_as_it_is(calibrator_t *c)
{
    size_t passage_elements = (size_t)TOKENS * c->model->embed;
    size_t elements = c->model->layers * layer_elements(c->model);
    float *row = c->hidden; // not needed yet: what is unpacked
    for (uint32_t p = 0; p < c->passages; p++) {
        run_passage(c, p, c->before + p * passage_elements);
        for (size_t i = 0; i < elements; i += TOKENS) {
            c->options->ops->f16_to_f32(c->pages + i, TOKENS, row);
            for (uint32_t j = 0; j < TOKENS; j++) {
                c->means[i + j] += row[j] / (float)c->passages;
            }
        }
    }
}

// In the mean over all tokens, of the hidden states of these sources with those of the model as it is.
static double cosine_with(calibrator_t *c, const uint16_t *source)
{
    size_t passage_elements = (size_t)TOKENS * c->model->embed;
    double sum = 0;
    c->source = source;
    for (uint32_t p = 0; p < c->passages; p++) {
        const float *before = c->before + p * passage_elements;
        run_passage(c, p, c->hidden);
        for (size_t i = 0; i < passage_elements; i++) {
            sum += (double)c->hidden[i] * before[i];
        }
    }
    return sum / ((double)c->passages * TOKENS);
}

// ---- Pairs -------------------------------------------------------------------------------------

static double distance(const calibrator_t *c, uint32_t a, uint32_t b)
{
    size_t elements = layer_elements(c->model);
    const float *x = c->means + a * elements, *y = c->means + b * elements;
    double square = 0;
    for (size_t i = 0; i < elements; i++) {
        square += (double)(x[i] - y[i]) * (x[i] - y[i]);
    }
    return sqrt(square);
}

// The farthest first; of equal ones those of lower layers.
static int compare_pairs(const void *a, const void *b)
{
    const pair_t *x = a, *y = b;
    if (x->distance != y->distance) {
        return x->distance < y->distance ? 1 : -1;
    }
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->source > y->source) - (x->source < y->source);
}

static size_t list_pairs(calibrator_t *c)
{
    size_t count = 0;
    for (uint32_t l = 1; l < c->model->layers; l++) {
        for (uint32_t j = 0; j < l; j++) {
            c->pairs[count++] = (pair_t){l, j, distance(c, l, j)};
        }
    }
    qsort(c->pairs, count, sizeof(*c->pairs), compare_pairs);
    return count;
}

// `layer` and those that shared with it share with the source of `source`.
static void share(uint16_t *sources, uint32_t layers, uint32_t layer, uint32_t source)
{
    uint16_t root = sources[source];
    for (uint32_t l = 0; l < layers; l++) {
        if (sources[l] == layer) {
            sources[l] = root;
        }
    }
}

static void choose(calibrator_t *c, gpw_calibration_t *calibration)
{
    const gpw_calibrate_options_t *o = c->options;
    uint32_t layers = c->model->layers, shared = 0;
    size_t count = list_pairs(c);
    for (size_t i = 0; i < count && shared < o->shared_layers; i++) {
        const pair_t *pair = &c->pairs[i];
        uint16_t sources[AS_LAYERS_MAX];
        if (calibration->source[pair->layer] != pair->layer) {
            continue;
        }
        memcpy(sources, calibration->source, sizeof(sources));
        share(sources, layers, pair->layer, pair->source);
        gpw_calibrate_trial_t trial = {.layer = pair->layer,
                                       .source = sources[pair->layer],
                                       .cosine = cosine_with(c, sources),
                                       .wanted = o->shared_layers};
        trial.shares = trial.cosine > o->cosine_min;
        if (trial.shares) {
            memcpy(calibration->source, sources, sizeof(sources));
            shared++;
        }
        trial.shared = shared;
        if (o->on_trial) {
            o->on_trial(o->ctx, &trial);
        }
    }
}

// ---- Life --------------------------------------------------------------------------------------

static void calibrator_fini(calibrator_t *c)
{
    gpw_forward_free(c->forward);
    gpw_workspace_free(c->workspace);
    krn_pool_free(c->pool);
    as_mem_free(c->scratch);
    as_mem_free(c->pages);
    as_mem_free(c->means);
    as_mem_free(c->hidden);
    as_mem_free(c->before);
    as_mem_free(c->pairs);
}

static as_status_t calibrator_init(calibrator_t *c, const gpw_calibrate_options_t *options)
{
    const gpw_model_t *model = options->model;
    size_t passages = options->token_count / TOKENS, states = (size_t)TOKENS * model->embed;
    *c = (calibrator_t){.options = options, .model = model};
    c->passages =
        passages < GPW_CALIBRATE_PASSAGES_MAX ? (uint32_t)passages : GPW_CALIBRATE_PASSAGES_MAX;
    for (uint32_t t = 0; t < TOKENS; t++) {
        c->positions[t] = (int32_t)t;
    }
    as_status_t status = krn_pool_alloc(options->threads, &c->pool);
    if (status == AS_OK) {
        status = gpw_workspace_alloc(model, options->ops, c->pool, TOKENS, &c->workspace);
    }
    if (status == AS_OK) {
        status = gpw_forward_alloc(c->workspace, TOKENS, &c->forward);
    }
    size_t elements = model->layers * layer_elements(model);
    c->scratch =
        as_mem_aligned(64, krn_attention_scratch_bytes(TOKENS, model->q_heads, model->head_dim));
    c->pages = as_mem_zalloc(elements, sizeof(*c->pages));
    c->means = as_mem_zalloc(elements, sizeof(*c->means));
    c->hidden = as_mem_zalloc(states, sizeof(*c->hidden));
    c->before = as_mem_zalloc(c->passages * states, sizeof(*c->before));
    c->pairs = as_mem_zalloc((size_t)model->layers * model->layers, sizeof(*c->pairs));
    bool complete = c->scratch && c->pages && c->means && c->hidden && c->before && c->pairs;
    return status != AS_OK || complete ? status : AS_ERR_NO_MEMORY;
}

as_status_t gpw_calibrate(const gpw_calibrate_options_t *options, gpw_calibration_t *calibration_p)
{
    const gpw_model_t *model = options->model;
    calibrator_t c;
    gpw_calibration_t calibration = {.model = model->fingerprint,
                                     .layers = model->layers,
                                     .q_heads = model->q_heads,
                                     .kv_heads = model->kv_heads,
                                     .head_dim = model->head_dim};
    if (options->token_count < TOKENS || model->rope.position_count < TOKENS) {
        return AS_ERR_INVALID;
    }
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        calibration.source[l] = (uint16_t)l;
    }
    as_status_t status = calibrator_init(&c, options);
    if (status == AS_OK) {
        c.source = calibration.source;
        run_as_it_is(&c);
        choose(&c, &calibration);
        *calibration_p = calibration;
    }
    calibrator_fini(&c);
    return status;
}
