// SPDX-License-Identifier: Apache-2.0
// `assay put`: a file's bytes as blocks of one chain, which `assay get` brings back.
//
// A block's key is the hash of its parent's key and its bytes, so a file that is put twice is stored
// once. The last block is filled up with zeros; the chain says how long the file is.
#include <errno.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "common/mem.h"

#define WINDOW_BLOCKS AS_RUN_BLOCKS // read, named and put at once: those of one placement

static const char *scheduler, *run_dir, *shape_text, *space;
static bool as_json, durable;
static int64_t ttl_us;

static const as_option_t table[] = {
    {.name = "shape",
     .type = AS_OPTION_STRING,
     .value = &shape_text,
     .fallback = CLI_SHAPE,
     .metavar = "N,N,N,N,N,N",
     .help = "of a block: layers, query heads, K and V heads, head dimension, tokens, bytes of an "
             "element; the default is 1 MiB"},
    {.name = "namespace",
     .type = AS_OPTION_STRING,
     .value = &space,
     .fallback = "assay put",
     .metavar = "TEXT",
     .help = "files of different namespaces share no blocks"},
    {.name = "durable",
     .type = AS_OPTION_BOOL,
     .value = &durable,
     .fallback = "false",
     .help = "wait until a power cut can no longer lose the blocks; the stores need a --disk"},
    {.name = "ttl",
     .type = AS_OPTION_DURATION,
     .value = &ttl_us,
     .fallback = "0",
     .metavar = "TIME",
     .help = "the stores forget the blocks after it, as 10m; 0 is never; at most 49 days",
     .min = 0,
     .max = 4.2e12},
    CLI_JSON_OPTION(as_json, "print the chain as JSON, which `assay get` takes, with the figures"),
    CLI_CLIENT_OPTIONS(scheduler, run_dir),
    CLI_ENCRYPT_OPTION,
};

