// SPDX-License-Identifier: Apache-2.0
// Folding partials of pages that were attended to in several places, to the bits of one krn_attention.
//
// The fold is where krn_attention would be after the same pages: the total of the runs that are
// complete, and beside it the run that the next page goes on with. A run joins the total when the
// next one begins, as there; an empty side of a merge leaves the other's bits, so a run of which
// nothing was visible, or that was left out, changes nothing.
#include "common/assert.h"
#include "kernels/internal.h"

static krn_partials_t carve(float *memory, uint32_t pairs, uint32_t dim)
{
    krn_partials_t partials = {memory, memory + (size_t)pairs * dim,
                               memory + (size_t)pairs * dim + pairs};

    return partials;
}

// Of one partial, in whole cache lines.
static size_t partials_floats(uint32_t pairs, uint32_t dim)
{
    return ((size_t)pairs * (dim + 2) + 15) / 16 * 16;
}

size_t krn_fold_bytes(uint32_t pairs, uint32_t dim)
{
    return 2 * partials_floats(pairs, dim) * sizeof(float);
}

void krn_fold_begin(krn_fold_t *fold, const krn_ops_t *ops, uint32_t pairs, uint32_t dim,
                    void *memory)
{
    float *floats = memory;

    *fold = (krn_fold_t){.ops = ops, .pairs = pairs, .dim = dim};
    fold->total = carve(floats, pairs, dim);
    fold->run = carve(floats + partials_floats(pairs, dim), pairs, dim);
    krn_partials_clear(&fold->total, pairs, dim);
    krn_partials_clear(&fold->run, pairs, dim);
}

static void end_run(krn_fold_t *fold)
{
    fold->ops->merge(&fold->total, &fold->run, fold->pairs, fold->dim);
    krn_partials_clear(&fold->run, fold->pairs, fold->dim);
}

// The pages [first, first + count) come next.
static void advance(krn_fold_t *fold, uint32_t first, uint32_t count)
{
    AS_ASSERT(count > 0 && first >= fold->next);
    if (fold->next > 0 && first / KRN_RUN_PAGES != (fold->next - 1) / KRN_RUN_PAGES)
        end_run(fold);
    fold->next = first + count;
}

void krn_fold_piece(krn_fold_t *fold, krn_piece_t piece, const krn_partials_t *partials)
{
    AS_ASSERT(piece.count == krn_piece_at(piece.first, piece.first + piece.count).count);
    advance(fold, piece.first, piece.count);
    krn_partials_t *to = piece.count > KRN_RUN_PAGES ? &fold->total : &fold->run;
    fold->ops->merge(to, partials, fold->pairs, fold->dim);
}

void krn_fold_pages(krn_fold_t *fold, krn_pool_t *pool, const krn_attention_args_t *args)
{
    krn_attention_args_t part = *args;

    krn_attention_check(args);
    AS_ASSERT(args->rows * args->q_heads == fold->pairs && args->dim == fold->dim);
    for (uint32_t page = 0; page < args->page_count; page += part.page_count) {
        part.pages = args->pages + page;
        part.page_count = 0;
        uint32_t number = part.pages->index / KRN_RUN_PAGES;
        while (page + part.page_count < args->page_count &&
               part.pages[part.page_count].index / KRN_RUN_PAGES == number)
            part.page_count++;
        uint32_t first = part.pages->index;
        advance(fold, first, part.pages[part.page_count - 1].index - first + 1);
        fold->ops->attention(pool, &part, &fold->run);
    }
}

void krn_fold_end(krn_fold_t *fold, float *out, float *lse)
{
    end_run(fold);
    fold->ops->normalise(&fold->total, fold->pairs, fold->dim, out);
    for (uint32_t i = 0; lse && i < fold->pairs; i++)
        lse[i] = fold->total.max[i] + krn_logf(fold->total.sum[i]);
}
