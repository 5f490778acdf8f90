// SPDX-License-Identifier: Apache-2.0
// Stores that are busy and refuse, one for long: how often they are asked again, for how long, and that none
// of it is taken for silence. Two stores are scripts on the simulated network; both may have the block.
#include "tests/unit/client/scripted_store.h"

#include <stdio.h>

#include "client/internal.h"

#define STORES       2u
#define LAYERS       40u // a read each: more than one READ asks for
#define EXTENT_BYTES 1024u

typedef struct script {
    as_net_t *net;
    uint64_t node_id;
    uint32_t locate_status; // of the whole answer
    uint32_t place_status;  // of the block in it
    uint32_t read_status;
    bool damages; // what it sends
    bool silent;  // it answers no LOCATE
    uint32_t locates, reads, asks;
} script_t;

typedef struct outcome {
    assay_fetch_t *fetch;
    bool done;
    as_status_t status, block;
    uint8_t buffer[LAYERS * EXTENT_BYTES];
} outcome_t;

static script_t scripts[STORES];
static assay_client_t *client;
static outcome_t outcomes[2];
static uint8_t layers[LAYERS * EXTENT_BYTES], damaged[LAYERS * EXTENT_BYTES]; // all the same
static assay_store_t stores[STORES];

// ---- the stores

static void answer_locate(script_t *script, as_conn_t *conn, uint64_t request)
{
    static struct {
        as_wire_place_t place;
        uint32_t crcs[LAYERS];
    } found;
    script->locates++;
    if (script->silent) {
        return;
    }
    bool has_it = script->locate_status == AS_WIRE_OK && script->place_status == AS_WIRE_OK;
    found.place = (as_wire_place_t){.status = script->place_status};
    if (has_it) {
        found.place.layers = LAYERS;
        found.place.extent_bytes = EXTENT_BYTES;
        found.place.tokens = 16;
        found.place.address = 4096;
    }
    for (uint32_t i = 0; i < LAYERS; i++) {
        found.crcs[i] = as_crc32c(0, layers, EXTENT_BYTES);
    }
    const as_wire_located_t located = {.head = as_wire_head(AS_WIRE_LOCATED, request),
                                       .status = script->locate_status,
                                       .key_count = script->locate_status == AS_WIRE_OK,
                                       .lease_id = has_it ? 7 : 0,
                                       .lease_ms = has_it ? 30000 : 0,
                                       .crc_count = has_it ? LAYERS : 0};
    size_t bytes = has_it ? sizeof(found) : sizeof(found.place);
    say(conn, &located, sizeof(located), &found, located.key_count > 0 ? bytes : 0);
}

static void answer_read(script_t *script, as_conn_t *conn, const as_wire_read_t *read)
{
    script->reads++;
    script->asks += read->ask_count;
    for (uint32_t i = 0; i < read->ask_count; i++) {
        const as_wire_ask_t *ask = &read->asks[i];
        const as_wire_data_t data = {.head = as_wire_head(AS_WIRE_DATA, ask->request),
                                     .status = script->read_status};
        say(conn, &data, sizeof(data), script->damages ? damaged : layers,
            script->read_status == AS_WIRE_OK ? (size_t)ask->layer_count * EXTENT_BYTES : 0);
    }
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    const as_wire_head_t *head = msg->header;
    assert_true(as_wire_check(msg->header, msg->header_bytes));
    if (head->type == AS_WIRE_HELLO) {
        const as_wire_hello_reply_t reply =
            hello_reply(((const script_t *)ctx)->node_id, head->request);
        say(conn, &reply, sizeof(reply), NULL, 0);
    } else if (head->type == AS_WIRE_LOCATE) {
        answer_locate(ctx, conn, head->request);
    } else if (head->type == AS_WIRE_READ) {
        answer_read(ctx, conn, msg->header);
    }
}

// ---- the client

