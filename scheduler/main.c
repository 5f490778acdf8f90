// SPDX-License-Identifier: Apache-2.0
// assay-scheduler: wires the scheduler to a gRPC server and a metrics port, and runs until SIGTERM
// or SIGINT. When it listens it says so in one line of JSON on stdout, with the addresses in use.
#include <stdio.h>
#include <unistd.h>

#include "common/daemon.h"
#include "common/http.h"
#include "common/log.h"
#include "scheduler/flags.h"

static bool ready(void *ctx)
{
    return sch_scheduler_ready(ctx);
}

typedef struct daemon {
    as_loop_t *loop;
    sch_scheduler_t *scheduler;
} daemon_t;

static void on_end(void *ctx, int number)
{
    AS_INFO("main", "signal %d: stopping", number);
    as_loop_stop(((daemon_t *)ctx)->loop);
}

static void on_reload(void *ctx)
{
    sch_scheduler_reload(((daemon_t *)ctx)->scheduler);
}

static as_status_t serve(as_loop_t *loop, const sch_flags_t *flags, sch_scheduler_t *scheduler)
{
    as_rpc_server_t *server = NULL;
    as_http_t *http = NULL;
    as_status_t status = as_rpc_server_alloc(loop, flags->listen, flags->tls, &server);
    if (status == AS_OK) {
        status = as_http_alloc_metrics(loop, flags->http, ready, scheduler, &http);
    }
    if (status == AS_OK) {
        status = as_rpc_server_add(server, sch_scheduler_service(scheduler));
    }
    if (status == AS_OK) {
        status = as_rpc_server_start(server);
    }
    if (status == AS_OK) {
        printf("{\"ready\":\"assay-scheduler\",\"rpc\":\"%s\",\"http\":\"%s\",\"pid\":%ld}\n",
               as_rpc_server_address(server), as_http_address(http), (long)getpid());
        fflush(stdout);
        as_loop_run(loop);
    }
    as_rpc_server_free(server);
    if (http) {
        as_http_free(http);
    }
    return status;
}

static as_status_t run(as_loop_t *loop, const sch_flags_t *flags)
{
    sch_scheduler_t *scheduler;
    as_status_t status = sch_scheduler_alloc(loop, &flags->scheduler, &scheduler);
    if (status != AS_OK) {
        return status;
    }
    as_daemon_signals_t *signals = NULL;
    daemon_t daemon = {loop, scheduler};
    const as_daemon_handlers_t handlers = {on_end, on_reload, &daemon};
    status = as_daemon_signals_alloc(loop, &handlers, &signals);
    if (status == AS_OK) {
        status = serve(loop, flags, scheduler);
    }
    as_daemon_signals_free(signals);
    sch_scheduler_free(scheduler);
    return status;
}

int main(int argc, char **argv)
{
    sch_flags_t flags;
    as_options_outcome_t outcome;
    if (sch_flags_parse(argc, argv, &flags, &outcome) != AS_OK) {
        return 2;
    }
    if (outcome == AS_OPTIONS_EXIT) {
        return 0;
    }
    as_loop_t *loop;
    if (as_loop_alloc_uv(&loop) != AS_OK) {
        return 1;
    }
    as_status_t status = run(loop, &flags);
    as_loop_free(loop);
    return status == AS_OK ? 0 : 1;
}
