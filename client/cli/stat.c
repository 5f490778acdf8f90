// SPDX-License-Identifier: Apache-2.0
// `assay stat`: the scheduler's view of the nodes, and each store's own figures.
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "proto/kvstore.pb-c.h"

static const char *scheduler, *run_dir;
static bool as_json;

static const as_option_t table[] = {
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay stat",
    .summary = "Shows the nodes of the cluster and their figures.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static const char *role_name(Assay__Role role)
{
    return role == ASSAY__ROLE__ROLE_STORE    ? "store"
           : role == ASSAY__ROLE__ROLE_WORKER ? "worker"
                                              : "?";
}

static const char *state_name(const Assay__NodeStat *node)
{
    switch (node->state) {
    case ASSAY__NODE_STATE__NODE_STATE_ALIVE:
        return node->draining ? "draining" : "alive";
    case ASSAY__NODE_STATE__NODE_STATE_SUSPECT:
        return "suspect";
    case ASSAY__NODE_STATE__NODE_STATE_DEAD:
        return "dead";
    default:
        return "?";
    }
}

static Assay__StoreStatReply *store_stat(const Assay__NodeStat *node)
{
    Assay__StoreStatRequest request = ASSAY__STORE_STAT_REQUEST__INIT;
    bool usable = node->role == ASSAY__ROLE__ROLE_STORE && node->rpc_address[0] &&
                  node->state != ASSAY__NODE_STATE__NODE_STATE_DEAD;
    return usable ? (Assay__StoreStatReply *)cli_call(node->rpc_address, &assay__store__descriptor,
                                                      "Stat", &request.base, CLI_NO_STORE)
                  : NULL;
}

// By role, then by name.
static int compare_nodes(const void *left, const void *right)
{
    const Assay__NodeStat *a = *(Assay__NodeStat *const *)left,
                          *b = *(Assay__NodeStat *const *)right;
    return a->role != b->role ? (a->role < b->role ? -1 : 1) : strcmp(a->name, b->name);
}

// ---- For people

static void print_nodes(const Assay__StatReply *stat)
{
    static const char *const columns[] = {"NODE",    "ROLE",  "STATE",  "ADDRESS",  ">SILENT",
                                          ">BLOCKS", ">USED", ">LIMIT", ">SESSIONS"};
    cli_table_t *out = cli_table_new(columns, 9);
    for (size_t i = 0; i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        const Assay__NodeLoad *load = node->load;
        bool store = node->role == ASSAY__ROLE__ROLE_STORE;
        cli_cell(out, "%s", node->name[0] ? node->name : "-");
        cli_cell(out, "%s", role_name(node->role));
        cli_cell(out, "%s", state_name(node));
        cli_cell(out, "%s", store ? node->data_address : node->http_address);
        cli_cell(out, "%s", cli_duration((double)node->silence_ms));
        cli_cell(out, store ? "%llu" : "-", (unsigned long long)node->full_blocks);
        cli_cell(out, "%s", load ? cli_bytes((double)load->used_bytes) : "-");
        cli_cell(out, "%s", load ? cli_bytes((double)load->capacity_bytes) : "-");
        cli_cell(out, store ? "-" : "%llu", load ? (unsigned long long)load->sessions : 0ull);
    }
    cli_table_print(out, stdout);
}

static void print_stores(const Assay__StatReply *stat)
{
    static const char *const columns[] = {"STORE",    ">BLOCKS", ">RAM",     ">OF",
                                          ">DISK",    ">HITS",   ">MISSES",  ">READ",
                                          ">WRITTEN", ">LEASES", ">EVICTED", ">CONNECTIONS"};
    cli_table_t *out = cli_table_new(columns, 12);
    bool unseen = false, read_only = false;
    for (size_t i = 0; i < stat->n_nodes; i++) {
        Assay__StoreStatReply *store = store_stat(stat->nodes[i]);
        if (!store) {
            continue;
        }
        cli_cell(out, "%s", stat->nodes[i]->name[0] ? stat->nodes[i]->name : store->data_address);
        cli_cell(out, "%llu", (unsigned long long)store->blocks);
        cli_cell(out, "%s", cli_bytes((double)store->ram_bytes_used));
        cli_cell(out, "%s", cli_bytes((double)store->ram_bytes_max));
        cli_cell(out, "%s%s",
                 store->disk_bytes_max ? cli_bytes((double)store->disk_bytes_used) : "-",
                 store->disk_read_only ? " !" : "");
        read_only |= store->disk_read_only;
        cli_cell(out, "%llu", (unsigned long long)store->hits);
        cli_cell(out, "%llu", (unsigned long long)store->misses);
        bool read_unseen = store->bytes_read == 0 && store->hits > 0;
        unseen |= read_unseen;
        cli_cell(out, "%s", read_unseen ? "-" : cli_bytes((double)store->bytes_read));
        cli_cell(out, "%s", cli_bytes((double)store->bytes_written));
        cli_cell(out, "%llu", (unsigned long long)store->leases);
        cli_cell(out, "%llu", (unsigned long long)store->evictions);
        cli_cell(out, "%llu", (unsigned long long)store->connections);
        assay__store_stat_reply__free_unpacked(store, NULL);
    }
    cli_table_print(out, stdout);
    if (read_only) {
        printf(
            "\nDISK !: too many writes failed, so the disk is only read; see the store's log.\n");
    }
    if (unseen) {
        printf(
            "\nREAD -: readers took the blocks out of the store's memory themselves, which it does "
            "not see;\nassay_client_fetched_bytes_total of the workers counts them.\n");
    }
}

static void print_people(const Assay__StatReply *stat)
{
    double asked = (double)stat->route_blocks_asked, hit = (double)stat->route_blocks_hit;
    printf("cluster %s, %u %s of each block, up %s: %llu routes, %.0f %% of their blocks stored, "
           "p50 %llu us, p99 %llu us; "
           "directory %llu blocks\n\n",
           stat->cluster_id, stat->replicas, stat->replicas == 1 ? "copy" : "copies",
           cli_duration((double)stat->uptime_ms), (unsigned long long)stat->routes,
           asked > 0 ? 100 * hit / asked : 0, (unsigned long long)stat->route_us_p50,
           (unsigned long long)stat->route_us_p99, (unsigned long long)stat->directory_blocks);
    print_nodes(stat);
    putchar('\n');
    print_stores(stat);
}

// ---- For programs

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *store_json(const Assay__NodeStat *node)
{
    Assay__StoreStatReply *store = store_stat(node);
    if (!store) {
        return json_null();
    }
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"blocks", store->blocks},
        {"ram_bytes_used", store->ram_bytes_used},
        {"ram_bytes_max", store->ram_bytes_max},
        {"leases", store->leases},
        {"pins", store->pins},
        {"reservations", store->reservations},
        {"hits", store->hits},
        {"misses", store->misses},
        {"bytes_read", store->bytes_read},
        {"bytes_written", store->bytes_written},
        {"evictions", store->evictions},
        {"quota_evictions", store->quota_evictions},
        {"expired", store->expired},
        {"purged", store->purged},
        {"ghost_hits", store->ghost_hits},
        {"soft_pinned_bytes", store->soft_pinned_bytes},
        {"hard_pinned_bytes", store->hard_pinned_bytes},
        {"connections", store->connections},
        {"disk_blocks", store->disk_blocks},
        {"disk_bytes_used", store->disk_bytes_used},
        {"disk_bytes_max", store->disk_bytes_max},
        {"promotions", store->promotions},
        {"disk_read_only", store->disk_read_only},
        {"conflicts", store->conflicts},
        {"scrub_passes", store->scrub_passes},
        {"scrub_bytes", store->scrub_bytes},
        {"scrub_bad_ram", store->scrub_bad_ram},
        {"scrub_bad_disk", store->scrub_bad_disk},
        {"scrub_restored", store->scrub_restored},
        {"repaired_blocks", store->repaired_blocks},
        {"repaired_bytes", store->repaired_bytes},
        {"repair_pending", store->repair_pending},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_object_set_new(object, rows[i].name, number(rows[i].value));
    }
    assay__store_stat_reply__free_unpacked(store, NULL);
    return object;
}

