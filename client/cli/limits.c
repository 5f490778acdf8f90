// SPDX-License-Identifier: Apache-2.0
// `assay pin`, `unpin`, `drop` and `quota`: what an operator decides about blocks, told to every store
// of the cluster.
#include <string.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "proto/kvstore.pb-c.h"

#define KEYS_MAX 16384

static const char *scheduler, *run_dir, *namespace_hex;
static bool soft, all, reset, as_json;
static int64_t quota_bytes, tenant;

#define TENANT_OPTION                                                                              \
    {                                                                                              \
        .name = "tenant", .type = AS_OPTION_INT, .value = &tenant, .fallback = "0",                \
        .metavar = "N", .help = "whose blocks, where the stores have tenants", .min = 0,           \
        .max = 4294967295.0                                                                        \
    }

static const as_option_t pin_table[] = {
    {.name = "soft",
     .type = AS_OPTION_BOOL,
     .value = &soft,
     .fallback = "false",
     .help = "evict them after all that has no pin; without it they are never evicted"},
    TENANT_OPTION,
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_option_t unpin_table[] = {
    {.name = "all",
     .type = AS_OPTION_BOOL,
     .value = &all,
     .fallback = "false",
     .help = "of all blocks"},
    TENANT_OPTION,
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_option_t drop_table[] = {
    {.name = "namespace",
     .type = AS_OPTION_STRING,
     .value = &namespace_hex,
     .metavar = "HEX",
     .help = "all blocks of one namespace, such as those of weights that are no longer served"},
    {.name = "all",
     .type = AS_OPTION_BOOL,
     .value = &all,
     .fallback = "false",
     .help = "all blocks of all stores"},
    TENANT_OPTION,
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_option_t quota_table[] = {
    {.name = "namespace",
     .type = AS_OPTION_STRING,
     .value = &namespace_hex,
     .metavar = "HEX",
     .help = "of one namespace; without it all are shown"},
    {.name = "bytes",
     .type = AS_OPTION_BYTES,
     .value = &quota_bytes,
     .fallback = "0",
     .metavar = "BYTES",
     .help = "what it may have of each store's memory from now on, until the store ends",
     .min = 0,
     .max = 1e15},
    {.name = "reset",
     .type = AS_OPTION_BOOL,
     .value = &reset,
     .fallback = "false",
     .help = "back to each store's --quota"},
    TENANT_OPTION,
    CLI_JSON_OPTION(as_json, "print JSON"),
    CLI_CLUSTER_OPTIONS(scheduler, run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

#define OPTIONS(name_, summary_, usage_, table_)                                                   \
    static const as_options_t name_ = {                                                            \
        .program = "assay " #name_,                                                                \
        .summary = summary_,                                                                       \
        .usage = usage_,                                                                           \
        .table = table_,                                                                           \
        .count = sizeof(table_) / sizeof(table_[0]),                                               \
    }

OPTIONS(pin, "Keeps blocks in the memory of the stores that hold them, until those end.",
        "[OPTIONS] KEY...", pin_table);
OPTIONS(unpin, "Takes pins away.", "[OPTIONS] KEY... | --all", unpin_table);
OPTIONS(drop, "Has the stores forget blocks, in memory and on disk.",
        "[OPTIONS] KEY... | --namespace HEX | --all", drop_table);
OPTIONS(quota, "Shows what namespaces have of the stores' memory, or sets what one may have.",
        "[OPTIONS]", quota_table);

// ---- keys

typedef struct keys {
    as_key_t keys[KEYS_MAX];
    ProtobufCBinaryData bytes[KEYS_MAX];
    size_t count;
} keys_t;

// False, with a message: it is not a whole key.
static bool take_key(const char *text, as_key_t *key)
{
    if (as_key_parse(text, key) != AS_OK) {
        cli_complain("'%s' is not a whole key of 64 hex digits (`assay ls --json` shows them)",
                     text);
        return false;
    }
    return true;
}

static bool take_keys(int argc, char **argv, int rest, keys_t *keys)
{
    if (argc - rest > KEYS_MAX) {
        cli_complain("at most %d keys", KEYS_MAX);
        return false;
    }
    for (int i = rest; i < argc; i++) {
        as_key_t *key = &keys->keys[keys->count];
        if (!take_key(argv[i], key)) {
            return false;
        }
        keys->bytes[keys->count++] = (ProtobufCBinaryData){sizeof(*key), key->bytes};
    }
    return true;
}

static bool take_namespace(as_key_t *key, ProtobufCBinaryData *bytes)
{
    *bytes = (ProtobufCBinaryData){0, NULL};
    if (!namespace_hex) {
        return true;
    }
    *bytes = (ProtobufCBinaryData){sizeof(*key), key->bytes};
    return take_key(namespace_hex, key);
}

// ---- every store

typedef void (*reply_fn)(void *ctx, const Assay__NodeStat *node, const ProtobufCMessage *reply);
typedef struct ask {
    const char *method;
    const ProtobufCMessage *request;
    reply_fn on_reply;
    void *ctx;
} ask_t;

// Asks each store that is not dead. The exit code: 1 when one did not answer.
static int ask_stores(const ask_t *ask)
{
    char address[CLI_ADDRESS_BYTES];
    if (!cli_find_scheduler(scheduler, run_dir, address)) {
        return 1;
    }
    Assay__StatReply *stat = cli_stat_of_cluster(address);
    int code = stat ? 0 : 1;
    for (size_t i = 0; stat && i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        if (node->role != ASSAY__ROLE__ROLE_STORE ||
            node->state == ASSAY__NODE_STATE__NODE_STATE_DEAD) {
            continue;
        }
        ProtobufCMessage *reply = cli_call(node->rpc_address, &assay__store__descriptor,
                                           ask->method, ask->request, CLI_NO_STORE);
        if (reply) {
            ask->on_reply(ask->ctx, node, reply);
            protobuf_c_message_free_unpacked(reply, NULL);
        } else {
            code = 1;
        }
    }
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
    return code;
}

static const char *name_of(const Assay__NodeStat *node)
{
    return node->name[0] ? node->name : node->data_address;
}

static void print_json(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

// ---- pin and unpin

typedef struct pinned {
    size_t keys;
    uint64_t copies, refused;
    bool is_here[KEYS_MAX]; // a store has it in memory: where blocks have copies, several may
} pinned_t;

static void on_pinned(void *ctx, const Assay__NodeStat *node, const ProtobufCMessage *message)
{
    const Assay__StorePinReply *reply = (const Assay__StorePinReply *)message;
    pinned_t *sum = ctx;
    sum->copies += reply->pinned;
    sum->refused += reply->refused;
    size_t missing = 0;
    for (size_t i = 0; i < sum->keys; i++) { // missing_at is in order
        bool is_missing = missing < reply->n_missing_at && reply->missing_at[missing] == i;
        missing += is_missing;
        sum->is_here[i] |= !is_missing;
    }
    if (reply->refused > 0) {
        cli_complain("%s: %llu blocks are not pinned: hard pins have their share of its memory "
                     "(--pin-max of assay-kvstore); --soft has no bound",
                     name_of(node), (unsigned long long)reply->refused);
    }
}

int cli_pin(int argc, char **argv)
{
    static keys_t keys;
    int rest, code;
    if (!cli_options(&pin, argc, argv, &rest, &code)) {
        return code;
    }
    if (rest == argc) {
        cli_complain("pin: name at least one key (`assay ls --json` shows them)");
        return 2;
    }
    if (!take_keys(argc, argv, rest, &keys)) {
        return 2;
    }
    Assay__StorePinRequest request = ASSAY__STORE_PIN_REQUEST__INIT;
    request.tenant = (uint32_t)tenant;
    request.keys = keys.bytes;
    request.n_keys = keys.count;
    request.level = soft ? ASSAY__PIN_LEVEL__PIN_LEVEL_SOFT : ASSAY__PIN_LEVEL__PIN_LEVEL_HARD;
    static pinned_t sum;
    sum.keys = keys.count;
    code = ask_stores(&(ask_t){"Pin", &request.base, on_pinned, &sum});
    size_t missing = 0;
    for (size_t i = 0; i < keys.count; i++) {
        missing += !sum.is_here[i];
    }
    if (as_json) {
        print_json(json_pack("{s:I, s:I, s:I}", "pinned_blocks", (json_int_t)sum.copies,
                             "refused_blocks", (json_int_t)sum.refused, "missing_keys",
                             (json_int_t)missing));
    } else {
        printf("%llu blocks are pinned\n", (unsigned long long)sum.copies);
    }
    if (missing > 0 && code == 0) {
        cli_complain("%zu of %zu keys are in no store's memory: what is on disk only is not pinned",
                     missing, keys.count);
    }
    return missing > 0 || sum.refused > 0 ? 1 : code;
}

static void on_unpinned(void *ctx, const Assay__NodeStat *node, const ProtobufCMessage *message)
{
    (void)node;
    *(uint64_t *)ctx += ((const Assay__StoreUnpinReply *)message)->unpinned;
}

int cli_unpin(int argc, char **argv)
{
    static keys_t keys;
    int rest, code;
    if (!cli_options(&unpin, argc, argv, &rest, &code)) {
        return code;
    }
    if ((rest < argc) == all) {
        cli_complain("unpin: name keys, or --all");
        return 2;
    }
    if (all && tenant != 0) {
        cli_complain("unpin: --all is the pins of all tenants: leave --tenant out, or name keys");
        return 2;
    }
    if (!take_keys(argc, argv, rest, &keys)) {
        return 2;
    }
    Assay__StoreUnpinRequest request = ASSAY__STORE_UNPIN_REQUEST__INIT;
    request.tenant = (uint32_t)tenant;
    request.keys = keys.bytes;
    request.n_keys = keys.count;
    uint64_t unpinned = 0;
    code = ask_stores(&(ask_t){"Unpin", &request.base, on_unpinned, &unpinned});
    if (as_json) {
        print_json(json_pack("{s:I}", "unpinned_blocks", (json_int_t)unpinned));
    } else {
        printf("%llu blocks are no longer pinned\n", (unsigned long long)unpinned);
    }
    return code;
}

// ---- drop

typedef struct dropped {
    uint64_t blocks;
    bool not_on_disk;
} dropped_t;

static void on_dropped(void *ctx, const Assay__NodeStat *node, const ProtobufCMessage *message)
{
    const Assay__StoreDropReply *reply = (const Assay__StoreDropReply *)message;
    dropped_t *sum = ctx;
    sum->blocks += reply->dropped;
    if (reply->not_on_disk) {
        sum->not_on_disk = true;
        cli_complain("%s: its disk did not take the drop: blocks that are gone from memory may be "
                     "there again at its next start; see to the disk, start the store again and "
                     "drop them once more",
                     name_of(node));
    }
}

int cli_drop(int argc, char **argv)
{
    static keys_t keys;
    as_key_t owner;
    int rest, code;
    if (!cli_options(&drop, argc, argv, &rest, &code)) {
        return code;
    }
    if ((rest < argc) + (namespace_hex != NULL) + all != 1) {
        cli_complain("drop: name keys, or --namespace HEX, or --all");
        return 2;
    }
    if (all && tenant != 0) {
        cli_complain("drop: --all is the blocks of all tenants: leave --tenant out, or drop each "
                     "--namespace "
                     "of the tenant (`assay quota` shows them)");
        return 2;
    }
    Assay__StoreDropRequest request = ASSAY__STORE_DROP_REQUEST__INIT;
    request.tenant = (uint32_t)tenant;
    if (!take_keys(argc, argv, rest, &keys) || !take_namespace(&owner, &request.namespace_key)) {
        return 2;
    }
    request.keys = keys.bytes;
    request.n_keys = keys.count;
    dropped_t dropped = {0};
    code = ask_stores(&(ask_t){"Drop", &request.base, on_dropped, &dropped});
    if (as_json) {
        print_json(json_pack("{s:I, s:b}", "dropped_blocks", (json_int_t)dropped.blocks,
                             "not_on_disk", dropped.not_on_disk));
    } else {
        printf("%llu blocks are dropped\n", (unsigned long long)dropped.blocks);
    }
    return dropped.not_on_disk ? 1 : code;
}

// ---- quota

typedef struct accounts {
    cli_table_t *table; // or
    json_t *json;
} accounts_t;

// hex: NULL for all namespaces of the tenant.
static void account_to_table(cli_table_t *out, const Assay__StoreAccount *account, const char *hex,
                             const char *store)
{
    cli_cell(out, "%s", hex ? hex : "all of the tenant");
    cli_cell(out, "%llu", (unsigned long long)account->blocks);
    cli_cell(out, "%s", cli_bytes((double)account->bytes));
    cli_cell(out, "%s%s", account->quota_bytes ? cli_bytes((double)account->quota_bytes) : "none",
             account->is_default ? "" : " *");
    cli_cell(out, "%u", account->tenant);
    cli_cell(out, "%s", store);
}

// quota_bytes is 0 where there is none.
static json_t *account_to_json(const Assay__StoreAccount *account, const char *hex,
                               const char *store)
{
    return json_pack("{s:s?, s:I, s:I, s:I, s:b, s:I, s:s}", "namespace", hex, "blocks",
                     (json_int_t)account->blocks, "bytes", (json_int_t)account->bytes,
                     "quota_bytes", (json_int_t)account->quota_bytes, "is_default",
                     account->is_default, "tenant", (json_int_t)account->tenant, "store", store);
}

static void on_quota(void *ctx, const Assay__NodeStat *node, const ProtobufCMessage *message)
{
    const Assay__StoreQuotaReply *reply = (const Assay__StoreQuotaReply *)message;
    accounts_t *accounts = ctx;
    for (size_t i = 0; i < reply->n_accounts; i++) {
        const Assay__StoreAccount *account = reply->accounts[i];
        bool has_key = account->namespace_key.len == sizeof(as_key_t);
        char hex[65];
        if (has_key) {
            as_key_t key;
            memcpy(key.bytes, account->namespace_key.data, sizeof(key));
            as_key_hex(&key, hex);
        }
        if (accounts->json) {
            json_array_append_new(accounts->json,
                                  account_to_json(account, has_key ? hex : NULL, name_of(node)));
        } else {
            account_to_table(accounts->table, account, has_key ? hex : NULL, name_of(node));
        }
    }
    if (reply->more) {
        cli_complain("%s has more than %zu namespaces; --namespace shows one", name_of(node),
                     reply->n_accounts);
    }
}

int cli_quota(int argc, char **argv)
{
    static const char *const columns[] = {"NAMESPACE", ">BLOCKS", ">RAM",
                                          ">QUOTA",    ">TENANT", "STORE"};
    as_key_t owner;
    int code;
    if (!cli_options(&quota, argc, argv, NULL, &code)) {
        return code;
    }
    if ((quota_bytes > 0 || reset) && (!namespace_hex || (quota_bytes > 0 && reset))) {
        cli_complain("quota: --bytes or --reset, and with it --namespace HEX");
        return 2;
    }
    Assay__StoreQuotaRequest request = ASSAY__STORE_QUOTA_REQUEST__INIT;
    request.tenant = (uint32_t)tenant;
    if (!take_namespace(&owner, &request.namespace_key)) {
        return 2;
    }
    request.set = quota_bytes > 0;
    request.bytes = (uint64_t)quota_bytes;
    request.reset = reset;
    accounts_t accounts = {.table = as_json ? NULL : cli_table_new(columns, 6),
                           .json = as_json ? json_array() : NULL};
    code = ask_stores(&(ask_t){"Quota", &request.base, on_quota, &accounts});
    if (as_json) {
        print_json(accounts.json);
    } else {
        cli_table_print(accounts.table, stdout);
    }
    return code;
}
