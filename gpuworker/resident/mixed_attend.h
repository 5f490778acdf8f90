// SPDX-License-Identifier: Apache-2.0
// Attention over mixed widths, straight from the codes: included by mixed_attend_*.c, each after the
// integer dot products of its instruction set.
//
// With a code's value = code * scale + min, a sum over what weighs x is
//   sum(x * value) = sum(w * (code - mid)) + sum(x * centre)
// where w = x * scale, mid = (2^bits - 1) / 2 and centre = min + mid * scale. The second sum is in
// f32. In the first w is rounded to whole steps, so that it is one of products of small integers,
// exact in whatever order and on any processor. Steps are of a zone: of keys a 127th of its largest
// |w|, of values, whose w is not negative, a 255th of the largest among the 64 tokens of a piece. So
// what is rounded off is always little beside what the zone's bits have cost already.
//
// Codes of 8 bits are two of 4: their sum is that of the lower halves and 16 times that of the upper.
#include <string.h>

#include "gpuworker/resident/attend_steps.h"
#include "gpuworker/resident/codec.h"
#include "gpuworker/resident/mixed.h"
#include "gpuworker/resident/partials.h"

#define PIECE       GPW_MIXED_PIECE_TOKENS
#define MARGIN      16u // of a part's weights on either side: nothing
#define VALUE_STEPS 255.0f

enum { TWO_BITS = 1, FOUR_BITS = 2, EIGHT_BITS = 3, SIXTEEN_BITS = 4 }; // rates

// What weighs the codes of keys, by place in the order of the channels.
typedef struct key_weights {
    _Alignas(64) int8_t steps[QUERIES][WIDTH_MAX + MARGIN];
    float step[QUERIES][GPW_RATES], offset[QUERIES];
} key_weights_t;

// What weighs the codes of a piece of values.
typedef struct value_weights {
    _Alignas(64) int8_t steps[QUERIES][PIECE]; // unsigned
    float step[QUERIES], offset[QUERIES];
} value_weights_t;

typedef struct work {
    // Logits, then exp(logit - max), of the part's tokens.
    _Alignas(64) float p[QUERIES][MARGIN + GPW_MIXED_PART_TOKENS + MARGIN];
    _Alignas(64) float out[QUERIES][WIDTH_MAX];
    const float *q[QUERIES];
    uint32_t queries;
    key_weights_t keys;
    value_weights_t values;
} work_t;

