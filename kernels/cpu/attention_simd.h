// SPDX-License-Identifier: Apache-2.0
// Attention over pages, with the v16 of the simd_<isa>.h included before.
//
// A part is one KV head, some rows and some pages. Its (row, head of the group) pairs are taken
// BLOCK_PAIRS at a time; for each page: logits of all pairs (attention_logits_simd.h), softmax of
// each, sums of V for each, and the merge into the total. The scalar rule is attend_page of
// reference.c. V is converted to f32 once a page when many pairs use it, else as it is read.
#include "kernels/cpu/attention_logits_simd.h"

// ---- Softmax ------------------------------------------------------------------------

static void softmax_pair(const block_t *b, uint32_t pair)
{
    float *s = b->logits + (size_t)pair * b->logits_stride;
    uint32_t visible = b->visible[pair], whole = round_up16(visible);
    v16 max = v16_set1(-INFINITY), sum = v16_set1(0.0f);

    for (uint32_t t = visible; t < whole; t++)
        s[t] = -INFINITY; // exp gives 0
    for (uint32_t t = 0; t < whole; t += 16)
        max = v16_max(v16_load(s + t), max);
    float page_max = v16_max_all(max) + 0.0f;
    max = v16_set1(page_max);
    for (uint32_t t = 0; t < whole; t += 16) {
        v16 p = v16_exp(v16_sub(v16_load(s + t), max));
        sum = v16_add(sum, p);
        v16_store(s + t, p);
    }
    b->page_max[pair] = page_max;
    b->page_sum[pair] = v16_tree(sum);
}

// Sixteen pairs from `pair` on, or those before `end`, so that their maxima are found together, and
// their sums. Beyond the last pair and where a pair sees nothing, max and sum mean nothing.
static void softmax_pairs(const block_t *b, uint32_t pair, uint32_t end)
{
    _Alignas(64) float lanes[16][16];
    uint32_t count = min_u32(end - pair, 16);

    for (uint32_t i = 0; i < count; i++) {
        float *s = b->logits + (size_t)(pair + i) * b->logits_stride;
        uint32_t visible = b->visible[pair + i], whole = round_up16(visible);
        v16 max = v16_set1(-INFINITY);
        for (uint32_t t = visible; t < whole; t++)
            s[t] = -INFINITY; // exp gives 0
        for (uint32_t t = 0; t < whole; t += 16)
            max = v16_max(v16_load(s + t), max);
        v16_store(lanes[i], max);
    }
    for (uint32_t i = count; i < 16; i++)
        v16_store(lanes[i], v16_set1(0.0f));
    v16_store(b->page_max + pair, v16_add(v16_max16((const float(*)[16])lanes), v16_set1(0.0f)));
    for (uint32_t i = 0; i < count; i++) {
        float *s = b->logits + (size_t)(pair + i) * b->logits_stride;
        uint32_t whole = round_up16(b->visible[pair + i]);
        v16 max = v16_set1(b->page_max[pair + i]), sum = v16_set1(0.0f);
        for (uint32_t t = 0; t < whole; t += 16) {
            v16 p = v16_exp(v16_sub(v16_load(s + t), max));
            sum = v16_add(sum, p);
            v16_store(s + t, p);
        }
        v16_store(lanes[i], sum);
    }
    v16_store(b->page_sum + pair, v16_tree16((const float(*)[16])lanes));
}

// ---- Sums of V ----------------------------------------------------------------------

// Tokens of V that lie at v, the first of them token t0 of the page; f16, or f32 in the conversion
// buffer.
typedef struct values {
    const void *v;
    uint32_t t0, count;
} values_t;

