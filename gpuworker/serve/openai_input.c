// SPDX-License-Identifier: Apache-2.0
// The parameters that carry text: prompt, messages, stop.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/serve/openai_parse.h"

#define ROLE_COUNT 4

static bool out_of_memory(gpw_api_parse_t *parse)
{
    gpw_api_error_set(parse->error, (gpw_api_fault_t){503, "out_of_memory", parse->path},
                      "out of memory while reading %s: try again later, or send less", parse->path);
    return false;
}

// ---- prompt

// *tokens_p is the request's to free, also where this fails.
static bool read_tokens(gpw_api_parse_t *parse, const json_t *array, int32_t **tokens_p,
                        uint32_t *count_p)
{
    size_t count = json_array_size(array);
    char name[sizeof(parse->path)];
    memcpy(name, parse->path, sizeof(name));
    if (count > parse->limits->context_max) {
        gpw_api_error_set(parse->error, (gpw_api_fault_t){400, "context_length_exceeded", name},
                          "%s has %zu tokens, but the context holds %u: shorten it", name, count,
                          parse->limits->context_max);
        return false;
    }
    int32_t *tokens = as_mem_zalloc(count, sizeof(*tokens));
    if (!tokens) {
        return out_of_memory(parse);
    }
    *tokens_p = tokens;
    for (size_t i = 0; i < count; i++) {
        int64_t number;
        snprintf(parse->path, sizeof(parse->path), "%.40s[%zu]", name, i);
        if (!gpw_api_read_int(parse, json_array_get(array, i), 0, parse->limits->vocab - 1,
                              &number)) {
            return false;
        }
        tokens[i] = (int32_t)number;
    }
    *count_p = (uint32_t)count;
    return true;
}

bool gpw_api_read_prompt(gpw_api_parse_t *parse, json_t *value)
{
    static const char what[] =
        "a text that is not empty, an array of one such text, or an array of token ids";
    if (json_is_array(value) && json_array_size(value) == 1 &&
        !json_is_integer(json_array_get(value, 0))) {
        value = json_array_get(value, 0); // a batch of one
    } else if (json_is_array(value) && json_array_size(value) > 1 &&
               !json_is_integer(json_array_get(value, 0))) {
        return gpw_api_unsupported(
            parse, "an array holds one prompt here; send the others in requests of their own");
    }
    if (json_is_string(value) && json_string_length(value) > 0) {
        parse->request->prompt = json_string_value(value);
        return true;
    }
    if (json_is_array(value) && json_is_integer(json_array_get(value, 0))) {
        return read_tokens(parse, value, &parse->request->tokens, &parse->request->token_count);
    }
    return gpw_api_wrong(parse, what, value);
}

bool gpw_api_read_continuation(gpw_api_parse_t *parse, json_t *value)
{
    gpw_api_request_t *request = parse->request;
    if (json_array_size(value) == 0) {
        return gpw_api_wrong(
            parse, "an array of token ids (/v1/completions/tokenize gives those of a text)", value);
    }
    return read_tokens(parse, value, &request->continuation, &request->continuation_count);
}

// ---- messages

// Joins [{"type": "text", "text": "..."}] and puts the text in the place of the parts.
static const char *join_parts(gpw_api_parse_t *parse, json_t *message, const json_t *parts)
{
    char at[sizeof(parse->path)];
    memcpy(at, parse->path, sizeof(at));
    gpw_string_t joined = {0};
    as_status_t status = gpw_string_append(&joined, "", 0);
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        snprintf(parse->path, sizeof(parse->path), "%.40s[%zu]", at, i);
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text) ||
            json_object_size(part) != 2) {
            gpw_string_fini(&joined);
            gpw_api_wrong(
                parse, "a part such as {\"type\": \"text\", \"text\": \"...\"}: only text is taken",
                part);
            return NULL;
        }
        if (status == AS_OK) {
            status = gpw_string_append(&joined, json_string_value(text), json_string_length(text));
        }
    }
    json_t *string = status == AS_OK ? json_stringn(joined.bytes, joined.count) : NULL;
    gpw_string_fini(&joined);
    if (!string || json_object_set_new(message, "content", string) != 0) {
        out_of_memory(parse);
        return NULL;
    }
    return json_string_value(string);
}

