// SPDX-License-Identifier: Apache-2.0
// What the tests share that feed a store with raw messages: the store and its peer on a simulated
// network, and blocks that the peer puts and locates.
#ifndef RAW_PEER_H
#define RAW_PEER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checksum.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/net_sim.h"
#include "kernels/kernels.h"
#include "kvstore/kvstore.h"
#include "proto/wire.h"

#define LAYERS       2u
#define EXTENT_BYTES 2048u

static as_loop_t *loop;
static as_sim_t *sim;
static kvs_store_t *store;
static as_net_t *peer;
static as_conn_t *conn;
static uint32_t answers, lost, last_status;
static uint64_t lease;
static uint32_t data_bytes;
static uint8_t block[LAYERS * EXTENT_BYTES], data[LAYERS * EXTENT_BYTES];
static as_shared_t stage; // of the peer

static inline as_status_t net_alloc(void *ctx, as_loop_t *on, const as_net_handlers_t *handlers,
                                    as_net_t **net_p)
{
    (void)on;
    return as_net_alloc_sim(sim, ctx ? ctx : "store", handlers, net_p);
}

static inline void on_accept(void *ctx, as_conn_t *accepted)
{
    (void)ctx;
    as_net_close(accepted);
}

static inline void on_message(void *ctx, as_conn_t *from, as_net_msg_t *msg)
{
    (void)ctx;
    (void)from;
    assert_true(as_wire_check(msg->header, msg->header_bytes));
    answers++;
    data_bytes = (uint32_t)msg->data_bytes;
    switch (((const as_wire_head_t *)msg->header)->type) {
    case AS_WIRE_HELLO_REPLY:
        last_status = ((const as_wire_hello_reply_t *)msg->header)->status;
        break;
    case AS_WIRE_LOCATED:
        last_status = ((const as_wire_located_t *)msg->header)->status;
        lease = ((const as_wire_located_t *)msg->header)->lease_id;
        break;
    case AS_WIRE_DATA:
        last_status = ((const as_wire_data_t *)msg->header)->status;
        assert_in_range(msg->data_bytes, 0, sizeof(data));
        if (msg->data) {
            memcpy(data, msg->data, msg->data_bytes);
        }
        break;
    case AS_WIRE_ATTENDED:
        last_status = ((const as_wire_attended_t *)msg->header)->status;
        break;
    case AS_WIRE_RENEWED:
        last_status = ((const as_wire_renewed_t *)msg->header)->status;
        break;
    case AS_WIRE_SHARED:
    case AS_WIRE_STORED:
        last_status = ((const as_wire_result_t *)msg->header)->status;
        break;
    default:
        fail();
    }
}

static inline void on_lost(void *ctx, as_conn_t *from, as_status_t status)
{
    (void)ctx;
    (void)status;
    lost++;
    as_net_close(from);
    conn = NULL;
}

static inline void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static inline void nothing(void *ctx)
{
    (void)ctx;
}

// 100 ms: messages take less, and every timeout is much longer.
static inline void settle(void)
{
    as_timer_t *timer;
    uint64_t end_us = as_loop_now_us(loop) + 100000;
    assert_int_equal(as_timer_alloc(loop, nothing, NULL, &timer), AS_OK);
    as_timer_start(timer, 100000);
    while (as_loop_now_us(loop) < end_us) {
        as_loop_run_once(loop, true);
    }
    as_timer_free(timer);
}

static inline void say(const void *header, size_t bytes, const void *payload, size_t payload_bytes)
{
    if (conn) {
        assert_int_equal(as_net_send(conn, header, bytes, payload, payload_bytes, on_sent, NULL),
                         AS_OK);
        settle();
    }
}

static inline void connect_anew(void)
{
    if (conn) {
        as_net_close(conn);
    }
    assert_int_equal(as_net_connect(peer, kvs_store_address(store), &conn), AS_OK);
    const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    uint32_t before = answers;
    say(&hello, sizeof(hello), NULL, 0);
    assert_int_equal(answers, before + 1);
}

