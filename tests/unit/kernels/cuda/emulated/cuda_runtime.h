// SPDX-License-Identifier: Apache-2.0
// A GPU of one core for the unit tests: a C++ compiler builds kernels/cuda with this header in
// place of the toolkit's, and a launch runs the blocks one after another.
//
// The threads of a block are fibers (ucontext) that change places at barriers and shuffles only;
// every second launch resumes them in descending order, so that code which leans on an order fails.
// Shared memory begins as NaNs. Dynamic shared memory and device memory are allocated to the byte:
// the address sanitizer sees what lies outside. A barrier that not all threads reach ends the
// program. Blocks are one-dimensional; static shared memory is a static variable. One host thread.
#ifndef TESTS_EMULATED_CUDA_RUNTIME_H
#define TESTS_EMULATED_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__      static
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct dim3 {
    unsigned int x, y, z;
    explicit dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated
{
constexpr unsigned int THREADS_MAX = 1024, WARP = 32;
constexpr size_t STACK_BYTES = 128u << 10;

struct barrier {
    unsigned int members, arrived, generation;
};
struct fiber {
    ucontext_t context;
    char *stack;
    bool done;
};
inline fiber fibers[THREADS_MAX];
inline ucontext_t scheduler;
inline barrier block_barrier, warp_barriers[THREADS_MAX / WARP];
// What each thread offers in a shuffle: two places in turn, since a thread that has seen all arrive
// at a shuffle may be one ahead of those that have yet to read.
inline uint32_t exchange[2][THREADS_MAX];
inline unsigned int shuffles[THREADS_MAX];
inline unsigned char *dynamic_shared;
inline unsigned int current, launches;
inline bool moved; // some thread arrived or ended since the scheduler last looked
inline void (*body)(void *);
inline void *body_context;

inline void release_if_full(barrier &b)
{
    if (b.arrived < b.members || b.members == 0)
        return;
    b.arrived = 0;
    b.generation++;
}

inline void wait(barrier &b)
{
    unsigned int generation = b.generation;

    b.arrived++;
    moved = true;
    release_if_full(b);
    while (b.generation == generation)
        swapcontext(&fibers[current].context, &scheduler);
}

inline void run_thread()
{
    body(body_context);
    fibers[current].done = moved = true;
    block_barrier.members--;
    release_if_full(block_barrier);
    warp_barriers[current / WARP].members--;
    release_if_full(warp_barriers[current / WARP]);
}

inline void start_thread(unsigned int thread)
{
    fiber &f = fibers[thread];

    if (!f.stack)
        f.stack = (char *)malloc(STACK_BYTES);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = &scheduler;
    f.done = false;
    shuffles[thread] = 0;
    makecontext(&f.context, run_thread, 0);
    warp_barriers[thread / WARP].members++;
}

inline void run_block(unsigned int threads)
{
    unsigned int running = threads;

    block_barrier = {threads, 0, 0};
    memset(warp_barriers, 0, sizeof warp_barriers);
    for (unsigned int i = 0; i < threads; i++)
        start_thread(i);
    while (running > 0) {
        running = 0;
        moved = false;
        for (unsigned int i = 0; i < threads; i++) {
            current = launches % 2 ? threads - 1 - i : i;
            if (fibers[current].done)
                continue;
            threadIdx.x = current;
            swapcontext(&scheduler, &fibers[current].context);
            running += !fibers[current].done;
        }
        if (running > 0 && !moved) {
            fprintf(stderr, "emulated: a barrier is not reached by all threads\n");
            abort();
        }
    }
}

template <class Body> void launch(dim3 grid, dim3 block, size_t shared_bytes, Body kernel)
{
    launches++;
    gridDim = grid;
    blockDim = block;
    body = [](void *context) { (*(Body *)context)(); };
    body_context = &kernel;
    for (unsigned int i = 0; i < grid.x * grid.y * grid.z; i++) {
        blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
        dynamic_shared = (unsigned char *)malloc(shared_bytes);
        memset(dynamic_shared, 0xff, shared_bytes);
        run_block(block.x);
        free(dynamic_shared);
    }
}

inline float shuffle(float value, unsigned int from)
{
    uint32_t *offers = exchange[shuffles[current]++ % 2];
    float result;

    memcpy(&offers[current], &value, 4);
    wait(warp_barriers[current / WARP]);
    memcpy(&result, &offers[current / WARP * WARP + from], 4);
    return result;
}
} // namespace emulated

#define KRN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    ((void)(stream), emulated::launch(grid, block, shared_bytes, [&] { kernel(__VA_ARGS__); }))
#define KRN_DYNAMIC_SHARED(name) unsigned char *name = emulated::dynamic_shared

inline void __syncthreads()
{
    emulated::wait(emulated::block_barrier);
}
inline void __syncwarp()
{
    emulated::wait(emulated::warp_barriers[emulated::current / emulated::WARP]);
}
inline float __shfl_down_sync(unsigned int, float value, unsigned int delta)
{
    unsigned int lane = emulated::current % emulated::WARP;
    return emulated::shuffle(value, lane + delta < emulated::WARP ? lane + delta : lane);
}
inline float __shfl_xor_sync(unsigned int, float value, unsigned int mask)
{
    return emulated::shuffle(value, emulated::current % emulated::WARP ^ mask);
}

// Compiled without contraction, these are the single roundings that they are on the device.
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline unsigned int __float_as_uint(float value)
{
    unsigned int bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __uint_as_float(unsigned int bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// ---- The runtime: one device, whose work is done when the call returns ---------------
enum cudaError_t {
    cudaSuccess,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidDevice,
    cudaErrorNotReady
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaStreamNonBlocking = 1 };
typedef struct emulated_stream *cudaStream_t;
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
};

inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an emulated error";
}
inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = {"emulated", 8, 0, 1, (size_t)1 << 30};
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
inline cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    if (bytes > ((size_t)1 << 30) || posix_memalign(memory, 256, bytes) != 0)
        return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int)
{
    *stream = (cudaStream_t)malloc(1);
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}

#endif
