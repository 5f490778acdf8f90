// SPDX-License-Identifier: Apache-2.0
// Products with packed weights: one chain of fused multiply-adds over k per output, as reference.c
// has it.
//
// The chain forbids splitting k and tensor cores; what is left is to feed the chains. Both kernels
// stage tiles in shared memory, the next tile being under way in registers while the current one is
// used. A panel [k][16] is contiguous, so a tile of it is read as whole 16-byte words.
//  - few rows (decode): a block takes one panel and up to 8 rows, a thread one output. 8 KiB of
//    weights are under way for each block: reading the weights is what takes the time.
//  - more rows (prefill): a block takes 64 columns and 16 or 64 rows, a thread 4 columns of 1 or 4
//    rows.
// The last tile's loop ends at k exactly: a padding product of zeros would turn a sum of -0 into
// +0.
#include "kernels/cuda/math.cuh"

#define FEW_ROWS    8u
#define FEW_THREADS 128u // 8 rows of 16 columns
#define FEW_WORDS   512u // 16-byte words of a tile: 8 KiB
#define FEW_BLOCKS  4u   // of a multiprocessor at once: 128 registers for a thread

#define TILE_K       32u
#define TILE_COLUMNS 64u
#define TILE_PANELS  (TILE_COLUMNS / KRN_PANEL)
#define TILE_THREADS 256u
#define SMALL_ROWS   32u // up to here blocks of 16 rows, above of 64

typedef struct matmul_args {
    const void *weights;
    const float *x;
    float *out;
    uint32_t rows, n, k;
} matmul_args_t;

static __device__ __forceinline__ float widen(krn_f16 value)
{
    return krn_device_widen(value);
}

static __device__ __forceinline__ float widen(float value)
{
    return value;
}

static __device__ __forceinline__ uint4 zero_word(void)
{
    uint4 zero = {0, 0, 0, 0};

    return zero;
}

// ---- Few rows -----------------------------------------------------------------------

// A tile on its way: FEW_WORDS of the panel, and the rows' x beside them.
template <typename T> struct few_tile {
    static constexpr uint32_t k = FEW_WORDS / sizeof(T); // 16 * k elements
    static constexpr uint32_t words = FEW_WORDS / FEW_THREADS;
    static constexpr uint32_t values = FEW_ROWS * k / FEW_THREADS;
    uint4 w[words];
    float x[values];
};

template <typename T>
static __device__ __forceinline__ void few_load(const matmul_args_t &a, uint32_t k0,
                                                few_tile<T> &tile)
{
    const T *panel = (const T *)a.weights + (size_t)blockIdx.x * a.k * KRN_PANEL;
    const uint4 *words = (const uint4 *)panel + (size_t)k0 * sizeof(T);
    uint32_t word_count = (a.k - k0) * (uint32_t)sizeof(T); // of the panel's rest: 16 columns each

#pragma unroll
    for (uint32_t i = 0; i < few_tile<T>::words; i++) {
        uint32_t word = threadIdx.x + i * FEW_THREADS;
        tile.w[i] = word < word_count ? words[word] : zero_word();
    }
#pragma unroll
    for (uint32_t i = 0; i < few_tile<T>::values; i++) {
        uint32_t at = threadIdx.x + i * FEW_THREADS;
        uint32_t row = at / few_tile<T>::k, k = k0 + at % few_tile<T>::k;
        tile.x[i] = row < a.rows && k < a.k ? a.x[(size_t)row * a.k + k] : 0.0f;
    }
}

