// SPDX-License-Identifier: Apache-2.0
// The scheduler's service: each handler checks its message, asks cluster, directory and route, and
// answers before it returns. Also puts the objects together.
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rpc.h"
#include "common/rpc_peer.h"
#include "scheduler/scheduler.h"

#define SCHEDULER_MAGIC 0x6465686373736100ull // "\0asssched"
// About half a millisecond of looking at entries, then the loop has its turn.
#define SWEEP_ENTRIES     65536u
#define SWEEP_DELAY_US    1000u
#define READY_AT_LEAST_US 30000000ull // a node that never lists must not hold back the rest

const sch_options_t sch_options_default = {
    .cluster_id = "assay",
    .heartbeat_us = 1000000,
    .suspect_us = 3000000,
    .dead_us = 10000000,
    .directory_bytes = 256u << 20,
    .seed = 0,
    .slow_start_us = 30000000,
    .replicas = 1,
};

static sch_scheduler_t *scheduler_of(Assay__Scheduler_Service *service)
{
    sch_scheduler_t *scheduler = (sch_scheduler_t *)service;
    AS_ASSERT(scheduler->magic == SCHEDULER_MAGIC);
    return scheduler;
}

static void refuse(ProtobufCClosure closure, void *data, as_status_t status, const char *text)
{
    as_metric_add(&sch_metrics[SCH_REFUSED_MESSAGES_TOTAL], 1);
    as_rpc_fail(closure, data, status, text);
}

static bool is_of_cluster(const sch_scheduler_t *scheduler, const Assay__JoinRequest *request)
{
    return !request->cluster_id[0] || strcmp(request->cluster_id, scheduler->cluster_id) == 0;
}

static void on_join(Assay__Scheduler_Service *service, const Assay__JoinRequest *request,
                    Assay__JoinReply_Closure closure, void *data)
{
    sch_scheduler_t *scheduler = scheduler_of(service);
    const char *text = NULL;
    sch_node_t *node = NULL;
    char stranger[512];
    as_status_t status = sch_check_join(request, &text);
    if (status == AS_OK && !is_of_cluster(scheduler, request)) {
        snprintf(stranger, sizeof(stranger),
                 "%s %s is of the cluster %s and this is %s (--cluster-id of both): it has another "
                 "scheduler",
                 request->role == ASSAY__ROLE__ROLE_STORE ? "store" : "worker", request->name,
                 request->cluster_id, scheduler->cluster_id);
        text = stranger;
        status = AS_ERR_CONFIG;
    }
    if (status == AS_OK && request->role == ASSAY__ROLE__ROLE_STORE &&
        request->wants_tokens != (scheduler->tenants != NULL)) {
        // It would give the blocks of all tenants to everybody, or be asked for names it does not use.
        snprintf(stranger, sizeof(stranger), "store %s at %s has %s and this scheduler has %s: %s",
                 request->name, request->data_address,
                 request->wants_tokens ? "--cluster-key" : "no --cluster-key",
                 request->wants_tokens ? "none" : "one",
                 "all stores of a cluster and its scheduler have it, or none");
        text = stranger;
        status = AS_ERR_DENIED;
    }
    if (status == AS_OK) {
        status = sch_cluster_join(scheduler->cluster, request, &node, &text);
    }
    if (status != AS_OK) {
        AS_WARN("serve", "a join is refused: %s", text);
        refuse((ProtobufCClosure)closure, data, status, text);
        return;
    }
    Assay__JoinReply reply = ASSAY__JOIN_REPLY__INIT;
    reply.node_id = node->id;
    reply.heartbeat_ms = scheduler->options.heartbeat_us / 1000;
    reply.suspect_ms = scheduler->options.suspect_us / 1000;
    reply.dead_ms = scheduler->options.dead_us / 1000;
    reply.cluster_id = scheduler->cluster_id;
    reply.placement_epoch = sch_cluster_epoch(scheduler->cluster);
    reply.needs_listing = node->needs_listing;
    reply.events_next_sequence = node->next_sequence;
    reply.replicas = scheduler->options.replicas;
    sch_replies_stores(scheduler, &reply.n_nodes, &reply.nodes);
    closure(&reply, data);
}

