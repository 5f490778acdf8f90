// SPDX-License-Identifier: Apache-2.0
// Leases, in slots of fixed size, so that granting one allocates nothing.
//
// An id is the slot and a generation that grows with each use of the slot, so an id that is
// released twice, or after its deadline, names nothing. A lease belongs to its owner: another
// connection cannot use or end it.
#include "kvstore/lease.h"

#include "common/assert.h"
#include "common/mem.h"

#define NO_BLOCK UINT32_MAX

typedef struct lease {
    uint32_t generation;
    uint32_t count;      // 0: the slot is free
    uint32_t prev, next; // of the owner; next of the free slots
    kvs_lease_owner_t *owner;
    uint64_t deadline_us, last_us;     // last_us: no renewal goes beyond it
    uint32_t blocks[AS_WIRE_KEYS_MAX]; // ids of the index
} lease_t;

struct kvs_leases {
    kvs_index_t *index;
    uint32_t max, used;
    uint32_t unused;
    lease_t slots[];
};

as_status_t kvs_leases_alloc(kvs_index_t *index, uint32_t leases_max, kvs_leases_t **leases_p)
{
    AS_ASSERT(leases_max > 0 && leases_max < KVS_LEASE_NONE);
    kvs_leases_t *leases = as_mem_zalloc(1, sizeof(*leases) + leases_max * sizeof(lease_t));
    if (!leases) {
        return AS_ERR_NO_MEMORY;
    }
    leases->index = index;
    leases->max = leases_max;
    for (uint32_t i = 0; i < leases_max; i++) {
        leases->slots[i].next = i + 1 < leases_max ? i + 1 : KVS_LEASE_NONE;
    }
    *leases_p = leases;
    return AS_OK;
}

static uint64_t id_of(const kvs_leases_t *leases, uint32_t slot)
{
    return (uint64_t)leases->slots[slot].generation << 32 | slot;
}

as_status_t kvs_lease_begin(kvs_leases_t *leases, kvs_lease_owner_t *owner,
                            kvs_block_t *const *blocks, uint32_t count, uint64_t deadline_us,
                            uint64_t *id_p)
{
    AS_ASSERT(count > 0 && count <= AS_WIRE_KEYS_MAX);
    if (owner->count >= leases->max - leases->used) {
        return AS_ERR_BUSY;
    }
    uint32_t slot = leases->unused;
    lease_t *lease = &leases->slots[slot];
    leases->unused = lease->next;
    leases->used++;
    owner->count++;
    lease->generation++;
    lease->count = count;
    lease->owner = owner;
    lease->deadline_us = deadline_us;
    lease->last_us = deadline_us + AS_WIRE_LEASE_MS_MAX * (uint64_t)1000;
    for (uint32_t i = 0; i < count; i++) {
        lease->blocks[i] = blocks[i] ? kvs_index_id(leases->index, blocks[i]) : NO_BLOCK;
        if (blocks[i]) {
            kvs_index_lease(leases->index, blocks[i]);
        }
    }
    lease->prev = KVS_LEASE_NONE;
    lease->next = owner->first;
    if (owner->first != KVS_LEASE_NONE) {
        leases->slots[owner->first].prev = slot;
    }
    owner->first = slot;
    *id_p = id_of(leases, slot);
    return AS_OK;
}

static void end_slot(kvs_leases_t *leases, uint32_t slot)
{
    lease_t *lease = &leases->slots[slot];
    for (uint32_t i = 0; i < lease->count; i++) {
        if (lease->blocks[i] != NO_BLOCK) {
            kvs_index_unlease(leases->index, kvs_index_at(leases->index, lease->blocks[i]));
        }
    }
    if (lease->next != KVS_LEASE_NONE) {
        leases->slots[lease->next].prev = lease->prev;
    }
    if (lease->prev != KVS_LEASE_NONE) {
        leases->slots[lease->prev].next = lease->next;
    } else {
        lease->owner->first = lease->next;
    }
    lease->count = 0;
    lease->owner->count--;
    lease->owner = NULL;
    lease->next = leases->unused;
    leases->unused = slot;
    leases->used--;
}

// The slot of the owner's lease of this id, or KVS_LEASE_NONE.
static uint32_t find(const kvs_leases_t *leases, const kvs_lease_owner_t *owner, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= leases->max || leases->slots[slot].count == 0 || id_of(leases, slot) != id ||
        leases->slots[slot].owner != owner) {
        return KVS_LEASE_NONE;
    }
    return slot;
}

kvs_block_t *kvs_lease_block(const kvs_leases_t *leases, const kvs_lease_owner_t *owner,
                             uint64_t id, uint32_t i)
{
    uint32_t slot = find(leases, owner, id);
    if (slot == KVS_LEASE_NONE || i >= leases->slots[slot].count ||
        leases->slots[slot].blocks[i] == NO_BLOCK) {
        return NULL;
    }
    return kvs_index_at(leases->index, leases->slots[slot].blocks[i]);
}

uint64_t kvs_lease_renew(kvs_leases_t *leases, const kvs_lease_owner_t *owner, uint64_t id,
                         uint64_t deadline_us)
{
    uint32_t slot = find(leases, owner, id);
    if (slot == KVS_LEASE_NONE) {
        return 0;
    }
    lease_t *lease = &leases->slots[slot];
    uint64_t until_us = deadline_us < lease->last_us ? deadline_us : lease->last_us;
    lease->deadline_us = until_us > lease->deadline_us ? until_us : lease->deadline_us;
    return lease->deadline_us;
}

void kvs_lease_end(kvs_leases_t *leases, kvs_lease_owner_t *owner, uint64_t id)
{
    uint32_t slot = find(leases, owner, id);
    if (slot != KVS_LEASE_NONE) {
        end_slot(leases, slot);
    }
}

void kvs_lease_end_owner(kvs_leases_t *leases, kvs_lease_owner_t *owner)
{
    while (owner->first != KVS_LEASE_NONE) {
        end_slot(leases, owner->first);
    }
}

void kvs_leases_sweep(kvs_leases_t *leases, uint64_t now_us)
{
    for (uint32_t slot = 0, left = leases->used; left > 0; slot++) {
        if (leases->slots[slot].count == 0) {
            continue;
        }
        left--;
        if (leases->slots[slot].deadline_us <= now_us) {
            end_slot(leases, slot);
        }
    }
}

void kvs_leases_free(kvs_leases_t *leases)
{
    if (leases) {
        kvs_leases_sweep(leases, UINT64_MAX);
        as_mem_free(leases);
    }
}

uint32_t kvs_leases_count(const kvs_leases_t *leases)
{
    return leases->used;
}
