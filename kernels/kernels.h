// SPDX-License-Identifier: Apache-2.0
// The table of operations: what a model's forward pass and attention over cached blocks need, and
// nothing else.
//
// Every operation is batch-invariant, and more: its result is defined down to the bit, so every
// implementation (reference.c, any instruction set under cpu/, any number of threads) gives the
// same bits. The rules:
//
//  matmul     out[r][n] = one chain of fused multiply-adds over k ascending, starting from +0
//  dot (q.k)  16 lanes: lane i sums dims i, i+16, ... by fused multiply-adds ascending from +0;
//             then the tree x[i] += x[i+8]; x[i] += x[i+4]; x[i] += x[i+2]; x[0] + x[1]
//  sums       over n values: the same 16 lanes and tree; a short last group leaves its lanes
//             untouched
//  page       attention over the visible tokens of one page: logits s = dot * scale; max of s,
//             plus +0 (so never -0); p = exp(s - max); sum of p as above; out[d] a chain of fused
//             multiply-adds over tokens ascending, starting from +0
//  merge      of a with a later b: an empty side leaves the other's bits; else max = the greater,
//             ea = exp(a.max - max), eb = exp(b.max - max), out[d] = fma(eb, b.out[d], ea *
//             a.out[d]), sum likewise
//  order      pages merge left in ascending order within a run of KRN_RUN_PAGES pages (aligned to
//             the absolute page index), runs merge left in ascending order
//  exp        krn_expf of reference.c: range reduction and a fixed polynomial by fused
//             multiply-adds
//  others     (x * y, x + y, x / y, sqrt) are single IEEE operations in the order written in
//             reference.c
//
// So a cache made by one machine is exact on every other of the same KRN_NUMERICS_VERSION. NaN
// payloads are not defined; inputs are finite.
//
// Element types: f16 is IEEE binary16 in a uint16_t; conversion f32 -> f16 rounds to nearest even.
#ifndef KRN_KERNELS_H
#define KRN_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

// Part of the namespace; change it whenever any result bit changes.
#define KRN_NUMERICS_VERSION "fma-chain-1"
#define KRN_RUN_PAGES        16u   // pages that fold together before runs fold
#define KRN_HEAD_DIM_MAX     256u  // a head's dim is a multiple of 16, at most this
#define KRN_PAGE_TOKENS_MAX  1024u // most tokens a page may hold
#define KRN_PANEL            16u   // columns of one weight panel

typedef uint16_t krn_f16;

// ---- Threads ------------------------------------------------------------------------
// A fixed pool: `threads` in all, the caller being one of them. Work is split over rows, columns
// and heads, never over a sum. One thread at a time may use a pool, and a function that it runs may
// not use it again.
typedef struct krn_pool krn_pool_t;
as_status_t krn_pool_alloc(uint32_t threads, krn_pool_t **pool_p) AS_MUST_USE;
void krn_pool_free(krn_pool_t *pool);
uint32_t krn_pool_threads(const krn_pool_t *pool);
// Calls fn(ctx, i) for every i < count, spread over the threads; returns when all are done.
void krn_pool_run(krn_pool_t *pool, uint32_t count, void (*fn)(void *ctx, uint32_t index),
                  void *ctx);

// ---- Weights ------------------------------------------------------------------------
typedef enum krn_weight_type { KRN_WEIGHT_F16 = 1, KRN_WEIGHT_F32 = 2 } krn_weight_type_t;

// A matrix W[n][k] (n outputs) packed in panels of 16 outputs: data[n/16][k][16], the last panel
// padded with zeros.
typedef struct krn_weight {
    krn_weight_type_t type;
    uint32_t n, k;
    void *data; // 64-byte aligned; krn_weight_bytes long; owned by whoever packed it
} krn_weight_t;

size_t krn_weight_bytes(krn_weight_type_t type, uint32_t n, uint32_t k);
// Packs rows [row0, row0 + rows) given as f32 [rows][k] (row0 a multiple of 16, or any when rows
// are packed one by one); F16 rounds to nearest even. data must have been zeroed before the first
// call.
void krn_weight_pack(krn_weight_t *weight, uint32_t row0, uint32_t rows, const float *source);
// Unpacks row `row` to f32 [k] (token embeddings are looked up this way).
void krn_weight_row(const krn_weight_t *weight, uint32_t row, float *out);

