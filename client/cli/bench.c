// SPDX-License-Identifier: Apache-2.0
// `assay bench`: rates and times of put and get of the running cluster, from this machine.
//
// Blocks of a namespace of their own are put and then got, `depth` at once, one block each. At the
// end the stores are told to drop them.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "common/mem.h"
#include "proto/kvstore.pb-c.h"
#include "proto/scheduler.pb-c.h"

static const char *scheduler, *run_dir;
static const char **sizes;
static int64_t count, depth, repeat;
static bool as_json, keep;

static const as_option_t table[] = {
    {.name = "size",
     .type = AS_OPTION_LIST,
     .value = &sizes,
     .fallback = "64KiB,1MiB",
     .metavar = "BYTES,...",
     .help = "of a block: a power of two, 4KiB to 64MiB"},
    {.name = "count",
     .type = AS_OPTION_INT,
     .value = &count,
     .fallback = "128",
     .metavar = "N",
     .help = "blocks of each size; all of them should fit into the stores",
     .min = 1,
     .max = 16384},
    {.name = "depth",
     .type = AS_OPTION_INT,
     .value = &depth,
     .fallback = "8",
     .metavar = "N",
     .help = "operations at once",
     .min = 1,
     .max = 256},
    {.name = "repeat",
     .type = AS_OPTION_INT,
     .value = &repeat,
     .fallback = "4",
     .metavar = "N",
     .help = "how often each block is got",
     .min = 1,
     .max = 1e6},
    {.name = "keep",
     .type = AS_OPTION_BOOL,
     .value = &keep,
     .fallback = "false",
     .help = "leave the blocks in the stores"},
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLIENT_OPTIONS(scheduler, run_dir),
};

static const as_options_t options = {
    .program = "assay bench",
    .summary =
        "Measures put and get of the running cluster. Exits with 1 where an operation failed or "
        "a block was not there.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

// One of `depth` places: an operation at a time, and its memory.
typedef struct lane {
    struct phase *phase;
    uint8_t *block;
    double began_ms;
    int result; // while it waits to be looked at
    struct lane *next;
} lane_t;

typedef struct phase {
    assay_t *assay;
    assay_shape_t shape;
    size_t block_bytes;
    uint32_t kind, blocks, total; // total: operations
    uint8_t namespace_key[CLI_KEY_BYTES];
    uint8_t *keys;
    lane_t *lanes;
    double *times_ms; // of each operation that was good
    uint32_t good, missed, failed;
    double seconds;
    pthread_mutex_t lock;
    pthread_cond_t some;
    lane_t *over; // under lock
} phase_t;

// In libassay's thread: hands the lane back.
static void on_done(void *ctx, assay_op_t *op, int result)
{
    (void)op;
    lane_t *lane = ctx;
    phase_t *phase = lane->phase;
    pthread_mutex_lock(&phase->lock);
    lane->result = result;
    lane->next = phase->over;
    phase->over = lane;
    pthread_cond_signal(&phase->some);
    pthread_mutex_unlock(&phase->lock);
}

static lane_t *wait_for_one(phase_t *phase)
{
    pthread_mutex_lock(&phase->lock);
    while (!phase->over) { // every operation has a deadline
        pthread_cond_wait(&phase->some, &phase->lock);
    }
    lane_t *lane = phase->over;
    phase->over = lane->next;
    pthread_mutex_unlock(&phase->lock);
    return lane;
}

// The same for no two blocks, so that none is stored twice.
static void mark(lane_t *lane, uint32_t index)
{
    memcpy(lane->block, &index, sizeof(index));
}

static bool start(lane_t *lane, uint32_t number)
{
    phase_t *phase = lane->phase;
    uint32_t index = number % phase->blocks;
    bool put = phase->kind == ASSAY_KIND_PUT;
    if (put) {
        mark(lane, index);
    }
    const assay_request_t request = {.kind = phase->kind,
                                     .flags = put ? 0 : ASSAY_PREFIX,
                                     .keys = phase->keys + (size_t)index * CLI_KEY_BYTES,
                                     .count = 1,
                                     .shape = &phase->shape,
                                     .namespace_key = put ? phase->namespace_key : NULL,
                                     .buffer = lane->block,
                                     .on_done = on_done,
                                     .ctx = lane};
    lane->began_ms = cli_now_ms();
    return assay_start(phase->assay, &request, NULL) == ASSAY_OK;
}

static void take(phase_t *phase, const lane_t *lane)
{
    double ms = cli_now_ms() - lane->began_ms;
    if (lane->result == ASSAY_OK) {
        phase->times_ms[phase->good++] = ms;
    } else if (lane->result == ASSAY_MISS) {
        phase->missed++;
    } else if (phase->failed++ == 0) {
        cli_complain("bench: an operation ended as '%s'", assay_result_name(lane->result));
    }
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void run_phase(phase_t *phase)
{
    uint32_t lanes = phase->total < (uint32_t)depth ? phase->total : (uint32_t)depth;
    uint32_t started = 0, under_way = 0;
    double began_ms = cli_now_ms();
    phase->good = phase->missed = phase->failed = 0;
    while (started < lanes || under_way > 0) {
        lane_t *lane = started < lanes ? &phase->lanes[started] : wait_for_one(phase);
        if (started >= lanes) {
            take(phase, lane);
            under_way--;
        }
        if (started < phase->total) {
            if (!start(lane, started)) {
                cli_complain("%s", assay_last_error());
                phase->failed += phase->total - started;
                phase->total = started; // what is under way ends
                lanes = started;
                continue;
            }
            started++;
            under_way++;
        }
    }
    phase->seconds = (cli_now_ms() - began_ms) / 1e3;
    qsort(phase->times_ms, phase->good, sizeof(double), compare);
}

// ---- one size

static bool shape_of(const char *text, assay_shape_t *shape_p)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1}, {"KiB", 1024}, {"MiB", 1u << 20}};
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    uint64_t bytes = 0;
    for (size_t i = 0; i < 3 && number <= 64u << 20; i++) {
        bytes = strcmp(end, units[i].unit) == 0 ? number * units[i].bytes : bytes;
    }
    if (bytes < 4096 || bytes > 64u << 20 || (bytes & (bytes - 1)) != 0) {
        cli_complain("--size=%s: give powers of two from 4KiB to 64MiB", text);
        return false;
    }
    // Four layers below 1 MiB, sixteen from there: K and V of one head of 64 dimensions or more.
    uint32_t layers = bytes >= 1u << 20 ? 16 : 4, tokens = 4;
    uint64_t elements = bytes / 2 / 2 / layers; // of K of one layer
    while (elements / tokens > 128 && tokens < 64) {
        tokens *= 2;
    }
    uint32_t dim = elements / tokens > 128 ? 128 : (uint32_t)(elements / tokens);
    uint32_t heads = (uint32_t)(elements / tokens / dim);
    *shape_p = (assay_shape_t){layers, heads, heads, dim, tokens, 2};
    return assay_block_bytes(shape_p) == bytes;
}

