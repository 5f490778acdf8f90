// SPDX-License-Identifier: Apache-2.0
// A line that `assay ruler score` reads. What is taken is bounded and has a score; printed and read
// again it has the same.
#include <stdlib.h>
#include <string.h>

#include "client/ruler/ruler.h"
#include "common/mem.h"

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ruler_sample_t sample = {0}, again = {0};
    const char *answer = NULL, *same = NULL;
    json_t *json = json_loadb((const char *)data, bytes, 0, NULL);
    if (json && !ruler_answer_parse(json, &sample, &answer)) {
        double score = ruler_score(&sample, answer);
        check(score >= 0 && score <= 1);
        check(sample.reference_count > 0 && sample.reference_count <= RULER_REFERENCES_MAX);
        sample.context = as_mem_strdup("a");
        sample.question = as_mem_strdup("b");
        sample.prefix = as_mem_strdup("c");
        json_t *printed = ruler_sample_json(&sample);
        check(printed != NULL);
        json_object_set_new(printed, "answer", json_string(answer));
        check(!ruler_answer_parse(printed, &again, &same));
        check(ruler_score(&again, same) == score);
        json_decref(printed);
        ruler_sample_fini(&sample);
    }
    json_decref(json);
    return 0;
}
