// SPDX-License-Identifier: Apache-2.0
// ClusterKV (Liu et al. 2025): tokens whose keys point the same way are read together.
//
// The keys of a piece are clustered by spherical k-means: tokens join the centroid of largest cosine,
// of equal ones the first, and a centroid is the mean of its keys; ITERATIONS times, or until nothing
// changes. A cluster that loses all its tokens keeps its centroid. Of n tokens there are ceil(n /
// page_tokens) clusters, and cluster i begins at token floor(i * n / clusters). In a step
//
//   score[cluster] = sum over the group's query heads q of q . centroid
//
// and clusters are read from the greatest down until the budget is reached, of the last one its first
// tokens. The first sink_tokens of all are in no cluster and always read, within the budget.
//
// The authors begin with tokens drawn at random, and cluster a whole prompt: 80 tokens to a cluster, then 40
// for what is generated, in windows of 320. Here each block is clustered by itself, so that equal chains
// have equal clusters, whoever seals them and however far the chain goes on, and nothing is
// clustered twice; the price is that like tokens of different blocks are scored apart: so clusters are
// as small as Quest's pages, and there are as many of them.
//
// Index of a piece: [clusters][dim] f16, the centroids; [clusters][words] u64, whose bits are tokens.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/select/top.h"

#define ITERATIONS   20u // the authors' own
#define CLUSTERS_MAX 64u // of a piece
#define WORDS_MAX    (AS_BLOCK_TOKENS_MAX / 64)
#define NONE         UINT8_MAX // no cluster yet

static uint32_t clusters_of(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return gpw_read_page_count(plan, tokens);
}

static as_status_t prepare(gpw_read_plan_t *plan)
{
    return plan->params->page_tokens > 0 && clusters_of(plan, plan->piece_tokens) <= CLUSTERS_MAX
               ? AS_OK
               : AS_ERR_UNSUPPORTED;
}

static uint32_t words_of(uint32_t tokens)
{
    return (tokens + 63) / 64;
}

static size_t centroid_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (size_t)clusters_of(plan, tokens) * plan->shape.head_dim * sizeof(krn_f16);
}

static size_t index_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    size_t masks = (size_t)clusters_of(plan, tokens) * words_of(tokens) * sizeof(uint64_t);
    return gpw_codes_whole_units(centroid_bytes(plan, tokens) + masks);
}

// Centroids are of 32 bytes and more, so what is behind them is aligned.
static uint64_t *masks_of(const gpw_read_plan_t *plan, uint32_t tokens, const uint8_t *index)
{
    return (uint64_t *)(void *)((uintptr_t)index + centroid_bytes(plan, tokens));
}

// ---- Clustering --------------------------------------------------------------------------------

typedef struct clustering {
    const gpw_read_plan_t *plan;
    const krn_f16 *k;  // those that are clustered
    const float *wide; // the same
    uint32_t tokens, count;
    float *centroids;                   // [count][dim]
    uint8_t owner[AS_BLOCK_TOKENS_MAX]; // of each token, its cluster
} clustering_t;

// Returns whether any token has changed its cluster.
static bool assign(clustering_t *c)
{
    uint32_t dim = c->plan->shape.head_dim;
    float best[AS_BLOCK_TOKENS_MAX], cosines[AS_BLOCK_TOKENS_MAX], unit[KRN_HEAD_DIM_MAX];
    uint8_t owner[AS_BLOCK_TOKENS_MAX] = {0};
    for (uint32_t i = 0; i < c->count; i++) {
        const float *centroid = c->centroids + (size_t)i * dim;
        float norm = sqrtf(gpw_select_dot(centroid, centroid, dim));
        for (uint32_t d = 0; d < dim; d++) {
            unit[d] = norm > 0 ? centroid[d] / norm : 0;
        }
        // But for the key's own norm, which is the same for all centroids.
        c->plan->products->dots(unit, c->k, c->tokens, dim, cosines);
        for (uint32_t t = 0; t < c->tokens; t++) {
            if (i == 0 || cosines[t] > best[t]) {
                best[t] = cosines[t];
                owner[t] = (uint8_t)i;
            }
        }
    }
    bool changed = memcmp(owner, c->owner, c->tokens) != 0;
    memcpy(c->owner, owner, c->tokens);
    return changed;
}

static void move_centroids(clustering_t *c)
{
    uint32_t dim = c->plan->shape.head_dim, sizes[CLUSTERS_MAX] = {0};
    for (uint32_t t = 0; t < c->tokens; t++) {
        float *centroid = c->centroids + (size_t)c->owner[t] * dim;
        bool first = sizes[c->owner[t]]++ == 0;
        for (uint32_t d = 0; d < dim; d++) {
            centroid[d] = (first ? 0 : centroid[d]) + c->wide[(size_t)t * dim + d];
        }
    }
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t d = 0; d < dim && sizes[i] > 0; d++) {
            c->centroids[(size_t)i * dim + d] /= (float)sizes[i];
        }
    }
}

static void cluster(clustering_t *c)
{
    uint32_t dim = c->plan->shape.head_dim;
    for (uint32_t i = 0; i < c->count; i++) {
        size_t token = (size_t)i * c->tokens / c->count;
        memcpy(c->centroids + (size_t)i * dim, c->wide + token * dim, dim * sizeof(float));
    }
    memset(c->owner, NONE, sizeof(c->owner));
    for (uint32_t i = 0; i < ITERATIONS && assign(c); i++) {
        move_centroids(c);
    }
}

