// SPDX-License-Identifier: Apache-2.0
// Stores that know of each other through a scheduler, on the simulated network: for tests of what they
// hand to each other.
#ifndef TESTS_KVSTORE_PEERS_WORLD_H
#define TESTS_KVSTORE_PEERS_WORLD_H

#include "tests/unit/client/world.h"

#include "kvstore/store.h"
#include "scheduler/scheduler.h"

typedef struct peers_world {
    world_t *world;
    sch_scheduler_t *scheduler;
    as_rpc_server_t *server;
    as_rpc_client_t *clients[WORLD_STORES_MAX];
    kvs_report_t *reports[WORLD_STORES_MAX];
    uint32_t replicas;
    bool drained[WORLD_STORES_MAX];
    char names[WORLD_STORES_MAX][16];
} peers_world_t;

static world_t world;
static peers_world_t peers;

static inline void peers_on_drained(void *ctx)
{
    *(bool *)ctx = true;
}

static inline void peers_scheduler_start(void)
{
    sch_options_t options = sch_options_default;
    options.replicas = peers.replicas;
    options.directory_bytes = 1u << 20;
    assert_int_equal(sch_scheduler_alloc(world.loop, &options, &peers.scheduler), AS_OK);
    assert_int_equal(as_rpc_server_alloc_sim(world.sim, "scheduler:1", &peers.server), AS_OK);
    assert_int_equal(as_rpc_server_add(peers.server, sch_scheduler_service(peers.scheduler)),
                     AS_OK);
    assert_int_equal(as_rpc_server_start(peers.server), AS_OK);
}

static inline void peers_report_start(uint32_t i)
{
    char *name = peers.names[i];
    snprintf(name, sizeof(peers.names[i]), "store%u", i);
    assert_int_equal(as_rpc_client_alloc_sim(world.sim, name, "scheduler:1",
                                             &assay__scheduler__descriptor, &peers.clients[i]),
                     AS_OK);
    const kvs_report_options_t options = {
        .store = world.stores[i], .scheduler = peers.clients[i], .name = name};
    assert_int_equal(kvs_report_alloc(&options, &peers.reports[i]), AS_OK);
    world.stores[i]->options.on_drained = peers_on_drained;
    world.stores[i]->options.drained_ctx = &peers.drained[i];
}

// The client of the tests knows the stores that run; it keeps what the scheduler is told.
static inline void peers_open(const world_options_t *options, uint32_t replicas)
{
    world_open(&world, options);
    peers = (peers_world_t){.world = &world, .replicas = replicas};
    assay_client_set_replicas(world.client, replicas);
    peers_scheduler_start();
    for (uint32_t i = 0; i < options->stores; i++) {
        peers_report_start(i);
    }
    world_pass(&world, 1500000); // they hear of each other with a heartbeat
}

// As its process ends: in order, or by kill -9.
static inline void peers_store_end(uint32_t i, bool killed)
{
    if (killed) {
        as_sim_rpc_set_down(world.sim, peers.names[i], true);
        as_sim_kill(world.sim, world.store_nets[i]);
        if (world.peer_nets[i]) {
            as_sim_kill(world.sim, world.peer_nets[i]);
        }
    }
    as_rpc_client_free(peers.clients[i]);
    kvs_report_free(peers.reports[i]);
    kvs_store_free(world.stores[i]);
    world.stores[i] = NULL;
    peers.reports[i] = NULL;
    world_tell_stores(&world);
}

static inline void peers_close(void)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        if (peers.reports[i]) {
            peers_store_end(i, false);
        }
    }
    as_rpc_server_free(peers.server);
    sch_scheduler_free(peers.scheduler);
    world_close(&world);
}

static inline bool peers_has(uint32_t store, uint32_t block)
{
    return world.stores[store] &&
           kvs_index_find(world.stores[store]->index, &world.keys[block], AS_WIRE_FULL) != NULL;
}

static inline uint32_t peers_copies(uint32_t block)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world.store_count; i++) {
        count += peers_has(i, block);
    }
    return count;
}

static inline kvs_stat_t peers_stat(uint32_t store)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[store], &stat);
    return stat;
}

#endif
