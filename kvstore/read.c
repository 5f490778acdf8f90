// SPDX-License-Identifier: Apache-2.0
// READ: extents of leased blocks, sent from the pool as they lie there, a message for each ask, or,
// of an extent that is larger than the network likes its messages, one for each piece. Nothing is
// copied; the blocks are pinned until the network is done with them, so a lease that ends in the
// meantime does no harm.
//
// What is handed to the network leaves in that order. So only KVS_CONN_WINDOW_BYTES of a connection
// are, and the rest waits here, where an urgent ask overtakes a large one, between two of its pieces
// too: the classes send by weighted turns (deficit round robin, Shreedhar and Varghese 1995). The
// turns are a connection's own, so that a reader that takes nothing holds up nobody else.
#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"
#include "kvstore/store.h"

#define QUANTUM_BYTES (64 << 10) // of a turn, times the weight of the class
static const int64_t WEIGHTS[AS_WIRE_CLASS_COUNT] = {
    [AS_WIRE_PREFIX] = 1,
    [AS_WIRE_VERIFY] = 4,
    [AS_WIRE_KVFETCH] = 64,
};

typedef struct kvs_read {
    kvs_conn_t *conn;
    struct kvs_read *next; // of its class, while it waits
    uint64_t lease_id;
    as_wire_ask_t ask;
    uint32_t count; // blocks
    uint32_t blocks[AS_WIRE_EXTENTS_MAX];
    as_net_iov_t iov[AS_WIRE_EXTENTS_MAX];
    uint32_t iov_count;
    size_t bytes;
    size_t piece_bytes;   // of each message but the last
    size_t handed_bytes;  // to the network, from the beginning
    size_t sending_bytes; // of those, not known to be sent
    uint32_t sending;     // messages
    uint8_t *scratch;     // of the fault site only
} read_t;

static void serve_turns(kvs_conn_t *conn);

as_status_t kvs_reads_alloc(kvs_store_t *store)
{
    return as_pool_alloc("kvs reads", sizeof(read_t), store->options.reads_max, &store->reads);
}

