// SPDX-License-Identifier: Apache-2.0
// Tables for people: columns as wide as their widest cell.
#include <stdarg.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/assert.h"
#include "common/mem.h"

#define COLUMNS_MAX 33u
#define CELL_BYTES  80u

struct cli_table {
    uint32_t columns, cells, capacity;
    bool right[COLUMNS_MAX];
    char (*cell)[CELL_BYTES]; // the first row holds the names
};

static char *next_cell(cli_table_t *table)
{
    if (table->cells == table->capacity) {
        uint32_t capacity = table->capacity ? 2 * table->capacity : 64;
        void *grown = as_mem_realloc(table->cell, (size_t)capacity * CELL_BYTES);
        AS_ASSERT(grown); // a command line tool has nothing better to do
        table->cell = grown;
        table->capacity = capacity;
    }
    return table->cell[table->cells++];
}

cli_table_t *cli_table_new(const char *const *columns, uint32_t count)
{
    cli_table_t *table = as_mem_zalloc(1, sizeof(*table));
    AS_ASSERT(table && count > 0 && count <= COLUMNS_MAX);
    table->columns = count;
    for (uint32_t i = 0; i < count; i++) {
        table->right[i] = columns[i][0] == '>';
        snprintf(next_cell(table), CELL_BYTES, "%s", columns[i] + table->right[i]);
    }
    return table;
}

void cli_cell(cli_table_t *table, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(next_cell(table), CELL_BYTES, format, args);
    va_end(args);
}

void cli_table_print(cli_table_t *table, FILE *out)
{
    int width[COLUMNS_MAX] = {0};
    for (uint32_t i = 0; i < table->cells; i++) {
        int length = (int)strlen(table->cell[i]);
        uint32_t column = i % table->columns;
        width[column] = length > width[column] ? length : width[column];
    }
    for (uint32_t i = 0; i < table->cells; i++) {
        uint32_t column = i % table->columns;
        bool last = column == table->columns - 1;
        if (table->right[column]) {
            fprintf(out, "%*s", width[column], table->cell[i]);
        } else {
            fprintf(out, "%-*s", last ? 0 : width[column], table->cell[i]);
        }
        fputs(last ? "\n" : "  ", out);
    }
    as_mem_free(table->cell);
    as_mem_free(table);
}

static char *next_buffer(void)
{
    static char ring[8][32];
    static unsigned at;
    return ring[at++ % 8];
}

const char *cli_bytes(double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    char *out = next_buffer();
    size_t unit = 0;
    while (bytes >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1000;
        unit++;
    }
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

const char *cli_duration(double ms)
{
    char *out = next_buffer();
    if (ms < 1000) {
        snprintf(out, 32, ms < 10 ? "%.1f ms" : "%.0f ms", ms);
    } else if (ms < 120000) {
        snprintf(out, 32, "%.2f s", ms / 1e3);
    } else if (ms < 7200000) {
        snprintf(out, 32, "%.0f min", ms / 6e4);
    } else if (ms < 172800000) {
        snprintf(out, 32, "%.0f h", ms / 3.6e6);
    } else {
        snprintf(out, 32, "%.0f days", ms / 8.64e7);
    }
    return out;
}
