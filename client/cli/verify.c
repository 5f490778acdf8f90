// SPDX-License-Identifier: Apache-2.0
// `assay verify`: decodes a prompt over the full cache, then with each compressor under
// verification, and compares token ids and the bits of the logits behind them.
//
// The full-cache run has a cache salt of its own, so that it shares no stored block with the others
// and computes its whole prompt itself. The others share theirs: the first publishes the prefix,
// the next ones fetch it.
#include <string.h>
#include <sys/random.h>

#include "client/cli/cli.h"

#define COMPRESSORS_MAX 64u

static cli_ask_t ask;
static const char *file, *prompt_text, *worker, *run_dir;
static const char **chosen;
static bool show_json;

static const as_option_t table[] = {
    {.name = "prompt",
     .type = AS_OPTION_STRING,
     .value = &prompt_text,
     .metavar = "TEXT",
     .help = "the prompt, or"},
    {.name = "file",
     .type = AS_OPTION_STRING,
     .value = &file,
     .metavar = "FILE",
     .help = "its file; - is stdin"},
    {.name = "chat",
     .type = AS_OPTION_BOOL,
     .value = &ask.chat,
     .fallback = "false",
     .help = "send the prompt as a user's message"},
    {.name = "compressor",
     .type = AS_OPTION_LIST,
     .value = &chosen,
     .fallback = "all",
     .metavar = "NAME,...",
     .help = "which to compare with the full cache; all: every one that the worker has"},
    CLI_DRAFT_OPTIONS(ask),
    {.name = "max-tokens",
     .type = AS_OPTION_INT,
     .value = &ask.max_tokens,
     .fallback = "64",
     .metavar = "TOKENS",
     .help = "tokens to compare",
     .min = 1,
     .max = 1048576},
    {.name = "temperature",
     .type = AS_OPTION_DOUBLE,
     .value = &ask.temperature,
     .fallback = "0",
     .metavar = "T",
     .help = "0: greedy; else seeded sampling",
     .min = 0,
     .max = 2},
    {.name = "seed",
     .type = AS_OPTION_INT,
     .value = &ask.seed,
     .fallback = "0",
     .metavar = "N",
     .help = "of sampling"},
    {.name = "ignore-end",
     .type = AS_OPTION_BOOL,
     .value = &ask.ignore_end,
     .fallback = "false",
     .help = "go on after an end token, to compare as many tokens as asked"},
    CLI_JSON_OPTION(show_json, "print JSON"),
    {.name = "worker",
     .type = AS_OPTION_STRING,
     .value = &worker,
     .metavar = "URL",
     .help = "which worker (default: the first of the cluster here)"},
    CLI_RUN_DIR_OPTION(run_dir),
};

static const as_options_t options = {
    .program = "assay verify",
    .summary =
        "Compares decoding with verification against decoding over the full cache, bit for bit.",
    .usage = "(--prompt TEXT | --file FILE) [OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static bool gather_prompt(cli_text_t *prompt)
{
    memset(prompt, 0, sizeof(*prompt));
    if ((file != NULL) == (prompt_text != NULL)) {
        cli_complain("give either --prompt or --file");
        return false;
    }
    return file ? cli_read_file(file, prompt)
                : cli_text_append(prompt, prompt_text, strlen(prompt_text));
}

static bool check_texts(const char *const *names, uint32_t count)
{
    bool good = true;
    for (uint32_t i = 0; good && i < count; i++) {
        ask.compressor = names[i];
        good = cli_check_ask(&ask);
    }
    return good;
}

// Puts the names to compare in place of "all". `models` keeps them alive.
static bool list_compressors(const char *url, json_t **models_p, const char *names[COMPRESSORS_MAX],
                             uint32_t *count_p)
{
    char path[CLI_PATH_BYTES];
    if (strcmp(names[0], "all") != 0) {
        return true;
    }
    *count_p = 0;
    snprintf(path, sizeof(path), "%s/v1/models", url);
    *models_p = cli_http_get(path);
    json_t *model = json_array_get(json_object_get(*models_p, "data"), 0);
    json_t *list = json_object_get(json_object_get(model, "assay"), "compressors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || strcmp(name, "none") == 0) {
            continue;
        }
        if (*count_p == COMPRESSORS_MAX) {
            cli_complain("%s names more than %u compressors: choose some with --compressor", path,
                         COMPRESSORS_MAX);
            return false;
        }
        names[(*count_p)++] = name;
    }
    if (*models_p && *count_p == 0) {
        cli_complain("%s names no compressors", path);
    }
    return *count_p > 0;
}

static bool is_identical(const cli_answer_t *full, const cli_answer_t *answer)
{
    return full->bits.count == answer->bits.count &&
           memcmp(full->bits.bytes, answer->bits.bytes, full->bits.count) == 0;
}

