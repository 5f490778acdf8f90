// SPDX-License-Identifier: Apache-2.0
// Questions about documents, of which one or two hold the answer and the others are alike.
//
// In place of collections that would have to be downloaded, the documents tell of invented
// provinces (qa_1), or of provinces and their capitals by turns (qa_2): there the question names a
// province, and the answer stands in the document of its capital. The first of each is the one that
// is asked for; then all are shuffled. Units: documents.
#include <stdio.h>

#include "client/ruler/internal.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const char *const directions[] = {"north", "south", "east", "west", "centre"};
static const char *const goods[] = {"barley", "copper", "salt",  "wool",  "glass", "timber",
                                    "tea",    "silk",   "paper", "honey", "slate", "leather"};

typedef enum fact { CAPITAL, RIVER, HERO, FOUNDER, FACTS } fact_t;
#define FACTS_OF_ONE 3u // those that the document of a province tells

// Provinces and their capitals have names of two words, since those who read them have seen the words
// before; rivers and people have invented ones. All differ, and none stands within another.
static void name(const ruler_make_t *make, uint32_t province, uint32_t which,
                 char name_p[RULER_REFERENCE_BYTES])
{
    if (which == CAPITAL || which == FACTS) {
        uint64_t index = 2ull * province + (which == CAPITAL);
        uint32_t pair = (uint32_t)ruler_permute(make->seed, RULER_STREAM_KEYS,
                                                RULER_ADJECTIVES * RULER_NOUNS, index);
        const char *first = ruler_adjectives[pair / RULER_NOUNS],
                   *second = ruler_nouns[pair % RULER_NOUNS];
        snprintf(name_p, RULER_REFERENCE_BYTES, "%c%s %c%s", first[0] - 'a' + 'A', first + 1,
                 second[0] - 'a' + 'A', second + 1);
        return;
    }
    uint64_t index = (uint64_t)province * FACTS + which;
    ruler_name((uint32_t)ruler_permute(make->seed, RULER_STREAM_VALUES, RULER_NAMES, index),
               name_p);
    name_p[0] = (char)(name_p[0] - 'a' + 'A');
}

static void province_name(const ruler_make_t *make, uint32_t province,
                          char name_p[RULER_REFERENCE_BYTES])
{
    name(make, province, FACTS, name_p);
}

static const char *any_of(const ruler_make_t *make, const char *const *words, size_t count,
                          uint32_t draw)
{
    return words[ruler_below(make->seed, RULER_STREAM_PROSE, draw, count)];
}

static void add_province(ruler_make_t *make, uint32_t province)
{
    char self[RULER_REFERENCE_BYTES], capital[RULER_REFERENCE_BYTES], river[RULER_REFERENCE_BYTES],
        hero[RULER_REFERENCE_BYTES];
    province_name(make, province, self);
    name(make, province, CAPITAL, capital);
    name(make, province, RIVER, river);
    name(make, province, HERO, hero);
    ruler_text_add(&make->context,
                   "%s is a province in the %s of the kingdom. The capital of %s is %s. The "
                   "longest river of %s is the %s, on which %s is shipped. The hero of %s "
                   "is %s.\n",
                   self, any_of(make, directions, COUNT(directions), 4 * province), self, capital,
                   self, river, any_of(make, goods, COUNT(goods), 4 * province + 1), self, hero);
}

static void add_city(ruler_make_t *make, uint32_t province)
{
    char self[RULER_REFERENCE_BYTES], founder[RULER_REFERENCE_BYTES];
    uint64_t people = 20 + ruler_below(make->seed, RULER_STREAM_VALUES, province, 900);
    name(make, province, CAPITAL, self);
    name(make, province, FOUNDER, founder);
    ruler_text_add(&make->context,
                   "%s is a city of %u thousand people that is known for its %s. The founder of "
                   "%s is %s, whose house still stands at the market.\n",
                   self, (uint32_t)people, any_of(make, goods, COUNT(goods), 4 * province + 2),
                   self, founder);
}

void ruler_make_facts(ruler_make_t *make)
{
    static const char *const asked_for[] = {
        [CAPITAL] = "the capital of",
        [RIVER] = "the longest river of",
        [HERO] = "the hero of",
        [FOUNDER] = "the founder of the capital of",
    };
    bool two = make->task == RULER_QA_2;
    char province[RULER_REFERENCE_BYTES], answer[RULER_REFERENCE_BYTES];
    fact_t fact =
        two ? FOUNDER : (fact_t)ruler_below(make->seed, RULER_STREAM_QUESTION, 0, FACTS_OF_ONE);
    province_name(make, 0, province);
    name(make, 0, fact, answer);
    ruler_text_add(&make->context,
                   "Below are documents about provinces%s. Answer the question "
                   "behind them by what they say.\n\n",
                   two ? " and cities" : "");
    for (uint32_t i = 0; i < make->units; i++) {
        uint32_t which = (uint32_t)ruler_permute(make->seed, RULER_STREAM_ORDER, make->units, i);
        ruler_text_add(&make->context, "Document %u:\n", i + 1);
        if (!two) {
            add_province(make, which);
        } else if (which % 2 == 0) {
            add_province(make, which / 2);
        } else {
            add_city(make, which / 2);
        }
    }
    ruler_text_add(&make->question, "\n%s is %s %s, by the documents above?",
                   fact == HERO || fact == FOUNDER ? "Who" : "What", asked_for[fact], province);
    ruler_text_add(&make->prefix, "By the documents, %s %s is%s", asked_for[fact], province,
                   fact == RIVER ? " the" : "");
    ruler_refer(make, answer);
}