static void on_heartbeat(Assay__Scheduler_Service *service, const Assay__HeartbeatRequest *request,
                         Assay__HeartbeatReply_Closure closure, void *data)
{
    sch_scheduler_t *scheduler = scheduler_of(service);
    Assay__HeartbeatReply reply = ASSAY__HEARTBEAT_REPLY__INIT;
    sch_node_t *node = sch_cluster_hear(scheduler->cluster, request->node_id, request->incarnation);
    if (!node) {
        reply.status = ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE;
        closure(&reply, data);
        return;
    }
    if (request->leaving) {
        sch_cluster_leave(scheduler->cluster, node);
        reply.status = ASSAY__NODE_STATUS__NODE_STATUS_OK;
        closure(&reply, data);
        return;
    }
    sch_cluster_set_draining(scheduler->cluster, node, request->draining);
    if (request->load) {
        sch_cluster_set_load(scheduler->cluster, node, request->load);
    }
    // Events are acknowledged one call after the other, so a node cannot have had more of them
    // acknowledged than were seen here, unless this scheduler has forgotten them.
    bool lost = node->needs_listing || request->events_next_sequence > node->next_sequence;
    reply.status = lost ? sch_events_resync(scheduler, node) : ASSAY__NODE_STATUS__NODE_STATUS_OK;
    reply.placement_epoch = sch_cluster_epoch(scheduler->cluster);
    reply.replicas = scheduler->options.replicas;
    if (request->placement_epoch != reply.placement_epoch) {
        sch_replies_stores(scheduler, &reply.n_nodes, &reply.nodes);
    }
    closure(&reply, data);
}

static void on_events(Assay__Scheduler_Service *service, const Assay__EventsRequest *request,
                      Assay__EventsReply_Closure closure, void *data)
{
    sch_scheduler_t *scheduler = scheduler_of(service);
    const char *text = NULL;
    as_status_t status = sch_check_events(request, &text);
    if (status != AS_OK) {
        refuse((ProtobufCClosure)closure, data, status, text);
        return;
    }
    Assay__EventsReply reply = ASSAY__EVENTS_REPLY__INIT;
    sch_node_t *node = sch_cluster_hear(scheduler->cluster, request->node_id, request->incarnation);
    if (node) {
        reply.status = sch_events_apply(scheduler, node, request);
        reply.next_sequence = node->next_sequence;
    } else {
        reply.status = ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE;
    }
    as_metric_set(&sch_metrics[SCH_DIRECTORY_BLOCKS],
                  (int64_t)sch_directory_blocks(scheduler->directory));
    closure(&reply, data);
}

static void on_route(Assay__Scheduler_Service *service, const Assay__RouteRequest *request,
                     Assay__RouteReply_Closure closure, void *data)
{
    sch_scheduler_t *scheduler = scheduler_of(service);
    const char *text = NULL;
    as_status_t status = sch_check_route(request, &text);
    if (status != AS_OK) {
        refuse((ProtobufCClosure)closure, data, status, text);
        return;
    }
    const uint8_t *keys;
    status = sch_tenants_scope(scheduler->tenants, request, &keys, &text);
    if (status != AS_OK) {
        refuse((ProtobufCClosure)closure, data, status, text);
        return;
    }
    if (as_fault(AS_FAULT_route_fail)) {
        as_rpc_fail((ProtobufCClosure)closure, data, AS_ERR_BUSY, "fault route_fail");
        return;
    }
    uint64_t begin_us = as_loop_now_us(scheduler->loop);
    sch_node_t *asker = sch_cluster_find(scheduler->cluster, request->node_id);
    sch_route_query_t query = {
        .keys = keys,
        .key_count = (uint32_t)(request->keys.len / sizeof(as_key_t)),
        .block_tokens = request->block_tokens ? request->block_tokens : SCH_BLOCK_TOKENS,
        .asker = asker && asker->role == ASSAY__ROLE__ROLE_WORKER ? asker : NULL,
    };
    sch_route_t route;
    sch_router_route(scheduler->router, &query, &route);
    if (request->node_id != 0 && !query.asker) {
        route.worker = NULL; // of a worker that has yet to join again the model is not known
    }
    Assay__RouteReply reply = ASSAY__ROUTE_REPLY__INIT;
    sch_replies_route(scheduler, &route, &reply);
    reply.placement_epoch = sch_cluster_epoch(scheduler->cluster);
    scheduler->routes++;
    scheduler->asked_blocks += query.key_count;
    scheduler->hit_blocks += route.hit_blocks;
    as_metric_add(&sch_metrics[SCH_ROUTES_TOTAL], 1);
    as_metric_add(&sch_metrics[SCH_ASKED_BLOCKS_TOTAL], query.key_count);
    as_metric_add(&sch_metrics[SCH_HIT_BLOCKS_TOTAL], route.hit_blocks);
    as_metric_observe(&sch_metrics[SCH_ROUTE_US], as_loop_now_us(scheduler->loop) - begin_us);
    closure(&reply, data);
}

