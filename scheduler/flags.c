// SPDX-License-Identifier: Apache-2.0
// The options of assay-scheduler: one table, and what of it acts at once.
#include "scheduler/flags.h"

#include <stdio.h>
#include <sys/random.h>

#include "common/fault.h"
#include "common/log.h"

#define MS_MAX (3600.0 * 1000)

static struct {
    const char *listen, *http, *cluster_id, *log_level;
    int64_t heartbeat_ms, suspect_ms, dead_ms, directory_bytes;
    as_rpc_tls_t tls;
    const char **faults;
} values;

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
    ROW("cluster-id", STRING, cluster_id, "assay", "NAME", "name of the cluster, told to nodes"),
    ROW("heartbeat-ms", INT, heartbeat_ms, "1000", "MS", "how often nodes are asked to report",
        .min = 1, .max = MS_MAX),
    ROW("suspect-ms", INT, suspect_ms, "3000", "MS",
        "silence after which a node is not chosen for new work", .min = 1, .max = MS_MAX),
    ROW("dead-ms", INT, dead_ms, "10000", "MS", "silence after which a node's blocks are forgotten",
        .min = 1, .max = MS_MAX),
    ROW("directory-bytes", BYTES, directory_bytes, "256MiB", "BYTES",
        "memory of the block directory, 40 bytes a block", .min = 65536, .max = 1e12),
    ROW("tls-ca", STRING, tls.ca_file, NULL, "FILE",
        "PEM of the CA that signs clients; turns on mutual TLS"),
    ROW("tls-cert", STRING, tls.cert_file, NULL, "FILE", "PEM of own certificate"),
    ROW("tls-key", STRING, tls.key_file, NULL, "FILE", "PEM of own private key"),
    ROW("log-level", STRING, log_level, "info", "LEVEL", "debug, info, warn or error"),
    ROW("fault", LIST, faults, NULL, "SITE=N",
        "for tests: a fault site that fires, site=nth or site=ppm@seed"),
};

static const as_options_t options = {
    .program = "assay-scheduler",
    .summary = "Knows an Assay cluster's nodes and who holds which block, and routes requests.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static as_status_t complain(const char *flag, const char *value, const char *accepted)
{
    fprintf(stderr, "assay-scheduler: %s %s: %s\n", flag, value, accepted);
    return AS_ERR_CONFIG;
}

static as_status_t act(void)
{
    as_log_level_t level;
    if (!as_log_parse_level(values.log_level, &level)) {
        return complain("--log-level", values.log_level, "must be debug, info, warn or error");
    }
    as_log_set_level(level);
    for (const char **fault = values.faults; fault && *fault; fault++) {
        if (as_fault_parse(*fault) != AS_OK) {
            return complain("--fault", *fault, "must be site=nth or site=ppm@seed");
        }
    }
    if (values.dead_ms <= values.suspect_ms) {
        return complain("--dead-ms", "too short", "must be longer than --suspect-ms");
    }
    bool some = values.tls.ca_file || values.tls.cert_file || values.tls.key_file;
    if (some && !(values.tls.ca_file && values.tls.cert_file && values.tls.key_file)) {
        return complain("--tls-ca, --tls-cert, --tls-key", "incomplete", "give all three or none");
    }
    return AS_OK;
}

as_status_t sch_flags_parse(int argc, char **argv, sch_flags_t *flags_p,
                            as_options_outcome_t *outcome_p)
{
    int rest;
    as_status_t status = as_options_parse(&options, argc, argv, &rest, outcome_p);
    if (status != AS_OK || *outcome_p == AS_OPTIONS_EXIT) {
        return status;
    }
    status = rest < argc ? complain("argument", argv[rest], "is unknown") : act();
    if (status != AS_OK) {
        return status;
    }
    flags_p->listen = values.listen;
    flags_p->http = values.http;
    flags_p->tls = values.tls.ca_file ? &values.tls : NULL;
    flags_p->scheduler = (sch_options_t){
        .cluster_id = values.cluster_id,
        .heartbeat_us = (uint64_t)values.heartbeat_ms * 1000,
        .suspect_us = (uint64_t)values.suspect_ms * 1000,
        .dead_us = (uint64_t)values.dead_ms * 1000,
        .directory_bytes = (size_t)values.directory_bytes,
    };
    uint64_t *seed = &flags_p->scheduler.seed;
    return getrandom(seed, sizeof(*seed), 0) == sizeof(*seed) ? AS_OK : AS_ERR_IO;
}
