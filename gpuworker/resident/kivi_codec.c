// SPDX-License-Identifier: Apache-2.0
// KIVI's codec: the layout of one block's codes, and packing.
//
// Scale and min are rounded to f16 before the codes are computed, so that the codes make up for
// that rounding.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/kivi.h"
#include "kernels/f16.h"

#define F16_MAX 65504.0f

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

as_status_t gpw_kivi_layout(const gpw_segment_options_t *options, gpw_kivi_layout_t *layout_p)
{
    const gpw_compressor_params_t *params = options->params;
    const as_shape_t *shape = &options->shape;
    gpw_kivi_layout_t l = {.bits = params->bits,
                           .group = params->group,
                           .tokens = shape->block_tokens,
                           .dim = shape->head_dim,
                           .kv_heads = shape->kv_heads};
    if ((l.bits != 2 && l.bits != 4) || l.group == 0 || l.group % 8 != 0 || l.dim % 16 != 0 ||
        l.dim > KRN_HEAD_DIM_MAX || l.tokens > AS_BLOCK_TOKENS_MAX ||
        shape->element != AS_ELEMENT_F16) {
        return AS_ERR_UNSUPPORTED;
    }
    l.tokens_padded = divide_up(l.tokens, 8) * 8;
    l.token_groups = divide_up(l.tokens, l.group);
    l.channel_groups = divide_up(l.dim, l.group);
    l.k_row_bytes = l.tokens_padded * l.bits / 8;
    l.v_row_bytes = l.dim * l.bits / 8;
    l.k_scales = (size_t)l.dim * l.k_row_bytes;
    l.v_codes = l.k_scales + (size_t)l.dim * l.token_groups * 2 * sizeof(krn_f16);
    l.v_scales = l.v_codes + (size_t)l.tokens * l.v_row_bytes;
    l.head_bytes = l.v_scales + (size_t)l.tokens * l.channel_groups * 2 * sizeof(krn_f16);
    l.layer_bytes = l.head_bytes * l.kv_heads;
    *layout_p = l;
    return AS_OK;
}

// Values of one group: `count` of them, `stride` apart.
typedef struct group {
    const float *values;
    uint32_t count;
    size_t stride;
} group_t;

// Writes {scale, min} and the codes, one byte each.
static void quantize(const group_t *group, uint32_t bits, krn_f16 *scale_min, uint8_t *codes)
{
    float low = group->values[0], high = low;
    for (uint32_t i = 1; i < group->count; i++) {
        float x = group->values[i * group->stride];
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    float levels = (float)((1u << bits) - 1);
    float scale = (high - low) / levels;
    scale_min[0] = krn_f16_from_float(scale < F16_MAX ? scale : F16_MAX);
    scale_min[1] = krn_f16_from_float(low);
    scale = krn_f16_to_float(scale_min[0]);
    low = krn_f16_to_float(scale_min[1]);
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (uint32_t i = 0; i < group->count; i++) {
        float code = (group->values[i * group->stride] - low) * inverse + 0.5f;
        code = code > 0.0f ? code : 0.0f;
        codes[i] = (uint8_t)(code < levels ? code : levels);
    }
}

// Packs a row of one-byte codes, a multiple of 8 long.
static void pack_row(const uint8_t *codes, uint32_t count, uint32_t bits, uint8_t *out)
{
    uint32_t per_byte = 8 / bits;
    for (uint32_t i = 0; i < count; i += per_byte) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte; j++) {
            byte |= (uint32_t)codes[i + j] << (j * bits);
        }
        *out++ = (uint8_t)byte;
    }
}

void gpw_kivi_pack(const gpw_kivi_layout_t *l, const float *k, const float *v, uint8_t *head)
{
    uint8_t codes[AS_BLOCK_TOKENS_MAX + KRN_HEAD_DIM_MAX];
    memset(codes, 0, sizeof(codes));
    krn_f16 *scales = (krn_f16 *)(void *)(head + l->k_scales);
    for (uint32_t c = 0; c < l->dim; c++) {
        for (uint32_t t = 0; t < l->tokens; t += l->group, scales += 2) {
            uint32_t count = l->tokens - t < l->group ? l->tokens - t : l->group;
            group_t group = {k + (size_t)t * l->dim + c, count, l->dim};
            quantize(&group, l->bits, scales, codes + t);
        }
        pack_row(codes, l->tokens_padded, l->bits, head + (size_t)c * l->k_row_bytes);
    }
    scales = (krn_f16 *)(void *)(head + l->v_scales);
    for (uint32_t t = 0; t < l->tokens; t++) {
        for (uint32_t c = 0; c < l->dim; c += l->group, scales += 2) {
            uint32_t count = l->dim - c < l->group ? l->dim - c : l->group;
            group_t group = {v + (size_t)t * l->dim + c, count, 1};
            quantize(&group, l->bits, scales, codes + c);
        }
        pack_row(codes, l->dim, l->bits, head + l->v_codes + (size_t)t * l->v_row_bytes);
    }
}
