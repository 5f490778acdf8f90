// SPDX-License-Identifier: Apache-2.0
// The scheduler's objects: cluster (who is there), directory (who holds which block), route (which
// prefix of a chain is held, where, and by which worker it is best served).
//
// All state is soft and lives on one loop: it is told by the nodes, and told again after a restart.
// What the scheduler says is therefore a hint: a node that is named as holder of a block may have
// lost it, and answers its reader with a miss.
//
// Slot: a node's blocks are in the directory under a slot number. Forgetting all of them (the node
// died, came back empty, or lists anew) drops the slot at once and gives the node another; a sweep
// in the background clears the dropped one out of the table before it is used again.
#ifndef SCH_SCHEDULER_H
#define SCH_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/block.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/status.h"
#include "common/token.h"
#include "proto/scheduler.pb-c.h"

#define SCH_NODES_MAX          4096u // stores and workers, the dead included while they are kept
#define SCH_SLOTS_MAX          16384u // 14 bits; more than nodes, for the dropped that wait for the sweep
#define SCH_SLOT_NONE          UINT16_MAX
#define SCH_HOLDERS_MAX        8u     // of one block; further ones are not noted
#define SCH_EVENTS_MAX         16384u // of one message
#define SCH_ADDRESS_BYTES_MAX  255u
#define SCH_NUMERICS_BYTES_MAX 127u
#define SCH_NAME_BYTES_MAX     63u
#define SCH_INSTANCE_BYTES     16u
#define SCH_TOKEN_TTL_S_MAX    (31u * 86400)
#define SCH_BLOCK_TOKENS       AS_BLOCK_TOKENS_DEFAULT
// Another worker must be better than the asking one by this many tokens of work before a session
// moves: below it, moving costs more than it saves.
#define SCH_MOVE_TOKENS_MIN 512

// ---- directory ----

enum { SCH_FULL = 1, SCH_SEALED = 2 }; // kinds of what a node holds of a block

// One block. holders: slot << 2 | kinds, ascending, then zeros. An unused entry has none.
typedef struct sch_entry {
    uint8_t key[16]; // the first half of the block key
    uint16_t holders[SCH_HOLDERS_MAX];
} sch_entry_t;

typedef struct sch_directory sch_directory_t;

// As many entries as fit in `bytes` (at least 64 KiB). `seed` spreads keys that someone has chosen.
as_status_t sch_directory_alloc(size_t bytes, uint64_t seed,
                                sch_directory_t **directory_p) AS_MUST_USE;
void sch_directory_free(sch_directory_t *directory); // NULL is fine
// AS_ERR_LIMIT: all are in use or wait for the sweep.
as_status_t sch_directory_slot_take(sch_directory_t *directory, uint16_t *slot_p) AS_MUST_USE;
// What is under the slot counts no more (the caller ignores it in entries) until the sweep is done.
void sch_directory_slot_drop(sch_directory_t *directory, uint16_t slot);
// Looks at up to `entries` entries for dropped slots. False: nothing is left to sweep.
bool sch_directory_sweep(sch_directory_t *directory, size_t entries);
// AS_ERR_EXISTS: noted already. AS_ERR_LIMIT: the table or the entry's holders are full.
as_status_t sch_directory_add(sch_directory_t *directory, const uint8_t *key, uint16_t slot,
                              unsigned kind) AS_MUST_USE;
as_status_t sch_directory_remove(sch_directory_t *directory, const uint8_t *key, uint16_t slot,
                                 unsigned kind) AS_MUST_USE;
// NULL: no one holds it. Valid until the next add, remove or sweep.
const sch_entry_t *sch_directory_find(const sch_directory_t *directory, const uint8_t *key);
// Starts to bring the key's place in the table into the processor's cache.
void sch_directory_prefetch(const sch_directory_t *directory, const uint8_t *key);
size_t sch_directory_blocks(const sch_directory_t *directory);     // entries in use
size_t sch_directory_blocks_max(const sch_directory_t *directory); // that may be in use
size_t sch_directory_bytes(const sch_directory_t *directory);

// ---- cluster ----

typedef struct sch_node {
    uint64_t id; // first 8 bytes of instance
    uint8_t instance[SCH_INSTANCE_BYTES];
    uint64_t incarnation;
    Assay__Role role;
    Assay__NodeState state;
    uint64_t heard_us; // its last word
    char data_address[SCH_ADDRESS_BYTES_MAX + 1];
    char rpc_address[SCH_ADDRESS_BYTES_MAX + 1];
    char http_address[SCH_ADDRESS_BYTES_MAX + 1];
    char numerics_id[SCH_NUMERICS_BYTES_MAX + 1];
    char name[SCH_NAME_BYTES_MAX + 1];
    uint8_t model_fingerprint[32];
    uint64_t used_bytes, capacity_bytes, sessions, queued_tokens, queued_bytes;
    uint64_t since_us; // of this incarnation
    uint32_t growth;   // of its weight in placement, of SCH_GROWTH_STEPS
    bool draining;     // a store that hands its blocks to others, and will end
    // Its blocks.
    uint16_t slot; // SCH_SLOT_NONE until its first listing
    bool needs_listing;
    bool listed;            // a listing has come to its end
    bool introduced;        // one has, since it joined: what it came with is known
    uint64_t listing_first; // sequence at which the present listing began
    uint64_t next_sequence; // expected
    uint64_t full_blocks, sealed_blocks;
} sch_node_t;

