// SPDX-License-Identifier: Apache-2.0
// Swaps of the full cache: what they bring and when, with the bits of full-cache decoding all the same.
#include <jansson.h>

#include "answers.h"

enum { BLOCK_TOKENS = 16, PROMPT = 300, MAX_TOKENS = 40 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t expected;

static int begin_all(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 5);
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &expected);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

static world_options_t usual(void)
{
    return (world_options_t){.model = model,
                             .seed = 3,
                             .stores = 1,
                             .workers = 1,
                             .block_tokens = BLOCK_TOKENS,
                             .cache_bytes_max = 16u << 20,
                             .ram_bytes = 8u << 20};
}

static void run_all_to_end(world_t *world, const answer_t *answers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        run_to_end(world, &answers[i]);
        assert_int_equal(answers[i].status, AS_OK);
        answer_compare(&answers[i], &expected, "swapped");
    }
}

static void end_world(world_t *world)
{
    world_run(world, 3000000); // leases and puts run out
    check_nothing_is_held(world);
    world_close(world);
}

static void a_full_cache_that_is_not_kept_is_brought_for_every_token(void **state)
{
    (void)state;
    static answer_t first, again;
    world_t world;
    world_options_t options = usual();
    options.swap_full_cache = true;
    world_open(&world, &options);
    world_run(&world, 2000000);
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    answer_submit(world.workers[0].worker, &params, &first);
    run_all_to_end(&world, &first, 1);
    world_run(&world, 500000);
    answer_submit(world.workers[0].worker, &params, &again);
    run_all_to_end(&world, &again, 1);
    uint64_t prefix = (uint64_t)again.usage.cached_tokens / BLOCK_TOKENS *
                      as_block_bytes(&world.workers[0].worker->engine->shape);
    assert_true(prefix > 0);
    assert_true(again.usage.swapped_bytes >= (MAX_TOKENS - 1) * prefix);
    assert_int_equal(again.usage.drafted_tokens, 0);
    assert_true(again.usage.resident_bytes < prefix);
    end_world(&world);
}

// The rows behind a stored prefix take longer to compute than a store may take to bring it.
static void a_prefix_is_not_lost_while_the_worker_computes(void **state)
{
    (void)state;
    enum { STORED = 100, LAYER_US = 7000 };
    static answer_t first, second;
    world_t world;
    world_options_t options = usual();
    world_open(&world, &options);
    world_run(&world, 2000000);
    gpw_engine_t *engine = world.workers[0].worker->engine;
    engine->options.swap_ring_layers = 1;
    engine->options.batch_rows = (PROMPT - STORED) * WORLD_TICK_US / LAYER_US;
    engine->options.fetch_deadline_us = LAYER_US;
    gpw_request_params_t params = request_params(prompt, STORED, 1);
    answer_submit(world.workers[0].worker, &params, &first);
    run_to_end(&world, &first);
    world_run(&world, 500000);
    int64_t recomputed = gpw_metric_value(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL);
    params = request_params(prompt, PROMPT, MAX_TOKENS);
    answer_submit(world.workers[0].worker, &params, &second);
    run_all_to_end(&world, &second, 1);
    assert_int_equal(second.usage.cached_tokens, STORED / BLOCK_TOKENS * BLOCK_TOKENS);
    assert_int_equal(gpw_metric_value(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL), recomputed);
    end_world(&world);
}

// ---- Several sessions --------------------------------------------------------------------------

enum { SESSIONS = 3 };

// How the sessions of a run are made.
typedef struct setting {
    bool in_turn;   // without overlap
    bool own_swaps; // not shared
    const char *trace_path;
    bool one_chain; // else of other salts, so that they have nothing in common
} setting_t;

typedef struct seen {
    uint64_t us, hidden_us, moving_us, drafted, swapped, shared;
} seen_t;

static uint64_t counted(gpw_metric_t metric)
{
    return (uint64_t)gpw_metric_value(metric);
}

static const char *salt_of(const setting_t *setting, uint32_t session)
{
    static const char *const salts[SESSIONS] = {"a", "b", "c"};
    return salts[setting->one_chain ? 0 : session];
}

static gpw_request_params_t drafted(const setting_t *setting, uint32_t session)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    params.compressor = "kivi4";
    params.horizon = setting->one_chain ? 32 : 8;
    params.horizon_set = !setting->one_chain; // else it adapts
    params.cache_salt = salt_of(setting, session);
    return params;
}

static void submit_all(world_t *world, const setting_t *setting, answer_t *answers)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        gpw_request_params_t params = drafted(setting, i);
        answers[i].loop = world->loop;
        answer_submit(world->workers[0].worker, &params, &answers[i]);
    }
}

