// SPDX-License-Identifier: Apache-2.0
// Block events: gaps, repetitions, late messages and listings, and a random run against a model.
#include "tests/unit/scheduler/harness.h"

#define OK      ASSAY__NODE_STATUS__NODE_STATUS_OK
#define RESYNC  ASSAY__NODE_STATUS__NODE_STATUS_RESYNC
#define UNKNOWN ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE

static const uint8_t added[4] = {FULL_ADDED, FULL_ADDED, FULL_ADDED, FULL_ADDED};
static const uint8_t removed[4] = {FULL_REMOVED, FULL_REMOVED, FULL_REMOVED, FULL_REMOVED};

static bool is_held(harness_t *h, const as_key_t *key)
{
    return route_ask(h, 0, key, 1)->hit_blocks == 1;
}

static void events_before_a_listing_are_not_taken(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    assert_int_equal(peer_send(h, &store, 1, keys, added, 4, 0)->status, UNKNOWN);
    peer_join(h, &store);
    assert_int_equal(peer_send(h, &store, 1, keys, added, 4, 0)->status, RESYNC);
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, RESYNC);
    assert_false(is_held(h, &keys[0]));
    peer_tell(h, &store, keys, added, 4, BEGIN | END);
    assert_true(is_held(h, &keys[0]));
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, OK);
}

static void added_and_removed_blocks_show_in_routes(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    peer_tell(h, &store, keys, added, 2, 0);
    peer_tell(h, &store, keys + 2, added, 2, 0);
    assert_int_equal(route_ask(h, 0, keys, 4)->hit_blocks, 4);
    peer_tell(h, &store, keys + 2, removed, 1, 0);
    assert_int_equal(route_ask(h, 0, keys, 4)->hit_blocks, 2);
}

static void a_gap_asks_for_a_listing_and_the_listing_heals(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    peer_start(h, &store, keys, FULL_ADDED, 2);
    // Event 3, the removal of the first block, is lost; 4 comes.
    Assay__EventsReply *reply = peer_send(h, &store, 4, keys + 3, added, 1, 0);
    assert_int_equal(reply->status, RESYNC);
    assert_int_equal(reply->next_sequence, 3);
    assert_false(is_held(h, &keys[3]));
    assert_true(is_held(h, &keys[1])); // meanwhile the old knowledge serves
    assert_int_equal(peer_send(h, &store, 3, keys + 3, added, 1, 0)->status, RESYNC);
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, RESYNC);
    store.sequence = 5;
    peer_tell(h, &store, keys + 1, added, 1, BEGIN);
    peer_tell(h, &store, keys + 3, added, 1, END);
    assert_false(is_held(h, &keys[0]));
    assert_true(is_held(h, &keys[1]));
    assert_true(is_held(h, &keys[3]));
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, OK);
}

static void repeated_events_are_skipped(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    peer_tell(h, &store, keys, added, 2, 0);   // 1, 2
    peer_tell(h, &store, keys, removed, 1, 0); // 3
    Assay__EventsReply *reply = peer_send(h, &store, 1, keys, added, 2, 0);
    assert_int_equal(reply->status, OK);
    assert_int_equal(reply->next_sequence, 4);
    assert_false(is_held(h, &keys[0]));
    // Half old, half new.
    const uint8_t mixed[4] = {FULL_ADDED, FULL_ADDED, FULL_REMOVED, FULL_ADDED};
    const as_key_t again[4] = {keys[0], keys[1], keys[0], keys[2]};
    reply = peer_send(h, &store, 1, again, mixed, 4, 0);
    assert_int_equal(reply->next_sequence, 5);
    assert_false(is_held(h, &keys[0]));
    assert_true(is_held(h, &keys[2]));
}

static void a_repeated_or_late_listing_begin_forgets_nothing(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    peer_join(h, &store);
    peer_tell(h, &store, keys, added, 2, BEGIN | END);
    peer_tell(h, &store, keys + 2, added, 1, 0);
    assert_int_equal(peer_send(h, &store, 1, keys, added, 2, BEGIN | END)->status, OK);
    assert_true(is_held(h, &keys[2]));
    peer_tell(h, &store, keys, added, 3, BEGIN | END); // a second listing, from 4
    assert_int_equal(peer_send(h, &store, 1, keys, added, 2, BEGIN | END)->status, OK);
    assert_true(is_held(h, &keys[2]));
}

