// SPDX-License-Identifier: Apache-2.0
// A store fed with raw messages: every type truncated to every length and with every byte changed;
// limits; allocation failures.
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
#include "kvstore/kvstore.h"
#include "proto/wire.h"

#define LAYERS       2u
#define EXTENT_BYTES 2048u
#define LARGE_BYTES  16384u // of a block that does not come with its message

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

static as_status_t net_alloc(void *ctx, as_loop_t *on, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)on;
    return as_net_alloc_sim(sim, ctx ? ctx : "store", handlers, net_p);
}

static void on_accept(void *ctx, as_conn_t *accepted)
{
    (void)ctx;
    as_net_close(accepted);
}

static void on_message(void *ctx, as_conn_t *from, as_net_msg_t *msg)
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

static void on_lost(void *ctx, as_conn_t *from, as_status_t status)
{
    (void)ctx;
    (void)status;
    lost++;
    as_net_close(from);
    conn = NULL;
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void nothing(void *ctx)
{
    (void)ctx;
}

// 100 ms: messages take less, and every timeout is much longer.
static void settle(void)
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

static void say(const void *header, size_t bytes, const void *payload, size_t payload_bytes)
{
    if (conn) {
        assert_int_equal(as_net_send(conn, header, bytes, payload, payload_bytes, on_sent, NULL),
                         AS_OK);
        settle();
    }
}

static void connect_anew(void)
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

static kvs_store_options_t defaults(void)
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

static int begin(void **state)
{
    (void)state;
    const as_net_handlers_t handlers = {NULL, on_accept, on_message, on_lost};
    answers = lost = 0;
    conn = NULL;
    if (as_loop_alloc_sim(&loop) != AS_OK || as_sim_alloc(loop, 1, &sim) != AS_OK ||
        as_net_alloc_sim(sim, "peer", &handlers, &peer) != AS_OK) {
        return -1;
    }
    kvs_store_options_t options = defaults();
    return kvs_store_alloc(&options, &store) == AS_OK &&
                   as_shared_alloc(&stage, 4 * sizeof(block)) == AS_OK
               ? 0
               : -1;
}

static int end(void **state)
{
    (void)state;
    as_net_free(peer);
    kvs_store_free(store);
    as_shared_free(&stage);
    as_sim_free(sim);
    as_loop_free(loop);
    return 0;
}

static as_key_t key_of(uint8_t n)
{
    as_key_t key = {{n, 7}};
    return key;
}

static uint8_t large[LARGE_BYTES]; // zeros
static uint32_t crcs[LAYERS];

static void make_block(void)
{
    for (size_t i = 0; i < sizeof(block); i++) {
        block[i] = (uint8_t)(i * 13 + 1);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        crcs[l] = as_crc32c(0, block + l * EXTENT_BYTES, EXTENT_BYTES);
    }
}

static as_wire_put_t put_of(uint8_t n)
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

static uint32_t status_of(const as_wire_put_t *ask, size_t payload_bytes)
{
    last_status = UINT32_MAX;
    say(ask, as_wire_put_bytes(ask->layers), block, payload_bytes);
    return last_status;
}

static void put(uint8_t n)
{
    const as_wire_put_t ask = put_of(n);
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_OK);
}

static void locate(uint8_t n)
{
    const as_wire_locate_t ask = {as_wire_head(AS_WIRE_LOCATE, 5), 1, 5000, AS_WIRE_FULL, 0};
    as_key_t key = key_of(n);
    say(&ask, sizeof(ask), &key, sizeof(key));
    assert_int_equal(last_status, AS_WIRE_OK);
}

static void expect_nothing_held(void)
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

