// SPDX-License-Identifier: Apache-2.0
// Load on one store by the client library, in a closed loop or at a rate: reads, puts, both at once,
// or locates alone. Prints a line of JSON with what went over, how long reads took and what the
// store's process paid in processor time; store.py and soak.py set it beside peers and limits.
//
//     bench_store --store ID@HOST:PORT --op read|write|mixed|locate [OPTIONS]
//
// Blocks are of one extent. The blocks that are read are put first if they are not there. Transport
// is chosen by UCX_TLS in the environment.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "common/log.h"
#include "common/mem.h"
#include "tests/bench/clock.h"

#define SLOTS_MAX       64u
#define TOKENS          64u
#define HEAD_DIM        16u
#define OCTAVE_PARTS    64u // of the histogram: a bucket is about 1 % wide
#define BUCKETS         (40u * OCTAVE_PARTS)
#define BEHIND_US_MAX   200000u // of a rate: what is lost beyond is not caught up
#define DEADLINE_US     10000000u
#define SOURCE_BYTES    ((size_t)16 << 20) // puts come from here
#define BLOCK_BYTES_MAX (8u << 20)

typedef struct options {
    const char *op;
    assay_store_t store;
    double block_bytes, set_mib;
    double batch; // blocks of one fetch, or keys of one locate
    double slots; // operations in flight
    double puts_percent;
    double seconds, report_seconds;
    double rate; // bytes/s; 0: as fast as it goes
    double seed;
    double pid; // of the store
    double is_unchecked;
} options_t;

typedef struct bench bench_t;

typedef struct slot {
    bench_t *bench;
    uint8_t *buffer;
    as_key_t key;     // of a put
    uint32_t first;   // block of the set that is read
    uint32_t located; // blocks of the read that were found
    uint32_t missing; // first block of a read that was not there: it is put again; NONE: none
    uint64_t began_us;
    as_timer_t *timer;
    bool busy;
} slot_t;
#define NONE UINT32_MAX

typedef struct counts {
    uint64_t reads, read_blocks, misses, puts, errors, located, max_us;
    uint32_t latency[BUCKETS]; // of reads
} counts_t;

struct bench {
    options_t options;
    size_t block_bytes;
    uint32_t batch, slot_count;
    uint64_t seed;
    enum { READ, WRITE, MIXED, LOCATE } op;
    as_loop_t *loop;
    assay_client_t *client;
    as_timer_t *end_timer;
    as_shape_t shape;
    as_key_t ns;
    as_key_t *keys;
    uint32_t key_count;
    uint8_t *source;
    slot_t slots[SLOTS_MAX];
    uint32_t busy;
    uint64_t random, fresh, next_read, due_us;
    bool filling, ended;
    counts_t counts;
};

static void start_next(slot_t *slot);

static void check(as_status_t status, const char *what)
{
    if (status != AS_OK) {
        fprintf(stderr, "bench_store: %s: %s\n", what, as_status_str(status));
        exit(1);
    }
}

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Keys are uniform: the n-th of a seed.
static as_key_t key_of(uint64_t seed, uint64_t n)
{
    as_key_t key;
    uint64_t state = seed ^ n * 0xd1342543de82ef95ull;
    for (size_t i = 0; i < sizeof(key.bytes); i += sizeof(state)) {
        uint64_t word = next_random(&state);
        memcpy(key.bytes + i, &word, sizeof(word));
    }
    return key;
}

// ---- how long reads took

static void record(counts_t *counts, uint64_t us)
{
    uint64_t value = us < 1 ? 1 : us;
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(value);
    uint32_t part = (uint32_t)(((value << 6) >> octave) - 64);
    uint32_t bucket = octave * OCTAVE_PARTS + part;
    counts->latency[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    counts->max_us = us > counts->max_us ? us : counts->max_us;
}

static double percentile(const counts_t *counts, double share)
{
    uint64_t rank = (uint64_t)((double)counts->reads * share), seen = 0;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        seen += counts->latency[i];
        if (seen > rank) {
            double low = (double)(1ull << (i / OCTAVE_PARTS));
            return low * (1 + (double)(i % OCTAVE_PARTS) / OCTAVE_PARTS);
        }
    }
    return 0;
}