template <typename T>
static __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) few_kernel(matmul_args_t a)
{
    constexpr uint32_t tile_k = few_tile<T>::k;
    __shared__ uint4 words[FEW_WORDS];
    __shared__ float xs[FEW_ROWS][tile_k + 1]; // + 1: a warp's two rows lie in different banks
    uint32_t column = threadIdx.x % KRN_PANEL, row = threadIdx.x / KRN_PANEL;
    uint32_t n = blockIdx.x * KRN_PANEL + column;
    const T *w = (const T *)words + column;
    few_tile<T> next;
    float sum = 0.0f;

    few_load<T>(a, 0, next);
    for (uint32_t k0 = 0; k0 < a.k; k0 += tile_k) {
        uint32_t count = a.k - k0 < tile_k ? a.k - k0 : tile_k;
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < few_tile<T>::words; i++)
            words[threadIdx.x + i * FEW_THREADS] = next.w[i];
#pragma unroll
        for (uint32_t i = 0; i < few_tile<T>::values; i++) {
            uint32_t at = threadIdx.x + i * FEW_THREADS;
            xs[at / tile_k][at % tile_k] = next.x[i];
        }
        __syncthreads();
        if (k0 + tile_k < a.k)
            few_load<T>(a, k0 + tile_k, next);
        if (row >= a.rows)
            continue;
#pragma unroll 8
        for (uint32_t k = 0; k < count; k++)
            sum = __fmaf_rn(xs[row][k], widen(w[k * KRN_PANEL]), sum);
    }
    if (row < a.rows && n < a.n)
        a.out[(size_t)row * a.n + n] = sum;
}

// ---- More rows ----------------------------------------------------------------------

// A tile on its way: TILE_K of 64 columns and of 16 * ROWS rows.
template <typename T, uint32_t ROWS> struct wide_tile {
    static constexpr uint32_t words = TILE_K * TILE_PANELS * sizeof(T) / TILE_THREADS;
    static constexpr uint32_t values = TILE_K * 16u * ROWS / TILE_THREADS;
    uint4 w[words];
    float x[values];
};

template <typename T, uint32_t ROWS>
static __device__ __forceinline__ void wide_load(const matmul_args_t &a, uint32_t k0,
                                                 wide_tile<T, ROWS> &tile)
{
    constexpr uint32_t panel_words = TILE_K * (uint32_t)sizeof(T);
    uint32_t panels = (a.n + KRN_PANEL - 1) / KRN_PANEL;
    uint32_t word_count = (a.k - k0) * (uint32_t)sizeof(T);

#pragma unroll
    for (uint32_t i = 0; i < wide_tile<T, ROWS>::words; i++) {
        uint32_t at = threadIdx.x + i * TILE_THREADS, word = at % panel_words;
        uint32_t panel = blockIdx.x * TILE_PANELS + at / panel_words;
        const uint4 *words = (const uint4 *)a.weights + ((size_t)panel * a.k + k0) * sizeof(T);
        tile.w[i] = panel < panels && word < word_count ? words[word] : zero_word();
    }
#pragma unroll
    for (uint32_t i = 0; i < wide_tile<T, ROWS>::values; i++) {
        uint32_t at = threadIdx.x + i * TILE_THREADS;
        uint32_t row = blockIdx.y * 16u * ROWS + at / TILE_K, k = k0 + at % TILE_K;
        tile.x[i] = row < a.rows && k < a.k ? a.x[(size_t)row * a.k + k] : 0.0f;
    }
}

// Floats of the word `at` of a tile: to row k, columns from c.
static __device__ __forceinline__ void put_word(float (*ws)[TILE_COLUMNS + 4], uint32_t at,
                                                uint4 word, krn_f16)
{
    uint32_t k = at % (TILE_K * 2) / 2, c = at / (TILE_K * 2) * KRN_PANEL + at % 2 * 8;

    krn_device_unpack(word, &ws[k][c]);
}

static __device__ __forceinline__ void put_word(float (*ws)[TILE_COLUMNS + 4], uint32_t at,
                                                uint4 word, float)
{
    uint32_t k = at % (TILE_K * 4) / 4, c = at / (TILE_K * 4) * KRN_PANEL + at % 4 * 4;

    *(uint4 *)&ws[k][c] = word;
}

