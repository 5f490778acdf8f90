// SPDX-License-Identifier: Apache-2.0
// Stage "serve": connections of clients, RENEW and RELEASE; the other messages are handed to locate.c,
// read.c, attend.c and put.c.
//
// A connection begins with HELLO. Every header is checked by as_wire_check and every count against
// its limit before it is used; a peer that breaks the protocol loses its connection, and with it
// its leases and puts. A peer that asks for more than there is room for is told BUSY. An
// answer that cannot be sent is dropped: the client has a deadline of its own.
//
// A callback of the network that refers to a connection holds it (kvs_conn_hold), so a connection
// that is closed in the meantime is freed with the last of them.
#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"
#include "kvstore/locate.h"

// ---- connections

static void on_accept(void *ctx, as_conn_t *net_conn)
{
    kvs_store_t *store = ctx;
    kvs_conn_t *conn =
        store->conn_count < store->options.connections_max ? as_mem_zalloc(1, sizeof(*conn)) : NULL;
    if (!conn) {
        AS_WARN("kvstore", "connection refused: %u are open, of --connections-max=%u",
                store->conn_count, store->options.connections_max);
        as_metric_add(&kvs_metrics[KVS_METRIC_REFUSED], 1);
        as_conn_set_user(net_conn, NULL);
        as_net_close(net_conn);
        return;
    }
    conn->store = store;
    conn->net = net_conn;
    conn->accepted_us = as_loop_now_us(store->options.loop);
    conn->leases.first = KVS_LEASE_NONE;
    conn->first_put = UINT32_MAX;
    conn->next = store->conns;
    if (store->conns) {
        store->conns->prev = conn;
    }
    store->conns = conn;
    store->conn_count++;
    as_conn_set_user(net_conn, conn);
    as_metric_set(&kvs_metrics[KVS_METRIC_CONNECTIONS], store->conn_count);
}

static void free_if_unheld(kvs_conn_t *conn)
{
    if (!conn->net && conn->ops == 0) {
        as_mem_free(conn);
    }
}

void kvs_conn_hold(kvs_conn_t *conn)
{
    if (conn->ops++ == 0) {
        kvs_store_watch(conn->store);
    }
}

void kvs_conn_drop(kvs_conn_t *conn)
{
    AS_ASSERT(conn->ops > 0);
    conn->ops--;
    free_if_unheld(conn);
}

void kvs_conn_await(kvs_conn_t *conn)
{
    if (conn->awaited++ == 0) {
        conn->progress_us = as_loop_now_us(conn->store->options.loop);
    }
}

void kvs_conn_awaited(kvs_conn_t *conn, bool took)
{
    AS_ASSERT(conn->awaited > 0);
    conn->awaited--;
    if (took) {
        conn->progress_us = as_loop_now_us(conn->store->options.loop);
    }
}

// A peer that is stopped, or wants to hurt, neither takes what it asked for nor sends what it
// announced, and no network reports it. What is kept for it would be kept for ever. (Puts have times of their
// own: put.c.) One that holds reads
// that others lack goes sooner, one in each sweep; one whose answers fill what the network has for it, at once.
bool kvs_conns_sweep(kvs_store_t *store, uint64_t now_us)
{
    bool busy = false, scarce = kvs_reads_are_scarce(store);
    for (kvs_conn_t *conn = store->conns, *next; conn; conn = next) {
        next = conn->next;
        bool waits = conn->awaited > 0 && conn->progress_us < now_us; // not since this sweep began
        uint64_t stalled_us = waits ? now_us - conn->progress_us : 0;
        bool in_the_way = scarce && conn->reads > 0 && stalled_us >= KVS_SCARCE_STALL_US;
        if (as_conn_is_deaf(conn->net)) {
            AS_WARN("kvstore", "connection closed: its peer asks, and takes no answers");
            as_metric_add(&kvs_metrics[KVS_METRIC_STALLS], 1);
            kvs_conn_close(conn);
        } else if (in_the_way || stalled_us >= store->options.stall_us) {
            scarce = scarce && !in_the_way;
            AS_WARN("kvstore",
                    "connection closed: its peer has not taken what it asked for in %llu s%s",
                    (unsigned long long)(stalled_us / 1000000),
                    in_the_way ? ", and others wait to be answered" : "");
            as_metric_add(&kvs_metrics[KVS_METRIC_STALLS], 1);
            kvs_conn_close(conn);
        } else {
            busy |= conn->ops > 0;
        }
    }
    return busy;
}

