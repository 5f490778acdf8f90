// SPDX-License-Identifier: Apache-2.0
// What every daemon has: options for logs, faults and TLS, and the signals that end it.
#ifndef AS_DAEMON_H
#define AS_DAEMON_H

#include "common/loop.h"
#include "common/options.h"
#include "common/tls.h"

typedef struct as_daemon_flags {
    const char *log_level;
    const char **faults;
    as_rpc_tls_t tls;
    const char **operators;
    const as_rpc_tls_t *use_tls; // once parsed: of remote calls; NULL: plain text
} as_daemon_flags_t;

// Rows of a daemon's table of options; flags_ is an as_daemon_flags_t.
#define AS_DAEMON_OPTIONS(flags_)                                                                  \
    AS_TLS_OPTIONS((flags_).tls),                                                                  \
        {.name = "log-level",                                                                      \
         .type = AS_OPTION_STRING,                                                                 \
         .value = &(flags_).log_level,                                                             \
         .fallback = "info",                                                                       \
         .metavar = "LEVEL",                                                                       \
         .help = "debug, info, warn or error"},                                                    \
    {                                                                                              \
        .name = "fault", .type = AS_OPTION_LIST, .value = &(flags_).faults, .metavar = "SITE=N",   \
        .help = "for tests: a fault site fires on its n-th visit, or site=ppm@seed by chance"      \
    }

// Of daemons that answer operators, too.
#define AS_OPERATORS_OPTION(flags_)                                                                \
    {                                                                                              \
        .name = "operator", .type = AS_OPTION_LIST, .value = &(flags_).operators,                  \
        .metavar = "NAME",                                                                         \
        .help =                                                                                    \
            "common name of a certificate that may change things and be issued tokens; may be "    \
            "given again; needs mutual TLS; without it every certificate of the cluster may"       \
    }

// Parses a daemon's command line, which has no arguments but options; then sets the log level, arms
// the faults, raises the limit of open files as far as it goes and checks the TLS files (flags->use_tls). On an error the message was printed: exit 2.
// With AS_OPTIONS_EXIT help or version was printed: exit 0.
as_status_t as_daemon_parse(const as_options_t *options, int argc, char **argv,
                            as_daemon_flags_t *flags, as_options_outcome_t *outcome_p) AS_MUST_USE;

// Signals, on the loop's thread; SIGPIPE is ignored from now on. SIGTERM and SIGINT call on_end. SIGHUP
// has the files of mutual TLS read again, and then calls on_reload for those of the daemon's own; NULL:
// it has none.
typedef struct as_daemon_signals as_daemon_signals_t;
typedef struct as_daemon_handlers {
    void (*on_end)(void *ctx, int number);
    void (*on_reload)(void *ctx);
    void *ctx;
} as_daemon_handlers_t;
as_status_t as_daemon_signals_alloc(as_loop_t *loop, const as_daemon_handlers_t *handlers,
                                    as_daemon_signals_t **signals_p) AS_MUST_USE;
// Before the loop is freed. NULL is fine.
void as_daemon_signals_free(as_daemon_signals_t *signals);

#endif
