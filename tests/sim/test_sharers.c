// SPDX-License-Identifier: Apache-2.0
// Eight sessions on one chain: what their swaps move, and that none starves for another.
#include "answers.h"

enum { SESSIONS = 8, BLOCK_TOKENS = 16, PROMPT = 250, MAX_TOKENS = 160 };

static bool is_sanitized(void)
{
    return getenv("ASSAY_TEST_SANITIZED") != NULL;
}

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t expected, answers[SESSIONS];

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

// ---- Runs --------------------------------------------------------------------------------------

typedef struct setting {
    bool own_swaps;         // not shared
    uint32_t horizon;       // 0: it adapts
    uint32_t first_horizon; // of the first session; 0: as all
    uint64_t gap_us;        // between their arrivals
    uint64_t bytes_per_s;   // of the link; 0: a swap takes a few draft steps
    bool lookup;            // drafts grow by what prompt lookup proposes, not all by as much
} setting_t;

// What was counted while all sessions ran: from the last one's first token to the first one's end.
typedef struct seen {
    uint64_t swapped, drafted, accepted, tokens, us;
} seen_t;

static double per_token(uint64_t what, const seen_t *seen)
{
    return (double)what / (double)seen->tokens;
}

static double mean_draft(const seen_t *seen)
{
    return (double)seen->drafted / (double)(seen->tokens - seen->accepted);
}

static gpw_request_params_t params_of(const setting_t *setting, uint32_t session)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    bool other = session == 0 && setting->first_horizon;
    params.compressor = "kivi4";
    params.horizon_set = setting->horizon > 0;
    params.horizon = other ? setting->first_horizon : setting->horizon;
    params.prompt_lookup_set = !setting->lookup; // none
    params.cache_salt = "one chain";
    return params;
}

static void submit_all(world_t *world, const setting_t *setting)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        gpw_request_params_t params = params_of(setting, i);
        answers[i].loop = world->loop;
        answer_submit(worker_of(world), &params, &answers[i]);
        world_run(world, setting->gap_us);
    }
}

// A world in which the prompt is stored.
static void open_stored(world_t *world, const setting_t *setting)
{
    static answer_t first;
    const world_options_t options = {.model = model,
                                     .seed = 3,
                                     .stores = 1,
                                     .workers = 1,
                                     .sessions = SESSIONS,
                                     .block_tokens = BLOCK_TOKENS,
                                     .cache_bytes_max = 64u << 20,
                                     .ram_bytes = 8u << 20,
                                     .no_sharing = setting->own_swaps};
    uint64_t bytes_per_s = setting->bytes_per_s ? setting->bytes_per_s : 20000000;
    const as_sim_faults_t slow = {
        .delay_us_min = 50, .delay_us_max = 50, .bandwidth_bytes_per_s = bytes_per_s};
    world_open(world, &options);
    world_run(world, 2000000);
    gpw_request_params_t params = params_of(setting, 0);
    first.loop = world->loop;
    answer_submit(worker_of(world), &params, &first);
    run_to_end(world, &first);
    world_run(world, 500000);
    as_sim_set_faults(world->sim, &slow);
}

static void end_world(world_t *world)
{
    world_run(world, 3000000); // leases and puts run out
    check_nothing_is_held(world);
    world_close(world);
}

static void end_one(world_t *world, uint32_t i)
{
    run_to_end(world, &answers[i]);
    assert_int_equal(answers[i].status, AS_OK);
    answer_compare(&answers[i], &expected, "on one chain");
}

static uint64_t counted(gpw_metric_t metric)
{
    return (uint64_t)gpw_metric_value(metric);
}

static seen_t count_since(const world_t *world, const seen_t *before)
{
    return (seen_t){.swapped = counted(GPW_METRIC_SWAPPED_BYTES_TOTAL) - before->swapped,
                    .drafted = counted(GPW_METRIC_DRAFTED_TOKENS_TOTAL) - before->drafted,
                    .accepted = counted(GPW_METRIC_ACCEPTED_TOKENS_TOTAL) - before->accepted,
                    .tokens = counted(GPW_METRIC_TOKENS_TOTAL) - before->tokens,
                    .us = as_loop_now_us(world->loop) - before->us};
}

static bool has_begun(const answer_t *answer)
{
    return answer->count > 0;
}

static bool has_ended(const answer_t *answer)
{
    return answer->finished;
}

