// SPDX-License-Identifier: Apache-2.0
// Which layers share: against plain passes of the tiny model, and what options say.
#include <math.h>

#include "gpuworker/calibrate.h"
#include "kernels/f16.h"
#include "model_fixture.h"
#include "tiny_model.h"

enum { PASSAGES = 3, TOKENS = GPW_CALIBRATE_PASSAGE_TOKENS, LAYERS = 6, TRIALS_MAX = 64 };

static gpw_model_t *model;
static int32_t tokens[PASSAGES * TOKENS];

typedef struct trials {
    gpw_calibrate_trial_t of[TRIALS_MAX];
    uint32_t count;
} trials_t;

static void note_trial(void *ctx, const gpw_calibrate_trial_t *trial)
{
    trials_t *trials = ctx;
    assert_true(trials->count < TRIALS_MAX);
    trials->of[trials->count++] = *trial;
}

static gpw_calibrate_options_t options_of(trials_t *trials)
{
    memset(trials, 0, sizeof(*trials));
    return (gpw_calibrate_options_t){.model = model,
                                     .ops = krn_cpu(),
                                     .threads = 2,
                                     .tokens = tokens,
                                     .token_count = PASSAGES * TOKENS + 5, // the rest is left
                                     .shared_layers = 2,
                                     .cosine_min = -1,
                                     .on_trial = note_trial,
                                     .ctx = trials};
}

// ---- Plain passes ------------------------------------------------------------------------------

typedef struct plain {
    fixture_t fixture;
    const uint16_t *source;
} plain_t;

// The layer's keys and values, then attention over those of its source.
static void attend_source(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                          const krn_f16 *k, const krn_f16 *v, float *out)
{
    plain_t *p = ctx;
    size_t kv = (size_t)model->kv_heads * model->head_dim;
    for (uint32_t r = 0; r < rows; r++) {
        fixture_store(&p->fixture, layer, row0 + r, k + r * kv, v + r * kv);
    }
    uint32_t source = p->source ? p->source[layer] : layer,
             group = model->q_heads / model->kv_heads;
    const krn_f16 *keys = fixture_page(&p->fixture, source, 0);
    const krn_f16 *values = keys + fixture_part(&p->fixture);
    for (uint32_t i = 0; i < rows * model->q_heads; i++) {
        uint32_t row = row0 + i / model->q_heads, head = i % model->q_heads / group;
        double weight[TOKENS], sum = 0;
        for (uint32_t t = 0; t <= row; t++) {
            double dot = 0;
            for (uint32_t c = 0; c < model->head_dim; c++) {
                size_t at = ((size_t)head * FIXTURE_PAGE_TOKENS + t) * model->head_dim + c;
                dot += (double)q[(size_t)i * model->head_dim + c] * krn_f16_to_float(keys[at]);
            }
            weight[t] = exp(dot / sqrt(model->head_dim));
            sum += weight[t];
        }
        for (uint32_t c = 0; c < model->head_dim; c++) {
            double x = 0;
            for (uint32_t t = 0; t <= row; t++) {
                size_t at = ((size_t)head * FIXTURE_PAGE_TOKENS + t) * model->head_dim + c;
                x += weight[t] / sum * krn_f16_to_float(values[at]);
            }
            out[(size_t)i * model->head_dim + c] = (float)x;
        }
    }
}

// The hidden states of a passage behind the last norm.
static void pass(plain_t *p, uint32_t passage, double *hidden)
{
    int32_t positions[TOKENS];
    for (int32_t t = 0; t < TOKENS; t++) {
        positions[t] = t;
    }
    gpw_forward_begin(p->fixture.forward, tokens + passage * TOKENS, positions, TOKENS);
    while (gpw_forward_next_layer(p->fixture.forward) < model->layers) {
        gpw_forward_layer(p->fixture.forward, attend_source, p);
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float *row = gpw_forward_stream(p->fixture.forward, t);
        double square = 0;
        for (uint32_t i = 0; i < model->embed; i++) {
            square += (double)row[i] * row[i];
        }
        double scale = 1 / sqrt(square / model->embed + (double)model->norm_eps);
        for (uint32_t i = 0; i < model->embed; i++) {
            hidden[t * model->embed + i] = row[i] * scale * model->output_norm[i];
        }
    }
}

