// SPDX-License-Identifier: Apache-2.0
// Attention computed at the stores: the bits are those of an attention over the blocks themselves,
// however the chain is spread, and whatever is lost, refused, damaged or late meanwhile; where it cannot
// be had, its caller is told why, and nothing is held.
#include <math.h>

#include "client/internal.h"
#include "kernels/kernels.h"
#include "kvstore/attend.h"
#include "world.h"

#define CHAIN    40u // blocks: two runs and a half
#define ROWS     5u
#define ROWS_MAX 8u

static krn_pool_t *pool;
static world_t world;

typedef struct attending {
    assay_attend_t *attend;
    uint32_t count, rows;
    bool located, here, done; // here: the layer that was asked for
    uint32_t block_count, layers, pieces;
    as_status_t status;
    uint32_t hole;
    float *q;
    uint8_t *buffer;
    size_t buffer_bytes;
} attending_t;

static size_t pairs_of(const attending_t *a)
{
    return (size_t)a->rows * world.shape.q_heads;
}

static float *make_queries(uint32_t rows, uint32_t layer)
{
    size_t count = (size_t)rows * world.shape.q_heads * world.shape.head_dim;
    float *q = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        q[i] = (float)((i * 37 + layer * 11) % 101) / 50.0f - 1.0f;
    }
    return q;
}

static krn_attention_args_t args_of(const attending_t *a, const int32_t *positions)
{
    return (krn_attention_args_t){.rows = a->rows,
                                  .q_heads = world.shape.q_heads,
                                  .kv_heads = world.shape.kv_heads,
                                  .dim = world.shape.head_dim,
                                  .capacity = world.shape.block_tokens,
                                  .scale = 0.25f,
                                  .q = a->q,
                                  .positions = positions};
}

// What an attention over the blocks of the chain gives, here.
static void expect_of(const attending_t *a, uint32_t layer, float *out, float *lse)
{
    size_t extent = as_extent_bytes(&world.shape), block = as_block_bytes(&world.shape);
    uint8_t *bytes = malloc(a->count * block);
    krn_page_t pages[WORLD_BLOCKS_MAX];
    int32_t positions[ROWS_MAX];
    for (uint32_t b = 0; b < a->count; b++) {
        world_fill(&world, b, bytes + b * block);
        const uint8_t *at = bytes + b * block + layer * extent;
        pages[b] = (krn_page_t){(const void *)at, (const void *)(at + extent / 2), b};
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        positions[r] = (int32_t)(a->count * world.shape.block_tokens + r);
    }
    krn_attention_args_t args = args_of(a, positions);
    args.pages = pages;
    args.page_count = a->count;
    void *scratch = malloc(krn_attention_scratch_bytes(a->rows, args.q_heads, args.dim));
    krn_attention(krn_cpu(), pool, &args, out, lse, scratch);
    free(scratch);
    free(bytes);
}

static void check_layer(const attending_t *a, uint32_t layer, const assay_attend_piece_t *pieces,
                        uint32_t count)
{
    size_t pairs = pairs_of(a), floats = pairs * world.shape.head_dim;
    float *expected = malloc((floats + pairs) * sizeof(float));
    float *out = malloc((floats + pairs) * sizeof(float));
    void *memory = malloc(krn_fold_bytes((uint32_t)pairs, world.shape.head_dim));
    krn_fold_t fold;
    expect_of(a, layer, expected, expected + floats);
    krn_fold_begin(&fold, krn_cpu(), (uint32_t)pairs, world.shape.head_dim, memory);
    uint32_t blocks = 0;
    for (uint32_t p = 0; p < count; p++) {
        krn_partials_t partials = {(float *)pieces[p].out, (float *)pieces[p].max,
                                   (float *)pieces[p].sum};
        assert_int_equal(pieces[p].first, blocks);
        blocks += pieces[p].count;
        krn_fold_piece(&fold, (krn_piece_t){pieces[p].first, pieces[p].count}, &partials);
    }
    assert_int_equal(blocks, a->count);
    krn_fold_end(&fold, out, out + floats);
    assert_memory_equal(expected, out, (floats + pairs) * sizeof(float));
    free(expected);
    free(out);
    free(memory);
}

