// SPDX-License-Identifier: Apache-2.0
// The scheduler behind real gRPC and behind the simulated network: the same object on either.
#include "common/rpc.h"
#include "tests/unit/scheduler/harness.h"

#define SECOND_US 1000000ull

typedef struct remote {
    as_loop_t *loop;
    as_rpc_client_t *client;
    int done;
    as_status_t status;
    ProtobufCMessage *reply; // a copy
} remote_t;

static void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    remote_t *remote = ctx;
    remote->done++;
    remote->status = status;
    if (reply) {
        size_t bytes = protobuf_c_message_get_packed_size(reply);
        uint8_t *packed = malloc(bytes + 1);
        protobuf_c_message_pack(reply, packed);
        remote->reply = protobuf_c_message_unpack(reply->descriptor, NULL, bytes, packed);
        free(packed);
    }
}

static void *remote_call(remote_t *remote, const char *method, const ProtobufCMessage *request)
{
    as_rpc_message_free(remote->reply);
    remote->reply = NULL;
    remote->done = 0;
    assert_int_equal(
        as_rpc_call(remote->client, method, request, 20 * SECOND_US, on_done, remote, NULL), AS_OK);
    while (!remote->done) {
        as_loop_run_once(remote->loop, true);
    }
    return remote->reply;
}

static sch_options_t three_copies(void)
{
    sch_options_t options = sch_options_default;
    options.replicas = 3;
    return options;
}

// A store joins, lists three blocks, and a route finds them. Everybody is told of the copies.
static void converse(remote_t *remote)
{
    uint8_t instance[16] = {3, 1, 4};
    as_key_t keys[4];
    memset(keys, 7, sizeof(keys));
    for (uint8_t i = 0; i < 4; i++) {
        keys[i].bytes[0] = i;
    }
    Assay__JoinRequest join = ASSAY__JOIN_REQUEST__INIT;
    join.role = STORE;
    join.instance_id.data = instance;
    join.instance_id.len = sizeof(instance);
    join.incarnation = 1;
    join.data_address = "store:9";
    Assay__JoinReply *joined = remote_call(remote, "Join", &join.base);
    assert_non_null(joined);
    uint64_t id = joined->node_id;
    assert_int_equal(joined->replicas, 3);
    Assay__HeartbeatRequest beat = ASSAY__HEARTBEAT_REQUEST__INIT;
    beat.node_id = id;
    beat.incarnation = 1;
    beat.placement_epoch = joined->placement_epoch;
    beat.events_next_sequence = 1;
    Assay__HeartbeatReply *beaten = remote_call(remote, "Heartbeat", &beat.base);
    assert_int_equal(beaten->replicas, 3);

    const uint8_t ops[3] = {FULL_ADDED, FULL_ADDED, FULL_ADDED};
    Assay__EventsRequest events = ASSAY__EVENTS_REQUEST__INIT;
    events.node_id = id;
    events.incarnation = 1;
    events.first_sequence = 1;
    events.keys.data = keys[0].bytes;
    events.keys.len = 3 * sizeof(as_key_t);
    events.ops.data = (uint8_t *)ops;
    events.ops.len = 3;
    events.listing_begin = events.listing_end = true;
    Assay__EventsReply *told = remote_call(remote, "Events", &events.base);
    assert_int_equal(told->next_sequence, 4);

    Assay__RouteRequest route = ASSAY__ROUTE_REQUEST__INIT;
    route.keys.data = keys[0].bytes;
    route.keys.len = sizeof(keys);
    Assay__RouteReply *found = remote_call(remote, "Route", &route.base);
    assert_int_equal(found->hit_blocks, 3);
    assert_string_equal(found->nodes[0]->data_address, "store:9");
    assert_true(found->runs[0]->node_ids[0] == id);

    route.keys.len = 5;
    assert_null(remote_call(remote, "Route", &route.base));
    assert_int_equal(remote->status, AS_ERR_INVALID);

    Assay__StatRequest stat = ASSAY__STAT_REQUEST__INIT;
    Assay__StatReply *figures = remote_call(remote, "Stat", &stat.base);
    assert_int_equal(figures->n_nodes, 1);
    assert_int_equal(figures->replicas, 3);
    assert_int_equal(figures->nodes[0]->full_blocks, 3);
    assert_true(figures->nodes[0]->listed);
    assert_int_equal(figures->routes, 1);
    assert_int_equal(figures->route_blocks_hit, 3);
    as_rpc_message_free(remote->reply);
}

