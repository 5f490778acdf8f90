// SPDX-License-Identifier: Apache-2.0
// Any bytes as messages to the scheduler, one after the other, with time passing between them.
//
// Input: records that begin with a method byte. Its high bit set: a length (2 bytes, little-endian)
// and that many bytes of a packed protobuf message, taken as they are. Else a few fields in short
// form, so that runs get past the first checks: ids, incarnations, sequence numbers and keys are
// from small ranges and meet, and four nodes have joined at the start. Method 4 lets up to 65 s
// pass. After each message the route of a fixed chain must be well formed.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/rpc_internal.h"
#include "common/rpc_message.h"
#include "scheduler/scheduler.h"

#define METHOD_TIME 4
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

static void call(sch_scheduler_t *scheduler, unsigned method, const ProtobufCMessage *request)
{
    ProtobufCService *service = sch_scheduler_service(scheduler);
    answer_t answer = {.pending = {.fail = on_fail}};
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

typedef struct input {
    const uint8_t *data;
    size_t size;
} input_t;

static uint8_t take(input_t *input)
{
    if (input->size == 0) {
        return 0;
    }
    input->size--;
    return *input->data++;
}

static void short_join(sch_scheduler_t *scheduler, input_t *input)
{
    uint8_t instance[SCH_INSTANCE_BYTES] = {0};
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    uint8_t who = take(input);
    instance[0] = (uint8_t)(1 + who % NODES);
    instance[15] = who >> 7;
    request.role = (Assay__Role)(who / NODES % 4);
    request.instance_id.data = instance;
    request.instance_id.len = sizeof(instance);
    request.incarnation = take(input) % 4;
    request.data_address = take(input) % 2 ? "a:1" : "b:2";
    call(scheduler, 0, &request.base);
}

static void short_heartbeat(sch_scheduler_t *scheduler, input_t *input)
{
    Assay__NodeLoad load = ASSAY__NODE_LOAD__INIT;
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    request.node_id = 1 + take(input) % NODES;
    request.incarnation = take(input) % 4;
    request.events_next_sequence = take(input);
    load.queued_tokens = load.queued_bytes = take(input);
    request.load = &load;
    call(scheduler, 1, &request.base);
}

static void short_events(sch_scheduler_t *scheduler, input_t *input)
{
    static as_key_t keys[256];
    static uint8_t ops[256];
    Assay__EventsRequest request = ASSAY__EVENTS_REQUEST__INIT;
    request.node_id = 1 + take(input) % NODES;
    request.incarnation = take(input) % 4;
    request.first_sequence = take(input);
    uint8_t marks = take(input);
    request.listing_begin = marks & 1;
    request.listing_end = marks >> 1 & 1;
    size_t count = 0;
    for (size_t count_max = marks >> 2; count < count_max && input->size > 0; count++) {
        memset(&keys[count], 0, sizeof(keys[count]));
        keys[count].bytes[0] = take(input);
        ops[count] = (uint8_t)(1 + take(input) % 4);
    }
    request.keys.data = keys[0].bytes;
    request.keys.len = count * sizeof(as_key_t);
    request.ops.data = ops;
    request.ops.len = count;
    call(scheduler, 2, &request.base);
}

static void packed_message(sch_scheduler_t *scheduler, unsigned method, input_t *input)
{
    const ProtobufCServiceDescriptor *service = sch_scheduler_service(scheduler)->descriptor;
    method %= service->n_methods;
    size_t bytes = take(input);
    bytes |= (size_t)take(input) << 8;
    bytes = bytes < input->size ? bytes : input->size;
    ProtobufCMessage *request;
    if (as_rpc_message_unpack(service->methods[method].input, input->data, bytes, &request) ==
        AS_OK) {
        call(scheduler, method, request);
        as_rpc_message_free(request);
    }
    input->data += bytes;
    input->size -= bytes;
}

static void record(as_loop_t *loop, sch_scheduler_t *scheduler, input_t *input)
{
    uint8_t what = take(input);
    if (what & 0x80) {
        packed_message(scheduler, what & 0x7fu, input);
        return;
    }
    switch (what % (METHOD_TIME + 1)) {
    case 0:
        short_join(scheduler, input);
        break;
    case 1:
        short_heartbeat(scheduler, input);
        break;
    case METHOD_TIME: {
        uint64_t low = take(input);
        pass_time(loop, (low | (uint64_t)take(input) << 8) * 1000 + 1);
        break;
    }
    default:
        short_events(scheduler, input);
    }
    route_ask(scheduler);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_loop_t *loop;
    sch_scheduler_t *scheduler;
    sch_options_t options = sch_options_default;
    options.directory_bytes = 64u << 10;
    as_log_set_level(AS_LOG_ERROR);
    if (as_loop_alloc_sim(&loop) != AS_OK) {
        return 0;
    }
    if (sch_scheduler_alloc(loop, &options, &scheduler) == AS_OK) {
        for (uint8_t node = 0; node < NODES; node++) {
            const uint8_t join[3] = {(uint8_t)(node + NODES * (1 + node / 3)), 1, node};
            short_join(scheduler, &(input_t){join, sizeof(join)}); // three stores and a worker
        }
        for (input_t input = {data, size}; input.size > 0;) {
            record(loop, scheduler, &input);
        }
        sch_scheduler_free(scheduler);
    }
    as_loop_free(loop);
    return 0;
}
