// SPDX-License-Identifier: Apache-2.0
// Long-context tasks whose answers are known: the 13 tasks of RULER (Hsieh et al., 2024,
// arXiv 2404.06654), generated from a seed, and their score.
//
// The tasks, their parameters and the score are RULER's. The wording, the words and the texts are
// our own and made by rule, so that nothing is downloaded, and a haystack does not repeat itself:
// its essays are generated prose, its questions are about invented provinces. Scores are therefore
// to be compared with each other, not with published ones.
//
// A sample is a pure function of task, length, seed, index and number of units (what a haystack is
// made of: a sentence, a line, a word, a document); `ruler_sample_fit` finds the number that fills a
// length, with a caller's tokenizer. Nothing here needs a model. Threads: no state.
#ifndef ASSAY_RULER_H
#define ASSAY_RULER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define RULER_REFERENCES_MAX  10u
#define RULER_REFERENCE_BYTES 40u // with the NUL; a UUID is the longest
#define RULER_TOKENS_MAX      131072u

typedef enum ruler_task {
    RULER_NIAH_SINGLE_1,   // a number among lines that repeat
    RULER_NIAH_SINGLE_2,   // a number in prose
    RULER_NIAH_SINGLE_3,   // a UUID in prose
    RULER_NIAH_MULTIKEY_1, // one of 4 keys in prose
    RULER_NIAH_MULTIKEY_2, // one of many lines that all look like it
    RULER_NIAH_MULTIKEY_3, // the same, keys and values UUIDs
    RULER_NIAH_MULTIVALUE, // 4 values of one key
    RULER_NIAH_MULTIQUERY, // 4 keys, all asked for
    RULER_VT,              // which variables have a value, through 4 assignments
    RULER_CWE,             // the 10 words that occur often
    RULER_FWE,             // the 3 most frequent words of a Zipf distribution
    RULER_QA_1,            // a fact of one document among others
    RULER_QA_2,            // a fact for which two documents are needed
    RULER_TASKS
} ruler_task_t;

const char *ruler_task_name(ruler_task_t task);    // "niah_single_1"
const char *ruler_task_summary(ruler_task_t task); // a phrase
bool ruler_task_find(const char *name, ruler_task_t *task_p);

typedef struct ruler_ask {
    ruler_task_t task;
    uint32_t length_tokens; // of prompt and answer together; some tasks are other ones below 4096
    uint32_t answer_tokens; // room for the answer; 0: the task's own
    uint64_t seed;
    uint32_t index; // which sample of this seed
} ruler_ask_t;

// The prompt is `context` and `question`, the answer begins with `prefix`. Only what is in
// `context` is needed to answer, and a chain of blocks may end behind it.
typedef struct ruler_sample {
    ruler_ask_t ask; // answer_tokens is set
    uint32_t units;
    uint32_t prompt_tokens; // as counted; 0 from ruler_sample_build
    char *context;          // ends with a newline
    char *question;
    char *prefix; // no white space at its ends
    char references[RULER_REFERENCES_MAX][RULER_REFERENCE_BYTES];
    uint32_t reference_count;
} ruler_sample_t;

// Tokens of the sample's prompt with its prefix, as they will be sent. A status other than AS_OK is
// handed on.
typedef as_status_t (*ruler_count_fn)(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p);

// The least and most units of a task.
uint32_t ruler_units_min(ruler_task_t task);
uint32_t ruler_units_max(ruler_task_t task);
// Exactly so many units, whatever their length. AS_ERR_LIMIT: fewer or more than those bounds.
as_status_t ruler_sample_build(const ruler_ask_t *ask, uint32_t units,
                               ruler_sample_t *sample_p) AS_MUST_USE;
// As many units as fit: prompt and answer have at most ask->length_tokens, with one more unit they
// would have more. AS_ERR_LIMIT: not even the least fits (or the length is above
// RULER_TOKENS_MAX); AS_ERR_UNSUPPORTED: the task has no text that long.
as_status_t ruler_sample_fit(const ruler_ask_t *ask, ruler_count_fn count, void *ctx,
                             ruler_sample_t *sample_p) AS_MUST_USE;
void ruler_sample_fini(ruler_sample_t *sample);

// The sample as JSON, a new reference; NULL when out of memory.
json_t *ruler_sample_json(const ruler_sample_t *sample);

// 0 to 1: the share of the references that are in the answer; of the qa tasks 1 if any is. Letters
// of ASCII match in either case, and control characters are spaces. As RULER's string match, a
// reference counts wherever it stands, also within a longer word.
double ruler_score(const ruler_sample_t *sample, const char *answer);
// Of ruler_sample_json's object, to which a string "answer" was added, what ruler_score needs: the
// task and the references; there is nothing to free. The answer is the object's. What is wrong with
// the object, which may come from anywhere, or NULL.
const char *ruler_answer_parse(const json_t *json, ruler_sample_t *sample_p,
                               const char **answer_p) AS_MUST_USE;

#endif
