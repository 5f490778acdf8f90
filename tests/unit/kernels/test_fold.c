// SPDX-License-Identifier: Apache-2.0
// Attention in pieces: whatever the split of the pages into ranges, whoever computes each, and
// however many threads he has, the fold gives the bits of one attention over all pages.
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/unit/kernels/pools.h"

typedef struct problem {
    krn_attention_args_t args;
    float *q;
    int32_t *positions;
    krn_page_t *pages; // page i is pages[i]: none is left out
    krn_f16 *keys_values;
    const krn_ops_t *list[4];
    size_t list_count;
    uint32_t pieces; // computed so far
} problem_t;

static problem_t problem_make(uint32_t rows, uint32_t group, uint32_t page_count, bool behind)
{
    enum { KV_HEADS = 2, DIM = 32, CAPACITY = 16 };
    problem_t p = {.list = {krn_reference()}};
    size_t half = (size_t)KV_HEADS * CAPACITY * DIM;

    p.list_count = 1 + implementations(p.list + 1);
    p.q = random_floats((size_t)rows * group * KV_HEADS * DIM);
    p.positions = as_mem_zalloc(rows, sizeof *p.positions);
    p.pages = as_mem_zalloc(page_count, sizeof *p.pages);
    p.keys_values = random_halves(2 * half * page_count);
    for (uint32_t i = 0; i < page_count; i++)
        p.pages[i] =
            (krn_page_t){p.keys_values + 2 * half * i, p.keys_values + 2 * half * i + half, i};
    // Rows of a verification lie behind all pages; others anywhere.
    for (uint32_t r = 0; r < rows; r++)
        p.positions[r] =
            (int32_t)(behind ? page_count * CAPACITY + r : random_below(page_count * CAPACITY));
    p.args = (krn_attention_args_t){.rows = rows,
                                    .q_heads = group * KV_HEADS,
                                    .kv_heads = KV_HEADS,
                                    .dim = DIM,
                                    .capacity = CAPACITY,
                                    .scale = 4.0f / sqrtf(DIM),
                                    .q = p.q,
                                    .positions = p.positions,
                                    .pages = p.pages,
                                    .page_count = page_count};
    return p;
}

static void problem_free(problem_t *p)
{
    as_mem_free(p->q);
    as_mem_free(p->positions);
    as_mem_free(p->pages);
    as_mem_free(p->keys_values);
}

static const krn_ops_t *any_ops(const problem_t *p)
{
    return p->list[random_below((uint32_t)p->list_count)];
}

// One piece elsewhere: all that goes there are queries, all that comes back are partials. The pages
// are counted from the piece's own first one, as who has them need not know where they stand.
static void fold_elsewhere(problem_t *p, krn_fold_t *fold, krn_piece_t piece)
{
    krn_attention_args_t args = p->args;
    uint32_t pairs = args.rows * args.q_heads;
    krn_page_t *pages = as_mem_zalloc(piece.count, sizeof *pages);
    int32_t *positions = as_mem_zalloc(args.rows, sizeof *positions);
    krn_partials_t partials = {random_floats((size_t)pairs * args.dim), random_floats(pairs),
                               random_floats(pairs)};
    void *scratch = scratch_for(&args);

    for (uint32_t i = 0; i < piece.count; i++) {
        pages[i] = p->pages[piece.first + i];
        pages[i].index = i;
    }
    for (uint32_t r = 0; r < args.rows; r++)
        positions[r] = p->positions[r] - (int32_t)(piece.first * args.capacity);
    args.pages = pages;
    args.page_count = piece.count;
    args.positions = positions;
    krn_attention_piece(any_ops(p), pools[random_below(3)], &args, &partials, scratch);
    krn_fold_piece(fold, piece, &partials);
    p->pieces++;
    as_mem_free(scratch);
    as_mem_free(partials.out);
    as_mem_free(partials.max);
    as_mem_free(partials.sum);
    as_mem_free(pages);
    as_mem_free(positions);
}

