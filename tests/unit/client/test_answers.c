// SPDX-License-Identifier: Apache-2.0
// A store whose answers to READ break the rules of pieces: what was not sent right is not handed out,
// and nobody waits for what does not come. The store is a script on the simulated network.
#include "tests/unit/client/scripted_store.h"

#include "../common/capture.h"

#define EXTENT_BYTES (64u << 10)
#define HALF         (EXTENT_BYTES / 2)
#define ANSWERS_MAX  4u

typedef struct answer {
    uint32_t status, offset, bytes;
} answer_t;

static as_net_t *store;
static assay_client_t *client;
static answer_t script[ANSWERS_MAX];
static uint32_t spoken_version;
static uint8_t extent[EXTENT_BYTES + HALF]; // more than there is, for who sends too much
static uint8_t buffer[EXTENT_BYTES + HALF];
static bool done, handed_out;
static as_status_t ended;

static void answer_locate(as_conn_t *conn, uint64_t request)
{
    static struct {
        as_wire_place_t place;
        uint32_t crc;
    } found;
    found.place = (as_wire_place_t){.status = AS_WIRE_OK,
                                    .layers = 1,
                                    .extent_bytes = EXTENT_BYTES,
                                    .tokens = 64,
                                    .address = 4096};
    found.crc = as_crc32c(0, extent, EXTENT_BYTES);
    const as_wire_located_t located = {.head = as_wire_head(AS_WIRE_LOCATED, request),
                                       .key_count = 1,
                                       .lease_id = 7,
                                       .lease_ms = 10000,
                                       .crc_count = 1};
    say(conn, &located, sizeof(located), &found, sizeof(found.place) + sizeof(found.crc));
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)ctx;
    assert_true(as_wire_check(msg->header, msg->header_bytes));
    const as_wire_head_t *head = msg->header;
    if (head->type == AS_WIRE_HELLO) {
        as_wire_hello_reply_t spoken = hello_reply(1, head->request);
        spoken.head.version = (uint16_t)spoken_version;
        say(conn, &spoken, sizeof(spoken), NULL, 0);
    } else if (head->type == AS_WIRE_LOCATE) {
        answer_locate(conn, head->request);
    } else if (head->type == AS_WIRE_READ) {
        const as_wire_read_t *read = msg->header;
        assert_int_equal(read->ask_count, 1);
        for (const answer_t *answer = script; answer < script + ANSWERS_MAX; answer++) {
            const as_wire_data_t data = {.head = as_wire_head(AS_WIRE_DATA, read->asks[0].request),
                                         .status = answer->status,
                                         .offset = answer->offset};
            if (answer->status != AS_WIRE_OK || answer->bytes > 0) {
                say(conn, &data, sizeof(data), extent + answer->offset % EXTENT_BYTES,
                    answer->bytes);
            }
        }
    }
}