// ---- operations

static void finished(slot_t *slot)
{
    slot->busy = false;
    slot->bench->busy--;
    start_next(slot);
}

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    slot_t *slot = ctx;
    counts_t *counts = &slot->bench->counts;
    if (status == AS_OK || status == AS_ERR_EXISTS) {
        counts->puts++;
    } else {
        counts->errors++;
    }
    finished(slot);
}

static void put(slot_t *slot, const as_key_t *key)
{
    bench_t *bench = slot->bench;
    size_t room = SOURCE_BYTES - bench->block_bytes;
    // A block's bytes follow from its name, as real ones do.
    size_t at = room > 0 ? as_key_hash(key) % room / 64 * 64 : 0;
    slot->key = *key;
    const assay_put_args_t args = {.shape = bench->shape,
                                   .namespace_key = bench->ns,
                                   .key = slot->key,
                                   .parent = bench->ns,
                                   .run_key = slot->key,
                                   .token_count = TOKENS,
                                   .block = bench->source + at,
                                   .deadline_us = DEADLINE_US,
                                   .on_done = on_put,
                                   .ctx = slot};
    assay_put_t *unused;
    check(assay_put_start(bench->client, &args, &unused), "put");
}

static void on_located(void *ctx, uint32_t block_count)
{
    slot_t *slot = ctx;
    slot->located = block_count;
    slot->bench->counts.located += block_count;
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
}

// Of a rate: the time that so many blocks take.
static uint64_t pace_us(const bench_t *bench, uint32_t blocks)
{
    return (uint64_t)((double)blocks * (double)bench->block_bytes / bench->options.rate * 1e6);
}

static void on_read(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    slot_t *slot = ctx;
    bench_t *bench = slot->bench;
    counts_t *counts = &bench->counts;
    if (status == AS_OK && slot->located == bench->batch) {
        counts->reads++;
        record(counts, as_loop_now_us(bench->loop) - slot->began_us);
    } else if (status == AS_OK || status == AS_ERR_NOT_FOUND) {
        counts->misses++;
        slot->missing = slot->first + slot->located;
    } else {
        counts->errors++;
    }
    uint32_t read = status == AS_OK ? slot->located : 0;
    counts->read_blocks += read;
    if (bench->options.rate > 0) { // what did not come has taken none of the link
        bench->due_us -= pace_us(bench, (uint32_t)bench->batch - read);
    }
    finished(slot);
}

static void read_next(slot_t *slot)
{
    bench_t *bench = slot->bench;
    uint32_t places = bench->key_count / bench->batch;
    slot->located = 0;
    slot->first = (uint32_t)(bench->next_read++ % places) * bench->batch;
    if (bench->op == MIXED) {
        slot->first = (uint32_t)(next_random(&bench->random) % places) * bench->batch;
    }
    const assay_fetch_args_t args = {.shape = bench->shape,
                                     .keys = bench->keys + slot->first,
                                     .block_count = bench->batch,
                                     .deadline_us = DEADLINE_US,
                                     .buffer = slot->buffer,
                                     .layer_stride = bench->batch * bench->block_bytes,
                                     .layer_slots = 1,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_read,
                                     .ctx = slot};
    assay_fetch_t *unused;
    check(bench->op == LOCATE ? assay_locate(bench->client, &args, &unused)
                              : assay_fetch_start(bench->client, &args, &unused),
          "read");
}

// The next block to be put: of the set while it is filled, one that a read missed, or a new one.
static as_key_t put_key(slot_t *slot)
{
    bench_t *bench = slot->bench;
    if (bench->filling) {
        return bench->keys[bench->fresh++];
    }
    if (slot->missing != NONE) {
        as_key_t key = bench->keys[slot->missing];
        slot->missing = NONE;
        return key;
    }
    return key_of(bench->seed + (uint64_t)getpid(), 1 + bench->fresh++);
}

