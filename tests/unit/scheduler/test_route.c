// SPDX-License-Identifier: Apache-2.0
// Routes: against an obvious model of random clusters, and the choice of stores and workers.
#include "common/fault.h"
#include "tests/unit/scheduler/harness.h"

#define BLOCKS 64
#define STORES 5
#define ROUNDS 400

typedef struct model {
    harness_t *h;
    as_key_t keys[BLOCKS];
    peer_t stores[STORES];
    bool holds[STORES][BLOCKS];
    bool usable[STORES];
} model_t;

static bool model_holds(const model_t *m, uint64_t id, uint32_t block)
{
    for (uint32_t i = 0; i < STORES; i++) {
        if (m->stores[i].id == id) {
            return m->usable[i] && m->holds[i][block];
        }
    }
    return false;
}

static uint32_t model_count(const model_t *m, uint32_t block)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < STORES; i++) {
        count += m->usable[i] && m->holds[i][block];
    }
    return count;
}

static void model_fill(model_t *m, uint32_t store)
{
    // Long stretches, as placement makes them, and a few holes.
    as_key_t keys[BLOCKS];
    size_t count = 0;
    bool on = harness_random(m->h) % 2;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        on = harness_random(m->h) % 8 ? on : !on;
        m->holds[store][i] = on || harness_random(m->h) % 3 == 0;
        if (m->holds[store][i]) {
            keys[count++] = m->keys[i];
        }
    }
    peer_start(m->h, &m->stores[store], keys, FULL_ADDED, count);
}

static bool same_holders(const model_t *m, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < STORES; i++) {
        if (m->usable[i] && m->holds[i][a] != m->holds[i][b]) {
            return false;
        }
    }
    return true;
}

static void check_run(const model_t *m, const Assay__RouteRun *run, const Assay__RouteReply *reply)
{
    for (uint32_t block = run->first_block; block < run->first_block + run->block_count; block++) {
        assert_int_equal(run->n_node_ids, model_count(m, block));
        for (size_t i = 0; i < run->n_node_ids; i++) {
            assert_true(model_holds(m, run->node_ids[i], block));
        }
    }
    uint32_t end = run->first_block + run->block_count;
    if (end < reply->hit_blocks) {
        assert_false(same_holders(m, end - 1, end)); // as long as it can be
    }
    for (size_t i = 0; i < run->n_node_ids; i++) {
        size_t found = 0;
        for (size_t j = 0; j < reply->n_nodes; j++) {
            found += reply->nodes[j]->node_id == run->node_ids[i];
        }
        assert_int_equal(found, 1);
    }
}

static void check_route(model_t *m, uint32_t count)
{
    uint32_t expected = 0;
    while (expected < count && model_count(m, expected) > 0) {
        expected++;
    }
    Assay__RouteReply *reply = route_ask(m->h, 0, m->keys, count);
    assert_non_null(reply);
    assert_int_equal(reply->hit_blocks, expected);
    uint32_t at = 0;
    for (size_t i = 0; i < reply->n_runs; i++) {
        assert_int_equal(reply->runs[i]->first_block, at);
        assert_true(reply->runs[i]->block_count > 0);
        check_run(m, reply->runs[i], reply);
        at += reply->runs[i]->block_count;
    }
    assert_int_equal(at, expected);
}

static void routes_equal_the_model(void **state)
{
    (void)state;
    harness_t h;
    harness_init(&h);
    harness_seed(&h, 11);
    for (int round = 0; round < ROUNDS; round++) {
        model_t *m = calloc(1, sizeof(*m));
        m->h = &h;
        chain_make(&h, m->keys, BLOCKS);
        for (uint32_t i = 0; i < STORES; i++) {
            peer_init(&m->stores[i], STORE, (uint8_t)(1 + i));
            m->stores[i].incarnation = (uint64_t)round + 1;
            m->usable[i] = true;
            model_fill(m, i);
        }
        check_route(m, BLOCKS);
        // Some fall silent for long enough to be suspect.
        for (int second = 0; second < 4; second++) {
            harness_run(&h, 1000000);
            for (uint32_t i = 0; i < STORES; i++) {
                m->usable[i] = round >> i & 1;
                if (m->usable[i]) {
                    peer_heartbeat(&h, &m->stores[i], 0, 0);
                }
            }
        }
        check_route(m, BLOCKS);
        check_route(m, harness_random(&h) % BLOCKS);
        free(m);
    }
    harness_fini(&h);
}

