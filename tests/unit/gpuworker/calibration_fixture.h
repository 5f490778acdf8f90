// SPDX-License-Identifier: Apache-2.0
// A calibration of any model: every other layer shares with the one before it, and maps of summaries with small
// weights.
#ifndef CALIBRATION_FIXTURE_H
#define CALIBRATION_FIXTURE_H

#include <stdlib.h>

#include "gpuworker/resident/calibration.h"
#include "gpuworker/resident/summary.h"

// Maps of a shape, made once and never freed: those of equal shapes are the same.
static inline float *calibration_maps(const gpw_calibration_t *c)
{
    static struct {
        gpw_calibration_t of;
        float *maps;
    } made[64];
    static size_t count;
    for (size_t i = 0; i < count; i++) {
        if (made[i].of.layers == c->layers && made[i].of.q_heads == c->q_heads &&
            made[i].of.kv_heads == c->kv_heads && made[i].of.head_dim == c->head_dim) {
            return made[i].maps;
        }
    }
    if (count == sizeof(made) / sizeof(made[0])) {
        abort();
    }
    size_t floats = gpw_calibration_maps_bytes(c) / sizeof(float);
    float *maps = malloc(floats * sizeof(float));
    uint64_t state = 5;
    for (size_t i = 0; maps && i < floats; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        maps[i] = ((float)(state >> 40) / 8388608.0f - 1.0f) * 0.1f;
    }
    made[count].of = *c;
    made[count].maps = maps;
    return made[count++].maps;
}

static inline gpw_calibration_t calibration_of(const as_key_t *model, const as_shape_t *shape)
{
    gpw_calibration_t c = {.id = {{1, 2, 3}},
                           .model = *model,
                           .layers = shape->layers,
                           .q_heads = shape->q_heads,
                           .kv_heads = shape->kv_heads,
                           .head_dim = shape->head_dim};
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        c.source[l] = (uint16_t)(l < shape->layers ? l / 2 * 2 : l);
    }
    c.maps = calibration_maps(&c);
    return c;
}

#endif
