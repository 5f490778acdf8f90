// SPDX-License-Identifier: Apache-2.0
// The index's own state, shared by index.c and order.c. Not for others: see index.h.
#ifndef KVS_INDEX_STATE_H
#define KVS_INDEX_STATE_H

#include "kvstore/index.h"

// A queue of eviction.
typedef struct kvs_order {
    uint32_t oldest, newest;
    uint32_t blocks;
    size_t bytes;
} kvs_order_t;

struct kvs_index {
    kvs_index_options_t options;
    uint32_t mask; // buckets - 1
    uint32_t *by_key;
    kvs_block_t *blocks;
    uint32_t unused, unused_count;
    kvs_order_t orders[KVS_QUEUES];
    kvs_ghosts_t *ghosts;
    kvs_accounts_t *accounts;
    size_t guarded_bytes[KVS_GUARD_HARD + 1];
    size_t given_bytes;
    uint32_t counts[KVS_DYING + 1];
    uint64_t pins;
    uint32_t mortals;
    uint32_t uses; // of all blocks, new ones among them; goes round
    kvs_index_event_fn listener;
    void *listener_ctx;
};

static inline kvs_block_t *kvs_block_at(const kvs_index_t *index, uint32_t id)
{
    return &index->blocks[id];
}

// order.c: a block becomes SEALED, put here or as a copy; somebody uses it; it is so no longer.
void kvs_order_enter(kvs_index_t *index, kvs_block_t *block);
void kvs_order_enter_copy(kvs_index_t *index, kvs_block_t *block, bool is_hot);
void kvs_order_use(kvs_index_t *index, kvs_block_t *block);
void kvs_order_leave(kvs_index_t *index, kvs_block_t *block);

#endif
