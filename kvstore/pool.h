// SPDX-License-Identifier: Apache-2.0
// The allocator of the pool: which runs of its bytes are free. It never touches the bytes
// themselves.
#ifndef KVS_POOL_H
#define KVS_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define KVS_POOL_GRAIN_BYTES                                                                       \
    4096u // every run begins at and is a multiple of this: pages, as direct I/O wants
typedef struct kvs_pool kvs_pool_t;

// `bytes` is rounded down to whole grains. Runs are named by the caller, below `runs_max`.
as_status_t kvs_pool_alloc(size_t bytes, uint32_t runs_max, kvs_pool_t **pool_p) AS_MUST_USE;
void kvs_pool_free(kvs_pool_t *pool); // NULL is fine
// Takes at least `bytes` as `run`, which is not out. False: no gap is large enough.
bool kvs_pool_take(kvs_pool_t *pool, uint32_t run, size_t bytes, size_t *offset_p);
void kvs_pool_give(kvs_pool_t *pool, uint32_t run);
size_t kvs_pool_bytes(const kvs_pool_t *pool);
size_t kvs_pool_used(const kvs_pool_t *pool);
size_t kvs_pool_largest(const kvs_pool_t *pool); // the largest gap
// Walks all runs and lists and asserts that they agree. For tests: takes time in proportion to the
// runs.
void kvs_pool_check(const kvs_pool_t *pool);

#endif
