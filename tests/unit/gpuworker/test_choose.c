// SPDX-License-Identifier: Apache-2.0
// Choosing a token is a pure function: greedy by arg max, sampling with the probabilities that the
// filters leave.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpuworker/model/choose.h"
#include "gpuworker/model/fixed_math.h"

#define VOCAB      8u
#define DRAWS      200000u
#define KNOWN_HASH 0x6bb17ffb7ef4c313ull

static const float sample[VOCAB] = {1.0f, 3.0f, 2.5f, -1.0f, 3.0f, 0.0f, 2.0f, -30.0f};

static void greedy_takes_the_lowest_id_of_the_greatest_logits(void **state)
{
    (void)state;
    gpw_choose_params_t greedy = {0};
    assert_int_equal(gpw_choose(sample, VOCAB, 0, &greedy, NULL), 1);
    const float damaged[4] = {NAN, -INFINITY, 2.0f, NAN};
    assert_int_equal(gpw_choose(damaged, 4, 0, &greedy, NULL), 2);
    const float all_nan[3] = {NAN, NAN, NAN};
    assert_int_equal(gpw_choose(all_nan, 3, 0, &greedy, NULL), 0);
}

// Frequencies of many positions against probabilities, by chi-squared.
static void check_frequencies(const gpw_choose_params_t *params, const double *probabilities)
{
    float scratch[2 * VOCAB];
    uint32_t counts[VOCAB] = {0};
    for (uint32_t position = 0; position < DRAWS; position++) {
        counts[gpw_choose(sample, VOCAB, position, params, scratch)]++;
    }
    double chi = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        double expected = probabilities[i] * DRAWS;
        if (probabilities[i] == 0) {
            assert_int_equal(counts[i], 0);
        } else if (expected > 5) {
            chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
    }
    assert_true(chi < 30); // 7 degrees of freedom: exceeded once in 10,000; the seed is fixed
}

static void softmax_of(const int *kept, float temperature, double *probabilities)
{
    double total = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        probabilities[i] = kept[i] ? exp((double)(sample[i] / temperature)) : 0;
        total += probabilities[i];
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        probabilities[i] /= total;
    }
}

static void sampling_follows_the_softmax(void **state)
{
    (void)state;
    double probabilities[VOCAB];
    const int all[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1};
    const float temperatures[] = {0.5f, 1.0f, 2.0f};
    for (int i = 0; i < 3; i++) {
        gpw_choose_params_t params = {
            .temperature = temperatures[i], .top_p = 1, .seed = 99 + (uint64_t)i};
        softmax_of(all, temperatures[i], probabilities);
        check_frequencies(&params, probabilities);
    }
}

static void top_k_keeps_the_greatest_and_of_equals_the_first(void **state)
{
    (void)state;
    double probabilities[VOCAB];
    const int three[VOCAB] = {0, 1, 1, 0, 1, 0, 0, 0};
    gpw_choose_params_t params = {.temperature = 1, .top_p = 1, .top_k = 3, .seed = 5};
    softmax_of(three, 1, probabilities);
    check_frequencies(&params, probabilities);
    const int one[VOCAB] = {0, 1, 0, 0, 0, 0, 0, 0};
    params.top_k = 1;
    softmax_of(one, 1, probabilities);
    check_frequencies(&params, probabilities);
}

static void top_p_keeps_the_fewest_that_reach_it(void **state)
{
    (void)state;
    // Shares at temperature 1: 0.328, 0.328 (tokens 1, 4), 0.199 (2), 0.121 (6), 0.044 (0) and
    // less.
    double probabilities[VOCAB];
    const int three[VOCAB] = {0, 1, 1, 0, 1, 0, 0, 0};
    gpw_choose_params_t params = {.temperature = 1, .top_p = 0.8f, .seed = 6};
    softmax_of(three, 1, probabilities);
    check_frequencies(&params, probabilities);
    const int first[VOCAB] = {0, 1, 0, 0, 0, 0, 0, 0};
    params.top_p = 0.1f;
    softmax_of(first, 1, probabilities);
    check_frequencies(&params, probabilities);
    // Within the three of top_k the shares are 0.384, 0.384 and 0.233.
    const int two[VOCAB] = {0, 1, 0, 0, 1, 0, 0, 0};
    params.top_p = 0.7f;
    params.top_k = 3;
    softmax_of(two, 1, probabilities);
    check_frequencies(&params, probabilities);
}