static json_t *node_json(const Assay__NodeStat *node)
{
    char id[24];
    snprintf(id, sizeof(id), "%016llx", (unsigned long long)node->node_id);
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:b}", "node_id", id, "name",
                  node->name, "role", role_name(node->role), "state", state_name(node),
                  "data_address", node->data_address, "rpc_address", node->rpc_address,
                  "http_address", node->http_address, "silence_ms", number(node->silence_ms),
                  "full_blocks", number(node->full_blocks), "listed", node->listed);
    if (node->load) {
        json_object_set_new(object, "used_bytes", number(node->load->used_bytes));
        json_object_set_new(object, "capacity_bytes", number(node->load->capacity_bytes));
        json_object_set_new(object, "sessions", number(node->load->sessions));
    }
    if (node->role == ASSAY__ROLE__ROLE_STORE) {
        json_object_set_new(object, "store", store_json(node));
    }
    return object;
}

static void print_json(const Assay__StatReply *stat)
{
    json_t *nodes = json_array();
    for (size_t i = 0; i < stat->n_nodes; i++) {
        json_array_append_new(nodes, node_json(stat->nodes[i]));
    }
    json_t *json = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "cluster_id",
                             stat->cluster_id, "replicas", number(stat->replicas), "uptime_ms",
                             number(stat->uptime_ms), "routes", number(stat->routes),
                             "route_blocks_asked", number(stat->route_blocks_asked),
                             "route_blocks_hit", number(stat->route_blocks_hit), "route_us_p50",
                             number(stat->route_us_p50), "route_us_p99", number(stat->route_us_p99),
                             "directory_blocks", number(stat->directory_blocks), "nodes", nodes);
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

int cli_stat(int argc, char **argv)
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
    if (stat->n_nodes > 0) {
        qsort(stat->nodes, stat->n_nodes, sizeof(stat->nodes[0]), compare_nodes);
    }
    if (as_json) {
        print_json(stat);
    } else {
        print_people(stat);
    }
    assay__stat_reply__free_unpacked(stat, NULL);
    return 0;
}
