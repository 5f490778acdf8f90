// SPDX-License-Identifier: Apache-2.0
// From the body's bytes to a checked request.
//
// The bytes are scanned once before they are parsed, so that neither nesting nor the number of
// values can make the parser use more memory or stack than stated. Then each member of the body is
// looked up in the table of parameters (openai_fields.c), and what only the whole request can tell
// is checked last.
#include "gpuworker/serve/openai.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/serve/openai_parse.h"

static const char *error_type(int code)
{
    switch (code) {
    case 429:
        return "rate_limit_error";
    case 500:
    case 503:
    case 504:
        return "server_error";
    default:
        return "invalid_request_error";
    }
}

// Outside text may be in it: what does not fit is cut at a character.
static void cut_at_character(char *text)
{
    size_t length = strlen(text);
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        if (gpw_utf8_step(text + length - back, back) == 0) {
            text[length - back] = '\0';
            return;
        }
    }
}

void gpw_api_error_set(gpw_api_error_t *error, gpw_api_fault_t fault, const char *format, ...)
{
    error->code = fault.code;
    error->type = error_type(fault.code);
    error->reason = fault.reason;
    snprintf(error->param, sizeof(error->param), "%s", fault.param ? fault.param : "");
    cut_at_character(error->param);
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof(error->message), format, args);
    va_end(args);
    cut_at_character(error->message);
}

// ---- Reading one value

// A short picture of a value, for messages.
static void describe(const json_t *value, char *out, size_t bytes)
{
    if (json_is_object(value)) {
        snprintf(out, bytes, "an object");
    } else if (json_is_array(value)) {
        snprintf(out, bytes, "an array of %zu", json_array_size(value));
    } else if (json_is_string(value)) {
        bool whole = json_string_length(value) <= 40;
        snprintf(out, bytes, "\"%.40s%s\"", json_string_value(value), whole ? "" : "...");
        if (!gpw_utf8_valid(out, strlen(out))) {
            snprintf(out, bytes, "a string of %zu bytes", json_string_length(value));
        }
    } else if (json_is_integer(value)) {
        snprintf(out, bytes, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        snprintf(out, bytes, "%.17g", json_real_value(value));
    } else {
        snprintf(out, bytes, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "null");
    }
}

bool gpw_api_wrong(gpw_api_parse_t *parse, const char *what, const json_t *value)
{
    char picture[96];
    describe(value, picture, sizeof(picture));
    gpw_api_error_set(parse->error, (gpw_api_fault_t){400, "invalid_value", parse->path},
                      "%s must be %s, but is %s", parse->path, what, picture);
    return false;
}

bool gpw_api_unsupported(gpw_api_parse_t *parse, const char *remedy)
{
    gpw_api_error_set(parse->error, (gpw_api_fault_t){400, "unsupported_parameter", parse->path},
                      "%s is not supported: %s", parse->path, remedy);
    return false;
}

bool gpw_api_read_int(gpw_api_parse_t *parse, const json_t *value, int64_t min, int64_t max,
                      int64_t *out_p)
{
    int64_t number = json_is_integer(value) ? (int64_t)json_integer_value(value) : 0;
    if (!json_is_integer(value) || number < min || number > max) {
        char what[96];
        snprintf(what, sizeof(what), "an integer from %lld to %lld", (long long)min,
                 (long long)max);
        return gpw_api_wrong(parse, what, value);
    }
    *out_p = number;
    return true;
}

bool gpw_api_read_bool(gpw_api_parse_t *parse, const json_t *value, bool *out_p)
{
    if (!json_is_boolean(value)) {
        return gpw_api_wrong(parse, "true or false", value);
    }
    *out_p = json_is_true(value);
    return true;
}

bool gpw_api_read_string(gpw_api_parse_t *parse, const json_t *value, size_t bytes_max,
                         const char **out_p)
{
    size_t bytes = json_is_string(value) ? json_string_length(value) : 0;
    if (bytes == 0 || bytes > bytes_max) {
        char what[96];
        snprintf(what, sizeof(what), "a string of 1 to %zu bytes", bytes_max);
        return gpw_api_wrong(parse, what, value);
    }
    *out_p = json_string_value(value);
    return true;
}

// ---- Reading objects

static void set_path(gpw_api_parse_t *parse, const char *prefix, const char *name)
{
    char shown[48]; // a name comes from outside and may be long
    snprintf(shown, sizeof(shown), "%s", name);
    cut_at_character(shown);
    snprintf(parse->path, sizeof(parse->path), "%s%s", prefix, shown);
}

static bool unknown_field(gpw_api_parse_t *parse, const gpw_api_field_t *fields, const char *name)
{
    for (const gpw_api_field_t *field = fields; field->name; field++) {
        if (strcmp(field->name, name) == 0) {
            bool chat = parse->request->kind == GPW_API_CHAT;
            gpw_api_error_set(parse->error,
                              (gpw_api_fault_t){400, "unknown_parameter", parse->path},
                              "%s is a parameter of %s: leave it out here", parse->path,
                              chat ? "/v1/completions" : "/v1/chat/completions");
            return false;
        }
    }
    gpw_api_error_set(
        parse->error, (gpw_api_fault_t){400, "unknown_parameter", parse->path},
        "%s is not a parameter that this server knows: leave it out, or check its spelling",
        parse->path);
    return false;
}

bool gpw_api_read_object(gpw_api_parse_t *parse, json_t *object, const gpw_api_field_t *fields,
                         const char *prefix)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const gpw_api_field_t *field = fields;
        while (field->name &&
               (strcmp(field->name, name) != 0 || !(field->kinds & 1u << parse->request->kind))) {
            field++;
        }
        set_path(parse, prefix, name);
        if (!field->name) {
            return unknown_field(parse, fields, name);
        }
        if (!json_is_null(value) && !field->read(parse, value)) {
            return false;
        }
    }
    return true;
}

