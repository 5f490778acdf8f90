// SPDX-License-Identifier: Apache-2.0
// Puts numbered blocks into one store and reads them back, for tests that kill the store.
//
//   store_load put HOST:PORT NODE_ID FIRST COUNT   one line for each block that the store has taken:
//                                        "durable N" (even numbers) or "taken N"; ends with the store
//   store_load check HOST:PORT NODE_ID   reads numbers from stdin; a line for each: "right N",
//                                        "missing N" or "wrong N"
//
// "small" before the command: blocks of 2 KiB, and none of them durable.
//
// A block's key and bytes follow from its number alone. Exit code: 0, or 1 when the store was lost.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "common/log.h"
#include "common/mem.h"
#include "tests/tools/numbered.h"

#define IN_FLIGHT   8u
#define DEADLINE_US 10000000u
#define NUMBERS_MAX 1000000u

typedef struct load load_t;

typedef struct slot {
    load_t *load;
    uint32_t number;
    bool busy, wrong;
    uint8_t *bytes;
    assay_fetch_t *fetch;
} slot_t;

struct load {
    as_loop_t *loop;
    assay_client_t *client;
    as_shape_t shape;
    bool checks, small;
    uint32_t *numbers; // to do
    uint32_t next, count, busy;
    bool lost;
    as_task_t pump;
    as_timer_t *retry;
    slot_t slots[IN_FLIGHT];
};

// At once, so that a line that was read is one that was written before the store was killed.
static void say(const char *what, uint32_t number)
{
    char line[64];
    int bytes = snprintf(line, sizeof(line), "%s %u\n", what, number);
    if (write(STDOUT_FILENO, line, (size_t)bytes) != bytes) {
        exit(1);
    }
}

static void end(slot_t *slot)
{
    slot->busy = false;
    slot->load->busy--;
    as_loop_post(slot->load->loop, &slot->load->pump);
}

// ---- put

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    slot_t *slot = ctx;
    if (status == AS_OK || status == AS_ERR_EXISTS) {
        say(!slot->load->small && slot->number % 2 == 0 ? "durable" : "taken", slot->number);
    } else if (status == AS_ERR_CONFLICT) {
        say("conflict", slot->number);
    } else if (status != AS_ERR_BUSY) {
        slot->load->lost |= status == AS_ERR_PEER_LOST || status == AS_ERR_UNREACHABLE;
        say("failed", slot->number);
    }
    end(slot);
}

static as_status_t put(slot_t *slot)
{
    const load_t *load = slot->load;
    numbered_fill(&load->shape, slot->number, slot->bytes);
    as_key_t key = numbered_key(slot->number), ns = {{NUMBERED_NAMESPACE}};
    assay_put_t *started;
    const assay_put_args_t args = {.shape = load->shape,
                                   .namespace_key = ns,
                                   .key = key,
                                   .parent = ns,
                                   .run_key = key,
                                   .token_count = load->shape.block_tokens,
                                   .block = slot->bytes,
                                   .durable = !load->small && slot->number % 2 == 0,
                                   .deadline_us = DEADLINE_US,
                                   .on_done = on_put,
                                   .ctx = slot};
    return assay_put_start(load->client, &args, &started);
}

// ---- check

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    (void)block_count;
}

static void on_layer(void *ctx, uint32_t layer)
{
    slot_t *slot = ctx;
    size_t extent = as_extent_bytes(&slot->load->shape);
    uint8_t *expected = as_mem_alloc(as_block_bytes(&slot->load->shape));
    numbered_fill(&slot->load->shape, slot->number, expected);
    slot->wrong |= memcmp(slot->bytes + layer * extent, expected + layer * extent, extent) != 0;
    as_mem_free(expected);
    assay_fetch_release(slot->fetch, layer);
}

static void on_fetched(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    slot_t *slot = ctx;
    slot->load->lost |= status == AS_ERR_PEER_LOST || status == AS_ERR_UNREACHABLE;
    say(slot->wrong ? "wrong" : status == AS_OK ? "right" : "missing", slot->number);
    end(slot);
}

