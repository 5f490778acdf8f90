// SPDX-License-Identifier: Apache-2.0
// Arbitrary messages to the store and to the client, over the simulated network.
//
// The first byte of the input says who is attacked. The rest is a list of messages: one byte of
// flags, one for the type, two for the length of the payload, then header bytes (as many as the
// type's header has, or as flags say) and payload. Where the flags ask for it, magic, version, type
// and the request number are made right, so that the input gets past the first check, and so are the
// checksums of a PUT and of an ATTEND and the name of the memory of a SHARE. Nothing may crash, hang, or stay held once
// all timeouts have passed.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"
#include "common/net_sim.h"
#include "kernels/kernels.h"
#include "kvstore/kvstore.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define MESSAGES_MAX 64u
#define STEPS_MAX    20000u

enum { FLAG_SOUND_HEAD = 1, FLAG_SHORT = 2, FLAG_GREET = 4, FLAG_SUMS = 8 };

typedef struct input {
    const uint8_t *data;
    size_t bytes;
} input_t;

typedef struct attack {
    as_loop_t *loop;
    as_sim_t *sim;
    as_net_t *net; // the attacker's
    as_conn_t *conn;
    input_t input;
    as_shared_t stage; // of the attacker
    uint8_t *payloads[MESSAGES_MAX];
    uint32_t sent;
    uint64_t last_lease; // that the store gave, so that an input can use it
    uint64_t put;        // request number of the last one
    bool done;
    assay_attend_t *attend;
} attack_t;

static const as_shape_t shape = {2, 1, 1, 16, 16, AS_ELEMENT_F16};

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)loop;
    return as_net_alloc_sim(ctx, "target", handlers, net_p);
}

static size_t take(input_t *input, void *to, size_t bytes)
{
    size_t some = bytes < input->bytes ? bytes : input->bytes;
    if (some > 0) {
        memcpy(to, input->data, some);
    }
    input->data += some;
    input->bytes -= some;
    return some;
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

// The rest of a PUT's header, as long as its layers say; returns the bytes of all of it.
static size_t take_crcs(input_t *input, as_wire_put_t *put)
{
    uint32_t layers = put->layers < AS_LAYERS_MAX ? put->layers : AS_LAYERS_MAX;
    take(input, put->crcs, layers * sizeof(uint32_t));
    return as_wire_put_bytes(layers);
}

// The same of an ATTEND's pieces.
static size_t take_pieces(input_t *input, as_wire_attend_t *attend)
{
    uint32_t count = attend->piece_count;
    count = count < AS_WIRE_PIECES_MAX ? count : AS_WIRE_PIECES_MAX;
    take(input, attend->pieces, count * sizeof(attend->pieces[0]));
    return as_wire_attend_bytes(count);
}

static void make_attend_right(as_wire_attend_t *attend, const uint8_t *payload, size_t bytes)
{
    static const char numerics[sizeof(attend->numerics)] = KRN_NUMERICS_VERSION;
    memcpy(attend->numerics, numerics, sizeof(numerics));
    attend->crc = as_crc32c(0, payload, bytes);
}

static void make_sums_right(as_wire_put_t *put, const uint8_t *block, size_t bytes)
{
    for (uint32_t layer = 0; layer < put->layers && layer < AS_LAYERS_MAX; layer++) {
        if (put->extent_bytes <= bytes) {
            put->crcs[layer] = as_crc32c(0, block, put->extent_bytes);
            block += put->extent_bytes;
            bytes -= put->extent_bytes;
        }
    }
}

// Sends the next message of the input. False: there is none.
static bool send_next(attack_t *attack, uint64_t request)
{
    uint8_t lead[4] = {0};
    if (take(&attack->input, lead, sizeof(lead)) == 0 || attack->sent == MESSAGES_MAX ||
        !attack->conn) {
        return false;
    }
    _Alignas(16) uint8_t header[AS_NET_HEADER_BYTES_MAX] = {0};
    uint32_t type = lead[1] % (AS_WIRE_TYPE_COUNT + 1);
    size_t header_bytes = as_wire_bytes(type);
    header_bytes = lead[0] & FLAG_SHORT ? lead[0] / 8 : header_bytes;
    size_t skip = 0;
    if (lead[0] & FLAG_SOUND_HEAD) {
        bool is_piece = type == AS_WIRE_PIECE; // of the last block that was put
        attack->put = type == AS_WIRE_PUT ? request : attack->put;
        const as_wire_head_t head = as_wire_head(type, is_piece ? attack->put : request);
        memcpy(header, &head, sizeof(head));
        skip = sizeof(head);
    }
    if (header_bytes > skip) {
        take(&attack->input, header + skip, header_bytes - skip);
    }
    if (type == AS_WIRE_PUT && header_bytes >= as_wire_bytes(type)) {
        header_bytes = take_crcs(&attack->input, (as_wire_put_t *)(void *)header);
    }
    if (type == AS_WIRE_ATTEND && header_bytes >= as_wire_bytes(type)) {
        header_bytes = take_pieces(&attack->input, (as_wire_attend_t *)(void *)header);
    }
    if (type == AS_WIRE_SHARE && (lead[0] & FLAG_SUMS)) {
        ((as_wire_share_t *)(void *)header)->name = as_shared_name(&attack->stage);
    }
    if (header_bytes >= 24 && header[23] == 'T') { // what the store gave last
        memcpy(header + 16, &attack->last_lease, 8);
    }
    size_t payload_bytes = lead[2] | (size_t)(lead[3] & 15) << 8;
    uint8_t *payload = calloc(1, payload_bytes + 1);
    take(&attack->input, payload, payload_bytes);
    attack->payloads[attack->sent++] = payload;
    if (type == AS_WIRE_PUT && (lead[0] & FLAG_SUMS)) {
        make_sums_right((as_wire_put_t *)(void *)header, payload, payload_bytes);
    }
    if (type == AS_WIRE_ATTEND && (lead[0] & FLAG_SUMS)) {
        make_attend_right((as_wire_attend_t *)(void *)header, payload, payload_bytes);
    }
    if (type == AS_WIRE_ATTENDED && (lead[0] & FLAG_SUMS)) {
        ((as_wire_attended_t *)(void *)header)->crc = as_crc32c(0, payload, payload_bytes);
    }
    as_status_t status =
        as_net_send(attack->conn, header, header_bytes, payload, payload_bytes, on_sent, NULL);
    (void)status;
    return true;
}

static void on_accept(void *ctx, as_conn_t *conn)
{
    attack_t *attack = ctx;
    if (attack->conn) {
        as_net_close(conn);
    } else {
        attack->conn = conn;
    }
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)status;
    attack_t *attack = ctx;
    attack->conn = attack->conn == conn ? NULL : attack->conn;
    as_net_close(conn);
}

