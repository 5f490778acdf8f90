// SPDX-License-Identifier: Apache-2.0
// Affine codes: a group's value x is stored as code * scale + min, scale = (max - min) / levels.
//
// Scale and min are rounded to f16 before the codes are computed, so that the codes make up for that
// rounding. A constant group has scale 0 and decodes to min. It is the minimum that is stored, not
// the code of zero as a whole number: that would saturate in a group on one side of zero.
#ifndef GPW_AFFINE_H
#define GPW_AFFINE_H

#include "kernels/f16.h"

#define GPW_F16_MAX 65504.0f

// A group: its scale and min as they are stored, and what makes codes of values.
typedef struct gpw_affine {
    uint16_t stored_scale, stored_min; // f16
    float min, inverse;                // inverse: 1 / scale, or 0
} gpw_affine_t;

static inline gpw_affine_t gpw_affine_of(float low, float high, float levels)
{
    float scale = (high - low) / levels;
    gpw_affine_t group = {.stored_scale =
                              krn_f16_from_float(scale < GPW_F16_MAX ? scale : GPW_F16_MAX),
                          .stored_min = krn_f16_from_float(low)};
    scale = krn_f16_to_float(group.stored_scale);
    group.min = krn_f16_to_float(group.stored_min);
    group.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    return group;
}

static inline uint8_t gpw_affine_code(float x, float min, float inverse, float levels)
{
    float code = (x - min) * inverse + 0.5f;
    code = code > 0.0f ? code : 0.0f;
    return (uint8_t)(int32_t)(code < levels ? code : levels);
}

#endif