static float mid_of(uint32_t rate)
{
    return (float)((1u << gpw_rate_bits[rate]) - 1) / 2;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t round_up(uint32_t count, uint32_t to)
{
    return (count + to - 1) / to * to;
}

// ---- Keys: weights --------------------------------------------------------------------------

// A head's channels by place in their order, with room for a vector that begins at the last.
typedef struct channels {
    float x[WIDTH_MAX + MARGIN], scale[WIDTH_MAX + MARGIN], min[WIDTH_MAX + MARGIN];
    uint32_t dim;
} channels_t;

static void load_channels(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l, channels_t *c)
{
    const krn_f16 *scales = (const krn_f16 *)(const void *)(part->memory + l->k_scales);
    c->dim = part->dim;
    for (uint32_t i = 0; i < c->dim; i += 16) {
        v16_store(c->scale + i, v16_load_f16(scales + i));
        v16_store(c->min + i, v16_load_f16(scales + c->dim + i));
    }
    memset(c->scale + c->dim, 0, MARGIN * sizeof(float));
    memset(c->min + c->dim, 0, MARGIN * sizeof(float));
    memset(c->x, 0, sizeof(c->x));
}

// A zone of channels: [first, end).
typedef struct zone {
    uint32_t rate, first, end;
} zone_t;

// Its steps and step; adds to the exact sum.
static void weigh_zone(const channels_t *c, const zone_t *zone, int8_t *steps, float *step_p,
                       v16 *exact_p)
{
    const float mid = mid_of(zone->rate);
    const uint32_t end = zone->end;
    v16 largest = v16_set1(TINY), rounded = v16_set1(0.0f), exact = *exact_p;
    for (uint32_t i = zone->first; i < end; i += 16) {
        v16 x = v16_load_n(c->x + i, min_u32(end - i, 16));
        largest = v16_max(largest, v16_abs(v16_mul(x, v16_load(c->scale + i))));
    }
    const float step = v16_max_all(largest) * (1.0f / STEPS);
    const v16 inverse = v16_set1(1.0f / step), magic = v16_set1(ROUND_BITS);
    for (uint32_t i = zone->first; i < end; i += 16) {
        v16 x = v16_load_n(c->x + i, min_u32(end - i, 16)), scale = v16_load(c->scale + i);
        v16 whole = v16_fma(v16_mul(x, inverse), scale, magic);
        v16_store_low8(steps + i, whole); // beyond the end, too: the next zone writes over it
        rounded = v16_add(rounded, v16_sub(whole, magic));
        exact = v16_fma(x, v16_fma(scale, v16_set1(mid), v16_load(c->min + i)), exact);
    }
    *step_p = step;
    *exact_p = v16_fma(rounded, v16_set1(-mid * step), exact);
}

static void weigh_keys(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l, work_t *w)
{
    channels_t c;
    load_channels(part, l, &c);
    for (uint32_t q = 0; q < w->queries; q++) {
        zone_t zone = {0};
        v16 exact = v16_set1(0.0f);
        for (uint32_t i = 0; i < c.dim; i++) {
            c.x[i] = w->q[q][part->memory[i]];
        }
        for (zone.rate = EIGHT_BITS; zone.rate >= TWO_BITS; zone.rate--) {
            zone.end = zone.first + part->rates->channels[zone.rate];
            weigh_zone(&c, &zone, w->keys.steps[q], &w->keys.step[q][zone.rate], &exact);
            zone.first = zone.end;
        }
        for (uint32_t i = zone.first; i < c.dim; i += 16) { // their means
            v16 x = v16_load_n(c.x + i, min_u32(c.dim - i, 16));
            exact = v16_fma(x, v16_load(c.min + i), exact);
        }
        w->keys.offset[q] = v16_tree(exact);
    }
}

// ---- Keys: codes ----------------------------------------------------------------------------

// One piece.
typedef struct key_piece {
    const uint8_t *codes;
    size_t at[GPW_RATES];      // where in the codes a zone's begin
    uint32_t first[GPW_RATES]; // the zone's first channel's place
    uint32_t fours[GPW_RATES]; // how many channels, in fours
    uint32_t sixteens;         // how many tokens, in sixteens
    float *p;                  // of query 0; the others' lie P_STRIDE further each
} key_piece_t;

#define P_STRIDE     (MARGIN + GPW_MIXED_PART_TOKENS + MARGIN)
#define STEPS_STRIDE ((size_t)WIDTH_MAX + MARGIN)

// Which sixteen tokens of a piece, and the next sixteen.
typedef struct two {
    uint32_t sixteen, sixteens, queries; // sixteens: of the piece
} two_t;

// A zone of 2 or 4 bits.
INLINE void add_two(const key_piece_t *piece, const two_t two, const uint32_t rate,
                    const key_weights_t *w, v16 sums[QUERIES][2])
{
    const uint32_t bits = 1u << rate, slices = 8 / bits, mask = (1u << bits) - 1;
    const uint8_t *codes = piece->codes + piece->at[rate];
    const int8_t *steps = w->steps[0] + piece->first[rate];
    const int8_t *end = steps + 4 * (size_t)piece->fours[rate];
    uint32_t slice = two.sixteen;
    dots_t dots[QUERIES][2];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        dots[q][0] = dots[q][1] = dots_zero();
    }
    for (; steps < end; steps += 4, slice += two.sixteens) {
#pragma GCC unroll 2
        for (uint32_t i = 0; i < 2; i++) {
            codes_t packed = codes_load(codes + (slice + i) / slices * GPW_CODES_UNIT_BYTES);
            packed = codes_slice(packed, (slice + i) % slices * bits, mask);
#pragma GCC unroll 4
            for (uint32_t q = 0; q < two.queries; q++) {
                dots[q][i] = dots_add(dots[q][i], packed, steps + q * STEPS_STRIDE);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        v16 step = v16_set1(w->step[q][rate]);
        sums[q][0] = v16_fma(step, dots_float(dots[q][0]), sums[q][0]);
        sums[q][1] = v16_fma(step, dots_float(dots[q][1]), sums[q][1]);
    }
}

// The zone of 8 bits, for one of the two: a slice is a unit.
INLINE void add_bytes(const key_piece_t *piece, const two_t two, const uint32_t which,
                      const key_weights_t *w, v16 sums[QUERIES][2])
{
    const uint8_t *codes =
        piece->codes + piece->at[EIGHT_BITS] + (size_t)(two.sixteen + which) * GPW_CODES_UNIT_BYTES;
    const int8_t *steps = w->steps[0] + piece->first[EIGHT_BITS];
    const int8_t *end = steps + 4 * (size_t)piece->fours[EIGHT_BITS];
    dots_t low[QUERIES], high[QUERIES];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        low[q] = high[q] = dots_zero();
    }
    for (; steps < end; steps += 4, codes += two.sixteens * GPW_CODES_UNIT_BYTES) {
        codes_t packed = codes_load(codes);
        codes_t lower = codes_slice(packed, 0, 15), upper = codes_slice(packed, 4, 15);
#pragma GCC unroll 4
        for (uint32_t q = 0; q < two.queries; q++) {
            low[q] = dots_add(low[q], lower, steps + q * STEPS_STRIDE);
            high[q] = dots_add(high[q], upper, steps + q * STEPS_STRIDE);
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        v16 dot = v16_fma(v16_set1(16.0f), dots_float(high[q]), dots_float(low[q]));
        sums[q][which] = v16_fma(v16_set1(w->step[q][EIGHT_BITS]), dot, sums[q][which]);
    }
}

// Logits of the tokens of two sixteens; where there is but one, the other's are anything.
INLINE void two_sixteens(const key_piece_t *piece, const two_t two, const key_weights_t *w)
{
    v16 sums[QUERIES][2];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        sums[q][0] = sums[q][1] = v16_set1(w->offset[q]);
    }
    if (piece->fours[EIGHT_BITS]) {
        add_bytes(piece, two, 0, w, sums);
        add_bytes(piece, two, 1, w, sums);
    }
    add_two(piece, two, FOUR_BITS, w, sums);
    add_two(piece, two, TWO_BITS, w, sums);
#pragma GCC unroll 4
    for (uint32_t q = 0; q < two.queries; q++) {
        float *p = piece->p + (size_t)q * P_STRIDE + 16 * (size_t)two.sixteen;
        v16_store(p, sums[q][0]);
        v16_store(p + 16, sums[q][1]);
    }
}

// With constants the compiler keeps the sums in registers, and knows the slices of whole pieces.
#define PIECE_LOGITS(QUERIES_)                                                                     \
    static void piece_logits_##QUERIES_(const key_piece_t *piece, const key_weights_t *w)          \
    {                                                                                              \
        if (piece->sixteens == 4) {                                                                \
            two_sixteens(piece, (two_t){0, 4, QUERIES_}, w);                                       \
            two_sixteens(piece, (two_t){2, 4, QUERIES_}, w);                                       \
            return;                                                                                \
        }                                                                                          \
        for (uint32_t i = 0; i < piece->sixteens; i += 2) {                                        \
            two_sixteens(piece, (two_t){i, piece->sixteens, QUERIES_}, w);                         \
        }                                                                                          \
    }

PIECE_LOGITS(1)
PIECE_LOGITS(2)
PIECE_LOGITS(3)
PIECE_LOGITS(4)

static void (*const piece_logits_of[QUERIES])(const key_piece_t *piece, const key_weights_t *w) = {
    piece_logits_1, piece_logits_2, piece_logits_3, piece_logits_4};

// Where things are in a piece of `tokens` tokens.
static void find_zones(const gpw_mixed_part_t *part, uint32_t tokens, key_piece_t *piece)
{
    uint32_t first = 0;
    size_t at = 0;
    for (uint32_t r = EIGHT_BITS; r >= TWO_BITS; r--) {
        uint32_t alone[GPW_RATES] = {0};
        alone[r] = part->rates->channels[r];
        piece->at[r] = at;
        piece->first[r] = first;
        piece->fours[r] = alone[r] / 4;
        at += gpw_mixed_key_piece_bytes(tokens, alone);
        first += alone[r];
    }
    piece->sixteens = round_up(tokens, 16) / 16;
}

static void part_logits(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l, work_t *w)
{
    key_piece_t piece = {.codes =
                             part->memory + l->k_codes + part->first / PIECE * l->k_piece_bytes};
    find_zones(part, PIECE, &piece);
    for (uint32_t t = 0; t < part->tokens; t += PIECE, piece.codes += l->k_piece_bytes) {
        if (part->tokens - t < PIECE) {
            find_zones(part, part->tokens - t, &piece);
        }
        piece.p = w->p[0] + MARGIN + t;
        piece_logits_of[w->queries - 1](&piece, &w->keys);
    }
}

// ---- Values ---------------------------------------------------------------------------------

// Some tokens of a zone, all of one piece.
typedef struct value_piece {
    const krn_f16 *scales, *mins; // of `count` tokens, a multiple of 16
    const float *p;               // of query 0
    uint32_t count;
    float mid;
    const uint8_t *codes; // of the first sixteen channels
    size_t bytes;         // of their units
    size_t row_bytes;     // to the next sixteen channels
} value_piece_t;

INLINE void weigh_values(const value_piece_t *piece, value_weights_t *w, const uint32_t queries)
{
    const v16 magic = v16_set1(ROUND_BITS), mid = v16_set1(piece->mid);
    const krn_f16 *scales = piece->scales, *mins = piece->mins; // copies: steps may be anything's
    const float *p = piece->p;
    const uint32_t count = piece->count;
    v16 largest[QUERIES], inverse[QUERIES], rounded[QUERIES], exact[QUERIES];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        largest[q] = v16_set1(TINY);
        rounded[q] = exact[q] = v16_set1(0.0f);
    }
    for (uint32_t t = 0; t < count; t += 16) {
        v16 scale = v16_load_f16(scales + t);
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            v16 x = v16_load(p + (size_t)q * P_STRIDE + t);
            largest[q] = v16_max(largest[q], v16_mul(x, scale));
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        w->step[q] = v16_max_all(largest[q]) * (1.0f / VALUE_STEPS);
        inverse[q] = v16_set1(1.0f / w->step[q]);
    }
    for (uint32_t t = 0; t < count; t += 16) {
        v16 scale = v16_load_f16(scales + t);
        v16 centre = v16_fma(scale, mid, v16_load_f16(mins + t));
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            v16 x = v16_load(p + (size_t)q * P_STRIDE + t);
            v16 whole = v16_fma(v16_mul(x, scale), inverse[q], magic);
            v16_store_low8(w->steps[q] + t, whole);
            rounded[q] = v16_add(rounded[q], v16_sub(whole, magic));
            exact[q] = v16_fma(x, centre, exact[q]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        v16 back = v16_set1(-piece->mid * w->step[q]);
        w->offset[q] = v16_tree(v16_fma(rounded[q], back, exact[q]));
    }
}

// Adds the piece's values of sixteen channels.
INLINE void add_channels(const value_piece_t *piece, uint32_t channel, work_t *w,
                         const uint32_t bits, const uint32_t queries)
{
    const uint32_t width = bits == 8 ? 4 : bits, slices = 8 / width, mask = (1u << width) - 1;
    const uint8_t *codes = piece->codes + channel / 16 * piece->row_bytes;
    const uint8_t *end = codes + piece->bytes;
    const int8_t *steps = w->values.steps[0];
    dots_t dots[QUERIES][2];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        dots[q][0] = dots[q][1] = dots_zero();
    }
    for (; codes < end; codes += GPW_CODES_UNIT_BYTES) {
        codes_t packed = codes_load(codes);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < slices; i++) {
            codes_t slice = codes_slice(packed, i * width, mask);
            const int8_t *four = bits == 8 ? steps : steps + 4 * i;
#pragma GCC unroll 4
            for (uint32_t q = 0; q < queries; q++) {
                dots[q][i % 2] = dots_add_unsigned(dots[q][i % 2], slice, four + q * PIECE);
            }
        }
        steps += 32 / bits;
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        v16 upper = v16_set1(bits == 8 ? 16.0f : 1.0f), step = v16_set1(w->values.step[q]);
        v16 dot = v16_fma(upper, dots_float(dots[q][1]), dots_float(dots[q][0]));
        float *out = w->out[q] + channel;
        v16 sum = v16_add(v16_load(out), v16_set1(w->values.offset[q]));
        v16_store(out, v16_fma(step, dot, sum));
    }
}

