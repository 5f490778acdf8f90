// SPDX-License-Identifier: Apache-2.0
// Of a prompt mixed widths: tokens and channels that matter in more bits than others, as
// select/rate.h chooses (RDKV); what comes later is held by blocks, by params.codec.
//
// A value has 2, 4 or 8 bits a channel, and one scale and minimum (affine.h), or is f16 as it was. A
// token of 0 bits is not held, neither its value nor its key. The keys of those that are held have 0,
// 2, 4 or 8 bits in a channel, which has one scale and minimum for all of them; a channel of 0 bits
// is its mean.
//
// Each KV head of a layer has the same memory, params.bits / 16 of what its keys and values would take
// in f16. Its tokens lie by zones: those of 16 bits first, then 8, 4 and 2; in a zone by position. So
// do channels, by zones of 8, 4, 2 and 0 bits. With b the bits of a zone:
//   k order    [dim] u8             which channel lies there
//   k scales   [scale, min][dim]    f16; scale 0 and the mean for 0 bits
//   k codes    [tokens / 64][zone]  of sixteen tokens and four channels a slice: slice c * g + t for
//              the c-th four channels, the t-th sixteen of the piece's g <= 4 sixteens of tokens
//   v codes    [zone][tokens / 64][dim / 16]  of four tokens and sixteen channels a slice
//   v scales   [zone][scale, min][tokens]     f16, tokens padded to a multiple of 16
//   v exact    [tokens][dim]                  f16
// A unit is 64 bytes, sixteen lanes of four bytes, and holds 8 / b slices, the i-th in the bits from
// i * b on of each byte. A lane is a token (of K) or a channel (of V); its four bytes are four
// channels or tokens. So what a zone lacks to whole slices is at most three tokens, and at most
// fifteen to a whole unit.
//
// The choice depends on the prompt's own queries: a segment belongs to its session alone, is never
// shared and never stored, and of the prompt's blocks a swap brings all.
#ifndef GPW_MIXED_H
#define GPW_MIXED_H

#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/select/rate.h"

#define GPW_MIXED_PIECE_TOKENS 64u
#define GPW_MIXED_PART_TOKENS  512u // of a piece of attention that one thread computes

as_status_t gpw_mixed_open(const gpw_segment_options_t *options,
                           gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_mixed_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_mixed_observe(gpw_segment_t *segment, const gpw_segment_observe_t *args);
void gpw_mixed_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_mixed_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_mixed_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_mixed_bytes(const gpw_segment_t *segment);
uint64_t gpw_mixed_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
void gpw_mixed_close(gpw_segment_t *segment);

#define GPW_MIXED_FUNCTIONS                                                                        \
    .holder = "the prompt", .form = "mixed", .open = gpw_mixed_open, .reserve = gpw_mixed_reserve, \
    .observe = gpw_mixed_observe, .seal = gpw_mixed_seal, .attend = gpw_mixed_attend,              \
    .extent = gpw_mixed_extent, .bytes = gpw_mixed_bytes, .bytes_max = gpw_mixed_bytes_max,        \
    .close = gpw_mixed_close

// ---- Of one KV head (mixed_codec.c) ------------------------------------------------------------

// Where its parts lie, in bytes from its memory's beginning, which is at a multiple of 64. Zones are
// indexed as gpw_rate_bits.
typedef struct gpw_mixed_layout {
    uint32_t tokens; // that are held
    size_t k_scales, k_codes, v_codes[GPW_RATES], v_scales[GPW_RATES], v_exact;
    size_t k_piece_bytes; // of 64 tokens
    size_t bytes;         // all of it
} gpw_mixed_layout_t;

void gpw_mixed_layout(uint32_t dim, const gpw_rates_t *rates, gpw_mixed_layout_t *layout_p);
// Of the keys' codes of up to 64 tokens.
size_t gpw_mixed_key_piece_bytes(uint32_t tokens, const uint32_t channels[GPW_RATES]);
// What a choice costs: of all values; of all keys of so many tokens.
size_t gpw_mixed_value_bytes(uint32_t dim, const uint32_t tokens[GPW_RATES]);
size_t gpw_mixed_key_bytes(uint32_t dim, uint32_t tokens, const uint32_t channels[GPW_RATES]);

// What is packed: one KV head of a prompt's pages.
typedef struct gpw_mixed_source {
    const as_shape_t *shape;
    const krn_page_t *pages; // by index
    uint32_t kv_head;
    const gpw_rates_t *rates;
    const uint32_t *tokens; // positions of those that are held, by zones
} gpw_mixed_source_t;

// Writes all but the order of the channels, which is there.
void gpw_mixed_pack(const gpw_mixed_source_t *source, uint8_t *memory);

// A piece of attention that one thread computes: some tokens of one KV head.
typedef struct gpw_mixed_part {
    const gpw_rates_t *rates;
    const uint8_t *memory;
    uint32_t dim, first, tokens;         // first: a multiple of GPW_MIXED_PART_TOKENS
    uint32_t rows, q_heads, group_heads; // group_heads: query heads of one KV head
    uint32_t kv_head;
    float scale;
    const float *q;     // [rows][q_heads][dim]
    krn_partials_t out; // [rows][q_heads]; only this KV head's query heads are written
} gpw_mixed_part_t;

typedef void gpw_mixed_attend_fn(const gpw_mixed_part_t *part);
gpw_mixed_attend_fn gpw_mixed_attend_portable, gpw_mixed_attend_avx2, gpw_mixed_attend_avx512;
// Those that this processor can run, to the same bits: the fastest first, then NULL.
void gpw_mixed_attends(gpw_mixed_attend_fn *fns_p[4]);

#endif
