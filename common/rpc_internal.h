// SPDX-License-Identifier: Apache-2.0
// What the implementations of rpc.h share: the heads of their objects, which the public calls in
// rpc.c dispatch through. rpc.c (gRPC) and rpc_sim.c (simulation) each have their own larger
// structs that begin with these.
//
// rpc.c finds the method by name and checks the deadline and the request's descriptor before it
// calls an operation; an implementation sees only well-formed calls.
#ifndef AS_RPC_INTERNAL_H
#define AS_RPC_INTERNAL_H

#include "common/rpc.h"
#include "common/rpc_peer.h"

// One call, as handed to the implementation.
typedef struct as_rpc_call_params {
    unsigned method_index; // in the service's descriptor, as ProtobufCService.invoke takes it
    const ProtobufCMethodDescriptor *method;
    const ProtobufCMessage *request; // valid during the call of the operation only
    uint64_t deadline_us;            // from now, positive
    as_rpc_done_fn done;
    void *ctx;
} as_rpc_call_params_t;

typedef struct as_rpc_client_ops {
    void (*free)(as_rpc_client_t *client);
    as_status_t (*call)(as_rpc_client_t *client, const as_rpc_call_params_t *params,
                        uint64_t *call_id_p); // call_id_p is never NULL here
    void (*cancel)(as_rpc_client_t *client, uint64_t call_id);
} as_rpc_client_ops_t;

typedef struct as_rpc_server_ops {
    void (*free)(as_rpc_server_t *server);
    as_status_t (*add)(as_rpc_server_t *server, ProtobufCService *service);
    as_status_t (*start)(as_rpc_server_t *server);
    const char *(*address)(const as_rpc_server_t *server);
} as_rpc_server_ops_t;

struct as_rpc_client {
    const as_rpc_client_ops_t *ops;
    const ProtobufCServiceDescriptor *service;
};

struct as_rpc_server {
    const as_rpc_server_ops_t *ops;
};

// A call that a server's handler has not answered yet. The closure_data that a handler is given
// points to one, in every implementation, so that as_rpc_fail can reach the implementation through
// it.
typedef struct as_rpc_pending as_rpc_pending_t;
struct as_rpc_pending {
    void (*fail)(as_rpc_pending_t *pending, as_status_t status, const char *text);
    // Whether the caller's certificate has this common name. NULL: nobody has one.
    bool (*is_named)(as_rpc_pending_t *pending, const char *name);
};

#endif
