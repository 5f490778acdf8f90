// SPDX-License-Identifier: Apache-2.0
// The HTTP face of a worker: the OpenAI API, health and metrics on one port. Everything is on the
// io loop's thread.
#ifndef GPW_SERVE_H
#define GPW_SERVE_H

#include "common/loop.h"
#include "gpuworker/worker.h"

typedef struct gpw_serve gpw_serve_t;

typedef struct gpw_serve_options {
    as_loop_t *loop; // the worker's io loop
    const gpw_model_t *model;
    const char *address;    // "host:port"; port 0 picks one
    const char *model_name; // as in /v1/models
    uint32_t context_max;   // tokens of one request, prompt and completion
    uint32_t connections_max;
    uint32_t receive_seconds; // as in as_http_options_t
    uint32_t sessions_max;    // of the worker
    uint32_t without;         // flags of compressors that it cannot open (gpw_compressor_names)
} gpw_serve_options_t;

as_status_t gpw_serve_alloc(const gpw_serve_options_t *options, gpw_serve_t **serve_p) AS_MUST_USE;
// Listens at once, so that the worker can be told the address; takes generations once it is open,
// before the loop runs.
void gpw_serve_open(gpw_serve_t *serve, gpw_worker_t *worker);
const char *gpw_serve_address(const gpw_serve_t *serve);
// New generations are answered 503; `done` comes once those in progress have ended. After grace_us
// they are cancelled (their clients get an error), and what does not end even then is left behind.
void gpw_serve_drain(gpw_serve_t *serve, uint64_t grace_us, as_loop_fn done, void *ctx);
// Closes the port and all connections, on the loop or once it has stopped. Idempotent.
void gpw_serve_close(gpw_serve_t *serve);
// When the worker is freed and the loop has stopped. NULL is fine.
void gpw_serve_free(gpw_serve_t *serve);

#endif
