// SPDX-License-Identifier: Apache-2.0
// LOCATEs that a store has: being received, waiting for the disk or for their turn, being answered.
// Not for others: see kvstore.h.
#ifndef KVS_LOCATE_H
#define KVS_LOCATE_H

#include "kvstore/store.h"

// Of all connections; one of them has at most as many as it leaves to the others.
#define KVS_LOCATES_MAX 512u
// Of them, whose answers are on their way: each may touch about 270 KiB. Here, too, a connection leaves
// to the others as many as it has, so that a peer which does not take its answers stops nobody.
#define KVS_ANSWERS_MAX 64u
// One that waits so long is answered with what is there, well within the patience of its client, which
// asks again for the rest.
#define KVS_LOCATE_WAIT_US 500000u
#define KVS_PROMOTIONS_MAX 256u // blocks being read from disk

typedef enum kvs_sought {
    KVS_SOUGHT_LATER,   // not looked for yet, or nothing to wait for
    KVS_SOUGHT_HELD,    // in RAM
    KVS_SOUGHT_IN_VAIN, // on disk, and RAM can never hold it
} kvs_sought_t;

typedef struct kvs_locate {
    kvs_conn_t *conn;        // NULL: unused
    struct kvs_locate *next; // of the unused ones, or of those that wait
    as_wire_locate_t header;
    as_key_t *keys;  // AS_WIRE_KEYS_MAX
    uint8_t *answer; // AS_WIRE_LOCATED_BYTES_MAX, while it is answered
    bool waiting;
    uint64_t turn, wait_until_us;
    // of promote.c
    bool cold;          // something of it was on disk only
    bool blocked;       // there was no room for a block of it: it has its turn with `again`
    uint32_t next_key;  // whose turn it is to be brought
    uint32_t promoting; // blocks that are on their way
    uint8_t *sought;    // of each key: kvs_sought_t
    kvs_block_t **held; // blocks that are here and stay until it is answered
    uint32_t held_count;
} kvs_locate_t;

typedef struct kvs_locates {
    kvs_locate_t slots[KVS_LOCATES_MAX];
    kvs_locate_t *unused;
    uint32_t left; // of these
    uint8_t *answers[KVS_ANSWERS_MAX];
    uint32_t answers_left;
    kvs_locate_t *first; // of those that wait, by turns
    bool crowded;        // one of them could be answered, and there is no room for its answer
    as_task_t wake;
    as_timer_t *again; // there was no room for a block from disk: to be tried once more
    bool is_again_due; // it runs
    uint8_t *memory;
} kvs_locates_t;

static inline kvs_realm_t kvs_locate_realm(const kvs_locate_t *locate)
{
    return kvs_realm(locate->header.tenant, locate->header.kind);
}

as_status_t kvs_locates_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_locates_stop(kvs_store_t *store); // all connections are closed
void kvs_locates_free(kvs_store_t *store); // NULL is fine
void kvs_locate_serve(kvs_conn_t *conn, const as_wire_locate_t *ask, as_net_msg_t *msg);
void kvs_locates_wake(kvs_store_t *store); // what one of them waits for may be here
// Answers those that have waited long enough; whether others still wait.
bool kvs_locates_sweep(kvs_store_t *store, uint64_t now_us);

// promote.c: blocks from disk into RAM, for those LOCATEs that ask to read them.
typedef enum kvs_promoted {
    KVS_PROMOTED_ALL,     // nothing more is to come
    KVS_PROMOTED_COMING,  // what is to come is on its way
    KVS_PROMOTED_BLOCKED, // some of it is not: there is no room now
} kvs_promoted_t;
as_status_t kvs_promotions_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_promotions_free(kvs_store_t *store); // after the disk has ended
void kvs_promote_begin(kvs_locate_t *locate); // its keys are here
kvs_promoted_t kvs_promote_some(kvs_locate_t *locate);
bool kvs_promotions_are_full(const kvs_store_t *store); // as many as may be are on their way
void kvs_promote_end(kvs_locate_t *locate);             // it waits no longer, and holds nothing
// Whether a block that is not in RAM may be there a little later.
bool kvs_promote_is_to_come(const kvs_locate_t *locate, uint32_t i);
void kvs_promote_remove(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm); // on its way

#endif
