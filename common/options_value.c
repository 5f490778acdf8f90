// SPDX-License-Identifier: Apache-2.0
// Values of options: strict parsing by type, bounds, and the message that says what would be
// accepted.
//
// Nothing is guessed: no sign, space, unit or digit more or less than the accepted form, and no
// number that overflows.
#include "common/options_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

// Everything that options own is linked here, and so is never freed and never lost.
static struct kept {
    struct kept *next;
    _Alignas(16) char bytes[];
} * kept_first;

void *as_options_keep_bytes(size_t bytes)
{
    struct kept *kept = as_mem_zalloc(1, sizeof(*kept) + bytes);
    if (!kept) {
        return NULL;
    }
    kept->next = kept_first;
    kept_first = kept;
    return kept->bytes;
}

char *as_options_keep(const char *text, size_t bytes)
{
    char *copy = as_options_keep_bytes(bytes + 1);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static void print_source(const as_option_text_t *text)
{
    switch (text->source) {
    case AS_SOURCE_FILE:
        fprintf(stderr, text->line > 0 ? "%s line %d" : "%s", text->file, text->line);
        break;
    case AS_SOURCE_ENVIRONMENT:
        fprintf(stderr, "environment");
        break;
    case AS_SOURCE_FLAG:
        fprintf(stderr, "flag");
        break;
    default:
        fprintf(stderr, "default");
    }
}

static void print_bounds(const as_option_t *option)
{
    if (option->min != 0 || option->max != 0) {
        fprintf(stderr, ", from %.15g to %.15g", option->min, option->max);
        fprintf(stderr, "%s", option->type == AS_OPTION_BYTES ? " bytes" : "");
        fprintf(stderr, "%s", option->type == AS_OPTION_DURATION ? " microseconds" : "");
    }
}

void as_option_complain(const as_option_text_t *text, const char *value)
{
    static const char *const accepted[] = {
        [AS_OPTION_BOOL] = "true or false",
        [AS_OPTION_INT] = "a whole number",
        [AS_OPTION_BYTES] =
            "a size such as 4096, 64KiB, 512M or 2GiB (K, M, G, T are powers of 1024)",
        [AS_OPTION_DURATION] = "a time with its unit, such as 1500us, 250ms, 10s, 2m, 1h or 30d",
        [AS_OPTION_DOUBLE] = "a number",
        [AS_OPTION_STRING] = "a text",
        [AS_OPTION_LIST] =
            "texts separated by commas, none of them empty (or nothing: an empty list)",
    };
    fprintf(stderr, "%s: --%s: '%s' (", text->options->program, text->option->name, value);
    print_source(text);
    fprintf(stderr, ") must be %s", accepted[text->option->type]);
    print_bounds(text->option);
    fprintf(stderr, "\n");
}

// Digits only, to the first other character. False on none, or on overflow of int64_t.
static bool read_digits(const char **text_p, int64_t *number_p)
{
    const char *text = *text_p;
    int64_t number = 0;
    if (*text < '0' || *text > '9') {
        return false;
    }
    for (; *text >= '0' && *text <= '9'; text++) {
        int digit = *text - '0';
        if (number > (INT64_MAX - digit) / 10) {
            return false;
        }
        number = 10 * number + digit;
    }
    *text_p = text;
    *number_p = number;
    return true;
}

static bool parse_int(const char *text, int64_t *value_p)
{
    bool negative = *text == '-';
    text += negative;
    int64_t number;
    if (!read_digits(&text, &number) || *text != '\0') {
        return false;
    }
    *value_p = negative ? -number : number;
    return true;
}

typedef struct unit {
    const char *name;
    int64_t factor;
} unit_t;

static bool parse_with_unit(const char *text, const unit_t *units, int64_t *value_p)
{
    int64_t number;
    if (!read_digits(&text, &number)) {
        return false;
    }
    for (const unit_t *unit = units; unit->name; unit++) {
        if (strcmp(text, unit->name) == 0) {
            if (number > INT64_MAX / unit->factor) {
                return false;
            }
            *value_p = number * unit->factor;
            return true;
        }
    }
    return false;
}

bool as_option_parse_bytes(const char *text, int64_t *value_p)
{
    static const unit_t units[] = {
        {"", 1},          {"B", 1},           {"K", 1ll << 10}, {"KiB", 1ll << 10},
        {"M", 1ll << 20}, {"MiB", 1ll << 20}, {"G", 1ll << 30}, {"GiB", 1ll << 30},
        {"T", 1ll << 40}, {"TiB", 1ll << 40}, {NULL, 0}};
    return parse_with_unit(text, units, value_p);
}

static bool parse_duration(const char *text, int64_t *value_p)
{
    static const unit_t units[] = {{"us", 1},         {"ms", 1000},        {"s", 1000000},
                                   {"m", 60000000ll}, {"h", 3600000000ll}, {"d", 86400000000ll},
                                   {NULL, 0}};
    if (strcmp(text, "0") == 0) {
        *value_p = 0; // the same in every unit
        return true;
    }
    return parse_with_unit(text, units, value_p);
}

static bool parse_double(const char *text, double *value_p)
{
    // strtod would also take spaces, hexadecimal, "inf" and "nan".
    if (strspn(text, "0123456789.eE+-") != strlen(text) || *text == '\0') {
        return false;
    }
    char *end;
    double value = strtod(text, &end);
    if (*end != '\0' || end == text || !isfinite(value)) {
        return false;
    }
    *value_p = value;
    return true;
}

static bool parse_bool(const char *text, bool *value_p)
{
    bool is_true = strcmp(text, "true") == 0;
    if (!is_true && strcmp(text, "false") != 0) {
        return false;
    }
    *value_p = is_true;
    return true;
}

static bool in_bounds(const as_option_t *option, double value)
{
    return (option->min == 0 && option->max == 0) || (value >= option->min && value <= option->max);
}

static size_t list_length(const char *const *list)
{
    size_t length = 0;
    while (list && list[length]) {
        length++;
    }
    return length;
}

// Adds the items between commas to the list. The list of a weaker source is replaced, not added to.
static as_status_t store_list(const as_option_text_t *text, const char *value, bool restart)
{
    const char ***list_p = text->option->value;
    const char *whole = value;
    size_t before = restart ? 0 : list_length(*list_p);
    size_t items = *value != '\0'; // an empty text is an empty list
    for (const char *c = value; *c; c++) {
        items += *c == ',';
    }
    if (before + items > AS_OPTION_LIST_MAX) {
        fprintf(stderr, "%s: --%s: more than %u items\n", text->options->program,
                text->option->name, AS_OPTION_LIST_MAX);
        return AS_ERR_LIMIT;
    }
    const char **list = as_options_keep_bytes((before + items + 1) * sizeof(char *));
    if (!list) {
        return AS_ERR_NO_MEMORY;
    }
    if (before > 0) {
        memcpy(list, *list_p, before * sizeof(char *));
    }
    for (size_t i = 0; i < items; i++) {
        size_t bytes = strcspn(value, ",");
        if (bytes == 0) {
            as_option_complain(text, whole);
            return AS_ERR_INVALID;
        }
        list[before + i] = as_options_keep(value, bytes);
        if (!list[before + i]) {
            return AS_ERR_NO_MEMORY;
        }
        value += bytes + 1;
    }
    *list_p = list;
    return AS_OK;
}

static as_status_t store_string(const as_option_t *option, const char *value)
{
    const char *copy = as_options_keep(value, strlen(value));
    if (!copy) {
        return AS_ERR_NO_MEMORY;
    }
    *(const char **)option->value = copy;
    return AS_OK;
}

static bool store_number(const as_option_t *option, const char *value)
{
    int64_t number = 0;
    bool good = option->type == AS_OPTION_INT     ? parse_int(value, &number)
                : option->type == AS_OPTION_BYTES ? as_option_parse_bytes(value, &number)
                                                  : parse_duration(value, &number);
    if (!good || !in_bounds(option, (double)number)) {
        return false;
    }
    *(int64_t *)option->value = number;
    return true;
}

as_status_t as_option_store(const as_option_text_t *text, const char *value, bool restart)
{
    const as_option_t *option = text->option;
    bool good = false;
    double number;
    switch (option->type) {
    case AS_OPTION_STRING:
        return store_string(option, value);
    case AS_OPTION_LIST:
        return store_list(text, value, restart);
    case AS_OPTION_BOOL:
        good = parse_bool(value, option->value);
        break;
    case AS_OPTION_DOUBLE:
        good = parse_double(value, &number) && in_bounds(option, number);
        if (good) {
            *(double *)option->value = number;
        }
        break;
    default:
        good = store_number(option, value);
    }
    if (!good) {
        as_option_complain(text, value);
        return AS_ERR_INVALID;
    }
    return AS_OK;
}
