// SPDX-License-Identifier: Apache-2.0
// Attention over pages: same bits in every implementation, whatever the rows beside it, the
// threads, or how pages are handed over; and the values are those of a softmax in double precision.
#include <math.h>
#include <stdlib.h>

#include "tests/unit/kernels/pools.h"

// A random problem that owns its memory.
typedef struct problem {
    krn_attention_args_t args;
    float *q;
    int32_t *positions;
    krn_page_t *pages;
    krn_f16 *keys_values;
} problem_t;

typedef struct shape {
    uint32_t rows, group, kv_heads, dim, capacity, pages;
    int gaps; // leave some pages out
} shape_t;

static problem_t problem_make(shape_t shape)
{
    problem_t p;
    size_t half = (size_t)shape.kv_heads * shape.capacity * shape.dim;
    uint32_t index = 0;

    p.q = random_floats((size_t)shape.rows * shape.group * shape.kv_heads * shape.dim);
    p.positions = as_mem_zalloc(shape.rows, sizeof *p.positions);
    p.pages = as_mem_zalloc(shape.pages + 1, sizeof *p.pages);
    p.keys_values = random_halves(2 * half * shape.pages);
    for (uint32_t i = 0; i < shape.pages; i++, index++) {
        index += shape.gaps && random_below(3) == 0 ? random_below(20) : 0;
        p.pages[i] =
            (krn_page_t){p.keys_values + 2 * half * i, p.keys_values + 2 * half * i + half, index};
    }
    for (uint32_t r = 0; r < shape.rows; r++)
        p.positions[r] = (int32_t)random_below(index * shape.capacity + 1);
    p.args = (krn_attention_args_t){.rows = shape.rows,
                                    .q_heads = shape.group * shape.kv_heads,
                                    .kv_heads = shape.kv_heads,
                                    .dim = shape.dim,
                                    .capacity = shape.capacity,
                                    .scale = 4.0f / sqrtf((float)shape.dim),
                                    .q = p.q,
                                    .positions = p.positions,
                                    .pages = p.pages,
                                    .page_count = shape.pages};
    return p;
}

static void problem_free(problem_t *p)
{
    as_mem_free(p->q);
    as_mem_free(p->positions);
    as_mem_free(p->pages);
    as_mem_free(p->keys_values);
}

static size_t out_floats(const krn_attention_args_t *args)
{
    return (size_t)args->rows * args->q_heads * args->dim;
}

static void attend(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                   float *out, float *lse)
{
    void *scratch = scratch_for(args);

    krn_attention(ops, pool, args, out, lse, scratch);
    as_mem_free(scratch);
}

// The rule of the header, word for word: runs merged one after another.
static void attend_by_the_rule(const krn_attention_args_t *args, float *out, float *lse)
{
    const krn_ops_t *ops = krn_reference();
    uint32_t pairs = args->rows * args->q_heads;
    krn_partials_t total = {random_floats(out_floats(args)), random_floats(pairs),
                            random_floats(pairs)};
    krn_partials_t run = {random_floats(out_floats(args)), random_floats(pairs),
                          random_floats(pairs)};
    krn_attention_args_t part = *args;

    krn_partials_clear(&total, pairs, args->dim);
    for (uint32_t p = 0; p < args->page_count; p += part.page_count) {
        part.pages = args->pages + p;
        part.page_count = 0;
        while (p + part.page_count < args->page_count &&
               part.pages[part.page_count].index / KRN_RUN_PAGES ==
                   part.pages[0].index / KRN_RUN_PAGES)
            part.page_count++;
        krn_partials_clear(&run, pairs, args->dim);
        ops->attention(pools[0], &part, &run);
        ops->merge(&total, &run, pairs, args->dim);
    }
    ops->normalise(&total, pairs, args->dim, out);
    for (uint32_t i = 0; i < pairs; i++)
        lse[i] = total.max[i] + krn_logf(total.sum[i]);
    as_mem_free(total.out);
    as_mem_free(total.max);
    as_mem_free(total.sum);
    as_mem_free(run.out);
    as_mem_free(run.max);
    as_mem_free(run.sum);
}

static void check_all(shape_t shape)
{
    const krn_ops_t *list[4] = {krn_reference()};
    size_t count = 1 + implementations(list + 1);
    problem_t p = problem_make(shape);
    size_t floats = out_floats(&p.args), pairs = floats / shape.dim;
    float *expected = random_floats(floats), *expected_lse = random_floats(pairs);
    float *out = random_floats(floats), *lse = random_floats(pairs);
    char what[128];

    attend_by_the_rule(&p.args, expected, expected_lse);
    for (size_t i = 0; i < count; i++) {
        attend(list[i], pools[random_below(3)], &p.args, out, lse);
        snprintf(what, sizeof what, "%s: %u rows, %u x %u heads of %u, %u pages of %u",
                 list[i]->name, shape.rows, shape.kv_heads, shape.group, shape.dim, shape.pages,
                 shape.capacity);
        assert_same_bits(expected, out, floats, what);
        assert_same_bits(expected_lse, lse, pairs, what);
    }
    as_mem_free(expected);
    as_mem_free(expected_lse);
    as_mem_free(out);
    as_mem_free(lse);
    problem_free(&p);
}

