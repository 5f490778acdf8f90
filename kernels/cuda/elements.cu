// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, the operations on single elements, and rows of a weight.
//
// The sums of rmsnorm are 16 chains per row and no more: a block stages the row in shared memory,
// 16 of its threads run the chains, and all of them scale. The others have one output per thread
// and step.
#include "kernels/cuda/math.cuh"

#define NORM_THREADS 128u
#define NORM_TILE    2048u // floats staged at a time: 8 KiB; a multiple of the 16 lanes
#define THREADS      256u

static __global__ void __launch_bounds__(NORM_THREADS) rmsnorm_kernel(krn_cuda_rmsnorm_args_t a)
{
    __shared__ float tile[NORM_TILE];
    __shared__ float shared_scale;
    const float *x = a.x + (size_t)blockIdx.x * a.n;
    float *out = a.out + (size_t)blockIdx.x * a.n;
    float lane = 0.0f;

    for (uint32_t at = 0; at < a.n; at += NORM_TILE) {
        uint32_t count = a.n - at < NORM_TILE ? a.n - at : NORM_TILE;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += NORM_THREADS)
            tile[i] = x[at + i];
        __syncthreads();
        if (threadIdx.x >= KRN_LANES)
            continue;
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < count; i += KRN_LANES)
            lane = __fmaf_rn(tile[i], tile[i], lane);
    }
    if (threadIdx.x < KRN_WARP) {
        float mean = __fdiv_rn(krn_device_tree_warp(lane), (float)a.n);
        if (threadIdx.x == 0)
            shared_scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, a.eps)));
    }
    __syncthreads();
    float scale = shared_scale;
    for (uint32_t i = threadIdx.x; i < a.n; i += NORM_THREADS)
        out[i] = __fmul_rn(__fmul_rn(x[i], scale), a.weight[i]);
}

as_status_t krn_cuda_rmsnorm(void *stream, const krn_cuda_rmsnorm_args_t *args)
{
    if (args->rows > INT32_MAX || args->n > UINT32_MAX - NORM_TILE)
        return AS_ERR_LIMIT;
    if (args->rows == 0 || args->n == 0)
        return AS_OK;
    KRN_LAUNCH(rmsnorm_kernel, dim3(args->rows), dim3(NORM_THREADS), 0, stream, *args);
    return krn_cuda_launched("rmsnorm");
}

// ---- One output per thread and step -------------------------------------------------

