// SPDX-License-Identifier: Apache-2.0
// Membership on the simulated clock: joining, silence, incarnations, epochs.
#include "tests/unit/scheduler/harness.h"

#define MS 1000ull

static Assay__StatReply *stat_ask(harness_t *h)
{
    Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
    return harness_call(h, "Stat", &request.base);
}

static Assay__NodeState state_of(harness_t *h, const peer_t *peer)
{
    Assay__StatReply *stat = stat_ask(h);
    for (size_t i = 0; i < stat->n_nodes; i++) {
        if (stat->nodes[i]->node_id == peer->id) {
            return stat->nodes[i]->state;
        }
    }
    return ASSAY__NODE_STATE__NODE_STATE_UNSPECIFIED;
}

#define assert_state(h, peer, name)                                                                \
    assert_int_equal(state_of(h, peer), ASSAY__NODE_STATE__NODE_STATE_##name)

static void a_node_that_joins_is_told_id_and_times(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 7);
    Assay__JoinReply *reply = peer_join(h, &store);
    assert_non_null(reply);
    assert_true(reply->node_id == 0x0707070707070707ull);
    assert_int_equal(reply->heartbeat_ms, 1000);
    assert_int_equal(reply->suspect_ms, 3000);
    assert_int_equal(reply->dead_ms, 10000);
    assert_string_equal(reply->cluster_id, "assay");
    assert_true(reply->needs_listing);
    assert_int_equal(reply->n_nodes, 1);
    assert_string_equal(reply->nodes[0]->data_address, "node7:1");
}

static void silence_makes_a_node_suspect_then_dead(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    harness_run(h, 2990 * MS);
    assert_state(h, &store, ALIVE);
    harness_run(h, 20 * MS);
    assert_state(h, &store, SUSPECT);
    harness_run(h, 6980 * MS);
    assert_state(h, &store, SUSPECT);
    harness_run(h, 20 * MS);
    assert_state(h, &store, DEAD);
}

static void start_two(harness_t *h, peer_t *store, peer_t *other)
{
    peer_init(store, STORE, 1);
    peer_init(other, STORE, 2);
    peer_start(h, store, NULL, 0, 0);
    peer_start(h, other, NULL, 0, 0);
}

static void a_heartbeat_keeps_a_node_alive_and_revives_a_suspect(void **state)
{
    harness_t *h = *state;
    peer_t store, other;
    start_two(h, &store, &other);
    for (int i = 0; i < 20; i++) {
        harness_run(h, 1000 * MS);
        Assay__HeartbeatReply *reply = peer_heartbeat(h, &store, 0, 0);
        assert_int_equal(reply->status, ASSAY__NODE_STATUS__NODE_STATUS_OK);
    }
    assert_state(h, &store, ALIVE);
    assert_state(h, &other, DEAD);
    harness_run(h, 5000 * MS);
    assert_state(h, &store, SUSPECT);
    peer_heartbeat(h, &store, 0, 0);
    assert_state(h, &store, ALIVE);
}

static void a_dead_node_must_join_again(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    harness_run(h, 11000 * MS);
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status,
                     ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE);
    assert_int_equal(peer_send(h, &store, 1, NULL, NULL, 0, BEGIN)->status,
                     ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE);
    Assay__JoinReply *reply = peer_join(h, &store);
    assert_true(reply->needs_listing);
    assert_state(h, &store, ALIVE);
}

static void a_dead_node_is_forgotten_in_the_end(void **state)
{
    harness_t *h = *state;
    peer_t store;
    peer_init(&store, STORE, 1);
    peer_start(h, &store, NULL, 0, 0);
    harness_run(h, 11000 * MS);
    assert_state(h, &store, DEAD);
    harness_run(h, 601000 * MS);
    assert_int_equal(stat_ask(h)->n_nodes, 0);
}

static const Assay__StoreNode *store_in(const Assay__JoinReply *reply, uint64_t id)
{
    for (size_t i = 0; i < reply->n_nodes; i++) {
        if (reply->nodes[i]->node_id == id) {
            return reply->nodes[i];
        }
    }
    return NULL;
}