// One message of each type that a client may say, as sound as it can be.
static size_t sound_message(uint32_t type, uint8_t header[512], uint8_t payload[sizeof(block)],
                            size_t *payload_bytes)
{
    memset(header, 0, 512);
    *payload_bytes = 0;
    const as_wire_head_t head = as_wire_head(type, 9);
    memcpy(header, &head, sizeof(head));
    if (type == AS_WIRE_HELLO) {
        ((as_wire_hello_t *)(void *)header)->role = AS_WIRE_CLIENT;
    } else if (type == AS_WIRE_LOCATE) {
        as_wire_locate_t ask = {head, 1, 5000, AS_WIRE_FULL, 0};
        as_key_t key = key_of(1);
        memcpy(header, &ask, sizeof(ask));
        memcpy(payload, &key, *payload_bytes = sizeof(key));
    } else if (type == AS_WIRE_READ) {
        as_wire_read_t ask = {head, lease, 1, 0, {{9, 0, 1, 0, 1}}};
        memcpy(header, &ask, sizeof(ask));
    } else if (type == AS_WIRE_RENEW) {
        as_wire_renew_t ask = {head, lease, 5000, 0};
        memcpy(header, &ask, sizeof(ask));
    } else if (type == AS_WIRE_PUT) {
        as_wire_put_t ask = put_of(77);
        memcpy(header, &ask, as_wire_put_bytes(LAYERS));
        memcpy(payload, block, *payload_bytes = sizeof(block));
        return as_wire_put_bytes(LAYERS);
    } else if (type == AS_WIRE_SHARE) {
        as_wire_share_t ask = {head, sizeof(block), as_shared_name(&stage)};
        memcpy(header, &ask, sizeof(ask));
    } else {
        as_wire_release_t ask = {head, lease};
        memcpy(header, &ask, sizeof(ask));
    }
    return as_wire_bytes(type);
}

static const uint32_t questions[] = {AS_WIRE_HELLO, AS_WIRE_LOCATE, AS_WIRE_READ, AS_WIRE_RELEASE,
                                     AS_WIRE_SHARE, AS_WIRE_PUT,    AS_WIRE_RENEW};

static void every_truncated_header_ends_the_connection_and_nothing_else(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        uint8_t header[512], payload[sizeof(block)];
        size_t payload_bytes, whole = sound_message(questions[q], header, payload, &payload_bytes);
        for (size_t bytes = 0; bytes < whole; bytes++) {
            connect_anew();
            sound_message(questions[q], header, payload, &payload_bytes);
            uint32_t before = lost;
            say(header, bytes, payload, payload_bytes);
            assert_int_equal(lost, before + 1);
        }
    }
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_held();
}

static void every_changed_byte_is_survived(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        uint8_t header[512], payload[sizeof(block)];
        size_t payload_bytes, whole = sound_message(questions[q], header, payload, &payload_bytes);
        for (size_t at = 0; at < whole; at++) {
            for (int value = 0; value < 3; value++) {
                connect_anew();
                kvs_store_drop_all(store);
                put(1);
                locate(1);
                sound_message(questions[q], header, payload, &payload_bytes);
                header[at] = value == 0   ? (uint8_t)(header[at] ^ 1)
                             : value == 1 ? 0xff
                                          : (uint8_t)(header[at] + 0x80);
                say(header, whole, payload, payload_bytes);
                expect_nothing_held();
            }
        }
    }
    as_log_set_level(AS_LOG_INFO);
    connect_anew(); // it still serves
    kvs_store_drop_all(store);
    put(1);
}

static void expect_nothing_stored(void)
{
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.blocks + stat.ram_bytes_used + stat.reservations, 0);
}

static void a_wrong_checksum_is_refused_and_the_key_is_free_again(void **state)
{
    (void)state;
    connect_anew();
    const as_wire_put_t ask = put_of(1);
    block[EXTENT_BYTES + 5] ^= 4;
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_CHECKSUM);
    expect_nothing_stored();
    put(1);
}

static void a_block_that_arrives_in_part_is_never_found(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    connect_anew();
    const as_wire_put_t ask = put_of(1);
    for (size_t bytes = 0; bytes < sizeof(block); bytes++) {
        assert_int_equal(status_of(&ask, bytes), AS_WIRE_INVALID);
        expect_nothing_stored();
    }
    as_log_set_level(AS_LOG_INFO);
    put(1);
    locate(1);
    expect_nothing_held();
}

// Of a large block the announcement alone is here for a second, until the bytes that the store asks for
// come.
static as_wire_put_t large_put_of(uint8_t n)
{
    as_wire_put_t ask = put_of(n);
    ask.extent_bytes = LARGE_BYTES / LAYERS;
    for (uint32_t l = 0; l < LAYERS; l++) {
        ask.crcs[l] = as_crc32c(0, large + l * ask.extent_bytes, ask.extent_bytes);
    }
    return ask;
}

static uint64_t reservations(void)
{
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    return stat.reservations;
}

static void announce_large(uint8_t n, uint64_t reservations_then)
{
    const as_wire_put_t ask = large_put_of(n);
    const as_sim_faults_t slow = {.delay_us_min = 1000000, .delay_us_max = 1000000};
    assert_int_equal(
        as_net_send(conn, &ask, as_wire_put_bytes(LAYERS), large, LARGE_BYTES, on_sent, NULL),
        AS_OK);
    as_sim_set_faults(sim, &slow);
    while (reservations() < reservations_then) {
        assert_true(as_loop_run_once(loop, true));
    }
    as_sim_set_faults(sim, &(as_sim_faults_t){0});
}

