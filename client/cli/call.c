// SPDX-License-Identifier: Apache-2.0
// One remote call, waited for: a loop of its own, a client of its own.
#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

#include "common/loop.h"
#include "common/mem.h"
#include "common/rpc.h"

typedef struct waiting {
    as_loop_t *loop;
    as_status_t status;
    ProtobufCMessage *reply;
} waiting_t;

static void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    waiting_t *waiting = ctx;
    waiting->status = status;
    if (status == AS_OK) {
        // The reply lives during this callback only: keep a copy.
        size_t bytes = protobuf_c_message_get_packed_size(reply);
        uint8_t *packed = as_mem_alloc(bytes ? bytes : 1);
        if (packed) {
            protobuf_c_message_pack(reply, packed);
            waiting->reply = protobuf_c_message_unpack(reply->descriptor, NULL, bytes, packed);
        }
        as_mem_free(packed);
        waiting->status = waiting->reply ? AS_OK : AS_ERR_NO_MEMORY;
    }
    as_loop_stop(waiting->loop);
}

ProtobufCMessage *cli_call(const char *target, const ProtobufCServiceDescriptor *service,
                           const char *method, const ProtobufCMessage *request, const char *hint)
{
    waiting_t waiting = {0};
    as_rpc_client_t *client = NULL;
    as_status_t status = as_loop_alloc_uv(&waiting.loop);
    if (status == AS_OK) {
        status = as_rpc_client_alloc(waiting.loop, target, service,
                                     cli_tls.ca_file ? &cli_tls : NULL, &client);
    }
    if (status == AS_OK) {
        status = as_rpc_call(client, method, request, CLI_RPC_US, on_done, &waiting, NULL);
    }
    if (status == AS_OK) {
        as_loop_run(waiting.loop);
        status = waiting.status;
    }
    as_rpc_client_free(client);
    as_loop_free(waiting.loop);
    if (status != AS_OK) {
        // A server that wants TLS and a client that does not, or the reverse, see each other hang up.
        bool change = status == AS_ERR_DENIED && service == &assay__store__descriptor;
        bool lost = status == AS_ERR_UNREACHABLE || status == AS_ERR_PEER_LOST;
        cli_complain("%s at %s: %s; %s%s", method, target, as_status_str(status),
                     !lost             ? ""
                     : cli_tls.ca_file ? "it needs a certificate that --tls-ca signed; "
                                       : "if it has TLS, give --tls-ca, --tls-cert and --tls-key; ",
                     change ? "your certificate is none of the store's --operator" : hint);
    }
    return waiting.reply;
}

Assay__StatReply *cli_stat_of_cluster(const char *scheduler)
{
    Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
    return (Assay__StatReply *)cli_call(scheduler, &assay__scheduler__descriptor, "Stat",
                                        &request.base, CLI_NO_SCHEDULER);
}
