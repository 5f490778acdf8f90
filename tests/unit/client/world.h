// SPDX-License-Identifier: Apache-2.0
// What the tests of client and store share: stores and a client in one process, on one loop, over
// UCX or over the simulated network; a chain of blocks whose bytes follow from their keys; and puts
// and fetches that are waited for.
#ifndef WORLD_H
#define WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/client.h"
#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/net_sim.h"
#include "kvstore/kvstore.h"

#define WORLD_STORES_MAX 4u
#define WORLD_BLOCKS_MAX 64u
#define WAIT_US          20000000u // of real time: no test may wait longer
// What may take long on a busy machine and is not to fail there: connecting, a put, a fetch.
#define PATIENCE_US 15000000u

typedef struct world {
    as_loop_t *loop;
    as_sim_t *sim; // NULL: UCX
    kvs_store_t *stores[WORLD_STORES_MAX];
    char addresses[WORLD_STORES_MAX][32];   // that they have, or had
    as_net_t *store_nets[WORLD_STORES_MAX]; // the simulation's, for its faults
    as_net_t *peer_nets[WORLD_STORES_MAX];  // on which stores connect to others; NULL: they did not
    as_net_t *client_net;
    uint32_t store_count;
    assay_client_t *client;
    as_shape_t shape;
    bool durable;      // of the puts that follow
    uint32_t ttl_ms;   // too
    uint32_t replicas; // of the puts that follow; 0: the cluster's
    uint32_t tenant;   // of puts and fetches that follow
    uint8_t twist;     // of the first byte of the blocks that they put
    bool copying;      // they are copies of what a store has, with the checksums of the right bytes
    as_key_t namespace_key;
    as_key_t keys[WORLD_BLOCKS_MAX];
} world_t;

typedef struct world_options {
    bool sim;
    bool messages; // of the simulation: no one-sided reads, as over TCP
    uint64_t seed;
    uint32_t stores;
    kvs_store_options_t store; // loop and net are set here
    assay_client_options_t client;
    as_shape_t shape; // layers 0: a small one
} world_options_t;

static inline world_options_t world_defaults(bool sim)
{
    world_options_t options = {.sim = sim, .seed = 1, .stores = 1};
    kvs_store_options_init(&options.store);
    options.store.ram_bytes = 16u << 20;
    assay_client_options_init(&options.client);
    if (!sim) {
        options.client.connect_timeout_us = options.client.stall_timeout_us = PATIENCE_US;
    }
    options.shape = (as_shape_t){4, 4, 2, 16, 16, AS_ELEMENT_F16};
    return options;
}

typedef struct world_net {
    world_t *world;
    uint32_t store; // WORLD_STORES_MAX: the client's
    bool is_peer;
} world_net_t;

static inline as_status_t world_net_alloc(void *ctx, as_loop_t *loop,
                                          const as_net_handlers_t *handlers, as_net_t **net_p)
{
    const world_net_t *which = ctx;
    world_t *world = which->world;
    if (!world->sim) {
        return as_net_alloc_ucx(loop, handlers, net_p);
    }
    char name[16];
    snprintf(name, sizeof(name), which->store < WORLD_STORES_MAX ? "store%u" : "client",
             which->store);
    as_status_t status = as_net_alloc_sim(world->sim, name, handlers, net_p);
    if (status == AS_OK) {
        as_net_t **known = which->store == WORLD_STORES_MAX ? &world->client_net
                           : which->is_peer                 ? &world->peer_nets[which->store]
                                                            : &world->store_nets[which->store];
        *known = *net_p;
    }
    return status;
}

// Byte i of layer `layer` of block `block`. As f16 each two are a number between -2 and 2.
static inline uint8_t world_byte(uint32_t block, uint32_t layer, size_t i)
{
    uint8_t byte = (uint8_t)(i * 7 + (i >> 8) * 3 + block * 31 + layer * 101 + 5);
    return i % 2 == 1 ? byte & 0xbf : byte;
}

static inline void world_fill(const world_t *world, uint32_t block, uint8_t *bytes)
{
    size_t extent = as_extent_bytes(&world->shape);
    for (uint32_t layer = 0; layer < world->shape.layers; layer++) {
        for (size_t i = 0; i < extent; i++) {
            bytes[layer * extent + i] = world_byte(block, layer, i);
        }
    }
}

static inline void world_tell_stores(world_t *world)
{
    assay_store_t stores[WORLD_STORES_MAX];
    uint32_t count = 0;
    memset(stores, 0, sizeof(stores));
    for (uint32_t i = 0; i < world->store_count; i++) {
        if (world->stores[i]) {
            stores[count].node_id = kvs_store_node_id(world->stores[i]);
            snprintf(stores[count].data_address, sizeof(stores[count].data_address), "%s",
                     kvs_store_address(world->stores[i]));
            stores[count++].capacity_bytes = 1u << 30;
        }
    }
    assay_client_set_stores(world->client, stores, count);
}

