// SPDX-License-Identifier: Apache-2.0
// Words by how often they occur.
//
// Common words: a numbered list in which ten words occur often and all others seldom. Units:
// different words. Frequent words: words of a Zipf distribution, of which the second to the fourth
// are asked for, since the first is a row of dots. Units: words of the text.
#include <math.h>
#include <string.h>

#include "client/ruler/internal.h"

// ---- Common words

#define COMMON        10u
#define SHORT_BELOW   4096u // tokens: below, a list has fewer repetitions
#define EXAMPLE_WORDS 40u   // at most: the list's own words come behind them

typedef struct list {
    uint64_t seed;  // of the order
    uint32_t first; // of the sample's words
    uint32_t words;
    uint32_t common_times, other_times;
} list_t;

// Word `index` of the sample: the lists' words in a random order, then invented ones.
static void pooled_word(const ruler_make_t *make, uint32_t index, char word_p[32])
{
    if (index < RULER_WORDS) {
        uint64_t at = ruler_permute(make->seed, RULER_STREAM_KEYS, RULER_WORDS, index);
        memset(word_p, 0, 32);
        memcpy(word_p, ruler_word((uint32_t)at), strlen(ruler_word((uint32_t)at)));
    } else {
        uint64_t at =
            ruler_permute(make->seed, RULER_STREAM_VALUES, RULER_NAMES, index - RULER_WORDS);
        ruler_name((uint32_t)at, word_p);
    }
}

// Every word as often as it is to occur, in a random order.
static void add_list(const ruler_make_t *make, const list_t *list, ruler_text_t *text)
{
    uint64_t common = (uint64_t)COMMON * list->common_times;
    uint64_t total = common + (uint64_t)(list->words - COMMON) * list->other_times;
    ruler_text_add(text, "Below is a numbered list of words. Some of them occur more often than "
                         "the others; keep those in mind.\n\n");
    for (uint64_t i = 0; i < total; i++) {
        uint64_t at = ruler_permute(list->seed, RULER_STREAM_ORDER, total, i);
        uint64_t word =
            at < common ? at / list->common_times : COMMON + (at - common) / list->other_times;
        char name[32];
        pooled_word(make, list->first + (uint32_t)word, name);
        ruler_text_add(text, "%u. %s%s", (uint32_t)i + 1, name, i + 1 < total ? " " : "\n");
    }
}

static const char common_question[] = "\nWhich ten words occur most often in the list above?";
static const char common_prefix[] = "The ten words that occur most often in the list are:";

void ruler_make_common(ruler_make_t *make)
{
    bool brief = make->length_tokens < SHORT_BELOW;
    list_t example = {.seed = ruler_chance(make->seed, RULER_STREAM_EXAMPLE, 0),
                      .words = brief ? EXAMPLE_WORDS / 2 : EXAMPLE_WORDS,
                      .common_times = brief ? 3 : 10,
                      .other_times = brief ? 1 : 3};
    list_t list = {.seed = make->seed,
                   .first = EXAMPLE_WORDS,
                   .words = make->units,
                   .common_times = brief ? 6 : 30,
                   .other_times = brief ? 1 : 3};
    char word[32];
    add_list(make, &example, &make->context);
    ruler_text_add(&make->context, "%s\n%s", common_question, common_prefix);
    for (uint32_t i = 0; i < COMMON; i++) {
        pooled_word(make, example.first + i, word);
        ruler_text_add(&make->context, " %u. %s", i + 1, word);
    }
    ruler_text_add(&make->context, "\n\n");
    add_list(make, &list, &make->context);
    ruler_text_add(&make->question, "%s", common_question);
    ruler_text_add(&make->prefix, "%s", common_prefix);
    for (uint32_t i = 0; i < COMMON; i++) {
        pooled_word(make, list.first + i, word);
        ruler_refer(make, word);
    }
}

// ---- Frequent words

#define ASKED_FIRST       2u // ranks
#define ASKED_LAST        4u
#define TOKENS_FOR_A_WORD 50u // of the length, for each word of the vocabulary
#define VOCABULARY_MIN    8u
#define ZETA_2            1.6449340668482264 // pi^2 / 6: Zipf's exponent is 2

// How often the word of a rank occurs among so many.
static uint32_t times_of_rank(uint32_t words, uint32_t rank)
{
    return (uint32_t)floor((double)words / ((double)rank * rank * ZETA_2));
}

static void add_ranked(const ruler_make_t *make, uint32_t rank, ruler_text_t *text)
{
    char name[RULER_NAME_BYTES];
    if (rank == 1) {
        ruler_text_add(text, "...");
        return;
    }
    uint64_t at = ruler_permute(make->seed, RULER_STREAM_KEYS, RULER_NAMES, rank);
    ruler_name((uint32_t)at, name);
    ruler_text_add(text, "%s", name);
}

// The rank of place `at`, when all of rank 1 come first, then all of rank 2 ...
static uint32_t rank_at(uint32_t words, uint64_t at)
{
    uint32_t rank = 1;
    while (at >= times_of_rank(words, rank)) {
        at -= times_of_rank(words, rank);
        rank++;
    }
    return rank;
}

void ruler_make_frequent(ruler_make_t *make)
{
    uint32_t vocabulary = make->length_tokens / TOKENS_FOR_A_WORD;
    uint64_t total = 0;
    vocabulary = vocabulary < VOCABULARY_MIN ? VOCABULARY_MIN : vocabulary;
    for (uint32_t rank = 1; rank <= vocabulary; rank++) {
        total += times_of_rank(make->units, rank);
    }
    ruler_text_add(&make->context, "The text below is made of invented words. Keep in mind how "
                                   "often each occurs, and ignore the dots.\n\n");
    for (uint64_t i = 0; i < total; i++) {
        uint64_t at = ruler_permute(make->seed, RULER_STREAM_ORDER, total, i);
        add_ranked(make, rank_at(make->units, at), &make->context);
        ruler_text_add(&make->context, i + 1 < total ? " " : "\n");
    }
    ruler_text_add(&make->question,
                   "\nWhich three words, besides the dots, occur most often in the text above?");
    ruler_text_add(&make->prefix, "The three words that occur most often in the text are:");
    for (uint32_t rank = ASKED_FIRST; rank <= ASKED_LAST; rank++) {
        ruler_text_t name = {0};
        add_ranked(make, rank, &name);
        ruler_refer(make, name.failed ? "" : name.bytes);
        make->context.failed |= name.failed;
        ruler_text_fini(&name);
    }
}
