// SPDX-License-Identifier: Apache-2.0
// Remote calls over real gRPC on loopback: answers, errors, deadlines, cancelling, lost servers
// and limits.
#include "tests/unit/common/rpc_fixture.h"

static void a_call_is_answered(void **state)
{
    fixture_t *f = *state;
    outcome_t outcome;
    assert_int_equal(route(f, 320, SECOND_US * 20, &outcome, NULL), AS_OK);
    wait_done(f, &outcome);
    assert_int_equal(outcome.status, AS_OK);
    assert_int_equal(outcome.hit_blocks, 10);
}

static void a_handler_may_answer_later(void **state)
{
    fixture_t *f = *state;
    f->hold = true;
    outcome_t outcome;
    assert_int_equal(route(f, 32, SECOND_US * 20, &outcome, NULL), AS_OK);
    while (f->held_count == 0) {
        as_loop_run_once(f->loop, true);
    }
    assert_int_equal(outcome.done, 0);
    reply_route(&f->held[0], 77, 0);
    wait_done(f, &outcome);
    assert_int_equal(outcome.hit_blocks, 77);
}

static void every_status_crosses_exactly(void **state)
{
    fixture_t *f = *state;
    for (int status = AS_OK + 1; status < AS_STATUS_COUNT; status++) {
        f->fail = (as_status_t)status;
        assert_int_equal(route_status(f, 32), status);
    }
}

static void a_call_ends_at_its_deadline(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(route_status(f, 32), AS_OK); // connected
    f->hold = true;
    outcome_t outcome;
    uint64_t begin_us = as_loop_now_us(f->loop);
    assert_int_equal(route(f, 32, SECOND_US / 5, &outcome, NULL), AS_OK);
    wait_done(f, &outcome);
    assert_int_equal(outcome.status, AS_ERR_DEADLINE);
    assert_true(as_loop_now_us(f->loop) - begin_us >= SECOND_US / 5 - 2000);
    // The late answer goes nowhere, and harms nothing.
    while (f->held_count == 0) {
        as_loop_run_once(f->loop, true);
    }
    reply_route(&f->held[0], 1, 0);
    f->hold = false;
    assert_int_equal(route_status(f, 32), AS_OK);
}

static void a_cancelled_call_completes_once(void **state)
{
    fixture_t *f = *state;
    f->hold = true;
    outcome_t outcome;
    uint64_t id = 0;
    assert_int_equal(route(f, 32, SECOND_US * 20, &outcome, &id), AS_OK);
    as_rpc_cancel(f->client, id);
    as_rpc_cancel(f->client, id);
    as_rpc_cancel(f->client, id + 1024); // the same slot, another call
    as_rpc_cancel(f->client, 0);
    assert_int_equal(outcome.done, 0);
    wait_done(f, &outcome);
    assert_int_equal(outcome.status, AS_ERR_CANCELLED);
    as_rpc_cancel(f->client, id);
    f->hold = false;
    for (size_t i = 0; i < f->held_count; i++) {
        reply_route(&f->held[i], 1, 0);
    }
    assert_int_equal(route_status(f, 32), AS_OK);
    assert_int_equal(outcome.done, 1);
}

static void freeing_the_client_completes_its_calls(void **state)
{
    fixture_t *f = *state;
    f->hold = true;
    outcome_t outcomes[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(route(f, 32, SECOND_US * 20, &outcomes[i], NULL), AS_OK);
    }
    while (f->held_count == 0) {
        as_loop_run_once(f->loop, true);
    }
    as_rpc_client_free(f->client);
    f->client = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(outcomes[i].done, 1);
        assert_int_equal(outcomes[i].status, AS_ERR_CANCELLED);
    }
}

static void on_done_free_client(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    (void)reply;
    fixture_t *f = ctx;
    assert_int_equal(status, AS_OK);
    as_rpc_client_free(f->client);
    f->client = NULL;
}