static void on_located(void *ctx, uint32_t block_count)
{
    attending_t *a = ctx;
    assert_false(a->located);
    a->located = true;
    a->block_count = block_count;
}

static void on_layer(void *ctx, uint32_t layer, const assay_attend_piece_t *pieces, uint32_t count)
{
    attending_t *a = ctx;
    assert_true(a->located && !a->done && !a->here);
    check_layer(a, layer, pieces, count);
    a->here = true;
    a->layers++;
    a->pieces = count;
}

static void on_done(void *ctx, as_status_t status, uint32_t hole)
{
    attending_t *a = ctx;
    assert_false(a->done);
    a->done = true;
    a->status = status;
    a->hole = hole;
}

static as_status_t begin(attending_t *a, uint32_t count, size_t pieces_max)
{
    size_t piece = assay_attend_piece_bytes(&world.shape, ROWS_MAX);
    *a = (attending_t){.count = count, .rows = ROWS, .buffer_bytes = pieces_max * piece};
    a->buffer = malloc(a->buffer_bytes);
    const assay_attend_args_t args = {.shape = world.shape,
                                      .keys = world.keys,
                                      .block_count = count,
                                      .scale = 0.25f,
                                      .rows_max = ROWS_MAX,
                                      .tenant = world.tenant,
                                      .deadline_us = world_deadline_us(&world),
                                      .buffer = a->buffer,
                                      .buffer_bytes = a->buffer_bytes,
                                      .on_located = on_located,
                                      .on_layer = on_layer,
                                      .on_done = on_done,
                                      .ctx = a};
    as_status_t status = assay_attend_start(world.client, &args, &a->attend);
    if (status != AS_OK) {
        free(a->buffer);
    }
    return status;
}

static void ask(attending_t *a, uint32_t layer)
{
    free(a->q);
    a->q = make_queries(a->rows, layer);
    a->here = false;
    assay_attend_layer(a->attend, layer, a->rows, a->q);
}

static bool layer_or_end(attending_t *a)
{
    uint64_t end_us = as_loop_now_us(world.loop) + WAIT_US;
    while (!a->here && !a->done && as_loop_now_us(world.loop) < end_us) {
        as_loop_run_once(world.loop, true);
    }
    return a->here;
}

static void finish(attending_t *a)
{
    if (!a->done) {
        assay_attend_end(a->attend);
    }
    assert_true(world_run(&world, &a->done));
    free(a->q);
    free(a->buffer);
    world_let_go(&world);
}

// All layers, in order. Returns how it ended.
static as_status_t attend_all(uint32_t count, uint32_t *pieces_p)
{
    attending_t a;
    assert_int_equal(begin(&a, count, count), AS_OK);
    for (uint32_t layer = 0; layer < world.shape.layers && !a.done; layer++) {
        ask(&a, layer);
        layer_or_end(&a);
    }
    *pieces_p = a.pieces;
    finish(&a);
    assert_true(a.status != AS_OK || a.layers == world.shape.layers);
    return a.status;
}

static void open_world(bool sim, uint32_t stores, uint32_t replicas)
{
    world_options_t options = world_defaults(sim);
    options.stores = stores;
    options.messages = true;
    world_open(&world, &options);
    assay_client_set_replicas(world.client, replicas);
    put_chain(&world, WORLD_BLOCKS_MAX);
}

// ---- the bits

static void a_chain_at_one_store_is_one_piece_or_two(void **state)
{
    for (int sim = 0; sim < 2; sim++) {
        uint32_t pieces;
        (void)state;
        open_world(sim, 1, 1);
        static const uint32_t counts[] = {1, 15, 16, 17, 32, CHAIN, WORLD_BLOCKS_MAX};
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            assert_int_equal(attend_all(counts[i], &pieces), AS_OK);
            assert_int_equal(pieces, 1 + (counts[i] > 16 && counts[i] % 16 != 0));
        }
        world_close(&world);
    }
}

