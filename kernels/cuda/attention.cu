// SPDX-License-Identifier: Apache-2.0
// Attention over pages: a block takes one KV head and 4 or 8 (row, query head of its group) pairs,
// and goes through pages in ascending order, page by page as the rules of kernels.h have it.
//
// A page in three steps, with barriers between:
//  logits   the keys of 32 tokens are staged in shared memory; a warp takes a pair, a lane a token,
//           and holds the 16 lanes of the rule in registers
//  softmax  a warp takes a pair: maximum, exponentials, the sum in 16 lanes and a tree, and how the
//           page will merge into the run
//  values   a thread takes one element of the output for 4 pairs: the chain over the tokens, its
//           values read straight from global memory, and the merge into the run
// Sums over padding do not happen: a product of zeros would turn a sum of -0 into +0, and so each
// loop ends at the tokens that its own row sees.
//
// Three ways to use it, the same bits by the same order of merges:
//  runs apart  few blocks (decode): a block for each run of a wave, partials to the workspace, then
//              krn_cuda_wave_merge; one row over a long context fills the device
//  runs here   many blocks (prefill): a block goes through all runs and normalises, no workspace
//  one run     krn_cuda_attention_run: the run begins as io is
#include "kernels/cuda/merge.cuh"

#define THREADS      128u
#define WARPS        (THREADS / KRN_WARP)
#define TILE         32u // tokens staged at a time: one per lane
#define TILE_PAD     8u  // halves added to a row: 8 lanes' 16-byte reads lie in different banks
#define GROUP        4u  // pairs of one thread in the step of the values
#define SHARED_BYTES (48u << 10) // a block may have without asking
#define FEW_BLOCKS   256u        // fewer blocks than this leave the larger devices idle
#define WAVE_PAIRS   (32u << 10) // pairs of all runs of a wave: bounds the workspace

typedef enum attend_way { RUNS_APART, RUNS_HERE, ONE_RUN } attend_way_t;

typedef struct attend {
    krn_attention_args_t args;
    attend_way_t way;
    const uint32_t *run_starts; // not of ONE_RUN
    uint32_t run_count;
    krn_partials_t to; // RUNS_APART: [run][rows][q_heads]; ONE_RUN: io
    float *out, *lse;  // RUNS_HERE
} attend_t;

// Shared memory of a block.
template <uint32_t PAIRS> struct block_t {
    float *q;      // [PAIRS][dim]
    float *p;      // [PAIRS][capacity]: logits, then exponentials
    float *run;    // [PAIRS][dim]: the run's output so far
    float *total;  // [PAIRS][dim]: that of the runs before
    krn_f16 *tile; // [TILE][dim + TILE_PAD]
    struct scalars {
        float run_max[PAIRS], run_sum[PAIRS], total_max[PAIRS], total_sum[PAIRS];
        float ea[PAIRS], eb[PAIRS];
        krn_merge_kind_t kind[PAIRS];
        int32_t position[PAIRS]; // -1: there is no such pair, it sees nothing
        uint32_t pair[PAIRS];    // row * q_heads + head
    } * s;
    int32_t position_max;
};

template <uint32_t PAIRS> static size_t shared_bytes(uint32_t dim, uint32_t capacity)
{
    return (3u * dim + capacity) * PAIRS * sizeof(float) +
           TILE * (dim + TILE_PAD) * sizeof(krn_f16) + sizeof(typename block_t<PAIRS>::scalars);
}

static __device__ __forceinline__ uint32_t page_visible(uint32_t index, uint32_t capacity,
                                                        int32_t position)
{
    int64_t visible = (int64_t)position + 1 - (int64_t)index * capacity;

    if (visible <= 0)
        return 0;
    return visible < capacity ? (uint32_t)visible : capacity;
}

// ---- Begin and end of a block -------------------------------------------------------

