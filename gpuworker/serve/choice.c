// SPDX-License-Identifier: Apache-2.0
// One choice: verified tokens come in; text, log-probabilities, token ids and logits hashes to be
// sent come out.
//
// Log-probabilities follow their text: those of a token are let out with its first byte, and are
// dropped with it when a stop string ends the text before it.
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "gpuworker/serve/serve_internal.h"

as_status_t gpw_choice_init(gpw_choice_t *choice, gpw_generation_t *generation, uint32_t index)
{
    const gpw_api_request_t *request = &generation->request;
    memset(choice, 0, sizeof(*choice));
    choice->generation = generation;
    choice->index = index;
    gpw_text_init(&choice->text, request->stops, request->stop_count);
    choice->logprobs = json_array();
    choice->token_ids = json_array();
    choice->hashes = json_array();
    bool complete = choice->logprobs && choice->token_ids && choice->hashes;
    return complete ? gpw_string_append(&choice->shown, "", 0) : AS_ERR_NO_MEMORY;
}

void gpw_choice_fini(gpw_choice_t *choice)
{
    for (uint32_t i = 0; i < choice->entry_count; i++) {
        json_decref(choice->entries[i].json);
    }
    as_mem_free(choice->entries);
    json_decref(choice->logprobs);
    json_decref(choice->token_ids);
    json_decref(choice->hashes);
    gpw_string_fini(&choice->shown);
    gpw_text_fini(&choice->text);
}

// ---- Log-probabilities

// A token's bytes as a JSON string; what is not UTF-8 by itself is written as "bytes:\xe2\x82".
static json_t *token_string(const char *bytes, size_t count)
{
    char escaped[8 + 4 * GPW_TOKEN_BYTES_MAX];
    if (gpw_utf8_valid(bytes, count)) {
        return json_stringn(bytes, count);
    }
    size_t used = (size_t)snprintf(escaped, sizeof(escaped), "bytes:");
    for (size_t i = 0; i < count; i++) {
        used +=
            (size_t)snprintf(escaped + used, sizeof(escaped) - used, "\\x%02x", (uint8_t)bytes[i]);
    }
    return json_string(escaped);
}

// JSON has no infinity; OpenAI writes -9999 for a token of no probability.
static json_t *logprob_number(float logprob)
{
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

static size_t token_bytes(const gpw_choice_t *choice, int32_t token, bool special, char *bytes)
{
    const gpw_model_t *model = choice->generation->serve->options.model;
    size_t count =
        gpw_tokenizer_decode(model->tokenizer, token, special, bytes, GPW_TOKEN_BYTES_MAX);
    return count < GPW_TOKEN_BYTES_MAX ? count : GPW_TOKEN_BYTES_MAX;
}

static json_t *chat_logprob(const gpw_choice_t *choice, int32_t token, float logprob)
{
    char bytes[GPW_TOKEN_BYTES_MAX];
    size_t count = token_bytes(choice, token, true, bytes);
    json_t *object = json_object();
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(array, json_integer((uint8_t)bytes[i]));
    }
    json_object_set_new(object, "token", token_string(bytes, count));
    json_object_set_new(object, "logprob", logprob_number(logprob));
    json_object_set_new(object, "bytes", array);
    return object;
}

static json_t *chat_entry(const gpw_choice_t *choice, const gpw_token_event_t *event)
{
    json_t *entry = chat_logprob(choice, event->token, event->logprob);
    json_t *tops = json_array();
    for (uint32_t i = 0; i < event->top_count; i++) {
        json_array_append_new(tops,
                              chat_logprob(choice, event->top_tokens[i], event->top_logprobs[i]));
    }
    json_object_set_new(entry, "top_logprobs", tops);
    return entry;
}

// The alternatives as {token: logprob}, the chosen token always among them.
static json_t *completion_entry(const gpw_choice_t *choice, const gpw_token_event_t *event)
{
    char bytes[GPW_TOKEN_BYTES_MAX];
    json_t *entry = json_object(), *tops = json_object();
    for (uint32_t i = 0; i <= event->top_count; i++) {
        bool own = i == event->top_count;
        size_t count = token_bytes(choice, own ? event->token : event->top_tokens[i], true, bytes);
        json_t *name = token_string(bytes, count);
        if (name && !json_object_get(tops, json_string_value(name))) {
            json_object_set_new(tops, json_string_value(name),
                                logprob_number(own ? event->logprob : event->top_logprobs[i]));
        }
        if (own && name) {
            json_object_set(entry, "token", name);
        }
        json_decref(name);
    }
    json_object_set_new(entry, "logprob", logprob_number(event->logprob));
    json_object_set_new(entry, "top", tops);
    json_object_set_new(entry, "offset", json_integer((json_int_t)choice->arrived_characters));
    return entry;
}