// ---- The whole body

// Bounds what the parser will build. Only strings can hide brackets and commas.
static bool scan(const char *body, size_t bytes, gpw_api_error_t *error)
{
    uint32_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = body[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        depth += c == '[' || c == '{';
        depth -= (c == ']' || c == '}') && depth > 0;
        values += c == ',' || c == '[' || c == '{' || c == ':';
        if (depth > GPW_API_JSON_DEPTH_MAX || values > GPW_API_JSON_VALUES_MAX) {
            gpw_api_error_set(
                error, (gpw_api_fault_t){400, "invalid_json", NULL},
                "the body is nested deeper than %u levels or holds more than %u values: "
                "send a plainer body",
                GPW_API_JSON_DEPTH_MAX, GPW_API_JSON_VALUES_MAX);
            return false;
        }
    }
    return true;
}

static json_t *parse_json(const char *body, size_t bytes, gpw_api_error_t *error)
{
    if (bytes == 0) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_json", NULL},
                          "the body is empty: send a JSON object");
        return NULL;
    }
    if (!scan(body, bytes, error)) {
        return NULL;
    }
    json_error_t why;
    json_t *json = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!json) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_json", NULL},
                          "the body is not valid JSON: line %d, column %d: %s", why.line,
                          why.column, why.text);
        if (!gpw_utf8_valid(error->message, strlen(error->message))) {
            gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_json", NULL},
                              "the body is not valid JSON: line %d, column %d", why.line,
                              why.column);
        }
        return NULL;
    }
    if (!json_is_object(json)) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_json", NULL},
                          "the body must be a JSON object, {...}");
        json_decref(json);
        return NULL;
    }
    return json;
}

static void set_defaults(gpw_api_kind_t kind, gpw_api_request_t *request)
{
    memset(request, 0, sizeof(*request));
    request->kind = kind;
    request->max_tokens = kind == GPW_API_COMPLETION ? GPW_API_COMPLETION_MAX_TOKENS : 0;
    request->choose.temperature = 1;
    request->choose.top_p = 1;
    request->choices = 1;
    request->verify = GPW_VERIFY_FULL;
}

static bool check_whole(const gpw_api_request_t *request, const json_t *json,
                        gpw_api_error_t *error)
{
    bool chat = request->kind == GPW_API_CHAT;
    if (chat ? request->message_count == 0 : !request->prompt && request->token_count == 0) {
        const char *name = chat ? "messages" : "prompt";
        gpw_api_error_set(
            error, (gpw_api_fault_t){400, "missing_parameter", name}, "%s is missing: %s", name,
            chat ? "give the conversation as [{\"role\": \"user\", \"content\": \"...\"}]"
                 : "give a text, or an array of token ids");
        return false;
    }
    json_t *tops = json_object_get(json, "top_logprobs");
    if (chat && tops && !json_is_null(tops) && !request->want_logprobs) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_value", "top_logprobs"},
                          "top_logprobs needs logprobs: true; set it, or leave top_logprobs out");
        return false;
    }
    json_t *options = json_object_get(json, "stream_options");
    if (options && !json_is_null(options) && !request->stream) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_value", "stream_options"},
                          "stream_options needs stream: true; set it, or leave stream_options out");
        return false;
    }
    json_t *a = json_object_get(json, "max_tokens"),
           *b = json_object_get(json, "max_completion_tokens");
    if (json_is_integer(a) && json_is_integer(b) &&
        json_integer_value(a) != json_integer_value(b)) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_value", "max_tokens"},
                          "max_tokens and max_completion_tokens differ: give one of them");
        return false;
    }
    return true;
}

// An answer that is given has its own length, and there is one of it. False: the error is set.
static bool settle_continuation(gpw_api_request_t *request, const json_t *json,
                                gpw_api_error_t *error)
{
    static const char *const others[] = {"max_tokens", "max_completion_tokens", "stop"};
    const char *at_fault = request->continuation && request->choices > 1 ? "n" : NULL;
    for (size_t i = 0; request->continuation && i < sizeof(others) / sizeof(others[0]); i++) {
        const json_t *value = json_object_get(json, others[i]);
        at_fault = value && !json_is_null(value) ? others[i] : at_fault;
    }
    if (at_fault) {
        gpw_api_error_set(error, (gpw_api_fault_t){400, "invalid_value", at_fault},
                          "%s does not go with assay.continuation, which is the whole answer: "
                          "leave it out",
                          at_fault);
        return false;
    }
    if (request->continuation) {
        request->max_tokens = request->continuation_count;
        request->ignore_end = true;
    }
    return true;
}

bool gpw_api_parse(const gpw_api_body_t *body, const gpw_api_limits_t *limits,
                   gpw_api_request_t *request, gpw_api_error_t *error)
{
    memset(error, 0, sizeof(*error));
    set_defaults(body->kind, request);
    json_t *json = parse_json(body->bytes, body->count, error);
    if (!json) {
        return false;
    }
    request->json = json;
    gpw_api_parse_t parse = {.request = request, .error = error, .limits = limits};
    if (!gpw_api_read_object(&parse, json, gpw_api_fields, "") ||
        !check_whole(request, json, error) || !settle_continuation(request, json, error)) {
        AS_ASSERT(error->code != 0);
        gpw_api_request_fini(request);
        return false;
    }
    return true;
}

void gpw_api_request_fini(gpw_api_request_t *request)
{
    as_mem_free(request->tokens);
    as_mem_free(request->continuation);
    as_mem_free(request->messages);
    json_decref(request->json);
    memset(request, 0, sizeof(*request));
}
