// SPDX-License-Identifier: Apache-2.0
// The worker's metrics: one table; and one of those that every compressor has.
#include "gpuworker/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/decode/chooser.h"
#include "gpuworker/resident/compressor.h"

#define STEP_TOTAL(step)                                                                           \
    {                                                                                              \
        .name = "assay_worker_" #step "_total", .help = "Times that a request entered " #step ".", \
        .type = AS_METRIC_COUNTER                                                                  \
    }
#define STEP_US(step)                                                                              \
    {                                                                                              \
        .name = "assay_worker_" #step "_us",                                                       \
        .help = "Microseconds that a request stayed in " #step ".", .type = AS_METRIC_HISTOGRAM    \
    }
#define COUNTER(noun, text)                                                                        \
    {                                                                                              \
        .name = "assay_worker_" #noun, .help = text, .type = AS_METRIC_COUNTER                     \
    }
#define GAUGE(noun, text)                                                                          \
    {                                                                                              \
        .name = "assay_worker_" #noun, .help = text, .type = AS_METRIC_GAUGE                       \
    }
#define HISTOGRAM(noun, text)                                                                      \
    {                                                                                              \
        .name = "assay_worker_" #noun, .help = text, .type = AS_METRIC_HISTOGRAM                   \
    }

// The first twenty are in the order of gpw_step_t.
static as_metric_t table[GPW_METRIC_COUNT] = {
    STEP_TOTAL(admit),
    STEP_TOTAL(route),
    STEP_TOTAL(fetch),
    STEP_TOTAL(prefill),
    STEP_TOTAL(seal),
    STEP_TOTAL(draft),
    STEP_TOTAL(swap),
    STEP_TOTAL(verify),
    STEP_TOTAL(recompute),
    STEP_TOTAL(publish),
    STEP_US(admit),
    STEP_US(route),
    STEP_US(fetch),
    STEP_US(prefill),
    STEP_US(seal),
    STEP_US(draft),
    STEP_US(swap),
    STEP_US(verify),
    STEP_US(recompute),
    STEP_US(publish),
    COUNTER(requests_total, "Requests taken in."),
    COUNTER(requests_failed_total, "Requests that ended with an error."),
    COUNTER(tokens_total, "Tokens that left."),
    COUNTER(drafted_tokens_total, "Tokens drafted on a resident cache."),
    COUNTER(accepted_tokens_total, "Drafted tokens that verification confirmed."),
    COUNTER(proposed_tokens_total, "Tokens that prompt lookup proposed."),
    COUNTER(proposals_accepted_total, "Of these, tokens that became drafts or were confirmed."),
    COUNTER(model_proposed_tokens_total, "Tokens that the draft model proposed."),
    COUNTER(model_proposals_accepted_total,
            "Of these, tokens that became drafts or were confirmed."),
    COUNTER(model_rows_total, "Tokens that the draft model computed."),
    COUNTER(model_us_total, "Microseconds in which it did."),
    COUNTER(cached_tokens_total, "Prompt tokens whose K and V came from stores."),
    COUNTER(fetched_bytes_total, "Bytes of prefixes fetched."),
    COUNTER(swapped_bytes_total, "Bytes brought for verifications."),
    COUNTER(pushed_bytes_total, "Bytes over links of verifications that stores attended for."),
    COUNTER(pushed_verifications_total, "Verifications whose attention stores computed."),
    COUNTER(pushed_prefixes_total, "Prompts whose rest was computed without bringing the prefix."),
    COUNTER(sealed_fetched_blocks_total, "Sealed blocks that came from stores."),
    COUNTER(sealed_published_bytes_total, "Bytes of sealed blocks put to stores."),
    COUNTER(push_refused_total, "Verifications that stores did not attend for; each then swapped."),
    COUNTER(published_bytes_total, "Bytes of blocks put to stores."),
    COUNTER(publish_dropped_blocks_total, "Puts of blocks that no store took."),
    COUNTER(recomputed_blocks_total, "Blocks computed again because no store had them."),
    COUNTER(recompute_chosen_blocks_total,
            "Stored blocks computed again because loading them was expected to take longer."),
    COUNTER(restarts_total, "Requests that let go of their memory and began again."),
    COUNTER(batch_layers_total, "Layers computed, each for a batch of rows of several requests."),
    COUNTER(batch_rows_total, "Rows in these, a row being one token of one request."),
    COUNTER(batch_passes_total,
            "Requests in these: by batch_layers_total the mean size of a batch."),
    COUNTER(shared_swaps_total,
            "Verifications that came along in the swap of another session on the same chain."),
    COUNTER(swap_moving_us_total, "Microseconds in which a swap moved blocks."),
    COUNTER(swap_hidden_us_total,
            "Of these, microseconds in which the device computed: by the former the share of swap "
            "time that is hidden."),
    COUNTER(sealing_us_total,
            "Microseconds of prefills in which prompts were compressed: of prefill_us_sum the "
            "share that sealing takes."),
    COUNTER(round_us_total, "Microseconds of rounds, each a draft and its verification."),
    COUNTER(round_expected_us_total, "The same as the choice of their horizons expected."),
    COUNTER(round_tokens_total, "Tokens that left in these rounds."),
    COUNTER(round_expected_tokens_total, "The same as expected."),
    HISTOGRAM(swap_wait_us, "Microseconds that a verification waited for layers."),
    HISTOGRAM(push_wait_us, "Microseconds that a verification waited for a layer's attention."),
    HISTOGRAM(first_token_us, "Microseconds from submit to the first token."),
    GAUGE(sessions, "Requests that hold a cache."),
    GAUGE(reserved_bytes, "Cache memory that sessions have reserved, and what they share."),
    GAUGE(shared_bytes, "Cache memory of sealed blocks that sessions on one chain have in common."),
    GAUGE(workspace_bytes,
          "Memory of the computation itself: the part of the device's that no cache gets."),
};