static void a_chain_striped_over_stores_is_answered_by_each_for_its_part(void **state)
{
    for (int sim = 0; sim < 2; sim++) {
        uint32_t pieces;
        (void)state;
        open_world(sim, 4, 1);
        assert_int_equal(attend_all(WORLD_BLOCKS_MAX, &pieces), AS_OK);
        assert_true(pieces > 1 && pieces <= WORLD_BLOCKS_MAX / AS_RUN_BLOCKS);
        assert_int_equal(attend_all(CHAIN, &pieces), AS_OK);
        world_close(&world);
    }
}

static void bytes_of_queries_and_partials_are_all_that_moves(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 1, 1);
    assert_int_equal(begin(&a, 32, 2), AS_OK);
    ask(&a, 0);
    assert_true(layer_or_end(&a));
    size_t q = ROWS * 4 * 16 * sizeof(float), partial = ROWS * 4 * 18 * sizeof(float);
    assert_int_equal(assay_attend_bytes(a.attend),
                     q + partial + as_wire_attend_bytes(1) + sizeof(as_wire_attended_t));
    finish(&a);
    assert_int_equal(a.status, AS_OK);
    world_close(&world);
}

static void layers_are_asked_for_in_any_order_and_with_any_rows(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 2, 1);
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
    for (uint32_t i = 0; i < 12; i++) {
        a.rows = 1 + i % ROWS_MAX;
        ask(&a, i * 3 % world.shape.layers);
        assert_true(layer_or_end(&a));
    }
    finish(&a);
    assert_int_equal(a.status, AS_OK);
    world_close(&world);
}

// ---- faults

// A store goes, after so many turns of the loop.
static as_status_t attend_while_one_is_lost(uint32_t turns, uint32_t store)
{
    attending_t a;
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
    for (uint32_t layer = 0; layer < world.shape.layers && !a.done; layer++) {
        ask(&a, layer);
        for (; turns > 0 && !a.here && !a.done; turns--) {
            as_loop_run_once(world.loop, true);
        }
        if (turns == 0 && world.stores[store]) {
            world_store_lose(&world, store);
        }
        layer_or_end(&a);
    }
    finish(&a);
    return a.status;
}

static void a_store_that_is_lost_at_any_point_is_replaced_by_a_copy(void **state)
{
    (void)state;
    uint32_t step = getenv("ASSAY_TEST_SANITIZED") ? 29 : 7;
    for (uint32_t turns = 0; turns < 120; turns += step) {
        open_world(true, 3, 2);
        assert_int_equal(attend_while_one_is_lost(turns, turns % 3), AS_OK);
        world_close(&world);
    }
}

static void without_a_copy_the_loss_of_a_store_is_told(void **state)
{
    (void)state;
    open_world(true, 1, 1);
    as_status_t status = attend_while_one_is_lost(30, 0);
    assert_true(status != AS_OK && status != AS_ERR_DEADLINE);
    world_close(&world);
}

static void a_store_that_does_not_answer_is_given_up_for_a_copy(void **state)
{
    (void)state;
    uint32_t pieces;
    open_world(true, 3, 2);
    as_fault_arm(AS_FAULT_attend_answer_drop, 2);
    assert_int_equal(attend_all(CHAIN, &pieces), AS_OK);
    assert_int_equal(as_fault_fired(AS_FAULT_attend_answer_drop), 1);
    world_close(&world);
}