static void a_store_that_drains_is_told_of_and_one_that_leaves_is_dead_at_once(void **state)
{
    harness_t *h = *state;
    peer_t store, other;
    start_two(h, &store, &other);
    uint64_t epoch = peer_heartbeat(h, &store, 0, 0)->placement_epoch;
    store.draining = true;
    Assay__HeartbeatReply *reply = peer_heartbeat(h, &store, 0, 0);
    assert_true(reply->placement_epoch > epoch && reply->n_nodes == 2);
    assert_true(store_in(peer_join(h, &other), store.id)->draining);
    assert_false(store_in(peer_join(h, &other), other.id)->draining);
    assert_true(store_in(peer_join(h, &store), store.id)->draining); // of a new scheduler, too
    assert_state(h, &store, ALIVE);
    store.leaving = true;
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status, ASSAY__NODE_STATUS__NODE_STATUS_OK);
    assert_state(h, &store, DEAD);
    assert_null(store_in(peer_join(h, &other), store.id));
    assert_int_equal(peer_heartbeat(h, &store, 0, 0)->status,
                     ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE);
    store.leaving = store.draining = false;
    assert_false(store_in(peer_join(h, &store), store.id)->draining);
}

// Lets `us` pass while these are heard; returns what the last is weighted by.
static uint64_t pass(harness_t *h, peer_t *peers, uint32_t count, uint64_t us)
{
    for (uint64_t at = 0; at < us; at += 500 * MS) {
        harness_run(h, 500 * MS);
        for (uint32_t i = 0; i < count; i++) {
            peer_heartbeat(h, &peers[i], 0, 0);
        }
    }
    peer_t *first = &peers[0];
    return store_in(peer_join(h, first), peers[count - 1].id)->capacity_bytes;
}

static void an_empty_store_that_joins_others_grows_into_its_share(void **state)
{
    harness_t *h = *state;
    peer_t stores[3];
    for (uint8_t i = 0; i < 3; i++) {
        peer_init(&stores[i], STORE, (uint8_t)(i + 1));
    }
    peer_start(h, &stores[0], NULL, 0, 0);
    assert_int_equal(pass(h, stores, 1, 20000 * MS), 1000);
    peer_start(h, &stores[1], NULL, 0, 0); // the cluster is new: nobody waits
    assert_int_equal(pass(h, stores, 2, 20000 * MS), 1000);
    peer_start(h, &stores[2], NULL, 0, 0);
    uint64_t weight = store_in(peer_join(h, &stores[0]), stores[2].id)->capacity_bytes, more;
    assert_int_equal(weight, 125);
    for (int i = 0; i < 10; i++) {
        uint64_t epoch = stat_ask(h)->placement_epoch;
        more = pass(h, stores, 3, 3000 * MS);
        assert_true(more >= weight && more <= weight + 250);
        assert_true((more > weight) == (stat_ask(h)->placement_epoch > epoch + 1)); // 1: the join
        weight = more;
    }
    assert_int_equal(weight, 1000);
    assert_int_equal(store_in(peer_join(h, &stores[0]), stores[0].id)->capacity_bytes, 1000);
    stores[2].incarnation++; // it is empty again
    stores[2].sequence = 1;
    assert_non_null(peer_join(h, &stores[2]));
    assert_int_equal(pass(h, stores, 3, 500 * MS), 125);
}

static void a_store_that_comes_with_blocks_has_its_share_at_once(void **state)
{
    harness_t *h = *state;
    peer_t stores[2];
    as_key_t key;
    chain_make(h, &key, 1);
    peer_init(&stores[0], STORE, 1);
    peer_init(&stores[1], STORE, 2);
    peer_start(h, &stores[0], NULL, 0, 0);
    pass(h, stores, 1, 40000 * MS);
    peer_start(h, &stores[1], &key, FULL_ADDED, 1);
    assert_int_equal(pass(h, stores, 2, 500 * MS), 1000);
}

// What it lists after a gap was put there since: it did not come with it.
static void a_listing_after_a_gap_does_not_end_a_slow_start(void **state)
{
    harness_t *h = *state;
    peer_t stores[2];
    as_key_t keys[2];
    const uint8_t ops[2] = {FULL_ADDED, FULL_ADDED};
    chain_make(h, keys, 2);
    peer_init(&stores[0], STORE, 1);
    peer_init(&stores[1], STORE, 2);
    peer_start(h, &stores[0], NULL, 0, 0);
    pass(h, stores, 1, 40000 * MS);
    peer_start(h, &stores[1], NULL, 0, 0);
    peer_tell(h, &stores[1], keys, ops, 1, 0);
    stores[1].sequence += 3; // these are lost
    assert_int_equal(peer_heartbeat(h, &stores[1], 0, 0)->status,
                     ASSAY__NODE_STATUS__NODE_STATUS_RESYNC);
    peer_tell(h, &stores[1], keys, ops, 2, BEGIN | END);
    assert_int_equal(pass(h, stores, 2, 500 * MS), 125);
    assert_int_equal(pass(h, stores, 2, 40000 * MS), 1000);
}

