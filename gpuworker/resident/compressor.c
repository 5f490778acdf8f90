// SPDX-License-Identifier: Apache-2.0
// The compressors that this worker knows, in the order in which people see them.
#include "gpuworker/resident/compressor.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/aliased.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/indexed.h"
#include "gpuworker/resident/kept_blocks.h"
#include "gpuworker/resident/kept_prompt.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/mixed.h"
#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/summary.h"
#include "gpuworker/resident/turbo.h"

// Where methods drop tokens, a quarter stays, and where they leave tokens unread, a quarter is read: the
// share at which they are compared here.
#define KEEP_PERCENT 25
#define READ_PERCENT 25

// Group 32 is KIVI's own. 4 sinks are StreamingLLM's own; 256 tokens of window leave most of a long
// prompt to the verification, which is what that method is here to show.
// SnapKV's 32 queries and pool of 7 are those of its authors' LongBench runs; PyramidKV's slope of 20,
// AdaKV's safeguard of 20 % and H2O's halves are their authors'. TOVA protects no sinks, H2O neither:
// their scores do. DBudgetKV's 1 % is that of its paper. RDKV's window, pool and losses are its authors',
// who give a prompt of whatever length the same bytes; an eighth is what they are compared at here.
//
// Quest's pages of 16, its least of three and the first two layers whole are its authors', ClusterKV's 16
// sinks and two layers, too; both were published with 512 to 4096 tokens a step, of which a quarter
// of 8192 is 2048. SpeCache's 64 exact tokens, 2 bits and groups of 64 are its authors'.
//
// RocketKV splits a prompt of S tokens and a step's budget of B by x = S / B: S / x^min(0.2 + 0.06 * log2 x,
// 0.8) tokens stay; of these, y times B, pages of ceil(sqrt y), estimated by a share of ceil(sqrt y) / y of the
// channels, and B / 2 tokens read exactly; estimating reads as much as the other half. For 8192 and 512
// tokens, the larger of its authors' usual budgets: 30 % stay, pages of 3, 64 % of channels, 256 of
// 2419 tokens, which is a fifth of what is held. A quarter of 8192 as budget would keep 64 %, and with
// pages of 2 as many bytes again as half of it: no less than the full cache.
enum { KIVI4 }; // places in the table
static const gpw_compressor_t table[] = {
    [KIVI4] =
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
        .name = "turbo4",
        .summary = "rotated Lloyd-Max codes after TurboQuant, 4 bit, a scale for each key and "
                   "value (3.7x)",
        .flags = GPW_COMPRESSOR_QUANTIZES | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.bits = 4},
        GPW_TURBO_FUNCTIONS,
    },
    {
        .name = "turbo3",
        .summary = "rotated Lloyd-Max codes after TurboQuant, 3 bit, a scale for each key and "
                   "value (4.7x)",
        .flags = GPW_COMPRESSOR_QUANTIZES | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.bits = 3},
        GPW_TURBO_FUNCTIONS,
    },
    {
        .name = "streaming",
        .summary =
            "StreamingLLM: the first 4 and the newest 256 sealed tokens, exact, in whole blocks",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.selector = &gpw_select_positions, .sink_tokens = 4, .window_tokens = 256},
        GPW_EXACT_FUNCTIONS,
    },
    {
        .name = "knorm",
        .summary = "Knorm: of each block a quarter for each KV head, exact: the keys of least norm "
                   "(4x)",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.selector = &gpw_select_norms,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .keep_percent = KEEP_PERCENT},
        GPW_KEPT_BLOCKS_FUNCTIONS,
    },
    {
        .name = "keydiff",
        .summary = "KeyDiff: of each block a quarter for each KV head, exact: the keys least like "
                   "the others (4x)",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE,
        .params = {.selector = &gpw_select_key_difference,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .keep_percent = KEEP_PERCENT},
        GPW_KEPT_BLOCKS_FUNCTIONS,
    },
    {
        .name = "expected",
        .summary = "Expected Attention: of the prompt a quarter for each KV head, exact, to which "
                   "queries like its last 32 would attend (4x); what follows whole",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_expected,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .window_tokens = 32,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 1},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "snapkv",
        .summary =
            "SnapKV: of the prompt a quarter for each KV head, exact, chosen by the attention "
            "of its last 32 tokens (4x); what follows whole",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_window,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .window_tokens = 32,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 7},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "pyramidkv",
        .summary =
            "PyramidKV: SnapKV with more for low layers than for high ones, a quarter in the "
            "mean (4x)",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_window,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .window_tokens = 32,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 7,
                   .layer_slope = 20},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "adakv",
        .summary = "AdaKV: SnapKV with a layer's budget shared out among its KV heads by their "
                   "scores (4x)",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_window,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .window_tokens = 32,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 7,
                   .head_floor_percent = 20},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "tova",
        .summary = "TOVA, once: of the prompt a quarter, exact, the same for all heads of a layer: "
                   "what its last token attends to most (4x)",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_last_query,
                   .codec = &gpw_codec_exact,
                   .window_tokens = 1,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 1},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "h2o-window",
        .summary =
            "H2O over a window: of the prompt a quarter for each KV head, exact: the newest, "
            "and what its last 32 tokens attend to most (4x)",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_cumulative,
                   .codec = &gpw_codec_exact,
                   .window_tokens = 32,
                   .keep_percent = KEEP_PERCENT,
                   .pool_tokens = 1,
                   .recent_percent = 50},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "dbudgetkv",
        .summary = "DBudgetKV: of the prompt in each layer the newest, exact, as many as its last "
                   "token's attention needs to within 1 % of its norm",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_DATA_SIZED,
        .params = {.selector = &gpw_select_norm_stop,
                   .codec = &gpw_codec_exact,
                   .sink_tokens = 4,
                   .window_tokens = 1,
                   .keep_percent = 100,
                   .pool_tokens = 1,
                   .norm_drop_permille = 10},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "rdkv",
        .summary =
            "RDKV: of the prompt 0 to 16 bits for each token's values and 0 to 8 for each of "
            "the keys' channels, chosen by the attention of its last 32 tokens (8x); what "
            "follows whole",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUANTIZES,
        .params = {.codec = &gpw_codec_exact, .bits = 2, .window_tokens = 32, .pool_tokens = 5},
        GPW_MIXED_FUNCTIONS,
    },
    {
        .name = "quest",
        .summary = "Quest: all tokens, exact; a step reads a quarter of them, pages of 16 by what "
                   "bounds their keys, and all in the first two layers (0.94x: saves reads, not "
                   "memory)",
        .flags = GPW_COMPRESSOR_QUERY_FREE,
        .params = {.reader = &gpw_read_page_bounds,
                   .read_percent = READ_PERCENT,
                   .read_tokens = 48,
                   .whole_layers = 2,
                   .page_tokens = 16},
        GPW_INDEXED_FUNCTIONS,
    },
    {
        .name = "clusterkv",
        .summary = "ClusterKV: all tokens, exact; a step reads a quarter of them, clusters of like "
                   "keys within a block, and all in the first two layers (0.97x: saves reads, not "
                   "memory)",
        .flags = GPW_COMPRESSOR_QUERY_FREE,
        .params = {.reader = &gpw_read_clusters,
                   .sink_tokens = 16,
                   .read_percent = READ_PERCENT,
                   .whole_layers = 2,
                   .page_tokens = 16},
        GPW_INDEXED_FUNCTIONS,
    },
    {
        .name = "specache",
        .summary = "SpeCache: all tokens, exact and in 2 bits; a step reads the bits, and exactly "
                   "the 64 tokens that the step before looked at most (0.86x: saves reads, not "
                   "memory)",
        .flags = GPW_COMPRESSOR_QUERY_FREE,
        .params = {.reader = &gpw_read_low_bits, .bits = 2, .group = 64, .read_tokens = 64},
        GPW_INDEXED_FUNCTIONS,
    },
    {
        .name = "rocketkv",
        .summary = "RocketKV: of the prompt 30 % for each KV head, exact, chosen as SnapKV does "
                   "but wider; "
                   "a step reads a ninth of these, by pages of 3 (2.4x); what follows whole",
        .flags = GPW_COMPRESSOR_DROPS,
        .params = {.selector = &gpw_select_window,
                   .codec = &gpw_codec_exact,
                   .reader = &gpw_read_two_dimensional,
                   .sink_tokens = 4,
                   .window_tokens = 32,
                   .keep_percent = 30,
                   .pool_tokens = 63,
                   .read_percent = 11,
                   .page_tokens = 3,
                   .channel_percent = 64},
        GPW_KEPT_PROMPT_FUNCTIONS,
    },
    {
        .name = "kvsharer",
        .summary =
            "KVSharer: some layers attend to what other layers hold, by a calibration of the "
            "model (`assay calibrate`); the others as kivi4",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUANTIZES | GPW_COMPRESSOR_QUERY_FREE |
                 GPW_COMPRESSOR_CALIBRATED,
        .params = {.codec = &table[KIVI4]},
        GPW_ALIASED_FUNCTIONS,
    },
    {
        .name = "less",
        .summary = "LESS: as streaming, and of what it drops for each KV head a summary of rank 8, "
                   "by a calibration of the model (`assay calibrate`)",
        .flags = GPW_COMPRESSOR_DROPS | GPW_COMPRESSOR_QUERY_FREE | GPW_COMPRESSOR_CALIBRATED |
                 GPW_COMPRESSOR_SUMMARIZES,
        .params = {.selector = &gpw_select_positions, .sink_tokens = 4, .window_tokens = 256},
        GPW_SUMMARY_FUNCTIONS,
    },
    {.name = NULL},
};