INLINE void add_values(const value_piece_t *piece, work_t *w, uint32_t dim, const uint32_t bits,
                       const uint32_t queries)
{
    weigh_values(piece, &w->values, queries);
    for (uint32_t c = 0; c < dim; c += 16) {
        add_channels(piece, c, w, bits, queries);
    }
}

#define ADD_VALUES(BITS, QUERIES_)                                                                 \
    static void add_values_##BITS##_##QUERIES_(const value_piece_t *piece, work_t *w,              \
                                               uint32_t dim)                                       \
    {                                                                                              \
        add_values(piece, w, dim, BITS, QUERIES_);                                                 \
    }
#define EACH_BITS(QUERIES_) ADD_VALUES(2, QUERIES_) ADD_VALUES(4, QUERIES_) ADD_VALUES(8, QUERIES_)

EACH_BITS(1)
EACH_BITS(2)
EACH_BITS(3)
EACH_BITS(4)

static void (*const add_values_of[3][QUERIES])(const value_piece_t *piece, work_t *w,
                                               uint32_t dim) = {
    {add_values_2_1, add_values_2_2, add_values_2_3, add_values_2_4},
    {add_values_4_1, add_values_4_2, add_values_4_3, add_values_4_4},
    {add_values_8_1, add_values_8_2, add_values_8_3, add_values_8_4},
};

