// SPDX-License-Identifier: Apache-2.0
// The worker as a process: two loops, what hangs on them, and the order in which it starts and
// ends.
#ifndef GPW_DAEMON_H
#define GPW_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include "common/rpc.h"
#include "gpuworker/worker.h"

typedef struct gpw_daemon_config {
    const char *model, *model_name; // file; name in the API (NULL: the file's)
    const char *listen, *scheduler; // "host:port"; no scheduler: NULL or empty
    const char *data_interface;     // NULL: every one
    const char *token;              // file; NULL: none
    const char *encrypt_key;        // file; NULL: none
    const char *name;               // of this worker, for people
    const char *cluster_id;         // "": any
    const char *compressor;
    const char *calibration; // file; NULL: none
    const char *weights;     // "f16" or "f32"
    const char *draft_model; // file; NULL: none
    int64_t draft_tokens, draft_window;
    int64_t threads, context, horizon, prompt_lookup, sessions, queue, block_tokens, connections,
        swap_ring_layers;
    int64_t batch_rows;
    const char *full_cache, *overlap, *shared_verification, *store_sealed, *trace;
    const char *push_down;
    gpw_push_down_t push_down_mode;
    int64_t device_bytes;
    int64_t receive_deadline_us, request_deadline_us, route_deadline_us, fetch_deadline_us,
        put_deadline_us;
    double recompute_rate; // tokens/s; 0: as measured; negative: stored prefixes are always loaded
    int64_t grace_us;      // of a shutdown
    const as_rpc_tls_t *tls; // to the scheduler; NULL: plain text
} gpw_daemon_config_t;

// Parses the command line, sets log level and fault sites. False: exit with the code.
bool gpw_daemon_options(int argc, char **argv, gpw_daemon_config_t *config_p, int *code_p);
// Runs until SIGTERM or SIGINT. Prints one line of JSON to stdout once it serves. Returns the exit
// code.
int gpw_daemon_run(const gpw_daemon_config_t *config);

#endif
