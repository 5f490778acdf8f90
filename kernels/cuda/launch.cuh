// SPDX-License-Identifier: Apache-2.0
// How the files of this folder start a kernel and judge the driver's answers.
//
// Launches and dynamic shared memory go through macros because their syntax is nvcc's own: the
// emulation of the unit tests, which lets a C++ compiler build the same sources, brings its own.
#ifndef KRN_CUDA_LAUNCH_CUH
#define KRN_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "common/log.h"
}

#ifndef KRN_CUDA_EMULATED
#define KRN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    kernel<<<grid, block, shared_bytes, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define KRN_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

#define KRN_WARP      32u
#define KRN_FULL_WARP 0xffffffffu
#define KRN_GRID_YZ   65535u // most blocks of a grid in y and in z

// What a launch or a call of the runtime became. The first to see an error logs it.
static inline as_status_t krn_cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return AS_OK;
    AS_ERROR("cuda", "%s failed: %s", what, cudaGetErrorString(error));
    return AS_ERR_DEVICE;
}

static inline as_status_t krn_cuda_launched(const char *what)
{
    return krn_cuda_status(cudaGetLastError(), what);
}

// Blocks of `threads` for `count` items, bounded: the kernels stride over the grid.
static inline uint32_t krn_cuda_blocks(size_t count, uint32_t threads)
{
    size_t blocks = (count + threads - 1) / threads, most = 1u << 16;

    return (uint32_t)(blocks < most ? blocks : most);
}

#endif
