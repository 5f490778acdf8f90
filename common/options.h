// SPDX-License-Identifier: Apache-2.0
// Options: one table per program; the same names as flags (--data-port), environment
// (ASSAY_DATA_PORT) and keys of a JSON config file (--config FILE, "data-port": 0). A flag beats
// the environment, which beats the file, which beats the default. --help and --version are answered
// here.
#ifndef AS_OPTIONS_H
#define AS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define AS_VERSION "0.1.0" // of every program and of the library

typedef enum as_option_type {
    AS_OPTION_BOOL,     // bool *        --flag, --flag=true|false
    AS_OPTION_INT,      // int64_t *
    AS_OPTION_BYTES,    // int64_t *     4096, 64KiB, 2GiB, 512M
    AS_OPTION_DURATION, // int64_t * us  250ms, 10s, 1500us, 2m
    AS_OPTION_DOUBLE,   // double *
    AS_OPTION_STRING,   // const char ** (owned by the options; lives as long as the process)
    AS_OPTION_LIST      // const char *** NULL-terminated; the flag may repeat, or hold commas
} as_option_type_t;

typedef struct as_option {
    const char *name; // long name, "data-port"
    as_option_type_t type;
    void *value;          // set by as_options_parse
    const char *fallback; // default as text; NULL leaves *value alone
    const char *metavar;  // "BYTES", shown in help
    const char *help;
    double min, max; // numeric bounds, both 0: unbounded
    bool required;
} as_option_t;

typedef struct as_options {
    const char *program; // "assay-kvstore"
    const char *summary; // one sentence
    const char *usage;   // "[OPTIONS]" or "[OPTIONS] FILE"
    const as_option_t *table;
    size_t count;
} as_options_t;

typedef enum as_options_outcome { AS_OPTIONS_RUN, AS_OPTIONS_EXIT } as_options_outcome_t;

// Parses argv. On AS_OK with AS_OPTIONS_EXIT, help or version was printed: exit 0. On an error the
// message (which names the option, its bad value and what is accepted) was printed to stderr: exit
// 2. Positional arguments are left in argv[*rest_p .. argc).
as_status_t as_options_parse(const as_options_t *options, int argc, char **argv, int *rest_p,
                             as_options_outcome_t *outcome_p) AS_MUST_USE;
// Takes the variables of these options out of the environment: a program that starts others calls it
// after as_options_parse, since what is meant for it would reach their options of the same name.
void as_options_clear_environment(const as_options_t *options);
void as_options_help(const as_options_t *options);

// A size as options take it: digits, and B, K, KiB, M, MiB, G, GiB, T or TiB. False: it is none.
bool as_option_parse_bytes(const char *text, int64_t *value_p);

#endif
