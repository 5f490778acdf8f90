// SPDX-License-Identifier: Apache-2.0
// The functions that every instruction set gives under its own suffix; dispatch.c makes tables of
// them.
#ifndef KRN_CPU_H
#define KRN_CPU_H

#include "kernels/kernels.h"

#define KRN_CPU_DECLARE(isa)                                                                       \
    void krn_matmul_##isa(krn_pool_t *pool, const krn_weight_t *w, const float *x, uint32_t rows,  \
                          float *out);                                                             \
    void krn_rmsnorm_##isa(const float *x, const float *weight, uint32_t rows, uint32_t n,         \
                           float eps, float *out);                                                 \
    void krn_rope_##isa(float *x, uint32_t rows, uint32_t heads, uint32_t dim,                     \
                        const krn_rope_t *rope, const int32_t *positions);                         \
    void krn_swiglu_##isa(const float *gate, const float *up, size_t count, float *out);           \
    void krn_add_##isa(float *a, const float *b, size_t count);                                    \
    void krn_f32_to_f16_##isa(const float *in, size_t count, krn_f16 *out);                        \
    void krn_f16_to_f32_##isa(const krn_f16 *in, size_t count, float *out);                        \
    void krn_attention_##isa(krn_pool_t *pool, const krn_attention_args_t *args,                   \
                             krn_partials_t *io);                                                  \
    void krn_attention_part_##isa(const krn_attention_args_t *args,                                \
                                  const krn_attention_part_t *part, krn_partials_t *io);           \
    void krn_merge_##isa(krn_partials_t *a, const krn_partials_t *b, uint32_t count,               \
                         uint32_t dim);                                                            \
    void krn_normalise_##isa(const krn_partials_t *partials, uint32_t count, uint32_t dim,         \
                             float *out)

KRN_CPU_DECLARE(portable);
KRN_CPU_DECLARE(avx2);
KRN_CPU_DECLARE(avx512);

#endif
