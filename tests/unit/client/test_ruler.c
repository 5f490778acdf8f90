// SPDX-License-Identifier: Apache-2.0
// RULER's tasks: samples are functions of their seed, fill their length, hold what is asked for
// where it belongs; and the score. No model: tokens are counted by a rule.
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/ruler/internal.h"
#include "common/mem.h"

#define SEEDS 5u

// Four letters or digits of a run are a token, so is anything else that is not a space.
static uint32_t tokens_of(const char *text)
{
    uint32_t tokens = 0, run = 0;
    for (; *text; text++) {
        if (isalnum((unsigned char)*text)) {
            tokens += run++ % 4 == 0;
        } else {
            tokens += *text != ' ';
            run = 0;
        }
    }
    return tokens;
}

static as_status_t count(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p)
{
    uint32_t *calls = ctx;
    if (calls) {
        ++*calls;
    }
    *tokens_p =
        tokens_of(sample->context) + tokens_of(sample->question) + tokens_of(sample->prefix);
    return AS_OK;
}

static ruler_sample_t fitted(ruler_task_t task, uint32_t length, uint64_t seed, uint32_t index)
{
    const ruler_ask_t ask = {.task = task, .length_tokens = length, .seed = seed, .index = index};
    ruler_sample_t sample;
    assert_int_equal(ruler_sample_fit(&ask, count, NULL, &sample), AS_OK);
    return sample;
}

static bool equal(const ruler_sample_t *a, const ruler_sample_t *b)
{
    return a->units == b->units && a->reference_count == b->reference_count &&
           strcmp(a->context, b->context) == 0 && strcmp(a->question, b->question) == 0 &&
           strcmp(a->prefix, b->prefix) == 0 &&
           memcmp(a->references, b->references, sizeof(a->references)) == 0;
}

static uint32_t occurrences(const char *text, const char *part)
{
    uint32_t found = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) {
        found++;
    }
    return found;
}

// ---- Samples

static void the_same_seed_gives_the_same_sample_and_others_differ(void **state)
{
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        ruler_sample_t one = fitted(task, 1024, 7, 3), same = fitted(task, 1024, 7, 3),
                       next = fitted(task, 1024, 7, 4), other = fitted(task, 1024, 8, 3);
        assert_true(equal(&one, &same));
        assert_false(equal(&one, &next));
        assert_false(equal(&one, &other));
        assert_string_not_equal(one.references[0], next.references[0]);
        ruler_sample_fini(&one);
        ruler_sample_fini(&same);
        ruler_sample_fini(&next);
        ruler_sample_fini(&other);
    }
}

// What a sample is must not depend on the machine or the version: a published score names a seed.
static void a_sample_of_each_task_is_the_one_it_always_was(void **state)
{
    static const uint64_t hashes[RULER_TASKS] = {
        0x280943303d3deb54ull, 0x6037003362871a88ull, 0xf34b6d1c8ef1d80full, 0xc902ff17e89dbec7ull,
        0x3584691d0d6ba1cbull, 0x3477865958450236ull, 0xd87bbfa6e9796468ull, 0x6550c7cb8ec17a94ull,
        0x999b66c8fb8e8e18ull, 0xcc247475cc596c8cull, 0xf2e4468c4c953a5aull, 0xdeee32dc3aed1706ull,
        0x011d902be844fe21ull};
    uint32_t changed = 0;
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        ruler_sample_t sample = fitted(task, 1024, 1, 0);
        uint64_t hash = 0xcbf29ce484222325ull; // FNV-1a
        for (const char *at = sample.context; *at; at++) {
            hash = (hash ^ (unsigned char)*at) * 0x100000001b3ull;
        }
        if (hash != hashes[task]) {
            print_message("0x%016llxull, // %s\n", (unsigned long long)hash, ruler_task_name(task));
            changed++;
        }
        ruler_sample_fini(&sample);
    }
    assert_int_equal(changed, 0);
}

