// SPDX-License-Identifier: Apache-2.0
// Tokenizers give the tokens of the models' own: tests/golden/tokenizer.json, by PyPI tokenizers,
// sentencepiece and llama.cpp; and take any bytes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include "gguf_builder.h"
#include "gpuworker/model/tokenizer.h"
#include "model_fixture.h"

#define TOKENS_MAX  4096u
#define RANDOM_SEED 20240607u

static const char *const trained[] = {"gpt-2", "llama-bpe", "qwen2", "tekken", "default", "spm"};
#define TRAINED_COUNT (sizeof(trained) / sizeof(trained[0]))

static gpw_tokenizer_t *open_path(const char *path)
{
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    if (gpw_gguf_open(path, error, &gguf) != AS_OK ||
        gpw_tokenizer_alloc(gguf, error, &tokenizer) != AS_OK) {
        fail_msg("%s: %s", path, error);
    }
    gpw_gguf_close(gguf);
    return tokenizer;
}

static gpw_tokenizer_t *open_trained(const char *name)
{
    char file[64], path[512];
    snprintf(file, sizeof(file), "tokenizer_%s.gguf", name);
    return open_path(fixture_golden(file, path));
}

static gpw_tokenizer_t *open_real(void)
{
    const char *path = getenv("ASSAY_MODEL");
    if (!path) {
        fail_msg(
            "ASSAY_MODEL is not set: run ASSAY_MODEL=$(tools/fetch-model) first, or ./dev test");
    }
    return open_path(path);
}

static json_t *load_file(const char *name)
{
    char path[512];
    json_error_t error;
    json_t *golden = json_load_file(fixture_golden(name, path), JSON_ALLOW_NUL, &error);
    if (!golden) {
        fail_msg("%s: %s", path, error.text);
    }
    return golden;
}

static json_t *load_golden(void)
{
    return load_file("tokenizer.json");
}

static void compare(const int32_t *tokens, size_t count, const json_t *expected, const char *name,
                    const char *text)
{
    for (size_t i = 0; i < count || i < json_array_size(expected); i++) {
        json_int_t wanted =
            i < json_array_size(expected) ? json_integer_value(json_array_get(expected, i)) : -1;
        json_int_t token = i < count ? tokens[i] : -1;
        if (wanted != token) {
            fail_msg("%s, \"%s\": token %zu is %d, expected %d", name, text, i, (int)token,
                     (int)wanted);
        }
    }
}

static void check_tokens(const gpw_tokenizer_t *tokenizer, const char *name, const json_t *text,
                         const json_t *expected, gpw_encode_options_t options)
{
    int32_t tokens[TOKENS_MAX];
    size_t count = 0;
    as_status_t status =
        gpw_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), options,
                             tokens, TOKENS_MAX, &count);
    assert_int_equal(status, AS_OK);
    compare(tokens, count, expected, name, json_string_value(text));
}

static void check_vocabulary(const gpw_tokenizer_t *tokenizer, const json_t *golden,
                             const char *name)
{
    const json_t *strings = json_object_get(golden, "strings");
    const json_t *tokens = json_object_get(json_object_get(golden, "tokens"), name);
    assert_true(json_array_size(strings) >= 300);
    assert_int_equal(json_array_size(tokens), json_array_size(strings));
    for (size_t i = 0; i < json_array_size(strings); i++) {
        check_tokens(tokenizer, name, json_array_get(strings, i), json_array_get(tokens, i),
                     (gpw_encode_options_t){0});
    }
}

static void gives_the_tokens_of_the_trained_vocabularies(void **state)
{
    (void)state;
    json_t *golden = load_golden();
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        check_vocabulary(tokenizer, golden, trained[i]);
        gpw_tokenizer_free(tokenizer);
    }
    json_decref(golden);
}

static void gives_the_tokens_of_the_real_model(void **state)
{
    (void)state;
    json_t *golden = load_golden();
    gpw_tokenizer_t *tokenizer = open_real();
    check_vocabulary(tokenizer, golden, "smollm2");
    gpw_tokenizer_free(tokenizer);
    json_decref(golden);
}

