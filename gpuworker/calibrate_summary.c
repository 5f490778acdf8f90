// SPDX-License-Identifier: Apache-2.0
// Passes over passages, layer by layer, and Adam over the maps of each KV head.
#include "gpuworker/calibrate_summary.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/forward.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/summary.h"

#define TOKENS   GPW_SUMMARY_PASSAGE_TOKENS
#define FEATURES GPW_SUMMARY_FEATURES
#define PAGE     64u // tokens
#define PAGES    (TOKENS / PAGE)
#define FIRST                                                                                      \
    3u // page of the first queries that something was dropped for: all but pages 0, its own, one before
#define RATE 3e-3f // of Adam; halved after each quarter of the epochs

// What one layer of one passage gives. [token] first, but keys and values: [kv head][token][dim].
typedef struct passage {
    gpw_forward_t *forward;
    krn_f16 *pages;  // [page][K, V][kv head][token][dim]
    float *k, *v;    // the same elements
    float *q;        // [token][q_heads][dim]
    float *whole;    // attention to all, the same
    float *lse;      // [token][q_heads], of that
    float *kept;     // attention to what is kept; from page FIRST on
    float *kept_lse; // the same
} passage_t;

// One KV head's, all of gpw_summary_floats each.
typedef struct learner {
    float *maps;     // [group + 1]: psi of each query head, then phi
    float *gradient; // the same
    float *mean, *square;
    float *states;   // [page]: what queries of that page have
    float *pull;     // [page]: the gradient of that state
    float *features; // [token][FEATURES]: of keys
    double error[2]; // of the passage held out: without, with
    double norm;
} learner_t;

typedef struct trainer {
    const gpw_summary_options_t *options;
    const gpw_model_t *model;
    uint32_t count, group, layer;
    size_t floats; // of a map
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    void *scratch;
    int32_t positions[TOKENS];
    passage_t passages[GPW_SUMMARY_PASSAGES_MAX], *current;
    learner_t *learners; // [kv_heads]
    gpw_calibration_t *calibration;
} trainer_t;

// ---- Passes ------------------------------------------------------------------------------------

static size_t page_elements(const gpw_model_t *m)
{
    return 2 * (size_t)m->kv_heads * PAGE * m->head_dim;
}

static void store(const trainer_t *t, uint32_t token, const krn_f16 *k, const krn_f16 *v)
{
    const gpw_model_t *m = t->model;
    passage_t *p = t->current;
    krn_f16 *page = p->pages + token / PAGE * page_elements(m);
    for (uint32_t h = 0; h < m->kv_heads; h++) {
        size_t dim = m->head_dim, at = ((size_t)h * PAGE + token % PAGE) * dim;
        memcpy(page + at, k + h * dim, dim * sizeof(*k));
        memcpy(page + page_elements(m) / 2 + at, v + h * dim, dim * sizeof(*v));
        at = ((size_t)h * TOKENS + token) * dim;
        t->options->ops->f16_to_f32(k + h * dim, dim, p->k + at);
        t->options->ops->f16_to_f32(v + h * dim, dim, p->v + at);
    }
}

// Attention of rows of the passage to some of its pages.
static void attend_pages(const trainer_t *t, uint32_t row0, uint32_t rows, const uint32_t *which,
                         uint32_t count, float *out, float *lse)
{
    const gpw_model_t *m = t->model;
    krn_page_t pages[PAGES];
    for (uint32_t i = 0; i < count; i++) {
        const krn_f16 *k = t->current->pages + which[i] * page_elements(m);
        pages[i] = (krn_page_t){k, k + page_elements(m) / 2, which[i]};
    }
    krn_attention_args_t args = {.rows = rows,
                                 .q_heads = m->q_heads,
                                 .kv_heads = m->kv_heads,
                                 .dim = m->head_dim,
                                 .capacity = PAGE,
                                 .scale = 1.0f / sqrtf((float)m->head_dim),
                                 .q = t->current->q + (size_t)row0 * m->q_heads * m->head_dim,
                                 .positions = t->positions + row0,
                                 .pages = pages,
                                 .page_count = count};
    krn_attention(t->options->ops, t->pool, &args, out, lse, t->scratch);
}