static void index_piece(const gpw_read_plan_t *plan, const gpw_read_rows_t *rows, uint8_t *index)
{
    uint32_t dim = plan->shape.head_dim, words = words_of(rows->tokens);
    uint32_t sinks =
        plan->params->sink_tokens > rows->first ? plan->params->sink_tokens - rows->first : 0;
    sinks = sinks < rows->tokens ? sinks : rows->tokens;
    clustering_t c = {.plan = plan,
                      .k = rows->k + (size_t)sinks * dim,
                      .wide = rows->scratch,
                      .tokens = rows->tokens - sinks,
                      .centroids = rows->scratch + (size_t)rows->tokens * dim};
    c.count = clusters_of(plan, c.tokens);
    rows->ops->f16_to_f32(c.k, (size_t)c.tokens * dim, rows->scratch);
    cluster(&c);
    rows->ops->f32_to_f16(c.centroids, (size_t)c.count * dim, (krn_f16 *)(void *)index);
    uint64_t *masks = masks_of(plan, rows->tokens, index);
    for (uint32_t t = 0; t < c.tokens; t++) {
        uint32_t token = sinks + t;
        masks[c.owner[t] * words + token / 64] |= (uint64_t)1 << token % 64;
    }
}

// ---- Choosing ----------------------------------------------------------------------------------

static void score(const gpw_reading_t *reading, uint32_t piece, const float *q, uint32_t stride)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t size = gpw_read_piece_size(reading, piece), count = clusters_of(plan, size);
    const uint8_t *index = reading->pieces[piece].index;
    const uint64_t *masks = masks_of(plan, size, index);
    uint32_t words = words_of(size);
    size_t at = (size_t)piece * stride;
    plan->products->dots(q, (const krn_f16 *)(const void *)index, count, plan->shape.head_dim,
                         reading->scores + at);
    for (uint32_t i = 0; i < stride; i++) {
        uint32_t tokens = 0;
        for (uint32_t w = 0; i < count && w < words; w++) {
            tokens += (uint32_t)__builtin_popcountll(masks[i * words + w]);
        }
        reading->sizes[at + i] = (uint16_t)tokens;
        reading->scores[at + i] = i < count ? reading->scores[at + i] : 0;
    }
}

// The bits of the first `count` of a cluster's tokens.
static void add_first(const uint64_t *mask, uint32_t words, uint32_t count, uint64_t *to)
{
    for (uint32_t w = 0; w < words; w++) {
        uint64_t bits = mask[w];
        while (bits && count > 0) {
            to[w] |= bits & -bits;
            bits &= bits - 1;
            count--;
        }
    }
}

static uint32_t take_piece(const gpw_reading_t *reading, uint32_t piece, uint32_t stride,
                           uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t size = gpw_read_piece_size(reading, piece), words = words_of(size), written = 0;
    const uint64_t *masks = masks_of(plan, size, reading->pieces[piece].index);
    uint64_t bits[WORDS_MAX] = {0};
    for (uint32_t i = 0; i < clusters_of(plan, size); i++) {
        size_t unit = (size_t)piece * stride + i;
        if (reading->taken[unit] < reading->sizes[unit]) {
            add_first(masks + (size_t)i * words, words, reading->taken[unit], bits);
            continue;
        }
        for (uint32_t w = 0; w < words; w++) {
            bits[w] |= masks[(size_t)i * words + w];
        }
    }
    for (uint32_t w = 0; w < words; w++) {
        for (; bits[w]; bits[w] &= bits[w] - 1) {
            tokens[written++] =
                piece * plan->piece_tokens + w * 64 + (uint32_t)__builtin_ctzll(bits[w]);
        }
    }
    return written;
}

static uint32_t choose(const gpw_reading_t *reading, uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t dim = plan->shape.head_dim, stride = clusters_of(plan, plan->piece_tokens);
    uint32_t pieces = gpw_read_piece_count(plan, reading->tokens), written = 0;
    uint32_t sinks = plan->params->sink_tokens;
    float q[KRN_HEAD_DIM_MAX] = {0};
    for (uint32_t i = 0; i < gpw_read_group(plan) * dim; i++) {
        q[i % dim] += reading->q[i];
    }
    for (uint32_t p = 0; p < pieces; p++) {
        if (p + 1 < pieces) {
            gpw_read_ahead(reading->pieces[p + 1].index,
                           index_bytes(plan, gpw_read_piece_size(reading, p + 1)));
        }
        score(reading, p, q, stride);
    }
    sinks = sinks < reading->tokens ? sinks : reading->tokens;
    for (; written < sinks; written++) {
        tokens[written] = written;
    }
    uint32_t left = reading->budget > sinks ? reading->budget - sinks : 0;
    gpw_select_top_units(reading->scores, reading->sizes, pieces * stride, left, reading->taken);
    for (uint32_t p = 0; p < pieces; p++) {
        written += take_piece(reading, p, stride, tokens + written);
    }
    return written;
}

const gpw_reader_t gpw_read_clusters = {.name = "clusters",
                                        .by_blocks = true,
                                        .prepare = prepare,
                                        .index_bytes = index_bytes,
                                        .units = clusters_of,
                                        .index = index_piece,
                                        .choose = choose};
