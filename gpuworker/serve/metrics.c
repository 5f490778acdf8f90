// SPDX-License-Identifier: Apache-2.0
// The metrics of the face.
#include "common/metrics.h"

#include "gpuworker/serve/serve_internal.h"

#define COUNTER(index, noun, text)                                                                 \
    [index] = {.name = "assay_gpuworker_http_" noun, .help = text, .type = AS_METRIC_COUNTER}

static as_metric_t metrics[GPW_HTTP_METRIC_COUNT] = {
    COUNTER(GPW_HTTP_REQUESTS, "requests_total", "Requests to the API, of any kind"),
    COUNTER(GPW_HTTP_REFUSED, "refused_total", "Requests answered 4xx, but for 429"),
    COUNTER(GPW_HTTP_FAILED, "failed_total",
            "Requests answered 5xx, or a stream that ended with an error"),
    COUNTER(GPW_HTTP_BUSY, "busy_total", "Requests answered 429: the queue was full"),
    COUNTER(GPW_HTTP_ABORTED, "aborted_total",
            "Generations whose client left before the answer was complete"),
    COUNTER(GPW_HTTP_STREAMS, "streams_total", "Answers begun as a stream of events"),
    COUNTER(GPW_HTTP_TOKENS, "completion_tokens_total", "Tokens of answers"),
    [GPW_HTTP_GENERATIONS] = {.name = "assay_gpuworker_http_generations",
                              .help = "Generations in progress",
                              .type = AS_METRIC_GAUGE},
    [GPW_HTTP_FIRST_TOKEN] = {.name = "assay_gpuworker_http_first_token_us",
                              .help = "Time from admission to the first token",
                              .type = AS_METRIC_HISTOGRAM},
    [GPW_HTTP_TOTAL] = {.name = "assay_gpuworker_http_generation_us",
                        .help = "Time from admission to the last token",
                        .type = AS_METRIC_HISTOGRAM},
};

void gpw_http_metrics_register(void)
{
    as_metric_register(metrics, GPW_HTTP_METRIC_COUNT);
}

void gpw_http_metric_add(gpw_http_metric_t metric, int64_t amount)
{
    as_metric_add(&metrics[metric], amount);
}

void gpw_http_metric_observe(gpw_http_metric_t metric, uint64_t value)
{
    as_metric_observe(&metrics[metric], value);
}