static int begin(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    memset(stores, 0, sizeof(stores));
    memset(scripts, 0, sizeof(scripts));
    memset(outcomes, 0, sizeof(outcomes));
    for (size_t i = 0; i < sizeof(layers); i++) {
        layers[i] = (uint8_t)(i % EXTENT_BYTES * 7);
        damaged[i] = layers[i] ^ (i % EXTENT_BYTES == 77);
    }
    begin_sim();
    for (uint32_t i = 0; i < STORES; i++) {
        const as_net_handlers_t handlers = {&scripts[i], on_accept, on_message, on_lost, NULL};
        char name[16], address[24];
        snprintf(name, sizeof(name), "store%u", i);
        snprintf(address, sizeof(address), "store%u:0", i);
        scripts[i].node_id = i + 1;
        assert_int_equal(as_net_alloc_sim(sim, name, &handlers, &scripts[i].net), AS_OK);
        assert_int_equal(as_net_listen(scripts[i].net, address), AS_OK);
        stores[i] = (assay_store_t){.node_id = i + 1, .capacity_bytes = 1};
        snprintf(stores[i].data_address, sizeof(stores[i].data_address), "%s",
                 as_net_address(scripts[i].net));
    }
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = loop;
    options.net_alloc = net_alloc;
    assert_int_equal(assay_client_alloc(&options, &client), AS_OK);
    assay_client_set_stores(client, stores, STORES);
    assay_client_set_replicas(client, STORES);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assay_client_free(client);
    for (uint32_t i = 0; i < STORES; i++) {
        as_net_free(scripts[i].net);
    }
    as_sim_free(sim);
    as_loop_free(loop);
    return 0;
}

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    (void)block_count;
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
}

static void on_done(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    outcome_t *outcome = ctx;
    outcome->done = true;
    outcome->status = status;
}

typedef enum asking { PLACED, EACH } asking_t; // by the key's place, or of every store

// Of the one block, the first store first.
static void start(outcome_t *outcome, asking_t asking, uint64_t deadline_us)
{
    static const as_key_t key = {{1}};
    static const uint64_t node_id = 1;
    const assay_fetch_args_t args = {.shape = {LAYERS, 2, 1, 16, 16, AS_ELEMENT_F16},
                                     .keys = &key,
                                     .node_ids = &node_id,
                                     .block_count = 1,
                                     .deadline_us = deadline_us,
                                     .buffer = outcome->buffer,
                                     .layer_stride = EXTENT_BYTES,
                                     .layer_slots = LAYERS,
                                     .statuses = asking == EACH ? &outcome->block : NULL,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_done,
                                     .ctx = outcome};
    assert_int_equal(as_extent_bytes(&args.shape), EXTENT_BYTES);
    assert_int_equal(assay_fetch_start(client, &args, &outcome->fetch), AS_OK);
}

static void nothing(void *ctx)
{
    (void)ctx;
}

static void pass_until(uint64_t us)
{
    as_timer_t *timer;
    assert_int_equal(as_timer_alloc(loop, nothing, NULL, &timer), AS_OK);
    if (us > as_loop_now_us(loop)) {
        as_timer_start(timer, us - as_loop_now_us(loop));
    }
    while (as_loop_now_us(loop) < us) {
        as_loop_run_once(loop, true);
    }
    as_timer_free(timer);
}

// Returns the most parts that it had at a time.
static uint32_t run(const outcome_t *outcome)
{
    uint32_t most = 0;
    while (!outcome->done) {
        assert_true(as_loop_run_once(loop, true) || outcome->done);
        uint32_t count = 0;
        for (const assay_part_t *part = outcome->done ? NULL : outcome->fetch->parts; part;
             part = part->next) {
            count++;
        }
        most = count > most ? count : most;
    }
    return most;
}

static const assay_link_t *link_of(uint32_t store)
{
    const assay_link_t *link = assay_link_find(client, scripts[store].node_id);
    assert_non_null(link);
    return link;
}

// ---- tests

// One store has a bad copy; the other says that it will have one, and never has.
static void a_copy_that_was_bad_is_not_read_again(asking_t asking)
{
    scripts[0].damages = true;
    scripts[1].place_status = AS_WIRE_BUSY;
    uint64_t began_us = as_loop_now_us(loop);
    start(&outcomes[0], asking, 5000000);
    uint32_t parts = run(&outcomes[0]);
    assert_in_range(as_loop_now_us(loop) - began_us, 500000, 3000000);
    assert_int_equal(asking == EACH ? outcomes[0].block : outcomes[0].status, AS_ERR_BUSY);
    assert_in_range(scripts[0].asks, 1, LAYERS); // once
    assert_true(scripts[1].locates > 5);
    assert_true(parts <= 6);
}