static void fold_here(problem_t *p, krn_fold_t *fold, uint32_t first, uint32_t end)
{
    krn_attention_args_t args = p->args;

    args.pages = p->pages + first;
    args.page_count = end - first;
    krn_fold_pages(fold, pools[random_below(3)], &args);
}

// Cuts the pages into ranges of up to `longest`, each of which is computed here or elsewhere.
static void check_split(problem_t *p, uint32_t longest, const char *what)
{
    uint32_t pairs = p->args.rows * p->args.q_heads, dim = p->args.dim;
    size_t floats = (size_t)pairs * dim;
    float *expected = random_floats(floats), *expected_lse = random_floats(pairs);
    float *out = random_floats(floats), *lse = random_floats(pairs);
    void *memory = as_mem_aligned(64, krn_fold_bytes(pairs, dim));
    void *scratch = scratch_for(&p->args);
    krn_fold_t fold;

    krn_attention(any_ops(p), pools[random_below(3)], &p->args, expected, expected_lse, scratch);
    krn_fold_begin(&fold, any_ops(p), pairs, dim, memory);
    for (uint32_t first = 0, end; first < p->args.page_count; first = end) {
        end = first + 1 + random_below(longest);
        end = end < p->args.page_count ? end : p->args.page_count;
        bool elsewhere = random_below(3) > 0;
        for (uint32_t page = first; elsewhere && page < end;) {
            krn_piece_t piece = krn_piece_at(page, end);
            fold_elsewhere(p, &fold, piece);
            page += piece.count;
        }
        if (!elsewhere)
            fold_here(p, &fold, first, end);
    }
    krn_fold_end(&fold, out, lse);
    assert_same_bits(expected, out, floats, what);
    assert_same_bits(expected_lse, lse, pairs, what);
    as_mem_free(expected);
    as_mem_free(expected_lse);
    as_mem_free(out);
    as_mem_free(lse);
    as_mem_free(memory);
    as_mem_free(scratch);
}

static void test_any_split_folds_to_the_bits_of_the_whole(void **state)
{
    (void)state;
    uint32_t rounds = getenv("ASSAY_TEST_SANITIZED") ? 4 : 60;
    for (uint32_t round = 0; round < rounds; round++) {
        problem_t p = problem_make(1 + random_below(round % 4 == 0 ? 40 : 6), 1 + random_below(4),
                                   1 + random_below(90), random_below(2));
        check_split(&p, 1 + random_below(90), "a split");
        problem_free(&p);
    }
}

static void test_so_many_rows_that_each_block_of_them_goes_by_itself(void **state)
{
    problem_t p = problem_make(150, 4, 20, true);

    (void)state;
    check_split(&p, 20, "many rows");
    problem_free(&p);
}

static void test_a_chain_at_one_place_is_two_pieces_at_most(void **state)
{
    (void)state;
    for (uint32_t end = 1; end < 200; end++) {
        uint32_t count = 0;
        for (uint32_t page = 0; page < end; count++)
            page += krn_piece_at(page, end).count;
        assert_int_equal(count, 1 + (end > KRN_RUN_PAGES && end % KRN_RUN_PAGES != 0));
    }
}

static void test_pieces_end_where_the_order_of_merging_has_them_end(void **state)
{
    (void)state;
    static const struct {
        uint32_t first, end, count;
    } cases[] = {{0, 7, 7},   {0, 16, 16}, {0, 47, 32}, {16, 48, 16},
                 {32, 40, 8}, {17, 48, 1}, {31, 32, 1}, {0, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        krn_piece_t piece = krn_piece_at(cases[i].first, cases[i].end);
        assert_int_equal(piece.first, cases[i].first);
        assert_int_equal(piece.count, cases[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split_folds_to_the_bits_of_the_whole),
        cmocka_unit_test(test_so_many_rows_that_each_block_of_them_goes_by_itself),
        cmocka_unit_test(test_a_chain_at_one_place_is_two_pieces_at_most),
        cmocka_unit_test(test_pieces_end_where_the_order_of_merging_has_them_end),
    };
    return cmocka_run_group_tests(tests, pools_setup, pools_teardown);
}
