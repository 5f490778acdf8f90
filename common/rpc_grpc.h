// SPDX-License-Identifier: Apache-2.0
// What the parts of the gRPC implementation of rpc.h share: the hub and its events, credentials.
//
// Hub: all servers and clients of one loop share one completion queue and one thread that waits on
// it (a queue has no file descriptor). The thread pushes each completion on a lock-free list and
// wakes the loop; everything else happens on the loop's thread. A libuv handle does the waking, not
// as_loop_post: a handle can be closed while it is pending, a posted task cannot be taken back.
//
// Event: one completion that is owed by gRPC, embedded in the object it is about, with the server
// or client that owns it. An owner counts the events it is owed, and is freed when that is 0: free
// cancels everything and takes its own events out of the hub until then. Events of other owners
// stay in order where they are, so freeing one object never runs a callback of another.
#ifndef AS_RPC_GRPC_H
#define AS_RPC_GRPC_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <stdbool.h>

#include "common/rpc_internal.h"

#define RPC_ADDRESS_BYTES_MAX 256u
#define RPC_TEXT_BYTES_MAX    512u // of an error
// Trailing metadata that carries an as_status_t exactly, beside the nearest gRPC code, which is
// what other gRPC peers understand.
#define RPC_STATUS_KEY "assay-status"

typedef struct rpc_hub rpc_hub_t;
typedef struct rpc_event rpc_event_t;

typedef struct rpc_owner {
    rpc_hub_t *hub;
    uint32_t owed; // events started and not handled
} rpc_owner_t;

struct rpc_event {
    void (*fn)(void *ctx, bool ok);
    void *ctx;
    rpc_owner_t *owner;
    rpc_event_t *next;
    bool ok;
};

as_status_t rpc_hub_get(as_loop_t *loop, rpc_hub_t **hub_p) AS_MUST_USE;
// The last put ends the thread. May be called from a callback of the hub.
void rpc_hub_put(rpc_hub_t *hub);
grpc_completion_queue *rpc_hub_queue(rpc_hub_t *hub);
// Adds to what the loop has to wait for: servers, and calls in flight of clients.
void rpc_hub_busy(rpc_hub_t *hub, int change);
// Handles the events of one owner until it is owed none.
void rpc_hub_drain(rpc_hub_t *hub, rpc_owner_t *owner);
// Call before each event is handed to gRPC as a tag.
void rpc_owe(rpc_owner_t *owner);

// Identity: what the files of mutual TLS held when they were read last, shared by all of this process
// that are given the same files. as_rpc_tls_reload() replaces it. It outlives whoever took it.
typedef struct rpc_identity rpc_identity_t;

// Who has taken an identity, and what of it is in use there.
typedef struct rpc_credentials {
    rpc_identity_t *identity; // NULL: plain text
    uint64_t generation;
} rpc_credentials_t;

// *tls is not used after. AS_ERR_CONFIG: a file is missing or cannot be read; it is logged.
as_status_t rpc_credentials_take(const as_rpc_tls_t *tls,
                                 rpc_credentials_t *credentials_p) AS_MUST_USE;
void rpc_credentials_give(rpc_credentials_t *credentials);
// Of a server, which asks again at each handshake, on gRPC's threads: *credentials stays where it is
// until the server is destroyed.
as_status_t rpc_credentials_of_server(rpc_credentials_t *credentials,
                                      grpc_server_credentials **creds_p) AS_MUST_USE;
// Of a channel, which keeps them: to be replaced when they have changed.
as_status_t rpc_credentials_of_channel(rpc_credentials_t *credentials,
                                       grpc_channel_credentials **creds_p) AS_MUST_USE;
bool rpc_credentials_changed(const rpc_credentials_t *credentials);

// The nearest gRPC code, and back. `was_connected` tells a lost peer from an unreachable one.
grpc_status_code rpc_code_of(as_status_t status);
as_status_t rpc_status_of(grpc_status_code code, bool was_connected);

// "host:port" and nothing else: gRPC would also take URIs, socket paths and names without a port.
bool rpc_address_valid(const char *address);
// A message as a byte buffer and back. Destroys nothing that it is given.
as_status_t rpc_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer_p) AS_MUST_USE;
as_status_t rpc_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                       ProtobufCMessage **message_p) AS_MUST_USE;
gpr_timespec rpc_deadline(uint64_t delay_us);
grpc_arg rpc_arg(const char *key, int value);

#endif
