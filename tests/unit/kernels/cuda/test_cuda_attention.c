// SPDX-License-Identifier: Apache-2.0
// CUDA attention gives the bits of reference.c: a run folded piece by piece, whole contexts in each
// of the ways that the launcher chooses between, and the operations on partials.
#include <math.h>

#include "tests/unit/kernels/cuda/cuda_support.h"

typedef struct shape {
    uint32_t rows, group, kv_heads, dim, capacity, pages;
    uint32_t gap_max; // up to so many pages are left out before each
    uint32_t spread;  // or just so many
} shape_t;

// A random problem that owns its host memory, and the same on the device.
typedef struct problem {
    krn_attention_args_t args, on_device;
    uint32_t *starts;
    uint32_t runs;
    uint32_t pairs;
    size_t floats;
} problem_t;

static void problem_pages(problem_t *p, const shape_t *shape, krn_page_t *pages)
{
    size_t half = (size_t)shape->kv_heads * shape->capacity * shape->dim;
    krn_page_t *on_device = as_mem_zalloc(shape->pages + 1, sizeof *on_device);
    uint32_t index = 0;

    assert_non_null(on_device);
    for (uint32_t i = 0; i < shape->pages; i++, index++) {
        krn_f16 *keys_values = random_halves(2 * half);
        krn_f16 *copy = to_device(keys_values, 2 * half * sizeof(krn_f16));
        index += shape->spread + random_below(shape->gap_max + 1);
        pages[i] = (krn_page_t){keys_values, keys_values + half, index};
        on_device[i] = (krn_page_t){copy, copy + half, index};
    }
    p->args.pages = pages;
    p->on_device.pages = to_device(on_device, (shape->pages + 1) * sizeof *on_device);
    as_mem_free(on_device);
}

static problem_t problem_make(shape_t shape)
{
    problem_t p = {.pairs = shape.rows * shape.group * shape.kv_heads};
    krn_page_t *pages = as_mem_zalloc(shape.pages + 1, sizeof *pages);
    int32_t *positions = as_mem_zalloc(shape.rows, sizeof *positions);
    float *q = random_floats((size_t)p.pairs * shape.dim);

    assert_non_null(pages);
    assert_non_null(positions);
    p.floats = (size_t)p.pairs * shape.dim;
    p.args = (krn_attention_args_t){.rows = shape.rows,
                                    .q_heads = shape.group * shape.kv_heads,
                                    .kv_heads = shape.kv_heads,
                                    .dim = shape.dim,
                                    .capacity = shape.capacity,
                                    .scale = 4.0f / sqrtf((float)shape.dim),
                                    .q = q,
                                    .positions = positions,
                                    .page_count = shape.pages};
    p.on_device = p.args;
    problem_pages(&p, &shape, pages);
    uint32_t end = shape.pages > 0 ? (pages[shape.pages - 1].index + 1) * shape.capacity : 1;
    for (uint32_t r = 0; r < shape.rows; r++) // the last row sees all, the others a random part
        positions[r] = (int32_t)(r + 1 == shape.rows ? end - 1 : random_below(end));
    p.on_device.q = floats_to_device(q, p.floats);
    p.on_device.positions = to_device(positions, shape.rows * sizeof *positions);
    p.starts = as_mem_zalloc(shape.pages + 1, sizeof *p.starts);
    assert_non_null(p.starts);
    p.runs = krn_cuda_runs(pages, shape.pages, p.starts);
    return p;
}

static void problem_free(problem_t *p)
{
    for (uint32_t i = 0; i < p->args.page_count; i++)
        as_mem_free((void *)p->args.pages[i].k);
    as_mem_free((void *)p->args.pages);
    as_mem_free((void *)p->args.positions);
    as_mem_free((void *)p->args.q);
    as_mem_free(p->starts);
}

static void expect_attention(const krn_attention_args_t *args, float *out, float *lse)
{
    void *scratch = as_mem_alloc(krn_attention_scratch_bytes(args->rows, args->q_heads, args->dim));
    krn_pool_t *pool = NULL;

    assert_non_null(scratch);
    assert_int_equal(krn_pool_alloc(1, &pool), AS_OK);
    krn_attention(krn_reference(), pool, args, out, lse, scratch);
    krn_pool_free(pool);
    as_mem_free(scratch);
}