static void a_sample_fills_its_length_but_for_less_than_a_unit(void **state)
{
    static const uint32_t lengths[] = {1024, 2000, 4096, 8192, 20000};
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            uint32_t calls = 0, more_tokens;
            const ruler_ask_t ask = {.task = task, .length_tokens = lengths[i], .seed = i};
            ruler_sample_t sample, more;
            assert_int_equal(ruler_sample_fit(&ask, count, &calls, &sample), AS_OK);
            assert_in_range(sample.prompt_tokens + sample.ask.answer_tokens, 1, lengths[i]);
            assert_in_range(calls, 1, 36);
            assert_int_equal(ruler_sample_build(&ask, sample.units + 1, &more), AS_OK);
            count(NULL, &more, &more_tokens);
            assert_true(more_tokens + more.ask.answer_tokens > lengths[i]);
            assert_in_range(more_tokens - sample.prompt_tokens, 1, 90); // a unit
            ruler_sample_fini(&sample);
            ruler_sample_fini(&more);
        }
    }
}

static void an_answer_of_another_length_leaves_more_room(void **state)
{
    ruler_ask_t ask = {.task = RULER_NIAH_SINGLE_2, .length_tokens = 500, .answer_tokens = 20};
    ruler_sample_t brief;
    (void)state;
    assert_int_equal(ruler_sample_fit(&ask, count, NULL, &brief), AS_OK);
    ruler_sample_t own = fitted(RULER_NIAH_SINGLE_2, 500, 0, 0);
    assert_int_equal(own.ask.answer_tokens, 128);
    assert_true(brief.units > own.units && brief.prompt_tokens <= 480);
    ruler_sample_fini(&brief);
    ruler_sample_fini(&own);
}

static void a_length_that_no_sample_has_is_refused(void **state)
{
    ruler_sample_t sample;
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        ruler_ask_t ask = {.task = task, .length_tokens = 60};
        assert_int_equal(ruler_sample_fit(&ask, count, NULL, &sample), AS_ERR_LIMIT);
        ask.length_tokens = RULER_TOKENS_MAX + 1;
        assert_int_equal(ruler_sample_fit(&ask, count, NULL, &sample), AS_ERR_LIMIT);
        assert_int_equal(ruler_sample_build(&ask, ruler_units_min(task) - 1, &sample),
                         AS_ERR_LIMIT);
        assert_int_equal(ruler_sample_build(&ask, ruler_units_max(task) + 1, &sample),
                         AS_ERR_LIMIT);
    }
}

static as_status_t count_nothing(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p)
{
    (void)ctx;
    (void)sample;
    *tokens_p = 1;
    return AS_OK;
}

static as_status_t count_fails(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p)
{
    uint32_t *left = ctx;
    return --*left == 0 ? AS_ERR_UNREACHABLE : count(NULL, sample, tokens_p);
}

static void what_the_counter_says_ends_a_search(void **state)
{
    const ruler_ask_t ask = {.task = RULER_NIAH_MULTIKEY_2, .length_tokens = 2000};
    ruler_sample_t sample;
    (void)state;
    assert_int_equal(ruler_sample_fit(&ask, count_nothing, NULL, &sample), AS_ERR_UNSUPPORTED);
    for (uint32_t fail_at = 1; fail_at < 8; fail_at++) {
        uint32_t left = fail_at;
        assert_int_equal(ruler_sample_fit(&ask, count_fails, &left, &sample), AS_ERR_UNREACHABLE);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        const ruler_ask_t ask = {.task = task, .length_tokens = 1000};
        ruler_sample_t sample;
        as_status_t status = AS_ERR_NO_MEMORY;
        uint32_t n;
        for (n = 1; status != AS_OK; n++) {
            as_mem_fail_nth(n);
            status = ruler_sample_build(&ask, ruler_units_min(task), &sample);
            as_mem_fail_nth(0);
            assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
        }
        assert_true(n > 3);
        ruler_sample_fini(&sample);
    }
}

// ---- What is in them

