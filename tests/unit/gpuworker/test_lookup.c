// SPDX-License-Identifier: Apache-2.0
// Prompt lookup: what it finds, how far it trusts it, and what a row costs.
#include "gpuworker/decode/lookup.h"
#include "gpuworker/decode/price.h"
#include "gpuworker/worker.h"
#include "model_fixture.h"
#include "tiny_model.h"

enum { TOKENS = 4096 };

static gpw_lookup_t lookup_over(const int32_t *tokens, uint32_t count, uint32_t most)
{
    gpw_lookup_t lookup;
    gpw_lookup_init(&lookup, most);
    assert_int_equal(gpw_lookup_open(&lookup, TOKENS), AS_OK);
    gpw_lookup_index(&lookup, tokens, count);
    return lookup;
}

static void what_followed_the_longest_match_is_proposed(void **state)
{
    (void)state;
    // 1 2 3 is followed by 4 5 6 and then, without the 1, by 7: the longer match wins although older.
    int32_t tokens[32] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 7, 8, 1, 2, 3};
    gpw_lookup_t lookup = lookup_over(tokens, 14, 3);
    lookup.acceptance[2] = lookup.acceptance[3] = 1;
    // Runs of two: the newest is the one before 7; of three there is no order, so the newest stands.
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 14, 8, 0.5f), 3);
    assert_int_equal(tokens[14], 7);
    gpw_lookup_close(&lookup);
    int32_t longer[32] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4};
    lookup = lookup_over(longer, 16, 3);
    lookup.acceptance[4] = 1;
    assert_int_equal(gpw_lookup_propose(&lookup, longer, 16, 8, 0.5f), 3);
    assert_int_equal(longer[16], 5);
    assert_int_equal(longer[17], 6);
    assert_int_equal(longer[18], 9);
    gpw_lookup_close(&lookup);
}

static void a_repetition_is_continued_beyond_its_own_end(void **state)
{
    (void)state;
    int32_t tokens[32] = {5, 1, 2, 1, 2, 1, 2};
    gpw_lookup_t lookup = lookup_over(tokens, 7, 8);
    for (uint32_t l = 0; l < GPW_LOOKUP_LENGTHS; l++) {
        lookup.acceptance[l] = 1;
    }
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 7, 8, 0.5f), 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(tokens[7 + i], 1 + (int32_t)(i % 2));
    }
    gpw_lookup_close(&lookup);
}

static void nothing_is_proposed_where_nothing_matches_or_there_is_no_room(void **state)
{
    (void)state;
    int32_t tokens[32] = {1, 2, 3, 4, 5};
    gpw_lookup_t lookup = lookup_over(tokens, 5, 8);
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 5, 8, 0), 0);
    tokens[5] = 3;
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 6, 0, 0), 0);
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 1, 8, 0), 0);
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 6, 2, 0), 2);
    assert_int_equal(tokens[6], 4);
    gpw_lookup_close(&lookup);
    gpw_lookup_init(&lookup, 0);
    assert_int_equal(gpw_lookup_open(&lookup, TOKENS), AS_OK);
    assert_null(lookup.ends);
    gpw_lookup_index(&lookup, tokens, 6);
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 6, 8, 0), 0);
    gpw_lookup_close(&lookup);
}

