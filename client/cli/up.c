// SPDX-License-Identifier: Apache-2.0
// `assay up`: a whole cluster on this machine, until a signal.
//
// A process that dies is reported and not started again. The cluster goes on without a store or the
// scheduler (that is what it is built for); without any worker there is nothing to serve, and the
// rest is ended too.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "client/cli/cli.h"

static cli_cluster_options_t config;
static const char *run_dir;

static const as_option_t table[] = {
    {.name = "model",
     .type = AS_OPTION_STRING,
     .value = &config.model,
     .metavar = "FILE",
     .help = "GGUF file of the model",
     .required = true},
    {.name = "stores",
     .type = AS_OPTION_INT,
     .value = &config.stores,
     .fallback = "1",
     .metavar = "N",
     .help = "store nodes",
     .min = 0,
     .max = 16},
    {.name = "workers",
     .type = AS_OPTION_INT,
     .value = &config.workers,
     .fallback = "1",
     .metavar = "N",
     .help = "workers",
     .min = 1,
     .max = 16},
    {.name = "ram",
     .type = AS_OPTION_BYTES,
     .value = &config.ram_bytes,
     .fallback = "1GiB",
     .metavar = "BYTES",
     .help = "memory of each store",
     .min = 1048576,
     .max = 1e15},
    {.name = "replicas",
     .type = AS_OPTION_INT,
     .value = &config.replicas,
     .fallback = "1",
     .metavar = "N",
     .help = "stores that each block is written to",
     .min = 1,
     .max = 8},
    {.name = "disk",
     .type = AS_OPTION_STRING,
     .value = &config.disk,
     .metavar = "DIR",
     .help = "keep blocks on disk too, each store in a folder of its own in it"},
    {.name = "disk-size",
     .type = AS_OPTION_BYTES,
     .value = &config.disk_bytes,
     .fallback = "0",
     .metavar = "BYTES",
     .help = "files of each store's disk, at most; 0: the store's own default",
     .min = 0,
     .max = 1e15},
    {.name = "quota-file",
     .type = AS_OPTION_STRING,
     .value = &config.quota_file,
     .metavar = "FILE",
     .help = "quotas of tenants and namespaces, for the stores"},
    {.name = "cluster-key",
     .type = AS_OPTION_STRING,
     .value = &config.cluster_key,
     .metavar = "FILE",
     .help = "keys of the cluster (`assay token key`): stores admit only who has a token; needs "
             "--token"},
    {.name = "token",
     .type = AS_OPTION_STRING,
     .value = &config.token,
     .metavar = "FILE",
     .help = "the workers' token (`assay token issue`)"},
    {.name = "encrypt-key-file",
     .type = AS_OPTION_STRING,
     .value = &config.encrypt_key_file,
     .metavar = "FILE",
     .help = "key by which the workers encrypt blocks"},
    {.name = "device-memory",
     .type = AS_OPTION_BYTES,
     .value = &config.device_bytes,
     .fallback = "0",
     .metavar = "BYTES",
     .help = "limit of caches and workspace of each worker; 0: the worker's own default",
     .min = 0,
     .max = 1e15},
    {.name = "full-cache",
     .type = AS_OPTION_STRING,
     .value = &config.full_cache,
     .metavar = "auto|drop|swap",
     .help =
         "auto: workers keep full caches while they have room; drop: they swap what stores have; "
         "swap: for every token"},
    {.name = "draft-model",
     .type = AS_OPTION_STRING,
     .value = &config.draft_model,
     .metavar = "FILE",
     .help = "a smaller model of the same vocabulary, which proposes tokens to the workers"},
    {.name = "calibration",
     .type = AS_OPTION_STRING,
     .value = &config.calibration,
     .metavar = "FILE",
     .help = "of the model (`assay calibrate`), for the workers"},
    {.name = "sessions",
     .type = AS_OPTION_INT,
     .value = &config.sessions,
     .fallback = "0",
     .metavar = "N",
     .help = "requests that each worker computes at once; 0: its own default",
     .min = 0,
     .max = 1024},
    {.name = "queue",
     .type = AS_OPTION_INT,
     .value = &config.queue,
     .fallback = "0",
     .metavar = "N",
     .help = "requests that wait at each worker; 0: its own default",
     .min = 0,
     .max = 65536},
    {.name = "port",
     .type = AS_OPTION_INT,
     .value = &config.port,
     .fallback = "8000",
     .metavar = "PORT",
     .help = "of the first worker's API; the next worker has the next; 0 picks any",
     .min = 0,
     .max = 65000},
    {.name = "threads",
     .type = AS_OPTION_INT,
     .value = &config.threads,
     .fallback = "0",
     .metavar = "N",
     .help = "threads of each worker; 0: one for each processor",
     .min = 0,
     .max = 256},
    {.name = "context",
     .type = AS_OPTION_INT,
     .value = &config.context,
     .fallback = "0",
     .metavar = "TOKENS",
     .help = "most tokens of one request; 0: the model's own",
     .min = 0,
     .max = 1048576},
    {.name = "compressor",
     .type = AS_OPTION_STRING,
     .value = &config.compressor,
     .metavar = "NAME",
     .help = "the workers' default compressor"},
    {.name = "horizon",
     .type = AS_OPTION_INT,
     .value = &config.horizon,
     .fallback = "-1",
     .metavar = "TOKENS",
     .help = "the workers' longest draft; 0: plain decoding; -1: their own default",
     .min = -1,
     .max = 64},
    {.name = "log-level",
     .type = AS_OPTION_STRING,
     .value = &config.log_level,
     .fallback = "info",
     .metavar = "LEVEL",
     .help = "debug, info, warn or error"},
    {.name = "run-dir",
     .type = AS_OPTION_STRING,
     .value = &run_dir,
     .metavar = "DIR",
     .help = "for logs and the cluster's addresses (default: $XDG_RUNTIME_DIR/assay or "
             "/tmp/assay-UID)"},
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay up",
    .summary =
        "Starts a scheduler, stores and workers on this machine, on loopback, and serves a model.",
    .usage = "--model FILE [OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static void print_ready(const cli_cluster_t *cluster)
{
    puts("ready");
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const cli_node_t *node = &cluster->nodes[i];
        bool worker = strcmp(node->role, "worker") == 0;
        printf("  %-11s %s%s%s\n", node->name, worker ? "http://" : "",
               worker ? node->http : node->rpc, worker ? "/v1" : "");
    }
    printf("logs are in %s\n"
           "try `assay run --chat \"Why is the sky blue?\"`; end with Ctrl-C\n",
           config.run_dir);
    fflush(stdout);
}

