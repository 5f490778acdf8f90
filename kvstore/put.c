// SPDX-License-Identifier: Apache-2.0
// The write path: RESERVE, WRITE, COMMIT, ABANDON. Two-phase: nobody finds a block before its bytes
// are checked.
//
// A reservation is one writer's right to one block of the index, named by a ticket (slot and
// generation):
//
//   FREE -> OPEN -> RECEIVING -> WRITTEN -> CHECKING -> [STORING ->] FREE
//                                             (block: RESERVED, FILLING, SEALED)
//             any of them -> DEAD -> FREE     (block: DYING, ABSENT; of STORING: SEALED)
//   FREE -> AFFIRMING -> FREE
//
//   OPEN       the store waits for WRITE.
//   RECEIVING  the bytes come straight into the pool; the block is pinned.
//   WRITTEN    they are here; the store waits for COMMIT.
//   CHECKING   COMMIT's checksums are compared, a bounded piece in each turn of the loop.
//   STORING    a durable put: the block is visible, and on its way to disk.
//   AFFIRMING  a durable put of a block that was here: RESERVE is answered once it is on disk.
//   DEAD       given up (ABANDON, deadline, lost connection, failure); waits for callbacks that
//   still refer to it.
//
// COMMIT may come in any state after OPEN, or before WRITE where messages overtake each other: its
// checksums wait in the reservation. `ops` counts the callbacks under way; a slot is free again
// only when they have come.
#include <string.h>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/store.h"

#define NONE UINT32_MAX

typedef enum put_state {
    FREE,
    OPEN,
    RECEIVING,
    WRITTEN,
    CHECKING,
    STORING,
    AFFIRMING,
    DEAD
} put_state_t;

typedef struct put {
    kvs_puts_t *puts;
    put_state_t state;
    uint32_t generation;
    uint32_t prev, next; // of the connection; next of the free ones
    uint32_t ops;
    kvs_conn_t *conn;
    kvs_block_t *block;  // NULL when DEAD, STORING or AFFIRMING
    uint32_t digest;     // that RESERVE promised
    uint32_t flags;      // of RESERVE
    kvs_block_t *pinned; // while the network writes to it, also when DEAD
    uint64_t began_us, deadline_us;
    bool commit_asked; // a COMMIT came: nothing more is taken
    bool durable;      // it is answered once the block is on disk
    bool crcs_here;
    uint64_t request;       // of COMMIT, or of an AFFIRMING RESERVE
    struct put *check_next; // while CHECKING
    uint32_t checked_layers;
    uint32_t crcs[AS_LAYERS_MAX];
} put_t;

struct kvs_puts {
    kvs_store_t *store;
    uint32_t max, used;
    uint32_t unused;
    put_t *check_first, **check_last; // those CHECKING, in order
    as_task_t check;
    put_t slots[];
};

static void on_check(void *ctx);

as_status_t kvs_puts_alloc(kvs_store_t *store, uint32_t max, kvs_puts_t **puts_p)
{
    AS_ASSERT(max > 0 && max < NONE);
    kvs_puts_t *puts = as_mem_zalloc(1, sizeof(*puts) + max * sizeof(put_t));
    if (!puts) {
        return AS_ERR_NO_MEMORY;
    }
    puts->check = (as_task_t){.fn = on_check, .ctx = puts};
    puts->store = store;
    puts->max = max;
    puts->check_last = &puts->check_first;
    for (uint32_t i = 0; i < max; i++) {
        puts->slots[i].puts = puts;
        puts->slots[i].next = i + 1 < max ? i + 1 : NONE;
    }
    *puts_p = puts;
    return AS_OK;
}

void kvs_puts_free(kvs_puts_t *puts)
{
    if (puts) {
        AS_ASSERT(puts->used == 0);
        as_loop_unpost(puts->store->options.loop, &puts->check);
        as_mem_free(puts);
    }
}

uint32_t kvs_puts_count(const kvs_puts_t *puts)
{
    return puts->used;
}

static uint32_t slot_of(const put_t *put)
{
    return (uint32_t)(put - put->puts->slots);
}

