// SPDX-License-Identifier: Apache-2.0
// For the tests of remote calls: a server and a client over gRPC on one loop. The service is the
// scheduler's, with a handler of the test's own.
#ifndef AS_TEST_RPC_FIXTURE_H
#define AS_TEST_RPC_FIXTURE_H

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

static inline fixture_t *fixture_of(Assay__Scheduler_Service *service)
{
    return (fixture_t *)((char *)service - offsetof(fixture_t, service));
}

static inline void reply_route(const held_t *held, uint32_t hit_blocks, size_t bytes)
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

static inline void on_route(Assay__Scheduler_Service *service, const Assay__RouteRequest *request,
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

static inline void on_patience(void *ctx)
{
    (void)ctx;
    fail_msg("nothing happened for %u s", PATIENCE_US / SECOND_US);
}

static inline void server_start(fixture_t *f, const char *address, const as_rpc_tls_t *tls)
{
    assert_int_equal(as_rpc_server_alloc(f->loop, address, tls, &f->server), AS_OK);
    assert_int_equal(as_rpc_server_add(f->server, &f->service.base), AS_OK);
    assert_int_equal(as_rpc_server_start(f->server), AS_OK);
}

static inline void client_start(fixture_t *f, const as_rpc_tls_t *tls)
{
    assert_int_equal(as_rpc_client_alloc(f->loop, as_rpc_server_address(f->server),
                                         &assay__scheduler__descriptor, tls, &f->client),
                     AS_OK);
}

static inline void fixture_init(fixture_t *f)
{
    memset(f, 0, sizeof(*f));
    assay__scheduler__init(&f->service, NULL);
    f->service.route = on_route;
    assert_int_equal(as_loop_alloc_uv(&f->loop), AS_OK);
    assert_int_equal(as_timer_alloc(f->loop, on_patience, f, &f->patience), AS_OK);
    as_timer_start(f->patience, PATIENCE_US);
}

static inline int setup(void **state)
{
    fixture_t *f = malloc(sizeof(*f));
    fixture_init(f);
    server_start(f, "127.0.0.1:0", NULL);
    client_start(f, NULL);
    *state = f;
    return 0;
}

static inline int setup_bare(void **state)
{
    fixture_t *f = malloc(sizeof(*f));
    fixture_init(f);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture_t *f = *state;
    as_rpc_client_free(f->client);
    as_rpc_server_free(f->server);
    as_timer_free(f->patience);
    as_loop_free(f->loop);
    free(f);
    return 0;
}

static inline void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
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

static inline as_status_t route(fixture_t *f, size_t key_bytes, uint64_t deadline_us,
                                outcome_t *outcome, uint64_t *call_id_p)
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

static inline void wait_done(fixture_t *f, const outcome_t *outcome)
{
    while (!outcome->done) {
        as_loop_run_once(f->loop, true);
    }
    assert_int_equal(outcome->done, 1);
}

static inline as_status_t route_status(fixture_t *f, size_t key_bytes)
{
    outcome_t outcome;
    as_status_t status = route(f, key_bytes, 20 * SECOND_US, &outcome, NULL);
    if (status != AS_OK) {
        return status;
    }
    wait_done(f, &outcome);
    return outcome.status;
}

#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup_bare, teardown)

#endif