// Keys that nobody else has, each the first of a chain of its own: so blocks are placed one by one.
static bool name_blocks(phase_t *phase)
{
    uint8_t random[CLI_KEY_BYTES];
    int32_t tokens[AS_BLOCK_TOKENS_MAX] = {0};
    phase->keys = as_mem_alloc((size_t)phase->blocks * CLI_KEY_BYTES);
    bool named =
        phase->keys && getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random) &&
        assay_namespace(random, &phase->shape, "bench", NULL, phase->namespace_key) == ASSAY_OK;
    for (uint32_t i = 0; named && i < phase->blocks; i++) {
        tokens[0] = (int32_t)i;
        assay_chain(phase->namespace_key, tokens, phase->shape.block_tokens,
                    phase->shape.block_tokens, phase->keys + (size_t)i * CLI_KEY_BYTES, 1);
    }
    return named;
}

static bool prepare(phase_t *phase)
{
    phase->blocks = (uint32_t)count;
    phase->block_bytes = assay_block_bytes(&phase->shape);
    phase->lanes = as_mem_zalloc((size_t)depth, sizeof(lane_t));
    phase->times_ms = as_mem_zalloc((size_t)(count * repeat), sizeof(double));
    bool ready = phase->lanes && phase->times_ms && name_blocks(phase);
    for (int64_t i = 0; ready && i < depth; i++) {
        phase->lanes[i].phase = phase;
        phase->lanes[i].block = as_mem_alloc(phase->block_bytes);
        ready = phase->lanes[i].block != NULL;
        if (ready) {
            memset(phase->lanes[i].block, (int)(i + 1), phase->block_bytes);
        }
    }
    if (!ready) {
        cli_complain("out of memory for %lld blocks of %s at once", (long long)depth,
                     cli_bytes((double)phase->block_bytes));
    }
    return ready;
}

static void forget(phase_t *phase)
{
    for (int64_t i = 0; phase->lanes && i < depth; i++) {
        as_mem_free(phase->lanes[i].block);
    }
    as_mem_free(phase->lanes);
    as_mem_free(phase->times_ms);
    as_mem_free(phase->keys);
}

