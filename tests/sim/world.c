// SPDX-License-Identifier: Apache-2.0
// A whole cluster in one process on one virtual clock.
#include "world.h"

#include <stdio.h>
#include <string.h>

#include "../unit/gpuworker/calibration_fixture.h"
#include "common/assert.h"
#include "common/mem.h"
#include "proto/scheduler.pb-c.h"

#define PULSE_US 100000u

static void must(as_status_t status)
{
    AS_ASSERT(status == AS_OK);
}

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    world_host_t *host = ctx;
    (void)loop;
    as_status_t status = as_net_alloc_sim(host->world->sim, host->name, handlers, net_p);
    if (status == AS_OK) {
        host->net = *net_p;
    }
    return status;
}

static void host_open(world_t *world, world_host_t *host, const char *kind, uint32_t index)
{
    host->world = world;
    snprintf(host->name, sizeof(host->name), "%s%u", kind, index);
    must(as_rpc_client_alloc_sim(world->sim, host->name, as_rpc_server_address(world->server),
                                 &assay__scheduler__descriptor, &host->scheduler));
}

static void scheduler_start(world_t *world)
{
    sch_options_t options = sch_options_default;
    options.directory_bytes = 1u << 20;
    options.replicas = world->options.replicas;
    must(sch_scheduler_alloc(world->loop, &options, &world->scheduler));
    must(as_rpc_server_alloc_sim(world->sim, "scheduler:7000", &world->server));
    must(as_rpc_server_add(world->server, sch_scheduler_service(world->scheduler)));
    must(as_rpc_server_start(world->server));
}

void world_scheduler_down(world_t *world, bool down)
{
    as_sim_rpc_set_down(world->sim, "scheduler", down);
}

static void on_drained(void *ctx)
{
    ((world_store_t *)ctx)->drained = true;
}

void world_store_start(world_t *world, uint32_t index)
{
    world_store_t *store = &world->stores[index];
    kvs_store_options_t options;
    char address[32];
    kvs_store_options_init(&options);
    host_open(world, &store->host, "store", index);
    snprintf(address, sizeof(address), "%s:0", store->host.name);
    options.loop = world->loop;
    options.net_alloc = net_alloc;
    options.net_ctx = &store->host;
    store->out = (world_host_t){.world = world};
    snprintf(store->out.name, sizeof(store->out.name), "out%u", index);
    options.peer_net_ctx = &store->out;
    options.repair_wait_us = 200000;
    options.on_drained = on_drained;
    options.drained_ctx = store;
    options.data_address = address;
    options.instance_id[0] = (uint8_t)(index + 1);
    options.incarnation = ++store->incarnation;
    options.ram_bytes = world->options.ram_bytes;
    options.lease_us_max = 2000000;
    options.attend_threads = world->options.no_attend ? 0 : 1;
    options.reservation_us = 1000000;
    must(kvs_store_alloc(&options, &store->store));
    kvs_report_options_t report = {
        .store = store->store, .scheduler = store->host.scheduler, .name = store->host.name};
    must(kvs_report_alloc(&report, &store->report));
    store->killed = store->drained = false;
}

static void store_free(world_store_t *store)
{
    if (!store->store) {
        return;
    }
    as_rpc_client_free(store->host.scheduler);
    kvs_report_free(store->report);
    kvs_store_free(store->store);
    store->store = NULL;
}

void world_store_kill(world_store_t *store)
{
    world_t *world = store->host.world;
    as_sim_rpc_set_down(world->sim, store->host.name, true);
    as_sim_kill(world->sim, store->host.net);
    if (store->out.net) {
        as_sim_kill(world->sim, store->out.net);
    }
    store_free(store);
    as_sim_rpc_set_down(world->sim, store->host.name, false); // the host lives
    store->killed = true;
}

void world_store_drain(world_store_t *store)
{
    kvs_store_drain(store->store, 3000000);
}

void world_store_stop(world_store_t *store)
{
    as_sim_t *sim = store->host.world->sim;
    as_sim_stop(sim, store->host.net);
    if (store->out.net) {
        as_sim_stop(sim, store->out.net);
    }
    as_sim_rpc_set_down(sim, store->host.name, true);
}

