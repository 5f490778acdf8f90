// SPDX-License-Identifier: Apache-2.0
// `assay demo`: one scheduler, two stores, two workers; one long text, two questions.
//
// For each compressor: the text with a question goes to worker A, which computes the whole prompt
// and publishes its blocks; then the same text with another question goes to worker B, which finds
// the text's blocks in the stores. Every compressor has a cache salt of its own, so each has its
// cold and its warm run. The reference decodes both questions over the full cache, under yet
// another salt; token ids and logits bits of all runs must equal it.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"

#define QUESTIONS   2
#define PUBLISH_MS  20000 // for the blocks of a prompt to be known to the scheduler
#define POLL_MS     50
#define FIGURES_MAX 8u

static const char *model, *text_file, *run_dir;
static int64_t threads, max_tokens;
static const char **compressors;

static const as_option_t table[] = {
    {.name = "model",
     .type = AS_OPTION_STRING,
     .value = &model,
     .metavar = "FILE",
     .help = "GGUF file of the model",
     .required = true},
    {.name = "text",
     .type = AS_OPTION_STRING,
     .value = &text_file,
     .metavar = "FILE",
     .help = "the long text (default: docs/demo-text.txt)"},
    {.name = "max-tokens",
     .type = AS_OPTION_INT,
     .value = &max_tokens,
     .fallback = "56",
     .metavar = "TOKENS",
     .help = "of each answer",
     .min = 2,
     .max = 1024},
    {.name = "threads",
     .type = AS_OPTION_INT,
     .value = &threads,
     .fallback = "0",
     .metavar = "N",
     .help = "of each worker; they work in turn; 0: one for each processor",
     .min = 0,
     .max = 256},
    {.name = "compressor",
     .type = AS_OPTION_LIST,
     .value = &compressors,
     .fallback = "kivi4,kivi2,streaming,snapkv",
     .metavar = "NAME,...",
     .help = "which to show"},
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay demo",
    .summary = "Starts a cluster on this machine, shares a long prefix between two workers, and "
               "shows the figures.",
    .usage = "--model FILE [OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static const char *const questions[QUESTIONS] = {
    "Question: How did the people of Velm get salt, and how did a salt master judge the brine?",
    "Question: What did Hanne Visser notice in 1874, and how did it save the harbour?",
};

typedef struct figures {
    const char *compressor;
    cli_answer_t answers[QUESTIONS]; // cold at A, warm at B
    bool identical;
} figures_t;

typedef struct demo {
    cli_cluster_t cluster;
    char urls[2][CLI_URL_BYTES];
    char scheduler[CLI_ADDRESS_BYTES];
    cli_text_t prompts[QUESTIONS];
    cli_answer_t reference[QUESTIONS];
    figures_t figures[FIGURES_MAX];
    uint32_t figure_count;
    uint32_t compressor_count;
} demo_t;

// ---- Set-up

// Before a cluster is started for nothing.
static bool check_texts(const demo_t *demo)
{
    bool good = true;
    for (uint32_t i = 0; good && i < demo->compressor_count; i++) {
        const cli_ask_t ask = {.compressor = compressors[i]};
        good = cli_check_ask(&ask);
    }
    return good;
}

// The text: as given, or beside the installed program, or in the source tree that this was built
// from.
bool cli_find_text(const char *given, char path[CLI_PATH_BYTES])
{
    char own[CLI_PATH_BYTES];
    if (given) {
        snprintf(path, CLI_PATH_BYTES, "%s", given);
        return true;
    }
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 64);
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    snprintf(path, CLI_PATH_BYTES, "%.*s/../share/assay/demo-text.txt",
             slash ? (int)(slash - own) : 0, own);
    if (access(path, R_OK) == 0) {
        return true;
    }
    snprintf(path, CLI_PATH_BYTES, "%s/docs/demo-text.txt", ASSAY_SOURCE_DIR);
    if (access(path, R_OK) == 0) {
        return true;
    }
    cli_complain("cannot find demo-text.txt: give a text of some pages with --text FILE");
    return false;
}

static bool make_prompts(demo_t *demo)
{
    char path[CLI_PATH_BYTES];
    cli_text_t text;
    if (!cli_find_text(text_file, path) || !cli_read_file(path, &text)) {
        return false;
    }
    bool made = true;
    for (int i = 0; i < QUESTIONS; i++) {
        cli_text_t *prompt = &demo->prompts[i];
        made &= cli_text_append(prompt, text.bytes, text.count) &&
                cli_text_append(prompt, "\n", 1) &&
                cli_text_append(prompt, questions[i], strlen(questions[i]));
    }
    cli_text_fini(&text);
    return made;
}

