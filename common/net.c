// SPDX-License-Identifier: Apache-2.0
// Dispatch of the data plane's calls to the implementation that made the object, with the checks
// that hold for all of them.
#include "common/net.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/net_internal.h"

// Well above any block; a length beyond it is a mistake of the caller.
#define LINE_BYTES     64u
#define DATA_BYTES_MAX ((size_t)1 << 40)

static void check_conn(const as_conn_t *conn)
{
    AS_ASSERT(conn->magic == AS_CONN_MAGIC);
}

void as_net_free(as_net_t *net)
{
    if (!net) {
        return;
    }
    AS_ASSERT(net->magic == AS_NET_MAGIC);
    net->ops->free(net);
}

as_status_t as_net_listen(as_net_t *net, const char *address)
{
    AS_ASSERT(net->magic == AS_NET_MAGIC);
    if (!address || net->ops->address(net)) {
        return AS_ERR_INVALID;
    }
    return net->ops->listen(net, address);
}

const char *as_net_address(const as_net_t *net)
{
    AS_ASSERT(net->magic == AS_NET_MAGIC);
    return net->ops->address(net);
}

as_status_t as_net_connect(as_net_t *net, const char *address, as_conn_t **conn_p)
{
    AS_ASSERT(net->magic == AS_NET_MAGIC);
    return address ? net->ops->connect(net, address, conn_p) : AS_ERR_INVALID;
}

void as_net_set_credential(as_net_t *net, const void *credential, size_t bytes)
{
    AS_ASSERT(net->magic == AS_NET_MAGIC && bytes <= sizeof(net->credential));
    memcpy(net->credential, credential, bytes);
    net->credential_bytes = bytes;
}

void as_net_close(as_conn_t *conn)
{
    check_conn(conn);
    conn->net->ops->close(conn);
}

uint32_t as_conn_caps(const as_conn_t *conn)
{
    check_conn(conn);
    return conn->caps;
}

bool as_conn_is_deaf(const as_conn_t *conn)
{
    check_conn(conn);
    return conn->deaf;
}

const char *as_conn_transport(const as_conn_t *conn)
{
    check_conn(conn);
    return conn->net->ops->transport(conn);
}

