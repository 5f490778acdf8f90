// SPDX-License-Identifier: Apache-2.0
// What `assay compare` reads from files: the first byte picks prompts, or raw data. Prompts have what they
// promise; counts of rows stay within each other.
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/compare.h"

void cli_complain(const char *format, ...)
{
    (void)format;
}

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

static void read_prompts(const char *text, size_t bytes)
{
    json_t *prompts = cli_compare_prompts("fuzz", text, bytes);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        check(json_string_length(json_object_get(prompt, "prompt")) > 0);
        check(json_integer_value(json_object_get(prompt, "context")) >= 0);
    }
    check(!prompts || json_array_size(prompts) > 0);
    json_decref(prompts);
}

static void read_raw(const char *text, size_t bytes)
{
    static cli_compare_rows_t rows;
    json_t *raw = json_loadb(text, bytes, 0, NULL);
    const char *fault = cli_compare_sum(raw, &rows);
    check(fault || (rows.count > 0 && rows.count <= CLI_COMPARE_ROWS_MAX));
    for (uint32_t i = 0; !fault && i < rows.count; i++) {
        const cli_compare_row_t *row = &rows.row[i];
        check(row->prompts > 0 && row->identical <= row->verified && row->verified <= row->prompts);
        check(row->differ <= row->unverified && row->unverified <= row->prompts);
        check(row->broken <= row->parsed && row->parsed <= row->unverified);
        check(i == 0 || row->context >= rows.row[i - 1].context);
        check(memchr(row->compressor, '\0', sizeof(row->compressor)) != NULL);
    }
    json_decref(raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    char *text = malloc(bytes); // NUL-terminated, and not a byte more
    check(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    if (data[0] & 1) {
        read_raw(text, bytes - 1);
    } else {
        read_prompts(text, bytes - 1);
    }
    free(text);
    return 0;
}