#define SCH_GROWTH_STEPS 8u

typedef struct sch_cluster sch_cluster_t;

typedef struct sch_cluster_params {
    uint64_t suspect_us;
    uint64_t dead_us;
    uint64_t
        slow_start_us; // until an empty store that joins others has its whole weight; 0: at once
    void *ctx;
    // The node's blocks are gone. It is called before the node's state says why.
    void (*on_forget)(void *ctx, sch_node_t *node);
    // A node joined or changed its state.
    void (*on_change)(void *ctx, sch_node_t *node);
} sch_cluster_params_t;

as_status_t sch_cluster_alloc(as_loop_t *loop, const sch_cluster_params_t *params,
                              sch_cluster_t **cluster_p) AS_MUST_USE;
void sch_cluster_free(sch_cluster_t *cluster); // NULL is fine
// The request's fields have been checked. On an error *text_p says what is wrong.
as_status_t sch_cluster_join(sch_cluster_t *cluster, const Assay__JoinRequest *request,
                             sch_node_t **node_p, const char **text_p) AS_MUST_USE;
sch_node_t *sch_cluster_find(const sch_cluster_t *cluster, uint64_t id); // NULL: unknown
// The node, if it may speak: known, not dead, and of this incarnation. Notes that it was heard.
sch_node_t *sch_cluster_hear(sch_cluster_t *cluster, uint64_t id, uint64_t incarnation);
void sch_cluster_set_draining(sch_cluster_t *cluster, sch_node_t *node, bool draining);
// What a store is placed by: its capacity, or less while it grows.
uint64_t sch_cluster_weight(const sch_node_t *node);
void sch_cluster_grown(sch_cluster_t *cluster, sch_node_t *node); // at once: it is not empty
void sch_cluster_leave(sch_cluster_t *cluster, sch_node_t *node); // it says that it ends: dead
void sch_cluster_set_load(sch_cluster_t *cluster, sch_node_t *node, const Assay__NodeLoad *load);
uint32_t sch_cluster_count(const sch_cluster_t *cluster);
sch_node_t *sch_cluster_at(const sch_cluster_t *cluster, uint32_t index); // in order of id
// Grows when a store joins, drains, leaves, or changes address, weight or state.
uint64_t sch_cluster_epoch(const sch_cluster_t *cluster);
// The live worker with the least queued tokens that computes the same as `like` (any, where `like`
// is NULL); NULL if there is none.
sch_node_t *sch_cluster_idle_worker(sch_cluster_t *cluster, const sch_node_t *like);
bool sch_node_same_results(const sch_node_t *a, const sch_node_t *b);

// ---- route ----

typedef struct sch_run {
    uint32_t first_block;
    uint32_t block_count;
    uint32_t holder_count;
    uint16_t slots[SCH_HOLDERS_MAX]; // least loaded first
} sch_run_t;

typedef struct sch_route {
    uint32_t hit_blocks;
    uint32_t run_count;
    sch_run_t *runs;    // of the router; until its next route
    sch_node_t *worker; // NULL: none is known
    uint32_t worker_sealed_blocks;
} sch_route_t;

typedef struct sch_route_query {
    const uint8_t *keys; // key_count * 32 bytes
    uint32_t key_count;  // at most AS_CHAIN_BLOCKS_MAX
    uint32_t block_tokens;
    sch_node_t *asker; // a worker; NULL: none of the cluster's
} sch_route_query_t;

typedef struct sch_router sch_router_t;

as_status_t sch_router_alloc(const sch_directory_t *directory, sch_cluster_t *cluster,
                             sch_router_t **router_p) AS_MUST_USE;
void sch_router_free(sch_router_t *router); // NULL is fine
// Which node has a slot now, and whether it may be chosen: call at every change of either.
void sch_router_set_slot(sch_router_t *router, uint16_t slot, sch_node_t *node);
sch_node_t *sch_router_node(const sch_router_t *router, uint16_t slot); // NULL: not to be chosen
void sch_router_route(sch_router_t *router, const sch_route_query_t *query, sch_route_t *route);

// ---- tenants (tenant.c) ----

typedef struct sch_tenants sch_tenants_t;

// AS_ERR_CONFIG: the file holds no keys, which was logged.
as_status_t sch_tenants_alloc(as_loop_t *loop, const char *key_file,
                              sch_tenants_t **tenants_p) AS_MUST_USE;
