// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: messages, registered memory and one-sided reads.
//
// A message is one UCX active message: the header is its header, the payload its data. Every
// message asks for the reply endpoint, by which the receiver finds the connection.
//
// Memory is shared with the processes of the same host (shared.c), which read it through a
// pointer. A remote key is UCX's own, behind a head of ours that bounds what may be read and names
// the shared memory:
//
//   offset bytes
//        0     4  magic "ASRK"
//        4     2  version, 3
//        6     2  bytes of UCX's key
//        8     8  address of the memory in its owner
//       16     8  its length in bytes
//       24    48  where it is shared (shared.h)
//       72     n  UCX's key
//
// Over TCP UCX emulates reads at a tenth of the rate of messages; such reads are refused here.
#include "common/net_ucx.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define RKEY_MAGIC   0x4b525341u // "ASRK"
#define RKEY_VERSION 3u
// UCX parses its key without being told the length: at most 64 parts of at most 255 bytes and their
// lengths.
#define RKEY_PARSE_BYTES_MAX (16u + 64u * 256u)
#define EAGER_BYTES_MAX      (256u << 10)
#define RDMA_EAGER_BYTES_MAX (64u << 10)
#define GREETING_MAGIC       0x47525341u // "ASRG"
#define GREETING_VERSION     1u

typedef struct rkey_head {
    uint32_t magic;
    uint16_t version;
    uint16_t key_bytes;
    uint64_t address;
    uint64_t bytes;
    as_shared_name_t shared;
} rkey_head_t;

_Static_assert(sizeof(rkey_head_t) == 72, "layout on the wire");
_Static_assert(offsetof(rkey_head_t, address) == 8, "layout on the wire");

// What the accepting side says first. The connecting side is not OPEN before, and sends nothing
// before.
typedef struct greeting {
    uint32_t magic;
    uint32_t version;
} greeting_t;

_Static_assert(sizeof(greeting_t) == 8, "layout on the wire");

typedef struct ucx_mem {
    as_net_mem_t head;
    ucx_net_t *net;
    struct ucx_mem *next; // freed_mems
    ucp_mem_h handle;
    as_shared_t shared;
    size_t bytes;
} ucx_mem_t;

typedef struct ucx_rkey {
    as_net_rkey_t head;
    ucx_net_t *net;
    const as_conn_t *conn; // only compared: it may be gone
    ucp_rkey_h handle;
    const char *local; // the memory in our address space; NULL if it is not shared
    size_t mapped;     // of it
    uint64_t address;
    uint64_t bytes;
} ucx_rkey_t;

typedef struct ucx_msg {
    as_net_msg_in_t in;
    void *data; // bytes, or UCX's descriptor of a rendezvous
    bool rendezvous;
    bool receiving;      // UCX has the descriptor now
    as_net_done_fn done; // of a receive that was a copy: called when the handler has returned
    void *ctx;
} ucx_msg_t;

// ---- messages out

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    ucx_op_finish(user_data, ucx_status(status));
}

// Takes what an operation's start returned: done already, under way, or not started.
static as_status_t op_started(ucx_op_t *op, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_ERR(request)) {
        ucs_status_t status = UCS_PTR_STATUS(request);
        AS_DEBUG("net", "operation not started: %s", ucs_status_string(status));
        ucx_op_drop(op);
        return ucx_status(status);
    }
    if (!request) {
        ucx_op_finish(op, AS_OK);
    } else {
        ucx_net_kick(ucx_conn_net(op->conn)); // UCX wants to be progressed before the loop sleeps
    }
    return AS_OK;
}

static ucs_status_ptr_t op_request(ucx_op_t *op, unsigned am_id, uint32_t flags)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_sent,
        .user_data = op,
        .flags = UCP_AM_SEND_FLAG_REPLY | flags,
        .datatype = UCP_DATATYPE_IOV,
    };
    if (op->iov_count > 0) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        return ucp_am_send_nbx(op->conn->ep, am_id, op->header, op->header_bytes, op->iov,
                               op->iov_count, &param);
    }
    return ucp_am_send_nbx(op->conn->ep, am_id, op->header, op->header_bytes, op->data,
                           op->data_bytes, &param);
}

