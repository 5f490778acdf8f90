// SPDX-License-Identifier: Apache-2.0
// Putting one block: to each of the best nodes of its run at once, one PUT.
//
//   ASKING -> ENDING       of each copy
//
//   ASKING  the block goes out with its checksums, in pieces where the network likes them better, or lies on
//           the stage for a store of the same host to take it. The store compares them and makes the block visible, or says that it has it
//           already: then what is left of a large one is not sent. With other bytes it is a conflict.
//   ENDING  what became of the copy is decided, and no further piece is handed out; it waits until the
//           network lets go of the caller's block, which the few pieces that it has take a moment. A link
//           that lets go of nothing for as long as a store may be silent is closed, which makes it let go.
//
// The put is over when all its copies are. One that was written or was there is enough for it to be
// a success; how many there are is told beside.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"

#define PIECES_SENDING   8u
#define CONFLICT_TELL_US 10000000u // between two lines in the log

typedef enum put_state { ASKING, ENDING } put_state_t;

typedef struct put_copy {
    assay_put_t *put;
    assay_link_t *link;
    put_state_t state;
    assay_call_t *call;
    uint64_t epoch;       // of the connection that the block is sent on
    uint32_t sending;     // messages that refer to the block and are not known to have left
    uint64_t request;     // of its PUT
    size_t sent_bytes;    // handed to the network
    uint64_t progress_us; // when it last took or let go of some
    bool staged;          // the store takes it from the stage, and has not answered
    as_status_t status;
} put_copy_t;

struct assay_put {
    assay_client_t *client;
    assay_put_t *prev, *next;
    assay_put_args_t args;
    as_timer_t *timer;
    as_task_t settle;
    uint64_t began_us;
    uint32_t asked; // copies
    uint32_t copy_count;
    put_copy_t copies[ASSAY_REPLICAS_MAX]; // best node first
    size_t extent_bytes;                   // at the store
    uint8_t *encrypted;                    // what is sent instead of the caller's block, or NULL
    void *staged;                          // the block on the stage; NULL: it is not there
    uint32_t crcs[AS_LAYERS_MAX];
};

size_t assay_put_bytes(void)
{
    return sizeof(assay_put_t);
}

static size_t extent_bytes_of(const assay_put_args_t *args)
{
    return args->extent_bytes > 0 ? args->extent_bytes : as_extent_bytes(&args->shape);
}

static size_t block_bytes(const assay_put_t *put)
{
    return put->args.shape.layers * put->extent_bytes;
}

// ---- ending

static void put_free(assay_put_t *put)
{
    assay_client_t *client = put->client;
    bool may_be_read = false;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        may_be_read |= put->copies[i].staged;
    }
    if (put->staged) {
        assay_stage_give(client, put->staged, may_be_read);
    }
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
    as_mem_free(put->encrypted);
    for (uint32_t i = 0; i < put->copy_count; i++) {
        assay_link_put(put->copies[i].link);
    }
    as_pool_give(client->puts_pool, put);
}

// Counts the copies; the result is the best one of theirs, told with the node that has it. But that
// a store has other bytes must not be hidden by another that took these.
static as_status_t put_result(const assay_put_t *put, uint32_t *copies_p, uint64_t *node_id_p)
{
    const put_copy_t *best = &put->copies[0];
    *copies_p = 0;
    *node_id_p = 0;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        const put_copy_t *copy = &put->copies[i];
        bool kept = copy->status == AS_OK || copy->status == AS_ERR_EXISTS;
        bool better = copy->status == AS_OK || (kept && *copies_p == 0);
        bool worst = copy->status == AS_ERR_CONFLICT;
        best = worst || (better && best->status != AS_ERR_CONFLICT) ? copy : best;
        *node_id_p = kept && *copies_p == 0 ? copy->link->store.node_id : *node_id_p;
        *copies_p += kept;
        as_metric_add(&assay_metrics[ASSAY_METRIC_PUT_COPIES], copy->status == AS_OK);
    }
    return best->status;
}

