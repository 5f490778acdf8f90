// SPDX-License-Identifier: Apache-2.0
// What was dropped lately. An operator's drop goes from store to store, and between two of them one store
// may just be handing the block to another: so for a while a dropped block is not taken as a copy, and a
// copy on its way here ends. A worker's put of the key is another matter: it makes the block anew.
//
// Remembered are hashes, in two tables that take turns: each is filled for KEEP_US and forgotten KEEP_US
// later. Where a table is full, no copy at all is taken until it is forgotten: handing over waits, and
// nothing comes back.
#include <string.h>

#include "common/assert.h"
#include "kvstore/store.h"

// From the first store's drop to the last one's, and what that one was sending then: the command asks
// stores one after the other and waits some seconds for each.
#define KEEP_US 60000000u
#define SLOTS   65536u // a power of two: keys of three calls of Drop
#define USED    (SLOTS / 4 * 3)
#define FREE    0u
#define TAKEN   1u // a key that was put again

#define ANY_KIND   0u // beside the kinds of blocks
#define OWNER_KIND 255u

typedef struct table {
    uint32_t used;
    bool all; // everything was dropped, or more than it has room for
    uint64_t hashes[SLOTS];
} table_t;

struct kvs_drops {
    uint64_t turn_us; // when the newer table was begun; 0: nothing was dropped yet
    uint32_t newer;
    table_t tables[2];
};

as_status_t kvs_drops_alloc(kvs_store_t *store)
{
    store->drops = as_mem_zalloc(1, sizeof(*store->drops));
    return store->drops ? AS_OK : AS_ERR_NO_MEMORY;
}

void kvs_drops_free(kvs_store_t *store)
{
    as_mem_free(store->drops);
    store->drops = NULL;
}

static void table_clear(table_t *table)
{
    if (table->used > 0 || table->all) {
        memset(table, 0, sizeof(*table));
    }
}

static void turn(kvs_drops_t *drops, uint64_t now_us)
{
    if (now_us - drops->turn_us >= 2 * (uint64_t)KEEP_US) {
        table_clear(&drops->tables[drops->newer]);
    }
    if (now_us - drops->turn_us >= KEEP_US) {
        drops->newer ^= 1;
        drops->turn_us = now_us;
        table_clear(&drops->tables[drops->newer]);
    }
}

// Where it is, or would be.
static uint64_t *slot_of(table_t *table, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (SLOTS - 1);
    while (table->hashes[at] != FREE && table->hashes[at] != hash) {
        at = (at + 1) & (SLOTS - 1);
    }
    return &table->hashes[at];
}

static uint64_t hash_of(const as_key_t *key, uint32_t tenant, uint32_t kind)
{
    return kvs_realm_hash(kvs_realm(tenant, kind), key) | 2; // neither FREE nor TAKEN
}

static void add(kvs_store_t *store, uint64_t hash)
{
    kvs_drops_t *drops = store->drops;
    turn(drops, as_loop_now_us(store->options.loop));
    table_t *table = &drops->tables[drops->newer];
    uint64_t *slot = slot_of(table, hash);
    if (*slot == FREE && table->used == USED) {
        table->all = true;
    } else if (*slot == FREE) {
        *slot = hash;
        table->used++;
    }
}

static bool has(kvs_drops_t *drops, uint64_t hash)
{
    return *slot_of(&drops->tables[0], hash) == hash || *slot_of(&drops->tables[1], hash) == hash;
}

void kvs_drops_key(kvs_store_t *store, const as_key_t *key, uint32_t tenant)
{
    add(store, hash_of(key, tenant, ANY_KIND));
    kvs_puts_end_dropped(store->puts);
}

void kvs_drops_owner(kvs_store_t *store, const kvs_owner_t *owner)
{
    add(store, hash_of(&owner->namespace_key, owner->tenant, OWNER_KIND));
    kvs_puts_end_dropped(store->puts);
}

void kvs_drops_all(kvs_store_t *store)
{
    kvs_drops_t *drops = store->drops;
    turn(drops, as_loop_now_us(store->options.loop));
    drops->tables[drops->newer].all = true;
    kvs_puts_end_dropped(store->puts);
}

bool kvs_drops_has(kvs_store_t *store, const kvs_spec_t *spec)
{
    kvs_drops_t *drops = store->drops;
    turn(drops, as_loop_now_us(store->options.loop));
    return drops->tables[0].all || drops->tables[1].all ||
           has(drops, hash_of(&spec->key, spec->tenant, ANY_KIND)) ||
           has(drops, hash_of(&spec->namespace_key, spec->tenant, OWNER_KIND));
}

void kvs_drops_forget(kvs_store_t *store, const kvs_spec_t *spec)
{
    uint64_t hash = hash_of(&spec->key, spec->tenant, ANY_KIND);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t *slot = slot_of(&store->drops->tables[i], hash);
        *slot = *slot == hash ? TAKEN : *slot;
    }
}
