// SPDX-License-Identifier: Apache-2.0
// A step may carry rows of several sessions: whatever shares it, in whatever order and however a
// layer is cut, a session's logits and its cache are those it has alone, one token at a time.
#include <unistd.h>

#include "model_fixture.h"
#include "tiny_model.h"

enum { SESSIONS = 7, TOKENS = 150, ROUNDS = 6, STEP_ROWS = 48, SEED = 20261130 };

typedef struct session {
    int32_t tokens[TOKENS], positions[TOKENS];
    float *expected; // [TOKENS][vocab], alone
    fixture_t alone, mixed;
    gpw_forward_t *forward; // in the shared workspace
    uint32_t done, rows;    // tokens before the pass, and in it; 0: none in progress
} session_t;

typedef struct mix {
    gpw_model_t *model;
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    session_t sessions[SESSIONS];
    uint64_t random;
    uint32_t shared_steps; // of rows of several sessions
    // of the step
    session_t *who[SESSIONS];
    gpw_forward_part_t parts[SESSIONS];
    uint32_t count;
} mix_t;

static uint32_t draw(mix_t *mix, uint32_t below)
{
    mix->random += 0x9e3779b97f4a7c15ull;
    return (uint32_t)(tiny_mix(mix->random) >> 33) % below;
}

static void open_session(mix_t *mix, session_t *session, uint64_t number)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        session->tokens[i] = (int32_t)(tiny_mix(number * 7919 + i) % TINY_VOCAB);
        session->positions[i] = (int32_t)i;
    }
    session->expected = malloc((size_t)TOKENS * TINY_VOCAB * sizeof(float));
    session->alone = fixture_open(mix->model, krn_cpu(), 1, TOKENS, 1);
    session->mixed = fixture_open(mix->model, krn_cpu(), 1, TOKENS, STEP_ROWS);
    fixture_prefill(&session->alone, session->tokens, 0, TOKENS, 1, session->expected);
    assert_int_equal(gpw_forward_alloc(mix->workspace, TOKENS, &session->forward), AS_OK);
}

static void close_session(session_t *session)
{
    gpw_forward_free(session->forward);
    fixture_close(&session->mixed);
    fixture_close(&session->alone);
    free(session->expected);
}

// Each part's rows go to its own session's cache and pages.
static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    mix_t *mix = ctx;
    size_t q_width = (size_t)mix->model->q_heads * mix->model->head_dim;
    size_t kv_width = (size_t)mix->model->kv_heads * mix->model->head_dim;
    assert_int_equal(row0, gpw_forward_next_row(mix->who[0]->forward));
    for (uint32_t i = 0, at = 0; i < mix->count; at += mix->parts[i++].rows) {
        session_t *session = mix->who[i];
        session->mixed.positions = session->positions + session->done;
        fixture_attend(&session->mixed, layer, gpw_forward_next_row(session->forward),
                       mix->parts[i].rows, q + at * q_width, k + at * kv_width, v + at * kv_width,
                       out + at * q_width);
        rows -= mix->parts[i].rows;
    }
    assert_int_equal(rows, 0);
}

// Short passes as of a draft or a verification, and long ones as of a prompt.
static void begin_some(mix_t *mix)
{
    for (uint32_t s = 0; s < SESSIONS; s++) {
        session_t *session = &mix->sessions[s];
        uint32_t left = TOKENS - session->done;
        if (session->rows > 0 || left == 0 || draw(mix, 2)) {
            continue;
        }
        uint32_t rows = 1 + draw(mix, draw(mix, 3) ? 4 : 70);
        session->rows = rows < left ? rows : left;
        gpw_forward_begin(session->forward, session->tokens + session->done,
                          session->positions + session->done, session->rows);
    }
}