#define ROW_COUNT      (sizeof(table) / sizeof(table[0])) // with that without a name
#define NAME_COUNT     (ROW_COUNT + 1)                    // "none" for it, and "auto"
#define LIST_BYTES_MAX 1024

static const char
    *names[3][NAME_COUNT + 1]; // all; without those that need a summary; a calibration
static char list[LIST_BYTES_MAX];

static void make_names(void)
{
    size_t written = 0, plain = 0, usable = 0;
    for (size_t i = 0; i < NAME_COUNT; i++) {
        bool last = i + 1 == NAME_COUNT;
        const char *none = i + 1 < ROW_COUNT ? table[i].name : "none";
        uint32_t flags = i < ROW_COUNT ? table[i].flags : 0;
        names[0][i] = last ? GPW_COMPRESSOR_AUTO : none;
        if (!(flags & GPW_COMPRESSOR_SUMMARIZES)) {
            names[1][usable++] = names[0][i];
        }
        if (!(flags & GPW_COMPRESSOR_CALIBRATED)) {
            names[2][plain++] = names[0][i];
        }
        written += (size_t)snprintf(list + written, sizeof(list) - written, "%s%s",
                                    i == 0 ? ""
                                    : last ? " or "
                                           : ", ",
                                    names[0][i]);
        AS_ASSERT(written < sizeof(list));
    }
}

static void make_names_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_names);
}

const char *const *gpw_compressor_names(uint32_t without)
{
    make_names_once();
    return names[without & GPW_COMPRESSOR_CALIBRATED   ? 2
                 : without & GPW_COMPRESSOR_SUMMARIZES ? 1
                                                       : 0];
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
    gpw_select_scratch_t scratch;
    return gpw_select_carve(shape, tokens_max, true, NULL, &scratch);
}