static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    static const uint32_t all[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
    const trainer_t *t = ctx;
    const gpw_model_t *m = t->model;
    size_t width = (size_t)m->q_heads * m->head_dim, kv = (size_t)m->kv_heads * m->head_dim;
    (void)layer;
    for (uint32_t r = 0; r < rows; r++) {
        store(t, row0 + r, k + r * kv, v + r * kv);
    }
    memcpy(t->current->q + row0 * width, q, rows * width * sizeof(*q));
    attend_pages(t, row0, rows, all, (row0 + rows + PAGE - 1) / PAGE, out,
                 t->current->lse + (size_t)row0 * m->q_heads);
    memcpy(t->current->whole + row0 * width, out, rows * width * sizeof(*out));
}

// The next layer of all passages.
static void run_layer(trainer_t *t)
{
    const gpw_model_t *m = t->model;
    for (uint32_t i = 0; i < t->count; i++) {
        t->current = &t->passages[i];
        gpw_forward_layer(t->current->forward, attend, t);
        for (uint32_t page = FIRST; page < PAGES; page++) {
            const uint32_t kept[] = {0, page - 1, page};
            size_t row = (size_t)page * PAGE * m->q_heads;
            attend_pages(t, page * PAGE, PAGE, kept, 3, t->current->kept + row * m->head_dim,
                         t->current->kept_lse + row);
        }
    }
}

// ---- One KV head -------------------------------------------------------------------------------

static float *psi_of(const trainer_t *t, float *of, uint32_t head)
{
    return of + head * t->floats;
}

static float *phi_of(const trainer_t *t, float *of)
{
    return of + t->group * t->floats;
}

// The states of all pages.
static void fold(const trainer_t *t, learner_t *l, uint32_t kv_head, const passage_t *p)
{
    uint32_t dim = t->model->head_dim;
    memset(l->states, 0, FIRST * t->floats * sizeof(*l->states));
    for (uint32_t page = FIRST; page < PAGES; page++) {
        float *state = l->states + page * t->floats;
        memcpy(state, state - t->floats, t->floats * sizeof(*state));
        for (uint32_t i = (page - 2) * PAGE; i < (page - 1) * PAGE; i++) {
            size_t at = ((size_t)kv_head * TOKENS + i) * dim;
            float *features = l->features + (size_t)i * FEATURES;
            gpw_summary_features(phi_of(t, l->maps), p->k + at, dim, features);
            gpw_summary_fold(state, features, p->v + at, dim);
        }
    }
}

// A query with its state: the difference of its output from that of attention to all.
typedef struct query {
    const passage_t *passage;
    size_t pair;
    const float *state, *map;
    float features[FEATURES];
    float out[KRN_HEAD_DIM_MAX], difference[KRN_HEAD_DIM_MAX];
    float share; // of the summary's exponentials: 1 / (sum of all)
} query_t;

static void ask(const trainer_t *t, query_t *x)
{
    const passage_t *p = x->passage;
    uint32_t dim = t->model->head_dim;
    size_t pair = x->pair;
    gpw_summary_features(x->map, p->q + pair * dim, dim, x->features);
    float sum = gpw_summary_read(x->state, x->features, dim, x->out);
    float e = krn_expf(-fminf(fmaxf(p->kept_lse[pair], -30), 80)); // finite, and so is 1 / e
    x->share = e / (1 + e * sum);
    for (uint32_t c = 0; c < dim; c++) {
        x->out[c] = (p->kept[pair * dim + c] / e + x->out[c]) * x->share;
        x->difference[c] = x->out[c] - p->whole[pair * dim + c];
    }
}

// Adds what the exponents' gradient says of a map.
static void add_gradient(float *gradient, const float exponents[FEATURES], const float *x,
                         uint32_t dim)
{
    for (uint32_t f = 0; f < FEATURES; f++) {
        for (uint32_t c = 0; c < dim; c++) {
            gradient[(size_t)f * dim + c] += exponents[f] * x[c];
        }
        gradient[(size_t)FEATURES * dim + f] += exponents[f];
    }
}

static void pull_query(const trainer_t *t, learner_t *l, uint32_t page, uint32_t head, query_t *x)
{
    uint32_t dim = t->model->head_dim;
    float *pull = l->pull + page * t->floats, exponents[FEATURES];
    x->state = l->states + page * t->floats;
    x->map = psi_of(t, l->maps, head);
    ask(t, x);
    float along = gpw_select_dot(x->difference, x->out, dim);
    for (uint32_t f = 0; f < FEATURES; f++) {
        float weight = x->features[f] * x->share;
        float to = gpw_select_dot(x->difference, x->state + (size_t)f * dim, dim) -
                   along * x->state[(size_t)FEATURES * dim + f];
        exponents[f] = weight * to;
        for (uint32_t c = 0; c < dim; c++) {
            pull[(size_t)f * dim + c] += weight * x->difference[c];
        }
        pull[(size_t)FEATURES * dim + f] -= weight * along;
    }
    add_gradient(psi_of(t, l->gradient, head), exponents, x->passage->q + x->pair * dim, dim);
}

