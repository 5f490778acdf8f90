// SPDX-License-Identifier: Apache-2.0
// What the worker's API takes and refuses, and when text of a reply may be shown.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/mem.h"
#include "gpuworker/serve/openai.h"

static const char *const compressors[] = {"none", "kivi4", "streaming", NULL};
static const gpw_api_limits_t limits = {
    .vocab = 1000, .context_max = 512, .compressors = compressors};

static bool parse(gpw_api_kind_t kind, const char *body, gpw_api_request_t *request,
                  gpw_api_error_t *error)
{
    const gpw_api_body_t whole = {kind, body, strlen(body)};
    return gpw_api_parse(&whole, &limits, request, error);
}

// ---- Requests that are taken

static void a_completion_takes_every_parameter(void **state)
{
    (void)state;
    gpw_api_request_t request;
    gpw_api_error_t error;
    const char *body =
        "{\"model\":\"m\",\"prompt\":\"once\",\"max_tokens\":7,\"temperature\":0.5,"
        "\"top_p\":0.9,\"top_k\":40,\"seed\":-3,\"stop\":[\"a\",\"bc\"],\"n\":2,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_queue\":true},"
        "\"logprobs\":3,"
        "\"cache_salt\":\"s\",\"assay\":{\"verify\":\"off\",\"compressor\":\"kivi4\","
        "\"horizon\":0,\"prompt_lookup\":3,\"logits_hash\":true,\"ignore_end\":true,\"deadline_"
        "ms\":50}}";
    assert_true(parse(GPW_API_COMPLETION, body, &request, &error));
    assert_string_equal(request.model, "m");
    assert_string_equal(request.prompt, "once");
    assert_int_equal(request.max_tokens, 7);
    assert_true(request.choose.temperature == 0.5f && request.choose.top_p == 0.9f);
    assert_int_equal(request.choose.top_k, 40);
    assert_true(request.seed_set && request.choose.seed == (uint64_t)-3);
    assert_int_equal(request.stop_count, 2);
    assert_string_equal(request.stops[1], "bc");
    assert_int_equal(request.choices, 2);
    assert_true(request.stream && request.include_usage && request.include_queue);
    assert_true(request.want_logprobs && request.logprobs == 3);
    assert_string_equal(request.cache_salt, "s");
    assert_int_equal(request.verify, GPW_VERIFY_OFF);
    assert_string_equal(request.compressor, "kivi4");
    assert_true(request.horizon_set && request.horizon == 0);
    assert_true(request.prompt_lookup_set && request.prompt_lookup == 3);
    assert_true(request.logits_hash && request.ignore_end);
    assert_int_equal(request.deadline_us, 50000);
    gpw_api_request_fini(&request);
}

static void what_is_left_out_or_null_has_openais_defaults(void **state)
{
    (void)state;
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_true(parse(GPW_API_COMPLETION,
                      "{\"prompt\":\"x\",\"temperature\":null,\"stop\":null,\"logprobs\":null}",
                      &request, &error));
    assert_null(request.model);
    assert_int_equal(request.max_tokens, 16);
    assert_true(request.choose.temperature == 1 && request.choose.top_p == 1);
    assert_int_equal(request.choices, 1);
    assert_false(request.stream || request.want_logprobs || request.seed_set);
    assert_int_equal(request.verify, GPW_VERIFY_FULL);
    gpw_api_request_fini(&request);
    assert_true(parse(GPW_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                      &request, &error));
    assert_int_equal(request.max_tokens, 0);
    gpw_api_request_fini(&request);
}

static void a_prompt_may_be_token_ids_or_a_batch_of_one(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":[5,999,0]}", "{\"prompt\":[[5,999,0]]}"};
    for (size_t i = 0; i < 2; i++) {
        gpw_api_request_t request;
        gpw_api_error_t error;
        assert_true(parse(GPW_API_COMPLETION, bodies[i], &request, &error));
        assert_int_equal(request.token_count, 3);
        assert_int_equal(request.tokens[1], 999);
        gpw_api_request_fini(&request);
    }
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_true(parse(GPW_API_COMPLETION, "{\"prompt\":[\"one\"]}", &request, &error));
    assert_string_equal(request.prompt, "one");
    gpw_api_request_fini(&request);
}