static uint64_t ticket_of(const put_t *put)
{
    return (uint64_t)put->generation << 32 | slot_of(put);
}

static put_t *find(const kvs_conn_t *conn, uint64_t ticket)
{
    kvs_puts_t *puts = conn->store->puts;
    uint32_t slot = (uint32_t)ticket;
    if (slot >= puts->max) {
        return NULL;
    }
    put_t *put = &puts->slots[slot];
    bool has_ticket = put->state != FREE && put->state != DEAD && put->state != AFFIRMING;
    return has_ticket && put->conn == conn && ticket_of(put) == ticket ? put : NULL;
}

// ---- their life

static put_t *put_take(kvs_conn_t *conn, kvs_block_t *block)
{
    kvs_puts_t *puts = conn->store->puts;
    uint64_t now_us = as_loop_now_us(conn->store->options.loop);
    put_t *put = &puts->slots[puts->unused];
    AS_ASSERT(put->state == FREE && put->ops == 0);
    puts->unused = put->next;
    puts->used++;
    put->state = OPEN;
    put->generation++;
    put->conn = conn;
    put->block = block;
    put->began_us = now_us;
    put->deadline_us = now_us + conn->store->options.reservation_us;
    put->commit_asked = put->crcs_here = put->durable = false;
    put->checked_layers = 0;
    put->prev = NONE;
    put->next = conn->first_reservation;
    if (put->next != NONE) {
        puts->slots[put->next].prev = slot_of(put);
    }
    conn->first_reservation = slot_of(put);
    kvs_conn_hold(conn);
    kvs_store_watch(conn->store);
    return put;
}

static void free_if_dead(put_t *put)
{
    kvs_puts_t *puts = put->puts;
    if (put->state != DEAD || put->ops > 0) {
        return;
    }
    kvs_conn_t *conn = put->conn;
    if (put->next != NONE) {
        puts->slots[put->next].prev = put->prev;
    }
    if (put->prev != NONE) {
        puts->slots[put->prev].next = put->next;
    } else {
        conn->first_reservation = put->next;
    }
    put->state = FREE;
    put->conn = NULL;
    put->next = puts->unused;
    puts->unused = slot_of(put);
    puts->used--;
    kvs_conn_drop(conn);
}

static void check_forget(put_t *put)
{
    kvs_puts_t *puts = put->puts;
    put_t **link = &puts->check_first;
    while (*link != put) {
        link = &(*link)->check_next;
    }
    *link = put->check_next;
    if (puts->check_last == &put->check_next) {
        puts->check_last = link;
    }
}

