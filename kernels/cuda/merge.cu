// SPDX-License-Identifier: Apache-2.0
// What becomes of partials: cleared, merged in order, divided by their sums.
//
// A warp takes one (row, query head) pair, its lanes every 32nd element of the output; each lane
// computes the pair's factors for itself, which costs less than handing them round.
#include "kernels/cuda/merge.cuh"

#define THREADS   128u
#define WARPS     (THREADS / KRN_WARP)
#define LANE_DIMS (KRN_HEAD_DIM_MAX / KRN_WARP) // elements of a head that a lane holds at most

static __device__ __forceinline__ size_t own_pair(void)
{
    return (size_t)blockIdx.x * WARPS + threadIdx.x / KRN_WARP;
}

static __device__ __forceinline__ uint32_t own_lane(void)
{
    return threadIdx.x % KRN_WARP;
}

static dim3 pair_blocks(uint32_t count)
{
    return dim3((count + WARPS - 1) / WARPS);
}

static __global__ void __launch_bounds__(THREADS)
    clear_kernel(krn_partials_t partials, uint32_t count, uint32_t dim)
{
    size_t pair = own_pair();

    if (pair >= count)
        return;
    for (uint32_t d = own_lane(); d < dim; d += KRN_WARP)
        partials.out[pair * dim + d] = 0.0f;
    if (own_lane() != 0)
        return;
    partials.max[pair] = -INFINITY;
    partials.sum[pair] = 0.0f;
}

as_status_t krn_cuda_partials_clear(void *stream, const krn_partials_t *partials, uint32_t count,
                                    uint32_t dim)
{
    if (count > INT32_MAX)
        return AS_ERR_LIMIT;
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(clear_kernel, pair_blocks(count), dim3(THREADS), 0, stream, *partials, count, dim);
    return krn_cuda_launched("clearing partials");
}

static __global__ void __launch_bounds__(THREADS)
    merge_kernel(krn_partials_t a, krn_partials_t b, uint32_t count, uint32_t dim)
{
    size_t pair = own_pair();

    if (pair >= count)
        return;
    krn_merge_t m = krn_device_merge(a.max[pair], a.sum[pair], b.max[pair], b.sum[pair]);
    for (uint32_t d = own_lane(); d < dim; d += KRN_WARP) {
        size_t at = pair * dim + d;
        a.out[at] = krn_device_merge_out(m.kind, m.ea, m.eb, a.out[at], b.out[at]);
    }
    __syncwarp(); // every lane has read the old max and sum
    if (own_lane() != 0)
        return;
    a.max[pair] = m.max;
    a.sum[pair] = m.sum;
}

as_status_t krn_cuda_merge(void *stream, const krn_partials_t *a, const krn_partials_t *b,
                           uint32_t count, uint32_t dim)
{
    if (count > INT32_MAX)
        return AS_ERR_LIMIT;
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(merge_kernel, pair_blocks(count), dim3(THREADS), 0, stream, *a, *b, count, dim);
    return krn_cuda_launched("merge");
}

static __global__ void __launch_bounds__(THREADS)
    normalise_kernel(krn_partials_t partials, uint32_t count, uint32_t dim, float *out)
{
    size_t pair = own_pair();

    if (pair >= count)
        return;
    float sum = partials.sum[pair];
    for (uint32_t d = own_lane(); d < dim; d += KRN_WARP)
        out[pair * dim + d] = krn_device_quotient(partials.out[pair * dim + d], sum);
}

as_status_t krn_cuda_normalise(void *stream, const krn_partials_t *partials, uint32_t count,
                               uint32_t dim, float *out)
{
    if (count > INT32_MAX)
        return AS_ERR_LIMIT;
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(normalise_kernel, pair_blocks(count), dim3(THREADS), 0, stream, *partials, count,
               dim, out);
    return krn_cuda_launched("normalise");
}

// ---- A wave of runs -----------------------------------------------------------------

// A lane's part of a pair's total.
typedef struct lane_total {
    float out[LANE_DIMS];
    float max, sum;
} lane_total_t;

static __device__ __forceinline__ void fold_slot(const krn_wave_t &w, uint32_t slot, size_t pair,
                                                 lane_total_t &total)
{
    size_t from = (size_t)slot * w.pairs + pair;
    krn_merge_t m = krn_device_merge(total.max, total.sum, w.slots.max[from], w.slots.sum[from]);

    total.max = m.max;
    total.sum = m.sum;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++) {
        uint32_t d = own_lane() + i * KRN_WARP;
        if (d < w.dim)
            total.out[i] = krn_device_merge_out(m.kind, m.ea, m.eb, total.out[i],
                                                w.slots.out[from * w.dim + d]);
    }
}

static __device__ __forceinline__ void put_total(const krn_wave_t &w, size_t pair,
                                                 const lane_total_t &total)
{
    float *out = w.out ? w.out : w.total.out;

#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++) {
        uint32_t d = own_lane() + i * KRN_WARP;
        if (d < w.dim)
            out[pair * w.dim + d] =
                w.out ? krn_device_quotient(total.out[i], total.sum) : total.out[i];
    }
    if (own_lane() != 0)
        return;
    if (!w.out) {
        w.total.max[pair] = total.max;
        w.total.sum[pair] = total.sum;
    } else if (w.lse) {
        w.lse[pair] = __fadd_rn(total.max, krn_device_log(total.sum));
    }
}

static __global__ void __launch_bounds__(THREADS) wave_kernel(krn_wave_t w)
{
    size_t pair = own_pair();
    lane_total_t total = {{}, -INFINITY, 0.0f};

    if (pair >= w.pairs)
        return;
    if (w.continued) {
        total.max = w.total.max[pair];
        total.sum = w.total.sum[pair];
#pragma unroll
        for (uint32_t i = 0; i < LANE_DIMS; i++) {
            uint32_t d = own_lane() + i * KRN_WARP;
            if (d < w.dim)
                total.out[i] = w.total.out[pair * w.dim + d];
        }
        __syncwarp(); // every lane has read the old max and sum
    }
    for (uint32_t slot = 0; slot < w.slot_count; slot++)
        fold_slot(w, slot, pair, total);
    put_total(w, pair, total);
}

as_status_t krn_cuda_wave_merge(void *stream, const krn_wave_t *wave)
{
    KRN_LAUNCH(wave_kernel, pair_blocks(wave->pairs), dim3(THREADS), 0, stream, *wave);
    return krn_cuda_launched("merging runs");
}