static seen_t answer_all(world_t *world, const setting_t *setting)
{
    static answer_t answers[SESSIONS];
    uint64_t start_us = as_loop_now_us(world->loop);
    uint64_t hidden_us = counted(GPW_METRIC_SWAP_HIDDEN_US_TOTAL);
    uint64_t moving_us = counted(GPW_METRIC_SWAP_MOVING_US_TOTAL);
    uint64_t shared = counted(GPW_METRIC_SHARED_SWAPS_TOTAL);
    seen_t seen = {0};
    submit_all(world, setting, answers);
    run_all_to_end(world, answers, SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        uint64_t us = answers[i].finished_us - start_us;
        seen.us = us > seen.us ? us : seen.us;
        seen.drafted += answers[i].usage.drafted_tokens;
        seen.swapped += answers[i].usage.swapped_bytes;
        assert_true(answers[i].usage.swapped_bytes > 0);
    }
    seen.hidden_us = counted(GPW_METRIC_SWAP_HIDDEN_US_TOTAL) - hidden_us;
    seen.moving_us = counted(GPW_METRIC_SWAP_MOVING_US_TOTAL) - moving_us;
    seen.shared = counted(GPW_METRIC_SHARED_SWAPS_TOTAL) - shared;
    world_run(world, 500000); // what it stored is told to the scheduler
    return seen;
}

// A world with a slow link, in which the sessions' prefixes are stored.
static void open_stored(world_t *world, const setting_t *setting)
{
    world_options_t options = usual();
    options.no_overlap = setting->in_turn;
    options.no_sharing = setting->own_swaps;
    options.trace_path = setting->trace_path;
    world_open(world, &options);
    world_run(world, 2000000);
    const as_sim_faults_t slow = {
        .delay_us_min = 50, .delay_us_max = 50, .bandwidth_bytes_per_s = 20000000};
    as_sim_set_faults(world->sim, &slow);
    (void)answer_all(world, setting);
}

static seen_t run_sessions(setting_t setting)
{
    world_t world;
    open_stored(&world, &setting);
    seen_t seen = answer_all(&world, &setting);
    end_world(&world);
    return seen;
}

static void swaps_are_hidden_under_what_is_computed(void **state)
{
    (void)state;
    seen_t on = run_sessions((setting_t){0}), off = run_sessions((setting_t){.in_turn = true});
    assert_int_equal(on.drafted, off.drafted);
    assert_true(on.hidden_us > on.moving_us / 2);
    assert_true(off.hidden_us < off.moving_us / 20); // what prompts' last rows compute as they come
    assert_true(on.us < off.us);
    assert_int_equal(on.shared, 0);
}

static json_int_t field(const json_t *event, const char *name)
{
    return json_integer_value(json_object_get(event, name));
}

static bool is_lane(const json_t *event, const char *lane)
{
    return strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0 &&
           strcmp(json_string_value(json_object_get(event, "name")), lane) == 0;
}

// Swaps during which another session drafted.
static uint32_t overlaps(const json_t *events)
{
    size_t a, b;
    const json_t *swap, *draft;
    uint32_t count = 0;
    json_array_foreach(events, a, swap)
    {
        json_int_t begin = field(swap, "ts"), end = begin + field(swap, "dur");
        bool found = false;
        json_array_foreach(events, b, draft)
        {
            found |= is_lane(swap, "swap") && is_lane(draft, "draft") &&
                     field(swap, "tid") != field(draft, "tid") && field(draft, "ts") < end &&
                     field(draft, "ts") + field(draft, "dur") > begin;
        }
        count += found;
    }
    return count;
}

static uint32_t spans(const json_t *events, const char *lane)
{
    size_t i;
    const json_t *event;
    uint32_t count = 0;
    json_array_foreach(events, i, event)
    {
        count += is_lane(event, lane);
    }
    return count;
}

static void the_trace_shows_the_lanes(void **state)
{
    char path[] = "/tmp/assay-trace-XXXXXX";
    int fd = mkstemp(path);
    json_error_t error;
    (void)state;
    assert_true(fd >= 0);
    seen_t seen = run_sessions((setting_t){.trace_path = path});
    json_t *events = json_load_file(path, 0, &error);
    assert_non_null(events);
    assert_true(spans(events, "draft") >= SESSIONS && spans(events, "swap") >= SESSIONS);
    assert_true(spans(events, "verify") >= spans(events, "draft"));
    assert_true(spans(events, "device") > 0);
    assert_int_equal(spans(events, "push-down"), 0);
    assert_true(overlaps(events) >= SESSIONS);
    assert_true(seen.drafted > 0);
    json_decref(events);
    close(fd);
    unlink(path);
}

