// SPDX-License-Identifier: Apache-2.0
// Layers that attend to what another layer holds: whose that is, bytes, blocks, names, and what is refused.
#include "compressor_fixture.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/stored.h"
#include "kernels/f16.h"

static const as_shape_t shape = {5, 6, 2, 64, 32, AS_ELEMENT_F16};
static const uint16_t sources[] = {0, 1, 1, 0, 4};

static gpw_calibration_t calibration(void)
{
    gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &shape);
    memcpy(c.source, sources, sizeof(sources));
    return c;
}

static gpw_compressor_t sharer(const gpw_calibration_t *c, const gpw_compressor_t *codec)
{
    gpw_compressor_t row = *gpw_compressor_find("kvsharer");
    row.params.calibration = c;
    row.params.codec = codec;
    return row;
}

// Keys and values of the layer whose they are.
static double source_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                           uint32_t token, uint32_t channel)
{
    return exact_value(s, sources[layer], part, head, token, channel);
}

static void each_layer_attends_to_its_source(void **state)
{
    (void)state;
    sample_t s = sample_make(shape, 11, 2);
    gpw_calibration_t c = calibration();
    gpw_compressor_t exact = sharer(&c, &gpw_codec_exact);
    gpw_segment_t *segment = seal_all(&s, &exact, &exact.params);
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        attended_t a = attend(&s, &exact, segment, layer, 1);
        held_t held = {.value = source_value, .sample = &s};
        assert_true(attention_error(&s, &held, layer, &a.partials) < 1e-5);
        for (uint32_t b = 0; b < s.blocks; b++) {
            assert_null(exact.extent(segment, layer, b)); // a swap brings all layers
        }
        as_mem_free(a.memory);
    }
    exact.close(segment);
    sample_free(&s);
}

// To the bit what the codec itself makes of these layers.
static void codes_are_those_of_the_codec(void **state)
{
    (void)state;
    sample_t s = sample_make(shape, 11, 2);
    gpw_calibration_t c = calibration();
    const gpw_compressor_t *kivi = gpw_compressor_find("kivi4");
    gpw_compressor_t shared = sharer(&c, kivi);
    assert_ptr_equal(gpw_compressor_find("kvsharer")->params.codec, kivi);
    gpw_segment_t *segment = seal_all(&s, &shared, &shared.params);
    gpw_segment_t *whole = seal_all(&s, kivi, &kivi->params);
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        attended_t a = attend(&s, &shared, segment, layer, 1);
        attended_t b = attend(&s, kivi, whole, sources[layer], 1);
        assert_memory_equal(a.memory, b.memory, a.floats * sizeof(float));
        as_mem_free(a.memory);
        as_mem_free(b.memory);
    }
    shared.close(segment);
    kivi->close(whole);
    sample_free(&s);
}

static void only_layers_that_are_held_take_bytes(void **state)
{
    (void)state;
    sample_t s = sample_make(shape, 40, 1);
    gpw_calibration_t c = calibration();
    const gpw_compressor_t *kivi = gpw_compressor_find("kivi4");
    gpw_compressor_t shared = sharer(&c, kivi);
    gpw_segment_options_t options = options_for(&s, &shared.params);
    gpw_segment_options_t of_kivi = options_for(&s, &kivi->params);
    double share = (double)shared.bytes_max(&options, 40) / (double)kivi->bytes_max(&of_kivi, 40);
    assert_float_equal(share, 3.0 / 5, 0.02);
    sample_free(&s);
}

static void another_calibration_is_another_stored_block(void **state)
{
    (void)state;
    gpw_calibration_t c = calibration(), other = calibration();
    other.id.bytes[31] ^= 1;
    const as_key_t block = {{4, 5, 6}};
    gpw_compressor_t rows[3] = {sharer(&c, gpw_compressor_find("kivi4")),
                                sharer(&other, gpw_compressor_find("kivi4")),
                                *gpw_compressor_find("kvsharer")};
    as_key_t names[3];
    as_shape_t stored;
    for (int i = 0; i < 3; i++) {
        gpw_stored_key(&rows[i], &block, &names[i]);
    }
    assert_false(as_key_equal(&names[0], &names[1]) || as_key_equal(&names[0], &names[2]));
    assert_true(gpw_stored_shape(&rows[0], &shape, &stored));
    assert_int_equal(stored.layers, 3);
    // That the worker has a calibration changes no name of a method without one.
    gpw_compressor_t kivi = *gpw_compressor_find("kivi4");
    gpw_stored_key(&kivi, &block, &names[0]);
    gpw_stored_key(gpw_compressor_find("kivi4"), &block, &names[1]);
    assert_true(as_key_equal(&names[0], &names[1]));
}

static void without_a_calibration_of_the_model_nothing_opens(void **state)
{
    (void)state;
    sample_t s = sample_make(shape, 2, 1);
    gpw_segment_t *segment;
    for (int i = 0; i < 5; i++) {
        gpw_calibration_t c = calibration();
        c.layers += i == 1;
        c.q_heads += i == 2;
        c.kv_heads += i == 3;
        c.head_dim += i == 4;
        gpw_compressor_t row = sharer(i ? &c : NULL, gpw_compressor_find("kivi4"));
        gpw_segment_options_t options = options_for(&s, &row.params);
        assert_int_equal(row.open(&options, &segment), AS_ERR_UNSUPPORTED);
        assert_int_equal(row.bytes_max(&options, 2), 0);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_layer_attends_to_its_source),
        cmocka_unit_test(codes_are_those_of_the_codec),
        cmocka_unit_test(only_layers_that_are_held_take_bytes),
        cmocka_unit_test(another_calibration_is_another_stored_block),
        cmocka_unit_test(without_a_calibration_of_the_model_nothing_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
