// SPDX-License-Identifier: Apache-2.0
// `assay get`: blocks by key, or a chain that `assay put --json` printed, into a file or stdout.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "common/mem.h"

#define WINDOW_BLOCKS AS_RUN_BLOCKS // asked for at once: those of one placement

static const char *scheduler, *run_dir, *shape_text, *out_path;
static bool as_json;

static const as_option_t table[] = {
    {.name = "out",
     .type = AS_OPTION_STRING,
     .value = &out_path,
     .fallback = "-",
     .metavar = "FILE",
     .help = "where the bytes go (- is stdout)"},
    {.name = "shape",
     .type = AS_OPTION_STRING,
     .value = &shape_text,
     .fallback = CLI_SHAPE,
     .metavar = "N,N,N,N,N,N",
     .help = "of the blocks of bare keys, as for `assay put`; a chain tells its own"},
    CLI_JSON_OPTION(as_json, "print the figures as JSON; needs --out"),
    CLI_CLIENT_OPTIONS(scheduler, run_dir),
    CLI_ENCRYPT_OPTION,
};

static const as_options_t options = {
    .program = "assay get",
    .summary =
        "Brings blocks back, each one checked. Exits with 1, and writes only the blocks before "
        "it, where one is missing.",
    .usage = "[OPTIONS] CHAIN | KEY...",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct getting {
    assay_t *assay;
    cli_chain_t chain;
    bool is_chain; // else single keys
    FILE *out;
    uint8_t *window;
    size_t block_bytes;
    uint32_t got; // blocks
    uint64_t written;
    cli_progress_t progress;
} getting_t;

// Keys, or the file of a chain. Returns the exit code.
static int take_arguments(getting_t *getting, int count, char **arguments)
{
    cli_chain_t *chain = &getting->chain;
    if (count == 0) {
        cli_complain("get: give keys, or the file of a chain (- is stdin)");
        return 2;
    }
    uint8_t key[CLI_KEY_BYTES];
    if (count == 1 && !cli_key_parse(arguments[0], key)) {
        getting->is_chain = true;
        return cli_chain_read(arguments[0], chain) ? 0 : 2;
    }
    if (!cli_shape_parse(shape_text, &chain->shape) || !cli_chain_resize(chain, (uint32_t)count)) {
        return 2;
    }
    for (int i = 0; i < count; i++) {
        if (!cli_key_parse(arguments[i], chain->keys + (size_t)i * CLI_KEY_BYTES)) {
            cli_complain("get: %s is no key of 64 hexadecimal digits", arguments[i]);
            return 2;
        }
    }
    chain->bytes = (uint64_t)count * assay_block_bytes(&chain->shape);
    return 0;
}

// Writes blocks from the window; a file is made, or overwritten, with the first of them. False: a
// message was printed.
static bool write_blocks(getting_t *getting, uint32_t blocks)
{
    if (blocks > 0 && !getting->out) {
        getting->out = strcmp(out_path, "-") == 0 ? stdout : fopen(out_path, "wb");
        if (!getting->out) {
            cli_complain("%s: %s", out_path, strerror(errno));
            return false;
        }
    }
    uint64_t left = getting->chain.bytes - getting->written;
    uint64_t bytes = (uint64_t)blocks * getting->block_bytes;
    bytes = bytes < left ? bytes : left;
    if (bytes > 0 && fwrite(getting->window, 1, bytes, getting->out) != bytes) {
        cli_progress_end(&getting->progress);
        cli_complain("%s: %s", out_path, strerror(errno));
        return false;
    }
    getting->written += bytes;
    getting->got += blocks;
    return true;
}

static bool get_all(getting_t *getting)
{
    cli_chain_t *chain = &getting->chain;
    getting->window = as_mem_alloc(WINDOW_BLOCKS * getting->block_bytes);
    if (!getting->window) {
        cli_complain("out of memory for %u blocks of %s", WINDOW_BLOCKS,
                     cli_bytes((double)getting->block_bytes));
        return false;
    }
    for (uint32_t at = 0; at < chain->count; at += WINDOW_BLOCKS) {
        uint32_t left = chain->count - at, count = left < WINDOW_BLOCKS ? left : WINDOW_BLOCKS;
        const assay_request_t request = {.kind = ASSAY_KIND_GET,
                                         .flags = getting->is_chain ? ASSAY_PREFIX : 0,
                                         .keys = chain->keys + (size_t)at * CLI_KEY_BYTES,
                                         .count = count,
                                         .shape = &chain->shape,
                                         .buffer = getting->window};
        uint32_t hit = 0;
        int result = assay_run(getting->assay, &request, &hit);
        if (!write_blocks(getting, hit)) {
            return false;
        }
        if (result != ASSAY_OK) {
            cli_progress_end(&getting->progress);
            cli_complain("block %u of %u %s", getting->got + 1, chain->count,
                         result == ASSAY_MISS ? "is not stored, or not in this --shape"
                                              : assay_last_error());
            return false;
        }
        cli_progress(&getting->progress, getting->written, chain->bytes);
    }
    cli_progress_end(&getting->progress);
    return true;
}

static void print(const getting_t *getting, double seconds)
{
    double rate = (double)getting->written / seconds;
    if (as_json) {
        json_t *json =
            json_pack("{s:I, s:I, s:I, s:f, s:f}", "blocks", (json_int_t)getting->got,
                      "blocks_asked", (json_int_t)getting->chain.count, "bytes",
                      (json_int_t)getting->written, "seconds", seconds, "bytes_per_second", rate);
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
        return;
    }
    fprintf(stderr, "%u blocks, %s in %s (%s/s)\n", getting->got,
            cli_bytes((double)getting->written), cli_duration(1e3 * seconds), cli_bytes(rate));
}

// Whether the bytes may go where they are to go; returns the exit code.
static int check_out(void)
{
    if (strcmp(out_path, "-") == 0 && (as_json || isatty(STDOUT_FILENO))) {
        cli_complain(as_json ? "get: --json prints to stdout, so the bytes need --out=FILE"
                             : "get: these are bytes, which no terminal shows: give --out=FILE");
        return 2;
    }
    return 0;
}

int cli_get(int argc, char **argv)
{
    getting_t getting = {0};
    int code, rest;
    if (!cli_options(&options, argc, argv, &rest, &code)) {
        return code;
    }
    code = take_arguments(&getting, argc - rest, argv + rest);
    code = code ? code : check_out();
    if (code == 0) {
        getting.block_bytes = assay_block_bytes(&getting.chain.shape);
        getting.assay = cli_open(scheduler, run_dir, 0);
        double began_ms = cli_now_ms();
        code = getting.assay && get_all(&getting) ? 0 : 1;
        if (getting.out && fflush(getting.out) != 0 && code == 0) {
            cli_complain("%s: %s", out_path, strerror(errno));
            code = 1;
        }
        if (getting.assay) {
            print(&getting, (cli_now_ms() - began_ms) / 1e3);
        }
    }
    assay_close(getting.assay);
    if (getting.out && getting.out != stdout) {
        fclose(getting.out);
    }
    as_mem_free(getting.window);
    cli_chain_fini(&getting.chain);
    return code;
}
