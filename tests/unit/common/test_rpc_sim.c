// SPDX-License-Identifier: Apache-2.0
// Remote calls over the simulated network keep rpc.h's contract under loss, delay and hosts that
// are down.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc.h"
#include "proto/kvstore.pb-c.h"
#include "proto/scheduler.pb-c.h"

#define SEED      7u
#define SECOND_US 1000000u
#define HELD_MAX  64

typedef struct held {
    Assay__RouteReply_Closure closure;
    void *data;
} held_t;

typedef struct world {
    as_loop_t *loop;
    as_sim_t *sim;
    Assay__Scheduler_Service service;
    as_rpc_server_t *server;
    as_rpc_client_t *client;
    bool hold;
    as_status_t fail;
    held_t held[HELD_MAX];
    unsigned held_count;
    unsigned handled;
    bool in_start;
    unsigned done, ok;
    as_status_t last;
    uint32_t hit_blocks;
    uint64_t done_us;
} world_t;

static world_t *world_of(Assay__Scheduler_Service *service)
{
    return (world_t *)((char *)service - offsetof(world_t, service));
}

// The answer is the number of keys asked for.
static void on_route(Assay__Scheduler_Service *service, const Assay__RouteRequest *request,
                     Assay__RouteReply_Closure closure, void *data)
{
    world_t *world = world_of(service);
    world->handled++;
    if (world->hold) {
        assert_true(world->held_count < HELD_MAX);
        world->held[world->held_count++] = (held_t){closure, data};
        return;
    }
    if (world->fail != AS_OK) {
        as_rpc_fail((ProtobufCClosure)closure, data, world->fail, "as the test wants it");
        return;
    }
    Assay__RouteReply reply = ASSAY__ROUTE_REPLY__INIT;
    reply.hit_blocks = (uint32_t)(request->keys.len / 32);
    closure(&reply, data);
}

static void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    world_t *world = ctx;
    assert_false(world->in_start);
    assert_true((status == AS_OK) == (reply != NULL));
    world->done++;
    world->ok += status == AS_OK;
    world->last = status;
    world->done_us = as_loop_now_us(world->loop);
    if (reply) {
        assert_ptr_equal(reply->descriptor, &assay__route_reply__descriptor);
        world->hit_blocks = ((const Assay__RouteReply *)reply)->hit_blocks;
    }
}

static void world_init(world_t *world, uint64_t seed)
{
    memset(world, 0, sizeof(*world));
    assert_int_equal(as_loop_alloc_sim(&world->loop), AS_OK);
    assert_int_equal(as_sim_alloc(world->loop, seed, &world->sim), AS_OK);
    assay__scheduler__init(&world->service, NULL);
    world->service.route = on_route;
    assert_int_equal(as_rpc_server_alloc_sim(world->sim, "s:0", &world->server), AS_OK);
    assert_int_equal(as_rpc_server_add(world->server, &world->service.base), AS_OK);
    assert_int_equal(as_rpc_server_start(world->server), AS_OK);
    assert_int_equal(as_rpc_client_alloc_sim(world->sim, "c", as_rpc_server_address(world->server),
                                             &assay__scheduler__descriptor, &world->client),
                     AS_OK);
}

static void world_fini(world_t *world)
{
    as_rpc_client_free(world->client);
    as_rpc_server_free(world->server);
    as_sim_free(world->sim);
    as_loop_free(world->loop);
}

static int setup(void **state)
{
    world_t *world = malloc(sizeof(*world));
    world_init(world, SEED);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    world_fini(*state);
    free(*state);
    return 0;
}

static as_status_t route(world_t *world, unsigned keys, uint64_t *id_p)
{
    uint8_t bytes[32 * 8] = {0};
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.keys.data = bytes;
    request.keys.len = 32 * keys;
    world->in_start = true;
    as_status_t status =
        as_rpc_call(world->client, "Route", &request.base, SECOND_US, on_done, world, id_p);
    world->in_start = false;
    return status;
}