static void a_draw_depends_on_seed_position_and_logits_alone(void **state)
{
    (void)state;
    float scratch[2 * VOCAB], copy[VOCAB];
    uint32_t other_seed = 0, other_position = 0;
    memcpy(copy, sample, sizeof(copy));
    for (uint32_t position = 0; position < 1000; position++) {
        gpw_choose_params_t params = {.temperature = 1, .top_p = 0.95f, .seed = 42};
        memset(scratch, (int)position, sizeof(scratch));
        int32_t first = gpw_choose(sample, VOCAB, position, &params, scratch);
        memset(scratch, 0, sizeof(scratch));
        assert_int_equal(gpw_choose(copy, VOCAB, position, &params, scratch), first);
        assert_memory_equal(copy, sample, sizeof(copy));
        other_position += gpw_choose(sample, VOCAB, position + 1, &params, scratch) != first;
        params.seed = 43;
        other_seed += gpw_choose(sample, VOCAB, position, &params, scratch) != first;
    }
    assert_true(other_seed > 300 && other_position > 300);
}

// The choice must not change with a change of libm, of compiler or of the short cut that skips
// logarithms.
static void known_draws_stay_as_they_are(void **state)
{
    (void)state;
    float logits[1000];
    static float scratch[2000];
    for (uint32_t i = 0; i < 1000; i++) {
        logits[i] = (float)((i * 7919u) % 1009u) / 100.0f;
    }
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t position = 0; position < 2000; position++) {
        gpw_choose_params_t params = {
            .temperature = 0.8f, .top_p = position % 2 ? 1.0f : 0.9f, .seed = position / 100};
        hash = (hash ^ (uint32_t)gpw_choose(logits, 1000, position, &params, scratch)) *
               0x100000001b3ull;
    }
    print_message("hash %016llx\n", (unsigned long long)hash);
    assert_true(hash == KNOWN_HASH);
}

static void damaged_logits_still_choose_a_token(void **state)
{
    (void)state;
    float scratch[2 * VOCAB];
    const float damaged[VOCAB] = {NAN, -INFINITY, 1.0f, INFINITY, NAN, 2.0f, -INFINITY, NAN};
    const float hopeless[VOCAB] = {NAN, NAN, NAN, NAN, -INFINITY, -INFINITY, NAN, NAN};
    for (uint32_t position = 0; position < 100; position++) {
        gpw_choose_params_t params = {
            .temperature = 1, .top_p = 0.9f, .top_k = position % 5, .seed = 3};
        int32_t token = gpw_choose(damaged, VOCAB, position, &params, scratch);
        assert_in_range(token, 0, VOCAB - 1);
        token = gpw_choose(hopeless, VOCAB, position, &params, scratch);
        assert_in_range(token, 0, VOCAB - 1);
    }
}

static void log_probabilities_are_those_of_the_softmax(void **state)
{
    (void)state;
    double probabilities[VOCAB];
    const int all[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1};
    softmax_of(all, 1, probabilities);
    for (int32_t i = 0; i < (int32_t)VOCAB; i++) {
        assert_true(fabs((double)gpw_logprob(sample, VOCAB, i) - log(probabilities[i])) < 1e-5);
    }
    int32_t tokens[VOCAB];
    float logprobs[VOCAB];
    const int32_t expected[VOCAB] = {1, 4, 2, 6, 0, 5, 3, 7};
    for (uint32_t count = 0; count <= VOCAB; count++) {
        gpw_top_logprobs(sample, VOCAB, count, tokens, logprobs);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(tokens[i], expected[i]);
            assert_true(logprobs[i] == gpw_logprob(sample, VOCAB, tokens[i]));
        }
    }
}

static void logarithm_and_exponential_are_exact_to_two_ulp(void **state)
{
    (void)state;
    for (int i = 1; i < 20000; i++) {
        double x = i * 0.37e-2 * (i % 3 ? 1 : 1e-12);
        assert_true(fabs(gpw_ln(x) - log(x)) <= 4.5e-16 * fmax(fabs(log(x)), 1e-3));
        double y = (i - 10000) * 0.0137;
        assert_true(fabs(gpw_exp(y) / exp(y) - 1) <= 6e-16);
    }
    assert_true(gpw_ln(1) == 0 && gpw_exp(0) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_greatest_logits),
        cmocka_unit_test(sampling_follows_the_softmax),
        cmocka_unit_test(top_k_keeps_the_greatest_and_of_equals_the_first),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(a_draw_depends_on_seed_position_and_logits_alone),
        cmocka_unit_test(known_draws_stay_as_they_are),
        cmocka_unit_test(damaged_logits_still_choose_a_token),
        cmocka_unit_test(log_probabilities_are_those_of_the_softmax),
        cmocka_unit_test(logarithm_and_exponential_are_exact_to_two_ulp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
