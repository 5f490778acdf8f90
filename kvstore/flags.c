// SPDX-License-Identifier: Apache-2.0
// The options of assay-kvstore: one table, and what its rows cannot check.
#include "kvstore/flags.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/daemon.h"
#include "kvstore/advertise.h"

#define ATTEND_THREADS_MAX 256u
#define HOST_BYTES_MAX     57 // clients take addresses of 63, with the port

static struct {
    const char *data_address, *rpc_address, *http_address, *scheduler, *name, *advertise,
        *cluster_id;
    const char *disk, *cluster_key, *quota_file;
    int64_t drain_us, repair_rate, repair_wait_us;
    int64_t disk_bytes, disk_queue_bytes, scrub_rate;
    int64_t ram_bytes, blocks_max, connections_max, lease_ms_max, reservation_ms, evict_high,
        evict_low;
    int64_t pin_max, quota_bytes, attend_threads;
} values;

static as_daemon_flags_t common;

#define ROW(name_, type_, value_, fallback_, metavar_, ...)                                        \
    {                                                                                              \
        .name = name_, .type = AS_OPTION_##type_, .value = &values.value_, .fallback = fallback_,  \
        .metavar = metavar_, .help = __VA_ARGS__                                                   \
    }

static const as_option_t table[] = {
    ROW("data-address", STRING, data_address, "127.0.0.1:0", "HOST:PORT",
        "address of the data port, and so the interface of the data plane; port 0 picks one"),
    ROW("rpc-address", STRING, rpc_address, "127.0.0.1:0", "HOST:PORT",
        "address of the gRPC admin service; port 0 picks one"),
    ROW("http-address", STRING, http_address, "127.0.0.1:0", "HOST:PORT",
        "address of /metrics, /livez and /readyz; port 0 picks one"),
    ROW("advertise", STRING, advertise, NULL, "HOST",
        "host under which others reach this store, where it is not that of --data-address: told "
        "with "
        "the ports of all three; an IPv6 address in brackets"),
    ROW("scheduler", STRING, scheduler, NULL, "HOST:PORT",
        "the scheduler to join; without one the store serves who finds it"),
    ROW("ram", BYTES, ram_bytes, "1GiB", "BYTES", "memory for blocks", .min = 65536, .max = 1e13),
    ROW("blocks-max", INT, blocks_max, "0", "N",
        "blocks at most, with those that others continue and that are not here; 0 is one for each "
        "16KiB of memory, but at least 1024 and at most 1048576",
        .min = 0, .max = 16777216),
    ROW("connections-max", INT, connections_max, "4096", "N",
        "connections of clients and other stores at most; more are refused", .min = 1, .max = 8000),
    ROW("lease-max-ms", INT, lease_ms_max, "30000", "MS", "longest lease that a reader gets",
        .min = 1, .max = 600000),
    ROW("reservation-ms", INT, reservation_ms, "10000", "MS",
        "time in which the bytes of a put must be here", .min = 1, .max = 600000),
    ROW("evict-high", INT, evict_high, "95", "PERCENT", "memory in use at which eviction begins",
        .min = 1, .max = 100),
    ROW("evict-low", INT, evict_low, "90", "PERCENT", "memory in use at which eviction ends",
        .min = 0, .max = 100),
    ROW("pin-max", INT, pin_max, "25", "PERCENT", "memory that hard pins may have", .min = 0,
        .max = 100),
    ROW("quota", BYTES, quota_bytes, "0", "BYTES",
        "memory that the blocks of one namespace may have, unless `assay quota` gives it another; "
        "0 is all of it",
        .min = 0, .max = 1e13),
    ROW("quota-file", STRING, quota_file, NULL, "FILE",
        "quotas of tenants and namespaces, a line each: TENANT NAMESPACE BYTES, with * for all "
        "namespaces of the tenant together; read again on SIGHUP"),
    ROW("disk", STRING, disk, NULL, "DIR",
        "keep blocks on disk too, in this directory of the store's own; without it in memory only"),
    ROW("disk-size", BYTES, disk_bytes, "64GiB", "BYTES", "files of --disk, at most",
        .min = 2 << 20, .max = 1e15),
    ROW("disk-queue", BYTES, disk_queue_bytes, "256MiB", "BYTES",
        "waiting to be written; beyond it new blocks stay in memory only", .min = 1 << 20,
        .max = 1e12),
    ROW("scrub-rate", BYTES, scrub_rate, "32MiB", "BYTES",
        "blocks checked in the background, per second; 0 is none unless `assay scrub` asks",
        .min = 0, .max = 1e12),
    ROW("attend-threads", INT, attend_threads, "-1", "N",
        "threads that compute attention over blocks for workers that push it down; 0: none, they "
        "bring the blocks instead; -1: a quarter of the processors, at least one",
        .min = -1, .max = 256),
    ROW("cluster-key", STRING, cluster_key, NULL, "FILE",
        "keys of the cluster (`assay token key`): admit only who has a token, and keep tenants "
        "apart; read again when it changes; without it everybody may read and write everything"),
    ROW("repair-rate", BYTES, repair_rate, "64MiB", "BYTES",
        "sent to other stores, per second, to give blocks another copy when a store is gone; 0 is "
        "none",
        .min = 0, .max = 1e12),
    ROW("repair-wait", DURATION, repair_wait_us, "5s", "TIME",
        "from when a store is gone until its blocks are given other copies", .min = 0,
        .max = 86400e6),
    ROW("drain-timeout", DURATION, drain_us, "30s", "TIME",
        "on SIGTERM, for handing blocks to other stores; 0s ends at once", .min = 0,
        .max = 86400e6),
    ROW("cluster-id", STRING, cluster_id, "", "NAME",
        "join the cluster of this name only; without it that of --scheduler"),
    ROW("name", STRING, name, "", "NAME", "name of the node, for people"),
    AS_OPERATORS_OPTION(common),
    AS_DAEMON_OPTIONS(common),
};