static int begin(void **state)
{
    (void)state;
    const as_net_handlers_t handlers = {NULL, on_accept, on_message, on_lost, NULL};
    for (size_t i = 0; i < sizeof(extent); i++) {
        extent[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    memset(script, 0, sizeof(script));
    spoken_version = AS_WIRE_VERSION;
    memset(buffer, 0xee, sizeof(buffer));
    done = handed_out = false;
    begin_sim();
    as_sim_set_piece_bytes(sim, EXTENT_BYTES + HALF);
    assert_int_equal(as_net_alloc_sim(sim, "store", &handlers, &store), AS_OK);
    assert_int_equal(as_net_listen(store, "store:0"), AS_OK);
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = loop;
    options.net_alloc = net_alloc;
    assert_int_equal(assay_client_alloc(&options, &client), AS_OK);
    assay_store_t known = {.node_id = 1, .capacity_bytes = 1};
    strncpy(known.data_address, as_net_address(store), sizeof(known.data_address) - 1);
    assay_client_set_stores(client, &known, 1);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assay_client_free(client);
    as_net_free(store);
    as_sim_free(sim);
    as_loop_free(loop);
    return 0;
}

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    assert_int_equal(block_count, spoken_version == AS_WIRE_VERSION);
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    assert_int_equal(layer, 0);
    handed_out = true;
}

static void on_done(void *ctx, as_status_t status, uint32_t hole)
{
    (void)ctx;
    (void)hole;
    done = true;
    ended = status;
}

// What a fetch of the one extent ends with when it is answered so.
static as_status_t fetch(const answer_t *answers, size_t count)
{
    memcpy(script, answers, count * sizeof(answers[0]));
    const as_key_t key = {{1}};
    const assay_fetch_args_t args = {.shape = {1, 4, 4, 64, 64, AS_ELEMENT_F16},
                                     .keys = &key,
                                     .block_count = 1,
                                     .deadline_us = 10000000,
                                     .buffer = buffer,
                                     .layer_stride = EXTENT_BYTES,
                                     .layer_slots = 1,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_done};
    assert_int_equal(as_extent_bytes(&args.shape), EXTENT_BYTES);
    assay_fetch_t *unused;
    assert_int_equal(assay_fetch_start(client, &args, &unused), AS_OK);
    while (!done) {
        assert_true(as_loop_run_once(loop, true));
    }
    assert_int_equal(handed_out, ended == AS_OK);
    assert_true(ended != AS_OK || memcmp(buffer, extent, EXTENT_BYTES) == 0);
    for (size_t i = EXTENT_BYTES; i < sizeof(buffer); i++) {
        assert_int_equal(buffer[i], 0xee); // nothing was written behind it
    }
    return ended;
}
#define FETCH(...)                                                                                 \
    fetch((const answer_t[]){__VA_ARGS__},                                                         \
          sizeof((const answer_t[]){__VA_ARGS__}) / sizeof(answer_t))

static void pieces_in_any_order_are_taken(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, HALF, HALF}, {0, 0, HALF}), AS_OK);
}

static void what_comes_after_the_last_piece_is_ignored(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}, {0, HALF, HALF}, {0, 0, HALF}), AS_OK);
}

static void a_piece_that_comes_twice_instead_of_another_is_found(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}, {0, 0, HALF}), AS_ERR_CHECKSUM);
}

static void a_piece_beyond_the_extent_breaks_the_protocol(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}, {0, HALF + 4096, HALF}), AS_ERR_PROTOCOL);
}

static void a_piece_from_the_end_of_the_numbers_does_too(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, UINT32_MAX - 4095, 8192}), AS_ERR_PROTOCOL);
}

static void pieces_of_more_than_the_extent_do_too(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}, {0, 0, HALF + 4096}), AS_ERR_PROTOCOL);
}

static void an_answer_that_is_too_long_does_too(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, EXTENT_BYTES + HALF}), AS_ERR_PROTOCOL);
}

static void a_refusal_after_a_piece_ends_it(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}, {AS_WIRE_LEASE, 0, 0}), AS_ERR_LEASE);
}

static void a_refusal_that_brings_bytes_breaks_the_protocol(void **state)
{
    (void)state;
    assert_int_equal(FETCH({AS_WIRE_BUSY, 0, HALF}), AS_ERR_PROTOCOL);
}

static void a_piece_that_never_comes_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    assert_int_equal(FETCH({0, 0, HALF}), AS_ERR_DEADLINE);
}

static void a_store_of_another_version_is_told_as_one(void **state)
{
    (void)state;
    static capture_t capture;
    char expected[80];
    spoken_version = AS_WIRE_VERSION + 1;
    snprintf(expected, sizeof(expected),
             "speaks version %u of the data plane, and this client "
             "version %u:",
             AS_WIRE_VERSION + 1, AS_WIRE_VERSION);
    capture_begin(&capture);
    as_status_t status = FETCH({0, 0, EXTENT_BYTES});
    const char *said = capture_end(&capture);
    assert_int_equal(status, AS_ERR_NOT_FOUND); // a miss
    assert_non_null(strstr(said, expected));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pieces_in_any_order_are_taken),
        TEST(what_comes_after_the_last_piece_is_ignored),
        TEST(a_piece_that_comes_twice_instead_of_another_is_found),
        TEST(a_piece_beyond_the_extent_breaks_the_protocol),
        TEST(a_piece_from_the_end_of_the_numbers_does_too),
        TEST(pieces_of_more_than_the_extent_do_too),
        TEST(an_answer_that_is_too_long_does_too),
        TEST(a_refusal_after_a_piece_ends_it),
        TEST(a_refusal_that_brings_bytes_breaks_the_protocol),
        TEST(a_piece_that_never_comes_is_not_waited_for_for_ever),
        TEST(a_store_of_another_version_is_told_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