static void a_call_is_answered(void **state)
{
    world_t *world = *state;
    assert_int_equal(route(world, 5, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->done, 1);
    assert_int_equal(world->last, AS_OK);
    assert_int_equal(world->hit_blocks, 5);
}

static void a_call_may_be_answered_later(void **state)
{
    world_t *world = *state;
    world->hold = true;
    assert_int_equal(route(world, 5, NULL), AS_OK);
    while (world->held_count == 0) {
        as_loop_run_once(world->loop, true);
    }
    Assay__RouteReply reply = ASSAY__ROUTE_REPLY__INIT;
    reply.hit_blocks = 3;
    world->held[0].closure(&reply, world->held[0].data);
    assert_int_equal(world->done, 0);
    as_loop_run(world->loop);
    assert_int_equal(world->hit_blocks, 3);
}

static void a_handlers_error_reaches_the_caller(void **state)
{
    world_t *world = *state;
    world->fail = AS_ERR_LEASE;
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_LEASE);
}

static void a_call_without_an_answer_ends_at_its_deadline(void **state)
{
    world_t *world = *state;
    world->hold = true;
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_DEADLINE);
    assert_int_equal(world->done_us, SECOND_US);
    // A late answer goes nowhere.
    Assay__RouteReply reply = ASSAY__ROUTE_REPLY__INIT;
    world->held[0].closure(&reply, world->held[0].data);
    as_loop_run(world->loop);
    assert_int_equal(world->done, 1);
}

static void a_lost_message_ends_at_the_deadline(void **state)
{
    world_t *world = *state;
    as_sim_set_faults(world->sim, &(as_sim_faults_t){.loss_ppm = 300000, .delay_us_max = 100});
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(route(world, 1, NULL), AS_OK);
    }
    as_loop_run(world->loop);
    assert_int_equal(world->done, 200);
    assert_in_range(world->ok, 60, 140); // 0.7 squared is a half
    assert_in_range(world->handled, world->ok + 1, 199);
    assert_int_equal(world->done_us, SECOND_US);
}

static void a_host_that_is_down_is_silent(void **state)
{
    world_t *world = *state;
    as_sim_rpc_set_down(world->sim, "s", true);
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_DEADLINE);
    assert_int_equal(world->handled, 0);
    as_sim_rpc_set_down(world->sim, "s", false);
    as_sim_rpc_set_down(world->sim, "c", true);
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_DEADLINE);
    assert_int_equal(world->handled, 0);
    as_sim_rpc_set_down(world->sim, "c", false);
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_OK);
}

static void a_host_without_a_server_refuses(void **state)
{
    world_t *world = *state;
    as_rpc_server_free(world->server);
    world->server = NULL;
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_UNREACHABLE);
}

static void freeing_a_server_ends_its_calls(void **state)
{
    world_t *world = *state;
    world->hold = true;
    assert_int_equal(route(world, 1, NULL), AS_OK);
    while (world->held_count == 0) {
        as_loop_run_once(world->loop, true);
    }
    as_rpc_server_free(world->server);
    world->server = NULL;
    as_loop_run(world->loop);
    assert_int_equal(world->done, 1);
    assert_int_equal(world->last, AS_ERR_PEER_LOST);
}

static void a_cancelled_call_completes_once_as_cancelled(void **state)
{
    world_t *world = *state;
    uint64_t id;
    assert_int_equal(route(world, 1, &id), AS_OK);
    as_rpc_cancel(world->client, id);
    as_rpc_cancel(world->client, id);
    as_rpc_cancel(world->client, id + 1000);
    assert_int_equal(world->done, 0);
    as_loop_run(world->loop);
    assert_int_equal(world->done, 1);
    assert_int_equal(world->last, AS_ERR_CANCELLED);
}

