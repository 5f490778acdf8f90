// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: registered memory and one-sided reads.
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

#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define RKEY_MAGIC   0x4b525341u // "ASRK"
#define RKEY_VERSION 3u
// UCX parses its key without being told the length: at most 64 parts of at most 255 bytes and their
// lengths.
#define RKEY_PARSE_BYTES_MAX (16u + 64u * 256u)

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
    if (rkey->local || ucx_conn_has_rdma(conn)) {
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
    if (!rkey->local && !ucx_conn_has_rdma(conn)) {
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
        .cb.send = ucx_op_on_sent,
        .user_data = op,
    };
    op->receiving = true;
    return ucx_op_started(op, ucp_get_nbx(conn->ep, params->buffer, params->bytes,
                                          params->remote_address, rkey->handle, &param));
}
