// SPDX-License-Identifier: Apache-2.0
// Links and calls: one connection to each store, made when it is first needed, and the questions on
// it.
//
//   IDLE -> CONNECTING -> READY -> DOWN -> IDLE
//
//   CONNECTING  the network connects and HELLO is under way; calls wait.
//   DOWN        it failed; for a while calls are refused at once. The while doubles with each failure,
//               up to a most, until the store answers a question.
//
// After that while the first call is a probe: it connects, and calls that come until the store has said
// HELLO are refused too. So a store that is gone costs few connections and makes nobody wait but
// the probe. A store is its node id: where another one answers, ours is taken to be gone until the
// scheduler says where it is, and the other is reached by a link of its own.
//
// `epoch` counts the connections of a link: leases, remote keys and reads belong to one of them.
//
// A call is answered, fails with its link, or is dropped by its owner; its number (slot and
// generation) never comes again, so an answer to a dropped call finds nothing. Only a lease that
// comes too late is given back at once.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/log.h"

static void link_ready(assay_link_t *link);
static void on_connect_timeout(void *ctx);

// ---- links

assay_link_t *assay_link_find(const assay_client_t *client, uint64_t node_id)
{
    for (assay_link_t *link = client->links; link; link = link->next) {
        if (link->member && link->store.node_id == node_id) {
            return link;
        }
    }
    return NULL;
}

as_status_t assay_link_make(assay_client_t *client, const assay_store_t *store,
                            assay_link_t **link_p)
{
    assay_link_t *link = as_mem_zalloc(1, sizeof(*link));
    if (!link) {
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status =
        as_timer_alloc(client->options.loop, on_connect_timeout, link, &link->timer);
    if (status != AS_OK) {
        as_mem_free(link);
        return status;
    }
    link->client = client;
    link->store = *store;
    link->next = client->links;
    client->links = link;
    *link_p = link;
    return AS_OK;
}

void assay_link_get(assay_link_t *link)
{
    link->refs++;
}

static void link_disconnect(assay_link_t *link)
{
    if (!link->conn) {
        return;
    }
    assay_rate_reset(link);
    as_net_rkey_free(link->rkey);
    link->rkey = NULL;
    link->local = NULL;
    as_conn_set_user(link->conn, NULL);
    as_net_close(link->conn);
    link->conn = NULL;
    as_timer_stop(link->timer);
}

void assay_link_put(assay_link_t *link)
{
    AS_ASSERT(link->refs > 0);
    link->refs--;
    if (link->refs > 0 || link->member || link->client->closing) {
        return;
    }
    assay_link_close(link);
}

// Takes it out of the client. Nothing refers to it.
void assay_link_close(assay_link_t *link)
{
    if (link->sharing) {
        assay_call_drop(link->sharing); // it belongs to nobody else
        link->sharing = NULL;
    }
    AS_ASSERT(!link->calls);
    assay_link_t **at = &link->client->links;
    while (*at != link) {
        at = &(*at)->next;
    }
    *at = link->next;
    link_disconnect(link);
    as_timer_free(link->timer);
    as_mem_free(link);
}

bool assay_link_is(const assay_link_t *link, uint64_t epoch)
{
    return link->state == LINK_READY && link->epoch == epoch;
}

// Its calls are refused from now on.
static void link_down(assay_link_t *link)
{
    const assay_client_options_t *options = &link->client->options;
    uint64_t wait_us = options->retry_after_us;
    uint64_t most_us =
        wait_us > options->retry_after_us_max ? wait_us : options->retry_after_us_max;
    for (uint32_t i = 0; i < link->failures && wait_us > 0 && wait_us < most_us; i++) {
        wait_us *= 2;
    }
    link->failures++;
    link->silent_since_us = 0;
    link->state = LINK_DOWN;
    link->down_until_us = assay_now_us(link->client) + (wait_us < most_us ? wait_us : most_us);
}

void assay_link_fail(assay_link_t *link, as_status_t status)
{
    if (link->state != LINK_CONNECTING && link->state != LINK_READY) {
        return;
    }
    if (!link->client->closing) {
        AS_WARN("client", "store %016llx at %s: %s", (unsigned long long)link->store.node_id,
                link->store.data_address, as_status_str(status));
        as_metric_add(&assay_metrics[ASSAY_METRIC_LINKS_LOST], 1);
    }
    link_disconnect(link);
    link_down(link);
    link->denied = status == AS_ERR_DENIED;
    assay_link_get(link); // through the callbacks
    while (link->calls) {
        assay_call_t *call = link->calls;
        void (*failed)(void *, as_status_t) = call->failed;
        void *owner = call->owner;
        assay_call_drop(call);
        failed(owner, status);
    }
    assay_link_put(link);
}

void assay_link_silent(assay_link_t *link, uint64_t begun_us, uint64_t asked_us)
{
    const assay_client_t *client = link->client;
    if (link->state != LINK_READY ||
        assay_now_us(client) - asked_us < client->options.connect_timeout_us / 2) {
        return;
    }
    if (link->silent_since_us == 0) {
        link->silent_since_us = begun_us + (begun_us == 0);
    } else if (begun_us > link->silent_since_us) { // not of the same fetch
        assay_link_fail(link, AS_ERR_DEADLINE);
    }
}

static void on_connect_timeout(void *ctx)
{
    assay_link_fail(ctx, AS_ERR_DEADLINE);
}

static as_status_t say_hello(const assay_link_t *link)
{
    const assay_client_t *client = link->client;
    as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, link->epoch),
                             .role = AS_WIRE_CLIENT};
    memcpy(hello.instance_id, client->instance_id, sizeof(hello.instance_id));
    if (client->has_token) {
        hello.token_bytes = AS_TOKEN_BYTES;
        memcpy(hello.token, client->token.bytes, sizeof(hello.token));
    }
    return as_net_send(link->conn, &hello, sizeof(hello), NULL, 0, NULL, NULL);
}