static void a_client_may_be_freed_in_its_own_callback(void **state)
{
    fixture_t *f = *state;
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    assert_int_equal(as_rpc_call(f->client, "Route", &request.base, 20 * SECOND_US,
                                 on_done_free_client, f, NULL),
                     AS_OK);
    while (f->client) {
        as_loop_run_once(f->loop, true);
    }
}

static void a_server_may_be_freed_in_a_handler(void **state)
{
    fixture_t *f = *state;
    f->free_server_in_handler = true;
    as_status_t status = route_status(f, 32);
    assert_true(status == AS_ERR_PEER_LOST || status == AS_ERR_UNREACHABLE);
    assert_null(f->server);
}

static void a_lost_server_is_an_error_and_its_return_is_found(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(route_status(f, 32), AS_OK);
    f->hold = true;
    outcome_t outcome;
    assert_int_equal(route(f, 32, SECOND_US * 20, &outcome, NULL), AS_OK);
    while (f->held_count == 0) {
        as_loop_run_once(f->loop, true);
    }
    char address[64];
    snprintf(address, sizeof(address), "%s", as_rpc_server_address(f->server));
    as_rpc_server_free(f->server);
    f->server = NULL;
    wait_done(f, &outcome);
    assert_int_equal(outcome.status, AS_ERR_PEER_LOST);
    assert_int_equal(route_status(f, 32), AS_ERR_UNREACHABLE);
    f->hold = false;
    server_start(f, address, NULL);
    as_status_t status = AS_ERR_UNREACHABLE;
    uint64_t begin_us = as_loop_now_us(f->loop);
    while (status != AS_OK && as_loop_now_us(f->loop) - begin_us < 20 * SECOND_US) {
        status = route_status(f, 32);
        assert_true(status == AS_OK || status == AS_ERR_UNREACHABLE);
    }
    assert_int_equal(status, AS_OK);
}

static void nobody_listening_is_unreachable(void **state)
{
    fixture_t *f = *state;
    as_rpc_server_free(f->server);
    f->server = NULL;
    assert_int_equal(route_status(f, 32), AS_ERR_UNREACHABLE);
}

static void oversized_messages_are_refused(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(route_status(f, AS_RPC_MESSAGE_BYTES_MAX), AS_ERR_LIMIT);
    assert_int_equal(route_status(f, AS_RPC_MESSAGE_BYTES_MAX - 1024), AS_OK);
    f->reply_bytes = AS_RPC_MESSAGE_BYTES_MAX - 1024;
    assert_int_equal(route_status(f, 32), AS_OK);
    f->reply_bytes = AS_RPC_MESSAGE_BYTES_MAX;
    assert_int_equal(route_status(f, 32), AS_ERR_LIMIT);
}

static void a_wrong_call_is_refused_at_once(void **state)
{
    fixture_t *f = *state;
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    outcome_t outcome = {0};
    assert_int_equal(
        as_rpc_call(f->client, "Rout", &request.base, SECOND_US, on_done, &outcome, NULL),
        AS_ERR_INVALID);
    assert_int_equal(
        as_rpc_call(f->client, "Stat", &request.base, SECOND_US, on_done, &outcome, NULL),
        AS_ERR_INVALID);
    assert_int_equal(as_rpc_call(f->client, "Route", &request.base, 0, on_done, &outcome, NULL),
                     AS_ERR_INVALID);
    static const char *const wrong[] = {
        "", "host", ":7", "h:", "h:x", "h:70000", "unix:/tmp/x", "dns:///h:7"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        as_rpc_client_t *client;
        assert_int_equal(
            as_rpc_client_alloc(f->loop, wrong[i], &assay__scheduler__descriptor, NULL, &client),
            AS_ERR_INVALID);
    }
    assert_int_equal(outcome.done, 0);
}

static void a_method_that_no_service_has_is_unsupported(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(as_rpc_server_alloc(f->loop, "127.0.0.1:0", NULL, &f->server), AS_OK);
    assert_int_equal(as_rpc_server_start(f->server), AS_OK);
    client_start(f, NULL);
    assert_int_equal(route_status(f, 32), AS_ERR_UNSUPPORTED);
}

