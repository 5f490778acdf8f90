// SPDX-License-Identifier: Apache-2.0
// Rows of `assay compare` as a table for people, and as Markdown between the marks of a file.
#include <errno.h>
#include <math.h>
#include <string.h>

#include "client/cli/compare.h"
#include "common/mem.h"

#define COLUMNS_MAX 13u
#define CELL_BYTES  40u
#define MARK        "<!-- assay compare -->"
#define MARK_END    "<!-- end -->"

typedef struct cells {
    char cell[COLUMNS_MAX][CELL_BYTES];
    uint32_t count;
} cells_t;

typedef struct column {
    const char *name, *title; // for people; in Markdown
    bool ruler;               // only where scores were asked for
} column_t;

static const column_t columns[COLUMNS_MAX] = {
    {"COMPRESSOR", "compressor", false},
    {">CONTEXT", "context", false},
    {">BYTES/TOKEN", "bytes a token", false},
    {">OF F16", "of f16", false},
    {">RUN", "accepted run", false},
    {">TOKENS/S", "tokens/s, verified", false},
    {">UNVERIFIED", "not verified", false},
    {"IDENTICAL", "verified identical", false},
    {">DIFFER", "not verified, differ", false},
    {">FIRST", "first token that differs, median", false},
    {">PERPLEXITY", "perplexity", false},
    {">BROKEN", "JSON broken", false},
    {">RULER", "RULER", true},
};

static void add(cells_t *cells, const char *format, double value)
{
    if (isnan(value)) {
        snprintf(cells->cell[cells->count++], CELL_BYTES, "-");
    } else {
        snprintf(cells->cell[cells->count++], CELL_BYTES, format, value);
    }
}

static void add_of(cells_t *cells, uint32_t part, uint32_t whole)
{
    if (whole == 0) {
        add(cells, "", NAN);
    } else {
        snprintf(cells->cell[cells->count++], CELL_BYTES, "%u of %u", part, whole);
    }
}

static cells_t cells_of(const cli_compare_row_t *row, bool ruler)
{
    cells_t cells = {.count = 1};
    bool same = row->identical == row->verified;
    snprintf(cells.cell[0], CELL_BYTES, "%s", row->compressor);
    add(&cells, "%.0f", row->context > 0 ? (double)row->context : NAN);
    add(&cells, "%.0f", row->token_bytes);
    add(&cells, "%.3f", row->share);
    add(&cells, "%.1f", row->accepted_run);
    add(&cells, "%.1f", row->verified_per_s);
    add(&cells, "%.1f", row->unverified_per_s);
    snprintf(cells.cell[cells.count++], CELL_BYTES, "%s",
             row->verified == 0 ? "-"
             : same             ? "yes"
                                : "NO");
    add_of(&cells, row->differ, row->unverified);
    add(&cells, "%.0f", row->differ_median);
    add(&cells, row->perplexity < 100 ? "%.2f" : "%.3g", row->perplexity);
    add_of(&cells, row->broken, row->parsed);
    if (ruler) {
        add(&cells, "%.1f", row->ruler);
    }
    return cells;
}

static bool has_ruler(const cli_compare_rows_t *rows)
{
    bool found = false;
    for (uint32_t i = 0; i < rows->count; i++) {
        found = found || !isnan(rows->row[i].ruler);
    }
    return found;
}

