// SPDX-License-Identifier: Apache-2.0
// Between the files that parse a request: the state of one parse, and typed readers of one
// parameter.
#ifndef GPW_OPENAI_PARSE_H
#define GPW_OPENAI_PARSE_H

#include <jansson.h>
#include "gpuworker/serve/openai.h"

typedef struct gpw_api_parse {
    gpw_api_request_t *request;
    gpw_api_error_t *error;
    const gpw_api_limits_t *limits;
    char path[64]; // of the parameter being read: "assay.horizon"
} gpw_api_parse_t;

// Reads one parameter's value, which is not null. False: the error is set.
typedef bool (*gpw_api_read_fn)(gpw_api_parse_t *parse, json_t *value);

typedef struct gpw_api_field {
    const char *name;
    unsigned kinds; // of 1u << gpw_api_kind_t
    gpw_api_read_fn read;
} gpw_api_field_t;

enum {
    GPW_API_IN_COMPLETION = 1u << GPW_API_COMPLETION,
    GPW_API_IN_CHAT = 1u << GPW_API_CHAT,
    GPW_API_IN_BOTH = 3u
};

// Reads the members of `object` by a table that ends with a NULL name. `prefix` of their paths: ""
// or "assay.".
bool gpw_api_read_object(gpw_api_parse_t *parse, json_t *object, const gpw_api_field_t *fields,
                         const char *prefix);
// The error "<path> must be <what>, but is <value>". Returns false.
bool gpw_api_wrong(gpw_api_parse_t *parse, const char *what, const json_t *value);
// The error of a feature that is not offered. Returns false.
bool gpw_api_unsupported(gpw_api_parse_t *parse, const char *remedy);
bool gpw_api_read_int(gpw_api_parse_t *parse, const json_t *value, int64_t min, int64_t max,
                      int64_t *out_p);
bool gpw_api_read_bool(gpw_api_parse_t *parse, const json_t *value, bool *out_p);
// Not empty, at most bytes_max.
bool gpw_api_read_string(gpw_api_parse_t *parse, const json_t *value, size_t bytes_max,
                         const char **out_p);

// openai_input.c
bool gpw_api_read_prompt(gpw_api_parse_t *parse, json_t *value);
bool gpw_api_read_messages(gpw_api_parse_t *parse, json_t *value);
bool gpw_api_read_stop(gpw_api_parse_t *parse, json_t *value);
bool gpw_api_read_continuation(gpw_api_parse_t *parse, json_t *value);

// openai_fields.c
extern const gpw_api_field_t gpw_api_fields[];

#endif
