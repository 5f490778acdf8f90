// SPDX-License-Identifier: Apache-2.0
// Attention computed at the stores: queries go out layer by layer, partials come back.
//
// It is a fetch that brings no extents. Locating, leases, their renewal, copies, deadlines and the
// end are those of fetch.c; while the fetch is READING, this file asks each part's store for the
// attention over the part's blocks instead of for their bytes:
//
//   idle -> planned: asked of every store at once -> answered by all -> handed to the caller -> idle
//
// A chain is cut into pieces (kernels/kernels.h): ranges of blocks that one store has and that fold
// into one partial. When a store fails, its blocks are asked of their next candidates, as extents would
// be, and the layer is planned and asked anew; what others have answered is asked again, since with
// other owners the pieces are others. A store that is BUSY ends it at once: the caller can bring the
// blocks instead, which is better than to wait.
//
// The queries are the caller's until every network operation on them has ended, and so is the buffer
// of the answers: a layer is handed out, and on_done called, only then.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"
#include "kernels/kernels.h"

#define ALL_BLOCKS  UINT32_MAX // of an ask; all ones on the wire, too
#define NO_POSITION (UINT32_MAX - 1)
#define RETRIES_MAX 4u // of what was damaged on its way, in one attend

_Static_assert(KRN_RUN_PAGES == AS_RUN_BLOCKS, "what folds together is placed together");
_Static_assert(sizeof(KRN_NUMERICS_VERSION) <= sizeof(((as_wire_attend_t *)0)->numerics),
               "the name of the bits fits");

// What one store is asked of a layer: all pieces of one part.
typedef struct attend_ask {
    struct attend_ask *next; // of the attend: all that were ever made
    assay_attend_t *attend;
    assay_part_t *part; // NULL: unused
    assay_call_t *call; // until it is answered
    bool sending, arriving;
    bool answered;
    uint32_t piece_count;
    uint8_t *answer; // in the caller's buffer
    size_t bytes;
    uint32_t crc;
    uint64_t epoch, asked_us;
} attend_ask_t;

typedef struct piece_plan {
    krn_piece_t piece;
    assay_part_t *part;
    uint32_t position; // of its first block in the part
    uint8_t *answer;
} piece_plan_t;

struct assay_attend {
    assay_fetch_t *fetch;
    assay_attend_args_t args; // keys and node_ids are not used after start
    bool wanted, planned;     // a layer is; it was asked of the stores
    bool failed;              // one of them could not: it is to be planned again
    uint32_t layer, rows;
    const float *q;
    uint32_t q_crc;
    attend_ask_t *asks;
    uint32_t open; // asks that something is still to come of
    piece_plan_t *plan;
    assay_attend_piece_t *pieces; // as the caller gets them
    uint32_t piece_count, pieces_max;
    uint64_t bytes;
    uint64_t asked_us;
    uint32_t retries;
};

static size_t q_bytes(const assay_attend_t *attend)
{
    const as_shape_t *shape = &attend->fetch->args.shape;
    return (size_t)attend->rows * shape->q_heads * shape->head_dim * sizeof(float);
}

size_t assay_attend_piece_bytes(const as_shape_t *shape, uint32_t rows)
{
    return (size_t)rows * shape->q_heads * (shape->head_dim + 2) * sizeof(float);
}

// ---- starting

static void on_located(void *ctx, uint32_t block_count)
{
    assay_attend_t *attend = ctx;
    assay_fetch_t *fetch = attend->fetch;
    attend->args.on_located(attend->args.ctx, block_count);
    if (block_count < fetch->args.block_count) { // of part of a chain nobody has any use
        assay_fetch_end(fetch, assay_fetch_is_busy(fetch) ? AS_ERR_BUSY : AS_ERR_NOT_FOUND,
                        block_count);
    }
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
    AS_ASSERT(!"an attend brings no layers");
}

static void on_done(void *ctx, as_status_t status, uint32_t hole)
{
    assay_attend_t *attend = ctx;
    attend->args.on_done(attend->args.ctx, status, hole);
}

