// SPDX-License-Identifier: Apache-2.0
// Remote calls: any protobuf-c service over gRPC C core (rpc_grpc_*.c), or over the simulation
// (rpc_sim.c).
//
// A server takes a generated ProtobufCService (its handlers answer now or later by calling the
// closure). A client holds a service descriptor and starts calls with a deadline. Neither side sees
// gRPC. Completion queues run on a thread of their own and hand over to the loop: all handlers and
// callbacks run on the loop given.
#ifndef AS_RPC_H
#define AS_RPC_H

#include <protobuf-c/protobuf-c.h>
#include "common/loop.h"
#include "common/net_sim.h"

#define AS_RPC_MESSAGE_BYTES_MAX (16u << 20) // one request or reply

typedef struct as_rpc_server as_rpc_server_t;
typedef struct as_rpc_client as_rpc_client_t;

// Mutual TLS: PEM file paths; all three given, or a NULL pointer for plain text.
typedef struct as_rpc_tls {
    const char *ca_file;
    const char *cert_file;
    const char *key_file;
} as_rpc_tls_t;

// Reads the files of all servers and clients of this process again, from any thread. Handshakes from now
// on use what they hold; connections that are there stay. Files that do not belong together, as
// as_tls_check() says, leave what was in force as it was, all three of them; it is logged and
// counted.
void as_rpc_tls_reload(void);
// The same where a file has changed since the last look: for who gets no signal.
void as_rpc_tls_refresh(void);

// address "host:port", port 0 picks one. Services must be added before start, and outlive the
// server.
as_status_t as_rpc_server_alloc(as_loop_t *loop, const char *address, const as_rpc_tls_t *tls,
                                as_rpc_server_t **server_p) AS_MUST_USE;
as_status_t as_rpc_server_add(as_rpc_server_t *server, ProtobufCService *service) AS_MUST_USE;
as_status_t as_rpc_server_start(as_rpc_server_t *server) AS_MUST_USE;
const char *as_rpc_server_address(const as_rpc_server_t *server);
// Stops accepting, cancels calls in progress, frees. Handlers that have not answered must not call
// closure after.
void as_rpc_server_free(as_rpc_server_t *server);
// Answers a call with an error instead of a reply message (from a handler, with the closure and
// data it was given).
void as_rpc_fail(ProtobufCClosure closure, void *closure_data, as_status_t status,
                 const char *text);

as_status_t as_rpc_client_alloc(as_loop_t *loop, const char *target,
                                const ProtobufCServiceDescriptor *service, const as_rpc_tls_t *tls,
                                as_rpc_client_t **client_p) AS_MUST_USE;
// Calls in progress complete with AS_ERR_CANCELLED before it returns.
void as_rpc_client_free(as_rpc_client_t *client);

// status AS_OK: reply is a message of the method's output type, valid during the callback. Else
// reply is NULL.
typedef void (*as_rpc_done_fn)(void *ctx, as_status_t status, const ProtobufCMessage *reply);

// Starts a call by method name, such as "Route". `call_id_p` may be NULL; the id names the call for
// cancel and is never reused. The deadline is counted from now and must be positive.
as_status_t as_rpc_call(as_rpc_client_t *client, const char *method,
                        const ProtobufCMessage *request, uint64_t deadline_us, as_rpc_done_fn done,
                        void *ctx, uint64_t *call_id_p) AS_MUST_USE;
// The call completes with AS_ERR_CANCELLED if it has not completed yet. An unknown id is ignored.
void as_rpc_cancel(as_rpc_client_t *client, uint64_t call_id);

// The same over a simulated network (loss and delay as for messages; a killed or stopped node as in
// net_sim.h). `name` is the host part of the address as in as_net_alloc_sim; node faults are set by
// as_sim_rpc_* on it.
as_status_t as_rpc_server_alloc_sim(as_sim_t *sim, const char *address,
                                    as_rpc_server_t **server_p) AS_MUST_USE;
as_status_t as_rpc_client_alloc_sim(as_sim_t *sim, const char *own_name, const char *target,
                                    const ProtobufCServiceDescriptor *service,
                                    as_rpc_client_t **client_p) AS_MUST_USE;
// The host of this name stops answering and calling (down) or works again.
void as_sim_rpc_set_down(as_sim_t *sim, const char *name, bool down);

#endif