// A store that refused the old token is asked again at once.
void assay_link_renew(assay_link_t *link)
{
    if (link->state == LINK_READY || link->state == LINK_CONNECTING) {
        as_status_t status = say_hello(link);
        (void)status; // else the store ends the connection when the old token expires
    } else if (link->denied) {
        link->failures = 0;
        link->down_until_us = 0;
    }
    link->denied = false;
}

static as_status_t link_connect(assay_link_t *link)
{
    assay_client_t *client = link->client;
    as_status_t status = as_net_connect(client->net, link->store.data_address, &link->conn);
    as_metric_add(&assay_metrics[ASSAY_METRIC_CONNECTS], 1);
    if (status != AS_OK) {
        link_down(link);
        return AS_ERR_UNREACHABLE;
    }
    link->epoch++;
    link->state = LINK_CONNECTING;
    link->reads_in_flight = 0;
    link->bytes_in_flight = 0;
    memset(link->urgent_bytes, 0, sizeof(link->urgent_bytes));
    link->asking.ask_count = 0;
    assay_window_reset(link);
    link->stage = LINK_STAGE_UNKNOWN;
    as_conn_set_user(link->conn, link);
    as_timer_start(link->timer, client->options.connect_timeout_us);
    status = say_hello(link);
    if (status != AS_OK) {
        link_disconnect(link);
        link->state = LINK_IDLE;
    }
    return status;
}

// ---- HELLO_REPLY

static bool hello_is_sound(const assay_link_t *link, const as_wire_hello_reply_t *hello,
                           const as_net_msg_t *msg)
{
    return hello->head.request == link->epoch && hello->rkey_bytes == msg->data_bytes &&
           hello->rkey_bytes <= AS_NET_RKEY_BYTES_MAX && hello->asks_max > 0 &&
           hello->keys_max >= AS_WIRE_KEYS_MAX &&
           hello->pool_address + hello->pool_bytes >= hello->pool_address;
}

// Whether all of the pool that the store speaks of can be read by pointer.
static bool is_shared(const assay_link_t *link, const void **local_p)
{
    const void *last;
    return link->pool_bytes > 0 &&
           as_net_rkey_ptr(link->rkey, link->pool_address + link->pool_bytes - 1, &last) == AS_OK &&
           as_net_rkey_ptr(link->rkey, link->pool_address, local_p) == AS_OK;
}

static void on_rkey(void *ctx, as_status_t status)
{
    assay_link_t *link = ctx;
    if (status == AS_OK && link->state == LINK_CONNECTING) {
        as_status_t unpacked =
            as_net_rkey_unpack(link->conn, link->rkey_packed, link->rkey_bytes, &link->rkey);
        const void *local = NULL;
        if (unpacked != AS_OK) {
            AS_INFO("client", "no one-sided reads from %s: %s", link->store.data_address,
                    as_status_str(unpacked));
            link->rkey = NULL;
        } else if (is_shared(link, &local)) {
            link->local = local;
        } else if (!(as_conn_caps(link->conn) & AS_NET_CAP_ONESIDED)) {
            as_net_rkey_free(link->rkey); // the transport would only emulate it
            link->rkey = NULL;
        }
        link_ready(link);
    }
    assay_link_put(link);
}