static as_metric_t by_method[GPW_METHOD_METRIC_COUNT][GPW_METHODS_MAX];
static char labels[GPW_METHODS_MAX][48];

// As many as the table has rows, and plain decoding.
static void make_by_method(void)
{
    static const as_metric_t kinds[GPW_METHOD_METRIC_COUNT] = {
        COUNTER(chosen_total, "Sessions for which the worker chose this compressor."),
        COUNTER(tried_total, "Of these, sessions that were to find out what it yields."),
        GAUGE(expected_tokens_per_1000_s,
              "Tokens in 1,000 seconds that the newest choice expected of it; 0: not measured."),
    };
    const char *const *names = gpw_compressor_names(0);
    uint32_t count = 0;
    while (strcmp(names[count], "none") != 0) {
        count++;
    }
    AS_ASSERT(count < GPW_METHODS_MAX);
    for (uint32_t m = 0; m <= count; m++) {
        snprintf(labels[m], sizeof(labels[m]), "compressor=\"%s\"", names[m]);
        for (uint32_t k = 0; k < GPW_METHOD_METRIC_COUNT; k++) {
            by_method[k][m].name = kinds[k].name;
            by_method[k][m].help = kinds[k].help;
            by_method[k][m].type = kinds[k].type;
            by_method[k][m].label = labels[m];
        }
    }
    for (uint32_t k = 0; k < GPW_METHOD_METRIC_COUNT; k++) {
        as_metric_register(by_method[k], count + 1);
    }
}

void gpw_metrics_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    as_metric_register(table, GPW_METRIC_COUNT);
    pthread_once(&once, make_by_method);
}

void gpw_metric_method_add(gpw_method_metric_t metric, uint32_t method, int64_t amount)
{
    as_metric_add(&by_method[metric][method], amount);
}

void gpw_metric_method_set(gpw_method_metric_t metric, uint32_t method, int64_t value)
{
    as_metric_set(&by_method[metric][method], value);
}

int64_t gpw_metric_method_value(gpw_method_metric_t metric, uint32_t method)
{
    return as_metric_value(&by_method[metric][method]);
}

void gpw_metric_add(gpw_metric_t metric, int64_t amount)
{
    as_metric_add(&table[metric], amount);
}

void gpw_metric_set(gpw_metric_t metric, int64_t value)
{
    as_metric_set(&table[metric], value);
}

void gpw_metric_observe(gpw_metric_t metric, uint64_t value)
{
    as_metric_observe(&table[metric], value);
}

int64_t gpw_metric_value(gpw_metric_t metric)
{
    return as_metric_value(&table[metric]);
}