static void a_new_incarnation_has_lost_its_blocks(void **state)
{
    harness_t *h = *state;
    peer_t store;
    as_key_t keys[3];
    chain_make(h, keys, 3);
    peer_init(&store, STORE, 1);
    peer_start(h, &store, keys, FULL_ADDED, 3);
    assert_int_equal(route_ask(h, 0, keys, 3)->hit_blocks, 3);
    assert_false(peer_join(h, &store)->needs_listing); // the same: nothing is lost
    assert_int_equal(route_ask(h, 0, keys, 3)->hit_blocks, 3);
    peer_t old = store;
    store.incarnation = 2;
    assert_true(peer_join(h, &store)->needs_listing);
    assert_int_equal(route_ask(h, 0, keys, 3)->hit_blocks, 0);
    assert_int_equal(peer_heartbeat(h, &old, 0, 0)->status,
                     ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE);
    assert_null(peer_join(h, &old));
    assert_int_equal(h->answer.status, AS_ERR_DENIED);
}

static void two_instances_cannot_have_one_id(void **state)
{
    harness_t *h = *state;
    peer_t store, twin;
    peer_init(&store, STORE, 1);
    peer_init(&twin, STORE, 1);
    twin.instance[12] = 99;
    assert_non_null(peer_join(h, &store));
    assert_null(peer_join(h, &twin));
    assert_int_equal(h->answer.status, AS_ERR_EXISTS);
}

static void a_newcomer_on_an_address_makes_the_old_one_suspect(void **state)
{
    harness_t *h = *state;
    peer_t old, newcomer;
    peer_init(&old, STORE, 1);
    peer_init(&newcomer, STORE, 2);
    snprintf(newcomer.address, sizeof(newcomer.address), "%s", old.address);
    peer_start(h, &old, NULL, 0, 0);
    peer_start(h, &newcomer, NULL, 0, 0);
    assert_state(h, &old, SUSPECT);
    assert_state(h, &newcomer, ALIVE);
    peer_heartbeat(h, &old, 0, 0);
    assert_state(h, &old, ALIVE);
}

static uint64_t epoch_of(harness_t *h)
{
    return stat_ask(h)->placement_epoch;
}

static void the_epoch_says_when_the_stores_have_changed(void **state)
{
    harness_t *h = *state;
    peer_t store, worker;
    peer_init(&store, STORE, 1);
    peer_init(&worker, WORKER, 2);
    peer_start(h, &worker, NULL, 0, 0);
    uint64_t epoch = epoch_of(h);
    peer_start(h, &store, NULL, 0, 0);
    assert_true(epoch_of(h) > epoch);
    epoch = epoch_of(h);
    Assay__HeartbeatReply *reply = peer_heartbeat(h, &worker, 5, 0);
    assert_int_equal(reply->n_nodes, 1);
    assert_true(reply->placement_epoch == epoch);
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    request.node_id = worker.id;
    request.incarnation = worker.incarnation;
    request.events_next_sequence = worker.sequence;
    request.placement_epoch = epoch;
    reply = harness_call(h, "Heartbeat", &request.base);
    assert_int_equal(reply->n_nodes, 0);
    harness_run(h, 4000 * MS);
    assert_true(epoch_of(h) > epoch); // suspect
    epoch = epoch_of(h);
    harness_run(h, 7000 * MS);
    assert_true(epoch_of(h) > epoch); // dead
}

static void on_nothing(void *ctx)
{
    (void)ctx;
}

static void forget_nothing(void *ctx, sch_node_t *node)
{
    (void)ctx;
    (void)node;
}

