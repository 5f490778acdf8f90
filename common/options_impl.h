// SPDX-License-Identifier: Apache-2.0
// Between the files of options: a value with its source, and who parses and who reads the config
// file.
#ifndef AS_OPTIONS_IMPL_H
#define AS_OPTIONS_IMPL_H

#include <stdio.h>

#include "common/options.h"

#define AS_OPTIONS_FILE_BYTES_MAX (1u << 20)
#define AS_OPTION_LIST_MAX        1024u // items of one list

// Where a value came from, for messages.
typedef enum as_option_source {
    AS_SOURCE_NONE,
    AS_SOURCE_FALLBACK,
    AS_SOURCE_FILE,
    AS_SOURCE_ENVIRONMENT,
    AS_SOURCE_FLAG
} as_option_source_t;

// One value text of one option, before it is parsed.
typedef struct as_option_text {
    const as_options_t *options;
    const as_option_t *option;
    as_option_source_t source;
    const char *file; // AS_SOURCE_FILE
    int line;         // AS_SOURCE_FILE; 0: unknown
} as_option_text_t;

// Copies `bytes` bytes and a NUL into memory that lives as long as the process. NULL when out of
// memory.
char *as_options_keep(const char *text, size_t bytes);
void *as_options_keep_bytes(size_t bytes);

// Parses and stores one text. For a list, adds its items, and first drops those of a weaker source
// when `restart`.
as_status_t as_option_store(const as_option_text_t *text, const char *value, bool restart);
// Prints "program: option 'value' (source): must be accepted form".
void as_option_complain(const as_option_text_t *text, const char *value);

// Takes every key of the JSON file over what is stored, and marks set[option index].
as_status_t as_options_read_file(const as_options_t *options, const char *file, bool *set);

const as_option_t *as_options_find(const as_options_t *options, const char *name, size_t bytes);

#endif
