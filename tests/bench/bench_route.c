// SPDX-License-Identifier: Apache-2.0
// Routes a second on one core: chains of 512 blocks, striped in runs of 16 over two replicas, in a
// directory of many chains, through the scheduler's handler (so with its checks and its reply).
//
// Usage: bench_route [BLOCKS_IN_DIRECTORY]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/rpc_internal.h"
#include "scheduler/scheduler.h"
#include "tests/bench/clock.h"

#define CHAIN_BLOCKS 512u
#define STORES       64u
#define WORKERS      1000u
#define ROUTES       20000u

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    uint64_t value = random_state += 0x9e3779b97f4a7c15ull; // splitmix64
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

typedef struct answer {
    as_rpc_pending_t pending;
    uint64_t hit_blocks, runs;
} answer_t;

static void on_fail(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    (void)pending;
    fprintf(stderr, "a call failed: %s: %s\n", as_status_str(status), text);
    exit(1);
}

static void on_reply(const ProtobufCMessage *reply, void *ctx)
{
    answer_t *answer = ctx;
    if (reply->descriptor == &assay__route_reply__descriptor) {
        answer->hit_blocks += ((const Assay__RouteReply *)reply)->hit_blocks;
        answer->runs += ((const Assay__RouteReply *)reply)->n_runs;
    }
}

static answer_t answer = {.pending = {.fail = on_fail}};

static void call(sch_scheduler_t *scheduler, const char *method, const ProtobufCMessage *request)
{
    ProtobufCService *service = sch_scheduler_service(scheduler);
    const ProtobufCMethodDescriptor *found =
        protobuf_c_service_descriptor_get_method_by_name(service->descriptor, method);
    service->invoke(service, (unsigned)(found - service->descriptor->methods), request, on_reply,
                    &answer);
}

static uint64_t node_start(sch_scheduler_t *scheduler, Assay__Role role, uint32_t number)
{
    uint64_t instance[2] = {number + 1, 1};
    Assay__JoinRequest join = ASSAY__JOIN_REQUEST__INIT;
    join.role = role;
    join.instance_id.data = (uint8_t *)instance;
    join.instance_id.len = sizeof(instance);
    join.incarnation = 1;
    char address[32];
    snprintf(address, sizeof(address), "node%u:1", number);
    join.data_address = address;
    call(scheduler, "Join", &join.base);
    Assay__EventsRequest events = ASSAY__EVENTS_REQUEST__INIT;
    events.node_id = number + 1;
    events.incarnation = 1;
    events.first_sequence = 1;
    events.listing_begin = events.listing_end = true;
    call(scheduler, "Events", &events.base);
    return number + 1;
}

static uint64_t sequences[STORES];

static void run_tell(sch_scheduler_t *scheduler, uint32_t store, const as_key_t *keys)
{
    uint8_t ops[AS_RUN_BLOCKS];
    memset(ops, ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED, sizeof(ops));
    Assay__EventsRequest events = ASSAY__EVENTS_REQUEST__INIT;
    events.node_id = store + 1;
    events.incarnation = 1;
    events.first_sequence = 1 + sequences[store];
    events.keys.data = (uint8_t *)keys;
    events.keys.len = AS_RUN_BLOCKS * sizeof(as_key_t);
    events.ops.data = ops;
    events.ops.len = AS_RUN_BLOCKS;
    call(scheduler, "Events", &events.base);
    sequences[store] += AS_RUN_BLOCKS;
}

static void fill(sch_scheduler_t *scheduler, as_key_t *keys, size_t blocks)
{
    for (size_t i = 0; i < blocks; i++) {
        for (size_t j = 0; j < sizeof(as_key_t); j += 8) {
            uint64_t value = next_random();
            memcpy(keys[i].bytes + j, &value, 8);
        }
    }
    for (size_t i = 0; i < blocks; i += AS_RUN_BLOCKS) {
        uint32_t store = (uint32_t)(next_random() % STORES);
        run_tell(scheduler, store, keys + i);
        run_tell(scheduler, (store + 1 + next_random() % (STORES - 1)) % STORES, keys + i);
    }
}

static void route(sch_scheduler_t *scheduler, uint64_t asker, const as_key_t *keys)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.node_id = asker;
    request.keys.data = (uint8_t *)keys;
    request.keys.len = CHAIN_BLOCKS * sizeof(as_key_t);
    call(scheduler, "Route", &request.base);
}

int main(int argc, char **argv)
{
    as_log_set_level(AS_LOG_WARN);
    size_t blocks = argc > 1 ? strtoull(argv[1], NULL, 10) : 4u << 20;
    blocks = blocks / CHAIN_BLOCKS * CHAIN_BLOCKS;
    sch_options_t options = sch_options_default;
    options.directory_bytes = blocks * 44 + (1u << 20);
    as_loop_t *loop;
    sch_scheduler_t *scheduler;
    as_key_t *keys = malloc(blocks * sizeof(*keys));
    if (blocks == 0 || !keys || as_loop_alloc_sim(&loop) != AS_OK ||
        sch_scheduler_alloc(loop, &options, &scheduler) != AS_OK) {
        fprintf(stderr, "bench_route: cannot start\n");
        return 1;
    }
    for (uint32_t i = 0; i < STORES; i++) {
        node_start(scheduler, ASSAY__ROLE__ROLE_STORE, i);
    }
    uint64_t asker = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        asker = node_start(scheduler, ASSAY__ROLE__ROLE_WORKER, STORES + i);
    }
    double begin = now_s();
    fill(scheduler, keys, blocks);
    printf("events: %.2f million a second\n", 2e-6 * (double)blocks / (now_s() - begin));

    static as_key_t asked[CHAIN_BLOCKS];
    begin = now_s();
    for (uint32_t i = 0; i < ROUTES; i++) {
        size_t chain = next_random() % (blocks / CHAIN_BLOCKS);
        memcpy(asked, keys + chain * CHAIN_BLOCKS, sizeof(asked)); // as hot as just unpacked
        route(scheduler, asker, asked);
    }
    double took = now_s() - begin;
    if (answer.hit_blocks != (uint64_t)ROUTES * CHAIN_BLOCKS) {
        fprintf(stderr, "bench_route: blocks were not found\n");
        return 1;
    }
    printf("routes: %.0f a second, blocks %u each, runs %.1f each, directory blocks %zu, %.0f ns a "
           "block\n",
           ROUTES / took, CHAIN_BLOCKS, (double)answer.runs / ROUTES, blocks,
           took * 1e9 / ROUTES / CHAIN_BLOCKS);
    sch_scheduler_free(scheduler);
    as_loop_free(loop);
    free(keys);
    return 0;
}
