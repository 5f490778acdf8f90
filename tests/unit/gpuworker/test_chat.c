// SPDX-License-Identifier: Apache-2.0
// Conversations are rendered as the models' true templates render them: tests/golden/chat.json, by
// jinja2.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/mem.h"
#include "gguf_builder.h"
#include "gpuworker/model/tokenizer.h"
#include "model_fixture.h"

#define MESSAGES_MAX 16u

static gpw_tokenizer_t *make_tokenizer(const char *template, const char *bos, const char *eos)
{
    const char *control[] = {bos, eos};
    builder_t builder = {0};
    builder_vocab(&builder, "gpt-2", 260, control, 2);
    builder_u32(&builder, "tokenizer.ggml.bos_token_id", 257);
    builder_u32(&builder, "tokenizer.ggml.eos_token_id", 258);
    if (template) {
        builder_text(&builder, "tokenizer.chat_template", template);
    }
    builder_finish(&builder);
    char error[GPW_GGUF_ERROR_BYTES] = "";
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    assert_int_equal(gpw_gguf_open_memory(builder.file.data, builder.file.bytes, error, &gguf),
                     AS_OK);
    if (gpw_tokenizer_alloc(gguf, error, &tokenizer) != AS_OK) {
        fail_msg("%s", error);
    }
    gpw_gguf_close(gguf);
    builder_free(&builder);
    return tokenizer;
}

static void check_case(const gpw_tokenizer_t *tokenizer, const char *name, size_t index,
                       const json_t *item)
{
    gpw_chat_message_t messages[MESSAGES_MAX];
    const json_t *list = json_object_get(item, "messages");
    size_t count = json_array_size(list);
    assert_in_range(count, 1, MESSAGES_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *message = json_array_get(list, i);
        messages[i].role = json_string_value(json_array_get(message, 0));
        messages[i].content = json_string_value(json_array_get(message, 1));
    }
    const char *expected = json_string_value(json_object_get(item, "prompt"));
    char *prompt = NULL;
    as_status_t status = gpw_tokenizer_chat(tokenizer, messages, count, &prompt);
    if (!expected) {
        if (status != AS_ERR_INVALID) {
            fail_msg("%s, conversation %zu: the template refuses it, we said %s", name, index,
                     as_status_str(status));
        }
        return;
    }
    if (status != AS_OK || strcmp(prompt, expected) != 0) {
        fail_msg("%s, conversation %zu: %s\n--- expected\n%s\n--- rendered\n%s", name, index,
                 as_status_str(status), expected, prompt ? prompt : "(nothing)");
    }
    as_mem_free(prompt);
}

static void renders_every_family_as_its_true_template(void **state)
{
    (void)state;
    char path[512];
    json_error_t error;
    json_t *golden = json_load_file(fixture_golden("chat.json", path), 0, &error);
    if (!golden) {
        fail_msg("%s: %s", path, error.text);
    }
    assert_true(json_array_size(golden) >= 10);
    for (size_t i = 0; i < json_array_size(golden); i++) {
        const json_t *family = json_array_get(golden, i);
        const char *name = json_string_value(json_object_get(family, "name"));
        gpw_tokenizer_t *tokenizer =
            make_tokenizer(json_string_value(json_object_get(family, "template")),
                           json_string_value(json_object_get(family, "bos")),
                           json_string_value(json_object_get(family, "eos")));
        const json_t *cases = json_object_get(family, "cases");
        for (size_t j = 0; j < json_array_size(cases); j++) {
            check_case(tokenizer, name, j, json_array_get(cases, j));
        }
        gpw_tokenizer_free(tokenizer);
    }
    json_decref(golden);
}

static void refuses_an_unknown_template(void **state)
{
    (void)state;
    const char *const templates[] = {"", "{{ messages }}", "<start_of_turn>user", NULL};
    gpw_chat_message_t message = {"user", "hi"};
    for (size_t i = 0; i < 4; i++) {
        gpw_tokenizer_t *tokenizer = make_tokenizer(templates[i], "<s>", "</s>");
        char *prompt = NULL;
        assert_int_equal(gpw_tokenizer_chat(tokenizer, &message, 1, &prompt), AS_ERR_UNSUPPORTED);
        assert_null(prompt);
        gpw_tokenizer_free(tokenizer);
    }
}

static void refuses_an_unknown_role_and_no_messages(void **state)
{
    (void)state;
    gpw_tokenizer_t *tokenizer = make_tokenizer("<|im_start|><|im_end|>", "<s>", "</s>");
    gpw_chat_message_t message = {"wizard", "hi"};
    char *prompt = NULL;
    assert_int_equal(gpw_tokenizer_chat(tokenizer, &message, 1, &prompt), AS_ERR_INVALID);
    assert_int_equal(gpw_tokenizer_chat(tokenizer, &message, 0, &prompt), AS_ERR_INVALID);
    assert_null(prompt);
    gpw_tokenizer_free(tokenizer);
}

static void says_so_when_memory_runs_out(void **state)
{
    (void)state;
    gpw_tokenizer_t *tokenizer = make_tokenizer("<|im_start|><|im_end|>", "<s>", "</s>");
    static char content[4096];
    memset(content, 'x', sizeof(content) - 1);
    gpw_chat_message_t messages[] = {{"user", content}, {"assistant", content}, {"user", content}};
    bool finished = false;
    for (uint64_t nth = 1; !finished; nth++) {
        char *prompt = NULL;
        as_mem_fail_nth(nth);
        as_status_t status = gpw_tokenizer_chat(tokenizer, messages, 3, &prompt);
        finished = as_mem_fail_nth(0) < nth;
        assert_int_equal(status, finished ? AS_OK : AS_ERR_NO_MEMORY);
        as_mem_free(prompt);
    }
    gpw_tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_every_family_as_its_true_template),
        cmocka_unit_test(refuses_an_unknown_template),
        cmocka_unit_test(refuses_an_unknown_role_and_no_messages),
        cmocka_unit_test(says_so_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