// The same method name, but the client sends a message in which field 2 is a number, not bytes.
static void a_malformed_request_is_invalid(void **state)
{
    fixture_t *f = *state;
    server_start(f, "127.0.0.1:0", NULL);
    ProtobufCMethodDescriptor methods[1] = {
        {"Route", &assay__heartbeat_request__descriptor, &assay__route_reply__descriptor}};
    unsigned indices[1] = {0};
    ProtobufCServiceDescriptor liar = assay__scheduler__descriptor;
    liar.n_methods = 1;
    liar.methods = methods;
    liar.method_indices_by_name = indices;
    assert_int_equal(
        as_rpc_client_alloc(f->loop, as_rpc_server_address(f->server), &liar, NULL, &f->client),
        AS_OK);
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    request.incarnation = 5;
    outcome_t outcome = {0};
    assert_int_equal(
        as_rpc_call(f->client, "Route", &request.base, SECOND_US * 20, on_done, &outcome, NULL),
        AS_OK);
    wait_done(f, &outcome);
    assert_int_equal(outcome.status, AS_ERR_INVALID);
    // And the other way: a reply whose field 5 is text, where the client expects a number.
    methods[0] = (ProtobufCMethodDescriptor){"Route", &assay__route_request__descriptor,
                                             &assay__node_load__descriptor};
    f->reply_bytes = 10;
    assert_int_equal(route_status(f, 32), AS_ERR_PROTOCOL);
}

static void unpacking_stays_within_its_budget(void **state)
{
    (void)state;
    // Two bytes on the wire for each of two million empty sub-messages of 150 bytes and more.
    size_t bytes = 4u << 20;
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 2) {
        data[i] = 3 << 3 | 2;
        data[i + 1] = 0;
    }
    ProtobufCMessage *message;
    assert_int_equal(as_rpc_message_unpack(&assay__stat_reply__descriptor, data, bytes, &message),
                     AS_ERR_INVALID);
    assert_int_equal(as_rpc_message_unpack(&assay__stat_reply__descriptor, data, 64, &message),
                     AS_OK);
    as_rpc_message_free(message);
    free(data);
}

typedef struct stream {
    fixture_t *f;
    int started, answered;
} stream_t;

static void on_stream_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    stream_t *stream = ctx;
    assert_int_equal(status, AS_OK);
    assert_non_null(reply);
    stream->answered++;
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    if (stream->started < CALLS_IN_TEST) {
        stream->started++;
        assert_int_equal(as_rpc_call(stream->f->client, "Route", &request.base, 20 * SECOND_US,
                                     on_stream_done, stream, NULL),
                         AS_OK);
    }
}

static void sixteen_calls_at_a_time_are_all_answered(void **state)
{
    fixture_t *f = *state;
    stream_t stream = {.f = f};
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    uint64_t begin_us = as_loop_now_us(f->loop);
    for (; stream.started < OUTSTANDING; stream.started++) {
        assert_int_equal(as_rpc_call(f->client, "Route", &request.base, 20 * SECOND_US,
                                     on_stream_done, &stream, NULL),
                         AS_OK);
    }
    while (stream.answered < CALLS_IN_TEST) {
        as_loop_run_once(f->loop, true);
    }
    uint64_t took_us = as_loop_now_us(f->loop) - begin_us;
    printf("calls %d outstanding %d: %.0f a second\n", CALLS_IN_TEST, OUTSTANDING,
           1e6 * CALLS_IN_TEST / (double)took_us);
}

static void a_client_has_a_limit_of_calls_in_flight(void **state)
{
    fixture_t *f = *state;
    f->hold = true;
    static outcome_t outcomes[4096];
    int started = 0;
    as_status_t status = AS_OK;
    while (started < 4096 &&
           (status = route(f, 32, SECOND_US * 20, &outcomes[started], NULL)) == AS_OK) {
        started++;
    }
    assert_int_equal(status, AS_ERR_BUSY);
    assert_int_equal(started, 1024);
    as_rpc_client_free(f->client);
    f->client = NULL;
    for (int i = 0; i < started; i++) {
        assert_int_equal(outcomes[i].done, 1);
    }
}

