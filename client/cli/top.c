// SPDX-License-Identifier: Apache-2.0
// `assay top`: what the stores do, looked at again and again. To no terminal: one table.
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

static const char *scheduler, *run_dir;
static bool as_json;
static int64_t interval_us, looks;

static const as_option_t table[] = {
    {.name = "interval",
     .type = AS_OPTION_DURATION,
     .value = &interval_us,
     .fallback = "1s",
     .metavar = "TIME",
     .help = "between two looks; rates are over it",
     .min = 1e4,
     .max = 3.6e9},
    {.name = "looks",
     .type = AS_OPTION_INT,
     .value = &looks,
     .fallback = "0",
     .metavar = "N",
     .help = "end after so many tables; 0: until Ctrl-C on a terminal, else one",
     .min = 0,
     .max = 1e9},
    CLI_JSON_OPTION(as_json, "print a line of JSON for each look"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay top",
    .summary = "Shows what the stores do, again and again until Ctrl-C. READ/S - : readers on the "
               "store's machine took blocks out of its memory themselves, which it does not see.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct look {
    uint64_t node_id;
    char name[CLI_ADDRESS_BYTES];
    double at_ms;
    bool is_here; // it answered
    uint64_t blocks, used, limit, disk_used, leases, connections;
    uint64_t hits, misses, read, written, evicted;
} look_t;

typedef struct round {
    look_t stores[CLI_NODES_MAX];
    uint32_t count;
} round_t;

static void take_store(look_t *look, const Assay__NodeStat *node)
{
    Assay__StoreStatRequest request = ASSAY__STORE_STAT_REQUEST__INIT;
    Assay__StoreStatReply *store = (Assay__StoreStatReply *)cli_call(
        node->rpc_address, &assay__store__descriptor, "Stat", &request.base, CLI_NO_STORE);
    *look = (look_t){.node_id = node->node_id, .at_ms = cli_now_ms(), .is_here = store != NULL};
    snprintf(look->name, sizeof(look->name), "%s", node->name[0] ? node->name : node->data_address);
    if (!store) {
        return;
    }
    look->blocks = store->blocks;
    look->used = store->ram_bytes_used;
    look->limit = store->ram_bytes_max;
    look->disk_used = store->disk_bytes_used;
    look->leases = store->leases;
    look->connections = store->connections;
    look->hits = store->hits;
    look->misses = store->misses;
    look->read = store->bytes_read;
    look->written = store->bytes_written;
    look->evicted = store->evictions;
    assay__store_stat_reply__free_unpacked(store, NULL);
}

// False: the scheduler could not be asked.
static bool look_around(const char *address, round_t *round)
{
    Assay__StatReply *stat = cli_stat_of_cluster(address);
    round->count = 0;
    for (size_t i = 0; stat && i < stat->n_nodes && round->count < CLI_NODES_MAX; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD) {
            take_store(&round->stores[round->count++], node);
        }
    }
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
    return stat != NULL;
}

// What a figure grew by in a second. A store that was not there before, or that has started anew,
// has no rate yet.
static double rate(const look_t *before, const look_t *now, uint64_t was, uint64_t is)
{
    bool known = before && before->is_here && now->is_here && is >= was;
    return known ? (double)(is - was) * 1e3 / (now->at_ms - before->at_ms) : 0;
}

static const look_t *find(const round_t *round, uint64_t node_id)
{
    for (uint32_t i = 0; i < round->count; i++) {
        if (round->stores[i].node_id == node_id) {
            return &round->stores[i];
        }
    }
    return NULL;
}

static void print_people(const round_t *before, const round_t *now)
{
    static const char *const columns[] = {"STORE",    ">USED",   ">OF",       ">FULL",   ">BLOCKS",
                                          ">DISK",    ">HITS/S", ">MISSES/S", ">READ/S", ">WRITE/S",
                                          ">EVICT/S", ">LEASES", ">PEERS"};
    cli_table_t *out = cli_table_new(columns, 13);
    for (uint32_t i = 0; i < now->count; i++) {
        const look_t *is = &now->stores[i], *was = find(before, is->node_id);
        cli_cell(out, "%s%s", is->name, is->is_here ? "" : " ?");
        cli_cell(out, "%s", cli_bytes((double)is->used));
        cli_cell(out, "%s", cli_bytes((double)is->limit));
        cli_cell(out, "%.0f %%", is->limit ? 100.0 * (double)is->used / (double)is->limit : 0);
        cli_cell(out, "%llu", (unsigned long long)is->blocks);
        cli_cell(out, "%s", cli_bytes((double)is->disk_used));
        cli_cell(out, "%.0f", rate(was, is, was ? was->hits : 0, is->hits));
        cli_cell(out, "%.0f", rate(was, is, was ? was->misses : 0, is->misses));
        bool unseen = was && is->hits > was->hits && is->read == was->read;
        cli_cell(out, "%s", unseen ? "-" : cli_bytes(rate(was, is, was ? was->read : 0, is->read)));
        cli_cell(out, "%s", cli_bytes(rate(was, is, was ? was->written : 0, is->written)));
        cli_cell(out, "%.0f", rate(was, is, was ? was->evicted : 0, is->evicted));
        cli_cell(out, "%llu", (unsigned long long)is->leases);
        cli_cell(out, "%llu", (unsigned long long)is->connections);
    }
    cli_table_print(out, stdout);
}

static void print_json(const round_t *before, const round_t *now)
{
    json_t *stores = json_array();
    for (uint32_t i = 0; i < now->count; i++) {
        const look_t *is = &now->stores[i], *was = find(before, is->node_id);
        json_array_append_new(
            stores,
            json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "store", is->name,
                      "answers", is->is_here, "blocks", (json_int_t)is->blocks, "ram_bytes_used",
                      (json_int_t)is->used, "ram_bytes_max", (json_int_t)is->limit,
                      "disk_bytes_used", (json_int_t)is->disk_used, "hits_per_second",
                      rate(was, is, was ? was->hits : 0, is->hits), "misses_per_second",
                      rate(was, is, was ? was->misses : 0, is->misses), "read_bytes_per_second",
                      rate(was, is, was ? was->read : 0, is->read), "written_bytes_per_second",
                      rate(was, is, was ? was->written : 0, is->written), "evictions_per_second",
                      rate(was, is, was ? was->evicted : 0, is->evicted)));
    }
    json_dumpf(stores, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(stores);
}

int cli_top(int argc, char **argv)
{
    static round_t rounds[2];
    char address[CLI_ADDRESS_BYTES];
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!cli_find_scheduler(scheduler, run_dir, address) || !look_around(address, &rounds[0])) {
        return 1;
    }
    bool live = isatty(STDOUT_FILENO) && !as_json;
    int64_t last = looks > 0 ? looks : live ? INT64_MAX : 1;
    for (int64_t i = 1; i <= last; i++) {
        poll(NULL, 0, (int)(interval_us / 1000)); // rates need two looks
        const round_t *before = &rounds[(i - 1) % 2];
        round_t *now = &rounds[i % 2];
        if (!look_around(address, now)) {
            return 1;
        }
        if (live) {
            fputs("\033[H\033[2J", stdout);
        }
        if (as_json) {
            print_json(before, now);
        } else {
            print_people(before, now);
        }
        fflush(stdout);
    }
    return 0;
}
