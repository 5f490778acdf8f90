// SPDX-License-Identifier: Apache-2.0
// Words: lists of our own, and invented ones by rule.
//
// No word of the lists stands within another, so that an answer that holds one is not taken to hold
// two (a test looks). Invented words have equal lengths for the same reason.
#include <string.h>

#include "client/ruler/internal.h"
#include "common/assert.h"

const char *const ruler_adjectives[RULER_ADJECTIVES] = {
    "amber",   "ancient",  "arctic",  "autumn",   "bitter",   "blazing",   "bright", "brisk",
    "bronze",  "calm",     "careful", "cheerful", "clever",   "cobalt",    "copper", "coral",
    "cosmic",  "crimson",  "curious", "dapper",   "daring",   "distant",   "dusty",  "eager",
    "earnest", "elegant",  "emerald", "faithful", "fancy",    "feathered", "fierce", "flowing",
    "foggy",   "fragile",  "frosty",  "gentle",   "gilded",   "glassy",    "golden", "graceful",
    "granite", "grateful", "hidden",  "hollow",   "honest",   "humble",    "indigo", "ivory",
    "jolly",   "jovial",   "lively",  "lonely",   "loyal",    "lucky",     "lunar",  "magnetic",
    "mellow",  "mighty",   "misty",   "modest",   "narrow",   "nimble",    "noble",  "opal",
    "patient", "peaceful", "pearly",  "playful",  "polished", "proud",     "purple", "quiet",
    "radiant", "rapid",    "rugged",  "rustic",   "sacred",   "scarlet",   "serene", "shady",
    "silent",  "silver",   "sleepy",  "slender",  "smoky",    "snowy",     "solar",  "spiral",
    "spotted", "stormy",   "sturdy",  "sunny",    "tidy",     "velvet",    "vivid",  "wandering"};

const char *const ruler_nouns[RULER_NOUNS] = {
    "acorn",      "anchor",   "antler",   "apron",   "attic",  "bakery",   "ballad",  "banner",
    "barrel",     "basket",   "beacon",   "beaver",  "bell",   "bicycle",  "blanket", "blossom",
    "bottle",     "boulder",  "bramble",  "bridge",  "broom",  "bucket",   "butter",  "button",
    "cabin",      "camera",   "candle",   "canyon",  "carpet", "castle",   "cavern",  "cellar",
    "chimney",    "circus",   "cliff",    "clover",  "comet",  "compass",  "cottage", "cradle",
    "crystal",    "curtain",  "dagger",   "daisy",   "desert", "diamond",  "dolphin", "donkey",
    "dragon",     "eagle",    "easel",    "engine",  "falcon", "ferry",    "fiddle",  "flute",
    "forest",     "fountain", "galley",   "garden",  "garlic", "glacier",  "goblet",  "guitar",
    "hammer",     "hammock",  "harbour",  "harvest", "hazel",  "hedge",    "helmet",  "island",
    "jacket",     "jungle",   "kettle",   "kitten",  "ladder", "lagoon",   "lantern", "lemon",
    "lighthouse", "lizard",   "locket",   "mansion", "maple",  "marble",   "meadow",  "melon",
    "mirror",     "monkey",   "mountain", "museum",  "napkin", "needle",   "orchard", "otter",
    "oyster",     "paddle",   "palace",   "parrot",  "pebble", "pencil",   "pepper",  "piano",
    "pillow",     "pirate",   "planet",   "plum",    "pocket", "pumpkin",  "puzzle",  "quarry",
    "rabbit",     "raven",    "ribbon",   "river",   "rocket", "saddle",   "salmon",  "sandal",
    "satchel",    "shadow",   "shovel",   "sparrow", "spoon",  "squirrel", "stable",  "tailor"};

const char *const ruler_verbs[RULER_VERBS] = {
    "admire",  "allow",    "answer",   "arrive",   "assist",  "balance", "borrow",  "build",
    "carry",   "chase",    "choose",   "climb",    "collect", "compare", "count",   "cross",
    "deliver", "describe", "discover", "divide",   "dream",   "escape",  "explain", "explore",
    "finish",  "follow",   "forget",   "gather",   "guess",   "imagine", "improve", "invite",
    "journey", "knock",    "launch",   "learn",    "listen",  "measure", "mention", "notice",
    "observe", "obtain",   "paint",    "permit",   "predict", "prepare", "promise", "protect",
    "publish", "reach",    "receive",  "remember", "repair",  "replace", "return",  "reveal",
    "search",  "select",   "settle",   "shelter",  "shiver",  "signal",  "stumble", "suggest"};

const char *ruler_word(uint32_t index)
{
    AS_ASSERT(index < RULER_WORDS);
    if (index < RULER_ADJECTIVES) {
        return ruler_adjectives[index];
    }
    index -= RULER_ADJECTIVES;
    return index < RULER_NOUNS ? ruler_nouns[index] : ruler_verbs[index - RULER_NOUNS];
}

void ruler_name(uint32_t index, char name_p[RULER_NAME_BYTES])
{
    static const char consonants[] = "bdfgklmnprstvz", vowels[] = "aeiou";
    AS_ASSERT(index < RULER_NAMES);
    for (uint32_t at = 0; at < 6; at += 2) {
        uint32_t syllable = index % 70;
        index /= 70;
        name_p[at] = consonants[syllable / 5];
        name_p[at + 1] = vowels[syllable % 5];
    }
    name_p[6] = '\0';
}
