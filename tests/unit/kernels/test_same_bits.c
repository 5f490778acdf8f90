// SPDX-License-Identifier: Apache-2.0
// Every operation of every implementation that this processor runs gives the bits of reference.c,
// over random shapes that reach every branch: short rows and panels, every tile height, k around
// the blocking, one and more threads.
#include "tests/unit/kernels/pools.h"

static krn_weight_t random_weight(krn_weight_type_t type, uint32_t n, uint32_t k)
{
    krn_weight_t weight = {.type = type, .n = n, .k = k};
    float *source = random_floats((size_t)n * k);

    weight.data = as_mem_aligned(64, krn_weight_bytes(type, n, k));
    assert_non_null(weight.data);
    memset(weight.data, 0, krn_weight_bytes(type, n, k));
    krn_weight_pack(&weight, 0, n, source);
    as_mem_free(source);
    return weight;
}

static void check_matmul(const krn_ops_t *ops, krn_weight_type_t type, uint32_t rows, uint32_t n,
                         uint32_t k)
{
    char what[128];
    krn_weight_t weight = random_weight(type, n, k);
    float *x = random_floats((size_t)rows * k);
    float *expected = random_floats((size_t)rows * n),
          *actual = random_floats((size_t)rows * n + 1);
    float guard = actual[(size_t)rows * n] = 12345.0f;

    krn_reference()->matmul(pools[0], &weight, x, rows, expected);
    ops->matmul(pools[random_below(3)], &weight, x, rows, actual);
    snprintf(what, sizeof what, "%s matmul of type %d, %u x %u x %u", ops->name, (int)type, rows, n,
             k);
    assert_same_bits(expected, actual, (size_t)rows * n, what);
    assert_true(actual[(size_t)rows * n] == guard);
    as_mem_free(x);
    as_mem_free(expected);
    as_mem_free(actual);
    as_mem_free(weight.data);
}

static void test_matmul_gives_the_bits_of_the_reference(void **state)
{
    const krn_ops_t *list[3];
    size_t count = implementations(list);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t rows = 1; rows <= 40; rows++) {
            krn_weight_type_t type = rows % 2 ? KRN_WEIGHT_F16 : KRN_WEIGHT_F32;
            check_matmul(list[i], type, rows, 1 + random_below(200), 1 + random_below(80));
            check_matmul(list[i], type == KRN_WEIGHT_F16 ? KRN_WEIGHT_F32 : KRN_WEIGHT_F16, rows,
                         1 + random_below(80), 1 + random_below(40));
        }
        for (uint32_t k = 190; k <= 194; k++) // around one block of k
            check_matmul(list[i], KRN_WEIGHT_F16, 17, 50, k);
        check_matmul(list[i], KRN_WEIGHT_F16, 1, 1, 1);
        check_matmul(list[i], KRN_WEIGHT_F16, 129, 49, 385); // over the block of rows
        check_matmul(list[i], KRN_WEIGHT_F32, 300, 33, 31);
        check_matmul(list[i], KRN_WEIGHT_F16, 1, 3000, 31);
    }
}

static void test_rmsnorm_gives_the_bits_of_the_reference(void **state)
{
    const krn_ops_t *list[3];
    size_t count = implementations(list);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t round = 0; round < 100; round++) {
            uint32_t rows = 1 + random_below(5), n = 1 + random_below(round < 50 ? 70 : 1200);
            float *x = random_floats((size_t)rows * n), *weight = random_floats(n);
            float *expected = random_floats((size_t)rows * n),
                  *actual = random_floats((size_t)rows * n);
            krn_reference()->rmsnorm(x, weight, rows, n, 1e-5f, expected);
            list[i]->rmsnorm(x, weight, rows, n, 1e-5f, actual);
            assert_same_bits(expected, actual, (size_t)rows * n, "rmsnorm");
            list[i]->rmsnorm(x, weight, rows, n, 1e-5f, x);
            assert_same_bits(expected, x, (size_t)rows * n, "rmsnorm in place");
            as_mem_free(x);
            as_mem_free(weight);
            as_mem_free(expected);
            as_mem_free(actual);
        }
    }
}

