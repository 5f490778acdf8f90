// SPDX-License-Identifier: Apache-2.0
// Metrics: values, quantiles, and the exposition that a scraper reads.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "common/metrics.h"

static as_metric_t metrics[] = {
    {.name = "assay_test_hits_total",
     .help = "hits",
     .type = AS_METRIC_COUNTER,
     .label = "tier=\"ram\""},
    {.name = "assay_test_used_bytes", .help = "used\nwith \\ and lines", .type = AS_METRIC_GAUGE},
    {.name = "assay_test_hits_total",
     .help = "hits",
     .type = AS_METRIC_COUNTER,
     .label = "tier=\"nvme\""},
    {.name = "assay_test_wait_us", .help = "wait", .type = AS_METRIC_HISTOGRAM},
    {.name = "assay_test_stage_us",
     .help = "stage",
     .type = AS_METRIC_HISTOGRAM,
     .label = "stage=\"verify\""},
};
enum { METRIC_COUNT = sizeof(metrics) / sizeof(metrics[0]) };

static int reset(void **state)
{
    (void)state;
    as_metric_register(metrics, METRIC_COUNT);
    for (int m = 0; m < METRIC_COUNT; m++) {
        metrics[m].value = 0;
        metrics[m].sum = 0;
        for (int i = 0; i < 40; i++) {
            metrics[m].buckets[i] = 0;
        }
    }
    return 0;
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

static void a_counter_adds_and_a_gauge_is_set(void **state)
{
    (void)state;
    as_metric_add(&metrics[0], 2);
    as_metric_add(&metrics[0], 3);
    as_metric_set(&metrics[1], -7);
    assert_int_equal(as_metric_value(&metrics[0]), 5);
    assert_int_equal(as_metric_value(&metrics[1]), -7);
}

static void registering_again_changes_nothing(void **state)
{
    (void)state;
    as_metric_register(metrics, METRIC_COUNT);
    as_metric_register(metrics + 1, 2);
    char *text = as_metrics_render();
    assert_int_equal(count_of(text, "assay_test_used_bytes 0\n"), 1);
    as_mem_free(text);
}

static void series_of_one_name_stand_together_under_one_help(void **state)
{
    (void)state;
    as_metric_set(&metrics[0], 4);
    as_metric_set(&metrics[2], 6);
    char *text = as_metrics_render();
    assert_non_null(strstr(
        text, "# HELP assay_test_hits_total hits\n# TYPE assay_test_hits_total counter\n"
              "assay_test_hits_total{tier=\"ram\"} 4\nassay_test_hits_total{tier=\"nvme\"} 6\n"));
    assert_int_equal(count_of(text, "# TYPE assay_test_hits_total"), 1);
    as_mem_free(text);
}

static void help_is_escaped(void **state)
{
    (void)state;
    char *text = as_metrics_render();
    assert_non_null(strstr(text, "# HELP assay_test_used_bytes used\\nwith \\\\ and lines\n"));
    as_mem_free(text);
}

static void a_histogram_counts_by_powers_of_two(void **state)
{
    (void)state;
    static const uint64_t values[] = {
        0, 1, 2, 3, 4, 5, 1024, 1025, 1ull << 39, (1ull << 39) + 1, UINT64_MAX / 2};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        as_metric_observe(&metrics[3], values[i]);
    }
    char *text = as_metrics_render();
    assert_non_null(strstr(
        text, "assay_test_wait_us_bucket{le=\"1\"} 2\nassay_test_wait_us_bucket{le=\"2\"} 3\n"
              "assay_test_wait_us_bucket{le=\"4\"} 5\nassay_test_wait_us_bucket{le=\"8\"} 6\n"));
    assert_non_null(strstr(text, "assay_test_wait_us_bucket{le=\"1024\"} 7\n"
                                 "assay_test_wait_us_bucket{le=\"2048\"} 8\n"));
    assert_non_null(strstr(text, "assay_test_wait_us_bucket{le=\"549755813888\"} 9\n"
                                 "assay_test_wait_us_bucket{le=\"+Inf\"} 11\n"));
    assert_non_null(strstr(text, "assay_test_wait_us_count 11\n"));
    as_mem_free(text);
}