static uint32_t living_workers(const cli_cluster_t *cluster)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        count += cluster->nodes[i].pid > 0 && strcmp(cluster->nodes[i].role, "worker") == 0;
    }
    return count;
}

// Until a signal (0), or until no worker is left (1).
static int watch(cli_cluster_t *cluster, const sigset_t *signals)
{
    for (;;) {
        int number = sigwaitinfo(signals, NULL);
        if (number > 0 && number != SIGCHLD) {
            fprintf(stderr, "assay: ending the cluster\n");
            return 0;
        }
        if (cli_cluster_reap(cluster, config.run_dir) == 0) {
            continue;
        }
        if (living_workers(cluster) == 0) {
            cli_complain("no worker is left: ending the cluster");
            return 1;
        }
        cli_complain("the cluster goes on without it; end it with Ctrl-C");
        cli_cluster_write(config.run_dir, cluster);
    }
}

// What one row of the table cannot check alone.
static bool check(void)
{
    if (config.cluster_key && !config.token) {
        cli_complain(
            "up: with --cluster-key the workers need --token FILE (`assay token issue`), or "
            "no store admits them");
        return false;
    }
    if (config.disk_bytes > 0 && !config.disk) {
        cli_complain("up: --disk-size needs --disk DIR");
        return false;
    }
    if (config.replicas > 1 && config.replicas > config.stores) {
        cli_complain("up: --replicas %lld needs as many --stores", (long long)config.replicas);
        return false;
    }
    return true;
}

static bool make_disk(void)
{
    if (config.disk && mkdir(config.disk, 0700) != 0 && errno != EEXIST) {
        cli_complain("up: cannot make the directory --disk %s: %s", config.disk, strerror(errno));
        return false;
    }
    return true;
}

int cli_up(int argc, char **argv)
{
    static char path[CLI_PATH_BYTES];
    cli_cluster_t cluster;
    sigset_t signals;
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    as_options_clear_environment(&options);
    if (!check() || !make_disk()) {
        return 2;
    }
    if (!cli_run_dir(run_dir, path) || !cli_lock(path)) {
        return 1;
    }
    cli_cluster_remove(path, true); // of one that was killed
    config.run_dir = path;
    config.start_seconds = 600; // a large model from a slow disk
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (!cli_cluster_start(&config, &cluster)) {
        return 1;
    }
    code = cli_cluster_write(path, &cluster) ? 0 : 1;
    cli_lock_started();
    if (code == 0) {
        print_ready(&cluster);
        code = watch(&cluster, &signals);
    }
    cli_cluster_remove(path, false);
    return cli_cluster_stop(&cluster) ? code : 1;
}
