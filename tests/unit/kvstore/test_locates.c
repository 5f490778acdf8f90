// SPDX-License-Identifier: Apache-2.0
// A peer that asks and asks and takes no answer: until it is closed, a minute later, others are served.
#include "tests/unit/client/world.h"

#include "kvstore/store.h"

static as_conn_t *greedy;
static uint32_t answers, status_told;

static void on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    as_net_close(conn);
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)ctx;
    (void)conn;
    answers++;
    if (((const as_wire_head_t *)msg->header)->type == AS_WIRE_LOCATED) {
        status_told = ((const as_wire_located_t *)msg->header)->status;
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

static void ask(const void *header, size_t bytes, const void *payload, size_t payload_bytes)
{
    assert_int_equal(as_net_send(greedy, header, bytes, payload, payload_bytes, on_sent, NULL),
                     AS_OK);
}

static void a_connection_leaves_room_for_the_locates_of_others(void **state)
{
    (void)state;
    world_t world;
    const world_options_t options = world_defaults(true);
    world_open(&world, &options);
    put_chain(&world, 8);
    kvs_store_t *store = world.stores[0];
    const as_net_handlers_t handlers = {NULL, on_accept, on_message, on_lost};
    as_net_t *net;
    assert_int_equal(as_net_alloc_sim(world.sim, "greedy", &handlers, &net), AS_OK);
    assert_int_equal(as_net_connect(net, kvs_store_address(store), &greedy), AS_OK);
    const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    ask(&hello, sizeof(hello), NULL, 0);
    world_pass(&world, 100000);
    assert_int_equal(answers, 1);
    // The simulated network lets go of an answer at once: so the slots are taken from under it.
    kvs_conn_t *conn = store->conns; // the newest
    conn->locates = KVS_LOCATES_MAX / 2;
    store->locates_left -= KVS_LOCATES_MAX / 2;
    const as_wire_locate_t locate = {
        .head = as_wire_head(AS_WIRE_LOCATE, 2), .key_count = 1, .kind = AS_WIRE_FULL};
    ask(&locate, sizeof(locate), &world.keys[0], sizeof(world.keys[0]));
    world_pass(&world, 100000);
    assert_int_equal(status_told, AS_WIRE_BUSY);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 8});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 8);
    conn->locates--; // one of its answers is gone
    store->locates_left++;
    ask(&locate, sizeof(locate), &world.keys[0], sizeof(world.keys[0]));
    world_pass(&world, 100000);
    assert_int_equal(status_told, AS_WIRE_OK);
    assert_int_equal(conn->locates, KVS_LOCATES_MAX / 2 - 1);
    store->locates_left += conn->locates;
    conn->locates = 0;
    assert_int_equal(store->locates_left, KVS_LOCATES_MAX);
    as_net_free(net);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_leaves_room_for_the_locates_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