static void parses_control_tokens_only_when_asked(void **state)
{
    (void)state;
    json_t *golden = load_golden();
    const json_t *cases = json_object_get(golden, "special");
    gpw_tokenizer_t *tokenizer = open_real();
    assert_true(json_array_size(cases) >= 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        const json_t *text = json_object_get(item, "text");
        check_tokens(tokenizer, "parsed", text, json_object_get(item, "parsed"),
                     (gpw_encode_options_t){.parse_special = true});
        check_tokens(tokenizer, "plain", text, json_object_get(item, "plain"),
                     (gpw_encode_options_t){0});
    }
    gpw_tokenizer_free(tokenizer);
    json_decref(golden);
}

static void parses_control_tokens_of_the_template_and_not_of_messages(void **state)
{
    (void)state;
    json_t *golden = load_file("prompt.json");
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        const json_t *cases = json_object_get(json_object_get(golden, "segments"), trained[i]);
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        assert_true(json_array_size(cases) >= 40);
        for (size_t j = 0; j < json_array_size(cases); j++) {
            const json_t *item = json_array_get(cases, j);
            const json_t *list = json_object_get(item, "segments");
            gpw_prompt_segment_t segments[8];
            char text[256] = "";
            int32_t tokens[TOKENS_MAX];
            size_t count = 0, segment_count = json_array_size(list);
            assert_in_range(segment_count, 1, 8);
            for (size_t k = 0; k < segment_count; k++) {
                const json_t *part = json_array_get(json_array_get(list, k), 0);
                strcat(text, json_string_value(part));
                segments[k].bytes = json_string_length(part);
                segments[k].content = json_is_true(json_array_get(json_array_get(list, k), 1));
            }
            gpw_prompt_t prompt = {text, segments, segment_count};
            assert_int_equal(
                gpw_tokenizer_encode_prompt(tokenizer, &prompt, tokens, TOKENS_MAX, &count), AS_OK);
            compare(tokens, count, json_object_get(item, "tokens"), trained[i], text);
        }
        gpw_tokenizer_free(tokenizer);
    }
    json_decref(golden);
}

static size_t encode(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                     gpw_encode_options_t options, int32_t *tokens, size_t tokens_max)
{
    size_t count = 0;
    assert_int_equal(
        gpw_tokenizer_encode(tokenizer, text, bytes, options, tokens, tokens_max, &count), AS_OK);
    return count;
}

static size_t decode_all(const gpw_tokenizer_t *tokenizer, const int32_t *tokens, size_t count,
                         char *text)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += gpw_tokenizer_decode(tokenizer, tokens[i], true, text + bytes, 256);
    }
    return bytes;
}

// Random bytes with many that begin, continue or break UTF-8 characters.
static size_t random_bytes(uint32_t *seed_p, char *text, size_t bytes_max)
{
    static const uint8_t likely[] = {' ',  '\n', 'a',  'T',  '7',  '\'', 's',  0xc3,
                                     0xa9, 0xe2, 0x82, 0xf0, 0x9f, 0x98, 0x80, 0xff};
    size_t bytes = (*seed_p = *seed_p * 1664525u + 1013904223u) % bytes_max;
    for (size_t i = 0; i < bytes; i++) {
        *seed_p = *seed_p * 1664525u + 1013904223u;
        uint32_t random = *seed_p >> 8;
        text[i] = (char)(random % 3 == 0 ? random / 3 : likely[random / 3 % sizeof(likely)]);
    }
    return bytes;
}

static void any_bytes_survive_encoding_and_decoding(void **state)
{
    (void)state;
    print_message("seed %u\n", RANDOM_SEED);
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        uint32_t seed = RANDOM_SEED;
        for (int round = 0; round < 500; round++) {
            char text[256], back[1024];
            int32_t tokens[TOKENS_MAX];
            size_t bytes = random_bytes(&seed, text, sizeof(text));
            size_t count =
                encode(tokenizer, text, bytes, (gpw_encode_options_t){0}, tokens, TOKENS_MAX);
            size_t back_bytes = decode_all(tokenizer, tokens, count, back);
            size_t space = i == TRAINED_COUNT - 1 && bytes > 0; // SentencePiece puts one before
            assert_int_equal(back_bytes, bytes + space);
            assert_memory_equal(back + space, text, bytes);
        }
        gpw_tokenizer_free(tokenizer);
    }
}