static const as_options_t options = {
    .program = "assay put",
    .summary = "Stores a file (- is stdin) as blocks, and prints their keys.",
    .usage = "[OPTIONS] FILE",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct putting {
    assay_t *assay;
    FILE *file;
    const char *path;
    cli_chain_t chain;
    uint64_t total; // of the file, where it is known
    uint8_t namespace_key[CLI_KEY_BYTES];
    uint8_t *window;
    size_t block_bytes;
    uint32_t stored, existed;
    cli_progress_t progress;
} putting_t;

static bool name_space(putting_t *putting)
{
    uint8_t fingerprint[CLI_KEY_BYTES] = {0};
    return assay_namespace(fingerprint, &putting->chain.shape, "bytes", space,
                           putting->namespace_key) == ASSAY_OK;
}

// The key of a block by its bytes: as of a chain whose tokens they are.
static void name_block(const uint8_t *block, size_t bytes, const uint8_t *parent, uint8_t *key)
{
    int32_t words[AS_BLOCK_TOKENS_MAX];
    memcpy(key, parent, CLI_KEY_BYTES);
    for (size_t at = 0; at < bytes; at += sizeof(words)) {
        size_t some = bytes - at < sizeof(words) ? bytes - at : sizeof(words);
        uint32_t count = (uint32_t)(some / sizeof(words[0]));
        memcpy(words, block + at, some);
        assay_chain(key, words, count, count, key, 1);
    }
}

// The next blocks of the file into the window, with their keys. Returns how many; -1: a message was
// printed.
static int read_window(putting_t *putting)
{
    cli_chain_t *chain = &putting->chain;
    size_t room = WINDOW_BLOCKS * putting->block_bytes;
    size_t count = fread(putting->window, 1, room, putting->file);
    if (ferror(putting->file)) {
        cli_complain("%s: %s", putting->path, strerror(errno));
        return -1;
    }
    uint32_t blocks = (uint32_t)((count + putting->block_bytes - 1) / putting->block_bytes);
    memset(putting->window + count, 0, blocks * putting->block_bytes - count);
    uint32_t first = chain->count;
    if (first + blocks > AS_CHAIN_BLOCKS_MAX) {
        cli_complain("%s is longer than %u blocks of %s: give a larger --shape", putting->path,
                     AS_CHAIN_BLOCKS_MAX, cli_bytes((double)putting->block_bytes));
        return -1;
    }
    if (!cli_chain_resize(chain, first + blocks)) {
        return -1;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        uint8_t *key = chain->keys + (size_t)(first + i) * CLI_KEY_BYTES;
        const uint8_t *parent = first + i > 0 ? key - CLI_KEY_BYTES : putting->namespace_key;
        name_block(putting->window + i * putting->block_bytes, putting->block_bytes, parent, key);
    }
    chain->bytes += count;
    return (int)blocks;
}

static bool put_window(putting_t *putting, uint32_t blocks)
{
    int32_t results[WINDOW_BLOCKS];
    const assay_request_t request = {.kind = ASSAY_KIND_PUT,
                                     .flags = durable ? ASSAY_DURABLE : 0,
                                     .ttl_ms = (uint64_t)(ttl_us + 999) / 1000,
                                     .keys = putting->chain.keys,
                                     .count = putting->chain.count,
                                     .first = putting->chain.count - blocks,
                                     .shape = &putting->chain.shape,
                                     .namespace_key = putting->namespace_key,
                                     .buffer = putting->window,
                                     .results = results};
    if (assay_run(putting->assay, &request, NULL) < 0) {
        cli_progress_end(&putting->progress);
        cli_complain("%s", assay_last_error());
        return false;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        putting->stored += results[i] == ASSAY_OK;
        putting->existed += results[i] == ASSAY_EXISTS;
    }
    return true;
}

static bool put_all(putting_t *putting)
{
    putting->window = as_mem_alloc(WINDOW_BLOCKS * putting->block_bytes);
    if (!putting->window) {
        cli_complain("out of memory for %u blocks of %s", WINDOW_BLOCKS,
                     cli_bytes((double)putting->block_bytes));
        return false;
    }
    for (;;) {
        int blocks = read_window(putting);
        if (blocks <= 0) {
            break;
        }
        if (!put_window(putting, (uint32_t)blocks)) {
            return false;
        }
        cli_progress(&putting->progress, putting->chain.bytes,
                     putting->total > putting->chain.bytes ? putting->total : putting->chain.bytes);
    }
    cli_progress_end(&putting->progress);
    if (!ferror(putting->file) && putting->chain.count == 0) {
        cli_complain("%s is empty: there is nothing to put", putting->path);
    }
    return feof(putting->file) && putting->chain.count > 0;
}

static void print(const putting_t *putting, double seconds)
{
    const cli_chain_t *chain = &putting->chain;
    if (as_json) {
        json_t *json = cli_chain_json(chain);
        json_object_set_new(json, "seconds", json_real(seconds));
        json_object_set_new(json, "stored", json_integer(putting->stored));
        json_object_set_new(json, "existed", json_integer(putting->existed));
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
        return;
    }
    char hex[65];
    for (uint32_t i = 0; i < chain->count; i++) {
        cli_key_hex(chain->keys + (size_t)i * CLI_KEY_BYTES, hex);
        puts(hex);
    }
    fprintf(stderr, "%u blocks, %s in %s (%s/s): %u stored, %u were there\n", chain->count,
            cli_bytes((double)chain->bytes), cli_duration(1e3 * seconds),
            cli_bytes((double)chain->bytes / seconds), putting->stored, putting->existed);
}

static bool open_file(putting_t *putting)
{
    bool is_stdin = strcmp(putting->path, "-") == 0;
    putting->file = is_stdin ? stdin : fopen(putting->path, "rb");
    if (!putting->file) {
        cli_complain("%s: %s", putting->path, strerror(errno));
        return false;
    }
    if (!is_stdin && fseek(putting->file, 0, SEEK_END) == 0) {
        long end = ftell(putting->file);
        putting->total = end > 0 ? (uint64_t)end : 0;
        rewind(putting->file);
    }
    return true;
}

int cli_put(int argc, char **argv)
{
    putting_t putting = {0};
    int code, rest;
    if (!cli_options(&options, argc, argv, &rest, &code)) {
        return code;
    }
    if (rest + 1 != argc) {
        cli_complain("put: name one file (- is stdin)");
        return 2;
    }
    putting.path = argv[rest];
    if (!cli_shape_parse(shape_text, &putting.chain.shape)) {
        return 2;
    }
    putting.block_bytes = assay_block_bytes(&putting.chain.shape);
    bool done = open_file(&putting) && name_space(&putting) &&
                (putting.assay = cli_open(scheduler, run_dir, 0)) != NULL;
    double began_ms = cli_now_ms();
    done = done && put_all(&putting);
    if (done) {
        print(&putting, (cli_now_ms() - began_ms) / 1e3);
    }
    assay_close(putting.assay);
    if (putting.file && putting.file != stdin) {
        fclose(putting.file);
    }
    as_mem_free(putting.window);
    cli_chain_fini(&putting.chain);
    return done ? 0 : 1;
}
