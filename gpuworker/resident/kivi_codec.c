// SPDX-License-Identifier: Apache-2.0
// KIVI's codec: the layout of one block's codes, and packing.
#include <string.h>

#include "gpuworker/resident/affine.h"
#include "gpuworker/resident/kivi.h"

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

as_status_t gpw_kivi_layout(const gpw_segment_options_t *options, gpw_codes_layout_t *layout_p)
{
    const gpw_compressor_params_t *params = options->params;
    const as_shape_t *shape = &options->shape;
    gpw_codes_layout_t l = {.bits = params->bits,
                            .group = params->group,
                            .tokens = shape->block_tokens,
                            .dim = shape->head_dim,
                            .kv_heads = shape->kv_heads};
    if ((l.bits != 2 && l.bits != 4) || l.group == 0 || l.group % 16 != 0 || l.dim % 16 != 0 ||
        l.dim > KRN_HEAD_DIM_MAX || l.tokens > AS_BLOCK_TOKENS_MAX ||
        shape->element != AS_ELEMENT_F16) {
        return AS_ERR_UNSUPPORTED;
    }
    l.tokens_padded = divide_up(l.tokens, 16) * 16;
    l.token_groups = divide_up(l.tokens, l.group);
    l.channel_groups = divide_up(l.dim, l.group);
    l.k_row_bytes = (size_t)l.dim * l.bits / 32 * GPW_CODES_UNIT_BYTES;
    l.v_row_bytes = (size_t)l.tokens_padded * l.bits / 32 * GPW_CODES_UNIT_BYTES;
    l.k_scales = l.tokens_padded / 16 * l.k_row_bytes;
    l.v_codes =
        l.k_scales + gpw_codes_whole_units((size_t)l.token_groups * l.dim * 2 * sizeof(krn_f16));
    l.v_scales = l.v_codes + l.dim / 16 * l.v_row_bytes;
    l.head_bytes = l.v_scales + gpw_codes_whole_units((size_t)l.channel_groups * l.tokens_padded *
                                                      2 * sizeof(krn_f16));
    *layout_p = l;
    return AS_OK;
}

static float levels_of(const gpw_codes_layout_t *l)
{
    return (float)((1u << l->bits) - 1);
}

// What a row of channels has in one token group.
typedef struct channels {
    float low[KRN_HEAD_DIM_MAX], high[KRN_HEAD_DIM_MAX];
    float min[KRN_HEAD_DIM_MAX], inverse[KRN_HEAD_DIM_MAX];
} channels_t;

// Scales of the token group that begins at k, `count` tokens long.
static void key_scales(const gpw_codes_layout_t *l, const float *k, uint32_t count, channels_t *c,
                       krn_f16 *scales)
{
    memcpy(c->low, k, l->dim * sizeof(float));
    memcpy(c->high, k, l->dim * sizeof(float));
    for (uint32_t t = 1; t < count; t++) {
        for (uint32_t i = 0; i < l->dim; i++) {
            float x = k[(size_t)t * l->dim + i];
            c->low[i] = x < c->low[i] ? x : c->low[i];
            c->high[i] = x > c->high[i] ? x : c->high[i];
        }
    }
    for (uint32_t i = 0; i < l->dim; i++) {
        gpw_affine_t g = gpw_affine_of(c->low[i], c->high[i], levels_of(l));
        scales[i] = g.stored_scale;
        scales[l->dim + i] = g.stored_min;
        c->min[i] = g.min;
        c->inverse[i] = g.inverse;
    }
}

// Units of sixteen tokens: codes is [16][dim].
static void pack_keys(const gpw_codes_layout_t *l, const uint8_t *codes, uint8_t *to)
{
    uint32_t slices = 8 / l->bits;
    for (uint32_t u = 0; u < l->k_row_bytes / GPW_CODES_UNIT_BYTES; u++) {
        for (uint32_t t = 0; t < 16; t++, to += 4) {
            uint32_t lane = 0;
            for (uint32_t i = 0; i < slices; i++) {
                uint32_t four;
                memcpy(&four, codes + (size_t)t * l->dim + (u * slices + i) * 4, sizeof(four));
                lane |= four << (i * l->bits);
            }
            memcpy(to, &lane, sizeof(lane));
        }
    }
}