static void a_word_of_a_megabyte_takes_no_quadratic_time(void **state)
{
    (void)state;
    size_t bytes = 1 << 20;
    char *text = malloc(bytes);
    int32_t *tokens = malloc(bytes * sizeof(int32_t));
    const char *const fillings[] = {"a", " ",        "ab", "\n",          "\xff",
                                    "1", "\xc3\xa9", "'",  "\xe2\x96\x81"};
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        for (size_t j = 0; j < sizeof(fillings) / sizeof(fillings[0]); j++) {
            size_t length = strlen(fillings[j]);
            for (size_t at = 0; at < bytes; at++) {
                text[at] = fillings[j][at % length];
            }
            size_t count =
                encode(tokenizer, text, bytes - 1, (gpw_encode_options_t){0}, tokens, bytes);
            assert_true(count > 1000);
        }
        gpw_tokenizer_free(tokenizer);
    }
    free(tokens);
    free(text);
}

static void writes_no_more_tokens_than_there_is_room_for(void **state)
{
    (void)state;
    const char *text = "Alice was beginning to get very tired";
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        int32_t tokens[64];
        size_t count = encode(tokenizer, text, strlen(text), (gpw_encode_options_t){0}, tokens, 64);
        for (size_t room = 0; room < count; room++) {
            size_t other = 77;
            tokens[room] = -5;
            assert_int_equal(gpw_tokenizer_encode(tokenizer, text, strlen(text),
                                                  (gpw_encode_options_t){0}, tokens, room, &other),
                             AS_ERR_LIMIT);
            assert_int_equal(tokens[room], -5);
            assert_int_equal(other, 77);
        }
        gpw_tokenizer_free(tokenizer);
    }
}

static uint64_t allocations_of(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                               size_t room)
{
    static int32_t tokens[1 << 16];
    size_t count;
    as_mem_fail_nth(UINT64_MAX);
    as_status_t status = gpw_tokenizer_encode(tokenizer, text, bytes, (gpw_encode_options_t){0},
                                              tokens, room, &count);
    assert_int_equal(status, room == 1 << 16 ? AS_OK : AS_ERR_LIMIT);
    return as_mem_fail_nth(0);
}

static void a_text_that_cannot_fit_is_not_merged(void **state)
{
    (void)state;
    static char text[1 << 15];
    memset(text, 'a', sizeof(text));
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        uint64_t merged = allocations_of(tokenizer, text, sizeof(text), 1 << 16);
        // The nodes and the heap of merging.
        assert_int_equal(allocations_of(tokenizer, text, sizeof(text), 16), merged - 2);
        gpw_tokenizer_free(tokenizer);
    }
}

// The longest text of every token over and over is the most that so many tokens can spell.
static void knows_the_most_bytes_that_tokens_can_spell(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        char text[1024];
        size_t longest = 0;
        for (int32_t token = 0; token < gpw_tokenizer_vocab(tokenizer); token++) {
            size_t bytes = gpw_tokenizer_decode(tokenizer, token, true, text, sizeof(text));
            longest = bytes > longest ? bytes : longest;
        }
        size_t most = gpw_tokenizer_text_bytes_max(tokenizer, 100);
        bool spm = strcmp(trained[i], "spm") == 0; // three bytes of U+2581 are one of a token
        assert_int_equal(most, 100 * longest * (spm ? 3 : 1));
        gpw_tokenizer_free(tokenizer);
    }
}

static void adds_a_bos_where_the_model_wants_one_and_never_two(void **state)
{
    (void)state;
    int32_t tokens[16];
    gpw_encode_options_t both = {.add_bos = true, .parse_special = true};
    gpw_tokenizer_t *llama = open_trained("llama-bpe");
    int32_t bos = gpw_tokenizer_vocab(llama) - 2;
    encode(llama, "hi", 2, both, tokens, 16);
    assert_int_equal(tokens[0], bos);
    size_t count = encode(llama, "<|bos|>h", 8, both, tokens, 16);
    assert_int_equal(count, 2);
    assert_int_equal(tokens[0], bos);
    assert_int_equal(encode(llama, "", 0, both, tokens, 16), 1);
    assert_int_equal(encode(llama, "", 0, (gpw_encode_options_t){0}, tokens, 16), 0);
    gpw_tokenizer_free(llama);
    gpw_tokenizer_t *qwen = open_trained("qwen2");
    assert_int_equal(encode(qwen, "", 0, both, tokens, 16), 0);
    gpw_tokenizer_free(qwen);
}