static void refuse(kvs_conn_t *conn, const as_wire_ask_t *ask, as_status_t status)
{
    const as_wire_data_t reply = {.head = as_wire_head(AS_WIRE_DATA, ask->request),
                                  .status = as_wire_status_of(status)};
    if (status == AS_ERR_BUSY) {
        as_metric_add(&kvs_metrics[KVS_METRIC_BUSY], 1);
    }
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

// It is over: sent, refused, or nobody waits for it.
static void read_end(read_t *read)
{
    kvs_conn_t *conn = read->conn;
    kvs_store_t *store = conn->store;
    for (uint32_t i = 0; i < read->count; i++) {
        kvs_index_unpin(store->index, kvs_index_at(store->index, read->blocks[i]));
    }
    as_mem_free(read->scratch);
    as_pool_give(store->reads, read);
    conn->reads--;
    kvs_conn_drop(conn);
}

// Nothing more of it is to be sent.
static void read_stop(read_t *read)
{
    read->handed_bytes = read->bytes;
    if (read->sending == 0) {
        read_end(read);
    }
}

static void on_sent(void *ctx, as_status_t status)
{
    read_t *read = ctx;
    kvs_conn_t *conn = read->conn;
    size_t bytes = --read->sending > 0 ? read->piece_bytes : read->sending_bytes;
    if (status == AS_OK) {
        kvs_count(&conn->store->counted.bytes_read, KVS_METRIC_BYTES_READ, bytes);
    }
    kvs_conn_awaited(conn, status == AS_OK);
    read->sending_bytes -= bytes;
    conn->turns.sending_bytes -= bytes;
    kvs_conn_hold(conn);
    if (read->sending == 0 && read->handed_bytes == read->bytes) {
        read_end(read);
    }
    serve_turns(conn);
    kvs_conn_drop(conn);
}

// Pins the blocks and lays out what is to be sent.
static as_status_t gather(read_t *read, uint64_t lease_id, const as_wire_ask_t *ask)
{
    kvs_conn_t *conn = read->conn;
    kvs_store_t *store = conn->store;
    for (uint32_t i = 0; i < ask->index_count; i++) {
        kvs_block_t *block =
            kvs_lease_block(store->leases, &conn->leases, lease_id, ask->index_first + i);
        if (!block) {
            return AS_ERR_LEASE;
        }
        if (ask->layer_first >= block->layers ||
            ask->layer_count > (uint32_t)block->layers - ask->layer_first) {
            return AS_ERR_INVALID;
        }
        kvs_index_pin(store->index, block);
        read->blocks[read->count++] = kvs_index_id(store->index, block);
        read->iov[i] = (as_net_iov_t){kvs_index_extent(store->index, block, ask->layer_first),
                                      (size_t)ask->layer_count * block->extent_bytes};
        read->iov_count = i + 1;
        read->bytes += read->iov[i].bytes;
    }
    bool is_single = ask->index_count * ask->layer_count == 1;
    read->piece_bytes = is_single ? as_conn_piece_bytes(conn->net, read->bytes) : read->bytes;
    return is_single || read->bytes <= AS_WIRE_ASK_BYTES_MAX ? AS_OK : AS_ERR_LIMIT;
}

// What a torn or damaged extent looks like to the reader. The pool itself stays as it is.
static void corrupt(read_t *read)
{
    read->scratch = as_mem_alloc(read->iov[0].bytes);
    if (read->scratch) {
        memcpy(read->scratch, read->iov[0].data, read->iov[0].bytes);
        read->scratch[read->iov[0].bytes / 2] ^= 1;
        read->iov[0].data = read->scratch;
    }
}

static bool is_sound(const as_wire_ask_t *ask)
{
    return ask->index_count > 0 && ask->layer_count > 0 &&
           (ask->index_count == 1 || ask->layer_count == 1) &&
           ask->index_count <= AS_WIRE_EXTENTS_MAX && ask->layer_count <= AS_WIRE_EXTENTS_MAX &&
           ask->index_first < AS_WIRE_KEYS_MAX;
}

// ---- turns

static void wait_turn(read_t *read, uint32_t urgency)
{
    kvs_turns_t *turns = &read->conn->turns;
    if (turns->last[urgency]) {
        turns->last[urgency]->next = read;
    } else {
        turns->first[urgency] = read;
    }
    turns->last[urgency] = read;
}

static read_t *take_first(kvs_turns_t *turns, uint32_t urgency)
{
    read_t *read = turns->first[urgency];
    turns->first[urgency] = read->next;
    if (!read->next) {
        turns->last[urgency] = NULL;
        turns->credit[urgency] = 0; // who has nothing to send saves nothing up
    }
    read->next = NULL;
    return read;
}

// Of the next message.
static size_t next_bytes(const read_t *read)
{
    size_t left = read->bytes - read->handed_bytes;
    return left < read->piece_bytes ? left : read->piece_bytes;
}

// Of whom is next to send something, or AS_WIRE_CLASS_COUNT. A class that is alone waits for no turn.
static uint32_t next_class(kvs_turns_t *turns)
{
    uint32_t waiting = 0, one = 0;
    for (uint32_t i = 0; i < AS_WIRE_CLASS_COUNT; i++) {
        waiting += turns->first[i] != NULL;
        one = turns->first[i] ? i : one;
    }
    if (waiting <= 1) {
        return waiting == 1 ? one : AS_WIRE_CLASS_COUNT;
    }
    while (!turns->first[turns->turn] || turns->credit[turns->turn] <= 0) {
        turns->turn = (turns->turn + 1) % AS_WIRE_CLASS_COUNT;
        if (turns->first[turns->turn]) {
            turns->credit[turns->turn] += WEIGHTS[turns->turn] * QUANTUM_BYTES;
        }
    }
    turns->credit[turns->turn] -= (int64_t)next_bytes(turns->first[turns->turn]);
    return turns->turn;
}

// Hands the next message to the network.
static as_status_t send(read_t *read)
{
    kvs_conn_t *conn = read->conn;
    const as_wire_data_t reply = {.head = as_wire_head(AS_WIRE_DATA, read->ask.request),
                                  .offset = (uint32_t)read->handed_bytes};
    size_t bytes = next_bytes(read);
    as_net_iov_t piece = {(const uint8_t *)read->iov[0].data + read->handed_bytes, bytes};
    bool whole = bytes == read->bytes;
    as_status_t status = as_net_sendv(conn->net, &reply, sizeof(reply), whole ? read->iov : &piece,
                                      whole ? read->iov_count : 1, on_sent, read);
    if (status == AS_OK) {
        kvs_conn_await(conn);
        read->sending++;
        read->sending_bytes += bytes;
        read->handed_bytes += bytes;
        conn->turns.sending_bytes += bytes;
    }
    return status;
}

static void serve_turns(kvs_conn_t *conn)
{
    kvs_turns_t *turns = &conn->turns;
    while (conn->net && turns->sending_bytes < KVS_CONN_WINDOW_BYTES) {
        uint32_t urgency = next_class(turns);
        if (urgency == AS_WIRE_CLASS_COUNT) {
            return;
        }
        read_t *read = turns->first[urgency];
        as_status_t status = send(read);
        if (status != AS_OK || read->handed_bytes == read->bytes) {
            take_first(turns, urgency);
        }
        if (status != AS_OK) {
            refuse(conn, &read->ask, status);
            read_stop(read);
        }
    }
}

void kvs_reads_end_conn(kvs_conn_t *conn)
{
    for (uint32_t i = 0; i < AS_WIRE_CLASS_COUNT; i++) {
        while (conn->turns.first[i]) {
            read_stop(take_first(&conn->turns, i));
        }
    }
}

void kvs_reads_end_lease(kvs_conn_t *conn, uint64_t lease_id)
{
    for (uint32_t i = 0; i < AS_WIRE_CLASS_COUNT; i++) {
        read_t *waiting = conn->turns.first[i];
        conn->turns.first[i] = conn->turns.last[i] = NULL;
        for (read_t *next; waiting; waiting = next) {
            next = waiting->next;
            waiting->next = NULL;
            if (waiting->lease_id == lease_id) {
                read_stop(waiting);
            } else {
                wait_turn(waiting, i);
            }
        }
    }
}

// ---- serving

static uint32_t reads_left(const kvs_store_t *store)
{
    return store->options.reads_max - as_pool_used(store->reads);
}

bool kvs_reads_are_scarce(const kvs_store_t *store)
{
    return reads_left(store) <= store->options.reads_max / 8;
}

static void take_ask(kvs_conn_t *conn, const as_wire_read_t *ask, uint32_t i)
{
    kvs_store_t *store = conn->store;
    // A connection has at most as many as it leaves to the others.
    bool may = conn->reads < KVS_CONN_READS_MAX && conn->reads < reads_left(store);
    read_t *read = may ? as_pool_take(store->reads) : NULL;
    if (!read) {
        refuse(conn, &ask->asks[i], AS_ERR_BUSY);
        return;
    }
    read->conn = conn;
    read->lease_id = ask->lease_id;
    read->ask = ask->asks[i];
    conn->reads++;
    kvs_conn_hold(conn);
    as_status_t status = gather(read, ask->lease_id, &read->ask);
    if (status != AS_OK) {
        refuse(conn, &read->ask, status);
        read_end(read);
        return;
    }
    if (as_fault(AS_FAULT_serve_read_drop)) {
        read_end(read);
        return;
    }
    if (as_fault(AS_FAULT_serve_read_corrupt)) {
        corrupt(read);
    }
    wait_turn(read, ask->urgency);
}

void kvs_read_serve(kvs_conn_t *conn, const as_wire_read_t *read)
{
    bool sound = read->ask_count > 0 && read->ask_count <= AS_WIRE_ASKS_MAX &&
                 read->urgency < AS_WIRE_CLASS_COUNT;
    for (uint32_t i = 0; sound && i < read->ask_count; i++) {
        sound = is_sound(&read->asks[i]);
    }
    if (!sound) {
        kvs_conn_offend(conn, "a malformed READ");
        return;
    }
    kvs_conn_hold(conn);
    for (uint32_t i = 0; i < read->ask_count; i++) {
        take_ask(conn, read, i);
    }
    serve_turns(conn);
    kvs_conn_drop(conn);
}
