// SPDX-License-Identifier: Apache-2.0
// Eviction: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023),
// children before parents.
//
// New blocks go into the small queue. At its end those that were used meanwhile move on to the main
// queue, and the others go, leaving a ghost; a block that comes back as a ghost goes into the main
// queue at once (ghost.c, which also learns how large the small queue should be). In the main queue
// use (heat) earns a block another round. So what is asked for once never displaces what is asked
// for again.
//
// A chain is useful only up to its first hole, so a block goes only when no block that continues it
// is here. From the oldest block the walk follows children down to a leaf, making each the oldest
// in its turn: so the leaf goes now and the rest of the chain, leaf by leaf, with the next calls,
// without walking down again. A child that is used or held keeps all of the chain above it; its use
// is spent on that. A held block (pinned or leased) is in use: it is passed over.
//
// Every step either evicts, takes heat away, moves a block to the main queue, passes over one that is
// held, or goes one block further down a chain. Steps are bounded, so that a store full of held blocks costs
// a call, not a loop. A walk that is longer than a chain can be goes round in circles (parents are
// what writers say): it ends by evicting where it stands.
#include "kvstore/evict.h"

#include "common/assert.h"

#define STEPS_MAX (2u * AS_CHAIN_BLOCKS_MAX) // about 2 ms

typedef enum step { EVICTED, COOLED, WENT_DOWN, HELD } step_t;

// Of one call.
typedef struct walk {
    kvs_index_t *index;
    uint32_t depth;          // blocks gone down
    const kvs_block_t *kept; // by the block below it: so those above it are kept, too
    uint32_t held;           // looks at the main queue in a row that led nowhere
    bool moved;              // did anything but pass over held blocks
} walk_t;

static bool is_held(const kvs_block_t *block)
{
    return block->pins > 0 || block->leases > 0;
}

// The block stays, and is looked at again after all others.
static step_t keep(walk_t *walk, kvs_block_t *block, step_t step)
{
    walk->moved |= step != HELD || block->queue == KVS_SMALL;
    walk->kept = block;
    kvs_index_make_newest(walk->index, block, KVS_MAIN);
    return step;
}

// Whether a child keeps its parent: spends its use.
static step_t child_step(walk_t *walk, kvs_block_t *block, kvs_block_t *child)
{
    if (is_held(child) || child == walk->kept) {
        return keep(walk, block, HELD);
    }
    if (child->heat > 0) {
        kvs_index_cool(child);
        if (child->queue == KVS_SMALL) {
            kvs_index_make_newest(walk->index, child, KVS_MAIN);
        }
        return keep(walk, block, COOLED);
    }
    if (block->queue == KVS_SMALL && child->queue == KVS_MAIN) {
        return keep(walk, block, HELD);
    }
    kvs_index_make_oldest(walk->index, child, block->queue);
    return WENT_DOWN;
}

// One look at the oldest block of a queue.
static step_t evict_step(walk_t *walk, kvs_block_t *block)
{
    if (is_held(block)) {
        return keep(walk, block, HELD);
    }
    if (block->heat > 0) {
        do { // the way to the main queue costs all of it
            kvs_index_cool(block);
        } while (block->queue == KVS_SMALL && block->heat > 0);
        return keep(walk, block, COOLED);
    }
    bool may_descend = walk->depth < AS_CHAIN_BLOCKS_MAX;
    kvs_block_t *child = may_descend ? kvs_index_child(walk->index, block) : NULL;
    if (child) {
        return child_step(walk, block, child);
    }
    kvs_index_evict(walk->index, block);
    walk->moved = true;
    return EVICTED;
}

// The oldest block of the queue whose turn it is; NULL when all that there is is held.
static kvs_block_t *next(const walk_t *walk)
{
    const kvs_index_t *index = walk->index;
    kvs_block_t *small = kvs_index_oldest(index, KVS_SMALL);
    kvs_block_t *main = kvs_index_oldest(index, KVS_MAIN);
    size_t small_bytes = kvs_index_queue_bytes(index, KVS_SMALL);
    size_t bytes = small_bytes + kvs_index_queue_bytes(index, KVS_MAIN);
    bool is_large = small_bytes >= kvs_ghosts_small_bytes(kvs_index_ghosts(index), bytes);
    bool is_main_held = walk->held >= kvs_index_queue_blocks(index, KVS_MAIN);
    return small && (is_large || is_main_held) ? small : is_main_held ? NULL : main;
}

bool kvs_evict_some(kvs_index_t *index, const kvs_pool_t *pool, size_t used_bytes_goal,
                    uint64_t *evicted_p)
{
    walk_t walk = {.index = index};
    uint32_t evicted = 0;
    for (uint32_t steps = 0; steps < STEPS_MAX && evicted < KVS_EVICT_BATCH; steps++) {
        kvs_block_t *block = kvs_pool_used(pool) > used_bytes_goal ? next(&walk) : NULL;
        if (!block) {
            *evicted_p += evicted;
            return false;
        }
        kvs_queue_t queue = block->queue;
        step_t step = evict_step(&walk, block);
        walk.depth = step == WENT_DOWN ? walk.depth + 1 : 0;
        walk.held = step == HELD        ? walk.held + (queue == KVS_MAIN)
                    : step == WENT_DOWN ? walk.held
                                        : 0;
        evicted += step == EVICTED;
    }
    *evicted_p += evicted;
    return walk.moved;
}