static void freeing_a_client_cancels_before_it_returns(void **state)
{
    world_t *world = *state;
    assert_int_equal(route(world, 1, NULL), AS_OK);
    assert_int_equal(route(world, 1, NULL), AS_OK);
    as_rpc_client_free(world->client);
    world->client = NULL;
    assert_int_equal(world->done, 2);
    assert_int_equal(world->last, AS_ERR_CANCELLED);
    as_loop_run(world->loop);
    assert_int_equal(world->done, 2);
}

static void a_service_that_the_server_lacks_is_unsupported(void **state)
{
    world_t *world = *state;
    as_rpc_client_t *client;
    assert_int_equal(as_rpc_client_alloc_sim(world->sim, "c", as_rpc_server_address(world->server),
                                             &assay__store__descriptor, &client),
                     AS_OK);
    Assay__StoreStatRequest request = ASSAY__STORE_STAT_REQUEST__INIT;
    assert_int_equal(as_rpc_call(client, "Stat", &request.base, SECOND_US, on_done, world, NULL),
                     AS_OK);
    assert_int_equal(as_rpc_call(client, "None", &request.base, SECOND_US, on_done, world, NULL),
                     AS_ERR_INVALID);
    as_loop_run(world->loop);
    assert_int_equal(world->last, AS_ERR_UNSUPPORTED);
    as_rpc_client_free(client);
}

static void addresses_and_double_starts_are_checked(void **state)
{
    world_t *world = *state;
    as_rpc_server_t *server;
    as_rpc_client_t *client;
    assert_int_equal(as_rpc_server_alloc_sim(world->sim, "s", &server), AS_ERR_INVALID);
    assert_int_equal(
        as_rpc_client_alloc_sim(world->sim, "c", ":1", &assay__scheduler__descriptor, &client),
        AS_ERR_INVALID);
    assert_int_equal(
        as_rpc_server_alloc_sim(world->sim, as_rpc_server_address(world->server), &server), AS_OK);
    assert_int_equal(as_rpc_server_start(server), AS_ERR_EXISTS);
    as_rpc_server_free(server);
}

static uint64_t life(uint64_t seed)
{
    world_t world;
    world_init(&world, seed);
    as_sim_set_faults(world.sim, &(as_sim_faults_t){.loss_ppm = 50000, .delay_us_max = 2000});
    for (unsigned i = 0; i < 300; i++) {
        uint64_t id;
        assert_int_equal(route(&world, i % 8, &id), AS_OK);
        if (as_sim_random(world.sim) % 10 == 0) {
            as_rpc_cancel(world.client, id);
        }
        as_sim_rpc_set_down(world.sim, "s", i % 50 > 40);
        as_loop_run_once(world.loop, true);
    }
    as_loop_run(world.loop);
    assert_int_equal(world.done, 300);
    uint64_t trace = as_sim_trace(world.sim);
    world_fini(&world);
    return trace;
}

static void the_same_seed_gives_the_same_run_and_another_seed_another(void **state)
{
    (void)state;
    print_message("seeds %u and %u\n", SEED, SEED + 1);
    uint64_t first = life(SEED);
    assert_true(life(SEED) == first);
    assert_true(life(SEED + 1) != first);
}

#define RPC_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_TEST(a_call_is_answered),
        RPC_TEST(a_call_may_be_answered_later),
        RPC_TEST(a_handlers_error_reaches_the_caller),
        RPC_TEST(a_call_without_an_answer_ends_at_its_deadline),
        RPC_TEST(a_lost_message_ends_at_the_deadline),
        RPC_TEST(a_host_that_is_down_is_silent),
        RPC_TEST(a_host_without_a_server_refuses),
        RPC_TEST(freeing_a_server_ends_its_calls),
        RPC_TEST(a_cancelled_call_completes_once_as_cancelled),
        RPC_TEST(freeing_a_client_cancels_before_it_returns),
        RPC_TEST(a_service_that_the_server_lacks_is_unsupported),
        RPC_TEST(addresses_and_double_starts_are_checked),
        cmocka_unit_test(the_same_seed_gives_the_same_run_and_another_seed_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
