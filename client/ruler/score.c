// SPDX-License-Identifier: Apache-2.0
// The score of an answer; a sample as JSON, and what is read again of one.
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

const char *ruler_answer_parse(const json_t *json, ruler_sample_t *sample_p, const char **answer_p)
{
    const char *name = json_string_value(json_object_get(json, "task")),
               *answer = json_string_value(json_object_get(json, "answer"));
    const json_t *references = json_object_get(json, "references");
    size_t count = json_array_size(references);
    ruler_sample_t sample = {0};
    if (!name || !ruler_task_find(name, &sample.ask.task)) {
        return "its \"task\" is none of those that `assay ruler tasks` lists";
    }
    if (!answer) {
        return "it has no text \"answer\"";
    }
    if (count == 0 || count > RULER_REFERENCES_MAX) {
        return "its \"references\" are no array of 1 to 10";
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(references, i);
        size_t bytes = json_string_length(one);
        if (bytes == 0 || bytes >= RULER_REFERENCE_BYTES) {
            return "one of its \"references\" is no text of 1 to 39 bytes";
        }
        memcpy(sample.references[i], json_string_value(one), bytes);
    }
    sample.reference_count = (uint32_t)count;
    *sample_p = sample;
    *answer_p = answer;
    return NULL;
}