// Returns the bytes of workspace: 0 tells that the blocks went through the runs themselves.
static size_t check_attention(shape_t shape)
{
    problem_t p = problem_make(shape);
    float *expected = random_floats(p.floats), *expected_lse = random_floats(p.pairs);
    size_t bytes = krn_cuda_attention_workspace_bytes(&p.on_device, p.runs);
    krn_cuda_attention_args_t attention = {.args = p.on_device,
                                           .run_starts =
                                               to_device(p.starts, (p.runs + 1) * sizeof *p.starts),
                                           .run_count = p.runs,
                                           .out = device_memory(p.floats * sizeof(float)),
                                           .lse = device_memory(p.pairs * sizeof(float)),
                                           .workspace = bytes > 0 ? device_memory(bytes) : NULL};
    char what[128];

    snprintf(what, sizeof what, "%u rows, %u x %u heads of %u, %u pages of %u in %u runs",
             shape.rows, shape.kv_heads, shape.group, shape.dim, shape.pages, shape.capacity,
             p.runs);
    expect_attention(&p.args, expected, expected_lse);
    assert_int_equal(krn_cuda_attention(stream, &attention), AS_OK);
    assert_device_floats(expected, attention.out, p.floats, what);
    assert_device_floats(expected_lse, attention.lse, p.pairs, what);
    if (p.pairs < 50) {
        attention.lse = NULL;
        attention.out = device_memory(p.floats * sizeof(float));
        assert_int_equal(krn_cuda_attention(stream, &attention), AS_OK);
        assert_device_floats(expected, attention.out, p.floats, "attention without lse");
    }
    as_mem_free(expected);
    as_mem_free(expected_lse);
    problem_free(&p);
    return bytes;
}

static void test_attention_gives_the_bits_of_the_reference(void **state)
{
    static const uint32_t capacities[] = {1, 5, 16, 24, 32, 33, 64, 100};
    static const uint32_t dims[] = {64, 80, 128, 16, 256};

    for (uint32_t round = 0; round < 40; round++) {
        shape_t shape = {.rows = 1 + random_below(round % 4 == 0 ? 12 : 4),
                         .group = 1 + random_below(5),
                         .kv_heads = 1 + random_below(3),
                         .dim = dims[round % 5],
                         .capacity = capacities[random_below(8)],
                         .pages = random_below(7),
                         .gap_max = round % 2 ? 20 : 0};
        check_attention(shape);
        device_sweep(state);
    }
}

static void test_the_largest_page_and_head_fit_a_block(void **state)
{
    (void)state;
    check_attention((shape_t){.rows = 2,
                              .group = 3,
                              .kv_heads = 1,
                              .dim = KRN_HEAD_DIM_MAX,
                              .capacity = KRN_PAGE_TOKENS_MAX,
                              .pages = 2});
}

static void test_one_row_over_many_runs_gives_the_bits_of_the_reference(void **state)
{
    shape_t shape = {.rows = 1, .group = 3, .kv_heads = 3, .dim = 64, .capacity = 8, .pages = 100};

    (void)state;
    assert_true(check_attention(shape) > 0);
}

// 2000 pairs: 16 runs to a wave, and there are more.
static void test_runs_in_several_waves_give_the_bits_of_the_reference(void **state)
{
    shape_t shape = {.rows = 500,
                     .group = 4,
                     .kv_heads = 1,
                     .dim = 16,
                     .capacity = 1,
                     .pages = 18,
                     .spread = 16};

    (void)state;
    if (device_is_emulated && getenv("ASSAY_TEST_SANITIZED") && !getenv("ASSAY_TEST_FULL"))
        skip(); // half a million emulated threads
    assert_true(check_attention(shape) > 0);
}

static void test_many_rows_go_through_the_runs_in_their_block(void **state)
{
    shape_t shape = {
        .rows = 300, .group = 4, .kv_heads = 2, .dim = 16, .capacity = 4, .pages = 8, .gap_max = 8};

    (void)state;
    assert_true(check_attention(shape) == 0);
    if (!device_is_emulated)
        check_attention((shape_t){
            .rows = 512, .group = 4, .kv_heads = 8, .dim = 128, .capacity = 16, .pages = 64});
}

static krn_partials_t partials_to_device(const krn_partials_t *host, uint32_t count, uint32_t dim)
{
    krn_partials_t device = {floats_to_device(host->out, (size_t)count * dim),
                             floats_to_device(host->max, count),
                             floats_to_device(host->sum, count)};

    return device;
}

static void assert_device_partials(const krn_partials_t *expected, const krn_partials_t *device,
                                   const uint32_t shape[2], const char *what)
{
    assert_device_floats(expected->out, device->out, (size_t)shape[0] * shape[1], what);
    assert_device_floats(expected->max, device->max, shape[0], what);
    assert_device_floats(expected->sum, device->sum, shape[0], what);
}

static krn_partials_t partials_random(uint32_t count, uint32_t dim)
{
    krn_partials_t partials = {random_floats((size_t)count * dim), random_floats(count),
                               random_floats(count)};

    for (uint32_t i = 0; i < count; i++) {
        krn_partials_t one = {partials.out + (size_t)i * dim, partials.max + i, partials.sum + i};
        partials.max[i] *= 30.0f;
        partials.sum[i] = 1.0f + fabsf(partials.sum[i]);
        if (random_below(3) == 0)
            krn_partials_clear(&one, 1, dim);
    }
    return partials;
}

static void partials_free(krn_partials_t *partials)
{
    as_mem_free(partials->out);
    as_mem_free(partials->max);
    as_mem_free(partials->sum);
}

