// SPDX-License-Identifier: Apache-2.0
// Rotated Lloyd-Max codes: the rotation, the layout of one block's codes, and packing.
//
// Single precision, in an order that no instruction set changes: equal blocks give equal codes everywhere.
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "gpuworker/resident/turbo.h"
#include "kernels/f16.h"

#define F16_MAX   65504.0f
#define LANES     16u
#define DIM_MAX   KRN_HEAD_DIM_MAX
#define STAGES    3u // transforms, where the number of channels is no power of two
#define SIGN_SEED 0x5475726271756e74ull
// Stored scales are eight times what they stand for: keys of the least magnitude keep all bits of theirs, and f16's
// greatest keys still have a scale in f16.
#define STORED 8.0f
#define HALVES 64 // greater than any level

// ---- Codebooks ----------------------------------------------------------------------

typedef struct codebook {
    int8_t levels[GPW_TURBO_LEVELS_MAX];
    float rms_levels; // levels to the root mean square of a vector's channels
} codebook_t;

static const codebook_t codebooks[2] = {
    {{-63, -39, -22, -7, 7, 22, 39, 63}, 29.21f},
    {{-63, -48, -37, -29, -22, -15, -9, -3, 3, 9, 15, 22, 29, 37, 48, 63}, 23.08f},
};

static const codebook_t *codebook_of(uint32_t bits)
{
    return &codebooks[bits == 4];
}

const int8_t *gpw_turbo_levels(uint32_t bits)
{
    return bits == 3 || bits == 4 ? codebook_of(bits)->levels : NULL;
}

// ---- Rotation -----------------------------------------------------------------------

static float signs[STAGES][DIM_MAX]; // of the channels, before each transform

// splitmix64 of the seed's element i.
static float sign_of(uint32_t i)
{
    uint64_t x = SIGN_SEED + i * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) >> 63 ? -1.0f : 1.0f;
}

static void make_signs(void)
{
    for (uint32_t i = 0; i < STAGES * DIM_MAX; i++) {
        signs[i / DIM_MAX][i % DIM_MAX] = sign_of(i);
    }
}

static void make_signs_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_signs);
}

static void flip(float *x, uint32_t number, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++) {
        x[i] *= signs[number][i];
    }
}

// One step of a Hadamard transform: the halves' sums and differences, interleaved. Log2(n) of them are the
// transform, in the natural order.
static void step(const float *restrict x, uint32_t n, float *restrict y)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        y[2 * i] = x[i] + x[i + n / 2];
        y[2 * i + 1] = x[i] - x[i + n / 2];
    }
}

static void hadamard(float *x, uint32_t n)
{
    float y[DIM_MAX];
    float unit = 1.0f / sqrtf((float)n);
    uint32_t left = n;
    for (; left > 2; left /= 4) {
        step(x, n, y);
        step(y, n, x);
    }
    if (left == 2) {
        step(x, n, y);
        memcpy(x, y, n * sizeof(*x));
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= unit;
    }
}

static uint32_t power_within(uint32_t dim)
{
    uint32_t power = 1;
    while (power * 2 <= dim) {
        power *= 2;
    }
    return power;
}

void gpw_turbo_rotate(float *x, uint32_t count, uint32_t dim)
{
    uint32_t power = power_within(dim);
    make_signs_once();
    for (; count > 0; count--, x += dim) {
        for (uint32_t n = 0; n < (power < dim ? STAGES : 1); n++) {
            flip(x, n, dim);
            hadamard(x + (n % 2) * (dim - power), power);
        }
    }
}

// A transform is its own inverse, and so is a change of signs.
void gpw_turbo_rotate_back(float *x, uint32_t count, uint32_t dim)
{
    uint32_t power = power_within(dim);
    make_signs_once();
    for (; count > 0; count--, x += dim) {
        for (uint32_t n = power < dim ? STAGES : 1; n-- > 0;) {
            hadamard(x + (n % 2) * (dim - power), power);
            flip(x, n, dim);
        }
    }
}

// ---- Layout -------------------------------------------------------------------------

static size_t row_bytes(uint32_t bits, uint32_t elements)
{
    return (size_t)elements * bits * LANES / 8;
}

