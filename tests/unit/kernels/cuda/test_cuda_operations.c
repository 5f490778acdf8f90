// SPDX-License-Identifier: Apache-2.0
// Every CUDA operation but attention gives the bits of reference.c, over random shapes that reach
// every kernel and the rests of every tile.
#include <math.h>

#include "tests/unit/kernels/cuda/cuda_support.h"

static void check_matmul_of(krn_weight_type_t type, const float *source, const float *x,
                            const uint32_t shape[3])
{
    uint32_t rows = shape[0], n = shape[1], k = shape[2];
    size_t bytes = krn_weight_bytes(type, n, k);
    krn_weight_t weight = {.type = type, .n = n, .k = k, .data = as_mem_aligned(64, bytes + 64)};
    float *expected = random_floats((size_t)rows * n);
    char what[128];

    assert_non_null(weight.data);
    memset(weight.data, 0, bytes);
    krn_weight_pack(&weight, 0, n, source);
    krn_reference()->matmul(NULL, &weight, x, rows, expected);
    krn_weight_t on_device = weight;
    on_device.data = to_device(weight.data, bytes);
    float *x_device = floats_to_device(x, (size_t)rows * k);
    float *out = device_memory((size_t)rows * n * sizeof(float));
    assert_int_equal(krn_cuda_matmul(stream, &on_device, x_device, rows, out), AS_OK);
    snprintf(what, sizeof what, "matmul of type %d, %u x %u x %u", (int)type, rows, n, k);
    assert_device_floats(expected, out, (size_t)rows * n, what);
    as_mem_free(weight.data);
    as_mem_free(expected);
}

static void check_matmul(krn_weight_type_t type, uint32_t rows, uint32_t n, uint32_t k)
{
    const uint32_t shape[3] = {rows, n, k};
    float *source = random_floats((size_t)n * k), *x = random_floats((size_t)rows * k);

    check_matmul_of(type, source, x, shape);
    as_mem_free(source);
    as_mem_free(x);
}

static void test_matmul_gives_the_bits_of_the_reference(void **state)
{
    static const krn_weight_type_t types[] = {KRN_WEIGHT_F16, KRN_WEIGHT_F32};

    (void)state;
    for (int t = 0; t < 2; t++) {
        for (uint32_t rows = 1; rows <= 40; rows += rows < 10 ? 1 : 5)
            check_matmul(types[t], rows, 1 + random_below(150), 1 + random_below(80));
        for (uint32_t k = 31; k <= 33; k++) // around a tile of many rows
            check_matmul(types[t], 12, 65, k);
        for (uint32_t k = 127; k <= 129; k++) // around tiles of few rows: 128 of f32, 256 of f16
            check_matmul(types[t], 3, 17, k * (t == 0 ? 2 : 1));
        check_matmul(types[t], 1, 1, 1);
        check_matmul(types[t], 8, 16, 600);
        check_matmul(types[t], 33, 64, 64);
        check_matmul(types[t], 65, 66, 70); // over a block in both ways
        if (device_is_emulated)
            continue;
        check_matmul(types[t], 1, 4096, 4096);
        check_matmul(types[t], 300, 1000, 1500);
    }
}

// A chain that underflows ends at -0, and one product of padding zeros would make it +0.
static void test_matmul_keeps_a_sum_of_minus_zero(void **state)
{
    enum { N = 20, K = 37, ROWS = 40 };
    static const uint32_t rows[] = {3, 20, ROWS};
    float source[N * K], x[ROWS * K];

    (void)state;
    for (int i = 0; i < N * K; i++)
        source[i] = -1e-30f;
    for (int i = 0; i < ROWS * K; i++)
        x[i] = 1e-30f;
    for (int i = 0; i < 3; i++) {
        const uint32_t shape[3] = {rows[i], N, K};
        check_matmul_of(KRN_WEIGHT_F32, source, x, shape);
    }
}

static void test_rows_of_a_weight_are_those_of_the_reference(void **state)
{
    enum { N = 37, K = 50, COUNT = 6 };
    static const krn_weight_type_t types[] = {KRN_WEIGHT_F16, KRN_WEIGHT_F32};
    static const uint32_t ids[COUNT] = {0, 36, 15, 16, 36, 37};
    float *source = random_floats(N * K), expected[COUNT * K] = {0};

    (void)state;
    for (int t = 0; t < 2; t++) {
        size_t bytes = krn_weight_bytes(types[t], N, K);
        krn_weight_t weight = {types[t], N, K, as_mem_zalloc(1, bytes)};
        assert_non_null(weight.data);
        krn_weight_pack(&weight, 0, N, source);
        for (int i = 0; i < COUNT - 1; i++) // the last id does not exist: zeros
            krn_weight_row(&weight, ids[i], expected + i * K);
        krn_weight_t on_device = weight;
        on_device.data = to_device(weight.data, bytes);
        float *out = device_memory(sizeof expected);
        assert_int_equal(
            krn_cuda_weight_rows(stream, &on_device, to_device(ids, sizeof ids), COUNT, out),
            AS_OK);
        assert_device_floats(expected, out, COUNT * K, "rows of a weight");
        as_mem_free(weight.data);
    }
    as_mem_free(source);
}

