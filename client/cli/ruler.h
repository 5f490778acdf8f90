// SPDX-License-Identifier: Apache-2.0
// `assay ruler`: what its verbs share.
#ifndef ASSAY_CLI_RULER_H
#define ASSAY_CLI_RULER_H

#include "client/cli/cli.h"
#include "client/ruler/ruler.h"

// Which samples: options of both verbs.
typedef struct cli_ruler_set {
    const char **names; // of tasks, or "all"
    int64_t length_tokens, answer_tokens, samples, seed;
    ruler_task_t tasks[RULER_TASKS];
    uint32_t task_count;
} cli_ruler_set_t;

#define CLI_RULER_OPTIONS(set_)                                                                    \
    {.name = "task",                                                                               \
     .type = AS_OPTION_LIST,                                                                       \
     .value = &(set_).names,                                                                       \
     .fallback = "all",                                                                            \
     .metavar = "NAME,...",                                                                        \
     .help = "which of the 13 tasks (`assay ruler tasks` lists them)"},                            \
        {.name = "tokens",                                                                         \
         .type = AS_OPTION_INT,                                                                    \
         .value = &(set_).length_tokens,                                                           \
         .fallback = "1024",                                                                       \
         .metavar = "TOKENS",                                                                      \
         .help = "length of a sample: prompt and room for the answer",                             \
         .min = 1,                                                                                 \
         .max = RULER_TOKENS_MAX},                                                                 \
        {.name = "answer-tokens",                                                                  \
         .type = AS_OPTION_INT,                                                                    \
         .value = &(set_).answer_tokens,                                                           \
         .fallback = "0",                                                                          \
         .metavar = "TOKENS",                                                                      \
         .help = "room for the answer; 0: the task's own",                                         \
         .min = 0,                                                                                 \
         .max = 4096},                                                                             \
        {.name = "samples",                                                                        \
         .type = AS_OPTION_INT,                                                                    \
         .value = &(set_).samples,                                                                 \
         .fallback = "5",                                                                          \
         .metavar = "N",                                                                           \
         .help = "of each task",                                                                   \
         .min = 1,                                                                                 \
         .max = 10000},                                                                            \
    {                                                                                              \
        .name = "seed", .type = AS_OPTION_INT, .value = &(set_).seed, .fallback = "42",            \
        .metavar = "N", .help = "equal seeds give equal samples"                                   \
    }

int cli_ruler_run(int argc, char **argv);   // ruler_run.c
int cli_ruler_score(int argc, char **argv); // ruler_score.c

// Finds the tasks by their names. False: a message was printed.
bool cli_ruler_find_tasks(cli_ruler_set_t *set);
// Sample `index` of a task, by the caller's count. False: a message was printed.
bool cli_ruler_fit(const cli_ruler_set_t *set, ruler_ask_t ask, ruler_count_fn count, void *ctx,
                   ruler_sample_t *sample_p);

// ---- ruler_scores.c

#define CLI_RULER_COLUMNS_MAX 32u // of a table
#define CLI_RULER_NAME_BYTES  40u

// Sums over the samples of a task and a compressor.
typedef struct cli_ruler_cell {
    double score; // of each 0 to 1
    double resident_bytes, full_bytes;
    double drafted, accepted, verifications, ms;
    uint32_t samples;
} cli_ruler_cell_t;

typedef struct cli_ruler_scores {
    char names[CLI_RULER_COLUMNS_MAX][CLI_RULER_NAME_BYTES]; // of compressors
    uint32_t count;
    cli_ruler_cell_t cells[RULER_TASKS][CLI_RULER_COLUMNS_MAX];
} cli_ruler_scores_t;

// The column of a compressor, a new one if need be. Negative: there is no room, or the name is too
// long.
int cli_ruler_column(cli_ruler_scores_t *scores, const char *name);
void cli_ruler_print(const cli_ruler_scores_t *scores);
// An array with an object for each compressor.
json_t *cli_ruler_json(const cli_ruler_scores_t *scores);
// The mean over the tasks, in percent.
double cli_ruler_mean(const cli_ruler_scores_t *scores, uint32_t column);

// ---- ruler_ask.c

typedef struct cli_ruler_run {
    const cli_ruler_set_t *set;
    cli_ask_t ask; // url, drafts, whether verified; what a sample needs is set for each
    bool chat;
    const char *const *compressors;
    uint32_t compressor_count; // at most CLI_RULER_COLUMNS_MAX
    const char *out_file;
    FILE *out; // each sample and answer; NULL: nowhere
    // Its own.
    int columns[CLI_RULER_COLUMNS_MAX];
    size_t lead; // tokens that the model wants before any text
    uint64_t asked;
    cli_ruler_scores_t scores;
} cli_ruler_run_t;

// Every sample of the set with every compressor. False: a message was printed.
bool cli_ruler_ask_all(cli_ruler_run_t *run);

#endif
