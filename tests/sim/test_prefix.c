// SPDX-License-Identifier: Apache-2.0
// A stored prefix that is not fetched before the first token: the rest of the prompt by push-down, the sealed
// form from stores. The same bits as of full-cache decoding, also where any of it is missing or breaks off.
#include "answers.h"
#include "client/internal.h"
#include "common/fault.h"
#include "gpuworker/resident/stored.h"

enum { BLOCK_TOKENS = 16, PROMPT = 300, MAX_TOKENS = 40, BLOCKS = (PROMPT - 1) / BLOCK_TOKENS };

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t expected;
static uint64_t undisturbed_us;                // that an answer takes
static const char *first_compressor = "kivi4"; // of what is stored

static gpw_request_params_t params_of(const char *compressor)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    params.compressor = compressor;
    params.horizon = 12; // and a row: as many as the prompt has behind its blocks
    params.horizon_set = true;
    return params;
}

static int begin_all(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 5);
    gpw_request_params_t params = params_of("none");
    params.horizon = 0;
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &expected);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

static void ask(world_t *world, uint32_t worker, const char *compressor, answer_t *answer)
{
    gpw_request_params_t params = params_of(compressor);
    answer_submit(world->workers[worker].worker, &params, answer);
    run_to_end(world, answer);
    assert_int_equal(answer->status, AS_OK);
    answer_compare(answer, &expected, compressor);
}

// Two workers; the first has answered and stored what it computed.
static void open_world(world_t *world, const world_options_t *more, bool sealed)
{
    static answer_t answer;
    world_options_t options = *more;
    options.model = model;
    options.seed = 3;
    options.stores = options.stores ? options.stores : 1;
    options.workers = 2;
    options.block_tokens = BLOCK_TOKENS;
    options.cache_bytes_max = 16u << 20;
    options.push_down = GPW_PUSH_DOWN_ON;
    options.store_sealed = true;
    options.ram_bytes = 8u << 20;
    world_open(world, &options);
    world_run(world, 2000000);
    world->workers[0].worker->engine->options.store_sealed = sealed;
    ask(world, 0, first_compressor, &answer);
    world_run(world, 2000000);
}

static void close_world(world_t *world)
{
    world_run(world, 8000000);
    check_nothing_is_held(world);
    world_close(world);
}

static uint64_t sealed_bytes(const char *compressor)
{
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS), stored;
    assert_true(gpw_stored_shape(gpw_compressor_find(compressor), &shape, &stored));
    return as_block_bytes(&stored);
}

static void the_first_token_comes_without_the_prefix_and_drafts_with_its_sealed_form(void **state)
{
    (void)state;
    static answer_t answer;
    world_t world;
    // Workers that would keep what they fetched have nothing to keep.
    open_world(&world, &(world_options_t){.keep_while_room = true}, true);
    int64_t pushed = gpw_metric_value(GPW_METRIC_PUSHED_PREFIXES_TOTAL);
    ask(&world, 1, "kivi4", &answer);
    assert_int_equal(gpw_metric_value(GPW_METRIC_PUSHED_PREFIXES_TOTAL), pushed + 1);
    assert_int_equal(answer.usage.cached_tokens, BLOCKS * BLOCK_TOKENS);
    assert_int_equal(answer.usage.fetched_bytes, BLOCKS * sealed_bytes("kivi4"));
    assert_int_equal(answer.usage.swapped_bytes, 0); // not one full block was brought
    assert_true(answer.usage.accepted_tokens > 0);
    undisturbed_us = answer.usage.total_us;
    print_message("first token after %u us, all after %u us\n",
                  (uint32_t)answer.usage.first_token_us, (uint32_t)undisturbed_us);
    close_world(&world);
}

// Over a link that takes a fifth of a second for the prefix: by push-down, with the sealed form behind it, and with
// the full blocks behind it; and where the blocks come first.
static void the_first_token_comes_in_a_fraction_of_the_time_of_the_fetch(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        gpw_push_down_t push_down;
        bool store_sealed;
    } ways[] = {{"fetched", GPW_PUSH_DOWN_OFF, true},
                {"pushed, full blocks", GPW_PUSH_DOWN_ON, false},
                {"pushed, sealed form", GPW_PUSH_DOWN_ON, true},
                {"auto, nothing known", GPW_PUSH_DOWN_AUTO, true}};
    static answer_t alone, answer;
    const as_sim_faults_t link = {
        .delay_us_min = 500, .delay_us_max = 600, .bandwidth_bytes_per_s = 500000};
    gpw_request_params_t params = params_of("none");
    params.token_count = BLOCKS * BLOCK_TOKENS + 1;
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &alone);
    params.compressor = "kivi4";
    uint64_t fetched_us = 0;
    for (uint32_t w = 0; w < 4; w++) {
        world_t world;
        open_world(&world, &(world_options_t){0}, true);
        gpw_worker_options_t *options = &world.workers[1].worker->engine->options;
        options->push_down = ways[w].push_down;
        options->store_sealed = ways[w].store_sealed;
        as_sim_set_faults(world.sim, &link);
        answer_submit(world.workers[1].worker, &params, &answer);
        run_to_end(&world, &answer);
        assert_int_equal(answer.status, AS_OK);
        answer_compare(&answer, &alone, ways[w].name);
        print_message("%s: first token after %u us, all after %u us\n", ways[w].name,
                      (uint32_t)answer.usage.first_token_us, (uint32_t)answer.usage.total_us);
        assert_int_equal(answer.usage.cached_tokens, BLOCKS * BLOCK_TOKENS);
        fetched_us = w == 0 ? answer.usage.first_token_us : fetched_us;
        assert_true(w == 0 ? fetched_us > 200000 : answer.usage.first_token_us < fetched_us / 8);
        close_world(&world);
    }
}