// Where reads without the peer's processor are real: memory that we can point at, or an RDMA card.
static bool conn_has_rdma(const ucx_conn_t *conn)
{
    const char *transport = as_conn_transport(&conn->head);
    return strstr(transport, "rc_") || strstr(transport, "dc_");
}

// A rendezvous costs a turn of both sides, eager a copy at the receiver. Over TCP that copy is the
// cheaper as long as what was received stays in the cache: it takes the place of a checksum's pass
// over memory, and of the copy that UCX makes of a rendezvous' first bytes. What fits into one
// message of UCX's (UCX_TCP_RX_SEG_SIZE) is in order, too.
static uint32_t message_flags(const ucx_op_t *op)
{
    bool eager = op->data_bytes <= RDMA_EAGER_BYTES_MAX ||
                 (op->data_bytes <= EAGER_BYTES_MAX && !conn_has_rdma(op->conn));
    return eager && !op->offered ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
}

size_t ucx_piece_bytes(const as_conn_t *head)
{
    return conn_has_rdma((const ucx_conn_t *)head) ? SIZE_MAX : EAGER_BYTES_MAX;
}

// What UCX queues while it connects may be overtaken by what is sent after: it is held back here.
static as_status_t send_or_hold(ucx_op_t *op)
{
    if (op->conn->state == UCX_CONNECTING) {
        ucx_list_remove(&op->link);
        ucx_list_append(&op->conn->held, &op->link);
        return AS_OK;
    }
    return op_started(op, op_request(op, UCX_AM_MESSAGE, message_flags(op)));
}

as_status_t ucx_send(as_conn_t *head, const as_net_send_params_t *params)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    if (params->header_bytes > 0) {
        memcpy(op->header, params->header, params->header_bytes);
    }
    op->header_bytes = params->header_bytes;
    op->data = params->data;
    op->data_bytes = params->data_bytes;
    op->offered = params->offered;
    op->iov_count = 0;
    return send_or_hold(op);
}

as_status_t ucx_sendv(as_conn_t *head, const as_net_sendv_params_t *params)
{
    ucx_op_t *op;
    as_status_t status = ucx_op_take((ucx_conn_t *)head, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    if (params->header_bytes > 0) {
        memcpy(op->header, params->header, params->header_bytes);
    }
    op->header_bytes = params->header_bytes;
    op->data = NULL;
    op->data_bytes = 0;
    op->offered = false;
    op->iov_count = params->iov_count;
    for (size_t i = 0; i < params->iov_count; i++) {
        op->data_bytes += params->iov[i].bytes;
        op->iov[i] = (ucp_dt_iov_t){(void *)(uintptr_t)params->iov[i].data, params->iov[i].bytes};
    }
    return send_or_hold(op);
}

as_status_t ucx_msg_greet(ucx_conn_t *conn)
{
    const greeting_t greeting = {GREETING_MAGIC, GREETING_VERSION};
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, NULL, NULL, &op);
    if (status != AS_OK) {
        return status;
    }
    memcpy(op->header, &greeting, sizeof(greeting));
    op->header_bytes = sizeof(greeting);
    op->data = NULL;
    op->data_bytes = 0;
    op->offered = false;
    op->iov_count = 0;
    return op_started(op, op_request(op, UCX_AM_GREETING, UCP_AM_SEND_FLAG_EAGER));
}

