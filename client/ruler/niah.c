// SPDX-License-Identifier: Apache-2.0
// Needles in a haystack: sentences that give a key a value, one or some of which are asked for.
//
// Units: sentences of prose, lines of noise, or lines that are needles all (the first of which is
// the one that is asked for). In prose the needles stand at depths drawn from 40 equal steps.
#include <stdio.h>

#include "client/ruler/internal.h"

#define NEEDLES_MAX 4u
#define DEPTHS      40u
#define UUID_BYTES  37u

typedef enum haystack { NOISE, ESSAY, NEEDLES } haystack_t;

typedef struct kind {
    haystack_t haystack;
    bool uuid_keys, uuid_values;
    uint32_t keys, values; // needles: one for each value of each key
    uint32_t asked;        // keys
} kind_t;

static const kind_t kinds[] = {
    [RULER_NIAH_SINGLE_1] = {NOISE, false, false, 1, 1, 1},
    [RULER_NIAH_SINGLE_2] = {ESSAY, false, false, 1, 1, 1},
    [RULER_NIAH_SINGLE_3] = {ESSAY, false, true, 1, 1, 1},
    [RULER_NIAH_MULTIKEY_1] = {ESSAY, false, false, 4, 1, 1},
    [RULER_NIAH_MULTIKEY_2] = {NEEDLES, false, false, 1, 1, 1},
    [RULER_NIAH_MULTIKEY_3] = {NEEDLES, true, true, 1, 1, 1},
    [RULER_NIAH_MULTIVALUE] = {ESSAY, false, false, 1, 4, 1},
    [RULER_NIAH_MULTIQUERY] = {ESSAY, false, false, 4, 1, 4},
};

static void uuid(const ruler_make_t *make, ruler_stream_t stream, uint32_t index,
                 char text_p[UUID_BYTES])
{
    uint64_t high = ruler_chance(make->seed, stream, 2ull * index),
             low = ruler_chance(make->seed, stream, 2ull * index + 1);
    high = (high & ~0xf000ull) | 0x4000ull; // version 4, random
    low = (low & ~(3ull << 62)) | 2ull << 62;
    snprintf(text_p, UUID_BYTES, "%08x-%04x-%04x-%04x-%012llx", (uint32_t)(high >> 32),
             (uint32_t)(high >> 16) & 0xffff, (uint32_t)high & 0xffff, (uint32_t)(low >> 48),
             (unsigned long long)(low & 0xffffffffffffull));
}

static void key(const ruler_make_t *make, uint32_t index, char text_p[RULER_REFERENCE_BYTES])
{
    if (kinds[make->task].uuid_keys) {
        uuid(make, RULER_STREAM_KEYS, index, text_p);
        return;
    }
    uint32_t pair = (uint32_t)ruler_permute(make->seed, RULER_STREAM_KEYS,
                                            RULER_ADJECTIVES * RULER_NOUNS, index);
    snprintf(text_p, RULER_REFERENCE_BYTES, "%s-%s", ruler_adjectives[pair / RULER_NOUNS],
             ruler_nouns[pair % RULER_NOUNS]);
}

static void value(const ruler_make_t *make, uint32_t index, char text_p[RULER_REFERENCE_BYTES])
{
    if (kinds[make->task].uuid_values) {
        uuid(make, RULER_STREAM_VALUES, index, text_p);
        return;
    }
    uint32_t number = (uint32_t)ruler_permute(make->seed, RULER_STREAM_VALUES, 9000000, index);
    snprintf(text_p, RULER_REFERENCE_BYTES, "%u", 1000000 + number);
}

static const char *noun(const kind_t *kind)
{
    return kind->uuid_values ? "code string" : "code number";
}

static void add_needle(ruler_make_t *make, uint32_t index)
{
    const kind_t *kind = &kinds[make->task];
    char key_text[RULER_REFERENCE_BYTES], value_text[RULER_REFERENCE_BYTES];
    key(make, index / kind->values, key_text);
    value(make, index, value_text);
    ruler_text_add(&make->context, "A %s of %s is %s.", noun(kind), key_text, value_text);
}

// Units, with needles before those of the ascending indices `at`; a needle of the index `units` is
// behind them all.
static void add_between(ruler_make_t *make, const uint32_t *at, uint32_t needles)
{
    bool essay = kinds[make->task].haystack == ESSAY;
    uint32_t next = 0, total = make->units + needles;
    for (uint32_t i = 0; i < total; i++) {
        uint32_t unit = i - next;
        if (next < needles && at[next] == unit) {
            add_needle(make,
                       (uint32_t)ruler_permute(make->seed, RULER_STREAM_ORDER, needles, next));
            next++;
        } else if (essay) {
            ruler_prose(make->seed, unit, &make->context);
        } else {
            ruler_text_add(&make->context, "%s", ruler_noise);
        }
        ruler_text_add(&make->context, essay && i + 1 < total ? " " : "\n");
    }
}

static void add_haystack(ruler_make_t *make)
{
    const kind_t *kind = &kinds[make->task];
    uint32_t needles = kind->keys * kind->values, at[NEEDLES_MAX];
    if (kind->haystack == NEEDLES) {
        for (uint32_t i = 0; i < make->units; i++) {
            uint64_t which = ruler_permute(make->seed, RULER_STREAM_ORDER, make->units, i);
            add_needle(make, (uint32_t)which);
            ruler_text_add(&make->context, "\n");
        }
        return;
    }
    if (kind->haystack == NOISE) {
        ruler_pick_sorted(make->seed, (uint64_t)make->units + 1, needles, at);
    } else {
        ruler_pick_sorted(make->seed, DEPTHS, needles, at);
        for (uint32_t i = 0; i < needles; i++) {
            at[i] = (uint32_t)((uint64_t)make->units * at[i] / (DEPTHS - 1));
        }
    }
    add_between(make, at, needles);
}

// "a", "a and b", "a, b, and c"
static void add_asked(const ruler_make_t *make, ruler_text_t *text)
{
    uint32_t asked = kinds[make->task].asked;
    for (uint32_t i = 0; i < asked; i++) {
        char key_text[RULER_REFERENCE_BYTES];
        key(make, i, key_text);
        const char *before = i == 0 ? "" : i + 1 < asked ? ", " : asked > 2 ? ", and " : " and ";
        ruler_text_add(text, "%s%s", before, key_text);
    }
}

void ruler_make_niah(ruler_make_t *make)
{
    const kind_t *kind = &kinds[make->task];
    uint32_t answers = kind->asked * kind->values;
    const char *plural = answers > 1 ? "s" : "";
    bool one = kind->haystack != NEEDLES && kind->keys * kind->values == 1;
    ruler_text_add(&make->context,
                   "The text below has %s%s%s in it. Keep %s in mind: you will be asked for %s "
                   "afterwards.\n\n",
                   one ? "a " : "", noun(kind), one ? "" : "s", one ? "it" : "them",
                   one ? "it" : "them");
    add_haystack(make);
    ruler_text_add(&make->question, "\nWhat %s the %s%s of ", answers > 1 ? "are all" : "is",
                   noun(kind), plural);
    add_asked(make, &make->question);
    ruler_text_add(&make->question, " in the text above?");
    ruler_text_add(&make->prefix, "In the text above, the %s%s of ", noun(kind), plural);
    add_asked(make, &make->prefix);
    ruler_text_add(&make->prefix, " %s", answers > 1 ? "are" : "is");
    for (uint32_t i = 0; i < answers; i++) {
        char text[RULER_REFERENCE_BYTES];
        value(make, i, text);
        ruler_refer(make, text);
    }
}
