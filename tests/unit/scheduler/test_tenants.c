// SPDX-License-Identifier: Apache-2.0
// Routes where the scheduler has the cluster's keys: only with a good token, and of its tenant's blocks.
#include "tests/unit/common/temporary_folder.h"
#include "tests/unit/scheduler/harness.h"

#include <sys/stat.h>

#include "common/log.h"
#include "common/token.h"

#define KEY   "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
#define OTHER "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"

static harness_t h;
static char folder[TEMPORARY_FOLDER_BYTES], file[64];
static as_key_t chain[4];

static as_token_sealed_t token_of(const char *text, uint32_t tenant, uint32_t rights)
{
    as_cluster_keys_t keys;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_token_sealed_t sealed;
    as_token_t token = {.tenant = tenant, .rights = rights, .not_after_s = as_token_now_s() + 3600};
    assert_int_equal(as_cluster_keys_parse(text, strlen(text), &keys, why), AS_OK);
    assert_int_equal(as_token_sign(&keys, &token, &sealed), AS_OK);
    return sealed;
}

// A store that lists what tenants 7 and 8 have of the chain: all of it, and the first block.
static void list_blocks(void)
{
    uint8_t instance[16] = {9}, ops[5];
    as_key_t keys[5];
    as_keys_scope(chain, 4, 7, keys);
    as_keys_scope(chain, 1, 8, keys + 4);
    memset(ops, ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED, sizeof(ops));
    Assay__JoinRequest join = ASSAY__JOIN_REQUEST__INIT;
    join.role = ASSAY__ROLE__ROLE_STORE;
    join.instance_id = (ProtobufCBinaryData){sizeof(instance), instance};
    join.incarnation = 1;
    join.data_address = "store:9";
    join.wants_tokens = true;
    const Assay__JoinReply *joined = harness_call(&h, "Join", &join.base);
    assert_non_null(joined);
    Assay__EventsRequest events = ASSAY__EVENTS_REQUEST__INIT;
    events.node_id = joined->node_id;
    events.incarnation = 1;
    events.first_sequence = 1;
    events.keys = (ProtobufCBinaryData){sizeof(keys), keys[0].bytes};
    events.ops = (ProtobufCBinaryData){sizeof(ops), ops};
    events.listing_begin = events.listing_end = true;
    assert_non_null(harness_call(&h, "Events", &events.base));
}

static int begin(void **state)
{
    (void)state;
    temporary_folder_make(folder);
    snprintf(file, sizeof(file), "%s/keys", folder);
    temporary_file_write(file, KEY);
    as_log_set_level(AS_LOG_ERROR); // denials are what these tests make
    memset(&h, 0, sizeof(h));
    sch_options_t options = sch_options_default;
    options.directory_bytes = 1u << 20;
    options.cluster_key = file;
    assert_int_equal(as_loop_alloc_sim(&h.loop), AS_OK);
    assert_int_equal(sch_scheduler_alloc(h.loop, &options, &h.scheduler), AS_OK);
    assert_int_equal(as_timer_alloc(h.loop, harness_on_alarm, &h, &h.alarm), AS_OK);
    for (uint8_t i = 0; i < 4; i++) {
        chain[i] = (as_key_t){{i, 1, 2}};
    }
    list_blocks();
    return 0;
}

static int end(void **state)
{
    (void)state;
    harness_fini(&h);
    as_log_set_level(AS_LOG_INFO);
    return temporary_folder_remove(folder);
}

static const Assay__RouteReply *route(const as_token_sealed_t *token)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.keys = (ProtobufCBinaryData){sizeof(chain), chain[0].bytes};
    uint8_t bytes[AS_TOKEN_BYTES];
    if (token) {
        memcpy(bytes, token->bytes, sizeof(bytes));
        request.token = (ProtobufCBinaryData){sizeof(bytes), bytes};
    }
    return harness_call(&h, "Route", &request.base);
}

static uint32_t hits(uint32_t tenant)
{
    as_token_sealed_t token = token_of(KEY, tenant, AS_TOKEN_READ);
    const Assay__RouteReply *reply = route(&token);
    assert_non_null(reply);
    return reply->hit_blocks;
}

static void a_route_tells_of_its_tenants_blocks(void **state)
{
    (void)state;
    assert_int_equal(hits(7), 4);
    assert_int_equal(hits(8), 1);
    assert_int_equal(hits(9), 0);
}