void kvs_conn_close(kvs_conn_t *conn)
{
    kvs_store_t *store = conn->store;
    as_conn_t *net_conn = conn->net;
    if (!net_conn) {
        return;
    }
    conn->net = NULL;
    conn->ops++; // stays while its reservations end
    as_conn_set_user(net_conn, NULL);
    as_net_close(net_conn);
    kvs_lease_end_owner(store->leases, &conn->leases);
    kvs_puts_end_conn(conn);
    kvs_stage_end(conn);
    kvs_reads_end_conn(conn);
    kvs_attends_end_conn(conn);
    if (conn->prev) {
        conn->prev->next = conn->next;
    } else {
        store->conns = conn->next;
    }
    if (conn->next) {
        conn->next->prev = conn->prev;
    }
    store->conn_count--;
    as_metric_set(&kvs_metrics[KVS_METRIC_CONNECTIONS], store->conn_count);
    kvs_conn_drop(conn);
}

static void on_lost(void *ctx, as_conn_t *net_conn, as_status_t status)
{
    (void)ctx;
    kvs_conn_t *conn = as_conn_user(net_conn);
    AS_DEBUG("kvstore", "client lost: %s", as_status_str(status));
    if (conn) {
        kvs_conn_close(conn);
    } else {
        as_net_close(net_conn);
    }
}

void kvs_conn_offend(kvs_conn_t *conn, const char *what)
{
    AS_WARN("kvstore", "connection closed: peer sent %s", what);
    as_metric_add(&kvs_metrics[KVS_METRIC_PROTOCOL_ERRORS], 1);
    kvs_conn_close(conn);
}

void kvs_conn_reply(kvs_conn_t *conn, const void *header, size_t bytes)
{
    if (!conn->net) {
        return;
    }
    as_status_t status = as_net_send(conn->net, header, bytes, NULL, 0, NULL, NULL);
    if (status != AS_OK) {
        AS_DEBUG("kvstore", "answer dropped: %s", as_status_str(status));
        kvs_store_watch(conn->store); // which closes it, where that is its peer's doing
    }
}

// ---- HELLO

typedef struct hello_answer {
    kvs_conn_t *conn;
    uint8_t rkey[AS_NET_RKEY_BYTES_MAX];
} hello_answer_t;

static void on_hello_answered(void *ctx, as_status_t status)
{
    hello_answer_t *answer = ctx;
    kvs_conn_t *conn = answer->conn;
    as_mem_free(answer);
    kvs_conn_awaited(conn, status == AS_OK);
    kvs_conn_drop(conn);
}