static void start_now(void *ctx)
{
    slot_t *slot = ctx;
    bench_t *bench = slot->bench;
    if (bench->ended) {
        slot->busy = false;
        bench->busy--;
        return;
    }
    slot->began_us = as_loop_now_us(bench->loop);
    bool puts = bench->filling || slot->missing != NONE ||
                next_random(&bench->random) % 100 < bench->options.puts_percent;
    if (puts) {
        const as_key_t key = put_key(slot);
        put(slot, &key);
    } else {
        read_next(slot);
    }
}

static void start_next(slot_t *slot)
{
    bench_t *bench = slot->bench;
    bool over = bench->ended || (bench->filling && bench->fresh == bench->key_count);
    if (over) {
        return;
    }
    slot->busy = true;
    bench->busy++;
    if (bench->options.rate <= 0 || bench->filling) {
        start_now(slot);
        return;
    }
    uint64_t now_us = as_loop_now_us(bench->loop);
    if (bench->due_us + BEHIND_US_MAX < now_us) {
        bench->due_us = now_us - BEHIND_US_MAX;
    }
    uint64_t due_us = bench->due_us;
    bench->due_us += pace_us(bench, (uint32_t)bench->batch);
    if (due_us <= now_us) {
        start_now(slot);
    } else {
        as_timer_start(slot->timer, due_us - now_us);
    }
}

// ---- a run

static void on_end(void *ctx)
{
    ((bench_t *)ctx)->ended = true;
}

static void run_for(bench_t *bench, double seconds)
{
    uint32_t slots = bench->slot_count;
    bench->ended = false;
    memset(&bench->counts, 0, sizeof(bench->counts));
    as_timer_start(bench->end_timer, (uint64_t)(seconds * 1e6));
    for (uint32_t i = 0; i < slots; i++) {
        if (!bench->slots[i].busy) {
            start_next(&bench->slots[i]);
        }
    }
    while (!bench->ended || bench->busy > 0) {
        as_loop_run_once(bench->loop, true);
    }
}

static void fill(bench_t *bench)
{
    bench->filling = true;
    bench->fresh = 0;
    as_timer_start(bench->end_timer, 60 * 1000000ull);
    for (uint32_t i = 0; i < bench->slot_count; i++) {
        start_next(&bench->slots[i]);
    }
    while (bench->busy > 0 && !bench->ended) {
        as_loop_run_once(bench->loop, true);
    }
    if (bench->ended || bench->counts.errors > 0) {
        fprintf(stderr, "bench_store: the store does not take the blocks to be read\n");
        exit(1);
    }
    bench->filling = false;
    bench->fresh = 0;
}

// What one run of the clock has counted.
static void print(const bench_t *bench, double took, double store_cpu, double own_cpu)
{
    const counts_t *counts = &bench->counts;
    const options_t *options = &bench->options;
    double block = (double)bench->block_bytes;
    double read = bench->op == LOCATE ? 0 : (double)counts->read_blocks * block;
    double written = (double)counts->puts * block;
    printf("{\"op\":\"%s\",\"block_bytes\":%.0f,\"seconds\":%.3f,\"read_bytes\":%.0f,"
           "\"written_bytes\":%.0f,\"gb_per_s\":%.3f,\"reads\":%llu,\"puts\":%llu,\"misses\":%llu,"
           "\"errors\":%llu,\"located\":%llu,\"keys_per_s\":%.0f,\"p50_us\":%.0f,\"p99_us\":%.0f,"
           "\"max_us\":%llu,\"store_cpu_s\":%.4f,\"own_cpu_s\":%.4f}\n",
           options->op, block, took, read, written, (read + written) / took * 1e-9,
           (unsigned long long)counts->reads, (unsigned long long)counts->puts,
           (unsigned long long)counts->misses, (unsigned long long)counts->errors,
           (unsigned long long)counts->located, (double)counts->located / took,
           percentile(counts, 0.5), percentile(counts, 0.99), (unsigned long long)counts->max_us,
           store_cpu, own_cpu);
    fflush(stdout);
}

