// SPDX-License-Identifier: Apache-2.0
// The chain that `assay get` reads from a file. What is taken is bounded, and printed and read again it is
// the same.
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/block.h"

void cli_complain(const char *format, ...)
{
    (void)format;
}

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cli_chain_t chain = {0}, again = {0};
    json_error_t error;
    json_t *json = json_loadb((const char *)data, bytes, 0, &error);
    if (json && cli_chain_take(json, &chain)) {
        size_t block_bytes = assay_block_bytes(&chain.shape);
        check(block_bytes > 0 && chain.count > 0 && chain.count <= AS_CHAIN_BLOCKS_MAX);
        check(chain.bytes <= (uint64_t)chain.count * block_bytes &&
              chain.bytes > (uint64_t)(chain.count - 1) * block_bytes);
        json_t *printed = cli_chain_json(&chain);
        check(printed && cli_chain_take(printed, &again));
        check(again.count == chain.count && again.bytes == chain.bytes &&
              memcmp(&again.shape, &chain.shape, sizeof(chain.shape)) == 0 &&
              memcmp(again.keys, chain.keys, (size_t)chain.count * CLI_KEY_BYTES) == 0);
        json_decref(printed);
    }
    json_decref(json);
    cli_chain_fini(&chain);
    cli_chain_fini(&again);
    return 0;
}
