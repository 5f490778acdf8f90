// SPDX-License-Identifier: Apache-2.0
// `assay scrub`: has every store check the bytes of all its blocks now, and waits for the result.
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

#define LOOK_NS 200000000 // between two looks at the stores

static const char *scheduler, *run_dir;
static bool as_json, no_start;
static int64_t rate;

static const as_option_t table[] = {
    {.name = "rate",
     .type = AS_OPTION_BYTES,
     .value = &rate,
     .fallback = "0",
     .metavar = "BYTES",
     .help = "per second and store; 0 is each store's --scrub-rate",
     .min = 0,
     .max = 1e12},
    {.name = "show",
     .type = AS_OPTION_BOOL,
     .value = &no_start,
     .fallback = "false",
     .help = "begin nothing: show the pass that runs or was the last"},
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay scrub",
    .summary =
        "Has the stores check all their blocks now. Exits with 1 where a block was bad, or a "
        "store did not answer.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct pass {
    const Assay__NodeStat *node;
    Assay__StoreScrubReply *reply; // the newest; NULL: the store does not answer
} pass_t;

typedef struct passes {
    pass_t all[CLI_NODES_MAX];
    uint32_t count;
} passes_t;

static const char *name_of(const pass_t *pass)
{
    return pass->node->name[0] ? pass->node->name : pass->node->data_address;
}

static void look(pass_t *pass, bool start)
{
    Assay__StoreScrubRequest request = ASSAY__STORE_SCRUB_REQUEST__INIT;
    request.start = start;
    request.bytes_per_second = (uint64_t)rate;
    if (pass->reply) {
        assay__store_scrub_reply__free_unpacked(pass->reply, NULL);
    }
    pass->reply = (Assay__StoreScrubReply *)cli_call(
        pass->node->rpc_address, &assay__store__descriptor, "Scrub", &request.base, CLI_NO_STORE);
}

static void begin(passes_t *passes, const Assay__StatReply *stat)
{
    for (size_t i = 0; i < stat->n_nodes && passes->count < CLI_NODES_MAX; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD) {
            passes->all[passes->count] = (pass_t){.node = node};
            look(&passes->all[passes->count++], !no_start);
        }
    }
}

static uint64_t checked(const Assay__StoreScrubReply *reply)
{
    return reply->ram_bytes + reply->disk_bytes;
}

static void show_progress(const passes_t *passes)
{
    uint64_t done = 0, all = 0, bad = 0;
    for (uint32_t i = 0; i < passes->count; i++) {
        const Assay__StoreScrubReply *reply = passes->all[i].reply;
        if (reply) {
            done += checked(reply);
            all += reply->running && reply->bytes > checked(reply) ? reply->bytes : checked(reply);
            bad += reply->bad_ram_blocks + reply->bad_disk_blocks;
        }
    }
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%s of about %s checked, %llu bad blocks\033[K", cli_bytes((double)done),
                cli_bytes((double)all), (unsigned long long)bad);
    }
}

static void wait_for_all(passes_t *passes)
{
    for (bool running = true; running;) {
        running = false;
        for (uint32_t i = 0; i < passes->count; i++) {
            pass_t *pass = &passes->all[i];
            if (pass->reply && pass->reply->running) {
                look(pass, false);
                running |= pass->reply && pass->reply->running;
            }
        }
        show_progress(passes);
        if (running) {
            nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
        }
    }
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
}

static void print_people(const passes_t *passes)
{
    static const char *const columns[] = {">RAM BLOCKS",  ">DISK BLOCKS", ">CHECKED", ">BAD IN RAM",
                                          ">BAD ON DISK", ">RESTORED",    ">TOOK",    "STORE"};
    cli_table_t *out = cli_table_new(columns, 8);
    for (uint32_t i = 0; i < passes->count; i++) {
        const Assay__StoreScrubReply *reply = passes->all[i].reply;
        if (!reply) {
            continue;
        }
        cli_cell(out, "%llu", (unsigned long long)reply->ram_blocks);
        cli_cell(out, "%llu", (unsigned long long)reply->disk_blocks);
        cli_cell(out, "%s", cli_bytes((double)checked(reply)));
        cli_cell(out, "%llu", (unsigned long long)reply->bad_ram_blocks);
        cli_cell(out, "%llu", (unsigned long long)reply->bad_disk_blocks);
        cli_cell(out, "%llu", (unsigned long long)reply->restored_blocks);
        cli_cell(out, "%s%s", reply->pass == 0 ? "-" : cli_duration((double)reply->took_us / 1e3),
                 reply->running ? " so far" : "");
        cli_cell(out, "%s", name_of(&passes->all[i]));
    }
    cli_table_print(out, stdout);
}

static void print_json(const passes_t *passes)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < passes->count; i++) {
        const Assay__StoreScrubReply *reply = passes->all[i].reply;
        if (!reply) {
            continue;
        }
        json_array_append_new(
            all, json_pack("{s:s, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "store",
                           name_of(&passes->all[i]), "pass", (json_int_t)reply->pass, "running",
                           reply->running, "took_us", (json_int_t)reply->took_us, "ram_blocks",
                           (json_int_t)reply->ram_blocks, "ram_bytes", (json_int_t)reply->ram_bytes,
                           "disk_blocks", (json_int_t)reply->disk_blocks, "disk_bytes",
                           (json_int_t)reply->disk_bytes, "bad_ram_blocks",
                           (json_int_t)reply->bad_ram_blocks, "bad_disk_blocks",
                           (json_int_t)reply->bad_disk_blocks, "restored_blocks",
                           (json_int_t)reply->restored_blocks));
    }
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

// Frees the answers; whether every store answered, and none had a bad block.
static bool finish(passes_t *passes)
{
    bool sound = true;
    for (uint32_t i = 0; i < passes->count; i++) {
        Assay__StoreScrubReply *reply = passes->all[i].reply;
        sound &= reply && reply->bad_ram_blocks + reply->bad_disk_blocks == 0;
        if (reply) {
            assay__store_scrub_reply__free_unpacked(reply, NULL);
        }
    }
    return sound;
}

int cli_scrub(int argc, char **argv)
{
    char address[CLI_ADDRESS_BYTES];
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!cli_find_scheduler(scheduler, run_dir, address)) {
        return 1;
    }
    Assay__StatReply *stat = cli_stat_of_cluster(address);
    if (!stat) {
        return 1;
    }
    static passes_t passes;
    begin(&passes, stat);
    if (!no_start) {
        wait_for_all(&passes);
    }
    if (as_json) {
        print_json(&passes);
    } else {
        print_people(&passes);
    }
    bool sound = finish(&passes);
    assay__stat_reply__free_unpacked(stat, NULL);
    return sound ? 0 : 1;
}
