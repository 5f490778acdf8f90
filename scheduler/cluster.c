// SPDX-License-Identifier: Apache-2.0
// Who is in the cluster: nodes, their incarnations, and what their silence means.
//
// A node is ALIVE while it speaks, SUSPECT after suspect_us of silence (not chosen for new work),
// DEAD after dead_us (its blocks are forgotten). One word makes a suspect alive again; a dead node
// must join. A node that ends in order says so, and is dead at once. Its identity is the instance it names, not its address: an address may pass to
// another process.
//
// A store that joins others is empty, and would be given its whole share of the new blocks at once, and
// all at once what is handed to it. So its weight grows in steps over slow_start_us, unless its
// first listing has blocks. In a cluster that has just started, or whose scheduler has, all are new: then nobody waits.
//
// The clock is the loop's. When the tick itself comes late, the silence was the scheduler's own
// (it was stopped, or starved): every node is granted that time, so a paused scheduler does not
// wake up to declare its whole cluster dead before it has read what they sent.
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "scheduler/scheduler.h"

#define DEAD_KEPT_US (600ull * 1000000) // a dead node is shown that long
#define TICK_LATE_US 500000ull          // more than timers are late by on a busy machine
#define TICK_US_MIN  1000ull

struct sch_cluster {
    as_loop_t *loop;
    sch_cluster_params_t params;
    sch_node_t **nodes; // in order of id
    uint32_t count;
    uint64_t epoch;
    as_timer_t *tick;
    uint64_t tick_due_us; // 0: not running
    // Least loaded worker that computes the same as `idle_like`; computed when asked for.
    bool idle_known;
    const sch_node_t *idle_like;
    sch_node_t *idle;
};

static void on_tick(void *ctx);

as_status_t sch_cluster_alloc(as_loop_t *loop, const sch_cluster_params_t *params,
                              sch_cluster_t **cluster_p)
{
    if (params->suspect_us == 0 || params->dead_us <= params->suspect_us) {
        AS_ERROR("cluster", "dead time must be longer than suspect time, and both positive");
        return AS_ERR_CONFIG;
    }
    sch_cluster_t *cluster = as_mem_zalloc(1, sizeof(*cluster));
    if (!cluster) {
        return AS_ERR_NO_MEMORY;
    }
    cluster->loop = loop;
    cluster->params = *params;
    cluster->epoch = 1;
    cluster->nodes = as_mem_zalloc(SCH_NODES_MAX, sizeof(*cluster->nodes));
    if (!cluster->nodes || as_timer_alloc(loop, on_tick, cluster, &cluster->tick) != AS_OK) {
        as_mem_free(cluster->nodes);
        as_mem_free(cluster);
        return AS_ERR_NO_MEMORY;
    }
    *cluster_p = cluster;
    return AS_OK;
}

void sch_cluster_free(sch_cluster_t *cluster)
{
    if (!cluster) {
        return;
    }
    for (uint32_t i = 0; i < cluster->count; i++) {
        as_mem_free(cluster->nodes[i]);
    }
    as_timer_free(cluster->tick);
    as_mem_free(cluster->nodes);
    as_mem_free(cluster);
}

