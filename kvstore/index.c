// SPDX-License-Identifier: Apache-2.0
// The index: entries and their states.
//
// Entries are an array; links are indices into it. An entry that is used is in the bucket of its key.
// A key is held by one writer and is free again once its block is condemned: DYING blocks are passed
// over, and the next block of the key has another entry.
//
// A block says what its parent's key is, and the parent may be elsewhere or come later. So an entry
// stands for a key: it holds a block, or only the key as long as others have it as their parent's
// (ABSENT and `named`), and the block finds them there when it comes. The SEALED blocks that continue
// another are listed in its entry. The first block of a chain has the namespace as its parent, which
// has no entry: nothing asks for the children of a namespace.
//
// While SEALED a block is in a queue of eviction and in the list of its owner (order.c), whose account
// has the namespace's key for all of them.
//
// A block's checksums lie behind its extents, in the pool: so they are bounded with it.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "kvstore/index_state.h"
#include "proto/wire.h"

#define NONE KVS_INDEX_NONE

// Owners at a time, or a sixteenth of the blocks; one tenant has half of them at most.
#define ACCOUNTS_MIN 2048u

static uint32_t bucket_of(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    return (uint32_t)kvs_realm_hash(realm, key) & index->mask;
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
    index->blocks = as_mem_zalloc(options->blocks_max, sizeof(kvs_block_t));
    uint32_t accounts_max = options->blocks_max / 16;
    accounts_max = accounts_max > ACCOUNTS_MIN ? accounts_max : ACCOUNTS_MIN;
    as_status_t status = kvs_ghosts_alloc(options->blocks_max, &index->ghosts);
    if (status == AS_OK) {
        status = kvs_accounts_alloc(accounts_max, &index->accounts);
    }
    if (status != AS_OK || !index->by_key || !index->blocks) {
        index_free(index);
        return AS_ERR_NO_MEMORY;
    }
    memset(index->by_key, 0xff, buckets * sizeof(uint32_t));
    for (uint32_t i = 0; i < options->blocks_max; i++) {
        index->blocks[i].key_next = i + 1 < options->blocks_max ? i + 1 : NONE;
    }
    for (uint32_t queue = 0; queue < KVS_QUEUES; queue++) {
        index->orders[queue].oldest = index->orders[queue].newest = NONE;
    }
    index->counts[KVS_ABSENT] = index->unused_count = options->blocks_max;
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
    if (index->listener && block->kind == AS_WIRE_FULL) {
        const kvs_spec_t spec = kvs_index_spec(index, block);
        index->listener(index->listener_ctx, event, &spec);
    }
}

// ---- finding

// The entry that stands for a key: the block's, where there is one, or a name; NONE.
static uint32_t find_entry(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t name = NONE;
    for (uint32_t id = index->by_key[bucket_of(index, key, realm)]; id != NONE;) {
        const kvs_block_t *block = kvs_block_at(index, id);
        if (as_key_equal(&block->key, key) && kvs_block_realm(block) == realm &&
            block->state != KVS_DYING) {
            if (block->state != KVS_ABSENT) {
                return id;
            }
            name = id;
        }
        id = block->key_next;
    }
    return name;
}

kvs_block_t *kvs_index_find(const kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t id = find_entry(index, key, realm);
    return id != NONE && kvs_block_at(index, id)->state == KVS_SEALED ? kvs_block_at(index, id)
                                                                      : NULL;
}

kvs_block_t *kvs_index_child(const kvs_index_t *index, const kvs_block_t *parent)
{
    return parent->child_first == NONE ? NULL : kvs_block_at(index, parent->child_first);
}

uint32_t kvs_index_blocks_max(const kvs_index_t *index)
{
    return index->options.blocks_max;
}

kvs_block_t *kvs_index_at(const kvs_index_t *index, uint32_t i)
{
    AS_ASSERT(i < index->options.blocks_max);
    return kvs_block_at(index, i);
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
    AS_ASSERT(layer < block->layers && block->state != KVS_ABSENT);
    return place_of(index, block) + (size_t)layer * block->extent_bytes;
}

// Where the checksums begin, counted from the first extent.
static size_t crcs_at(size_t bytes)
{
    return (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t);
}

uint32_t *kvs_index_crcs(const kvs_index_t *index, const kvs_block_t *block)
{
    return (uint32_t *)(void *)(place_of(index, block) + crcs_at(kvs_block_bytes(block)));
}

const kvs_owner_t *kvs_index_owner(const kvs_index_t *index, const kvs_block_t *block)
{
    AS_ASSERT(block->state != KVS_ABSENT);
    return &kvs_account_at(index->accounts, block->account)->owner;
}

