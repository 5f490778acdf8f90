// SPDX-License-Identifier: Apache-2.0
// Questions about documents, of which one or two hold the answer and the others are alike.
//
// In place of collections that would have to be downloaded, the documents tell of invented
// countries (qa_1), or of countries and their capitals by turns (qa_2): there the question names a
// country, and the answer stands in the document of its capital. The first of each is the one that
// is asked for; then all are shuffled. Units: documents.
#include "client/ruler/internal.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const char *const directions[] = {"north", "south", "east", "west", "centre"};
static const char *const goods[] = {"barley", "copper", "salt",  "wool",  "glass", "timber",
                                    "tea",    "silk",   "paper", "honey", "slate", "leather"};

typedef enum fact { CAPITAL, RIVER, HERO, FOUNDER, FACTS } fact_t;
#define FACTS_OF_ONE 3u // those that the document of a country tells

// Names of country k: all differ, and have equal lengths.
static void name(const ruler_make_t *make, uint32_t country, uint32_t which,
                 char name_p[RULER_NAME_BYTES])
{
    uint64_t index = (uint64_t)country * (FACTS + 1) + which;
    ruler_name((uint32_t)ruler_permute(make->seed, RULER_STREAM_KEYS, RULER_NAMES, index), name_p);
    name_p[0] = (char)(name_p[0] - 'a' + 'A');
}

static void country_name(const ruler_make_t *make, uint32_t country, char name_p[RULER_NAME_BYTES])
{
    name(make, country, FACTS, name_p);
}

static const char *any_of(const ruler_make_t *make, const char *const *words, size_t count,
                          uint32_t draw)
{
    return words[ruler_below(make->seed, RULER_STREAM_PROSE, draw, count)];
}

static void add_country(ruler_make_t *make, uint32_t country)
{
    char self[RULER_NAME_BYTES], capital[RULER_NAME_BYTES], river[RULER_NAME_BYTES],
        hero[RULER_NAME_BYTES];
    country_name(make, country, self);
    name(make, country, CAPITAL, capital);
    name(make, country, RIVER, river);
    name(make, country, HERO, hero);
    ruler_text_add(&make->context,
                   "%s is a country in the %s of the continent. The capital of %s is %s. The "
                   "longest river of %s is the %s, on which %s is shipped. The national hero of %s "
                   "is %s.\n",
                   self, any_of(make, directions, COUNT(directions), 4 * country), self, capital,
                   self, river, any_of(make, goods, COUNT(goods), 4 * country + 1), self, hero);
}

static void add_city(ruler_make_t *make, uint32_t country)
{
    char self[RULER_NAME_BYTES], founder[RULER_NAME_BYTES];
    uint64_t people = 20 + ruler_below(make->seed, RULER_STREAM_VALUES, country, 900);
    name(make, country, CAPITAL, self);
    name(make, country, FOUNDER, founder);
    ruler_text_add(&make->context,
                   "%s is a city of %u thousand people that is known for its %s. The founder of "
                   "%s is %s, whose house still stands at the market.\n",
                   self, (uint32_t)people, any_of(make, goods, COUNT(goods), 4 * country + 2), self,
                   founder);
}

void ruler_make_facts(ruler_make_t *make)
{
    static const char *const asked_for[] = {
        [CAPITAL] = "the capital of",
        [RIVER] = "the longest river of",
        [HERO] = "the national hero of",
        [FOUNDER] = "the founder of the capital of",
    };
    bool two = make->task == RULER_QA_2;
    char country[RULER_NAME_BYTES], answer[RULER_NAME_BYTES];
    fact_t fact =
        two ? FOUNDER : (fact_t)ruler_below(make->seed, RULER_STREAM_QUESTION, 0, FACTS_OF_ONE);
    country_name(make, 0, country);
    name(make, 0, fact, answer);
    ruler_text_add(&make->context,
                   "Below are documents about countries%s. Answer the question "
                   "behind them by what they say.\n\n",
                   two ? " and cities" : "");
    for (uint32_t i = 0; i < make->units; i++) {
        uint32_t which = (uint32_t)ruler_permute(make->seed, RULER_STREAM_ORDER, make->units, i);
        ruler_text_add(&make->context, "Document %u:\n", i + 1);
        if (!two) {
            add_country(make, which);
        } else if (which % 2 == 0) {
            add_country(make, which / 2);
        } else {
            add_city(make, which / 2);
        }
    }
    ruler_text_add(&make->question, "\n%s is %s %s, by the documents above?",
                   fact == HERO || fact == FOUNDER ? "Who" : "What", asked_for[fact], country);
    ruler_text_add(&make->prefix, "By the documents, %s %s is%s", asked_for[fact], country,
                   fact == RIVER ? " the" : "");
    ruler_refer(make, answer);
}
