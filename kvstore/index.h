// SPDX-License-Identifier: Apache-2.0
// The index: every block of the store by key, with the order of eviction and the children of each
// block. The one place where a block changes its state; the life of a block is drawn in kvstore.h.
#ifndef KVS_INDEX_H
#define KVS_INDEX_H

#include <stdbool.h>
#include <string.h>
#include "common/block.h"
#include "common/siphash.h"
#include "kvstore/account.h"
#include "kvstore/ghost.h"
#include "kvstore/kvstore.h"
#include "kvstore/pool.h"

typedef enum kvs_state { KVS_ABSENT, KVS_RESERVED, KVS_FILLING, KVS_SEALED, KVS_DYING } kvs_state_t;

#define KVS_HEAT_MAX 3u // chances against eviction that uses can earn a block

// What a block is, as its writer says.
typedef struct kvs_spec {
    as_key_t key, parent, namespace_key;
    uint16_t kind; // as_wire_kind_t
    uint16_t tokens;
    uint32_t tenant; // whose it is (common/token.h)
    uint32_t layers, extent_bytes;
    uint64_t expires_us; // of the store's clock (expiry.c); 0: never
    uint64_t place;      // as_key_hash of the key that places its run
} kvs_spec_t;

// Where a key means one block: blocks of two tenants, or of two kinds, may have the same key.
typedef uint64_t kvs_realm_t;

static inline kvs_realm_t kvs_realm(uint32_t tenant, uint32_t kind)
{
    return (uint64_t)tenant << 8 | kind;
}

static inline kvs_realm_t kvs_realm_of(const kvs_spec_t *spec)
{
    return kvs_realm(spec->tenant, spec->kind);
}

// For tables. Keys are what clients say: with a hash that they can compute, one tenant would have its
// questions walk over another's entries and see by the time whether there are any, or put all of its own
// into one bucket.
static inline uint64_t kvs_realm_hash(kvs_realm_t realm, const as_key_t *key)
{
    uint8_t bytes[sizeof(realm) + sizeof(*key)];
    memcpy(bytes, &realm, sizeof(realm));
    memcpy(bytes + sizeof(realm), key, sizeof(*key));
    return as_siphash_own(bytes, sizeof(bytes));
}

typedef struct kvs_links {
    uint32_t older, newer;
} kvs_links_t;

// An entry of the index: a block, or only the key that blocks have as their parent's. What a spec says,
// but for the keys of namespace and parent, which many blocks have in common (kvs_index_spec). Read by
// all, written by index.c and order.c only.
typedef struct kvs_block {
    as_key_t key;
    uint64_t expires_us, place;
    uint64_t sealed_us;
    uint32_t tenant;
    uint32_t account; // who is charged for it: its namespace
    uint32_t parent;  // entry; KVS_INDEX_NONE: the namespace
    uint32_t extent_bytes;
    uint16_t layers, tokens;
    uint8_t kind;
    uint8_t state;     // kvs_state_t
    uint8_t heat : 4;  // recent uses, at most KVS_HEAT_MAX; evict.c takes them away
    uint8_t given : 4; // a hot copy of another store's that nobody has used here
    uint8_t queue : 4; // kvs_queue_t, while SEALED
    uint8_t guard : 4; // kvs_guard_t
    uint32_t grain;    // where it begins in the pool: the extents, then a checksum for each
    uint32_t pins, leases;
    uint32_t uses;
    uint32_t used;                   // when last: the uses of all blocks until then
    uint32_t key_next;               // same bucket; or next unused entry
    uint32_t named;                  // entries whose parent it is
    uint32_t child_first;            // of those that are SEALED
    uint32_t child_prev, child_next; // same parent
    kvs_links_t order;               // of eviction, in its queue
    kvs_links_t own;                 // of quota eviction, in its account
} kvs_block_t;
// Most of what a store keeps of a block beside the pool; bench_index measures all of it.
_Static_assert(sizeof(kvs_block_t) <= 136, "an entry of the index has grown");

#define KVS_INDEX_NONE UINT32_MAX

static inline kvs_realm_t kvs_block_realm(const kvs_block_t *block)
{
    return kvs_realm(block->tenant, block->kind);
}

static inline uint32_t kvs_block_bytes(const kvs_block_t *block) // of its extents
{
    return (uint32_t)block->layers * block->extent_bytes;
}

typedef struct kvs_index kvs_index_t;

typedef struct kvs_index_options {
    uint32_t blocks_max;
    uint8_t *memory; // the pool's bytes
    kvs_pool_t *pool;
} kvs_index_options_t;

as_status_t kvs_index_alloc(const kvs_index_options_t *options, kvs_index_t **index_p) AS_MUST_USE;
// Every pin and lease must have ended. NULL is fine.
void kvs_index_free(kvs_index_t *index);
// Hears of full blocks.
typedef void (*kvs_index_event_fn)(void *ctx, kvs_event_t event, const kvs_spec_t *spec);
void kvs_index_set_listener(kvs_index_t *index, kvs_index_event_fn fn, void *ctx);

