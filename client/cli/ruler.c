// SPDX-License-Identifier: Apache-2.0
// `assay ruler`: long-context tasks with known answers (client/ruler): lists and generates them;
// `run` is in ruler_run.c.
#include <string.h>

#include "client/cli/ruler.h"

static cli_ruler_set_t set;
static int64_t token_bytes;
static bool as_json;

static const as_option_t table[] = {
    CLI_RULER_OPTIONS(set),
    {.name = "bytes-per-token",
     .type = AS_OPTION_INT,
     .value = &token_bytes,
     .fallback = "4",
     .metavar = "BYTES",
     .help = "how many bytes of text count as a token",
     .min = 1,
     .max = 16},
    CLI_JSON_OPTION(as_json, "print one JSON object a line, not text for people"),
};

static const as_options_t options = {
    .program = "assay ruler generate",
    .summary = "Generates long-context tasks with known answers.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

bool cli_ruler_find_tasks(cli_ruler_set_t *wanted)
{
    bool all = wanted->names && wanted->names[0] && strcmp(wanted->names[0], "all") == 0;
    wanted->task_count = 0;
    for (uint32_t task = 0; all && !wanted->names[1] && task < RULER_TASKS; task++) {
        wanted->tasks[wanted->task_count++] = (ruler_task_t)task;
    }
    for (uint32_t i = 0; wanted->task_count < RULER_TASKS && wanted->names && wanted->names[i];
         i++) {
        if (!ruler_task_find(wanted->names[i], &wanted->tasks[wanted->task_count++])) {
            cli_complain("there is no task '%s' (`assay ruler tasks` lists them)",
                         wanted->names[i]);
            return false;
        }
    }
    if (wanted->task_count == 0) {
        cli_complain("--task: name at least one task, or all");
    }
    return wanted->task_count > 0;
}

bool cli_ruler_fit(const cli_ruler_set_t *wanted, ruler_ask_t ask, ruler_count_fn count, void *ctx,
                   ruler_sample_t *sample_p)
{
    ask.length_tokens = (uint32_t)wanted->length_tokens;
    ask.answer_tokens = (uint32_t)wanted->answer_tokens;
    ask.seed = (uint64_t)wanted->seed;
    as_status_t status = ruler_sample_fit(&ask, count, ctx, sample_p);
    if (status == AS_ERR_LIMIT) {
        cli_complain("%s does not fit into %u tokens: give more with --tokens, or leave it out",
                     ruler_task_name(ask.task), ask.length_tokens);
    } else if (status == AS_ERR_UNSUPPORTED) {
        cli_complain("%s has no text of %u tokens: give fewer with --tokens",
                     ruler_task_name(ask.task), ask.length_tokens);
    } else if (status == AS_ERR_NO_MEMORY) {
        cli_complain("out of memory");
    } // all else was said by the counter
    return status == AS_OK;
}

static as_status_t count_bytes(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p)
{
    (void)ctx;
    size_t bytes = strlen(sample->context) + strlen(sample->question) + strlen(sample->prefix);
    *tokens_p = (uint32_t)((bytes + (size_t)token_bytes - 1) / (size_t)token_bytes);
    return AS_OK;
}

static bool print_json(const ruler_sample_t *sample)
{
    json_t *json = ruler_sample_json(sample);
    bool printed = json && json_dumpf(json, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
    json_decref(json);
    return printed;
}

static bool print_text(const ruler_sample_t *sample)
{
    printf("==== %s, sample %u: %u tokens and %u for the answer\n\n%s%s\n\n%s",
           ruler_task_name(sample->ask.task), sample->ask.index, sample->prompt_tokens,
           sample->ask.answer_tokens, sample->context, sample->question, sample->prefix);
    for (uint32_t i = 0; i < sample->reference_count; i++) {
        printf(" [%s]", sample->references[i]);
    }
    return printf("\n\n") > 0;
}

static int generate(int argc, char **argv)
{
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!cli_ruler_find_tasks(&set)) {
        return 2;
    }
    for (uint32_t i = 0; i < set.task_count; i++) {
        for (uint32_t index = 0; index < (uint32_t)set.samples; index++) {
            const ruler_ask_t ask = {.task = set.tasks[i], .index = index};
            ruler_sample_t sample;
            if (!cli_ruler_fit(&set, ask, count_bytes, NULL, &sample)) {
                return 1;
            }
            bool printed = as_json ? print_json(&sample) : print_text(&sample);
            ruler_sample_fini(&sample);
            if (!printed) {
                cli_complain("cannot write the samples");
                return 1;
            }
        }
    }
    if (fflush(stdout) != 0) {
        cli_complain("cannot write the samples");
        return 1;
    }
    return 0;
}

static int list_tasks(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        printf("%-16s %s\n", ruler_task_name((ruler_task_t)task),
               ruler_task_summary((ruler_task_t)task));
    }
    return 0;
}

int cli_ruler(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verbs[] = {{"tasks", list_tasks},
                 {"generate", generate},
                 {"run", cli_ruler_run},
                 {"score", cli_ruler_score}};
    const char *verb = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].name) == 0) {
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    bool help = strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0;
    fputs("usage: assay ruler tasks               list the tasks\n"
          "       assay ruler generate [OPTIONS]  print samples\n"
          "       assay ruler run [OPTIONS]       ask a worker, and show the scores\n"
          "       assay ruler score FILE          score answers that were kept\n"
          "`assay ruler run --help` tells the options\n",
          help ? stdout : stderr);
    return help ? 0 : 2;
}
