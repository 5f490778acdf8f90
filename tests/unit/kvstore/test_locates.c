// SPDX-License-Identifier: Apache-2.0
// LOCATEs that wait for their turn: a peer that asks and asks and takes no answer leaves room to others
// until it is closed, a minute later; one that asks for much waits longer than one that asks for little;
// what a store is too busy for is asked again, and told as that when it never comes.
#include "tests/unit/client/world.h"

#include "kvstore/locate.h"

#define PEERS     2u
#define ORDER_MAX 64u

static world_t world;
static as_net_t *nets[PEERS];
static as_conn_t *peers[PEERS];
static kvs_conn_t *conns[PEERS]; // theirs, at the store
static uint32_t answers[PEERS], status_told;
static uint32_t order[ORDER_MAX], order_count; // whose answers came

static void on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    as_net_close(conn);
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)conn;
    uint32_t peer = (uint32_t)(uintptr_t)ctx;
    answers[peer]++;
    if (((const as_wire_head_t *)msg->header)->type == AS_WIRE_LOCATED) {
        status_told = ((const as_wire_located_t *)msg->header)->status;
        order[order_count++ % ORDER_MAX] = peer;
    }
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)ctx;
    (void)status;
    as_net_close(conn);
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void say(uint32_t peer, const void *header, size_t bytes, const void *payload,
                size_t payload_bytes)
{
    assert_int_equal(as_net_send(peers[peer], header, bytes, payload, payload_bytes, on_sent, NULL),
                     AS_OK);
}

static void ask(uint32_t peer)
{
    const as_wire_locate_t locate = {
        .head = as_wire_head(AS_WIRE_LOCATE, 2), .key_count = 1, .kind = AS_WIRE_FULL};
    say(peer, &locate, sizeof(locate), &world.keys[0], sizeof(world.keys[0]));
}

static int begin(void **state)
{
    (void)state;
    world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_chain(&world, 8);
    memset(answers, 0, sizeof(answers));
    order_count = 0;
    for (uint32_t i = 0; i < PEERS; i++) {
        const as_net_handlers_t handlers = {(void *)(uintptr_t)i, on_accept, on_message, on_lost,
                                            NULL};
        char name[16];
        snprintf(name, sizeof(name), "peer%u", i);
        assert_int_equal(as_net_alloc_sim(world.sim, name, &handlers, &nets[i]), AS_OK);
        assert_int_equal(as_net_connect(nets[i], kvs_store_address(world.stores[0]), &peers[i]),
                         AS_OK);
        const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1),
                                       .role = AS_WIRE_CLIENT};
        say(i, &hello, sizeof(hello), NULL, 0);
        world_pass(&world, 100000);
        assert_int_equal(answers[i], 1);
        conns[i] = world.stores[0]->conns; // the newest
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PEERS; i++) {
        as_net_free(nets[i]);
    }
    world_close(&world);
    return 0;
}

static kvs_locates_t *locates(void)
{
    return world.stores[0]->locates;
}

// The simulated network lets go of an answer at once: so the room is taken from under a peer.
static void take_answers(uint32_t peer, uint32_t count)
{
    conns[peer]->answers += count;
    locates()->answers_left -= count;
}

static void give_answers(uint32_t peer, uint32_t count)
{
    conns[peer]->answers -= count;
    locates()->answers_left += count;
    kvs_locates_wake(world.stores[0]);
}

static void a_connection_leaves_room_for_the_answers_of_others(void **state)
{
    (void)state;
    take_answers(0, KVS_ANSWERS_MAX / 2);
    ask(0);
    world_pass(&world, 100000);
    assert_int_equal(answers[0], 1); // it waits
    assert_int_equal(conns[0]->locates_waiting, 1);
    ask(1);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 8});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 8);
    assert_int_equal(answers[1], 2);
    give_answers(0, 1); // one of its answers is gone
    world_pass(&world, 100000);
    assert_int_equal(answers[0], 2);
    assert_int_equal(status_told, AS_WIRE_OK);
    ask(0);
    ask(0);
    take_answers(0, 1);
    world_pass(&world, KVS_LOCATE_WAIT_US + 2 * KVS_SWEEP_US + 100000);
    assert_int_equal(answers[0], 4); // not for ever
    assert_int_equal(status_told, AS_WIRE_BUSY);
    give_answers(0, KVS_ANSWERS_MAX / 2);
    assert_int_equal(locates()->answers_left, KVS_ANSWERS_MAX);
    assert_int_equal(locates()->left, KVS_LOCATES_MAX);
}

static void a_connection_leaves_room_for_the_locates_of_others(void **state)
{
    (void)state;
    take_answers(0, KVS_ANSWERS_MAX / 2);
    for (uint32_t i = 0; i < KVS_LOCATES_MAX; i++) {
        ask(0);
    }
    world_pass(&world, 100000);
    assert_int_equal(conns[0]->locates, KVS_LOCATES_MAX / 2);
    assert_int_equal(answers[0], 1 + KVS_LOCATES_MAX / 2); // the others are refused
    assert_int_equal(status_told, AS_WIRE_BUSY);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 8});
    assert_int_equal(result.status, AS_OK);
    as_net_close(peers[0]); // what waits goes with it
    world_pass(&world, KVS_LOCATE_WAIT_US + 200000);
    locates()->answers_left += KVS_ANSWERS_MAX / 2;
    assert_int_equal(locates()->left, KVS_LOCATES_MAX);
    assert_null(locates()->first);
}

static void turns_go_round_among_the_connections(void **state)
{
    (void)state;
    take_answers(0, KVS_ANSWERS_MAX / 2);
    take_answers(1, KVS_ANSWERS_MAX / 2);
    for (uint32_t i = 0; i < 20; i++) {
        ask(0);
    }
    world_pass(&world, 50000);
    ask(1);
    world_pass(&world, 50000);
    assert_int_equal(order_count, 0);
    give_answers(1, KVS_ANSWERS_MAX / 2);
    give_answers(0, KVS_ANSWERS_MAX / 2);
    world_pass(&world, 100000);
    assert_int_equal(order_count, 21);
    assert_true(order[0] == 1 || order[1] == 1);
}

// A store that has no room for the question: it is asked again, for as long as there is time.
static void what_a_store_is_too_busy_for_is_asked_again(void **state)
{
    (void)state;
    fetch_result_t result;
    locates()->left -= KVS_LOCATES_MAX;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 8}, &result), AS_OK);
    world_pass(&world, 500000);
    assert_false(result.done || result.located);
    locates()->left += KVS_LOCATES_MAX;
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 8);
    fetch_free(&result);
}

static void a_store_that_stays_too_busy_is_told_as_busy(void **state)
{
    (void)state;
    locates()->left -= KVS_LOCATES_MAX;
    uint64_t began_us = as_loop_now_us(world.loop);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 8, .deadline_us = 2000000});
    assert_int_equal(result.status, AS_ERR_BUSY);
    uint64_t took_us = as_loop_now_us(world.loop) - began_us;
    assert_in_range(took_us, 900000, 1200000); // half of its time
    locates()->left += KVS_LOCATES_MAX;
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 8}).status, AS_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_connection_leaves_room_for_the_answers_of_others),
        TEST(a_connection_leaves_room_for_the_locates_of_others),
        TEST(turns_go_round_among_the_connections),
        TEST(what_a_store_is_too_busy_for_is_asked_again),
        TEST(a_store_that_stays_too_busy_is_told_as_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
