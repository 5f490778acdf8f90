// SPDX-License-Identifier: Apache-2.0
// Quotas from a file, in force from the start and read again on SIGHUP.
//
// The file is text: a quota a line, as TENANT NAMESPACE BYTES with spaces between; empty lines and
// lines that begin with '#' mean nothing. TENANT is a number (0 where the store has no keys),
// NAMESPACE 64 hexadecimal digits, or '*' for all of the tenant's namespaces together, BYTES a size
// as options take it:
//
//   7  *                    10GiB
//   7  3f09...(64 digits)   2GiB
#ifndef KVS_QUOTA_FILE_H
#define KVS_QUOTA_FILE_H

#include "kvstore/account.h"

#define KVS_QUOTA_ROWS_MAX   512u
#define KVS_QUOTA_FILE_BYTES 65536u
#define KVS_QUOTA_WHY_BYTES  160u

typedef struct kvs_quota_row {
    kvs_owner_t owner; // of all namespaces: the key is zero
    bool is_total;
    size_t bytes;
    uint32_t line;
} kvs_quota_row_t;

typedef struct kvs_quota_rows {
    uint32_t count;
    kvs_quota_row_t rows[KVS_QUOTA_ROWS_MAX];
} kvs_quota_rows_t;

// On an error `why` names the line and what is right, and *rows_p is unspecified.
as_status_t kvs_quota_rows_parse(const char *text, size_t bytes, kvs_quota_rows_t *rows_p,
                                 char why[KVS_QUOTA_WHY_BYTES]) AS_MUST_USE;

#endif
