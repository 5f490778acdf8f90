// SPDX-License-Identifier: Apache-2.0
// For the scheduler's tests: a scheduler on the simulated clock, called without a network.
#ifndef SCH_TEST_HARNESS_H
#define SCH_TEST_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "common/rpc_internal.h"
#include "common/rpc_message.h"
#include "scheduler/scheduler.h"

typedef struct answer {
    as_rpc_pending_t pending; // first: what as_rpc_fail reaches
    int count;
    as_status_t status;
    char text[256];
    ProtobufCMessage *reply; // a copy
} answer_t;

typedef struct harness {
    as_loop_t *loop;
    sch_scheduler_t *scheduler;
    answer_t answer; // to the last call
    uint64_t random;
    as_timer_t *alarm; // holds the clock's end in harness_run
    bool rang;
} harness_t;

static inline uint64_t harness_random(harness_t *h)
{
    uint64_t value = h->random += 0x9e3779b97f4a7c15ull; // splitmix64
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static inline void harness_seed(harness_t *h, uint64_t fallback)
{
    const char *text = getenv("ASSAY_TEST_SEED");
    h->random = text ? strtoull(text, NULL, 10) : fallback;
    printf("seed %llu (ASSAY_TEST_SEED)\n", (unsigned long long)h->random);
}

static inline void harness_on_alarm(void *ctx)
{
    ((harness_t *)ctx)->rang = true;
}

static inline void harness_init(harness_t *h)
{
    memset(h, 0, sizeof(*h));
    sch_options_t options = sch_options_default;
    options.directory_bytes = 1u << 20;
    assert_int_equal(as_loop_alloc_sim(&h->loop), AS_OK);
    assert_int_equal(sch_scheduler_alloc(h->loop, &options, &h->scheduler), AS_OK);
    assert_int_equal(as_timer_alloc(h->loop, harness_on_alarm, h, &h->alarm), AS_OK);
}

static inline void harness_fini(harness_t *h)
{
    as_rpc_message_free(h->answer.reply);
    as_timer_free(h->alarm);
    sch_scheduler_free(h->scheduler);
    as_loop_free(h->loop);
}

// Lets time pass.
static inline void harness_run(harness_t *h, uint64_t us)
{
    h->rang = false;
    as_timer_start(h->alarm, us);
    while (!h->rang) {
        as_loop_run_once(h->loop, true);
    }
}

static inline void harness_on_fail(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    answer_t *answer = (answer_t *)pending;
    answer->count++;
    answer->status = status;
    snprintf(answer->text, sizeof(answer->text), "%s", text);
}

static inline void harness_on_reply(const ProtobufCMessage *reply, void *ctx)
{
    answer_t *answer = ctx;
    size_t bytes = protobuf_c_message_get_packed_size(reply);
    uint8_t *packed = malloc(bytes ? bytes : 1);
    protobuf_c_message_pack(reply, packed);
    answer->count++;
    answer->reply = protobuf_c_message_unpack(reply->descriptor, NULL, bytes, packed);
    assert_non_null(answer->reply);
    free(packed);
}

// Calls a method by name; NULL when it failed, and then the answer's status says why.
static inline void *harness_call(harness_t *h, const char *method, const ProtobufCMessage *request)
{
    ProtobufCService *service = sch_scheduler_service(h->scheduler);
    const ProtobufCMethodDescriptor *found =
        protobuf_c_service_descriptor_get_method_by_name(service->descriptor, method);
    assert_non_null(found);
    as_rpc_message_free(h->answer.reply);
    memset(&h->answer, 0, sizeof(h->answer));
    h->answer.pending.fail = harness_on_fail;
    service->invoke(service, (unsigned)(found - service->descriptor->methods), request,
                    harness_on_reply, &h->answer);
    assert_int_equal(h->answer.count, 1);
    return h->answer.reply;
}

// A node as a test drives it.
typedef struct peer {
    Assay__Role role;
    uint8_t instance[16];
    uint64_t id;
    uint64_t incarnation;
    uint64_t sequence;      // of its next event
    bool draining, leaving; // as it says
    char address[64];
} peer_t;

static inline void peer_init(peer_t *peer, Assay__Role role, uint8_t number)
{
    memset(peer, 0, sizeof(*peer));
    peer->role = role;
    memset(peer->instance, number, sizeof(peer->instance));
    memcpy(&peer->id, peer->instance, sizeof(peer->id)); // little-endian machines only
    peer->incarnation = 1;
    peer->sequence = 1;
    snprintf(peer->address, sizeof(peer->address), "node%u:1", number);
}

static inline Assay__JoinReply *peer_join(harness_t *h, peer_t *peer)
{
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    request.role = peer->role;
    request.instance_id.data = peer->instance;
    request.instance_id.len = sizeof(peer->instance);
    request.incarnation = peer->incarnation;
    request.data_address = peer->address;
    request.name = "test";
    request.capacity_bytes = 1000;
    request.draining = peer->draining;
    return harness_call(h, "Join", &request.base);
}

static inline Assay__HeartbeatReply *peer_heartbeat(harness_t *h, const peer_t *peer,
                                                    uint64_t queued_tokens, uint64_t queued_bytes)
{
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    Assay__NodeLoad load = ASSAY__NODE_LOAD__INIT;
    load.capacity_bytes = 1000;
    load.queued_tokens = queued_tokens;
    load.queued_bytes = queued_bytes;
    request.node_id = peer->id;
    request.incarnation = peer->incarnation;
    request.load = &load;
    request.events_next_sequence = peer->sequence;
    request.draining = peer->draining;
    request.leaving = peer->leaving;
    return harness_call(h, "Heartbeat", &request.base);
}

enum { BEGIN = 1, END = 2 };

// Sends events from `first`; the peer's own sequence is left to the caller.
static inline Assay__EventsReply *peer_send(harness_t *h, const peer_t *peer, uint64_t first,
                                            const as_key_t *keys, const uint8_t *ops, size_t count,
                                            unsigned marks)
{
    Assay__EventsRequest request = ASSAY__EVENTS_REQUEST__INIT;
    request.node_id = peer->id;
    request.incarnation = peer->incarnation;
    request.first_sequence = first;
    request.keys.data = (uint8_t *)keys;
    request.keys.len = count * sizeof(as_key_t);
    request.ops.data = (uint8_t *)ops;
    request.ops.len = count;
    request.listing_begin = (marks & BEGIN) != 0;
    request.listing_end = (marks & END) != 0;
    return harness_call(h, "Events", &request.base);
}

// Sends events in order and expects them to be taken.
static inline void peer_tell(harness_t *h, peer_t *peer, const as_key_t *keys, const uint8_t *ops,
                             size_t count, unsigned marks)
{
    Assay__EventsReply *reply = peer_send(h, peer, peer->sequence, keys, ops, count, marks);
    assert_non_null(reply);
    assert_int_equal(reply->status, ASSAY__NODE_STATUS__NODE_STATUS_OK);
    peer->sequence += count;
    assert_int_equal(reply->next_sequence, peer->sequence);
}

// Joins and lists the blocks given, all by one op.
static inline void peer_start(harness_t *h, peer_t *peer, const as_key_t *keys, uint8_t op,
                              size_t count)
{
    assert_non_null(peer_join(h, peer));
    uint8_t *ops = malloc(count + 1);
    memset(ops, op, count);
    peer_tell(h, peer, keys, ops, count, BEGIN | END);
    free(ops);
}

static inline void chain_make(harness_t *h, as_key_t *keys, size_t count)
{
    for (size_t i = 0; i < count * sizeof(as_key_t) / 8; i++) {
        uint64_t value = harness_random(h);
        memcpy((uint8_t *)keys + i * 8, &value, 8);
    }
}

static inline Assay__RouteReply *route_ask(harness_t *h, uint64_t asker, const as_key_t *keys,
                                           size_t count)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.node_id = asker;
    request.keys.data = (uint8_t *)keys;
    request.keys.len = count * sizeof(as_key_t);
    return harness_call(h, "Route", &request.base);
}

static inline int harness_setup(void **state)
{
    harness_t *h = malloc(sizeof(*h));
    harness_init(h);
    *state = h;
    return 0;
}

static inline int harness_teardown(void **state)
{
    harness_fini(*state);
    free(*state);
    return 0;
}

#define WITH_SCHEDULER(test) cmocka_unit_test_setup_teardown(test, harness_setup, harness_teardown)
#define STORE                ASSAY__ROLE__ROLE_STORE
#define WORKER               ASSAY__ROLE__ROLE_WORKER
#define FULL_ADDED           ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED
#define FULL_REMOVED         ASSAY__EVENT_OP__EVENT_OP_FULL_REMOVED
#define SEALED_ADDED         ASSAY__EVENT_OP__EVENT_OP_SEALED_ADDED
#define SEALED_REMOVED       ASSAY__EVENT_OP__EVENT_OP_SEALED_REMOVED

#endif