static void a_continuation_is_the_whole_answer(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":[5],\"stop\":null,\"n\":1,\"assay\":{\"continuation\":[5,999,0]}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":null,"
        "\"assay\":{\"continuation\":[5,999,0]}}"};
    for (int chat = 0; chat < 2; chat++) {
        gpw_api_request_t request;
        gpw_api_error_t error;
        assert_true(
            parse(chat ? GPW_API_CHAT : GPW_API_COMPLETION, bodies[chat], &request, &error));
        assert_int_equal(request.continuation_count, 3);
        assert_int_equal(request.continuation[1], 999);
        assert_int_equal(request.max_tokens, 3);
        assert_true(request.ignore_end);
        gpw_api_request_fini(&request);
    }
}

static void text_parts_of_a_message_are_joined(void **state)
{
    (void)state;
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_true(parse(GPW_API_CHAT,
                      "{\"messages\":[{\"role\":\"developer\",\"content\":\"be\"},"
                      "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                      "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\","
                      "\"content\":\"c\",\"refusal\":null,\"tool_calls\":[]}],"
                      "\"logprobs\":true,\"top_logprobs\":2,\"max_completion_tokens\":9}",
                      &request, &error));
    assert_int_equal(request.message_count, 3);
    assert_string_equal(request.messages[0].role, "system");
    assert_string_equal(request.messages[1].content, "ab");
    assert_string_equal(request.messages[2].role, "assistant");
    assert_int_equal(request.logprobs, 2);
    assert_int_equal(request.max_tokens, 9);
    gpw_api_request_fini(&request);
}

static void features_that_are_not_offered_are_taken_where_they_do_nothing(void **state)
{
    (void)state;
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_true(parse(GPW_API_COMPLETION,
                      "{\"prompt\":\"x\",\"echo\":false,\"best_of\":1,\"suffix\":\"\","
                      "\"logit_bias\":{},\"frequency_penalty\":0,\"presence_penalty\":0.0,"
                      "\"user\":\"me\"}",
                      &request, &error));
    gpw_api_request_fini(&request);
    assert_true(parse(GPW_API_CHAT,
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[],"
                      "\"response_format\":{\"type\":\"text\"},\"audio\":null,"
                      "\"modalities\":[\"text\"],\"store\":false}",
                      &request, &error));
    gpw_api_request_fini(&request);
}

// ---- Requests that are refused

typedef struct refusal {
    gpw_api_kind_t kind;
    const char
        *members; // of the body, after a good prompt or messages when they begin with a comma
    const char *param;
    const char *says; // is in the message
} refusal_t;