static void test_a_run_handed_over_in_pieces_gives_the_bits_of_the_reference(void **state)
{
    static const uint32_t dims[] = {64, 80, 128};

    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        shape_t shape = {.rows = 1 + random_below(6),
                         .group = 1 + random_below(4),
                         .kv_heads = 1 + random_below(2),
                         .dim = dims[round % 3],
                         .capacity = 1 + random_below(40),
                         .pages = 2 + random_below(5)};
        problem_t p = problem_make(shape);
        krn_partials_t io = partials_random(p.pairs, shape.dim);
        krn_partials_clear(&io, p.pairs, shape.dim);
        krn_partials_t on_device = partials_to_device(&io, p.pairs, shape.dim);
        const uint32_t io_shape[2] = {p.pairs, shape.dim};
        uint32_t first = 1 + random_below(shape.pages - 1);

        krn_reference()->attention(NULL, &p.args, &io);
        assert_int_equal(krn_cuda_partials_clear(stream, &on_device, p.pairs, shape.dim), AS_OK);
        p.on_device.page_count = first;
        assert_int_equal(krn_cuda_attention_run(stream, &p.on_device, &on_device), AS_OK);
        p.on_device.pages += first;
        p.on_device.page_count = shape.pages - first;
        assert_int_equal(krn_cuda_attention_run(stream, &p.on_device, &on_device), AS_OK);
        assert_device_partials(&io, &on_device, io_shape, "a run in two pieces");
        partials_free(&io);
        problem_free(&p);
    }
}

// A dot below zero times a tiny scale underflows to -0; the maximum is +0 by the rule.
static void test_a_maximum_of_minus_zero_becomes_plus_zero(void **state)
{
    shape_t shape = {.rows = 1, .group = 1, .kv_heads = 1, .dim = 64, .capacity = 1, .pages = 1};
    const uint32_t io_shape[2] = {1, shape.dim};
    problem_t p = problem_make(shape);
    krn_partials_t io = partials_random(1, shape.dim);
    float *q = (float *)p.args.q;

    (void)state;
    for (uint32_t d = 0; d < shape.dim; d++)
        q[d] = p.args.pages[0].k[d] & 0x8000u ? 1e-20f : -1e-20f;
    p.on_device.q = floats_to_device(q, shape.dim);
    p.args.scale = p.on_device.scale = 1e-30f;
    krn_partials_clear(&io, 1, shape.dim);
    krn_partials_t on_device = partials_to_device(&io, 1, shape.dim);
    krn_reference()->attention(NULL, &p.args, &io);
    assert_true(io.max[0] == 0.0f && !signbit(io.max[0]));
    assert_int_equal(krn_cuda_attention_run(stream, &p.on_device, &on_device), AS_OK);
    assert_device_partials(&io, &on_device, io_shape, "a maximum of -0");
    partials_free(&io);
    problem_free(&p);
}

static void test_partials_merge_and_normalise_to_the_bits_of_the_reference(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t count = 1 + random_below(30), dim = 16 * (1 + random_below(16));
        const uint32_t shape[2] = {count, dim};
        krn_partials_t a = partials_random(count, dim), b = partials_random(count, dim);
        krn_partials_t a_device = partials_to_device(&a, count, dim);
        krn_partials_t b_device = partials_to_device(&b, count, dim);
        float *expected = random_floats((size_t)count * dim);
        float *out = device_memory((size_t)count * dim * sizeof(float));

        krn_reference()->merge(&a, &b, count, dim);
        assert_int_equal(krn_cuda_merge(stream, &a_device, &b_device, count, dim), AS_OK);
        assert_device_partials(&a, &a_device, shape, "merge");
        krn_reference()->normalise(&a, count, dim, expected);
        assert_int_equal(krn_cuda_normalise(stream, &a_device, count, dim, out), AS_OK);
        assert_device_floats(expected, out, (size_t)count * dim, "normalise");
        krn_partials_clear(&a, count, dim);
        assert_int_equal(krn_cuda_partials_clear(stream, &a_device, count, dim), AS_OK);
        assert_device_partials(&a, &a_device, shape, "clear");
        as_mem_free(expected);
        partials_free(&a);
        partials_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_attention_gives_the_bits_of_the_reference, device_sweep),
        cmocka_unit_test_teardown(test_the_largest_page_and_head_fit_a_block, device_sweep),
        cmocka_unit_test_teardown(test_one_row_over_many_runs_gives_the_bits_of_the_reference,
                                  device_sweep),
        cmocka_unit_test_teardown(test_runs_in_several_waves_give_the_bits_of_the_reference,
                                  device_sweep),
        cmocka_unit_test_teardown(test_many_rows_go_through_the_runs_in_their_block, device_sweep),
        cmocka_unit_test_teardown(test_a_run_handed_over_in_pieces_gives_the_bits_of_the_reference,
                                  device_sweep),
        cmocka_unit_test_teardown(test_a_maximum_of_minus_zero_becomes_plus_zero, device_sweep),
        cmocka_unit_test_teardown(test_partials_merge_and_normalise_to_the_bits_of_the_reference,
                                  device_sweep),
    };
    int missing = device_missing();

    return missing ? missing : cmocka_run_group_tests(tests, device_setup, device_teardown);
}
