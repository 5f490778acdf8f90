// SPDX-License-Identifier: Apache-2.0
// Mixed widths: the layout of one KV head's codes, and packing.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/affine.h"
#include "gpuworker/resident/codec.h"
#include "gpuworker/resident/mixed.h"

#define PIECE 64u
_Static_assert(PIECE == GPW_MIXED_PIECE_TOKENS, "as documented");

enum { TWO_BITS = 1, EIGHT_BITS = 3, SIXTEEN_BITS = 4 }; // rates; those between are codes

// ---- Layout ------------------------------------------------------------------------------------

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

size_t gpw_mixed_key_piece_bytes(uint32_t tokens, const uint32_t channels[GPW_RATES])
{
    uint32_t units = 0;
    for (uint32_t r = TWO_BITS; r <= EIGHT_BITS; r++) {
        units += divide_up(channels[r] / 4 * divide_up(tokens, 16), 8 / gpw_rate_bits[r]);
    }
    return (size_t)units * GPW_CODES_UNIT_BYTES;
}

// Of a zone's codes.
static size_t value_code_bytes(uint32_t dim, uint32_t rate, uint32_t tokens)
{
    return (size_t)divide_up(tokens, 32 / gpw_rate_bits[rate]) * (dim / 16) * GPW_CODES_UNIT_BYTES;
}

static size_t value_scale_bytes(uint32_t tokens)
{
    return divide_up(tokens, 16) * 16 * 2 * sizeof(krn_f16);
}

size_t gpw_mixed_value_bytes(uint32_t dim, const uint32_t tokens[GPW_RATES])
{
    size_t bytes = (size_t)tokens[SIXTEEN_BITS] * dim * sizeof(krn_f16);
    for (uint32_t r = TWO_BITS; r <= EIGHT_BITS; r++) {
        bytes += value_code_bytes(dim, r, tokens[r]) + value_scale_bytes(tokens[r]);
    }
    return bytes;
}

static size_t key_code_bytes(uint32_t tokens, const uint32_t channels[GPW_RATES])
{
    return tokens / PIECE * gpw_mixed_key_piece_bytes(PIECE, channels) +
           gpw_mixed_key_piece_bytes(tokens % PIECE, channels);
}

static size_t k_codes_at(uint32_t dim)
{
    return gpw_codes_whole_units(dim + 2 * dim * sizeof(krn_f16));
}

size_t gpw_mixed_key_bytes(uint32_t dim, uint32_t tokens, const uint32_t channels[GPW_RATES])
{
    return k_codes_at(dim) + key_code_bytes(tokens, channels);
}

void gpw_mixed_layout(uint32_t dim, const gpw_rates_t *rates, gpw_mixed_layout_t *layout_p)
{
    gpw_mixed_layout_t l = {.k_scales = dim, .k_codes = k_codes_at(dim)};
    for (uint32_t r = TWO_BITS; r < GPW_RATES; r++) {
        l.tokens += rates->tokens[r];
    }
    l.k_piece_bytes = gpw_mixed_key_piece_bytes(PIECE, rates->channels);
    l.bytes = l.k_codes + key_code_bytes(l.tokens, rates->channels);
    for (uint32_t r = EIGHT_BITS; r >= TWO_BITS; r--) {
        l.v_codes[r] = l.bytes;
        l.bytes += value_code_bytes(dim, r, rates->tokens[r]);
    }
    for (uint32_t r = EIGHT_BITS; r >= TWO_BITS; r--) {
        l.v_scales[r] = l.bytes;
        l.bytes += value_scale_bytes(rates->tokens[r]);
    }
    l.v_exact = l.bytes;
    l.bytes += (size_t)rates->tokens[SIXTEEN_BITS] * dim * sizeof(krn_f16);
    *layout_p = l;
}

static float levels_of(uint32_t rate)
{
    return (float)((1u << gpw_rate_bits[rate]) - 1);
}

// ---- Rows --------------------------------------------------------------------------------------

// Keys (part 0) or values (1) of the token at `position`.
static const krn_f16 *row_of(const gpw_mixed_source_t *source, uint32_t part, uint32_t position)
{
    uint32_t size = source->shape->block_tokens, dim = source->shape->head_dim;
    const krn_page_t *page = &source->pages[position / size];
    return (part ? page->v : page->k) + ((size_t)source->kv_head * size + position % size) * dim;
}