template <uint32_t PAIRS>
static __device__ __forceinline__ void block_begin(const attend_t &a, unsigned char *shared,
                                                   block_t<PAIRS> &b)
{
    uint32_t dim = a.args.dim, group = a.args.q_heads / a.args.kv_heads;

    b.q = (float *)shared;
    b.p = b.q + PAIRS * dim;
    b.run = b.p + PAIRS * a.args.capacity;
    b.total = b.run + PAIRS * dim;
    b.tile = (krn_f16 *)(b.total + PAIRS * dim);
    b.s = (typename block_t<PAIRS>::scalars *)(b.tile + TILE * (dim + TILE_PAD));
    if (threadIdx.x < PAIRS) {
        uint64_t item = (uint64_t)blockIdx.x * PAIRS + threadIdx.x;
        uint64_t row = item / group;
        int exists = row < a.args.rows;
        b.s->position[threadIdx.x] = exists ? a.args.positions[row] : -1;
        b.s->pair[threadIdx.x] =
            exists ? (uint32_t)(row * a.args.q_heads + blockIdx.y * group + item % group)
                   : UINT32_MAX;
        b.s->total_max[threadIdx.x] = -INFINITY;
        b.s->total_sum[threadIdx.x] = 0.0f;
    }
    __syncthreads();
    b.position_max = -1;
    for (uint32_t j = 0; j < PAIRS; j++)
        b.position_max = b.s->position[j] > b.position_max ? b.s->position[j] : b.position_max;
    for (uint32_t i = threadIdx.x; i < PAIRS * dim; i += THREADS) {
        uint32_t pair = b.s->pair[i / dim];
        b.q[i] = pair == UINT32_MAX ? 0.0f : a.args.q[(size_t)pair * dim + i % dim];
        b.total[i] = 0.0f;
    }
}

template <uint32_t PAIRS>
static __device__ __forceinline__ void run_begin(const attend_t &a, block_t<PAIRS> &b)
{
    uint32_t dim = a.args.dim;
    int load = a.way == ONE_RUN;

    if (threadIdx.x < PAIRS) {
        uint32_t pair = b.s->pair[threadIdx.x];
        int from_io = load && pair != UINT32_MAX;
        b.s->run_max[threadIdx.x] = from_io ? a.to.max[pair] : -INFINITY;
        b.s->run_sum[threadIdx.x] = from_io ? a.to.sum[pair] : 0.0f;
    }
    for (uint32_t i = threadIdx.x; i < PAIRS * dim; i += THREADS) {
        uint32_t pair = b.s->pair[i / dim];
        b.run[i] = load && pair != UINT32_MAX ? a.to.out[(size_t)pair * dim + i % dim] : 0.0f;
    }
    __syncthreads();
}

// The run to its place in `to`.
template <uint32_t PAIRS>
static __device__ __forceinline__ void run_store(const attend_t &a, const block_t<PAIRS> &b,
                                                 uint32_t slot)
{
    uint32_t dim = a.args.dim;
    size_t base = (size_t)slot * a.args.rows * a.args.q_heads;

    for (uint32_t i = threadIdx.x; i < PAIRS * dim; i += THREADS) {
        uint32_t pair = b.s->pair[i / dim];
        if (pair != UINT32_MAX)
            a.to.out[(base + pair) * dim + i % dim] = b.run[i];
    }
    if (threadIdx.x >= PAIRS || b.s->pair[threadIdx.x] == UINT32_MAX)
        return;
    a.to.max[base + b.s->pair[threadIdx.x]] = b.s->run_max[threadIdx.x];
    a.to.sum[base + b.s->pair[threadIdx.x]] = b.s->run_sum[threadIdx.x];
}

