// SPDX-License-Identifier: Apache-2.0
// Answers as JSON, in the forms of OpenAI's API. Extensions are in members named `assay`.
#include <string.h>

#include "gpuworker/serve/serve_internal.h"

static json_t *real_or_null(bool there, double value)
{
    return there ? json_real(value) : json_null();
}

json_t *gpw_reply_error(const gpw_api_error_t *error)
{
    return json_pack(
        "{s:{s:s, s:s, s:o, s:s?}}", "error", "message", error->message, "type", error->type,
        "param", error->param[0] ? json_string(error->param) : json_null(), "code", error->reason);
}

int gpw_reply_code(as_status_t status)
{
    switch (status) {
    case AS_ERR_INVALID:
    case AS_ERR_LIMIT:
    case AS_ERR_UNSUPPORTED:
        return 400;
    case AS_ERR_BUSY:
        return 429;
    case AS_ERR_DEADLINE:
        return 504;
    case AS_ERR_CANCELLED:
    case AS_ERR_NO_MEMORY:
        return 503;
    default:
        return 500;
    }
}

json_t *gpw_reply_tokens(const gpw_generation_t *generation, const int32_t *tokens,
                         size_t token_count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < token_count; i++) {
        if (json_array_append_new(array, json_integer(tokens[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return json_pack("{s:I, s:I, s:o}", "count", (json_int_t)token_count, "max_model_len",
                     (json_int_t)generation->serve->limits.context_max, "tokens", array);
}

// ---- Usage

static void add_usage(gpw_usage_t *sum, const gpw_choice_t *choice)
{
    const gpw_usage_t *usage = &choice->usage;
    sum->prompt_tokens = usage->prompt_tokens; // one prompt, however many choices
    sum->cached_tokens =
        usage->cached_tokens > sum->cached_tokens ? usage->cached_tokens : sum->cached_tokens;
    sum->completion_tokens += choice->token_count;
    sum->drafted_tokens += usage->drafted_tokens;
    sum->accepted_tokens += usage->accepted_tokens;
    sum->proposed_tokens += usage->proposed_tokens;
    sum->proposals_accepted += usage->proposals_accepted;
    sum->model_proposed_tokens += usage->model_proposed_tokens;
    sum->model_proposals_accepted += usage->model_proposals_accepted;
    sum->verifications += usage->verifications;
    sum->fetched_bytes += usage->fetched_bytes;
    sum->swapped_bytes += usage->swapped_bytes;
    sum->pushed_bytes += usage->pushed_bytes;
    sum->pushed_verifications += usage->pushed_verifications;
    sum->published_bytes += usage->published_bytes;
    sum->resident_bytes += usage->resident_bytes;
    sum->full_bytes += usage->full_bytes;
    sum->recomputed_blocks += usage->recomputed_blocks;
    sum->chosen_blocks += usage->chosen_blocks;
    sum->queue_us = usage->queue_us > sum->queue_us ? usage->queue_us : sum->queue_us;
    bool first = choice->index == 0 || usage->first_token_us < sum->first_token_us;
    sum->first_token_us = first ? usage->first_token_us : sum->first_token_us;
    sum->total_us = usage->total_us > sum->total_us ? usage->total_us : sum->total_us;
}

static json_t *assay_usage(const gpw_usage_t *sum)
{
    double run = sum->verifications ? (double)sum->accepted_tokens / sum->verifications : 0;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:f, s:f, "
        "s:f}",
        "drafted_tokens", (json_int_t)sum->drafted_tokens, "accepted_tokens",
        (json_int_t)sum->accepted_tokens, "proposed_tokens", (json_int_t)sum->proposed_tokens,
        "proposals_accepted", (json_int_t)sum->proposals_accepted, "model_proposed_tokens",
        (json_int_t)sum->model_proposed_tokens, "model_proposals_accepted",
        (json_int_t)sum->model_proposals_accepted, "verifications", (json_int_t)sum->verifications,
        "mean_accepted_run", real_or_null(sum->verifications > 0, run), "fetched_bytes",
        (json_int_t)sum->fetched_bytes, "swapped_bytes", (json_int_t)sum->swapped_bytes,
        "pushed_bytes", (json_int_t)sum->pushed_bytes, "pushed_verifications",
        (json_int_t)sum->pushed_verifications, "published_bytes", (json_int_t)sum->published_bytes,
        "resident_bytes", (json_int_t)sum->resident_bytes, "full_bytes",
        (json_int_t)sum->full_bytes, "recomputed_blocks", (json_int_t)sum->recomputed_blocks,
        "recompute_chosen_blocks", (json_int_t)sum->chosen_blocks, "queue_ms",
        (double)sum->queue_us / 1e3, "first_token_ms", (double)sum->first_token_us / 1e3,
        "total_ms", (double)sum->total_us / 1e3);
}

static json_t *reply_usage(const gpw_generation_t *generation)
{
    gpw_usage_t sum = {0};
    for (uint32_t i = 0; i < generation->request.choices; i++) {
        add_usage(&sum, &generation->choices[i]);
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:o}", "prompt_tokens",
                     (json_int_t)sum.prompt_tokens, "completion_tokens",
                     (json_int_t)sum.completion_tokens, "total_tokens",
                     (json_int_t)sum.prompt_tokens + sum.completion_tokens, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)sum.cached_tokens, "assay", assay_usage(&sum));
}

// ---- Choices

static json_t *finish_reason(const gpw_choice_t *choice)
{
    bool stop = choice->text.stopped || choice->finish == GPW_FINISH_STOP;
    return json_string(stop ? "stop" : "length");
}

// Columns, one row a token: the form of /v1/completions.
static json_t *completion_logprobs(const gpw_choice_t *choice)
{
    static const char *const names[][2] = {{"tokens", "token"},
                                           {"token_logprobs", "logprob"},
                                           {"top_logprobs", "top"},
                                           {"text_offset", "offset"}};
    json_t *columns = json_object();
    for (size_t column = 0; column < sizeof(names) / sizeof(names[0]); column++) {
        json_t *array = json_array();
        for (size_t i = 0; i < json_array_size(choice->logprobs); i++) {
            json_array_append(
                array, json_object_get(json_array_get(choice->logprobs, i), names[column][1]));
        }
        json_object_set_new(columns, names[column][0], array);
    }
    return columns;
}

static json_t *reply_logprobs(const gpw_choice_t *choice)
{
    const gpw_api_request_t *request = &choice->generation->request;
    if (!request->want_logprobs) {
        return json_null();
    }
    if (request->kind == GPW_API_COMPLETION) {
        return completion_logprobs(choice);
    }
    // A copy: the choice's array is emptied once this is sent.
    return json_pack("{s:o, s:n}", "content", json_copy(choice->logprobs), "refusal");
}

// What the choice was drafted on, and why, where the worker chose it.
static void add_compressor(json_t *assay, const gpw_usage_t *usage)
{
    if (usage->compressor) {
        json_object_set_new(assay, "compressor", json_string(usage->compressor));
    }
    if (usage->chosen[0]) {
        json_object_set_new(assay, "chosen", json_string(usage->chosen));
    }
}

// What both forms of a choice have in common. `finished`: the reason, else null.
static json_t *reply_choice(const gpw_choice_t *choice, bool finished)
{
    json_t *object = json_object();
    json_object_set_new(object, "index", json_integer(choice->index));
    json_object_set_new(object, "logprobs", reply_logprobs(choice));
    json_object_set_new(object, "finish_reason", finished ? finish_reason(choice) : json_null());
    json_t *assay = json_object();
    if (choice->generation->request.logits_hash) {
        json_object_set_new(assay, "tokens", json_copy(choice->token_ids));
        json_object_set_new(assay, "logits_hashes", json_copy(choice->hashes));
    }
    if (finished) {
        add_compressor(assay, &choice->usage);
    }
    if (json_object_size(assay) > 0) {
        json_object_set(object, "assay", assay);
    }
    json_decref(assay);
    return object;
}

static json_t *reply_head(const gpw_generation_t *generation, const char *object)
{
    char hex[65], fingerprint[16];
    as_key_hex(&generation->serve->options.model->fingerprint, hex);
    snprintf(fingerprint, sizeof(fingerprint), "fp_%.10s", hex);
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", generation->id, "object", object, "created",
                     (json_int_t)generation->created_s, "model",
                     generation->serve->options.model_name, "system_fingerprint", fingerprint);
}