static uint32_t status_of_large(const as_wire_put_t *ask)
{
    last_status = UINT32_MAX;
    say(ask, as_wire_put_bytes(LAYERS), large, LARGE_BYTES);
    return last_status;
}

static void a_second_put_is_told_whether_its_bytes_are_the_same(void **state)
{
    (void)state;
    connect_anew();
    for (int sealed = 0; sealed < 2; sealed++) { // first while another writer is at it
        if (sealed) {
            for (int wait = 0; wait < 20; wait++) {
                settle();
            }
        } else {
            announce_large(1, 1);
        }
        assert_int_equal(reservations(), !sealed);
        as_wire_put_t again = large_put_of(1);
        assert_int_equal(status_of_large(&again), AS_WIRE_EXISTS);
        again.flags = AS_WIRE_DURABLE; // there is no disk, or nothing to make durable yet
        assert_int_equal(status_of_large(&again), AS_WIRE_FAILED);
        again.flags = AS_WIRE_COPY; // a writer may yet give up
        assert_int_equal(status_of_large(&again), sealed ? AS_WIRE_EXISTS : AS_WIRE_BUSY);
        again.flags = 8;
        assert_int_equal(status_of_large(&again), AS_WIRE_INVALID);
        again.flags = 0;
        again.crcs[1] ^= 0x80000000u;
        assert_int_equal(status_of_large(&again), AS_WIRE_CONFLICT);
    }
    as_wire_put_t shape = large_put_of(1);
    shape.tokens = 15;
    assert_int_equal(status_of_large(&shape), AS_WIRE_CONFLICT);
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.conflicts, 3);
    locate(1); // what was there first stays
    expect_nothing_held();
}

static void a_put_whose_bytes_do_not_come_ends_by_its_deadline(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    connect_anew();
    announce_large(1, 1);
    as_sim_stop(sim, peer);
    for (int wait = 0; wait < 110; wait++) { // 11 s: a put has 10
        settle();
    }
    assert_int_equal(reservations(), 1);     // the network may yet write
    for (int wait = 0; wait < 600; wait++) { // its connection is closed
        settle();
    }
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_stored();
    as_sim_resume(sim, peer);
    connect_anew();
    put(1);
}

static uint32_t status_of_share(uint64_t bytes, const as_shared_name_t *name)
{
    const as_wire_share_t ask = {as_wire_head(AS_WIRE_SHARE, 3), bytes, *name};
    last_status = UINT32_MAX;
    say(&ask, sizeof(ask), NULL, 0);
    return last_status;
}

static as_wire_put_t staged_put_of(uint8_t n, uint64_t offset)
{
    as_wire_put_t ask = put_of(n);
    ask.flags = AS_WIRE_STAGED;
    ask.offset = offset;
    return ask;
}

