// SPDX-License-Identifier: Apache-2.0
// Every way in which a block is read: from what (memory, disk, the second copy), over what (pointers
// into shared memory, TCP, the simulation's one-sided reads and messages), and how much of it (a
// chain whole, through a ring of slots, some layers, blocks that count each for itself).
#ifndef TESTS_CLIENT_PATHS_H
#define TESTS_CLIENT_PATHS_H

#include "disk_world.h"

#include <time.h>

#include "common/loop_impl.h"
#include "kvstore/disk/disk.h"

#define CHAIN 6u // blocks

typedef enum tier { FROM_MEMORY, FROM_DISK, FROM_COPY, TIERS } tier_t;
typedef enum way { WHOLE, RING, LAYERS, EACH, WAYS } way_t;

typedef struct path {
    tier_t tier;
    bool sim, messages;
} path_t;

typedef struct way_shape {
    const char *name;
    uint32_t first_layer, layer_count, slots;
} way_shape_t;

static const way_shape_t way_shapes[WAYS] = {
    [WHOLE] = {"whole", 0, 4, 4},
    [RING] = {"through a ring", 0, 4, 2},
    [LAYERS] = {"some layers", 1, 2, 2},
    [EACH] = {"each for itself", 0, 4, 4},
};

static path_t path;
static bool reads_memory; // the store does not see what is read
static uint32_t server;   // the store that the blocks are read from

// ---- the world of a path

static void path_open(uint64_t lease_us)
{
    world_options_t options = world_defaults(path.sim);
    options.messages = path.messages;
    options.stores = path.tier == FROM_COPY ? 2 : 1;
    if (path.tier == FROM_DISK) {
        options.store.disk_directory = directory;
        options.store.disk_bytes = 32u << 20;
    }
    if (lease_us > 0) {
        options.store.lease_us_max = lease_us;
    }
    if (path.sim) {
        options.client.connect_timeout_us = options.client.stall_timeout_us = 200000;
    }
    world_open(&world, &options);
    assay_client_set_replicas(world.client, options.stores);
    uint64_t first = assay_client_place(world.client, &world.keys[0]);
    server = path.tier == FROM_COPY && kvs_store_node_id(world.stores[0]) == first;
}

static inline void path_reopen(void)
{
    world_close(&world);
    if (path.tier == FROM_DISK) {
        temporary_folder_remove(directory);
        temporary_folder_make(directory);
    }
    path_open(0);
}

// So many blocks are on disk, and RAM can do without them.
static void path_write(uint32_t blocks)
{
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (path.tier == FROM_DISK && stat_now().disk_blocks < blocks) {
        assert_true(as_loop_now_us(world.loop) < end_us);
        world_pass(&world, 200);
    }
}

// The chain is where this path reads it from, and nowhere else.
static inline void path_fill(void)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_store_drop_all(world.stores[i]);
    }
    world_let_go(&world);
    put_chain(&world, CHAIN);
    if (path.tier == FROM_COPY) {
        kvs_store_drop_all(world.stores[1 - server]);
    }
    path_write(CHAIN);
    for (uint32_t i = 0; i < CHAIN && path.tier == FROM_DISK; i++) {
        kvs_index_t *index = world.stores[0]->index;
        kvs_index_doom(index, kvs_index_find(index, &world.keys[i], AS_WIRE_FULL));
    }
}

// ---- time

// The clock of a world over UCX, which can be put forward: its loop's own, and what was added.
static as_loop_ops_t clock_ops;
static uint64_t (*clock_under)(const as_loop_t *loop);
static uint64_t clock_ahead_us;

static uint64_t clock_now_us(const as_loop_t *loop)
{
    return clock_under(loop) + clock_ahead_us;
}

static inline void clock_inject(as_loop_t *loop)
{
    clock_ahead_us = 0;
    clock_under = loop->ops->now_us;
    clock_ops = *loop->ops;
    clock_ops.now_us = clock_now_us;
    loop->ops = &clock_ops;
}

// ---- reads

typedef struct reading {
    way_t way;
    const way_shape_t *how;
    as_shape_t shape;
    assay_fetch_t *fetch;
    void (*at_located)(void);
    bool hold; // RING: do not release slots
    bool located, done;
    uint32_t located_blocks, layers, hole, wrong;
    as_status_t status;
    as_status_t statuses[CHAIN];
    uint32_t order[CHAIN]; // EACH: of the blocks in the question
    as_key_t keys[CHAIN];
    uint8_t *buffer; // [slot][block], of EACH [block][slot]
    void *blocks[CHAIN];
    size_t bytes;
} reading_t;

static bool reading_extent_is_right(const reading_t *reading, uint32_t i, uint32_t layer)
{
    size_t extent = as_extent_bytes(&reading->shape);
    size_t slot = (layer - reading->how->first_layer) % reading->how->slots;
    const uint8_t *bytes = reading->way == EACH
                               ? (const uint8_t *)reading->blocks[i] + slot * extent
                               : reading->buffer + (slot * CHAIN + i) * extent;
    for (size_t b = 0; b < extent; b++) {
        if (bytes[b] != world_byte(reading->order[i], layer, b)) {
            return false;
        }
    }
    return true;
}

static void on_reading_located(void *ctx, uint32_t block_count)
{
    reading_t *reading = ctx;
    reading->located = true;
    reading->located_blocks = block_count;
    if (reading->at_located) {
        reading->at_located();
    }
}

static void on_reading_layer(void *ctx, uint32_t layer)
{
    reading_t *reading = ctx;
    reading->layers++;
    for (uint32_t i = 0; i < reading->located_blocks; i++) {
        reading->wrong += !reading_extent_is_right(reading, i, layer);
    }
    if (!reading->hold) {
        assay_fetch_release(reading->fetch, layer);
    }
}