// Queries are the larger messages to a store, partials to the client.
static void what_is_damaged_on_its_way_is_never_used(void **state)
{
    (void)state;
    for (uint32_t skip = 0; skip < 20; skip += 3) {
        uint32_t pieces;
        open_world(true, 3, 2);
        uint64_t before = as_sim_flips(world.sim);
        int64_t failures = as_metric_value(&assay_metrics[ASSAY_METRIC_ATTEND_FAILURES]);
        as_sim_flip(world.sim, ROWS * 4 * 16 * sizeof(float), skip);
        assert_int_equal(attend_all(CHAIN, &pieces), AS_OK);
        if (as_sim_flips(world.sim) > before) {
            assert_true(as_metric_value(&assay_metrics[ASSAY_METRIC_ATTEND_FAILURES]) > failures);
        }
        world_close(&world);
    }
}

static void a_bit_that_flipped_at_a_store_is_found_and_its_block_dropped(void **state)
{
    (void)state;
    uint32_t pieces;
    open_world(true, 2, 2);
    for (uint32_t i = 0; i < 2; i++) { // of other blocks
        kvs_index_t *index = world.stores[i]->index;
        kvs_block_t *block = kvs_index_find(index, &world.keys[3 + i], AS_WIRE_FULL);
        assert_non_null(block);
        kvs_index_extent(index, block, 1)[77] ^= 16;
    }
    assert_int_equal(attend_all(CHAIN, &pieces), AS_OK); // of each what the other has damaged
    uint32_t gone = 0;
    for (uint32_t i = 0; i < 2; i++) {
        gone += !kvs_index_find(world.stores[i]->index, &world.keys[3 + i], AS_WIRE_FULL);
    }
    assert_true(gone > 0); // at the store that was asked
    world_close(&world);
}

static void a_block_that_is_nowhere_is_told(void **state)
{
    (void)state;
    uint32_t pieces;
    open_world(true, 1, 1);
    assert_true(kvs_store_drop(world.stores[0], &world.keys[7], 0));
    attending_t a;
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
    ask(&a, 0);
    assert_false(layer_or_end(&a));
    assert_int_equal(a.status, AS_ERR_NOT_FOUND);
    assert_int_equal(a.hole, 7);
    assert_int_equal(a.block_count, 7);
    finish(&a);
    assert_int_equal(attend_all(7, &pieces), AS_OK);
    world_close(&world);
}

// ---- refusals

static void a_store_that_computes_none_says_so(void **state)
{
    (void)state;
    uint32_t pieces;
    world_options_t options = world_defaults(true);
    options.store.attend_threads = 0;
    world_open(&world, &options);
    put_chain(&world, CHAIN);
    assert_int_equal(attend_all(CHAIN, &pieces), AS_ERR_UNSUPPORTED);
    world_close(&world);
}

static void a_client_that_encrypts_is_told_at_once(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 1, 1);
    uint8_t key[32] = {1};
    as_cipher_t *cipher;
    assert_int_equal(as_cipher_alloc(key, &cipher), AS_OK);
    assay_client_take_cipher(world.client, cipher);
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_ERR_UNSUPPORTED);
    world_close(&world);
}

static void more_pieces_than_the_buffer_holds_are_refused(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 1, 1);
    assert_int_equal(begin(&a, CHAIN, 1), AS_OK); // two are needed
    ask(&a, 0);
    assert_false(layer_or_end(&a));
    assert_int_equal(a.status, AS_ERR_LIMIT);
    finish(&a);
    assert_int_equal(begin(&a, CHAIN, 0), AS_ERR_LIMIT);
    world_close(&world);
}

// As many as one connection may have, which leaves as many to others; all in one turn of the store's loop.
static void a_full_queue_is_busy_at_once_and_does_all_it_took(void **state)
{
    (void)state;
    enum { MANY = KVS_ATTENDS_MAX / 2 + 6 };
    static attending_t many[MANY];
    uint32_t done = 0, busy = 0, pieces;
    open_world(true, 1, 1);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(begin(&many[i], 16, 1), AS_OK);
        assert_true(world_run(&world, &many[i].located));
    }
    for (uint32_t i = 0; i < MANY; i++) {
        ask(&many[i], 0);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        done += layer_or_end(&many[i]);
        busy += many[i].done && many[i].status == AS_ERR_BUSY;
    }
    for (uint32_t i = 0; i < MANY; i++) {
        if (!many[i].done) {
            assay_attend_end(many[i].attend);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        finish(&many[i]);
    }
    assert_int_equal(done + busy, MANY);
    assert_true(done >= KVS_ATTENDS_MAX / 2);
    assert_int_equal(attend_all(16, &pieces), AS_OK);
    world_close(&world);
}

