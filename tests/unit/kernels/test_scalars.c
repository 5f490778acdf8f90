// SPDX-License-Identifier: Apache-2.0
// The scalar pieces against double precision: exp, log, the rotation table, f16 conversion in full,
// the error of a product, and packed weights.
#include <math.h>

#include "tests/unit/kernels/support.h"

static void test_expf_is_exact_to_1e_6_and_flushes_tiny_results(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32;
         bits += 1009) { // every 1009th float of both signs
        uint32_t word = (uint32_t)bits;
        float x, y;
        memcpy(&x, &word, 4);
        if (isnan(x))
            continue;
        y = krn_expf(x);
        double exact = exp((double)x);
        if (x < -87.3f)
            assert_true(y == 0.0f);
        else if (x > 88.72283f)
            assert_true(y == INFINITY);
        else if (fabs(y - exact) > 1e-6 * exact)
            fail_msg("exp(%a) is %a, not %a", (double)x, (double)y, exact);
    }
    assert_true(krn_expf(0.0f) == 1.0f && krn_expf(-0.0f) == 1.0f);
    assert_true(krn_expf(-INFINITY) == 0.0f && krn_expf(INFINITY) == INFINITY);
    assert_true(isfinite(krn_expf(88.72283f)));
    assert_true(krn_expf(-87.3f) >= 1.17549435e-38f);
}

static void test_logf_is_exact_to_2e_7(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 1009) { // subnormal numbers too
        float x, y;
        memcpy(&x, &bits, 4);
        y = krn_logf(x);
        double exact = log((double)x);
        if (fabs(y - exact) > 2e-7 * fmax(1.0, fabs(exact)))
            fail_msg("log(%a) is %a, not %a", (double)x, (double)y, exact);
    }
    assert_true(krn_logf(1.0f) == 0.0f);
    assert_true(krn_logf(0.0f) == -INFINITY && krn_logf(INFINITY) == INFINITY);
    assert_true(isnan(krn_logf(-1.0f)));
}

static void test_the_rotation_table_is_sine_and_cosine_rounded_to_float(void **state)
{
    enum { DIM = 64, CHUNK = 64 };
    static const uint32_t firsts[] = {0, 8000, 131000, 1000000};
    double inv_freq[DIM / 2];
    float factor = 1.25f;

    (void)state;
    for (int i = 0; i < DIM / 2; i++)
        inv_freq[i] = pow(10000.0, -2.0 * i / DIM);
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        float *table = as_mem_alloc(((size_t)firsts[f] + CHUNK) * DIM * sizeof(float));
        assert_non_null(table);
        krn_rope_fill(table, DIM, inv_freq, factor, firsts[f], CHUNK);
        for (uint32_t p = firsts[f]; p < firsts[f] + CHUNK; p++)
            for (uint32_t i = 0; i < DIM / 2; i++) {
                const float *pair = table + (size_t)p * DIM + 2 * (size_t)i;
                assert_true(fabs(pair[0] - factor * cos(p * inv_freq[i])) < 8e-8);
                assert_true(fabs(pair[1] - factor * sin(p * inv_freq[i])) < 8e-8);
            }
        as_mem_free(table);
    }
}

static void test_every_half_survives_the_way_to_float_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float value = krn_f16_to_float((uint16_t)h);
        uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
        double exact = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(value) : isinf(value));
        } else {
            assert_true(value == (h & 0x8000 ? -exact : exact));
            assert_int_equal(signbit(value) != 0, h >> 15);
        }
        if (!isnan(value))
            assert_int_equal(krn_f16_from_float(value), h);
    }
}

static void test_floats_round_to_the_nearest_half_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff;
         h++) { // between each half and the next: below, at and above the middle
        float low = krn_f16_to_float((uint16_t)h), high = krn_f16_to_float((uint16_t)(h + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(krn_f16_from_float(nextafterf(middle, low)), h);
        assert_int_equal(krn_f16_from_float(middle), h % 2 ? h + 1 : h);
        assert_int_equal(krn_f16_from_float(nextafterf(middle, high)), h + 1);
        assert_int_equal(krn_f16_from_float(-middle), (h % 2 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(krn_f16_from_float(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(krn_f16_from_float(65520.0f), 0x7c00);
    assert_int_equal(krn_f16_from_float(1e-30f), 0);
    assert_int_equal(krn_f16_from_float(-1e-30f), 0x8000);
}

static void test_a_product_errs_by_less_than_k_roundings(void **state)
{
    enum { K = 1536, N = 16 };
    krn_pool_t *pool;
    krn_weight_t weight = {.type = KRN_WEIGHT_F32, .n = N, .k = K};
    float *source = random_floats((size_t)N * K), *x = random_floats(K), out[N];

    (void)state;
    assert_int_equal(krn_pool_alloc(1, &pool), AS_OK);
    weight.data = as_mem_aligned(64, krn_weight_bytes(weight.type, N, K));
    krn_weight_pack(&weight, 0, N, source);
    krn_reference()->matmul(pool, &weight, x, 1, out);
    for (int n = 0; n < N; n++) {
        double exact = 0, magnitude = 0;
        for (int k = 0; k < K; k++) {
            exact += (double)x[k] * source[n * K + k];
            magnitude += fabs((double)x[k] * source[n * K + k]);
        }
        assert_true(fabs(out[n] - exact) <= K * 0x1p-24 * magnitude);
    }
    krn_pool_free(pool);
    as_mem_free(weight.data);
    as_mem_free(source);
    as_mem_free(x);
}

static void test_rows_packed_in_parts_unpack_to_their_rounded_values(void **state)
{
    enum { N = 35, K = 19 };
    float *source = random_floats(N * K), row[K];

    (void)state;
    for (int type = KRN_WEIGHT_F16; type <= KRN_WEIGHT_F32; type++) {
        krn_weight_t weight = {.type = (krn_weight_type_t)type, .n = N, .k = K};
        size_t bytes = krn_weight_bytes(weight.type, N, K);
        assert_int_equal(bytes, 48 * K * (type == KRN_WEIGHT_F16 ? 2 : 4));
        weight.data = as_mem_zalloc(1, bytes);
        krn_weight_pack(&weight, 0, 32, source);
        krn_weight_pack(&weight, 32, 1, source + 32 * K);
        krn_weight_pack(&weight, 33, 2, source + 33 * K);
        for (uint32_t n = 0; n < N; n++) {
            krn_weight_row(&weight, n, row);
            for (int k = 0; k < K; k++) {
                float expected = source[n * K + (uint32_t)k];
                if (type == KRN_WEIGHT_F16)
                    expected = krn_f16_to_float(krn_f16_from_float(expected));
                assert_memory_equal(&expected, &row[k], sizeof(float));
            }
        }
        as_mem_free(weight.data);
    }
    as_mem_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expf_is_exact_to_1e_6_and_flushes_tiny_results),
        cmocka_unit_test(test_logf_is_exact_to_2e_7),
        cmocka_unit_test(test_the_rotation_table_is_sine_and_cosine_rounded_to_float),
        cmocka_unit_test(test_every_half_survives_the_way_to_float_and_back),
        cmocka_unit_test(test_floats_round_to_the_nearest_half_and_ties_to_even),
        cmocka_unit_test(test_a_product_errs_by_less_than_k_roundings),
        cmocka_unit_test(test_rows_packed_in_parts_unpack_to_their_rounded_values),
    };
    return cmocka_run_group_tests(tests, seed_setup, NULL);
}
