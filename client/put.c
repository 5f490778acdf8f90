// SPDX-License-Identifier: Apache-2.0
// Putting one block: RESERVE, then WRITE and COMMIT back to back.
//
//   RESERVING -> WRITING -> ENDING
//
//   RESERVING  the store gets the digest of the block's checksums and makes room, or says that it has
//              the block already: then nothing is sent. With other bytes it is a conflict.
//   WRITING    the block goes out, and its checksums after it; the store compares them and makes the
//              block visible.
//   ENDING     what on_done will say is decided; it waits until the network lets go of the
//              caller's block. Past the deadline the connection is closed, which makes it let go.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"

#define CANCEL_GRACE_US  100000u
#define CONFLICT_TELL_US 10000000u // a line in the log at most so often

typedef enum put_state { RESERVING, WRITING, ENDING } put_state_t;

struct assay_put {
    assay_client_t *client;
    assay_put_t *prev, *next;
    assay_put_args_t args;
    assay_link_t *link;
    put_state_t state;
    assay_call_t *call;
    as_timer_t *timer;
    as_task_t settle;
    uint64_t epoch; // of the connection that the block is sent on
    uint64_t ticket;
    uint32_t sending; // payloads that the network still refers to
    uint64_t began_us;
    as_status_t status;
    uint32_t crcs[AS_LAYERS_MAX];
};

size_t assay_put_bytes(void)
{
    return sizeof(assay_put_t);
}

// ---- ending

static void put_free(assay_put_t *put)
{
    assay_client_t *client = put->client;
    if (put->next) {
        put->next->prev = put->prev;
    }
    if (put->prev) {
        put->prev->next = put->next;
    } else {
        client->puts = put->next;
    }
    client->put_count--;
    as_loop_unpost(client->options.loop, &put->settle);
    as_timer_free(put->timer);
    assay_link_put(put->link);
    as_pool_give(client->puts_pool, put);
}

static void on_settle(void *ctx)
{
    assay_put_t *put = ctx;
    if (put->state != ENDING || put->sending > 0) {
        return;
    }
    void (*on_done)(void *, as_status_t, uint64_t) = put->args.on_done;
    void *owner = put->args.ctx;
    as_status_t status = put->status;
    uint64_t node_id = put->link->store.node_id;
    as_metric_add(&assay_metrics[status == AS_OK           ? ASSAY_METRIC_PUT_BLOCKS
                                 : status == AS_ERR_EXISTS ? ASSAY_METRIC_PUT_EXISTS
                                                           : ASSAY_METRIC_PUT_FAILURES],
                  1);
    as_metric_observe(&assay_metrics[ASSAY_METRIC_PUT_US],
                      assay_now_us(put->client) - put->began_us);
    put_free(put);
    on_done(owner, status, node_id);
}

static void tell_conflict(assay_client_t *client, const assay_store_t *store)
{
    uint64_t now_us = assay_now_us(client);
    as_metric_add(&assay_metrics[ASSAY_METRIC_PUT_CONFLICTS], 1);
    if (client->conflict_told_us == 0 || now_us - client->conflict_told_us >= CONFLICT_TELL_US) {
        client->conflict_told_us = now_us + (now_us == 0);
        AS_ERROR("client",
                 "the store at %s has other bytes for a block that was computed here: one of the "
                 "two is wrong; its log names the block",
                 store->data_address);
    }
}

static void put_end(assay_put_t *put, as_status_t status)
{
    if (put->state == ENDING) {
        return;
    }
    put->state = ENDING;
    put->status = status;
    if (put->call) {
        assay_call_drop(put->call);
        put->call = NULL;
    }
    bool kept = status == AS_OK || status == AS_ERR_EXISTS;
    if (!kept && put->ticket != 0 && assay_link_is(put->link, put->epoch)) {
        const as_wire_ticket_t abandon = {as_wire_head(AS_WIRE_ABANDON, 0), put->ticket};
        as_status_t sent =
            as_net_send(put->link->conn, &abandon, sizeof(abandon), NULL, 0, NULL, NULL);
        (void)sent; // else the reservation expires
    }
    as_loop_post(put->client->options.loop, &put->settle);
}

static void on_call_failed(void *owner, as_status_t status)
{
    assay_put_t *put = owner;
    put->call = NULL;
    put_end(put, status);
}

static void on_timer(void *ctx)
{
    assay_put_t *put = ctx;
    put_end(put, AS_ERR_DEADLINE);
    if (put->sending > 0 && assay_link_is(put->link, put->epoch)) {
        assay_link_fail(put->link, AS_ERR_DEADLINE);
    }
}

// ---- writing

static void on_payload_sent(void *ctx, as_status_t status)
{
    (void)status; // a lost connection fails the call too
    assay_put_t *put = ctx;
    put->sending--;
    as_loop_post(put->client->options.loop, &put->settle);
}

static as_status_t send_commit(assay_call_t *call)
{
    assay_put_t *put = call->owner;
    const as_wire_commit_t ask = {.head = as_wire_head(AS_WIRE_COMMIT, assay_call_id(call)),
                                  .ticket = put->ticket,
                                  .crc_count = put->args.shape.layers,
                                  .flags = put->args.durable ? AS_WIRE_DURABLE : 0};
    as_status_t status =
        as_net_send(put->link->conn, &ask, sizeof(ask), put->crcs,
                    put->args.shape.layers * sizeof(uint32_t), on_payload_sent, put);
    put->sending += status == AS_OK;
    return status;
}