// Listens at the port of an address of loopback, so that nobody else is given it. -1: there was none, or it is not free.
static inline int world_port_hold(const char *address)
{
    const char *colon = strrchr(address, ':');
    const int yes = 1;
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons((uint16_t)(colon ? atoi(colon + 1) : 0))};
    int fd = colon ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0 &&
        (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
         bind(fd, (const struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 1) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// One that is started again gets another address: at the one it had, clients that saw it go refuse it for a while.
static inline as_status_t world_store_start(world_t *world, uint32_t i,
                                            const kvs_store_options_t *from)
{
    static world_net_t which[WORLD_STORES_MAX], peer[WORLD_STORES_MAX];
    kvs_store_options_t options = *from;
    char address[24] = "127.0.0.1:0";
    which[i] = (world_net_t){world, i, false};
    peer[i] = (world_net_t){world, i, true};
    world->peer_nets[i] = NULL;
    if (world->sim) {
        snprintf(address, sizeof(address), "store%u:0", i);
    }
    options.loop = world->loop;
    options.net_alloc = world_net_alloc;
    options.net_ctx = &which[i];
    options.peer_net_ctx = &peer[i];
    options.data_address = address;
    options.instance_id[0] = (uint8_t)(i + 1);
    int held = world->sim ? -1 : world_port_hold(world->addresses[i]);
    as_status_t status = kvs_store_alloc(&options, &world->stores[i]);
    if (held >= 0) {
        close(held);
    }
    if (status == AS_OK) {
        snprintf(world->addresses[i], sizeof(world->addresses[i]), "%s",
                 kvs_store_address(world->stores[i]));
    }
    return status;
}

// The chain of the puts and fetches that follow: the same tokens, in this namespace.
static inline void world_use_namespace(world_t *world, const char *numerics)
{
    const as_namespace_t ns = {.shape = world->shape, .numerics_id = numerics};
    as_namespace_key(&ns, &world->namespace_key);
    int32_t tokens[WORLD_BLOCKS_MAX * AS_BLOCK_TOKENS_MAX];
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        tokens[i] = (int32_t)(i * 17 % 1000);
    }
    uint32_t made =
        as_chain_keys(&world->namespace_key, tokens, WORLD_BLOCKS_MAX * world->shape.block_tokens,
                      world->shape.block_tokens, world->keys, WORLD_BLOCKS_MAX);
    assert_int_equal(made, WORLD_BLOCKS_MAX);
}

static inline void world_open(world_t *world, const world_options_t *options)
{
    static world_net_t which;
    memset(world, 0, sizeof(*world));
    world->shape = options->shape;
    if (options->sim) {
        assert_int_equal(as_loop_alloc_sim(&world->loop), AS_OK);
        assert_int_equal(as_sim_alloc(world->loop, options->seed, &world->sim), AS_OK);
        as_sim_set_onesided(world->sim, !options->messages);
    } else {
        assert_int_equal(as_loop_alloc_uv(&world->loop), AS_OK);
    }
    world->store_count = options->stores;
    for (uint32_t i = 0; i < options->stores; i++) {
        assert_int_equal(world_store_start(world, i, &options->store), AS_OK);
    }
    assay_client_options_t client = options->client;
    which = (world_net_t){world, WORLD_STORES_MAX, false};
    client.loop = world->loop;
    client.net_alloc = world_net_alloc;
    client.net_ctx = &which;
    assert_int_equal(assay_client_alloc(&client, &world->client), AS_OK);
    world_tell_stores(world);
    world_use_namespace(world, "test");
}

static inline void world_close(world_t *world)
{
    as_fault_clear();
    assay_client_free(world->client);
    for (uint32_t i = 0; i < world->store_count; i++) {
        kvs_store_free(world->stores[i]);
    }
    as_sim_free(world->sim);
    as_loop_free(world->loop);
}

// Without a word to anybody.
static inline void world_store_lose(world_t *world, uint32_t store)
{
    if (world->sim) {
        as_sim_kill(world->sim, world->store_nets[store]);
    }
    kvs_store_free(world->stores[store]);
    world->stores[store] = NULL;
}

// Runs the loop until *flag, or for WAIT_US of the loop's time. True: the flag came.
static inline bool world_run(world_t *world, const bool *flag)
{
    uint64_t end_us = as_loop_now_us(world->loop) + WAIT_US;
    while (!*flag && as_loop_now_us(world->loop) < end_us) {
        if (!as_loop_run_once(world->loop, true) && !*flag) {
            return false; // nothing can happen any more
        }
    }
    return *flag;
}

static inline void world_tick(void *ctx)
{
    (void)ctx;
}

// For the end of main: the same program once more, which reads by messages. A process of its own, since
// UCX reads its settings once. Returns when it cannot be run.
static inline int world_again_by_tcp(const char *program)
{
    setenv("UCX_TLS", "tcp", 1);
    fflush(NULL);
    execl("/proc/self/exe", program, "tcp", (char *)NULL);
    return 1;
}

// Lets time pass.
static inline void world_pass(world_t *world, uint64_t us)
{
    uint64_t end_us = as_loop_now_us(world->loop) + us;
    as_timer_t *timer;
    assert_int_equal(as_timer_alloc(world->loop, world_tick, NULL, &timer), AS_OK);
    as_timer_start(timer, us);
    while (as_loop_now_us(world->loop) < end_us) {
        as_loop_run_once(world->loop, true);
    }
    as_timer_free(timer);
}

// Of puts and fetches that name none.
static inline uint64_t world_deadline_us(const world_t *world)
{
    return world->sim ? 5000000 : PATIENCE_US;
}

// ---- puts

typedef struct put_result {
    bool done;
    as_status_t status;
    uint64_t node_id;
    uint32_t copies;
    uint8_t *bytes;
} put_result_t;

static inline void on_put_done(void *ctx, as_status_t status, uint64_t node_id)
{
    put_result_t *result = ctx;
    assert_false(result->done);
    result->done = true;
    result->status = status;
    result->node_id = node_id;
    free(result->bytes);
    result->bytes = NULL;
}

static inline as_status_t put_start(world_t *world, uint32_t block, uint64_t deadline_us,
                                    put_result_t *result, assay_put_t **put_p)
{
    memset(result, 0, sizeof(*result));
    result->bytes = malloc(as_block_bytes(&world->shape));
    world_fill(world, block, result->bytes);
    size_t extent = as_extent_bytes(&world->shape);
    uint32_t crcs[AS_LAYERS_MAX];
    for (uint32_t layer = 0; layer < world->shape.layers; layer++) {
        crcs[layer] = as_crc32c(0, result->bytes + layer * extent, extent);
    }
    result->bytes[0] ^= world->twist;
    const assay_put_args_t args = {
        .shape = world->shape,
        .namespace_key = world->namespace_key,
        .key = world->keys[block],
        .parent = block > 0 ? world->keys[block - 1] : world->namespace_key,
        .run_key = world->keys[block / AS_RUN_BLOCKS * AS_RUN_BLOCKS],
        .token_count = world->shape.block_tokens,
        .block = result->bytes,
        .crcs = world->copying ? crcs : NULL,
        .extent_bytes = world->copying ? extent : 0,
        .durable = world->durable,
        .ttl_ms = world->ttl_ms,
        .tenant = world->tenant,
        .replicas = world->replicas,
        .copies_p = &result->copies,
        .deadline_us = deadline_us,
        .on_done = on_put_done,
        .ctx = result,
    };
    as_status_t status = assay_put_start(world->client, &args, put_p);
    if (status != AS_OK) {
        free(result->bytes);
        result->bytes = NULL;
    }
    return status;
}

static inline as_status_t put_block(world_t *world, uint32_t block)
{
    put_result_t result;
    assay_put_t *put;
    as_status_t status = put_start(world, block, world_deadline_us(world), &result, &put);
    if (status != AS_OK) {
        return status;
    }
    assert_true(world_run(world, &result.done));
    return result.status;
}

// As a worker does that is told BUSY: again, a little later.
static inline as_status_t put_until_it_fits(world_t *world, uint32_t block)
{
    as_status_t status = put_block(world, block);
    for (uint32_t i = 0; status == AS_ERR_BUSY && i < 10; i++) {
        world_pass(world, 1000);
        status = put_block(world, block);
    }
    return status;
}

static inline void put_chain(world_t *world, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(put_block(world, i), AS_OK);
    }
}