static void a_scheduler_that_forgot_asks_at_the_next_heartbeat(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    store.sequence = 9; // acknowledged by someone, but not here
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, RESYNC);
}

static void malformed_events_are_refused_whole(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    peer_t store;
    chain_make(h, keys, 4);
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    const uint8_t bad[4] = {FULL_ADDED, FULL_ADDED, 5, FULL_ADDED};
    assert_null(peer_send(h, &store, 1, keys, bad, 4, 0));
    assert_int_equal(h->answer.status, AS_ERR_INVALID);
    const uint8_t zero[1] = {0};
    assert_null(peer_send(h, &store, 1, keys, zero, 1, 0));
    assert_null(peer_send(h, &store, 0, keys, added, 4, 0));
    assert_null(peer_send(h, &store, UINT64_MAX, keys, added, 4, 0));

    Assay__EventsRequest request = ASSAY__EVENTS_REQUEST__INIT;
    request.node_id = store.id;
    request.incarnation = 1;
    request.first_sequence = 1;
    request.ops.data = (uint8_t *)added;
    request.ops.len = 4;
    request.keys.data = (uint8_t *)keys;
    request.keys.len = sizeof(keys) - 1;
    assert_null(harness_call(h, "Events", &request.base));
    assert_int_equal(h->answer.status, AS_ERR_INVALID);
    size_t many = SCH_EVENTS_MAX + 1;
    request.ops.data = malloc(many);
    memset(request.ops.data, FULL_ADDED, many);
    request.ops.len = many;
    request.keys.data = calloc(many, 32);
    request.keys.len = many * 32;
    assert_null(harness_call(h, "Events", &request.base));
    assert_int_equal(h->answer.status, AS_ERR_LIMIT);
    free(request.ops.data);
    free(request.keys.data);
    assert_false(is_held(h, &keys[0]));
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, OK);
}

static void a_dead_nodes_blocks_leave_the_directory(void **state)
{
    harness_t *h = *state;
    as_key_t keys[100];
    peer_t first, second;
    chain_make(h, keys, 100);
    peer_init(&first, STORE, 1);
    peer_init(&second, STORE, 2);
    peer_start(h, &first, keys, FULL_ADDED, 100);
    peer_start(h, &second, keys, FULL_ADDED, 50);
    for (int i = 0; i < 11; i++) {
        harness_run(h, 1000000);
        peer_heartbeat(h, &second, 0, 0);
    }
    Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
    Assay__StatReply *stat = harness_call(h, "Stat", &request.base);
    assert_int_equal(stat->directory_blocks, 50);
    assert_int_equal(route_ask(h, 0, keys, 100)->hit_blocks, 50);
}

// One store's real blocks, told through a line that loses, repeats and delays messages. After each
// heartbeat round that ends well, the scheduler knows exactly what the store holds.
#define BLOCKS  40
#define PENDING 64

typedef struct line {
    harness_t *h;
    peer_t store;
    as_key_t keys[BLOCKS];
    bool held[BLOCKS];
    as_key_t queue_keys[PENDING]; // events not acknowledged yet, from store.sequence on
    uint8_t queue_ops[PENDING];
    uint32_t queued;
    struct {
        uint64_t first;
        as_key_t keys[PENDING];
        uint8_t ops[PENDING];
        uint32_t count;
        unsigned marks;
    } late; // the last message that was sent, to be repeated at some time
    bool list_next;
} line_t;

static void line_change(line_t *line)
{
    uint32_t block = harness_random(line->h) % BLOCKS;
    line->held[block] = !line->held[block];
    line->queue_keys[line->queued] = line->keys[block];
    line->queue_ops[line->queued++] = line->held[block] ? FULL_ADDED : FULL_REMOVED;
}