// Whether the store took the bytes of a block that was offered, or may have.
static bool was_taken(as_status_t status)
{
    return status == AS_OK || status == AS_ERR_CHECKSUM || status == AS_ERR_DEADLINE ||
           status == AS_ERR_CANCELLED || status == AS_ERR_PEER_LOST || status == AS_ERR_LEASE;
}

static void tell_each(const assay_put_t *put, assay_put_copies_t *each)
{
    *each = (assay_put_copies_t){.count = put->copy_count};
    for (uint32_t i = 0; i < put->copy_count; i++) {
        each->statuses[i] = put->copies[i].status;
        each->sent += was_taken(put->copies[i].status);
    }
}

static void on_settle(void *ctx)
{
    assay_put_t *put = ctx;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        if (put->copies[i].state != ENDING || put->copies[i].sending > 0) {
            return;
        }
    }
    void (*on_done)(void *, as_status_t, uint64_t) = put->args.on_done;
    void *owner = put->args.ctx;
    uint32_t copies;
    uint64_t node_id;
    as_status_t status = put_result(put, &copies, &node_id);
    as_metric_add(&assay_metrics[status == AS_OK           ? ASSAY_METRIC_PUT_BLOCKS
                                 : status == AS_ERR_EXISTS ? ASSAY_METRIC_PUT_EXISTS
                                                           : ASSAY_METRIC_PUT_FAILURES],
                  1);
    as_metric_add(&assay_metrics[ASSAY_METRIC_PUT_DEGRADED], copies > 0 && copies < put->asked);
    as_metric_observe(&assay_metrics[ASSAY_METRIC_PUT_US],
                      assay_now_us(put->client) - put->began_us);
    if (put->args.copies_p) {
        *put->args.copies_p = copies;
    }
    if (put->args.each_p) {
        tell_each(put, put->args.each_p);
    }
    put_free(put);
    on_done(owner, status, node_id);
}

static void tell_conflict(assay_client_t *client, const assay_store_t *store)
{
    as_metric_add(&assay_metrics[ASSAY_METRIC_PUT_CONFLICTS], 1);
    if (as_log_is_due(&client->conflict_due, assay_now_us(client), CONFLICT_TELL_US, NULL)) {
        AS_ERROR("client",
                 "the store at %s has other bytes for a block that was computed here: one of the "
                 "two is wrong; its log names the block",
                 store->data_address);
    }
}

// The store is not to wait for what is missing of a block that comes in pieces.
static void give_up(const put_copy_t *copy)
{
    bool is_begun = copy->sent_bytes > 0 && copy->sent_bytes < block_bytes(copy->put);
    if (is_begun && assay_link_is(copy->link, copy->epoch)) {
        const as_wire_piece_t none = {as_wire_head(AS_WIRE_PIECE, copy->request), copy->sent_bytes};
        as_status_t status =
            as_net_send(copy->link->conn, &none, sizeof(none), NULL, 0, NULL, NULL);
        (void)status; // else it finds out by itself
    }
}

static void copy_end(put_copy_t *copy, as_status_t status)
{
    assay_put_t *put = copy->put;
    if (copy->state == ENDING) {
        return;
    }
    copy->state = ENDING;
    copy->status = status;
    if (copy->call) {
        assay_call_drop(copy->call);
        copy->call = NULL;
        give_up(copy);
    }
    as_loop_post(put->client->options.loop, &put->settle);
}

static void put_end(assay_put_t *put, as_status_t status)
{
    for (uint32_t i = 0; i < put->copy_count; i++) {
        copy_end(&put->copies[i], status);
    }
}

static void on_call_failed(void *owner, as_status_t status)
{
    put_copy_t *copy = owner;
    copy->call = NULL;
    copy_end(copy, status);
}

// How long the network may still keep a block that nobody waits for. 0: no longer; UINT64_MAX: it does
// not, or ends by itself.
static uint64_t patience_us(const put_copy_t *copy)
{
    const assay_client_t *client = copy->put->client;
    if (copy->sending == 0 || !assay_link_is(copy->link, copy->epoch)) {
        return UINT64_MAX;
    }
    uint64_t kept_us = assay_now_us(client) - copy->progress_us;
    uint64_t most_us = client->options.stall_timeout_us;
    return kept_us < most_us ? most_us - kept_us : 0;
}