static bool start(demo_t *demo)
{
    cli_cluster_options_t cluster = {
        .model = model,
        .stores = 2,
        .workers = 2,
        .ram_bytes = 256 << 20,
        .threads = threads,
        .horizon = -1,
        .full_cache = "drop", // there is room for it all, and nothing to see of swaps
        .log_level = "info",
        .run_dir = run_dir,
        .start_seconds = 120,
    };
    double begun = cli_now_ms();
    printf("starting one scheduler, two stores and two workers ...\n");
    fflush(stdout);
    if (!cli_cluster_start(&cluster, &demo->cluster)) {
        return false;
    }
    uint32_t worker = 0;
    for (uint32_t i = 0; i < demo->cluster.node_count; i++) {
        const cli_node_t *node = &demo->cluster.nodes[i];
        char address[CLI_ADDRESS_BYTES];
        memcpy(address, node->http, sizeof(address));
        printf("  %-10s pid %-7d %s\n", node->name, (int)node->pid,
               node->http[0] ? node->http : node->rpc);
        if (strcmp(node->role, "worker") == 0 && worker < 2) {
            snprintf(demo->urls[worker++], sizeof(demo->urls[0]), "http://%s", address);
        }
    }
    snprintf(demo->scheduler, sizeof(demo->scheduler), "%s", demo->cluster.nodes[0].rpc);
    printf("ready after %s; logs are in %s\n\n", cli_duration(cli_now_ms() - begun), run_dir);
    return true;
}

// ---- Runs

static bool ask_one(demo_t *demo, int question, int worker, const char *compressor,
                    cli_answer_t *answer)
{
    char salt[64];
    snprintf(salt, sizeof(salt), "demo-%.40s", compressor);
    const cli_ask_t ask = {
        .url = demo->urls[worker],
        .prompt = demo->prompts[question].bytes,
        .chat = true,
        .max_tokens = max_tokens,
        .horizon = strcmp(compressor, "none") == 0 ? 0 : -1, // plain decoding
        .prompt_lookup = -1,
        .compressor = compressor,
        .cache_salt = salt,
        .bits = true,
        .echo = stdout,
    };
    printf("[%s] worker %s, %s\n", compressor, worker == 0 ? "A" : "B", questions[question]);
    fflush(stdout);
    bool answered = cli_ask(&ask, answer);
    printf("\n");
    if (answered) {
        printf("    ");
        cli_print_usage(stdout, answer);
        printf("\n");
    }
    return answered;
}

static uint64_t directory_blocks(const demo_t *demo)
{
    Assay__StatReply *stat = cli_stat_of_cluster(demo->scheduler);
    uint64_t blocks = stat ? stat->directory_blocks : 0;
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
    return blocks;
}

// Blocks are published behind the answer. Waits until the scheduler knows `wanted` of them; goes on
// without after a while.
static void wait_published(const demo_t *demo, uint64_t wanted)
{
    double deadline = cli_now_ms() + PUBLISH_MS;
    const struct timespec wait = {.tv_nsec = POLL_MS * 1000000};
    while (directory_blocks(demo) < wanted) {
        if (cli_now_ms() > deadline) {
            cli_complain("the blocks of the prompt were not published in time; going on");
            return;
        }
        nanosleep(&wait, NULL);
    }
}

static bool is_identical(const cli_answer_t *a, const cli_answer_t *b)
{
    return a->bit_count > 0 && a->bits.count == b->bits.count &&
           memcmp(a->bits.bytes, b->bits.bytes, a->bits.count) == 0;
}

static bool run_reference(demo_t *demo)
{
    printf("---- reference: decoding over the full cache\n\n");
    for (int i = 0; i < QUESTIONS; i++) {
        if (!ask_one(demo, i, 0, "none", &demo->reference[i])) {
            return false;
        }
    }
    return true;
}

static bool run_compressor(demo_t *demo, const char *compressor)
{
    figures_t *figures = &demo->figures[demo->figure_count];
    uint64_t before = directory_blocks(demo);
    figures->compressor = compressor;
    printf("---- %s: drafting on the compressed cache, verifying on the full one\n\n", compressor);
    if (!ask_one(demo, 0, 0, compressor, &figures->answers[0])) {
        return false;
    }
    wait_published(demo, before + (uint64_t)cli_usage(&figures->answers[0], "prompt_tokens") / 64);
    if (!ask_one(demo, 1, 1, compressor, &figures->answers[1])) {
        return false;
    }
    figures->identical = is_identical(&demo->reference[0], &figures->answers[0]) &&
                         is_identical(&demo->reference[1], &figures->answers[1]);
    demo->figure_count++;
    return true;
}