json_t *gpw_reply_whole(const gpw_generation_t *generation)
{
    bool chat = generation->request.kind == GPW_API_CHAT;
    json_t *reply = reply_head(generation, chat ? "chat.completion" : "text_completion");
    json_t *choices = json_array();
    for (uint32_t i = 0; i < generation->request.choices; i++) {
        const gpw_choice_t *choice = &generation->choices[i];
        json_t *object = reply_choice(choice, true);
        json_t *text = json_stringn(choice->shown.bytes, choice->shown.count);
        if (chat) {
            json_object_set_new(
                object, "message",
                json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal"));
        } else {
            json_object_set_new(object, "text", text);
        }
        json_array_append_new(choices, object);
    }
    json_object_set_new(reply, "choices", choices);
    json_object_set_new(reply, "usage", reply_usage(generation));
    return reply;
}

// ---- Chunks of a stream

static json_t *chunk_of(const gpw_generation_t *generation, json_t *choice)
{
    bool chat = generation->request.kind == GPW_API_CHAT;
    json_t *reply = reply_head(generation, chat ? "chat.completion.chunk" : "text_completion");
    json_t *choices = json_array();
    if (choice) {
        json_array_append_new(choices, choice);
    }
    json_object_set_new(reply, "choices", choices);
    if (generation->request.include_usage) {
        json_object_set_new(reply, "usage", choice ? json_null() : reply_usage(generation));
    }
    return reply;
}

json_t *gpw_reply_place(const gpw_generation_t *generation, const gpw_choice_t *choice,
                        uint32_t place)
{
    bool chat = generation->request.kind == GPW_API_CHAT;
    json_t *reply = reply_head(generation, chat ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(reply, "choices", json_array());
    json_object_set_new(
        reply, "assay",
        json_pack("{s:i, s:i}", "index", (int)choice->index, "queue_place", (int)place));
    if (generation->request.include_usage) {
        json_object_set_new(reply, "usage", json_null());
    }
    return reply;
}

json_t *gpw_reply_role(const gpw_generation_t *generation, const gpw_choice_t *choice)
{
    return chunk_of(generation,
                    json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", (int)choice->index, "delta",
                              "role", "assistant", "content", "", "logprobs", "finish_reason"));
}

json_t *gpw_reply_chunk(const gpw_generation_t *generation, const gpw_choice_t *choice, bool last)
{
    bool chat = generation->request.kind == GPW_API_CHAT;
    json_t *object = reply_choice(choice, last);
    json_t *text = json_stringn(choice->shown.bytes, choice->shown.count);
    if (chat && last) {
        json_decref(text);
        json_object_set_new(object, "delta", json_object());
    } else if (chat) {
        json_object_set_new(object, "delta", json_pack("{s:o}", "content", text));
    } else {
        json_object_set_new(object, "text", text);
    }
    return chunk_of(generation, object);
}

json_t *gpw_reply_usage_chunk(const gpw_generation_t *generation)
{
    return chunk_of(generation, NULL);
}

// ---- Models

json_t *gpw_reply_model(const gpw_serve_t *serve)
{
    const gpw_model_t *model = serve->options.model;
    json_t *compressors = json_array();
    const char *const *names = gpw_worker_compressors(serve->options.without);
    for (const char *const *name = names; *name; name++) {
        json_array_append_new(compressors, json_string(*name));
    }
    char hex[65];
    as_key_hex(&model->fingerprint, hex);
    return json_pack("{s:s, s:s, s:i, s:s, s:{s:I, s:I, s:s, s:o}}", "id",
                     serve->options.model_name, "object", "model", "created", 0, "owned_by",
                     "assay", "assay", "context_tokens", (json_int_t)serve->limits.context_max,
                     "vocabulary_tokens", (json_int_t)serve->limits.vocab, "fingerprint", hex,
                     "compressors", compressors);
}

json_t *gpw_reply_models(const gpw_serve_t *serve)
{
    return json_pack("{s:s, s:[o]}", "object", "list", "data", gpw_reply_model(serve));
}
