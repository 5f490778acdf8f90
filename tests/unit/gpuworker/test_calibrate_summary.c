// SPDX-License-Identifier: Apache-2.0
// Maps of summaries, learnt of the tiny model: they lower the error on text that they were not learnt from.
#include <math.h>

#include "gpuworker/calibrate_summary.h"
#include "gpuworker/resident/summary.h"
#include "model_fixture.h"
#include "tiny_model.h"

enum { LAYERS = 2, TOKENS = GPW_SUMMARY_TOKENS_MIN + 300 };

static gpw_model_t *model;
static int32_t tokens[TOKENS];
static gpw_summary_layer_t told[LAYERS];

static void note(void *ctx, const gpw_summary_layer_t *layer)
{
    (void)ctx;
    assert_true(layer->layer < LAYERS && layer->layers == LAYERS);
    told[layer->layer] = *layer;
}

static gpw_summary_options_t options_of(uint32_t epochs)
{
    memset(told, 0, sizeof(told));
    return (gpw_summary_options_t){.model = model,
                                   .ops = krn_cpu(),
                                   .threads = 2,
                                   .tokens = tokens,
                                   .token_count = TOKENS,
                                   .epochs = epochs,
                                   .on_layer = note};
}

static gpw_calibration_t empty(void)
{
    return (gpw_calibration_t){.layers = model->layers,
                               .q_heads = model->q_heads,
                               .kv_heads = model->kv_heads,
                               .head_dim = model->head_dim};
}

static void the_summary_lowers_the_error_on_text_that_was_held_out(void **state)
{
    (void)state;
    double before[LAYERS];
    for (uint32_t epochs = 1; epochs <= 40; epochs += 39) {
        gpw_summary_options_t options = options_of(epochs);
        gpw_calibration_t c = empty();
        assert_int_equal(gpw_calibrate_summary(&options, &c), AS_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_true(told[l].without > 0.01 && told[l].with < 0.9 * told[l].without);
            assert_true(epochs == 1 || told[l].with < before[l]); // learning helps
            before[l] = told[l].with;
        }
        for (size_t i = 0; i < gpw_calibration_maps_bytes(&c) / sizeof(float); i++) {
            assert_true(isfinite(c.maps[i]));
        }
        gpw_calibration_fini(&c);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    gpw_calibration_t c[2] = {empty(), empty()};
    for (uint32_t i = 0; i < 2; i++) {
        gpw_summary_options_t options = options_of(3);
        options.threads = i ? 4 : 1;
        assert_int_equal(gpw_calibrate_summary(&options, &c[i]), AS_OK);
    }
    assert_memory_equal(c[0].maps, c[1].maps, gpw_calibration_maps_bytes(&c[0]));
    gpw_calibration_fini(&c[0]);
    gpw_calibration_fini(&c[1]);
}

static void a_text_that_is_too_short_is_refused(void **state)
{
    (void)state;
    gpw_summary_options_t options = options_of(1);
    gpw_calibration_t c = empty();
    options.token_count = GPW_SUMMARY_TOKENS_MIN - 1;
    assert_int_equal(gpw_calibrate_summary(&options, &c), AS_ERR_INVALID);
    assert_null(c.maps);
    options.token_count = GPW_SUMMARY_TOKENS_MIN;
    assert_int_equal(gpw_calibrate_summary(&options, &c), AS_OK);
    gpw_calibration_fini(&c);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    gpw_summary_options_t options = options_of(1);
    as_status_t status = AS_ERR_NO_MEMORY;
    options.token_count = GPW_SUMMARY_TOKENS_MIN;
    for (uint64_t n = 1; status != AS_OK; n++) {
        gpw_calibration_t c = empty();
        as_mem_fail_nth(n);
        status = gpw_calibrate_summary(&options, &c);
        as_mem_fail_nth(0);
        assert_true(status == AS_OK || (status == AS_ERR_NO_MEMORY && !c.maps));
        gpw_calibration_fini(&c);
    }
}

static int set_up(void **state)
{
    (void)state;
    tiny_t tiny = tiny_default;
    tiny.layers = LAYERS;
    model = tiny_open(&tiny, KRN_WEIGHT_F16);
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(tiny_mix(i) % TINY_VOCAB);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_summary_lowers_the_error_on_text_that_was_held_out),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_text_that_is_too_short_is_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