static void unpack_row(const gpw_mixed_source_t *source, uint32_t part, uint32_t position,
                       float *row)
{
    const krn_f16 *half = row_of(source, part, position);
    for (uint32_t c = 0; c < source->shape->head_dim; c++) {
        row[c] = krn_f16_to_float(half[c]);
    }
}

// ---- Keys --------------------------------------------------------------------------------------

// A head's channels by place in their order: what makes codes of them, and their zones.
typedef struct channels {
    const uint8_t *order;
    float min[KRN_HEAD_DIM_MAX], inverse[KRN_HEAD_DIM_MAX];
    uint32_t first[GPW_RATES], end[GPW_RATES]; // of each rate
} channels_t;

static void find_zones(const gpw_rates_t *rates, channels_t *c)
{
    uint32_t first = 0;
    for (uint32_t r = GPW_RATES; r-- > 0;) {
        c->first[r] = first;
        first += rates->channels[r];
        c->end[r] = first;
    }
}

// The range of each channel, or its mean where it has no bits.
static void scale_channels(const gpw_mixed_source_t *source, uint32_t tokens, channels_t *c,
                           krn_f16 *scales)
{
    float row[KRN_HEAD_DIM_MAX], low[KRN_HEAD_DIM_MAX], high[KRN_HEAD_DIM_MAX];
    double sum[KRN_HEAD_DIM_MAX] = {0};
    uint32_t dim = source->shape->head_dim;
    for (uint32_t i = 0; i < dim; i++) {
        low[i] = INFINITY;
        high[i] = -INFINITY;
    }
    for (uint32_t j = 0; j < tokens; j++) {
        unpack_row(source, 0, source->tokens[j], row);
        for (uint32_t i = 0; i < dim; i++) {
            low[i] = row[i] < low[i] ? row[i] : low[i];
            high[i] = row[i] > high[i] ? row[i] : high[i];
            sum[i] += row[i];
        }
    }
    for (uint32_t r = 0; r < GPW_RATES; r++) {
        for (uint32_t place = c->first[r]; place < c->end[r]; place++) {
            uint32_t i = c->order[place];
            float mean = (float)(sum[i] / tokens);
            gpw_affine_t g = r == 0 ? gpw_affine_of(mean, mean, 1)
                                    : gpw_affine_of(low[i], high[i], levels_of(r));
            scales[place] = g.stored_scale;
            scales[dim + place] = g.stored_min;
            c->min[place] = g.min;
            c->inverse[place] = g.inverse;
        }
    }
}

// The codes of one zone in one piece.
typedef struct key_zone {
    uint32_t rate, sixteens; // of the piece
    uint8_t *codes;
} key_zone_t;

// Of token t of the piece.
static void pack_key(const channels_t *c, const key_zone_t *zone, const float *row, uint32_t t)
{
    uint32_t bits = gpw_rate_bits[zone->rate], slices = 8 / bits, slice = t / 16;
    float levels = levels_of(zone->rate);
    for (uint32_t place = c->first[zone->rate]; place < c->end[zone->rate]; place += 4) {
        uint8_t *to = zone->codes + slice / slices * GPW_CODES_UNIT_BYTES + t % 16 * 4;
        uint32_t shift = slice % slices * bits;
        for (uint32_t i = place; i < place + 4; i++) {
            float x = row[c->order[i]];
            uint32_t code = gpw_affine_code(x, c->min[i], c->inverse[i], levels);
            to[i - place] |= (uint8_t)(code << shift);
        }
        slice += zone->sixteens;
    }
}

// `count` tokens, to codes that begin at `to`.
static void pack_key_piece(const gpw_mixed_source_t *source, const channels_t *c,
                           const uint32_t *tokens, uint32_t count, uint8_t *to)
{
    float row[KRN_HEAD_DIM_MAX];
    key_zone_t zones[GPW_RATES];
    for (uint32_t r = EIGHT_BITS; r >= TWO_BITS; r--) {
        uint32_t alone[GPW_RATES] = {0};
        alone[r] = source->rates->channels[r];
        zones[r] = (key_zone_t){r, divide_up(count, 16), to};
        to += gpw_mixed_key_piece_bytes(count, alone);
    }
    for (uint32_t t = 0; t < count; t++) {
        unpack_row(source, 0, tokens[t], row);
        for (uint32_t r = TWO_BITS; r <= EIGHT_BITS; r++) {
            pack_key(c, &zones[r], row, t);
        }
    }
}