static void check_rope(const krn_ops_t *ops, uint32_t dim, uint32_t rope_dim, int neox)
{
    enum { ROWS = 5, HEADS = 3, POSITIONS = 40 };
    double inv_freq[KRN_HEAD_DIM_MAX / 2];
    int32_t positions[ROWS];
    float *table = random_floats((size_t)POSITIONS * rope_dim);
    float *x = random_floats((size_t)ROWS * HEADS * dim);
    float *expected = copy_floats(x, (size_t)ROWS * HEADS * dim);
    krn_rope_t rope = {
        .dim = rope_dim, .neox = neox, .position_count = POSITIONS, .cos_sin = table};

    for (uint32_t i = 0; i < rope_dim / 2; i++)
        inv_freq[i] = 1.0 / (1.0 + i);
    krn_rope_fill(table, rope_dim, inv_freq, 1.0f, 0, POSITIONS);
    for (int r = 0; r < ROWS; r++)
        positions[r] = (int32_t)random_below(POSITIONS);
    krn_reference()->rope(expected, ROWS, HEADS, dim, &rope, positions);
    ops->rope(x, ROWS, HEADS, dim, &rope, positions);
    assert_same_bits(expected, x, (size_t)ROWS * HEADS * dim,
                     neox ? "rope of halves" : "rope of neighbours");
    as_mem_free(table);
    as_mem_free(x);
    as_mem_free(expected);
}

static void test_rope_gives_the_bits_of_the_reference(void **state)
{
    const krn_ops_t *list[3];
    size_t count = implementations(list);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (uint32_t round = 0; round < 60; round++) {
            uint32_t dim = 16 * (1 + random_below(16));
            uint32_t rope_dim = round % 2 ? dim : 2 * (1 + random_below(dim / 2));
            check_rope(list[i], dim, rope_dim, (int)(round / 2 % 2));
        }
}

static void check_elements(const krn_ops_t *ops, size_t count)
{
    float *a = random_floats(count), *b = random_floats(count);
    float *expected = random_floats(count), *actual = random_floats(count);
    krn_f16 *halves = random_halves(count), *expected_halves = random_halves(count);

    for (size_t i = 0; i < count; i++)
        a[i] *= random_below(4) == 0 ? 200.0f : 10.0f; // both ends of exp
    krn_reference()->swiglu(a, b, count, expected);
    ops->swiglu(a, b, count, actual);
    assert_same_bits(expected, actual, count, "swiglu");
    krn_reference()->f32_to_f16(a, count, expected_halves);
    ops->f32_to_f16(a, count, halves);
    assert_memory_equal(expected_halves, halves, count * sizeof(krn_f16));
    krn_reference()->f16_to_f32(halves, count, expected);
    ops->f16_to_f32(halves, count, actual);
    assert_same_bits(expected, actual, count, "f16_to_f32");
    memcpy(expected, a, count * sizeof(float));
    krn_reference()->add(expected, b, count);
    ops->add(a, b, count);
    assert_same_bits(expected, a, count, "add");
    as_mem_free(a);
    as_mem_free(b);
    as_mem_free(expected);
    as_mem_free(actual);
    as_mem_free(halves);
    as_mem_free(expected_halves);
}

static void test_elementwise_operations_give_the_bits_of_the_reference(void **state)
{
    const krn_ops_t *list[3];
    size_t count = implementations(list);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (size_t n = 1; n < 100; n++)
            check_elements(list[i], n < 50 ? n : n * 37);
}

