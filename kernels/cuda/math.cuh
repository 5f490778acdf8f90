// SPDX-License-Identifier: Apache-2.0
// The scalar rules of reference.c for the device, operation by operation.
//
// Each rounding is an intrinsic that nvcc neither fuses nor reorders (__fmaf_rn, __fadd_rn, ...);
// with subnormals kept (no -ftz) they are the operations of IEEE 754, so the bits are those of the
// C library's fmaf and of plain C without contraction. Conversions of f16 are the hardware's: exact
// one way, nearest even the other.
#ifndef KRN_CUDA_MATH_CUH
#define KRN_CUDA_MATH_CUH

#include <math.h>

#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"

#define KRN_LANES 16u

static __device__ __forceinline__ float krn_device_widen(krn_f16 half)
{
    return __half2float(__ushort_as_half(half));
}

static __device__ __forceinline__ krn_f16 krn_device_narrow(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

// The eight halves of a 16-byte word, or its four floats.
static __device__ __forceinline__ void krn_device_unpack(uint4 word, float out[8])
{
    const unsigned int words[4] = {word.x, word.y, word.z, word.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = krn_device_widen((krn_f16)(words[i] & 0xffffu));
        out[2 * i + 1] = krn_device_widen((krn_f16)(words[i] >> 16));
    }
}

static __device__ __forceinline__ float krn_device_exp(float x)
{
    if (x < -87.3f)
        return 0.0f;
    if (x > 88.72283f)
        return INFINITY;
    float shifted = __fmaf_rn(x, 1.44269504088896341f, 12582912.0f);
    float n = __fsub_rn(shifted, 12582912.0f);
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f);
    p = __fmaf_rn(p, r, 8.3334519073e-3f);
    p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f);
    p = __fmaf_rn(p, r, 5.0000001201e-1f);
    float y = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
}

static __device__ inline float krn_device_log(float x)
{
    const float c[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                       -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                       2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    float e = 0.0f;

    if (!(x > 0.0f))
        return x == 0.0f ? -INFINITY : __uint_as_float(0x7fc00000u);
    if (x > 3.402823466e38f)
        return INFINITY;
    if (x < 1.175494351e-38f) {
        x = __fmul_rn(x, 8388608.0f);
        e = -23.0f;
    }
    unsigned int bits = __float_as_uint(x);
    e = __fadd_rn(e, (float)((int)(bits >> 23) - 126));
    float m = __uint_as_float((bits & 0x7fffffu) | 0x3f000000u);
    if (m < 0.707106781186547524f) {
        e = __fsub_rn(e, 1.0f);
        m = __fsub_rn(__fadd_rn(m, m), 1.0f);
    } else {
        m = __fsub_rn(m, 1.0f);
    }
    float p = c[0];
#pragma unroll
    for (int i = 1; i < 9; i++)
        p = __fmaf_rn(p, m, c[i]);
    float z = __fmul_rn(m, m);
    float y = __fmul_rn(__fmul_rn(p, m), z);
    y = __fmaf_rn(e, -2.12194440e-4f, y);
    y = __fmaf_rn(-0.5f, z, y);
    return __fmaf_rn(e, 0.693359375f, __fadd_rn(m, y));
}

// The tree over sixteen lanes held by one thread.
static __device__ __forceinline__ float krn_device_tree(float lanes[KRN_LANES])
{
#pragma unroll
    for (unsigned int half = KRN_LANES / 2; half > 0; half /= 2)
#pragma unroll
        for (unsigned int i = 0; i < half; i++)
            lanes[i] = __fadd_rn(lanes[i], lanes[i + half]);
    return lanes[0];
}

// The tree over sixteen lanes held by the first half of a warp, all of which calls; the result is
// lane 0's.
static __device__ __forceinline__ float krn_device_tree_warp(float lane)
{
#pragma unroll
    for (unsigned int half = KRN_LANES / 2; half > 0; half /= 2)
        lane = __fadd_rn(lane, __shfl_down_sync(KRN_FULL_WARP, lane, half));
    return lane;
}

// How an earlier side a and a later side b of a merge become one: what merge_one of reference.c
// decides before it touches the outputs.
typedef enum krn_merge_kind { KRN_MERGE_KEEP, KRN_MERGE_COPY, KRN_MERGE_FOLD } krn_merge_kind_t;

typedef struct krn_merge {
    krn_merge_kind_t kind;
    float max, sum;
    float ea, eb;
} krn_merge_t;

static __device__ __forceinline__ krn_merge_t krn_device_merge(float a_max, float a_sum,
                                                               float b_max, float b_sum)
{
    krn_merge_t m = {KRN_MERGE_KEEP, a_max, a_sum, 0.0f, 0.0f};

    if (b_max == -INFINITY)
        return m;
    if (a_max == -INFINITY) {
        m.kind = KRN_MERGE_COPY;
        m.max = b_max;
        m.sum = b_sum;
        return m;
    }
    m.kind = KRN_MERGE_FOLD;
    m.max = a_max > b_max ? a_max : b_max;
    m.ea = krn_device_exp(__fsub_rn(a_max, m.max));
    m.eb = krn_device_exp(__fsub_rn(b_max, m.max));
    m.sum = __fmaf_rn(m.eb, b_sum, __fmul_rn(m.ea, a_sum));
    return m;
}

static __device__ __forceinline__ float krn_device_merge_out(krn_merge_kind_t kind, float ea,
                                                             float eb, float a, float b)
{
    if (kind == KRN_MERGE_KEEP)
        return a;
    return kind == KRN_MERGE_COPY ? b : __fmaf_rn(eb, b, __fmul_rn(ea, a));
}

static __device__ __forceinline__ float krn_device_quotient(float out, float sum)
{
    return sum == 0.0f ? 0.0f : __fdiv_rn(out, sum);
}

#endif
