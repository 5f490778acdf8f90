// SPDX-License-Identifier: Apache-2.0
// A model that this program would compute wrongly is refused, with a sentence that says why.
#include <math.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "common/log.h"
#include "model_fixture.h"
#include "tiny_model.h"

// Loads what the builder holds and frees the builder.
static as_status_t load(builder_t *builder, gpw_model_options_t options, char error[256],
                        gpw_model_t **model_p)
{
    char path[64];
    builder_finish(builder);
    builder_save(builder, path);
    builder_free(builder);
    options.path = path;
    as_status_t status = gpw_model_load(&options, error, 256, model_p);
    unlink(path);
    return status;
}

static void expect(builder_t builder, gpw_model_options_t options, as_status_t expected,
                   const char *part)
{
    char error[256] = "";
    gpw_model_t *model = NULL;
    unsigned long errors = as_log_count(AS_LOG_ERROR);
    as_status_t status = load(&builder, options, error, &model);
    if (status != expected || !strstr(error, part)) {
        fail_msg("%s, \"%s\"; expected %s and \"%s\"", as_status_str(status), error,
                 as_status_str(expected), part);
    }
    assert_null(model);
    assert_int_equal(as_log_count(AS_LOG_ERROR), errors + 1); // logged once, by the one who decided
}

static void loads_sizes_name_and_fingerprint(void **state)
{
    (void)state;
    builder_t builder = tiny_build(&tiny_default);
    builder_finish(&builder);
    uint8_t digest[32];
    EVP_Digest(builder.file.data, builder.file.bytes, digest, NULL, EVP_sha256(), NULL);
    char error[256] = "";
    gpw_model_t *model = NULL;
    assert_int_equal(load(&builder, (gpw_model_options_t){.context_max = 100}, error, &model),
                     AS_OK);
    assert_memory_equal(model->fingerprint.bytes, digest, 32);
    assert_string_equal(model->name, "default");
    assert_int_equal(model->vocab, TINY_VOCAB);
    assert_int_equal(model->context_max, 100);
    assert_int_equal(model->rope.position_count, 100);
    assert_ptr_equal(model->output.data, model->embedding.data);
    as_shape_t shape = gpw_model_shape(model, 64);
    assert_true(shape.layers == 2 && shape.q_heads == 4 && shape.kv_heads == 2 &&
                shape.head_dim == 16 && shape.block_tokens == 64 &&
                shape.element == AS_ELEMENT_F16);
    gpw_model_free(model);
}

static void refuses_other_architectures_and_features_by_name(void **state)
{
    (void)state;
    gpw_model_options_t plain = {0};
    tiny_t tiny = tiny_default;
    snprintf(tiny.arch, sizeof(tiny.arch), "mamba");
    expect(tiny_build(&tiny), plain, AS_ERR_UNSUPPORTED, "\"mamba\"");
    builder_t builder = tiny_build(&tiny_default);
    builder_u32(&builder, "llama.expert_count", 8);
    expect(builder, plain, AS_ERR_UNSUPPORTED, "experts");
    tiny = tiny_default;
    snprintf(tiny.scaling, sizeof(tiny.scaling), "longrope");
    expect(tiny_build(&tiny), plain, AS_ERR_UNSUPPORTED, "\"longrope\"");
    tiny = tiny_default;
    tiny.dim = 24;
    tiny.rope_dim = 24;
    expect(tiny_build(&tiny), plain, AS_ERR_UNSUPPORTED, "head dimensions 24");
    tiny = tiny_default;
    tiny.q_heads = 3;
    expect(tiny_build(&tiny), plain, AS_ERR_INVALID, "3 query heads");
    builder = tiny_build(&tiny_default);
    tiny_tensor(&builder, "blk.0.attn_sinks.weight", 4, 0, 0, 1);
    expect(builder, plain, AS_ERR_UNSUPPORTED, "attn_sinks");
}

static void refuses_tensors_that_are_missing_or_of_another_size_or_type(void **state)
{
    (void)state;
    gpw_model_options_t plain = {0};
    builder_t builder = {0};
    tiny_t tiny = tiny_default;
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    expect(builder, plain, AS_ERR_INVALID, "token_embd.weight is missing");

    builder = (builder_t){0};
    tiny.layers = 3;
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    tiny.layers = 2;
    tiny_tensors(&builder, &tiny);
    expect(builder, plain, AS_ERR_INVALID, "blk.2.attn_norm.weight is missing");

    builder = (builder_t){0};
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    tiny.ffn = 112;
    tiny_tensors(&builder, &tiny);
    expect(builder, plain, AS_ERR_INVALID, "64 x 112; the model needs 64 x 96");

    builder = (builder_t){0};
    tiny = tiny_default;
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB - 1, NULL, 0);
    tiny_tensors(&builder, &tiny);
    expect(builder, plain, AS_ERR_INVALID, "287 tokens, the embedding 288");
}