static as_status_t args_check(const assay_client_t *client, const assay_attend_args_t *args)
{
    if (client->cipher || args->shape.element != AS_ELEMENT_F16) {
        return AS_ERR_UNSUPPORTED; // what a store cannot read it cannot compute with
    }
    bool sound = args->rows_max > 0 && args->buffer && args->on_located && args->on_layer &&
                 args->on_done && as_shape_check(&args->shape) == AS_OK &&
                 args->shape.block_tokens <= KRN_PAGE_TOKENS_MAX;
    if (!sound) {
        return AS_ERR_INVALID;
    }
    size_t piece_bytes = assay_attend_piece_bytes(&args->shape, args->rows_max);
    bool fits = piece_bytes <= AS_WIRE_ATTEND_BYTES_MAX && args->buffer_bytes >= piece_bytes;
    return fits ? AS_OK : AS_ERR_LIMIT;
}

static as_status_t attend_make(const assay_attend_args_t *args, assay_attend_t **attend_p)
{
    size_t fit = args->buffer_bytes / assay_attend_piece_bytes(&args->shape, args->rows_max);
    uint32_t pieces_max = fit < args->block_count ? (uint32_t)fit : args->block_count;
    size_t bytes =
        sizeof(assay_attend_t) + pieces_max * (sizeof(piece_plan_t) + sizeof(assay_attend_piece_t));
    assay_attend_t *attend = as_mem_zalloc(1, bytes);
    if (!attend) {
        return AS_ERR_NO_MEMORY;
    }
    attend->args = *args;
    attend->pieces_max = pieces_max;
    attend->plan = (piece_plan_t *)(void *)(attend + 1);
    attend->pieces = (assay_attend_piece_t *)(void *)(attend->plan + pieces_max);
    *attend_p = attend;
    return AS_OK;
}

as_status_t assay_attend_start(assay_client_t *client, const assay_attend_args_t *args,
                               assay_attend_t **attend_p)
{
    assay_attend_t *attend;
    as_status_t status = args_check(client, args);
    if (status == AS_OK) {
        status = attend_make(args, &attend);
    }
    if (status != AS_OK) {
        return status;
    }
    const assay_fetch_args_t fetch = {.shape = args->shape,
                                      .keys = args->keys,
                                      .node_ids = args->node_ids,
                                      .block_count = args->block_count,
                                      .deadline_us = args->deadline_us,
                                      .tenant = args->tenant,
                                      .urgency = ASSAY_URGENCY_VERIFY,
                                      .buffer = args->buffer,
                                      .layer_slots = 1,
                                      .on_located = on_located,
                                      .on_layer = on_layer,
                                      .on_done = on_done,
                                      .ctx = attend};
    status = assay_fetch_begin(client, &fetch, false, &attend->fetch);
    if (status != AS_OK) {
        as_mem_free(attend);
        return status;
    }
    attend->fetch->attend = attend; // its callbacks come later
    *attend_p = attend;
    return AS_OK;
}

void assay_attend_free(assay_attend_t *attend)
{
    for (attend_ask_t *ask = attend ? attend->asks : NULL, *next; ask; ask = next) {
        next = ask->next;
        as_mem_free(ask);
    }
    as_mem_free(attend);
}

static void pump_soon(const assay_attend_t *attend)
{
    as_loop_post(attend->fetch->client->options.loop, &attend->fetch->pump);
}

void assay_attend_layer(assay_attend_t *attend, uint32_t layer, uint32_t rows, const float *q)
{
    AS_ASSERT(!attend->wanted && rows > 0 && rows <= attend->args.rows_max &&
              layer < attend->fetch->args.shape.layers);
    attend->wanted = true;
    attend->planned = attend->failed = false;
    attend->layer = layer;
    attend->rows = rows;
    attend->q = q;
    attend->q_crc = as_crc32c(0, q, q_bytes(attend));
    attend->asked_us = assay_now_us(attend->fetch->client);
    assay_fetch_keep_time(attend->fetch);
    pump_soon(attend);
}

bool assay_attend_is_idle(const assay_attend_t *attend)
{
    return !attend->wanted;
}

void assay_attend_end(assay_attend_t *attend)
{
    assay_fetch_end(attend->fetch, AS_OK, 0);
}

void assay_attend_cancel(assay_attend_t *attend)
{
    assay_fetch_cancel(attend->fetch);
}

uint64_t assay_attend_bytes(const assay_attend_t *attend)
{
    return attend->bytes;
}

// ---- asks

static bool is_out(const attend_ask_t *ask)
{
    return ask->call || ask->sending || ask->arriving;
}

// Nothing more is to come of it, or only the end of network operations is.
static void ask_close(attend_ask_t *ask)
{
    if (!is_out(ask) && ask->part) {
        ask->part->outstanding--;
        ask->part = NULL;
        ask->attend->open--;
    }
}

