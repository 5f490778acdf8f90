// SPDX-License-Identifier: Apache-2.0
// Reply messages in storage made once: a route for the longest chain has 16384 runs of 8 nodes at
// most, and the lists of stores are as long as the cluster may be.
//
// A reply is valid until the next one is built. Handlers answer before they return, and answering
// packs the message, so one set is enough.
#include <string.h>

#include "common/mem.h"
#include "scheduler/scheduler.h"

struct sch_replies {
    Assay__StoreNode stores[SCH_NODES_MAX];
    Assay__StoreNode *store_list[SCH_NODES_MAX];
    Assay__RouteRun runs[AS_CHAIN_BLOCKS_MAX];
    Assay__RouteRun *run_list[AS_CHAIN_BLOCKS_MAX];
    uint64_t ids[AS_CHAIN_BLOCKS_MAX][SCH_HOLDERS_MAX];
    uint64_t stamp;                      // of the route being answered
    uint64_t slot_stamps[SCH_SLOTS_MAX]; // equal to `stamp`: the slot's node is listed already
};

as_status_t sch_replies_alloc(struct sch_replies **replies_p)
{
    struct sch_replies *replies = as_mem_zalloc(1, sizeof(*replies));
    if (!replies) {
        return AS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < SCH_NODES_MAX; i++) {
        replies->store_list[i] = &replies->stores[i];
    }
    for (uint32_t i = 0; i < AS_CHAIN_BLOCKS_MAX; i++) {
        replies->run_list[i] = &replies->runs[i];
    }
    *replies_p = replies;
    return AS_OK;
}

void sch_replies_free(struct sch_replies *replies)
{
    as_mem_free(replies);
}

static void store_fill(Assay__StoreNode *store, sch_node_t *node)
{
    assay__store_node__init(store);
    store->node_id = node->id;
    store->data_address = node->data_address;
    store->rpc_address = node->rpc_address;
    store->capacity_bytes = sch_cluster_weight(node);
    store->state = node->state;
    store->draining = node->draining;
}

void sch_replies_stores(sch_scheduler_t *scheduler, size_t *count_p, Assay__StoreNode ***nodes_p)
{
    struct sch_replies *replies = scheduler->replies;
    size_t count = 0;
    for (uint32_t i = 0; i < sch_cluster_count(scheduler->cluster); i++) {
        sch_node_t *node = sch_cluster_at(scheduler->cluster, i);
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD) {
            store_fill(&replies->stores[count++], node);
        }
    }
    *count_p = count;
    *nodes_p = replies->store_list;
}

void sch_replies_route(sch_scheduler_t *scheduler, const sch_route_t *route,
                       Assay__RouteReply *reply)
{
    struct sch_replies *replies = scheduler->replies;
    size_t store_count = 0;
    replies->stamp++;
    for (uint32_t i = 0; i < route->run_count; i++) {
        const sch_run_t *run = &route->runs[i];
        Assay__RouteRun *message = &replies->runs[i];
        assay__route_run__init(message);
        message->first_block = run->first_block;
        message->block_count = run->block_count;
        message->n_node_ids = run->holder_count;
        message->node_ids = replies->ids[i];
        for (uint32_t j = 0; j < run->holder_count; j++) {
            uint16_t slot = run->slots[j];
            sch_node_t *node = sch_router_node(scheduler->router, slot);
            replies->ids[i][j] = node->id;
            if (replies->slot_stamps[slot] != replies->stamp) {
                replies->slot_stamps[slot] = replies->stamp;
                store_fill(&replies->stores[store_count++], node);
            }
        }
    }
    reply->hit_blocks = route->hit_blocks;
    reply->n_runs = route->run_count;
    reply->runs = replies->run_list;
    reply->n_nodes = store_count;
    reply->nodes = replies->store_list;
    if (route->worker) {
        reply->worker_node_id = route->worker->id;
        reply->worker_http_address = route->worker->http_address;
        reply->worker_rpc_address = route->worker->rpc_address;
        reply->worker_sealed_blocks = route->worker_sealed_blocks;
    }
}