// A zone, and which of its tokens are the part's.
typedef struct value_zone {
    uint32_t rate, first, from, to; // first: in the head's list
} value_zone_t;

// What of the zone's codes begins at its token `from`.
static void zone_values(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l,
                        const value_zone_t *zone, work_t *w)
{
    uint32_t count = part->rates->tokens[zone->rate], unit = 32 / gpw_rate_bits[zone->rate];
    uint32_t stride = round_up(count, 16), rows = part->dim / 16;
    const krn_f16 *scales = (const krn_f16 *)(const void *)(part->memory + l->v_scales[zone->rate]);
    for (uint32_t start = zone->from / PIECE * PIECE; start < zone->to; start += PIECE) {
        uint32_t held = min_u32(count - start, PIECE), to = min_u32(zone->to, start + held);
        uint32_t from = (zone->from > start ? zone->from : start) / 16 * 16;
        size_t skipped = (from - start) / unit * GPW_CODES_UNIT_BYTES;
        value_piece_t piece = {
            .scales = scales + from,
            .mins = scales + stride + from,
            .p = w->p[0] + MARGIN + zone->first + from - part->first,
            .count = round_up(to - from, 16),
            .mid = mid_of(zone->rate),
            .row_bytes = (size_t)round_up(held, unit) / unit * GPW_CODES_UNIT_BYTES,
        };
        piece.codes = part->memory + l->v_codes[zone->rate] +
                      (size_t)start / unit * rows * GPW_CODES_UNIT_BYTES + skipped;
        piece.bytes = (size_t)round_up(to - start, unit) / unit * GPW_CODES_UNIT_BYTES - skipped;
        add_values_of[zone->rate - TWO_BITS][w->queries - 1](&piece, w, part->dim);
    }
}