static void conn_opened(ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    conn->state = UCX_OPEN;
    if (conn->socket) {
        ucx_socket_close(conn->socket);
    }
    while (!ucx_list_is_empty(&conn->held)) {
        ucx_op_t *op = UCX_LIST_OF(conn->held.next, ucx_op_t);
        ucx_list_remove(&op->link);
        ucx_list_append(&net->inflight, &op->link);
        ucs_status_ptr_t request = op_request(op, UCX_AM_MESSAGE, message_flags(op));
        if (UCS_PTR_IS_ERR(request)) {
            ucx_op_finish(op, ucx_status(UCS_PTR_STATUS(request)));
        } else if (!request) {
            ucx_op_finish(op, AS_OK);
        }
    }
}

// ---- messages in

static ucs_status_t on_message(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t data_bytes, const ucp_am_recv_param_t *param)
{
    ucx_net_t *net = arg;
    ucx_conn_t *conn = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                           ? ucx_conn_find(net, param->reply_ep)
                           : NULL;
    if (!conn || !ucx_conn_alive(conn)) {
        return UCS_OK;
    }
    if (conn->state == UCX_CONNECTING) {
        conn_opened(conn); // the message has overtaken the greeting
    }
    if (header_bytes > AS_NET_HEADER_BYTES_MAX) {
        AS_WARN("net", "message with a header of %zu bytes, limit %u", header_bytes,
                AS_NET_HEADER_BYTES_MAX);
        ucx_conn_fail(conn, AS_ERR_PROTOCOL);
        return UCS_OK;
    }
    // UCX gives no alignment; handlers read structs.
    _Alignas(16) unsigned char aligned[AS_NET_HEADER_BYTES_MAX];
    if (header_bytes > 0) {
        memcpy(aligned, header, header_bytes);
    }
    ucx_msg_t msg = {.data = data,
                     .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
    msg.in.conn = &conn->head;
    msg.in.msg = (as_net_msg_t){aligned, header_bytes,
                                msg.rendezvous || data_bytes == 0 ? NULL : data, data_bytes};
    net->head.handlers.on_message(net->head.handlers.ctx, &conn->head, &msg.in.msg);
    if (msg.done) {
        msg.done(msg.ctx, conn->user_closed ? AS_ERR_CANCELLED : AS_OK);
    }
    return msg.receiving ? UCS_INPROGRESS : UCS_OK;
}

static ucs_status_t on_greeting(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t data_bytes, const ucp_am_recv_param_t *param)
{
    (void)data;
    (void)data_bytes;
    ucx_net_t *net = arg;
    ucx_conn_t *conn = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                           ? ucx_conn_find(net, param->reply_ep)
                           : NULL;
    if (!conn || !ucx_conn_alive(conn)) {
        return UCS_OK;
    }
    greeting_t greeting = {0, 0};
    memcpy(&greeting, header, header_bytes < sizeof(greeting) ? header_bytes : sizeof(greeting));
    bool connecting = conn->state == UCX_CONNECTING;
    if (greeting.magic != GREETING_MAGIC || greeting.version != GREETING_VERSION) {
        AS_WARN("net", "peer speaks version %u of the data plane, this is %u", greeting.version,
                GREETING_VERSION);
        conn->state = UCX_OPEN; // it was reached, and is not of our kind
        ucx_conn_fail(conn, AS_ERR_PROTOCOL);
    } else if (connecting) {
        conn_opened(conn);
    }
    return UCS_OK;
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    (void)bytes;
    ucp_request_free(request);
    ucx_op_finish(user_data, ucx_status(status));
}

as_status_t ucx_msg_recv(as_net_msg_t *head, void *buffer, as_net_done_fn done, void *ctx)
{
    ucx_msg_t *msg = (ucx_msg_t *)head;
    ucx_conn_t *conn = (ucx_conn_t *)msg->in.conn;
    if (!msg->rendezvous) {
        if (head->data_bytes > 0) {
            memcpy(buffer, head->data, head->data_bytes);
        }
        msg->done = done;
        msg->ctx = ctx;
        return AS_OK;
    }
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, done, ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    op->receiving = true;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = op,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx_conn_net(conn)->worker, msg->data, buffer,
                                                    head->data_bytes, &param);
    msg->receiving = !UCS_PTR_IS_ERR(request);
    return op_started(op, request);
}