// Its layer is to be asked for again: of somebody else, all of its blocks or, where one is named, that one.
static void ask_fail(attend_ask_t *ask, as_status_t status, uint32_t position)
{
    assay_attend_t *attend = ask->attend;
    assay_fetch_t *fetch = attend->fetch;
    assay_part_t *part = ask->part;
    AS_DEBUG("client", "attention of layer %u not computed at %s: %s", attend->layer,
             part->link->store.data_address, as_status_str(status));
    as_metric_add(&assay_metrics[ASSAY_METRIC_ATTEND_FAILURES], 1);
    attend->failed = true;
    if (status == AS_ERR_BUSY || status == AS_ERR_LIMIT || status == AS_ERR_NO_MEMORY) {
        assay_fetch_end(fetch, status, 0); // which may close the ask
    }
    for (uint32_t p = 0; p < attend->piece_count; p++) {
        const piece_plan_t *plan = &attend->plan[p];
        for (uint32_t b = 0; plan->part == part && b < plan->piece.count; b++) {
            if (position == ALL_BLOCKS || plan->position + b == position) {
                assay_fetch_lost(part, plan->piece.first + b, status);
            }
        }
    }
    pump_soon(attend);
}

// What came was not what was sent, the queries there or the answer here: asked for once more, as often as a
// link may be forgiven.
static void ask_damaged(attend_ask_t *ask)
{
    assay_attend_t *attend = ask->attend;
    as_metric_add(&assay_metrics[ASSAY_METRIC_CHECKSUM_FAILURES], 1);
    ask_fail(ask, AS_ERR_CHECKSUM, attend->retries++ < RETRIES_MAX ? NO_POSITION : ALL_BLOCKS);
}

static void on_asked_failed(void *owner, as_status_t status)
{
    attend_ask_t *ask = owner;
    ask->call = NULL;
    ask_fail(ask, status, ALL_BLOCKS);
    ask_close(ask);
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)status; // a link that is lost tells by the call
    attend_ask_t *ask = ctx;
    assay_fetch_t *fetch = ask->attend->fetch;
    ask->sending = false;
    fetch->arriving--;
    ask_close(ask);
    pump_soon(ask->attend);
    assay_fetch_settle(fetch);
}

static as_status_t send_attend(assay_call_t *call)
{
    attend_ask_t *ask = call->owner;
    assay_attend_t *attend = ask->attend;
    const assay_client_t *client = attend->fetch->client;
    const as_shape_t *shape = &attend->fetch->args.shape;
    as_wire_attend_t question = {
        .head = as_wire_head(AS_WIRE_ATTEND, assay_call_id(call)),
        .lease_id = ask->part->lease_id,
        .numerics = KRN_NUMERICS_VERSION,
        .layer = attend->layer,
        .rows = attend->rows,
        .q_heads = shape->q_heads,
        .kv_heads = shape->kv_heads,
        .dim = shape->head_dim,
        .scale = attend->args.scale,
        .crc = attend->q_crc,
        .wait_ms = (uint32_t)(client->options.stall_timeout_us / 4 / 1000 + 1),
    };
    for (uint32_t p = 0; p < attend->piece_count; p++) {
        const piece_plan_t *plan = &attend->plan[p];
        if (plan->part == ask->part) {
            question.pieces[question.piece_count++] =
                (as_wire_chain_piece_t){(uint16_t)plan->position, (uint16_t)plan->piece.count};
        }
    }
    size_t bytes = as_wire_attend_bytes(question.piece_count);
    as_status_t status =
        as_net_send(call->link->conn, &question, bytes, attend->q, q_bytes(attend), on_sent, ask);
    if (status == AS_OK) {
        ask->sending = true;
        attend->fetch->arriving++;
        attend->bytes += bytes + q_bytes(attend);
    }
    return status;
}

static void ask_take(attend_ask_t *ask)
{
    if (as_crc32c(0, ask->answer, ask->bytes) != ask->crc) {
        AS_WARN("client", "attention from %s is not what was sent: not used",
                ask->part->link->store.data_address);
        ask_damaged(ask);
        return;
    }
    ask->answered = true;
    ask->attend->bytes += sizeof(as_wire_attended_t) + ask->bytes;
    as_metric_add(&assay_metrics[ASSAY_METRIC_ATTEND_BYTES], (int64_t)ask->bytes);
}

