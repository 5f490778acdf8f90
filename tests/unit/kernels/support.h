// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: random values from a printed seed, comparison of bits, and the list
// of implementations that this processor can run.
#ifndef TESTS_KERNELS_SUPPORT_H
#define TESTS_KERNELS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/mem.h"
#include "kernels/f16.h"
#include "kernels/kernels.h"

static uint64_t random_state;

// The seed is the clock, or ASSAY_SEED to repeat a failure.
static inline int seed_setup(void **state)
{
    const char *wanted = getenv("ASSAY_SEED");

    (void)state;
    random_state = wanted ? strtoull(wanted, NULL, 10) : (uint64_t)time(NULL);
    printf("ASSAY_SEED=%llu\n", (unsigned long long)random_state);
    return 0;
}

static inline uint32_t random_u32(void) // splitmix64
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static inline uint32_t random_below(uint32_t bound)
{
    return random_u32() % bound;
}

// Uniform in (-1, 1), with some zeros of both signs and some tiny values, where rules about signs
// and rounding show.
static inline float random_float(void)
{
    uint32_t kind = random_below(64);
    float value = (float)((double)random_u32() / 2147483648.0 - 1.0);

    if (kind == 0)
        return value < 0 ? -0.0f : 0.0f;
    return kind == 1 ? value * 1e-30f : value;
}

static inline float *random_floats(size_t count)
{
    float *values = as_mem_aligned(64, (count + 16) * sizeof(float));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_float();
    return values;
}

static inline krn_f16 *random_halves(size_t count)
{
    krn_f16 *values = as_mem_aligned(64, (count + 32) * sizeof(krn_f16));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = krn_f16_from_float(random_float());
    return values;
}

static inline float *copy_floats(const float *from, size_t count)
{
    float *copy = as_mem_aligned(64, (count + 16) * sizeof(float));
    assert_non_null(copy);
    memcpy(copy, from, count * sizeof(float));
    return copy;
}

// memcmp that says where the first difference is.
static inline void assert_same_bits(const float *expected, const float *actual, size_t count,
                                    const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&expected[i], &actual[i], sizeof(float)) != 0)
            fail_msg("%s: value %zu of %zu is %a, not %a", what, i, count, (double)actual[i],
                     (double)expected[i]);
}

// The implementations this processor runs, each of which must give the reference's bits.
static inline size_t implementations(const krn_ops_t *list[3])
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    size_t count = 0;

    for (size_t i = 0; i < 3; i++) {
        const krn_ops_t *ops = krn_cpu_named(names[i]);
        if (ops)
            list[count++] = ops;
        else
            print_message("this processor has no %s: not tested\n", names[i]);
    }
    return count;
}

// Of an attention, with bytes that are no numbers.
static inline void *scratch_for(const krn_attention_args_t *args)
{
    size_t bytes = krn_attention_scratch_bytes(args->rows, args->q_heads, args->dim);
    void *scratch = as_mem_alloc(bytes);

    assert_non_null(scratch);
    memset(scratch, 0xee, bytes);
    return scratch;
}

#endif
