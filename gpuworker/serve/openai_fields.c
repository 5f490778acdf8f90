// SPDX-License-Identifier: Apache-2.0
// The table of parameters, one row and one small reader each.
//
// Parameters of features that are not offered have rows too: they are accepted at the value at
// which they do nothing (clients send such values by themselves) and refused at any other.
#include <string.h>

#include "common/assert.h"
#include "gpuworker/serve/openai_parse.h"

// ---- What is generated

static bool read_model(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_string(parse, value, 512, &parse->request->model);
}

static bool read_max_tokens(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 1, parse->limits->context_max, &number)) {
        return false;
    }
    parse->request->max_tokens = (uint32_t)number;
    return true;
}

static bool read_choices(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 1, GPW_API_CHOICES_MAX, &number)) {
        return false;
    }
    parse->request->choices = (uint32_t)number;
    return true;
}

// ---- How a token is chosen

static bool read_temperature(gpw_api_parse_t *parse, json_t *value)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0 && number <= 2)) {
        return gpw_api_wrong(parse, "a number from 0 (greedy) to 2", value);
    }
    parse->request->choose.temperature = (float)number;
    return true;
}

static bool read_top_p(gpw_api_parse_t *parse, json_t *value)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !((float)number > 0 && number <= 1)) {
        return gpw_api_wrong(parse, "a number above 0 and up to 1 (off)", value);
    }
    parse->request->choose.top_p = (float)number;
    return true;
}

static bool read_top_k(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, -1, parse->limits->vocab, &number)) {
        return false;
    }
    parse->request->choose.top_k = number < 0 ? 0 : (uint32_t)number; // both mean: off
    return true;
}

static bool read_seed(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, INT64_MIN, INT64_MAX, &number)) {
        return false;
    }
    parse->request->choose.seed = (uint64_t)number;
    parse->request->seed_set = true;
    return true;
}

// ---- What is told of it

static bool read_stream(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->stream);
}

static bool read_include_usage(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->include_usage);
}

static bool read_include_queue(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->include_queue);
}

static bool read_obfuscation(gpw_api_parse_t *parse, json_t *value)
{
    return json_is_false(value) || gpw_api_unsupported(parse, "leave it out, or set it to false");
}

static const gpw_api_field_t stream_fields[] = {
    {"include_usage", GPW_API_IN_BOTH, read_include_usage},
    {"include_queue", GPW_API_IN_BOTH, read_include_queue},
    {"include_obfuscation", GPW_API_IN_BOTH, read_obfuscation},
    {NULL, 0, NULL},
};

static bool read_stream_options(gpw_api_parse_t *parse, json_t *value)
{
    if (!json_is_object(value)) {
        return gpw_api_wrong(parse, "an object such as {\"include_usage\": true}", value);
    }
    return gpw_api_read_object(parse, value, stream_fields, "stream_options.");
}

static bool read_logprobs_count(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 0, GPW_LOGPROBS_MAX, &number)) {
        return false;
    }
    parse->request->want_logprobs = true;
    parse->request->logprobs = (uint32_t)number;
    return true;
}

static bool read_logprobs_flag(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->want_logprobs);
}

static bool read_top_logprobs(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 0, GPW_LOGPROBS_MAX, &number)) {
        return false;
    }
    parse->request->logprobs = (uint32_t)number;
    return true;
}

// ---- Extensions

static bool read_salt(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_string(parse, value, GPW_API_SALT_BYTES_MAX, &parse->request->cache_salt);
}

static bool read_verify(gpw_api_parse_t *parse, json_t *value)
{
    const char *text = json_string_value(value);
    if (!text || (strcmp(text, "full") != 0 && strcmp(text, "off") != 0)) {
        return gpw_api_wrong(parse, "\"full\" or \"off\"", value);
    }
    parse->request->verify = strcmp(text, "off") == 0 ? GPW_VERIFY_OFF : GPW_VERIFY_FULL;
    return true;
}

static bool read_compressor(gpw_api_parse_t *parse, json_t *value)
{
    const char *text = json_string_value(value);
    char what[400] = "one of \"none\"";
    bool known = text && strcmp(text, "none") == 0;
    for (const char *const *name = parse->limits->compressors; *name; name++) {
        known |= text && strcmp(text, *name) == 0;
        size_t used = strlen(what);
        if (strcmp(*name, "none") != 0) {
            snprintf(what + used, sizeof(what) - used, ", \"%s\"", *name);
        }
    }
    parse->request->compressor = text;
    return known || gpw_api_wrong(parse, what, value);
}

