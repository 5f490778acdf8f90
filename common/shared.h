// SPDX-License-Identifier: Apache-2.0
// Memory that processes of the same host read by pointer: the pool of a store, and what a client puts
// blocks from.
//
// It is named by an as_shared_name_t, which goes over the wire. Whoever has the name may map the memory,
// for reading only: a part of it is a secret, so a process that maps what it is told to maps nothing
// that the teller could not read.
#ifndef AS_SHARED_H
#define AS_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

typedef struct as_shared {
    int fd;
    void *memory; // zeroed, page-aligned; written by its owner only
    size_t bytes; // of whole pages
    uint64_t secret[2];
} as_shared_t;

// Where a peer finds it; as it is on the wire.
typedef struct as_shared_name {
    uint64_t host; // 0: it is not shared
    uint64_t inode, device;
    uint64_t secret[2];
    uint32_t pid, fd;
} as_shared_name_t;
_Static_assert(sizeof(as_shared_name_t) == 48, "layout on the wire");

#define AS_SHARED_NO_MESSAGES "^posix,sysv,xpmem" // what UCX_TLS is where nobody has set it
// Whether the operator wants it: UCX_TLS of the environment is not set, or has shared memory.
bool as_shared_is_allowed(void);
// In huge pages where some are set aside. AS_ERR_NO_MEMORY.
as_status_t as_shared_alloc(as_shared_t *shared, size_t bytes) AS_MUST_USE;
void as_shared_free(as_shared_t *shared); // peers that have mapped it keep it
as_shared_name_t as_shared_name(const as_shared_t *shared);
// Takes all of its memory now, not with the first use of each page. AS_ERR_NO_MEMORY.
as_status_t as_shared_back(const as_shared_t *shared) AS_MUST_USE;
// Its first `bytes`; *mapped_p: how much that is in whole pages. `backed`: only if all of it is taken: reading
// what is not takes it, at the reader's cost. NULL: it is on another host, or is not what the name says.
const void *as_shared_map(const as_shared_name_t *name, size_t bytes, bool backed,
                          size_t *mapped_p);
void as_shared_unmap(const void *memory, size_t mapped); // NULL is fine

#endif