// Some of the sessions that are at `layer`, from any of them on, each with some of its rows.
static void choose_parts(mix_t *mix, uint32_t layer)
{
    uint32_t first = draw(mix, SESSIONS), room = STEP_ROWS;
    mix->count = 0;
    for (uint32_t i = 0; i < SESSIONS && room > 0; i++) {
        session_t *session = &mix->sessions[(first + i) % SESSIONS];
        if (session->rows == 0 || gpw_forward_next_layer(session->forward) != layer ||
            (mix->count > 0 && draw(mix, 3) == 0)) {
            continue;
        }
        uint32_t most = gpw_forward_rows_left(session->forward);
        most = most < room ? most : room;
        uint32_t rows = draw(mix, 3) ? most : 1 + draw(mix, most);
        mix->who[mix->count] = session;
        mix->parts[mix->count++] = (gpw_forward_part_t){session->forward, rows};
        room -= rows;
    }
    mix->shared_steps += mix->count > 1;
}

// The logits of all passes that are through, computed together.
static void check_finished(mix_t *mix)
{
    static gpw_forward_row_t rows[SESSIONS * TOKENS];
    uint32_t count = 0, vocab = mix->model->vocab, layers = mix->model->layers;
    for (uint32_t s = 0; s < SESSIONS; s++) {
        session_t *session = &mix->sessions[s];
        bool through = session->rows > 0 && gpw_forward_next_layer(session->forward) == layers;
        for (uint32_t r = 0; through && r < session->rows; r++) {
            rows[count++] = (gpw_forward_row_t){session->forward, session->rows - 1 - r};
        }
    }
    if (count == 0) {
        return;
    }
    float *logits = malloc((size_t)count * vocab * sizeof(float));
    gpw_forward_logits(mix->workspace, rows, count, logits);
    for (uint32_t i = 0; i < count; i++) {
        session_t *session = mix->sessions;
        while (session->forward != rows[i].forward) {
            session++;
        }
        uint32_t position = session->done + rows[i].row;
        if (memcmp(logits + (size_t)i * vocab, session->expected + (size_t)position * vocab,
                   vocab * sizeof(float)) != 0) {
            fail_msg("session %d: position %u has other logits bits",
                     (int)(session - mix->sessions), position);
        }
        bool last = i + 1 == count || rows[i + 1].forward != session->forward;
        session->done += last ? session->rows : 0;
        session->rows = last ? 0 : session->rows;
    }
    free(logits);
}

// A layer that somebody is at; any session may be anywhere.
static bool step(mix_t *mix)
{
    uint32_t first = draw(mix, SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        session_t *session = &mix->sessions[(first + i) % SESSIONS];
        uint32_t layer = gpw_forward_next_layer(session->forward);
        if (session->rows > 0 && layer < mix->model->layers) {
            choose_parts(mix, layer);
            gpw_forward_step(mix->workspace, mix->parts, mix->count, attend, mix);
            return true;
        }
    }
    return false;
}

static void run_all(mix_t *mix)
{
    uint32_t left = SESSIONS;
    while (left > 0) {
        begin_some(mix);
        while (draw(mix, 4) && step(mix)) {
        }
        check_finished(mix);
        left = 0;
        for (uint32_t s = 0; s < SESSIONS; s++) {
            left += mix->sessions[s].done < TOKENS;
        }
    }
}

static void the_bits_do_not_depend_on_whose_rows_share_a_step(void **state)
{
    (void)state;
    static mix_t mix;
    mix = (mix_t){.model = tiny_open(&tiny_default, KRN_WEIGHT_F16), .random = SEED};
    print_message("seed %u\n", (unsigned)SEED);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        assert_int_equal(krn_pool_alloc(1 + round % 2, &mix.pool), AS_OK);
        assert_int_equal(
            gpw_workspace_alloc(mix.model, krn_cpu(), mix.pool, STEP_ROWS, &mix.workspace), AS_OK);
        for (uint32_t s = 0; s < SESSIONS; s++) {
            mix.sessions[s] = (session_t){0};
            open_session(&mix, &mix.sessions[s], round * SESSIONS + s);
        }
        run_all(&mix);
        for (uint32_t s = 0; s < SESSIONS; s++) {
            session_t *session = &mix.sessions[s];
            assert_memory_equal(session->mixed.cache, session->alone.cache,
                                session->alone.cache_elements * sizeof(krn_f16));
            close_session(session);
        }
        gpw_workspace_free(mix.workspace);
        krn_pool_free(mix.pool);
    }
    assert_true(mix.shared_steps > 100);
    gpw_model_free(mix.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_do_not_depend_on_whose_rows_share_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