static void on_arrived(void *ctx, as_status_t status)
{
    attend_ask_t *ask = ctx;
    assay_fetch_t *fetch = ask->attend->fetch;
    ask->arriving = false;
    fetch->arriving--;
    ask->part->progress_us = assay_now_us(fetch->client);
    if (status == AS_OK && fetch->state == FETCH_READING) {
        ask_take(ask);
    } else if (fetch->state == FETCH_READING) {
        ask_fail(ask, status, ALL_BLOCKS);
    }
    ask_close(ask);
    pump_soon(ask->attend);
    assay_fetch_settle(fetch);
}

// Whether a block of its pieces has this place in the lease.
static bool is_asked(const attend_ask_t *ask, uint32_t position)
{
    const assay_attend_t *attend = ask->attend;
    for (uint32_t p = 0; p < attend->piece_count; p++) {
        const piece_plan_t *plan = &attend->plan[p];
        if (plan->part == ask->part && position >= plan->position &&
            position - plan->position < plan->piece.count) {
            return true;
        }
    }
    return false;
}

static void on_attended(void *owner, const void *header, as_net_msg_t *msg)
{
    attend_ask_t *ask = owner;
    assay_attend_t *attend = ask->attend;
    assay_link_t *link = ask->part->link;
    const as_wire_attended_t *attended = header;
    as_status_t status = as_wire_status_to(attended->status);
    ask->call = NULL;
    ask->part->progress_us = assay_now_us(link->client);
    if (msg->data_bytes != (status == AS_OK ? ask->bytes : 0)) {
        status = AS_ERR_PROTOCOL;
    }
    link->denied |= status == AS_ERR_DENIED;
    ask->crc = attended->crc;
    if (status == AS_OK && msg->data) {
        memcpy(ask->answer, msg->data, ask->bytes);
        ask_take(ask);
    } else if (status == AS_OK) {
        status = as_net_msg_recv(msg, ask->answer, on_arrived, ask);
        ask->arriving = status == AS_OK;
        attend->fetch->arriving += status == AS_OK;
    }
    if (status == AS_ERR_CHECKSUM && attended->bad_index == ALL_BLOCKS) {
        ask_damaged(ask);
    } else if (status != AS_OK) {
        bool is_named = status == AS_ERR_CHECKSUM && is_asked(ask, attended->bad_index);
        ask_fail(ask, status, is_named ? attended->bad_index : ALL_BLOCKS);
    }
    ask_close(ask);
    pump_soon(attend);
    if (status == AS_ERR_PROTOCOL) {
        assay_link_fail(link, status);
    }
}

// ---- planning a layer

static bool add_piece(assay_attend_t *attend, krn_piece_t piece)
{
    const assay_block_t *first = &attend->fetch->blocks[piece.first];
    if (attend->piece_count == attend->pieces_max) {
        return false;
    }
    attend->plan[attend->piece_count++] =
        (piece_plan_t){.piece = piece, .part = first->part, .position = first->position};
    return true;
}

// Cuts the chain into pieces. False: into more than the buffer has room for.
static bool cut(assay_attend_t *attend)
{
    const assay_fetch_t *fetch = attend->fetch;
    const assay_block_t *blocks = fetch->blocks;
    attend->piece_count = 0;
    for (uint32_t b = 0, end; b < fetch->args.block_count; b = end) {
        for (end = b + 1; end < fetch->args.block_count && blocks[end].part == blocks[b].part &&
                          blocks[end].position == blocks[b].position + (end - b);) {
            end++;
        }
        for (uint32_t at = b; at < end;) {
            krn_piece_t piece = krn_piece_at(at, end);
            if (!add_piece(attend, piece)) {
                return false;
            }
            at += piece.count;
        }
    }
    return true;
}

static attend_ask_t *ask_unused(assay_attend_t *attend)
{
    attend_ask_t *ask = attend->asks;
    while (ask && ask->part) {
        ask = ask->next;
    }
    if (!ask) {
        ask = as_mem_zalloc(1, sizeof(*ask));
        if (!ask) {
            return NULL;
        }
        ask->next = attend->asks;
        attend->asks = ask;
    }
    return ask;
}

