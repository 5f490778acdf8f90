// SPDX-License-Identifier: Apache-2.0
// The seam between attention.cu, which computes the partials of several runs at once, and merge.cu,
// which folds them in order.
#ifndef KRN_CUDA_MERGE_CUH
#define KRN_CUDA_MERGE_CUH

#include "kernels/cuda/math.cuh"

typedef struct krn_wave {
    krn_partials_t slots; // [slot_count][pairs]: the partials of runs that follow one another
    uint32_t slot_count, pairs, dim;
    krn_partials_t total; // [pairs]
    int continued;        // total holds the runs before; else it begins empty
    float *out;           // of the last wave: the normalised total goes here, not back to total
    float *lse;           // with out; may be NULL
} krn_wave_t;

as_status_t krn_cuda_wave_merge(void *stream, const krn_wave_t *wave);

#endif