// As a client: remembers what the store gives. As a store: answers each question with the next
// message.
static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    attack_t *attack = ctx;
    if (!as_wire_check(msg->header, msg->header_bytes)) {
        return;
    }
    const as_wire_head_t *head = msg->header;
    if (head->type == AS_WIRE_LOCATED) {
        attack->last_lease = ((const as_wire_located_t *)msg->header)->lease_id;
    } else if (head->type == AS_WIRE_HELLO && attack->input.bytes > 0 &&
               (attack->input.data[0] & FLAG_GREET)) {
        as_wire_hello_reply_t reply = {.head = as_wire_head(AS_WIRE_HELLO_REPLY, head->request),
                                       .node_id = 1,
                                       .pool_address = 4096,
                                       .pool_bytes = 1 << 20,
                                       .lease_ms_max = 1000,
                                       .keys_max = AS_WIRE_KEYS_MAX,
                                       .asks_max = 4};
        as_status_t status = as_net_send(conn, &reply, sizeof(reply), NULL, 0, NULL, NULL);
        (void)status;
    } else if (head->type == AS_WIRE_READ) {
        const as_wire_read_t *read = msg->header;
        for (uint32_t i = 0; i < read->ask_count && i < AS_WIRE_ASKS_MAX; i++) {
            send_next(attack, read->asks[i].request);
        }
    } else if (head->type == AS_WIRE_HELLO || head->type == AS_WIRE_LOCATE ||
               head->type == AS_WIRE_SHARE || head->type == AS_WIRE_PUT ||
               head->type == AS_WIRE_ATTEND) {
        send_next(attack, head->request);
    }
}

static void begin(attack_t *attack, const uint8_t *data, size_t bytes)
{
    memset(attack, 0, sizeof(*attack));
    attack->input = (input_t){data, bytes};
    const as_net_handlers_t handlers = {attack, on_accept, on_message, on_lost, NULL};
    as_status_t status = as_shared_alloc(&attack->stage, 4096);
    AS_ASSERT(status == AS_OK);
    status = as_loop_alloc_sim(&attack->loop);
    AS_ASSERT(status == AS_OK);
    status = as_sim_alloc(attack->loop, 1, &attack->sim);
    AS_ASSERT(status == AS_OK);
    status = as_net_alloc_sim(attack->sim, "attacker", &handlers, &attack->net);
    AS_ASSERT(status == AS_OK);
}

static void end(attack_t *attack)
{
    as_net_free(attack->net);
    as_shared_free(&attack->stage);
    for (uint32_t i = 0; i < attack->sent; i++) {
        free(attack->payloads[i]);
    }
    as_sim_free(attack->sim);
    as_loop_free(attack->loop);
}

static void run(attack_t *attack, uint32_t steps)
{
    while (steps > 0 && as_loop_run_once(attack->loop, true)) {
        steps--;
    }
}

