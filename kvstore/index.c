// SPDX-License-Identifier: Apache-2.0
// The index: entries, their states, and the orders that they are in.
//
// Entries are an array; links are indices into it. An entry is in the bucket of its key from
// RESERVED until DYING, so that a key is held by one writer and is free again once its block is
// condemned. While SEALED it is also in the bucket of its parent's key (which blocks continue this
// one?) and in a queue of eviction. The first block of a chain has the namespace as its parent
// and is in no bucket of parents: nothing asks for the children of a namespace.
//
// A block's checksums lie behind its extents, in the pool: so they are bounded with it.
#include "kvstore/index.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "proto/wire.h"

#define NONE UINT32_MAX

// A queue of eviction.
typedef struct order {
    uint32_t oldest, newest;
    uint32_t blocks;
    size_t bytes;
} order_t;

#define ACCOUNTS_MIN 1024u // owners at a time; or a sixteenth of the blocks

struct kvs_index {
    kvs_index_options_t options;
    uint32_t mask; // buckets - 1
    uint32_t *by_key, *by_parent;
    kvs_block_t *blocks;
    uint32_t unused;
    order_t orders[KVS_QUEUES];
    kvs_ghosts_t *ghosts;
    kvs_accounts_t *accounts;
    size_t guarded_bytes[KVS_GUARD_HARD + 1];
    uint32_t counts[KVS_DYING + 1];
    uint64_t pins;
    uint32_t mortals;
    uint32_t uses; // of all blocks, new ones among them; goes round
    kvs_index_event_fn listener;
    void *listener_ctx;
};

static uint32_t bucket_of(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    return (uint32_t)kvs_realm_hash(realm, key) & index->mask;
}

static kvs_block_t *at(const kvs_index_t *index, uint32_t id)
{
    return &index->blocks[id];
}

static void set_state(kvs_index_t *index, kvs_block_t *block, kvs_state_t state)
{
    index->counts[block->state]--;
    index->counts[state]++;
    block->state = (uint8_t)state;
}

static void index_free(kvs_index_t *index)
{
    kvs_ghosts_free(index->ghosts);
    kvs_accounts_free(index->accounts);
    as_mem_free(index->by_key);
    as_mem_free(index->by_parent);
    as_mem_free(index->blocks);
    as_mem_free(index);
}

as_status_t kvs_index_alloc(const kvs_index_options_t *options, kvs_index_t **index_p)
{
    uint32_t buckets = 1;
    while (buckets < options->blocks_max && buckets < 1u << 30) {
        buckets *= 2;
    }
    kvs_index_t *index = as_mem_zalloc(1, sizeof(*index));
    if (!index) {
        return AS_ERR_NO_MEMORY;
    }
    index->options = *options;
    index->mask = buckets - 1;
    index->by_key = as_mem_alloc(buckets * sizeof(uint32_t));
    index->by_parent = as_mem_alloc(buckets * sizeof(uint32_t));
    index->blocks = as_mem_zalloc(options->blocks_max, sizeof(kvs_block_t));
    uint32_t accounts_max = options->blocks_max / 16;
    accounts_max = accounts_max > ACCOUNTS_MIN ? accounts_max : ACCOUNTS_MIN;
    as_status_t status = kvs_ghosts_alloc(options->blocks_max, &index->ghosts);
    if (status == AS_OK) {
        status = kvs_accounts_alloc(accounts_max, &index->accounts);
    }
    if (status != AS_OK || !index->by_key || !index->by_parent || !index->blocks) {
        index_free(index);
        return AS_ERR_NO_MEMORY;
    }
    memset(index->by_key, 0xff, buckets * sizeof(uint32_t));
    memset(index->by_parent, 0xff, buckets * sizeof(uint32_t));
    for (uint32_t i = 0; i < options->blocks_max; i++) {
        index->blocks[i].key_next = i + 1 < options->blocks_max ? i + 1 : NONE;
    }
    for (uint32_t queue = 0; queue < KVS_QUEUES; queue++) {
        index->orders[queue].oldest = index->orders[queue].newest = NONE;
    }
    index->counts[KVS_ABSENT] = options->blocks_max;
    *index_p = index;
    return AS_OK;
}

