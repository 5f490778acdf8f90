// SPDX-License-Identifier: Apache-2.0
// The compressor table: how a sealed segment is made of full blocks and how queries attend to it.
//
// A compressor is selector (which tokens survive) x codec (how one is stored) x reader (which are
// read at a step). A row of the table names its parts: params.selector (select/selector.h; NULL: all
// tokens survive), params.codec (NULL: the row's own), params.reader (read/reader.h; NULL: all that
// survives is read at every step) and functions that hold what survives:
//   GPW_KIVI_FUNCTIONS         all tokens, in KIVI's codes                            (kivi.h)
//   GPW_TURBO_FUNCTIONS        all tokens, in codes of rotated channels               (turbo.h)
//   GPW_EXACT_FUNCTIONS        all tokens or the first and newest blocks, as they are (exact.h)
//   GPW_INDEXED_FUNCTIONS      all tokens, as they are, with a reader; shared         (indexed.h)
//   GPW_KEPT_BLOCKS_FUNCTIONS  some tokens of each block, by any codec; shared        (kept_blocks.h)
//   GPW_KEPT_PROMPT_FUNCTIONS  some tokens of the prompt, as they are, with or without a reader; one
//                              session's                                              (kept_prompt.h)
//   GPW_MIXED_FUNCTIONS        of the prompt all in as many bits as it matters; one's  (mixed.h)
//   GPW_ALIASED_FUNCTIONS      of some layers all tokens, by a codec; others use these (aliased.h)
//   GPW_SUMMARY_FUNCTIONS      the first and newest blocks, and a sum over the others  (summary.h)
//
// A segment covers the blocks [0, sealed_blocks) of one chain. It grows only by
// whole blocks: sealing a block never looks at later ones, so equal chains give equal segments. The
// session's tail (exact f16) is not the compressor's business: the engine attends to both and
// merges the partials.
//
// A method that looks at the prompt's own queries (SnapKV, RDKV) has `observe`: prefill calls it once a
// layer, before that layer is sealed. Its segments depend on more than the chain, so they are
// private: without GPW_COMPRESSOR_QUERY_FREE nothing of a segment is shared between sessions or
// stored.
//
// What a reader chooses depends on queries, too, but only for the step whose queries they are: its
// index follows from keys and values, and its choices lie beside what is shared.
//
// To add a compressor made of parts that there are: one row in the table of compressor.c. A new part
// is one file: a selector beside those in select/, a reader beside those in read/, or a codec
// (codec.h) beside kivi_codec.c.
// All else (options, API, errors, the tests that try every compressor) is made of the table.
#ifndef GPW_COMPRESSOR_H
#define GPW_COMPRESSOR_H

#include <stdbool.h>
#include "common/block.h"
#include "kernels/kernels.h"

enum {
    GPW_COMPRESSOR_DROPS = 1u,     // some tokens are not held at all
    GPW_COMPRESSOR_QUANTIZES = 2u, // held tokens are not exact
    GPW_COMPRESSOR_QUERY_FREE =
        4u, // the segment depends on keys and values only: sessions may share it
    GPW_COMPRESSOR_DATA_SIZED = 8u,  // a prompt's segment may be smaller than bytes_max
    GPW_COMPRESSOR_CALIBRATED = 16u, // opens only where params.calibration is of the model
    GPW_COMPRESSOR_SUMMARIZES = 32u, // and only where that has the maps of a summary
};

#define GPW_OBSERVED_ROWS_MAX 32u // queries of a prompt that a method may look at

#define GPW_SEGMENT_WAVE_RUNS 16u // runs of blocks whose partials are held at once while attending

struct gpw_calibration;
struct gpw_selector;
struct gpw_reader;
struct gpw_compressor;

// A part reads what it uses.
typedef struct gpw_compressor_params {
    const struct gpw_selector *selector; // NULL: all tokens
    const struct gpw_compressor *codec;  // kept_blocks, kept_prompt, mixed: how tokens that
                                         // survive by blocks are held; aliased: how layers are
    const struct gpw_reader *reader;     // indexed, kept_prompt: what a step reads; NULL: all
    uint32_t bits;                       // of one element; mixed: in the mean
    uint32_t group;         // KIVI: tokens (K) or channels (V) that share a scale; a multiple of 16
    uint32_t sink_tokens;   // first tokens that are always kept
    uint32_t window_tokens; // positions: newest sealed tokens that are kept; selectors that look at
                            // queries: the prompt's newest, at which they look
    uint32_t keep_percent;  // of each block's tokens, or of the prompt's sealed ones
    uint32_t pool_tokens;   // window, rate: odd; a score spreads to so many tokens around its own
    uint32_t recent_percent; // cumulative: of what is kept, the newest tokens
    uint32_t layer_slope;    // budget of a layer over that of the last, about half; 0: all alike
    uint32_t head_floor_percent; // of its budget a head keeps in any case; 0: all of it
    uint32_t norm_drop_permille; // norm stop: what the attention's norm may fall by
    // Readers:
    uint32_t read_percent;    // of held tokens that a KV head reads exactly
    uint32_t read_tokens;     // at least so many
    uint32_t whole_layers;    // the first ones, in which all tokens are read
    uint32_t page_tokens;     // of a page; clusters: of one in the mean
    uint32_t channel_percent; // two-dimensional: channels that pages are estimated by
    const struct gpw_calibration *calibration; // aliased: which layers share; summary: its
                                               // maps; NULL in the table
} gpw_compressor_params_t;

