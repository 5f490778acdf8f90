// SPDX-License-Identifier: Apache-2.0
// Blocks whose keys and bytes follow from a number alone, for programs that put, read and check them.
#ifndef TESTS_NUMBERED_H
#define TESTS_NUMBERED_H

#include <string.h>

#include "common/block.h"

#define NUMBERED_NAMESPACE 0xa5

static inline as_key_t numbered_key(uint32_t number)
{
    as_key_t key = {{NUMBERED_NAMESPACE}};
    uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ull; // its first bytes choose its bucket
    memcpy(key.bytes + 1, &mixed, sizeof(mixed));
    memcpy(key.bytes + 16, &number, sizeof(number));
    return key;
}

static inline void numbered_fill(const as_shape_t *shape, uint32_t number, uint8_t *bytes)
{
    uint64_t state = number * 0x2545f4914f6cdd1dull + 1;
    for (size_t i = 0; i < as_block_bytes(shape); i += sizeof(state)) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(bytes + i, &state, sizeof(state));
    }
}

// 8 KiB in 4 extents.
static inline as_shape_t numbered_shape(void)
{
    return (as_shape_t){4, 4, 2, 16, 16, AS_ELEMENT_F16};
}

// 2 KiB in 2 extents: one sector of a disk with its checksums.
static inline as_shape_t numbered_small_shape(void)
{
    return (as_shape_t){2, 2, 1, 16, 16, AS_ELEMENT_F16};
}

#endif