void kvs_index_free(kvs_index_t *index)
{
    if (!index) {
        return;
    }
    AS_ASSERT(index->pins == 0 && index->counts[KVS_DYING] == 0);
    index_free(index);
}

void kvs_index_set_listener(kvs_index_t *index, kvs_index_event_fn fn, void *ctx)
{
    index->listener = fn;
    index->listener_ctx = ctx;
}

static void tell(const kvs_index_t *index, kvs_event_t event, const kvs_block_t *block)
{
    if (index->listener && block->spec.kind == AS_WIRE_FULL) {
        index->listener(index->listener_ctx, event, &block->spec);
    }
}

// ---- finding

static kvs_block_t *find_any(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t id = index->by_key[bucket_of(index, key, realm)];
    while (id != NONE && (kvs_realm_of(&at(index, id)->spec) != realm ||
                          !as_key_equal(&at(index, id)->spec.key, key))) {
        id = at(index, id)->key_next;
    }
    return id == NONE ? NULL : at(index, id);
}

kvs_block_t *kvs_index_find(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    kvs_block_t *block = find_any(index, key, realm);
    return block && block->state == KVS_SEALED ? block : NULL;
}

uint32_t kvs_index_blocks_max(const kvs_index_t *index)
{
    return index->options.blocks_max;
}

kvs_block_t *kvs_index_at(const kvs_index_t *index, uint32_t i)
{
    AS_ASSERT(i < index->options.blocks_max);
    return at(index, i);
}

uint32_t kvs_index_id(const kvs_index_t *index, const kvs_block_t *block)
{
    return (uint32_t)(block - index->blocks);
}

static uint8_t *place_of(const kvs_index_t *index, const kvs_block_t *block)
{
    return index->options.memory + (size_t)block->grain * KVS_POOL_GRAIN_BYTES;
}

uint8_t *kvs_index_extent(const kvs_index_t *index, const kvs_block_t *block, uint32_t layer)
{
    AS_ASSERT(layer < block->spec.layers && block->state != KVS_ABSENT);
    return place_of(index, block) + (size_t)layer * block->spec.extent_bytes;
}

// Where the checksums begin, counted from the first extent.
static size_t crcs_at(size_t bytes)
{
    return (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t);
}

uint32_t *kvs_index_crcs(const kvs_index_t *index, const kvs_block_t *block)
{
    return (uint32_t *)(void *)(place_of(index, block) + crcs_at(block->bytes));
}

uint32_t kvs_index_count(const kvs_index_t *index, kvs_state_t state)
{
    return index->counts[state];
}

uint64_t kvs_index_pins(const kvs_index_t *index)
{
    return index->pins;
}

uint32_t kvs_index_mortals(const kvs_index_t *index)
{
    return index->mortals;
}

// ---- changing state

