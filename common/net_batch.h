// SPDX-License-Identifier: Apache-2.0
// Small messages on one connection, sent as one.
//
// Each header stands behind its length, 2 bytes. They may be told apart in any order of bytes and at
// any alignment.
#ifndef AS_NET_BATCH_H
#define AS_NET_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define AS_NET_BATCH_LENGTH_BYTES 2u

// Appends a header to the `*used` bytes of a batch of at most `bytes_max`. False: there is no room.
static inline bool as_net_batch_add(void *batch, size_t *used, size_t bytes_max, const void *header,
                                    size_t bytes)
{
    size_t left = bytes_max - *used;
    if (bytes == 0 || bytes > UINT16_MAX || left < AS_NET_BATCH_LENGTH_BYTES ||
        bytes > left - AS_NET_BATCH_LENGTH_BYTES) {
        return false;
    }
    unsigned char *at = (unsigned char *)batch + *used;
    at[0] = (unsigned char)bytes;
    at[1] = (unsigned char)(bytes >> 8);
    memcpy(at + AS_NET_BATCH_LENGTH_BYTES, header, bytes);
    *used += AS_NET_BATCH_LENGTH_BYTES + bytes;
    return true;
}

// The header at `*done` of a batch of `bytes`, and goes on behind it. NULL, of a batch that is not at its
// end (`*done` < `bytes`): it is malformed.
static inline const void *as_net_batch_next(const void *batch, size_t bytes, size_t *done,
                                            size_t *header_bytes_p)
{
    const unsigned char *at = (const unsigned char *)batch + *done;
    size_t left = bytes - *done;
    if (left <= AS_NET_BATCH_LENGTH_BYTES) {
        return NULL;
    }
    size_t header_bytes = (size_t)at[0] | (size_t)at[1] << 8;
    if (header_bytes == 0 || header_bytes > left - AS_NET_BATCH_LENGTH_BYTES) {
        return NULL;
    }
    *done += AS_NET_BATCH_LENGTH_BYTES + header_bytes;
    *header_bytes_p = header_bytes;
    return at + AS_NET_BATCH_LENGTH_BYTES;
}

#endif