static void pack_k(const gpw_codes_layout_t *l, const float *k, uint8_t *head)
{
    uint8_t codes[16 * KRN_HEAD_DIM_MAX];
    channels_t c;
    krn_f16 *scales = (krn_f16 *)(void *)(head + l->k_scales);
    for (uint32_t t = 0; t < l->tokens; t += 16, head += l->k_row_bytes) {
        uint32_t left = l->tokens - t;
        if (t % l->group == 0) {
            key_scales(l, k + (size_t)t * l->dim, left < l->group ? left : l->group, &c, scales);
            scales += 2 * (size_t)l->dim;
        }
        memset(codes, 0, sizeof(codes));
        for (uint32_t j = 0; j < 16 && j < left; j++) {
            const float *x = k + (size_t)(t + j) * l->dim;
            for (uint32_t i = 0; i < l->dim; i++) {
                codes[j * l->dim + i] = gpw_affine_code(x[i], c.min[i], c.inverse[i], levels_of(l));
            }
        }
        pack_keys(l, codes, head);
    }
}

// Codes and scales of token t's values.
static void value_codes(const gpw_codes_layout_t *l, const float *v, uint32_t t, uint8_t *codes,
                        krn_f16 *scales)
{
    scales += t;
    v += (size_t)t * l->dim;
    for (uint32_t c = 0; c < l->dim; c += l->group, scales += 2 * (size_t)l->tokens_padded) {
        uint32_t end = l->dim - c < l->group ? l->dim : c + l->group;
        float low = v[c], high = low;
        for (uint32_t i = c + 1; i < end; i++) {
            low = v[i] < low ? v[i] : low;
            high = v[i] > high ? v[i] : high;
        }
        gpw_affine_t g = gpw_affine_of(low, high, levels_of(l));
        scales[0] = g.stored_scale;
        scales[l->tokens_padded] = g.stored_min;
        for (uint32_t i = c; i < end; i++) {
            codes[i] = gpw_affine_code(v[i], g.min, g.inverse, levels_of(l));
        }
    }
}

// Unit u of each sixteen channels: codes is [tokens of a unit][dim].
static void pack_values(const gpw_codes_layout_t *l, const uint8_t *codes, uint8_t *to)
{
    for (uint32_t c = 0; c < l->dim; c += 16, to += l->v_row_bytes) {
        uint32_t lanes[16] = {0};
        for (uint32_t t = 0; t < 32 / l->bits; t++) {
            for (uint32_t i = 0; i < 16; i++) {
                lanes[i] |= (uint32_t)codes[t * l->dim + c + i] << (t % 4 * 8 + t / 4 * l->bits);
            }
        }
        memcpy(to, lanes, sizeof(lanes));
    }
}

static void pack_v(const gpw_codes_layout_t *l, const float *v, uint8_t *head)
{
    uint8_t codes[16 * KRN_HEAD_DIM_MAX];
    uint32_t unit_tokens = 32 / l->bits;
    for (uint32_t u = 0; u < l->v_row_bytes / GPW_CODES_UNIT_BYTES; u++) {
        memset(codes, 0, sizeof(codes));
        for (uint32_t j = 0; j < unit_tokens && u * unit_tokens + j < l->tokens; j++) {
            value_codes(l, v, u * unit_tokens + j, codes + j * l->dim,
                        (krn_f16 *)(void *)(head + l->v_scales));
        }
        pack_values(l, codes, head + l->v_codes + u * GPW_CODES_UNIT_BYTES);
    }
}

void gpw_kivi_pack(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head)
{
    pack_k(layout, k, head);
    pack_v(layout, v, head);
}

void gpw_kivi_attends(gpw_codec_attend_fn *fns_p[4])
{
    uint32_t count = 0;
#if defined(__x86_64__)
    if (krn_cpu_named("avx512") && __builtin_cpu_supports("avx512vnni")) {
        fns_p[count++] = gpw_kivi_attend_avx512;
    }
    if (krn_cpu_named("avx2")) {
        fns_p[count++] = gpw_kivi_attend_avx2;
    }
#endif
    fns_p[count++] = gpw_kivi_attend_portable;
    fns_p[count] = NULL;
}

static const gpw_codec_t codec = {
    .layout = gpw_kivi_layout, .pack = gpw_kivi_pack, .attends = gpw_kivi_attends};

as_status_t gpw_kivi_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    return gpw_coded_open(&codec, options, segment_p);
}

uint64_t gpw_kivi_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    return gpw_coded_bytes_max(&codec, options, blocks);
}