// Pieces of about the same size, and of whole cache lines.
size_t as_conn_piece_bytes(const as_conn_t *conn, size_t bytes)
{
    check_conn(conn);
    size_t most = conn->net->ops->piece_bytes(conn);
    size_t pieces = bytes / most + (bytes % most > 0);
    return pieces > 1 ? ((bytes + pieces - 1) / pieces + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES
                      : bytes;
}

void as_conn_set_user(as_conn_t *conn, void *user)
{
    check_conn(conn);
    conn->user = user;
}

void *as_conn_user(const as_conn_t *conn)
{
    check_conn(conn);
    return conn->user;
}

static as_status_t send(as_conn_t *conn, const as_net_send_params_t *params)
{
    check_conn(conn);
    if (params->header_bytes > AS_NET_HEADER_BYTES_MAX || params->data_bytes > DATA_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    if ((params->header_bytes > 0 && !params->header) ||
        (params->data_bytes > 0 && (!params->data || !params->done))) {
        return AS_ERR_INVALID;
    }
    return conn->net->ops->send(conn, params);
}

as_status_t as_net_send(as_conn_t *conn, const void *header, size_t header_bytes, const void *data,
                        size_t data_bytes, as_net_done_fn done, void *ctx)
{
    return send(conn,
                &(as_net_send_params_t){header, header_bytes, data, data_bytes, false, done, ctx});
}

as_status_t as_net_offer(as_conn_t *conn, const void *header, size_t header_bytes, const void *data,
                         size_t data_bytes, as_net_done_fn done, void *ctx)
{
    return send(conn, &(as_net_send_params_t){header, header_bytes, data, data_bytes,
                                              data_bytes > 0, done, ctx});
}

// A payload that net.c gathered for a data plane that cannot.
typedef struct gathered {
    as_net_done_fn done;
    void *ctx;
    unsigned char data[];
} gathered_t;

static void on_gathered_sent(void *ctx, as_status_t status)
{
    gathered_t *gathered = ctx;
    as_net_done_fn done = gathered->done;
    void *done_ctx = gathered->ctx;
    as_mem_free(gathered);
    done(done_ctx, status);
}

static as_status_t send_gathered(as_conn_t *conn, const as_net_sendv_params_t *params,
                                 size_t data_bytes)
{
    gathered_t *gathered = as_mem_alloc(sizeof(*gathered) + data_bytes);
    if (!gathered) {
        return AS_ERR_NO_MEMORY;
    }
    gathered->done = params->done;
    gathered->ctx = params->ctx;
    size_t at = 0;
    for (size_t i = 0; i < params->iov_count; i++) {
        memcpy(gathered->data + at, params->iov[i].data, params->iov[i].bytes);
        at += params->iov[i].bytes;
    }
    as_status_t status = as_net_send(conn, params->header, params->header_bytes, gathered->data,
                                     data_bytes, on_gathered_sent, gathered);
    if (status != AS_OK) {
        as_mem_free(gathered);
    }
    return status;
}

as_status_t as_net_sendv(as_conn_t *conn, const void *header, size_t header_bytes,
                         const as_net_iov_t *iov, size_t iov_count, as_net_done_fn done, void *ctx)
{
    check_conn(conn);
    if (iov_count == 0 || iov_count > AS_NET_IOV_MAX || header_bytes > AS_NET_HEADER_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    size_t data_bytes = 0;
    for (size_t i = 0; i < iov_count; i++) {
        if (!iov[i].data || iov[i].bytes == 0 || iov[i].bytes > DATA_BYTES_MAX) {
            return AS_ERR_INVALID;
        }
        data_bytes += iov[i].bytes;
    }
    if ((header_bytes > 0 && !header) || !done) {
        return AS_ERR_INVALID;
    }
    if (iov_count == 1) {
        return as_net_send(conn, header, header_bytes, iov[0].data, data_bytes, done, ctx);
    }
    const as_net_sendv_params_t params = {header, header_bytes, iov, iov_count, done, ctx};
    return conn->net->ops->sendv ? conn->net->ops->sendv(conn, &params)
                                 : send_gathered(conn, &params, data_bytes);
}

as_status_t as_net_msg_recv(as_net_msg_t *msg, void *buffer, as_net_done_fn done, void *ctx)
{
    as_net_msg_in_t *in = (as_net_msg_in_t *)msg;
    check_conn(in->conn);
    if (in->taken || !done || (msg->data_bytes > 0 && !buffer)) {
        return AS_ERR_INVALID;
    }
    in->taken = true;
    as_status_t status = in->conn->net->ops->msg_recv(msg, buffer, done, ctx);
    in->taken = status == AS_OK; // else the payload is dropped, and its sender told
    return status;
}

as_status_t as_net_mem_alloc(as_net_t *net, size_t bytes, void **memory_p, as_net_mem_t **mem_p)
{
    AS_ASSERT(net->magic == AS_NET_MAGIC);
    if (bytes == 0 || bytes > DATA_BYTES_MAX) {
        return AS_ERR_INVALID;
    }
    return net->ops->mem_alloc(net, bytes, memory_p, mem_p);
}

void as_net_mem_free(as_net_mem_t *mem)
{
    if (mem) {
        mem->ops->mem_free(mem);
    }
}

as_status_t as_net_mem_pack(const as_net_mem_t *mem, void *rkey, size_t *rkey_bytes_p)
{
    return mem->ops->mem_pack(mem, rkey, rkey_bytes_p);
}

as_status_t as_net_rkey_unpack(as_conn_t *conn, const void *rkey, size_t rkey_bytes,
                               as_net_rkey_t **rkey_p)
{
    check_conn(conn);
    if (rkey_bytes > AS_NET_RKEY_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    return rkey ? conn->net->ops->rkey_unpack(conn, rkey, rkey_bytes, rkey_p) : AS_ERR_INVALID;
}

void as_net_rkey_free(as_net_rkey_t *rkey)
{
    if (rkey) {
        rkey->ops->rkey_free(rkey);
    }
}

as_status_t as_net_rkey_ptr(as_net_rkey_t *rkey, uint64_t remote_address, const void **pointer_p)
{
    return rkey->ops->rkey_ptr(rkey, remote_address, pointer_p);
}

as_status_t as_net_get(as_conn_t *conn, as_net_rkey_t *rkey, uint64_t remote_address, void *buffer,
                       size_t bytes, as_net_done_fn done, void *ctx)
{
    check_conn(conn);
    if (!buffer || bytes == 0 || bytes > DATA_BYTES_MAX || !done || rkey->ops != conn->net->ops) {
        return AS_ERR_INVALID;
    }
    const as_net_get_params_t params = {rkey, remote_address, buffer, bytes, done, ctx};
    return conn->net->ops->get(conn, &params);
}
