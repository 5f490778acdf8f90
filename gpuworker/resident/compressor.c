// SPDX-License-Identifier: Apache-2.0
// The compressors that this worker knows, in the order in which people see them.
#include "gpuworker/resident/compressor.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/snapkv.h"
#include "gpuworker/resident/streaming.h"
#include "gpuworker/resident/window_scores.h"

// Group 32 is KIVI's own. 4 sinks are StreamingLLM's own; 256 tokens of window leave most of a long
// prompt to the verification, which is what that method is here to show.
// SnapKV's 32 queries and pool of 7 are those of its authors' LongBench runs; its budget is the
// share at which methods are compared here.
static const gpw_compressor_t table[] = {
    {
        .name = "kivi4",
        .summary = "KIVI, 4 bit: keys by channel, values by token, groups of 32 (3.2x)",
        .flags = GPW_COMPRESSOR_QUANTIZES | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.bits = 4, .group = 32},
        GPW_KIVI_FUNCTIONS,
    },
    {
        .name = "kivi2",
        .summary = "KIVI, 2 bit: keys by channel, values by token, groups of 32 (5.3x)",
        .flags = GPW_COMPRESSOR_QUANTIZES | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.bits = 2, .group = 32},
        GPW_KIVI_FUNCTIONS,
    },
    {
        .name = "streaming",
        .summary =
            "StreamingLLM: the first 4 and the newest 256 sealed tokens, exact, in whole blocks",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.sink_tokens = 4, .window_tokens = 256},
        GPW_STREAMING_FUNCTIONS,
    },
    {
        .name = "snapkv",
        .summary =
            "SnapKV: of the prompt a quarter for each KV head, exact, chosen by the attention "
            "of its last 32 tokens (4x); what follows whole",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.sink_tokens = 4, .window_tokens = 32, .keep_percent = 25, .pool_tokens = 7},
        GPW_SNAPKV_FUNCTIONS,
    },
    {.name = NULL},
};

#define NAME_COUNT     (sizeof(table) / sizeof(table[0])) // "none" for the last row
#define LIST_BYTES_MAX 1024

static const char *names[NAME_COUNT + 1];
static char list[LIST_BYTES_MAX];

static void make_names(void)
{
    size_t written = 0;
    for (size_t i = 0; i < NAME_COUNT; i++) {
        bool last = i + 1 == NAME_COUNT;
        names[i] = last ? "none" : table[i].name;
        written += (size_t)snprintf(list + written, sizeof(list) - written, "%s%s",
                                    i == 0 ? ""
                                    : last ? " or "
                                           : ", ",
                                    names[i]);
        AS_ASSERT(written < sizeof(list));
    }
}

static void make_names_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_names);
}

const char *const *gpw_compressor_names(void)
{
    make_names_once();
    return names;
}

const char *gpw_compressor_list(void)
{
    make_names_once();
    return list;
}

const gpw_compressor_t *gpw_compressors(void)
{
    return table;
}

const gpw_compressor_t *gpw_compressor_find(const char *name)
{
    for (const gpw_compressor_t *c = table; c->name; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

size_t gpw_segment_scratch_bytes(const as_shape_t *shape, uint32_t rows)
{
    return (size_t)GPW_SEGMENT_WAVE_RUNS * rows * shape->q_heads * (shape->head_dim + 2) *
           sizeof(float);
}

size_t gpw_segment_observe_bytes(const as_shape_t *shape, uint32_t tokens_max)
{
    gpw_window_scratch_t scratch;
    return gpw_window_carve(shape, tokens_max, NULL, &scratch);
}
