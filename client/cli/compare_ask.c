// SPDX-License-Identifier: Apache-2.0
// One prompt of `assay compare`, asked of a worker with the full cache and with every method.
//
// Of each method three answers, greedy and all of the same length: a verified one; an unverified one,
// of what the method leaves of the cache alone; and one that is not chosen but given (the prompt's
// continuation, or the full cache's answer), also unverified, for its probabilities. The full cache's
// own answer is computed under a cache salt of its own, so that it shares no stored block with the
// others; those share one, so that each but the first finds the prompt in the stores.
#include <string.h>
#include <sys/random.h>

#include "client/cli/compare.h"

typedef struct work {
    cli_compare_run_t *run;
    const char *prefix;
    bool is_json;
    json_t *tokens, *continuation; // continuation NULL: the full cache's answer
    cli_answer_t full;
    bool full_parses;
} work_t;

bool cli_compare_begin(cli_compare_run_t *run)
{
    uint64_t salt;
    if (getrandom(&salt, sizeof(salt), 0) != sizeof(salt)) {
        cli_complain("no randomness for a cache salt");
        return false;
    }
    snprintf(run->full_salt, sizeof(run->full_salt), "compare-full-%016llx",
             (unsigned long long)salt);
    snprintf(run->shared_salt, sizeof(run->shared_salt), "compare-%016llx",
             (unsigned long long)salt);
    return cli_tokenize_lead(run->ask.url, &run->lead);
}

// ---- Tokens

static const char *text_of(const json_t *prompt, const char *name)
{
    const char *text = json_string_value(json_object_get(prompt, name));
    return text ? text : "";
}

// Tokens of the prompt with the prefix.
static bool tokenize_prompt(work_t *work, const json_t *prompt)
{
    const char *name = text_of(prompt, "name"), *text = text_of(prompt, "prompt");
    cli_text_t whole = {0};
    bool good = cli_text_append(&whole, text, strlen(text)) &&
                cli_text_append(&whole, work->prefix, strlen(work->prefix)) &&
                cli_tokenize_text(work->run->ask.url, whole.bytes, &work->tokens);
    cli_text_fini(&whole);
    if (good && !work->tokens) {
        cli_complain("prompt %s is longer than the worker's context", name);
    }
    return good && work->tokens;
}

// Tokens of the text that follows the prompt, as many as an answer has.
static bool tokenize_continuation(work_t *work, const json_t *prompt)
{
    const char *text = text_of(prompt, "continuation");
    size_t lead = work->run->lead, most = (size_t)work->run->tokens;
    json_t *tokens = NULL;
    if (!text[0]) {
        return true;
    }
    bool good = cli_tokenize_text(work->run->ask.url, text, &tokens);
    if (good && !tokens) {
        cli_complain("the continuation of prompt %s is longer than the worker's context",
                     text_of(prompt, "name"));
    }
    work->continuation = tokens ? json_array() : NULL;
    for (size_t i = lead; work->continuation && i < json_array_size(tokens) && i < lead + most;
         i++) {
        json_array_append(work->continuation, json_array_get(tokens, i));
    }
    json_decref(tokens);
    return good && work->continuation;
}

// ---- Answers

static bool ask(const work_t *work, const char *compressor, bool verified, json_t *continuation,
                cli_answer_t *answer)
{
    cli_ask_t ask = work->run->ask;
    bool is_reference = answer == &work->full;
    ask.tokens = work->tokens;
    ask.max_tokens = work->run->tokens;
    ask.compressor = compressor;
    ask.cache_salt = is_reference ? work->run->full_salt : work->run->shared_salt;
    ask.horizon = is_reference ? 0 : ask.horizon; // plain decoding
    ask.verify_off = !verified;
    ask.continuation = continuation;
    ask.ignore_end = ask.bits = !continuation;
    return cli_ask(&ask, answer);
}

// Whether the answer begins with a JSON value.
static bool parses(const work_t *work, const cli_answer_t *answer)
{
    cli_text_t text = {0};
    json_t *json = NULL;
    if (cli_text_append(&text, work->prefix, strlen(work->prefix)) &&
        cli_text_append(&text, answer->text.bytes, answer->text.count)) {
        json = json_loadb(text.bytes, text.count, JSON_DISABLE_EOF_CHECK, NULL);
    }
    cli_text_fini(&text);
    json_decref(json);
    return json != NULL;
}

static json_t *speed(const cli_answer_t *answer)
{
    double tokens = cli_usage(answer, "completion_tokens") - 1;
    double ms = cli_usage(answer, "assay.total_ms") - cli_usage(answer, "assay.first_token_ms");
    return json_pack("{s:I, s:f}", "tokens", (json_int_t)tokens, "ms", ms);
}

static bool is_identical(const cli_answer_t *a, const cli_answer_t *b)
{
    return a->bit_count > 0 && a->bits.count == b->bits.count &&
           memcmp(a->bits.bytes, b->bits.bytes, a->bits.count) == 0;
}

