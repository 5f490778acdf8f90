// SPDX-License-Identifier: Apache-2.0
// Sums of `assay compare`'s raw data: a row for each compressor and context.
//
// Raw data may come from a file: whatever is missing or of another type counts as not measured.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/compare.h"
#include "common/mem.h"

#define PROMPTS_MAX 65536u

typedef struct sums {
    double resident, full;
    double tokens[2], ms[2]; // verified, unverified
    double accepted, verifications;
    double nats, nat_count;
    double *agreed; // [prompts]: tokens up to the first that differs, of row.unverified answers
} sums_t;

static double number(const json_t *object, const char *name)
{
    double value = json_number_value(json_object_get(object, name));
    return isfinite(value) && value >= 0 ? value : 0;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

// The row's index; rows.count where it would be a new one.
static uint32_t find(const cli_compare_rows_t *rows, const char *compressor, int64_t context)
{
    uint32_t i = 0;
    while (i < rows->count &&
           (rows->row[i].context != context || strcmp(rows->row[i].compressor, compressor) != 0)) {
        i++;
    }
    return i;
}

static const char *name_of(const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "compressor"));
    return name && strlen(name) < CLI_COMPARE_NAME_BYTES ? name : NULL;
}

static void add_verified(cli_compare_row_t *row, sums_t *sums, const json_t *answer)
{
    const json_t *verified = json_object_get(answer, "verified");
    const json_t *identical = json_object_get(verified, "identical");
    sums->tokens[0] += number(verified, "tokens");
    sums->ms[0] += number(verified, "ms");
    sums->accepted += number(verified, "accepted_tokens");
    sums->verifications += number(verified, "verifications");
    row->verified += json_is_boolean(identical);
    row->identical += json_is_true(identical);
}

static void add_unverified(cli_compare_row_t *row, sums_t *sums, const json_t *answer)
{
    const json_t *plain = json_object_get(answer, "unverified");
    const json_t *first = json_object_get(plain, "first_difference");
    const json_t *parses = json_object_get(plain, "parses");
    if (!json_is_object(plain)) {
        return;
    }
    sums->tokens[1] += number(plain, "tokens");
    sums->ms[1] += number(plain, "ms");
    sums->agreed[row->unverified++] =
        number(plain, json_is_integer(first) ? "first_difference" : "tokens");
    row->differ += json_is_integer(first);
    row->parsed += json_is_boolean(parses);
    row->broken += json_is_false(parses);
}

static void add(cli_compare_row_t *row, sums_t *sums, const json_t *answer)
{
    const json_t *forced = json_object_get(answer, "continued");
    row->prompts++;
    add_verified(row, sums, answer);
    add_unverified(row, sums, answer);
    sums->nats += number(forced, "nats");
    sums->nat_count += number(forced, "tokens");
    sums->resident += number(forced, "resident_bytes");
    sums->full += number(forced, "full_bytes");
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    if (count == 0) {
        return NAN;
    }
    qsort(values, count, sizeof(*values), compare_numbers);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static void finish(cli_compare_row_t *row, sums_t *sums, double full_token_bytes)
{
    row->share = ratio(sums->resident, sums->full);
    row->token_bytes = row->share * full_token_bytes;
    row->accepted_run = ratio(sums->accepted, sums->verifications);
    row->verified_per_s = ratio(sums->tokens[0] * 1e3, sums->ms[0]);
    row->unverified_per_s = ratio(sums->tokens[1] * 1e3, sums->ms[1]);
    row->differ_median = median(sums->agreed, row->unverified);
    row->perplexity = sums->nat_count > 0 ? exp(sums->nats / sums->nat_count) : NAN;
    row->ruler = NAN;
}

// The rows that there are, without sums; by context, the first first.
static const char *list(const json_t *prompts, cli_compare_rows_t *rows)
{
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        const json_t *answers = json_object_get(prompt, "answers");
        int64_t context = json_integer_value(json_object_get(prompt, "context"));
        for (size_t j = 0; j < json_array_size(answers); j++) {
            const char *name = name_of(json_array_get(answers, j));
            uint32_t at = name ? find(rows, name, context) : 0;
            if (!name) {
                return "an answer has no \"compressor\"";
            }
            if (at == CLI_COMPARE_ROWS_MAX) {
                return "it has more compressors and contexts than a table";
            }
            if (at < rows->count) {
                continue;
            }
            while (at > 0 && rows->row[at - 1].context > context) {
                rows->row[at] = rows->row[at - 1];
                at--;
            }
            rows->count++;
            rows->row[at] = (cli_compare_row_t){.context = context};
            snprintf(rows->row[at].compressor, CLI_COMPARE_NAME_BYTES, "%s", name);
        }
    }
    return rows->count > 0 ? NULL : "it has no \"prompts\" with \"answers\"";
}

static void sum_row(const json_t *prompts, cli_compare_row_t *row, sums_t *sums)
{
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        const json_t *answers = json_object_get(prompt, "answers");
        if (json_integer_value(json_object_get(prompt, "context")) != row->context) {
            continue;
        }
        for (size_t j = 0; j < json_array_size(answers); j++) {
            const json_t *answer = json_array_get(answers, j);
            if (strcmp(name_of(answer), row->compressor) == 0) {
                add(row, sums, answer);
                break; // of each prompt one
            }
        }
    }
}

static void add_ruler(const json_t *scores, cli_compare_rows_t *rows)
{
    for (size_t i = 0; i < json_array_size(scores); i++) {
        const json_t *one = json_array_get(scores, i), *score = json_object_get(one, "score");
        const char *name = name_of(one);
        int64_t context = json_integer_value(json_object_get(one, "context"));
        uint32_t at = name ? find(rows, name, context) : rows->count;
        if (at < rows->count && json_is_number(score)) {
            rows->row[at].ruler = number(one, "score");
        }
    }
}

const char *cli_compare_sum(const json_t *raw, cli_compare_rows_t *rows)
{
    const json_t *prompts = json_object_get(raw, "prompts");
    double token_bytes = number(raw, "full_token_bytes");
    size_t count = json_array_size(prompts);
    memset(rows, 0, sizeof(*rows));
    if (count > PROMPTS_MAX) {
        return "it has too many prompts";
    }
    const char *fault = list(prompts, rows);
    double *agreed = fault ? NULL : as_mem_alloc(count * sizeof(*agreed));
    if (fault || !agreed) {
        return fault ? fault : "out of memory";
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        sums_t sums = {.agreed = agreed};
        sum_row(prompts, &rows->row[i], &sums);
        finish(&rows->row[i], &sums, token_bytes);
    }
    as_mem_free(agreed);
    add_ruler(json_object_get(raw, "ruler"), rows);
    return NULL;
}