as_status_t kvs_index_reserve(kvs_index_t *index, const kvs_spec_t *spec, kvs_block_t **block_p)
{
    AS_ASSERT(spec->layers > 0 && spec->layers <= AS_LAYERS_MAX && spec->extent_bytes > 0 &&
              (uint64_t)spec->layers * spec->extent_bytes <= UINT32_MAX);
    if (find_any(index, &spec->key, kvs_realm_of(spec))) {
        return AS_ERR_EXISTS;
    }
    if (index->unused == NONE) {
        return AS_ERR_BUSY;
    }
    size_t bytes = (size_t)spec->layers * spec->extent_bytes;
    size_t offset;
    kvs_pool_t *pool = index->options.pool;
    size_t used = kvs_pool_used(pool);
    uint32_t run = kvs_pool_take(pool, crcs_at(bytes) + spec->layers * sizeof(uint32_t), &offset);
    if (run == KVS_POOL_NONE) {
        return AS_ERR_BUSY;
    }
    uint32_t account;
    as_status_t status =
        kvs_account_charge(index->accounts, &(kvs_owner_t){spec->namespace_key, spec->tenant},
                           kvs_pool_used(pool) - used, &account);
    if (status != AS_OK) {
        kvs_pool_give(pool, run);
        return status;
    }
    uint32_t id = index->unused;
    kvs_block_t *block = at(index, id);
    AS_ASSERT(block->state == KVS_ABSENT);
    index->unused = block->key_next;
    uint32_t *bucket = &index->by_key[bucket_of(index, &spec->key, kvs_realm_of(spec))];
    *block = (kvs_block_t){.spec = *spec,
                           .grain = (uint32_t)(offset / KVS_POOL_GRAIN_BYTES),
                           .bytes = (uint32_t)bytes,
                           .run = run,
                           .account = account,
                           .key_next = *bucket,
                           .child_prev = NONE,
                           .child_next = NONE,
                           .order = {NONE, NONE},
                           .own = {NONE, NONE}};
    *bucket = id;
    index->mortals += spec->expires_us != 0;
    set_state(index, block, KVS_RESERVED);
    *block_p = block;
    return AS_OK;
}

void kvs_index_fill(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state == KVS_RESERVED);
    set_state(index, block, KVS_FILLING);
}

static bool is_root(const kvs_block_t *block)
{
    return as_key_equal(&block->spec.parent, &block->spec.namespace_key);
}

static void children_insert(kvs_index_t *index, kvs_block_t *block)
{
    if (is_root(block)) {
        return;
    }
    uint32_t id = kvs_index_id(index, block);
    uint32_t *bucket =
        &index->by_parent[bucket_of(index, &block->spec.parent, kvs_realm_of(&block->spec))];
    block->child_prev = NONE;
    block->child_next = *bucket;
    if (*bucket != NONE) {
        at(index, *bucket)->child_prev = id;
    }
    *bucket = id;
}

static void children_remove(kvs_index_t *index, kvs_block_t *block)
{
    if (is_root(block)) {
        return;
    }
    if (block->child_next != NONE) {
        at(index, block->child_next)->child_prev = block->child_prev;
    }
    if (block->child_prev != NONE) {
        at(index, block->child_prev)->child_next = block->child_next;
    } else {
        index->by_parent[bucket_of(index, &block->spec.parent, kvs_realm_of(&block->spec))] =
            block->child_next;
    }
}

// The links of a block in its queue, or in its account.
static kvs_links_t *links(const kvs_index_t *index, uint32_t id, bool own)
{
    return own ? &at(index, id)->own : &at(index, id)->order;
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
    order_t *order = &index->orders[queue];
    block->queue = (uint8_t)queue;
    list_insert(index, (list_t){&order->oldest, &order->newest, false}, kvs_index_id(index, block),
                newest);
    order->blocks++;
    order->bytes += block->bytes;
}

