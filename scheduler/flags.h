// SPDX-License-Identifier: Apache-2.0
// The options of assay-scheduler.
#ifndef SCH_FLAGS_H
#define SCH_FLAGS_H

#include "common/options.h"
#include "common/rpc.h"
#include "scheduler/scheduler.h"

typedef struct sch_flags {
    const char *listen;
    const char *http;
    sch_options_t scheduler;
    const as_rpc_tls_t *tls; // NULL: plain text
} sch_flags_t;

// Applies log level and faults too. On an error a message was printed: exit 2.
as_status_t sch_flags_parse(int argc, char **argv, sch_flags_t *flags_p,
                            as_options_outcome_t *outcome_p) AS_MUST_USE;

#endif