// What dropped tokens do: to the queries of every page behind them.
static void pull_keys(const trainer_t *t, learner_t *l, uint32_t kv_head, const passage_t *p)
{
    uint32_t dim = t->model->head_dim;
    for (uint32_t page = PAGES - 1; page >= FIRST; page--) {
        float *pull = l->pull + page * t->floats;
        for (size_t i = 0; page + 1 < PAGES && i < t->floats; i++) {
            pull[i] += pull[t->floats + i];
        }
        for (uint32_t i = (page - 2) * PAGE; i < (page - 1) * PAGE; i++) {
            size_t at = ((size_t)kv_head * TOKENS + i) * dim;
            float exponents[FEATURES];
            for (uint32_t f = 0; f < FEATURES; f++) {
                exponents[f] = l->features[(size_t)i * FEATURES + f] *
                               (gpw_select_dot(pull + (size_t)f * dim, p->v + at, dim) +
                                pull[(size_t)FEATURES * dim + f]);
            }
            add_gradient(phi_of(t, l->gradient), exponents, p->k + at, dim);
        }
    }
}

static void adam(const trainer_t *t, learner_t *l, uint32_t step, float rate)
{
    const float b1 = 0.9f, b2 = 0.99f;
    float c1 = 1 - powf(b1, (float)step), c2 = 1 - powf(b2, (float)step);
    for (size_t i = 0; i < (t->group + 1) * t->floats; i++) {
        float g = l->gradient[i];
        l->mean[i] = b1 * l->mean[i] + (1 - b1) * g;
        l->square[i] = b2 * l->square[i] + (1 - b2) * g * g;
        l->maps[i] -= rate * (l->mean[i] / c1) / (sqrtf(l->square[i] / c2) + 1e-12f);
    }
}

static size_t pair_of(const trainer_t *t, uint32_t row, uint32_t kv_head, uint32_t head)
{
    return (size_t)row * t->model->q_heads + kv_head * t->group + head;
}

static void learn(const trainer_t *t, learner_t *l, uint32_t kv_head, const passage_t *p)
{
    memset(l->gradient, 0, (t->group + 1) * t->floats * sizeof(float));
    memset(l->pull, 0, PAGES * t->floats * sizeof(float));
    fold(t, l, kv_head, p);
    for (uint32_t row = FIRST * PAGE; row < TOKENS; row++) {
        for (uint32_t g = 0; g < t->group; g++) {
            query_t x = {.passage = p, .pair = pair_of(t, row, kv_head, g)};
            pull_query(t, l, row / PAGE, g, &x);
        }
    }
    pull_keys(t, l, kv_head, p);
}

// Small weights, and of each query head the bias with which features of all tokens sum to what they should in
// the mean over its queries' logarithms.
static void begin(const trainer_t *t, learner_t *l, uint32_t kv_head)
{
    uint32_t dim = t->model->head_dim;
    uint64_t noise = 1 + ((uint64_t)t->layer << 32) + kv_head;
    memset(l->mean, 0, (t->group + 1) * t->floats * sizeof(float));
    memset(l->square, 0, (t->group + 1) * t->floats * sizeof(float));
    for (size_t i = 0; i < (t->group + 1) * t->floats; i++) {
        noise = noise * 6364136223846793005u + 1442695040888963407u;
        l->maps[i] = ((float)(noise >> 40) / 8388608.0f - 1) * 0.2f / (float)dim;
    }
    for (uint32_t g = 0; g < t->group; g++) {
        double sum = 0;
        for (uint32_t row = FIRST * PAGE; row < TOKENS; row++) {
            size_t pair = pair_of(t, row, kv_head, g);
            const passage_t *p = &t->passages[0];
            double rest = 1 - exp((double)p->kept_lse[pair] - p->lse[pair]);
            sum += p->lse[pair] + log(rest > 1e-4 ? rest : 1e-4) -
                   log((row / PAGE - 2) * (double)(PAGE * FEATURES));
        }
        for (uint32_t f = 0; f < FEATURES; f++) {
            psi_of(t, l->maps, g)[(size_t)FEATURES * dim + f] +=
                (float)(sum / (TOKENS - FIRST * PAGE));
        }
    }
}

