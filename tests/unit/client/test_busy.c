// SPDX-License-Identifier: Apache-2.0
// Too little room for all: who is refused as long as a store is busy comes later, and is not told that his blocks are missing;
// and readers that take nothing leave room to those that do.
#include "tests/unit/client/world.h"

#include "client/internal.h"
#include "kvstore/store.h"

#define BLOCKS  32u
#define FETCHES 12u
#define ROGUES  6u
#define ASKS    30u // of one READ

static world_t world;

static void open_with(uint32_t leases, uint32_t reads)
{
    world_options_t options = world_defaults(true);
    options.messages = true;
    options.store.leases_max = leases;
    options.store.reads_max = reads;
    options.shape =
        (as_shape_t){4, 4, 4, 32, 16, AS_ELEMENT_F16}; // extents that stay until they are taken
    world_open(&world, &options);
    put_chain(&world, BLOCKS);
}

static void fetch_whole(void)
{
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = BLOCKS});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, BLOCKS);
}

static uint64_t busy_answers(void)
{
    return (uint64_t)as_metric_value(&kvs_metrics[KVS_METRIC_BUSY]);
}

static void reads_that_a_store_has_no_room_for_come_later(void **state)
{
    (void)state;
    uint64_t before = busy_answers();
    open_with(64, 4);
    fetch_whole();
    assert_true(busy_answers() > before);
    world_let_go(&world);
    world_close(&world);
}

static void fetches_that_get_no_lease_wait_for_one(void **state)
{
    (void)state;
    static fetch_result_t results[FETCHES];
    uint64_t before = busy_answers();
    open_with(8, 4096);
    for (uint32_t i = 0; i < FETCHES; i++) {
        const fetch_ask_t ask = {.first = i, .count = 8};
        assert_int_equal(fetch_begin(&world, ask, &results[i]), AS_OK);
    }
    for (uint32_t i = 0; i < FETCHES; i++) {
        assert_true(world_run(&world, &results[i].done));
        assert_int_equal(results[i].status, AS_OK);
        fetch_free(&results[i]);
    }
    assert_true(busy_answers() > before);
    world_let_go(&world);
    world_close(&world);
}

static void a_store_that_stays_busy_is_given_up(void **state)
{
    (void)state;
    open_with(8, 4096);
    kvs_store_t *store = world.stores[0];
    kvs_lease_owner_t others = {.first = KVS_LEASE_NONE};
    kvs_block_t *block = kvs_index_find(store->index, &world.keys[0], kvs_realm(0, AS_WIRE_FULL));
    uint64_t lease_id, held = 0;
    while (kvs_lease_begin(store->leases, &others, &block, 1, UINT64_MAX, &lease_id) == AS_OK) {
        held++;
    }
    assert_int_equal(held, 4);
    kvs_lease_owner_t more = {.first = KVS_LEASE_NONE};
    while (kvs_leases_count(store->leases) < 8) {
        more.count = 0; // as many others as it takes
        assert_int_equal(kvs_lease_begin(store->leases, &more, &block, 1, UINT64_MAX, &lease_id),
                         AS_OK);
    }
    uint64_t began_us = as_loop_now_us(world.loop);
    fetch_result_t result =
        fetch_chain(&world, (fetch_ask_t){.count = BLOCKS, .deadline_us = 10000000});
    assert_int_equal(result.status, AS_ERR_BUSY);
    assert_in_range(as_loop_now_us(world.loop) - began_us, 900000, 3000000);
    kvs_lease_end_owner(store->leases, &others);
    more.count = 8 - (uint32_t)held;
    kvs_lease_end_owner(store->leases, &more);
    fetch_whole(); // it was not taken for a store that is silent
    world_close(&world);
}

static void reads_of_a_client_that_has_none_left_wait(void **state)
{
    (void)state;
    static void *taken[READS_MAX];
    open_with(64, 4096);
    for (uint32_t i = 0; i < READS_MAX - 2; i++) {
        taken[i] = as_pool_take(world.client->reads);
    }
    fetch_whole();
    for (uint32_t i = 0; i < READS_MAX - 2; i++) {
        as_pool_give(world.client->reads, taken[i]);
    }
    world_close(&world);
}

