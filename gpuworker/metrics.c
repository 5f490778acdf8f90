// SPDX-License-Identifier: Apache-2.0
// The worker's metrics: one table.
#include "gpuworker/metrics.h"

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

void gpw_metrics_register(void)
{
    as_metric_register(table, GPW_METRIC_COUNT);
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
