// SPDX-License-Identifier: Apache-2.0
// One generation over the API: the request, the stream of the answer, its usage.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/cli/cli.h"

typedef struct stream {
    const cli_ask_t *ask;
    cli_answer_t *answer;
    double begun_ms;
} stream_t;

double cli_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

// json_string refuses what is not UTF-8.
static bool is_utf8(const char *text)
{
    json_t *json = text ? json_string(text) : NULL;
    bool good = !text || json;
    json_decref(json);
    return good;
}

bool cli_check_ask(const cli_ask_t *ask)
{
    const struct {
        const char *name, *text;
    } texts[] = {{"the prompt", ask->prompt},
                 {"--system", ask->system},
                 {"--compressor", ask->compressor},
                 {"--cache-salt", ask->cache_salt}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (!is_utf8(texts[i].text)) {
            cli_complain("%s is not UTF-8", texts[i].name);
            return false;
        }
    }
    return true;
}

static json_t *message_of(const char *role, const char *content)
{
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

// False also where `value` could not be made; takes it in either case.
static bool put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

static bool put_prompt(json_t *body, const cli_ask_t *ask)
{
    if (ask->tokens) {
        return json_object_set(body, "prompt", ask->tokens) == 0;
    }
    if (!ask->chat) {
        return put(body, "prompt", json_string(ask->prompt));
    }
    json_t *messages = json_array();
    bool made =
        !ask->system || json_array_append_new(messages, message_of("system", ask->system)) == 0;
    made = made && json_array_append_new(messages, message_of("user", ask->prompt)) == 0;
    return put(body, "messages", messages) && made;
}

static bool put_assay(json_t *body, const cli_ask_t *ask)
{
    json_t *assay = json_object();
    bool made = true;
    if (ask->compressor) {
        made = put(assay, "compressor", json_string(ask->compressor)) && made;
    }
    if (ask->horizon >= 0) {
        made = put(assay, "horizon", json_integer(ask->horizon)) && made;
    }
    if (ask->prompt_lookup >= 0) {
        made = put(assay, "prompt_lookup", json_integer(ask->prompt_lookup)) && made;
    }
    if (ask->verify_off) {
        made = put(assay, "verify", json_string("off")) && made;
    }
    if (ask->bits) {
        made = put(assay, "logits_hash", json_true()) && made;
    }
    if (ask->ignore_end) {
        made = put(assay, "ignore_end", json_true()) && made;
    }
    if (ask->continuation) {
        made = json_object_set(assay, "continuation", ask->continuation) == 0 && made;
    }
    return put(body, "assay", assay) && made;
}

// NULL: a message was printed. A part that cannot be made never leaves a request without it.
static json_t *request_of(const cli_ask_t *ask)
{
    json_t *body = json_pack("{s:b, s:{s:b}, s:f, s:f, s:I}", "stream", 1, "stream_options",
                             "include_usage", 1, "temperature", ask->temperature, "top_p",
                             ask->top_p > 0 ? ask->top_p : 1.0, "seed", (json_int_t)ask->seed);
    bool made = put_prompt(body, ask) && put_assay(body, ask) &&
                put(body, ask->continuation ? "logprobs" : "max_tokens",
                    json_integer(ask->continuation ? 0 : (json_int_t)ask->max_tokens));
    if (made && ask->cache_salt) {
        made = put(body, "cache_salt", json_string(ask->cache_salt));
    }
    if (!made) {
        json_decref(body);
        body = NULL;
        if (cli_check_ask(ask)) {
            cli_complain("out of memory");
        }
    }
    return body;
}

static bool take_bits(cli_answer_t *answer, const json_t *bits)
{
    const json_t *tokens = json_object_get(bits, "tokens"),
                 *hashes = json_object_get(bits, "logits_hashes");
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        char line[64];
        const char *hash = json_string_value(json_array_get(hashes, i));
        int length =
            snprintf(line, sizeof(line), "%lld %.20s\n",
                     (long long)json_integer_value(json_array_get(tokens, i)), hash ? hash : "?");
        if (!cli_text_append(&answer->bits, line, (size_t)length)) {
            return false;
        }
        answer->bit_count++;
    }
    return !tokens || json_array_extend(answer->tokens, (json_t *)(uintptr_t)tokens) == 0;
}

// The first token follows the prompt's own computation, whatever is drafted on.
static void take_logprobs(cli_answer_t *answer, const json_t *logprobs)
{
    const json_t *values = json_object_get(logprobs, "token_logprobs");
    for (size_t i = 0; i < json_array_size(values); i++) {
        double logprob = json_number_value(json_array_get(values, i));
        answer->nats -= answer->logprob_count++ > 0 ? logprob : 0;
    }
}

