// SPDX-License-Identifier: Apache-2.0
// The score of an answer, and a sample as JSON.
#include <string.h>

#include "client/ruler/ruler.h"

// Letters of ASCII in lower case, control characters as spaces.
static char folded(char letter)
{
    if (letter >= 'A' && letter <= 'Z') {
        return (char)(letter - 'A' + 'a');
    }
    return (unsigned char)letter < ' ' ? ' ' : letter;
}

static bool begins_with(const char *text, const char *part)
{
    while (*part && *text && folded(*text) == folded(*part)) {
        text++;
        part++;
    }
    return *part == '\0';
}

static bool contains(const char *text, const char *part)
{
    for (; *text; text++) {
        if (begins_with(text, part)) {
            return true;
        }
    }
    return false;
}

double ruler_score(const ruler_sample_t *sample, const char *answer)
{
    bool any = sample->ask.task == RULER_QA_1 || sample->ask.task == RULER_QA_2;
    uint32_t found = 0;
    for (uint32_t i = 0; i < sample->reference_count; i++) {
        found += contains(answer, sample->references[i]);
    }
    if (sample->reference_count == 0) {
        return 0;
    }
    return any ? (found > 0 ? 1 : 0) : (double)found / sample->reference_count;
}

json_t *ruler_sample_json(const ruler_sample_t *sample)
{
    json_t *references = json_array();
    for (uint32_t i = 0; i < sample->reference_count; i++) {
        if (json_array_append_new(references, json_string(sample->references[i])) != 0) {
            json_decref(references);
            return NULL;
        }
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:o}", "task",
                     ruler_task_name(sample->ask.task), "seed", (json_int_t)sample->ask.seed,
                     "index", (json_int_t)sample->ask.index, "length",
                     (json_int_t)sample->ask.length_tokens, "prompt_tokens",
                     (json_int_t)sample->prompt_tokens, "answer_tokens",
                     (json_int_t)sample->ask.answer_tokens, "units", (json_int_t)sample->units,
                     "context", sample->context, "question", sample->question, "prefix",
                     sample->prefix, "references", references);
}