// First index whose id is not less.
static uint32_t lower_bound(const sch_cluster_t *cluster, uint64_t id)
{
    uint32_t begin = 0, end = cluster->count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (cluster->nodes[middle]->id < id) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

sch_node_t *sch_cluster_find(const sch_cluster_t *cluster, uint64_t id)
{
    uint32_t at = lower_bound(cluster, id);
    return at < cluster->count && cluster->nodes[at]->id == id ? cluster->nodes[at] : NULL;
}

// Something changed by which nodes are chosen.
static void changed(sch_cluster_t *cluster, sch_node_t *node)
{
    cluster->idle_known = false;
    if (node->role == ASSAY__ROLE__ROLE_STORE) {
        cluster->epoch++;
    }
    cluster->params.on_change(cluster->params.ctx, node);
}

static const char *role_name(const sch_node_t *node)
{
    return node->role == ASSAY__ROLE__ROLE_STORE ? "store" : "worker";
}

static void set_state(sch_cluster_t *cluster, sch_node_t *node, Assay__NodeState state)
{
    if (node->state == state) {
        return;
    }
    static const char *const names[] = {"unknown", "alive", "suspect", "dead"};
    AS_INFO("cluster", "%s %016llx (%s %s) is %s", role_name(node), (unsigned long long)node->id,
            node->name, node->data_address, names[state]);
    node->state = state;
    changed(cluster, node);
}

static void node_drop(sch_cluster_t *cluster, uint32_t at)
{
    cluster->idle_known = false;
    as_mem_free(cluster->nodes[at]);
    memmove(&cluster->nodes[at], &cluster->nodes[at + 1],
            (cluster->count - 1 - at) * sizeof(cluster->nodes[0]));
    cluster->count--;
}

// ---- slow start

uint64_t sch_cluster_weight(const sch_node_t *node)
{
    return node->capacity_bytes / SCH_GROWTH_STEPS * node->growth +
           node->capacity_bytes % SCH_GROWTH_STEPS * node->growth / SCH_GROWTH_STEPS;
}

void sch_cluster_grown(sch_cluster_t *cluster, sch_node_t *node)
{
    if (node->growth < SCH_GROWTH_STEPS) {
        node->growth = SCH_GROWTH_STEPS;
        changed(cluster, node);
    }
}

// When its next step is due.
static uint64_t growth_due_us(const sch_cluster_t *cluster, const sch_node_t *node)
{
    return node->growth < SCH_GROWTH_STEPS
               ? node->since_us + cluster->params.slow_start_us * node->growth / SCH_GROWTH_STEPS
               : UINT64_MAX;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void grow(sch_cluster_t *cluster, sch_node_t *node, uint64_t now_us)
{
    uint32_t before = node->growth;
    while (growth_due_us(cluster, node) <= now_us) {
        node->growth++;
    }
    if (node->growth != before) {
        changed(cluster, node);
    }
}

static bool is_settled(const sch_cluster_t *cluster, const sch_node_t *node, uint64_t now_us)
{
    return node->role == ASSAY__ROLE__ROLE_STORE &&
           node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE &&
           now_us - node->since_us >= cluster->params.slow_start_us;
}

// A new incarnation begins.
static void growth_begin(sch_cluster_t *cluster, sch_node_t *node)
{
    uint64_t now_us = as_loop_now_us(cluster->loop);
    node->since_us = now_us;
    node->introduced = false;
    node->growth = SCH_GROWTH_STEPS;
    bool grows = node->role == ASSAY__ROLE__ROLE_STORE && cluster->params.slow_start_us > 0;
    for (uint32_t i = 0; grows && i < cluster->count; i++) {
        if (cluster->nodes[i] != node && is_settled(cluster, cluster->nodes[i], now_us)) {
            node->growth = 1;
        }
    }
}

// ---- time

// Moves the node on by its silence; returns when to look again.
static uint64_t node_tick(sch_cluster_t *cluster, sch_node_t *node, uint64_t now_us)
{
    const sch_cluster_params_t *params = &cluster->params;
    uint64_t silence_us = now_us - node->heard_us;
    if (node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD && silence_us >= params->dead_us) {
        as_metric_add(&sch_metrics[SCH_DEATHS_TOTAL], 1);
        params->on_forget(params->ctx, node);
        set_state(cluster, node, ASSAY__NODE_STATE__NODE_STATE_DEAD);
    } else if (node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE &&
               silence_us >= params->suspect_us) {
        set_state(cluster, node, ASSAY__NODE_STATE__NODE_STATE_SUSPECT);
    }
    grow(cluster, node, now_us);
    switch (node->state) {
    case ASSAY__NODE_STATE__NODE_STATE_ALIVE:
        return earlier(node->heard_us + params->suspect_us, growth_due_us(cluster, node));
    case ASSAY__NODE_STATE__NODE_STATE_SUSPECT:
        return node->heard_us + params->dead_us;
    default:
        return node->heard_us + params->dead_us + DEAD_KEPT_US;
    }
}

static void tick_start(sch_cluster_t *cluster, uint64_t due_us)
{
    uint64_t now_us = as_loop_now_us(cluster->loop);
    uint64_t delay_us = due_us > now_us + TICK_US_MIN ? due_us - now_us : TICK_US_MIN;
    cluster->tick_due_us = now_us + delay_us;
    as_timer_start(cluster->tick, delay_us);
}

static void on_tick(void *ctx)
{
    sch_cluster_t *cluster = ctx;
    uint64_t now_us = as_loop_now_us(cluster->loop);
    uint64_t late_us = now_us - cluster->tick_due_us;
    cluster->tick_due_us = 0;
    if (late_us > TICK_LATE_US) {
        AS_WARN("cluster", "the scheduler stood still for %llu ms; nodes are granted them",
                (unsigned long long)late_us / 1000);
        for (uint32_t i = 0; i < cluster->count; i++) {
            uint64_t heard_us = cluster->nodes[i]->heard_us + late_us;
            cluster->nodes[i]->heard_us = heard_us < now_us ? heard_us : now_us;
        }
    }
    uint64_t due_us = UINT64_MAX;
    for (uint32_t i = cluster->count; i-- > 0;) {
        sch_node_t *node = cluster->nodes[i];
        uint64_t node_due_us = node_tick(cluster, node, now_us);
        if (node->state == ASSAY__NODE_STATE__NODE_STATE_DEAD && node_due_us <= now_us) {
            node_drop(cluster, i);
        } else if (node_due_us < due_us) {
            due_us = node_due_us;
        }
    }
    if (cluster->count > 0) {
        tick_start(cluster, due_us);
    }
}

static void heard(sch_cluster_t *cluster, sch_node_t *node)
{
    node->heard_us = as_loop_now_us(cluster->loop);
    set_state(cluster, node, ASSAY__NODE_STATE__NODE_STATE_ALIVE);
    uint64_t due_us =
        earlier(node->heard_us + cluster->params.suspect_us, growth_due_us(cluster, node));
    if (cluster->tick_due_us == 0 || due_us < cluster->tick_due_us) {
        tick_start(cluster, due_us);
    }
}

sch_node_t *sch_cluster_hear(sch_cluster_t *cluster, uint64_t id, uint64_t incarnation)
{
    sch_node_t *node = sch_cluster_find(cluster, id);
    if (!node || node->incarnation != incarnation ||
        node->state == ASSAY__NODE_STATE__NODE_STATE_DEAD) {
        return NULL;
    }
    heard(cluster, node);
    return node;
}

// Makes room for one more: the longest dead node goes.
static bool room_make(sch_cluster_t *cluster)
{
    if (cluster->count < SCH_NODES_MAX) {
        return true;
    }
    uint32_t oldest = SCH_NODES_MAX;
    for (uint32_t i = 0; i < cluster->count; i++) {
        const sch_node_t *node = cluster->nodes[i];
        if (node->state == ASSAY__NODE_STATE__NODE_STATE_DEAD &&
            (oldest == SCH_NODES_MAX || node->heard_us < cluster->nodes[oldest]->heard_us)) {
            oldest = i;
        }
    }
    if (oldest == SCH_NODES_MAX) {
        return false;
    }
    node_drop(cluster, oldest);
    return true;
}

static as_status_t node_insert(sch_cluster_t *cluster, const uint8_t *instance, uint64_t id,
                               sch_node_t **node_p, const char **text_p)
{
    if (!room_make(cluster)) {
        *text_p = "the cluster has as many nodes as it may";
        return AS_ERR_LIMIT;
    }
    sch_node_t *node = as_mem_zalloc(1, sizeof(*node));
    if (!node) {
        *text_p = "out of memory";
        return AS_ERR_NO_MEMORY;
    }
    node->id = id;
    memcpy(node->instance, instance, SCH_INSTANCE_BYTES);
    node->slot = SCH_SLOT_NONE;
    node->growth = SCH_GROWTH_STEPS;
    uint32_t at = lower_bound(cluster, id);
    memmove(&cluster->nodes[at + 1], &cluster->nodes[at],
            (cluster->count - at) * sizeof(cluster->nodes[0]));
    cluster->nodes[at] = node;
    cluster->count++;
    *node_p = node;
    return AS_OK;
}

// Two processes cannot listen on one address: who had it before is probably gone. It is not chosen
// any more, and alive again with its next word.
static void suspect_address(sch_cluster_t *cluster, const sch_node_t *newcomer)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        sch_node_t *node = cluster->nodes[i];
        if (node != newcomer && node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE &&
            node->data_address[0] && strcmp(node->data_address, newcomer->data_address) == 0) {
            set_state(cluster, node, ASSAY__NODE_STATE__NODE_STATE_SUSPECT);
        }
    }
}