static void exact_values(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l,
                         const value_zone_t *zone, work_t *w)
{
    const krn_f16 *v = (const krn_f16 *)(const void *)(part->memory + l->v_exact);
    for (uint32_t n = zone->from; n < zone->to; n++) {
        for (uint32_t q = 0; q < w->queries; q++) {
            v16 p = v16_set1(w->p[q][MARGIN + zone->first + n - part->first]);
            for (uint32_t c = 0; c < part->dim; c += 16) {
                v16 row = v16_load_f16(v + (size_t)n * part->dim + c);
                v16_store(w->out[q] + c, v16_fma(p, row, v16_load(w->out[q] + c)));
            }
        }
    }
}

static void part_values(const gpw_mixed_part_t *part, const gpw_mixed_layout_t *l, work_t *w)
{
    uint32_t end = part->first + part->tokens;
    value_zone_t zone = {0};
    for (zone.rate = SIXTEEN_BITS; zone.rate >= TWO_BITS; zone.rate--) {
        uint32_t count = part->rates->tokens[zone.rate];
        zone.from = part->first > zone.first ? part->first - zone.first : 0;
        zone.to = end > zone.first ? min_u32(end - zone.first, count) : 0;
        if (zone.from < zone.to && zone.rate == SIXTEEN_BITS) {
            exact_values(part, l, &zone, w);
        } else if (zone.from < zone.to) {
            zone_values(part, l, &zone, w);
        }
        zone.first += count;
    }
}