static void test_every_implementation_gives_the_bits_of_the_rule(void **state)
{
    static const uint32_t capacities[] = {1, 5, 8, 16, 24, 32, 64, 100, 128};

    (void)state;
    uint32_t rounds =
        getenv("ASSAY_TEST_SANITIZED") ? 12 : 120; // instrumented code is 20 times slower
    for (uint32_t round = 0; round < rounds; round++) {
        shape_t shape = {.rows = 1 + random_below(round % 6 == 0 ? 70 : 6),
                         .group = 1 + random_below(5),
                         .kv_heads = 1 + random_below(3),
                         .dim = round % 3 == 0 ? 64 : 16 * (1 + random_below(16)),
                         .capacity = capacities[random_below(9)],
                         .pages = 1 + random_below(8),
                         .gaps = (int)random_below(2)};
        check_all(shape);
    }
}

static void test_long_contexts_and_many_rows_give_the_bits_of_the_rule(void **state)
{
    (void)state;
    check_all(
        (shape_t){.rows = 1, .group = 3, .kv_heads = 3, .dim = 64, .capacity = 8, .pages = 300});
    check_all((shape_t){
        .rows = 20, .group = 3, .kv_heads = 3, .dim = 64, .capacity = 8, .pages = 70, .gaps = 1});
    check_all((shape_t){
        .rows = 150, .group = 3, .kv_heads = 3, .dim = 64, .capacity = 8, .pages = 40, .gaps = 1});
    check_all(
        (shape_t){.rows = 3, .group = 2, .kv_heads = 1, .dim = 256, .capacity = 1024, .pages = 2});
    check_all(
        (shape_t){.rows = 5, .group = 64, .kv_heads = 1, .dim = 32, .capacity = 16, .pages = 3});
}

static void test_a_row_has_the_same_bits_alone_as_in_any_batch(void **state)
{
    shape_t shape = {
        .rows = 150, .group = 3, .kv_heads = 2, .dim = 64, .capacity = 16, .pages = 40};
    problem_t p = problem_make(shape);
    size_t floats = out_floats(&p.args), row = floats / shape.rows;
    float *whole = random_floats(floats), *part = random_floats(floats);

    (void)state;
    attend(krn_cpu(), pools[1], &p.args, whole, NULL);
    for (uint32_t first = 0, rows; first < shape.rows; first += rows) {
        krn_attention_args_t args = p.args;
        rows = 1 + random_below(first < 20 ? 1 : 40);
        rows = rows < shape.rows - first ? rows : shape.rows - first;
        args.rows = rows;
        args.q = p.q + first * row;
        args.positions = p.positions + first;
        // Pages that no row sees may be given or left out.
        args.page_count -= random_below(2) && (uint32_t)p.positions[first] < 16 * 39 && rows == 1;
        attend(krn_cpu(), pools[random_below(3)], &args, part, NULL);
        assert_same_bits(whole + first * row, part, rows * row, "rows alone");
    }
    as_mem_free(whole);
    as_mem_free(part);
    problem_free(&p);
}

static void test_pages_may_be_folded_one_by_one(void **state)
{
    shape_t shape = {.rows = 4, .group = 3, .kv_heads = 2, .dim = 64, .capacity = 16, .pages = 16};
    problem_t p = problem_make(shape);
    uint32_t pairs = p.args.rows * p.args.q_heads;
    size_t floats = out_floats(&p.args);
    krn_partials_t once = {random_floats(floats), random_floats(pairs), random_floats(pairs)};
    krn_partials_t steps = {random_floats(floats), random_floats(pairs), random_floats(pairs)};

    (void)state;
    krn_partials_clear(&once, pairs, shape.dim);
    krn_partials_clear(&steps, pairs, shape.dim);
    krn_cpu()->attention(pools[1], &p.args, &once);
    for (uint32_t i = 0; i < shape.pages; i++) {
        krn_attention_args_t args = p.args;
        args.pages = p.pages + i;
        args.page_count = 1;
        krn_cpu()->attention(pools[0], &args, &steps);
    }
    assert_same_bits(once.out, steps.out, floats, "out");
    assert_same_bits(once.max, steps.max, pairs, "max");
    assert_same_bits(once.sum, steps.sum, pairs, "sum");
    as_mem_free(once.out);
    as_mem_free(once.max);
    as_mem_free(once.sum);
    as_mem_free(steps.out);
    as_mem_free(steps.max);
    as_mem_free(steps.sum);
    problem_free(&p);
}

