// SPDX-License-Identifier: Apache-2.0
// `assay`: picks the subcommand.
#include <curl/curl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/log.h"
#include "common/mem.h"

static const cli_command_t commands[] = {
    {"up", "start a cluster on this machine and serve a model", cli_up},
    {"run", "ask a running worker, and print its answer as it comes", cli_run},
    {"stat", "show the nodes of the cluster and their figures", cli_stat},
    {"ls", "list the blocks that the stores hold", cli_ls},
    {"scrub", "have the stores check the bytes of all their blocks", cli_scrub},
    {"drain", "have a store hand its blocks to the others, and end", cli_drain},
    {"put", "store a file as blocks", cli_put},
    {"get", "bring blocks back by key, or a file that was put", cli_get},
    {"top", "show what the stores do, again and again", cli_top},
    {"bench", "measure put and get of the running cluster", cli_bench},
    {"pin", "keep blocks in the stores' memory", cli_pin},
    {"unpin", "take pins away", cli_unpin},
    {"drop", "have the stores forget blocks, or a namespace", cli_drop},
    {"quota", "show or set what namespaces may have of the stores' memory", cli_quota},
    {"token", "make keys of a cluster, and tokens for its tenants", cli_token},
    {"verify", "compare decoding with verification against the full cache, bit for bit",
     cli_verify},
    {"calibrate", "find out which layers of a model may share their cache", cli_calibrate},
    {"ruler", "generate long-context tasks whose answers are known, and score a worker", cli_ruler},
    {"compressors", "list the compressors of a worker: their parts, bytes and who shares them",
     cli_compressors},
    {"compare", "compare compressors on texts: bytes, speed, accepted drafts, what they lose",
     cli_compare},
    {"demo", "start a cluster, share a long prefix between two workers, and show the figures",
     cli_demo},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

void cli_complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("assay: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

as_rpc_tls_t cli_tls;
const char *cli_token_file, *cli_encrypt_key_file;

bool cli_options(const as_options_t *options, int argc, char **argv, int *rest_p, int *code_p)
{
    as_options_outcome_t outcome;
    int rest;
    *code_p = 2;
    if (as_options_parse(options, argc, argv, &rest, &outcome) != AS_OK) {
        return false;
    }
    if (outcome == AS_OPTIONS_EXIT) {
        *code_p = 0;
        return false;
    }
    if (!rest_p && rest < argc) {
        fprintf(stderr, "%s: unexpected argument '%s' (--help lists the options)\n",
                options->program, argv[rest]);
        return false;
    }
    const as_rpc_tls_t *tls;
    if (as_tls_check(options->program, &cli_tls, &tls) != AS_OK) {
        return false;
    }
    if (rest_p) {
        *rest_p = rest;
    }
    *code_p = 0;
    return true;
}

bool cli_count_names(const char *const *names, uint32_t max, uint32_t *count_p)
{
    uint32_t count = 0;
    while (names && names[count]) {
        count++;
    }
    *count_p = count;
    if (count == 0) {
        cli_complain("--compressor: name at least one compressor");
    } else if (count > max) {
        cli_complain("--compressor: %u compressors are named, %u at most", count, max);
    }
    return count > 0 && count <= max;
}

static void print_help(FILE *out)
{
    fputs("usage: assay COMMAND [OPTIONS]\n\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("  help        this list; `assay COMMAND --help` tells a command's options\n"
          "  version     the version\n\n"
          "begin with: assay up --model model.gguf\n",
          out);
}

static const cli_command_t *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0) {
        puts("assay " AS_VERSION);
        return 0;
    }
    bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    const cli_command_t *command = find(help ? argv[2] : name);
    if (!command) {
        cli_complain("there is no command '%s' (`assay help` lists them)", help ? argv[2] : name);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    as_log_set_level(AS_LOG_ERROR); // messages of the libraries' layers; the command prints its own
    json_set_alloc_funcs(as_mem_alloc, as_mem_free);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    static char help_flag[] = "--help";
    char *help_argv[] = {argv[help ? 2 : 1], help_flag, NULL};
    int code = help ? command->run(2, help_argv) : command->run(argc - 1, argv + 1);
    curl_global_cleanup();
    return code;
}