// The run into the total.
template <uint32_t PAIRS>
static __device__ __forceinline__ void run_merge(const attend_t &a, block_t<PAIRS> &b)
{
    uint32_t dim = a.args.dim;

    __syncthreads();
    if (threadIdx.x < PAIRS) {
        uint32_t j = threadIdx.x;
        krn_merge_t m = krn_device_merge(b.s->total_max[j], b.s->total_sum[j], b.s->run_max[j],
                                         b.s->run_sum[j]);
        b.s->total_max[j] = m.max;
        b.s->total_sum[j] = m.sum;
        b.s->kind[j] = m.kind;
        b.s->ea[j] = m.ea;
        b.s->eb[j] = m.eb;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PAIRS * dim; i += THREADS) {
        uint32_t j = i / dim;
        b.total[i] =
            krn_device_merge_out(b.s->kind[j], b.s->ea[j], b.s->eb[j], b.total[i], b.run[i]);
    }
    __syncthreads();
}

template <uint32_t PAIRS>
static __device__ __forceinline__ void total_store(const attend_t &a, const block_t<PAIRS> &b)
{
    uint32_t dim = a.args.dim;

    __syncthreads(); // with no runs at all the total is as block_begin left it
    for (uint32_t i = threadIdx.x; i < PAIRS * dim; i += THREADS) {
        uint32_t pair = b.s->pair[i / dim];
        if (pair != UINT32_MAX)
            a.out[(size_t)pair * dim + i % dim] =
                krn_device_quotient(b.total[i], b.s->total_sum[i / dim]);
    }
    if (!a.lse || threadIdx.x >= PAIRS || b.s->pair[threadIdx.x] == UINT32_MAX)
        return;
    a.lse[b.s->pair[threadIdx.x]] =
        __fadd_rn(b.s->total_max[threadIdx.x], krn_device_log(b.s->total_sum[threadIdx.x]));
}

// ---- One page -----------------------------------------------------------------------

static __device__ __forceinline__ float dot(const float *q, const krn_f16 *k, uint32_t dim)
{
    float lanes[KRN_LANES] = {};

    for (uint32_t d = 0; d < dim; d += KRN_LANES) {
        float values[KRN_LANES];
        krn_device_unpack(*(const uint4 *)(k + d), values);
        krn_device_unpack(*(const uint4 *)(k + d + 8), values + 8);
#pragma unroll
        for (uint32_t i = 0; i < KRN_LANES; i += 4) {
            float4 q4 = *(const float4 *)(q + d + i);
            lanes[i] = __fmaf_rn(q4.x, values[i], lanes[i]);
            lanes[i + 1] = __fmaf_rn(q4.y, values[i + 1], lanes[i + 1]);
            lanes[i + 2] = __fmaf_rn(q4.z, values[i + 2], lanes[i + 2]);
            lanes[i + 3] = __fmaf_rn(q4.w, values[i + 3], lanes[i + 3]);
        }
    }
    return krn_device_tree(lanes);
}

// p = the logits of the page's first `visible_max` tokens.
template <uint32_t PAIRS>
static __device__ __forceinline__ void page_logits(const attend_t &a, block_t<PAIRS> &b,
                                                   const krn_page_t &page, uint32_t visible_max)
{
    uint32_t dim = a.args.dim, capacity = a.args.capacity, row_words = dim / 8;
    const krn_f16 *keys = page.k + (size_t)blockIdx.y * capacity * dim;
    uint32_t lane = threadIdx.x % KRN_WARP;

    for (uint32_t t0 = 0; t0 < visible_max; t0 += TILE) {
        uint32_t tokens = visible_max - t0 < TILE ? visible_max - t0 : TILE;
        const uint4 *words = (const uint4 *)(keys + (size_t)t0 * dim);
        for (uint32_t i = threadIdx.x; i < tokens * row_words; i += THREADS)
            *(uint4 *)(b.tile + i / row_words * (dim + TILE_PAD) + i % row_words * 8) = words[i];
        __syncthreads();
        for (uint32_t j = threadIdx.x / KRN_WARP; j < PAIRS; j += WARPS)
            if (t0 + lane < page_visible(page.index, capacity, b.s->position[j]))
                b.p[j * capacity + t0 + lane] = __fmul_rn(
                    dot(b.q + j * dim, b.tile + lane * (dim + TILE_PAD), dim), a.args.scale);
        __syncthreads();
    }
}