const as_key_t *kvs_index_parent_key(const kvs_index_t *index, const kvs_block_t *block)
{
    return block->parent == NONE ? &kvs_index_owner(index, block)->namespace_key
                                 : &kvs_block_at(index, block->parent)->key;
}

const kvs_block_t *kvs_index_parent(const kvs_index_t *index, const kvs_block_t *block)
{
    const kvs_block_t *parent = block->parent == NONE ? NULL : kvs_block_at(index, block->parent);
    return parent && parent->state == KVS_SEALED ? parent : NULL;
}

kvs_spec_t kvs_index_spec(const kvs_index_t *index, const kvs_block_t *block)
{
    return (kvs_spec_t){.key = block->key,
                        .parent = *kvs_index_parent_key(index, block),
                        .namespace_key = kvs_index_owner(index, block)->namespace_key,
                        .kind = block->kind,
                        .tokens = block->tokens,
                        .tenant = block->tenant,
                        .layers = block->layers,
                        .extent_bytes = block->extent_bytes,
                        .expires_us = block->expires_us,
                        .place = block->place};
}

uint32_t kvs_index_unused(const kvs_index_t *index)
{
    return index->unused_count;
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

// An entry that stands for a key and holds no block. NONE: all are used.
static uint32_t entry_take(kvs_index_t *index, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t id = index->unused;
    if (id != NONE) {
        uint32_t *bucket = &index->by_key[bucket_of(index, key, realm)];
        kvs_block_t *entry = kvs_block_at(index, id);
        index->unused = entry->key_next;
        index->unused_count--;
        *entry = (kvs_block_t){.key = *key,
                               .tenant = (uint32_t)(realm >> 8),
                               .kind = (uint8_t)realm,
                               .parent = NONE,
                               .child_first = NONE,
                               .key_next = *bucket};
        *bucket = id;
    }
    return id;
}

// An entry lost its block, or a block that named it: unused when it has neither.
static void entry_release(kvs_index_t *index, uint32_t id)
{
    kvs_block_t *entry = kvs_block_at(index, id);
    if (entry->state != KVS_ABSENT || entry->named > 0) {
        return;
    }
    uint32_t *link = &index->by_key[bucket_of(index, &entry->key, kvs_block_realm(entry))];
    while (*link != id) {
        AS_ASSERT(*link != NONE);
        link = &kvs_block_at(index, *link)->key_next;
    }
    *link = entry->key_next;
    entry->key_next = index->unused;
    index->unused = id;
    index->unused_count++;
}

// The block in entry `id` is none any more; nor does it name its parent.
static void entry_leave(kvs_index_t *index, uint32_t id)
{
    uint32_t parent = kvs_block_at(index, id)->parent;
    kvs_block_at(index, id)->parent = NONE;
    if (parent != NONE) {
        kvs_block_at(index, parent)->named--;
    }
    entry_release(index, id);
    if (parent != NONE && parent != id) { // a parent is what a writer says
        entry_release(index, parent);
    }
}

// The entries of a block and of its parent's key, which the first then names.
static as_status_t entries_take(kvs_index_t *index, const kvs_spec_t *spec, uint32_t *id_p)
{
    kvs_realm_t realm = kvs_realm_of(spec);
    uint32_t id = find_entry(index, &spec->key, realm);
    if (id != NONE && kvs_block_at(index, id)->state != KVS_ABSENT) {
        return AS_ERR_EXISTS;
    }
    id = id == NONE ? entry_take(index, &spec->key, realm) : id;
    if (id == NONE) {
        return AS_ERR_BUSY;
    }
    if (!as_key_equal(&spec->parent, &spec->namespace_key)) {
        uint32_t parent = find_entry(index, &spec->parent, realm);
        parent = parent == NONE ? entry_take(index, &spec->parent, realm) : parent;
        if (parent == NONE) {
            entry_release(index, id);
            return AS_ERR_BUSY;
        }
        kvs_block_at(index, id)->parent = parent;
        kvs_block_at(index, parent)->named++;
    }
    *id_p = id;
    return AS_OK;
}

// Room in the pool for the block of entry `id`, charged to its owner.
static as_status_t room_take(kvs_index_t *index, const kvs_spec_t *spec, uint32_t id)
{
    size_t bytes = (size_t)spec->layers * spec->extent_bytes, offset;
    kvs_pool_t *pool = index->options.pool;
    size_t used = kvs_pool_used(pool);
    if (!kvs_pool_take(pool, id, crcs_at(bytes) + spec->layers * sizeof(uint32_t), &offset)) {
        return AS_ERR_BUSY;
    }
    const kvs_owner_t owner = {spec->namespace_key, spec->tenant};
    as_status_t status = kvs_account_charge(index->accounts, &owner, kvs_pool_used(pool) - used,
                                            &kvs_block_at(index, id)->account);
    if (status != AS_OK) {
        kvs_pool_give(pool, id);
        return status;
    }
    kvs_block_at(index, id)->grain = (uint32_t)(offset / KVS_POOL_GRAIN_BYTES);
    return AS_OK;
}

as_status_t kvs_index_reserve(kvs_index_t *index, const kvs_spec_t *spec, kvs_block_t **block_p)
{
    AS_ASSERT(spec->layers > 0 && spec->layers <= AS_LAYERS_MAX && spec->extent_bytes > 0 &&
              (uint64_t)spec->layers * spec->extent_bytes <= UINT32_MAX);
    uint32_t id;
    as_status_t status = entries_take(index, spec, &id);
    if (status != AS_OK) {
        return status;
    }
    status = room_take(index, spec, id);
    if (status != AS_OK) {
        entry_leave(index, id);
        return status;
    }
    kvs_block_t *block = kvs_block_at(index, id);
    *block = (kvs_block_t){.key = block->key,
                           .expires_us = spec->expires_us,
                           .place = spec->place,
                           .tenant = block->tenant,
                           .account = block->account,
                           .parent = block->parent,
                           .extent_bytes = spec->extent_bytes,
                           .layers = (uint16_t)spec->layers,
                           .tokens = spec->tokens,
                           .kind = block->kind,
                           .grain = block->grain,
                           .key_next = block->key_next,
                           .named = block->named,
                           .child_first = block->child_first,
                           .child_prev = NONE,
                           .child_next = NONE,
                           .order = {NONE, NONE},
                           .own = {NONE, NONE}};
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

static void children_insert(kvs_index_t *index, kvs_block_t *block)
{
    if (block->parent == NONE) {
        return;
    }
    uint32_t id = kvs_index_id(index, block),
             *first = &kvs_block_at(index, block->parent)->child_first;
    block->child_prev = NONE;
    block->child_next = *first;
    if (*first != NONE) {
        kvs_block_at(index, *first)->child_prev = id;
    }
    *first = id;
}

static void children_remove(kvs_index_t *index, kvs_block_t *block)
{
    if (block->parent == NONE) {
        return;
    }
    if (block->child_next != NONE) {
        kvs_block_at(index, block->child_next)->child_prev = block->child_prev;
    }
    if (block->child_prev != NONE) {
        kvs_block_at(index, block->child_prev)->child_next = block->child_next;
    } else {
        kvs_block_at(index, block->parent)->child_first = block->child_next;
    }
}

static void seal(kvs_index_t *index, kvs_block_t *block, uint64_t now_us)
{
    AS_ASSERT(block->state == KVS_FILLING && block->pins == 0);
    set_state(index, block, KVS_SEALED);
    block->sealed_us = now_us;
    block->used = ++index->uses;
    children_insert(index, block);
}

void kvs_index_seal(kvs_index_t *index, kvs_block_t *block, uint64_t now_us)
{
    seal(index, block, now_us);
    kvs_order_enter(index, block);
    tell(index, KVS_BLOCK_ADDED, block);
}

void kvs_index_seal_copy(kvs_index_t *index, kvs_block_t *block, uint64_t now_us, bool is_hot)
{
    seal(index, block, now_us);
    kvs_order_enter_copy(index, block, is_hot);
    tell(index, KVS_BLOCK_ADDED, block);
}

// DYING -> ABSENT, once nothing holds it.
static void free_if_unheld(kvs_index_t *index, kvs_block_t *block)
{
    if (block->state != KVS_DYING || block->pins > 0 || block->leases > 0) {
        return;
    }
    size_t used = kvs_pool_used(index->options.pool);
    uint32_t id = kvs_index_id(index, block);
    kvs_pool_give(index->options.pool, id);
    kvs_account_refund(index->accounts, block->account, used - kvs_pool_used(index->options.pool));
    index->mortals -= block->expires_us != 0;
    set_state(index, block, KVS_ABSENT);
    entry_leave(index, id);
}

void kvs_index_doom(kvs_index_t *index, kvs_block_t *block)
{
    AS_ASSERT(block->state == KVS_RESERVED || block->state == KVS_FILLING ||
              block->state == KVS_SEALED);
    bool was_sealed = block->state == KVS_SEALED;
    if (was_sealed) {
        children_remove(index, block);
        kvs_order_leave(index, block);
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
    kvs_order_use(index, block);
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