static void sessions_on_one_chain_are_verified_in_one_swap(void **state)
{
    (void)state;
    seen_t own = run_sessions((setting_t){.one_chain = true, .own_swaps = true});
    seen_t shared = run_sessions((setting_t){.one_chain = true});
    assert_int_equal(own.shared, 0);
    assert_true(shared.shared > 0);
    assert_true(3 * shared.swapped < 2 * own.swapped);
    assert_true(shared.us < own.us);
}

// Who leaves in the middle of a swap leaves it to the others.
static void one_that_is_cancelled_does_not_stop_those_that_came_along(void **state)
{
    const setting_t setting = {.one_chain = true};
    static answer_t answers[SESSIONS];
    (void)state;
    for (uint32_t leaver = 0; leaver < SESSIONS; leaver++) {
        world_t world;
        open_stored(&world, &setting);
        uint64_t shared = counted(GPW_METRIC_SHARED_SWAPS_TOTAL);
        submit_all(&world, &setting, answers);
        while (counted(GPW_METRIC_SHARED_SWAPS_TOTAL) < shared + 2) {
            as_loop_run_once(world.loop, true);
        }
        gpw_worker_cancel(world.workers[0].worker, answers[leaver].id);
        while (!answers[leaver].finished) {
            as_loop_run_once(world.loop, true);
        }
        assert_int_equal(answers[leaver].finish, GPW_FINISH_CANCELLED);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            if (i != leaver) {
                run_all_to_end(&world, &answers[i], 1);
            }
        }
        end_world(&world);
    }
}

// Nor does one whose time is over.
static void the_deadline_of_one_is_not_that_of_those_that_came_along(void **state)
{
    const setting_t setting = {.one_chain = true};
    static answer_t answers[SESSIONS];
    (void)state;
    uint32_t late = 0;
    for (uint32_t run = 0; run < 8; run++) {
        world_t world;
        open_stored(&world, &setting);
        int64_t recomputed = gpw_metric_value(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            gpw_request_params_t params = drafted(&setting, i);
            params.deadline_us = i == 0 ? 20000 + 4000 * run : 0;
            answers[i].loop = world.loop;
            answer_submit(world.workers[0].worker, &params, &answers[i]);
        }
        for (uint32_t i = 1; i < SESSIONS; i++) {
            run_all_to_end(&world, &answers[i], 1);
        }
        late += answers[0].status == AS_ERR_DEADLINE;
        assert_int_equal(gpw_metric_value(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL), recomputed);
        end_world(&world);
    }
    assert_true(late > 0);
}

// Two whose chains part: the shorter one comes along where the longer one's blocks are brought, and
// has blocks behind the common ones that only its segment holds.
static void one_whose_chain_parts_takes_no_page_that_is_not_its_own(void **state)
{
    enum { COMMON = 5 * BLOCK_TOKENS, SHORT = 120, LONG_ANSWER = 120 };
    static int32_t tokens[SHORT];
    static answer_t plain, parted, other;
    const setting_t setting = {.one_chain = true};
    (void)state;
    memcpy(tokens, prompt, sizeof(tokens));
    prompt_make(tokens + COMMON, SHORT - COMMON, 0, 99);
    gpw_request_params_t params = request_params(tokens, SHORT, LONG_ANSWER);
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &plain);

    world_t world;
    open_stored(&world, &setting);
    const gpw_engine_t *engine = world.workers[0].worker->engine;
    uint64_t shared = counted(GPW_METRIC_SHARED_SWAPS_TOTAL);
    params.compressor = "snapkv";
    params.cache_salt = salt_of(&setting, 0);
    params.horizon = 4;
    params.horizon_set = true;
    answer_submit(world.workers[0].worker, &params, &parted);
    while (!engine->first || engine->first->blocks.stored < 8) {
        as_loop_run_once(world.loop, true);
        assert_false(parted.finished);
    }
    while (!parted.finished) { // others come and go beside it
        params = drafted(&setting, 0);
        answer_submit(world.workers[0].worker, &params, &other);
        run_all_to_end(&world, &other, 1);
    }
    assert_true(counted(GPW_METRIC_SHARED_SWAPS_TOTAL) > shared);
    assert_int_equal(parted.status, AS_OK);
    answer_compare(&parted, &plain, "parted");
    end_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_cache_that_is_not_kept_is_brought_for_every_token),
        cmocka_unit_test(a_prefix_is_not_lost_while_the_worker_computes),
        cmocka_unit_test(swaps_are_hidden_under_what_is_computed),
        cmocka_unit_test(the_trace_shows_the_lanes),
        cmocka_unit_test(sessions_on_one_chain_are_verified_in_one_swap),
        cmocka_unit_test(one_whose_chain_parts_takes_no_page_that_is_not_its_own),
        cmocka_unit_test(one_that_is_cancelled_does_not_stop_those_that_came_along),
        cmocka_unit_test(the_deadline_of_one_is_not_that_of_those_that_came_along),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