// page_out of R pairs, D vectors of dims from d on, over tokens [first, last) of the page.
KRN_INLINE void pv_tile(const block_t *b, const values_t *values, uint32_t pair, uint32_t d,
                        uint32_t first, uint32_t last, const int R, const int D, const int f16)
{
    const uint32_t dim = b->args->dim;
    const float *p = b->logits + (size_t)pair * b->logits_stride;
    float *out = b->page_out + (size_t)pair * dim + d;
    v16 acc[8][8];

#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < D; i++)
            acc[r][i] = first == 0 ? v16_set1(0.0f) : v16_load(out + r * dim + 16 * i);
    for (uint32_t t = first; t < last; t++) {
        size_t at = (size_t)(t - values->t0) * dim + d;
        v16 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < D; i++)
            v[i] = f16 ? v16_load_f16((const krn_f16 *)values->v + at + 16 * i)
                       : v16_load((const float *)values->v + at + 16 * i);
#pragma GCC unroll 8
        for (int i = 0; f16 && i < D; i += 2)
            v16_prefetch(b->ahead + at + 16 * i);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 weight = v16_set1(p[(size_t)r * b->logits_stride + t]);
#pragma GCC unroll 8
            for (int i = 0; i < D; i++)
                acc[r][i] = v16_fma(weight, v[i], acc[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < D; i++)
            v16_store(out + r * dim + 16 * i, acc[r][i]);
}

KRN_INLINE void pv_dims(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                        uint32_t last, const int R, const int f16)
{
    uint32_t d = 0, dim = b->args->dim;

    for (; d + 16 * KRN_PV_VECTORS <= dim; d += 16 * KRN_PV_VECTORS)
        pv_tile(b, values, pair, d, first, last, R, KRN_PV_VECTORS, f16);
    for (; d < dim; d += 16)
        pv_tile(b, values, pair, d, first, last, R, 1, f16);
}

static void pv_pairs_f32(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                         uint32_t last)
{
    pv_dims(b, values, pair, first, last, KRN_PV_PAIRS, 0);
}
static void pv_three_f32(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                         uint32_t last)
{
    pv_dims(b, values, pair, first, last, 3, 0);
}
static void pv_one_f32(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                       uint32_t last)
{
    pv_dims(b, values, pair, first, last, 1, 0);
}
static void pv_three_f16(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                         uint32_t last)
{
    pv_dims(b, values, pair, first, last, 3, 1);
}
static void pv_one_f16(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                       uint32_t last)
{
    pv_dims(b, values, pair, first, last, 1, 1);
}

typedef void pv_fn(const block_t *b, const values_t *values, uint32_t pair, uint32_t first,
                   uint32_t last);

// One chunk of V. Pairs of a tile go together over the tokens that all of them see; the rest singly.
static void values_chunk(const block_t *b, const values_t *values, pairs_t pairs, int f16)
{
    const uint32_t wide = f16 ? 3 : KRN_PV_PAIRS;
    pv_fn *const one = f16 ? pv_one_f16 : pv_one_f32;
    pv_fn *const three = f16 ? pv_three_f16 : pv_three_f32;
    uint32_t end = values->t0 + values->count;

    for (uint32_t pair = pairs.first, step; pair < pairs.end; pair += step) {
        uint32_t left = pairs.end - pair, common = end;
        step = left >= wide ? wide : left >= 3 ? 3 : 1;
        for (uint32_t i = 0; i < step; i++)
            common = min_u32(common, b->visible[pair + i]);
        if (step == 1 || common <= values->t0)
            common = values->t0;
        else if (step == 3)
            three(b, values, pair, values->t0, common);
        else
            pv_pairs_f32(b, values, pair, values->t0, common);
        for (uint32_t i = 0; i < step; i++) {
            uint32_t last = min_u32(end, b->visible[pair + i]);
            if (last > common)
                one(b, values, pair + i, common, last);
        }
    }
}

static void values_many(const block_t *b, const krn_f16 *v, pairs_t pairs)
{
    uint32_t dim = b->args->dim;

    for (uint32_t t0 = 0; t0 < b->visible_max; t0 += CHUNK_TOKENS) {
        values_t values = {
            .v = b->values, .t0 = t0, .count = min_u32(b->visible_max - t0, CHUNK_TOKENS)};
        for (uint32_t i = 0; pairs.first == 0 && i < values.count * dim; i += 16)
            v16_store(b->values + i, v16_load_f16(v + (size_t)t0 * dim + i));
        values_chunk(b, &values, pairs, 0);
    }
}

// ---- Pages --------------------------------------------------------------------------

// The factors by which each pair's total and page enter the merge, and the merged max and sum.
// Where one side is empty the factors mean nothing and are not used.
static void merge_scales(const block_t *b, pairs_t pairs)
{
    for (uint32_t pair = pairs.first; pair < pairs.end; pair += 16) {
        v16 total = v16_load(b->total_max + pair), page = v16_load(b->page_max + pair);
        v16 max = v16_max(total, page);
        v16_store(b->total_scale + pair, v16_exp(v16_sub(total, max)));
        v16_store(b->page_scale + pair, v16_exp(v16_sub(page, max)));
    }
}

// The merge rule of kernels.h: total, in io, with this page.
static void merge_page(const block_t *b, krn_partials_t *io, uint32_t pair)
{
    uint32_t dim = b->args->dim;
    float *total = io->out + (size_t)b->at[pair] * dim;
    const float *page = b->page_out + (size_t)pair * dim;
    float a_max = b->total_max[pair], b_max = b->page_max[pair];

    if (a_max == -INFINITY) {
        b->total_max[pair] = b_max;
        b->total_sum[pair] = b->page_sum[pair];
        memcpy(total, page, dim * sizeof(float));
        return;
    }
    float ea = b->total_scale[pair], eb = b->page_scale[pair];
    v16 wide_a = v16_set1(ea), wide_b = v16_set1(eb);
    for (uint32_t d = 0; d < dim; d += 16)
        v16_store(total + d,
                  v16_fma(wide_b, v16_load(page + d), v16_mul(wide_a, v16_load(total + d))));
    b->total_sum[pair] = fmaf(eb, b->page_sum[pair], ea * b->total_sum[pair]);
    b->total_max[pair] = a_max > b_max ? a_max : b_max;
}

static void attend_pairs(block_t *b, const krn_f16 *k, const krn_f16 *v, pairs_t pairs)
{
    int few = b->pairs < FEW_PAIRS;
    values_t values = {.v = v, .count = b->visible_max};

    b->ahead = v;
    if (few)
        logits_few(b, k);
    else
        logits_many(b, k, pairs);
    for (uint32_t pair = pairs.first; few && pair < pairs.end; pair++)
        if (b->visible[pair] > 0)
            softmax_pair(b, pair);
    for (uint32_t pair = pairs.first; !few && pair < pairs.end; pair += 16)
        softmax_pairs(b, pair, pairs.end);
    b->ahead = b->next;
    if (few)
        values_chunk(b, &values, pairs, 1);
    else
        values_many(b, v, pairs);
    merge_scales(b, pairs);
}

static void attend_page(block_t *b, const krn_page_t *page, const krn_page_t *next,
                        krn_partials_t *io)
{
    const krn_attention_args_t *args = b->args;
    size_t base = (size_t)b->kv_head * args->capacity * args->dim;

    b->visible_max = 0;
    for (uint32_t pair = 0; pair < b->pairs; pair++) {
        b->visible[pair] = krn_page_visible(page, args->capacity, b->position[pair]);
        b->visible_max = b->visible[pair] > b->visible_max ? b->visible[pair] : b->visible_max;
    }
    if (b->visible_max == 0)
        return;
    b->next = next->k + base;
    pairs_t pairs = {0, 0};
    for (; pairs.first < b->pairs; pairs.first = pairs.end) {
        // Where a page is more than one chunk, its conversion serves all pairs at once.
        uint32_t some = b->visible_max <= CHUNK_TOKENS ? SOME_PAIRS : b->pairs;
        pairs.end = min_u32(b->pairs, pairs.first + some);
        attend_pairs(b, page->k + base, page->v + base, pairs);
        for (uint32_t pair = pairs.first; pair < pairs.end; pair++)
            if (b->visible[pair] > 0)
                merge_page(b, io, pair);
    }
}

static void block_carve(block_t *b)
{
    float *at = krn_pool_scratch();
    uint32_t dim = b->args->dim;

    _Static_assert(SCRATCH_FLOATS * sizeof(float) <= KRN_SCRATCH_BYTES, "a block fits the scratch");
    b->logits_stride = round_up16(b->args->capacity);
    b->keys = at;
    b->values = b->keys + (size_t)CHUNK_TOKENS * dim;
    b->q = b->values + (size_t)CHUNK_TOKENS * dim;
    b->logits = b->q + (size_t)BLOCK_PAIRS * dim;
    b->page_out = b->logits + (size_t)BLOCK_PAIRS * b->logits_stride;
    b->page_max = b->page_out + (size_t)BLOCK_PAIRS * dim;
    b->page_sum = b->page_max + BLOCK_PAIRS;
    b->total_max = b->page_sum + BLOCK_PAIRS;
    b->total_sum = b->total_max + BLOCK_PAIRS;
    b->total_scale = b->total_sum + BLOCK_PAIRS;
    b->page_scale = b->total_scale + BLOCK_PAIRS;
    b->visible = (uint32_t *)(b->page_scale + BLOCK_PAIRS);
    b->at = b->visible + BLOCK_PAIRS;
    b->position = (int32_t *)(b->at + BLOCK_PAIRS);
    memset(b->page_max, 0, 4 * BLOCK_PAIRS * sizeof(float)); // read beyond the last pair
}

static void attend_block(block_t *b, const krn_attention_part_t *part, krn_partials_t *io)
{
    const krn_attention_args_t *args = b->args;

    for (uint32_t pair = 0; pair < b->pairs; pair++) {
        uint32_t row = b->row0 + pair / b->group;
        size_t at = (size_t)row * args->q_heads + b->kv_head * b->group + pair % b->group;
        b->at[pair] = (uint32_t)at;
        b->position[pair] = args->positions[row];
        memcpy(b->q + (size_t)pair * args->dim, args->q + at * args->dim,
               args->dim * sizeof(float));
        b->total_max[pair] = io->max[at];
        b->total_sum[pair] = io->sum[at];
    }
    for (uint32_t p = part->page0; p < part->page0 + part->pages; p++)
        attend_page(b, &args->pages[p], &args->pages[min_u32(p + 1, args->page_count - 1)], io);
    for (uint32_t pair = 0; pair < b->pairs; pair++) {
        size_t at = b->at[pair];
        io->max[at] = b->total_max[pair];
        io->sum[at] = b->total_sum[pair];
    }
}

void KRN_ISA(attention_part)(const krn_attention_args_t *args, const krn_attention_part_t *part,
                             krn_partials_t *io)
{
    block_t b = {.args = args, .kv_head = part->kv_head, .group = args->q_heads / args->kv_heads};

    AS_ASSERT(b.group <= BLOCK_PAIRS);
    block_carve(&b);
    uint32_t block_rows = BLOCK_PAIRS / b.group;
    for (uint32_t r = 0; r < part->rows; r += block_rows) {
        b.row0 = part->row0 + r;
        b.pairs = min_u32(part->rows - r, block_rows) * b.group;
        attend_block(&b, part, io);
    }
}

typedef struct whole {
    const krn_attention_args_t *args;
    krn_partials_t *io;
    uint32_t block_rows;
} whole_t;

static void whole_item(void *ctx, uint32_t index)
{
    const whole_t *whole = ctx;
    const krn_attention_args_t *args = whole->args;
    krn_attention_part_t part = {.kv_head = index % args->kv_heads,
                                 .row0 = index / args->kv_heads * whole->block_rows,
                                 .pages = args->page_count};

    part.rows = min_u32(args->rows - part.row0, whole->block_rows);
    KRN_ISA(attention_part)(args, &part, whole->io);
}

void KRN_ISA(attention)(krn_pool_t *pool, const krn_attention_args_t *args, krn_partials_t *io)
{
    whole_t whole = {.args = args, .io = io};
    uint32_t group = args->q_heads / args->kv_heads;

    krn_attention_check(args);
    whole.block_rows = group <= BLOCK_PAIRS ? BLOCK_PAIRS / group : 1;
    uint32_t blocks = (args->rows + whole.block_rows - 1) / whole.block_rows;
    krn_pool_run(pool, blocks * args->kv_heads, whole_item, &whole);
}