static void stat_fill(sch_scheduler_t *scheduler, sch_node_t *node, Assay__NodeStat *stat,
                      Assay__NodeLoad *load)
{
    assay__node_stat__init(stat);
    assay__node_load__init(load);
    load->used_bytes = node->used_bytes;
    load->capacity_bytes = node->capacity_bytes;
    load->sessions = node->sessions;
    load->queued_tokens = node->queued_tokens;
    load->queued_bytes = node->queued_bytes;
    stat->node_id = node->id;
    stat->role = node->role;
    stat->state = node->state;
    stat->name = node->name;
    stat->data_address = node->data_address;
    stat->rpc_address = node->rpc_address;
    stat->http_address = node->http_address;
    stat->incarnation = node->incarnation;
    stat->silence_ms = (as_loop_now_us(scheduler->loop) - node->heard_us) / 1000;
    stat->load = load;
    stat->full_blocks = node->full_blocks;
    stat->sealed_blocks = node->sealed_blocks;
    stat->listed = node->listed;
    stat->draining = node->draining;
    stat->weight_bytes = sch_cluster_weight(node);
}

static void stat_totals(sch_scheduler_t *scheduler, Assay__StatReply *reply)
{
    reply->cluster_id = scheduler->cluster_id;
    reply->placement_epoch = sch_cluster_epoch(scheduler->cluster);
    reply->directory_blocks = sch_directory_blocks(scheduler->directory);
    reply->directory_blocks_max = sch_directory_blocks_max(scheduler->directory);
    reply->directory_bytes = sch_directory_bytes(scheduler->directory);
    reply->routes = scheduler->routes;
    reply->route_blocks_asked = scheduler->asked_blocks;
    reply->route_blocks_hit = scheduler->hit_blocks;
    reply->route_us_p50 = as_metric_quantile(&sch_metrics[SCH_ROUTE_US], 0.5);
    reply->route_us_p99 = as_metric_quantile(&sch_metrics[SCH_ROUTE_US], 0.99);
    reply->events = scheduler->events;
    reply->resyncs = scheduler->resyncs;
    reply->replicas = scheduler->options.replicas;
    reply->uptime_ms = (as_loop_now_us(scheduler->loop) - scheduler->started_us) / 1000;
}

typedef struct stat_row {
    Assay__NodeStat stat;
    Assay__NodeLoad load;
} stat_row_t;

static void on_stat(Assay__Scheduler_Service *service, const Assay__StatRequest *request,
                    Assay__StatReply_Closure closure, void *data)
{
    (void)request;
    sch_scheduler_t *scheduler = scheduler_of(service);
    uint32_t count = sch_cluster_count(scheduler->cluster);
    stat_row_t *rows = as_mem_zalloc(count, sizeof(*rows));
    Assay__NodeStat **list = as_mem_zalloc(count, sizeof(*list));
    if (!rows || !list) {
        as_rpc_fail((ProtobufCClosure)closure, data, AS_ERR_NO_MEMORY, "out of memory");
    } else {
        Assay__StatReply reply = ASSAY__STAT_REPLY__INIT;
        stat_totals(scheduler, &reply);
        for (uint32_t i = 0; i < count; i++) {
            stat_fill(scheduler, sch_cluster_at(scheduler->cluster, i), &rows[i].stat,
                      &rows[i].load);
            list[i] = &rows[i].stat;
        }
        reply.n_nodes = count;
        reply.nodes = list;
        closure(&reply, data);
    }
    as_mem_free(list);
    as_mem_free(rows);
}

static void on_token(Assay__Scheduler_Service *service, const Assay__TokenRequest *request,
                     Assay__TokenReply_Closure closure, void *data)
{
    sch_scheduler_t *scheduler = scheduler_of(service);
    const char *text = NULL;
    as_token_sealed_t sealed;
    as_status_t status = sch_check_token(request, &text);
    if (status == AS_OK && !scheduler->options.issue_tokens) {
        text = "this scheduler issues no tokens: see its --issue-tokens";
        status = AS_ERR_DENIED;
    } else if (status == AS_OK && !as_rpc_is_operator(data)) {
        text = "the certificate is no operator's: see the scheduler's --operator";
        status = AS_ERR_DENIED;
    } else if (status == AS_OK) {
        status = sch_tenants_issue(scheduler->tenants, request, &sealed);
        text = "no token can be signed";
    }
    if (status != AS_OK) {
        refuse((ProtobufCClosure)closure, data, status, text);
        return;
    }
    Assay__TokenReply reply = ASSAY__TOKEN_REPLY__INIT;
    reply.token = (ProtobufCBinaryData){sizeof(sealed.bytes), sealed.bytes};
    closure(&reply, data);
}