static const refusal_t refusals[] = {
    {GPW_API_COMPLETION, ",\"temperature\":\"hot\"", "temperature", "from 0 (greedy) to 2"},
    {GPW_API_COMPLETION, ",\"temperature\":2.1", "temperature", "2.1"},
    {GPW_API_COMPLETION, ",\"temperature\":-0.1", "temperature", "from 0"},
    {GPW_API_COMPLETION, ",\"top_p\":0", "top_p", "above 0"},
    {GPW_API_COMPLETION, ",\"top_k\":1001", "top_k", "from -1 to 1000"},
    {GPW_API_COMPLETION, ",\"max_tokens\":0", "max_tokens", "from 1 to 512"},
    {GPW_API_COMPLETION, ",\"max_tokens\":1e3", "max_tokens", "integer"},
    {GPW_API_COMPLETION, ",\"max_tokens\":99999999999", "max_tokens", "from 1 to 512"},
    {GPW_API_COMPLETION, ",\"max_completion_tokens\":4", "max_completion_tokens",
     "is a parameter of /v1/chat/completions"},
    {GPW_API_COMPLETION, ",\"n\":9", "n", "from 1 to 8"},
    {GPW_API_COMPLETION, ",\"n\":true", "n", "but is true"},
    {GPW_API_COMPLETION, ",\"seed\":1.5", "seed", "integer"},
    {GPW_API_COMPLETION, ",\"stop\":\"\"", "stop", "1 to 256 bytes"},
    {GPW_API_COMPLETION, ",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop", "up to 4"},
    {GPW_API_COMPLETION, ",\"stop\":[\"a\",7]", "stop[1]", "but is 7"},
    {GPW_API_COMPLETION, ",\"stream\":1", "stream", "true or false"},
    {GPW_API_COMPLETION, ",\"stream_options\":{\"include_usage\":true}", "stream_options",
     "needs stream: true"},
    {GPW_API_COMPLETION, ",\"stream\":true,\"stream_options\":{\"usage\":true}",
     "stream_options.usage", "leave it out"},
    {GPW_API_COMPLETION, ",\"logprobs\":true", "logprobs", "from 0 to 20"},
    {GPW_API_COMPLETION, ",\"logprobs\":21", "logprobs", "from 0 to 20"},
    {GPW_API_COMPLETION, ",\"echo\":true", "echo", "not supported"},
    {GPW_API_COMPLETION, ",\"best_of\":2", "best_of", "not supported"},
    {GPW_API_COMPLETION, ",\"suffix\":\"s\"", "suffix", "not supported"},
    {GPW_API_COMPLETION, ",\"logit_bias\":{\"5\":1}", "logit_bias", "not supported"},
    {GPW_API_COMPLETION, ",\"frequency_penalty\":0.1", "frequency_penalty", "set it to 0"},
    {GPW_API_COMPLETION, ",\"temprature\":1", "temprature", "check its spelling"},
    {GPW_API_COMPLETION, ",\"cache_salt\":\"\"", "cache_salt", "1 to 256"},
    {GPW_API_COMPLETION, ",\"assay\":\"kivi4\"", "assay", "an object"},
    {GPW_API_COMPLETION, ",\"assay\":{\"compressor\":\"zip\"}", "assay.compressor",
     "\"none\", \"kivi4\", \"streaming\""},
    {GPW_API_COMPLETION, ",\"assay\":{\"verify\":true}", "assay.verify", "\"full\" or \"off\""},
    {GPW_API_COMPLETION, ",\"assay\":{\"horizon\":-1}", "assay.horizon", "from 0 to 64"},
    {GPW_API_COMPLETION, ",\"assay\":{\"prompt_lookup\":16}", "assay.prompt_lookup",
     "from 0 to 15"},
    {GPW_API_COMPLETION, ",\"assay\":{\"epsilon\":0.1}", "assay.epsilon", "leave it out"},
    {GPW_API_COMPLETION, "\"prompt\":\"\"", "prompt", "not empty"},
    {GPW_API_COMPLETION, "\"prompt\":[]", "prompt", "array of 0"},
    {GPW_API_COMPLETION, "\"prompt\":[\"a\",\"b\"]", "prompt", "one prompt"},
    {GPW_API_COMPLETION, "\"prompt\":[1,2,1000]", "prompt[2]", "from 0 to 999"},
    {GPW_API_COMPLETION, "\"prompt\":[1,\"a\"]", "prompt[1]", "integer"},
    {GPW_API_COMPLETION, "\"prompt\":{}", "prompt", "but is an object"},
    {GPW_API_COMPLETION, "\"max_tokens\":4", "prompt", "missing"},
    {GPW_API_COMPLETION, ",\"messages\":[]", "messages", "is a parameter of /v1/chat/completions"},
    {GPW_API_COMPLETION, ",\"assay\":{\"continuation\":\"text\"}", "assay.continuation",
     "an array of token ids"},
    {GPW_API_COMPLETION, ",\"assay\":{\"continuation\":[]}", "assay.continuation",
     "an array of token ids"},
    {GPW_API_COMPLETION, ",\"assay\":{\"continuation\":[1,1000]}", "assay.continuation[1]",
     "from 0 to 999"},
    {GPW_API_COMPLETION, ",\"assay\":{\"continuation\":[1]},\"n\":2", "n", "leave it out"},
    {GPW_API_COMPLETION, ",\"max_tokens\":1,\"assay\":{\"continuation\":[1]}", "max_tokens",
     "the whole answer"},
    {GPW_API_COMPLETION, ",\"stop\":\"x\",\"assay\":{\"continuation\":[1]}", "stop",
     "the whole answer"},
    {GPW_API_CHAT, ",\"max_completion_tokens\":1,\"assay\":{\"continuation\":[1]}",
     "max_completion_tokens", "the whole answer"},
    {GPW_API_CHAT, "\"messages\":[]", "messages", "1 to 1024"},
    {GPW_API_CHAT, "\"messages\":\"hello\"", "messages", "but is \"hello\""},
    {GPW_API_CHAT, "\"messages\":[\"hello\"]", "messages[0]", "an object such as"},
    {GPW_API_CHAT, "\"messages\":[{\"role\":\"user\"}]", "messages[0].content", "a text"},
    {GPW_API_CHAT, "\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0].role",
     "\"assistant\""},
    {GPW_API_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
     "messages[0].content[0]", "only text"},
    {GPW_API_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":\"bob\"}]",
     "messages[0].name", "not supported"},
    {GPW_API_CHAT, "\"temperature\":0", "messages", "missing"},
    {GPW_API_CHAT, ",\"top_logprobs\":2", "top_logprobs", "needs logprobs: true"},
    {GPW_API_CHAT, ",\"logprobs\":1", "logprobs", "true or false"},
    {GPW_API_CHAT, ",\"max_tokens\":1,\"max_completion_tokens\":2", "max_tokens", "differ"},
    {GPW_API_CHAT, ",\"tools\":[{\"type\":\"function\"}]", "tools", "not supported"},
    {GPW_API_CHAT, ",\"response_format\":{\"type\":\"json_object\"}", "response_format",
     "not supported"},
    {GPW_API_CHAT, ",\"audio\":{}", "audio", "not supported"},
    {GPW_API_CHAT, ",\"echo\":true", "echo", "is a parameter of /v1/completions"},
};