static void show_row(cli_table_t *out, const char *name, const cli_answer_t *answer,
                     const char *identical)
{
    double resident = cli_usage(answer, "assay.resident_bytes"),
           full = cli_usage(answer, "assay.full_bytes");
    cli_cell(out, "%s", name);
    cli_cell(out, "%u", answer->bit_count);
    cli_cell(out, "%.0f", cli_usage(answer, "prompt_tokens_details.cached_tokens"));
    cli_cell(out, "%.0f", cli_usage(answer, "assay.drafted_tokens"));
    cli_cell(out, "%.0f", cli_usage(answer, "assay.accepted_tokens"));
    cli_cell(out, "%.1f", cli_usage(answer, "assay.mean_accepted_run"));
    cli_cell(out, "%s", cli_bytes(resident));
    cli_cell(out, resident > 0 ? "%.2f" : "-", resident > 0 ? full / resident : 0.0);
    cli_cell(out, "%s", cli_duration(answer->total_ms));
    cli_cell(out, "%s", identical);
}

typedef struct comparison {
    const char *url;
    char full_salt[40], shared_salt[40];
    cli_answer_t full;
    cli_table_t *table;
    json_t *json;
    bool identical;
} comparison_t;

static bool compare(comparison_t *comparison, const char *compressor)
{
    cli_answer_t answer;
    ask.compressor = compressor;
    ask.cache_salt = comparison->shared_salt;
    bool answered = cli_ask(&ask, &answer);
    bool same = answered && is_identical(&comparison->full, &answer);
    if (answered) {
        comparison->identical &= same;
        show_row(comparison->table, compressor, &answer, same ? "yes" : "NO");
        json_array_append_new(comparison->json,
                              json_pack("{s:s, s:b, s:I, s:O}", "compressor", compressor,
                                        "identical", same, "tokens", (json_int_t)answer.bit_count,
                                        "usage", answer.usage));
    }
    cli_answer_fini(&answer);
    return answered;
}

static bool compare_all(comparison_t *comparison, const char *const *names, uint32_t count)
{
    ask.url = comparison->url;
    ask.bits = true;
    ask.compressor = "none";
    ask.cache_salt = comparison->full_salt;
    int64_t horizon = ask.horizon;
    ask.horizon = 0; // plain decoding: nothing is proposed either
    if (!cli_ask(&ask, &comparison->full)) {
        return false;
    }
    if (comparison->full.bit_count == 0) {
        cli_complain("the worker sent no token ids: is it of this version?");
        return false;
    }
    show_row(comparison->table, "(full cache)", &comparison->full, "-");
    ask.horizon = horizon;
    for (uint32_t i = 0; i < count; i++) {
        if (!compare(comparison, names[i])) {
            return false;
        }
    }
    return true;
}

static void print_result(comparison_t *comparison)
{
    if (!show_json) {
        cli_table_print(comparison->table, stdout);
        printf("\nidentical: %s\n", comparison->identical ? "yes" : "no");
        return;
    }
    json_t *json =
        json_pack("{s:b, s:I, s:O}", "identical", comparison->identical, "tokens",
                  (json_int_t)comparison->full.bit_count, "compressors", comparison->json);
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

int cli_verify(int argc, char **argv)
{
    static const char *const columns[] = {"COMPRESSOR", ">TOKENS",  ">CACHED",   ">DRAFTED",
                                          ">ACCEPTED",  ">RUN",     ">RESIDENT", ">RATIO",
                                          ">TIME",      "IDENTICAL"};
    char url[CLI_URL_BYTES];
    const char *names[COMPRESSORS_MAX];
    json_t *models = NULL;
    uint64_t salt = 0;
    uint32_t count;
    cli_text_t prompt;
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!cli_count_names(chosen, COMPRESSORS_MAX, &count) || !gather_prompt(&prompt)) {
        return 2;
    }
    memcpy(names, chosen, count * sizeof(names[0]));
    ask.prompt = prompt.bytes;
    if (!check_texts(names, count)) {
        cli_text_fini(&prompt);
        return 2;
    }
    comparison_t comparison = {.url = url, .identical = true};
    code = cli_find_worker(worker, run_dir, url);
    bool compared = code == 0 && list_compressors(url, &models, names, &count) &&
                    getrandom(&salt, sizeof(salt), 0) == sizeof(salt);
    if (compared) {
        snprintf(comparison.full_salt, sizeof(comparison.full_salt), "verify-full-%016llx",
                 (unsigned long long)salt);
        snprintf(comparison.shared_salt, sizeof(comparison.shared_salt), "verify-%016llx",
                 (unsigned long long)salt);
        comparison.table = cli_table_new(columns, 10);
        comparison.json = json_array();
        compared = compare_all(&comparison, names, count);
        if (compared) {
            print_result(&comparison);
        }
        json_decref(comparison.json);
        cli_answer_fini(&comparison.full);
    }
    json_decref(models);
    cli_text_fini(&prompt);
    return compared && comparison.identical ? 0 : code ? code : 1;
}
