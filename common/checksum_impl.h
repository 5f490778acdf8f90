// SPDX-License-Identifier: Apache-2.0
// The implementations of CRC32C behind checksum.h, for the dispatch and for the test that forces
// each of them.
#ifndef AS_CHECKSUM_IMPL_H
#define AS_CHECKSUM_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct as_crc32c_impl {
    const char *name;
    bool (*supported)(void);
    uint32_t (*crc)(uint32_t crc, const uint8_t *data, size_t bytes);
    uint32_t (*copy)(uint32_t crc, uint8_t *destination, const uint8_t *source, size_t bytes);
} as_crc32c_impl_t;

// Slowest first; the last supported one is used. The first is always supported.
extern const as_crc32c_impl_t as_crc32c_impls[];
extern const size_t as_crc32c_impl_count;

#endif