static void the_least_loaded_holder_comes_first(void **state)
{
    harness_t *h = *state;
    as_key_t keys[8];
    peer_t stores[3];
    chain_make(h, keys, 8);
    for (uint8_t i = 0; i < 3; i++) {
        peer_init(&stores[i], STORE, (uint8_t)(i + 1));
        peer_start(h, &stores[i], keys, FULL_ADDED, 8);
    }
    static const int loads[][3] = {{3, 1, 2}, {1, 2, 3}, {2, 3, 1}};
    for (int order = 0; order < 3; order++) {
        for (int i = 0; i < 3; i++) {
            peer_heartbeat(h, &stores[i], 0, (uint64_t)loads[order][i]);
        }
        Assay__RouteReply *reply = route_ask(h, 0, keys, 8);
        assert_int_equal(reply->n_runs, 1);
        assert_int_equal(reply->runs[0]->n_node_ids, 3);
        for (int i = 0; i < 3; i++) {
            int at = loads[order][i] - 1;
            assert_true(reply->runs[0]->node_ids[at] == stores[i].id);
        }
    }
}

static void a_store_that_drains_is_named_only_for_what_no_other_has(void **state)
{
    harness_t *h = *state;
    as_key_t keys[8];
    peer_t stores[2];
    chain_make(h, keys, 8);
    peer_init(&stores[0], STORE, 1);
    peer_init(&stores[1], STORE, 2);
    peer_start(h, &stores[0], keys, FULL_ADDED, 8);
    peer_start(h, &stores[1], keys, FULL_ADDED, 3);
    assert_int_equal(route_ask(h, 0, keys, 8)->runs[0]->n_node_ids, 2);
    stores[0].draining = true;
    peer_heartbeat(h, &stores[0], 0, 0);
    Assay__RouteReply *reply = route_ask(h, 0, keys, 8);
    assert_int_equal(reply->hit_blocks, 8);
    assert_int_equal(reply->n_runs, 2);
    assert_int_equal(reply->runs[0]->block_count, 3);
    assert_int_equal(reply->runs[0]->n_node_ids, 1);
    assert_true(reply->runs[0]->node_ids[0] == stores[1].id);
    assert_true(reply->runs[1]->node_ids[0] == stores[0].id);
    stores[0].leaving = true;
    peer_heartbeat(h, &stores[0], 0, 0);
    assert_int_equal(route_ask(h, 0, keys, 8)->hit_blocks, 3);
}

static void equally_loaded_holders_share_the_chains(void **state)
{
    harness_t *h = *state;
    peer_t stores[2];
    peer_init(&stores[0], STORE, 1);
    peer_init(&stores[1], STORE, 2);
    as_key_t keys[100];
    chain_make(h, keys, 100);
    peer_start(h, &stores[0], keys, FULL_ADDED, 100);
    peer_start(h, &stores[1], keys, FULL_ADDED, 100);
    int first = 0;
    for (int i = 0; i < 100; i++) {
        first += route_ask(h, 0, &keys[i], 1)->runs[0]->node_ids[0] == stores[0].id;
    }
    assert_true(first > 25 && first < 75);
}

static void an_unknown_chain_hits_nothing(void **state)
{
    harness_t *h = *state;
    as_key_t keys[4];
    chain_make(h, keys, 4);
    Assay__RouteReply *reply = route_ask(h, 0, keys, 4);
    assert_int_equal(reply->hit_blocks, 0);
    assert_int_equal(reply->n_runs, 0);
    assert_true(reply->worker_node_id == 0);
    assert_int_equal(route_ask(h, 0, keys, 0)->hit_blocks, 0);
}

static void a_worker_serves_itself_unless_another_is_clearly_better(void **state)
{
    harness_t *h = *state;
    as_key_t keys[32];
    peer_t workers[3];
    chain_make(h, keys, 32);
    for (uint8_t i = 0; i < 3; i++) {
        peer_init(&workers[i], WORKER, (uint8_t)(i + 1));
    }
    peer_start(h, &workers[0], NULL, 0, 0);
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[0].id);
    peer_start(h, &workers[1], keys, SEALED_ADDED, 4); // 256 tokens: not worth the move
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[0].id);
    peer_start(h, &workers[2], keys, SEALED_ADDED, 20);
    Assay__RouteReply *reply = route_ask(h, workers[0].id, keys, 32);
    assert_true(reply->worker_node_id == workers[2].id);
    assert_int_equal(reply->worker_sealed_blocks, 20);
    assert_int_equal(reply->hit_blocks, 0); // sealed is not full
    // With much work waiting there it is not.
    peer_heartbeat(h, &workers[2], 1000, 0);
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[0].id);
    // Nor when much waits here, but then the idle one is.
    peer_heartbeat(h, &workers[0], 5000, 0);
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[2].id ||
                route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[1].id);
    // A suspect worker is not chosen.
    for (int i = 0; i < 4; i++) {
        harness_run(h, 1000000);
        peer_heartbeat(h, &workers[0], 5000, 0);
    }
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[0].id);
    assert_true(route_ask(h, 424242, keys, 32)->worker_node_id == 0); // an asker nobody knows
}

