// SPDX-License-Identifier: Apache-2.0
// The worker's word with the scheduler.
//
// States: not joined -> (Join answered) joined -> (UNKNOWN_NODE or AS_ERR) not joined. One
// membership call is in flight at a time; the timer paces it. A scheduler that is away is asked
// again every RETRY_US.
#include "gpuworker/cluster.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/scheduler.pb-c.h"

#define CALL_DEADLINE_US 2000000u // of Join and Heartbeat: two default heartbeats
#define RETRY_US         1000000u
#define HEARTBEAT_MS_MIN 50u
#define HEARTBEAT_MS_MAX 60000u
#define KEY_BYTES        32u

struct gpw_cluster {
    gpw_cluster_options_t options;
    char name[64], http_address[256], numerics_id[128];
    as_timer_t *timer;
    uint64_t node_id;
    uint64_t heartbeat_us;
    uint64_t placement_epoch;
    bool calling, warned;
};

typedef struct route_call {
    gpw_cluster_t *cluster;
    uint32_t key_count;
    void (*done)(void *ctx, as_status_t status, uint32_t hit_blocks, const uint64_t *node_ids);
    void *ctx;
} route_call_t;

static void copy_text(char *to, size_t bytes, const char *from)
{
    snprintf(to, bytes, "%s", from ? from : "");
}

// ---- Membership --------------------------------------------------------------------------------

static void set_stores(gpw_cluster_t *cluster, Assay__StoreNode **nodes, size_t count)
{
    assay_store_t stores[ASSAY_STORES_MAX];
    uint32_t n = 0;
    if (!cluster->options.client) {
        return;
    }
    for (size_t i = 0; i < count && n < ASSAY_STORES_MAX; i++) {
        const Assay__StoreNode *node = nodes[i];
        bool alive = node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE;
        if (!alive || strlen(node->data_address) >= ASSAY_ADDRESS_BYTES_MAX) {
            continue;
        }
        stores[n] = (assay_store_t){.node_id = node->node_id,
                                    .capacity_bytes = node->capacity_bytes,
                                    .draining = node->draining};
        copy_text(stores[n].data_address, sizeof(stores[n].data_address), node->data_address);
        n++;
    }
    assay_client_set_stores(cluster->options.client, stores, n);
}

static void set_replicas(gpw_cluster_t *cluster, uint32_t replicas)
{
    if (cluster->options.client) {
        assay_client_set_replicas(cluster->options.client, replicas);
    }
}

static void call_failed(gpw_cluster_t *cluster, const char *what, as_status_t status)
{
    if (status == AS_ERR_CANCELLED) {
        return;
    }
    if (!cluster->warned) {
        AS_WARN("cluster", "%s failed: %s; serving without the scheduler until it answers", what,
                as_status_str(status));
        cluster->warned = true;
    }
    as_timer_start(cluster->timer, RETRY_US);
}

static void on_join(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    gpw_cluster_t *cluster = ctx;
    cluster->calling = false;
    if (status == AS_ERR_CONFIG && !cluster->warned) {
        AS_ERROR("cluster",
                 "the scheduler is of another cluster than this worker's --cluster-id=%s; see "
                 "--scheduler, and the --cluster-id of both",
                 cluster->options.cluster_id);
    }
    if (status != AS_OK) {
        call_failed(cluster, "join", status);
        return;
    }
    const Assay__JoinReply *reply = (const Assay__JoinReply *)message;
    uint64_t ms = reply->heartbeat_ms;
    ms = ms < HEARTBEAT_MS_MIN ? HEARTBEAT_MS_MIN : ms;
    ms = ms > HEARTBEAT_MS_MAX ? HEARTBEAT_MS_MAX : ms;
    cluster->node_id = reply->node_id;
    cluster->heartbeat_us = ms * 1000;
    cluster->placement_epoch = reply->placement_epoch;
    cluster->warned = false;
    set_stores(cluster, reply->nodes, reply->n_nodes);
    set_replicas(cluster, reply->replicas);
    AS_DEBUG("cluster", "joined as node %016llx, stores %zu", (unsigned long long)reply->node_id,
             reply->n_nodes);
    as_timer_start(cluster->timer, cluster->heartbeat_us);
}