static void refuses_values_that_weights_cannot_hold(void **state)
{
    (void)state;
    tiny_t tiny = tiny_default;
    tiny.tied = 0;
    builder_t builder = {0};
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    tiny.tied = 1;
    tiny_tensors(&builder, &tiny);
    float *values = calloc(tiny.embed * TINY_VOCAB, sizeof(float));
    values[1000] = 70000.0f;
    builder_tensor(&builder, "output.weight", 0, tiny.embed, TINY_VOCAB, values,
                   tiny.embed * TINY_VOCAB * sizeof(float));
    expect(builder, (gpw_model_options_t){0}, AS_ERR_INVALID, "output.weight holds a value");

    builder = tiny_build(&tiny);
    builder_tensor(&builder, "output.weight", 0, tiny.embed, TINY_VOCAB, values,
                   tiny.embed * TINY_VOCAB * sizeof(float));
    char error[256];
    gpw_model_t *model = NULL;
    assert_int_equal(
        load(&builder, (gpw_model_options_t){.weights = KRN_WEIGHT_F32}, error, &model), AS_OK);
    gpw_model_free(model);

    builder = tiny_build(&tiny);
    values[1000] = NAN;
    builder_tensor(&builder, "output.weight", 0, tiny.embed, TINY_VOCAB, values,
                   tiny.embed * TINY_VOCAB * sizeof(float));
    expect(builder, (gpw_model_options_t){.weights = KRN_WEIGHT_F32}, AS_ERR_INVALID, "not finite");
    builder = tiny_build(&tiny);
    builder_tensor(&builder, "output.weight", 10, tiny.embed, TINY_VOCAB, values, 64);
    expect(builder, (gpw_model_options_t){0}, AS_ERR_UNSUPPORTED, "Q2_K");
    free(values);
}

static void bounds_the_context_by_the_model_and_its_window(void **state)
{
    (void)state;
    expect(tiny_build(&tiny_default), (gpw_model_options_t){.context_max = TINY_CONTEXT + 1},
           AS_ERR_INVALID, "exceeds the model's 512");
    builder_t builder = tiny_build(&tiny_default);
    builder_u32(&builder, "llama.attention.sliding_window", 128);
    expect(builder, (gpw_model_options_t){.context_max = 129}, AS_ERR_UNSUPPORTED,
           "sliding window of 128");
    builder = tiny_build(&tiny_default);
    builder_u32(&builder, "llama.attention.sliding_window", 128);
    char error[256];
    gpw_model_t *model = NULL;
    assert_int_equal(load(&builder, (gpw_model_options_t){0}, error, &model), AS_OK);
    assert_int_equal(model->context_max, 128);
    gpw_model_free(model);
}

static void a_file_that_promises_more_than_it_holds_allocates_nothing_large(void **state)
{
    (void)state;
    tiny_t tiny = tiny_default;
    builder_t builder = {0};
    tiny.layers = 256;
    tiny.ffn = 1 << 20;
    tiny_metadata(&builder, &tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    tiny = tiny_default;
    tiny_tensors(&builder, &tiny);
    expect(builder, (gpw_model_options_t){0}, AS_ERR_INVALID, "MiB of weights, the file has");
}

static void a_file_cut_short_is_refused(void **state)
{
    (void)state;
    builder_t builder = tiny_build(&tiny_default);
    builder_finish(&builder);
    for (size_t cut = 1; cut < builder.file.bytes; cut = cut * 3 + 1) {
        char path[64], error[256] = "";
        gpw_model_t *model = NULL;
        builder_t shorter = builder;
        shorter.file.bytes -= cut;
        builder_save(&shorter, path);
        gpw_model_options_t options = {.path = path};
        assert_int_equal(gpw_model_load(&options, error, sizeof(error), &model), AS_ERR_INVALID);
        assert_true(error[0] != '\0');
        unlink(path);
    }
    builder_free(&builder);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    char path[64];
    tiny_save(&tiny_default, path);
    bool finished = false;
    for (uint64_t nth = 1; !finished; nth++) {
        char error[256] = "";
        gpw_model_t *model = NULL;
        gpw_model_options_t options = {.path = path};
        as_mem_fail_nth(nth);
        as_status_t status = gpw_model_load(&options, error, sizeof(error), &model);
        finished = as_mem_fail_nth(0) < nth;
        // An expression that cannot be compiled to machine code is interpreted: that failure is no
        // error.
        assert_true(status == AS_OK || (status == AS_ERR_NO_MEMORY && !finished));
        gpw_model_free(model);
    }
    unlink(path);
}

static void count_progress(void *ctx, uint64_t bytes_done, uint64_t bytes_total)
{
    uint64_t *last = ctx;
    assert_true(bytes_done >= *last && bytes_done <= bytes_total);
    *last = bytes_done;
    if (bytes_done == bytes_total) {
        *last = UINT64_MAX;
    }
}

static void progress_only_grows_and_ends_at_the_total(void **state)
{
    (void)state;
    builder_t builder = tiny_build(&tiny_default);
    uint64_t last = 0;
    char error[256];
    gpw_model_t *model = NULL;
    gpw_model_options_t options = {.progress = count_progress, .ctx = &last};
    assert_int_equal(load(&builder, options, error, &model), AS_OK);
    assert_true(last == UINT64_MAX);
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_sizes_name_and_fingerprint),
        cmocka_unit_test(refuses_other_architectures_and_features_by_name),
        cmocka_unit_test(refuses_tensors_that_are_missing_or_of_another_size_or_type),
        cmocka_unit_test(refuses_values_that_weights_cannot_hold),
        cmocka_unit_test(bounds_the_context_by_the_model_and_its_window),
        cmocka_unit_test(a_file_that_promises_more_than_it_holds_allocates_nothing_large),
        cmocka_unit_test(a_file_cut_short_is_refused),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(progress_only_grows_and_ends_at_the_total),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