static void node_describe(sch_node_t *node, const Assay__JoinRequest *request)
{
    node->role = request->role;
    snprintf(node->data_address, sizeof(node->data_address), "%s", request->data_address);
    snprintf(node->rpc_address, sizeof(node->rpc_address), "%s", request->rpc_address);
    snprintf(node->http_address, sizeof(node->http_address), "%s", request->http_address);
    snprintf(node->numerics_id, sizeof(node->numerics_id), "%s", request->numerics_id);
    snprintf(node->name, sizeof(node->name), "%s", request->name);
    memset(node->model_fingerprint, 0, sizeof(node->model_fingerprint));
    if (request->model_fingerprint.len) {
        memcpy(node->model_fingerprint, request->model_fingerprint.data,
               request->model_fingerprint.len);
    }
    node->capacity_bytes = request->capacity_bytes;
    node->draining = request->draining;
}

as_status_t sch_cluster_join(sch_cluster_t *cluster, const Assay__JoinRequest *request,
                             sch_node_t **node_p, const char **text_p)
{
    const uint8_t *instance = request->instance_id.data;
    uint64_t id = 0;
    for (int i = 7; i >= 0; i--) {
        id = id << 8 | instance[i];
    }
    sch_node_t *node = sch_cluster_find(cluster, id);
    if (node && memcmp(node->instance, instance, SCH_INSTANCE_BYTES) != 0) {
        *text_p = "another instance has this node id: draw instance_id anew";
        return AS_ERR_EXISTS;
    }
    if (node && request->incarnation < node->incarnation) {
        *text_p = "a later incarnation of this instance has joined";
        return AS_ERR_DENIED;
    }
    if (!node) {
        as_status_t status = node_insert(cluster, instance, id, &node, text_p);
        if (status != AS_OK) {
            return status;
        }
    }
    bool is_new = node->incarnation != request->incarnation;
    if (is_new) {
        cluster->params.on_forget(cluster->params.ctx, node);
        node->incarnation = request->incarnation;
        node->listing_first = 0; // numbers start anew
        node->used_bytes = node->sessions = node->queued_tokens = node->queued_bytes = 0;
    }
    node_describe(node, request);
    if (is_new) {
        growth_begin(cluster, node);
    }
    as_metric_add(&sch_metrics[SCH_JOINS_TOTAL], 1);
    heard(cluster, node);
    changed(cluster, node);
    suspect_address(cluster, node);
    *node_p = node;
    return AS_OK;
}

