// SPDX-License-Identifier: Apache-2.0
// The example of docs/adding-a-compressor.md: a selector in one file and a row that uses it. It is
// compiled here and verified as every compressor is, and the text shows this code as it is.
#include "compressor_fixture.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/kept_blocks.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

// The example begins.
// Of values, those of large norm: what is added to an answer is a value times its attention.
//
//   score[t] = |v[t]|^2
#include "gpuworker/resident/select/selector.h"

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        float *scores = scratch->scores + (size_t)h * scratch->stride;
        for (uint32_t t = 0; t < choice->tokens; t++) {
            if (t % size == 0) {
                gpw_select_unpack(choice, 1, h, t / size);
            }
            const float *v = scratch->unpacked + (size_t)(t % size) * dim;
            scores[t] = gpw_select_dot(v, v, dim);
        }
    }
    gpw_select_scored(choice, kept);
}

static const gpw_selector_t value_norms = {.name = "value norms", .choose = choose};

static const gpw_compressor_t vnorm = {
    .name = "vnorm",
    .summary = "of each block a quarter for each KV head, exact: the values of largest norm (4x)",
    .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE,
    .params = {.selector = &value_norms,
               .codec = &gpw_codec_exact,
               .sink_tokens = 4,
               .keep_percent = 25},
    GPW_KEPT_BLOCKS_FUNCTIONS,
};
// The example ends.

static double norm_of(const sample_t *s, uint32_t kv_head, uint32_t token)
{
    double square = 0;
    for (uint32_t c = 0; c < s->shape.head_dim; c++) {
        double x = exact_value(s, 0, 1, kv_head, token, c);
        square += x * x;
    }
    return square;
}

static void it_keeps_the_values_of_largest_norm(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 3, 1);
    gpw_segment_options_t options = options_for(&s, &vnorm.params);
    gpw_segment_t *segment;
    assert_int_equal(vnorm.open(&options, &segment), AS_OK);
    assert_int_equal(vnorm.reserve(segment, s.blocks), AS_OK);
    for (uint32_t b = 0; b < s.blocks; b++) {
        vnorm.seal(segment, 0, b, extent_of(&s, b, 0));
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            uint32_t count, size = s.shape.block_tokens, next = 0;
            const uint32_t *chosen = gpw_kept_blocks_chosen(segment, h, &count);
            double least = INFINITY, most = 0;
            for (uint32_t t = 0; t < size; t++) {
                double norm = norm_of(&s, h, b * size + t);
                if (next < count && chosen[next] == t) {
                    least = norm < least && (b > 0 || t >= 4) ? norm : least;
                    next++;
                } else {
                    most = norm > most ? norm : most;
                }
            }
            assert_int_equal(count, size / 4);
            assert_true(least > most);
        }
    }
    vnorm.close(segment);
    sample_free(&s);
}

static void it_verifies_to_the_same_bits(void **state)
{
    (void)state;
    static answer_t expected, answer;
    static int32_t prompt[200];
    gpw_model_t *model = tiny_load(3);
    rig_t rig = rig_open(rig_options(model, 16));
    prompt_make(prompt, 200, 0, 77);
    gpw_request_params_t params = request_params(prompt, 200, 60);
    params.compressor = "none";
    answer_submit(rig.worker, &params, &expected);
    rig_run(&rig);
    params.compressor = "kivi4";
    answer_submit(rig.worker, &params, &answer);
    for (uint32_t slot = 0; slot < rig.worker->active_max; slot++) {
        gpw_request_t *request = rig.worker->active[slot];
        if (request && request->id == answer.id) {
            request->compressor = &vnorm; // the engine has not seen it yet
        }
    }
    rig_run(&rig);
    assert_int_equal(answer.status, AS_OK);
    assert_true(answer.usage.drafted_tokens > answer.usage.accepted_tokens);
    answer_compare(&answer, &expected, vnorm.name);
    rig_close(&rig);
    gpw_model_free(model);
}

// ---- The text ----------------------------------------------------------------------------------

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 65536);
    assert_non_null(text);
    assert_true(fread(text, 1, 65535, file) > 0);
    fclose(file);
    return text;
}

static void the_text_shows_this_code(void **state)
{
    (void)state;
    const char *path = ASSAY_SOURCE_DIR "/docs/adding-a-compressor.md";
    const char *file = ASSAY_SOURCE_DIR "/tests/unit/gpuworker/test_example.c";
    char *text = read_file(path), *source = read_file(file);
    char *code = strstr(source, "// The example begins.\n");
    assert_non_null(code);
    code = strchr(code, '\n') + 1;
    *strstr(code, "// The example ends.\n") = 0;
    char *rest = text;
    // In the text it is cut into pieces; each of them is the next of the code.
    for (char *block; (block = strstr(rest, "```c\n")) != NULL;) {
        block += strlen("```c\n");
        rest = strstr(block, "```\n");
        assert_non_null(rest);
        code += strspn(code, "\n");
        if (strncmp(code, block, (size_t)(rest - block)) != 0) {
            fail_msg("%s does not show what %s has:\n%.*s", path, file, (int)(rest - block), block);
        }
        code += rest - block;
        rest += strlen("```\n");
    }
    assert_int_equal(strspn(code, "\n"), strlen(code)); // nothing is left out
    free(text);
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_keeps_the_values_of_largest_norm),
        cmocka_unit_test(it_verifies_to_the_same_bits),
        cmocka_unit_test(the_text_shows_this_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
