// SPDX-License-Identifier: Apache-2.0
// A segment of exact blocks, and beside it what has left it, summed up.
#include "gpuworker/resident/summary.h"

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/calibration.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/partials.h"
#include "gpuworker/resident/select/selector.h"

#define FEATURES     GPW_SUMMARY_FEATURES
#define EXPONENT_MAX 30.0f // of either map: no product or sum of them overflows

struct gpw_segment {
    as_shape_t shape;
    const krn_ops_t *ops;
    const gpw_calibration_t *calibration; // its maps are read in place
    gpw_segment_t *held;
    float *states;    // [layers][kv heads][gpw_summary_floats]
    uint32_t *folded; // [layers]: blocks
    float *unpacked;  // [2][block tokens][dim]: of a KV head of a block that leaves
};

// ---- The formula -------------------------------------------------------------------------------

void gpw_summary_features(const float *map, const float *x, uint32_t dim, float features[FEATURES])
{
    const float *bias = map + (size_t)FEATURES * dim;
    for (uint32_t f = 0; f < FEATURES; f++) {
        float e = gpw_select_dot(map + (size_t)f * dim, x, dim) + bias[f];
        e = e > EXPONENT_MAX ? EXPONENT_MAX : e < -EXPONENT_MAX ? -EXPONENT_MAX : e;
        features[f] = krn_expf(e);
    }
}

void gpw_summary_fold(float *state, const float features[FEATURES], const float *value,
                      uint32_t dim)
{
    for (uint32_t f = 0; f < FEATURES; f++) {
        float *h = state + (size_t)f * dim;
        for (uint32_t c = 0; c < dim; c++) {
            h[c] += features[f] * value[c];
        }
        state[(size_t)FEATURES * dim + f] += features[f];
    }
}

float gpw_summary_read(const float *state, const float features[FEATURES], uint32_t dim, float *out)
{
    float sum = 0;
    for (uint32_t c = 0; c < dim; c++) {
        out[c] = 0;
    }
    for (uint32_t f = 0; f < FEATURES; f++) {
        const float *h = state + (size_t)f * dim;
        for (uint32_t c = 0; c < dim; c++) {
            out[c] += features[f] * h[c];
        }
        sum += features[f] * state[(size_t)FEATURES * dim + f];
    }
    return sum;
}

// ---- Segments ----------------------------------------------------------------------------------

static size_t state_floats(const as_shape_t *shape)
{
    return (size_t)shape->layers * shape->kv_heads * gpw_summary_floats(shape->head_dim);
}

static size_t unpacked_floats(const as_shape_t *shape)
{
    return 2 * (size_t)shape->block_tokens * shape->head_dim;
}

static uint64_t fixed_bytes(const as_shape_t *shape)
{
    return sizeof(gpw_segment_t) + shape->layers * sizeof(uint32_t) +
           (state_floats(shape) + unpacked_floats(shape)) * sizeof(float);
}

static bool is_supported(const gpw_segment_options_t *options)
{
    const as_shape_t *shape = &options->shape;
    const gpw_calibration_t *c = options->params->calibration;
    return c && c->maps && options->params->selector == &gpw_select_positions &&
           c->layers == shape->layers && c->q_heads == shape->q_heads &&
           c->kv_heads == shape->kv_heads && c->head_dim == shape->head_dim;
}

