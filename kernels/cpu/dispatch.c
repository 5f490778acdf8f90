// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels of this processor, once asked, by what it and the operating system support.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/cpu.h"

#define OPS(isa)                                                                                   \
    {                                                                                              \
        .name = #isa, .matmul = krn_matmul_##isa, .rmsnorm = krn_rmsnorm_##isa,                    \
        .rope = krn_rope_##isa, .swiglu = krn_swiglu_##isa, .add = krn_add_##isa,                  \
        .f32_to_f16 = krn_f32_to_f16_##isa, .f16_to_f32 = krn_f16_to_f32_##isa,                    \
        .attention = krn_attention_##isa, .attention_part = krn_attention_part_##isa,              \
        .merge = krn_merge_##isa, .normalise = krn_normalise_##isa,                                \
    }

static const krn_ops_t portable = OPS(portable);

#if defined(__x86_64__)
static const krn_ops_t avx2 = OPS(avx2);
static const krn_ops_t avx512 = OPS(avx512);

// cpuid is a trap of some 20 us in a virtual machine: asked once.
static int has_f16c(void)
{
    static atomic_int known; // 0: not asked yet, else 1 + the answer
    unsigned a, b, c, d;

    if (!atomic_load_explicit(&known, memory_order_relaxed))
        atomic_store_explicit(&known, 1 + (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C)),
                              memory_order_relaxed);
    return atomic_load_explicit(&known, memory_order_relaxed) - 1;
}

// __builtin_cpu_supports also asks whether the operating system saves the registers.
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const krn_ops_t *krn_cpu_named(const char *name)
{
#if defined(__x86_64__)
    if (strcmp(name, "avx512") == 0)
        return has_avx512() ? &avx512 : NULL;
    if (strcmp(name, "avx2") == 0)
        return has_avx2() ? &avx2 : NULL;
#endif
    if (strcmp(name, "portable") == 0)
        return &portable;
    return strcmp(name, "reference") == 0 ? krn_reference() : NULL;
}

const krn_ops_t *krn_cpu(void)
{
    static const char *const best_first[] = {"avx512", "avx2", "portable"};
    const char *wanted = getenv("ASSAY_KERNELS");
    const krn_ops_t *ops = NULL;

    if (wanted && *wanted)
        return krn_cpu_named(wanted);
    for (size_t i = 0; !ops && i < sizeof best_first / sizeof best_first[0]; i++)
        ops = krn_cpu_named(best_first[i]);
    return ops;
}