static void link_denied(assay_link_t *link)
{
    AS_ERROR("client", "the store at %s refuses us: %s", link->store.data_address,
             assay_token_fault(link->client));
    assay_link_fail(link, AS_ERR_DENIED);
}

// The store's answer is about our token. False: it refuses it.
static bool is_admitted(assay_link_t *link, const as_wire_hello_reply_t *hello)
{
    if (hello->head.request != link->epoch || hello->status != AS_WIRE_DENIED) {
        return true;
    }
    link_denied(link);
    return false;
}

static void link_hello(assay_link_t *link, const as_wire_hello_reply_t *hello, as_net_msg_t *msg)
{
    if (!is_admitted(link, hello) ||
        (link->state == LINK_READY && hello->head.request == link->epoch)) {
        return; // refused, or a newer token was taken
    }
    if (link->state != LINK_CONNECTING || !hello_is_sound(link, hello, msg)) {
        assay_link_fail(link, AS_ERR_PROTOCOL);
        return;
    }
    if (hello->status != AS_WIRE_OK || hello->node_id != link->store.node_id) {
        // Another store has the address now: the scheduler will tell where ours has gone. It will
        // not come back here soon.
        if (hello->status == AS_WIRE_OK) {
            link->failures = UINT32_MAX / 2;
            as_metric_add(&assay_metrics[ASSAY_METRIC_STRANGERS], 1);
        }
        assay_link_fail(link, hello->status != AS_WIRE_OK ? AS_ERR_DENIED : AS_ERR_UNREACHABLE);
        return;
    }
    link->denied = false;
    link->pool_address = hello->pool_address;
    link->pool_bytes = hello->pool_bytes;
    link->lease_ms_max = hello->lease_ms_max;
    link->asks_max = hello->asks_max;
    link->rkey_bytes = hello->rkey_bytes;
    if (link->rkey_bytes == 0) {
        link_ready(link);
        return;
    }
    assay_link_get(link);
    as_status_t status = as_net_msg_recv(msg, link->rkey_packed, on_rkey, link);
    if (status != AS_OK) {
        on_rkey(link, status);
        assay_link_fail(link, status);
    }
}

// ---- calls

uint64_t assay_call_id(const assay_call_t *call)
{
    return (uint64_t)call->generation << 32 | (uint64_t)(call - call->link->client->calls);
}

void assay_call_drop(assay_call_t *call)
{
    assay_link_t *link = call->link;
    assay_client_t *client = link->client;
    AS_ASSERT(call->used);
    if (call->next) {
        call->next->prev = call->prev;
    }
    if (call->prev) {
        call->prev->next = call->next;
    } else {
        link->calls = call->next;
    }
    call->used = false;
    call->next = client->calls_unused;
    client->calls_unused = call;
}

as_status_t assay_call_start(assay_link_t *link, const assay_call_params_t *params,
                             assay_call_t **call_p)
{
    assay_client_t *client = link->client;
    if (client->closing) {
        return AS_ERR_CANCELLED;
    }
    if (link->state == LINK_DOWN && assay_now_us(client) >= link->down_until_us) {
        link->state = LINK_IDLE;
    }
    bool probing = link->state == LINK_CONNECTING && link->failures > 0;
    if (link->state == LINK_DOWN || probing) {
        as_metric_add(&assay_metrics[ASSAY_METRIC_REFUSED_CALLS], 1);
        return AS_ERR_UNREACHABLE;
    }
    if (!client->calls_unused) {
        return AS_ERR_BUSY;
    }
    if (link->state == LINK_IDLE) {
        as_status_t status = link_connect(link);
        if (status != AS_OK) {
            return status;
        }
    }
    assay_call_t *call = client->calls_unused;
    client->calls_unused = call->next;
    *call = (assay_call_t){.generation = call->generation + 1,
                           .used = true,
                           .link = link,
                           .next = link->calls,
                           .answer_type = params->answer_type,
                           .owner = params->owner,
                           .send = params->send,
                           .answered = params->answered,
                           .failed = params->failed};
    if (link->calls) {
        link->calls->prev = call;
    }
    link->calls = call;
    *call_p = call;
    if (link->state != LINK_READY) {
        return AS_OK;
    }
    call->sent = true;
    as_status_t status = params->send(call);
    if (status != AS_OK) {
        assay_call_drop(call);
    }
    return status;
}

