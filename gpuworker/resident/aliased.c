// SPDX-License-Identifier: Apache-2.0
// Segments in which layers share: a segment of the codec's with fewer layers, and which of them is whose.
#include "gpuworker/resident/aliased.h"

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/calibration.h"

struct gpw_segment {
    const gpw_compressor_t *codec;
    gpw_segment_t *held;
    uint32_t layers;
    uint16_t source[AS_LAYERS_MAX]; // of each layer: the one that it uses
    uint16_t place[AS_LAYERS_MAX];  // where that is in `held`
};

static bool is_supported(const gpw_segment_options_t *options)
{
    const gpw_compressor_params_t *params = options->params;
    const as_shape_t *shape = &options->shape;
    const gpw_calibration_t *c = params->calibration;
    return c && params->codec && params->codec->slot && c->layers == shape->layers &&
           c->q_heads == shape->q_heads && c->kv_heads == shape->kv_heads &&
           c->head_dim == shape->head_dim;
}

static gpw_segment_options_t held_options(const gpw_segment_options_t *options)
{
    gpw_segment_options_t held = *options;
    held.params = &options->params->codec->params;
    held.shape.layers = gpw_calibration_held(options->params->calibration);
    return held;
}

as_status_t gpw_aliased_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    if (!is_supported(options)) {
        return AS_ERR_UNSUPPORTED;
    }
    gpw_segment_options_t held = held_options(options);
    const gpw_calibration_t *calibration = options->params->calibration;
    gpw_segment_t *s = as_mem_zalloc(1, sizeof(*s));
    if (!s) {
        return AS_ERR_NO_MEMORY;
    }
    s->codec = options->params->codec;
    s->layers = calibration->layers;
    for (uint32_t l = 0, next = 0; l < s->layers; l++) {
        s->source[l] = calibration->source[l];
        s->place[l] = s->source[l] == l ? (uint16_t)next++ : s->place[s->source[l]];
    }
    as_status_t status = s->codec->open(&held, &s->held);
    if (status != AS_OK) {
        gpw_aliased_close(s);
        return status;
    }
    *segment_p = s;
    return AS_OK;
}

as_status_t gpw_aliased_reserve(gpw_segment_t *s, uint32_t blocks)
{
    return s->codec->reserve(s->held, blocks);
}

void gpw_aliased_seal(gpw_segment_t *s, uint32_t layer, uint32_t block, const void *extent)
{
    AS_ASSERT(layer < s->layers);
    if (s->source[layer] == layer) {
        s->codec->seal(s->held, s->place[layer], block, extent);
    }
}

void gpw_aliased_attend(const gpw_segment_t *s, const gpw_segment_attend_t *args)
{
    gpw_segment_attend_t held = *args;
    AS_ASSERT(args->layer < s->layers);
    held.layer = s->place[args->layer];
    s->codec->attend(s->held, &held);
}

// Some layer of a block is never here.
const void *gpw_aliased_extent(const gpw_segment_t *s, uint32_t layer, uint32_t block)
{
    (void)s;
    (void)layer;
    (void)block;
    return NULL;
}

uint64_t gpw_aliased_bytes(const gpw_segment_t *s)
{
    return sizeof(*s) + s->codec->bytes(s->held);
}

uint64_t gpw_aliased_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    if (!is_supported(options)) {
        return 0;
    }
    gpw_segment_options_t held = held_options(options);
    return sizeof(gpw_segment_t) + options->params->codec->bytes_max(&held, blocks);
}

uint8_t **gpw_aliased_slot(gpw_segment_t *s, uint32_t block, size_t *bytes_p)
{
    return s->codec->slot(s->held, block, bytes_p);
}

void gpw_aliased_adopt(gpw_segment_t *s, uint32_t blocks)
{
    s->codec->adopt(s->held, blocks);
}

void gpw_aliased_close(gpw_segment_t *s)
{
    if (!s) {
        return;
    }
    if (s->held) {
        s->codec->close(s->held);
    }
    as_mem_free(s);
}
