// SPDX-License-Identifier: Apache-2.0
// Any bytes as messages to the scheduler, one after the other, with time passing between them.
//
// Input: records of a method (1 byte), a length (2 bytes, little-endian) and that many bytes of
// packed message. Method 5 lets up to 65 s pass instead. So that runs get past the first checks,
// ids and incarnations of node messages are folded into a few. After each message the route of a
// fixed chain must still be well formed.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/rpc_internal.h"
#include "common/rpc_message.h"
#include "scheduler/scheduler.h"

#define METHOD_TIME 5
#define NODES       4

typedef struct answer {
    as_rpc_pending_t pending;
    int count;
} answer_t;

static void on_fail(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    AS_ASSERT(status != AS_OK && text);
    ((answer_t *)pending)->count++;
}

static void check_route(const Assay__RouteReply *reply)
{
    uint32_t at = 0;
    for (size_t i = 0; i < reply->n_runs; i++) {
        const Assay__RouteRun *run = reply->runs[i];
        AS_ASSERT(run->first_block == at && run->block_count > 0 && run->n_node_ids > 0);
        at += run->block_count;
    }
    AS_ASSERT(at == reply->hit_blocks);
}

static void on_reply(const ProtobufCMessage *reply, void *ctx)
{
    ((answer_t *)ctx)->count++;
    AS_ASSERT(protobuf_c_message_check(reply));
    if (reply->descriptor == &assay__route_reply__descriptor) {
        check_route((const Assay__RouteReply *)reply);
    }
}

// Field numbers of the node messages differ; what matters is that ids meet.
static void fold(ProtobufCMessage *message)
{
    if (message->descriptor == &assay__heartbeat_request__descriptor) {
        Assay__HeartbeatRequest *request = (Assay__HeartbeatRequest *)message;
        request->node_id = 1 + request->node_id % NODES;
        request->incarnation = 1 + request->incarnation % 2;
    } else if (message->descriptor == &assay__events_request__descriptor) {
        Assay__EventsRequest *request = (Assay__EventsRequest *)message;
        request->node_id = 1 + request->node_id % NODES;
        request->incarnation = 1 + request->incarnation % 2;
        if (request->keys.len / 32 < request->ops.len) {
            request->ops.len = request->keys.len / 32;
        }
        request->keys.len = request->ops.len * 32;
        for (size_t i = 0; i < request->ops.len; i++) {
            memset(request->keys.data + i * 32 + 1, 0, 31); // 256 keys, so that events meet too
        }
    } else if (message->descriptor == &assay__join_request__descriptor) {
        Assay__JoinRequest *request = (Assay__JoinRequest *)message;
        if (request->instance_id.len == SCH_INSTANCE_BYTES) {
            uint64_t id[2] = {1 + request->instance_id.data[0] % NODES, 0};
            memcpy(request->instance_id.data, id, sizeof(id));
        }
        request->incarnation = 1 + request->incarnation % 2;
    }
}

static void call(sch_scheduler_t *scheduler, unsigned method, const ProtobufCMessage *request)
{
    ProtobufCService *service = sch_scheduler_service(scheduler);
    answer_t answer = {.pending = {on_fail}};
    service->invoke(service, method, request, on_reply, &answer);
    AS_ASSERT(answer.count == 1);
}

static void on_alarm(void *ctx)
{
    *(bool *)ctx = true;
}

static void pass_time(as_loop_t *loop, uint64_t us)
{
    bool rang = false;
    as_timer_t *alarm;
    if (as_timer_alloc(loop, on_alarm, &rang, &alarm) != AS_OK) {
        return;
    }
    as_timer_start(alarm, us);
    while (!rang) {
        as_loop_run_once(loop, true);
    }
    as_timer_free(alarm);
}

static void route_ask(sch_scheduler_t *scheduler)
{
    as_key_t keys[256];
    memset(keys, 0, sizeof(keys));
    for (unsigned i = 0; i < 256; i++) {
        keys[i].bytes[0] = (uint8_t)i;
    }
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.node_id = 1;
    request.keys.data = keys[0].bytes;
    request.keys.len = sizeof(keys);
    call(scheduler, 3, &request.base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static as_loop_t *loop;
    sch_scheduler_t *scheduler;
    sch_options_t options = sch_options_default;
    options.directory_bytes = 64u << 10;
    as_log_set_level(AS_LOG_ERROR);
    if ((!loop && as_loop_alloc_sim(&loop) != AS_OK) ||
        sch_scheduler_alloc(loop, &options, &scheduler) != AS_OK) {
        return 0;
    }
    const ProtobufCServiceDescriptor *service = sch_scheduler_service(scheduler)->descriptor;
    while (size >= 3) {
        unsigned method = data[0] % (METHOD_TIME + 1);
        size_t bytes = data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        if (method == METHOD_TIME) {
            pass_time(loop, bytes * 1000 + 1);
            continue;
        }
        bytes = bytes < size ? bytes : size;
        ProtobufCMessage *request;
        if (as_rpc_message_unpack(service->methods[method].input, data, bytes, &request) == AS_OK) {
            fold(request);
            call(scheduler, method, request);
            as_rpc_message_free(request);
            route_ask(scheduler);
        }
        data += bytes;
        size -= bytes;
    }
    sch_scheduler_free(scheduler);
    return 0;
}
