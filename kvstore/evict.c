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
// Blocks that an operator pinned (a guard) stand in a queue of their own, which is looked at when all
// else is held: there soft guards go, from the ends of chains, and hard ones stay.
//
// An owner that reaches its quota loses blocks of its own by the same rules, in one queue.
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
    uint32_t guarded;        // the same of the queue of guards
    bool moved;              // did anything but pass over held blocks
} walk_t;

static bool is_in_use(const kvs_block_t *block)
{
    return block->pins > 0 || block->leases > 0;
}

static bool is_held(const kvs_block_t *block)
{
    return is_in_use(block) || block->guard != KVS_GUARD_NONE;
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

// The same of the queue of guards.
static step_t guarded_step(walk_t *walk, kvs_block_t *block)
{
    bool may_descend = walk->depth < AS_CHAIN_BLOCKS_MAX;
    bool is_soft = block->guard == KVS_GUARD_SOFT;
    kvs_block_t *child = may_descend ? kvs_index_child(walk->index, block) : NULL;
    bool is_child_held = child && (is_in_use(child) || child->guard != KVS_GUARD_SOFT);
    if (!is_soft || is_in_use(block) || is_child_held || (child && child == walk->kept)) {
        walk->guarded += walk->depth == 0;
        walk->kept = block;
        kvs_index_make_newest(walk->index, block, KVS_GUARDED);
        return HELD;
    }
    if (child) {
        kvs_index_make_oldest(walk->index, child, KVS_GUARDED);
        return WENT_DOWN;
    }
    kvs_index_evict(walk->index, block);
    walk->guarded = 0;
    walk->moved = true;
    return EVICTED;
}

// How deep the next look is: those that a walk went through on its way down lie in front, and are looked
// at again on its way up.
static uint32_t depth_after(const walk_t *walk, step_t step)
{
    return step == WENT_DOWN ? walk->depth + 1 : walk->depth > 0 ? walk->depth - 1 : 0;
}

// How many blocks in a row were found held, when each had its turn: those that a walk met, down or up,
// will have theirs.
static uint32_t passed(const walk_t *walk, step_t step, uint32_t before)
{
    return step == HELD ? before + (walk->depth == 0) : step == WENT_DOWN ? before : 0;
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
    if (small && (is_large || is_main_held)) {
        return small;
    }
    bool are_all_held = is_main_held && walk->guarded >= kvs_index_queue_blocks(index, KVS_GUARDED);
    return !is_main_held ? main : are_all_held ? NULL : kvs_index_oldest(index, KVS_GUARDED);
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
        step_t step = queue == KVS_GUARDED ? guarded_step(&walk, block) : evict_step(&walk, block);
        walk.held = step == HELD && queue != KVS_MAIN ? walk.held : passed(&walk, step, walk.held);
        walk.depth = depth_after(&walk, step);
        evicted += step == EVICTED;
    }
    *evicted_p += evicted;
    return walk.moved;
}

// ---- of one owner

static step_t own_keep(walk_t *walk, kvs_block_t *block, step_t step)
{
    walk->kept = block;
    kvs_index_own_move(walk->index, block, true);
    return step;
}

static bool is_own_held(const kvs_account_t *owner, const kvs_block_t *block)
{
    return is_in_use(block) || block->guard > (owner->soft_too ? KVS_GUARD_SOFT : KVS_GUARD_NONE);
}

static step_t own_step(walk_t *walk, const kvs_account_t *owner, kvs_block_t *block)
{
    bool may_descend = walk->depth < AS_CHAIN_BLOCKS_MAX;
    kvs_block_t *child = may_descend ? kvs_index_child(walk->index, block) : NULL;
    if (child && child->account != block->account) { // a parent is what a writer says
        child = NULL;
    }
    if (is_own_held(owner, block) ||
        (child && (is_own_held(owner, child) || child == walk->kept))) {
        return own_keep(walk, block, HELD);
    }
    kvs_block_t *used = block->heat > 0 ? block : child && child->heat > 0 ? child : NULL;
    if (used) {
        kvs_index_cool(used);
        return own_keep(walk, block, COOLED);
    }
    if (child) {
        kvs_index_own_move(walk->index, child, false);
        return WENT_DOWN;
    }
    kvs_index_doom(walk->index, block); // no ghost: it did not go for want of room
    return EVICTED;
}

bool kvs_evict_account(kvs_index_t *index, uint32_t account, uint64_t *evicted_p)
{
    walk_t walk = {.index = index};
    kvs_account_t *owner = kvs_account_at(kvs_index_accounts(index), account);
    uint32_t evicted = 0, steps = 0;
    bool more = true;
    for (; steps < STEPS_MAX && evicted < KVS_EVICT_BATCH; steps++) {
        bool all_held = owner->passed >= owner->sealed;
        more =
            owner->bytes > owner->goal_bytes && owner->sealed > 0 && !(all_held && owner->soft_too);
        if (!more) {
            break;
        }
        if (all_held) {
            owner->soft_too = true;
            owner->passed = 0;
        }
        step_t step = own_step(&walk, owner, kvs_index_own_oldest(index, account));
        owner->passed = passed(&walk, step, owner->passed);
        walk.depth = depth_after(&walk, step);
        owner->soft_too &= step != EVICTED; // what stood above it may go first
        evicted += step == EVICTED;
    }
    *evicted_p += evicted;
    return more;
}