static void references_are_in_the_context_only(void **state)
{
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            ruler_sample_t sample = fitted(task, 1500, seed, 0);
            assert_true(sample.reference_count > 0);
            for (uint32_t i = 0; i < sample.reference_count; i++) {
                assert_non_null(strstr(sample.context, sample.references[i]));
                assert_null(strstr(sample.question, sample.references[i]));
                assert_null(strstr(sample.prefix, sample.references[i]));
                for (uint32_t j = 0; j < i; j++) {
                    assert_null(strstr(sample.references[i], sample.references[j]));
                }
            }
            size_t end = strlen(sample.context), last = strlen(sample.prefix);
            assert_true(sample.context[end - 1] == '\n');
            assert_false(isspace((unsigned char)sample.prefix[0]) ||
                         isspace((unsigned char)sample.prefix[last - 1]));
            ruler_sample_fini(&sample);
        }
    }
}

static void each_task_asks_for_as_many_answers_as_it_should(void **state)
{
    static const uint32_t answers[RULER_TASKS] = {1, 1, 1, 1, 1, 1, 4, 4, 5, 10, 3, 1, 1};
    static const uint32_t room[RULER_TASKS] = {128, 128, 128, 128, 128, 128, 128,
                                               128, 30,  120, 50,  32,  32};
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        ruler_task_t found;
        ruler_sample_t sample = fitted(task, 1500, 0, 0);
        assert_int_equal(sample.reference_count, answers[task]);
        assert_int_equal(sample.ask.answer_tokens, room[task]);
        assert_true(ruler_task_find(ruler_task_name(task), &found) && found == task);
        ruler_sample_fini(&sample);
    }
    ruler_task_t none;
    assert_false(ruler_task_find("niah", &none));
}

static void needles_stand_once_each_at_depths_all_over_the_prose(void **state)
{
    uint32_t quarters[4] = {0};
    (void)state;
    for (uint32_t seed = 0; seed < 60; seed++) {
        ruler_sample_t sample = fitted(RULER_NIAH_MULTIVALUE, 3000, seed, 0);
        uint32_t before = 0;
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(occurrences(sample.context, sample.references[i]), 1);
            size_t at = (size_t)(strstr(sample.context, sample.references[i]) - sample.context);
            quarters[4 * at / strlen(sample.context)]++;
            before += i > 0 && strstr(sample.context, sample.references[0]) < sample.context + at;
        }
        assert_int_equal(occurrences(sample.context, "A code number of "), 4);
        assert_true(before <= 3);
        ruler_sample_fini(&sample);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(quarters[i], 35, 85); // 60 expected
    }
}

static void needles_reach_both_ends_of_a_haystack(void **state)
{
    static const ruler_task_t tasks[] = {RULER_NIAH_SINGLE_1, RULER_NIAH_SINGLE_2};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t first = 0, last = 0;
        for (uint32_t seed = 0; seed < 400; seed++) {
            const ruler_ask_t ask = {.task = tasks[i], .seed = seed};
            ruler_sample_t sample;
            assert_int_equal(ruler_sample_build(&ask, 12, &sample), AS_OK);
            const char *body = strstr(sample.context, "\n\n") + 2;
            const char *needle = strstr(body, "A code number of ");
            first += needle == body;
            last +=
                needle[strcspn(needle, ".") + 1] == '\n' && needle[strcspn(needle, ".") + 2] == 0;
            ruler_sample_fini(&sample);
        }
        assert_true(first > 0 && last > 0);
    }
}

static void lines_that_look_alike_have_keys_of_their_own(void **state)
{
    static const ruler_task_t tasks[] = {RULER_NIAH_MULTIKEY_2, RULER_NIAH_MULTIKEY_3};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        ruler_sample_t sample = fitted(tasks[i], 4000, 1, 0);
        const char *asked = strstr(sample.prefix, " of ") + 4;
        char key[64];
        snprintf(key, sizeof(key), " of %.*s is", (int)strcspn(asked, " "), asked);
        assert_int_equal(occurrences(sample.context, key), 1);
        char needle[128];
        snprintf(needle, sizeof(needle), "%s %s.", key, sample.references[0]);
        assert_int_equal(occurrences(sample.context, needle), 1);
        assert_int_equal(occurrences(sample.context, "A code "), sample.units);
        ruler_sample_fini(&sample);
    }
}