void world_store_resume(world_store_t *store)
{
    as_sim_t *sim = store->host.world->sim;
    as_sim_rpc_set_down(sim, store->host.name, false);
    as_sim_resume(sim, store->host.net);
    if (store->out.net) {
        as_sim_resume(sim, store->out.net);
    }
}

static void worker_start(world_t *world, uint32_t index)
{
    world_worker_t *worker = &world->workers[index];
    assay_client_options_t client;
    gpw_worker_options_t options;
    as_shape_t shape = gpw_model_shape(world->options.model, world->options.block_tokens);
    gpw_calibration_t calibration = calibration_of(&world->options.model->fingerprint, &shape);
    host_open(world, &worker->host, "worker", index);
    assay_client_options_init(&client);
    client.loop = world->loop;
    client.net_alloc = net_alloc;
    client.net_ctx = &worker->host;
    client.connect_timeout_us = 50000;
    client.stall_timeout_us = 50000;
    client.retry_after_us = 100000;
    must(assay_client_alloc(&client, &worker->client));
    gpw_worker_options_init(&options);
    options.model = world->options.model;
    options.calibration = &calibration;
    options.ops = krn_cpu();
    options.threads = 1;
    options.block_tokens = world->options.block_tokens;
    options.sessions_max = world->options.sessions ? world->options.sessions : 3;
    options.cache_bytes_max = world->options.cache_bytes_max;
    options.swap_ring_layers = 2;
    options.request_deadline_us = 60000000;
    options.route_deadline_us = 100000;
    options.fetch_deadline_us = 300000;
    options.put_deadline_us = 300000;
    options.engine_loop = options.io_loop = world->loop;
    options.client = worker->client;
    options.scheduler = worker->host.scheduler;
    options.name = worker->host.name;
    options.instance_id[0] = (uint8_t)(100 + index);
    options.incarnation = 1;
    options.tick_us = WORLD_TICK_US;
    options.push_down = world->options.push_down;
    options.store_sealed = world->options.store_sealed;
    options.overlap = !world->options.no_overlap;
    options.shared_verification = !world->options.no_sharing;
    options.trace_path = world->options.trace_path;
    options.keep_while_room = world->options.keep_while_room;
    options.swap_full_cache = world->options.swap_full_cache;
    options.recompute_tokens_per_s = world->options.weigh ? 0 : -1;
    must(gpw_worker_alloc(&options, &worker->worker));
}

static void on_pulse(void *ctx)
{
    world_t *world = ctx;
    as_timer_start(world->pulse, PULSE_US);
}

void world_open(world_t *world, const world_options_t *options)
{
    memset(world, 0, sizeof(*world));
    world->options = *options;
    must(as_loop_alloc_sim(&world->loop));
    must(as_sim_alloc(world->loop, options->seed, &world->sim));
    must(as_timer_alloc(world->loop, on_pulse, world, &world->pulse));
    as_timer_start(world->pulse, PULSE_US);
    scheduler_start(world);
    for (uint32_t i = 0; i < options->stores; i++) {
        world_store_start(world, i);
    }
    for (uint32_t i = 0; i < options->workers; i++) {
        worker_start(world, i);
    }
}

void world_close(world_t *world)
{
    for (uint32_t i = 0; i < world->options.workers; i++) {
        as_rpc_client_free(world->workers[i].host.scheduler);
        assay_client_free(world->workers[i].client);
        gpw_worker_free(world->workers[i].worker);
    }
    for (uint32_t i = 0; i < world->options.stores; i++) {
        store_free(&world->stores[i]);
    }
    as_rpc_server_free(world->server);
    sch_scheduler_free(world->scheduler);
    as_timer_free(world->pulse);
    as_sim_free(world->sim);
    as_loop_free(world->loop);
}

static void end_drained(world_t *world)
{
    for (uint32_t i = 0; i < world->options.stores; i++) {
        world_store_t *store = &world->stores[i];
        if (store->drained && store->store) {
            store_free(store);
            store->killed = true;
        }
    }
}

void world_run(world_t *world, uint64_t us)
{
    uint64_t until_us = as_loop_now_us(world->loop) + us;
    while (as_loop_now_us(world->loop) < until_us) {
        as_loop_run_once(world->loop, true);
        end_drained(world);
    }
}

uint64_t world_random(world_t *world)
{
    return as_sim_random(world->sim);
}
