// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels/cuda share: a stream, and device memory that a test need not free.
#ifndef TESTS_CUDA_SUPPORT_H
#define TESTS_CUDA_SUPPORT_H

#include "kernels/cuda/cuda.h"
#include "tests/unit/kernels/support.h"

#define WAIT_MS         60000u
#define DEVICE_BUFFERS  4096
#define EXIT_NOT_TESTED 77

static void *stream;
static void *device_buffers[DEVICE_BUFFERS];
static int device_buffer_count;
static int device_is_emulated; // then shapes stay small

// For main: 0, or the exit status of a test that this machine cannot run.
static inline int device_missing(void)
{
    krn_cuda_device_t device;

    if (krn_cuda_available(0, &device) != AS_OK || krn_cuda_device_use(0) != AS_OK) {
        printf("this machine has no CUDA device: the kernels are not tested on one\n");
        return EXIT_NOT_TESTED;
    }
    device_is_emulated = strcmp(device.name, "emulated") == 0;
    printf("device %s, sm_%u\n", device.name, device.capability);
    return 0;
}

static inline int device_setup(void **state)
{
    assert_int_equal(krn_cuda_stream_alloc(&stream), AS_OK);
    return seed_setup(state);
}

static inline int device_teardown(void **state)
{
    (void)state;
    krn_cuda_stream_free(stream);
    return 0;
}

// After each test: gives its device memory back.
static inline int device_sweep(void **state)
{
    (void)state;
    while (device_buffer_count > 0)
        krn_cuda_free(device_buffers[--device_buffer_count]);
    return 0;
}

static inline void *device_memory(size_t bytes)
{
    void *memory = NULL;

    assert_true(device_buffer_count < DEVICE_BUFFERS);
    assert_int_equal(krn_cuda_alloc(bytes > 0 ? bytes : 1, &memory), AS_OK);
    device_buffers[device_buffer_count++] = memory;
    return memory;
}

static inline void device_wait(void)
{
    assert_int_equal(krn_cuda_stream_wait(stream, WAIT_MS), AS_OK);
}

static inline void *to_device(const void *host, size_t bytes)
{
    void *memory = device_memory(bytes);

    assert_int_equal(krn_cuda_copy_to(stream, memory, host, bytes), AS_OK);
    device_wait();
    return memory;
}

static inline void from_device(void *host, const void *device, size_t bytes)
{
    assert_int_equal(krn_cuda_copy_from(stream, host, device, bytes), AS_OK);
    device_wait();
}

static inline float *floats_to_device(const float *host, size_t count)
{
    return to_device(host, count * sizeof(float));
}

static inline void assert_device_floats(const float *expected, const float *device, size_t count,
                                        const char *what)
{
    float *actual = random_floats(count);

    from_device(actual, device, count * sizeof(float));
    assert_same_bits(expected, actual, count, what);
    as_mem_free(actual);
}

#endif