static void prose_does_not_repeat_itself(void **state)
{
    enum { SENTENCES = 600 };
    static ruler_text_t sentences[SENTENCES];
    (void)state;
    for (uint32_t i = 0; i < SENTENCES; i++) {
        ruler_prose(5, i, &sentences[i]);
        assert_null(strchr(sentences[i].bytes, '@'));
        assert_true(isupper((unsigned char)sentences[i].bytes[0]));
        assert_true(sentences[i].bytes[sentences[i].count - 1] == '.');
        for (uint32_t j = 0; j < i; j++) {
            assert_string_not_equal(sentences[i].bytes, sentences[j].bytes);
        }
    }
    for (uint32_t i = 0; i < SENTENCES; i++) {
        ruler_text_fini(&sentences[i]);
    }
}

static void a_chain_of_assignments_can_be_followed_in_order(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        ruler_sample_t sample = fitted(RULER_VT, 1500, seed, 0);
        char line[64], value[8];
        const char *asked = strstr(sample.question, "value ") + 6;
        snprintf(value, sizeof(value), "%.5s", asked);
        snprintf(line, sizeof(line), "VAR %s = %s\n", sample.references[0], value);
        const char *at = strstr(sample.context, line);
        for (uint32_t i = 1; i < 5; i++) {
            assert_non_null(at);
            snprintf(line, sizeof(line), "VAR %s = VAR %s\n", sample.references[i],
                     sample.references[i - 1]);
            at = strstr(at, line);
        }
        assert_non_null(at);
        ruler_sample_fini(&sample);
    }
}

// Of "12. word": how often the word is numbered in the list that the question is about.
static uint32_t listed(const char *list, const char *word)
{
    char item[64];
    snprintf(item, sizeof(item), ". %s ", word);
    uint32_t inside = occurrences(list, item);
    snprintf(item, sizeof(item), ". %s\n", word);
    return inside + occurrences(list, item);
}

static void common_words_occur_as_often_as_said_and_others_less(void **state)
{
    static const struct {
        uint32_t length, common, other;
    } rows[] = {{1500, 6, 1}, {4096, 30, 3}};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        ruler_sample_t sample = fitted(RULER_CWE, rows[i].length, 2, 0);
        const char *list = strstr(strstr(sample.context, "Below") + 1, "Below");
        list = strstr(list, "1. ");
        for (uint32_t j = 0; j < 10; j++) {
            assert_int_equal(listed(list, sample.references[j]), rows[i].common);
        }
        char last[16];
        snprintf(last, sizeof(last), " %u. ",
                 10 * rows[i].common + (sample.units - 10) * rows[i].other);
        assert_int_equal(occurrences(list, last), 1);
        assert_null(strstr(strstr(list, last) + strlen(last), ". "));
        ruler_sample_fini(&sample);
    }
}

static void frequent_words_are_ranked_by_how_often_they_occur(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        ruler_sample_t sample = fitted(RULER_FWE, 2000, seed, 0);
        const char *body = strstr(sample.context, "\n\n") + 2;
        uint32_t before = occurrences(body, "...");
        assert_int_equal(before, (uint32_t)floor(sample.units / (M_PI * M_PI / 6)));
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t times = occurrences(body, sample.references[i]);
            assert_true(times > 0 && times < before);
            before = times;
        }
        // No other word comes as often as the third.
        char word[8];
        for (const char *at = body; sscanf(at, "%7s", word) == 1; at += strcspn(at, " \n") + 1) {
            bool asked = strcmp(word, "...") == 0 || strcmp(word, sample.references[0]) == 0 ||
                         strcmp(word, sample.references[1]) == 0 ||
                         strcmp(word, sample.references[2]) == 0;
            assert_true(asked || occurrences(body, word) < before);
        }
        ruler_sample_fini(&sample);
    }
}