static void it_serves_over_grpc(void **state)
{
    (void)state;
    remote_t remote = {0};
    sch_scheduler_t *scheduler;
    as_rpc_server_t *server;
    assert_int_equal(as_loop_alloc_uv(&remote.loop), AS_OK);
    const sch_options_t options = three_copies();
    assert_int_equal(sch_scheduler_alloc(remote.loop, &options, &scheduler), AS_OK);
    assert_int_equal(as_rpc_server_alloc(remote.loop, "127.0.0.1:0", NULL, &server), AS_OK);
    assert_int_equal(as_rpc_server_add(server, sch_scheduler_service(scheduler)), AS_OK);
    assert_int_equal(as_rpc_server_start(server), AS_OK);
    assert_int_equal(as_rpc_client_alloc(remote.loop, as_rpc_server_address(server),
                                         &assay__scheduler__descriptor, NULL, &remote.client),
                     AS_OK);
    converse(&remote);
    as_rpc_client_free(remote.client);
    as_rpc_server_free(server);
    sch_scheduler_free(scheduler);
    as_loop_free(remote.loop);
}

static void it_serves_over_the_simulated_network(void **state)
{
    (void)state;
    remote_t remote = {0};
    sch_scheduler_t *scheduler;
    as_sim_t *sim;
    as_rpc_server_t *server;
    assert_int_equal(as_loop_alloc_sim(&remote.loop), AS_OK);
    assert_int_equal(as_sim_alloc(remote.loop, 5, &sim), AS_OK);
    const sch_options_t options = three_copies();
    assert_int_equal(sch_scheduler_alloc(remote.loop, &options, &scheduler), AS_OK);
    assert_int_equal(as_rpc_server_alloc_sim(sim, "scheduler:1", &server), AS_OK);
    assert_int_equal(as_rpc_server_add(server, sch_scheduler_service(scheduler)), AS_OK);
    assert_int_equal(as_rpc_server_start(server), AS_OK);
    assert_int_equal(as_rpc_client_alloc_sim(sim, "store", "scheduler:1",
                                             &assay__scheduler__descriptor, &remote.client),
                     AS_OK);
    converse(&remote);
    as_rpc_client_free(remote.client);
    as_rpc_server_free(server);
    sch_scheduler_free(scheduler);
    as_sim_free(sim);
    as_loop_free(remote.loop);
}

static void it_is_ready_when_all_have_listed_or_after_a_while(void **state)
{
    harness_t *h = *state;
    peer_t quick, slow, worker; // which need not have anything to list
    peer_init(&worker, WORKER, 3);
    peer_join(h, &worker);
    peer_init(&quick, STORE, 1);
    peer_init(&slow, STORE, 2);
    assert_true(sch_scheduler_ready(h->scheduler));
    peer_start(h, &quick, NULL, 0, 0);
    assert_true(sch_scheduler_ready(h->scheduler));
    peer_join(h, &slow);
    assert_false(sch_scheduler_ready(h->scheduler));
    for (int i = 0; i < 31; i++) {
        assert_false(i < 29 && sch_scheduler_ready(h->scheduler));
        harness_run(h, SECOND_US);
        peer_heartbeat(h, &slow, 0, 0);
    }
    assert_true(sch_scheduler_ready(h->scheduler));
}

static void any_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    as_loop_t *loop;
    assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
    uint64_t n = 0;
    as_status_t status;
    do {
        sch_scheduler_t *scheduler = NULL;
        as_mem_fail_nth(++n);
        status = sch_scheduler_alloc(loop, &sch_options_default, &scheduler);
        assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
        sch_scheduler_free(scheduler);
    } while (status != AS_OK);
    as_mem_fail_nth(0);
    assert_true(n > 5);
    as_loop_free(loop);
}

static void a_join_that_finds_no_memory_is_refused(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 1);
    as_mem_fail_nth(1);
    assert_null(peer_join(h, &store));
    assert_int_equal(h->answer.status, AS_ERR_NO_MEMORY);
    assert_non_null(peer_join(h, &store));
    Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
    as_mem_fail_nth(1);
    assert_null(harness_call(h, "Stat", &request.base));
    assert_int_equal(h->answer.status, AS_ERR_NO_MEMORY);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    as_loop_t *loop;
    assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
    sch_scheduler_t *scheduler;
    sch_options_t options = sch_options_default;
    options.dead_us = options.suspect_us;
    assert_int_equal(sch_scheduler_alloc(loop, &options, &scheduler), AS_ERR_CONFIG);
    options = sch_options_default;
    options.directory_bytes = 1000;
    assert_int_equal(sch_scheduler_alloc(loop, &options, &scheduler), AS_ERR_CONFIG);
    as_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_serves_over_grpc),
        cmocka_unit_test(it_serves_over_the_simulated_network),
        WITH_SCHEDULER(it_is_ready_when_all_have_listed_or_after_a_while),
        cmocka_unit_test(any_failed_allocation_is_an_error_and_leaks_nothing),
        WITH_SCHEDULER(a_join_that_finds_no_memory_is_refused),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
