// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli), by SSE4.2/PCLMUL where the processor has them, by tables elsewhere; same
// values.
#ifndef AS_CHECKSUM_H
#define AS_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

// CRC32C of `bytes` bytes, continuing from `crc` (0 to begin).
uint32_t as_crc32c(uint32_t crc, const void *data, size_t bytes);
// Copies and checksums in one pass over memory; what is summed is what was copied, also where another
// process changes the source meanwhile. From 16 KiB on the copy goes past the caches, as is
// right for bytes on their way through: it is faster than memcpy of cold memory.
uint32_t as_crc32c_copy(uint32_t crc, void *destination, const void *source, size_t bytes);

#endif