static void a_question_of_two_hops_needs_two_documents(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        char part[128], province[48], capital[48];
        ruler_sample_t sample = fitted(RULER_QA_2, 1500, seed, 0);
        const char *asked = strstr(sample.prefix, "capital of ") + 11;
        snprintf(province, sizeof(province), "%.*s", (int)(strstr(asked, " is") - asked), asked);
        snprintf(part, sizeof(part), "The capital of %s is ", province);
        assert_int_equal(occurrences(sample.context, part), 1);
        const char *told = strstr(sample.context, part) + strlen(part);
        snprintf(capital, sizeof(capital), "%.*s", (int)strcspn(told, "."), told);
        snprintf(part, sizeof(part), "The founder of %s is %s,", capital, sample.references[0]);
        assert_int_equal(occurrences(sample.context, part), 1);
        assert_int_equal(occurrences(sample.context, sample.references[0]), 1);
        assert_int_equal(occurrences(sample.context, "Document "), sample.units);
        ruler_sample_fini(&sample);
    }
}

static void no_word_of_the_lists_stands_within_another(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < RULER_WORDS; i++) {
        for (uint32_t j = 0; j < RULER_WORDS; j++) {
            assert_true(i == j || !strstr(ruler_word(i), ruler_word(j)));
        }
    }
}

static void a_random_order_has_each_number_once(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 40, 1000, 4097};
    static bool seen[4097];
    (void)state;
    for (uint32_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        memset(seen, 0, sizeof(seen));
        for (uint32_t at = 0; at < counts[i]; at++) {
            uint64_t number = ruler_permute(i, RULER_STREAM_KEYS, counts[i], at);
            assert_true(number < counts[i] && !seen[number]);
            seen[number] = true;
        }
    }
}

// ---- Score

static void a_perfect_answer_scores_all_and_an_empty_one_nothing(void **state)
{
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        ruler_sample_t sample = fitted(task, 1200, 9, 0);
        ruler_text_t answer = {0};
        for (uint32_t i = 0; i < sample.reference_count; i++) {
            ruler_text_add(&answer, "%s, ", sample.references[i]);
        }
        assert_true(ruler_score(&sample, answer.bytes) == 1);
        assert_true(ruler_score(&sample, "") == 0);
        assert_true(ruler_score(&sample, sample.question) == 0);
        ruler_text_fini(&answer);
        ruler_sample_fini(&sample);
    }
}

static void the_score_is_the_share_of_references_in_either_case(void **state)
{
    ruler_sample_t sample = {.ask.task = RULER_CWE,
                             .references = {"walnut", "Tiger", "12", "new moon"},
                             .reference_count = 4};
    (void)state;
    assert_true(ruler_score(&sample, "WALNUT") == 0.25);
    assert_true(ruler_score(&sample, "a tiger, walnuts") == 0.5);
    assert_true(ruler_score(&sample, "tige\nr walnu") == 0);
    assert_true(ruler_score(&sample, "7123 New\nMoon TIGER Walnut") == 1);
    assert_true(ruler_score(&sample, "walnut walnut walnut") == 0.25);
    assert_true(ruler_score(&sample, "wawalnut") == 0.25);
}

static void any_reference_is_enough_for_a_question(void **state)
{
    ruler_sample_t sample = {
        .ask.task = RULER_QA_2, .references = {"Belaro", "Tomiku"}, .reference_count = 2};
    (void)state;
    assert_true(ruler_score(&sample, "It is tomiku.") == 1);
    assert_true(ruler_score(&sample, "It is Tomik.") == 0);
}

static void json_has_all_of_a_sample(void **state)
{
    ruler_sample_t sample = fitted(RULER_NIAH_MULTIQUERY, 1000, 3, 2);
    json_t *json = ruler_sample_json(&sample);
    (void)state;
    assert_string_equal(json_string_value(json_object_get(json, "task")), "niah_multiquery");
    assert_string_equal(json_string_value(json_object_get(json, "context")), sample.context);
    assert_string_equal(json_string_value(json_object_get(json, "question")), sample.question);
    assert_string_equal(json_string_value(json_object_get(json, "prefix")), sample.prefix);
    assert_int_equal(json_integer_value(json_object_get(json, "index")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "prompt_tokens")),
                     sample.prompt_tokens);
    json_t *references = json_object_get(json, "references");
    assert_int_equal(json_array_size(references), 4);
    assert_string_equal(json_string_value(json_array_get(references, 3)), sample.references[3]);
    json_decref(json);
    ruler_sample_fini(&sample);
}

