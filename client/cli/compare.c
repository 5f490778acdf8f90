// SPDX-License-Identifier: Apache-2.0
// `assay compare`: every method of a worker on the same prompts; what each takes of the device, how
// fast it is, and what it loses where nothing verifies.
//
// Asking makes raw data (compare_ask.c); rows are summed (compare_rows.c), shown (compare_show.c) and
// drawn (compare_plots.c) from raw data alone, so also from what `--json` kept (`--from`).
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/compare.h"
#include "client/cli/ruler.h"

#define CONTEXTS_MAX 16u

static cli_local_options_t local_options;
static cli_compare_run_t run;
static cli_ruler_set_t ruler;
static const char **compressors, **contexts, **ruler_names;
static const char *prompts_file, *text_file, *raw_file, *markdown, *plots;
static int64_t samples;
static bool as_json;

static const as_option_t table[] = {
    {.name = "compressor",
     .type = AS_OPTION_LIST,
     .value = &compressors,
     .fallback = "all",
     .metavar = "NAME,...",
     .help = "which to compare (`assay compressors` lists them), beside the full cache"},
    {.name = "context",
     .type = AS_OPTION_LIST,
     .value = &contexts,
     .fallback = "1024",
     .metavar = "TOKENS,...",
     .help = "lengths of the built-in prompts, and of those of --ruler"},
    {.name = "samples",
     .type = AS_OPTION_INT,
     .value = &samples,
     .fallback = "2",
     .metavar = "N",
     .help = "built-in prompts of each length: so many pieces of the text, and so many of its "
             "sentences as JSON",
     .min = 1,
     .max = 1000},
    {.name = "text",
     .type = AS_OPTION_STRING,
     .value = &text_file,
     .metavar = "FILE",
     .help = "the text of the built-in prompts (default: docs/demo-text.txt, 1,700 tokens)"},
    {.name = "prompts",
     .type = AS_OPTION_STRING,
     .value = &prompts_file,
     .metavar = "FILE",
     .help =
         "other prompts, a JSON object a line: \"prompt\", and maybe \"name\", \"context\" (which "
         "are summed together), \"prefix\", \"continuation\", \"format\": \"json\""},
    {.name = "tokens",
     .type = AS_OPTION_INT,
     .value = &run.tokens,
     .fallback = "64",
     .metavar = "TOKENS",
     .help = "of each answer, and of the text behind a prompt whose perplexity is measured",
     .min = 2,
     .max = 65536},
    {.name = "ruler",
     .type = AS_OPTION_LIST,
     .value = &ruler_names,
     .metavar = "TASK,...",
     .help = "also scores in these tasks, unverified (`assay ruler tasks`); all: in each"},
    {.name = "ruler-samples",
     .type = AS_OPTION_INT,
     .value = &ruler.samples,
     .fallback = "5",
     .metavar = "N",
     .help = "of each task",
     .min = 1,
     .max = 10000},
    {.name = "from",
     .type = AS_OPTION_STRING,
     .value = &raw_file,
     .metavar = "FILE",
     .help = "ask nothing: show what --json printed; - is stdin"},
    {.name = "markdown",
     .type = AS_OPTION_STRING,
     .value = &markdown,
     .metavar = "FILE",
     .help =
         "write the table between the lines <!-- assay compare --> and <!-- end --> of it, too"},
    {.name = "plots",
     .type = AS_OPTION_STRING,
     .value = &plots,
     .metavar = "DIR",
     .help = "write SVG files there, too"},
    CLI_DRAFT_OPTIONS(run.ask),
    CLI_JSON_OPTION(as_json, "print the raw data as JSON, for --from"),
    CLI_LOCAL_OPTIONS(local_options),
};

static const as_options_t options = {
    .program = "assay compare",
    .summary = "Asks a worker the same prompts with each compressor, verified and not, and shows "
               "bytes, speed and what is lost. Exits with 1 where a verified answer is not the "
               "full cache's.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct plan {
    int64_t contexts[CONTEXTS_MAX]; // none where there are --prompts
    uint32_t context_count;
    const char *names[CLI_COMPARE_NAMES_MAX];
    json_t *listed; // the worker's compressors, which keep names alive
} plan_t;

// ---- Before anybody is asked

static bool read_contexts(plan_t *plan)
{
    for (uint32_t i = 0; contexts && contexts[i]; i++) {
        char *end;
        long long tokens = strtoll(contexts[i], &end, 10);
        if (*end != '\0' || tokens < 64 || tokens > RULER_TOKENS_MAX || i == CONTEXTS_MAX) {
            cli_complain("--context %s: give up to %u numbers of tokens from 64 to %u", contexts[i],
                         CONTEXTS_MAX, RULER_TOKENS_MAX);
            return false;
        }
        plan->contexts[plan->context_count++] = tokens;
    }
    if (plan->context_count == 0) {
        cli_complain("--context: give at least one number of tokens");
    }
    return plan->context_count > 0;
}

