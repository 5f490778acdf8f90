// SPDX-License-Identifier: Apache-2.0
// Prose by rule: sentences of a small town's life, whose parts are drawn by chance. A text of some
// hundred sentences repeats none of them; text that repeats itself would be easy to compress.
#include <ctype.h>

#include "client/ruler/internal.h"

const char ruler_noise[] = "The tide comes in. The tide goes out. The gulls sit on the wall. "
                           "Nothing else is new. So one day follows another.";

// @p a person, @t a thing, @l a place, @w a time, @m a manner, @d what was done (to a thing)
static const char *const sentences[] = {
    "@w the @p @d the @t and went back to @l.",
    "The @p of @l had never @d a @t so @m.",
    "@w somebody @d the @t near @l, and the @p said nothing about it.",
    "When the @p came to @l, the @t had been @d already.",
    "It was the @p who @d the @t, not the @p, as people at @l still believe.",
    "Nobody at @l asks why the @p @d that @t @w.",
    "The @t at @l is older than the @p thinks, and it has been @d twice.",
    "@w a @p arrived from @l with a @t that had been @d @m.",
    "Between @l and @l there is a path on which the @p once @d a @t.",
    "The @p wrote that the @t should be @d @m, and then left for @l.",
    "Some say that the @t was @d @m; the @p remembers it otherwise.",
    "If the @p had not @d the @t, there would be nothing to see at @l.",
    "@w it rained at @l, so the @p @d the @t @m.",
    "The @p keeps a @t from @l on the shelf, where it is @d @w.",
    "Two of them @d the @t together: the @p held it, and the @p watched @m.",
    "At @l the @p is known for a @t that was @d @w.",
    "There was talk of the @t, which the @p had @d @m before leaving @l.",
    "For years the @p @d one @t after another, always @m and always at @l.",
    "The road to @l was closed @w, since a @p had @d the @t there.",
    "What the @p told us of @l was true, but the @t had not been @d @m.",
};

static const char *const persons[] = {
    "baker",     "surveyor",  "teacher",   "widow",     "clockmaker", "fisherman", "librarian",
    "gardener",  "mason",     "ferryman",  "physician", "printer",    "shepherd",  "carpenter",
    "mayor",     "weaver",    "musician",  "innkeeper", "painter",    "postman",   "apprentice",
    "beekeeper", "miller",    "captain",   "student",   "stranger",   "judge",     "cook",
    "toolmaker", "traveller", "neighbour", "watchman"};
static const char *const things[] = {
    "wheel",    "ledger",  "staircase", "boat",       "letter",  "roof",      "map",
    "pump",     "shutter", "table",     "net",        "drawing", "bench",     "stove",
    "portrait", "gate",    "telescope", "chest",      "oven",    "sail",      "dictionary",
    "clock",    "cart",    "press",     "coat",       "loom",    "barometer", "sign",
    "rope",     "vase",    "chair",     "weathervane"};
static const char *const places[] = {
    "the old mill",      "the upper market",  "the north quay",    "the school",
    "the salt works",    "the town hall",     "the east gate",     "the printing house",
    "the river landing", "the hill farm",     "the courthouse",    "the glass workshop",
    "the lower bridge",  "the station",       "the stone barn",    "the boatyard",
    "the chapel yard",   "the wool exchange", "the customs house", "the inner harbour",
    "the reading room",  "the long field",    "the toll house",    "the winter camp"};
static const char *const times[] = {
    "in early spring", "one Sunday",        "before the harvest", "late that evening",
    "after the flood", "in the third year", "on a cold morning",  "towards noon",
    "every autumn",    "during the fair",   "at the end of May",  "two days later",
    "that same week",  "long ago",          "in the dry season",  "shortly before dawn"};
static const char *const manners[] = {
    "with great care",     "in a hurry",   "without a word",   "by candlelight",
    "rather badly",        "for nothing",  "against advice",   "almost by accident",
    "with borrowed tools", "twice over",   "as a favour",      "in plain view",
    "to the last detail",  "out of habit", "with little hope", "under the open sky"};
static const char *const deeds[] = {
    "repaired", "measured",  "buried",   "painted", "sold",     "carried", "copied",   "weighed",
    "dusted",   "described", "lent",     "damaged", "polished", "moved",   "counted",  "covered",
    "rebuilt",  "inspected", "borrowed", "cleaned", "examined", "praised", "sketched", "turned"};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const struct {
    char slot;
    const char *const *words;
    size_t count;
} slots[] = {
    {'p', persons, COUNT(persons)}, {'t', things, COUNT(things)},   {'l', places, COUNT(places)},
    {'w', times, COUNT(times)},     {'m', manners, COUNT(manners)}, {'d', deeds, COUNT(deeds)},
};

#define DRAWS_MAX 16u // of one sentence

static const char *draw(uint64_t seed, uint64_t draw_index, char slot)
{
    for (size_t i = 0; i < COUNT(slots); i++) {
        if (slots[i].slot == slot) {
            uint64_t at = ruler_below(seed, RULER_STREAM_PROSE, draw_index, slots[i].count);
            return slots[i].words[at];
        }
    }
    return "";
}

void ruler_prose(uint64_t seed, uint32_t index, ruler_text_t *text)
{
    uint64_t draws = (uint64_t)index * DRAWS_MAX;
    uint64_t kind = ruler_below(seed, RULER_STREAM_PROSE, draws++, COUNT(sentences));
    size_t begin = text->count;
    for (const char *at = sentences[kind]; *at; at++) {
        if (*at == '@') {
            ruler_text_add(text, "%s", draw(seed, draws++, *++at));
        } else {
            ruler_text_add(text, "%c", *at);
        }
    }
    if (!text->failed) {
        text->bytes[begin] = (char)toupper((unsigned char)text->bytes[begin]);
    }
}
