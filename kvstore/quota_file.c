// SPDX-License-Identifier: Apache-2.0
// Quotas from a file: parsing, and putting them in force as a whole.
#include "kvstore/quota_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/small_file.h"
#include "kvstore/store.h"

#define WORD_BYTES 80u // the longest is a namespace

// ---- parsing

// The next word of a line; "" at its end. False: it is too long for any that is right.
static bool next_word(const char **at, const char *end, char word[WORD_BYTES])
{
    size_t bytes = 0;
    while (*at < end && strchr(" \t\r", **at)) {
        (*at)++;
    }
    while (*at < end && !strchr(" \t\r", **at)) {
        if (bytes + 1 == WORD_BYTES) {
            return false;
        }
        word[bytes++] = *(*at)++;
    }
    word[bytes] = '\0';
    return true;
}

static bool take_tenant(const char *word, uint32_t *tenant_p)
{
    uint64_t tenant = 0;
    size_t digits = strspn(word, "0123456789");
    if (digits == 0 || digits > 10 || word[digits] != '\0') {
        return false;
    }
    for (size_t i = 0; i < digits; i++) {
        tenant = tenant * 10 + (uint64_t)(word[i] - '0');
    }
    *tenant_p = (uint32_t)tenant;
    return tenant <= UINT32_MAX;
}

// NULL, or what the line should be.
static const char *take_line(const char *at, const char *end, kvs_quota_row_t *row_p)
{
    char tenant[WORD_BYTES], name[WORD_BYTES], size[WORD_BYTES], more[WORD_BYTES];
    if (!next_word(&at, end, tenant) || !next_word(&at, end, name) || !next_word(&at, end, size) ||
        !next_word(&at, end, more) || !size[0] || more[0]) {
        return "must be TENANT NAMESPACE BYTES, such as `7 * 10GiB`";
    }
    int64_t bytes;
    kvs_quota_row_t row = {.is_total = strcmp(name, "*") == 0};
    if (!take_tenant(tenant, &row.owner.tenant)) {
        return "begins with no tenant: a number, 0 where the store has no --cluster-key";
    }
    if (!row.is_total && as_key_parse(name, &row.owner.namespace_key) != AS_OK) {
        return "names no namespace: 64 hexadecimal digits as `assay ls --json` shows, or *";
    }
    if (!as_option_parse_bytes(size, &bytes) || bytes <= 0) {
        return "ends with no size above 0, such as 512MiB; for no quota leave the line out";
    }
    row.bytes = (size_t)bytes;
    *row_p = row;
    return NULL;
}

static const kvs_quota_row_t *find(const kvs_quota_rows_t *rows, const kvs_quota_row_t *row)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        const kvs_quota_row_t *other = &rows->rows[i];
        if (other->is_total == row->is_total && other->owner.tenant == row->owner.tenant &&
            as_key_equal(&other->owner.namespace_key, &row->owner.namespace_key)) {
            return other;
        }
    }
    return NULL;
}

static as_status_t add(kvs_quota_rows_t *rows, const kvs_quota_row_t *row, char *why)
{
    const kvs_quota_row_t *before = find(rows, row);
    if (before) {
        snprintf(why, KVS_QUOTA_WHY_BYTES, "line %u is of the same as line %u: leave one out",
                 row->line, before->line);
        return AS_ERR_INVALID;
    }
    if (rows->count == KVS_QUOTA_ROWS_MAX) {
        snprintf(why, KVS_QUOTA_WHY_BYTES, "line %u is one quota too many: %u at most", row->line,
                 KVS_QUOTA_ROWS_MAX);
        return AS_ERR_LIMIT;
    }
    rows->rows[rows->count++] = *row;
    return AS_OK;
}

as_status_t kvs_quota_rows_parse(const char *text, size_t bytes, kvs_quota_rows_t *rows_p,
                                 char why[KVS_QUOTA_WHY_BYTES])
{
    uint32_t line = 0;
    as_status_t status = AS_OK;
    rows_p->count = 0;
    for (const char *at = text, *end = text + bytes, *next; at < end && status == AS_OK;
         at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        next = stop + (stop < end);
        line++;
        while (at < stop && strchr(" \t\r", *at)) {
            at++;
        }
        if (at == stop || *at == '#') {
            continue;
        }
        kvs_quota_row_t row;
        const char *fault = take_line(at, stop, &row);
        if (fault) {
            snprintf(why, KVS_QUOTA_WHY_BYTES, "line %u %s", line, fault);
            return AS_ERR_INVALID;
        }
        row.line = line;
        status = add(rows_p, &row, why);
    }
    return status;
}

