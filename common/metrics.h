// SPDX-License-Identifier: Apache-2.0
// Metrics: counters, gauges and histograms with Prometheus text exposition. Update from any thread
// (relaxed atomics).
//
// A daemon declares its metrics once, in a table (<folder>/metrics.c), and registers it. Names end in their unit: _total, _bytes, _us, _tokens, _blocks.
#ifndef AS_METRICS_H
#define AS_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

typedef enum as_metric_type {
    AS_METRIC_COUNTER,
    AS_METRIC_GAUGE,
    AS_METRIC_HISTOGRAM
} as_metric_type_t;

typedef struct as_metric {
    const char *name; // assay_<owner>_<noun>_<unit>
    const char *help;
    as_metric_type_t type;
    const char *label; // NULL, or one fixed label such as "stage=\"verify\""
    _Atomic int64_t value;
    _Atomic uint64_t buckets[40]; // histogram: bucket i counts values <= 2^i
    _Atomic uint64_t sum;
    struct as_metric *next;
} as_metric_t;

// Registers static storage with the process's registry. Idempotent.
void as_metric_register(as_metric_t *metrics, size_t count);
void as_metric_add(as_metric_t *metric, int64_t amount);
void as_metric_set(as_metric_t *metric, int64_t value);
void as_metric_observe(as_metric_t *metric, uint64_t value);
int64_t as_metric_value(const as_metric_t *metric);
// Upper bound of the bucket that holds quantile q in [0, 1]; 0 when empty.
uint64_t as_metric_quantile(const as_metric_t *metric, double q);
// Prometheus text format of all registered metrics, as a malloc'ed string (free with as_mem_free).
char *as_metrics_render(void);

#endif