// Asks for huge pages behind weights or caches, before they are first written: reading them is 15
// to 40 % faster. Whole 2 MB inside [memory, memory + bytes) only; for blocks of many MB.
void krn_memory_huge(void *memory, size_t bytes);

// ---- Attention over pages -----------------------------------------------------------
// One page: up to block_tokens tokens of one layer, in the layout of an extent: K then V,
// [kv_heads][capacity][dim].
typedef struct krn_page {
    const krn_f16 *k;
    const krn_f16 *v;
    uint32_t index; // absolute page index: position of its token t is index * capacity + t
} krn_page_t;

// Unnormalised partial result of attention for one (row, query head): sum of exp(s - max) * v, with
// its max and sum. An empty partial has max = -inf, sum = 0, out = 0. Attention out = out / sum;
// lse = max + log(sum).
typedef struct krn_partials {
    float *out; // [rows][q_heads][dim]
    float *max; // [rows][q_heads]
    float *sum; // [rows][q_heads]
} krn_partials_t;

typedef struct krn_attention_args {
    uint32_t rows, q_heads, kv_heads, dim;
    uint32_t capacity;        // tokens a page can hold: the block size, at most KRN_PAGE_TOKENS_MAX
    float scale;              // 1 / sqrt(dim)
    const float *q;           // [rows][q_heads][dim], after RoPE
    const int32_t *positions; // [rows]: a row sees the tokens at absolute positions <= its own
    const krn_page_t *pages;  // ascending by index
    uint32_t page_count;
} krn_attention_args_t;

// A piece of an attention that one thread computes alone.
typedef struct krn_attention_part {
    uint32_t kv_head;
    uint32_t row0, rows;
    uint32_t page0, pages;
} krn_attention_part_t;

// RoPE's table for positions [0, position_count), made with our own sine and cosine.
typedef struct krn_rope {
    uint32_t dim; // rotated elements of a head; even
    int neox;
    uint32_t position_count;
    const float *cos_sin; // [position_count][dim / 2][2]
} krn_rope_t;

typedef struct krn_ops {
    const char *name; // "reference", "portable", "avx2", "avx512"

    // out[rows][n] = x[rows][k] times W^T; out row stride is n. out must not overlap x.
    void (*matmul)(krn_pool_t *pool, const krn_weight_t *w, const float *x, uint32_t rows,
                   float *out);
    // out = x * (1 / sqrt(mean(x^2) + eps)) * weight, per row of `n`. In place allowed.
    void (*rmsnorm)(const float *x, const float *weight, uint32_t rows, uint32_t n, float eps,
                    float *out);
    // Rotates the first rope_dim elements of each head of x[rows][heads][dim] in place by position.
    // cos_sin is [positions][rope_dim / 2][2]. `neox`: pairs (i, i + rope_dim/2); else pairs (2i,
    // 2i + 1).
    void (*rope)(float *x, uint32_t rows, uint32_t heads, uint32_t dim, const krn_rope_t *rope,
                 const int32_t *positions);
    // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
    void (*swiglu)(const float *gate, const float *up, size_t count, float *out);
    // a[i] += b[i]
    void (*add)(float *a, const float *b, size_t count);
    void (*f32_to_f16)(const float *in, size_t count, krn_f16 *out);
    void (*f16_to_f32)(const krn_f16 *in, size_t count, float *out);
    // Partials of one run or less: all pages must lie in one aligned run of KRN_RUN_PAGES, and
    // page_count may be any part of it that starts at the run's beginning or continues `io` (io is
    // folded on the left). To begin, io must be set by krn_partials_clear.
    void (*attention)(krn_pool_t *pool, const krn_attention_args_t *args, krn_partials_t *io);
    // The same for one part of the rows, heads and pages, without a pool of its own: called from a
    // function that krn_pool_run runs. io has the shape of the whole args; only the part's rows and
    // heads are touched.
    void (*attention_part)(const krn_attention_args_t *args, const krn_attention_part_t *part,
                           krn_partials_t *io);
    // a = a merged with b (b covers later tokens), for `count` (row, head) pairs.
    void (*merge)(krn_partials_t *a, const krn_partials_t *b, uint32_t count, uint32_t dim);
    // out[count][dim] = partial out / sum.
    void (*normalise)(const krn_partials_t *partials, uint32_t count, uint32_t dim, float *out);
} krn_ops_t;