// Whether block i of the question is there, by what was said.
static bool reading_has(const reading_t *reading, uint32_t i)
{
    if (reading->way == EACH) {
        return reading->statuses[i] == AS_OK;
    }
    if (reading->status == AS_OK) {
        return i < reading->located_blocks;
    }
    return reading->way != RING && i < reading->hole;
}

static inline uint32_t reading_hits(const reading_t *reading)
{
    uint32_t hits = 0;
    for (uint32_t i = 0; i < CHAIN; i++) {
        hits += reading_has(reading, i);
    }
    return hits;
}

static void on_reading_done(void *ctx, as_status_t status, uint32_t hole)
{
    reading_t *reading = ctx;
    assert_false(reading->done);
    reading->done = true;
    reading->status = status;
    reading->hole = hole;
    uint32_t first = reading->how->first_layer, end = first + reading->how->layer_count;
    for (uint32_t i = 0; i < CHAIN && reading->way != RING; i++) {
        for (uint32_t layer = first; reading_has(reading, i) && layer < end; layer++) {
            reading->wrong += !reading_extent_is_right(reading, i, layer);
        }
    }
}

// deadline_us 0: the usual one. The caller waits for `done` and calls reading_free.
static void reading_begin(reading_t *reading, way_t way, uint64_t deadline_us,
                          const as_shape_t *shape)
{
    reading->way = way;
    reading->how = &way_shapes[way];
    reading->shape = shape ? *shape : world.shape;
    size_t extent = as_extent_bytes(&reading->shape);
    reading->bytes = reading->how->slots * CHAIN * extent;
    reading->buffer = malloc(reading->bytes);
    memset(reading->buffer, 0xee, reading->bytes);
    for (uint32_t i = 0; i < CHAIN; i++) {
        reading->order[i] = way == EACH ? (i * 5 + 2) % CHAIN : i;
        reading->keys[i] = world.keys[reading->order[i]];
        reading->blocks[i] = reading->buffer + i * reading->how->slots * extent;
    }
    const assay_fetch_args_t args = {
        .shape = reading->shape,
        .keys = reading->keys,
        .block_count = CHAIN,
        .deadline_us = deadline_us ? deadline_us : world_deadline_us(&world),
        .buffer = reading->buffer,
        .buffers = way == EACH ? reading->blocks : NULL,
        .statuses = way == EACH ? reading->statuses : NULL,
        .layer_stride = way == EACH ? extent : CHAIN * extent,
        .layer_slots = reading->how->slots,
        .first_layer = reading->how->first_layer,
        .layer_count = reading->how->layer_count,
        .on_located = on_reading_located,
        .on_layer = on_reading_layer,
        .on_done = on_reading_done,
        .ctx = reading,
    };
    assert_int_equal(assay_fetch_start(world.client, &args, &reading->fetch), AS_OK);
}

static void reading_free(reading_t *reading)
{
    free(reading->buffer);
    reading->buffer = NULL;
}

// Waits for its end; returns the hits. Bytes that were handed out are right, or the test fails.
static uint32_t reading_end(reading_t *reading)
{
    assert_true(world_run(&world, &reading->done));
    assert_int_equal(reading->wrong, 0);
    reading_free(reading);
    return reading_hits(reading);
}

static inline uint32_t read_chain(way_t way)
{
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    return reading_end(&reading);
}

// ---- faults, each on this path by every way

typedef struct fault {
    const char *name;
    void (*run)(way_t way);
    bool (*can_be)(way_t way); // on this path; NULL: on all. Where it cannot, there is no test.
} fault_t;

#define FAULT(function) FAULT_WHERE(function, NULL)
#define FAULT_WHERE(function, can_be)                                                              \
    {                                                                                              \
#function, function, can_be                                                                \
    }
#define COUNT(of)  (sizeof(of) / sizeof((of)[0]))
#define FAULTS_MAX 32u

typedef struct faults {
    const fault_t *all;
    uint32_t count;
    CMFixtureFunction open;
    void (*fill)(void); // before each
    CMFixtureFunction close;
} faults_t;

typedef struct fault_run {
    const fault_t *fault;
    void (*fill)(void);
    way_t way;
    char name[128];
} fault_run_t;

static inline bool bytes_are_sent(way_t way) // and not read out of the store's memory
{
    (void)way;
    return !reads_memory;
}

static void run_fault(void **state)
{
    const fault_run_t *run = *state;
    as_fault_clear();
    run->fill();
    run->fault->run(run->way);
}

static int run_faults(const char *name, const faults_t *faults)
{
    static fault_run_t runs[FAULTS_MAX * WAYS];
    struct CMUnitTest tests[FAULTS_MAX * WAYS];
    uint32_t some = 0;
    assert_true(faults->count <= FAULTS_MAX);
    for (uint32_t n = 0; n < faults->count * WAYS; n++) {
        const fault_t *fault = &faults->all[n / WAYS];
        way_t way = n % WAYS;
        if (fault->can_be && !fault->can_be(way)) {
            continue;
        }
        fault_run_t *run = &runs[some];
        *run = (fault_run_t){.fault = fault, .fill = faults->fill, .way = way};
        snprintf(run->name, sizeof(run->name), "%s (%s)", fault->name, way_shapes[way].name);
        tests[some++] =
            (struct CMUnitTest){.name = run->name, .test_func = run_fault, .initial_state = run};
    }
    return _cmocka_run_group_tests(name, tests, some, faults->open, faults->close);
}

#endif
