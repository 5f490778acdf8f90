// SPDX-License-Identifier: Apache-2.0
// One sample: the table of tasks, and how many units fill a length.
#include <stdio.h>
#include <string.h>

#include "client/ruler/internal.h"
#include "common/assert.h"
#include "common/mem.h"

#define UNITS_MAX RULER_TOKENS_MAX // a unit has at least one token

typedef struct task {
    const char *name;
    void (*make)(ruler_make_t *make);
    uint32_t units_min, units_max;
    uint32_t answer_tokens;
    const char *summary;
} task_t;

#define LINES_MAX (RULER_ADJECTIVES * RULER_NOUNS) // keys that differ

static const task_t tasks[RULER_TASKS] = {
    [RULER_NIAH_SINGLE_1] = {"niah_single_1", ruler_make_niah, 1, UNITS_MAX, 128,
                             "a number among lines that repeat"},
    [RULER_NIAH_SINGLE_2] = {"niah_single_2", ruler_make_niah, 1, UNITS_MAX, 128,
                             "a number in prose"},
    [RULER_NIAH_SINGLE_3] = {"niah_single_3", ruler_make_niah, 1, UNITS_MAX, 128,
                             "a UUID in prose"},
    [RULER_NIAH_MULTIKEY_1] = {"niah_multikey_1", ruler_make_niah, 1, UNITS_MAX, 128,
                               "one of 4 keys in prose"},
    [RULER_NIAH_MULTIKEY_2] = {"niah_multikey_2", ruler_make_niah, 2, LINES_MAX, 128,
                               "a number among lines that all look like its own"},
    [RULER_NIAH_MULTIKEY_3] = {"niah_multikey_3", ruler_make_niah, 2, LINES_MAX, 128,
                               "the same, keys and values UUIDs"},
    [RULER_NIAH_MULTIVALUE] = {"niah_multivalue", ruler_make_niah, 1, UNITS_MAX, 128,
                               "4 numbers of one key"},
    [RULER_NIAH_MULTIQUERY] = {"niah_multiquery", ruler_make_niah, 1, UNITS_MAX, 128,
                               "4 keys, a number of each"},
    [RULER_VT] =
        {"vt", ruler_make_tracking, 5, UNITS_MAX, 30,
         "variables that have a value, through 4 assignments"}, // a line for each assignment
    [RULER_CWE] = {"cwe", ruler_make_common, 20, UNITS_MAX, 120,
                   "the 10 most common words of a list"},
    // From 75 words on rank 4 is more frequent than rank 5.
    [RULER_FWE] = {"fwe", ruler_make_frequent, 75, UNITS_MAX, 50,
                   "the 3 most frequent invented words"},
    [RULER_QA_1] = {"qa_1", ruler_make_facts, 2, LINES_MAX / 2, 32,
                    "a fact of one document among others"},
    [RULER_QA_2] = {"qa_2", ruler_make_facts, 2, LINES_MAX, 32,
                    "a fact for which two documents are needed"},
};

const char *ruler_task_name(ruler_task_t task)
{
    AS_ASSERT(task < RULER_TASKS);
    return tasks[task].name;
}

const char *ruler_task_summary(ruler_task_t task)
{
    AS_ASSERT(task < RULER_TASKS);
    return tasks[task].summary;
}

bool ruler_task_find(const char *name, ruler_task_t *task_p)
{
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        if (strcmp(tasks[task].name, name) == 0) {
            *task_p = (ruler_task_t)task;
            return true;
        }
    }
    return false;
}

uint32_t ruler_units_min(ruler_task_t task)
{
    AS_ASSERT(task < RULER_TASKS);
    return tasks[task].units_min;
}

uint32_t ruler_units_max(ruler_task_t task)
{
    AS_ASSERT(task < RULER_TASKS);
    return tasks[task].units_max;
}

void ruler_refer(ruler_make_t *make, const char *reference)
{
    ruler_sample_t *sample = make->sample;
    AS_ASSERT(sample->reference_count < RULER_REFERENCES_MAX);
    snprintf(sample->references[sample->reference_count++], RULER_REFERENCE_BYTES, "%s", reference);
}