static void attack_store(attack_t *attack)
{
    kvs_store_options_t options;
    kvs_store_t *store;
    kvs_store_options_init(&options);
    options.loop = attack->loop;
    options.net_alloc = net_alloc;
    options.net_ctx = attack->sim;
    options.data_address = "target:1";
    options.instance_id[0] = 1;
    options.ram_bytes = 64 * 4096;
    options.leases_max = options.reservations_max = options.reads_max = 4;
    options.lease_us_max = options.reservation_us = 100000;
    as_status_t status = kvs_store_alloc(&options, &store);
    AS_ASSERT(status == AS_OK);
    status = as_net_connect(attack->net, "target:1", &attack->conn);
    AS_ASSERT(status == AS_OK);
    const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    status = as_net_send(attack->conn, &hello, sizeof(hello), NULL, 0, NULL, NULL);
    AS_ASSERT(status == AS_OK);
    while (send_next(attack, attack->sent)) {
        run(attack, 30);
    }
    run(attack, STEPS_MAX); // past every deadline
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    AS_ASSERT(stat.leases == 0 && stat.pins == 0 && stat.reservations == 0 && stat.dying == 0);
    kvs_store_free(store);
}

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    AS_ASSERT(block_count <= 4);
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    AS_ASSERT(layer < shape.layers);
}

static void on_fetched(void *ctx, as_status_t status, uint32_t hole)
{
    AS_ASSERT(status == AS_OK || hole <= 4);
    ((attack_t *)ctx)->done = true;
}

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)status;
    (void)node_id;
    ((attack_t *)ctx)->done = true;
}

static void on_attended(void *ctx, uint32_t layer, const assay_attend_piece_t *pieces,
                        uint32_t count)
{
    attack_t *attack = ctx;
    uint32_t blocks = 0;
    for (uint32_t p = 0; p < count; p++) {
        AS_ASSERT(pieces[p].first == blocks);
        blocks += pieces[p].count;
    }
    AS_ASSERT(layer == 0 && blocks == 4);
    assay_attend_end(attack->attend);
}

static as_status_t begin_attend(attack_t *attack, assay_client_t *client, const as_key_t *keys)
{
    static uint8_t buffer[4 * 2 * 18 * 4];
    static const float queries[2 * 16] = {1};
    const assay_attend_args_t args = {.shape = shape,
                                      .keys = keys,
                                      .block_count = 4,
                                      .scale = 0.25f,
                                      .rows_max = 2,
                                      .deadline_us = 1000000,
                                      .buffer = buffer,
                                      .buffer_bytes = sizeof(buffer),
                                      .on_located = on_located,
                                      .on_layer = on_attended,
                                      .on_done = on_fetched,
                                      .ctx = attack};
    as_status_t status = assay_attend_start(client, &args, &attack->attend);
    if (status == AS_OK) {
        assay_attend_layer(attack->attend, 0, 2, queries);
    }
    return status;
}

static void attack_client(attack_t *attack, bool put, bool attend)
{
    static uint8_t buffer[4 * 2 * 2048];
    assay_client_options_t options;
    assay_client_t *client;
    assay_client_options_init(&options);
    options.loop = attack->loop;
    options.net_alloc = net_alloc;
    options.net_ctx = attack->sim;
    as_status_t status = as_net_listen(attack->net, "attacker:1");
    AS_ASSERT(status == AS_OK);
    status = assay_client_alloc(&options, &client);
    AS_ASSERT(status == AS_OK);
    const assay_store_t store = {.node_id = 1, .data_address = "attacker:1", .capacity_bytes = 1};
    assay_client_set_stores(client, &store, 1);
    as_key_t keys[4];
    memset(keys, 0, sizeof(keys));
    for (uint8_t i = 0; i < 4; i++) {
        keys[i].bytes[0] = i + 1;
    }
    if (attend) {
        status = begin_attend(attack, client, keys);
    } else if (put) {
        assay_put_t *handle;
        const assay_put_args_t args = {.shape = shape,
                                       .key = keys[1],
                                       .parent = keys[0],
                                       .run_key = keys[0],
                                       .token_count = shape.block_tokens,
                                       .block = buffer,
                                       .deadline_us = 1000000,
                                       .on_done = on_put,
                                       .ctx = attack};
        status = assay_put_start(client, &args, &handle);
    } else {
        assay_fetch_t *handle;
        const assay_fetch_args_t args = {.shape = shape,
                                         .keys = keys,
                                         .block_count = 4,
                                         .deadline_us = 1000000,
                                         .buffer = buffer,
                                         .layer_stride = 4 * as_extent_bytes(&shape),
                                         .layer_slots = shape.layers,
                                         .on_located = on_located,
                                         .on_layer = on_layer,
                                         .on_done = on_fetched,
                                         .ctx = attack};
        status = assay_fetch_start(client, &args, &handle);
    }
    AS_ASSERT(status == AS_OK);
    run(attack, STEPS_MAX);
    AS_ASSERT(attack->done);
    assay_client_free(client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool quiet;
    if (!quiet) {
        as_log_set_level(AS_LOG_ERROR);
        quiet = true;
    }
    if (bytes < 2) {
        return 0;
    }
    attack_t attack;
    begin(&attack, data + 1, bytes - 1);
    if (data[0] % 4 == 0) {
        attack_client(&attack, data[0] & 4, data[0] & 8);
    } else {
        attack_store(&attack);
    }
    end(&attack);
    return 0;
}