static __device__ __forceinline__ size_t first_item(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ size_t item_step(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

// An item is one pair of one head of one row.
static __global__ void __launch_bounds__(THREADS) rope_kernel(krn_cuda_rope_args_t a)
{
    uint32_t half = a.rope.dim / 2;
    size_t items = (size_t)a.rows * a.heads * half;

    for (size_t item = first_item(); item < items; item += item_step()) {
        uint32_t i = (uint32_t)(item % half);
        size_t head = item / half;
        int32_t position = a.positions[head / a.heads];
        if (position < 0 || (uint32_t)position >= a.rope.position_count)
            continue;
        const float *cos_sin = a.rope.cos_sin + (size_t)position * a.rope.dim + 2 * i;
        float *x = a.x + head * a.dim;
        float *first = a.rope.neox ? x + i : x + 2 * i;
        float *second = a.rope.neox ? x + half + i : x + 2 * i + 1;
        float c = cos_sin[0], s = cos_sin[1], x0 = *first, x1 = *second;
        *first = __fmaf_rn(x0, c, -__fmul_rn(x1, s));
        *second = __fmaf_rn(x1, c, __fmul_rn(x0, s));
    }
}

as_status_t krn_cuda_rope(void *stream, const krn_cuda_rope_args_t *args)
{
    size_t items = (size_t)args->rows * args->heads * (args->rope.dim / 2);

    if (args->rope.dim % 2 != 0 || args->rope.dim > args->dim)
        return AS_ERR_INVALID;
    if (items == 0)
        return AS_OK;
    KRN_LAUNCH(rope_kernel, dim3(krn_cuda_blocks(items, THREADS)), dim3(THREADS), 0, stream, *args);
    return krn_cuda_launched("rope");
}

static __global__ void __launch_bounds__(THREADS)
    swiglu_kernel(const float *gate, const float *up, size_t count, float *out)
{
    for (size_t i = first_item(); i < count; i += item_step()) {
        float divisor = __fadd_rn(1.0f, krn_device_exp(-gate[i]));
        out[i] = __fmul_rn(__fdiv_rn(gate[i], divisor), up[i]);
    }
}

as_status_t krn_cuda_swiglu(void *stream, const float *gate, const float *up, size_t count,
                            float *out)
{
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(swiglu_kernel, dim3(krn_cuda_blocks(count, THREADS)), dim3(THREADS), 0, stream, gate,
               up, count, out);
    return krn_cuda_launched("swiglu");
}

static __global__ void __launch_bounds__(THREADS) add_kernel(float *a, const float *b, size_t count)
{
    for (size_t i = first_item(); i < count; i += item_step())
        a[i] = __fadd_rn(a[i], b[i]);
}

as_status_t krn_cuda_add(void *stream, float *a, const float *b, size_t count)
{
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(add_kernel, dim3(krn_cuda_blocks(count, THREADS)), dim3(THREADS), 0, stream, a, b,
               count);
    return krn_cuda_launched("add");
}

static __global__ void __launch_bounds__(THREADS)
    narrow_kernel(const float *in, size_t count, krn_f16 *out)
{
    for (size_t i = first_item(); i < count; i += item_step())
        out[i] = krn_device_narrow(in[i]);
}

as_status_t krn_cuda_f32_to_f16(void *stream, const float *in, size_t count, krn_f16 *out)
{
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(narrow_kernel, dim3(krn_cuda_blocks(count, THREADS)), dim3(THREADS), 0, stream, in,
               count, out);
    return krn_cuda_launched("f32 to f16");
}

static __global__ void __launch_bounds__(THREADS)
    widen_kernel(const krn_f16 *in, size_t count, float *out)
{
    for (size_t i = first_item(); i < count; i += item_step())
        out[i] = krn_device_widen(in[i]);
}

as_status_t krn_cuda_f16_to_f32(void *stream, const krn_f16 *in, size_t count, float *out)
{
    if (count == 0)
        return AS_OK;
    KRN_LAUNCH(widen_kernel, dim3(krn_cuda_blocks(count, THREADS)), dim3(THREADS), 0, stream, in,
               count, out);
    return krn_cuda_launched("f16 to f32");
}

// ---- Rows of a weight ---------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS)
    rows_kernel(krn_weight_t w, const uint32_t *ids, uint32_t count, float *out)
{
    size_t items = (size_t)count * w.k;

    for (size_t item = first_item(); item < items; item += item_step()) {
        uint32_t id = ids[item / w.k], k = (uint32_t)(item % w.k);
        size_t at = ((size_t)(id / KRN_PANEL) * w.k + k) * KRN_PANEL + id % KRN_PANEL;
        float value = 0.0f;
        if (id < w.n)
            value = w.type == KRN_WEIGHT_F32 ? ((const float *)w.data)[at]
                                             : krn_device_widen(((const krn_f16 *)w.data)[at]);
        out[item] = value;
    }
}

as_status_t krn_cuda_weight_rows(void *stream, const krn_weight_t *w, const uint32_t *ids,
                                 uint32_t count, float *out)
{
    size_t items = (size_t)count * w->k;

    if (w->type != KRN_WEIGHT_F16 && w->type != KRN_WEIGHT_F32)
        return AS_ERR_INVALID;
    if (items == 0)
        return AS_OK;
    KRN_LAUNCH(rows_kernel, dim3(krn_cuda_blocks(items, THREADS)), dim3(THREADS), 0, stream, *w,
               ids, count, out);
    return krn_cuda_launched("rows of a weight");
}
