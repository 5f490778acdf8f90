// SPDX-License-Identifier: Apache-2.0
// A worker to ask: one that is named or running here; else a cluster of one store and one worker is
// started for the while, in a folder of its own.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"

#define RAM_BYTES     (1ll << 30)
#define START_SECONDS 600 // a large model from a slow disk

static bool start(const cli_local_options_t *options, cli_local_t *local)
{
    const cli_cluster_options_t cluster = {
        .model = options->model,
        .stores = 1,
        .workers = 1,
        .ram_bytes = RAM_BYTES,
        .threads = options->threads,
        .horizon = -1,
        .full_cache = "drop", // there is room for it all, and then nothing is swapped
        .log_level = "info",
        .run_dir = local->run_dir,
        .start_seconds = START_SECONDS,
    };
    snprintf(local->run_dir, sizeof(local->run_dir), "/tmp/assay-local-XXXXXX");
    if (!mkdtemp(local->run_dir)) {
        cli_complain("cannot make a folder for logs, %s: %s", local->run_dir, strerror(errno));
        return false;
    }
    fprintf(stderr, "assay: starting a worker of %s\n", options->model);
    if (!cli_cluster_start(&cluster, &local->cluster)) {
        cli_complain("logs are kept in %s", local->run_dir);
        return false;
    }
    const cli_node_t *worker = cli_cluster_find(&local->cluster, "worker");
    if (worker && cli_find_worker(worker->http, NULL, local->url) == 0) {
        return true;
    }
    cli_local_close(local, false);
    return false;
}

int cli_local_open(const cli_local_options_t *options, cli_local_t *local)
{
    char path[CLI_PATH_BYTES];
    memset(local, 0, sizeof(*local));
    bool named = options->worker && options->worker[0];
    if (named || !options->model || (cli_run_dir(options->run_dir, path) && cli_is_alive(path))) {
        return cli_find_worker(options->worker, options->run_dir, local->url);
    }
    return start(options, local) ? 0 : 1;
}

bool cli_local_close(cli_local_t *local, bool good)
{
    if (local->cluster.node_count == 0) {
        return true;
    }
    bool ended = cli_cluster_stop(&local->cluster);
    if (good && ended) {
        cli_cluster_forget(&local->cluster, local->run_dir);
    } else {
        cli_complain("logs are kept in %s", local->run_dir);
    }
    return ended;
}
