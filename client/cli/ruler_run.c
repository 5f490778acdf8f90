// SPDX-License-Identifier: Apache-2.0
// `assay ruler run`: asks a worker every sample with every compressor (ruler_ask.c), and shows the
// scores.
#include <errno.h>
#include <string.h>

#include "client/cli/ruler.h"

static cli_ruler_set_t set;
static cli_ruler_run_t run = {.set = &set};
static const char **compressors;
static const char *worker, *scheduler, *run_dir, *verify;
static bool as_json;

static const as_option_t table[] = {
    CLI_RULER_OPTIONS(set),
    {.name = "compressor",
     .type = AS_OPTION_LIST,
     .value = &compressors,
     .fallback = "none",
     .metavar = "NAME,...",
     .help = "which to compare, of those that the worker's /v1/models lists; none: the full cache"},
    {.name = "verify",
     .type = AS_OPTION_STRING,
     .value = &verify,
     .fallback = "off",
     .metavar = "full|off",
     .help =
         "off: what the compressors leave of the scores; full: all are those of the full cache"},
    {.name = "chat",
     .type = AS_OPTION_BOOL,
     .value = &run.chat,
     .fallback = "true",
     .help = "ask by the model's chat template; --chat=false: as a text to continue"},
    {.name = "out",
     .type = AS_OPTION_STRING,
     .value = &run.out_file,
     .metavar = "FILE",
     .help = "write each sample, answer and score there, one JSON object a line"},
    CLI_DRAFT_OPTIONS(run.ask),
    CLI_JSON_OPTION(as_json, "print JSON"),
    {.name = "worker",
     .type = AS_OPTION_STRING,
     .value = &worker,
     .metavar = "URL",
     .help = "which worker (default: the first of the cluster here), or"},
    {.name = "scheduler",
     .type = AS_OPTION_STRING,
     .value = &scheduler,
     .metavar = "HOST:PORT",
     .help = "of the cluster whose first worker is asked"},
    CLI_RUN_DIR_OPTION(run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay ruler run",
    .summary = "Asks a running worker long-context tasks with known answers, and shows the scores.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

// ---- Showing

static void print_table(void)
{
    cli_ruler_print(&run.scores);
    printf("\nscores in percent, of %lld samples a task with %lld tokens, seed %lld, verify %s; "
           "resident: the cache\non the device against the full cache\n",
           (long long)set.samples, (long long)set.length_tokens, (long long)set.seed, verify);
}

static void print_json(void)
{
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:s, s:b, s:o}", "tokens", (json_int_t)set.length_tokens,
                  "samples", (json_int_t)set.samples, "seed", (json_int_t)set.seed, "verify",
                  verify, "chat", run.chat, "compressors", cli_ruler_json(&run.scores));
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

// ---- The verb

static bool check_options(void)
{
    if (strcmp(verify, "full") != 0 && strcmp(verify, "off") != 0) {
        cli_complain("--verify=%s: give full or off", verify);
        return false;
    }
    run.ask.verify_off = strcmp(verify, "off") == 0;
    bool good = cli_ruler_find_tasks(&set) &&
                cli_count_names(compressors, CLI_RULER_COLUMNS_MAX, &run.compressor_count);
    for (uint32_t i = 0; good && i < run.compressor_count; i++) {
        run.ask.compressor = compressors[i];
        good = cli_check_ask(&run.ask);
    }
    run.compressors = compressors;
    return good;
}

// The worker that --worker names, or the scheduler's, or of the cluster here. The exit code.
static int find_worker(char url[CLI_URL_BYTES])
{
    if (!scheduler || worker) {
        return cli_find_worker(worker, run_dir, url);
    }
    Assay__StatReply *stat = cli_stat_of_cluster(scheduler);
    const char *address = NULL;
    for (size_t i = 0; stat && !address && i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        bool usable = node->role == ASSAY__ROLE__ROLE_WORKER && node->http_address[0] &&
                      node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE;
        address = usable ? node->http_address : NULL;
    }
    int code = address ? cli_find_worker(address, run_dir, url) : 1;
    if (stat && !address) {
        cli_complain("the scheduler at %s knows no worker that is alive (`assay stat`)", scheduler);
    }
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
    return code;
}

static bool open_out(void)
{
    run.out = run.out_file ? fopen(run.out_file, "w") : NULL;
    if (run.out_file && !run.out) {
        cli_complain("cannot write %s: %s", run.out_file, strerror(errno));
        return false;
    }
    return true;
}

static bool close_out(void)
{
    if (run.out && fclose(run.out) != 0) {
        cli_complain("cannot write to %s: %s", run.out_file, strerror(errno));
        return false;
    }
    return true;
}

int cli_ruler_run(int argc, char **argv)
{
    char url[CLI_URL_BYTES];
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!check_options()) {
        return 2;
    }
    code = find_worker(url);
    if (code != 0) {
        return code;
    }
    run.ask.url = url;
    if (!cli_check_context(url, "--tokens", set.length_tokens) || !open_out()) {
        return 1;
    }
    bool good = cli_ruler_ask_all(&run);
    good = close_out() && good;
    if (good && as_json) {
        print_json();
    } else if (good) {
        print_table();
    }
    return good ? 0 : 1;
}