static void the_sealed_form_of_every_method_that_shares_is_fetched(void **state)
{
    (void)state;
    static answer_t answer;
    uint32_t methods = 0;
    for (EACH_TRIED_COMPRESSOR(c)) {
        as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS), stored;
        if (!c->slot || !gpw_stored_shape(c, &shape, &stored)) {
            continue; // it has none, or none that is smaller than the full blocks
        }
        world_t world;
        first_compressor = c->name;
        open_world(&world, &(world_options_t){.keep_while_room = true}, true);
        ask(&world, 1, c->name, &answer);
        assert_int_equal(answer.usage.fetched_bytes, BLOCKS * sealed_bytes(c->name));
        assert_int_equal(answer.usage.swapped_bytes, 0);
        close_world(&world);
        methods++;
    }
    first_compressor = "kivi4";
    assert_true(methods >= 2);
}

// Another method's form is not there, nor is there one of methods whose segments depend on more than the
// chain: the full blocks are brought.
static void what_is_not_stored_sealed_is_made_of_the_full_blocks(void **state)
{
    (void)state;
    static answer_t answer;
    world_t world;
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS);
    uint64_t full = BLOCKS * (uint64_t)as_block_bytes(&shape);
    for (int sealed = 0; sealed < 2; sealed++) {
        open_world(&world, &(world_options_t){0}, sealed);
        ask(&world, 1, sealed ? "kivi2" : "kivi4", &answer);
        assert_int_equal(answer.usage.fetched_bytes, full);
        assert_true(answer.usage.accepted_tokens > 0);
        ask(&world, 1, "streaming", &answer);
        assert_int_equal(answer.usage.fetched_bytes, full);
        close_world(&world);
    }
}

// Over a slow link the form of another compressor saves more than the better drafts of kivi4 do; where nobody knows
// of it these decide.
static void auto_drafts_on_the_form_that_stores_are_known_to_have(void **state)
{
    (void)state;
    static answer_t answer;
    const as_sim_faults_t link = {
        .delay_us_min = 500, .delay_us_max = 600, .bandwidth_bytes_per_s = 500000};
    world_t world;
    first_compressor = "kivi2";
    open_world(&world, &(world_options_t){0}, true);
    as_sim_set_faults(world.sim, &link);
    gpw_candidates_t *candidates = &world.workers[1].worker->engine->candidates;
    for (int i = 0; i < 4; i++) { // until the link's rate is known
        ask(&world, 1, "kivi2", &answer);
        ask(&world, 1, "kivi4", &answer);
    }
    ask(&world, 1, GPW_COMPRESSOR_AUTO, &answer);
    print_message("%s\n", answer.usage.chosen);
    assert_string_equal(answer.usage.compressor, "kivi2");
    assert_int_equal(answer.usage.fetched_bytes, BLOCKS * sealed_bytes("kivi2"));
    memset(&candidates->forms, 0, sizeof(candidates->forms));
    ask(&world, 1, GPW_COMPRESSOR_AUTO, &answer);
    print_message("%s\n", answer.usage.chosen);
    assert_string_equal(answer.usage.compressor, "kivi4");
    close_world(&world);
    first_compressor = "kivi4";
}

// Segments are the same bytes, so drafts and verifications are the same ones.
static void drafts_are_those_of_a_segment_made_here(void **state)
{
    (void)state;
    static answer_t answers[2];
    world_t world;
    for (int sealed = 0; sealed < 2; sealed++) {
        open_world(&world, &(world_options_t){0}, sealed);
        ask(&world, 1, "kivi4", &answers[sealed]);
        close_world(&world);
    }
    assert_int_equal(answers[0].usage.drafted_tokens, answers[1].usage.drafted_tokens);
    assert_int_equal(answers[0].usage.accepted_tokens, answers[1].usage.accepted_tokens);
    assert_true(answers[1].usage.fetched_bytes < answers[0].usage.fetched_bytes / 2);
}