static bool check(plan_t *plan)
{
    uint32_t count;
    if (prompts_file && text_file) {
        cli_complain("give either --prompts or --text");
        return false;
    }
    bool good =
        cli_count_names(compressors, CLI_COMPARE_NAMES_MAX - 1, &count) && read_contexts(plan);
    ruler.names = ruler_names;
    if (good && ruler_names && ruler_names[0]) {
        good = cli_ruler_find_tasks(&ruler);
    }
    for (uint32_t i = 0; good && i < count; i++) {
        const cli_ask_t ask = {.compressor = compressors[i]};
        good = cli_check_ask(&ask);
    }
    return good;
}

// ---- Which methods

static bool is_wanted(const char *name)
{
    bool all = strcmp(compressors[0], "all") == 0, wanted = false;
    for (uint32_t i = 0; compressors[i]; i++) {
        wanted = wanted || all || strcmp(compressors[i], name) == 0;
    }
    return wanted;
}

static bool is_listed(const json_t *list, const char *name)
{
    bool found = strcmp(name, "all") == 0 || strcmp(name, "none") == 0;
    for (size_t i = 0; !found && i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        found = strcmp(json_string_value(json_object_get(one, "name")), name) == 0;
    }
    return found;
}

// Those of the worker's table that are wanted, in its order, where they fit the model.
static bool choose(plan_t *plan)
{
    const json_t *list = json_object_get(plan->listed, "data");
    for (uint32_t i = 0; compressors[i]; i++) {
        if (!is_listed(list, compressors[i])) {
            cli_complain("--compressor: the worker has no '%s' (`assay compressors` lists them)",
                         compressors[i]);
            return false;
        }
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        bool fits = json_array_size(json_object_get(one, "segments")) > 0;
        if (is_wanted(name) && fits && strlen(name) < CLI_COMPARE_NAME_BYTES &&
            run.name_count < CLI_COMPARE_NAMES_MAX - 1) {
            plan->names[run.name_count++] = name;
        }
    }
    run.names = plan->names;
    return true;
}

// ---- Asking

// The prompts that the options ask for. NULL: a message was printed.
static json_t *gather(const plan_t *plan)
{
    cli_text_t text = {0};
    json_t *prompts = NULL;
    if (prompts_file) {
        prompts = cli_read_file(prompts_file, &text)
                      ? cli_compare_prompts(prompts_file, text.bytes, text.count)
                      : NULL;
        cli_text_fini(&text);
        return prompts;
    }
    prompts = json_array();
    for (uint32_t i = 0; prompts && i < plan->context_count; i++) {
        const cli_compare_texts_t texts = {.url = run.ask.url,
                                           .path = text_file,
                                           .context = plan->contexts[i],
                                           .tokens = run.tokens,
                                           .samples = samples};
        if (!cli_check_context(run.ask.url, "--context and --tokens, together",
                               texts.context + texts.tokens) ||
            !cli_compare_make(&texts, prompts)) {
            json_decref(prompts);
            prompts = NULL;
        }
    }
    return prompts;
}

static void show_progress(size_t done, size_t count, const char *what)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%zu of %zu: %s", done + 1, count, what);
    }
}

static void end_progress(void)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
}

static bool ask_prompts(const json_t *prompts, json_t *results)
{
    bool good = cli_compare_begin(&run);
    for (size_t i = 0; good && i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        const char *name = json_string_value(json_object_get(prompt, "name"));
        show_progress(i, json_array_size(prompts), name ? name : "prompt");
        good = cli_compare_ask(&run, prompt, results);
    }
    end_progress();
    return good;
}

// Scores of one context, each an object.
static bool ask_ruler(const plan_t *plan, int64_t context, json_t *scores)
{
    static cli_ruler_run_t asked;
    const char *names[CLI_COMPARE_NAMES_MAX] = {"none"};
    bool good = true;
    memcpy(names + 1, plan->names, run.name_count * sizeof(names[0]));
    ruler.length_tokens = context;
    ruler.seed = 42;
    for (uint32_t i = 0; good && i <= run.name_count; i += CLI_RULER_COLUMNS_MAX) {
        uint32_t left = run.name_count + 1 - i;
        asked = (cli_ruler_run_t){.set = &ruler,
                                  .ask = run.ask,
                                  .chat = true,
                                  .compressors = names + i,
                                  .compressor_count =
                                      left < CLI_RULER_COLUMNS_MAX ? left : CLI_RULER_COLUMNS_MAX};
        asked.ask.verify_off = true;
        good = cli_ruler_ask_all(&asked);
        for (uint32_t j = 0; good && j < asked.compressor_count; j++) {
            json_array_append_new(scores, json_pack("{s:I, s:s, s:f}", "context",
                                                    (json_int_t)context, "compressor", names[i + j],
                                                    "score", cli_ruler_mean(&asked.scores, j)));
        }
    }
    return good;
}