// Fills cos_sin for positions [first, first + count). inv_freq[dim / 2] are the angular frequencies
// (already scaled for long contexts by the model), `attention_factor` multiplies both.
void krn_rope_fill(float *cos_sin, uint32_t dim, const double *inv_freq, float attention_factor,
                   uint32_t first, uint32_t count);

void krn_partials_clear(krn_partials_t *partials, uint32_t count, uint32_t dim);
// Attention over any number of pages: runs of KRN_RUN_PAGES by ops->attention, merged in order; out
// is normalised, [rows][q_heads][dim]; lse may be NULL, else [rows][q_heads]. `scratch` holds
// krn_attention_scratch_bytes.
void krn_attention(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                   float *out, float *lse, void *scratch);
size_t krn_attention_scratch_bytes(uint32_t rows, uint32_t q_heads, uint32_t dim);

// ---- Attention in pieces ------------------------------------------------------------
// Attention over pages that lie in several places: whoever has pages computes partials of them, and
// the partials of all, folded in ascending order, give the very bits of krn_attention over all pages
// at once, whichever implementation computed them.
//
// The order above lets few ranges of pages stand as one partial: whole runs from page 0 on (merged
// left they are the total so far), the first pages of a run, or one page. Such a range is a piece;
// anything longer would have merged what the order merges later. So a row's answer for all pages
// before its own is one piece where they end with a run, else two, whatever the context: q_heads *
// (dim + 2) * 4 bytes each, of one layer, for q_heads * dim * 4 bytes of queries. All of it is f32:
// with fewer bits the fold would no longer be exact.
typedef struct krn_piece {
    uint32_t first, count; // pages, by absolute index
} krn_piece_t;

// The longest piece that begins at page `first` and ends before `end`; first < end.
static inline krn_piece_t krn_piece_at(uint32_t first, uint32_t end)
{
    uint32_t left = end - first;
    uint32_t whole = left / KRN_RUN_PAGES * KRN_RUN_PAGES;

    if (first % KRN_RUN_PAGES != 0)
        return (krn_piece_t){first, 1};
    if (whole == 0)
        return (krn_piece_t){first, left};
    return (krn_piece_t){first, first == 0 ? whole : KRN_RUN_PAGES};
}

// Partials of one piece, whose pages args->pages are. Their indices may count from the piece's first
// page (then positions do, too): only where runs begin matters. io is overwritten; scratch as for
// krn_attention.
void krn_attention_piece(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                         krn_partials_t *io, void *scratch);

// What was folded so far, of `pairs` (row, query head) pairs.
typedef struct krn_fold {
    const krn_ops_t *ops;
    uint32_t pairs, dim;
    krn_partials_t total, run; // of the runs that are complete; of the one that pages go on with
    uint32_t next;             // page: none before it may come any more
} krn_fold_t;

size_t krn_fold_bytes(uint32_t pairs, uint32_t dim); // of the memory of one
void krn_fold_begin(krn_fold_t *fold, const krn_ops_t *ops, uint32_t pairs, uint32_t dim,
                    void *memory);
// Partials of a piece (krn_piece_at), computed anywhere.
void krn_fold_piece(krn_fold_t *fold, krn_piece_t piece, const krn_partials_t *partials);
// Pages at hand, with their absolute indices: args->pages, for all rows.
void krn_fold_pages(krn_fold_t *fold, krn_pool_t *pool, const krn_attention_args_t *args);
// As krn_attention would have left it; lse may be NULL.
void krn_fold_end(krn_fold_t *fold, float *out, float *lse);

// The slow, obvious truth.
const krn_ops_t *krn_reference(void);
// The best of this processor, or the one that the environment variable ASSAY_KERNELS names
// ("portable", "avx2", ...). Unknown or unsupported names give NULL.
const krn_ops_t *krn_cpu(void);
const krn_ops_t *krn_cpu_named(const char *name);

// exp as used by every kernel; exact to 1e-6 relative; krn_expf(-inf) = 0. logf likewise for lse.
float krn_expf(float x);
float krn_logf(float x);

#endif
