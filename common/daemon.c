// SPDX-License-Identifier: Apache-2.0
// What every daemon's command line and end have in common.
#include "common/daemon.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <uv.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rpc_peer.h"

#define SIGNAL_COUNT 3
#define FILES_ENOUGH 65536 // of thousands of connections

static as_status_t complain(const char *program, const char *option, const char *value,
                            const char *accepted)
{
    fprintf(stderr, "%s: --%s %s: must be %s\n", program, option, value, accepted);
    return AS_ERR_CONFIG;
}

// Shells and service managers give 1024 descriptors, for the sake of select(), which is not used here, and
// let a process have more.
static void raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FILES_ENOUGH) {
        limit.rlim_cur = limit.rlim_max < FILES_ENOUGH ? limit.rlim_max : FILES_ENOUGH;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

as_status_t as_daemon_parse(const as_options_t *options, int argc, char **argv,
                            as_daemon_flags_t *flags, as_options_outcome_t *outcome_p)
{
    const char *program = options->program;
    as_log_level_t level;
    int rest;
    as_status_t status = as_options_parse(options, argc, argv, &rest, outcome_p);
    if (status != AS_OK || *outcome_p == AS_OPTIONS_EXIT) {
        return status;
    }
    if (rest < argc) {
        fprintf(stderr, "%s: unexpected argument '%s' (--help lists the options)\n", program,
                argv[rest]);
        return AS_ERR_CONFIG;
    }
    if (!as_log_parse_level(flags->log_level, &level)) {
        return complain(program, "log-level", flags->log_level, "debug, info, warn or error");
    }
    as_log_set_level(level);
    for (const char **fault = flags->faults; fault && *fault; fault++) {
        if (as_fault_parse(*fault) != AS_OK) {
            return complain(program, "fault", *fault,
                            "site=nth or site=ppm@seed, with a site of common/fault_sites.def");
        }
    }
    raise_files();
    status = as_tls_check(program, &flags->tls, &flags->use_tls);
    if (status == AS_OK && flags->operators && !flags->operators[0]) {
        return complain(
            program, "operator", "''",
            "a certificate's common name; to let every certificate do all, leave it out");
    }
    if (status == AS_OK && flags->operators && !flags->use_tls) {
        return complain(program, "operator", flags->operators[0],
                        "given with mutual TLS: --tls-ca, --tls-cert and --tls-key");
    }
    as_rpc_set_operators((const char *const *)flags->operators);
    return status;
}

// ---- Signals

struct as_daemon_signals {
    as_daemon_handlers_t handlers;
    uv_signal_t handles[SIGNAL_COUNT];
    int open;
};

static void on_uv_signal(uv_signal_t *handle, int number)
{
    const as_daemon_handlers_t *handlers = &((as_daemon_signals_t *)handle->data)->handlers;
    if (number != SIGHUP) {
        handlers->on_end(handlers->ctx, number);
        return;
    }
    AS_INFO("main", "SIGHUP: reading files again");
    as_rpc_tls_reload();
    if (handlers->on_reload) {
        handlers->on_reload(handlers->ctx);
    }
}

static void on_closed(uv_handle_t *handle)
{
    as_daemon_signals_t *signals = handle->data;
    if (--signals->open == 0) {
        as_mem_free(signals);
    }
}

as_status_t as_daemon_signals_alloc(as_loop_t *loop, const as_daemon_handlers_t *handlers,
                                    as_daemon_signals_t **signals_p)
{
    static const int numbers[SIGNAL_COUNT] = {SIGTERM, SIGINT, SIGHUP};
    AS_ASSERT(as_loop_uv(loop));
    as_daemon_signals_t *signals = as_mem_zalloc(1, sizeof(*signals));
    if (!signals) {
        return AS_ERR_NO_MEMORY;
    }
    signals->handlers = *handlers;
    signal(SIGPIPE, SIG_IGN);
    int error = 0;
    for (int i = 0; i < SIGNAL_COUNT && error == 0; i++) {
        error = uv_signal_init(as_loop_uv(loop), &signals->handles[i]);
        if (error == 0) {
            signals->handles[i].data = signals;
            signals->open++;
            error = uv_signal_start(&signals->handles[i], on_uv_signal, numbers[i]);
        }
    }
    if (error != 0) {
        AS_ERROR("main", "cannot watch signals: %s", uv_strerror(error));
        as_daemon_signals_free(signals);
        return AS_ERR_IO;
    }
    *signals_p = signals;
    return AS_OK;
}

void as_daemon_signals_free(as_daemon_signals_t *signals)
{
    if (!signals) {
        return;
    }
    if (signals->open == 0) {
        as_mem_free(signals);
        return;
    }
    for (int i = signals->open - 1; i >= 0; i--) {
        uv_close((uv_handle_t *)&signals->handles[i], on_closed); // run by freeing the loop
    }
}