static bool read_horizon(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 0, GPW_HORIZON_MAX, &number)) {
        return false;
    }
    parse->request->horizon = (uint32_t)number;
    parse->request->horizon_set = true;
    return true;
}

static bool read_prompt_lookup(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 0, GPW_LOOKUP_MAX, &number)) {
        return false;
    }
    parse->request->prompt_lookup = (uint32_t)number;
    parse->request->prompt_lookup_set = true;
    return true;
}

static bool read_logits_hash(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->logits_hash);
}

static bool read_ignore_end(gpw_api_parse_t *parse, json_t *value)
{
    return gpw_api_read_bool(parse, value, &parse->request->ignore_end);
}

static bool read_deadline(gpw_api_parse_t *parse, json_t *value)
{
    int64_t number;
    if (!gpw_api_read_int(parse, value, 1, GPW_API_DEADLINE_MS_MAX, &number)) {
        return false;
    }
    parse->request->deadline_us = (uint64_t)number * 1000;
    return true;
}

static const gpw_api_field_t assay_fields[] = {
    {"verify", GPW_API_IN_BOTH, read_verify},
    {"compressor", GPW_API_IN_BOTH, read_compressor},
    {"horizon", GPW_API_IN_BOTH, read_horizon},
    {"prompt_lookup", GPW_API_IN_BOTH, read_prompt_lookup},
    {"continuation", GPW_API_IN_BOTH, gpw_api_read_continuation},
    {"logits_hash", GPW_API_IN_BOTH, read_logits_hash},
    {"ignore_end", GPW_API_IN_BOTH, read_ignore_end},
    {"deadline_ms", GPW_API_IN_BOTH, read_deadline},
    {NULL, 0, NULL},
};

static bool read_assay(gpw_api_parse_t *parse, json_t *value)
{
    if (!json_is_object(value)) {
        return gpw_api_wrong(parse, "an object such as {\"compressor\": \"kivi4\"}", value);
    }
    return gpw_api_read_object(parse, value, assay_fields, "assay.");
}

// ---- Features that are not offered

static bool read_echo(gpw_api_parse_t *parse, json_t *value)
{
    return json_is_false(value) ||
           gpw_api_unsupported(parse,
                               "leave it out, and put the prompt before the answer yourself");
}

static bool read_best_of(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_integer(value) && json_integer_value(value) == 1) ||
           gpw_api_unsupported(parse, "leave it out, ask for n choices and take the best");
}

static bool read_suffix(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_string(value) && json_string_length(value) == 0) ||
           gpw_api_unsupported(parse, "leave it out; the model only continues a text");
}

static bool read_penalty(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_number(value) && json_number_value(value) == 0) ||
           gpw_api_unsupported(parse, "leave it out, or set it to 0");
}

static bool read_bias(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_object(value) && json_object_size(value) == 0) ||
           gpw_api_unsupported(parse, "leave it out; use temperature, top_p and top_k");
}

static bool read_tools(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_array(value) && json_array_size(value) == 0) ||
           gpw_api_unsupported(parse, "leave it out, and describe the tools in a message");
}

static bool read_tool_choice(gpw_api_parse_t *parse, json_t *value)
{
    const char *text = json_string_value(value);
    return (text && (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0)) ||
           gpw_api_unsupported(parse, "leave it out, and describe the tools in a message");
}

static bool read_parallel_tools(gpw_api_parse_t *parse, json_t *value)
{
    bool ignored;
    return gpw_api_read_bool(parse, value, &ignored); // there are no tools to call
}

static bool read_response_format(gpw_api_parse_t *parse, json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    return (type && strcmp(type, "text") == 0 && json_object_size(value) == 1) ||
           gpw_api_unsupported(
               parse,
               "leave it out, and ask for JSON in a message; only {\"type\": \"text\"} is offered");
}