static void run_until(world_t *world, bool (*holds)(const answer_t *answer), uint32_t wanted)
{
    for (uint32_t count = 0; count < wanted;) {
        as_loop_run_once(world->loop, true);
        count = 0;
        for (uint32_t i = 0; i < SESSIONS; i++) {
            count += holds(&answers[i]);
        }
    }
}

static seen_t run_all(setting_t setting)
{
    world_t world;
    const seen_t nothing = {0};
    open_stored(&world, &setting);
    submit_all(&world, &setting);
    run_until(&world, has_begun, SESSIONS);
    seen_t begin = count_since(&world, &nothing);
    run_until(&world, has_ended, 1);
    seen_t seen = count_since(&world, &begin);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        end_one(&world, i);
    }
    end_world(&world);
    return seen;
}

// ---- Tests -------------------------------------------------------------------------------------

// However they come: at once, or one after the other within a few rounds.
static void at_equal_drafts_eight_move_a_sixth_of_the_bytes(void **state)
{
    (void)state;
    if (is_sanitized()) {
        skip(); // counts that are the same there
    }
    static const setting_t settings[] = {
        {.horizon = 32},
        {.horizon = 32, .gap_us = 30000},
        {.horizon = 16, .gap_us = 10000, .bytes_per_s = 5000000, .lookup = true},
    };
    for (uint32_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        setting_t setting = settings[i];
        seen_t shared = run_all(setting);
        setting.own_swaps = true;
        seen_t own = run_all(setting);
        double ratio = per_token(shared.swapped, &shared) / per_token(own.swapped, &own);
        if (ratio > 1.0 / 6 || shared.us > own.us || mean_draft(&shared) > mean_draft(&own)) {
            fail_msg(
                "setting %u: %.3f of the bytes, %.1f ms instead of %.1f, drafts of %.1f instead "
                "of %.1f",
                i, ratio, (double)shared.us / 1e3, (double)own.us / 1e3, mean_draft(&shared),
                mean_draft(&own));
        }
    }
}

static void adapting_drafts_move_fewer_bytes_in_less_time(void **state)
{
    (void)state;
    if (is_sanitized()) {
        skip(); // counts that are the same there
    }
    const setting_t setting = {.gap_us = 10000}, separate = {.gap_us = 10000, .own_swaps = true};
    seen_t shared = run_all(setting), own = run_all(separate);
    assert_true(3 * per_token(shared.swapped, &shared) < per_token(own.swapped, &own));
    assert_true(per_token(shared.us, &shared) < per_token(own.us, &own));
}

// One that wants its swap eight times as often takes the link in between, and is not held up by the
// others, nor they by it: all end within the time of sessions that are each verified alone.
static void one_with_short_drafts_starves_nobody(void **state)
{
    (void)state;
    setting_t setting = {.horizon = 32, .first_horizon = 4};
    uint64_t last_us[2] = {0}, first_us[2] = {0};
    for (int own = 0; own < 2; own++) {
        world_t world;
        setting.own_swaps = own;
        open_stored(&world, &setting);
        uint64_t start_us = as_loop_now_us(world.loop);
        submit_all(&world, &setting);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            end_one(&world, i);
            uint64_t us = answers[i].finished_us - start_us;
            last_us[own] = us > last_us[own] ? us : last_us[own];
            first_us[own] = i == 0 ? us : first_us[own];
        }
        end_world(&world);
    }
    assert_true(last_us[0] <= last_us[1]);
    assert_true(first_us[0] <= first_us[1]);
}

// At moments spread over a run: in a draft, in line, with others in its swap, as the one that began it.
static void one_that_is_cancelled_leaves_the_others_in_step(void **state)
{
    (void)state;
    const setting_t setting = {.horizon = 16};
    for (uint32_t n = 0; n < SESSIONS; n += is_sanitized() ? 4 : 2) {
        world_t world;
        open_stored(&world, &setting);
        submit_all(&world, &setting);
        run_until(&world, has_begun, SESSIONS);
        world_run(&world, 3500 * n);
        gpw_worker_cancel(worker_of(&world), answers[n].id);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            if (i != n) {
                end_one(&world, i);
            }
        }
        assert_true(answers[n].finished);
        assert_int_equal(answers[n].finish, GPW_FINISH_CANCELLED);
        end_world(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_equal_drafts_eight_move_a_sixth_of_the_bytes),
        cmocka_unit_test(adapting_drafts_move_fewer_bytes_in_less_time),
        cmocka_unit_test(one_with_short_drafts_starves_nobody),
        cmocka_unit_test(one_that_is_cancelled_leaves_the_others_in_step),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