template <uint32_t ROWS>
static __device__ __forceinline__ void wide_step(const float *w, const float *x,
                                                 float sums[ROWS][4])
{
    float4 w4 = *(const float4 *)w;

#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        sums[r][0] = __fmaf_rn(x[r], w4.x, sums[r][0]);
        sums[r][1] = __fmaf_rn(x[r], w4.y, sums[r][1]);
        sums[r][2] = __fmaf_rn(x[r], w4.z, sums[r][2]);
        sums[r][3] = __fmaf_rn(x[r], w4.w, sums[r][3]);
    }
}

template <typename T, uint32_t ROWS>
static __global__ void __launch_bounds__(TILE_THREADS) wide_kernel(matmul_args_t a)
{
    __shared__ __align__(16) float ws[TILE_K][TILE_COLUMNS + 4]; // + 4, + 1: fewer bank conflicts
    __shared__ float xs[TILE_K][16 * ROWS + 1];
    uint32_t c = threadIdx.x % 16 * 4, r0 = threadIdx.x / 16 * ROWS;
    wide_tile<T, ROWS> next;
    float sums[ROWS][4] = {};

    wide_load<T, ROWS>(a, 0, next);
    for (uint32_t k0 = 0; k0 < a.k; k0 += TILE_K) {
        uint32_t count = a.k - k0 < TILE_K ? a.k - k0 : TILE_K;
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < wide_tile<T, ROWS>::words; i++)
            put_word(ws, threadIdx.x + i * TILE_THREADS, next.w[i], T());
#pragma unroll
        for (uint32_t i = 0; i < wide_tile<T, ROWS>::values; i++) {
            uint32_t at = threadIdx.x + i * TILE_THREADS;
            xs[at % TILE_K][at / TILE_K] = next.x[i];
        }
        __syncthreads();
        if (k0 + TILE_K < a.k)
            wide_load<T, ROWS>(a, k0 + TILE_K, next);
#pragma unroll 8
        for (uint32_t k = 0; k < count; k++)
            wide_step<ROWS>(&ws[k][c], &xs[k][r0], sums);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = blockIdx.y * 16u * ROWS + r0 + r, n = blockIdx.x * TILE_COLUMNS + c + i;
            if (row < a.rows && n < a.n)
                a.out[(size_t)row * a.n + n] = sums[r][i];
        }
}

// ---- Launch -------------------------------------------------------------------------

template <typename T, uint32_t ROWS> static void launch_wide(void *stream, const matmul_args_t &a)
{
    auto kernel = wide_kernel<T, ROWS>;
    dim3 grid((a.n + TILE_COLUMNS - 1) / TILE_COLUMNS, (a.rows + 16 * ROWS - 1) / (16 * ROWS));

    KRN_LAUNCH(kernel, grid, dim3(TILE_THREADS), 0, stream, a);
}

template <typename T> static void launch(void *stream, const matmul_args_t &a)
{
    auto few = few_kernel<T>;

    if (a.rows <= FEW_ROWS)
        KRN_LAUNCH(few, dim3((a.n + KRN_PANEL - 1) / KRN_PANEL), dim3(FEW_THREADS), 0, stream, a);
    else if (a.rows <= SMALL_ROWS)
        launch_wide<T, 1>(stream, a);
    else
        launch_wide<T, 4>(stream, a);
}

as_status_t krn_cuda_matmul(void *stream, const krn_weight_t *w, const float *x, uint32_t rows,
                            float *out)
{
    matmul_args_t a = {w->data, x, out, rows, w->n, w->k};

    if (w->type != KRN_WEIGHT_F16 && w->type != KRN_WEIGHT_F32)
        return AS_ERR_INVALID;
    if (w->n > UINT32_MAX - TILE_COLUMNS || w->k > UINT32_MAX / 8u)
        return AS_ERR_LIMIT;
    if (rows > KRN_GRID_YZ * 64u)
        return AS_ERR_LIMIT;
    if (rows == 0 || w->n == 0)
        return AS_OK;
    if (w->type == KRN_WEIGHT_F16)
        launch<krn_f16>(stream, a);
    else
        launch<float>(stream, a);
    return krn_cuda_launched("matmul");
}