static void join(gpw_cluster_t *cluster)
{
    const gpw_cluster_options_t *o = &cluster->options;
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    request.role = ASSAY__ROLE__ROLE_WORKER;
    request.instance_id.data = cluster->options.instance_id;
    request.instance_id.len = sizeof(cluster->options.instance_id);
    request.incarnation = o->incarnation;
    request.http_address = cluster->http_address;
    request.capacity_bytes = o->capacity_bytes;
    request.model_fingerprint.data = cluster->options.model_fingerprint.bytes;
    request.model_fingerprint.len = KEY_BYTES;
    request.numerics_id = cluster->numerics_id;
    request.name = cluster->name;
    request.cluster_id = (char *)(uintptr_t)(o->cluster_id ? o->cluster_id : "");
    as_status_t status =
        as_rpc_call(o->scheduler, "Join", &request.base, CALL_DEADLINE_US, on_join, cluster, NULL);
    if (status != AS_OK) {
        call_failed(cluster, "join", status);
        return;
    }
    cluster->calling = true;
}

static void on_heartbeat(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    gpw_cluster_t *cluster = ctx;
    cluster->calling = false;
    if (status != AS_OK) {
        call_failed(cluster, "heartbeat", status);
        return;
    }
    const Assay__HeartbeatReply *reply = (const Assay__HeartbeatReply *)message;
    cluster->warned = false;
    if (reply->status == ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE) {
        cluster->node_id = 0;
        join(cluster);
        return;
    }
    set_replicas(cluster, reply->replicas);
    if (reply->n_nodes > 0 || reply->placement_epoch != cluster->placement_epoch) {
        set_stores(cluster, reply->nodes, reply->n_nodes);
        cluster->placement_epoch = reply->placement_epoch;
    }
    as_timer_start(cluster->timer, cluster->heartbeat_us);
}

static void heartbeat(gpw_cluster_t *cluster)
{
    const gpw_cluster_options_t *o = &cluster->options;
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    Assay__NodeLoad load = ASSAY__NODE_LOAD__INIT;
    request.node_id = cluster->node_id;
    request.incarnation = o->incarnation;
    request.placement_epoch = cluster->placement_epoch;
    load.capacity_bytes = o->capacity_bytes;
    o->load(o->ctx, &load.used_bytes, &load.sessions, &load.queued_tokens);
    request.load = &load;
    as_status_t status = as_rpc_call(o->scheduler, "Heartbeat", &request.base, CALL_DEADLINE_US,
                                     on_heartbeat, cluster, NULL);
    if (status != AS_OK) {
        call_failed(cluster, "heartbeat", status);
        return;
    }
    cluster->calling = true;
}

static void on_timer(void *ctx)
{
    gpw_cluster_t *cluster = ctx;
    if (cluster->calling) {
        return;
    }
    if (cluster->node_id) {
        heartbeat(cluster);
    } else {
        join(cluster);
    }
}

// ---- Life --------------------------------------------------------------------------------------

static as_status_t draw_identity(gpw_cluster_options_t *options)
{
    static const uint8_t none[16];
    if (memcmp(options->instance_id, none, sizeof(none)) == 0) {
        if (getrandom(options->instance_id, sizeof(none), 0) != (ssize_t)sizeof(none)) {
            return AS_ERR_IO;
        }
        options->instance_id[0] |= 1; // the node id is not 0
    }
    if (options->incarnation == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        options->incarnation = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    }
    return AS_OK;
}