static json_t *describe_verified(const work_t *work, const cli_answer_t *answer)
{
    json_t *json = speed(answer);
    json_object_update_new(
        json, json_pack("{s:b, s:I, s:I, s:I}", "identical", (int)is_identical(&work->full, answer),
                        "drafted_tokens", (json_int_t)cli_usage(answer, "assay.drafted_tokens"),
                        "accepted_tokens", (json_int_t)cli_usage(answer, "assay.accepted_tokens"),
                        "verifications", (json_int_t)cli_usage(answer, "assay.verifications")));
    return json;
}

// Where the answer's tokens part from the full cache's, or null.
static json_t *first_difference(const work_t *work, const cli_answer_t *answer)
{
    size_t i = 0, count = json_array_size(work->full.tokens);
    while (i < count &&
           json_equal(json_array_get(work->full.tokens, i), json_array_get(answer->tokens, i))) {
        i++;
    }
    return i < count ? json_integer((json_int_t)i) : json_null();
}

static json_t *describe_unverified(const work_t *work, const cli_answer_t *answer)
{
    json_t *json = speed(answer);
    bool asked = work->is_json && work->full_parses;
    json_object_set_new(json, "first_difference", first_difference(work, answer));
    json_object_set_new(json, "parses", asked ? json_boolean(parses(work, answer)) : json_null());
    return json;
}

static json_t *describe_continued(const cli_answer_t *answer)
{
    json_int_t count = answer->logprob_count > 0 ? answer->logprob_count - 1 : 0;
    return json_pack("{s:I, s:f, s:I, s:I}", "tokens", count, "nats", answer->nats,
                     "resident_bytes", (json_int_t)cli_usage(answer, "assay.resident_bytes"),
                     "full_bytes", (json_int_t)cli_usage(answer, "assay.full_bytes"));
}

static bool add_continued(const work_t *work, const char *compressor, json_t *result)
{
    json_t *given = work->continuation ? work->continuation : work->full.tokens;
    cli_answer_t answer;
    bool good = ask(work, compressor, false, given, &answer);
    if (good && answer.logprob_count == 0) {
        cli_complain("the worker sent no probabilities: is it of this version?");
        good = false;
    }
    if (good) {
        json_object_set_new(result, "continued", describe_continued(&answer));
    }
    cli_answer_fini(&answer);
    return good;
}

static bool add_full(work_t *work, json_t *result)
{
    if (!ask(work, "none", true, NULL, &work->full)) {
        return false;
    }
    if (work->full.bit_count == 0) {
        cli_complain("the worker sent no token ids: is it of this version?");
        return false;
    }
    work->full_parses = work->is_json && parses(work, &work->full);
    json_object_set_new(result, "verified", speed(&work->full));
    return add_continued(work, "none", result);
}

static bool add_method(const work_t *work, const char *compressor, json_t *result)
{
    cli_answer_t verified, plain = {0};
    bool good =
        ask(work, compressor, true, NULL, &verified) && ask(work, compressor, false, NULL, &plain);
    if (good) {
        json_object_set_new(result, "verified", describe_verified(work, &verified));
        json_object_set_new(result, "unverified", describe_unverified(work, &plain));
    }
    cli_answer_fini(&verified);
    cli_answer_fini(&plain);
    return good && add_continued(work, compressor, result);
}

// ---- The prompt

static bool ask_all(work_t *work, json_t *answers)
{
    const cli_compare_run_t *run = work->run;
    bool good = true;
    for (uint32_t i = 0; good && i <= run->name_count; i++) {
        const char *name = i == 0 ? "none" : run->names[i - 1];
        json_t *result = json_pack("{s:s}", "compressor", name);
        json_array_append_new(answers, result);
        good = i == 0 ? add_full(work, result) : add_method(work, name, result);
    }
    return good;
}

bool cli_compare_ask(cli_compare_run_t *run, const json_t *prompt, json_t *results)
{
    work_t work = {.run = run,
                   .prefix = text_of(prompt, "prefix"),
                   .is_json = strcmp(text_of(prompt, "format"), "json") == 0};
    json_t *answers = json_array();
    bool good = tokenize_prompt(&work, prompt) && tokenize_continuation(&work, prompt) &&
                ask_all(&work, answers);
    if (good) {
        json_t *format = work.is_json ? json_string("json") : json_string("text");
        json_t *full_parses = work.is_json ? json_boolean(work.full_parses) : json_null();
        json_array_append_new(
            results,
            json_pack("{s:s, s:I, s:o, s:I, s:o, s:O}", "name", text_of(prompt, "name"), "context",
                      json_integer_value(json_object_get(prompt, "context")), "format", format,
                      "prompt_tokens", (json_int_t)json_array_size(work.tokens), "full_parses",
                      full_parses, "answers", answers));
    }
    json_decref(answers);
    json_decref(work.tokens);
    json_decref(work.continuation);
    cli_answer_fini(&work.full);
    return good;
}