static void answer_reserve(kvs_conn_t *conn, uint64_t request, as_status_t status)
{
    const as_wire_reserved_t reply = {.head = as_wire_head(AS_WIRE_RESERVED, request),
                                      .status = as_wire_status_of(status)};
    if (status == AS_ERR_BUSY) {
        as_metric_add(&kvs_metrics[KVS_METRIC_BUSY], 1);
    }
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

// Gives the reservation up. With a COMMIT waiting, its writer is told why.
static void put_end(put_t *put, as_status_t status)
{
    if (put->state == DEAD) {
        return;
    }
    kvs_conn_t *conn = put->conn;
    if (put->state == CHECKING) {
        check_forget(put);
    }
    if (put->block) {
        kvs_index_doom(conn->store->index, put->block);
        put->block = NULL;
    }
    bool affirming = put->state == AFFIRMING;
    put->state = DEAD;
    if (affirming) {
        answer_reserve(conn, put->request, status == AS_OK ? AS_ERR_EXISTS : status);
    } else if (put->commit_asked) {
        const as_wire_committed_t reply = {.head = as_wire_head(AS_WIRE_COMMITTED, put->request),
                                           .status = as_wire_status_of(status)};
        kvs_conn_reply(conn, &reply, sizeof(reply));
    }
    free_if_dead(put);
}

static void put_hold(put_t *put)
{
    put->ops++;
}

static void put_drop(put_t *put)
{
    AS_ASSERT(put->ops > 0);
    put->ops--;
    free_if_dead(put);
}

void kvs_puts_sweep(kvs_puts_t *puts, uint64_t now_us)
{
    for (uint32_t slot = 0, left = puts->used; left > 0 && slot < puts->max; slot++) {
        put_t *put = &puts->slots[slot];
        if (put->state == FREE) {
            continue;
        }
        left--;
        bool waits = put->state == OPEN || put->state == RECEIVING || put->state == WRITTEN;
        if (waits && put->deadline_us <= now_us) {
            AS_INFO("kvstore", "reservation expired");
            put_end(put, AS_ERR_LEASE);
        }
    }
}

void kvs_puts_end_conn(kvs_conn_t *conn)
{
    kvs_puts_t *puts = conn->store->puts;
    for (uint32_t slot = conn->first_reservation; slot != NONE;) {
        put_t *put = &puts->slots[slot];
        slot = put->next;
        put_end(put, AS_ERR_PEER_LOST);
    }
}

void kvs_puts_end_dropped(kvs_puts_t *puts)
{
    for (uint32_t slot = 0, left = puts->used; left > 0; slot++) {
        put_t *put = &puts->slots[slot];
        left -= put->state != FREE;
        if (put->state == FREE || !(put->flags & AS_WIRE_COPY) || !put->block) {
            continue;
        }
        const kvs_spec_t spec = kvs_index_spec(puts->store->index, put->block);
        if (kvs_drops_has(puts->store, &spec)) {
            put_end(put, AS_ERR_NOT_FOUND);
        }
    }
}

// ---- RESERVE

static kvs_spec_t spec_of(const kvs_store_t *store, const as_wire_reserve_t *ask)
{
    return (kvs_spec_t){.key = ask->key,
                        .parent = ask->parent,
                        .namespace_key = ask->namespace_key,
                        .kind = (uint16_t)ask->kind,
                        .tenant = ask->tenant,
                        .layers = ask->layers,
                        .extent_bytes = ask->extent_bytes,
                        .tokens = (uint16_t)ask->tokens,
                        .expires_us = kvs_expiry_at(store, ask->ttl_ms),
                        .place = ask->place};
}

static as_status_t reserve(kvs_conn_t *conn, const as_wire_reserve_t *ask, put_t **put_p)
{
    kvs_store_t *store = conn->store;
    as_status_t status = kvs_reserve_check(ask);
    if (status != AS_OK) {
        return status;
    }
    if (store->puts->unused == NONE || kvs_drain_is_on(store)) {
        return AS_ERR_BUSY;
    }
    const kvs_spec_t spec = spec_of(store, ask);
    status = kvs_reserve_meets(store, ask, &spec);
    if (status != AS_OK) {
        return status;
    }
    kvs_block_t *block;
    status = kvs_index_reserve(store->index, &spec, &block);
    if (status == AS_ERR_BUSY) {
        kvs_store_evict_soon(store, kvs_image_bytes(&spec));
    }
    if (status == AS_OK) {
        *put_p = put_take(conn, block);
        (*put_p)->digest = ask->digest;
        (*put_p)->flags = ask->flags;
        kvs_store_evict_soon(store, 0);
        kvs_quota_watch(store, block);
    }
    return status;
}

static void on_affirmed(void *ctx, as_status_t status)
{
    put_t *put = ctx;
    put_end(put, status);
    put_drop(put);
}

// The block is here; its durable writer is answered once it is on disk. AS_ERR_EXISTS: it is.
static as_status_t affirm(kvs_conn_t *conn, const as_wire_reserve_t *ask)
{
    const kvs_spec_t spec = spec_of(conn->store, ask);
    put_t *put = put_take(conn, NULL);
    put->state = AFFIRMING;
    put->request = ask->head.request;
    put_hold(put);
    as_status_t status = kvs_tier_affirm(conn->store, &spec, on_affirmed, put);
    if (status != AS_OK) {
        put->state = DEAD;
        put_drop(put);
    }
    return status == AS_ERR_NOT_FOUND ? AS_ERR_BUSY : status; // another is writing it
}

void kvs_put_reserve(kvs_conn_t *conn, const as_wire_reserve_t *ask)
{
    put_t *put;
    as_status_t status = reserve(conn, ask, &put);
    if (status == AS_OK) {
        const as_wire_reserved_t reply = {
            .head = as_wire_head(AS_WIRE_RESERVED, ask->head.request),
            .ticket = ticket_of(put),
            .expires_ms = (uint32_t)(conn->store->options.reservation_us / 1000)};
        kvs_conn_reply(conn, &reply, sizeof(reply));
        return;
    }
    if (status == AS_ERR_EXISTS && (ask->flags & AS_WIRE_DURABLE)) {
        status = affirm(conn, ask);
    }
    if (status != AS_OK) {
        answer_reserve(conn, ask->head.request, status);
    }
}

bool kvs_puts_digest(const kvs_puts_t *puts, const kvs_spec_t *spec, uint32_t *digest_p)
{
    for (uint32_t slot = 0, left = puts->used; left > 0; slot++) {
        const put_t *put = &puts->slots[slot];
        left -= put->state != FREE;
        if (put->state != FREE && put->block && kvs_block_realm(put->block) == kvs_realm_of(spec) &&
            as_key_equal(&put->block->key, &spec->key)) {
            *digest_p = put->digest;
            return true;
        }
    }
    return false;
}

// ---- WRITE

static void check_soon(put_t *put)
{
    if (put->state != WRITTEN || !put->crcs_here) {
        return;
    }
    kvs_puts_t *puts = put->puts;
    put->state = CHECKING;
    put->check_next = NULL;
    if (!puts->check_first) {
        as_loop_post(puts->store->options.loop, &puts->check);
    }
    *puts->check_last = put;
    puts->check_last = &put->check_next;
}

static void on_written(void *ctx, as_status_t status)
{
    put_t *put = ctx;
    kvs_store_t *store = put->puts->store;
    kvs_block_t *block = put->pinned;
    put->pinned = NULL;
    size_t bytes = kvs_block_bytes(block);
    kvs_index_unpin(store->index, block); // frees it when the put died
    if (status != AS_OK) {
        put_end(put, status);
    } else if (put->state == RECEIVING) {
        kvs_count(&store->counted.bytes_written, KVS_METRIC_BYTES_WRITTEN, bytes);
        put->state = WRITTEN;
        check_soon(put);
    }
    put_drop(put);
}

void kvs_put_write(kvs_conn_t *conn, const as_wire_ticket_t *ask, as_net_msg_t *msg)
{
    kvs_store_t *store = conn->store;
    put_t *put = find(conn, ask->ticket);
    if (!put || put->state != OPEN) {
        return; // late or repeated: the payload is dropped, COMMIT tells
    }
    if (msg->data_bytes != kvs_block_bytes(put->block)) {
        AS_WARN("kvstore", "write refused: %zu bytes, the block has %u", msg->data_bytes,
                kvs_block_bytes(put->block));
        put_end(put, AS_ERR_INVALID);
        return;
    }
    kvs_index_fill(store->index, put->block);
    put->state = RECEIVING;
    kvs_index_pin(store->index, put->block);
    put->pinned = put->block;
    put_hold(put);
    as_status_t status =
        as_net_msg_recv(msg, kvs_index_extent(store->index, put->block, 0), on_written, put);
    if (status != AS_OK) {
        on_written(put, status);
    }
}

// ---- COMMIT

static void on_crcs(void *ctx, as_status_t status)
{
    put_t *put = ctx;
    if (status != AS_OK) {
        put_end(put, status);
    } else if (put->state != DEAD) {
        const kvs_block_t *block = put->block;
        put->crcs_here = true;
        if (as_block_digest(&block->key, put->crcs, block->layers) != put->digest) {
            put_end(put, AS_ERR_INVALID); // not what RESERVE promised
        } else {
            check_soon(put);
        }
    }
    put_drop(put);
}

void kvs_put_commit(kvs_conn_t *conn, const as_wire_commit_t *ask, as_net_msg_t *msg)
{
    put_t *put = find(conn, ask->ticket);
    if (put && put->commit_asked) {
        return; // repeated
    }
    if (as_fault(AS_FAULT_put_commit_drop)) {
        return;
    }
    if (!put) {
        const as_wire_committed_t reply = {
            .head = as_wire_head(AS_WIRE_COMMITTED, ask->head.request), .status = AS_WIRE_LEASE};
        kvs_conn_reply(conn, &reply, sizeof(reply));
        return;
    }
    put->commit_asked = true;
    put->request = ask->head.request;
    put->durable = ask->flags & AS_WIRE_DURABLE;
    if ((ask->flags & ~AS_WIRE_DURABLE) != 0 || ask->crc_count != put->block->layers ||
        msg->data_bytes != ask->crc_count * sizeof(uint32_t)) {
        put_end(put, AS_ERR_INVALID);
        return;
    }
    put_hold(put);
    as_status_t status = as_net_msg_recv(msg, put->crcs, on_crcs, put);
    if (status != AS_OK) {
        on_crcs(put, status);
    }
}

static void on_stored(void *ctx, as_status_t status)
{
    put_t *put = ctx;
    put_end(put, status);
    put_drop(put);
}

// The block is visible; its writer waits for the disk.
static void put_store(put_t *put, kvs_block_t *block)
{
    kvs_store_t *store = put->conn->store;
    check_forget(put);
    put->state = STORING;
    put_hold(put);
    as_status_t status = kvs_tier_write_durable(store, block, on_stored, put);
    if (status == AS_ERR_EXISTS) {
        on_stored(put, AS_OK);
    } else if (status != AS_OK) {
        AS_WARN("kvstore", "a durable put is not on disk: %s", as_status_str(status));
        on_stored(put, status);
    }
}

static void put_succeed(put_t *put)
{
    kvs_conn_t *conn = put->conn;
    kvs_store_t *store = conn->store;
    uint64_t now_us = as_loop_now_us(store->options.loop);
    kvs_block_t *block = put->block;
    memcpy(kvs_index_crcs(store->index, block), put->crcs, block->layers * sizeof(uint32_t));
    if (put->flags & AS_WIRE_COPY) {
        kvs_copy_seal(store, block, put->flags);
    } else {
        kvs_index_seal(store->index, block, now_us);
    }
    if (block->expires_us != 0) {
        kvs_store_watch(store);
    }
    as_metric_observe(&kvs_metrics[KVS_METRIC_COMMIT_US], now_us - put->began_us);
    put->block = NULL;
    if (put->durable) {
        put_store(put, block);
    } else {
        kvs_tier_write_behind(store, block);
        put_end(put, AS_OK);
    }
    kvs_store_gauge(store);
}

// A piece of the comparison.
static void check_some(put_t *put)
{
    kvs_store_t *store = put->conn->store;
    kvs_block_t *block = put->block;
    for (size_t bytes = 0; bytes < KVS_VERIFY_BYTES_MAX; bytes += block->extent_bytes) {
        uint32_t layer = put->checked_layers;
        if (layer == block->layers) {
            put_succeed(put);
            return;
        }
        uint32_t crc =
            as_crc32c(0, kvs_index_extent(store->index, block, layer), block->extent_bytes);
        if (crc != put->crcs[layer]) {
            AS_WARN("kvstore", "write refused: layer %u has checksum %08x, promised %08x", layer,
                    crc, put->crcs[layer]);
            kvs_count(&store->counted.checksum_failures, KVS_METRIC_CHECKSUM_FAILURES, 1);
            put_end(put, AS_ERR_CHECKSUM);
            return;
        }
        put->checked_layers++;
    }
}

static void on_check(void *ctx)
{
    kvs_puts_t *puts = ctx;
    if (puts->check_first) {
        check_some(puts->check_first);
    }
    if (puts->check_first) {
        as_loop_post(puts->store->options.loop, &puts->check);
    }
}

// ---- ABANDON

void kvs_put_abandon(kvs_conn_t *conn, const as_wire_ticket_t *ask)
{
    put_t *put = find(conn, ask->ticket);
    if (put) {
        put_end(put, AS_ERR_CANCELLED);
    }
}
