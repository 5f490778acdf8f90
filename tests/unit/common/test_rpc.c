// SPDX-License-Identifier: Apache-2.0
// Remote calls over real gRPC on loopback: answers, errors, deadlines, cancelling, lost servers,
// limits and mutual TLS. The service is the scheduler's, with handlers of the test's own.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/rpc.h"
#include "common/rpc_message.h"
#include "proto/scheduler.pb-c.h"

#define SECOND_US     1000000u
#define PATIENCE_US   (60 * SECOND_US) // of a test that hangs
#define OUTSTANDING   16
#define CALLS_IN_TEST 2000

typedef struct held {
    Assay__RouteReply_Closure closure;
    void *data;
} held_t;

// What the handlers do: Route echoes the number of blocks, or holds the call, or fails it.
typedef struct fixture {
    as_loop_t *loop;
    as_rpc_server_t *server;
    as_rpc_client_t *client;
    Assay__Scheduler_Service service;
    as_timer_t *patience;
    bool hold;
    as_status_t fail;
    size_t reply_bytes;
    held_t held[2048];
    size_t held_count;
    bool free_server_in_handler;
} fixture_t;

typedef struct outcome {
    int done;
    as_status_t status;
    uint32_t hit_blocks;
} outcome_t;

static fixture_t *fixture_of(Assay__Scheduler_Service *service)
{
    return (fixture_t *)((char *)service - offsetof(fixture_t, service));
}

static void reply_route(const held_t *held, uint32_t hit_blocks, size_t bytes)
{
    Assay__RouteReply reply = ASSAY__ROUTE_REPLY__INIT;
    reply.hit_blocks = hit_blocks;
    char *text = NULL;
    if (bytes) {
        text = malloc(bytes + 1);
        memset(text, 'x', bytes);
        text[bytes] = '\0';
        reply.worker_http_address = text;
    }
    held->closure(&reply, held->data);
    free(text);
}

static void on_route(Assay__Scheduler_Service *service, const Assay__RouteRequest *request,
                     Assay__RouteReply_Closure closure, void *data)
{
    fixture_t *f = fixture_of(service);
    held_t held = {closure, data};
    if (f->free_server_in_handler) {
        as_rpc_server_free(f->server);
        f->server = NULL;
    } else if (f->hold) {
        assert_true(f->held_count < sizeof(f->held) / sizeof(f->held[0]));
        f->held[f->held_count++] = held;
    } else if (f->fail != AS_OK) {
        as_rpc_fail((ProtobufCClosure)closure, data, f->fail, "as the test wants it");
    } else {
        reply_route(&held, (uint32_t)(request->keys.len / 32), f->reply_bytes);
    }
}

static void on_patience(void *ctx)
{
    (void)ctx;
    fail_msg("nothing happened for %u s", PATIENCE_US / SECOND_US);
}

static void server_start(fixture_t *f, const char *address, const as_rpc_tls_t *tls)
{
    assert_int_equal(as_rpc_server_alloc(f->loop, address, tls, &f->server), AS_OK);
    assert_int_equal(as_rpc_server_add(f->server, &f->service.base), AS_OK);
    assert_int_equal(as_rpc_server_start(f->server), AS_OK);
}

static void client_start(fixture_t *f, const as_rpc_tls_t *tls)
{
    assert_int_equal(as_rpc_client_alloc(f->loop, as_rpc_server_address(f->server),
                                         &assay__scheduler__descriptor, tls, &f->client),
                     AS_OK);
}

static void fixture_init(fixture_t *f)
{
    memset(f, 0, sizeof(*f));
    assay__scheduler__init(&f->service, NULL);
    f->service.route = on_route;
    assert_int_equal(as_loop_alloc_uv(&f->loop), AS_OK);
    assert_int_equal(as_timer_alloc(f->loop, on_patience, f, &f->patience), AS_OK);
    as_timer_start(f->patience, PATIENCE_US);
}

static int setup(void **state)
{
    fixture_t *f = malloc(sizeof(*f));
    fixture_init(f);
    server_start(f, "127.0.0.1:0", NULL);
    client_start(f, NULL);
    *state = f;
    return 0;
}

static int setup_bare(void **state)
{
    fixture_t *f = malloc(sizeof(*f));
    fixture_init(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;
    as_rpc_client_free(f->client);
    as_rpc_server_free(f->server);
    as_timer_free(f->patience);
    as_loop_free(f->loop);
    free(f);
    return 0;
}

static void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    outcome_t *outcome = ctx;
    outcome->done++;
    outcome->status = status;
    if (status == AS_OK) {
        assert_ptr_equal(reply->descriptor, &assay__route_reply__descriptor);
        outcome->hit_blocks = ((const Assay__RouteReply *)reply)->hit_blocks;
    } else {
        assert_null(reply);
    }
}

