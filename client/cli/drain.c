// SPDX-License-Identifier: Apache-2.0
// `assay drain`: has one store hand its blocks to the others and end, and waits for it.
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

#define LOOK_NS 200000000 // between two looks at the store

static const char *scheduler, *run_dir;
static bool as_json, no_start, with_disk;
static int64_t timeout_us;

static const as_option_t table[] = {
    {.name = "timeout",
     .type = AS_OPTION_DURATION,
     .value = &timeout_us,
     .fallback = "0s",
     .metavar = "TIME",
     .help = "for handing over; 0s is the store's --drain-timeout, or 30s where that is none; with "
             "--disk as long as it takes",
     .min = 0,
     .max = 86400e6},
    {.name = "disk",
     .type = AS_OPTION_BOOL,
     .value = &with_disk,
     .fallback = "false",
     .help = "also what is on its disk only: it will not be started again"},
    {.name = "show",
     .type = AS_OPTION_BOOL,
     .value = &no_start,
     .fallback = "false",
     .help = "begin nothing: show how far a drain is"},
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay drain",
    .summary = "Has a store hand its blocks to the other stores, and end. Exits with 1 where some "
               "blocks ended with it; with --disk also where some are on its disk only.",
    .usage = "[OPTIONS] NODE   (its name, node id or data address, as `assay stat` shows them)",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static bool is_named(const Assay__NodeStat *node, const char *name)
{
    char id[24];
    snprintf(id, sizeof(id), "%016" PRIx64, node->node_id);
    return node->role == ASSAY__ROLE__ROLE_STORE &&
           node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD &&
           (strcmp(name, id) == 0 || strcmp(name, node->data_address) == 0 ||
            (node->name[0] && strcmp(name, node->name) == 0));
}

// NULL: a message was printed.
static const Assay__NodeStat *find(const Assay__StatReply *stat, const char *name)
{
    const Assay__NodeStat *found = NULL;
    for (size_t i = 0; i < stat->n_nodes; i++) {
        if (is_named(stat->nodes[i], name)) {
            if (found) {
                cli_complain("several stores are called %s: give the node id or the data address",
                             name);
                return NULL;
            }
            found = stat->nodes[i];
        }
    }
    if (!found) {
        cli_complain("there is no store %s (`assay stat` shows names, `assay stat --json` also "
                     "node ids)",
                     name);
    }
    return found;
}

static Assay__StoreDrainReply *look(const Assay__NodeStat *node, bool start)
{
    Assay__StoreDrainRequest request = ASSAY__STORE_DRAIN_REQUEST__INIT;
    request.start = start;
    request.disk = start && with_disk;
    request.timeout_ms = (uint64_t)timeout_us / 1000;
    return (Assay__StoreDrainReply *)cli_call(node->rpc_address, &assay__store__descriptor, "Drain",
                                              &request.base, CLI_NO_STORE);
}

// The newest answer, in place of `reply`; NULL: it no longer answers.
static Assay__StoreDrainReply *wait_for(const Assay__NodeStat *node, Assay__StoreDrainReply *reply)
{
    cli_progress_t progress = {0};
    while (reply && reply->running && !no_start) {
        cli_progress(&progress, reply->handed_blocks + reply->kept_blocks, reply->blocks);
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
        assay__store_drain_reply__free_unpacked(reply, NULL);
        reply = look(node, false);
    }
    cli_progress_end(&progress);
    return reply;
}

static uint64_t left_of(const Assay__StoreDrainReply *reply)
{
    uint64_t done = reply->handed_blocks + reply->kept_blocks;
    return reply->blocks > done ? reply->blocks - done : 0;
}

// Of those that are left, once it is over.
static uint64_t on_disk_of(const Assay__StoreDrainReply *reply)
{
    uint64_t left = left_of(reply);
    return reply->on_disk_blocks < left ? reply->on_disk_blocks : left;
}

static void print_rest(const Assay__StoreDrainReply *reply)
{
    uint64_t left = left_of(reply), on_disk = on_disk_of(reply);
    if (!reply->is_over) {
        printf("%" PRIu64 " to go\n", left);
        return;
    }
    if (on_disk > 0) {
        printf("%" PRIu64 " are on its disk for its next start, ", on_disk);
    }
    printf("%" PRIu64 " ended with it\n", left - on_disk);
}

static void print(const Assay__NodeStat *node, const Assay__StoreDrainReply *reply)
{
    const char *name = node->name[0] ? node->name : node->data_address;
    if (as_json) {
        json_t *object = json_pack(
            "{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "store", name,
            "running", reply->running, "is_over", reply->is_over, "took_us",
            (json_int_t)reply->took_us, "blocks", (json_int_t)reply->blocks, "bytes",
            (json_int_t)reply->bytes, "handed_blocks", (json_int_t)reply->handed_blocks,
            "handed_bytes", (json_int_t)reply->handed_bytes, "kept_blocks",
            (json_int_t)reply->kept_blocks, "left_blocks", (json_int_t)left_of(reply),
            "on_disk_blocks", (json_int_t)on_disk_of(reply), "pinned_blocks",
            (json_int_t)reply->pinned_blocks, "handed_pins", (json_int_t)reply->handed_pins);
        json_dumpf(object, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(object);
    } else if (!reply->running && !reply->is_over) {
        printf("%s does not drain\n", name);
    } else {
        printf("%s %s %s: %" PRIu64 " of %" PRIu64 " blocks handed over (%s), %" PRIu64
               " had copies, ",
               name, reply->is_over ? "drained in" : "has been draining for",
               cli_duration((double)reply->took_us / 1e3), reply->handed_blocks, reply->blocks,
               cli_bytes((double)reply->handed_bytes), reply->kept_blocks);
        print_rest(reply);
        if (reply->is_over && reply->handed_pins < reply->pinned_blocks) {
            printf("%s: %" PRIu64 " of %" PRIu64 " pinned blocks are pinned nowhere else now\n",
                   name, reply->pinned_blocks - reply->handed_pins, reply->pinned_blocks);
        }
    }
}

int cli_drain(int argc, char **argv)
{
    char address[CLI_ADDRESS_BYTES];
    int code, rest;
    if (!cli_options(&options, argc, argv, &rest, &code)) {
        return code;
    }
    if (argc - rest != 1) {
        cli_complain("drain: name one store (`assay stat` shows them)");
        return 2;
    }
    if (!cli_find_scheduler(scheduler, run_dir, address)) {
        return 1;
    }
    Assay__StatReply *stat = cli_stat_of_cluster(address);
    if (!stat) {
        return 1;
    }
    const Assay__NodeStat *node = find(stat, argv[rest]);
    Assay__StoreDrainReply *reply = node ? wait_for(node, look(node, !no_start)) : NULL;
    code = 1;
    if (reply) {
        print(node, reply);
        uint64_t lost = left_of(reply) - (with_disk ? 0 : on_disk_of(reply));
        code = no_start || lost == 0 ? 0 : 1;
        assay__store_drain_reply__free_unpacked(reply, NULL);
    }
    assay__stat_reply__free_unpacked(stat, NULL);
    return code;
}
