// SPDX-License-Identifier: Apache-2.0
// Slices of partial attention results: where the (out, max, sum) of a run of (row, head) pairs lie
// in a piece of memory.
#ifndef GPW_PARTIALS_H
#define GPW_PARTIALS_H

#include "kernels/kernels.h"

// Partials of `pairs` (row, head) pairs in `memory`, pairs * (dim + 2) floats long.
static inline krn_partials_t gpw_partials_carve(float *memory, size_t pairs, uint32_t dim)
{
    krn_partials_t partials = {memory, memory + pairs * dim, memory + pairs * dim + pairs};
    return partials;
}

static inline krn_partials_t gpw_partials_at(const krn_partials_t *partials, size_t pair,
                                             uint32_t dim)
{
    krn_partials_t at = {partials->out + pair * dim, partials->max + pair, partials->sum + pair};
    return at;
}

#endif