static inline kvs_store_options_t defaults(void)
{
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    options.loop = loop;
    options.net_alloc = net_alloc;
    options.data_address = "store:1";
    options.instance_id[0] = 1;
    options.ram_bytes = 1u << 20;
    options.reservations_max = 8;
    options.leases_max = 8;
    return options;
}

static inline int begin(void **state)
{
    (void)state;
    const as_net_handlers_t handlers = {NULL, on_accept, on_message, on_lost, NULL};
    answers = lost = 0;
    conn = NULL;
    if (as_loop_alloc_sim(&loop) != AS_OK || as_sim_alloc(loop, 1, &sim) != AS_OK ||
        as_net_alloc_sim(sim, "peer", &handlers, &peer) != AS_OK) {
        return -1;
    }
    kvs_store_options_t options = defaults();
    return kvs_store_alloc(&options, &store) == AS_OK &&
                   as_shared_alloc(&stage, 4 * sizeof(block)) == AS_OK &&
                   as_shared_back(&stage) == AS_OK
               ? 0
               : -1;
}

static inline int end(void **state)
{
    (void)state;
    as_net_free(peer);
    kvs_store_free(store);
    as_shared_free(&stage);
    as_sim_free(sim);
    as_loop_free(loop);
    return 0;
}

static inline as_key_t key_of(uint8_t n)
{
    as_key_t key = {{n, 7}};
    return key;
}

static uint32_t crcs[LAYERS];

static inline void make_block(void)
{
    for (size_t i = 0; i < sizeof(block); i++) {
        block[i] = (uint8_t)(i * 13 + 1);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        crcs[l] = as_crc32c(0, block + l * EXTENT_BYTES, EXTENT_BYTES);
    }
}

static inline as_wire_put_t put_of(uint8_t n)
{
    make_block();
    as_wire_put_t ask = {.head = as_wire_head(AS_WIRE_PUT, 2),
                         .key = key_of(n),
                         .parent = key_of(0),
                         .namespace_key = key_of(0),
                         .kind = AS_WIRE_FULL,
                         .layers = LAYERS,
                         .extent_bytes = EXTENT_BYTES,
                         .tokens = 16};
    memcpy(ask.crcs, crcs, sizeof(crcs));
    return ask;
}

// One row's queries over the block of the last LOCATE, which is of two KV heads of 16.
#define QUERIES 32u
static inline as_wire_attend_t attend_of(const float queries[QUERIES])
{
    return (as_wire_attend_t){.head = as_wire_head(AS_WIRE_ATTEND, 9),
                              .lease_id = lease,
                              .numerics = KRN_NUMERICS_VERSION,
                              .rows = 1,
                              .q_heads = 2,
                              .kv_heads = 2,
                              .dim = 16,
                              .scale = 0.25f,
                              .crc = as_crc32c(0, queries, QUERIES * sizeof(float)),
                              .wait_ms = 100,
                              .piece_count = 1,
                              .pieces = {{0, 1}}};
}

static inline uint32_t status_of(const as_wire_put_t *ask, size_t payload_bytes)
{
    last_status = UINT32_MAX;
    say(ask, as_wire_put_bytes(ask->layers), block, payload_bytes);
    return last_status;
}

static inline void put(uint8_t n)
{
    const as_wire_put_t ask = put_of(n);
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_OK);
}

static inline void locate(uint8_t n)
{
    const as_wire_locate_t ask = {as_wire_head(AS_WIRE_LOCATE, 5), 1, 5000, AS_WIRE_FULL, 0};
    as_key_t key = key_of(n);
    say(&ask, sizeof(ask), &key, sizeof(key));
    assert_int_equal(last_status, AS_WIRE_OK);
}

static inline void expect_nothing_held(void)
{
    if (conn) {
        as_net_close(conn);
        conn = NULL;
    }
    settle();
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.leases + stat.pins + stat.reservations + stat.dying, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

#endif
