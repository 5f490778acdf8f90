// SPDX-License-Identifier: Apache-2.0
// The write path: PUT. Nobody finds a block before its bytes are checked.
//
//   FREE -> RECEIVING [-> CHECKING] [-> STORING] -> FREE    (block: FILLING, SEALED)
//             any of them -> DEAD -> FREE                   (block: DYING, ABSENT; of STORING: SEALED)
//   FREE -> AFFIRMING -> FREE
//
//   RECEIVING  the bytes of a large block come straight into the pool; the block is pinned. Or they come in
//              pieces, each with its message, and are copied and summed piece by piece.
//   CHECKING   they are summed, a bounded piece in each turn of the loop. Of a writer on the same host
//              they still lie in its memory, and are copied and summed in one pass.
//   STORING    a durable put: the block is visible, and on its way to disk.
//   AFFIRMING  a durable put of a block that was here: it is answered once it is on disk.
//   DEAD       given up (deadline, lost connection, failure); waits for callbacks that still refer to it.
//
// A disk that hangs calls nobody back: its put is answered after KVS_DISK_WAIT_US and is no longer its
// connection's, but the slot stays DEAD. So durable puts have at most half of the slots.
//
// How bytes arrive and are summed stands in put_arrive.c. `ops` counts the callbacks under way; a slot is
// free again only when they have come.
#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/put_impl.h"

