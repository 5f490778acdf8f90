// SPDX-License-Identifier: Apache-2.0
// What a store keeps for each block that it may have, beside the block's bytes in the pool (where a
// checksum of 4 bytes an extent lies, too): what the allocator gives a store of twice as many blocks
// more. Index, descriptors of the pool and all else that grows with blocks are in it. Prints a line
// of JSON.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "kvstore/kvstore.h"

#define BLOCKS (1u << 18)

static void check(as_status_t status, const char *what)
{
    if (status != AS_OK) {
        fprintf(stderr, "bench_index: %s: %s\n", what, as_status_str(status));
        exit(1);
    }
}

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static size_t store_bytes(as_loop_t *loop, uint32_t blocks_max)
{
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    options.loop = loop;
    options.net_alloc = net_alloc;
    options.ram_bytes = (size_t)64 << 20;
    options.blocks_max = blocks_max;
    kvs_store_t *store;
    size_t before = allocated();
    check(kvs_store_alloc(&options, &store), "store");
    size_t after = allocated();
    kvs_store_free(store);
    return after - before;
}

int main(void)
{
    as_loop_t *loop;
    as_log_set_level(AS_LOG_WARN);
    check(as_loop_alloc_uv(&loop), "loop");
    store_bytes(loop, BLOCKS); // UCX keeps something of its first time
    size_t some = store_bytes(loop, BLOCKS), more = store_bytes(loop, 2 * BLOCKS);
    printf("{\"bench\":\"index\",\"blocks\":%u,\"bytes_a_block\":%.1f}\n", BLOCKS,
           ((double)more - (double)some) / BLOCKS);
    as_loop_free(loop);
    return 0;
}
