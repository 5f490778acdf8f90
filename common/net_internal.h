// SPDX-License-Identifier: Apache-2.0
// What the data planes share: the heads of their objects and the table that net.c dispatches to.
//
// net.c checks what holds for every data plane (magics, limits, header and payload pairing) before
// it calls an operation, so an implementation sees only well-formed calls.
#ifndef AS_NET_INTERNAL_H
#define AS_NET_INTERNAL_H

#include "common/net.h"

#define AS_NET_MAGIC  0x74656e5f73612e31ull // "1.as_net"
#define AS_CONN_MAGIC 0x6e6f635f73612e31ull // "1.as_con"

// A send or a one-sided read, as handed to the implementation.
typedef struct as_net_send_params {
    const void *header;
    size_t header_bytes;
    const void *data;
    size_t data_bytes;
    bool offered;        // the payload stays until the receiver takes it
    as_net_done_fn done; // NULL only without payload
    void *ctx;
} as_net_send_params_t;

// A send whose payload is gathered; see as_net_sendv.
typedef struct as_net_sendv_params {
    const void *header;
    size_t header_bytes;
    const as_net_iov_t *iov;
    size_t iov_count; // at least 2
    as_net_done_fn done;
    void *ctx;
} as_net_sendv_params_t;

typedef struct as_net_get_params {
    as_net_rkey_t *rkey;
    uint64_t remote_address;
    void *buffer;
    size_t bytes;
    as_net_done_fn done;
    void *ctx;
} as_net_get_params_t;

typedef struct as_net_ops {
    void (*free)(as_net_t *net);
    as_status_t (*listen)(as_net_t *net, const char *address);
    const char *(*address)(const as_net_t *net);
    as_status_t (*connect)(as_net_t *net, const char *address, as_conn_t **conn_p);
    void (*close)(as_conn_t *conn);
    const char *(*transport)(const as_conn_t *conn);
    size_t (*piece_bytes)(const as_conn_t *conn); // of one, at most; SIZE_MAX: nothing is cut
    as_status_t (*send)(as_conn_t *conn, const as_net_send_params_t *params);
    // NULL: net.c gathers the payload itself, in a copy
    as_status_t (*sendv)(as_conn_t *conn, const as_net_sendv_params_t *params);
    as_status_t (*msg_recv)(as_net_msg_t *msg, void *buffer, as_net_done_fn done, void *ctx);
    as_status_t (*mem_alloc)(as_net_t *net, size_t bytes, void **memory_p, as_net_mem_t **mem_p);
    void (*mem_free)(as_net_mem_t *mem);
    as_status_t (*mem_pack)(const as_net_mem_t *mem, void *rkey, size_t *rkey_bytes_p);
    as_status_t (*rkey_unpack)(as_conn_t *conn, const void *rkey, size_t rkey_bytes,
                               as_net_rkey_t **rkey_p);
    void (*rkey_free)(as_net_rkey_t *rkey);
    as_status_t (*rkey_ptr)(as_net_rkey_t *rkey, uint64_t remote_address, const void **pointer_p);
    as_status_t (*get)(as_conn_t *conn, const as_net_get_params_t *params);
} as_net_ops_t;

// First member of each implementation's net.
struct as_net {
    uint64_t magic;
    const as_net_ops_t *ops;
    as_loop_t *loop;
    as_net_handlers_t handlers;
    size_t credential_bytes;
    uint8_t credential[AS_NET_CREDENTIAL_BYTES_MAX];
};

// First member of each implementation's connection.
struct as_conn {
    uint64_t magic;
    as_net_t *net;
    void *user;
    uint32_t caps;
    bool deaf; // as_conn_is_deaf
};

// First member of each implementation's registered memory and of its remote key.
struct as_net_mem {
    const as_net_ops_t *ops;
};

struct as_net_rkey {
    const as_net_ops_t *ops;
};

// A message with the connection that it came on; the message is the first member, so that
// as_net_msg_recv finds the rest.
typedef struct as_net_msg_in {
    as_net_msg_t msg;
    as_conn_t *conn;
    bool taken; // as_net_msg_recv was called
} as_net_msg_in_t;

#endif