// ---- fetches

typedef struct fetch_result {
    world_t *world;
    assay_fetch_t *fetch;
    uint32_t first, count, slots; // as asked
    bool hold;                    // do not release layers at once
    bool located, done;
    uint32_t block_count; // located
    uint32_t layers;      // handed out
    as_status_t status;
    uint32_t hole;
    uint32_t wrong; // extents handed out with wrong bytes
    uint8_t *buffer;
    size_t buffer_bytes;
} fetch_result_t;

static inline bool extent_is_right(const fetch_result_t *result, uint32_t block, uint32_t layer)
{
    size_t extent = as_extent_bytes(&result->world->shape);
    const uint8_t *bytes =
        result->buffer + ((size_t)(layer % result->slots) * result->count + block) * extent;
    for (size_t i = 0; i < extent; i++) {
        if (bytes[i] != world_byte(result->first + block, layer, i)) {
            return false;
        }
    }
    return true;
}

static inline void on_fetch_located(void *ctx, uint32_t block_count)
{
    fetch_result_t *result = ctx;
    assert_false(result->located);
    assert_true(block_count <= result->count);
    result->located = true;
    result->block_count = block_count;
}

static inline void on_fetch_layer(void *ctx, uint32_t layer)
{
    fetch_result_t *result = ctx;
    assert_true(result->located && !result->done);
    assert_int_equal(layer, result->layers);
    result->layers++;
    for (uint32_t block = 0; block < result->block_count; block++) {
        result->wrong += !extent_is_right(result, block, layer);
    }
    if (!result->hold) {
        assay_fetch_release(result->fetch, layer);
    }
}