as_status_t gpw_turbo_layout(const gpw_segment_options_t *options, gpw_codes_layout_t *layout_p)
{
    const as_shape_t *shape = &options->shape;
    gpw_codes_layout_t l = {.bits = options->params->bits,
                            .tokens = shape->block_tokens,
                            .dim = shape->head_dim,
                            .kv_heads = shape->kv_heads};
    if (!gpw_turbo_levels(l.bits) || l.dim % LANES != 0 || l.dim > DIM_MAX ||
        l.tokens > AS_BLOCK_TOKENS_MAX || shape->element != AS_ELEMENT_F16) {
        return AS_ERR_UNSUPPORTED;
    }
    l.tokens_padded = (l.tokens + LANES - 1) / LANES * LANES;
    l.k_row_bytes = row_bytes(l.bits, l.dim);
    l.v_row_bytes = row_bytes(l.bits, l.tokens_padded);
    size_t scales = gpw_codes_whole_units(l.tokens_padded * sizeof(krn_f16));
    l.k_scales = gpw_codes_whole_units(l.tokens_padded / LANES * l.k_row_bytes);
    l.k_centre = l.k_scales + scales;
    l.v_codes = l.k_centre + gpw_codes_whole_units(l.dim * sizeof(krn_f16));
    l.v_scales = l.v_codes + gpw_codes_whole_units(l.dim / LANES * l.v_row_bytes);
    l.head_bytes = l.v_scales + scales;
    *layout_p = l;
    return AS_OK;
}

// ---- Codes of vectors ---------------------------------------------------------------

// In eight lanes, then in pairs.
static float norm_of(const float *x, uint32_t dim)
{
    float sums[8] = {0};
    for (uint32_t i = 0; i < dim; i += 8) {
        for (uint32_t j = 0; j < 8; j++) {
            sums[j] += x[i + j] * x[i + j];
        }
    }
    for (uint32_t half = 4; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            sums[j] += sums[j + half];
        }
    }
    return sqrtf(sums[0]);
}

// Codes by value: the middle of two levels is a multiple of a half, so halves of a level, rounded down, decide. A value
// in the middle takes the upper.
typedef struct codes_by_half {
    const codebook_t *book;
    uint8_t code[4 * HALVES]; // of (i - 2 * HALVES) halves and what is above them
} codes_by_half_t;

static void fill_codes(uint32_t bits, codes_by_half_t *by)
{
    by->book = codebook_of(bits);
    const int8_t *levels = by->book->levels;
    uint32_t code = 0;
    for (int32_t i = 0; i < 4 * HALVES; i++) {
        while (code + 1 < 1u << bits && i - 2 * HALVES >= levels[code] + levels[code + 1]) {
            code++;
        }
        by->code[i] = (uint8_t)code;
    }
}

// The nearest levels of one rotated vector. Returns the scale.
static krn_f16 encode(const codes_by_half_t *by, const float *x, uint32_t dim, uint8_t *codes)
{
    float norm = norm_of(x, dim);
    float halves = norm > 0.0f ? 2 * by->book->rms_levels * sqrtf((float)dim) / norm : 0.0f;
    int32_t at[DIM_MAX], square = 0;
    for (uint32_t i = 0; i < dim; i++) {
        float half = x[i] * halves + 2 * HALVES;
        half = half > 0.0f ? half : 0.0f;
        at[i] = (int32_t)(half < 4 * HALVES - 1 ? half : 4 * HALVES - 1);
    }
    for (uint32_t i = 0; i < dim; i++) {
        codes[i] = by->code[at[i]];
        int32_t level = by->book->levels[codes[i]];
        square += level * level;
    }
    float scale = STORED * norm / sqrtf((float)square);
    return krn_f16_from_float(scale < F16_MAX ? scale : F16_MAX);
}

// ---- Rows ---------------------------------------------------------------------------

// What of the codes one unit holds: `slices` of four, `width` bits of each code from bit `shift` on.
typedef struct plane {
    uint32_t slices, width, shift;
} plane_t;

static const plane_t whole = {2, 4, 0}, low = {4, 2, 0}, high = {8, 1, 2}, high_half = {4, 1, 2};

// Sixteen lanes, four bytes each. What is summed over lies `stride` apart in codes, the lanes side by side.
static void pack_lanes(const uint8_t *codes, size_t stride, const plane_t *plane, uint32_t *lanes)
{
    uint32_t mask = (1u << plane->width) - 1, shift = plane->shift;
    memset(lanes, 0, LANES * sizeof(*lanes));
    for (uint32_t i = 0; i < plane->slices * 4; i++, codes += stride) {
        uint32_t at = i % 4 * 8 + i / 4 * plane->width;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            lanes[lane] |= ((uint32_t)codes[lane] >> shift & mask) << at;
        }
    }
}

static uint8_t *pack_unit(const uint8_t *codes, size_t stride, const plane_t *plane, uint8_t *to)
{
    uint32_t lanes[LANES];
    pack_lanes(codes, stride, plane, lanes);
    memcpy(to, lanes, sizeof(lanes));
    return to + sizeof(lanes);
}

static void pack_row_3(const uint8_t *codes, size_t stride, uint32_t count, uint8_t *to)
{
    for (; count >= 32; count -= 32, codes += 32 * stride) {
        to = pack_unit(codes, stride, &low, to);
        to = pack_unit(codes + 16 * stride, stride, &low, to);
        to = pack_unit(codes, stride, &high, to);
    }
    if (count > 0) {
        uint32_t lanes[LANES];
        to = pack_unit(codes, stride, &low, to);
        pack_lanes(codes, stride, &high_half, lanes);
        for (uint32_t lane = 0; lane < LANES / 2; lane++) {
            lanes[lane] |= lanes[lane + LANES / 2] << 4;
        }
        memcpy(to, lanes, sizeof(lanes) / 2);
    }
}

