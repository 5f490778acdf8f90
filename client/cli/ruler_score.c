// SPDX-License-Identifier: Apache-2.0
// `assay ruler score`: scores answers that somebody else's engine gave, or that `run --out` kept.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/ruler.h"
#include "common/mem.h"

#define LINE_BYTES_MAX (4u << 20) // the longest sample has a fifth of it

static bool as_json;

static const as_option_t table[] = {
    CLI_JSON_OPTION(as_json, "print JSON"),
};

static const as_options_t options = {
    .program = "assay ruler score",
    .summary = "Scores lines of `assay ruler generate --json` to which \"answer\" was added; with "
               "\"compressor\" each has a column.",
    .usage = "[OPTIONS] FILE   (- is stdin)",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

// What is wrong with the line, or NULL.
static const char *take_line(cli_ruler_scores_t *scores, const char *line, size_t bytes)
{
    ruler_sample_t sample = {0};
    const char *answer;
    json_t *json = json_loadb(line, bytes, 0, NULL);
    const char *fault = json ? ruler_answer_parse(json, &sample, &answer) : "it is not JSON";
    if (!fault) {
        const char *name = json_string_value(json_object_get(json, "compressor"));
        int column = cli_ruler_column(scores, name ? name : "answers");
        if (column < 0) {
            fault = "its \"compressor\" is too long, or one too many";
        } else {
            cli_ruler_cell_t *cell = &scores->cells[sample.ask.task][column];
            cell->score += ruler_score(&sample, answer);
            cell->samples++;
        }
    }
    json_decref(json);
    return fault;
}

// One line, without its end. False: there is none, or *fault_p says why not.
static bool read_line(FILE *file, cli_text_t *line, const char **fault_p)
{
    int letter;
    line->count = 0;
    while ((letter = getc(file)) != EOF && letter != '\n') {
        char byte = (char)letter;
        if (line->count >= LINE_BYTES_MAX || !cli_text_append(line, &byte, 1)) {
            *fault_p = line->count >= LINE_BYTES_MAX ? "it is longer than 4 MiB" : "out of memory";
            return false;
        }
    }
    if (ferror(file)) {
        *fault_p = strerror(errno);
    }
    return !*fault_p && (letter != EOF || line->count > 0);
}

static bool take_file(cli_ruler_scores_t *scores, const char *path)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    cli_text_t line = {0};
    const char *fault = NULL;
    uint64_t number = 0;
    if (!file) {
        cli_complain("cannot read %s: %s", path, strerror(errno));
        return false;
    }
    while (!fault && (number++, read_line(file, &line, &fault))) {
        fault = line.count > 0 ? take_line(scores, line.bytes, line.count) : NULL;
    }
    if (fault) {
        cli_complain("%s, line %llu: %s", path, (unsigned long long)number, fault);
    } else if (scores->count == 0) {
        cli_complain("%s has no answers", path);
    }
    cli_text_fini(&line);
    if (file != stdin) {
        fclose(file);
    }
    return !fault && scores->count > 0;
}

int cli_ruler_score(int argc, char **argv)
{
    static cli_ruler_scores_t scores;
    int rest, code;
    if (!cli_options(&options, argc, argv, &rest, &code)) {
        return code;
    }
    if (rest + 1 != argc) {
        cli_complain("ruler score: name one file of answers (- is stdin)");
        return 2;
    }
    if (!take_file(&scores, argv[rest])) {
        return 1;
    }
    if (!as_json) {
        cli_ruler_print(&scores);
        return 0;
    }
    json_t *json = json_pack("{s:o}", "compressors", cli_ruler_json(&scores));
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
    return 0;
}
