// SPDX-License-Identifier: Apache-2.0
// How the bytes of a put arrive, and that they are what its writer promised: received whole into the pool
// and summed afterwards, copied out of the writer's memory and summed in one pass, both a bounded piece in
// each turn of the loop; or copied and summed as they come with their messages.
#include "common/checksum.h"
#include "common/log.h"
#include "kvstore/put_impl.h"

// Whether the next layer has the checksum that its writer promised; else the put is over.
static bool layer_holds(kvs_put_t *put, uint32_t crc)
{
    uint32_t promised = put->crcs[put->checked_layers];
    if (crc != promised) {
        AS_WARN("kvstore", "put refused: layer %u has checksum %08x, promised %08x",
                put->checked_layers, crc, promised);
        kvs_count(&put->puts->store->counted.checksum_failures, KVS_METRIC_CHECKSUM_FAILURES, 1);
        kvs_put_end(put, AS_ERR_CHECKSUM);
        return false;
    }
    put->checked_layers++;
    return true;
}

static uint32_t check_layer(const kvs_put_t *put, uint32_t layer)
{
    const kvs_block_t *block = put->block;
    size_t bytes = block->extent_bytes;
    void *extent = kvs_index_extent(put->puts->store->index, block, layer);
    return put->source ? as_crc32c_copy(0, extent, put->source + layer * bytes, bytes)
                       : as_crc32c(0, extent, bytes);
}

// Compares so many bytes, about, and ends the put after the last; returns how many.
static uint64_t check(kvs_put_t *put, uint64_t bytes_max)
{
    const kvs_block_t *block = put->block;
    uint64_t bytes = 0, extent_bytes = block->extent_bytes;
    for (; bytes < bytes_max; bytes += extent_bytes) {
        uint32_t layer = put->checked_layers;
        if (layer == block->layers) {
            kvs_put_succeed(put);
            return bytes;
        }
        if (!layer_holds(put, check_layer(put, layer))) {
            return bytes + extent_bytes;
        }
    }
    return bytes;
}

void kvs_put_check_forget(kvs_put_t *put)
{
    kvs_puts_t *puts = put->puts;
    if (!put->queued) {
        return;
    }
    put->queued = false;
    kvs_put_t **link = &puts->check_first;
    while (*link != put) {
        link = &(*link)->check_next;
    }
    *link = put->check_next;
    if (puts->check_last == &put->check_next) {
        puts->check_last = link;
    }
}

static void check_queue(kvs_put_t *put)
{
    kvs_puts_t *puts = put->puts;
    put->check_next = NULL;
    put->queued = true;
    *puts->check_last = put;
    puts->check_last = &put->check_next;
}

void kvs_puts_on_check(void *ctx)
{
    kvs_puts_t *puts = ctx;
    for (uint64_t bytes = 0; puts->check_first && bytes < KVS_VERIFY_BYTES_MAX;) {
        kvs_put_t *first = puts->check_first;
        bytes += check(first, KVS_VERIFY_BYTES_MAX - bytes);
        if (puts->check_first == first) { // not over: the others have their turn
            kvs_put_check_forget(first);
            check_queue(first);
        }
    }
    if (puts->check_first) {
        as_loop_post(puts->store->options.loop, &puts->check);
    }
}

// In the turns of the loop to come, one put after the other.
static void check_soon(kvs_put_t *put)
{
    kvs_puts_t *puts = put->puts;
    if (!puts->check_first) {
        as_loop_post(puts->store->options.loop, &puts->check);
    }
    check_queue(put);
}

// ---- arriving

static void on_received(void *ctx, as_status_t status)
{
    kvs_put_t *put = ctx;
    kvs_store_t *store = put->puts->store;
    kvs_block_t *block = put->pinned;
    put->pinned = NULL;
    kvs_index_unpin(store->index, block); // frees it when the put died
    if (status != AS_OK) {
        kvs_put_end(put, status);
    } else if (put->state == KVS_PUT_RECEIVING) {
        put->state = KVS_PUT_CHECKING;
        check_soon(put);
    }
    kvs_put_drop(put);
}

void kvs_put_receive(kvs_put_t *put, as_net_msg_t *msg)
{
    kvs_store_t *store = put->puts->store;
    kvs_index_pin(store->index, put->block);
    put->pinned = put->block;
    kvs_put_hold(put);
    as_status_t status =
        as_net_msg_recv(msg, kvs_index_extent(store->index, put->block, 0), on_received, put);
    if (status != AS_OK) {
        on_received(put, status);
    }
}

// Goes on behind what came before.
void kvs_put_take(kvs_put_t *put, const uint8_t *data, size_t bytes)
{
    const kvs_block_t *block = put->block;
    uint64_t extent_bytes = block->extent_bytes;
    uint8_t *to = kvs_index_extent(put->puts->store->index, put->block, 0);
    for (size_t done = 0; done < bytes;) {
        uint64_t end = (put->checked_layers + 1) * extent_bytes, left = end - put->arrived;
        size_t some = left < bytes - done ? (size_t)left : bytes - done;
        put->crc = as_crc32c_copy(put->crc, to + put->arrived, data + done, some);
        put->arrived += some;
        done += some;
        if (put->arrived == end) {
            if (!layer_holds(put, put->crc)) {
                return;
            }
            put->crc = 0;
        }
    }
    if (put->checked_layers == block->layers) {
        kvs_put_succeed(put);
    }
}

void kvs_put_take_staged(kvs_put_t *put, const uint8_t *source)
{
    put->source = source;
    put->state = KVS_PUT_CHECKING;
    check_soon(put);
}

static kvs_put_t *put_of(const kvs_conn_t *conn, uint64_t request)
{
    kvs_puts_t *puts = conn->store->puts;
    uint32_t slot = conn->first_put;
    while (slot != KVS_PUT_NONE &&
           (puts->slots[slot].request != request || puts->slots[slot].state != KVS_PUT_RECEIVING ||
            puts->slots[slot].pinned)) {
        slot = puts->slots[slot].next;
    }
    return slot == KVS_PUT_NONE ? NULL : &puts->slots[slot];
}

void kvs_put_give_up(kvs_conn_t *conn, uint64_t request, as_status_t status)
{
    kvs_put_t *put = put_of(conn, request);
    if (put) {
        kvs_put_end(put, status);
    }
}

void kvs_put_piece(kvs_conn_t *conn, const as_wire_piece_t *piece, const as_net_msg_t *msg)
{
    kvs_put_t *put = put_of(conn, piece->head.request);
    if (!put) {
        return; // it was answered
    }
    if (msg->data_bytes == 0) {
        kvs_put_end(put, AS_ERR_INVALID); // given up: nobody waits for an answer
        return;
    }
    uint64_t left = kvs_block_bytes(put->block) - put->arrived;
    if (!msg->data || msg->data_bytes > left || msg->data_bytes > KVS_VERIFY_BYTES_MAX ||
        piece->offset != put->arrived) {
        AS_WARN("kvstore",
                "put refused: a piece of %zu bytes at %llu, where %llu are missing at %llu",
                msg->data_bytes, (unsigned long long)piece->offset, (unsigned long long)left,
                (unsigned long long)put->arrived);
        kvs_put_end(put, AS_ERR_INVALID);
        return;
    }
    kvs_put_take(put, msg->data, msg->data_bytes);
}
