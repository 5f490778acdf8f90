// SPDX-License-Identifier: Apache-2.0
// assay-scheduler: wires the scheduler to a gRPC server and a metrics port, and runs until SIGTERM
// or SIGINT. When it listens it says so in one line of JSON on stdout, with the addresses in use.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <uv.h>

#include "common/http.h"
#include "common/log.h"
#include "scheduler/flags.h"

static bool ready(void *ctx)
{
    return sch_scheduler_ready(ctx);
}

static void on_signal(uv_signal_t *signal, int number)
{
    AS_INFO("main", "signal %d: stopping", number);
    as_loop_stop(signal->data);
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
    static uv_signal_t signals[2]; // closed by freeing the loop
    for (int i = 0; i < 2; i++) {
        uv_signal_init(as_loop_uv(loop), &signals[i]);
        signals[i].data = loop;
        uv_signal_start(&signals[i], on_signal, i == 0 ? SIGTERM : SIGINT);
    }
    status = serve(loop, flags, scheduler);
    for (int i = 0; i < 2; i++) {
        uv_close((uv_handle_t *)&signals[i], NULL);
    }
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