static void stores_that_compute_none_are_fetched_from(void **state)
{
    (void)state;
    static answer_t answer;
    world_t world;
    open_world(&world, &(world_options_t){.no_attend = true}, true);
    int64_t pushed = gpw_metric_value(GPW_METRIC_PUSHED_PREFIXES_TOTAL);
    ask(&world, 1, "kivi4", &answer);
    assert_int_equal(gpw_metric_value(GPW_METRIC_PUSHED_PREFIXES_TOTAL), pushed);
    assert_true(answer.usage.fetched_bytes > BLOCKS * sealed_bytes("kivi4"));
    close_world(&world);
}

// Stores or a client that have too much to do are asked again: nothing is missing, and nothing computed again.
static void a_prefix_is_not_lost_since_it_cannot_be_asked_for_at_once(void **state)
{
    (void)state;
    static answer_t answer;
    for (uint32_t busy_us = 1000; busy_us < 3 * undisturbed_us; busy_us *= 2) {
        world_t world;
        open_world(&world, &(world_options_t){0}, true);
        world.workers[1].worker->engine->options.push_down = GPW_PUSH_DOWN_OFF;
        world.workers[1].worker->engine->options.store_sealed = false;
        uint32_t *most = &world.workers[1].client->options.fetches_max, usual = *most;
        gpw_request_params_t params = params_of("kivi4");
        answer_submit(world.workers[1].worker, &params, &answer);
        world_run(&world,
                  busy_us < 9000 ? 0 : busy_us - 9000); // before the first question, and later
        *most = 0;
        world_run(&world, 9000);
        *most = usual;
        run_to_end(&world, &answer);
        assert_int_equal(answer.status, AS_OK);
        answer_compare(&answer, &expected, "busy");
        assert_int_equal(answer.usage.cached_tokens, BLOCKS * BLOCK_TOKENS);
        assert_int_equal(answer.usage.recomputed_blocks, 0);
        close_world(&world);
    }
}

// Every moment from the request's first question to its last draft.
static void a_store_that_dies_at_any_moment_costs_time_only(void **state)
{
    (void)state;
    static answer_t answer;
    uint32_t moments = getenv("ASSAY_TEST_SANITIZED") ? 4 : 16;
    uint64_t lost = 0, none = 0;
    for (uint32_t m = 0; m < moments; m++) {
        world_t world;
        open_world(&world, &(world_options_t){.stores = 1 + m % 2 * 2}, true);
        gpw_request_params_t params = params_of("kivi4");
        answer_submit(world.workers[1].worker, &params, &answer);
        world_run(&world, 300 + m * undisturbed_us / moments);
        world_store_kill(&world.stores[0]);
        run_to_end(&world, &answer);
        assert_int_equal(answer.status, AS_OK);
        answer_compare(&answer, &expected, "killed");
        lost += answer.usage.recomputed_blocks > 0;
        none += answer.usage.cached_tokens == 0;
        close_world(&world);
    }
    print_message("%u moments: %u times blocks were lost, %u times there were none\n", moments,
                  (uint32_t)lost, (uint32_t)none);
    assert_true(lost > 0);
}

static void cancelled_at_any_moment_nothing_is_held(void **state)
{
    (void)state;
    static answer_t answer;
    uint32_t moments = getenv("ASSAY_TEST_SANITIZED") ? 6 : 24;
    world_t world;
    open_world(&world, &(world_options_t){0}, true);
    for (uint32_t m = 0; m < moments; m++) {
        gpw_request_params_t params = params_of("kivi4");
        answer_submit(world.workers[1].worker, &params, &answer);
        world_run(&world, 300 + m * undisturbed_us / moments);
        gpw_worker_cancel(world.workers[1].worker, answer.id);
        run_to_end(&world, &answer);
        world_run(&world, 2500000);
        assert_int_equal(world.workers[1].worker->engine->device.reserved_bytes, 0);
    }
    close_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_token_comes_without_the_prefix_and_drafts_with_its_sealed_form),
        cmocka_unit_test(the_first_token_comes_in_a_fraction_of_the_time_of_the_fetch),
        cmocka_unit_test(the_sealed_form_of_every_method_that_shares_is_fetched),
        cmocka_unit_test(what_is_not_stored_sealed_is_made_of_the_full_blocks),
        cmocka_unit_test(auto_drafts_on_the_form_that_stores_are_known_to_have),
        cmocka_unit_test(drafts_are_those_of_a_segment_made_here),
        cmocka_unit_test(stores_that_compute_none_are_fetched_from),
        cmocka_unit_test(a_prefix_is_not_lost_since_it_cannot_be_asked_for_at_once),
        cmocka_unit_test(a_store_that_dies_at_any_moment_costs_time_only),
        cmocka_unit_test(cancelled_at_any_moment_nothing_is_held),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