as_status_t ucx_msg_register(ucx_net_t *net)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_AM_MESSAGE,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = net,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(net->worker, &param);
    if (status == UCS_OK) {
        param.id = UCX_AM_GREETING;
        param.cb = on_greeting;
        status = ucp_worker_set_am_recv_handler(net->worker, &param);
    }
    return ucx_status(status);
}

// ---- memory

as_status_t ucx_mem_alloc(as_net_t *head, size_t bytes, void **memory_p, as_net_mem_t **mem_p)
{
    ucx_net_t *net = (ucx_net_t *)head;
    ucx_mem_t *mem = as_mem_zalloc(1, sizeof(*mem));
    if (!mem) {
        return AS_ERR_NO_MEMORY;
    }
    if (as_shared_alloc(&mem->shared, bytes) != AS_OK) {
        AS_ERROR("net", "cannot allocate %zu bytes of shared memory", bytes);
        as_mem_free(mem);
        return AS_ERR_NO_MEMORY;
    }
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .address = mem->shared.memory,
        .length = mem->shared.bytes,
        .flags = UCP_MEM_MAP_NONBLOCK,
    };
    ucs_status_t status = ucp_mem_map(net->context, &params, &mem->handle);
    if (status != UCS_OK) {
        AS_ERROR("net", "cannot register %zu bytes of memory: %s", bytes,
                 ucs_status_string(status));
        as_shared_free(&mem->shared);
        as_mem_free(mem);
        return ucx_status(status);
    }
    mem->head.ops = head->ops;
    mem->net = net;
    mem->bytes = bytes;
    net->mem_count++;
    *memory_p = mem->shared.memory;
    *mem_p = &mem->head;
    return AS_OK;
}

void ucx_mem_free(as_net_mem_t *head)
{
    ucx_mem_t *mem = (ucx_mem_t *)head;
    ucx_net_t *net = mem->net;
    net->mem_count--;
    mem->next = net->freed_mems;
    net->freed_mems = mem;
    if (net->conn_count == 0) { // else UCX may still receive into it
        ucx_mems_unmap(net);
    }
}

void ucx_mems_unmap(ucx_net_t *net)
{
    while (net->freed_mems) {
        ucx_mem_t *mem = net->freed_mems;
        net->freed_mems = mem->next;
        ucp_mem_unmap(net->context, mem->handle);
        as_shared_free(&mem->shared);
        as_mem_free(mem);
    }
}

as_status_t ucx_mem_pack(const as_net_mem_t *head, void *rkey, size_t *rkey_bytes_p)
{
    const ucx_mem_t *mem = (const ucx_mem_t *)head;
    void *key;
    size_t key_bytes;
    ucs_status_t status = ucp_rkey_pack(mem->net->context, mem->handle, &key, &key_bytes);
    if (status != UCS_OK) {
        AS_ERROR("net", "cannot pack a remote key: %s", ucs_status_string(status));
        return ucx_status(status);
    }
    const rkey_head_t packed = {RKEY_MAGIC,          RKEY_VERSION,
                                (uint16_t)key_bytes, (uint64_t)(uintptr_t)mem->shared.memory,
                                mem->bytes,          as_shared_name(&mem->shared)};
    bool fits = sizeof(packed) + key_bytes <= AS_NET_RKEY_BYTES_MAX;
    if (fits) {
        memcpy(rkey, &packed, sizeof(packed));
        memcpy((char *)rkey + sizeof(packed), key, key_bytes);
        *rkey_bytes_p = sizeof(packed) + key_bytes;
    } else {
        AS_ERROR("net", "a remote key has %zu bytes, limit %u", key_bytes, AS_NET_RKEY_BYTES_MAX);
    }
    ucp_rkey_buffer_release(key);
    return fits ? AS_OK : AS_ERR_LIMIT;
}