static void a_block_is_taken_out_of_the_memory_of_its_writer(void **state)
{
    (void)state;
    connect_anew();
    uint8_t *memory = stage.memory;
    const as_shared_name_t name = as_shared_name(&stage);
    as_wire_put_t ask = staged_put_of(1, 64);
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID); // nothing is shared yet
    assert_int_equal(status_of_share(stage.bytes, &name), AS_WIRE_OK);
    memcpy(memory + 64, block, sizeof(block));
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_INVALID); // it comes twice
    ask.offset = stage.bytes - sizeof(block) + 1;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
    ask.offset = UINT64_MAX - 100;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
    ask.offset = 63; // other bytes than were promised
    assert_int_equal(status_of(&ask, 0), AS_WIRE_CHECKSUM);
    expect_nothing_stored();
    ask.offset = 64;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_OK);
    memset(memory, 0, stage.bytes); // it was copied
    locate(1);
    const as_wire_read_t read = {as_wire_head(AS_WIRE_READ, 0), lease, 1, 0, {{6, 0, 2, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
    assert_memory_equal(data, block, sizeof(block));
    assert_int_equal(status_of_share(stage.bytes, &name), UINT32_MAX); // once on a connection
    assert_null(conn);
    expect_nothing_held();
}

static void memory_that_is_not_the_writers_is_not_mapped(void **state)
{
    (void)state;
    const as_shared_name_t right = as_shared_name(&stage);
    as_shared_name_t name = right;
    name.secret[0] ^= 1;
    connect_anew();
    assert_int_equal(status_of_share(stage.bytes, &name), AS_WIRE_NOT_FOUND);
    assert_int_equal(status_of_share(stage.bytes + 1, &right), AS_WIRE_NOT_FOUND);
    assert_int_equal(status_of_share(0, &right), AS_WIRE_LIMIT);
    assert_int_equal(status_of_share(UINT64_MAX, &right), AS_WIRE_LIMIT);
    const as_wire_put_t ask = staged_put_of(1, 0);
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
    assert_int_equal(status_of_share(stage.bytes, &right), AS_WIRE_OK);
}

static void another_connection_cannot_use_a_lease(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    locate(1);
    uint64_t its = lease;
    const as_wire_read_t read = {as_wire_head(AS_WIRE_READ, 0), its, 1, 0, {{6, 0, 2, 0, 1}}};
    const as_wire_renew_t renew = {as_wire_head(AS_WIRE_RENEW, 7), its, 1000, 0};
    say(&renew, sizeof(renew), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    assert_int_equal(data_bytes, sizeof(block));
    as_conn_t *first = conn;
    conn = NULL;
    connect_anew();
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_LEASE);
    say(&renew, sizeof(renew), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_LEASE);
    as_net_close(first);
    expect_nothing_held();
}

static void a_read_of_an_unknown_class_ends_the_connection(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    locate(1);
    as_wire_read_t read = {
        as_wire_head(AS_WIRE_READ, 0), lease, 1, AS_WIRE_CLASS_COUNT - 1, {{6, 0, 2, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    uint32_t before = answers;
    read.urgency++;
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(answers, before);
    assert_null(conn);
    expect_nothing_held();
}

static void past_their_limits_puts_and_leases_are_busy(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    for (uint8_t n = 0; n < 8; n++) {
        announce_large((uint8_t)(100 + n), 1 + n);
    }
    const as_wire_put_t ninth = put_of(108);
    assert_int_equal(status_of(&ninth, sizeof(block)), AS_WIRE_BUSY);
    const as_wire_locate_t ask = {as_wire_head(AS_WIRE_LOCATE, 5), 1, 60000, AS_WIRE_FULL, 0};
    as_key_t key = key_of(1);
    for (int n = 0; n < 9; n++) {
        say(&ask, sizeof(ask), &key, sizeof(key));
        assert_int_equal(last_status, n < 8 ? AS_WIRE_OK : AS_WIRE_BUSY);
    }
    expect_nothing_held();
}

static void a_store_whose_index_is_full_evicts_before_its_memory_is(void **state)
{
    (void)state;
    kvs_store_free(store);
    kvs_store_options_t options = defaults();
    options.blocks_max = 40;
    assert_int_equal(kvs_store_alloc(&options, &store), AS_OK);
    connect_anew();
    for (uint8_t n = 1; n < 200; n++) {
        put(n);
    }
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_true(stat.ram_bytes_used < stat.ram_bytes_max / 2);
    assert_in_range(stat.blocks, 30, 39);
    expect_nothing_held();
}

static void the_failure_of_each_allocation_at_start_is_survived(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    as_mem_fail_nth(0);
    uint32_t failed = 0;
    for (uint64_t n = 1; n < 200; n++) {
        kvs_store_options_t options = defaults();
        kvs_store_t *other = NULL;
        options.data_address = "other:1";
        options.net_ctx = (void *)(uintptr_t) "other";
        as_mem_fail_nth(n);
        as_status_t status = kvs_store_alloc(&options, &other);
        as_mem_fail_nth(0);
        kvs_store_free(other);
        if (status == AS_OK) {
            break;
        }
        assert_int_equal(status, AS_ERR_NO_MEMORY);
        failed++;
    }
    as_log_set_level(AS_LOG_INFO);
    assert_true(failed >= 8 && failed < 199);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_truncated_header_ends_the_connection_and_nothing_else),
        TEST(every_changed_byte_is_survived),
        TEST(a_wrong_checksum_is_refused_and_the_key_is_free_again),
        TEST(a_block_that_arrives_in_part_is_never_found),
        TEST(a_second_put_is_told_whether_its_bytes_are_the_same),
        TEST(a_put_whose_bytes_do_not_come_ends_by_its_deadline),
        TEST(a_block_is_taken_out_of_the_memory_of_its_writer),
        TEST(memory_that_is_not_the_writers_is_not_mapped),
        TEST(a_read_of_an_unknown_class_ends_the_connection),
        TEST(another_connection_cannot_use_a_lease),
        TEST(past_their_limits_puts_and_leases_are_busy),
        TEST(a_store_whose_index_is_full_evicts_before_its_memory_is),
        TEST(the_failure_of_each_allocation_at_start_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
