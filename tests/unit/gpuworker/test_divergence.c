// SPDX-License-Identifier: Apache-2.0
// Without verification an answer's distribution goes away from that of the full cache, token by
// token; with it there is nothing between them.
//
// The distance after t tokens is the sum over them of KL(lossy || full), both given the answer as it
// was said: by the chain rule, the divergence of the whole texts. The lossy logits are those that the
// answer was chosen from; the full ones come from a request whose prompt ends there.
#include <math.h>

#include "gpuworker/resident/compressor.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPT = 340, MORE = 48, THIRD = MORE / 3 };
#define NATS 0.01 // what a third of an answer adds at least; the published bound with verification

static gpw_model_t *model;
static int32_t text[PROMPT + MORE]; // the prompt, then an answer

// ---- Logits, as the kernels make them ----------------------------------------------------------

static struct {
    const krn_ops_t *ops;
    uint32_t count; // rows since the last reset
    float rows[MORE][TINY_VOCAB];
} seen;

static void matmul(krn_pool_t *pool, const krn_weight_t *w, const float *x, uint32_t rows,
                   float *out)
{
    seen.ops->matmul(pool, w, x, rows, out);
    if (w->n == TINY_VOCAB) {
        for (uint32_t r = 0; r < rows && seen.count < MORE; r++) {
            memcpy(seen.rows[seen.count++], out + (size_t)r * TINY_VOCAB, sizeof(seen.rows[0]));
        }
    }
}

// ---- Distances ---------------------------------------------------------------------------------

static void log_softmax(const float *logits, double *logs)
{
    double max = logits[0], sum = 0;
    for (uint32_t i = 1; i < TINY_VOCAB; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        sum += exp(logits[i] - max);
    }
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        logs[i] = logits[i] - max - log(sum);
    }
}

static double divergence(const float *from_logits, const float *to_logits)
{
    double from[TINY_VOCAB], to[TINY_VOCAB], sum = 0;
    log_softmax(from_logits, from);
    log_softmax(to_logits, to);
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        sum += exp(from[i]) * (from[i] - to[i]);
    }
    return sum;
}

// ---- Answers -----------------------------------------------------------------------------------

static void run(rig_t *rig, const gpw_request_params_t *params, answer_t *answer)
{
    seen.count = 0;
    answer_submit(rig->worker, params, answer);
    rig_run(rig);
    assert_int_equal(answer->status, AS_OK);
}

static gpw_request_params_t params_of(uint32_t tokens, uint32_t more)
{
    gpw_request_params_t params = request_params(text, tokens, more);
    params.choose = (gpw_choose_params_t){.temperature = 1, .top_p = 1, .seed = 5};
    return params;
}

// The full cache's logits after the first `count` tokens of the text.
static const float *full_logits(rig_t *rig, uint32_t count, uint64_t *hash_p)
{
    static answer_t answer;
    gpw_request_params_t params = params_of(count, 1);
    run(rig, &params, &answer);
    *hash_p = answer.hashes[0];
    return seen.rows[seen.count - 1];
}

// sums[t]: the distance after t tokens of an answer.
static void distances(rig_t *rig, const char *compressor, gpw_verify_t verify, double *sums)
{
    static answer_t answer;
    static float said[MORE][TINY_VOCAB];
    uint64_t hash;
    gpw_request_params_t params = params_of(PROMPT, MORE);
    params.compressor = compressor;
    params.verify = verify;
    params.horizon = 8;
    params.horizon_set = true;
    run(rig, &params, &answer);
    assert_int_equal(answer.count, MORE);
    if (verify == GPW_VERIFY_OFF) { // else there are rows of drafts among them, and the hashes tell
        assert_int_equal(seen.count, MORE);
        memcpy(said, seen.rows, sizeof(said));
    }
    memcpy(text + PROMPT, answer.tokens, MORE * sizeof(int32_t));
    sums[0] = 0;
    for (uint32_t t = 0; t < MORE; t++) {
        if (t % 6 != 0 && getenv("ASSAY_TEST_SANITIZED")) { // a sixth of them will do
            sums[t + 1] = sums[t];
            continue;
        }
        const float *full = full_logits(rig, PROMPT + t, &hash);
        bool same = hash == answer.hashes[t];
        sums[t + 1] = sums[t] + (verify == GPW_VERIFY_OFF ? divergence(said[t], full) : !same);
        assert_true(t > 0 || same); // the first token is from the exact prefill
    }
}

static void cumulative_kl_grows_without_verification_and_is_zero_with_it(void **state)
{
    (void)state;
    static krn_ops_t ops;
    double lossy[MORE + 1], verified[MORE + 1];
    ops = *krn_cpu();
    seen.ops = krn_cpu();
    ops.matmul = matmul;
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.ops = &ops;
    options.threads = 1;
    rig_t rig = rig_open(options);
    for (EACH_TRIED_COMPRESSOR(c)) {
        distances(&rig, c->name, GPW_VERIFY_OFF, lossy);
        distances(&rig, c->name, GPW_VERIFY_FULL, verified);
        print_message("%s: after %u, %u, %u tokens %.4f, %.4f, %.4f nats; verified %.0f\n", c->name,
                      THIRD, 2 * THIRD, MORE, lossy[THIRD], lossy[2 * THIRD], lossy[MORE],
                      verified[MORE]);
        assert_true(verified[MORE] == 0);
        for (uint32_t t = 0; t < MORE; t += THIRD) {
            assert_true(lossy[t + THIRD] > lossy[t] + NATS);
        }
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cumulative_kl_grows_without_verification_and_is_zero_with_it),
    };
    model = tiny_load(3);
    prompt_make(text, PROMPT, 0, 23);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpw_model_free(model);
    return failed;
}