static void questions_of_a_client_that_has_none_left_wait(void **state)
{
    (void)state;
    open_with(64, 4096);
    assay_call_t *rest = world.client->calls_unused->next;
    world.client->calls_unused->next = NULL;
    static fetch_result_t results[2];
    for (uint32_t i = 0; i < 2; i++) { // one of them has no call for its LOCATE
        assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = BLOCKS}, &results[i]), AS_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(world_run(&world, &results[i].done));
        assert_int_equal(results[i].status, AS_OK);
        fetch_free(&results[i]);
    }
    world.client->calls_unused->next = rest;
    world_close(&world);
}

// ---- readers that take nothing

typedef struct rogue {
    as_net_t *net;
    as_conn_t *conn;
    uint64_t lease_id;
} rogue_t;

static void rogue_on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    as_net_close(conn);
}

static void rogue_on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)conn;
    rogue_t *rogue = ctx;
    if (((const as_wire_head_t *)msg->header)->type == AS_WIRE_LOCATED) {
        rogue->lease_id = ((const as_wire_located_t *)msg->header)->lease_id;
    }
}

static void rogue_on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)status;
    ((rogue_t *)ctx)->conn = NULL;
    as_net_close(conn);
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void rogue_say(rogue_t *rogue, const void *header, size_t bytes, const void *data,
                      size_t data_bytes)
{
    assert_int_equal(as_net_send(rogue->conn, header, bytes, data, data_bytes, on_sent, NULL),
                     AS_OK);
    world_pass(&world, 10000);
}

// Asks for much and takes none of it.
static void rogue_start(rogue_t *rogue, const char *name)
{
    const as_net_handlers_t handlers = {rogue, rogue_on_accept, rogue_on_message, rogue_on_lost,
                                        NULL};
    assert_int_equal(as_net_alloc_sim(world.sim, name, &handlers, &rogue->net), AS_OK);
    assert_int_equal(as_net_connect(rogue->net, kvs_store_address(world.stores[0]), &rogue->conn),
                     AS_OK);
    const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    rogue_say(rogue, &hello, sizeof(hello), NULL, 0);
    const as_wire_locate_t locate = {.head = as_wire_head(AS_WIRE_LOCATE, 2),
                                     .key_count = 1,
                                     .lease_ms = 60000,
                                     .kind = AS_WIRE_FULL};
    rogue_say(rogue, &locate, sizeof(locate), &world.keys[0], sizeof(world.keys[0]));
    assert_true(rogue->lease_id != 0);
    as_wire_read_t read = {
        .head = as_wire_head(AS_WIRE_READ, 0), .lease_id = rogue->lease_id, .ask_count = ASKS};
    for (uint32_t i = 0; i < ASKS; i++) {
        read.asks[i] =
            (as_wire_ask_t){.request = 3 + i, .layer_first = 0, .layer_count = 1, .index_count = 1};
    }
    assert_int_equal(as_net_send(rogue->conn, &read, sizeof(read), NULL, 0, NULL, NULL), AS_OK);
    while (as_pool_used(world.stores[0]->reads) == 0 || world.stores[0]->conns->reads == 0) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    as_sim_stop(world.sim, rogue->net);
}

static void readers_that_take_nothing_leave_reads_to_others(void **state)
{
    (void)state;
    static rogue_t rogues[ROGUES];
    memset(rogues, 0, sizeof(rogues));
    open_with(64, 32);
    for (uint32_t i = 0; i < ROGUES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "rogue%u", i);
        if (i == 2) { // two would take all of them if they could
            fetch_whole();
        }
        rogue_start(&rogues[i], name);
    }
    assert_int_equal(as_pool_used(world.stores[0]->reads), 32); // all of them
    fetch_whole();
    assert_true(world.stores[0]->conn_count < 1 + ROGUES); // one at least made room
    for (uint32_t i = 0; i < ROGUES; i++) {
        as_net_free(rogues[i].net);
    }
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_that_a_store_has_no_room_for_come_later),
        cmocka_unit_test(fetches_that_get_no_lease_wait_for_one),
        cmocka_unit_test(a_store_that_stays_busy_is_given_up),
        cmocka_unit_test(reads_of_a_client_that_has_none_left_wait),
        cmocka_unit_test(questions_of_a_client_that_has_none_left_wait),
        cmocka_unit_test(readers_that_take_nothing_leave_reads_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