static double plain_cosine(const uint16_t *source)
{
    plain_t p = {.fixture = fixture_open(model, krn_cpu(), 1, TOKENS, TOKENS)};
    size_t states = (size_t)TOKENS * model->embed;
    double *before = malloc(states * sizeof(double)), *now = malloc(states * sizeof(double));
    double sum = 0;
    for (uint32_t passage = 0; passage < PASSAGES; passage++) {
        p.source = NULL;
        pass(&p, passage, before);
        p.source = source;
        pass(&p, passage, now);
        for (uint32_t t = 0; t < TOKENS; t++) {
            double dot = 0, a = 0, b = 0;
            for (uint32_t i = t * model->embed; i < (t + 1) * model->embed; i++) {
                dot += before[i] * now[i];
                a += before[i] * before[i];
                b += now[i] * now[i];
            }
            sum += dot / sqrt(a * b);
        }
    }
    free(before);
    free(now);
    fixture_close(&p.fixture);
    return sum / (PASSAGES * TOKENS);
}

// The pair of layers whose mean keys and values are farthest from each other.
static void farthest_pair(uint32_t *layer_p, uint32_t *source_p)
{
    plain_t p = {.fixture = fixture_open(model, krn_cpu(), 1, TOKENS, TOKENS)};
    size_t part = 2 * fixture_part(&p.fixture);
    double *mean = calloc(LAYERS * part, sizeof(double)), most = -1;
    double *hidden = malloc((size_t)TOKENS * model->embed * sizeof(double));
    for (uint32_t passage = 0; passage < PASSAGES; passage++) {
        pass(&p, passage, hidden);
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (size_t i = 0; i < part; i++) {
                mean[l * part + i] += krn_f16_to_float(fixture_page(&p.fixture, l, 0)[i]);
            }
        }
    }
    for (uint32_t l = 1; l < LAYERS; l++) {
        for (uint32_t j = 0; j < l; j++) {
            double square = 0;
            for (size_t i = 0; i < part; i++) {
                square += pow(mean[l * part + i] - mean[j * part + i], 2);
            }
            if (square > most) {
                most = square;
                *layer_p = l;
                *source_p = j;
            }
        }
    }
    free(hidden);
    free(mean);
    fixture_close(&p.fixture);
}

// ---- Tests -------------------------------------------------------------------------------------

static void the_farthest_pair_is_tried_first_and_its_cosine_is_right(void **state)
{
    (void)state;
    trials_t trials;
    gpw_calibrate_options_t options = options_of(&trials);
    gpw_calibration_t calibration;
    uint32_t layer = 0, source = 0;
    assert_int_equal(gpw_calibrate(&options, &calibration), AS_OK);
    farthest_pair(&layer, &source);
    assert_int_equal(trials.of[0].layer, layer);
    assert_int_equal(trials.of[0].source, source);
    uint16_t sources[LAYERS];
    for (uint32_t l = 0; l < LAYERS; l++) {
        sources[l] = (uint16_t)l;
    }
    assert_float_equal(plain_cosine(sources), 1, 1e-9);
    sources[layer] = (uint16_t)source;
    double cosine = plain_cosine(sources);
    assert_float_equal(trials.of[0].cosine, cosine, 1e-3);
    assert_true(cosine < 0.9999); // the layers are not the same
    assert_float_equal(trials.of[trials.count - 1].cosine, plain_cosine(calibration.source), 1e-3);
}