static void test_rows_that_see_nothing_are_zero_with_an_lse_of_minus_infinity(void **state)
{
    shape_t shape = {.rows = 2, .group = 1, .kv_heads = 1, .dim = 64, .capacity = 16, .pages = 3};
    problem_t p = problem_make(shape);
    float out[2 * 64], lse[2];

    (void)state;
    for (uint32_t i = 0; i < shape.pages; i++)
        p.pages[i].index += 5;
    p.positions[0] = 5 * 16 - 1;
    p.positions[1] = 5 * 16;
    attend(krn_cpu(), pools[0], &p.args, out, lse);
    assert_true(lse[0] == -INFINITY);
    assert_true(isfinite(lse[1]));
    for (uint32_t d = 0; d < 64; d++) {
        assert_true(out[d] == 0.0f);
        assert_true(out[64 + d] == krn_f16_to_float(p.pages[0].v[d])); // one token: its value
    }
    p.args.page_count = 0;
    attend(krn_cpu(), pools[0], &p.args, out, lse);
    assert_true(lse[1] == -INFINITY && out[127] == 0.0f);
    problem_free(&p);
}

static void test_tokens_that_a_row_does_not_see_may_hold_anything(void **state)
{
    shape_t shape = {.rows = 20, .group = 3, .kv_heads = 1, .dim = 64, .capacity = 64, .pages = 1};
    problem_t p = problem_make(shape);
    size_t floats = out_floats(&p.args);
    float *clean = random_floats(floats), *dirty = random_floats(floats);

    (void)state;
    for (uint32_t r = 0; r < shape.rows; r++)
        p.positions[r] = (int32_t)random_below(20);
    attend(krn_cpu(), pools[0], &p.args, clean, NULL);
    for (size_t i = 20 * 64; i < 64 * 64; i++) {
        p.keys_values[i] = 0x7e00;           // NaN
        p.keys_values[64 * 64 + i] = 0x7c00; // infinity
    }
    attend(krn_cpu(), pools[0], &p.args, dirty, NULL);
    assert_same_bits(clean, dirty, floats, "unseen tokens");
    as_mem_free(clean);
    as_mem_free(dirty);
    problem_free(&p);
}

// |out - exact| for one (row, head), and |lse - exact lse|, in double precision.
static void check_pair(const problem_t *p, uint32_t row, uint32_t head, const float *out, float lse)
{
    const krn_attention_args_t *args = &p->args;
    uint32_t kv_head = head / (args->q_heads / args->kv_heads);
    // A row may stand past the last token: a decode step before its own token is in a page.
    int32_t tokens = (int32_t)(args->page_count * args->capacity);
    double sum = 0, exact[KRN_HEAD_DIM_MAX] = {0};
    const float *q = args->q + ((size_t)row * args->q_heads + head) * args->dim;

    for (int32_t position = 0; position <= p->positions[row] && position < tokens; position++) {
        const krn_page_t *page = &args->pages[(uint32_t)position / args->capacity];
        size_t at =
            ((size_t)kv_head * args->capacity + (uint32_t)position % args->capacity) * args->dim;
        double s = 0;
        for (uint32_t d = 0; d < args->dim; d++)
            s += (double)q[d] * krn_f16_to_float(page->k[at + d]);
        double weight = exp(s * args->scale);
        sum += weight;
        for (uint32_t d = 0; d < args->dim; d++)
            exact[d] += weight * krn_f16_to_float(page->v[at + d]);
    }
    for (uint32_t d = 0; d < args->dim; d++)
        assert_true(fabs(out[d] - exact[d] / sum) < 4e-6);
    assert_true(fabs(lse - log(sum)) < 4e-6);
}

static void test_attention_is_a_softmax_to_4e_6(void **state)
{
    shape_t shape = {.rows = 10, .group = 3, .kv_heads = 2, .dim = 64, .capacity = 16, .pages = 50};
    problem_t p = problem_make(shape);
    float *out = random_floats(out_floats(&p.args)), lse[60];

    (void)state;
    p.positions[0] = (int32_t)(shape.pages * shape.capacity); // one past the last token
    attend(krn_reference(), pools[0], &p.args, out, lse);
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t h = 0; h < 6; h++)
            check_pair(&p, r, h, out + ((size_t)r * 6 + h) * 64, lse[r * 6 + h]);
    as_mem_free(out);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_implementation_gives_the_bits_of_the_rule),
        cmocka_unit_test(test_long_contexts_and_many_rows_give_the_bits_of_the_rule),
        cmocka_unit_test(test_a_row_has_the_same_bits_alone_as_in_any_batch),
        cmocka_unit_test(test_pages_may_be_folded_one_by_one),
        cmocka_unit_test(test_rows_that_see_nothing_are_zero_with_an_lse_of_minus_infinity),
        cmocka_unit_test(test_tokens_that_a_row_does_not_see_may_hold_anything),
        cmocka_unit_test(test_attention_is_a_softmax_to_4e_6),
    };
    return cmocka_run_group_tests(tests, pools_setup, pools_teardown);
}