static void an_answer_is_scored_by_its_line_alone(void **state)
{
    ruler_sample_t sample = fitted(RULER_NIAH_MULTIVALUE, 1000, 3, 2), again;
    json_t *json = ruler_sample_json(&sample);
    const char *answer;
    char half[128];
    (void)state;
    assert_non_null(ruler_answer_parse(json, &again, &answer)); // no answer yet
    snprintf(half, sizeof(half), "%s and %s", sample.references[1], sample.references[2]);
    json_object_set_new(json, "answer", json_string(half));
    assert_null(ruler_answer_parse(json, &again, &answer));
    assert_int_equal(again.ask.task, RULER_NIAH_MULTIVALUE);
    assert_true(ruler_score(&again, answer) == 0.5);
    json_decref(json);
    ruler_sample_fini(&sample);
}

static void a_line_that_is_no_answer_is_refused_with_what_is_wrong(void **state)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"[]", "task"},
        {"{\"task\": 7}", "task"},
        {"{\"task\": \"niah\", \"answer\": \"x\", \"references\": [\"a\"]}", "task"},
        {"{\"task\": \"vt\", \"answer\": 5, \"references\": [\"a\"]}", "answer"},
        {"{\"task\": \"vt\", \"answer\": \"x\"}", "array"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": []}", "array"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": {\"a\": \"b\"}}", "array"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": "
         "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}",
         "array"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": [\"a\", \"\"]}", "39 bytes"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": [\"a\", 3]}", "39 bytes"},
        {"{\"task\": \"vt\", \"answer\": \"x\", \"references\": "
         "[\"0123456789012345678901234567890123456789\"]}",
         "39 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = json_loads(rows[i].line, 0, NULL);
        ruler_sample_t sample;
        const char *answer, *fault = ruler_answer_parse(json, &sample, &answer);
        assert_non_null(json);
        assert_non_null(fault);
        assert_non_null(strstr(fault, rows[i].says));
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_sample_and_others_differ),
        cmocka_unit_test(a_sample_of_each_task_is_the_one_it_always_was),
        cmocka_unit_test(a_sample_fills_its_length_but_for_less_than_a_unit),
        cmocka_unit_test(an_answer_of_another_length_leaves_more_room),
        cmocka_unit_test(a_length_that_no_sample_has_is_refused),
        cmocka_unit_test(what_the_counter_says_ends_a_search),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(references_are_in_the_context_only),
        cmocka_unit_test(each_task_asks_for_as_many_answers_as_it_should),
        cmocka_unit_test(needles_stand_once_each_at_depths_all_over_the_prose),
        cmocka_unit_test(needles_reach_both_ends_of_a_haystack),
        cmocka_unit_test(lines_that_look_alike_have_keys_of_their_own),
        cmocka_unit_test(prose_does_not_repeat_itself),
        cmocka_unit_test(a_chain_of_assignments_can_be_followed_in_order),
        cmocka_unit_test(common_words_occur_as_often_as_said_and_others_less),
        cmocka_unit_test(frequent_words_are_ranked_by_how_often_they_occur),
        cmocka_unit_test(a_question_of_two_hops_needs_two_documents),
        cmocka_unit_test(no_word_of_the_lists_stands_within_another),
        cmocka_unit_test(a_random_order_has_each_number_once),
        cmocka_unit_test(a_perfect_answer_scores_all_and_an_empty_one_nothing),
        cmocka_unit_test(the_score_is_the_share_of_references_in_either_case),
        cmocka_unit_test(any_reference_is_enough_for_a_question),
        cmocka_unit_test(json_has_all_of_a_sample),
        cmocka_unit_test(an_answer_is_scored_by_its_line_alone),
        cmocka_unit_test(a_line_that_is_no_answer_is_refused_with_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
