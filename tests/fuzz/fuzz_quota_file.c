// SPDX-License-Identifier: Apache-2.0
// Quota files: any text is rows within their limits, or an error with a reason.
#include <stdint.h>

#include "common/assert.h"
#include "kvstore/quota_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static kvs_quota_rows_t rows;
    char why[KVS_QUOTA_WHY_BYTES] = "";
    if (kvs_quota_rows_parse((const char *)data, bytes, &rows, why) != AS_OK) {
        AS_ASSERT(why[0]);
        return 0;
    }
    AS_ASSERT(rows.count <= KVS_QUOTA_ROWS_MAX);
    for (uint32_t i = 0; i < rows.count; i++) {
        AS_ASSERT(rows.rows[i].bytes > 0 && rows.rows[i].line > (i ? rows.rows[i - 1].line : 0));
    }
    return 0;
}
