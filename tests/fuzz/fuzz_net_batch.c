// SPDX-License-Identifier: Apache-2.0
// Many messages in one: whatever comes is told apart without a look beyond it, and written again it is
// the same.
#include <stdlib.h>

#include "common/net_batch.h"

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    // In memory of exactly its size, so that a read beyond it is seen.
    uint8_t *input = malloc(bytes > 0 ? bytes : 1), *again = malloc(bytes > 0 ? bytes : 1);
    size_t done = 0, used = 0, header_bytes;
    if (bytes > 0) {
        memcpy(input, data, bytes);
    }
    for (const void *header; done < bytes;) {
        header = as_net_batch_next(input, bytes, &done, &header_bytes);
        if (!header) {
            break;
        }
        check(as_net_batch_add(again, &used, bytes, header, header_bytes));
        check(used == done && done <= bytes);
    }
    check(memcmp(input, again, used) == 0);
    free(input);
    free(again);
    return 0;
}
