// SPDX-License-Identifier: Apache-2.0
// A store with the cluster's keys, fed with raw messages: who is admitted, what a token allows, and
// that a block of one tenant is for another as one that is not there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/checksum.h"
#include "common/log.h"
#include "common/net_sim.h"
#include "kvstore/kvstore.h"
#include "proto/wire.h"
#include "tests/unit/common/temporary_folder.h"

#define KEY_A        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
#define KEY_B        "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
#define EXTENT_BYTES 1024u
#define FOR_EVER     3600u
#define TIMED        255u
#define BOTH         (AS_TOKEN_READ | AS_TOKEN_WRITE)

static char folder[TEMPORARY_FOLDER_BYTES], key_file[64];
static as_loop_t *loop;
static as_sim_t *sim;
static kvs_store_t *store;
static as_net_t *peer;

// The last answer on a connection.
typedef struct client {
    as_conn_t *conn; // NULL: it was closed by the store
    uint32_t answers, status;
    as_wire_hello_reply_t hello;
    as_wire_place_t place;
    size_t payload_bytes;
} client_t;

static as_status_t net_alloc(void *ctx, as_loop_t *on, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    (void)on;
    return as_net_alloc_sim(sim, "store", handlers, net_p);
}

static void on_accept(void *ctx, as_conn_t *accepted)
{
    (void)ctx;
    as_net_close(accepted);
}

static void on_message(void *ctx, as_conn_t *from, as_net_msg_t *msg)
{
    (void)ctx;
    client_t *client = as_conn_user(from);
    assert_true(as_wire_check(msg->header, msg->header_bytes));
    client->answers++;
    client->payload_bytes = msg->data_bytes;
    switch (((const as_wire_head_t *)msg->header)->type) {
    case AS_WIRE_HELLO_REPLY:
        memcpy(&client->hello, msg->header, sizeof(client->hello));
        client->status = client->hello.status;
        break;
    case AS_WIRE_LOCATED:
        client->status = ((const as_wire_located_t *)msg->header)->status;
        if (client->status == AS_WIRE_OK && msg->data) {
            memcpy(&client->place, msg->data, sizeof(client->place));
        }
        break;
    case AS_WIRE_STORED:
        client->status = ((const as_wire_result_t *)msg->header)->status;
        break;
    default:
        fail();
    }
}

static void on_lost(void *ctx, as_conn_t *from, as_status_t status)
{
    (void)ctx;
    (void)status;
    client_t *client = as_conn_user(from);
    as_net_close(from);
    client->conn = NULL;
}

static void nothing(void *ctx)
{
    (void)ctx;
}