void sch_cluster_set_draining(sch_cluster_t *cluster, sch_node_t *node, bool draining)
{
    if (node->draining != draining) {
        AS_INFO("cluster", "%s %016llx (%s %s) %s", role_name(node), (unsigned long long)node->id,
                node->name, node->data_address, draining ? "drains" : "no longer drains");
        node->draining = draining;
        changed(cluster, node);
    }
}

void sch_cluster_leave(sch_cluster_t *cluster, sch_node_t *node)
{
    cluster->params.on_forget(cluster->params.ctx, node);
    set_state(cluster, node, ASSAY__NODE_STATE__NODE_STATE_DEAD);
}

void sch_cluster_set_load(sch_cluster_t *cluster, sch_node_t *node, const Assay__NodeLoad *load)
{
    if (node->capacity_bytes != load->capacity_bytes && load->capacity_bytes != 0) {
        node->capacity_bytes = load->capacity_bytes;
        changed(cluster, node);
    }
    node->used_bytes = load->used_bytes;
    node->sessions = load->sessions;
    node->queued_tokens = load->queued_tokens;
    node->queued_bytes = load->queued_bytes;
    cluster->idle_known = false;
}

uint32_t sch_cluster_count(const sch_cluster_t *cluster)
{
    return cluster->count;
}

sch_node_t *sch_cluster_at(const sch_cluster_t *cluster, uint32_t index)
{
    AS_ASSERT(index < cluster->count);
    return cluster->nodes[index];
}

uint64_t sch_cluster_epoch(const sch_cluster_t *cluster)
{
    return cluster->epoch;
}

bool sch_node_same_results(const sch_node_t *a, const sch_node_t *b)
{
    return memcmp(a->model_fingerprint, b->model_fingerprint, sizeof(a->model_fingerprint)) == 0 &&
           strcmp(a->numerics_id, b->numerics_id) == 0;
}

sch_node_t *sch_cluster_idle_worker(sch_cluster_t *cluster, const sch_node_t *like)
{
    if (cluster->idle_known &&
        (like == cluster->idle_like ||
         (like && cluster->idle_like && sch_node_same_results(like, cluster->idle_like)))) {
        return cluster->idle;
    }
    sch_node_t *idle = NULL;
    for (uint32_t i = 0; i < cluster->count; i++) {
        sch_node_t *node = cluster->nodes[i];
        bool fits = node->role == ASSAY__ROLE__ROLE_WORKER &&
                    node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE &&
                    (!like || sch_node_same_results(node, like));
        if (fits && (!idle || node->queued_tokens < idle->queued_tokens)) {
            idle = node;
        }
    }
    cluster->idle_known = true;
    cluster->idle_like = like;
    cluster->idle = idle;
    return idle;
}