static void a_wrong_parameter_is_named_with_its_remedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refusal_t *refusal = &refusals[i];
        const char *good = refusal->kind == GPW_API_CHAT
                               ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
                               : "\"prompt\":\"x\"";
        char body[512];
        snprintf(body, sizeof(body), "{%s%s}", refusal->members[0] == ',' ? good : "",
                 refusal->members);
        gpw_api_request_t request;
        gpw_api_error_t error;
        bool taken = parse(refusal->kind, body, &request, &error);
        if (taken || strcmp(error.param, refusal->param) != 0 ||
            !strstr(error.message, refusal->says)) {
            fail_msg("%s: param \"%s\" message \"%s\"", body, error.param, error.message);
        }
        assert_int_equal(error.code, 400);
        assert_string_equal(error.type, "invalid_request_error");
    }
}

static void a_body_that_is_no_json_object_is_refused(void **state)
{
    (void)state;
    static const char *const bodies[] = {"",
                                         "{",
                                         "[]",
                                         "7",
                                         "{\"prompt\":\"x\"} x",
                                         "{\"prompt\":\"x\",\"prompt\":\"y\"}",
                                         "{\"prompt\":\"\\u0000\"}",
                                         "{\"prompt\":\"\xff\"}",
                                         "{\"seed\":99999999999999999999}",
                                         "{\"temperature\":1e999}"};
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        gpw_api_request_t request;
        gpw_api_error_t error;
        if (parse(GPW_API_COMPLETION, bodies[i], &request, &error)) {
            fail_msg("taken: %s", bodies[i]);
        }
        assert_int_equal(error.code, 400);
        assert_string_equal(error.reason, "invalid_json");
        assert_true(strlen(error.message) > 10);
    }
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    static char body[200000];
    memset(body, '[', sizeof(body) - 1);
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_false(parse(GPW_API_COMPLETION, body, &request, &error));
    assert_non_null(strstr(error.message, "nested"));
}