static void pack_row(uint32_t bits, const uint8_t *codes, size_t stride, uint32_t count,
                     uint8_t *to)
{
    if (bits == 3) {
        pack_row_3(codes, stride, count, to);
        return;
    }
    for (; count > 0; count -= 8, codes += 8 * stride) {
        to = pack_unit(codes, stride, &whole, to);
    }
}

// ---- Blocks -------------------------------------------------------------------------

// The mean of the block's keys, in f16, which is taken off each of them.
static void take_centre(const gpw_codes_layout_t *l, float *k, krn_f16 *centre)
{
    float mean[DIM_MAX] = {0};
    for (uint32_t t = 0; t < l->tokens; t++) {
        for (uint32_t i = 0; i < l->dim; i++) {
            mean[i] += k[(size_t)t * l->dim + i];
        }
    }
    for (uint32_t i = 0; i < l->dim; i++) {
        centre[i] = krn_f16_from_float(mean[i] / (float)l->tokens);
        mean[i] = krn_f16_to_float(centre[i]);
    }
    for (uint32_t t = 0; t < l->tokens; t++) {
        for (uint32_t i = 0; i < l->dim; i++) {
            k[(size_t)t * l->dim + i] -= mean[i];
        }
    }
}

static void pack_k(const gpw_codes_layout_t *l, float *k, uint8_t *head)
{
    codes_by_half_t by;
    uint8_t codes[DIM_MAX], turned[DIM_MAX * LANES];
    krn_f16 *scales = (krn_f16 *)(void *)(head + l->k_scales);
    fill_codes(l->bits, &by);
    take_centre(l, k, (krn_f16 *)(void *)(head + l->k_centre));
    for (uint32_t t = 0; t < l->tokens; t += LANES, head += l->k_row_bytes) {
        memset(turned, 0, sizeof(turned));
        for (uint32_t lane = 0; lane < LANES && t + lane < l->tokens; lane++) {
            scales[t + lane] = encode(&by, k + (size_t)(t + lane) * l->dim, l->dim, codes);
            for (uint32_t i = 0; i < l->dim; i++) {
                turned[i * LANES + lane] = codes[i];
            }
        }
        pack_row(l->bits, turned, LANES, l->dim, head);
    }
}

static void pack_v(const gpw_codes_layout_t *l, const float *v, uint8_t *head)
{
    codes_by_half_t by;
    uint8_t codes[AS_BLOCK_TOKENS_MAX * DIM_MAX];
    krn_f16 *scales = (krn_f16 *)(void *)(head + l->v_scales);
    fill_codes(l->bits, &by);
    for (uint32_t t = 0; t < l->tokens; t++) {
        scales[t] = encode(&by, v + (size_t)t * l->dim, l->dim, codes + t * l->dim);
    }
    memset(codes + l->tokens * l->dim, 0, (l->tokens_padded - l->tokens) * l->dim);
    head += l->v_codes;
    for (uint32_t i = 0; i < l->dim; i += LANES, head += l->v_row_bytes) {
        pack_row(l->bits, codes + i, l->dim, l->tokens_padded, head);
    }
}

void gpw_turbo_pack(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head)
{
    gpw_turbo_rotate(k, layout->tokens, layout->dim);
    gpw_turbo_rotate(v, layout->tokens, layout->dim);
    pack_k(layout, k, head);
    pack_v(layout, v, head);
}

// ---- The codec ----------------------------------------------------------------------

void gpw_turbo_attends(gpw_codec_attend_fn *fns_p[4])
{
    uint32_t count = 0;
#if defined(__x86_64__)
    if (krn_cpu_named("avx512") && __builtin_cpu_supports("avx512vnni")) {
        fns_p[count++] = gpw_turbo_attend_avx512;
    }
    if (krn_cpu_named("avx2")) {
        fns_p[count++] = gpw_turbo_attend_avx2;
    }
#endif
    fns_p[count++] = gpw_turbo_attend_portable;
    fns_p[count] = NULL;
}

static const gpw_codec_t codec = {.layout = gpw_turbo_layout,
                                  .pack = gpw_turbo_pack,
                                  .attends = gpw_turbo_attends,
                                  .rotate = gpw_turbo_rotate,
                                  .rotate_back = gpw_turbo_rotate_back};

as_status_t gpw_turbo_open(const gpw_segment_options_t *options, gpw_segment_t **segment_p)
{
    return gpw_coded_open(&codec, options, segment_p);
}

uint64_t gpw_turbo_bytes_max(const gpw_segment_options_t *options, uint32_t blocks)
{
    return gpw_coded_bytes_max(&codec, options, blocks);
}