static void order_remove(kvs_index_t *index, kvs_block_t *block)
{
    order_t *order = &index->orders[block->queue];
    list_remove(index, (list_t){&order->oldest, &order->newest, false}, kvs_index_id(index, block));
    order->blocks--;
    order->bytes -= block->bytes;
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
static as_key_t ghost_of(const kvs_block_t *block)
{
    as_key_t key = block->spec.key;
    uint64_t hash = kvs_realm_hash(kvs_realm(block->spec.tenant, 0), &key);
    memcpy(key.bytes, &hash, sizeof(hash));
    return key;
}

void kvs_index_seal(kvs_index_t *index, kvs_block_t *block, uint64_t now_us)
{
    AS_ASSERT(block->state == KVS_FILLING && block->pins == 0);
    set_state(index, block, KVS_SEALED);
    block->sealed_us = now_us;
    block->used = ++index->uses;
    as_key_t ghost = ghost_of(block);
    children_insert(index, block);
    order_insert(index, block, kvs_ghosts_admit(index->ghosts, &ghost), true);
    own_insert(index, block, true);
    tell(index, KVS_BLOCK_ADDED, block);
}

static void key_remove(kvs_index_t *index, kvs_block_t *block)
{
    uint32_t id = kvs_index_id(index, block);
    uint32_t *link = &index->by_key[bucket_of(index, &block->spec.key, kvs_realm_of(&block->spec))];
    while (*link != id) {
        AS_ASSERT(*link != NONE);
        link = &at(index, *link)->key_next;
    }
    *link = block->key_next;
}

// DYING -> ABSENT, once nothing holds it.
static void free_if_unheld(kvs_index_t *index, kvs_block_t *block)
{
    if (block->state != KVS_DYING || block->pins > 0 || block->leases > 0) {
        return;
    }
    size_t used = kvs_pool_used(index->options.pool);
    kvs_pool_give(index->options.pool, block->run);
    kvs_account_refund(index->accounts, block->account, used - kvs_pool_used(index->options.pool));
    index->mortals -= block->spec.expires_us != 0;
    set_state(index, block, KVS_ABSENT);
    block->key_next = index->unused;
    index->unused = kvs_index_id(index, block);
}

void kvs_index_doom(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state == KVS_RESERVED || block->state == KVS_FILLING ||
              block->state == KVS_SEALED);
    bool was_sealed = block->state == KVS_SEALED;
    key_remove(index, block);
    if (was_sealed) {
        children_remove(index, block);
        kvs_index_guard(index, block, KVS_GUARD_NONE);
        order_remove(index, block);
        own_remove(index, block);
    }
    set_state(index, block, KVS_DYING);
    if (was_sealed) {
        tell(index, KVS_BLOCK_REMOVED, block);
    }
    free_if_unheld(index, block);
}

// ---- holding

void kvs_index_pin(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state != KVS_ABSENT);
    block->pins++;
    index->pins++;
}

void kvs_index_unpin(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state != KVS_ABSENT && block->pins > 0);
    block->pins--;
    index->pins--;
    free_if_unheld(index, block);
}

void kvs_index_lease(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state == KVS_SEALED);
    block->leases++;
    block->used = ++index->uses;
    block->uses += block->uses < UINT32_MAX;
    block->heat += block->heat < KVS_HEAT_MAX;
}

void kvs_index_unlease(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT((block->state == KVS_SEALED || block->state == KVS_DYING) && block->leases > 0);
    block->leases--;
    free_if_unheld(index, block);
}

// ---- an operator's pins

void kvs_index_guard(kvs_index_t *index, kvs_block_t *block, kvs_guard_t guard)
{
    AS_ASSERT(block->state == KVS_SEALED);
    if (block->guard == guard) {
        return;
    }
    index->guarded_bytes[block->guard] -= block->guard ? block->bytes : 0;
    index->guarded_bytes[guard] += guard ? block->bytes : 0;
    block->guard = (uint8_t)guard;
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
    return id == NONE ? NULL : at(index, id);
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
    return id == NONE ? NULL : at(index, id);
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
    as_key_t ghost = ghost_of(block);
    kvs_ghosts_add(index->ghosts, &ghost, block->queue, index->counts[KVS_SEALED]);
    kvs_index_doom(index, block);
}

const kvs_ghosts_t *kvs_index_ghosts(const kvs_index_t *index)
{
    return index->ghosts;
}

void kvs_index_cool(kvs_block_t *block)
{
    AS_ASSERT(block->heat > 0);
    block->heat--;
}

kvs_block_t *kvs_index_child(const kvs_index_t *index, const kvs_block_t *parent)
{
    uint32_t id =
        index->by_parent[bucket_of(index, &parent->spec.key, kvs_realm_of(&parent->spec))];
    while (id != NONE && (kvs_realm_of(&at(index, id)->spec) != kvs_realm_of(&parent->spec) ||
                          !as_key_equal(&at(index, id)->spec.parent, &parent->spec.key))) {
        id = at(index, id)->child_next;
    }
    return id == NONE ? NULL : at(index, id);
}
