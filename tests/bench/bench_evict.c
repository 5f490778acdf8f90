// SPDX-License-Identifier: Apache-2.0
// How often a block is still here when it is asked for again: the store's own index and eviction,
// beside LRU and FIFO of as many blocks, on a trace or on a synthetic load.
//
//   bench_evict [--blocks N,N...] [TRACE]
//
// TRACE is one JSON object a line with "hash_ids": [id, ...], where an id names the whole prefix
// through its block; the lines are requests in order. Without one: conversations that come back,
// among scans that do not. A block counts as a hit when all blocks before it in its request are
// there, too. Prints a line of JSON for each size.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kvstore/evict.h"
#include "kvstore/index.h"
#include "proto/wire.h"

#define IDS_MAX     (1u << 24)
#define SIZES_MAX   16u
#define LINE_BYTES  (1u << 20)
#define SCAN_IDS    (1u << 20) // of the synthetic load: below are conversations
#define TALKS       40u
#define TALK_BLOCKS 30u
#define SCAN_BLOCKS 60u
#define SCAN_ROUNDS 1000u
#define NOBODY      UINT32_MAX

typedef struct trace {
    uint32_t *ids; // of all requests
    uint32_t count, capacity;
    uint32_t *ends; // of each request, in ids
    uint32_t requests, requests_capacity;
    uint32_t id_limit;
} trace_t;

typedef struct hits {
    uint64_t all, talks; // talks: of ids below SCAN_IDS
} hits_t;

static void *grown(void *old, uint32_t count, uint32_t *capacity, size_t each)
{
    if (count < *capacity) {
        return old;
    }
    *capacity = *capacity ? 2 * *capacity : 4096;
    void *more = realloc(old, *capacity * each);
    if (!more) {
        fprintf(stderr, "bench_evict: no memory for the trace\n");
        exit(1);
    }
    return more;
}

static void add_id(trace_t *trace, uint32_t id)
{
    trace->ids = grown(trace->ids, trace->count, &trace->capacity, sizeof(uint32_t));
    trace->ids[trace->count++] = id;
    trace->id_limit = id >= trace->id_limit ? id + 1 : trace->id_limit;
}

static void end_request(trace_t *trace)
{
    trace->ends = grown(trace->ends, trace->requests, &trace->requests_capacity, sizeof(uint32_t));
    trace->ends[trace->requests++] = trace->count;
}

static void read_trace(const char *path, trace_t *trace)
{
    FILE *file = fopen(path, "r");
    char *line = malloc(LINE_BYTES);
    if (!file || !line) {
        fprintf(stderr, "bench_evict: cannot read %s\n", path);
        exit(1);
    }
    while (fgets(line, LINE_BYTES, file)) {
        char *at = strstr(line, "\"hash_ids\"");
        at = at ? strchr(at, '[') : NULL;
        for (char *end; at && *at != ']' && *at != '\0'; at = end) {
            unsigned long id = strtoul(at + 1, &end, 10);
            if (end == at + 1 || id >= IDS_MAX) {
                fprintf(stderr, "bench_evict: %s: request %u is not a list of ids below %u\n", path,
                        trace->requests + 1, IDS_MAX);
                exit(1);
            }
            end += strspn(end, " ");
            add_id(trace, (uint32_t)id);
        }
        end_request(trace);
    }
    free(line);
    fclose(file);
}

// Conversations go on in no order, each asked for whole and with one block more than before; after
// each turn comes a document that nobody asks for again.
static void make_scans(trace_t *trace)
{
    uint32_t scanned = SCAN_IDS, random = 1, turns[TALKS] = {0};
    for (uint32_t round = 0; round < SCAN_ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        uint32_t talk = (random >> 16) % TALKS, blocks = TALK_BLOCKS + turns[talk]++;
        for (uint32_t i = 0; i < blocks; i++) {
            add_id(trace, talk * 1000 + i);
        }
        end_request(trace);
        for (uint32_t i = 0; i < SCAN_BLOCKS; i++) {
            add_id(trace, scanned++);
        }
        end_request(trace);
    }
}

static void count(hits_t *hits, uint32_t id)
{
    hits->all++;
    hits->talks += id < SCAN_IDS;
}

// ---- the store

static as_key_t key_of(uint32_t id)
{
    uint64_t mixed = (id + 1ull) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
    as_key_t key = {{0}};
    memcpy(key.bytes, &mixed, sizeof(mixed));
    memcpy(key.bytes + 8, &id, sizeof(id));
    return key;
}

static void put(kvs_index_t *index, kvs_pool_t *pool, const as_key_t *key, const as_key_t *parent)
{
    const as_key_t root = {{0}};
    const kvs_spec_t spec = {.key = *key,
                             .parent = *parent,
                             .namespace_key = root,
                             .kind = AS_WIRE_FULL,
                             .layers = 1,
                             .extent_bytes = 4,
                             .tokens = 64};
    uint64_t evicted = 0;
    kvs_block_t *block;
    as_status_t status;
    while ((status = kvs_index_reserve(index, &spec, &block)) == AS_ERR_BUSY &&
           evicted < KVS_EVICT_BATCH) {
        kvs_evict_some(index, pool, kvs_pool_used(pool) - KVS_POOL_GRAIN_BYTES, &evicted);
    }
    if (status != AS_OK) {
        fprintf(stderr, "bench_evict: a block cannot be put: %s\n", as_status_str(status));
        exit(1);
    }
    kvs_index_fill(index, block);
    kvs_index_seal(index, block, 0);
}