as_status_t ucx_rkey_unpack(as_conn_t *conn_head, const void *bytes, size_t byte_count,
                            as_net_rkey_t **rkey_p)
{
    ucx_conn_t *conn = (ucx_conn_t *)conn_head;
    rkey_head_t packed;
    if (byte_count < sizeof(packed)) {
        return AS_ERR_PROTOCOL;
    }
    memcpy(&packed, bytes, sizeof(packed));
    if (packed.magic != RKEY_MAGIC || packed.version != RKEY_VERSION ||
        packed.key_bytes != byte_count - sizeof(packed) ||
        packed.address + packed.bytes < packed.address) {
        return AS_ERR_PROTOCOL;
    }
    if (!ucx_conn_alive(conn) || conn->state != UCX_OPEN) {
        return AS_ERR_PEER_LOST;
    }
    unsigned char key[RKEY_PARSE_BYTES_MAX] = {0};
    memcpy(key, (const char *)bytes + sizeof(packed), packed.key_bytes);
    ucx_rkey_t *rkey = as_mem_zalloc(1, sizeof(*rkey));
    if (!rkey) {
        return AS_ERR_NO_MEMORY;
    }
    ucs_status_t status = ucp_ep_rkey_unpack(conn->ep, key, &rkey->handle);
    if (status != UCS_OK) {
        AS_WARN("net", "remote key cannot be unpacked: %s", ucs_status_string(status));
        as_mem_free(rkey);
        return AS_ERR_PROTOCOL;
    }
    rkey->local = as_shared_map(&packed.shared, packed.bytes, false, &rkey->mapped);
    if (rkey->local || conn_has_rdma(conn)) {
        conn->head.caps |= AS_NET_CAP_ONESIDED;
    }
    rkey->head.ops = conn_head->net->ops;
    rkey->net = ucx_conn_net(conn);
    rkey->conn = conn_head;
    rkey->address = packed.address;
    rkey->bytes = packed.bytes;
    rkey->net->mem_count++;
    *rkey_p = &rkey->head;
    return AS_OK;
}

void ucx_rkey_free(as_net_rkey_t *head)
{
    ucx_rkey_t *rkey = (ucx_rkey_t *)head;
    ucp_rkey_destroy(rkey->handle);
    as_shared_unmap(rkey->local, rkey->mapped);
    rkey->net->mem_count--;
    as_mem_free(rkey);
}

static bool rkey_covers(const ucx_rkey_t *rkey, uint64_t address, uint64_t bytes)
{
    return address >= rkey->address && bytes <= rkey->bytes &&
           address - rkey->address <= rkey->bytes - bytes;
}

as_status_t ucx_rkey_ptr(as_net_rkey_t *head, uint64_t address, const void **pointer_p)
{
    const ucx_rkey_t *rkey = (const ucx_rkey_t *)head;
    if (!rkey->local) {
        return AS_ERR_UNSUPPORTED;
    }
    if (!rkey_covers(rkey, address, 1)) {
        return AS_ERR_INVALID;
    }
    *pointer_p = rkey->local + (address - rkey->address);
    return AS_OK;
}

as_status_t ucx_get(as_conn_t *head, const as_net_get_params_t *params)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    const ucx_rkey_t *rkey = (const ucx_rkey_t *)params->rkey;
    if (rkey->conn != head || !rkey_covers(rkey, params->remote_address, params->bytes)) {
        return AS_ERR_INVALID;
    }
    if (!rkey->local && !conn_has_rdma(conn)) {
        return AS_ERR_UNSUPPORTED;
    }
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    if (rkey->local) {
        memcpy(params->buffer, rkey->local + (params->remote_address - rkey->address),
               params->bytes);
        ucx_op_finish(op, AS_OK);
        return AS_OK;
    }
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = op,
    };
    op->receiving = true;
    return op_started(op, ucp_get_nbx(conn->ep, params->buffer, params->bytes,
                                      params->remote_address, rkey->handle, &param));
}