static inline void on_fetch_done(void *ctx, as_status_t status, uint32_t hole)
{
    fetch_result_t *result = ctx;
    assert_false(result->done);
    result->done = true;
    result->status = status;
    result->hole = hole;
    if (status == AS_OK) {
        assert_int_equal(result->layers, result->world->shape.layers);
    } else if (result->slots == result->world->shape.layers) {
        for (uint32_t block = 0; block < hole; block++) {
            for (uint32_t layer = 0; layer < result->slots; layer++) {
                result->wrong += !extent_is_right(result, block, layer);
            }
        }
    }
}

typedef struct fetch_ask {
    uint32_t first, count;
    uint32_t slots;           // 0: all layers
    const uint64_t *node_ids; // NULL: by placement
    uint64_t deadline_us;     // 0: the usual one
    bool hold;
    assay_urgency_t urgency;
} fetch_ask_t;

static inline as_status_t fetch_begin(world_t *world, fetch_ask_t ask, fetch_result_t *result)
{
    memset(result, 0, sizeof(*result));
    size_t extent = as_extent_bytes(&world->shape);
    result->world = world;
    result->first = ask.first;
    result->count = ask.count;
    result->slots = ask.slots ? ask.slots : world->shape.layers;
    result->hold = ask.hold;
    result->buffer_bytes = (size_t)result->slots * ask.count * extent;
    result->buffer = malloc(result->buffer_bytes);
    memset(result->buffer, 0xee, result->buffer_bytes);
    const assay_fetch_args_t args = {
        .shape = world->shape,
        .keys = &world->keys[ask.first],
        .node_ids = ask.node_ids,
        .first_block = ask.first,
        .block_count = ask.count,
        .tenant = world->tenant,
        .deadline_us = ask.deadline_us ? ask.deadline_us : world_deadline_us(world),
        .urgency = ask.urgency,
        .buffer = result->buffer,
        .layer_stride = ask.count * extent,
        .layer_slots = result->slots,
        .on_located = on_fetch_located,
        .on_layer = on_fetch_layer,
        .on_done = on_fetch_done,
        .ctx = result,
    };
    as_status_t status = assay_fetch_start(world->client, &args, &result->fetch);
    if (status != AS_OK) {
        free(result->buffer);
        result->buffer = NULL;
    }
    return status;
}

static inline void fetch_free(fetch_result_t *result)
{
    free(result->buffer);
    result->buffer = NULL;
}

// A whole fetch, waited for. Bytes that were handed out are right, or the test fails.
static inline fetch_result_t fetch_chain(world_t *world, fetch_ask_t ask)
{
    fetch_result_t *result = calloc(1, sizeof(*result));
    assert_int_equal(fetch_begin(world, ask, result), AS_OK);
    assert_true(world_run(world, &result->done));
    assert_int_equal(result->wrong, 0);
    fetch_result_t copy = *result;
    fetch_free(result);
    free(result);
    copy.buffer = NULL;
    return copy;
}

static inline uint64_t world_held(const world_t *world)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < world->store_count; i++) {
        if (world->stores[i]) {
            kvs_stat_t stat;
            kvs_store_stat(world->stores[i], &stat);
            held += stat.leases + stat.pins + stat.reservations + stat.dying;
        }
    }
    return held;
}

// Nothing is held at any store once what was under way has ended.
static inline void assert_nothing_is_held(const world_t *world)
{
    assert_int_equal(world_held(world), 0);
}

// As long as it takes: a disk may still be written to or read.
static inline void world_let_go(world_t *world)
{
    uint64_t end_us = as_loop_now_us(world->loop) + WAIT_US;
    while (world_held(world) > 0) {
        assert_true(as_loop_now_us(world->loop) < end_us);
        world_pass(world, 1000);
    }
}

#endif