static void test_rmsnorm_gives_the_bits_of_the_reference(void **state)
{
    static const uint32_t widths[] = {1, 15, 16, 17, 576, 2047, 2048, 2049, 5000};

    (void)state;
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t rows = 1 + random_below(5);
        uint32_t n = round < 9 ? widths[round] : 1 + random_below(300);
        size_t count = (size_t)rows * n;
        float *x = random_floats(count), *weight = random_floats(n);
        float *expected = random_floats(count);
        krn_reference()->rmsnorm(x, weight, rows, n, 1e-5f, expected);
        krn_cuda_rmsnorm_args_t args = {.x = floats_to_device(x, count),
                                        .weight = floats_to_device(weight, n),
                                        .rows = rows,
                                        .n = n,
                                        .eps = 1e-5f,
                                        .out = device_memory(count * sizeof(float))};
        assert_int_equal(krn_cuda_rmsnorm(stream, &args), AS_OK);
        assert_device_floats(expected, args.out, count, "rmsnorm");
        args.out = (float *)args.x;
        assert_int_equal(krn_cuda_rmsnorm(stream, &args), AS_OK);
        assert_device_floats(expected, args.out, count, "rmsnorm in place");
        as_mem_free(x);
        as_mem_free(weight);
        as_mem_free(expected);
    }
}

static void check_rope(uint32_t dim, uint32_t rope_dim, int neox)
{
    enum { ROWS = 5, HEADS = 3, POSITIONS = 40 };
    size_t count = (size_t)ROWS * HEADS * dim;
    float *table = random_floats((size_t)POSITIONS * rope_dim), *x = random_floats(count);
    int32_t positions[ROWS];
    krn_rope_t rope = {rope_dim, neox, POSITIONS, table};

    for (int r = 0; r < ROWS; r++)
        positions[r] = (int32_t)random_below(POSITIONS);
    krn_cuda_rope_args_t args = {.x = floats_to_device(x, count),
                                 .rows = ROWS,
                                 .heads = HEADS,
                                 .dim = dim,
                                 .rope = rope,
                                 .positions = to_device(positions, sizeof positions)};
    args.rope.cos_sin = floats_to_device(table, (size_t)POSITIONS * rope_dim);
    krn_reference()->rope(x, ROWS, HEADS, dim, &rope, positions);
    assert_int_equal(krn_cuda_rope(stream, &args), AS_OK);
    assert_device_floats(x, args.x, count, neox ? "rope of halves" : "rope of neighbours");
    as_mem_free(table);
    as_mem_free(x);
}

static void test_rope_gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t dim = 16 * (1 + random_below(16));
        check_rope(dim, round % 2 ? dim : 2 * (1 + random_below(dim / 2)), (int)(round / 2 % 2));
    }
}

static void check_swiglu_and_add(float *a, const float *b, size_t count)
{
    float *expected = random_floats(count), *out = device_memory(count * sizeof(float));
    float *a_device = floats_to_device(a, count), *b_device = floats_to_device(b, count);

    krn_reference()->swiglu(a, b, count, expected);
    assert_int_equal(krn_cuda_swiglu(stream, a_device, b_device, count, out), AS_OK);
    assert_device_floats(expected, out, count, "swiglu");
    krn_reference()->add(a, b, count);
    assert_int_equal(krn_cuda_add(stream, a_device, b_device, count), AS_OK);
    assert_device_floats(a, a_device, count, "add");
    as_mem_free(expected);
}

static void test_swiglu_and_add_give_the_bits_of_the_reference(void **state)
{
    // Around where exp leaves the normal range, and beyond.
    static const float edges[] = {-90.0f,     -88.7229f, -88.72283f, -88.0f, 87.29f, 87.3f,
                                  87.300007f, 88.0f,     90.0f,      1e30f,  -1e30f, 0.0f,
                                  -0.0f,      1e-40f,    -1e-40f,    127.5f};
    enum { EDGES = sizeof edges / sizeof *edges };

    (void)state;
    for (uint32_t round = 0; round < 10; round++) {
        size_t count = EDGES + random_below(700);
        float *a = random_floats(count), *b = random_floats(count);
        for (size_t i = 0; i < count; i++)
            a[i] = i < EDGES ? edges[i] : a[i] * 20.0f;
        check_swiglu_and_add(a, b, count);
        as_mem_free(a);
        as_mem_free(b);
    }
}