static void measure(bench_t *bench, double seconds)
{
    double store_cpu = cpu_seconds((pid_t)bench->options.pid), own_cpu = cpu_seconds(0);
    uint64_t began_us = as_loop_now_us(bench->loop);
    run_for(bench, seconds);
    double took = (double)(as_loop_now_us(bench->loop) - began_us) * 1e-6;
    print(bench, took, cpu_seconds((pid_t)bench->options.pid) - store_cpu,
          cpu_seconds(0) - own_cpu);
}

static void run(bench_t *bench)
{
    const options_t *options = &bench->options;
    if (options->puts_percent < 100) {
        fill(bench);
    }
    // The first turn connects, touches the buffers and fills the caches.
    run_for(bench, options->seconds < 1 ? options->seconds / 2 : 0.5);
    if (options->report_seconds <= 0) {
        measure(bench, options->seconds);
        return;
    }
    for (double done = 0; done < options->seconds; done += options->report_seconds) {
        measure(bench, options->report_seconds);
    }
}

// ---- set up

static void set_up_client(bench_t *bench)
{
    assay_client_options_t client;
    assay_client_options_init(&client);
    check(as_loop_alloc_uv(&bench->loop), "loop");
    client.loop = bench->loop;
    client.net_alloc = net_alloc;
    client.verify_checksums = bench->options.is_unchecked == 0;
    check(assay_client_alloc(&client, &bench->client), "client");
    assay_client_set_stores(bench->client, &bench->options.store, 1);
    check(as_timer_alloc(bench->loop, on_end, bench, &bench->end_timer), "timer");
}

static void set_up_blocks(bench_t *bench)
{
    uint32_t heads = (uint32_t)(bench->block_bytes / (2 * TOKENS * HEAD_DIM * 2));
    uint32_t wide = heads > 1024 ? heads / 1024 : 1; // a shape has at most 1024 heads
    bench->shape =
        (as_shape_t){1, heads / wide, heads / wide, HEAD_DIM * wide, TOKENS, AS_ELEMENT_F16};
    if (as_shape_check(&bench->shape) != AS_OK ||
        as_block_bytes(&bench->shape) != bench->block_bytes) {
        fprintf(stderr, "bench_store: --bytes must be 4096 times a power of two, to 8 MiB\n");
        exit(2);
    }
    uint32_t reads = (uint32_t)(bench->options.set_mib * 1048576) /
                     (uint32_t)(bench->block_bytes * bench->batch);
    bench->key_count = (reads > 0 ? reads : 1) * bench->batch;
    bench->keys = as_mem_zalloc(bench->key_count, sizeof(as_key_t));
    bench->source = as_mem_aligned(4096, SOURCE_BYTES);
    check(bench->keys && bench->source ? AS_OK : AS_ERR_NO_MEMORY, "memory");
    bench->ns = key_of(bench->seed, 0);
    for (uint32_t i = 0; i < bench->key_count; i++) {
        bench->keys[i] = key_of(bench->seed + bench->block_bytes, 1 + i);
    }
    for (size_t i = 0; i < SOURCE_BYTES; i++) {
        bench->source[i] = (uint8_t)(i * 2654435761u >> 13);
    }
}

static void set_up_slots(bench_t *bench)
{
    size_t bytes = bench->batch * bench->block_bytes;
    for (uint32_t i = 0; i < bench->slot_count; i++) {
        slot_t *slot = &bench->slots[i];
        *slot = (slot_t){.bench = bench, .missing = NONE};
        check(as_timer_alloc(bench->loop, start_now, slot, &slot->timer), "timer");
        if (bench->op == READ || bench->op == MIXED) {
            slot->buffer = as_mem_aligned(4096, bytes);
            check(slot->buffer ? AS_OK : AS_ERR_NO_MEMORY, "memory");
            memset(slot->buffer, 1, bytes);
        }
    }
}

