// SPDX-License-Identifier: Apache-2.0
// Scores of `assay ruler`: a column for each compressor, a row for each task, as table and as JSON.
#include <string.h>

#include "client/cli/ruler.h"

int cli_ruler_column(cli_ruler_scores_t *scores, const char *name)
{
    for (uint32_t i = 0; i < scores->count; i++) {
        if (strcmp(scores->names[i], name) == 0) {
            return (int)i;
        }
    }
    if (scores->count == CLI_RULER_COLUMNS_MAX || strlen(name) >= CLI_RULER_NAME_BYTES) {
        return -1;
    }
    snprintf(scores->names[scores->count], CLI_RULER_NAME_BYTES, "%s", name);
    return (int)scores->count++;
}

static double percent(const cli_ruler_cell_t *cell)
{
    return cell->samples ? 100 * cell->score / cell->samples : 0;
}

static bool has_task(const cli_ruler_scores_t *scores, uint32_t task)
{
    uint32_t samples = 0;
    for (uint32_t i = 0; i < scores->count; i++) {
        samples += scores->cells[task][i].samples;
    }
    return samples > 0;
}

// The sums over tasks; `score` is the plain mean over those that have samples, in percent.
static cli_ruler_cell_t total_of(const cli_ruler_scores_t *scores, uint32_t column)
{
    cli_ruler_cell_t total = {0};
    uint32_t tasks = 0;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        const cli_ruler_cell_t *cell = &scores->cells[task][column];
        tasks += cell->samples > 0;
        total.score += percent(cell);
        total.resident_bytes += cell->resident_bytes;
        total.full_bytes += cell->full_bytes;
        total.drafted += cell->drafted;
        total.accepted += cell->accepted;
        total.verifications += cell->verifications;
        total.ms += cell->ms;
        total.samples += cell->samples;
    }
    total.score = tasks > 0 ? total.score / tasks : 0;
    return total;
}

double cli_ruler_mean(const cli_ruler_scores_t *scores, uint32_t column)
{
    return total_of(scores, column).score;
}

static void add_totals(const cli_ruler_scores_t *scores, cli_table_t *out)
{
    cli_ruler_cell_t totals[CLI_RULER_COLUMNS_MAX];
    double full = 0;
    cli_cell(out, "mean");
    for (uint32_t i = 0; i < scores->count; i++) {
        totals[i] = total_of(scores, i);
        full += totals[i].full_bytes;
        cli_cell(out, "%.1f", totals[i].score);
    }
    if (full > 0) {
        cli_cell(out, "resident");
        for (uint32_t i = 0; i < scores->count; i++) {
            cli_cell(out, "%.0f %%", 100 * totals[i].resident_bytes / totals[i].full_bytes);
        }
    }
}

void cli_ruler_print(const cli_ruler_scores_t *scores)
{
    char names[CLI_RULER_COLUMNS_MAX][CLI_RULER_NAME_BYTES + 1];
    const char *columns[CLI_RULER_COLUMNS_MAX + 1] = {"TASK"};
    for (uint32_t i = 0; i < scores->count; i++) {
        snprintf(names[i], sizeof(names[i]), ">%s", scores->names[i]);
        columns[i + 1] = names[i];
    }
    cli_table_t *out = cli_table_new(columns, scores->count + 1);
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        if (!has_task(scores, task)) {
            continue;
        }
        cli_cell(out, "%s", ruler_task_name((ruler_task_t)task));
        for (uint32_t i = 0; i < scores->count; i++) {
            const cli_ruler_cell_t *cell = &scores->cells[task][i];
            cli_cell(out, cell->samples ? "%.1f" : "-", percent(cell));
        }
    }
    add_totals(scores, out);
    cli_table_print(out, stdout);
}

static json_t *cell_json(const cli_ruler_cell_t *cell, double score)
{
    json_t *json = json_pack("{s:f, s:I}", "score", score, "samples", (json_int_t)cell->samples);
    if (cell->full_bytes > 0) {
        json_object_update_new(json,
                               json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}", "resident_bytes",
                                         (json_int_t)cell->resident_bytes, "full_bytes",
                                         (json_int_t)cell->full_bytes, "drafted_tokens",
                                         (json_int_t)cell->drafted, "accepted_tokens",
                                         (json_int_t)cell->accepted, "verifications",
                                         (json_int_t)cell->verifications, "total_ms", cell->ms));
    }
    return json;
}

json_t *cli_ruler_json(const cli_ruler_scores_t *scores)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < scores->count; i++) {
        json_t *tasks = json_object();
        for (uint32_t task = 0; task < RULER_TASKS; task++) {
            const cli_ruler_cell_t *cell = &scores->cells[task][i];
            if (cell->samples) {
                json_object_set_new(tasks, ruler_task_name((ruler_task_t)task),
                                    cell_json(cell, percent(cell)));
            }
        }
        cli_ruler_cell_t total = total_of(scores, i);
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:o}", "compressor", scores->names[i], "total",
                                        cell_json(&total, total.score), "tasks", tasks));
    }
    return list;
}