// One pair's p = exp(p - max), and its merge into the run; a whole warp.
template <uint32_t PAIRS>
static __device__ __forceinline__ void pair_softmax(block_t<PAIRS> &b, uint32_t j, float *p,
                                                    uint32_t visible)
{
    uint32_t lane = threadIdx.x % KRN_WARP;
    float max = -INFINITY, sum = 0.0f;

    for (uint32_t t = lane; t < visible; t += KRN_WARP)
        max = p[t] > max ? p[t] : max;
    for (uint32_t offset = KRN_WARP / 2; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(KRN_FULL_WARP, max, offset);
        max = other > max ? other : max;
    }
    max = __fadd_rn(max, 0.0f); // -0 becomes +0: else the order of comparing would show
    for (uint32_t t = lane; t < visible; t += KRN_WARP)
        p[t] = krn_device_exp(__fsub_rn(p[t], max));
    __syncwarp();
    for (uint32_t t = lane; lane < KRN_LANES && t < visible; t += KRN_LANES)
        sum = __fadd_rn(sum, p[t]);
    sum = krn_device_tree_warp(sum);
    if (lane != 0)
        return;
    krn_merge_t m = krn_device_merge(b.s->run_max[j], b.s->run_sum[j], max, sum);
    b.s->run_max[j] = m.max;
    b.s->run_sum[j] = m.sum;
    b.s->kind[j] = m.kind;
    b.s->ea[j] = m.ea;
    b.s->eb[j] = m.eb;
}