static void on_timer(void *ctx)
{
    assay_put_t *put = ctx;
    uint64_t again_us = UINT64_MAX;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        put_copy_t *copy = &put->copies[i];
        bool silent = copy->call && copy->sending == 0; // it has all of the block
        copy_end(copy, AS_ERR_DEADLINE);
        if (silent) {
            assay_link_silent(copy->link, put->began_us, put->began_us);
        }
        uint64_t left_us = patience_us(copy);
        if (left_us == 0) {
            assay_link_fail(copy->link, AS_ERR_DEADLINE);
        } else {
            again_us = left_us < again_us ? left_us : again_us;
        }
    }
    if (again_us < UINT64_MAX) {
        as_timer_start(put->timer, again_us);
    }
}

// ---- writing

static void on_payload_sent(void *ctx, as_status_t status);

// The next of the pieces that the block is cut into, the first with the PUT itself.
static as_status_t send_piece(put_copy_t *copy, const void *header, size_t header_bytes)
{
    const assay_put_t *put = copy->put;
    as_conn_t *conn = copy->link->conn;
    size_t left = block_bytes(put) - copy->sent_bytes;
    size_t piece = as_conn_piece_bytes(conn, block_bytes(put));
    size_t bytes = left < piece ? left : piece;
    const uint8_t *from = (const uint8_t *)put->args.block + copy->sent_bytes;
    as_status_t status =
        as_net_send(conn, header, header_bytes, from, bytes, on_payload_sent, copy);
    copy->sending += status == AS_OK;
    copy->sent_bytes += status == AS_OK ? bytes : 0;
    return status;
}

// A few pieces wait at the network, so that little is sent in vain when the store has the block.
static void send_pieces(put_copy_t *copy)
{
    as_status_t status = AS_OK;
    while (status == AS_OK && copy->sent_bytes < block_bytes(copy->put) &&
           copy->sending < PIECES_SENDING) {
        const as_wire_piece_t piece = {as_wire_head(AS_WIRE_PIECE, copy->request),
                                       copy->sent_bytes};
        status = send_piece(copy, &piece, sizeof(piece));
    }
    if (copy->sending == 0 && status != AS_OK) { // nothing will bring us back here
        copy_end(copy, status);
    }
}

static void on_payload_sent(void *ctx, as_status_t status)
{
    put_copy_t *copy = ctx;
    copy->sending--;
    copy->progress_us = assay_now_us(copy->put->client);
    if (status == AS_OK && copy->state == ASKING && assay_link_is(copy->link, copy->epoch)) {
        send_pieces(copy);
    } // a lost connection fails the call too
    as_loop_post(copy->put->client->options.loop, &copy->put->settle);
}

// In the place of the block's bytes goes where they lie, when the store takes them from there.
static as_status_t send_put(assay_call_t *call)
{
    put_copy_t *copy = call->owner;
    const assay_put_t *put = copy->put;
    const assay_put_args_t *args = &put->args;
    size_t extent_bytes = put->extent_bytes;
    copy->epoch = copy->link->epoch;
    copy->staged = put->staged && assay_stage_offer(copy->link);
    as_wire_put_t ask = {
        .head = as_wire_head(AS_WIRE_PUT, assay_call_id(call)),
        .key = args->key,
        .parent = args->parent,
        .namespace_key = args->namespace_key,
        .kind = AS_WIRE_FULL,
        .layers = args->shape.layers,
        .extent_bytes = (uint32_t)extent_bytes,
        .tokens = args->token_count,
        .flags = (args->durable ? AS_WIRE_DURABLE : 0) |
                 (args->extent_bytes > 0 ? AS_WIRE_COPY | args->copy_flags : 0) |
                 (copy->staged ? AS_WIRE_STAGED : 0),
        .ttl_ms = args->ttl_ms,
        .tenant = args->tenant,
        .place = as_key_hash(&args->run_key),
        .offset = copy->staged ? assay_stage_offset(put->client, put->staged) : 0,
    };
    memcpy(ask.crcs, put->crcs, ask.layers * sizeof(uint32_t));
    size_t header_bytes = as_wire_put_bytes(ask.layers);
    if (copy->staged) {
        as_status_t sent = as_net_send(copy->link->conn, &ask, header_bytes, NULL, 0, NULL, NULL);
        copy->staged = sent == AS_OK;
        return sent;
    }
    copy->sent_bytes = 0;
    copy->progress_us = assay_now_us(put->client);
    copy->request = ask.head.request;
    if (args->extent_bytes > 0) {
        // A copy is offered, however small: most often it is there already.
        as_status_t offered = as_net_offer(copy->link->conn, &ask, header_bytes, args->block,
                                           block_bytes(put), on_payload_sent, copy);
        copy->sending += offered == AS_OK;
        copy->sent_bytes = block_bytes(put);
        return offered;
    }
    as_status_t sent = send_piece(copy, &ask, header_bytes);
    if (sent == AS_OK) {
        send_pieces(copy);
    }
    return sent;
}