// As many as are wanted, each with one that does not share itself; the file takes it.
static void as_many_share_as_are_wanted(void **state)
{
    (void)state;
    for (uint32_t wanted = 1; wanted <= LAYERS; wanted++) {
        trials_t trials;
        gpw_calibrate_options_t options = options_of(&trials);
        gpw_calibration_t calibration, again;
        char text[GPW_CALIBRATION_BYTES_MAX], why[GPW_CALIBRATION_WHY_BYTES];
        options.shared_layers = wanted;
        assert_int_equal(gpw_calibrate(&options, &calibration), AS_OK);
        uint32_t shared = wanted < LAYERS ? wanted : LAYERS - 1;
        assert_int_equal(gpw_calibration_held(&calibration), LAYERS - shared);
        assert_int_equal(trials.of[trials.count - 1].shared, shared);
        size_t bytes = gpw_calibration_format(&calibration, text);
        assert_int_equal(gpw_calibration_parse(text, bytes, &again, why), AS_OK);
        assert_memory_equal(&calibration, &again, sizeof(again));
        as_shape_t shape = gpw_model_shape(model, 64);
        assert_true(gpw_calibration_fits(&again, &model->fingerprint, &shape));
    }
}

static void layers_whose_sharing_would_show_do_not_share(void **state)
{
    (void)state;
    trials_t all, some;
    gpw_calibrate_options_t options = options_of(&all);
    gpw_calibration_t calibration;
    options.cosine_min = 1;
    assert_int_equal(gpw_calibrate(&options, &calibration), AS_OK);
    assert_int_equal(gpw_calibration_held(&calibration), LAYERS);
    assert_int_equal(all.count, LAYERS * (LAYERS - 1) / 2); // each alone
    double best = -1;
    for (uint32_t i = 0; i < all.count; i++) {
        best = all.of[i].cosine > best ? all.of[i].cosine : best;
    }
    options = options_of(&some);
    options.shared_layers = 1;
    options.cosine_min = best - 1e-6;
    assert_int_equal(gpw_calibrate(&options, &calibration), AS_OK);
    assert_int_equal(gpw_calibration_held(&calibration), LAYERS - 1);
    assert_true(some.of[some.count - 1].cosine == best);
}

static void threads_do_not_change_it(void **state)
{
    (void)state;
    trials_t one, four;
    gpw_calibration_t a, b;
    gpw_calibrate_options_t options = options_of(&one);
    options.threads = 1;
    assert_int_equal(gpw_calibrate(&options, &a), AS_OK);
    options = options_of(&four);
    options.threads = 4;
    assert_int_equal(gpw_calibrate(&options, &b), AS_OK);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(one.count, four.count);
    for (uint32_t i = 0; i < one.count; i++) {
        assert_true(one.of[i].cosine == four.of[i].cosine);
    }
}

static void a_text_that_is_too_short_is_refused(void **state)
{
    (void)state;
    trials_t trials;
    gpw_calibration_t calibration;
    gpw_calibrate_options_t options = options_of(&trials);
    options.token_count = TOKENS - 1;
    assert_int_equal(gpw_calibrate(&options, &calibration), AS_ERR_INVALID);
    options.token_count = TOKENS;
    assert_int_equal(gpw_calibrate(&options, &calibration), AS_OK);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    trials_t trials;
    gpw_calibration_t calibration;
    gpw_calibrate_options_t options = options_of(&trials);
    options.shared_layers = 0;
    as_status_t status = AS_ERR_NO_MEMORY;
    for (uint64_t n = 1; status != AS_OK; n++) {
        as_mem_fail_nth(n);
        status = gpw_calibrate(&options, &calibration);
        as_mem_fail_nth(0);
        assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
    }
}

static int set_up(void **state)
{
    (void)state;
    tiny_t tiny = tiny_default;
    tiny.layers = LAYERS;
    model = tiny_open(&tiny, KRN_WEIGHT_F16);
    for (uint32_t i = 0; i < PASSAGES * TOKENS; i++) {
        tokens[i] = (int32_t)(tiny_mix(i) % TINY_VOCAB);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_farthest_pair_is_tried_first_and_its_cosine_is_right),
        cmocka_unit_test(as_many_share_as_are_wanted),
        cmocka_unit_test(layers_whose_sharing_would_show_do_not_share),
        cmocka_unit_test(threads_do_not_change_it),
        cmocka_unit_test(a_text_that_is_too_short_is_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
