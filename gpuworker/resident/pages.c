// SPDX-License-Identifier: Apache-2.0
// Attention over exact pages, run by run.
#include "gpuworker/resident/pages.h"

#include "gpuworker/resident/partials.h"

void gpw_pages_attend(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                      float *scratch, krn_partials_t *io)
{
    uint32_t pairs = args->rows * args->q_heads;
    krn_partials_t run = gpw_partials_carve(scratch, pairs, args->dim);
    uint32_t page = 0;
    while (page < args->page_count) {
        uint32_t count = 1;
        uint32_t number = args->pages[page].index / KRN_RUN_PAGES;
        while (page + count < args->page_count &&
               args->pages[page + count].index / KRN_RUN_PAGES == number) {
            count++;
        }
        krn_attention_args_t part = *args;
        part.pages = args->pages + page;
        part.page_count = count;
        krn_partials_clear(&run, pairs, args->dim);
        ops->attention(pool, &part, &run);
        ops->merge(io, &run, pairs, args->dim);
        page += count;
    }
}