static void test_conversion_of_any_float_gives_the_bits_of_the_reference(void **state)
{
    enum { COUNT = 1 << 16 };
    const krn_ops_t *list[3];
    size_t count = implementations(list);
    float *values = random_floats(COUNT), *widened = random_floats(COUNT),
          *expected = random_floats(COUNT);
    krn_f16 *halves = random_halves(COUNT), *expected_halves = random_halves(COUNT);

    (void)state;
    for (size_t round = 0; round < 16; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            uint32_t bits = random_u32(); // NaNs and infinities among them
            if (i % 2)                    // near the range of halves, and near ties
                bits = (bits & 0x80003000u) | ((90 + random_below(60)) << 23) |
                       (bits & 0x7fffffu & (uint32_t)-4096);
            memcpy(&values[i], &bits, 4);
        }
        krn_reference()->f32_to_f16(values, COUNT, expected_halves);
        for (size_t i = 0; i < count; i++) {
            list[i]->f32_to_f16(values, COUNT, halves);
            assert_memory_equal(expected_halves, halves, COUNT * sizeof(krn_f16));
        }
    }
    for (uint32_t h = 0; h < COUNT; h++)
        halves[h] = (krn_f16)h;
    krn_reference()->f16_to_f32(halves, COUNT, expected);
    for (size_t i = 0; i < count; i++) {
        list[i]->f16_to_f32(halves, COUNT, widened);
        assert_memory_equal(expected, widened, COUNT * sizeof(float));
    }
    as_mem_free(values);
    as_mem_free(widened);
    as_mem_free(expected);
    as_mem_free(halves);
    as_mem_free(expected_halves);
}

static krn_partials_t random_partials(uint32_t count, uint32_t dim)
{
    krn_partials_t partials = {random_floats((size_t)count * dim), random_floats(count),
                               random_floats(count)};

    for (uint32_t i = 0; i < count; i++) {
        krn_partials_t one = {partials.out + (size_t)i * dim, partials.max + i, partials.sum + i};
        if (random_below(4) == 0)
            krn_partials_clear(&one, 1, dim);
        else
            *one.max = *one.max * 100.0f + 0.0f;
    }
    return partials;
}

static void free_partials(krn_partials_t *partials)
{
    as_mem_free(partials->out);
    as_mem_free(partials->max);
    as_mem_free(partials->sum);
}

static void check_merge(const krn_ops_t *ops, uint32_t count, uint32_t dim)
{
    size_t floats = (size_t)count * dim;
    krn_partials_t a = random_partials(count, dim), b = random_partials(count, dim);
    krn_partials_t expected = {copy_floats(a.out, floats), copy_floats(a.max, count),
                               copy_floats(a.sum, count)};
    float *normal = random_floats(floats), *expected_normal = random_floats(floats);

    krn_reference()->merge(&expected, &b, count, dim);
    ops->merge(&a, &b, count, dim);
    assert_same_bits(expected.out, a.out, floats, "merge out");
    assert_same_bits(expected.max, a.max, count, "merge max");
    assert_same_bits(expected.sum, a.sum, count, "merge sum");
    krn_reference()->normalise(&expected, count, dim, expected_normal);
    ops->normalise(&expected, count, dim, normal);
    assert_same_bits(expected_normal, normal, floats, "normalise");
    free_partials(&a);
    free_partials(&b);
    free_partials(&expected);
    as_mem_free(normal);
    as_mem_free(expected_normal);
}

static void test_merge_and_normalise_give_the_bits_of_the_reference(void **state)
{
    const krn_ops_t *list[3];
    size_t count = implementations(list);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (uint32_t round = 0; round < 50; round++)
            check_merge(list[i], 1 + random_below(20), 16 * (1 + random_below(16)));
}

static void test_unknown_names_give_no_implementation(void **state)
{
    (void)state;
    assert_null(krn_cpu_named("sse9"));
    assert_string_equal(krn_cpu_named("portable")->name, "portable");
    assert_string_equal(krn_cpu_named("reference")->name, "reference");
    setenv("ASSAY_KERNELS", "portable", 1);
    assert_string_equal(krn_cpu()->name, "portable");
    setenv("ASSAY_KERNELS", "sse9", 1);
    assert_null(krn_cpu());
    unsetenv("ASSAY_KERNELS");
    assert_non_null(krn_cpu());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_gives_the_bits_of_the_reference),
        cmocka_unit_test(test_rmsnorm_gives_the_bits_of_the_reference),
        cmocka_unit_test(test_rope_gives_the_bits_of_the_reference),
        cmocka_unit_test(test_elementwise_operations_give_the_bits_of_the_reference),
        cmocka_unit_test(test_conversion_of_any_float_gives_the_bits_of_the_reference),
        cmocka_unit_test(test_merge_and_normalise_give_the_bits_of_the_reference),
        cmocka_unit_test(test_unknown_names_give_no_implementation),
    };
    return cmocka_run_group_tests(tests, pools_setup, pools_teardown);
}