as_status_t kvs_puts_alloc(kvs_store_t *store, uint32_t max, kvs_puts_t **puts_p)
{
    AS_ASSERT(max > 0 && max < KVS_PUT_NONE);
    kvs_puts_t *puts = as_mem_zalloc(1, sizeof(*puts) + max * sizeof(kvs_put_t));
    if (!puts) {
        return AS_ERR_NO_MEMORY;
    }
    puts->check = (as_task_t){.fn = kvs_puts_on_check, .ctx = puts};
    puts->store = store;
    puts->max = max;
    puts->check_last = &puts->check_first;
    for (uint32_t i = 0; i < max; i++) {
        puts->slots[i].puts = puts;
        puts->slots[i].next = i + 1 < max ? i + 1 : KVS_PUT_NONE;
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

static uint32_t slot_of(const kvs_put_t *put)
{
    return (uint32_t)(put - put->puts->slots);
}

// ---- their life

static bool is_durable(const kvs_put_t *put)
{
    return (put->flags & AS_WIRE_DURABLE) != 0;
}

static kvs_put_t *slot_take(kvs_conn_t *conn, kvs_block_t *block, const as_wire_put_t *ask)
{
    kvs_puts_t *puts = conn->store->puts;
    uint64_t now_us = as_loop_now_us(conn->store->options.loop);
    kvs_put_t *put = &puts->slots[puts->unused];
    AS_ASSERT(put->state == KVS_PUT_FREE && put->ops == 0);
    puts->unused = put->next;
    puts->used++;
    put->state = KVS_PUT_RECEIVING;
    put->conn = conn;
    put->block = block;
    put->request = ask->head.request;
    put->flags = ask->flags;
    put->source = NULL;
    put->began_us = now_us;
    put->deadline_us = now_us + conn->store->options.reservation_us;
    put->checked_layers = 0;
    put->arrived = 0;
    put->crc = 0;
    put->prev = KVS_PUT_NONE;
    put->next = conn->first_put;
    if (put->next != KVS_PUT_NONE) {
        puts->slots[put->next].prev = slot_of(put);
    }
    conn->first_put = slot_of(put);
    conn->puts++;
    puts->durable += is_durable(put);
    kvs_conn_hold(conn);
    kvs_store_watch(conn->store);
    return put;
}

// It is no longer its connection's.
static void leave_conn(kvs_put_t *put)
{
    kvs_puts_t *puts = put->puts;
    kvs_conn_t *conn = put->conn;
    if (!conn) {
        return;
    }
    if (put->next != KVS_PUT_NONE) {
        puts->slots[put->next].prev = put->prev;
    }
    if (put->prev != KVS_PUT_NONE) {
        puts->slots[put->prev].next = put->next;
    } else {
        conn->first_put = put->next;
    }
    conn->puts--;
    put->conn = NULL;
    kvs_conn_drop(conn);
}

static void free_if_dead(kvs_put_t *put)
{
    kvs_puts_t *puts = put->puts;
    if (put->state != KVS_PUT_DEAD || put->ops > 0) {
        return;
    }
    leave_conn(put);
    puts->durable -= is_durable(put);
    put->state = KVS_PUT_FREE;
    put->next = puts->unused;
    puts->unused = slot_of(put);
    puts->used--;
}

static void answer(kvs_conn_t *conn, uint64_t request, as_status_t status)
{
    const as_wire_result_t reply = {.head = as_wire_head(AS_WIRE_STORED, request),
                                    .status = as_wire_status_of(status)};
    if (!conn->net || as_fault(AS_FAULT_put_answer_drop)) {
        return;
    }
    if (status == AS_ERR_BUSY) {
        as_metric_add(&kvs_metrics[KVS_METRIC_BUSY], 1);
    }
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

void kvs_put_end(kvs_put_t *put, as_status_t status)
{
    if (put->state == KVS_PUT_DEAD) {
        return;
    }
    kvs_conn_t *conn = put->conn;
    kvs_put_check_forget(put);
    if (put->block) {
        kvs_index_doom(conn->store->index, put->block);
        put->block = NULL;
    }
    bool affirmed = put->state == KVS_PUT_AFFIRMING && status == AS_OK;
    put->state = KVS_PUT_DEAD;
    answer(conn, put->request, affirmed ? AS_ERR_EXISTS : status);
    free_if_dead(put);
}

void kvs_put_hold(kvs_put_t *put)
{
    put->ops++;
}

void kvs_put_drop(kvs_put_t *put)
{
    AS_ASSERT(put->ops > 0);
    put->ops--;
    free_if_dead(put);
}

static bool waits_for_disk(const kvs_put_t *put)
{
    return put->state == KVS_PUT_STORING || put->state == KVS_PUT_AFFIRMING;
}

static void wait_for_disk(kvs_put_t *put, kvs_put_state_t state)
{
    const kvs_store_t *store = put->puts->store;
    uint64_t wait_us = store->options.reservation_us;
    put->state = state;
    put->deadline_us = as_loop_now_us(store->options.loop) +
                       (wait_us < KVS_DISK_WAIT_US ? wait_us : KVS_DISK_WAIT_US);
    kvs_put_hold(put);
}

void kvs_puts_sweep(kvs_puts_t *puts, uint64_t now_us)
{
    for (uint32_t slot = 0, left = puts->used; left > 0 && slot < puts->max; slot++) {
        kvs_put_t *put = &puts->slots[slot];
        if (put->state == KVS_PUT_FREE) {
            continue;
        }
        left--;
        if (put->state == KVS_PUT_DEAD && put->pinned &&
            put->deadline_us + puts->store->options.stall_us <= now_us) {
            AS_WARN("kvstore", "connection closed: its peer keeps back what it has announced");
            kvs_conn_close(put->conn); // which makes the network let go
        } else if (put->state == KVS_PUT_RECEIVING && put->deadline_us <= now_us) {
            AS_INFO("kvstore", "a put has not come whole in its time");
            kvs_put_end(put, AS_ERR_LEASE);
        } else if (waits_for_disk(put) && put->deadline_us <= now_us) {
            AS_WARN("kvstore",
                    "the disk hangs: a durable put is answered without it; see to the disk");
            as_metric_add(&kvs_metrics[KVS_METRIC_DISK_HUNG], 1);
            kvs_put_end(put, AS_ERR_IO);
            leave_conn(put);
        }
    }
}

void kvs_puts_end_conn(kvs_conn_t *conn)
{
    kvs_puts_t *puts = conn->store->puts;
    for (uint32_t slot = conn->first_put; slot != KVS_PUT_NONE;) {
        kvs_put_t *put = &puts->slots[slot];
        slot = put->next;
        kvs_put_end(put, AS_ERR_PEER_LOST);
    }
}

void kvs_puts_end_dropped(kvs_puts_t *puts)
{
    for (uint32_t slot = 0, left = puts->used; left > 0; slot++) {
        kvs_put_t *put = &puts->slots[slot];
        left -= put->state != KVS_PUT_FREE;
        if (put->state == KVS_PUT_FREE || !(put->flags & AS_WIRE_COPY) || !put->block) {
            continue;
        }
        const kvs_spec_t spec = kvs_index_spec(puts->store->index, put->block);
        if (kvs_drops_has(puts->store, &spec)) {
            kvs_put_end(put, AS_ERR_NOT_FOUND);
        }
    }
}

// ---- success

static void on_stored(void *ctx, as_status_t status)
{
    kvs_put_t *put = ctx;
    kvs_put_end(put, status);
    kvs_put_drop(put);
}

// The block is visible; its writer waits for the disk.
static void put_store(kvs_put_t *put, kvs_block_t *block)
{
    kvs_store_t *store = put->conn->store;
    kvs_put_check_forget(put);
    wait_for_disk(put, KVS_PUT_STORING);
    as_status_t status = kvs_tier_write_durable(store, block, on_stored, put);
    if (status == AS_ERR_EXISTS) {
        on_stored(put, AS_OK);
    } else if (status != AS_OK) {
        AS_WARN("kvstore", "a durable put is not on disk: %s", as_status_str(status));
        on_stored(put, status);
    }
}

void kvs_put_succeed(kvs_put_t *put)
{
    kvs_conn_t *conn = put->conn;
    kvs_store_t *store = conn->store;
    uint64_t now_us = as_loop_now_us(store->options.loop);
    kvs_block_t *block = put->block;
    if (!(put->flags & AS_WIRE_COPY)) {
        const kvs_spec_t spec = kvs_index_spec(store->index, block);
        kvs_drops_forget(store, &spec); // a worker has put it again
    }
    memcpy(kvs_index_crcs(store->index, block), put->crcs, block->layers * sizeof(uint32_t));
    kvs_count(&store->counted.bytes_written, KVS_METRIC_BYTES_WRITTEN, kvs_block_bytes(block));
    if (put->flags & AS_WIRE_COPY) {
        kvs_copy_seal(store, block, put->flags);
    } else {
        kvs_index_seal(store->index, block, now_us);
    }
    if (block->expires_us != 0) {
        kvs_store_watch(store);
    }
    as_metric_observe(&kvs_metrics[KVS_METRIC_PUT_US], now_us - put->began_us);
    put->block = NULL;
    if (put->flags & AS_WIRE_DURABLE) {
        put_store(put, block);
    } else {
        kvs_tier_write_behind(store, block);
        kvs_put_end(put, AS_OK);
    }
    kvs_store_gauge(store);
}

// ---- PUT

// The block's bytes must all be there: in the payload, or in the memory that the writer shares.
static as_status_t put_find(const kvs_conn_t *conn, const as_wire_put_t *ask,
                            const as_net_msg_t *msg, const uint8_t **source_p)
{
    size_t bytes = (size_t)ask->layers * ask->extent_bytes;
    if (ask->flags & AS_WIRE_STAGED) {
        return msg->data_bytes > 0 ? AS_ERR_INVALID
                                   : kvs_stage_find(conn, ask->offset, bytes, source_p);
    }
    bool is_first_piece = msg->data && msg->data_bytes < bytes;
    if (msg->data_bytes != bytes && !is_first_piece) {
        AS_WARN("kvstore", "put refused: %zu bytes, the block has %zu", msg->data_bytes, bytes);
        return AS_ERR_INVALID;
    }
    if (msg->data && msg->data_bytes > KVS_VERIFY_BYTES_MAX) {
        return AS_ERR_LIMIT; // our clients cut it or announce it
    }
    *source_p = msg->data; // or NULL: it is to be received
    return AS_OK;
}

static kvs_spec_t spec_of(const kvs_store_t *store, const as_wire_put_t *ask, uint32_t tenant)
{
    return (kvs_spec_t){.key = ask->key,
                        .parent = ask->parent,
                        .namespace_key = ask->namespace_key,
                        .kind = (uint16_t)ask->kind,
                        .tenant = tenant,
                        .layers = ask->layers,
                        .extent_bytes = ask->extent_bytes,
                        .tokens = (uint16_t)ask->tokens,
                        .expires_us = kvs_expiry_at(store, ask->ttl_ms),
                        .place = ask->place};
}

static as_status_t reserve(kvs_conn_t *conn, const as_wire_put_t *ask, const kvs_spec_t *spec,
                           kvs_put_t **put_p)
{
    kvs_store_t *store = conn->store;
    // A connection has at most as many as it leaves to the others.
    if (conn->puts >= store->puts->max - store->puts->used || kvs_drain_is_on(store)) {
        return AS_ERR_BUSY;
    }
    if ((ask->flags & AS_WIRE_DURABLE) && store->puts->durable >= (store->puts->max + 1) / 2) {
        return AS_ERR_BUSY;
    }
    uint32_t digest = as_block_digest(&ask->key, ask->crcs, ask->layers);
    as_status_t status = kvs_put_meets(store, spec, digest, ask->flags);
    if (status != AS_OK) {
        return status;
    }
    kvs_block_t *block;
    status = kvs_store_reserve(store, spec, &block);
    if (status == AS_OK) {
        kvs_put_t *put = slot_take(conn, block, ask);
        put->digest = digest;
        memcpy(put->crcs, ask->crcs, ask->layers * sizeof(uint32_t));
        kvs_index_fill(store->index, block);
        kvs_store_evict_soon(store, 0);
        kvs_quota_watch(store, block);
        *put_p = put;
    }
    return status;
}

static void on_affirmed(void *ctx, as_status_t status)
{
    kvs_put_t *put = ctx;
    kvs_put_end(put, status);
    kvs_put_drop(put);
}

// The block is here; its durable writer is answered once it is on disk. AS_ERR_EXISTS: it is.
static as_status_t affirm(kvs_conn_t *conn, const as_wire_put_t *ask, const kvs_spec_t *spec)
{
    kvs_put_t *put = slot_take(conn, NULL, ask);
    wait_for_disk(put, KVS_PUT_AFFIRMING);
    as_status_t status = kvs_tier_affirm(conn->store, spec, on_affirmed, put);
    if (status != AS_OK) {
        put->state = KVS_PUT_DEAD;
        kvs_put_drop(put);
    }
    return status == AS_ERR_NOT_FOUND ? AS_ERR_BUSY : status; // another is writing it
}

void kvs_put_serve(kvs_conn_t *conn, const as_wire_put_t *ask, uint32_t tenant, as_net_msg_t *msg)
{
    const kvs_spec_t spec = spec_of(conn->store, ask, tenant);
    const uint8_t *source = NULL;
    kvs_put_t *put = NULL;
    as_status_t status = kvs_put_check(ask);
    if (status == AS_OK) {
        status = put_find(conn, ask, msg, &source);
    }
    if (status == AS_OK) {
        status = reserve(conn, ask, &spec, &put);
    }
    if (status == AS_ERR_EXISTS && (ask->flags & AS_WIRE_DURABLE)) {
        status = affirm(conn, ask, &spec);
        if (status == AS_OK) {
            return;
        }
    }
    if (status != AS_OK) {
        answer(conn, ask->head.request, status);
    } else if (!source) {
        kvs_put_receive(put, msg);
    } else if (ask->flags & AS_WIRE_STAGED) {
        kvs_put_take_staged(put, source);
    } else { // it goes with its message
        kvs_put_take(put, source, msg->data_bytes);
    }
}

bool kvs_puts_digest(const kvs_puts_t *puts, const kvs_spec_t *spec, uint32_t *digest_p)
{
    for (uint32_t slot = 0, left = puts->used; left > 0; slot++) {
        const kvs_put_t *put = &puts->slots[slot];
        left -= put->state != KVS_PUT_FREE;
        if (put->state != KVS_PUT_FREE && put->block &&
            kvs_block_realm(put->block) == kvs_realm_of(spec) &&
            as_key_equal(&put->block->key, &spec->key)) {
            *digest_p = put->digest;
            return true;
        }
    }
    return false;
}