static bool ask_all(const plan_t *plan, json_t *raw)
{
    json_t *prompts = gather(plan), *scores = json_array();
    bool good = prompts && ask_prompts(prompts, json_object_get(raw, "prompts"));
    for (uint32_t i = 0; good && ruler.task_count > 0 && i < plan->context_count; i++) {
        good = ask_ruler(plan, plan->contexts[i], scores);
    }
    json_object_set_new(raw, "ruler", scores);
    json_decref(prompts);
    return good;
}

// "Intel(R) Xeon(R), 2 processors".
static json_t *machine(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], name[160] = "an unknown processor";
    while (file && fgets(line, sizeof(line), file)) {
        char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon) {
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(name, sizeof(name), "%.150s", colon + 2);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return json_sprintf("%s, %ld processors", name, sysconf(_SC_NPROCESSORS_ONLN));
}

static json_t *command_of(int argc, char **argv)
{
    cli_text_t text = {0};
    bool good = cli_text_append(&text, "assay", 5);
    for (int i = 0; good && i < argc; i++) {
        good = cli_text_append(&text, " ", 1) && cli_text_append(&text, argv[i], strlen(argv[i]));
    }
    json_t *json = good ? json_string(text.bytes) : NULL;
    cli_text_fini(&text);
    return json ? json : json_string("assay compare");
}

// NULL: a message was printed, and the exit code is *code_p.
static json_t *measure(plan_t *plan, json_t *command, int *code_p)
{
    cli_local_t local;
    *code_p = cli_local_open(&local_options, &local);
    if (*code_p != 0) {
        return NULL;
    }
    run.ask.url = local.url;
    plan->listed = cli_get_compressors(local.url);
    json_t *raw = json_pack("{s:O, s:o, s:I, s:[]}", "command", command, "machine", machine(),
                            "tokens", (json_int_t)run.tokens, "prompts");
    json_object_set(raw, "model", json_object_get(plan->listed, "model"));
    json_object_set(raw, "full_token_bytes", json_object_get(plan->listed, "full_token_bytes"));
    bool good = raw && plan->listed && choose(plan) && ask_all(plan, raw);
    good = cli_local_close(&local, good) && good;
    if (!good) {
        json_decref(raw);
        *code_p = 1;
        return NULL;
    }
    return raw;
}

// ---- Showing

static bool show(const json_t *raw, const cli_compare_rows_t *rows)
{
    bool good = true;
    if (as_json) {
        json_dumpf(raw, stdout, JSON_INDENT(1));
        putchar('\n');
    } else {
        cli_compare_print(rows);
    }
    if (markdown) {
        good = cli_compare_markdown(markdown, raw, rows);
    }
    return (!plots || cli_compare_plot(plots, raw, rows)) && good;
}

static bool is_identical(const cli_compare_rows_t *rows)
{
    bool identical = true;
    for (uint32_t i = 0; i < rows->count; i++) {
        identical = identical && rows->row[i].identical == rows->row[i].verified;
    }
    return identical;
}

static json_t *load(void)
{
    json_error_t error;
    json_t *raw = strcmp(raw_file, "-") == 0 ? json_loadf(stdin, 0, &error)
                                             : json_load_file(raw_file, 0, &error);
    if (!raw) {
        cli_complain("--from %s: %s", raw_file, error.text);
    }
    return raw;
}

int cli_compare(int argc, char **argv)
{
    static plan_t plan;
    static cli_compare_rows_t rows;
    json_t *command = command_of(argc, argv); // as it was given: what is read moves arguments
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        json_decref(command);
        return code;
    }
    if (!check(&plan)) {
        json_decref(command);
        return 2;
    }
    as_options_clear_environment(&options);
    code = 1;
    json_t *raw = raw_file ? load() : measure(&plan, command, &code);
    json_decref(command);
    const char *fault = raw ? cli_compare_sum(raw, &rows) : NULL;
    if (fault) {
        cli_complain("%s is no raw data of `assay compare --json`: %s",
                     raw_file ? raw_file : "this", fault);
    }
    bool good = raw && !fault && show(raw, &rows);
    json_decref(raw);
    json_decref(plan.listed);
    if (!good) {
        return code != 0 ? code : 1;
    }
    return is_identical(&rows) ? 0 : 1; // of rows of a file, too
}