void cli_compare_print(const cli_compare_rows_t *rows)
{
    const char *names[COLUMNS_MAX];
    bool ruler = has_ruler(rows);
    uint32_t count = ruler ? COLUMNS_MAX : COLUMNS_MAX - 1;
    for (uint32_t i = 0; i < count; i++) {
        names[i] = columns[i].name;
    }
    cli_table_t *out = cli_table_new(names, count);
    for (uint32_t i = 0; i < rows->count; i++) {
        cells_t cells = cells_of(&rows->row[i], ruler);
        for (uint32_t c = 0; c < count; c++) {
            cli_cell(out, "%s", cells.cell[c]);
        }
    }
    cli_table_print(out, stdout);
    puts(
        "\nbytes: of the device, the exact tail and room for a draft included. run: drafted tokens "
        "that one\nverification confirms. tokens/s behind the first token. identical: verified "
        "answers, by tokens and\nlogits bits. differ, first: of unverified answers, and after how "
        "many tokens (median). perplexity: of\nthe text that follows, over what the compressor "
        "holds. broken: unverified answers that are no JSON,\nof those that the full cache gave "
        "as JSON");
}

// ---- Markdown

static bool put(cli_text_t *text, const char *words)
{
    return cli_text_append(text, words, strlen(words));
}

static bool put_row(cli_text_t *text, const char *const *words, uint32_t count)
{
    bool good = put(text, "|");
    for (uint32_t i = 0; good && i < count; i++) {
        good = put(text, " ") && put(text, words[i]) && put(text, " |");
    }
    return good && put(text, "\n");
}

static bool put_table(cli_text_t *text, const cli_compare_rows_t *rows)
{
    const char *words[COLUMNS_MAX], *lines[COLUMNS_MAX];
    bool ruler = has_ruler(rows), good;
    uint32_t count = ruler ? COLUMNS_MAX : COLUMNS_MAX - 1;
    for (uint32_t i = 0; i < count; i++) {
        words[i] = columns[i].title;
        lines[i] = "---";
    }
    good = put_row(text, words, count) && put_row(text, lines, count);
    for (uint32_t i = 0; good && i < rows->count; i++) {
        cells_t cells = cells_of(&rows->row[i], ruler);
        for (uint32_t c = 0; c < count; c++) {
            words[c] = cells.cell[c];
        }
        good = put_row(text, words, count);
    }
    return good;
}

static const char *text_of(const json_t *raw, const char *name)
{
    const char *text = json_string_value(json_object_get(raw, name));
    return text ? text : "?";
}

// What stands between the marks.
static bool put_part(cli_text_t *text, const json_t *raw, const cli_compare_rows_t *rows)
{
    char counts[160];
    snprintf(counts, sizeof(counts), "; %zu prompts, answers of %lld tokens; ",
             json_array_size(json_object_get(raw, "prompts")),
             (long long)json_integer_value(json_object_get(raw, "tokens")));
    return put(text, "\n`") && put(text, text_of(raw, "command")) && put(text, "`: ") &&
           put(text, text_of(raw, "model")) && put(text, counts) &&
           put(text, text_of(raw, "machine")) && put(text, ".\n\n") && put_table(text, rows) &&
           put(text, "\n");
}

static bool write_file(const char *path, const cli_text_t *text)
{
    FILE *file = fopen(path, "w");
    bool good = file && fwrite(text->bytes, 1, text->count, file) == text->count;
    good = file && fclose(file) == 0 && good;
    if (!good) {
        cli_complain("cannot write %s: %s", path, strerror(errno));
    }
    return good;
}

bool cli_compare_markdown(const char *path, const json_t *raw, const cli_compare_rows_t *rows)
{
    cli_text_t old = {0}, text = {0};
    if (!cli_read_file(path, &old)) {
        return false;
    }
    const char *begin = strstr(old.bytes, MARK), *end = begin ? strstr(begin, MARK_END) : NULL;
    if (!end) {
        cli_complain("%s has no lines %s and %s, between which the table is to stand", path, MARK,
                     MARK_END);
    }
    bool made = end &&
                cli_text_append(&text, old.bytes, (size_t)(begin - old.bytes) + strlen(MARK)) &&
                put_part(&text, raw, rows) && put(&text, end);
    if (end && !made) {
        cli_complain("out of memory");
    }
    made = made && write_file(path, &text);
    cli_text_fini(&old);
    cli_text_fini(&text);
    return made;
}
