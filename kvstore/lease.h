// SPDX-License-Identifier: Apache-2.0
// Leases: which blocks a connection may read, and until when. One lease covers the blocks found by
// one LOCATE.
#ifndef KVS_LEASE_H
#define KVS_LEASE_H

#include "kvstore/index.h"
#include "proto/wire.h"

typedef struct kvs_leases kvs_leases_t;

// The leases of one owner (a connection), as a list.
typedef struct kvs_lease_owner {
    uint32_t first; // KVS_LEASE_NONE when it has none
    uint32_t count;
} kvs_lease_owner_t;

#define KVS_LEASE_NONE UINT32_MAX

as_status_t kvs_leases_alloc(kvs_index_t *index, uint32_t leases_max,
                             kvs_leases_t **leases_p) AS_MUST_USE;
void kvs_leases_free(kvs_leases_t *leases); // ends all; NULL is fine

// Leases blocks[0..count), NULL where a key was not found. AS_ERR_BUSY when the owner has as many as are
// left to the others.
as_status_t kvs_lease_begin(kvs_leases_t *leases, kvs_lease_owner_t *owner,
                            kvs_block_t *const *blocks, uint32_t count, uint64_t deadline_us,
                            uint64_t *id_p) AS_MUST_USE;
// Block `i` of the owner's lease; NULL: no such lease, or no such block in it.
kvs_block_t *kvs_lease_block(const kvs_leases_t *leases, const kvs_lease_owner_t *owner,
                             uint64_t id, uint32_t i);
// Moves the deadline of the owner's lease, never back, and never to more than AS_WIRE_LEASE_MS_MAX
// after its first one. Returns the deadline; 0: there is no such lease.
uint64_t kvs_lease_renew(kvs_leases_t *leases, const kvs_lease_owner_t *owner, uint64_t id,
                         uint64_t deadline_us);
void kvs_lease_end(kvs_leases_t *leases, kvs_lease_owner_t *owner,
                   uint64_t id); // an unknown id is ignored
void kvs_lease_end_owner(kvs_leases_t *leases, kvs_lease_owner_t *owner);
// Ends what is past its deadline.
void kvs_leases_sweep(kvs_leases_t *leases, uint64_t now_us);
uint32_t kvs_leases_count(const kvs_leases_t *leases);

#endif
