// SPDX-License-Identifier: Apache-2.0
// `assay run`: one prompt to a running worker; the answer comes as it is generated, then a line of
// figures (to stderr).
#include <string.h>

#include "client/cli/cli.h"

static cli_ask_t ask = {.echo = NULL};
static const char *file, *worker, *run_dir;

static const as_option_t table[] = {
    {.name = "chat",
     .type = AS_OPTION_BOOL,
     .value = &ask.chat,
     .fallback = "false",
     .help = "send the prompt as a user's message, not as a text to continue"},
    {.name = "system",
     .type = AS_OPTION_STRING,
     .value = &ask.system,
     .metavar = "TEXT",
     .help = "with --chat: the system message"},
    {.name = "file",
     .type = AS_OPTION_STRING,
     .value = &file,
     .metavar = "FILE",
     .help = "put this file's text before the prompt; - is stdin"},
    {.name = "max-tokens",
     .type = AS_OPTION_INT,
     .value = &ask.max_tokens,
     .fallback = "256",
     .metavar = "TOKENS",
     .help = "longest answer",
     .min = 1,
     .max = 1048576},
    {.name = "temperature",
     .type = AS_OPTION_DOUBLE,
     .value = &ask.temperature,
     .fallback = "0",
     .metavar = "T",
     .help = "0: greedy",
     .min = 0,
     .max = 2},
    {.name = "top-p",
     .type = AS_OPTION_DOUBLE,
     .value = &ask.top_p,
     .fallback = "1",
     .metavar = "P",
     .help = "1: off",
     .min = 0.000001,
     .max = 1},
    {.name = "seed",
     .type = AS_OPTION_INT,
     .value = &ask.seed,
     .fallback = "0",
     .metavar = "N",
     .help = "of sampling: equal seeds give equal answers"},
    {.name = "compressor",
     .type = AS_OPTION_STRING,
     .value = &ask.compressor,
     .metavar = "NAME",
     .help = "one of those that the worker's /v1/models lists (default: the worker's)"},
    CLI_DRAFT_OPTIONS(ask),
    {.name = "verify-off",
     .type = AS_OPTION_BOOL,
     .value = &ask.verify_off,
     .fallback = "false",
     .help = "emit drafts as they are: lossy, for comparison"},
    {.name = "cache-salt",
     .type = AS_OPTION_STRING,
     .value = &ask.cache_salt,
     .metavar = "TEXT",
     .help = "share cached prefixes only with requests of the same salt"},
    {.name = "worker",
     .type = AS_OPTION_STRING,
     .value = &worker,
     .metavar = "URL",
     .help = "which worker (default: the first of the cluster here)"},
    CLI_RUN_DIR_OPTION(run_dir),
};

static const as_options_t options = {
    .program = "assay run",
    .summary = "Sends a prompt to a running worker and prints its answer as it comes.",
    .usage = "[OPTIONS] [PROMPT]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

// The file's text, then the words of the command line.
static bool gather_prompt(int argc, char **argv, int rest, cli_text_t *prompt)
{
    memset(prompt, 0, sizeof(*prompt));
    if (file && !cli_read_file(file, prompt)) {
        return false;
    }
    if (file && rest < argc && !cli_text_append(prompt, "\n\n", 2)) {
        return false;
    }
    for (int i = rest; i < argc; i++) {
        if ((i > rest && !cli_text_append(prompt, " ", 1)) ||
            !cli_text_append(prompt, argv[i], strlen(argv[i]))) {
            return false;
        }
    }
    if (prompt->count == 0) {
        cli_complain("there is no prompt: write it behind the options, or give --file");
        return false;
    }
    return true;
}

int cli_run(int argc, char **argv)
{
    char url[CLI_URL_BYTES];
    cli_text_t prompt;
    cli_answer_t answer;
    int rest, code;
    if (!cli_options(&options, argc, argv, &rest, &code)) {
        return code;
    }
    if (ask.system && !ask.chat) {
        cli_complain("--system needs --chat: a text to continue has no system message");
        return 2;
    }
    if (!gather_prompt(argc, argv, rest, &prompt)) {
        return 2;
    }
    ask.prompt = prompt.bytes;
    if (!cli_check_ask(&ask)) {
        cli_text_fini(&prompt);
        return 2;
    }
    code = cli_find_worker(worker, run_dir, url);
    if (code == 0) {
        ask.url = url;
        ask.echo = stdout;
        code = cli_ask(&ask, &answer) ? 0 : 1;
        putchar('\n');
        fflush(stdout);
        if (code == 0) {
            cli_print_usage(stderr, &answer);
        }
        cli_answer_fini(&answer);
    }
    cli_text_fini(&prompt);
    return code;
}