static bool take_text(stream_t *stream, const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *text =
        stream->ask->chat ? json_object_get(delta, "content") : json_object_get(choice, "text");
    size_t count = json_string_length(text);
    if (count == 0) {
        return true;
    }
    if (stream->ask->echo) {
        fwrite(json_string_value(text), 1, count, stream->ask->echo);
        fflush(stream->ask->echo);
    }
    return cli_text_append(&stream->answer->text, json_string_value(text), count);
}

static bool on_event(void *ctx, json_t *event)
{
    stream_t *stream = ctx;
    cli_answer_t *answer = stream->answer;
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    json_t *usage = json_object_get(event, "usage");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (choice && answer->first_token_ms == 0 &&
        !json_object_get(json_object_get(choice, "delta"), "role")) {
        answer->first_token_ms = cli_now_ms() - stream->begun_ms;
    }
    if (json_is_object(usage)) {
        json_decref(answer->usage);
        answer->usage = json_incref(usage);
    }
    if (finish) {
        snprintf(answer->finish, sizeof(answer->finish), "%s", finish);
        json_decref(answer->drafted_on);
        answer->drafted_on = json_incref(json_object_get(choice, "assay"));
    }
    take_logprobs(answer, json_object_get(choice, "logprobs"));
    if (!take_text(stream, choice) || !take_bits(answer, json_object_get(choice, "assay"))) {
        cli_complain("out of memory");
        return false;
    }
    return true;
}

bool cli_ask(const cli_ask_t *ask, cli_answer_t *answer)
{
    char url[CLI_PATH_BYTES];
    memset(answer, 0, sizeof(*answer));
    answer->tokens = json_array();
    if (!answer->tokens || !cli_text_append(&answer->text, "", 0) ||
        !cli_text_append(&answer->bits, "", 0)) {
        cli_complain("out of memory");
        return false;
    }
    snprintf(url, sizeof(url), "%s/v1/%s", ask->url,
             ask->chat ? "chat/completions" : "completions");
    json_t *body = request_of(ask);
    stream_t stream = {.ask = ask, .answer = answer, .begun_ms = cli_now_ms()};
    bool done = body && cli_http_stream(url, body, on_event, &stream);
    answer->total_ms = cli_now_ms() - stream.begun_ms;
    json_decref(body);
    return done;
}

void cli_answer_fini(cli_answer_t *answer)
{
    cli_text_fini(&answer->text);
    cli_text_fini(&answer->bits);
    json_decref(answer->tokens);
    json_decref(answer->usage);
    json_decref(answer->drafted_on);
    memset(answer, 0, sizeof(*answer));
}

double cli_usage(const cli_answer_t *answer, const char *path)
{
    const json_t *at = answer->usage;
    char name[64];
    while (*path) {
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof(name), "%.*s", (int)length, path);
        at = json_object_get(at, name);
        path += length + (path[length] == '.');
    }
    return json_number_value(at);
}

void cli_print_usage(FILE *out, const cli_answer_t *answer)
{
    double tokens = cli_usage(answer, "completion_tokens");
    double decode_ms = answer->total_ms - answer->first_token_ms;
    fprintf(out, "prompt %.0f tokens, %.0f of them from stores; answer %.0f tokens",
            cli_usage(answer, "prompt_tokens"),
            cli_usage(answer, "prompt_tokens_details.cached_tokens"), tokens);
    fprintf(out, "; first token %s", cli_duration(answer->first_token_ms));
    if (tokens > 1 && decode_ms > 0) {
        fprintf(out, ", then %.1f tokens/s", (tokens - 1) * 1e3 / decode_ms);
    }
    double verifications = cli_usage(answer, "assay.verifications");
    if (verifications > 0) {
        fprintf(out, "; drafted %.0f, accepted %.0f in %.0f verifications",
                cli_usage(answer, "assay.drafted_tokens"),
                cli_usage(answer, "assay.accepted_tokens"), verifications);
    }
    fprintf(out, "; fetched %s, swapped %s; cache %s resident of %s\n",
            cli_bytes(cli_usage(answer, "assay.fetched_bytes")),
            cli_bytes(cli_usage(answer, "assay.swapped_bytes")),
            cli_bytes(cli_usage(answer, "assay.resident_bytes")),
            cli_bytes(cli_usage(answer, "assay.full_bytes")));
    const char *chosen = json_string_value(json_object_get(answer->drafted_on, "chosen"));
    if (chosen) {
        fprintf(out, "compressor %s\n", chosen);
    }
}