void sch_tenants_free(sch_tenants_t *tenants);   // NULL is fine
void sch_tenants_reload(sch_tenants_t *tenants); // of the key file; NULL is fine
// The keys by which the directory knows the chain of a checked request, until the next call. NULL
// tenants: the request's own. AS_ERR_DENIED: its token does not do.
as_status_t sch_tenants_scope(sch_tenants_t *tenants, const Assay__RouteRequest *request,
                              const uint8_t **keys_p, const char **text_p) AS_MUST_USE;

// Signs a token of a checked request. AS_ERR_INVALID: no cluster would sign it.
as_status_t sch_tenants_issue(sch_tenants_t *tenants, const Assay__TokenRequest *request,
                              as_token_sealed_t *sealed_p) AS_MUST_USE;

// ---- scheduler ----

typedef struct sch_options {
    const char *cluster_id;
    // File: a Route needs a token, whose tenant's blocks it is told of. NULL: none.
    const char *cluster_key;
    bool issue_tokens; // to everybody who may call; needs cluster_key
    uint64_t heartbeat_us;
    uint64_t suspect_us;
    uint64_t dead_us;
    size_t directory_bytes;
    uint64_t seed; // of the directory's hash
    uint64_t slow_start_us;
    uint32_t replicas; // copies of a block that the nodes are told to keep; 0: 1
} sch_options_t;

typedef struct sch_scheduler sch_scheduler_t;

extern const sch_options_t sch_options_default;

as_status_t sch_scheduler_alloc(as_loop_t *loop, const sch_options_t *options,
                                sch_scheduler_t **scheduler_p) AS_MUST_USE;
// The server that has its service must be freed before.
void sch_scheduler_free(sch_scheduler_t *scheduler);
// Reads the key file again; a bad one is logged, and the keys stay.
void sch_scheduler_reload(sch_scheduler_t *scheduler);
// For as_rpc_server_add, on any server. Handlers answer before they return.
ProtobufCService *sch_scheduler_service(sch_scheduler_t *scheduler);
// All live stores have listed their blocks, or it has waited for them long enough.
bool sch_scheduler_ready(const sch_scheduler_t *scheduler);

// What the handlers in serve.c work on.
struct sch_scheduler {
    Assay__Scheduler_Service service; // first: handlers get a pointer to it
    uint64_t magic;
    as_loop_t *loop;
    sch_options_t options;
    char cluster_id[SCH_NAME_BYTES_MAX + 1];
    uint64_t started_us;
    sch_directory_t *directory;
    sch_cluster_t *cluster;
    sch_router_t *router;
    as_timer_t *sweep;
    uint64_t routes, asked_blocks, hit_blocks, events, resyncs;
    struct sch_replies *replies;
    sch_tenants_t *tenants; // NULL: there is one
};

// Applies a checked Events message of a node that may speak.
Assay__NodeStatus sch_events_apply(sch_scheduler_t *scheduler, sch_node_t *node,
                                   const Assay__EventsRequest *request);
// Notes that events were lost and a listing is needed; what is known stays in use meanwhile.
Assay__NodeStatus sch_events_resync(sch_scheduler_t *scheduler, sch_node_t *node);
// Drops what the node holds.
void sch_events_forget(sch_scheduler_t *scheduler, sch_node_t *node);

// The reply messages' storage, so that answering allocates nothing (reply.c).
as_status_t sch_replies_alloc(struct sch_replies **replies_p) AS_MUST_USE;
void sch_replies_free(struct sch_replies *replies);
// The stores that are not dead, as a list for Join and Heartbeat replies.
void sch_replies_stores(sch_scheduler_t *scheduler, size_t *count_p, Assay__StoreNode ***nodes_p);
void sch_replies_route(sch_scheduler_t *scheduler, const sch_route_t *route,
                       Assay__RouteReply *reply);

// AS_OK, or what is wrong with the message (check.c).
as_status_t sch_check_join(const Assay__JoinRequest *request, const char **text_p) AS_MUST_USE;
as_status_t sch_check_events(const Assay__EventsRequest *request, const char **text_p) AS_MUST_USE;
as_status_t sch_check_route(const Assay__RouteRequest *request, const char **text_p) AS_MUST_USE;
as_status_t sch_check_token(const Assay__TokenRequest *request, const char **text_p) AS_MUST_USE;

// ---- metrics ----

typedef enum sch_metric {
    SCH_ROUTES_TOTAL,
    SCH_ROUTE_US,
    SCH_ASKED_BLOCKS_TOTAL,
    SCH_HIT_BLOCKS_TOTAL,
    SCH_EVENTS_TOTAL,
    SCH_RESYNCS_TOTAL,
    SCH_DROPPED_EVENTS_TOTAL,
    SCH_REFUSED_MESSAGES_TOTAL,
    SCH_DENIED_ROUTES_TOTAL,
    SCH_ISSUED_TOKENS_TOTAL,
    SCH_JOINS_TOTAL,
    SCH_DEATHS_TOTAL,
    SCH_DIRECTORY_BLOCKS,
    SCH_DIRECTORY_BYTES,
    SCH_METRIC_COUNT
} sch_metric_t;

extern as_metric_t sch_metrics[SCH_METRIC_COUNT];

#endif