static void on_committed(void *owner, const void *header, as_net_msg_t *msg)
{
    (void)msg;
    assay_put_t *put = owner;
    put->call = NULL;
    put_end(put, as_wire_status_to(((const as_wire_committed_t *)header)->status));
}

static void on_reserved(void *owner, const void *header, as_net_msg_t *msg)
{
    (void)msg;
    assay_put_t *put = owner;
    as_wire_reserved_t reserved;
    memcpy(&reserved, header, sizeof(reserved));
    put->call = NULL;
    as_status_t status = as_wire_status_to(reserved.status);
    if (status == AS_ERR_CONFLICT) {
        tell_conflict(put->client, &put->link->store);
    }
    if (status != AS_OK) {
        put_end(put, status);
        return;
    }
    put->state = WRITING;
    put->ticket = reserved.ticket;
    put->epoch = put->link->epoch;
    const as_wire_ticket_t write = {as_wire_head(AS_WIRE_WRITE, 0), put->ticket};
    status = as_net_send(put->link->conn, &write, sizeof(write), put->args.block,
                         as_block_bytes(&put->args.shape), on_payload_sent, put);
    if (status != AS_OK) {
        put_end(put, status);
        return;
    }
    put->sending++;
    const assay_call_params_t params = {put, AS_WIRE_COMMITTED, send_commit, on_committed,
                                        on_call_failed};
    status = assay_call_start(put->link, &params, &put->call);
    if (status != AS_OK) {
        put->call = NULL;
        put_end(put, status);
    }
}

// ---- starting

static void put_sum(assay_put_t *put)
{
    size_t extent_bytes = as_extent_bytes(&put->args.shape);
    for (uint32_t layer = 0; layer < put->args.shape.layers; layer++) {
        put->crcs[layer] =
            as_crc32c(0, (const uint8_t *)put->args.block + layer * extent_bytes, extent_bytes);
    }
}

static as_status_t send_reserve(assay_call_t *call)
{
    const assay_put_t *put = call->owner;
    const as_wire_reserve_t ask = {
        .head = as_wire_head(AS_WIRE_RESERVE, assay_call_id(call)),
        .key = put->args.key,
        .parent = put->args.parent,
        .namespace_key = put->args.namespace_key,
        .kind = AS_WIRE_FULL,
        .layers = put->args.shape.layers,
        .extent_bytes = (uint32_t)as_extent_bytes(&put->args.shape),
        .tokens = put->args.token_count,
        .digest = as_block_digest(&put->args.key, put->crcs, put->args.shape.layers),
        .flags = put->args.durable ? AS_WIRE_DURABLE : 0,
    };
    return as_net_send(put->link->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL);
}

static as_status_t args_check(const assay_put_args_t *args)
{
    as_status_t status = as_shape_check(&args->shape);
    if (status != AS_OK) {
        return status;
    }
    if (as_extent_bytes(&args->shape) > AS_WIRE_EXTENT_BYTES_MAX ||
        as_block_bytes(&args->shape) > AS_WIRE_BLOCK_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    bool sound = args->block && args->on_done && args->deadline_us > 0 &&
                 args->token_count == args->shape.block_tokens &&
                 !as_key_equal(&args->key, &args->parent);
    return sound ? AS_OK : AS_ERR_INVALID;
}

as_status_t assay_put_start(assay_client_t *client, const assay_put_args_t *args,
                            assay_put_t **put_p)
{
    as_status_t status = args_check(args);
    if (status != AS_OK || client->closing) {
        return status != AS_OK ? status : AS_ERR_CANCELLED;
    }
    assay_link_t *link = assay_link_find(client, assay_client_place(client, &args->run_key));
    if (!link) {
        return AS_ERR_UNREACHABLE;
    }
    assay_put_t *put = as_pool_take(client->puts_pool);
    if (!put) {
        return AS_ERR_BUSY;
    }
    put->client = client;
    put->args = *args;
    put->link = link;
    put->began_us = assay_now_us(client);
    put->settle = (as_task_t){.fn = on_settle, .ctx = put};
    put_sum(put);
    const assay_call_params_t params = {put, AS_WIRE_RESERVED, send_reserve, on_reserved,
                                        on_call_failed};
    status = as_timer_alloc(client->options.loop, on_timer, put, &put->timer);
    if (status == AS_OK) {
        status = assay_call_start(link, &params, &put->call);
    }
    if (status != AS_OK) {
        as_timer_free(put->timer);
        as_pool_give(client->puts_pool, put);
        return status;
    }
    assay_link_get(link);
    put->next = client->puts;
    if (client->puts) {
        client->puts->prev = put;
    }
    client->puts = put;
    client->put_count++;
    as_timer_start(put->timer, args->deadline_us);
    *put_p = put;
    return AS_OK;
}

void assay_put_cancel(assay_put_t *put)
{
    if (put->state != ENDING) {
        put_end(put, AS_ERR_CANCELLED);
        as_timer_start(put->timer, CANCEL_GRACE_US);
    }
}

// Ends all that the network lets go of; called again once it has let go of everything.
void assay_put_close_all(assay_client_t *client)
{
    for (assay_put_t *put = client->puts, *next; put; put = next) {
        next = put->next;
        put_end(put, AS_ERR_CANCELLED);
        on_settle(put);
    }
}
