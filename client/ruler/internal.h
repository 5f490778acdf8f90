// SPDX-License-Identifier: Apache-2.0
// What the tasks are made of: chance by key, words, prose, text that grows.
#ifndef ASSAY_RULER_INTERNAL_H
#define ASSAY_RULER_INTERNAL_H

#include "client/ruler/ruler.h"

// ---- chance.c: no state, so that a sample with one more unit differs by that unit

// Streams of one sample's seed: what is drawn for one purpose does not move when another draws more.
typedef enum ruler_stream {
    RULER_STREAM_KEYS,
    RULER_STREAM_VALUES,
    RULER_STREAM_PLACES,
    RULER_STREAM_ORDER,
    RULER_STREAM_PROSE,
    RULER_STREAM_EXAMPLE,
    RULER_STREAM_QUESTION
} ruler_stream_t;

uint64_t ruler_chance(uint64_t seed, ruler_stream_t stream, uint64_t index); // 64 random bits
uint64_t ruler_below(uint64_t seed, ruler_stream_t stream, uint64_t index, uint64_t bound);
// Element `index` of a random order of 0 .. count - 1: each once.
uint64_t ruler_permute(uint64_t seed, ruler_stream_t stream, uint64_t count, uint64_t index);
// `picks` of 0 .. count - 1, each at most once, in ascending order. picks <= count.
void ruler_pick_sorted(uint64_t seed, uint64_t count, uint32_t picks, uint32_t *picked_p);

// ---- text.c

typedef struct ruler_text {
    char *bytes; // NUL-terminated once there is any
    size_t count, capacity;
    bool failed; // out of memory: what is added is dropped
} ruler_text_t;
void ruler_text_add(ruler_text_t *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ruler_text_fini(ruler_text_t *text);

// ---- words.c

#define RULER_ADJECTIVES 96u
#define RULER_NOUNS      128u
#define RULER_VERBS      64u
#define RULER_WORDS      (RULER_ADJECTIVES + RULER_NOUNS + RULER_VERBS)
#define RULER_NAMES      343000u // invented: 70 syllables of two letters, three times
extern const char *const ruler_adjectives[RULER_ADJECTIVES];
extern const char *const ruler_nouns[RULER_NOUNS];
extern const char *const ruler_verbs[RULER_VERBS];
// One of all of them, by 0 .. RULER_WORDS - 1.
const char *ruler_word(uint32_t index);
// An invented word of six letters, by 0 .. RULER_NAMES - 1: other numbers give other words.
#define RULER_NAME_BYTES 8u
void ruler_name(uint32_t index, char name_p[RULER_NAME_BYTES]);

// ---- prose.c

// Sentence `index` of the seed's essay, without white space around it.
void ruler_prose(uint64_t seed, uint32_t index, ruler_text_t *text);
extern const char ruler_noise[]; // a line that says nothing

// ---- the tasks: each fills in what a sample consists of

typedef struct ruler_make {
    ruler_task_t task;
    uint32_t length_tokens, units;
    uint64_t seed; // of this sample
    ruler_text_t context, question, prefix;
    ruler_sample_t *sample; // takes the references
} ruler_make_t;

void ruler_refer(ruler_make_t *make, const char *reference);
void ruler_make_niah(ruler_make_t *make);     // niah.c
void ruler_make_tracking(ruler_make_t *make); // tracking.c
void ruler_make_common(ruler_make_t *make);   // counting.c
void ruler_make_frequent(ruler_make_t *make);
void ruler_make_facts(ruler_make_t *make); // facts.c

#endif