static const as_options_t options = {
    .program = "assay-kvstore",
    .summary = "Holds blocks of KV cache in memory and serves them to Assay's workers.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static as_status_t complain(const char *flag, const char *value, const char *accepted)
{
    fprintf(stderr, "assay-kvstore: %s %s: %s\n", flag, value, accepted);
    return AS_ERR_CONFIG;
}

static bool is_host(const char *host)
{
    size_t bytes = strlen(host);
    bool bracketed = host[0] == '[' && host[bytes - 1] == ']';
    return bytes > 0 && bytes <= HOST_BYTES_MAX && (bracketed || !strchr(host, ':')) &&
           !kvs_is_every_interface(host);
}

// What one row of the table cannot check alone.
static as_status_t check(void)
{
    if (values.evict_low > values.evict_high) {
        return complain("--evict-low", "", "must not be above --evict-high");
    }
    if (strlen(values.name) > 63) {
        return complain("--name", values.name, "must have at most 63 bytes");
    }
    if (strlen(values.cluster_id) > 63) {
        return complain("--cluster-id", values.cluster_id, "must have at most 63 bytes");
    }
    if (values.advertise && !is_host(values.advertise)) {
        return complain("--advertise", values.advertise,
                        "must be a host alone, of at most 57 bytes, such as 10.0.0.2, [fe80::2] or "
                        "a name: no port, and not every interface");
    }
    if (values.scheduler && !values.advertise && kvs_is_every_interface(values.data_address)) {
        return complain("--data-address", values.data_address,
                        "is every interface, which nobody can connect to: tell the others a host "
                        "that they reach by --advertise HOST, or listen on that address alone");
    }
    return AS_OK;
}

// A share that leaves the loop and the disk's threads what they need.
static uint32_t attend_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t quarter = cores > 4 ? (uint32_t)cores / 4 : 1;
    quarter = quarter < ATTEND_THREADS_MAX ? quarter : ATTEND_THREADS_MAX;
    return values.attend_threads >= 0 ? (uint32_t)values.attend_threads : quarter;
}

as_status_t kvs_flags_parse(int argc, char **argv, kvs_flags_t *flags_p,
                            as_options_outcome_t *outcome_p)
{
    as_status_t status = as_daemon_parse(&options, argc, argv, &common, outcome_p);
    if (status != AS_OK || *outcome_p == AS_OPTIONS_EXIT) {
        return status;
    }
    status = check();
    if (status != AS_OK) {
        return status;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    kvs_store_options_init(&flags_p->store);
    flags_p->store.data_address = values.data_address;
    flags_p->store.incarnation = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    flags_p->store.ram_bytes = (size_t)values.ram_bytes;
    flags_p->store.cluster_key = values.cluster_key;
    flags_p->store.disk_directory = values.disk;
    flags_p->store.disk_bytes = (uint64_t)values.disk_bytes;
    flags_p->store.disk_queue_bytes = (uint64_t)values.disk_queue_bytes;
    flags_p->store.attend_threads = attend_threads();
    flags_p->store.scrub_bytes_per_second = (uint64_t)values.scrub_rate;
    flags_p->store.repair_bytes_per_second = (uint64_t)values.repair_rate;
    flags_p->store.repair_wait_us = (uint64_t)values.repair_wait_us;
    flags_p->store.drain_us = (uint64_t)values.drain_us;
    flags_p->store.blocks_max = (uint32_t)values.blocks_max;
    flags_p->store.connections_max = (uint32_t)values.connections_max;
    flags_p->store.lease_us_max = (uint64_t)values.lease_ms_max * 1000;
    flags_p->store.reservation_us = (uint64_t)values.reservation_ms * 1000;
    flags_p->store.evict_high_percent = (uint32_t)values.evict_high;
    flags_p->store.evict_low_percent = (uint32_t)values.evict_low;
    flags_p->store.pin_percent = (uint32_t)values.pin_max;
    flags_p->store.quota_bytes = (uint64_t)values.quota_bytes;
    flags_p->store.quota_file = values.quota_file;
    flags_p->rpc = values.rpc_address;
    flags_p->http = values.http_address;
    flags_p->scheduler = values.scheduler;
    flags_p->name = values.name;
    flags_p->advertise = values.advertise;
    flags_p->cluster_id = values.cluster_id;
    flags_p->tls = common.use_tls;
    return AS_OK;
}