static void test_every_half_becomes_the_float_of_the_reference(void **state)
{
    enum { COUNT = 0x7c01 * 2 }; // all but NaNs
    krn_f16 *halves = random_halves(COUNT);
    float *expected = random_floats(COUNT), *out = device_memory(COUNT * sizeof(float));

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++)
        halves[i] = (krn_f16)(i / 2 | (i % 2) << 15);
    krn_reference()->f16_to_f32(halves, COUNT, expected);
    krn_f16 *in = to_device(halves, COUNT * sizeof(krn_f16));
    assert_int_equal(krn_cuda_f16_to_f32(stream, in, COUNT, out), AS_OK);
    assert_device_floats(expected, out, COUNT, "f16 to f32");
    as_mem_free(halves);
    as_mem_free(expected);
}

// The values half way between neighbours, one bit beside them, and random bits.
static void test_floats_round_to_the_halves_of_the_reference(void **state)
{
    enum { COUNT = 0x7c00 * 3 };
    float *values = random_floats(COUNT);
    krn_f16 *expected = random_halves(COUNT), *actual = random_halves(COUNT);
    krn_f16 *out = device_memory(COUNT * sizeof(krn_f16));

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t kind = random_below(4), bits = random_u32();
        float low = krn_f16_to_float((krn_f16)(i / 3));
        float high = i / 3 == 0x7bff ? 65536.0f : krn_f16_to_float((krn_f16)(i / 3 + 1));
        values[i] = low + (high - low) / 2;
        if (kind == 3 && (bits & 0x7f800000u) != 0x7f800000u)
            memcpy(&values[i], &bits, 4);
        else if (kind != 3)
            values[i] = kind == 0 ? values[i] : nextafterf(values[i], kind == 1 ? 0.0f : 1e6f);
    }
    krn_reference()->f32_to_f16(values, COUNT, expected);
    assert_int_equal(krn_cuda_f32_to_f16(stream, floats_to_device(values, COUNT), COUNT, out),
                     AS_OK);
    from_device(actual, out, COUNT * sizeof(krn_f16));
    for (uint32_t i = 0; i < COUNT; i++)
        if (expected[i] != actual[i])
            fail_msg("%a became half %x, not %x", (double)values[i], actual[i], expected[i]);
    as_mem_free(values);
    as_mem_free(expected);
    as_mem_free(actual);
}

static void test_shapes_beyond_the_rules_are_refused(void **state)
{
    krn_weight_t weight = {.type = (krn_weight_type_t)3, .n = 16, .k = 16};
    krn_cuda_rope_args_t rope = {.rows = 1, .heads = 1, .dim = 16, .rope = {.dim = 32}};
    krn_attention_args_t args = {.rows = 1, .q_heads = 2, .kv_heads = 1, .capacity = 16};
    krn_partials_t io = {0};

    (void)state;
    assert_int_equal(krn_cuda_matmul(stream, &weight, NULL, 1, NULL), AS_ERR_INVALID);
    weight.type = KRN_WEIGHT_F16;
    assert_int_equal(krn_cuda_matmul(stream, &weight, NULL, UINT32_MAX, NULL), AS_ERR_LIMIT);
    assert_int_equal(krn_cuda_matmul(stream, &weight, NULL, 0, NULL), AS_OK);
    assert_int_equal(krn_cuda_rope(stream, &rope), AS_ERR_INVALID);
    static const uint32_t dims[] = {0, 24, 272};
    for (int i = 0; i < 3; i++) {
        args.dim = dims[i];
        assert_int_equal(krn_cuda_attention_run(stream, &args, &io), AS_ERR_INVALID);
        assert_int_equal(krn_cuda_attention_workspace_bytes(&args, 4), 0);
    }
    args.dim = 64;
    args.capacity = KRN_PAGE_TOKENS_MAX + 1;
    assert_int_equal(krn_cuda_attention_run(stream, &args, &io), AS_ERR_INVALID);
    args.capacity = 16;
    krn_cuda_attention_args_t attention = {.args = args,
                                           .run_count = 2}; // two runs want a workspace
    assert_int_equal(krn_cuda_attention(stream, &attention), AS_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_matmul_gives_the_bits_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_matmul_keeps_a_sum_of_minus_zero, device_sweep),
        cmocka_unit_test_teardown(test_rows_of_a_weight_are_those_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_rmsnorm_gives_the_bits_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_rope_gives_the_bits_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_swiglu_and_add_give_the_bits_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_every_half_becomes_the_float_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_floats_round_to_the_halves_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_shapes_beyond_the_rules_are_refused, device_sweep),
    };
    int missing = device_missing();

    return missing ? missing : cmocka_run_group_tests(tests, device_setup, device_teardown);
}