static void a_sealed_prefix_with_a_hole_ends_at_the_hole(void **state)
{
    harness_t *h = *state;
    as_key_t keys[32];
    peer_t worker;
    chain_make(h, keys, 32);
    peer_init(&worker, WORKER, 1);
    peer_start(h, &worker, keys, SEALED_ADDED, 10);
    const uint8_t ops[1] = {SEALED_REMOVED};
    peer_tell(h, &worker, &keys[6], ops, 1, 0);
    assert_int_equal(route_ask(h, worker.id, keys, 32)->worker_sealed_blocks, 6);
}

static void a_request_never_moves_to_other_numerics(void **state)
{
    harness_t *h = *state;
    as_key_t keys[32];
    peer_t workers[2];
    chain_make(h, keys, 32);
    peer_init(&workers[0], WORKER, 1);
    peer_init(&workers[1], WORKER, 2);
    peer_start(h, &workers[0], NULL, 0, 0);
    peer_start(h, &workers[1], keys, SEALED_ADDED, 32);
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[1].id);
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    request.role = WORKER;
    request.instance_id.data = workers[1].instance;
    request.instance_id.len = sizeof(workers[1].instance);
    request.incarnation = 1;
    request.numerics_id = "avx2-f16";
    assert_non_null(harness_call(h, "Join", &request.base));
    assert_true(route_ask(h, workers[0].id, keys, 32)->worker_node_id == workers[0].id);
}

static void the_longest_chain_has_a_route_of_any_shape(void **state)
{
    harness_t *h = *state;
    size_t count = AS_CHAIN_BLOCKS_MAX;
    as_key_t *keys = malloc((count + 1) * sizeof(*keys));
    uint8_t *ops = malloc(count);
    memset(ops, FULL_ADDED, count);
    chain_make(h, keys, count + 1);
    peer_t even, odd;
    peer_init(&even, STORE, 1);
    peer_init(&odd, STORE, 2);
    as_key_t *half = malloc(count * sizeof(*half));
    for (size_t i = 0; i < count; i += 2) {
        half[i / 2] = keys[i];
        half[count / 2 + i / 2] = keys[i + 1];
    }
    peer_start(h, &even, half, FULL_ADDED, count / 2);
    peer_start(h, &odd, half + count / 2, FULL_ADDED, count / 2);
    Assay__RouteReply *reply = route_ask(h, 0, keys, count);
    assert_int_equal(reply->hit_blocks, count);
    assert_int_equal(reply->n_runs, count);
    assert_int_equal(reply->n_nodes, 2);
    assert_null(route_ask(h, 0, keys, count + 1));
    assert_int_equal(h->answer.status, AS_ERR_LIMIT);
    free(keys);
    free(half);
    free(ops);
}

static void malformed_routes_are_refused(void **state)
{
    harness_t *h = *state;
    uint8_t bytes[64] = {0};
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.keys.data = bytes;
    request.keys.len = 33;
    assert_null(harness_call(h, "Route", &request.base));
    assert_int_equal(h->answer.status, AS_ERR_INVALID);
    request.keys.len = 32;
    request.namespace_key.data = bytes;
    request.namespace_key.len = 31;
    assert_null(harness_call(h, "Route", &request.base));
    request.namespace_key.len = 32;
    request.block_tokens = 257;
    assert_null(harness_call(h, "Route", &request.base));
    assert_int_equal(h->answer.status, AS_ERR_LIMIT);
    request.block_tokens = 256;
    assert_non_null(harness_call(h, "Route", &request.base));
}

static void the_fault_site_fails_a_route(void **state)
{
    harness_t *h = *state;
    as_key_t key;
    chain_make(h, &key, 1);
    as_fault_arm(AS_FAULT_route_fail, 2);
    assert_non_null(route_ask(h, 0, &key, 1));
    assert_null(route_ask(h, 0, &key, 1));
    assert_int_equal(h->answer.status, AS_ERR_BUSY);
    assert_non_null(route_ask(h, 0, &key, 1));
    as_fault_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_equal_the_model),
        WITH_SCHEDULER(the_least_loaded_holder_comes_first),
        WITH_SCHEDULER(a_store_that_drains_is_named_only_for_what_no_other_has),
        WITH_SCHEDULER(equally_loaded_holders_share_the_chains),
        WITH_SCHEDULER(an_unknown_chain_hits_nothing),
        WITH_SCHEDULER(a_worker_serves_itself_unless_another_is_clearly_better),
        WITH_SCHEDULER(a_sealed_prefix_with_a_hole_ends_at_the_hole),
        WITH_SCHEDULER(a_request_never_moves_to_other_numerics),
        WITH_SCHEDULER(the_longest_chain_has_a_route_of_any_shape),
        WITH_SCHEDULER(malformed_routes_are_refused),
        WITH_SCHEDULER(the_fault_site_fails_a_route),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