static as_status_t hold_entry(gpw_choice_t *choice, const gpw_token_event_t *event, size_t bytes)
{
    if (choice->entry_count == choice->entry_capacity) {
        uint32_t capacity = choice->entry_capacity ? 2 * choice->entry_capacity : 16;
        gpw_entry_t *grown = as_mem_realloc(choice->entries, capacity * sizeof(*grown));
        if (!grown) {
            return AS_ERR_NO_MEMORY;
        }
        choice->entries = grown;
        choice->entry_capacity = capacity;
    }
    bool chat = choice->generation->request.kind == GPW_API_CHAT;
    json_t *json = chat ? chat_entry(choice, event) : completion_entry(choice, event);
    choice->entries[choice->entry_count++] =
        (gpw_entry_t){.start = choice->arrived_bytes, .bytes = bytes, .json = json};
    return json ? AS_OK : AS_ERR_NO_MEMORY;
}

// Lets out the entries of tokens of which a byte was shown (or that have none, and stand before
// what is held back).
static void release_entries(gpw_choice_t *choice)
{
    uint64_t shown = choice->text.shown_bytes;
    uint32_t count = 0;
    while (count < choice->entry_count) {
        const gpw_entry_t *entry = &choice->entries[count];
        bool visible = entry->start < shown ||
                       (entry->bytes == 0 && entry->start == shown && !choice->text.stopped);
        if (!visible) {
            break;
        }
        json_array_append_new(choice->logprobs, entry->json);
        count++;
    }
    choice->entry_count -= count;
    if (count > 0) {
        memmove(choice->entries, choice->entries + count,
                choice->entry_count * sizeof(*choice->entries));
    }
}

// ---- Tokens

static uint64_t character_count(const char *bytes, size_t count)
{
    uint64_t characters = 0;
    for (size_t i = 0; i < count; i++) {
        characters += ((uint8_t)bytes[i] & 0xc0) != 0x80;
    }
    return characters;
}

static void note_bits(gpw_choice_t *choice, const gpw_token_event_t *event)
{
    char hex[17];
    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)event->logits_hash);
    json_array_append_new(choice->token_ids, json_integer(event->token));
    json_array_append_new(choice->hashes, json_string(hex));
}

as_status_t gpw_choice_take(gpw_choice_t *choice, const gpw_token_event_t *event)
{
    const gpw_api_request_t *request = &choice->generation->request;
    const gpw_model_t *model = choice->generation->serve->options.model;
    choice->token_count++;
    if (request->logits_hash) {
        note_bits(choice, event);
    }
    if (!request->ignore_end && gpw_tokenizer_is_end(model->tokenizer, event->token)) {
        return AS_OK; // ends the text and is no part of it
    }
    char bytes[GPW_TOKEN_BYTES_MAX];
    size_t count = token_bytes(choice, event->token, false, bytes);
    as_status_t status = request->want_logprobs ? hold_entry(choice, event, count) : AS_OK;
    if (status != AS_OK) {
        return status;
    }
    choice->arrived_bytes += count;
    choice->arrived_characters += character_count(bytes, count);
    status = gpw_text_push(&choice->text, bytes, count, &choice->shown);
    release_entries(choice);
    return status;
}

as_status_t gpw_choice_finish(gpw_choice_t *choice)
{
    as_status_t status = AS_OK;
    if (!choice->text.stopped) {
        status = gpw_text_finish(&choice->text, &choice->shown);
    }
    release_entries(choice);
    return status;
}

bool gpw_choice_has_news(const gpw_choice_t *choice)
{
    return choice->shown.count > 0 || json_array_size(choice->logprobs) > 0 ||
           json_array_size(choice->token_ids) > 0;
}

void gpw_choice_sent(gpw_choice_t *choice)
{
    choice->shown.count = 0;
    choice->shown.bytes[0] = '\0';
    json_array_clear(choice->logprobs);
    json_array_clear(choice->token_ids);
    json_array_clear(choice->hashes);
}
