// SPDX-License-Identifier: Apache-2.0
// A whole cluster in one process on one virtual clock: a scheduler, stores and workers over the
// simulated network, all of it the daemons' own code.
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdbool.h>

#include "client/client.h"
#include "gpuworker/worker.h"
#include "kvstore/kvstore.h"
#include "scheduler/scheduler.h"

#define WORLD_STORES_MAX  3u
#define WORLD_WORKERS_MAX 2u
#define WORLD_TICK_US     300u // of virtual time for one unit of compute

struct world;

// One net of the world, known by its host name.
typedef struct world_host {
    struct world *world;
    char name[16];
    as_net_t *net;
    as_rpc_client_t *scheduler;
} world_host_t;

typedef struct world_store {
    world_host_t host;
    world_host_t out;   // what it connects to other stores with; no net until it does
    kvs_store_t *store; // NULL: not running
    kvs_report_t *report;
    uint64_t incarnation;
    bool killed, drained; // drained: it has said so, and is to be ended
} world_store_t;

typedef struct world_worker {
    world_host_t host;
    assay_client_t *client;
    gpw_worker_t *worker;
} world_worker_t;

typedef struct world_options {
    const gpw_model_t *model;
    uint64_t seed;
    uint32_t stores, workers;
    uint32_t replicas; // 0: 1
    uint32_t sessions; // of a worker; 0: 3
    uint32_t block_tokens;
    uint64_t cache_bytes_max; // of a worker
    size_t ram_bytes;         // of a store
    gpw_push_down_t push_down;
    bool keep_while_room; // workers keep what stores have as long as nobody waits
    bool store_sealed;
    bool swap_full_cache;   // of sessions without a compressor
    bool no_sharing;        // each session is verified in a swap of its own
    const char *trace_path; // of workers
    bool no_overlap;        // swap, verify and draft in turn
    bool no_attend;         // stores compute no attention
    bool weigh;             // workers compute a stored prefix where that is faster
} world_options_t;

typedef struct world {
    world_options_t options;
    as_loop_t *loop;
    as_sim_t *sim;
    sch_scheduler_t *scheduler;
    as_rpc_server_t *server;
    world_store_t stores[WORLD_STORES_MAX];
    world_worker_t workers[WORLD_WORKERS_MAX];
    as_timer_t *pulse; // so that time passes when nothing else happens
} world_t;

void world_open(world_t *world, const world_options_t *options);
void world_close(world_t *world);
// Runs `us` of virtual time.
void world_run(world_t *world, uint64_t us);
uint64_t world_random(world_t *world);

// As by kill -9; then, later, a new process of the same node with nothing in memory.
void world_store_kill(world_store_t *store);
void world_store_start(world_t *world, uint32_t index);
// As by SIGTERM: it drains, and ends when it is done.
void world_store_drain(world_store_t *store);
// As by SIGSTOP and SIGCONT.
void world_store_stop(world_store_t *store);
void world_store_resume(world_store_t *store);
void world_scheduler_down(world_t *world, bool down);

#endif