// ---- A part ---------------------------------------------------------------------------------

// Pair `index` of the part's KV head: [row][head of the group].
static size_t pair_of(const gpw_mixed_part_t *part, uint32_t index)
{
    return (size_t)(index / part->group_heads) * part->q_heads + part->kv_head * part->group_heads +
           index % part->group_heads;
}

// The weights of tokens; nothing beside them, where vectors reach beyond the part.
static void weigh_tokens(const gpw_mixed_part_t *part, uint32_t first, work_t *w)
{
    uint32_t tokens = part->tokens, padded = round_up(tokens, 16);
    for (uint32_t q = 0; q < w->queries; q++) {
        size_t pair = pair_of(part, first + q);
        float *p = w->p[q] + MARGIN;
        for (uint32_t t = tokens; t < padded; t++) {
            p[t] = -INFINITY;
        }
        softmax(p, padded, part->scale, part->out.max + pair, part->out.sum + pair);
        v16_store(p - MARGIN, v16_set1(0.0f));
        v16_store(p + padded, v16_set1(0.0f));
    }
}

static void attend(const gpw_mixed_part_t *part)
{
    uint32_t pairs = part->rows * part->group_heads;
    work_t w;
    gpw_mixed_layout_t layout;
    gpw_mixed_layout(part->dim, part->rates, &layout);
    for (uint32_t first = 0; first < pairs; first += QUERIES) {
        w.queries = min_u32(pairs - first, QUERIES);
        for (uint32_t q = 0; q < w.queries; q++) {
            w.q[q] = part->q + pair_of(part, first + q) * part->dim;
            memset(w.out[q], 0, part->dim * sizeof(float));
        }
        weigh_keys(part, &layout, &w);
        part_logits(part, &layout, &w);
        weigh_tokens(part, first, &w);
        part_values(part, &layout, &w);
        for (uint32_t q = 0; q < w.queries; q++) {
            memcpy(part->out.out + pair_of(part, first + q) * part->dim, w.out[q],
                   part->dim * sizeof(float));
        }
    }
}