void ruler_sample_fini(ruler_sample_t *sample)
{
    as_mem_free(sample->context);
    as_mem_free(sample->question);
    as_mem_free(sample->prefix);
    memset(sample, 0, sizeof(*sample));
}

as_status_t ruler_sample_build(const ruler_ask_t *ask, uint32_t units, ruler_sample_t *sample_p)
{
    AS_ASSERT(ask->task < RULER_TASKS);
    const task_t *task = &tasks[ask->task];
    if (units < task->units_min || units > task->units_max) {
        return AS_ERR_LIMIT;
    }
    ruler_sample_t sample = {.ask = *ask, .units = units};
    sample.ask.answer_tokens = ask->answer_tokens ? ask->answer_tokens : task->answer_tokens;
    ruler_make_t make = {
        .task = ask->task,
        .length_tokens = ask->length_tokens,
        .units = units,
        .seed = ruler_chance(ask->seed, (ruler_stream_t)ask->task, ask->index),
        .sample = &sample,
    };
    task->make(&make);
    if (make.context.failed || make.question.failed || make.prefix.failed) {
        ruler_text_fini(&make.context);
        ruler_text_fini(&make.question);
        ruler_text_fini(&make.prefix);
        return AS_ERR_NO_MEMORY;
    }
    sample.context = make.context.bytes;
    sample.question = make.question.bytes;
    sample.prefix = make.prefix.bytes;
    *sample_p = sample;
    return AS_OK;
}

// ---- Length

typedef struct fitting {
    const ruler_ask_t *ask;
    ruler_count_fn count;
    void *ctx;
    ruler_sample_t best; // the largest that fits so far; nothing while its units are 0
} fitting_t;

// Whether so many units fit; then they are the best.
static as_status_t try_units(fitting_t *fitting, uint32_t units, bool *fits_p)
{
    ruler_sample_t sample;
    as_status_t status = ruler_sample_build(fitting->ask, units, &sample);
    if (status != AS_OK) {
        return status;
    }
    status = fitting->count(fitting->ctx, &sample, &sample.prompt_tokens);
    if (status != AS_OK) {
        ruler_sample_fini(&sample);
        return status;
    }
    *fits_p =
        (uint64_t)sample.prompt_tokens + sample.ask.answer_tokens <= fitting->ask->length_tokens;
    if (*fits_p) {
        ruler_sample_fini(&fitting->best);
        fitting->best = sample;
    } else {
        ruler_sample_fini(&sample);
    }
    return AS_OK;
}

// Between `fit`, which fits, and `not_fit`, which does not: at the end they are neighbours.
static as_status_t bisect(fitting_t *fitting, uint32_t fit, uint32_t not_fit)
{
    while (not_fit - fit > 1) {
        uint32_t middle = fit + (not_fit - fit) / 2;
        bool fits;
        as_status_t status = try_units(fitting, middle, &fits);
        if (status != AS_OK) {
            return status;
        }
        fit = fits ? middle : fit;
        not_fit = fits ? not_fit : middle;
    }
    return AS_OK;
}

static as_status_t fit(fitting_t *fitting)
{
    const task_t *task = &tasks[fitting->ask->task];
    uint32_t units = task->units_min, before = 0;
    for (;;) {
        bool fits;
        as_status_t status = try_units(fitting, units, &fits);
        if (status != AS_OK) {
            return status;
        }
        if (!fits) {
            return before ? bisect(fitting, before, units) : AS_ERR_LIMIT;
        }
        if (units == task->units_max) {
            return AS_ERR_UNSUPPORTED;
        }
        before = units;
        units = units > task->units_max / 2 ? task->units_max : 2 * units;
    }
}

as_status_t ruler_sample_fit(const ruler_ask_t *ask, ruler_count_fn count, void *ctx,
                             ruler_sample_t *sample_p)
{
    AS_ASSERT(ask->task < RULER_TASKS);
    fitting_t fitting = {.ask = ask, .count = count, .ctx = ctx};
    if (ask->length_tokens > RULER_TOKENS_MAX) {
        return AS_ERR_LIMIT;
    }
    as_status_t status = fit(&fitting);
    if (status != AS_OK) {
        ruler_sample_fini(&fitting.best);
        return status;
    }
    *sample_p = fitting.best;
    return AS_OK;
}