static void on_sweep(void *ctx)
{
    sch_scheduler_t *scheduler = ctx;
    if (sch_directory_sweep(scheduler->directory, SWEEP_ENTRIES)) {
        as_timer_start(scheduler->sweep, SWEEP_DELAY_US);
    }
    as_metric_set(&sch_metrics[SCH_DIRECTORY_BLOCKS],
                  (int64_t)sch_directory_blocks(scheduler->directory));
}

static void on_forget(void *ctx, sch_node_t *node)
{
    sch_events_forget(ctx, node);
}

static void on_change(void *ctx, sch_node_t *node)
{
    sch_scheduler_t *scheduler = ctx;
    if (node->slot != SCH_SLOT_NONE) {
        sch_router_set_slot(scheduler->router, node->slot, node);
    }
}

as_status_t sch_scheduler_alloc(as_loop_t *loop, const sch_options_t *options,
                                sch_scheduler_t **scheduler_p)
{
    sch_scheduler_t *scheduler = as_mem_zalloc(1, sizeof(*scheduler));
    if (!scheduler) {
        return AS_ERR_NO_MEMORY;
    }
    scheduler->magic = SCHEDULER_MAGIC;
    scheduler->loop = loop;
    scheduler->options = *options;
    scheduler->options.issue_tokens = options->issue_tokens && options->cluster_key;
    scheduler->options.replicas = options->replicas > 0 ? options->replicas : 1;
    snprintf(scheduler->cluster_id, sizeof(scheduler->cluster_id), "%s", options->cluster_id);
    scheduler->started_us = as_loop_now_us(loop);
    assay__scheduler__init(&scheduler->service, NULL);
    scheduler->service.join = on_join;
    scheduler->service.heartbeat = on_heartbeat;
    scheduler->service.events = on_events;
    scheduler->service.route = on_route;
    scheduler->service.stat = on_stat;
    scheduler->service.token = on_token;
    sch_cluster_params_t params = {
        .suspect_us = options->suspect_us,
        .dead_us = options->dead_us,
        .slow_start_us = options->slow_start_us,
        .ctx = scheduler,
        .on_forget = on_forget,
        .on_change = on_change,
    };
    as_status_t status =
        sch_directory_alloc(options->directory_bytes, options->seed, &scheduler->directory);
    if (status == AS_OK) {
        status = sch_cluster_alloc(loop, &params, &scheduler->cluster);
    }
    if (status == AS_OK) {
        status = sch_router_alloc(scheduler->directory, scheduler->cluster, &scheduler->router);
    }
    if (status == AS_OK) {
        status = sch_replies_alloc(&scheduler->replies);
    }
    if (status == AS_OK && options->cluster_key) {
        status = sch_tenants_alloc(loop, options->cluster_key, &scheduler->tenants);
    }
    if (status == AS_OK) {
        status = as_timer_alloc(loop, on_sweep, scheduler, &scheduler->sweep);
    }
    if (status != AS_OK) {
        sch_scheduler_free(scheduler);
        return status;
    }
    as_metric_register(sch_metrics, SCH_METRIC_COUNT);
    as_metric_set(&sch_metrics[SCH_DIRECTORY_BYTES],
                  (int64_t)sch_directory_bytes(scheduler->directory));
    *scheduler_p = scheduler;
    return AS_OK;
}

void sch_scheduler_free(sch_scheduler_t *scheduler)
{
    if (!scheduler) {
        return;
    }
    AS_ASSERT(scheduler->magic == SCHEDULER_MAGIC);
    as_timer_free(scheduler->sweep);
    sch_tenants_free(scheduler->tenants);
    sch_replies_free(scheduler->replies);
    sch_router_free(scheduler->router);
    sch_cluster_free(scheduler->cluster);
    sch_directory_free(scheduler->directory);
    scheduler->magic = 0;
    as_mem_free(scheduler);
}

void sch_scheduler_reload(sch_scheduler_t *scheduler)
{
    sch_tenants_reload(scheduler->tenants);
}

ProtobufCService *sch_scheduler_service(sch_scheduler_t *scheduler)
{
    return &scheduler->service.base;
}

bool sch_scheduler_ready(const sch_scheduler_t *scheduler)
{
    if (as_loop_now_us(scheduler->loop) - scheduler->started_us >= READY_AT_LEAST_US) {
        return true;
    }
    for (uint32_t i = 0; i < sch_cluster_count(scheduler->cluster); i++) {
        const sch_node_t *node = sch_cluster_at(scheduler->cluster, i);
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE && !node->listed) {
            return false;
        }
    }
    return true;
}