static void on_stored(void *owner, const void *header, as_net_msg_t *msg)
{
    (void)msg;
    put_copy_t *copy = owner;
    copy->call = NULL;
    copy->staged = false;
    as_status_t status = as_wire_status_to(((const as_wire_result_t *)header)->status);
    if (status == AS_ERR_CONFLICT) {
        tell_conflict(copy->put->client, &copy->link->store);
    }
    copy_end(copy, status);
}

// ---- starting

static bool is_for_stage(const assay_put_t *put)
{
    bool any = false;
    bool is_copy = put->args.extent_bytes > 0; // which is mostly there already
    for (uint32_t i = 0; i < put->copy_count && !is_copy; i++) {
        any |= put->copies[i].link && assay_stage_offer(put->copies[i].link);
    }
    return any;
}

// Sums the block, and copies it onto the stage where a store takes it from there.
static void put_sum(assay_put_t *put)
{
    const assay_put_args_t *args = &put->args;
    size_t extent_bytes = put->extent_bytes;
    if (is_for_stage(put)) {
        put->staged = assay_stage_take(put->client, args->shape.layers * extent_bytes);
    }
    for (uint32_t layer = 0; layer < args->shape.layers; layer++) {
        const uint8_t *extent = (const uint8_t *)args->block + layer * extent_bytes;
        uint8_t *to = put->staged ? (uint8_t *)put->staged + layer * extent_bytes : NULL;
        uint32_t crc = to           ? as_crc32c_copy(0, to, extent, extent_bytes)
                       : args->crcs ? 0
                                    : as_crc32c(0, extent, extent_bytes);
        put->crcs[layer] = args->crcs ? args->crcs[layer] : crc;
    }
    put->args.crcs = NULL; // the caller's
}

// A copy of what a store has is sent as it is.
static as_status_t put_encrypt(assay_put_t *put)
{
    assay_put_args_t *args = &put->args;
    as_cipher_t *cipher = put->client->cipher;
    put->extent_bytes = extent_bytes_of(args);
    if (!cipher || args->crcs) {
        return AS_OK;
    }
    as_key_t named[4], keys[4] = {args->key, args->parent, args->namespace_key, args->run_key};
    assay_client_names(put->client, keys, 4, named);
    args->key = named[0];
    args->parent = named[1];
    args->namespace_key = named[2];
    args->run_key = named[3];
    size_t plain_bytes = put->extent_bytes;
    put->extent_bytes += AS_CIPHER_EXTRA_BYTES;
    put->encrypted = as_mem_alloc(args->shape.layers * put->extent_bytes);
    as_status_t status = put->encrypted ? AS_OK : AS_ERR_NO_MEMORY;
    for (uint32_t layer = 0; layer < args->shape.layers && status == AS_OK; layer++) {
        const as_cipher_extent_t extent = {args->key, layer, plain_bytes};
        status =
            as_cipher_encrypt(cipher, &extent, (const uint8_t *)args->block + layer * plain_bytes,
                              put->encrypted + layer * put->extent_bytes);
    }
    args->block = put->encrypted;
    return status;
}

