// SPDX-License-Identifier: Apache-2.0
// What the files of this folder share beyond kernels.h: the scratch memory of a pool's threads, and
// the scalar pieces of the bit rules.
#ifndef KRN_INTERNAL_H
#define KRN_INTERNAL_H

#include "kernels/kernels.h"

// Scratch of one thread: the largest user is attention (see cpu/attention_simd.h), which asserts
// that it fits.
#define KRN_SCRATCH_BYTES (1536u << 10)

// Scratch of the calling thread, 64-byte aligned, KRN_SCRATCH_BYTES long. Only inside a function
// that krn_pool_run runs; its content is undefined at entry.
void *krn_pool_scratch(void);

// Scratch of the thread that calls krn_pool_run, from outside of it: to hand something to all
// threads. While they run, the functions on the caller's thread have it as their own.
void *krn_pool_caller_scratch(krn_pool_t *pool);

// Helper threads that sleep now, rather than spin or work.
uint32_t krn_pool_sleepers(krn_pool_t *pool);

// Visible tokens of a page for a row at `position`: 0 .. capacity.
static inline uint32_t krn_page_visible(const krn_page_t *page, uint32_t capacity, int32_t position)
{
    int64_t visible = (int64_t)position + 1 - (int64_t)page->index * capacity;

    if (visible <= 0)
        return 0;
    return visible < capacity ? (uint32_t)visible : capacity;
}

// Asserts what every implementation of attention relies on.
void krn_attention_check(const krn_attention_args_t *args);

#endif