// Tells every store to drop the blocks.
static void drop(const phase_t *phase)
{
    char address[CLI_ADDRESS_BYTES];
    Assay__StatRequest ask = ASSAY__STAT_REQUEST__INIT;
    Assay__StatReply *stat =
        cli_find_scheduler(scheduler, run_dir, address)
            ? (Assay__StatReply *)cli_call(address, &assay__scheduler__descriptor, "Stat",
                                           &ask.base, CLI_NO_SCHEDULER)
            : NULL;
    ProtobufCBinaryData *keys = as_mem_zalloc(phase->blocks, sizeof(*keys));
    for (uint32_t i = 0; keys && i < phase->blocks; i++) {
        keys[i] = (ProtobufCBinaryData){CLI_KEY_BYTES, phase->keys + (size_t)i * CLI_KEY_BYTES};
    }
    Assay__StoreDropRequest request = ASSAY__STORE_DROP_REQUEST__INIT;
    request.keys = keys;
    request.n_keys = phase->blocks;
    for (size_t i = 0; stat && keys && i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE) {
            ProtobufCMessage *reply = cli_call(node->rpc_address, &assay__store__descriptor, "Drop",
                                               &request.base, CLI_NO_STORE);
            if (reply) {
                protobuf_c_message_free_unpacked(reply, NULL);
            }
        }
    }
    as_mem_free(keys);
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
}

// ---- what is printed

static double quantile(const phase_t *phase, double q)
{
    uint32_t at = (uint32_t)(q * (phase->good - 1) + 0.5);
    return phase->good > 0 ? phase->times_ms[at] : 0;
}

static void add(const phase_t *phase, cli_table_t *people, json_t *programs)
{
    const char *name = phase->kind == ASSAY_KIND_PUT ? "put" : "get";
    double rate = (double)phase->good * (double)phase->block_bytes / phase->seconds;
    if (as_json) {
        json_array_append_new(
            programs,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "op", name,
                      "block_bytes", (json_int_t)phase->block_bytes, "depth", (json_int_t)depth,
                      "done", (json_int_t)phase->good, "missed", (json_int_t)phase->missed,
                      "failed", (json_int_t)phase->failed, "seconds", phase->seconds,
                      "bytes_per_second", rate, "ops_per_second", phase->good / phase->seconds,
                      "p50_ms", quantile(phase, 0.5), "p99_ms", quantile(phase, 0.99)));
        return;
    }
    cli_cell(people, "%s", name);
    cli_cell(people, "%s", cli_bytes((double)phase->block_bytes));
    cli_cell(people, "%lld", (long long)depth);
    cli_cell(people, "%u", phase->good);
    cli_cell(people, "%u", phase->missed + phase->failed);
    cli_cell(people, "%s/s", cli_bytes(rate));
    cli_cell(people, "%.0f", phase->good / phase->seconds);
    cli_cell(people, "%.2f ms", quantile(phase, 0.5));
    cli_cell(people, "%.2f ms", quantile(phase, 0.99));
}

// Returns whether every operation was good.
static bool bench_size(assay_t *assay, const assay_shape_t *shape, cli_table_t *people,
                       json_t *programs)
{
    phase_t phase = {.assay = assay, .shape = *shape};
    pthread_mutex_init(&phase.lock, NULL);
    pthread_cond_init(&phase.some, NULL);
    bool good = prepare(&phase);
    for (uint32_t kind = ASSAY_KIND_PUT; good && kind >= ASSAY_KIND_GET; kind--) {
        phase.kind = kind;
        phase.total = phase.blocks * (kind == ASSAY_KIND_GET ? (uint32_t)repeat : 1);
        run_phase(&phase);
        add(&phase, people, programs);
        good = phase.missed + phase.failed == 0;
    }
    if (phase.missed > 0) {
        cli_complain("bench: %u blocks were not there: do %lld of %s fit into the stores?",
                     phase.missed, (long long)count, cli_bytes((double)phase.block_bytes));
    }
    if (phase.keys && !keep) {
        drop(&phase);
    }
    forget(&phase);
    pthread_cond_destroy(&phase.some);
    pthread_mutex_destroy(&phase.lock);
    return good;
}

int cli_bench(int argc, char **argv)
{
    static const char *const columns[] = {"OP",    ">BLOCK", ">DEPTH", ">DONE", ">NOT",
                                          ">RATE", ">OPS/S", ">P50",   ">P99"};
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    assay_shape_t shape;
    for (size_t i = 0; sizes && sizes[i]; i++) {
        if (!shape_of(sizes[i], &shape)) {
            return 2;
        }
    }
    assay_t *assay = cli_open(scheduler, run_dir, (uint32_t)depth);
    if (!assay) {
        return 1;
    }
    cli_table_t *people = as_json ? NULL : cli_table_new(columns, 9);
    json_t *programs = as_json ? json_array() : NULL;
    bool good = true;
    for (size_t i = 0; sizes && sizes[i] && good; i++) {
        good = shape_of(sizes[i], &shape) && bench_size(assay, &shape, people, programs);
    }
    assay_close(assay);
    if (as_json) {
        json_dumpf(programs, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(programs);
    } else {
        cli_table_print(people, stdout);
    }
    return good ? 0 : 1;
}