static as_status_t route(fixture_t *f, size_t key_bytes, uint64_t deadline_us, outcome_t *outcome,
                         uint64_t *call_id_p)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    uint8_t *keys = calloc(1, key_bytes + 1);
    request.keys.data = keys;
    request.keys.len = key_bytes;
    memset(outcome, 0, sizeof(*outcome));
    as_status_t status =
        as_rpc_call(f->client, "Route", &request.base, deadline_us, on_done, outcome, call_id_p);
    free(keys);
    assert_int_equal(outcome->done, 0); // never from inside the start call
    return status;
}

static void wait_done(fixture_t *f, const outcome_t *outcome)
{
    while (!outcome->done) {
        as_loop_run_once(f->loop, true);
    }
    assert_int_equal(outcome->done, 1);
}

static as_status_t route_status(fixture_t *f, size_t key_bytes)
{
    outcome_t outcome;
    as_status_t status = route(f, key_bytes, 20 * SECOND_US, &outcome, NULL);
    if (status != AS_OK) {
        return status;
    }
    wait_done(f, &outcome);
    return outcome.status;
}

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

static void shell(const char *format, const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), format, folder, folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
}

// ca.pem, server.pem (for 127.0.0.1), client.pem, and a stranger.pem that signs itself.
static void make_certificates(const char *folder)
{
    shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
          "-subj /CN=ca -keyout %s/ca.key -out %s/ca.pem 2>/dev/null",
          folder);
    static const char *const who[] = {"server", "client"};
    for (int i = 0; i < 2; i++) {
        char format[512];
        snprintf(format, sizeof(format),
                 "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=%s "
                 "-addext subjectAltName=IP:127.0.0.1 -keyout %%s/%s.key -out %%s/%s.csr "
                 "2>/dev/null",
                 who[i], who[i], who[i]);
        shell(format, folder);
        snprintf(format, sizeof(format),
                 "printf 'subjectAltName=IP:127.0.0.1' > %%s/ext && openssl x509 -req -days 2 "
                 "-in %%s/%s.csr -CA %%s/ca.pem -CAkey %%s/ca.key -CAcreateserial "
                 "-extfile %%s/ext ",
                 who[i]);
        char command[2048];
        snprintf(command, sizeof(command), format, folder, folder, folder, folder, folder);
        size_t length = strlen(command);
        snprintf(command + length, sizeof(command) - length, "-out %s/%s.pem 2>/dev/null", folder,
                 who[i]);
        assert_int_equal(system(command), 0);
    }
    shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
          "-subj /CN=stranger -addext subjectAltName=IP:127.0.0.1 -keyout %s/stranger.key "
          "-out %s/stranger.pem 2>/dev/null",
          folder);
}

typedef struct identity {
    char ca[128], cert[128], key[128];
    as_rpc_tls_t tls;
} identity_t;

static const as_rpc_tls_t *identity(identity_t *id, const char *folder, const char *who)
{
    snprintf(id->ca, sizeof(id->ca), "%s/ca.pem", folder);
    snprintf(id->cert, sizeof(id->cert), "%s/%s.pem", folder, who);
    snprintf(id->key, sizeof(id->key), "%s/%s.key", folder, who);
    id->tls = (as_rpc_tls_t){id->ca, id->cert, id->key};
    return &id->tls;
}

static void mutual_tls_admits_only_who_the_ca_signed(void **state)
{
    fixture_t *f = *state;
    char folder[] = "/tmp/assay_rpc_XXXXXX";
    assert_non_null(mkdtemp(folder));
    make_certificates(folder);
    identity_t server, client;
    server_start(f, "127.0.0.1:0", identity(&server, folder, "server"));

    client_start(f, identity(&client, folder, "client"));
    assert_int_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);

    client_start(f, identity(&client, folder, "stranger"));
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);

    client_start(f, NULL); // plain text
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);
    f->client = NULL;

    // A server that the client's CA did not sign.
    as_rpc_server_free(f->server);
    server_start(f, "127.0.0.1:0", identity(&server, folder, "stranger"));
    client_start(f, identity(&client, folder, "client"));
    assert_int_not_equal(route_status(f, 64), AS_OK);

    as_rpc_server_t *none;
    assert_int_equal(
        as_rpc_server_alloc(f->loop, "127.0.0.1:0", identity(&server, folder, "nobody"), &none),
        AS_ERR_CONFIG);
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup_bare, teardown)

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
        WITH_LOOP(mutual_tls_admits_only_who_the_ca_signed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