static void without_a_good_token_there_is_no_route(void **state)
{
    (void)state;
    int64_t before = as_metric_value(&sch_metrics[SCH_DENIED_ROUTES_TOTAL]);
    assert_null(route(NULL));
    assert_int_equal(h.answer.status, AS_ERR_DENIED);
    as_token_sealed_t token = token_of(KEY, 8, AS_TOKEN_READ);
    token.bytes[8] = 7;
    assert_null(route(&token));
    assert_int_equal(h.answer.status, AS_ERR_DENIED);
    token = token_of(OTHER, 7, AS_TOKEN_READ);
    assert_null(route(&token));
    token = token_of(KEY, 7, AS_TOKEN_WRITE);
    assert_null(route(&token));
    assert_int_equal(as_metric_value(&sch_metrics[SCH_DENIED_ROUTES_TOTAL]), before + 4);
}

static const Assay__JoinReply *join_with(Assay__Role role, bool wants_tokens)
{
    uint8_t instance[16] = {7};
    Assay__JoinRequest join = ASSAY__JOIN_REQUEST__INIT;
    join.role = role;
    join.instance_id = (ProtobufCBinaryData){sizeof(instance), instance};
    join.incarnation = 1;
    join.data_address = "store:7";
    join.name = "seven";
    join.wants_tokens = wants_tokens;
    return harness_call(&h, "Join", &join.base);
}

static void stores_and_scheduler_have_keys_or_none_of_them(void **state)
{
    (void)state;
    assert_null(join_with(ASSAY__ROLE__ROLE_STORE, false));
    assert_int_equal(h.answer.status, AS_ERR_DENIED);
    assert_non_null(strstr(h.answer.text, "store seven at store:7 has no --cluster-key"));
    assert_non_null(join_with(ASSAY__ROLE__ROLE_WORKER, false)); // these have a token
    assert_int_equal(hits(7), 4);
    harness_fini(&h);
    harness_init(&h);
    assert_null(join_with(ASSAY__ROLE__ROLE_STORE, true));
    assert_int_equal(h.answer.status, AS_ERR_DENIED);
    assert_non_null(join_with(ASSAY__ROLE__ROLE_STORE, false));
}

static void keys_are_read_again(void **state)
{
    (void)state;
    temporary_file_write(file, OTHER KEY);
    harness_run(&h, 1500000);
    as_token_sealed_t old = token_of(KEY, 7, AS_TOKEN_READ),
                      new = token_of(OTHER, 7, AS_TOKEN_READ);
    assert_non_null(route(&old));
    assert_non_null(route(&new));
    temporary_file_write(file, OTHER);
    harness_run(&h, 1500000);
    assert_null(route(&old));
    assert_non_null(route(&new));
}

static const Assay__TokenReply *issue(uint32_t tenant, uint32_t rights, uint64_t ttl_s)
{
    Assay__TokenRequest request = ASSAY__TOKEN_REQUEST__INIT;
    request.tenant = tenant;
    request.rights = rights;
    request.ttl_s = ttl_s;
    return harness_call(&h, "Token", &request.base);
}

static void tokens_are_issued_where_that_is_wanted(void **state)
{
    (void)state;
    assert_null(issue(7, AS_TOKEN_READ, 60));
    assert_int_equal(h.answer.status, AS_ERR_DENIED);
    h.scheduler->options.issue_tokens = true;
    const Assay__TokenReply *reply = issue(7, AS_TOKEN_READ, 60);
    assert_non_null(reply);
    as_token_sealed_t sealed;
    assert_int_equal(reply->token.len, sizeof(sealed.bytes));
    memcpy(sealed.bytes, reply->token.data, sizeof(sealed.bytes));
    assert_int_equal(route(&sealed)->hit_blocks, 4);
    static const struct {
        uint32_t tenant, rights;
        uint64_t ttl_s;
    } bad[] = {{0, AS_TOKEN_READ, 60},
               {7, 0, 60},
               {7, AS_TOKEN_PEER, 60},
               {7, AS_TOKEN_READ | AS_TOKEN_PEER, 60},
               {7, 16, 60},
               {7, AS_TOKEN_READ, 0},
               {7, AS_TOKEN_READ, SCH_TOKEN_TTL_S_MAX + 1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_null(issue(bad[i].tenant, bad[i].rights, bad[i].ttl_s));
        assert_int_equal(h.answer.status, AS_ERR_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_route_tells_of_its_tenants_blocks, begin, end),
        cmocka_unit_test_setup_teardown(without_a_good_token_there_is_no_route, begin, end),
        cmocka_unit_test_setup_teardown(stores_and_scheduler_have_keys_or_none_of_them, begin, end),
        cmocka_unit_test_setup_teardown(keys_are_read_again, begin, end),
        cmocka_unit_test_setup_teardown(tokens_are_issued_where_that_is_wanted, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
