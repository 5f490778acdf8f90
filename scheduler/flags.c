// SPDX-License-Identifier: Apache-2.0
// The options of assay-scheduler: one table, and what its rows cannot check.
#include "scheduler/flags.h"

#include <stdio.h>
#include <sys/random.h>

#include "common/daemon.h"

#define MS_MAX (3600.0 * 1000)

static struct {
    const char *listen, *http, *cluster_id, *cluster_key;
    bool issue_tokens;
    int64_t heartbeat_ms, suspect_ms, dead_ms, directory_bytes, replicas, slow_start_us;
} values;

static as_daemon_flags_t common;

#define ROW(name_, type_, value_, fallback_, metavar_, ...)                                        \
    {                                                                                              \
        .name = name_, .type = AS_OPTION_##type_, .value = &values.value_, .fallback = fallback_,  \
        .metavar = metavar_, .help = __VA_ARGS__                                                   \
    }

static const as_option_t table[] = {
    ROW("listen", STRING, listen, "127.0.0.1:7700", "HOST:PORT",
        "address of the gRPC service; port 0 picks one"),
    ROW("http", STRING, http, "127.0.0.1:0", "HOST:PORT",
        "address of /metrics, /livez and /readyz; port 0 picks one"),
    ROW("cluster-id", STRING, cluster_id, "assay", "NAME",
        "name of the cluster: nodes with another --cluster-id are refused"),
    ROW("cluster-key", STRING, cluster_key, NULL, "FILE",
        "keys of the cluster, as of the stores: a route needs a token, and tells of its tenant's "
        "blocks only; read again when it changes"),
    ROW("issue-tokens", BOOL, issue_tokens, "false", NULL,
        "issue tokens of any tenant to everybody with a certificate of the cluster; needs "
        "--cluster-key and mutual TLS"),
    ROW("heartbeat-ms", INT, heartbeat_ms, "1000", "MS", "how often nodes are asked to report",
        .min = 1, .max = MS_MAX),
    ROW("suspect-ms", INT, suspect_ms, "3000", "MS",
        "silence after which a node is not chosen for new work", .min = 1, .max = MS_MAX),
    ROW("dead-ms", INT, dead_ms, "10000", "MS", "silence after which a node's blocks are forgotten",
        .min = 1, .max = MS_MAX),
    ROW("slow-start", DURATION, slow_start_us, "30s", "TIME",
        "in which an empty store that joins others comes to its whole share of new blocks; 0s is "
        "at "
        "once",
        .min = 0, .max = 86400e6),
    ROW("directory-bytes", BYTES, directory_bytes, "256MiB", "BYTES",
        "memory of the block directory, 40 bytes a block", .min = 65536, .max = 1e12),
    ROW("replicas", INT, replicas, "1", "N",
        "stores that each block is written to, so that it outlives one of them from 2 on", .min = 1,
        .max = SCH_HOLDERS_MAX),
    AS_OPERATORS_OPTION(common),
    AS_DAEMON_OPTIONS(common),
};

static const as_options_t options = {
    .program = "assay-scheduler",
    .summary = "Knows an Assay cluster's nodes and who holds which block, and routes requests.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

as_status_t sch_flags_parse(int argc, char **argv, sch_flags_t *flags_p,
                            as_options_outcome_t *outcome_p)
{
    as_status_t status = as_daemon_parse(&options, argc, argv, &common, outcome_p);
    if (status != AS_OK || *outcome_p == AS_OPTIONS_EXIT) {
        return status;
    }
    if (values.dead_ms <= values.suspect_ms) {
        fprintf(stderr, "assay-scheduler: --dead-ms must be longer than --suspect-ms\n");
        return AS_ERR_CONFIG;
    }
    if (values.issue_tokens && (!values.cluster_key || !common.use_tls)) {
        fprintf(stderr, "assay-scheduler: --issue-tokens needs %s\n",
                values.cluster_key ? "mutual TLS: --tls-ca, --tls-cert and --tls-key"
                                   : "--cluster-key FILE");
        return AS_ERR_CONFIG;
    }
    flags_p->listen = values.listen;
    flags_p->http = values.http;
    flags_p->tls = common.use_tls;
    flags_p->scheduler = (sch_options_t){
        .cluster_id = values.cluster_id,
        .cluster_key = values.cluster_key,
        .issue_tokens = values.issue_tokens,
        .heartbeat_us = (uint64_t)values.heartbeat_ms * 1000,
        .suspect_us = (uint64_t)values.suspect_ms * 1000,
        .dead_us = (uint64_t)values.dead_ms * 1000,
        .slow_start_us = (uint64_t)values.slow_start_us,
        .directory_bytes = (size_t)values.directory_bytes,
        .replicas = (uint32_t)values.replicas,
    };
    uint64_t *seed = &flags_p->scheduler.seed;
    return getrandom(seed, sizeof(*seed), 0) == sizeof(*seed) ? AS_OK : AS_ERR_IO;
}
