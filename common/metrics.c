// SPDX-License-Identifier: Apache-2.0
// Metrics: updates are relaxed atomics on the metric itself; only registration and rendering take
// the registry's lock.
//
// A histogram's bucket i holds the values in (2^(i-1), 2^i], bucket 0 those up to 1. Values above
// the last bound are in no bucket, only in `value`, which counts every observation. Rendering reads
// while others write: the count it shows is never less than the buckets it shows, whatever happens
// between the reads.
#include "common/metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

enum { BUCKET_COUNT = sizeof(((as_metric_t *)0)->buckets) / sizeof(uint64_t) };

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static as_metric_t *registry_first, *registry_last;

// Names come from the source, so a bad one is a broken invariant.
static bool name_is_valid(const char *name)
{
    if (!name || *name < 'a' || *name > 'z') {
        return false;
    }
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

static bool is_registered(const as_metric_t *metric)
{
    for (const as_metric_t *m = registry_first; m; m = m->next) {
        if (m == metric) {
            return true;
        }
    }
    return false;
}

void as_metric_register(as_metric_t *metrics, size_t count)
{
    pthread_mutex_lock(&registry_lock);
    for (as_metric_t *metric = metrics; metric < metrics + count; metric++) {
        AS_ASSERT(name_is_valid(metric->name));
        if (is_registered(metric)) {
            continue;
        }
        metric->next = NULL;
        if (registry_last) {
            registry_last->next = metric;
        } else {
            registry_first = metric;
        }
        registry_last = metric;
    }
    pthread_mutex_unlock(&registry_lock);
}

void as_metric_add(as_metric_t *metric, int64_t amount)
{
    atomic_fetch_add_explicit(&metric->value, amount, memory_order_relaxed);
}

void as_metric_set(as_metric_t *metric, int64_t value)
{
    atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

void as_metric_observe(as_metric_t *metric, uint64_t value)
{
    unsigned bucket = value <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(value - 1);
    // Count first, with release, and bucket after: a reader that sees the bucket sees the count.
    atomic_fetch_add_explicit(&metric->value, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->sum, value, memory_order_relaxed);
    if (bucket < BUCKET_COUNT) {
        atomic_fetch_add_explicit(&metric->buckets[bucket], 1, memory_order_release);
    }
}

int64_t as_metric_value(const as_metric_t *metric)
{
    return atomic_load_explicit(&metric->value, memory_order_relaxed);
}

uint64_t as_metric_quantile(const as_metric_t *metric, double q)
{
    AS_ASSERT(q >= 0 && q <= 1);
    uint64_t counts[BUCKET_COUNT], total = 0;
    for (int i = 0; i < BUCKET_COUNT; i++) {
        counts[i] = atomic_load_explicit(&metric->buckets[i], memory_order_acquire);
        total += counts[i];
    }
    uint64_t observed = (uint64_t)as_metric_value(metric);
    total = observed > total ? observed : total;
    if (total == 0) {
        return 0;
    }
    double rank = q * (double)total;
    uint64_t below = 0;
    for (int i = 0; i < BUCKET_COUNT; i++) {
        below += counts[i];
        if (below > 0 && (double)below >= rank) {
            return 1ull << i;
        }
    }
    return UINT64_MAX; // above the last bound
}

// ---- Rendering

typedef struct text {
    char *bytes;
    size_t length, capacity;
    bool failed; // out of memory: everything after is dropped
} text_t;

__attribute__((format(printf, 2, 3))) static void text_add(text_t *text, const char *format, ...)
{
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        size_t room = text->capacity - text->length;
        int added =
            text->failed ? 0 : vsnprintf(text->bytes + text->length, room, format, arguments);
        va_end(arguments);
        if (text->failed || added < 0 || (size_t)added < room) {
            text->length += added > 0 ? (size_t)added : 0;
            return;
        }
        size_t capacity = 2 * text->capacity + (size_t)added;
        char *bytes = as_mem_realloc(text->bytes, capacity);
        if (!bytes) {
            text->failed = true;
            return;
        }
        text->bytes = bytes;
        text->capacity = capacity;
    }
}

static void render_help(text_t *text, const as_metric_t *metric)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    text_add(text, "# HELP %s ", metric->name);
    for (const char *c = metric->help ? metric->help : ""; *c; c++) {
        if (*c == '\n') {
            text_add(text, "\\n");
        } else {
            text_add(text, *c == '\\' ? "\\%c" : "%c", *c);
        }
    }
    text_add(text, "\n# TYPE %s %s\n", metric->name, types[metric->type]);
}

static void render_histogram(text_t *text, const as_metric_t *metric)
{
    const char *label = metric->label ? metric->label : "";
    const char *comma = metric->label ? "," : "";
    uint64_t below = 0;
    for (int i = 0; i < BUCKET_COUNT; i++) {
        below += atomic_load_explicit(&metric->buckets[i], memory_order_acquire);
        text_add(text, "%s_bucket{%s%sle=\"%llu\"} %" PRIu64 "\n", metric->name, label, comma,
                 1ull << i, below);
    }
    uint64_t count = (uint64_t)as_metric_value(metric);
    count = count > below ? count : below;
    text_add(text, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", metric->name, label, comma, count);
    const char *open = metric->label ? "{" : "", *close = metric->label ? "}" : "";
    uint64_t sum = atomic_load_explicit(&metric->sum, memory_order_relaxed);
    text_add(text, "%s_sum%s%s%s %" PRIu64 "\n", metric->name, open, label, close, sum);
    text_add(text, "%s_count%s%s%s %" PRIu64 "\n", metric->name, open, label, close, count);
}

static void render_metric(text_t *text, const as_metric_t *metric)
{
    if (metric->type == AS_METRIC_HISTOGRAM) {
        render_histogram(text, metric);
    } else if (metric->label) {
        text_add(text, "%s{%s} %" PRId64 "\n", metric->name, metric->label,
                 as_metric_value(metric));
    } else {
        text_add(text, "%s %" PRId64 "\n", metric->name, as_metric_value(metric));
    }
}

static bool is_first_of_name(const as_metric_t *metric)
{
    for (const as_metric_t *m = registry_first; m != metric; m = m->next) {
        if (strcmp(m->name, metric->name) == 0) {
            return false;
        }
    }
    return true;
}

// The series of one name stand together under one HELP and TYPE, as the format demands.
static void render_family(text_t *text, const as_metric_t *first)
{
    render_help(text, first);
    for (const as_metric_t *m = first; m; m = m->next) {
        if (strcmp(m->name, first->name) == 0) {
            render_metric(text, m);
        }
    }
}

char *as_metrics_render(void)
{
    text_t text = {.capacity = 16384};
    text.bytes = as_mem_alloc(text.capacity);
    if (!text.bytes) {
        return NULL;
    }
    text.bytes[0] = '\0';
    pthread_mutex_lock(&registry_lock);
    for (const as_metric_t *m = registry_first; m; m = m->next) {
        if (is_first_of_name(m)) {
            render_family(&text, m);
        }
    }
    pthread_mutex_unlock(&registry_lock);
    if (text.failed) {
        as_mem_free(text.bytes);
        return NULL;
    }
    return text.bytes;
}