static bool read_modalities(gpw_api_parse_t *parse, json_t *value)
{
    const char *first = json_string_value(json_array_get(value, 0));
    return (first && strcmp(first, "text") == 0 && json_array_size(value) == 1) ||
           gpw_api_unsupported(parse, "leave it out; only [\"text\"] is offered");
}

static bool read_service_tier(gpw_api_parse_t *parse, json_t *value)
{
    const char *text = json_string_value(value);
    return (text && (strcmp(text, "auto") == 0 || strcmp(text, "default") == 0)) ||
           gpw_api_unsupported(parse, "leave it out; there is one tier");
}

static bool read_store(gpw_api_parse_t *parse, json_t *value)
{
    return json_is_false(value) || gpw_api_unsupported(parse, "leave it out; answers are not kept");
}

// Names whom the request is for, and changes nothing in the answer.
static bool read_user(gpw_api_parse_t *parse, json_t *value)
{
    const char *ignored;
    return gpw_api_read_string(parse, value, 512, &ignored);
}

static bool read_metadata(gpw_api_parse_t *parse, json_t *value)
{
    return (json_is_object(value) && json_object_size(value) == 0) ||
           gpw_api_unsupported(parse, "leave it out; answers are not kept");
}

static bool read_never(gpw_api_parse_t *parse, json_t *value)
{
    (void)value;
    return gpw_api_unsupported(parse, "leave it out; this server writes text from text only");
}

const gpw_api_field_t gpw_api_fields[] = {
    {"model", GPW_API_IN_BOTH, read_model},
    {"prompt", GPW_API_IN_COMPLETION, gpw_api_read_prompt},
    {"messages", GPW_API_IN_CHAT, gpw_api_read_messages},
    {"max_tokens", GPW_API_IN_BOTH, read_max_tokens},
    {"max_completion_tokens", GPW_API_IN_CHAT, read_max_tokens},
    {"temperature", GPW_API_IN_BOTH, read_temperature},
    {"top_p", GPW_API_IN_BOTH, read_top_p},
    {"top_k", GPW_API_IN_BOTH, read_top_k},
    {"seed", GPW_API_IN_BOTH, read_seed},
    {"stop", GPW_API_IN_BOTH, gpw_api_read_stop},
    {"n", GPW_API_IN_BOTH, read_choices},
    {"stream", GPW_API_IN_BOTH, read_stream},
    {"stream_options", GPW_API_IN_BOTH, read_stream_options},
    {"logprobs", GPW_API_IN_COMPLETION, read_logprobs_count},
    {"logprobs", GPW_API_IN_CHAT, read_logprobs_flag},
    {"top_logprobs", GPW_API_IN_CHAT, read_top_logprobs},
    {"cache_salt", GPW_API_IN_BOTH, read_salt},
    {"assay", GPW_API_IN_BOTH, read_assay},
    {"user", GPW_API_IN_BOTH, read_user},
    {"echo", GPW_API_IN_COMPLETION, read_echo},
    {"best_of", GPW_API_IN_COMPLETION, read_best_of},
    {"suffix", GPW_API_IN_COMPLETION, read_suffix},
    {"frequency_penalty", GPW_API_IN_BOTH, read_penalty},
    {"presence_penalty", GPW_API_IN_BOTH, read_penalty},
    {"logit_bias", GPW_API_IN_BOTH, read_bias},
    {"tools", GPW_API_IN_CHAT, read_tools},
    {"tool_choice", GPW_API_IN_CHAT, read_tool_choice},
    {"parallel_tool_calls", GPW_API_IN_CHAT, read_parallel_tools},
    {"functions", GPW_API_IN_CHAT, read_tools},
    {"function_call", GPW_API_IN_CHAT, read_tool_choice},
    {"response_format", GPW_API_IN_CHAT, read_response_format},
    {"modalities", GPW_API_IN_CHAT, read_modalities},
    {"audio", GPW_API_IN_CHAT, read_never},
    {"prediction", GPW_API_IN_CHAT, read_never},
    {"web_search_options", GPW_API_IN_CHAT, read_never},
    {"reasoning_effort", GPW_API_IN_CHAT, read_never},
    {"service_tier", GPW_API_IN_CHAT, read_service_tier},
    {"store", GPW_API_IN_CHAT, read_store},
    {"metadata", GPW_API_IN_CHAT, read_metadata},
    {NULL, 0, NULL},
};