static as_status_t args_check(const assay_client_t *client, const assay_put_args_t *args)
{
    as_status_t status = as_shape_check(&args->shape);
    if (status != AS_OK) {
        return status;
    }
    size_t extent_bytes = extent_bytes_of(args);
    extent_bytes += client->cipher && !args->crcs ? AS_CIPHER_EXTRA_BYTES : 0;
    if (extent_bytes > AS_WIRE_EXTENT_BYTES_MAX ||
        args->shape.layers * extent_bytes > AS_WIRE_BLOCK_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    bool sound =
        args->block && args->on_done && args->deadline_us > 0 &&
        args->replicas <= ASSAY_REPLICAS_MAX && args->token_count == args->shape.block_tokens &&
        (args->crcs != NULL) == (args->extent_bytes > 0) &&
        args->extent_bytes % sizeof(uint32_t) == 0 && !as_key_equal(&args->key, &args->parent);
    return sound ? AS_OK : AS_ERR_INVALID;
}

// Begins with every copy that can be begun with; the status of the best that cannot, when none can.
static as_status_t copies_start(assay_put_t *put)
{
    as_status_t result = AS_ERR_UNREACHABLE;
    uint32_t begun = 0;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        put_copy_t *copy = &put->copies[i];
        const assay_call_params_t params = {copy, AS_WIRE_STORED, send_put, on_stored,
                                            on_call_failed};
        copy->status = assay_call_start(copy->link, &params, &copy->call);
        if (copy->status != AS_OK) {
            copy->state = ENDING;
            copy->call = NULL;
        }
        begun += copy->status == AS_OK;
        result = i == 0 ? copy->status : result;
    }
    return begun > 0 ? AS_OK : result;
}

static void put_link(assay_client_t *client, assay_put_t *put)
{
    put->next = client->puts;
    if (client->puts) {
        client->puts->prev = put;
    }
    client->puts = put;
    client->put_count++;
    for (uint32_t i = 0; i < put->copy_count; i++) {
        assay_link_get(put->copies[i].link);
    }
}

as_status_t assay_put_start(assay_client_t *client, const assay_put_args_t *args,
                            assay_put_t **put_p)
{
    as_status_t status = args_check(client, args);
    if (status != AS_OK || client->closing) {
        return status != AS_OK ? status : AS_ERR_CANCELLED;
    }
    uint32_t asked = args->replicas > 0 ? args->replicas : client->replicas;
    uint64_t node_ids[ASSAY_REPLICAS_MAX];
    as_key_t run = args->run_key;
    if (!args->crcs) {
        assay_client_names(client, &args->run_key, 1, &run);
    }
    uint32_t count = assay_client_rank(client, &run, node_ids, asked);
    if (count == 0) {
        return AS_ERR_UNREACHABLE;
    }
    assay_put_t *put = as_pool_take(client->puts_pool);
    if (!put) {
        return AS_ERR_BUSY;
    }
    put->client = client;
    put->args = *args;
    put->asked = asked;
    put->began_us = assay_now_us(client);
    put->settle = (as_task_t){.fn = on_settle, .ctx = put};
    put->copy_count = count;
    for (uint32_t i = 0; i < count; i++) {
        put->copies[i] = (put_copy_t){.put = put, .link = assay_link_find(client, node_ids[i])};
    }
    status = put_encrypt(put);
    if (status == AS_OK) {
        status = as_timer_alloc(client->options.loop, on_timer, put, &put->timer);
    }
    if (status == AS_OK) {
        put_sum(put);
        status = copies_start(put);
    }
    if (status != AS_OK) {
        if (put->staged) {
            assay_stage_give(client, put->staged, false);
        }
        as_timer_free(put->timer);
        as_mem_free(put->encrypted);
        as_pool_give(client->puts_pool, put);
        return status;
    }
    put_link(client, put);
    as_timer_start(put->timer, args->deadline_us);
    *put_p = put;
    return AS_OK;
}

void assay_put_cancel(assay_put_t *put)
{
    put_end(put, AS_ERR_CANCELLED);
    as_timer_start(put->timer, 0); // watches the links
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