static as_status_t check(slot_t *slot)
{
    const load_t *load = slot->load;
    as_key_t key = numbered_key(slot->number);
    slot->wrong = false;
    const assay_fetch_args_t args = {.shape = load->shape,
                                     .keys = &key,
                                     .block_count = 1,
                                     .deadline_us = DEADLINE_US,
                                     .buffer = slot->bytes,
                                     .layer_stride = as_extent_bytes(&load->shape),
                                     .layer_slots = load->shape.layers,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_fetched,
                                     .ctx = slot};
    return assay_fetch_start(load->client, &args, &slot->fetch);
}

// ---- both

static void on_pump(void *ctx)
{
    load_t *load = ctx;
    for (uint32_t i = 0; i < IN_FLIGHT && load->next < load->count && !load->lost; i++) {
        slot_t *slot = &load->slots[i];
        if (slot->busy) {
            continue;
        }
        slot->number = load->numbers[load->next];
        as_status_t status = load->checks ? check(slot) : put(slot);
        if (status == AS_ERR_BUSY) {
            as_timer_start(load->retry, 1000);
            return;
        }
        if (status != AS_OK) {
            load->lost = true;
            break;
        }
        load->next++;
        load->busy++;
        slot->busy = true;
    }
    if (load->busy == 0 && (load->lost || load->next == load->count)) {
        as_loop_stop(load->loop);
    }
}

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static bool begin(load_t *load, const char *address, const char *node_id)
{
    load->shape = load->small ? numbered_small_shape() : numbered_shape();
    assay_client_options_t options;
    assay_client_options_init(&options);
    if (as_loop_alloc_uv(&load->loop) != AS_OK) {
        return false;
    }
    options.loop = load->loop;
    options.net_alloc = net_alloc;
    assay_store_t store = {.node_id = strtoull(node_id, NULL, 16), .capacity_bytes = 1};
    snprintf(store.data_address, sizeof(store.data_address), "%s", address);
    if (assay_client_alloc(&options, &load->client) != AS_OK ||
        as_timer_alloc(load->loop, on_pump, load, &load->retry) != AS_OK) {
        return false;
    }
    assay_client_set_stores(load->client, &store, 1);
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        load->slots[i].load = load;
        load->slots[i].bytes = as_mem_alloc(as_block_bytes(&load->shape));
    }
    load->pump = (as_task_t){.fn = on_pump, .ctx = load};
    return true;
}

static void finish(load_t *load)
{
    assay_client_free(load->client);
    as_timer_free(load->retry);
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        as_mem_free(load->slots[i].bytes);
    }
    as_mem_free(load->numbers);
    as_loop_free(load->loop);
}

static bool read_arguments(load_t *load, int argc, char **argv)
{
    load->numbers = as_mem_alloc(NUMBERS_MAX * sizeof(uint32_t));
    load->checks = argc == 4 && strcmp(argv[1], "check") == 0;
    if (load->checks) {
        while (load->count < NUMBERS_MAX && scanf("%u", &load->numbers[load->count]) == 1) {
            load->count++;
        }
    } else if (argc == 6 && strcmp(argv[1], "put") == 0) {
        uint32_t first = (uint32_t)atol(argv[4]);
        for (uint32_t count = (uint32_t)atol(argv[5]); load->count < count; load->count++) {
            load->numbers[load->count] = first + load->count;
        }
    } else {
        fprintf(stderr, "usage: store_load [small] put HOST:PORT NODE_ID FIRST COUNT\n"
                        "       store_load [small] check HOST:PORT NODE_ID <numbers\n");
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static load_t load;
    as_log_set_level(AS_LOG_ERROR);
    load.small = argc > 1 && strcmp(argv[1], "small") == 0;
    argc -= load.small;
    argv += load.small;
    if (!read_arguments(&load, argc, argv)) {
        return 2;
    }
    if (!begin(&load, argv[2], argv[3])) {
        return 1;
    }
    as_loop_post(load.loop, &load.pump);
    as_loop_run(load.loop);
    bool lost = load.lost;
    finish(&load);
    return lost ? 1 : 0;
}
