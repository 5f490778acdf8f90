// SPDX-License-Identifier: Apache-2.0
// A crowd of clients at one store, each with a network of its own, as so many processes would have.
//
//     crowd HOST:PORT NODE_ID COUNT
//
// Each client reads block 0 of tests/tools/store_load.c, some at a time, and stays connected; then a line
// of JSON says how it went. A line on stdin: all read it again. Ends with stdin.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/client.h"
#include "common/log.h"
#include "common/mem.h"
#include "tests/tools/numbered.h"

#define AT_ONCE     16u
#define DEADLINE_US 20000000u
#define LISTEN_US   20000u // to stdin
#define COUNT_MAX   4096

typedef struct crowd crowd_t;

typedef struct member {
    crowd_t *crowd;
    assay_client_t *client;
    assay_fetch_t *fetch;
    uint8_t *bytes;
} member_t;

struct crowd {
    as_loop_t *loop;
    as_timer_t *listen;
    as_task_t pump;
    as_shape_t shape;
    assay_store_t store;
    member_t *members;
    uint8_t *expected;
    uint32_t count, next, busy;
    uint32_t right, wrong, failed;
};

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    (void)block_count;
}

static void on_layer(void *ctx, uint32_t layer)
{
    assay_fetch_release(((member_t *)ctx)->fetch, layer);
}

static void on_fetched(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    member_t *member = ctx;
    crowd_t *crowd = member->crowd;
    bool same = memcmp(member->bytes, crowd->expected, as_block_bytes(&crowd->shape)) == 0;
    crowd->right += status == AS_OK && same;
    crowd->wrong += status == AS_OK && !same;
    crowd->failed += status != AS_OK;
    as_mem_free(member->bytes);
    member->bytes = NULL;
    crowd->busy--;
    as_loop_post(crowd->loop, &crowd->pump);
}

static as_status_t member_begin(member_t *member)
{
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = member->crowd->loop;
    options.net_alloc = net_alloc;
    options.connect_timeout_us = options.stall_timeout_us = DEADLINE_US; // hundreds share a loop
    as_status_t status = assay_client_alloc(&options, &member->client);
    if (status == AS_OK) {
        assay_client_set_stores(member->client, &member->crowd->store, 1);
    }
    return status;
}

static as_status_t member_read(member_t *member)
{
    crowd_t *crowd = member->crowd;
    as_key_t key = numbered_key(0);
    as_status_t status = member->client ? AS_OK : member_begin(member);
    if (status != AS_OK) {
        return status;
    }
    member->bytes = as_mem_zalloc(1, as_block_bytes(&crowd->shape));
    const assay_fetch_args_t args = {.shape = crowd->shape,
                                     .keys = &key,
                                     .block_count = 1,
                                     .deadline_us = DEADLINE_US,
                                     .buffer = member->bytes,
                                     .layer_stride = as_extent_bytes(&crowd->shape),
                                     .layer_slots = crowd->shape.layers,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_fetched,
                                     .ctx = member};
    status = assay_fetch_start(member->client, &args, &member->fetch);
    if (status != AS_OK) {
        as_mem_free(member->bytes);
        member->bytes = NULL;
    }
    return status;
}

static void report(crowd_t *crowd)
{
    printf("{\"right\":%u,\"wrong\":%u,\"failed\":%u}\n", crowd->right, crowd->wrong,
           crowd->failed);
    fflush(stdout);
    crowd->right = crowd->wrong = crowd->failed = 0;
    as_timer_start(crowd->listen, LISTEN_US);
}

static void on_pump(void *ctx)
{
    crowd_t *crowd = ctx;
    while (crowd->next < crowd->count && crowd->busy < AT_ONCE) {
        member_t *member = &crowd->members[crowd->next++];
        member->crowd = crowd;
        bool started = member_read(member) == AS_OK;
        crowd->busy += started;
        crowd->failed += !started;
    }
    if (crowd->busy == 0 && crowd->next == crowd->count) {
        report(crowd);
    }
}

// Meanwhile the clients keep their connections.
static void on_listen(void *ctx)
{
    crowd_t *crowd = ctx;
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    char line[64];
    if (poll(&input, 1, 0) == 0) {
        as_timer_start(crowd->listen, LISTEN_US);
    } else if (read(STDIN_FILENO, line, sizeof(line)) > 0) {
        crowd->next = 0;
        as_loop_post(crowd->loop, &crowd->pump);
    } else {
        as_loop_stop(crowd->loop);
    }
}

int main(int argc, char **argv)
{
    static crowd_t crowd;
    crowd.count = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    if (crowd.count == 0 || crowd.count > COUNT_MAX) {
        fprintf(stderr, "usage: crowd HOST:PORT NODE_ID COUNT\n");
        return 2;
    }
    as_log_set_level(AS_LOG_WARN);
    crowd.store = (assay_store_t){.node_id = strtoull(argv[2], NULL, 16), .capacity_bytes = 1};
    snprintf(crowd.store.data_address, sizeof(crowd.store.data_address), "%s", argv[1]);
    crowd.shape = numbered_shape();
    crowd.members = as_mem_zalloc(crowd.count, sizeof(member_t));
    crowd.expected = as_mem_alloc(as_block_bytes(&crowd.shape));
    if (as_loop_alloc_uv(&crowd.loop) != AS_OK ||
        as_timer_alloc(crowd.loop, on_listen, &crowd, &crowd.listen) != AS_OK) {
        return 1;
    }
    numbered_fill(&crowd.shape, 0, crowd.expected);
    crowd.pump = (as_task_t){.fn = on_pump, .ctx = &crowd};
    as_loop_post(crowd.loop, &crowd.pump);
    as_loop_run(crowd.loop);
    for (uint32_t i = 0; i < crowd.count; i++) {
        if (crowd.members[i].client) {
            assay_client_free(crowd.members[i].client);
        }
    }
    as_timer_free(crowd.listen);
    as_loop_free(crowd.loop);
    as_mem_free(crowd.members);
    as_mem_free(crowd.expected);
    return 0;
}
