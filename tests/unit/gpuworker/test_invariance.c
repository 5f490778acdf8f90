// SPDX-License-Identifier: Apache-2.0
// The logits bits of the real model do not depend on how the work is cut: 64 positions computed
// alone, in batches of any size and order, after prefill in chunks of 1, 7, 64 and 512, with 1 and
// 2 threads, are equal by memcmp; and so is the cache they leave.
//
// A sample normally, all of it when ASSAY_TEST_FULL is 1.
#include "model_fixture.h"

#include "gpuworker/model/tokenizer.h"

#define POSITIONS   64u
#define TOKENS_MAX  640u
#define RANDOM_SEED 4711u

typedef struct truth {
    gpw_model_t *model;
    bool full;
    uint32_t prefix; // tokens before the 64
    int32_t tokens[TOKENS_MAX];
    float *logits; // [64][vocab], one at a time, one thread
    krn_f16 *cache;
    size_t cache_bytes;
} truth_t;

static void read_text(truth_t *truth)
{
    static char text[65536];
    static int32_t tokens[16384];
    char path[512];
    size_t count = 0;
    FILE *file = fopen(fixture_golden("english.txt", path), "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof(text), file);
    fclose(file);
    gpw_encode_options_t options = {0};
    assert_int_equal(
        gpw_tokenizer_encode(truth->model->tokenizer, text, bytes, options, tokens, 16384, &count),
        AS_OK);
    assert_true(count >= TOKENS_MAX);
    memcpy(truth->tokens, tokens, sizeof(truth->tokens));
}

static fixture_t open_one(const truth_t *truth, uint32_t threads, uint32_t rows_max)
{
    return fixture_open(truth->model, krn_cpu(), threads, truth->prefix + POSITIONS, rows_max);
}

static int set_up(void **state)
{
    static truth_t truth;
    const char *full = getenv("ASSAY_TEST_FULL");
    truth.model = fixture_load_real();
    truth.full = full && strcmp(full, "1") == 0;
    truth.prefix = truth.full
                       ? 560
                       : 100; // both end inside a page, and the full one is above the largest chunk
    read_text(&truth);
    truth.logits = malloc((size_t)POSITIONS * truth.model->vocab * sizeof(float));
    fixture_t fixture = open_one(&truth, 1, 256);
    fixture_prefill(&fixture, truth.tokens, 0, truth.prefix, 256, NULL);
    fixture_prefill(&fixture, truth.tokens + truth.prefix, truth.prefix, POSITIONS, 1,
                    truth.logits);
    truth.cache_bytes = fixture.cache_elements * sizeof(krn_f16);
    truth.cache = malloc(truth.cache_bytes);
    memcpy(truth.cache, fixture.cache, truth.cache_bytes);
    fixture_close(&fixture);
    *state = &truth;
    return 0;
}

static int tear_down(void **state)
{
    truth_t *truth = *state;
    gpw_model_free(truth->model);
    free(truth->logits);
    free(truth->cache);
    return 0;
}

static void check_logits(const truth_t *truth, const float *logits, uint32_t position,
                         const char *what, uint32_t size)
{
    size_t vocab = truth->model->vocab;
    if (memcmp(logits, truth->logits + position * vocab, vocab * sizeof(float)) != 0) {
        fail_msg("%s %u: position %u has other logits bits", what, size, truth->prefix + position);
    }
}

static void check_prefill(const truth_t *truth, uint32_t chunk, uint32_t threads)
{
    size_t vocab = truth->model->vocab;
    fixture_t fixture = open_one(truth, threads, chunk);
    float *logits = malloc((size_t)POSITIONS * vocab * sizeof(float));
    fixture_prefill(&fixture, truth->tokens, 0, truth->prefix, chunk, NULL);
    fixture_prefill(&fixture, truth->tokens + truth->prefix, truth->prefix, POSITIONS, 1, logits);
    for (uint32_t i = 0; i < POSITIONS; i++) {
        check_logits(truth, logits + i * vocab, i, "prefill chunk", chunk);
    }
    assert_memory_equal(fixture.cache, truth->cache, truth->cache_bytes);
    free(logits);
    fixture_close(&fixture);
}

static void the_bits_do_not_depend_on_the_prefill_chunk_or_the_threads(void **state)
{
    const truth_t *truth = *state;
    const uint32_t chunks[] = {1, 7, 64, 512};
    for (size_t i = 0; i < 4; i++) {
        for (uint32_t threads = 1; threads <= 2; threads++) {
            bool sampled = chunks[i] == 7 ? threads == 2 : chunks[i] == 512 && threads == 2;
            if (truth->full || sampled) {
                check_prefill(truth, chunks[i], threads);
            }
        }
    }
}

static void shuffle(uint32_t *order, uint32_t *seed_p)
{
    for (uint32_t i = 0; i < POSITIONS; i++) {
        order[i] = i;
    }
    for (uint32_t i = POSITIONS - 1; i > 0; i--) {
        *seed_p = *seed_p * 1664525u + 1013904223u;
        uint32_t j = (*seed_p >> 8) % (i + 1), swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

// All 64 positions, in the order given, in passes of `size` rows. The cache holds all of them
// already, so any order has what it attends to; each row writes its own K and V again.
static void check_batches(const truth_t *truth, fixture_t *fixture, uint32_t size,
                          const uint32_t *order, float *logits)
{
    size_t vocab = truth->model->vocab;
    for (uint32_t at = 0; at < POSITIONS; at += size) {
        int32_t tokens[POSITIONS], positions[POSITIONS];
        uint32_t count = POSITIONS - at < size ? POSITIONS - at : size;
        for (uint32_t i = 0; i < count; i++) {
            positions[i] = (int32_t)(truth->prefix + order[at + i]);
            tokens[i] = truth->tokens[positions[i]];
        }
        fixture_pass(fixture, tokens, positions, count);
        fixture_logits(fixture, count, logits);
        for (uint32_t i = 0; i < count; i++) {
            check_logits(truth, logits + i * vocab, order[at + i], "batch", size);
        }
    }
    assert_memory_equal(fixture->cache, truth->cache, truth->cache_bytes);
}

static void the_bits_do_not_depend_on_the_batch_or_its_order(void **state)
{
    const truth_t *truth = *state;
    uint32_t seed = RANDOM_SEED;
    print_message("seed %u\n", seed);
    float *logits = malloc((size_t)POSITIONS * truth->model->vocab * sizeof(float));
    for (uint32_t threads = 1; threads <= 2; threads++) {
        fixture_t fixture = open_one(truth, threads, 32);
        memcpy(fixture.cache, truth->cache, truth->cache_bytes);
        for (uint32_t size = 1; size <= 32; size++) {
            uint32_t order[POSITIONS];
            bool sampled = threads == 2 ? size == 3 || size == 8 || size == 29 : size == 17;
            if (!truth->full && !sampled) {
                continue;
            }
            for (uint32_t i = 0; i < POSITIONS; i++) {
                order[i] = i;
            }
            check_batches(truth, &fixture, size, order, logits);
            shuffle(order, &seed);
            check_batches(truth, &fixture, size, order, logits);
        }
        fixture_close(&fixture);
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_do_not_depend_on_the_prefill_chunk_or_the_threads),
        cmocka_unit_test(the_bits_do_not_depend_on_the_batch_or_its_order),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
