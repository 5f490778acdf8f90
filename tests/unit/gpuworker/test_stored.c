// SPDX-License-Identifier: Apache-2.0
// Sealed blocks as stores keep them: their names, their shape, their bytes.
#include "compressor_fixture.h"
#include "gpuworker/resident/stored.h"

// No two of a method, its parameters and a block share a name, and none has that of a full block.
static void names_tell_methods_parameters_and_blocks_apart(void **state)
{
    (void)state;
    as_key_t blocks[2] = {{{1, 2, 3}}, {{1, 2, 4}}};
    as_key_t names[128];
    uint32_t count = 0;
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        assert_true(count + 4 <= sizeof(names) / sizeof(names[0]));
        for (int b = 0; b < 2; b++) {
            gpw_stored_key(c, &blocks[b], &names[count++]);
        }
    }
    gpw_compressor_t other = *gpw_compressor_find("kivi4");
    other.params.group = 16;
    gpw_stored_key(&other, &blocks[0], &names[count++]);
    names[count++] = blocks[0];
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            assert_false(as_key_equal(&names[i], &names[j]));
        }
    }
    // The name is part of the format: it stays as it is until the form's version changes.
    as_key_t again;
    gpw_stored_key(gpw_compressor_find("kivi4"), &blocks[0], &again);
    assert_true(as_key_equal(&again, &names[0]));
}

static void a_stored_shape_has_the_bytes_of_a_slot(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (const gpw_compressor_t *c = compressors_for(&shapes[i]); c->name; c++) {
            as_shape_t stored;
            bool is_stored = gpw_stored_shape(c, &shapes[i], &stored);
            bool is_smaller =
                c->params.reader == NULL; // with an index it is the full block and more
            assert_true(is_stored ==
                        (c->slot && c->flags & GPW_COMPRESSOR_QUERY_FREE && is_smaller));
            if (!is_stored) {
                continue;
            }
            assert_int_equal(as_shape_check(&stored), AS_OK);
            const gpw_calibration_t *calibration = c->params.calibration;
            assert_int_equal(stored.layers,
                             calibration ? gpw_calibration_held(calibration) : shapes[i].layers);
            assert_true(as_block_bytes(&stored) < as_block_bytes(&shapes[i]));
        }
    }
    as_shape_t stored;
    assert_false(gpw_stored_shape(NULL, &shapes[0], &stored));
}

// A block that is packed by itself is what a segment has in its slot, and a segment that adopts such slots
// attends as the one that sealed them.
static void adopted_slots_attend_as_the_segment_that_sealed_them(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[0], 9, 2);
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
        as_shape_t stored;
        if (!c->slot) {
            continue;
        }
        gpw_segment_t *sealed = seal_all(&s, c, &c->params), *adopted;
        gpw_segment_options_t options = options_for(&s, &c->params);
        assert_int_equal(c->open(&options, &adopted), AS_OK);
        assert_int_equal(c->reserve(adopted, s.blocks), AS_OK);
        for (uint32_t b = 0; b < s.blocks; b++) {
            size_t bytes;
            uint8_t *packed =
                gpw_stored_pack(c, &s.shape, options.ops, b, (const uint8_t *)extent_of(&s, b, 0));
            assert_non_null(packed);
            const uint8_t *slot = *c->slot(sealed, b, &bytes);
            assert_true(!gpw_stored_shape(c, &s.shape, &stored) ||
                        bytes == as_block_bytes(&stored));
            assert_memory_equal(packed, slot, bytes);
            memcpy(*c->slot(adopted, b, &bytes), packed, bytes);
            as_mem_free(packed);
        }
        c->adopt(adopted, s.blocks);
        for (uint32_t layer = 0; layer < s.shape.layers; layer++) {
            attended_t a = attend(&s, c, sealed, layer, 1), b = attend(&s, c, adopted, layer, 1);
            size_t pairs = 2 * (size_t)s.shape.q_heads;
            assert_memory_equal(a.partials.out, b.partials.out,
                                pairs * s.shape.head_dim * sizeof(float));
            assert_memory_equal(a.partials.sum, b.partials.sum, pairs * sizeof(float));
            as_mem_free(a.memory);
            as_mem_free(b.memory);
        }
        c->close(sealed);
        c->close(adopted);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tell_methods_parameters_and_blocks_apart),
        cmocka_unit_test(a_stored_shape_has_the_bytes_of_a_slot),
        cmocka_unit_test(adopted_slots_attend_as_the_segment_that_sealed_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
