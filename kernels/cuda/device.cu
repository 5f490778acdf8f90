// SPDX-License-Identifier: Apache-2.0
// Devices, memory and streams, for callers that know nothing of CUDA.
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "kernels/cuda/launch.cuh"

#define CAPABILITY_MIN 80u // sm_80: what the kernels are compiled for at least

static as_status_t unavailable(const char *reason)
{
    (void)cudaGetLastError(); // the runtime keeps the error for the next to ask
    AS_INFO("cuda", "no device: %s", reason);
    return AS_ERR_DEVICE;
}

as_status_t krn_cuda_available(uint32_t index, krn_cuda_device_t *device_p)
{
    struct cudaDeviceProp properties;
    krn_cuda_device_t device;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error != cudaSuccess)
        return unavailable(cudaGetErrorString(error));
    if (index >= (uint32_t)count)
        return unavailable("fewer devices than that");
    error = cudaGetDeviceProperties(&properties, (int)index);
    if (error != cudaSuccess)
        return unavailable(cudaGetErrorString(error));
    snprintf(device.name, sizeof device.name, "%.*s", (int)sizeof device.name - 1, properties.name);
    device.capability = (uint32_t)(properties.major * 10 + properties.minor);
    device.multiprocessors = (uint32_t)properties.multiProcessorCount;
    device.memory_bytes = properties.totalGlobalMem;
    if (device.capability < CAPABILITY_MIN)
        return unavailable("it is older than sm_80");
    *device_p = device;
    return AS_OK;
}

as_status_t krn_cuda_device_use(uint32_t index)
{
    return krn_cuda_status(cudaSetDevice((int)index), "choosing the device");
}

as_status_t krn_cuda_alloc(size_t bytes, void **memory_p)
{
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);

    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        AS_WARN("cuda", "no device memory for %zu bytes", bytes);
        return AS_ERR_NO_MEMORY;
    }
    if (error != cudaSuccess)
        return krn_cuda_status(error, "allocating device memory");
    *memory_p = memory;
    return AS_OK;
}

void krn_cuda_free(void *memory)
{
    (void)krn_cuda_status(cudaFree(memory), "freeing device memory");
}

as_status_t krn_cuda_copy_to(void *stream, void *device, const void *host, size_t bytes)
{
    cudaError_t error =
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);

    return krn_cuda_status(error, "copying to the device");
}

as_status_t krn_cuda_copy_from(void *stream, void *host, const void *device, size_t bytes)
{
    cudaError_t error =
        cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);

    return krn_cuda_status(error, "copying from the device");
}

as_status_t krn_cuda_stream_alloc(void **stream_p)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

    if (error != cudaSuccess)
        return krn_cuda_status(error, "making a stream");
    *stream_p = stream;
    return AS_OK;
}

void krn_cuda_stream_free(void *stream)
{
    (void)krn_cuda_status(cudaStreamDestroy((cudaStream_t)stream), "ending a stream");
}

as_status_t krn_cuda_stream_poll(void *stream)
{
    cudaError_t error = cudaStreamQuery((cudaStream_t)stream);

    if (error == cudaErrorNotReady)
        return AS_ERR_BUSY;
    return krn_cuda_status(error, "work on the device");
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

as_status_t krn_cuda_stream_wait(void *stream, uint32_t timeout_ms)
{
    uint64_t end_ms = now_ms() + timeout_ms;

    for (;;) {
        as_status_t status = krn_cuda_stream_poll(stream);
        if (status != AS_ERR_BUSY)
            return status;
        if (now_ms() >= end_ms)
            return AS_ERR_DEADLINE;
        sched_yield();
    }
}
