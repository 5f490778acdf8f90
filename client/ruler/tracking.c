// SPDX-License-Identifier: Apache-2.0
// Variable tracking: a value goes from variable to variable, in assignments among lines that say
// nothing. Asked for are all variables that have it. An example with its answer stands before.
#include <stdio.h>

#include "client/ruler/internal.h"

#define HOPS          4u // assignments of a variable to another
#define VARIABLES     (HOPS + 1)
#define EXAMPLE_LINES 8u
#define NAME_BYTES    6u

typedef struct chain {
    uint64_t seed;
    uint32_t lines; // of noise
    uint32_t letters;
    uint32_t value;
    char names[VARIABLES][NAME_BYTES];
} chain_t;

// Upper-case letters; the names of one chain differ, since their numbers do.
static void chain_init(chain_t *chain, uint64_t seed, uint32_t lines, uint32_t letters)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < letters; i++) {
        count *= 26;
    }
    *chain = (chain_t){.seed = seed, .lines = lines, .letters = letters};
    chain->value = 10000 + (uint32_t)ruler_below(seed, RULER_STREAM_VALUES, 0, 89999);
    for (uint32_t i = 0; i < VARIABLES; i++) {
        uint64_t number = ruler_permute(seed, RULER_STREAM_KEYS, count, i);
        for (uint32_t at = 0; at < letters; at++, number /= 26) {
            chain->names[i][at] = (char)('A' + number % 26);
        }
    }
}

static void add_assignment(const chain_t *chain, uint32_t index, ruler_text_t *text)
{
    if (index == 0) {
        ruler_text_add(text, "VAR %s = %u\n", chain->names[0], chain->value);
    } else {
        ruler_text_add(text, "VAR %s = VAR %s\n", chain->names[index], chain->names[index - 1]);
    }
}

static void add_text(const chain_t *chain, ruler_text_t *text)
{
    uint32_t at[VARIABLES], next = 0;
    ruler_pick_sorted(chain->seed, chain->lines, VARIABLES, at);
    ruler_text_add(text, "Keep track of the assignments of variables that are hidden in the text "
                         "below.\n\n");
    for (uint32_t line = 0; line < chain->lines; line++) {
        if (next < VARIABLES && at[next] == line) {
            add_assignment(chain, next++, text);
        }
        ruler_text_add(text, "%s\n", ruler_noise);
    }
}

static void add_question(const chain_t *chain, ruler_text_t *text)
{
    ruler_text_add(text, "\nWhich variables have the value %u in the text above?", chain->value);
}

static void add_prefix(const chain_t *chain, ruler_text_t *text)
{
    ruler_text_add(text,
                   "By the assignments in the text above, %u variables have the value %u, and they "
                   "are:",
                   VARIABLES, chain->value);
}

void ruler_make_tracking(ruler_make_t *make)
{
    chain_t example, chain;
    chain_init(&example, ruler_chance(make->seed, RULER_STREAM_EXAMPLE, 0), EXAMPLE_LINES, 3);
    chain_init(&chain, make->seed, make->units, 5);
    add_text(&example, &make->context);
    add_question(&example, &make->context);
    ruler_text_add(&make->context, "\n");
    add_prefix(&example, &make->context);
    for (uint32_t i = 0; i < VARIABLES; i++) {
        ruler_text_add(&make->context, " %s", example.names[i]);
        ruler_refer(make, chain.names[i]);
    }
    ruler_text_add(&make->context, "\n\n");
    add_text(&chain, &make->context);
    add_question(&chain, &make->question);
    add_prefix(&chain, &make->prefix);
}