static void serve(kvs_index_t *index, kvs_pool_t *pool, const uint32_t *ids, uint32_t count_ids,
                  hits_t *hits)
{
    bool whole = true;
    for (uint32_t i = 0; i < count_ids; i++) {
        as_key_t key = key_of(ids[i]);
        kvs_block_t *block = kvs_index_find(index, &key, AS_WIRE_FULL);
        whole &= block != NULL;
        if (whole) {
            count(hits, ids[i]);
        }
        if (block) { // as LOCATE does
            kvs_index_lease(index, block);
            kvs_index_unlease(index, block);
        }
    }
    as_key_t parent = {{0}};
    for (uint32_t i = 0; i < count_ids; i++) {
        as_key_t key = key_of(ids[i]);
        if (!kvs_index_find(index, &key, AS_WIRE_FULL)) {
            put(index, pool, &key, &parent);
        }
        parent = key;
    }
}

static hits_t run_store(const trace_t *trace, uint32_t blocks, uint64_t *ghost_hits_p)
{
    hits_t hits = {0};
    kvs_pool_t *pool;
    kvs_index_t *index;
    as_status_t status = kvs_pool_alloc((size_t)blocks * KVS_POOL_GRAIN_BYTES, blocks, &pool);
    if (status == AS_OK) {
        const kvs_index_options_t options = {blocks, NULL, pool};
        status = kvs_index_alloc(&options, &index);
    }
    if (status != AS_OK) {
        fprintf(stderr, "bench_evict: %s\n", as_status_str(status));
        exit(1);
    }
    for (uint32_t r = 0, from = 0; r < trace->requests; from = trace->ends[r], r++) {
        serve(index, pool, &trace->ids[from], trace->ends[r] - from, &hits);
    }
    *ghost_hits_p = kvs_ghosts_hits(kvs_index_ghosts(index));
    kvs_index_free(index);
    kvs_pool_free(pool);
    return hits;
}

// ---- the baselines: a list of ids, the oldest first

typedef struct list {
    uint32_t *older, *newer; // by id; NOBODY at the ends
    bool *here;
    uint32_t oldest, newest, blocks;
} list_t;

static void list_remove(list_t *list, uint32_t id)
{
    *(list->older[id] == NOBODY ? &list->oldest : &list->newer[list->older[id]]) = list->newer[id];
    *(list->newer[id] == NOBODY ? &list->newest : &list->older[list->newer[id]]) = list->older[id];
    list->here[id] = false;
    list->blocks--;
}

static void list_add(list_t *list, uint32_t id)
{
    list->older[id] = list->newest;
    list->newer[id] = NOBODY;
    *(list->newest == NOBODY ? &list->oldest : &list->newer[list->newest]) = id;
    list->newest = id;
    list->here[id] = true;
    list->blocks++;
}

static hits_t run_list(const trace_t *trace, uint32_t blocks, bool is_lru)
{
    hits_t hits = {0};
    list_t list = {calloc(trace->id_limit, sizeof(uint32_t)),
                   calloc(trace->id_limit, sizeof(uint32_t)),
                   calloc(trace->id_limit, sizeof(bool)),
                   NOBODY,
                   NOBODY,
                   0};
    for (uint32_t r = 0, i = 0; r < trace->requests; r++) {
        bool whole = true;
        for (; i < trace->ends[r]; i++) {
            uint32_t id = trace->ids[i];
            whole &= list.here[id];
            if (whole) {
                count(&hits, id);
            }
            if (list.here[id] && !is_lru) {
                continue;
            }
            if (list.here[id]) {
                list_remove(&list, id);
            } else if (list.blocks == blocks) {
                list_remove(&list, list.oldest);
            }
            list_add(&list, id);
        }
    }
    free(list.older);
    free(list.newer);
    free(list.here);
    return hits;
}

static void run(const trace_t *trace, uint32_t blocks, bool is_synthetic)
{
    uint64_t ghost_hits, talks = 0;
    for (uint32_t i = 0; i < trace->count; i++) {
        talks += trace->ids[i] < SCAN_IDS;
    }
    hits_t ours = run_store(trace, blocks, &ghost_hits);
    hits_t lru = run_list(trace, blocks, true), fifo = run_list(trace, blocks, false);
    double all = (double)(is_synthetic ? talks : trace->count) / 100;
    printf("{\"bench\":\"evict\",\"load\":\"%s\",\"blocks\":%u,\"store_percent\":%.2f,"
           "\"lru_percent\":%.2f,\"fifo_percent\":%.2f,\"ghost_hits\":%llu}\n",
           is_synthetic ? "scans" : "trace", blocks,
           (double)(is_synthetic ? ours.talks : ours.all) / all,
           (double)(is_synthetic ? lru.talks : lru.all) / all,
           (double)(is_synthetic ? fifo.talks : fifo.all) / all, (unsigned long long)ghost_hits);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    as_siphash_own_known();
    trace_t trace = {0};
    char *end, *sizes = NULL;
    static char usual[] = "2000,5000,10000,20000,50000", usual_scans[] = "1500,2000,3000";
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--blocks") == 0 && i + 1 < argc) {
            sizes = argv[++i];
        } else if (argv[i][0] == '-' || path) {
            fprintf(stderr, "usage: bench_evict [--blocks N,N...] [TRACE]\n");
            return 2;
        } else {
            path = argv[i];
        }
    }
    if (path) {
        read_trace(path, &trace);
    } else {
        make_scans(&trace);
    }
    sizes = sizes ? sizes : path ? usual : usual_scans;
    for (char *at = sizes; *at; at = *end == ',' ? end + 1 : end) {
        unsigned long blocks = strtoul(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || blocks == 0 || blocks > 1u << 20) {
            fprintf(stderr, "bench_evict: --blocks %s: sizes from 1 to 1048576, with commas\n", at);
            return 2;
        }
        run(&trace, (uint32_t)blocks, !path);
    }
    free(trace.ids);
    free(trace.ends);
    return 0;
}