typedef struct other_thread {
    pthread_t thread;
    fixture_t *f;
    as_task_t stop;
    char address[64];
    atomic_bool ready;
} other_thread_t;

static void on_stop(void *ctx)
{
    as_loop_stop(((fixture_t *)ctx)->loop);
}

static void *server_thread(void *ctx)
{
    other_thread_t *other = ctx;
    as_loop_run(other->f->loop);
    as_rpc_server_free(other->f->server);
    other->f->server = NULL;
    return NULL;
}

static void server_and_client_work_on_loops_of_two_threads(void **state)
{
    fixture_t *f = *state;
    fixture_t *far = malloc(sizeof(*far));
    fixture_init(far);
    server_start(far, "127.0.0.1:0", NULL);
    assert_int_equal(as_rpc_client_alloc(f->loop, as_rpc_server_address(far->server),
                                         &assay__scheduler__descriptor, NULL, &f->client),
                     AS_OK);
    other_thread_t other = {.f = far, .stop = {.fn = on_stop, .ctx = far}};
    assert_int_equal(pthread_create(&other.thread, NULL, server_thread, &other), 0);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(route_status(f, 32 * 3), AS_OK);
    }
    as_loop_post(far->loop, &other.stop);
    pthread_join(other.thread, NULL);
    void *far_state = far;
    teardown(&far_state);
}

static void a_taken_port_is_an_error(void **state)
{
    fixture_t *f = *state;
    as_rpc_server_t *second;
    assert_int_equal(as_rpc_server_alloc(f->loop, as_rpc_server_address(f->server), NULL, &second),
                     AS_ERR_IO);
    assert_int_equal(as_rpc_server_alloc(f->loop, "nonsense", NULL, &second), AS_ERR_INVALID);
    assert_int_equal(route_status(f, 32), AS_OK);
}

static void any_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    fixture_t *f = *state;
    for (uint64_t n = 1;; n++) {
        as_rpc_server_t *server = NULL;
        as_rpc_client_t *client = NULL;
        as_mem_fail_nth(0);
        as_mem_fail_nth(n);
        as_status_t status = as_rpc_server_alloc(f->loop, "127.0.0.1:0", NULL, &server);
        if (status == AS_OK) {
            status = as_rpc_client_alloc(f->loop, "127.0.0.1:1", &assay__scheduler__descriptor,
                                         NULL, &client);
        }
        as_rpc_client_free(client);
        as_rpc_server_free(server);
        bool all_made = status == AS_OK;
        assert_true(all_made || status == AS_ERR_NO_MEMORY);
        if (all_made) {
            assert_true(n > 3);
            break;
        }
    }
    as_mem_fail_nth(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BOTH(a_call_is_answered),
        WITH_BOTH(a_handler_may_answer_later),
        WITH_BOTH(every_status_crosses_exactly),
        WITH_BOTH(a_call_ends_at_its_deadline),
        WITH_BOTH(a_cancelled_call_completes_once),
        WITH_BOTH(freeing_the_client_completes_its_calls),
        WITH_BOTH(a_client_may_be_freed_in_its_own_callback),
        WITH_BOTH(a_server_may_be_freed_in_a_handler),
        WITH_BOTH(a_lost_server_is_an_error_and_its_return_is_found),
        WITH_BOTH(nobody_listening_is_unreachable),
        WITH_BOTH(oversized_messages_are_refused),
        WITH_BOTH(a_wrong_call_is_refused_at_once),
        WITH_LOOP(a_method_that_no_service_has_is_unsupported),
        WITH_LOOP(a_malformed_request_is_invalid),
        cmocka_unit_test(unpacking_stays_within_its_budget),
        WITH_BOTH(sixteen_calls_at_a_time_are_all_answered),
        WITH_BOTH(a_client_has_a_limit_of_calls_in_flight),
        WITH_LOOP(server_and_client_work_on_loops_of_two_threads),
        WITH_BOTH(a_taken_port_is_an_error),
        WITH_LOOP(any_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