// The pieces of one part, whose answers come to `to`. Returns the bytes of these.
static size_t ask_part(assay_attend_t *attend, assay_part_t *part, uint8_t *to)
{
    assay_fetch_t *fetch = attend->fetch;
    size_t piece_bytes = assay_attend_piece_bytes(&fetch->args.shape, attend->rows);
    uint32_t count = 0;
    for (uint32_t p = 0; p < attend->piece_count; p++) {
        if (attend->plan[p].part == part) {
            attend->plan[p].answer = to + count++ * piece_bytes;
        }
    }
    if (count == 0) {
        return 0;
    }
    attend_ask_t *ask = ask_unused(attend);
    if (!ask) {
        assay_fetch_end(fetch, AS_ERR_NO_MEMORY, 0);
        return 0;
    }
    uint64_t now_us = assay_now_us(fetch->client);
    *ask = (attend_ask_t){.next = ask->next,
                          .attend = attend,
                          .part = part,
                          .piece_count = count,
                          .answer = to,
                          .bytes = count * piece_bytes,
                          .epoch = part->epoch,
                          .asked_us = now_us};
    part->outstanding++;
    part->progress_us = now_us;
    attend->open++;
    const assay_call_params_t params = {ask, AS_WIRE_ATTENDED, send_attend, on_attended,
                                        on_asked_failed};
    bool is_there = assay_link_is(part->link, part->epoch);
    as_status_t status = !is_there                               ? AS_ERR_PEER_LOST
                         : ask->bytes > AS_WIRE_ATTEND_BYTES_MAX ? AS_ERR_LIMIT
                                                                 : AS_OK;
    if (status == AS_OK) {
        status = assay_call_start(part->link, &params, &ask->call);
    }
    if (status != AS_OK) {
        ask->call = NULL;
        ask_fail(ask, status, ALL_BLOCKS);
        ask_close(ask);
    }
    return count * piece_bytes;
}

// Asks all stores for the layer, once every block has one.
static void plan_layer(assay_attend_t *attend)
{
    assay_fetch_t *fetch = attend->fetch;
    for (uint32_t b = 0; b < fetch->args.block_count; b++) {
        if (!fetch->blocks[b].part) {
            return; // it is being located
        }
    }
    if (!cut(attend)) {
        assay_fetch_end(fetch, AS_ERR_LIMIT, 0);
        return;
    }
    attend->planned = true;
    attend->failed = false;
    uint8_t *to = attend->args.buffer;
    for (assay_part_t *part = fetch->parts; part && fetch->state == FETCH_READING;
         part = part->next) {
        to += ask_part(attend, part, to);
    }
}

static void hand_out(assay_attend_t *attend)
{
    assay_fetch_t *fetch = attend->fetch;
    const as_shape_t *shape = &fetch->args.shape;
    size_t pairs = (size_t)attend->rows * shape->q_heads;
    for (uint32_t p = 0; p < attend->piece_count; p++) {
        const float *out = (const float *)(const void *)attend->plan[p].answer;
        attend->pieces[p] = (assay_attend_piece_t){
            attend->plan[p].piece.first, attend->plan[p].piece.count, out,
            out + pairs * shape->head_dim, out + pairs * shape->head_dim + pairs};
    }
    attend->wanted = false;
    as_metric_add(&assay_metrics[ASSAY_METRIC_ATTENDS], 1);
    as_metric_observe(&assay_metrics[ASSAY_METRIC_ATTEND_US],
                      assay_now_us(fetch->client) - attend->asked_us);
    fetch->calling = true;
    attend->args.on_layer(attend->args.ctx, attend->layer, attend->pieces, attend->piece_count);
    fetch->calling = false;
}

void assay_attend_pump(assay_attend_t *attend)
{
    if (!attend->wanted || attend->open > 0) {
        return; // nothing is to be asked, or something is still under way
    }
    if (attend->planned && !attend->failed) {
        hand_out(attend);
    } else {
        plan_layer(attend);
    }
}

// ---- the end

void assay_attend_forget(assay_attend_t *attend)
{
    for (attend_ask_t *ask = attend->asks; ask; ask = ask->next) {
        if (ask->call) {
            assay_call_drop(ask->call);
            ask->call = NULL;
        }
        ask_close(ask);
    }
}

void assay_attend_cut(assay_attend_t *attend)
{
    for (attend_ask_t *ask = attend->asks; ask; ask = ask->next) {
        if (ask->part && assay_link_is(ask->part->link, ask->epoch)) {
            assay_link_fail(ask->part->link, AS_ERR_DEADLINE);
        }
    }
}