// ---- in force

struct kvs_quotas {
    kvs_quota_rows_t now, next;
    char text[KVS_QUOTA_FILE_BYTES + 1];
};

static as_status_t read_next(kvs_quotas_t *quotas, const char *path, char *why)
{
    size_t bytes = 0;
    as_status_t status = as_file_read(path, quotas->text, KVS_QUOTA_FILE_BYTES, &bytes);
    if (status != AS_OK) {
        snprintf(why, KVS_QUOTA_WHY_BYTES, "%s", strerror(errno));
        return status;
    }
    return kvs_quota_rows_parse(quotas->text, bytes, &quotas->next, why);
}

// All of them or none.
static as_status_t use_next(kvs_store_t *store, char *why)
{
    kvs_quotas_t *quotas = store->quotas;
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    uint32_t own = 0;
    for (uint32_t i = 0; i < quotas->next.count; i++) {
        const kvs_quota_row_t *row = &quotas->next.rows[i];
        own += !row->is_total && kvs_account_find(accounts, &row->owner) == KVS_ACCOUNT_NONE;
    }
    if (!kvs_accounts_have_room(accounts, own)) {
        snprintf(why, KVS_QUOTA_WHY_BYTES,
                 "too many namespaces have blocks or quotas: name fewer, or all of a tenant by *");
        return AS_ERR_BUSY;
    }
    for (uint32_t i = 0; i < quotas->now.count; i++) {
        const kvs_quota_row_t *row = &quotas->now.rows[i];
        if (!find(&quotas->next, row)) {
            as_status_t status = row->is_total
                                     ? kvs_store_set_total(store, row->owner.tenant, KVS_QUOTA_NONE)
                                     : kvs_store_set_quota(store, &row->owner, KVS_QUOTA_NONE);
            AS_ASSERT(status == AS_OK);
        }
    }
    for (uint32_t i = 0; i < quotas->next.count; i++) {
        const kvs_quota_row_t *row = &quotas->next.rows[i];
        as_status_t status = row->is_total
                                 ? kvs_store_set_total(store, row->owner.tenant, row->bytes)
                                 : kvs_store_set_quota(store, &row->owner, row->bytes);
        AS_ASSERT(status == AS_OK); // there is room
    }
    quotas->now = quotas->next;
    as_metric_set(&kvs_metrics[KVS_METRIC_QUOTA_ROWS], quotas->now.count);
    return AS_OK;
}

static as_status_t take(kvs_store_t *store)
{
    const char *path = store->options.quota_file;
    char why[KVS_QUOTA_WHY_BYTES];
    as_status_t status = read_next(store->quotas, path, why);
    if (status == AS_OK) {
        status = use_next(store, why);
    }
    as_metric_add(
        &kvs_metrics[status == AS_OK ? KVS_METRIC_QUOTAS_TAKEN : KVS_METRIC_QUOTAS_REFUSED], 1);
    if (status == AS_OK) {
        AS_INFO("kvstore", "--quota-file %s: %u quotas are in force", path,
                store->quotas->now.count);
    } else {
        AS_ERROR("kvstore", "--quota-file %s: %s", path, why);
    }
    return status;
}

as_status_t kvs_quotas_alloc(kvs_store_t *store)
{
    if (!store->options.quota_file) {
        return AS_OK;
    }
    store->quotas = as_mem_zalloc(1, sizeof(*store->quotas));
    if (!store->quotas) {
        return AS_ERR_NO_MEMORY;
    }
    return take(store) == AS_OK ? AS_OK : AS_ERR_CONFIG;
}

void kvs_quotas_free(kvs_store_t *store)
{
    as_mem_free(store->quotas);
    store->quotas = NULL;
}

void kvs_quotas_reload(kvs_store_t *store)
{
    if (store->quotas && take(store) != AS_OK) {
        AS_WARN("kvstore", "the quotas in force are kept");
    }
}