static void pass(uint64_t us)
{
    as_timer_t *timer;
    uint64_t end_us = as_loop_now_us(loop) + us;
    assert_int_equal(as_timer_alloc(loop, nothing, NULL, &timer), AS_OK);
    as_timer_start(timer, us);
    while (as_loop_now_us(loop) < end_us) {
        as_loop_run_once(loop, true);
    }
    as_timer_free(timer);
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void say(client_t *client, const void *header, size_t bytes, const void *payload,
                size_t payload_bytes)
{
    assert_non_null(client->conn);
    assert_int_equal(
        as_net_send(client->conn, header, bytes, payload, payload_bytes, on_sent, NULL), AS_OK);
    pass(20000);
}

static int begin(void **state)
{
    (void)state;
    const as_net_handlers_t handlers = {NULL, on_accept, on_message, on_lost, NULL};
    temporary_folder_make(folder);
    snprintf(key_file, sizeof(key_file), "%s/keys", folder);
    temporary_file_write(key_file, KEY_A);
    as_log_set_level(AS_LOG_ERROR); // denials are what these tests make
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    if (as_loop_alloc_sim(&loop) != AS_OK || as_sim_alloc(loop, 1, &sim) != AS_OK ||
        as_net_alloc_sim(sim, "peer", &handlers, &peer) != AS_OK) {
        return -1;
    }
    options.loop = loop;
    options.net_alloc = net_alloc;
    options.data_address = "store:1";
    options.ram_bytes = 4u << 20;
    options.cluster_key = key_file;
    return kvs_store_alloc(&options, &store) == AS_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    as_net_free(peer);
    kvs_store_free(store);
    as_sim_free(sim);
    as_loop_free(loop);
    as_log_set_level(AS_LOG_INFO);
    return temporary_folder_remove(folder);
}

static kvs_stat_t stat_now(void)
{
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    return stat;
}

// ---- what clients say

static as_token_sealed_t token_of(const char *keys_text, uint32_t tenant, uint32_t rights,
                                  int64_t ttl_s)
{
    as_cluster_keys_t keys;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_token_sealed_t sealed;
    as_token_t token = {
        .tenant = tenant, .rights = rights, .not_after_s = as_token_now_s() + (uint64_t)ttl_s};
    assert_int_equal(as_cluster_keys_parse(keys_text, strlen(keys_text), &keys, why), AS_OK);
    assert_int_equal(as_token_sign(&keys, &token, &sealed), AS_OK);
    return sealed;
}

static void greet(client_t *client, const as_token_sealed_t *token)
{
    as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    if (token) {
        hello.token_bytes = AS_TOKEN_BYTES;
        memcpy(hello.token, token->bytes, sizeof(hello.token));
    }
    say(client, &hello, sizeof(hello), NULL, 0);
}

static void join(client_t *client)
{
    memset(client, 0, sizeof(*client));
    assert_int_equal(as_net_connect(peer, kvs_store_address(store), &client->conn), AS_OK);
    as_conn_set_user(client->conn, client);
}

static void leave(client_t *client)
{
    if (client->conn) {
        as_net_close(client->conn);
        client->conn = NULL;
        pass(20000);
    }
}

static void enter_for(client_t *client, uint32_t tenant, uint32_t rights, int64_t ttl_s)
{
    as_token_sealed_t token = token_of(KEY_A, tenant, rights, ttl_s);
    join(client);
    greet(client, &token);
    assert_int_equal(client->status, AS_WIRE_OK);
}

static void enter(client_t *client, uint32_t tenant, uint32_t rights)
{
    enter_for(client, tenant, rights, FOR_EVER);
}

static as_key_t key_of(uint8_t n)
{
    as_key_t key = {{n, 7}};
    return key;
}

static as_wire_locate_t locate_of(uint32_t tenant)
{
    return (as_wire_locate_t){as_wire_head(AS_WIRE_LOCATE, 5), 1, 5000, AS_WIRE_FULL, tenant};
}

// The place of block n, as the answer has it.
static as_wire_place_t locate(client_t *client, uint8_t n, uint32_t tenant)
{
    const as_wire_locate_t ask = locate_of(tenant);
    as_key_t key = key_of(n);
    memset(&client->place, 0xee, sizeof(client->place));
    say(client, &ask, sizeof(ask), &key, sizeof(key));
    return client->place;
}

static as_wire_put_t put_of(uint8_t n, uint32_t tenant, const uint8_t *block, size_t bytes)
{
    as_wire_put_t ask = {.head = as_wire_head(AS_WIRE_PUT, 2),
                         .key = key_of(n),
                         .parent = key_of(0),
                         .namespace_key = key_of(0),
                         .kind = AS_WIRE_FULL,
                         .layers = 1,
                         .extent_bytes = (uint32_t)bytes,
                         .tokens = 16,
                         .tenant = tenant};
    ask.crcs[0] = as_crc32c(0, block, bytes);
    return ask;
}

// Puts block n whose bytes are all `fill`.
static uint32_t put(client_t *client, uint8_t n, uint8_t fill, uint32_t tenant)
{
    uint8_t block[EXTENT_BYTES];
    memset(block, fill, sizeof(block));
    const as_wire_put_t ask = put_of(n, tenant, block, sizeof(block));
    client->status = UINT32_MAX;
    say(client, &ask, as_wire_put_bytes(1), block, sizeof(block));
    return client->status;
}

// ---- who is admitted

static void assert_denied(const as_token_sealed_t *token, kvs_stat_t *before)
{
    client_t client;
    join(&client);
    greet(&client, token);
    assert_int_equal(client.status, AS_WIRE_DENIED);
    as_wire_hello_reply_t nothing_else = {.head = client.hello.head, .status = AS_WIRE_DENIED};
    assert_memory_equal(&client.hello, &nothing_else, sizeof(nothing_else));
    assert_int_equal(client.payload_bytes, 0);
    assert_int_equal(stat_now().denied, ++before->denied);
    const as_wire_locate_t ask = locate_of(0); // asked all the same
    as_key_t key = key_of(1);
    say(&client, &ask, sizeof(ask), &key, sizeof(key));
    assert_null(client.conn);
    assert_int_equal(client.answers, 1);
}

static void only_a_good_token_is_admitted(void **state)
{
    (void)state;
    kvs_stat_t before = stat_now();
    as_token_sealed_t token = token_of(KEY_A, 7, BOTH, FOR_EVER);
    assert_denied(NULL, &before);
    as_token_sealed_t bad = token;
    bad.bytes[8] ^= 1; // of another tenant
    assert_denied(&bad, &before);
    bad = token;
    bad.bytes[6] |= AS_TOKEN_PEER | AS_TOKEN_DIRECT;
    assert_denied(&bad, &before);
    bad = token;
    bad.bytes[16]++; // holds longer
    assert_denied(&bad, &before);
    memset(&bad, 0, sizeof(bad));
    assert_denied(&bad, &before);
    bad = token_of(KEY_B, 7, BOTH, FOR_EVER); // of another cluster
    assert_denied(&bad, &before);
    bad = token_of(KEY_A, 7, BOTH, -1);
    assert_denied(&bad, &before);
    client_t client;
    join(&client);
    greet(&client, &token);
    assert_int_equal(client.status, AS_WIRE_OK);
    assert_int_equal(stat_now().denied, before.denied);
    leave(&client);
}

static void the_pools_key_is_for_those_who_may_read_it_themselves(void **state)
{
    (void)state;
    client_t client;
    enter(&client, 7, BOTH);
    assert_int_equal(client.hello.rkey_bytes, 0);
    leave(&client);
    enter(&client, 7, BOTH | AS_TOKEN_DIRECT);
    assert_true(client.hello.rkey_bytes > 0);
    leave(&client);
}

static void a_token_allows_what_it_says(void **state)
{
    (void)state;
    client_t writer, reader;
    enter(&writer, 7, AS_TOKEN_WRITE);
    enter(&reader, 7, AS_TOKEN_READ);
    assert_int_equal(put(&writer, 1, 'a', 0), AS_WIRE_OK);
    assert_int_equal(put(&reader, 2, 'a', 0), AS_WIRE_DENIED);
    assert_int_equal(locate(&reader, 1, 0).status, AS_WIRE_OK);
    locate(&writer, 1, 0);
    assert_int_equal(writer.status, AS_WIRE_DENIED);
    assert_int_equal(stat_now().denied, 2);
    assert_int_equal(stat_now().leases, 1);
    // What could only follow a question that was denied ends the connection.
    const as_wire_read_t read = {.head = as_wire_head(AS_WIRE_READ, 1),
                                 .lease_id = 1,
                                 .ask_count = 1,
                                 .asks = {{9, 0, 1, 0, 1}}};
    say(&writer, &read, sizeof(read), NULL, 0);
    assert_null(writer.conn);
    leave(&reader);
}

static void a_silent_connection_is_closed(void **state)
{
    (void)state;
    client_t client;
    join(&client);
    pass(4000000);
    assert_non_null(client.conn);
    pass(2500000);
    assert_null(client.conn);
    assert_int_equal(stat_now().connections, 0);
}

// ---- until when

static void a_connection_ends_with_its_token(void **state)
{
    (void)state;
    client_t client;
    enter_for(&client, 7, BOTH, 5);
    assert_int_equal(put(&client, 1, 'a', 0), AS_WIRE_OK);
    assert_int_equal(locate(&client, 1, 0).status, AS_WIRE_OK);
    assert_int_equal(stat_now().leases, 1);
    pass(3000000);
    assert_non_null(client.conn);
    pass(4000000); // nothing is asked
    assert_null(client.conn);
    assert_int_equal(stat_now().leases, 0);
    assert_int_equal(stat_now().denied, 1);
}

static void another_hello_prolongs_it(void **state)
{
    (void)state;
    client_t client;
    enter_for(&client, 7, BOTH, 5);
    as_token_sealed_t token = token_of(KEY_A, 7, AS_TOKEN_READ, 60);
    greet(&client, &token);
    assert_int_equal(client.status, AS_WIRE_OK);
    pass(20000000);
    assert_int_equal(locate(&client, 1, 0).status, AS_WIRE_NOT_FOUND);
    assert_int_equal(put(&client, 1, 'a', 0), AS_WIRE_DENIED); // the rights are the new one's
    token = token_of(KEY_A, 8, BOTH, 60);
    greet(&client, &token); // of another tenant
    assert_null(client.conn);
}

static void keys_change_without_a_restart(void **state)
{
    (void)state;
    client_t old, new;
    enter(&old, 7, BOTH);
    as_token_sealed_t token = token_of(KEY_B, 7, BOTH, FOR_EVER);
    temporary_file_write(key_file, KEY_B KEY_A);
    join(&new);
    greet(&new, &token);
    assert_int_equal(new.status, AS_WIRE_OK);
    pass(3000000);
    assert_non_null(old.conn);                   // its key is still there
    temporary_file_write(key_file, "damaged\n"); // the keys stay as they were
    pass(3000000);
    assert_non_null(old.conn);
    temporary_file_write(key_file, KEY_B);
    pass(3000000);
    assert_null(old.conn);
    assert_non_null(new.conn);
    leave(&new);
}

// ---- tenants

static void a_tenants_block_is_not_there_for_another(void **state)
{
    (void)state;
    client_t ours, theirs, distant;
    enter(&ours, 7, BOTH | AS_TOKEN_DIRECT);
    enter(&theirs, 8, BOTH | AS_TOKEN_DIRECT);
    assert_int_equal(put(&ours, 1, 'a', 0), AS_WIRE_OK);
    as_wire_place_t place = locate(&theirs, 1, 0), absent = locate(&theirs, 99, 0);
    assert_memory_equal(&place, &absent, sizeof(place)); // every byte of the answer
    assert_int_equal(place.status, AS_WIRE_NOT_FOUND);
    assert_int_equal(stat_now().hits, 0);
    // A put of the key is granted as of one that is not there, also with other bytes; and again when it
    // is there.
    assert_int_equal(put(&theirs, 1, 'b', 0), AS_WIRE_OK);
    assert_int_equal(put(&theirs, 1, 'b', 0), AS_WIRE_EXISTS);
    assert_int_equal(put(&ours, 1, 'b', 0), AS_WIRE_CONFLICT);
    assert_int_equal(stat_now().blocks, 2);
    assert_int_equal(stat_now().conflicts, 1);
    uint64_t our_address = locate(&ours, 1, 0).address;
    assert_int_not_equal(our_address, locate(&theirs, 1, 0).address);
    enter(&distant, 7, BOTH); // who reads by messages need not know where blocks lie
    assert_int_equal(locate(&distant, 1, 0).status, AS_WIRE_OK);
    assert_int_equal(locate(&distant, 1, 0).address, 0);
    leave(&distant);
    as_key_t key = key_of(1);
    assert_true(kvs_store_drop(store, &key, 8));
    assert_int_equal(locate(&theirs, 1, 0).status, AS_WIRE_NOT_FOUND);
    assert_int_equal(locate(&ours, 1, 0).address, our_address);
    leave(&ours);
    leave(&theirs);
}

static uint64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// The shortest of many times that the store takes for a question of 255 keys: what disturbs a
// machine only ever makes it longer.
static void time_locates(client_t *client, const as_key_t *keys, uint64_t *shortest_ns_p)
{
    as_wire_locate_t ask = locate_of(0);
    ask.key_count = TIMED;
    ask.lease_ms = 0; // only to look
    uint32_t before = client->answers;
    assert_int_equal(
        as_net_send(client->conn, &ask, sizeof(ask), keys, TIMED * sizeof(*keys), on_sent, NULL),
        AS_OK);
    uint64_t begin_ns = wall_ns();
    while (client->answers == before) {
        as_loop_run_once(loop, true);
    }
    uint64_t ns = wall_ns() - begin_ns;
    *shortest_ns_p = ns < *shortest_ns_p ? ns : *shortest_ns_p;
}

static void a_tenants_blocks_take_no_longer_than_none(void **state)
{
    (void)state;
    client_t ours, theirs;
    static as_key_t there[TIMED], absent[TIMED];
    enter(&ours, 7, BOTH);
    enter(&theirs, 8, BOTH);
    for (uint32_t n = 0; n < TIMED; n++) {
        there[n] = key_of((uint8_t)(n + 1)); // 0 is the namespace
        absent[n] = (as_key_t){{(uint8_t)n, 8}};
        assert_int_equal(put(&ours, (uint8_t)(n + 1), 'a', 0), AS_WIRE_OK);
    }
    uint64_t there_ns = UINT64_MAX, absent_ns = UINT64_MAX;
    for (uint32_t round = 0; round < 2000; round++) {
        time_locates(&theirs, there, &there_ns);
        time_locates(&theirs, absent, &absent_ns);
    }
    uint64_t more = there_ns > absent_ns ? there_ns - absent_ns : absent_ns - there_ns;
    printf("255 keys: %llu ns where another tenant has them, %llu ns where nobody has\n",
           (unsigned long long)there_ns, (unsigned long long)absent_ns);
    assert_true(more < absent_ns / 10);
    leave(&ours);
    leave(&theirs);
}

// A block of another tenant that is being written is as invisible as one that is there.
static void a_tenants_writer_is_not_there_for_another(void **state)
{
    (void)state;
    static const uint8_t large[16384]; // its bytes do not come with the message
    client_t ours, theirs;
    enter(&ours, 7, BOTH);
    enter(&theirs, 8, BOTH);
    const as_wire_put_t ask = put_of(1, 0, large, sizeof(large));
    const as_sim_faults_t slow = {.delay_us_min = 1000000, .delay_us_max = 1000000};
    assert_int_equal(
        as_net_send(ours.conn, &ask, as_wire_put_bytes(1), large, sizeof(large), on_sent, NULL),
        AS_OK);
    as_sim_set_faults(sim, &slow);
    while (stat_now().reservations == 0) {
        assert_true(as_loop_run_once(loop, true));
    }
    as_sim_set_faults(sim, &(as_sim_faults_t){0});
    assert_int_equal(put(&theirs, 1, 'b', 0), AS_WIRE_OK);
    assert_int_equal(stat_now().reservations, 1); // it is still at it
    leave(&ours);
    leave(&theirs);
}

static void only_a_peer_names_a_tenant(void **state)
{
    (void)state;
    client_t ours, copier;
    enter(&ours, 7, BOTH);
    assert_int_equal(put(&ours, 1, 'a', 0), AS_WIRE_OK);
    enter(&copier, 0, BOTH | AS_TOKEN_PEER);
    assert_int_equal(locate(&copier, 1, 0).status, AS_WIRE_NOT_FOUND);
    assert_int_equal(locate(&copier, 1, 7).status, AS_WIRE_OK);
    assert_int_equal(put(&copier, 2, 'c', 7), AS_WIRE_OK);
    assert_int_equal(locate(&ours, 2, 0).status, AS_WIRE_OK);
    locate(&ours, 1, 7); // its own, but it has no say in it
    assert_null(ours.conn);
    enter(&ours, 8, BOTH);
    put(&ours, 3, 'd', 7);
    assert_null(ours.conn);
    leave(&copier);
}

// What a store that drains says of its blocks: how hot, how pinned.
static void only_a_peer_hands_over_pins_and_heat(void **state)
{
    (void)state;
    const uint32_t flags[] = {AS_WIRE_HOT, AS_WIRE_PIN_SOFT, AS_WIRE_PIN_HARD};
    static const uint8_t block[EXTENT_BYTES];
    client_t client;
    for (uint8_t i = 0; i < 3; i++) {
        as_wire_put_t ask = put_of((uint8_t)(10 + i), 0, block, sizeof(block));
        ask.flags = AS_WIRE_COPY | flags[i];
        enter(&client, 7, BOTH);
        say(&client, &ask, as_wire_put_bytes(1), block, sizeof(block));
        assert_null(client.conn);
        enter(&client, 0, BOTH | AS_TOKEN_PEER);
        say(&client, &ask, as_wire_put_bytes(1), block, sizeof(block));
        assert_int_equal(client.status, AS_WIRE_OK);
        ask.flags = flags[i]; // of no copy
        say(&client, &ask, as_wire_put_bytes(1), block, sizeof(block));
        assert_int_equal(client.status, AS_WIRE_INVALID);
        leave(&client);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_a_good_token_is_admitted, begin, end),
        cmocka_unit_test_setup_teardown(the_pools_key_is_for_those_who_may_read_it_themselves,
                                        begin, end),
        cmocka_unit_test_setup_teardown(a_token_allows_what_it_says, begin, end),
        cmocka_unit_test_setup_teardown(a_silent_connection_is_closed, begin, end),
        cmocka_unit_test_setup_teardown(a_connection_ends_with_its_token, begin, end),
        cmocka_unit_test_setup_teardown(another_hello_prolongs_it, begin, end),
        cmocka_unit_test_setup_teardown(keys_change_without_a_restart, begin, end),
        cmocka_unit_test_setup_teardown(a_tenants_block_is_not_there_for_another, begin, end),
        cmocka_unit_test_setup_teardown(a_tenants_blocks_take_no_longer_than_none, begin, end),
        cmocka_unit_test_setup_teardown(a_tenants_writer_is_not_there_for_another, begin, end),
        cmocka_unit_test_setup_teardown(only_a_peer_names_a_tenant, begin, end),
        cmocka_unit_test_setup_teardown(only_a_peer_hands_over_pins_and_heat, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
