// SPDX-License-Identifier: Apache-2.0
// `assay ls`: the blocks that the stores hold, store by store, in key order.
#include <string.h>

#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

#define PAGE_BLOCKS 256
#define SHOWN_BYTES 8 // of a key, for people

static const char *scheduler, *run_dir;
static bool as_json;
static int64_t limit;

static const as_option_t table[] = {
    {.name = "limit",
     .type = AS_OPTION_INT,
     .value = &limit,
     .fallback = "50",
     .metavar = "N",
     .help = "most blocks in all",
     .min = 1,
     .max = 1e7},
    CLI_JSON_OPTION(as_json, "print JSON, with whole keys"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay ls",
    .summary = "Lists the blocks that the stores hold.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct listing {
    cli_table_t *table; // or
    json_t *json;
    int64_t count;
    bool more;
} listing_t;

static void hex(const ProtobufCBinaryData *bytes, size_t count_max, char out[65])
{
    size_t count = bytes->len < count_max ? bytes->len : count_max;
    for (size_t i = 0; i < count; i++) {
        snprintf(out + 2 * i, 3, "%02x", bytes->data[i]);
    }
    out[2 * count] = '\0';
}

static void show(listing_t *listing, const char *store, const Assay__StoreBlock *block)
{
    static const char *const pins[] = {"none", "soft", "hard"};
    char key[65], parent[65], owner[65];
    hex(&block->key, as_json ? 32 : SHOWN_BYTES, key);
    hex(&block->parent, as_json ? 32 : SHOWN_BYTES, parent);
    hex(&block->namespace_key, 32, owner);
    listing->count++;
    if (as_json) {
        json_array_append_new(
            listing->json,
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "store",
                      store, "key", key, "parent", parent, "namespace", owner, "pin",
                      pins[block->pin < 3 ? block->pin : 0], "tokens", (json_int_t)block->tokens,
                      "bytes", (json_int_t)block->bytes, "uses", (json_int_t)block->uses, "leases",
                      (json_int_t)block->leases, "age_us", (json_int_t)block->age_us,
                      "expires_in_us", (json_int_t)block->expires_in_us, "tenant",
                      (json_int_t)block->tenant));
        return;
    }
    cli_cell(listing->table, "%s", key);
    cli_cell(listing->table, "%s", parent);
    cli_cell(listing->table, "%u", block->tokens);
    cli_cell(listing->table, "%s", cli_bytes((double)block->bytes));
    cli_cell(listing->table, "%llu", (unsigned long long)block->uses);
    cli_cell(listing->table, "%u", block->leases);
    cli_cell(listing->table, "%s", cli_duration((double)block->age_us / 1e3));
    cli_cell(listing->table, "%u", block->tenant);
    cli_cell(listing->table, "%s", store);
}

// All pages of one store, up to the limit. False: it could not be asked.
static bool list_store(listing_t *listing, const char *name, const char *address)
{
    uint8_t after[32];
    Assay__StoreListRequest request = ASSAY__STORE_LIST_REQUEST__INIT;
    for (bool more = true; more;) {
        int64_t room = limit - listing->count;
        if (room == 0) {
            listing->more = true;
            return true;
        }
        request.limit = room < PAGE_BLOCKS ? (uint32_t)room : PAGE_BLOCKS;
        Assay__StoreListReply *reply = (Assay__StoreListReply *)cli_call(
            address, &assay__store__descriptor, "List", &request.base, CLI_NO_STORE);
        if (!reply) {
            return false;
        }
        for (size_t i = 0; i < reply->n_blocks; i++) {
            show(listing, name, reply->blocks[i]);
        }
        more = reply->more && reply->n_blocks > 0 &&
               reply->blocks[reply->n_blocks - 1]->key.len == sizeof(after);
        if (more) {
            request.after_tenant = reply->blocks[reply->n_blocks - 1]->tenant;
            memcpy(after, reply->blocks[reply->n_blocks - 1]->key.data, sizeof(after));
            request.after = (ProtobufCBinaryData){.len = sizeof(after), .data = after};
        }
        assay__store_list_reply__free_unpacked(reply, NULL);
    }
    return true;
}

static bool list_all(listing_t *listing, const Assay__StatReply *stat)
{
    bool complete = true;
    for (size_t i = 0; i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD) {
            complete &= list_store(listing, node->name[0] ? node->name : node->data_address,
                                   node->rpc_address);
        }
    }
    return complete;
}

int cli_ls(int argc, char **argv)
{
    static const char *const columns[] = {"KEY",     "PARENT", ">TOKENS", ">SIZE", ">USES",
                                          ">LEASES", ">AGE",   ">TENANT", "STORE"};
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
    listing_t listing = {.table = as_json ? NULL : cli_table_new(columns, 9),
                         .json = as_json ? json_array() : NULL};
    bool complete = list_all(&listing, stat);
    if (as_json) {
        json_dumpf(listing.json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(listing.json);
    } else {
        cli_table_print(listing.table, stdout);
        if (listing.more) {
            fprintf(stderr, "there are more; --limit=N shows up to N\n");
        }
    }
    assay__stat_reply__free_unpacked(stat, NULL);
    return complete ? 0 : 1;
}