static void link_ready(assay_link_t *link)
{
    uint64_t epoch = link->epoch;
    link->state = LINK_READY;
    as_timer_stop(link->timer);
    AS_DEBUG("client", "store at %s: %s, %s", link->store.data_address,
             as_conn_transport(link->conn),
             link->local  ? "read by pointer"
             : link->rkey ? "read one-sidedly"
                          : "read by messages");
    assay_link_get(link);
    // Oldest first. A failure changes the list: begin again.
    for (;;) {
        assay_call_t *waiting = NULL;
        for (assay_call_t *call = link->calls; call; call = call->next) {
            waiting = call->sent ? waiting : call;
        }
        if (!waiting || !assay_link_is(link, epoch)) {
            break;
        }
        waiting->sent = true;
        void (*failed)(void *, as_status_t) = waiting->failed;
        void *owner = waiting->owner;
        as_status_t status = waiting->send(waiting);
        if (status != AS_OK) {
            assay_call_drop(waiting);
            failed(owner, status);
        }
    }
    assay_link_put(link);
}

static void answer(assay_link_t *link, const as_wire_head_t *head, as_net_msg_t *msg)
{
    assay_client_t *client = link->client;
    uint32_t slot = (uint32_t)head->request;
    assay_call_t *call = slot < CALLS_MAX ? &client->calls[slot] : NULL;
    if (!call || !call->used || call->link != link || !call->sent ||
        assay_call_id(call) != head->request) {
        uint64_t late = head->type == AS_WIRE_LOCATED
                            ? ((const as_wire_located_t *)(const void *)head)->lease_id
                            : 0;
        if (late != 0) {
            const as_wire_release_t release = {as_wire_head(AS_WIRE_RELEASE, 0), late};
            as_status_t status =
                as_net_send(link->conn, &release, sizeof(release), NULL, 0, NULL, NULL);
            (void)status; // else it ends by its deadline
        }
        return;
    }
    if (call->answer_type != head->type) {
        assay_link_fail(link, AS_ERR_PROTOCOL);
        return;
    }
    link->failures = 0;
    link->silent_since_us = 0;
    void (*answered)(void *, const void *, as_net_msg_t *) = call->answered;
    void *owner = call->owner;
    if (!call->in_pieces) {
        assay_call_drop(call);
    }
    answered(owner, head, msg);
}

// ---- the net's handlers

static void on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    as_conn_set_user(conn, NULL);
    as_net_close(conn); // a client listens nowhere
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)ctx;
    assay_link_t *link = as_conn_user(conn);
    if (!link) {
        return;
    }
    if (!as_wire_check(msg->header, msg->header_bytes)) {
        uint32_t version = as_wire_other_version(msg->header, msg->header_bytes);
        if (version != 0) {
            AS_WARN("client",
                    "store %016llx at %s speaks version %u of the data plane, and this client "
                    "version %u: update both to one release",
                    (unsigned long long)link->store.node_id, link->store.data_address, version,
                    AS_WIRE_VERSION);
        }
        assay_link_fail(link, AS_ERR_PROTOCOL);
        return;
    }
    const as_wire_head_t *head = msg->header;
    switch (head->type) {
    case AS_WIRE_HELLO_REPLY:
        link_hello(link, msg->header, msg);
        break;
    case AS_WIRE_LOCATED:
    case AS_WIRE_DATA:
    case AS_WIRE_RENEWED:
    case AS_WIRE_SHARED:
    case AS_WIRE_STORED:
    case AS_WIRE_ATTENDED:
        answer(link, head, msg);
        break;
    default:
        assay_link_fail(link, AS_ERR_PROTOCOL);
    }
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)ctx;
    assay_link_t *link = as_conn_user(conn);
    if (link && status == AS_ERR_DENIED) { // at the store's data port
        link_denied(link);
    } else if (link) {
        assay_link_fail(link, status);
    } else {
        as_net_close(conn);
    }
}

void assay_handlers_init(assay_client_t *client, as_net_handlers_t *handlers_p)
{
    *handlers_p = (as_net_handlers_t){client, on_accept, on_message, on_lost, NULL};
}