// ---- the end

static void cancelled_at_any_point_it_holds_nothing(void **state)
{
    for (uint32_t turns = 0; turns < 60; turns += 7) {
        attending_t a;
        (void)state;
        open_world(true, 2, 1);
        assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
        ask(&a, 0);
        for (uint32_t i = 0; i < turns && !a.here; i++) {
            as_loop_run_once(world.loop, true);
        }
        assay_attend_cancel(a.attend);
        assay_attend_cancel(a.attend);
        finish(&a);
        assert_int_equal(a.status, AS_ERR_CANCELLED);
        world_close(&world);
    }
}

// The deadline is the stores', not the caller's.
static void a_caller_that_asks_slowly_loses_nothing(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 1, 1);
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
    for (uint32_t layer = 0; layer < world.shape.layers; layer++) {
        world_pass(&world, world_deadline_us(&world) / 2);
        ask(&a, layer);
        assert_true(layer_or_end(&a));
    }
    finish(&a);
    assert_int_equal(a.status, AS_OK);
    world_close(&world);
}

static void a_store_that_is_stopped_is_waited_for_until_the_deadline_at_most(void **state)
{
    (void)state;
    attending_t a;
    open_world(true, 1, 1);
    assert_int_equal(begin(&a, CHAIN, CHAIN), AS_OK);
    ask(&a, 0);
    assert_true(layer_or_end(&a));
    as_sim_stop(world.sim, world.store_nets[0]);
    uint64_t begun_us = as_loop_now_us(world.loop);
    ask(&a, 1);
    assert_false(layer_or_end(&a));
    assert_true(as_loop_now_us(world.loop) - begun_us < 5100000);
    as_sim_resume(world.sim, world.store_nets[0]);
    finish(&a);
    world_close(&world);
}

static int begin_all(void **state)
{
    (void)state;
    return krn_pool_alloc(1, &pool) == AS_OK ? 0 : -1;
}

static int end_all(void **state)
{
    (void)state;
    krn_pool_free(pool);
    return 0;
}

int main(void)
{
    as_log_set_level(AS_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_at_one_store_is_one_piece_or_two),
        cmocka_unit_test(a_chain_striped_over_stores_is_answered_by_each_for_its_part),
        cmocka_unit_test(bytes_of_queries_and_partials_are_all_that_moves),
        cmocka_unit_test(layers_are_asked_for_in_any_order_and_with_any_rows),
        cmocka_unit_test(a_store_that_is_lost_at_any_point_is_replaced_by_a_copy),
        cmocka_unit_test(without_a_copy_the_loss_of_a_store_is_told),
        cmocka_unit_test(a_store_that_does_not_answer_is_given_up_for_a_copy),
        cmocka_unit_test(what_is_damaged_on_its_way_is_never_used),
        cmocka_unit_test(a_bit_that_flipped_at_a_store_is_found_and_its_block_dropped),
        cmocka_unit_test(a_block_that_is_nowhere_is_told),
        cmocka_unit_test(a_store_that_computes_none_says_so),
        cmocka_unit_test(a_client_that_encrypts_is_told_at_once),
        cmocka_unit_test(more_pieces_than_the_buffer_holds_are_refused),
        cmocka_unit_test(a_full_queue_is_busy_at_once_and_does_all_it_took),
        cmocka_unit_test(cancelled_at_any_point_it_holds_nothing),
        cmocka_unit_test(a_caller_that_asks_slowly_loses_nothing),
        cmocka_unit_test(a_store_that_is_stopped_is_waited_for_until_the_deadline_at_most),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