static void finds_user_defined_tokens_in_any_text(void **state)
{
    (void)state;
    int32_t tokens[64];
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        gpw_tokenizer_t *tokenizer = open_trained(trained[i]);
        bool spm = strcmp(trained[i], "spm") == 0;
        int32_t user = spm ? 3 : gpw_tokenizer_vocab(tokenizer) - 1;
        encode(tokenizer, "<|user|>", 8, (gpw_encode_options_t){0}, tokens, 64);
        assert_int_equal(tokens[0], user);
        gpw_tokenizer_free(tokenizer);
    }
}

static void knows_the_end_tokens_and_hides_control_tokens(void **state)
{
    (void)state;
    char text[64];
    gpw_tokenizer_t *tokenizer = open_real();
    assert_int_equal(gpw_tokenizer_vocab(tokenizer), 49152);
    assert_true(gpw_tokenizer_is_end(tokenizer, 0));  // <|endoftext|>
    assert_true(gpw_tokenizer_is_end(tokenizer, 2));  // <|im_end|>
    assert_false(gpw_tokenizer_is_end(tokenizer, 1)); // <|im_start|>
    assert_false(gpw_tokenizer_is_end(tokenizer, 300));
    assert_int_equal(gpw_tokenizer_decode(tokenizer, 2, false, text, sizeof(text)), 0);
    assert_int_equal(gpw_tokenizer_decode(tokenizer, 2, true, text, sizeof(text)), 10);
    assert_memory_equal(text, "<|im_end|>", 10);
    memset(text, 'x', sizeof(text));
    assert_int_equal(gpw_tokenizer_decode(tokenizer, 2, true, text, 4), 10);
    assert_memory_equal(text, "<|imxx", 6);
    gpw_tokenizer_free(tokenizer);
}

// A file may call a mark of turns user-defined (a type that is found in any text): it is control.
static void a_mark_of_turns_is_never_user_defined(void **state)
{
    (void)state;
    builder_t builder = {0};
    const char *const texts[] = {"a", "<|im_start|>", "<|odd_end|>", "<|tool|>"};
    builder_text(&builder, "tokenizer.ggml.model", "llama");
    builder_array(&builder, "tokenizer.ggml.tokens", GPW_GGUF_STRING, 4);
    for (size_t i = 0; i < 4; i++) {
        buffer_text(&builder.entries, texts[i]);
    }
    builder_array(&builder, "tokenizer.ggml.scores", GPW_GGUF_F32, 4);
    for (size_t i = 0; i < 4; i++) {
        buffer_u32(&builder.entries, 0);
    }
    builder_array(&builder, "tokenizer.ggml.token_type", GPW_GGUF_I32, 4);
    for (size_t i = 0; i < 4; i++) {
        buffer_u32(&builder.entries, i == 0 ? 1 : 4);
    }
    builder_u32(&builder, "tokenizer.ggml.eos_token_id", 2);
    builder_finish(&builder);
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    assert_int_equal(gpw_gguf_open_memory(builder.file.data, builder.file.bytes, error, &gguf),
                     AS_OK);
    assert_int_equal(gpw_tokenizer_alloc(gguf, error, &tokenizer), AS_OK);
    const char *text = "<|im_start|>a<|odd_end|>a<|tool|>";
    int32_t tokens[8], plain[] = {0, 0, 0, 3}, parsed[] = {1, 0, 2, 0, 3};
    assert_int_equal(encode(tokenizer, text, strlen(text), (gpw_encode_options_t){0}, tokens, 8),
                     4); // "start" has an a
    assert_memory_equal(tokens, plain, sizeof(plain));
    assert_int_equal(encode(tokenizer, text, strlen(text),
                            (gpw_encode_options_t){.parse_special = true}, tokens, 8),
                     5);
    assert_memory_equal(tokens, parsed, sizeof(parsed));
    assert_true(gpw_tokenizer_is_end(tokenizer, 2));
    gpw_tokenizer_free(tokenizer);
    gpw_gguf_close(gguf);
    builder_free(&builder);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    static char text[400];
    memset(text, 'e', sizeof(text));
    for (size_t i = 0; i < TRAINED_COUNT; i++) {
        char file[64], path[512], error[GPW_GGUF_ERROR_BYTES];
        snprintf(file, sizeof(file), "tokenizer_%s.gguf", trained[i]);
        gpw_gguf_t *gguf = NULL;
        assert_int_equal(gpw_gguf_open(fixture_golden(file, path), error, &gguf), AS_OK);
        bool finished = false;
        for (uint64_t nth = 1; !finished; nth++) {
            gpw_tokenizer_t *tokenizer = NULL;
            int32_t tokens[500];
            size_t count;
            as_mem_fail_nth(nth);
            as_status_t status = gpw_tokenizer_alloc(gguf, error, &tokenizer);
            if (status == AS_OK) {
                status = gpw_tokenizer_encode(tokenizer, text, sizeof(text),
                                              (gpw_encode_options_t){0}, tokens, 500, &count);
            }
            finished = as_mem_fail_nth(0) < nth;
            // An expression that cannot be compiled to machine code is interpreted: that failure is
            // no error.
            assert_true(status == AS_OK || (status == AS_ERR_NO_MEMORY && !finished));
            gpw_tokenizer_free(tokenizer);
        }
        gpw_gguf_close(gguf);
    }
}

