// SPDX-License-Identifier: Apache-2.0
// Prompts of `assay compare --prompts`: one JSON object a line.
#include <string.h>

#include "client/cli/compare.h"

#define CONTEXT_MAX 1048576

// What is wrong with the object, or NULL.
static const char *check(const json_t *prompt)
{
    static const char *const texts[] = {"prompt", "name", "prefix", "continuation", "format"};
    const char *name;
    json_t *value;
    if (!json_is_object(prompt)) {
        return "it is no JSON object";
    }
    json_object_foreach((json_t *)(uintptr_t)prompt, name, value)
    {
        bool known = strcmp(name, "context") == 0 && json_is_integer(value) &&
                     json_integer_value(value) >= 0 && json_integer_value(value) <= CONTEXT_MAX;
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            known = known || (strcmp(name, texts[i]) == 0 && json_is_string(value));
        }
        if (!known) {
            return "its members are \"prompt\", \"name\", \"prefix\", \"continuation\" and "
                   "\"format\", texts, and \"context\", a number";
        }
    }
    const char *format = json_string_value(json_object_get(prompt, "format"));
    if (format && strcmp(format, "json") != 0 && strcmp(format, "text") != 0) {
        return "its \"format\" must be \"json\" or \"text\"";
    }
    return json_string_length(json_object_get(prompt, "prompt")) > 0 ? NULL
                                                                     : "it has no \"prompt\"";
}

static const char *take(json_t *prompts, const char *line, size_t count)
{
    json_t *prompt = json_loadb(line, count, JSON_REJECT_DUPLICATES, NULL);
    const char *fault = prompt ? check(prompt) : "it is not JSON";
    if (!fault && json_array_append(prompts, prompt) != 0) {
        fault = "out of memory";
    }
    json_decref(prompt);
    return fault;
}

json_t *cli_compare_prompts(const char *path, const char *bytes, size_t count)
{
    json_t *prompts = json_array();
    const char *fault = prompts ? NULL : "out of memory", *at = bytes, *end = bytes + count;
    uint64_t number = 0;
    while (!fault && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *next = newline ? newline : end;
        number++;
        size_t blank = strspn(at, " \t\r");
        fault = blank < (size_t)(next - at) ? take(prompts, at, (size_t)(next - at)) : NULL;
        at = next + (newline != NULL);
    }
    if (!fault && json_array_size(prompts) > 0) {
        return prompts;
    }
    if (fault) {
        cli_complain("%s, line %llu: %s", path, (unsigned long long)number, fault);
    } else {
        cli_complain("%s has no prompts", path);
    }
    json_decref(prompts);
    return NULL;
}