static void a_bad_copy_and_a_busy_store_end_a_fetch_within_its_patience(void **state)
{
    (void)state;
    a_copy_that_was_bad_is_not_read_again(PLACED);
}

static void so_they_do_where_every_store_is_asked(void **state)
{
    (void)state;
    a_copy_that_was_bad_is_not_read_again(EACH);
}

static void after_a_bad_copy_the_one_that_comes_later_is_read(void **state)
{
    (void)state;
    scripts[0].damages = true;
    scripts[1].place_status = AS_WIRE_BUSY;
    uint64_t began_us = as_loop_now_us(loop);
    start(&outcomes[0], PLACED, 20000000);
    pass_until(began_us + 600000);
    scripts[1].place_status = AS_WIRE_OK;
    run(&outcomes[0]);
    assert_int_equal(outcomes[0].status, AS_OK);
    assert_memory_equal(outcomes[0].buffer, layers, sizeof(layers));
    assert_in_range(as_loop_now_us(loop) - began_us, 600000, 700000);
}

static void refused_reads_are_asked_again_together_and_ever_less_often(void **state)
{
    (void)state;
    scripts[0].read_status = AS_WIRE_BUSY;
    assay_client_set_stores(client, stores, 1);
    uint64_t began_us = as_loop_now_us(loop);
    start(&outcomes[0], PLACED, 20000000);
    pass_until(began_us + 1000000);
    assert_true(scripts[0].asks >= 5 * LAYERS);
    assert_in_range(scripts[0].reads, 10, 40); // two of them each time
    scripts[0].read_status = AS_WIRE_OK;
    run(&outcomes[0]);
    assert_int_equal(outcomes[0].status, AS_OK);
    assert_in_range(as_loop_now_us(loop) - began_us, 1000000, 1100000);
}

// What was asked a moment ago has had no time yet, however long it was refused before.
static void a_question_that_was_refused_before_is_not_silence(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < STORES; i++) {
        scripts[i].locate_status = AS_WIRE_BUSY;
    }
    uint64_t began_us = as_loop_now_us(loop);
    for (uint32_t i = 0; i < 2; i++) {
        start(&outcomes[i], EACH, 1500000);
        pass_until(began_us + 1000);
    }
    pass_until(began_us + 650000);
    uint32_t locates = scripts[0].locates;
    scripts[0].silent = scripts[1].silent = true;
    run(&outcomes[0]);
    run(&outcomes[1]);
    assert_int_equal(scripts[0].locates, locates + 2); // the last of each was not answered
    assert_int_equal(link_of(0)->state, LINK_READY);
}

// The store has answered all that it was asked.
static void a_refused_read_that_waits_for_a_call_is_no_stall(void **state)
{
    (void)state;
    scripts[0].read_status = AS_WIRE_BUSY;
    assay_client_set_stores(client, stores, 1);
    start(&outcomes[0], PLACED, 20000000);
    while (scripts[0].asks < LAYERS) {
        as_loop_run_once(loop, true);
    }
    pass_until(as_loop_now_us(loop) + 2000);
    assay_call_t *taken = client->calls_unused; // by others
    client->calls_unused = NULL;
    run(&outcomes[0]);
    assert_int_equal(outcomes[0].status, AS_ERR_BUSY);
    assert_int_equal(link_of(0)->state, LINK_READY);
    assay_call_t **last = &client->calls_unused;
    while (*last) {
        last = &(*last)->next;
    }
    *last = taken;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_bad_copy_and_a_busy_store_end_a_fetch_within_its_patience),
        TEST(so_they_do_where_every_store_is_asked),
        TEST(after_a_bad_copy_the_one_that_comes_later_is_read),
        TEST(refused_reads_are_asked_again_together_and_ever_less_often),
        TEST(a_question_that_was_refused_before_is_not_silence),
        TEST(a_refused_read_that_waits_for_a_call_is_no_stall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