// One element of the output of pairs [j0, j0 + GROUP): the chain over tokens, and the merge.
template <uint32_t PAIRS>
static __device__ __forceinline__ void group_values(const attend_t &a, block_t<PAIRS> &b,
                                                    const krn_page_t &page, uint32_t j0, uint32_t d)
{
    uint32_t dim = a.args.dim, capacity = a.args.capacity;
    const krn_f16 *v = page.v + (size_t)blockIdx.y * capacity * dim + d;
    const float *p = b.p + j0 * capacity;
    uint32_t visible[GROUP], least = UINT32_MAX, most = 0, t;
    float sums[GROUP] = {};

#pragma unroll
    for (uint32_t i = 0; i < GROUP; i++) {
        visible[i] = page_visible(page.index, capacity, b.s->position[j0 + i]);
        least = visible[i] < least ? visible[i] : least;
        most = visible[i] > most ? visible[i] : most;
    }
#pragma unroll 8
    for (t = 0; t < least; t++) {
        float value = krn_device_widen(v[(size_t)t * dim]);
#pragma unroll
        for (uint32_t i = 0; i < GROUP; i++)
            sums[i] = __fmaf_rn(p[i * capacity + t], value, sums[i]);
    }
#pragma unroll 8
    for (t = least; t < most; t++) {
        float value = krn_device_widen(v[(size_t)t * dim]);
#pragma unroll
        for (uint32_t i = 0; i < GROUP; i++)
            if (t < visible[i])
                sums[i] = __fmaf_rn(p[i * capacity + t], value, sums[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < GROUP; i++) {
        float *run = b.run + (j0 + i) * dim + d;
        if (visible[i] > 0)
            *run = krn_device_merge_out(b.s->kind[j0 + i], b.s->ea[j0 + i], b.s->eb[j0 + i], *run,
                                        sums[i]);
    }
}

template <uint32_t PAIRS>
static __device__ __forceinline__ void attend_page(const attend_t &a, block_t<PAIRS> &b,
                                                   const krn_page_t &page)
{
    uint32_t capacity = a.args.capacity, dim = a.args.dim;
    uint32_t visible_max = page_visible(page.index, capacity, b.position_max);

    if (visible_max == 0) // the same for the whole block
        return;
    page_logits(a, b, page, visible_max);
    for (uint32_t j = threadIdx.x / KRN_WARP; j < PAIRS; j += WARPS) {
        uint32_t visible = page_visible(page.index, capacity, b.s->position[j]);
        if (visible > 0) // the same for the whole warp
            pair_softmax(b, j, b.p + j * capacity, visible);
    }
    __syncthreads();
    // The next page's barrier comes before p and the scalars change, after its keys are staged.
    for (uint32_t i = threadIdx.x; i < dim * (PAIRS / GROUP); i += THREADS)
        group_values(a, b, page, i / dim * GROUP, i % dim);
}

// grid: (groups of PAIRS pairs, KV heads, RUNS_APART: runs)
template <uint32_t PAIRS>
static __global__ void __launch_bounds__(THREADS) attend_kernel(attend_t a)
{
    KRN_DYNAMIC_SHARED(shared);
    block_t<PAIRS> b;
    uint32_t first = a.way == RUNS_APART ? blockIdx.z : 0;
    uint32_t end = a.way == RUNS_HERE ? a.run_count : first + 1;

    block_begin(a, shared, b);
    for (uint32_t r = first; r < end; r++) {
        uint32_t page = a.way == ONE_RUN ? 0 : a.run_starts[r];
        uint32_t page_end = a.way == ONE_RUN ? a.args.page_count : a.run_starts[r + 1];
        run_begin(a, b);
        for (; page < page_end; page++)
            attend_page(a, b, a.args.pages[page]);
        if (a.way == RUNS_HERE)
            run_merge(a, b);
    }
    if (a.way == RUNS_HERE) {
        total_store(a, b);
        return;
    }
    __syncthreads();
    run_store(a, b, first);
}

// ---- Launch -------------------------------------------------------------------------

// Pairs of a block: 8 share the keys that a block stages, or 4 where shared memory is short.
static uint32_t pairs_of_block(const krn_attention_args_t *args)
{
    return shared_bytes<8>(args->dim, args->capacity) <= SHARED_BYTES ? 8 : 4;
}

static uint64_t pair_groups(const krn_attention_args_t *args)
{
    uint64_t pairs = (uint64_t)args->rows * (args->q_heads / args->kv_heads);
    uint32_t each = pairs_of_block(args);

    return (pairs + each - 1) / each;
}

static as_status_t check(const krn_attention_args_t *args)
{
    if (args->dim == 0 || args->dim % 16 != 0 || args->dim > KRN_HEAD_DIM_MAX)
        return AS_ERR_INVALID;
    if (args->capacity == 0 || args->capacity > KRN_PAGE_TOKENS_MAX)
        return AS_ERR_INVALID;
    if (args->kv_heads == 0 || args->q_heads % args->kv_heads != 0)
        return AS_ERR_INVALID;
    if (args->kv_heads > KRN_GRID_YZ || (uint64_t)args->rows * args->q_heads > INT32_MAX)
        return AS_ERR_LIMIT;
    return AS_OK;
}

static as_status_t launch(void *stream, const attend_t &a)
{
    const krn_attention_args_t *args = &a.args;
    dim3 grid((uint32_t)pair_groups(args), args->kv_heads, a.way == RUNS_APART ? a.run_count : 1);
    auto eight = attend_kernel<8>;
    auto four = attend_kernel<4>;

    if (pairs_of_block(args) == 8)
        KRN_LAUNCH(eight, grid, dim3(THREADS), shared_bytes<8>(args->dim, args->capacity), stream,
                   a);
    else
        KRN_LAUNCH(four, grid, dim3(THREADS), shared_bytes<4>(args->dim, args->capacity), stream,
                   a);
    return krn_cuda_launched("attention");
}

as_status_t krn_cuda_attention_run(void *stream, const krn_attention_args_t *args,
                                   const krn_partials_t *io)
{
    attend_t a = {*args, ONE_RUN, NULL, 0, *io, NULL, NULL};
    as_status_t status = check(args);

    if (status != AS_OK)
        return status;
    if (args->rows == 0 || args->q_heads == 0 || args->page_count == 0)
        return AS_OK;
    return launch(stream, a);
}

uint32_t krn_cuda_runs(const krn_page_t *pages, uint32_t count, uint32_t *starts)
{
    uint32_t runs = 0;

    for (uint32_t p = 0; p < count; p++)
        if (p == 0 || pages[p].index / KRN_RUN_PAGES != pages[p - 1].index / KRN_RUN_PAGES)
            starts[runs++] = p;
    starts[runs] = count;
    return runs;
}

// Runs of a wave, or 0 where the runs are better gone through in the block.
static uint32_t wave_slots(const krn_attention_args_t *args, uint32_t run_count)
{
    uint64_t pairs = (uint64_t)args->rows * args->q_heads;

    if (run_count < 2 || pair_groups(args) * args->kv_heads >= FEW_BLOCKS)
        return 0;
    uint64_t slots = pairs > 0 ? WAVE_PAIRS / pairs : 0;
    slots = slots < 2 ? 2 : slots;
    slots = slots < run_count ? slots : run_count;
    return slots < KRN_GRID_YZ ? (uint32_t)slots : KRN_GRID_YZ;
}

size_t krn_cuda_attention_workspace_bytes(const krn_attention_args_t *args, uint32_t run_count)
{
    if (check(args) != AS_OK)
        return 0;
    size_t slots = wave_slots(args, run_count);
    size_t pairs = (size_t)args->rows * args->q_heads;

    return slots == 0 ? 0 : (slots + 1) * pairs * (args->dim + 2u) * sizeof(float);
}

static as_status_t attend_in_waves(void *stream, const krn_cuda_attention_args_t *attention,
                                   uint32_t slots)
{
    const krn_attention_args_t *args = &attention->args;
    uint32_t pairs = args->rows * args->q_heads;
    size_t all = (size_t)pairs * slots;
    float *outs = (float *)attention->workspace;
    float *scalars = outs + (all + pairs) * args->dim; // slots' max and sum, the total's
    krn_partials_t to = {outs, scalars, scalars + all};
    krn_partials_t total = {outs + all * args->dim, scalars + 2 * all, scalars + 2 * all + pairs};

    for (uint32_t run = 0; run < attention->run_count; run += slots) {
        uint32_t rest = attention->run_count - run, count = rest < slots ? rest : slots;
        attend_t a = {*args, RUNS_APART, attention->run_starts + run, count, to, NULL, NULL};
        krn_wave_t wave = {to, count, pairs, args->dim, total, run > 0, NULL, NULL};
        if (rest == count) {
            wave.out = attention->out;
            wave.lse = attention->lse;
        }
        as_status_t status = launch(stream, a);
        if (status == AS_OK)
            status = krn_cuda_wave_merge(stream, &wave);
        if (status != AS_OK)
            return status;
    }
    return AS_OK;
}

as_status_t krn_cuda_attention(void *stream, const krn_cuda_attention_args_t *attention)
{
    const krn_attention_args_t *args = &attention->args;
    as_status_t status = check(args);

    if (status != AS_OK)
        return status;
    if (args->rows == 0 || args->q_heads == 0)
        return AS_OK;
    uint32_t slots = wave_slots(args, attention->run_count);
    if (slots > 0 && !attention->workspace)
        return AS_ERR_INVALID;
    if (slots > 0)
        return attend_in_waves(stream, attention, slots);
    krn_partials_t none = {NULL, NULL, NULL};
    attend_t a = {*args, RUNS_HERE,      attention->run_starts, attention->run_count,
                  none,  attention->out, attention->lse};
    return launch(stream, a);
}