static void expect_refusal(builder_t *builder, as_status_t expected, const char *part)
{
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    builder_finish(builder);
    assert_int_equal(gpw_gguf_open_memory(builder->file.data, builder->file.bytes, error, &gguf),
                     AS_OK);
    assert_int_equal(gpw_tokenizer_alloc(gguf, error, &tokenizer), expected);
    if (!strstr(error, part)) {
        fail_msg("\"%s\" does not say \"%s\"", error, part);
    }
    gpw_gguf_close(gguf);
    builder_free(builder);
}

static void refuses_what_it_does_not_know_by_name(void **state)
{
    (void)state;
    builder_t builder = {0};
    builder_vocab(&builder, "klingon", 260, NULL, 0);
    expect_refusal(&builder, AS_ERR_UNSUPPORTED, "klingon");
    builder_text(&builder, "tokenizer.ggml.model", "rwkv");
    expect_refusal(&builder, AS_ERR_UNSUPPORTED, "rwkv");
    builder_text(&builder, "tokenizer.ggml.model", "gpt2");
    expect_refusal(&builder, AS_ERR_INVALID, "tokenizer.ggml.tokens");
    builder_text(&builder, "tokenizer.ggml.model", "llama");
    builder_array(&builder, "tokenizer.ggml.tokens", GPW_GGUF_STRING, 1);
    buffer_text(&builder.entries, "a");
    builder_array(&builder, "tokenizer.ggml.token_type", GPW_GGUF_I32, 1);
    buffer_u32(&builder.entries, 1);
    expect_refusal(&builder, AS_ERR_INVALID, "tokenizer.ggml.scores");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_tokens_of_the_trained_vocabularies),
        cmocka_unit_test(gives_the_tokens_of_the_real_model),
        cmocka_unit_test(parses_control_tokens_only_when_asked),
        cmocka_unit_test(parses_control_tokens_of_the_template_and_not_of_messages),
        cmocka_unit_test(a_mark_of_turns_is_never_user_defined),
        cmocka_unit_test(any_bytes_survive_encoding_and_decoding),
        cmocka_unit_test(a_word_of_a_megabyte_takes_no_quadratic_time),
        cmocka_unit_test(writes_no_more_tokens_than_there_is_room_for),
        cmocka_unit_test(a_text_that_cannot_fit_is_not_merged),
        cmocka_unit_test(knows_the_most_bytes_that_tokens_can_spell),
        cmocka_unit_test(adds_a_bos_where_the_model_wants_one_and_never_two),
        cmocka_unit_test(finds_user_defined_tokens_in_any_text),
        cmocka_unit_test(knows_the_end_tokens_and_hides_control_tokens),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(refuses_what_it_does_not_know_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