// ---- finding
kvs_block_t *kvs_index_find(const kvs_index_t *index, const as_key_t *key,
                            kvs_realm_t realm); // SEALED, or NULL
uint32_t kvs_index_blocks_max(const kvs_index_t *index);
kvs_block_t *kvs_index_at(const kvs_index_t *index,
                          uint32_t i); // i below blocks_max; may be ABSENT
uint32_t kvs_index_id(const kvs_index_t *index, const kvs_block_t *block);
uint8_t *kvs_index_extent(const kvs_index_t *index, const kvs_block_t *block, uint32_t layer);
uint32_t *kvs_index_crcs(const kvs_index_t *index, const kvs_block_t *block);
kvs_spec_t kvs_index_spec(const kvs_index_t *index, const kvs_block_t *block); // not ABSENT
const kvs_owner_t *kvs_index_owner(const kvs_index_t *index, const kvs_block_t *block);
const as_key_t *kvs_index_parent_key(const kvs_index_t *index, const kvs_block_t *block);
const kvs_block_t *kvs_index_parent(const kvs_index_t *index,
                                    const kvs_block_t *block); // SEALED, or NULL
uint32_t kvs_index_count(const kvs_index_t *index, kvs_state_t state);
uint32_t kvs_index_unused(const kvs_index_t *index);  // entries: neither a block nor a parent's key
uint64_t kvs_index_pins(const kvs_index_t *index);    // of all blocks
uint32_t kvs_index_mortals(const kvs_index_t *index); // entries that expire

// ---- changing state
// ABSENT -> RESERVED. AS_ERR_EXISTS: the key is sealed or being written; AS_ERR_BUSY: no memory or
// no entry, for it, its parent's key or its owner.
as_status_t kvs_index_reserve(kvs_index_t *index, const kvs_spec_t *spec,
                              kvs_block_t **block_p) AS_MUST_USE;
void kvs_index_fill(kvs_index_t *index, kvs_block_t *block);                  // RESERVED -> FILLING
void kvs_index_seal(kvs_index_t *index, kvs_block_t *block, uint64_t now_us); // FILLING -> SEALED
// The same of a copy from another store: nobody has asked for it here. A hot one goes into the main queue,
// as long as those which nobody has used here yet are less than a KVS_GIVEN_PART of the pool.
#define KVS_GIVEN_PART 4u
void kvs_index_seal_copy(kvs_index_t *index, kvs_block_t *block, uint64_t now_us, bool is_hot);
// Any but ABSENT and DYING -> DYING, and ABSENT at once when nothing holds it: the pointer is dead
// then.
void kvs_index_doom(kvs_index_t *index, kvs_block_t *block);

// ---- holding
void kvs_index_pin(kvs_index_t *index, kvs_block_t *block);
void kvs_index_unpin(kvs_index_t *index, kvs_block_t *block); // may free a DYING block
void kvs_index_lease(kvs_index_t *index, kvs_block_t *block); // counts as a use
void kvs_index_unlease(kvs_index_t *index, kvs_block_t *block);

// ---- an operator's pins, of SEALED blocks
void kvs_index_guard(kvs_index_t *index, kvs_block_t *block, kvs_guard_t guard);
size_t kvs_index_guarded_bytes(const kvs_index_t *index, kvs_guard_t guard);

// ---- owners
kvs_accounts_t *kvs_index_accounts(const kvs_index_t *index);
kvs_block_t *kvs_index_own_oldest(const kvs_index_t *index, uint32_t account); // or NULL
void kvs_index_own_move(kvs_index_t *index, kvs_block_t *block, bool newest);

// ---- order of eviction, of SEALED blocks: two queues, and one of those with a guard
kvs_block_t *kvs_index_oldest(const kvs_index_t *index, kvs_queue_t queue); // NULL: it is empty
uint32_t kvs_index_queue_blocks(const kvs_index_t *index, kvs_queue_t queue);
size_t kvs_index_queue_bytes(const kvs_index_t *index, kvs_queue_t queue);
void kvs_index_make_newest(kvs_index_t *index, kvs_block_t *block, kvs_queue_t queue);
void kvs_index_make_oldest(kvs_index_t *index, kvs_block_t *block, kvs_queue_t queue);
void kvs_index_cool(kvs_block_t *block); // takes one use away
kvs_block_t *kvs_index_child(const kvs_index_t *index,
                             const kvs_block_t *parent);      // a SEALED one, or NULL
void kvs_index_evict(kvs_index_t *index, kvs_block_t *block); // as kvs_index_doom; leaves a ghost
const kvs_ghosts_t *kvs_index_ghosts(const kvs_index_t *index);
bool kvs_index_was_evicted(const kvs_index_t *index, const as_key_t *key,
                           uint32_t tenant); // lately

#endif
