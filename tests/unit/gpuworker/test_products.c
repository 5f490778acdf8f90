// SPDX-License-Identifier: Apache-2.0
// Products of f32 with rows of f16: the formula of products.h, to the same bits on every instruction set.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "gpuworker/resident/read/products.h"
#include "kernels/f16.h"
#include "tiny_model.h"

enum { ROWS = 37, COLUMNS = 112, HEADS = 7 };

static krn_f16 rows[ROWS * COLUMNS];
static float x[HEADS * COLUMNS];

static int fill(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        rows[i] = krn_f16_from_float((float)(tiny_mix(i) >> 40) / 8388608.0f - 1.0f);
    }
    for (uint32_t i = 0; i < HEADS * COLUMNS; i++) {
        x[i] = (float)(tiny_mix(i + 123456) >> 40) / 4194304.0f - 2.0f;
    }
    return 0;
}

static void dot_products_are_sixteen_lanes_and_a_tree(void **state)
{
    (void)state;
    const gpw_products_t *all[4];
    gpw_products_all(all);
    for (uint32_t i = 0; all[i]; i++) {
        for (uint32_t count = 0; count <= ROWS; count++) {
            float out[ROWS + 1];
            out[count] = 77.0f;
            all[i]->dots(x, rows, count, COLUMNS, out);
            assert_true(out[count] == 77.0f);
            for (uint32_t r = 0; r < count; r++) {
                float lane[16] = {0};
                for (uint32_t c = 0; c < COLUMNS; c++) {
                    lane[c % 16] =
                        fmaf(x[c], krn_f16_to_float(rows[r * COLUMNS + c]), lane[c % 16]);
                }
                for (uint32_t half = 8; half > 0; half /= 2) {
                    for (uint32_t l = 0; l < half; l++) {
                        lane[l] += lane[l + half];
                    }
                }
                assert_memory_equal(&out[r], &lane[0], sizeof(float));
            }
        }
    }
}

static void rows_are_combined_by_a_chain_of_multiply_adds(void **state)
{
    (void)state;
    const gpw_products_t *all[4];
    uint32_t offsets[9];
    gpw_products_all(all);
    for (uint32_t r = 0; r < 9; r++) {
        offsets[r] = r * 4 % ROWS * COLUMNS;
    }
    for (uint32_t i = 0; all[i]; i++) {
        for (uint32_t heads = 1; heads <= HEADS; heads++) {
            static float out[HEADS * (COLUMNS + 16)];
            const gpw_combination_t combination = {.rows = rows,
                                                   .offsets = offsets,
                                                   .weights = x,
                                                   .count = 9,
                                                   .columns = COLUMNS,
                                                   .heads = heads,
                                                   .stride = COLUMNS + 16,
                                                   .out = out};
            all[i]->combine(&combination);
            for (uint32_t at = 0; at < heads * COLUMNS; at++) {
                uint32_t h = at / COLUMNS, c = at % COLUMNS;
                float sum = 0;
                for (uint32_t r = 0; r < 9; r++) {
                    sum = fmaf(x[h * 9 + r], krn_f16_to_float(rows[offsets[r] + c]), sum);
                }
                assert_memory_equal(&out[h * (COLUMNS + 16) + c], &sum, sizeof(float));
            }
        }
    }
}

static void a_softmax_is_added_to_what_is_there(void **state)
{
    (void)state;
    const gpw_products_t *all[4];
    float first[COLUMNS];
    gpw_products_all(all);
    for (uint32_t i = 0; all[i]; i++) {
        float logits[COLUMNS], out[COLUMNS];
        double sum = 0;
        for (uint32_t c = 0; c < COLUMNS; c++) {
            logits[c] = c % 5 == 4 ? -INFINITY : x[c] * 8;
            out[c] = (float)c;
            sum += c % 5 == 4 ? 0 : exp((double)x[c] * 8 * 0.125);
        }
        all[i]->add_softmax(logits, COLUMNS, 0.125f, out);
        for (uint32_t c = 0; c < COLUMNS; c++) {
            double p = c % 5 == 4 ? 0 : exp((double)x[c] * 8 * 0.125) / sum;
            assert_true(fabs(out[c] - c - p) < 1e-5 && (c % 5 != 4 || out[c] == (float)c));
        }
        memcpy(i ? logits : first, out, sizeof(out));
        assert_memory_equal(first, out, sizeof(out));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_products_are_sixteen_lanes_and_a_tree),
        cmocka_unit_test(rows_are_combined_by_a_chain_of_multiply_adds),
        cmocka_unit_test(a_softmax_is_added_to_what_is_there),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