typedef struct gpw_segment gpw_segment_t; // one session's (or shared) sealed segment, all layers

typedef struct gpw_segment_options {
    const gpw_compressor_params_t *params;
    as_shape_t shape; // element f16
    const krn_ops_t *ops;
    uint32_t blocks_max;    // the longest chain that will be sealed
    uint32_t prompt_blocks; // those that prefill seals; read only where there is `observe`
} gpw_segment_options_t;

// One layer of a prompt, whole, and its last queries.
typedef struct gpw_segment_observe {
    krn_pool_t *pool;
    uint32_t layer;
    uint32_t tokens;         // of the prompt
    uint32_t rows;           // its last ones, at most GPW_OBSERVED_ROWS_MAX
    float scale;             // of logits
    const float *q;          // [rows][q_heads][dim], after RoPE
    const float *lse;        // [rows][q_heads]: log-sum-exp of all logits that a row sees
    const krn_page_t *pages; // of all tokens, by index
    const krn_rope_t *rope;  // by which q and the keys were rotated; NULL: they were not
    void *scratch;           // gpw_segment_observe_bytes
} gpw_segment_observe_t;

typedef struct gpw_segment_attend {
    krn_pool_t *pool;
    uint32_t layer, rows;
    // Of the first row, which the others follow; and of the first row of the draft that these go on
    // with: a reader may remember what the row before has seen, as far as it is of the same draft.
    uint32_t position, since;
    float scale;
    const float *q;      // [rows][q_heads][dim]; every row sees every held token of the segment, or
                         // those that its reader chooses
    krn_partials_t *out; // cleared by the callee: [rows][q_heads]
    void *scratch;       // gpw_segment_scratch_bytes
} gpw_segment_attend_t;

typedef struct gpw_compressor {
    const char *name; // "kivi4"
    const char *summary;
    // For people, of the macro that names the functions: in what pieces tokens that survive are held;
    // and in what form, where that is no codec of params.
    const char *holder, *form;
    uint32_t flags;
    gpw_compressor_params_t params;
    // An empty segment. AS_ERR_UNSUPPORTED when the shape does not fit the method.
    as_status_t (*open)(const gpw_segment_options_t *options,
                        gpw_segment_t **segment_p) AS_MUST_USE;
    // Memory for the blocks [0, blocks): seal may be called for these. Never shrinks.
    as_status_t (*reserve)(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
    // NULL where the method does not look at queries. Else called in prefill for each layer, before
    // the first seal of that layer, with the last params.window_tokens queries (or all, of a shorter
    // prompt); the prompt's sealed blocks end before them.
    void (*observe)(gpw_segment_t *segment, const gpw_segment_observe_t *args);
    // Folds one layer of block `block` (the next of that layer) into the segment; `extent` is its
    // full f16 extent.
    void (*seal)(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
    void (*attend)(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
    // The exact extent of `block` when the segment holds every token of it as it was (a swap need
    // not move it), else NULL. Valid until the next seal of this layer.
    const void *(*extent)(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
    // Physical bytes, all of it: codes, scales, indices, padding, metadata.
    uint64_t (*bytes)(const gpw_segment_t *segment);
    // What bytes() can be once `blocks` blocks are reserved: for admission.
    uint64_t (*bytes_max)(const gpw_segment_options_t *options, uint32_t blocks);
    // Where the memory of a block hangs that is sealed in all layers, and how long it is: memory of
    // its own (as_mem), whose bytes follow from the chain alone, so that sessions may hang up one
    // copy. A NULL there is left alone by close. NULL where blocks do not stand alone.
    uint8_t **(*slot)(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
    // The slots of the blocks [0, blocks) were filled with bytes that another segment's had: they are
    // sealed in all layers. There where `slot` is.
    void (*adopt)(gpw_segment_t *segment, uint32_t blocks);
    void (*close)(gpw_segment_t *segment); // NULL is fine
} gpw_compressor_t;

// The table; ends with an entry whose name is NULL.
const gpw_compressor_t *gpw_compressors(void);
// NULL when there is none of this name.
const gpw_compressor_t *gpw_compressor_find(const char *name);
#define GPW_COMPRESSOR_AUTO "auto"

// What a request may ask for: the names of the table in its order, without those that have one of these
// flags (0, GPW_COMPRESSOR_CALIBRATED or _SUMMARIZES: what a worker cannot open), then "none" (the full cache, no drafting) and "auto" (the worker chooses one of these,
// decode/chooser.h); NULL-terminated.
const char *const *gpw_compressor_names(uint32_t without);
// All of them for people: "a, b, none or auto".
const char *gpw_compressor_list(void);

size_t gpw_segment_scratch_bytes(const as_shape_t *shape, uint32_t rows);
size_t gpw_segment_observe_bytes(const as_shape_t *shape, uint32_t tokens_max);

#endif
