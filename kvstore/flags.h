// SPDX-License-Identifier: Apache-2.0
// The options of assay-kvstore.
#ifndef KVS_FLAGS_H
#define KVS_FLAGS_H

#include "common/options.h"
#include "kvstore/kvstore.h"

typedef struct kvs_flags {
    kvs_store_options_t store; // all but loop and net
    const char *rpc, *http;    // addresses
    const char *scheduler;     // NULL: none
    const char *name;
    const char *cluster_id;
    const char *advertise;   // host as others reach it; NULL: that of the addresses
    const as_rpc_tls_t *tls; // NULL: plain text
} kvs_flags_t;

// Parses, checks and arms what acts at once (log level, fault sites). On an error the message was
// printed: exit 2. With AS_OPTIONS_EXIT help or version was printed: exit 0.
as_status_t kvs_flags_parse(int argc, char **argv, kvs_flags_t *flags_p,
                            as_options_outcome_t *outcome_p) AS_MUST_USE;

#endif