static void brackets_inside_of_a_text_do_not_count_as_nesting(void **state)
{
    (void)state;
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_true(parse(GPW_API_COMPLETION, "{\"prompt\":\"[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[\"}",
                      &request, &error));
    gpw_api_request_fini(&request);
}

static void a_body_of_very_many_values_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    size_t bytes = 4u << 20;
    char *body = malloc(bytes + 1);
    assert_non_null(body);
    memset(body, ',', bytes);
    memcpy(body, "{\"prompt\":[", 11);
    body[bytes] = '\0';
    gpw_api_request_t request;
    gpw_api_error_t error;
    assert_false(parse(GPW_API_COMPLETION, body, &request, &error));
    assert_non_null(strstr(error.message, "values"));
    free(body);
}

static void a_request_survives_the_loss_of_any_allocation(void **state)
{
    (void)state;
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                       "\"text\":\"a\"}]}]}";
    bool taken = false;
    for (uint64_t n = 1; n < 50 && !taken; n++) {
        gpw_api_request_t request;
        gpw_api_error_t error;
        as_mem_fail_nth(n);
        taken = parse(GPW_API_CHAT, body, &request, &error);
        as_mem_fail_nth(0);
        if (taken) {
            gpw_api_request_fini(&request);
        } else {
            assert_int_equal(error.code, 503);
        }
    }
    assert_true(taken);
}

// ---- Text

// Pushes `bytes` in pieces of `piece`; returns what was shown, asserting after each push that it is
// valid UTF-8.
static char *shown_in_pieces(const char *bytes, size_t piece, const char *const *stops,
                             uint32_t stop_count, bool *stopped_p)
{
    gpw_text_t text;
    gpw_string_t shown = {0};
    gpw_text_init(&text, stops, stop_count);
    assert_int_equal(gpw_string_append(&shown, "", 0), AS_OK);
    for (size_t at = 0; at < strlen(bytes); at += piece) {
        size_t count = strlen(bytes) - at < piece ? strlen(bytes) - at : piece;
        assert_int_equal(gpw_text_push(&text, bytes + at, count, &shown), AS_OK);
        assert_true(gpw_utf8_valid(shown.bytes, shown.count));
    }
    assert_int_equal(gpw_text_finish(&text, &shown), AS_OK);
    *stopped_p = text.stopped;
    gpw_text_fini(&text);
    return shown.bytes;
}

static void text_ends_before_a_stop_string_whatever_the_tokens(void **state)
{
    (void)state;
    static const char *const stops[] = {"END", "\n\n", "\xc3\xa9t\xc3\xa9"};
    static const char *const rows[][2] = {
        {"one two END three", "one two "},
        {"a\nb\n\nc", "a\nb"},
        {"l'\xc3\xa9t\xc3\xa9 vient", "l'"},
        {"ENEND", "EN"},
        {"EN \xc3\xa9t", NULL},
        {"\n", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 1; piece < 8; piece++) {
            bool stopped;
            char *shown = shown_in_pieces(rows[i][0], piece, stops, 3, &stopped);
            assert_string_equal(shown, rows[i][1] ? rows[i][1] : rows[i][0]);
            assert_int_equal(stopped, rows[i][1] != NULL);
            as_mem_free(shown);
        }
    }
}

static void what_may_become_a_stop_string_is_held_back(void **state)
{
    (void)state;
    static const char *const stops[] = {"STOP"};
    gpw_text_t text;
    gpw_string_t shown = {0};
    gpw_text_init(&text, stops, 1);
    assert_int_equal(gpw_text_push(&text, "go ST", 5, &shown), AS_OK);
    assert_string_equal(shown.bytes, "go ");
    assert_int_equal(gpw_text_push(&text, "AY", 2, &shown), AS_OK);
    assert_string_equal(shown.bytes, "go STAY");
    assert_int_equal(text.shown_bytes, 7);
    gpw_string_fini(&shown);
    gpw_text_fini(&text);
}