// ---- Figures

static double sum(const figures_t *figures, const char *path)
{
    return cli_usage(&figures->answers[0], path) + cli_usage(&figures->answers[1], path);
}

static bool print_figures(const demo_t *demo)
{
    static const char *const columns[] = {
        "compressor", ">prompt",       ">prefix hit",  ">first token cold", ">warm",
        ">ratio",     ">prefix moved", ">swaps moved", ">drafted",          ">accepted",
        ">mean run",  ">resident",     "identical"};
    cli_table_t *out = cli_table_new(columns, 13);
    bool identical = demo->figure_count > 0;
    for (uint32_t i = 0; i < demo->figure_count; i++) {
        const figures_t *row = &demo->figures[i];
        const cli_answer_t *cold = &row->answers[0], *warm = &row->answers[1];
        double verifications = sum(row, "assay.verifications");
        cli_cell(out, "%s", row->compressor);
        cli_cell(out, "%.0f", cli_usage(warm, "prompt_tokens"));
        cli_cell(out, "%.0f", cli_usage(warm, "prompt_tokens_details.cached_tokens"));
        cli_cell(out, "%s", cli_duration(cold->first_token_ms));
        cli_cell(out, "%s", cli_duration(warm->first_token_ms));
        cli_cell(out, "%.3f", warm->first_token_ms / cold->first_token_ms);
        cli_cell(out, "%s", cli_bytes(sum(row, "assay.fetched_bytes")));
        cli_cell(out, "%s", cli_bytes(sum(row, "assay.swapped_bytes")));
        cli_cell(out, "%.0f", sum(row, "assay.drafted_tokens"));
        cli_cell(out, "%.0f", sum(row, "assay.accepted_tokens"));
        cli_cell(out, "%.1f",
                 verifications > 0 ? sum(row, "assay.accepted_tokens") / verifications : 0);
        cli_cell(out, "%.0f %%",
                 100 * cli_usage(warm, "assay.resident_bytes") /
                     cli_usage(warm, "assay.full_bytes"));
        cli_cell(out, "%s", row->identical ? "yes" : "NO");
        identical &= row->identical;
    }
    cli_table_print(out, stdout);
    printf(
        "\ncold: of A, which computed the prompt; warm: of B, which fetched the prefix; ratio: "
        "warm / cold.\n"
        "prefix hit: tokens of B's prompt whose K and V came from the stores. moved: bytes, by "
        "both workers.\nmean run: drafted tokens confirmed by one verification. resident: B's "
        "cache on the device\nagainst the full cache. identical: token ids and logits bits equal "
        "full-cache decoding.\n\n"
        "identical: %s\n",
        identical ? "yes" : "no");
    return identical;
}

static bool run_all(demo_t *demo)
{
    if (!run_reference(demo)) {
        return false;
    }
    for (uint32_t i = 0; i < demo->compressor_count; i++) {
        if (!run_compressor(demo, compressors[i])) {
            return false;
        }
    }
    return print_figures(demo);
}

static void fini(demo_t *demo)
{
    for (int i = 0; i < QUESTIONS; i++) {
        cli_text_fini(&demo->prompts[i]);
        cli_answer_fini(&demo->reference[i]);
        for (uint32_t j = 0; j < FIGURES_MAX; j++) {
            cli_answer_fini(&demo->figures[j].answers[i]);
        }
    }
}

int cli_demo(int argc, char **argv)
{
    static demo_t demo;
    static char dir[] = "/tmp/assay-demo-XXXXXX";
    double begun = cli_now_ms();
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    as_options_clear_environment(&options);
    if (!cli_count_names(compressors, FIGURES_MAX, &demo.compressor_count) || !check_texts(&demo)) {
        return 2;
    }
    run_dir = mkdtemp(dir);
    if (!run_dir) {
        cli_complain("cannot make a folder for logs, %s: %s", dir, strerror(errno));
        return 1;
    }
    if (!make_prompts(&demo)) {
        fini(&demo);
        rmdir(run_dir);
        return 1;
    }
    bool good = start(&demo);
    if (good) {
        good = run_all(&demo);
        good &= cli_cluster_stop(&demo.cluster);
        printf("took %s\n", cli_duration(cli_now_ms() - begun));
    }
    if (good) {
        cli_cluster_forget(&demo.cluster, run_dir);
    } else {
        cli_complain("the demo failed; its logs are kept in %s", run_dir);
    }
    fini(&demo);
    return good ? 0 : 1;
}