static void a_labelled_histogram_has_its_label_in_every_series(void **state)
{
    (void)state;
    as_metric_observe(&metrics[4], 3);
    char *text = as_metrics_render();
    assert_non_null(strstr(text, "assay_test_stage_us_bucket{stage=\"verify\",le=\"4\"} 1\n"));
    assert_non_null(strstr(text, "assay_test_stage_us_sum{stage=\"verify\"} 3\n"));
    assert_non_null(strstr(text, "assay_test_stage_us_count{stage=\"verify\"} 1\n"));
    as_mem_free(text);
}

static void a_quantile_is_the_bound_of_its_bucket(void **state)
{
    (void)state;
    assert_int_equal(as_metric_quantile(&metrics[3], 0.5), 0);
    for (int i = 0; i < 98; i++) {
        as_metric_observe(&metrics[3], 10); // (8, 16]
    }
    as_metric_observe(&metrics[3], 1000); // (512, 1024]
    as_metric_observe(&metrics[3], UINT64_MAX / 4);
    assert_int_equal(as_metric_quantile(&metrics[3], 0), 16);
    assert_int_equal(as_metric_quantile(&metrics[3], 0.5), 16);
    assert_int_equal(as_metric_quantile(&metrics[3], 0.98), 16);
    assert_int_equal(as_metric_quantile(&metrics[3], 0.99), 1024);
    assert_true(as_metric_quantile(&metrics[3], 1) == UINT64_MAX);
}

static void *observe_many(void *ctx)
{
    as_metric_t *metric = ctx;
    for (uint64_t i = 0; i < 20000; i++) {
        as_metric_observe(metric, i);
    }
    return NULL;
}

// Reads the number after the last `part` in the text.
static uint64_t number_after(const char *text, const char *part)
{
    const char *at = strstr(text, part);
    assert_non_null(at);
    return strtoull(at + strlen(part), NULL, 10);
}

static void updates_of_several_threads_all_count_and_reading_is_consistent(void **state)
{
    (void)state;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, observe_many, &metrics[3]), 0);
    }
    for (int i = 0; i < 20; i++) {
        char *text = as_metrics_render();
        uint64_t infinite = number_after(text, "assay_test_wait_us_bucket{le=\"+Inf\"} ");
        uint64_t last = number_after(text, "assay_test_wait_us_bucket{le=\"549755813888\"} ");
        assert_true(infinite >= last);
        assert_int_equal(infinite, number_after(text, "assay_test_wait_us_count "));
        as_mem_free(text);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(as_metric_value(&metrics[3]), 60000);
    assert_int_equal(metrics[3].sum, 3 * (20000ull * 19999 / 2));
}

static void rendering_survives_the_failure_of_each_allocation(void **state)
{
    (void)state;
    static as_metric_t many[900]; // more than the first buffer holds
    static char labels[900][32];
    for (int i = 0; i < 900; i++) {
        snprintf(labels[i], sizeof(labels[i]), "n=\"%d\"", i);
        many[i] =
            (as_metric_t){.name = "assay_test_many_total", .help = "many", .label = labels[i]};
    }
    as_metric_register(many, 900);
    char *text = NULL;
    uint64_t n = 0;
    while (!text) {
        as_mem_fail_nth(++n);
        text = as_metrics_render();
        assert_true(n < 100);
    }
    as_mem_fail_nth(0);
    assert_true(n > 2);
    assert_non_null(strstr(text, "assay_test_many_total{n=\"899\"} 0\n"));
    as_mem_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_counter_adds_and_a_gauge_is_set, reset),
        cmocka_unit_test_setup(registering_again_changes_nothing, reset),
        cmocka_unit_test_setup(series_of_one_name_stand_together_under_one_help, reset),
        cmocka_unit_test_setup(help_is_escaped, reset),
        cmocka_unit_test_setup(a_histogram_counts_by_powers_of_two, reset),
        cmocka_unit_test_setup(a_labelled_histogram_has_its_label_in_every_series, reset),
        cmocka_unit_test_setup(a_quantile_is_the_bound_of_its_bucket, reset),
        cmocka_unit_test_setup(updates_of_several_threads_all_count_and_reading_is_consistent,
                               reset),
        cmocka_unit_test_setup(rendering_survives_the_failure_of_each_allocation, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
