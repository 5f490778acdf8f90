// SPDX-License-Identifier: Apache-2.0
// assay-kvstore: wires a store to its data port, admin service, metrics port and scheduler, and
// runs until SIGTERM or SIGINT, then hands its blocks to others; a second signal ends it at once. When it listens it says so in one line of JSON on stdout, with the
// addresses in use.
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/daemon.h"
#include "common/http.h"
#include "common/log.h"
#include "common/memory_limit.h"
#include "kvstore/advertise.h"
#include "kvstore/flags.h"
#include "proto/scheduler.pb-c.h"

#define FILES_BESIDE 512 // of the disk, the other ports, and what the data port keeps in reserve

typedef struct daemon {
    as_loop_t *loop;
    kvs_store_t *store;
    as_rpc_server_t *server;
    as_rpc_client_t *scheduler;
    as_http_t *http;
    kvs_report_t *report;
    char told[3][KVS_ADDRESS_BYTES_MAX]; // addresses, as the report has them
    uint64_t drain_us;
    uint32_t signals;
} daemon_t;

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void on_end(void *ctx, int number)
{
    daemon_t *daemon = ctx;
    uint64_t drain_us = daemon->store ? daemon->drain_us : 0;
    AS_INFO("main", "signal %d: %s", number,
            daemon->signals == 0 && drain_us > 0 ? "draining; another ends at once" : "stopping");
    if (daemon->signals++ == 0 && drain_us > 0) {
        kvs_store_drain(daemon->store, drain_us);
    } else {
        as_loop_stop(daemon->loop);
    }
}

static void on_reload(void *ctx)
{
    daemon_t *daemon = ctx;
    if (daemon->store) {
        kvs_store_reload(daemon->store);
    }
}

static void on_drained(void *ctx)
{
    as_loop_stop(((daemon_t *)ctx)->loop);
}

static void refresh(void *ctx)
{
    kvs_store_gauge(ctx);
}

static as_status_t report_to(daemon_t *daemon, const kvs_flags_t *flags)
{
    if (!flags->scheduler) {
        return AS_OK;
    }
    as_status_t status =
        as_rpc_client_alloc(daemon->loop, flags->scheduler, &assay__scheduler__descriptor,
                            flags->tls, &daemon->scheduler);
    if (status != AS_OK) {
        return status;
    }
    const char *at[3] = {kvs_store_address(daemon->store), as_rpc_server_address(daemon->server),
                         as_http_address(daemon->http)};
    for (int i = 0; i < 3; i++) {
        kvs_advertise(at[i], flags->advertise, at[0], daemon->told[i]);
    }
    const kvs_report_options_t options = {
        .store = daemon->store,
        .scheduler = daemon->scheduler,
        .name = flags->name,
        .cluster_id = flags->cluster_id,
        .data_address = daemon->told[0],
        .rpc_address = daemon->told[1],
        .http_address = daemon->told[2],
    };
    return kvs_report_alloc(&options, &daemon->report);
}

// A pool that does not fit would take the memory of everything else on the machine before it fails.
static as_status_t check_ram(size_t ram_bytes)
{
    uint64_t free_bytes = as_memory_available("");
    if (ram_bytes > free_bytes) {
        AS_ERROR("main",
                 "--ram asks for %zu MiB, and %llu MiB are free here: ask for less, or free some",
                 ram_bytes >> 20, (unsigned long long)(free_bytes >> 20));
        return AS_ERR_CONFIG;
    }
    return AS_OK;
}

// Each connection takes two descriptors of UCX's.
static void check_files(uint32_t connections_max)
{
    struct rlimit limit;
    rlim_t wanted = 2 * (rlim_t)connections_max + FILES_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        AS_WARN("main",
                "the limit of open files, %llu, is too low for --connections-max=%u, which needs "
                "%llu: raise it "
                "(ulimit -n, LimitNOFILE=); connections beyond it are refused",
                (unsigned long long)limit.rlim_cur, connections_max, (unsigned long long)wanted);
    }
}

static as_status_t start(daemon_t *daemon, const kvs_flags_t *flags)
{
    as_status_t checked = check_ram(flags->store.ram_bytes);
    if (checked != AS_OK) {
        return checked;
    }
    check_files(flags->store.connections_max);
    kvs_store_options_t options = flags->store;
    options.loop = daemon->loop;
    options.net_alloc = net_alloc;
    options.on_drained = on_drained;
    options.drained_ctx = daemon;
    daemon->drain_us = options.drain_us;
    as_status_t status = as_net_ucx_use_address(options.data_address);
    if (status == AS_OK) {
        status = kvs_store_alloc(&options, &daemon->store);
    }
    if (status == AS_OK) {
        status = as_rpc_server_alloc(daemon->loop, flags->rpc, flags->tls, &daemon->server);
    }
    if (status == AS_OK) {
        status = as_rpc_server_add(daemon->server, kvs_admin_service(daemon->store));
    }
    if (status == AS_OK) {
        status = as_rpc_server_start(daemon->server);
    }
    if (status == AS_OK) {
        status = as_http_alloc_metrics(daemon->loop, flags->http, NULL, NULL, &daemon->http);
    }
    if (status == AS_OK) {
        as_http_metrics_refresh_by(daemon->http, refresh, daemon->store);
        status = report_to(daemon, flags);
    }
    return status;
}

static void stop(daemon_t *daemon)
{
    if (daemon->scheduler) {
        as_rpc_client_free(daemon->scheduler);
    }
    kvs_report_free(daemon->report);
    if (daemon->http) {
        as_http_free(daemon->http);
    }
    if (daemon->server) {
        as_rpc_server_free(daemon->server);
    }
    kvs_store_free(daemon->store);
}

static as_status_t run(const kvs_flags_t *flags)
{
    daemon_t daemon = {0};
    as_status_t status = as_loop_alloc_uv(&daemon.loop);
    if (status != AS_OK) {
        return status;
    }
    as_daemon_signals_t *signals = NULL;
    const as_daemon_handlers_t handlers = {on_end, on_reload, &daemon};
    status = as_daemon_signals_alloc(daemon.loop, &handlers, &signals);
    if (status == AS_OK) {
        status = start(&daemon, flags);
    }
    if (status == AS_OK) {
        printf("{\"ready\":\"assay-kvstore\",\"data\":\"%s\",\"rpc\":\"%s\",\"http\":\"%s\","
               "\"node_id\":\"%016llx\",\"pid\":%ld}\n",
               kvs_store_address(daemon.store), as_rpc_server_address(daemon.server),
               as_http_address(daemon.http), (unsigned long long)kvs_store_node_id(daemon.store),
               (long)getpid());
        fflush(stdout);
        as_loop_run(daemon.loop);
    }
    stop(&daemon);
    as_daemon_signals_free(signals);
    as_loop_free(daemon.loop);
    return status;
}

int main(int argc, char **argv)
{
    kvs_flags_t flags;
    as_options_outcome_t outcome;
    if (kvs_flags_parse(argc, argv, &flags, &outcome) != AS_OK) {
        return 2;
    }
    if (outcome == AS_OPTIONS_EXIT) {
        return 0;
    }
    return run(&flags) == AS_OK ? 0 : 1;
}