// Over tokens of a small alphabet, of which most runs occur again: each proposal against a search through all
// tokens. Runs that share a slot may hide one another, so some are missed; none may be made up.
static void proposals_are_those_of_a_search_through_all_tokens(void **state)
{
    (void)state;
    static int32_t tokens[TOKENS + GPW_LOOKUP_MAX];
    uint32_t searched = 0, found = 0, longest = 0;
    gpw_lookup_t lookup = lookup_over(tokens, 0, 4);
    for (uint32_t end = 0; end < TOKENS; end++) {
        gpw_lookup_index(&lookup, tokens, end);
        uint32_t proposed = gpw_lookup_propose(&lookup, tokens, end, 4, 0);
        uint32_t best = 0;
        for (uint32_t at = end; at-- > 1;) {
            uint32_t length = 0;
            while (length < at && length < 8 &&
                   tokens[at - 1 - length] == tokens[end - 1 - length]) {
                length++;
            }
            best = length > best ? length : best;
        }
        searched += best > 0;
        found += lookup.length > 0;
        longest += lookup.length > 0 && lookup.length == best;
        assert_true(lookup.length <= best);
        assert_true((proposed > 0) == (lookup.length > 0));
        tokens[end] = (int32_t)(tiny_mix(end / 40 * 7 + tiny_mix(end) % 6) % 50);
    }
    assert_true(searched > TOKENS / 2);
    assert_true(found > searched * 95 / 100);
    assert_true(longest >
                searched / 2); // the newest of two, four or eight is not always the longest
    gpw_lookup_close(&lookup);
}

static void what_is_wrong_is_proposed_less_and_what_is_right_more(void **state)
{
    (void)state;
    int32_t tokens[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2};
    gpw_lookup_t lookup = lookup_over(tokens, 14, GPW_LOOKUP_MAX);
    for (int i = 0; i < 40; i++) {
        gpw_lookup_propose(&lookup, tokens, 14, 8, 0.3f);
        gpw_lookup_learn(&lookup, 99, 0);
    }
    assert_int_equal(gpw_lookup_propose(&lookup, tokens, 14, 8, 0.3f), 0);
    // Watched, though not proposed: right again.
    for (int i = 0; i < 80; i++) {
        gpw_lookup_learn(&lookup, 3, 0);
        gpw_lookup_propose(&lookup, tokens, 14, 8, 0.999f);
    }
    gpw_lookup_learn(&lookup, 3, 0);
    assert_true(gpw_lookup_propose(&lookup, tokens, 14, 8, 0.3f) == 8);
    // Of a run whose third was wrong, three were tried.
    float before = lookup.acceptance[2];
    gpw_lookup_learn(&lookup, 3, 2);
    assert_true(lookup.acceptance[2] < before);
    gpw_lookup_close(&lookup);
}

static void learn_line(gpw_row_price_t *price, double base, double slope)
{
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t rows = 1 + (uint32_t)(tiny_mix(i) % 8);
        double noise = 0.9 + 0.2 * (double)(tiny_mix(i + 77) % 1000) / 1000;
        gpw_row_price_learn(price, rows, (uint64_t)((base + slope * rows) * noise));
    }
}

static void the_price_of_a_row_is_its_share_of_a_step(void **state)
{
    (void)state;
    gpw_row_price_t free_rows = {0}, dear = {0}, mixed = {0};
    assert_true(gpw_row_price_get(&mixed) > 0 && gpw_row_price_get(&mixed) < 1);
    learn_line(&free_rows, 1000, 0);
    learn_line(&dear, 0, 1000);
    learn_line(&mixed, 4500, 1000);
    assert_true(gpw_row_price_get(&free_rows) < 0.1f);
    assert_true(gpw_row_price_get(&dear) > 0.9f);
    assert_float_equal(gpw_row_price_get(&mixed), 0.5, 0.05); // the mean step has 4.5 rows
    // Steps that are all alike tell no price.
    gpw_row_price_t alike = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        gpw_row_price_learn(&alike, 4, 100 + i % 7);
    }
    assert_float_equal(gpw_row_price_get(&alike), gpw_row_price_get(&(gpw_row_price_t){0}), 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_longest_match_is_proposed),
        cmocka_unit_test(a_repetition_is_continued_beyond_its_own_end),
        cmocka_unit_test(nothing_is_proposed_where_nothing_matches_or_there_is_no_room),
        cmocka_unit_test(proposals_are_those_of_a_search_through_all_tokens),
        cmocka_unit_test(what_is_wrong_is_proposed_less_and_what_is_right_more),
        cmocka_unit_test(the_price_of_a_row_is_its_share_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
