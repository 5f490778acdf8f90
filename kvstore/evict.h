// SPDX-License-Identifier: Apache-2.0
// Eviction: which sealed blocks go when the pool is nearly full.
#ifndef KVS_EVICT_H
#define KVS_EVICT_H

#include <stdbool.h>
#include "kvstore/index.h"

#define KVS_EVICT_BATCH 64u // blocks of one call, so that the loop stays live

// Evicts until at most `used_bytes_goal` of the pool are used, but at most KVS_EVICT_BATCH blocks.
// Adds their number to *evicted_p. True when it should be called again: the goal is not reached and
// there may be more to evict.
bool kvs_evict_some(kvs_index_t *index, const kvs_pool_t *pool, size_t used_bytes_goal,
                    uint64_t *evicted_p);

// The same of one owner's blocks only, until no more than its goal is charged to it.
bool kvs_evict_account(kvs_index_t *index, uint32_t account, uint64_t *evicted_p);

#endif