// A loop that was not run for a while: its timers are late, as after SIGSTOP.
static void a_scheduler_that_stood_still_blames_no_node(void **state)
{
    (void)state;
    as_loop_t *loop;
    as_timer_t *pause;
    sch_cluster_t *cluster;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    sch_cluster_params_t params = {300 * MS, 600 * MS, 0, NULL, forget_nothing, forget_nothing};
    assert_int_equal(sch_cluster_alloc(loop, &params, &cluster), AS_OK);
    assert_int_equal(as_timer_alloc(loop, on_nothing, NULL, &pause), AS_OK);
    uint8_t instance[16] = {1};
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    request.role = STORE;
    request.instance_id.data = instance;
    request.instance_id.len = sizeof(instance);
    request.incarnation = 1;
    request.data_address = "a:1";
    sch_node_t *node;
    const char *text;
    assert_int_equal(sch_cluster_join(cluster, &request, &node, &text), AS_OK);
    uint64_t begin_us = as_loop_now_us(loop);
    while (as_loop_now_us(loop) - begin_us < 1200 * MS) {
    }
    as_loop_run_once(loop, false);
    assert_int_not_equal(node->state, ASSAY__NODE_STATE__NODE_STATE_DEAD);
    as_timer_free(pause);
    sch_cluster_free(cluster);
    as_loop_free(loop);
}

static void wrong_joins_are_refused(void **state)
{
    harness_t *h = *state;
    char long_text[400];
    memset(long_text, 'a', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    for (int wrong = 0; wrong < 14; wrong++) {
        uint8_t instance[32] = {wrong == 1 ? 0 : 5};
        instance[12] = 1;
        Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
        request.role = wrong == 0 ? 9 : STORE;
        request.instance_id.data = instance;
        request.instance_id.len = wrong == 2 ? 15 : wrong == 3 ? 17 : 16;
        request.incarnation = wrong == 4 ? 0 : 1;
        request.data_address = wrong == 5   ? ""
                               : wrong == 6 ? "nowhere"
                               : wrong == 7 ? "a b:1"
                               : wrong == 8 ? long_text
                                            : "a:1";
        request.rpc_address = wrong == 9 ? ":1" : "";
        request.http_address = wrong == 10 ? "a:123456" : "";
        request.model_fingerprint.data = instance;
        request.model_fingerprint.len = wrong == 11 ? 31 : 0;
        request.numerics_id = wrong == 12 ? long_text : "";
        request.name = wrong == 13 ? "new\nline" : "";
        assert_null(harness_call(h, "Join", &request.base));
        assert_int_equal(h->answer.status, AS_ERR_INVALID);
        assert_true(strlen(h->answer.text) > 10);
    }
    assert_int_equal(stat_ask(h)->n_nodes, 0);
}

static void the_cluster_has_a_limit_and_the_dead_make_room(void **state)
{
    harness_t *h = *state;
    peer_t peer;
    peer_init(&peer, WORKER, 1);
    for (uint32_t i = 1; i <= SCH_NODES_MAX; i++) {
        memcpy(peer.instance, &i, sizeof(i));
        assert_non_null(peer_join(h, &peer));
    }
    uint32_t one_more = SCH_NODES_MAX + 1;
    memcpy(peer.instance, &one_more, sizeof(one_more));
    assert_null(peer_join(h, &peer));
    assert_int_equal(h->answer.status, AS_ERR_LIMIT);
    harness_run(h, 11000 * MS);
    assert_non_null(peer_join(h, &peer));
    assert_int_equal(stat_ask(h)->n_nodes, SCH_NODES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SCHEDULER(a_node_that_joins_is_told_id_and_times),
        WITH_SCHEDULER(silence_makes_a_node_suspect_then_dead),
        WITH_SCHEDULER(a_heartbeat_keeps_a_node_alive_and_revives_a_suspect),
        WITH_SCHEDULER(a_dead_node_must_join_again),
        WITH_SCHEDULER(a_dead_node_is_forgotten_in_the_end),
        WITH_SCHEDULER(a_store_that_drains_is_told_of_and_one_that_leaves_is_dead_at_once),
        WITH_SCHEDULER(an_empty_store_that_joins_others_grows_into_its_share),
        WITH_SCHEDULER(a_store_that_comes_with_blocks_has_its_share_at_once),
        WITH_SCHEDULER(a_listing_after_a_gap_does_not_end_a_slow_start),
        WITH_SCHEDULER(a_new_incarnation_has_lost_its_blocks),
        WITH_SCHEDULER(two_instances_cannot_have_one_id),
        WITH_SCHEDULER(a_newcomer_on_an_address_makes_the_old_one_suspect),
        WITH_SCHEDULER(the_epoch_says_when_the_stores_have_changed),
        cmocka_unit_test(a_scheduler_that_stood_still_blames_no_node),
        WITH_SCHEDULER(wrong_joins_are_refused),
        WITH_SCHEDULER(the_cluster_has_a_limit_and_the_dead_make_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
