// SPDX-License-Identifier: Apache-2.0
// The orders that the blocks of the index are in while they are SEALED: each in one of the queues of
// eviction, those with a guard in one of their own, and in the list of its owner.
#include <string.h>

#include "common/assert.h"
#include "kvstore/index_state.h"

#define NONE KVS_INDEX_NONE

// The links of a block in its queue, or in its account.
static kvs_links_t *links(const kvs_index_t *index, uint32_t id, bool own)
{
    return own ? &kvs_block_at(index, id)->own : &kvs_block_at(index, id)->order;
}

typedef struct list {
    uint32_t *oldest, *newest;
    bool own;
} list_t;

static void list_insert(const kvs_index_t *index, list_t list, uint32_t id, bool newest)
{
    kvs_links_t *of = links(index, id, list.own);
    of->older = newest ? *list.newest : NONE;
    of->newer = newest ? NONE : *list.oldest;
    *(of->older == NONE ? list.oldest : &links(index, of->older, list.own)->newer) = id;
    *(of->newer == NONE ? list.newest : &links(index, of->newer, list.own)->older) = id;
}

static void list_remove(const kvs_index_t *index, list_t list, uint32_t id)
{
    const kvs_links_t *of = links(index, id, list.own);
    *(of->older == NONE ? list.oldest : &links(index, of->older, list.own)->newer) = of->newer;
    *(of->newer == NONE ? list.newest : &links(index, of->newer, list.own)->older) = of->older;
}

static void order_insert(kvs_index_t *index, kvs_block_t *block, kvs_queue_t queue, bool newest)
{
    kvs_order_t *order = &index->orders[queue];
    block->queue = queue;
    list_insert(index, (list_t){&order->oldest, &order->newest, false}, kvs_index_id(index, block),
                newest);
    order->blocks++;
    order->bytes += kvs_block_bytes(block);
}

static void order_remove(kvs_index_t *index, kvs_block_t *block)
{
    kvs_order_t *order = &index->orders[block->queue];
    list_remove(index, (list_t){&order->oldest, &order->newest, false}, kvs_index_id(index, block));
    order->blocks--;
    order->bytes -= kvs_block_bytes(block);
}

static void own_insert(kvs_index_t *index, kvs_block_t *block, bool newest)
{
    kvs_account_t *account = kvs_account_at(index->accounts, block->account);
    list_insert(index, (list_t){&account->oldest, &account->newest, true},
                kvs_index_id(index, block), newest);
    account->sealed++;
}

static void own_remove(kvs_index_t *index, kvs_block_t *block)
{
    kvs_account_t *account = kvs_account_at(index->accounts, block->account);
    list_remove(index, (list_t){&account->oldest, &account->newest, true},
                kvs_index_id(index, block));
    account->sealed--;
}

// By which its ghost is remembered: another one for each tenant.
static as_key_t ghost_of(const as_key_t *of, uint32_t tenant)
{
    as_key_t key = *of;
    uint64_t hash = kvs_realm_hash(kvs_realm(tenant, 0), of);
    memcpy(key.bytes, &hash, sizeof(hash));
    return key;
}

void kvs_order_enter(kvs_index_t *index, kvs_block_t *block)
{
    as_key_t ghost = ghost_of(&block->key, block->tenant);
    order_insert(index, block, kvs_ghosts_admit(index->ghosts, &ghost), true);
    own_insert(index, block, true);
}

void kvs_order_enter_copy(kvs_index_t *index, kvs_block_t *block, bool is_hot)
{
    size_t most = kvs_pool_bytes(index->options.pool) / KVS_GIVEN_PART;
    bool is_given = is_hot && index->given_bytes + kvs_block_bytes(block) <= most;
    block->given = is_given;
    index->given_bytes += is_given ? kvs_block_bytes(block) : 0;
    order_insert(index, block, is_given ? KVS_MAIN : KVS_SMALL, true);
    own_insert(index, block, true);
}

void kvs_order_use(kvs_index_t *index, kvs_block_t *block)
{
    index->given_bytes -= block->given ? kvs_block_bytes(block) : 0;
    block->given = 0; // it has earned its place here, or goes
}

void kvs_order_leave(kvs_index_t *index, kvs_block_t *block)
{
    kvs_order_use(index, block);
    kvs_index_guard(index, block, KVS_GUARD_NONE);
    order_remove(index, block);
    own_remove(index, block);
}

// ---- an operator's pins

void kvs_index_guard(kvs_index_t *index, kvs_block_t *block, kvs_guard_t guard)
{
    AS_ASSERT(block->state == KVS_SEALED);
    if (block->guard == guard) {
        return;
    }
    kvs_order_use(index, block);
    index->guarded_bytes[block->guard] -= block->guard ? kvs_block_bytes(block) : 0;
    index->guarded_bytes[guard] += guard ? kvs_block_bytes(block) : 0;
    block->guard = guard;
    kvs_index_make_newest(index, block, guard ? KVS_GUARDED : KVS_MAIN);
}

size_t kvs_index_guarded_bytes(const kvs_index_t *index, kvs_guard_t guard)
{
    return index->guarded_bytes[guard];
}

// ---- owners

kvs_accounts_t *kvs_index_accounts(const kvs_index_t *index)
{
    return index->accounts;
}

kvs_block_t *kvs_index_own_oldest(const kvs_index_t *index, uint32_t account)
{
    uint32_t id = kvs_account_at(index->accounts, account)->oldest;
    return id == NONE ? NULL : kvs_block_at(index, id);
}

void kvs_index_own_move(kvs_index_t *index, kvs_block_t *block, bool newest)
{
    AS_ASSERT(block->state == KVS_SEALED);
    own_remove(index, block);
    own_insert(index, block, newest);
}

// ---- order of eviction

kvs_block_t *kvs_index_oldest(const kvs_index_t *index, kvs_queue_t queue)
{
    uint32_t id = index->orders[queue].oldest;
    return id == NONE ? NULL : kvs_block_at(index, id);
}

uint32_t kvs_index_queue_blocks(const kvs_index_t *index, kvs_queue_t queue)
{
    return index->orders[queue].blocks;
}

size_t kvs_index_queue_bytes(const kvs_index_t *index, kvs_queue_t queue)
{
    return index->orders[queue].bytes;
}

void kvs_index_make_newest(kvs_index_t *index, kvs_block_t *block, kvs_queue_t queue)
{
    AS_ASSERT(block->state == KVS_SEALED);
    order_remove(index, block);
    order_insert(index, block, queue, true);
}

void kvs_index_make_oldest(kvs_index_t *index, kvs_block_t *block, kvs_queue_t queue)
{
    AS_ASSERT(block->state == KVS_SEALED);
    order_remove(index, block);
    order_insert(index, block, queue, false);
}

void kvs_index_evict(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state == KVS_SEALED);
    as_key_t ghost = ghost_of(&block->key, block->tenant);
    kvs_ghosts_add(index->ghosts, &ghost, block->queue, index->counts[KVS_SEALED]);
    kvs_index_doom(index, block);
}

const kvs_ghosts_t *kvs_index_ghosts(const kvs_index_t *index)
{
    return index->ghosts;
}

bool kvs_index_was_evicted(const kvs_index_t *index, const as_key_t *key, uint32_t tenant)
{
    as_key_t ghost = ghost_of(key, tenant);
    return kvs_ghosts_has(index->ghosts, &ghost);
}

void kvs_index_cool(kvs_block_t *block)
{
    AS_ASSERT(block->heat > 0);
    block->heat--;
}
