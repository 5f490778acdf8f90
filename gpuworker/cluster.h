// SPDX-License-Identifier: Apache-2.0
// The worker's word with the scheduler: join, heartbeats, routes. IO loop only.
//
// Everything here may fail without harm: an unjoined worker serves from its own memory, a failed
// route is a missing prefix. The stores that the scheduler names are handed to the client.
#ifndef GPW_CLUSTER_H
#define GPW_CLUSTER_H

#include "client/client.h"
#include "common/rpc.h"

typedef struct gpw_cluster gpw_cluster_t;

typedef struct gpw_cluster_options {
    as_loop_t *loop;
    as_rpc_client_t *scheduler; // service Scheduler
    assay_client_t *client;     // NULL: nobody to tell about stores
    const char *name, *http_address;
    as_key_t model_fingerprint;
    const char *numerics_id;
    const char *cluster_id; // the scheduler of another refuses it; NULL: any; not copied
    uint64_t capacity_bytes;
    uint8_t instance_id[16]; // all 0: drawn at random
    uint64_t incarnation;    // 0: the wall clock
    // Figures for the heartbeat.
    void (*load)(void *ctx, uint64_t *used_bytes, uint64_t *sessions, uint64_t *queued_tokens);
    void *ctx;
} gpw_cluster_options_t;

as_status_t gpw_cluster_alloc(const gpw_cluster_options_t *options,
                              gpw_cluster_t **cluster_p) AS_MUST_USE;
// The rpc client must be freed first: its last callbacks come here.
void gpw_cluster_free(gpw_cluster_t *cluster);
uint64_t gpw_cluster_node_id(const gpw_cluster_t *cluster); // 0 before the first join

typedef struct gpw_route_args {
    as_key_t namespace_key;
    const as_key_t *keys;
    uint32_t key_count;
    uint32_t block_tokens, prompt_tokens;
    uint64_t deadline_us; // from now
    // node_ids[b]: a store that holds block b, for b < hit_blocks; valid during the call.
    void (*done)(void *ctx, as_status_t status, uint32_t hit_blocks, const uint64_t *node_ids);
    void *ctx;
} gpw_route_args_t;

as_status_t gpw_cluster_route(gpw_cluster_t *cluster, const gpw_route_args_t *args,
                              uint64_t *call_id_p) AS_MUST_USE;
void gpw_cluster_route_cancel(gpw_cluster_t *cluster, uint64_t call_id);

#endif