static const char *read_role(gpw_api_parse_t *parse, const json_t *value)
{
    static const char *const names[ROLE_COUNT][2] = {{"system", "system"},
                                                     {"developer", "system"},
                                                     {"user", "user"},
                                                     {"assistant", "assistant"}};
    const char *role = json_string_value(value);
    for (int i = 0; role && i < ROLE_COUNT; i++) {
        if (strcmp(role, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    gpw_api_wrong(parse, "\"system\", \"developer\", \"user\" or \"assistant\"", value);
    return NULL;
}

// What an assistant's message may carry besides: clients send back what they were given, most of it
// null.
static bool check_others(gpw_api_parse_t *parse, const json_t *message, size_t index)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)message, name, value)
    {
        bool empty = json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
        if (strcmp(name, "role") == 0 || strcmp(name, "content") == 0 || empty) {
            continue;
        }
        snprintf(parse->path, sizeof(parse->path), "messages[%zu].%.30s", index, name);
        if (!gpw_utf8_valid(parse->path, strlen(parse->path))) {
            snprintf(parse->path, sizeof(parse->path), "messages[%zu]", index);
        }
        return gpw_api_unsupported(
            parse, "a message has a role and a content; write the rest into the content");
    }
    return true;
}

static bool read_message(gpw_api_parse_t *parse, json_t *message, size_t index)
{
    gpw_chat_message_t *out = &parse->request->messages[index];
    snprintf(parse->path, sizeof(parse->path), "messages[%zu]", index);
    if (!json_is_object(message)) {
        return gpw_api_wrong(parse, "an object such as {\"role\": \"user\", \"content\": \"...\"}",
                             message);
    }
    snprintf(parse->path, sizeof(parse->path), "messages[%zu].role", index);
    out->role = read_role(parse, json_object_get(message, "role"));
    if (!out->role) {
        return false;
    }
    json_t *content = json_object_get(message, "content");
    snprintf(parse->path, sizeof(parse->path), "messages[%zu].content", index);
    if (json_is_array(content) && json_array_size(content) > 0) {
        out->content = join_parts(parse, message, content);
        return out->content && check_others(parse, message, index);
    }
    if (!json_is_string(content)) {
        return gpw_api_wrong(parse, "a text or an array of text parts", content);
    }
    out->content = json_string_value(content);
    return check_others(parse, message, index);
}

bool gpw_api_read_messages(gpw_api_parse_t *parse, json_t *value)
{
    size_t count = json_array_size(value);
    if (count == 0 || count > GPW_API_MESSAGES_MAX) {
        char what[64];
        snprintf(what, sizeof(what), "an array of 1 to %u messages", GPW_API_MESSAGES_MAX);
        return gpw_api_wrong(parse, what, value);
    }
    parse->request->messages = as_mem_zalloc(count, sizeof(*parse->request->messages));
    if (!parse->request->messages) {
        return out_of_memory(parse);
    }
    for (size_t i = 0; i < count; i++) {
        if (!read_message(parse, json_array_get(value, i), i)) {
            return false;
        }
    }
    parse->request->message_count = (uint32_t)count;
    return true;
}

// ---- stop

bool gpw_api_read_stop(gpw_api_parse_t *parse, json_t *value)
{
    gpw_api_request_t *request = parse->request;
    if (json_is_string(value)) {
        request->stop_count = 1;
        return gpw_api_read_string(parse, value, GPW_STOP_BYTES_MAX, &request->stops[0]);
    }
    if (!json_is_array(value) || json_array_size(value) > GPW_STOPS_MAX) {
        char what[64];
        snprintf(what, sizeof(what), "a text, or an array of up to %u texts", GPW_STOPS_MAX);
        return gpw_api_wrong(parse, what, value);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        snprintf(parse->path, sizeof(parse->path), "stop[%zu]", i);
        if (!gpw_api_read_string(parse, json_array_get(value, i), GPW_STOP_BYTES_MAX,
                                 &request->stops[i])) {
            return false;
        }
    }
    request->stop_count = (uint32_t)json_array_size(value);
    return true;
}