static void pack_keys(const gpw_mixed_source_t *source, const gpw_mixed_layout_t *l,
                      uint8_t *memory)
{
    channels_t c = {.order = memory};
    uint8_t *to = memory + l->k_codes;
    find_zones(source->rates, &c);
    scale_channels(source, l->tokens, &c, (krn_f16 *)(void *)(memory + l->k_scales));
    for (uint32_t j = 0; j < l->tokens; j += PIECE, to += l->k_piece_bytes) {
        uint32_t left = l->tokens - j;
        pack_key_piece(source, &c, source->tokens + j, left < PIECE ? left : PIECE, to);
    }
}

// ---- Values ------------------------------------------------------------------------------------

typedef struct value_zone {
    uint32_t rate, dim, count; // count: tokens
    uint8_t *codes;
    krn_f16 *scales;
} value_zone_t;

// The zone's token n.
static void pack_value(const value_zone_t *zone, const float *row, uint32_t n)
{
    uint32_t bits = gpw_rate_bits[zone->rate], unit = 32 / bits, piece = n / PIECE * PIECE;
    uint32_t left = zone->count - piece;
    size_t row_bytes = (size_t)divide_up(left < PIECE ? left : PIECE, unit) * GPW_CODES_UNIT_BYTES;
    float low = row[0], high = row[0], levels = levels_of(zone->rate);
    for (uint32_t c = 1; c < zone->dim; c++) {
        low = row[c] < low ? row[c] : low;
        high = row[c] > high ? row[c] : high;
    }
    gpw_affine_t g = gpw_affine_of(low, high, levels);
    zone->scales[n] = g.stored_scale;
    zone->scales[divide_up(zone->count, 16) * 16 + n] = g.stored_min;
    uint32_t shift = n % unit / 4 * bits;
    uint8_t *to = zone->codes + value_code_bytes(zone->dim, zone->rate, piece) +
                  n % PIECE / unit * GPW_CODES_UNIT_BYTES + n % 4;
    for (uint32_t c = 0; c < zone->dim; c++) {
        uint32_t code = gpw_affine_code(row[c], g.min, g.inverse, levels);
        to[c / 16 * row_bytes + c % 16 * 4] |= (uint8_t)(code << shift);
    }
}

static void pack_values(const gpw_mixed_source_t *source, const gpw_mixed_layout_t *l,
                        uint8_t *memory)
{
    float row[KRN_HEAD_DIM_MAX];
    uint32_t dim = source->shape->head_dim;
    const uint32_t *tokens = source->tokens;
    for (uint32_t n = 0; n < source->rates->tokens[SIXTEEN_BITS]; n++) {
        memcpy(memory + l->v_exact + (size_t)n * dim * sizeof(krn_f16),
               row_of(source, 1, *tokens++), dim * sizeof(krn_f16));
    }
    for (uint32_t r = EIGHT_BITS; r >= TWO_BITS; r--) {
        value_zone_t zone = {r, dim, source->rates->tokens[r], memory + l->v_codes[r],
                             (krn_f16 *)(void *)(memory + l->v_scales[r])};
        for (uint32_t n = 0; n < zone.count; n++) {
            unpack_row(source, 1, *tokens++, row);
            pack_value(&zone, row, n);
        }
    }
}

void gpw_mixed_pack(const gpw_mixed_source_t *source, uint8_t *memory)
{
    gpw_mixed_layout_t layout;
    gpw_mixed_layout(source->shape->head_dim, source->rates, &layout);
    memset(memory + layout.k_codes, 0, layout.bytes - layout.k_codes); // codes are or-ed in
    if (layout.tokens > 0) {
        pack_keys(source, &layout, memory);
        pack_values(source, &layout, memory);
    }
}

void gpw_mixed_attends(gpw_mixed_attend_fn *fns_p[4])
{
    uint32_t count = 0;
#if defined(__x86_64__)
    if (krn_cpu_named("avx512") && __builtin_cpu_supports("avx512vnni")) {
        fns_p[count++] = gpw_mixed_attend_avx512;
    }
    if (krn_cpu_named("avx2")) {
        fns_p[count++] = gpw_mixed_attend_avx2;
    }
#endif
    fns_p[count++] = gpw_mixed_attend_portable;
    fns_p[count] = NULL;
}