static void line_answer(line_t *line, const Assay__EventsReply *reply, uint32_t count)
{
    if (reply->status != OK) {
        line->list_next = true;
        return;
    }
    line->store.sequence += count;
    line->queued -= count;
    memmove(line->queue_keys, line->queue_keys + count, line->queued * sizeof(as_key_t));
    memmove(line->queue_ops, line->queue_ops + count, line->queued);
}

// A listing takes the place of the events that wait: their numbers are skipped.
static void line_list(line_t *line)
{
    line->store.sequence += line->queued;
    line->queued = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (line->held[i]) {
            line->queue_keys[line->queued] = line->keys[i];
            line->queue_ops[line->queued++] = FULL_ADDED;
        }
    }
}

static bool line_send(line_t *line, unsigned marks, bool lose_request, bool lose_reply)
{
    line->late.first = line->store.sequence;
    line->late.count = line->queued;
    line->late.marks = marks;
    memcpy(line->late.keys, line->queue_keys, sizeof(line->queue_keys));
    memcpy(line->late.ops, line->queue_ops, sizeof(line->queue_ops));
    if (lose_request) {
        return false;
    }
    Assay__EventsReply *reply = peer_send(line->h, &line->store, line->store.sequence,
                                          line->queue_keys, line->queue_ops, line->queued, marks);
    if (lose_reply) {
        return false;
    }
    bool ok = reply->status == OK;
    line_answer(line, reply, line->queued);
    return ok;
}

static void line_step(line_t *line, uint32_t luck)
{
    if (luck < 30 && line->late.first) { // a late repetition of what was sent
        peer_send(line->h, &line->store, line->late.first, line->late.keys, line->late.ops,
                  line->late.count, line->late.marks);
    } else if (luck < 40 && line->queued > 0) { // the store drops events: a gap
        line->store.sequence += line->queued;
        line->queued = 0;
    } else if (line->list_next) {
        line_list(line);
        line->list_next = !line_send(line, BEGIN | END, luck < 50, luck >= 50 && luck < 60);
    } else if (line->queued > PENDING - 16 || luck < 90) {
        line_send(line, 0, luck < 50, luck >= 50 && luck < 60);
    } else {
        line_change(line);
    }
}

static void line_settle(line_t *line)
{
    for (int round = 0; round < 10; round++) {
        if (!line->list_next && line->queued > 0) {
            line_send(line, 0, false, false);
        }
        if (line->list_next) {
            line_list(line);
            line->list_next = !line_send(line, BEGIN | END, false, false);
        }
        Assay__HeartbeatReply *reply = peer_heartbeat(line->h, &line->store, 0, 0);
        line->list_next |= reply->status == RESYNC;
        if (!line->list_next && line->queued == 0) {
            return;
        }
    }
    fail_msg("the line does not settle");
}

static void a_bad_line_never_leaves_the_directory_wrong(void **state)
{
    harness_t *h = *state;
    harness_seed(h, 20);
    line_t *line = calloc(1, sizeof(*line));
    line->h = h;
    chain_make(h, line->keys, BLOCKS);
    peer_init(&line->store, STORE, 1);
    peer_start(h, &line->store, NULL, 0, 0);
    for (int round = 0; round < 2000; round++) {
        for (int step = 0; step < 30; step++) {
            line_step(line, harness_random(h) % 200);
        }
        line_settle(line);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            assert_int_equal(is_held(h, &line->keys[i]), line->held[i]);
        }
        harness_run(h, 100000); // so that dropped slots are swept
    }
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SCHEDULER(events_before_a_listing_are_not_taken),
        WITH_SCHEDULER(added_and_removed_blocks_show_in_routes),
        WITH_SCHEDULER(a_gap_asks_for_a_listing_and_the_listing_heals),
        WITH_SCHEDULER(repeated_events_are_skipped),
        WITH_SCHEDULER(a_repeated_or_late_listing_begin_forgets_nothing),
        WITH_SCHEDULER(a_scheduler_that_forgot_asks_at_the_next_heartbeat),
        WITH_SCHEDULER(malformed_events_are_refused_whole),
        WITH_SCHEDULER(a_dead_nodes_blocks_leave_the_directory),
        WITH_SCHEDULER(a_bad_line_never_leaves_the_directory_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