static void tear_down(bench_t *bench)
{
    assay_client_free(bench->client);
    for (uint32_t i = 0; i < bench->slot_count; i++) {
        as_timer_free(bench->slots[i].timer);
        as_mem_free(bench->slots[i].buffer);
    }
    as_timer_free(bench->end_timer);
    as_loop_free(bench->loop);
    as_mem_free(bench->keys);
    as_mem_free(bench->source);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_store --store ID@HOST:PORT --op read|write|mixed|locate\n"
            "  --bytes N     of a block (1048576)      --set-mib N   that are read (64)\n"
            "  --batch N     blocks of a fetch (16)    --slots N     operations in flight (2)\n"
            "  --puts N      percent, of mixed (30)    --seconds S   (1)\n"
            "  --rate N      bytes/s, of mixed         --report S    a line each S seconds\n"
            "  --pid N       of the store              --seed N      of the blocks' names\n"
            "  --unchecked 1 without comparing checksums\n");
    return 2;
}

static bool take_store(const char *text, assay_store_t *store)
{
    char *end;
    store->node_id = strtoull(text, &end, 16);
    store->capacity_bytes = 1;
    if (store->node_id == 0 || *end != '@') {
        return false;
    }
    snprintf(store->data_address, sizeof(store->data_address), "%s", end + 1);
    return true;
}

// Takes `--name value`; false when there is no such option.
static bool take(options_t *options, const char *name, const char *value)
{
    double number = strtod(value, NULL);
    const struct {
        const char *name;
        double *value;
    } numbers[] = {
        {"--bytes", &options->block_bytes},
        {"--set-mib", &options->set_mib},
        {"--batch", &options->batch},
        {"--slots", &options->slots},
        {"--puts", &options->puts_percent},
        {"--seconds", &options->seconds},
        {"--rate", &options->rate},
        {"--report", &options->report_seconds},
        {"--seed", &options->seed},
        {"--pid", &options->pid},
        {"--unchecked", &options->is_unchecked},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].value = number;
            return true;
        }
    }
    if (strcmp(name, "--op") == 0) {
        options->op = value;
        return true;
    }
    return strcmp(name, "--store") == 0 && take_store(value, &options->store);
}

static bool parse(int argc, char **argv, options_t *options)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc || !take(options, argv[i], argv[i + 1])) {
            fprintf(stderr, "bench_store: cannot take %s\n", argv[i]);
            return false;
        }
    }
    return options->op && options->store.node_id != 0 && options->batch >= 1 &&
           options->slots >= 1 && options->slots <= SLOTS_MAX && options->seconds > 0 &&
           options->block_bytes >= 4096 && options->block_bytes <= BLOCK_BYTES_MAX;
}

static bool take_op(bench_t *bench)
{
    static const char *const ops[] = {"read", "write", "mixed", "locate"};
    options_t *options = &bench->options;
    bench->block_bytes = (size_t)options->block_bytes;
    bench->batch = (uint32_t)options->batch;
    bench->slot_count = (uint32_t)options->slots;
    bench->seed = (uint64_t)options->seed;
    for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (strcmp(options->op, ops[i]) == 0) {
            bench->op = i;
            options->puts_percent = i == MIXED ? options->puts_percent : i == WRITE ? 100 : 0;
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    static bench_t bench;
    bench.options = (options_t){.block_bytes = 1u << 20,
                                .set_mib = 64,
                                .batch = 16,
                                .slots = 2,
                                .puts_percent = 30,
                                .seconds = 1,
                                .seed = 1};
    options_t *options = &bench.options;
    if (!parse(argc, argv, options) || !take_op(&bench)) {
        return usage();
    }
    as_log_set_level(AS_LOG_WARN);
    set_up_client(&bench);
    set_up_blocks(&bench);
    set_up_slots(&bench);
    run(&bench);
    tear_down(&bench);
    return 0;
}