as_status_t gpw_cluster_alloc(const gpw_cluster_options_t *options, gpw_cluster_t **cluster_p)
{
    gpw_cluster_t *cluster = as_mem_zalloc(1, sizeof(*cluster));
    if (!cluster) {
        return AS_ERR_NO_MEMORY;
    }
    cluster->options = *options;
    copy_text(cluster->name, sizeof(cluster->name), options->name);
    copy_text(cluster->http_address, sizeof(cluster->http_address), options->http_address);
    copy_text(cluster->numerics_id, sizeof(cluster->numerics_id), options->numerics_id);
    as_status_t status = draw_identity(&cluster->options);
    if (status == AS_OK) {
        status = as_timer_alloc(options->loop, on_timer, cluster, &cluster->timer);
    }
    if (status != AS_OK) {
        as_mem_free(cluster);
        return status;
    }
    as_timer_start(cluster->timer, 0);
    *cluster_p = cluster;
    return AS_OK;
}

void gpw_cluster_free(gpw_cluster_t *cluster)
{
    if (!cluster) {
        return;
    }
    as_timer_free(cluster->timer);
    as_mem_free(cluster);
}

uint64_t gpw_cluster_node_id(const gpw_cluster_t *cluster)
{
    return cluster->node_id;
}

// ---- Routes ------------------------------------------------------------------------------------

// A store for each block of the hit; 0 when the reply does not cover it. Returns the blocks covered
// from the first.
static uint32_t spread_runs(const Assay__RouteReply *reply, uint32_t hit, uint64_t *node_ids)
{
    for (size_t i = 0; i < reply->n_runs; i++) {
        const Assay__RouteRun *run = reply->runs[i];
        for (uint32_t b = 0; b < run->block_count && run->n_node_ids > 0; b++) {
            if (run->first_block >= hit || b >= hit - run->first_block) {
                break;
            }
            node_ids[run->first_block + b] = run->node_ids[0];
        }
    }
    uint32_t covered = 0;
    while (covered < hit && node_ids[covered]) {
        covered++;
    }
    return covered;
}

static void on_route(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    route_call_t *call = ctx;
    uint32_t hit = 0;
    uint64_t *node_ids = NULL;
    if (status == AS_OK) {
        const Assay__RouteReply *reply = (const Assay__RouteReply *)message;
        hit = reply->hit_blocks < call->key_count ? reply->hit_blocks : call->key_count;
        node_ids = as_mem_zalloc(hit ? hit : 1, sizeof(*node_ids));
        hit = node_ids ? spread_runs(reply, hit, node_ids) : 0;
    }
    call->done(call->ctx, status, hit, node_ids);
    as_mem_free(node_ids);
    as_mem_free(call);
}

as_status_t gpw_cluster_route(gpw_cluster_t *cluster, const gpw_route_args_t *args,
                              uint64_t *call_id_p)
{
    route_call_t *call = as_mem_zalloc(1, sizeof(*call));
    if (!call) {
        return AS_ERR_NO_MEMORY;
    }
    *call = (route_call_t){cluster, args->key_count, args->done, args->ctx};
    assay_client_t *client = cluster->options.client;
    as_key_t *names = as_mem_alloc((args->key_count + 1) * sizeof(*names));
    if (!names) {
        as_mem_free(call);
        return AS_ERR_NO_MEMORY;
    }
    names[args->key_count] = args->namespace_key;
    memcpy(names, args->keys, args->key_count * sizeof(*names));
    if (client) {
        assay_client_names(client, names, args->key_count + 1, names);
    }
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.node_id = cluster->node_id;
    request.namespace_key.data = names[args->key_count].bytes;
    request.namespace_key.len = KEY_BYTES;
    request.keys.data = names->bytes;
    request.keys.len = (size_t)args->key_count * KEY_BYTES;
    request.block_tokens = args->block_tokens;
    request.prompt_tokens = args->prompt_tokens;
    as_token_sealed_t token;
    if (client && assay_client_token(client, &token)) {
        request.token = (ProtobufCBinaryData){sizeof(token.bytes), token.bytes};
    }
    as_status_t status = as_rpc_call(cluster->options.scheduler, "Route", &request.base,
                                     args->deadline_us, on_route, call, call_id_p);
    as_mem_free(names);
    if (status != AS_OK) {
        as_mem_free(call);
    }
    return status;
}

void gpw_cluster_route_cancel(gpw_cluster_t *cluster, uint64_t call_id)
{
    as_rpc_cancel(cluster->options.scheduler, call_id);
}
