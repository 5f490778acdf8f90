// SPDX-License-Identifier: Apache-2.0
// `assay compare`: what its files share.
//
// A prompt is an object: "prompt" (text), "name", "context" (which prompts belong together: tokens,
// about), and where there is one "prefix" (with which the answer begins), "continuation" (how the text
// goes on) and "format" ("json": the answer, with its prefix, is to be JSON). Raw data is the object
// that `--json` prints; tables and plots are made of it alone.
#ifndef ASSAY_CLI_COMPARE_H
#define ASSAY_CLI_COMPARE_H

#include "client/cli/cli.h"

#define CLI_COMPARE_NAMES_MAX  64u  // of compressors, with "none"
#define CLI_COMPARE_ROWS_MAX   512u // of a table
#define CLI_COMPARE_NAME_BYTES 32u

// ---- compare_prompts.c

// Prompts of lines of JSON, `bytes` of which end with a NUL. NULL: a message was printed, with `path`.
json_t *cli_compare_prompts(const char *path, const char *bytes, size_t count);

// ---- compare_texts.c: prompts out of one text

typedef struct cli_compare_texts {
    const char *url;  // of the worker, whose tokenizer counts
    const char *path; // of the text; NULL: the demo's
    int64_t context;  // tokens of a prompt, at most
    int64_t tokens;   // of what follows it, at least
    int64_t samples;  // prose, and as many prompts of JSON
} cli_compare_texts_t;

// Adds to the array `prompts`. False: a message was printed.
bool cli_compare_make(const cli_compare_texts_t *texts, json_t *prompts);

// ---- compare_ask.c: one prompt with every method

typedef struct cli_compare_run {
    const char *const *names; // of compressors, without "none"
    uint32_t name_count;
    int64_t tokens; // of an answer
    cli_ask_t ask;  // url, drafts
    // Its own.
    char full_salt[40], shared_salt[40];
    size_t lead; // tokens that the model wants before any text
} cli_compare_run_t;

bool cli_compare_begin(cli_compare_run_t *run);
// Adds an object to `results`. False: a message was printed.
bool cli_compare_ask(cli_compare_run_t *run, const json_t *prompt, json_t *results);

// ---- compare_rows.c: sums of raw data

// All answers of one compressor to the prompts of one context. What was not measured is NAN.
typedef struct cli_compare_row {
    char compressor[CLI_COMPARE_NAME_BYTES];
    int64_t context;
    uint32_t prompts;
    double token_bytes;                      // on the device
    double share;                            // of the full cache's
    double accepted_run;                     // drafted tokens that a verification confirms
    double verified_per_s, unverified_per_s; // tokens of an answer behind the first
    uint32_t identical, verified;            // of so many verified answers, bit for bit
    uint32_t differ, unverified;             // of so many unverified ones, by tokens
    double
        differ_median; // tokens before the first that differs; of an answer without one its length
    double perplexity; // of the continuation
    uint32_t broken, parsed; // of the answers that the full cache gave as JSON those that are none
    double ruler;            // percent
} cli_compare_row_t;

typedef struct cli_compare_rows {
    cli_compare_row_t row[CLI_COMPARE_ROWS_MAX]; // by context, then in the order of the data
    uint32_t count;
} cli_compare_rows_t;

// What is wrong with the raw data, which may come from anywhere, or NULL.
const char *cli_compare_sum(const json_t *raw, cli_compare_rows_t *rows);

// ---- compare_show.c, compare_plots.c

void cli_compare_print(const cli_compare_rows_t *rows);
// Writes the table between the marks of a Markdown file. False, for both: a message was printed.
bool cli_compare_markdown(const char *path, const json_t *raw, const cli_compare_rows_t *rows);
bool cli_compare_plot(const char *folder, const json_t *raw, const cli_compare_rows_t *rows);

#endif