// The squares of the difference, without the summary and with it, and of the output.
static void measure(const trainer_t *t, learner_t *l, uint32_t kv_head, const passage_t *p)
{
    uint32_t dim = t->model->head_dim;
    l->error[0] = l->error[1] = l->norm = 0;
    fold(t, l, kv_head, p);
    for (uint32_t row = FIRST * PAGE; row < TOKENS; row++) {
        for (uint32_t g = 0; g < t->group; g++) {
            size_t pair = pair_of(t, row, kv_head, g);
            query_t x = {.passage = p,
                         .pair = pair,
                         .state = l->states + row / PAGE * t->floats,
                         .map = psi_of(t, l->maps, g)};
            ask(t, &x);
            for (uint32_t c = 0; c < dim; c++) {
                double whole = p->whole[pair * dim + c], kept = p->kept[pair * dim + c] - whole;
                l->error[0] += kept * kept;
                l->error[1] += (double)x.difference[c] * x.difference[c];
                l->norm += whole * whole;
            }
        }
    }
}

static void learn_item(void *ctx, uint32_t kv_head)
{
    const trainer_t *t = ctx;
    learner_t *l = &t->learners[kv_head];
    uint32_t epochs = t->options->epochs, step = 0;
    float rate = RATE;
    begin(t, l, kv_head);
    for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        rate = RATE / (float)(1u << (4 * epoch / epochs));
        for (uint32_t i = 0; i + 1 < t->count; i++) {
            learn(t, l, kv_head, &t->passages[i]);
            adam(t, l, ++step, rate);
        }
    }
    measure(t, l, kv_head, &t->passages[t->count - 1]);
}

// ---- All ---------------------------------------------------------------------------------------

static void learn_layer(trainer_t *t)
{
    const gpw_model_t *m = t->model;
    gpw_summary_layer_t told = {.layer = t->layer, .layers = m->layers};
    double norm = 0;
    krn_pool_run(t->pool, m->kv_heads, learn_item, t);
    float *to = t->calibration->maps + (size_t)t->layer * (m->q_heads + m->kv_heads) * t->floats;
    for (uint32_t h = 0; h < m->kv_heads; h++) {
        learner_t *l = &t->learners[h];
        memcpy(to + (size_t)h * t->group * t->floats, l->maps, t->group * t->floats * sizeof(*to));
        memcpy(to + (size_t)(m->q_heads + h) * t->floats, phi_of(t, l->maps),
               t->floats * sizeof(*to));
        told.without += l->error[0];
        told.with += l->error[1];
        norm += l->norm;
    }
    told.without = norm > 0 ? sqrt(told.without / norm) : 0;
    told.with = norm > 0 ? sqrt(told.with / norm) : 0;
    if (t->options->on_layer) {
        t->options->on_layer(t->options->ctx, &told);
    }
}

static bool passage_init(trainer_t *t, passage_t *p, const int32_t *tokens)
{
    const gpw_model_t *m = t->model;
    size_t pairs = (size_t)TOKENS * m->q_heads, kv = (size_t)TOKENS * m->kv_heads * m->head_dim;
    if (gpw_forward_alloc(t->workspace, TOKENS, &p->forward) != AS_OK) {
        return false;
    }
    p->pages = as_mem_zalloc(2 * kv, sizeof(*p->pages));
    p->k = as_mem_zalloc(kv, sizeof(float));
    p->v = as_mem_zalloc(kv, sizeof(float));
    p->q = as_mem_zalloc(pairs * m->head_dim, sizeof(float));
    p->whole = as_mem_zalloc(pairs * m->head_dim, sizeof(float));
    p->kept = as_mem_zalloc(pairs * m->head_dim, sizeof(float));
    p->lse = as_mem_zalloc(pairs, sizeof(float));
    p->kept_lse = as_mem_zalloc(pairs, sizeof(float));
    if (!p->pages || !p->k || !p->v || !p->q || !p->whole || !p->kept || !p->lse || !p->kept_lse) {
        return false;
    }
    gpw_forward_begin(p->forward, tokens, t->positions, TOKENS);
    return true;
}

static void passage_fini(passage_t *p)
{
    gpw_forward_free(p->forward);
    as_mem_free(p->pages);
    as_mem_free(p->k);
    as_mem_free(p->v);
    as_mem_free(p->q);
    as_mem_free(p->whole);
    as_mem_free(p->kept);
    as_mem_free(p->lse);
    as_mem_free(p->kept_lse);
}