static void half_a_character_waits_for_its_other_half(void **state)
{
    (void)state;
    gpw_text_t text;
    gpw_string_t shown = {0};
    gpw_text_init(&text, NULL, 0);
    assert_int_equal(gpw_text_push(&text, "a\xf0\x9f\x98", 4, &shown), AS_OK);
    assert_string_equal(shown.bytes, "a");
    assert_int_equal(gpw_text_push(&text, "\x80", 1, &shown), AS_OK);
    assert_string_equal(shown.bytes, "a\xf0\x9f\x98\x80");
    gpw_string_fini(&shown);
    gpw_text_fini(&text);
}

static void bytes_of_no_character_become_replacement_characters(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"a\xff"
         "b",
         "a\xef\xbf\xbd"
         "b"},
        {"\xe2\x82", "\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 1; piece < 4; piece++) {
            bool stopped;
            char *shown = shown_in_pieces(rows[i][0], piece, NULL, 0, &stopped);
            assert_string_equal(shown, rows[i][1]);
            as_mem_free(shown);
        }
    }
}

// Against a plain search of the whole text, on random texts of few letters.
static void text_and_stops_agree_with_a_plain_search(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        char bytes[33], stop[2][5];
        const char *stops[2] = {stop[0], stop[1]};
        size_t length = (size_t)rand_r(&seed) % 32;
        for (size_t i = 0; i < length; i++) {
            bytes[i] = "ab"[rand_r(&seed) % 2];
        }
        bytes[length] = '\0';
        for (int s = 0; s < 2; s++) {
            size_t count = 1 + (size_t)rand_r(&seed) % 4;
            for (size_t i = 0; i < count; i++) {
                stop[s][i] = "ab"[rand_r(&seed) % 2];
            }
            stop[s][count] = '\0';
        }
        // A stop that is complete earlier wins over one that begins earlier but is not complete
        // yet.
        size_t end = length + 1, begin = length;
        for (size_t i = 1; i <= length && end > length; i++) {
            for (int s = 0; s < 2; s++) {
                size_t n = strlen(stop[s]);
                if (n <= i && memcmp(bytes + i - n, stop[s], n) == 0) {
                    end = i;
                    begin = i - n < begin ? i - n : begin;
                }
            }
        }
        bool stopped;
        char *shown = shown_in_pieces(bytes, 1, stops, 2, &stopped);
        assert_int_equal(strlen(shown), begin);
        assert_memory_equal(shown, bytes, begin);
        assert_int_equal(stopped, end <= length);
        as_mem_free(shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_completion_takes_every_parameter),
        cmocka_unit_test(what_is_left_out_or_null_has_openais_defaults),
        cmocka_unit_test(a_prompt_may_be_token_ids_or_a_batch_of_one),
        cmocka_unit_test(a_continuation_is_the_whole_answer),
        cmocka_unit_test(text_parts_of_a_message_are_joined),
        cmocka_unit_test(features_that_are_not_offered_are_taken_where_they_do_nothing),
        cmocka_unit_test(a_wrong_parameter_is_named_with_its_remedy),
        cmocka_unit_test(a_body_that_is_no_json_object_is_refused),
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(brackets_inside_of_a_text_do_not_count_as_nesting),
        cmocka_unit_test(a_body_of_very_many_values_is_refused_before_it_is_parsed),
        cmocka_unit_test(a_request_survives_the_loss_of_any_allocation),
        cmocka_unit_test(text_ends_before_a_stop_string_whatever_the_tokens),
        cmocka_unit_test(what_may_become_a_stop_string_is_held_back),
        cmocka_unit_test(half_a_character_waits_for_its_other_half),
        cmocka_unit_test(bytes_of_no_character_become_replacement_characters),
        cmocka_unit_test(text_and_stops_agree_with_a_plain_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