as_status_t gpw_summary_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (!is_supported(options)) {
        return AS_ERR_UNSUPPORTED;
    }
    const as_shape_t *shape = &options->shape;
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->shape = *shape;
    s->ops = options->ops;
    s->calibration = options->params->calibration;
    s->states = as_mem_zalloc(state_floats(shape), sizeof(*s->states));
    s->unpacked = as_mem_zalloc(unpacked_floats(shape), sizeof(*s->unpacked));
    s->folded = as_mem_zalloc(shape->layers, sizeof(*s->folded));
    as_status_t status = gpw_exact_open(options, &s->held);
    if (status == AS_OK && (!s->states || !s->unpacked || !s->folded)) {
        status = AS_ERR_NO_MEMORY;
    }
    if (status != AS_OK) {
        gpw_summary_close(s);
        return status;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_summary_reserve(gpw_segment_t *s, uint32_t blocks)
{
    return gpw_exact_reserve(s->held, blocks);
}

static float *state_of(const gpw_segment_t *s, uint32_t layer, uint32_t kv_head)
{
    return s->states +
           ((size_t)layer * s->shape.kv_heads + kv_head) * gpw_summary_floats(s->shape.head_dim);
}

static void fold_block(gpw_segment_t *s, uint32_t layer, const krn_f16 *extent)
{
    uint32_t dim = s->shape.head_dim, tokens = s->shape.block_tokens;
    size_t elements = (size_t)tokens * dim;
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        const float *map = gpw_calibration_map(s->calibration, layer, s->shape.q_heads + h);
        for (uint32_t part = 0; part < 2; part++) {
            s->ops->f16_to_f32(extent + as_extent_offset(&s->shape, part, h, 0), elements,
                               s->unpacked + part * elements);
        }
        for (uint32_t t = 0; t < tokens; t++) {
            float features[FEATURES];
            gpw_summary_features(map, s->unpacked + (size_t)t * dim, dim, features);
            gpw_summary_fold(state_of(s, layer, h), features,
                             s->unpacked + elements + (size_t)t * dim, dim);
        }
    }
    s->folded[layer]++;
}

void gpw_summary_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    AS_ASSERT(layer < s->shape.layers);
    const void *leaving = gpw_exact_leaving(s->held, layer);
    if (leaving) {
        fold_block(s, layer, leaving);
    }
    gpw_exact_seal(s->held, layer, block, extent);
}

typedef struct reading {
    const gpw_segment_t *segment;
    const gpw_segment_attend_t *args;
} reading_t;

// One row's query heads of one KV head.
static void attend_item(void *ctx, uint32_t index)
{
    const reading_t *reading = ctx;
    const gpw_segment_t *s = reading->segment;
    const gpw_segment_attend_t *args = reading->args;
    uint32_t heads = s->shape.kv_heads, group = s->shape.q_heads / heads, dim = s->shape.head_dim;
    uint32_t kv_head = index % heads;
    size_t pair = (size_t)index * group;
    krn_partials_t all =
        gpw_partials_carve(args->scratch, (size_t)args->rows * s->shape.q_heads, dim);
    krn_partials_t from = gpw_partials_at(&all, pair, dim);
    krn_partials_t to = gpw_partials_at(args->out, pair, dim);
    for (uint32_t i = 0; i < group; i++) {
        float features[FEATURES];
        gpw_summary_features(gpw_calibration_map(s->calibration, args->layer, kv_head * group + i),
                             args->q + (pair + i) * dim, dim, features);
        from.sum[i] = gpw_summary_read(state_of(s, args->layer, kv_head), features, dim,
                                       from.out + (size_t)i * dim);
        from.max[i] = 0; // features stand for exponentials as they are
    }
    s->ops->merge(&to, &from, group, dim);
}

void gpw_summary_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    reading_t reading = {s, args};
    gpw_exact_attend(s->held, args);
    if (s->folded[args->layer] > 0) {
        krn_pool_run(args->pool, args->rows * s->shape.kv_heads, attend_item, &reading);
    }
}

const void *gpw_summary_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    return gpw_exact_extent(s->held, layer, block);
}

uint64_t gpw_summary_bytes(const gpw_segment_t *s)
{
    return fixed_bytes(&s->shape) + gpw_exact_bytes(s->held);
}

uint64_t gpw_summary_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    return is_supported(options)
               ? fixed_bytes(&options->shape) + gpw_exact_bytes_max(options, blocks)
               : 0;
}

void gpw_summary_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    gpw_exact_close(s->held);
    as_mem_free(s->states);
    as_mem_free(s->unpacked);
    as_mem_free(s->folded);
    as_mem_free(s);
}