static bool learner_init(const trainer_t *t, learner_t *l)
{
    size_t maps = (t->group + 1) * t->floats;
    l->maps = as_mem_zalloc(maps, sizeof(float));
    l->gradient = as_mem_zalloc(maps, sizeof(float));
    l->mean = as_mem_zalloc(maps, sizeof(float));
    l->square = as_mem_zalloc(maps, sizeof(float));
    l->states = as_mem_zalloc(PAGES * t->floats, sizeof(float));
    l->pull = as_mem_zalloc(PAGES * t->floats, sizeof(float));
    l->features = as_mem_zalloc((size_t)TOKENS * FEATURES, sizeof(float));
    return l->maps && l->gradient && l->mean && l->square && l->states && l->pull && l->features;
}

static void learner_fini(learner_t *l)
{
    as_mem_free(l->maps);
    as_mem_free(l->gradient);
    as_mem_free(l->mean);
    as_mem_free(l->square);
    as_mem_free(l->states);
    as_mem_free(l->pull);
    as_mem_free(l->features);
}

static void trainer_fini(trainer_t *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        passage_fini(&t->passages[i]);
    }
    for (uint32_t h = 0; t->learners && h < t->model->kv_heads; h++) {
        learner_fini(&t->learners[h]);
    }
    as_mem_free(t->learners);
    as_mem_free(t->scratch);
    gpw_workspace_free(t->workspace);
    krn_pool_free(t->pool);
    as_mem_free(t);
}

static as_status_t trainer_init(trainer_t *t)
{
    const gpw_summary_options_t *o = t->options;
    const gpw_model_t *m = t->model;
    size_t used = o->token_count < GPW_SUMMARY_TOKENS_MAX ? o->token_count : GPW_SUMMARY_TOKENS_MAX;
    t->count = 2 + (uint32_t)((used - GPW_SUMMARY_TOKENS_MIN) / (TOKENS / 2));
    for (uint32_t i = 0; i < TOKENS; i++) {
        t->positions[i] = (int32_t)i;
    }
    as_status_t status = krn_pool_alloc(o->threads, &t->pool);
    if (status == AS_OK) {
        status = gpw_workspace_alloc(m, o->ops, t->pool, GPW_FORWARD_STEP_ROWS, &t->workspace);
    }
    if (status != AS_OK) {
        return status;
    }
    t->scratch = as_mem_aligned(
        64, krn_attention_scratch_bytes(GPW_FORWARD_STEP_ROWS, m->q_heads, m->head_dim));
    t->learners = as_mem_zalloc(m->kv_heads, sizeof(*t->learners));
    t->calibration->maps = as_mem_alloc(gpw_calibration_maps_bytes(t->calibration));
    bool complete = t->scratch && t->learners && t->calibration->maps;
    for (uint32_t i = 0; complete && i < t->count; i++) {
        size_t first = i + 1 < t->count ? (size_t)i * TOKENS / 2 : used - TOKENS;
        complete = passage_init(t, &t->passages[i], o->tokens + first);
    }
    for (uint32_t h = 0; complete && h < m->kv_heads; h++) {
        complete = learner_init(t, &t->learners[h]);
    }
    return complete ? AS_OK : AS_ERR_NO_MEMORY;
}

as_status_t gpw_calibrate_summary(const gpw_summary_options_t *options,
                                  gpw_calibration_t *calibration)
{
    const gpw_model_t *model = options->model;
    AS_ASSERT(!calibration->maps);
    if (options->token_count < GPW_SUMMARY_TOKENS_MIN || model->rope.position_count < TOKENS) {
        return AS_ERR_INVALID;
    }
    trainer_t *t = as_mem_zalloc(1, sizeof(*t));
    if (!t) {
        return AS_ERR_NO_MEMORY;
    }
    t->options = options;
    t->model = model;
    t->group = model->q_heads / model->kv_heads;
    t->floats = gpw_summary_floats(model->head_dim);
    t->calibration = calibration;
    as_status_t status = trainer_init(t);
    for (; status == AS_OK && t->layer < model->layers; t->layer++) {
        run_layer(t);
        learn_layer(t);
    }
    if (status != AS_OK) {
        gpw_calibration_fini(calibration);
    }
    trainer_fini(t);
    return status;
}
