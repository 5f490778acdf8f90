// SPDX-License-Identifier: Apache-2.0
// The puts of a store, shared by put.c and put_arrive.c and seen by nothing else.
#ifndef KVS_PUT_IMPL_H
#define KVS_PUT_IMPL_H

#include "kvstore/store.h"

#define KVS_PUT_NONE UINT32_MAX // of a slot number

typedef enum kvs_put_state {
    KVS_PUT_FREE,
    KVS_PUT_RECEIVING,
    KVS_PUT_CHECKING,
    KVS_PUT_STORING,
    KVS_PUT_AFFIRMING,
    KVS_PUT_DEAD
} kvs_put_state_t;

typedef struct kvs_put {
    kvs_puts_t *puts;
    kvs_put_state_t state;
    uint32_t prev, next; // of the connection; next of the free ones
    uint32_t ops;
    kvs_conn_t *conn;
    kvs_block_t *block;  // NULL when DEAD, STORING or AFFIRMING
    uint32_t digest;     // of the key and the checksums
    uint32_t flags;      // of PUT
    kvs_block_t *pinned; // while the network writes to it, also when DEAD
    uint64_t began_us, deadline_us;
    uint64_t request;      // that is answered
    const uint8_t *source; // while CHECKING: where the bytes lie; NULL: in the pool
    bool queued;           // to be checked, with the next
    struct kvs_put *check_next;
    uint32_t checked_layers;
    uint64_t arrived;             // bytes that came with their messages
    uint32_t crc;                 // of those of the layer that is not whole yet
    uint32_t crcs[AS_LAYERS_MAX]; // that the writer promises
} kvs_put_t;

struct kvs_puts {
    kvs_store_t *store;
    uint32_t max, used;
    uint32_t durable; // of the used ones
    uint32_t unused;
    kvs_put_t *check_first, **check_last; // those CHECKING, in order
    as_task_t check;
    kvs_put_t slots[];
};

// put.c
void kvs_put_end(kvs_put_t *put, as_status_t status); // it is over, and its writer is told how
void kvs_put_succeed(kvs_put_t *put);                 // its bytes are here and as promised
void kvs_put_hold(kvs_put_t *put);                    // a callback that refers to it is under way
void kvs_put_drop(kvs_put_t *put);

// put_arrive.c
void kvs_put_receive(kvs_put_t *put, as_net_msg_t *msg); // the whole block, into the pool
void kvs_put_take(kvs_put_t *put, const uint8_t *data, size_t bytes); // what came with its message
void kvs_put_take_staged(kvs_put_t *put, const uint8_t *source);      // out of its writer's memory
void kvs_put_check_forget(kvs_put_t *put);
void kvs_puts_on_check(void *ctx);

#endif
