// SPDX-License-Identifier: Apache-2.0
// SHARE: the memory of a client on this host, out of which its blocks are put.
//
// A store that copies a block out of the writer's memory sums it in the same pass, and no byte of it
// goes through a socket. The memory is mapped for reading only and goes with the connection. Its owner
// may change it at any time: what counts is what was copied.
#include <string.h>

#include "common/fault.h"
#include "common/log.h"
#include "kvstore/store.h"

static as_status_t share(kvs_conn_t *conn, const as_wire_share_t *ask)
{
    as_shared_name_t name;
    memcpy(&name, &ask->name, sizeof(name));
    if (ask->bytes == 0 || ask->bytes > KVS_STAGE_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    conn->stage = as_shared_map(&name, ask->bytes, true, &conn->stage_mapped);
    if (!conn->stage) {
        return AS_ERR_NOT_FOUND; // another host
    }
    conn->stage_bytes = ask->bytes;
    return AS_OK;
}

void kvs_stage_share(kvs_conn_t *conn, const as_wire_share_t *ask)
{
    if (conn->share_asked) {
        kvs_conn_offend(conn, "a second SHARE");
        return;
    }
    conn->share_asked = true;
    const as_wire_result_t reply = {.head = as_wire_head(AS_WIRE_SHARED, ask->head.request),
                                    .status = as_wire_status_of(share(conn, ask))};
    if (!as_fault(AS_FAULT_stage_answer_drop)) {
        kvs_conn_reply(conn, &reply, sizeof(reply));
    }
}

as_status_t kvs_stage_find(const kvs_conn_t *conn, uint64_t offset, size_t bytes,
                           const uint8_t **source_p)
{
    if (!conn->stage || bytes > conn->stage_bytes || offset > conn->stage_bytes - bytes) {
        return AS_ERR_INVALID;
    }
    *source_p = conn->stage + offset;
    return AS_OK;
}

void kvs_stage_end(kvs_conn_t *conn)
{
    as_shared_unmap(conn->stage, conn->stage_mapped);
    conn->stage = NULL;
}