// A peer that is denied learns nothing of the store; it is closed when it does not go by itself.
static void deny_hello(kvs_conn_t *conn, uint64_t request)
{
    const as_wire_hello_reply_t reply = {.head = as_wire_head(AS_WIRE_HELLO_REPLY, request),
                                         .status = AS_WIRE_DENIED};
    conn->greeted = false;
    kvs_lease_end_owner(conn->store->leases, &conn->leases);
    kvs_puts_end_conn(conn);
    kvs_stage_end(conn);
    conn->share_asked = false;
    kvs_reads_end_conn(conn);
    kvs_attends_end_conn(conn);
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

static void serve_hello(kvs_conn_t *conn, const as_wire_hello_t *ask)
{
    kvs_store_t *store = conn->store;
    as_wire_hello_reply_t reply = {
        .head = as_wire_head(AS_WIRE_HELLO_REPLY, ask->head.request),
        .node_id = store->node_id,
        .incarnation = store->options.incarnation,
        .pool_bytes = kvs_pool_bytes(store->pool),
        .lease_ms_max = (uint32_t)(store->options.lease_us_max / 1000),
        .keys_max = AS_WIRE_KEYS_MAX,
        .asks_max = KVS_CONN_ASKS_MAX,
        .ask_bytes_max = AS_WIRE_ASK_BYTES_MAX,
    };
    if (ask->role != AS_WIRE_CLIENT && ask->role != AS_WIRE_STORE) {
        kvs_conn_offend(conn, "an unknown role");
        return;
    }
    as_status_t admitted = kvs_admit_hello(conn, ask);
    if (admitted == AS_ERR_DENIED) {
        deny_hello(conn, ask->head.request);
        return;
    }
    if (admitted != AS_OK) {
        kvs_conn_offend(conn, "a HELLO that cannot be");
        return;
    }
    conn->greeted = true;
    if (!(conn->rights & AS_TOKEN_DIRECT)) {
        kvs_conn_reply(conn, &reply, sizeof(reply)); // without a key: messages only
        return;
    }
    reply.pool_address = (uint64_t)(uintptr_t)store->memory; // as address_of counts
    hello_answer_t *answer = as_mem_alloc(sizeof(*answer));
    size_t rkey_bytes = 0;
    if (!answer || as_net_mem_pack(store->mem, answer->rkey, &rkey_bytes) != AS_OK ||
        rkey_bytes == 0) {
        as_mem_free(answer);
        kvs_conn_reply(conn, &reply, sizeof(reply)); // without a key: messages only
        return;
    }
    answer->conn = conn;
    reply.rkey_bytes = (uint32_t)rkey_bytes;
    kvs_conn_hold(conn);
    kvs_conn_await(conn);
    if (as_net_send(conn->net, &reply, sizeof(reply), answer->rkey, rkey_bytes, on_hello_answered,
                    answer) != AS_OK) {
        on_hello_answered(answer, AS_ERR_BUSY);
    }
}

// ---- leases

// What is granted of what is asked for.
uint64_t kvs_lease_time_us(const kvs_store_t *store, uint32_t lease_ms)
{
    uint64_t lease_us = (uint64_t)lease_ms * 1000;
    return lease_us < store->options.lease_us_max ? lease_us : store->options.lease_us_max;
}

// How much longer than it was granted for a lease is kept: clocks do not run alike.
uint64_t kvs_lease_grace_us(uint64_t lease_us)
{
    return lease_us / 64 + KVS_LEASE_GRACE_US;
}

static void serve_renew(kvs_conn_t *conn, const as_wire_renew_t *ask)
{
    kvs_store_t *store = conn->store;
    as_wire_renewed_t reply = {.head = as_wire_head(AS_WIRE_RENEWED, ask->head.request),
                               .status = AS_WIRE_LEASE};
    if (as_fault(AS_FAULT_serve_renew_drop)) {
        return;
    }
    uint64_t lease_us = kvs_lease_time_us(store, ask->lease_ms),
             grace_us = kvs_lease_grace_us(lease_us);
    uint64_t now_us = as_loop_now_us(store->options.loop);
    uint64_t until_us =
        kvs_lease_renew(store->leases, &conn->leases, ask->lease_id, now_us + lease_us + grace_us);
    if (until_us > now_us + grace_us) {
        uint64_t granted_us = until_us - now_us - grace_us;
        reply.status = AS_WIRE_OK;
        reply.lease_ms = (uint32_t)((granted_us < lease_us ? granted_us : lease_us) / 1000);
    }
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

// Its fetch is over: what it asked for and was not sent yet is of no use to anybody.
static void serve_release(kvs_conn_t *conn, const as_wire_release_t *release)
{
    kvs_conn_hold(conn);
    kvs_reads_end_lease(conn, release->lease_id);
    kvs_attends_end_lease(conn, release->lease_id);
    kvs_lease_end(conn->store->leases, &conn->leases, release->lease_id);
    kvs_conn_drop(conn);
}

static void serve_put(kvs_conn_t *conn, const as_wire_put_t *ask, as_net_msg_t *msg)
{
    uint32_t tenant;
    bool is_kept = ask->flags & (AS_WIRE_HOT | AS_WIRE_PINS);
    if (is_kept && !(conn->rights & AS_TOKEN_PEER)) {
        kvs_conn_offend(conn, "a PUT of another store");
    } else if (kvs_admit_tenant(conn, ask->tenant, &tenant)) {
        kvs_put_serve(conn, ask, tenant, msg);
    } else {
        kvs_conn_offend(conn, "a PUT in the name of a tenant");
    }
}

// ---- messages

// Whether its token allows a question of this type; else it was answered.
static bool may_ask(kvs_conn_t *conn, const as_wire_head_t *head)
{
    static const uint32_t rights[AS_WIRE_TYPE_COUNT] = {
        [AS_WIRE_LOCATE] = AS_TOKEN_READ, [AS_WIRE_READ] = AS_TOKEN_READ,
        [AS_WIRE_RENEW] = AS_TOKEN_READ,  [AS_WIRE_SHARE] = AS_TOKEN_WRITE,
        [AS_WIRE_PUT] = AS_TOKEN_WRITE,   [AS_WIRE_PIECE] = AS_TOKEN_WRITE,
        [AS_WIRE_ATTEND] = AS_TOKEN_READ,
    };
    as_status_t status = kvs_admit_ask(conn, rights[head->type]);
    if (status != AS_ERR_DENIED) {
        return status == AS_OK;
    }
    if (head->type == AS_WIRE_LOCATE) {
        const as_wire_located_t reply = {.head = as_wire_head(AS_WIRE_LOCATED, head->request),
                                         .status = AS_WIRE_DENIED};
        kvs_conn_reply(conn, &reply, sizeof(reply));
    } else if (head->type == AS_WIRE_PUT || head->type == AS_WIRE_SHARE) {
        const as_wire_result_t reply = {
            .head = as_wire_head(head->type == AS_WIRE_PUT ? AS_WIRE_STORED : AS_WIRE_SHARED,
                                 head->request),
            .status = AS_WIRE_DENIED};
        kvs_conn_reply(conn, &reply, sizeof(reply));
    } else if (head->type == AS_WIRE_PIECE) {
        kvs_put_give_up(conn, head->request, AS_ERR_DENIED);
    } else { // no right to have asked for the lease that it names
        kvs_conn_offend(conn, "what its token does not allow");
    }
    return false;
}

// Who speaks another version is told ours, in the header of an answer, and closed when it goes on.
static void offend_by_header(kvs_conn_t *conn, const as_net_msg_t *msg)
{
    uint32_t version = as_wire_other_version(msg->header, msg->header_bytes);
    if (version == 0) {
        kvs_conn_offend(conn, "a malformed header");
    } else if (conn->foreign) {
        kvs_conn_close(conn);
    } else {
        AS_WARN("kvstore",
                "refused a peer that speaks version %u of the data plane, and this store version "
                "%u: update both to one release",
                version, AS_WIRE_VERSION);
        as_metric_add(&kvs_metrics[KVS_METRIC_PROTOCOL_ERRORS], 1);
        conn->foreign = true;
        deny_hello(conn, 0);
    }
}

static void on_message(void *ctx, as_conn_t *net_conn, as_net_msg_t *msg)
{
    (void)ctx;
    kvs_conn_t *conn = as_conn_user(net_conn);
    if (!conn) {
        return; // refused or closed
    }
    if (!as_wire_check(msg->header, msg->header_bytes)) {
        offend_by_header(conn, msg);
        return;
    }
    uint32_t type = ((const as_wire_head_t *)msg->header)->type;
    if (!conn->greeted && type != AS_WIRE_HELLO) {
        kvs_conn_offend(conn, "something before HELLO");
        return;
    }
    if (type != AS_WIRE_HELLO && !may_ask(conn, msg->header)) {
        return;
    }
    switch (type) {
    case AS_WIRE_HELLO:
        serve_hello(conn, msg->header);
        break;
    case AS_WIRE_LOCATE:
        kvs_locate_serve(conn, msg->header, msg);
        break;
    case AS_WIRE_READ:
        kvs_read_serve(conn, msg->header);
        break;
    case AS_WIRE_ATTEND:
        kvs_attend_serve(conn, msg->header, msg);
        break;
    case AS_WIRE_RENEW:
        serve_renew(conn, msg->header);
        break;
    case AS_WIRE_RELEASE:
        serve_release(conn, msg->header);
        break;
    case AS_WIRE_SHARE:
        kvs_stage_share(conn, msg->header);
        break;
    case AS_WIRE_PUT:
        serve_put(conn, msg->header, msg);
        break;
    case AS_WIRE_PIECE:
        kvs_put_piece(conn, msg->header, msg);
        break;
    default:
        kvs_conn_offend(conn, "an answer where a question belongs");
    }
}

void kvs_serve_init(kvs_store_t *store, as_net_handlers_t *handlers_p)
{
    *handlers_p = (as_net_handlers_t){store, on_accept, on_message, on_lost, kvs_admit_knock};
}
