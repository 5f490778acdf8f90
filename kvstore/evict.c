// SPDX-License-Identifier: Apache-2.0
// Eviction: first in, first out, with second chances, children before parents.
//
// A chain is useful only up to its first hole, so a block goes only when no block that continues it
// is here. From the oldest block the walk follows children down to a leaf, making each the oldest
// in its turn: so the leaf goes now and the rest of the chain, leaf by leaf, with the next calls,
// without walking down again. Use (heat) earns a block another round; a hot child earns it for its
// parent too. A held block (pinned or leased) is in use: it is passed over.
//
// Every step either evicts, takes heat away, moves a block that stays to the new end, or goes one
// block further down a chain. Steps are bounded, so that a store full of held blocks costs a call,
// not a loop. A walk that is longer than a chain can be goes round in circles (parents are what
// writers say): it ends by evicting where it stands.
#include "kvstore/evict.h"

#include "common/assert.h"

#define STEPS_MAX (2u * AS_CHAIN_BLOCKS_MAX) // about 2 ms

typedef enum step { EVICTED, COOLED, WENT_DOWN, HELD } step_t;

static bool is_held(const kvs_block_t *block)
{
    return block->pins > 0 || block->leases > 0;
}

// One look at the oldest block; `may_descend` false: as if it had no children.
static step_t evict_step(kvs_index_t *index, kvs_block_t *block, bool may_descend)
{
    if (is_held(block)) {
        kvs_index_make_newest(index, block);
        return HELD;
    }
    if (block->heat > 0) {
        kvs_index_cool(block);
        kvs_index_make_newest(index, block);
        return COOLED;
    }
    kvs_block_t *child = may_descend ? kvs_index_child(index, block) : NULL;
    if (!child) {
        kvs_index_doom(index, block);
        return EVICTED;
    }
    if (is_held(child) || child->heat > 0) {
        kvs_index_make_newest(index, block);
        return is_held(child) ? HELD : COOLED;
    }
    kvs_index_make_oldest(index, child);
    return WENT_DOWN;
}

bool kvs_evict_some(kvs_index_t *index, const kvs_pool_t *pool, size_t used_bytes_goal,
                    uint64_t *evicted_p)
{
    uint32_t evicted = 0, depth = 0;
    bool moved = false; // did anything but pass over held blocks
    for (uint32_t steps = 0; steps < STEPS_MAX && evicted < KVS_EVICT_BATCH; steps++) {
        kvs_block_t *oldest = kvs_index_oldest(index);
        if (!oldest || kvs_pool_used(pool) <= used_bytes_goal) {
            *evicted_p += evicted;
            return false;
        }
        step_t step = evict_step(index, oldest, depth < AS_CHAIN_BLOCKS_MAX);
        depth = step == WENT_DOWN ? depth + 1 : 0;
        evicted += step == EVICTED;
        moved |= step != HELD;
    }
    *evicted_p += evicted;
    return moved;
}
