// SPDX-License-Identifier: Apache-2.0
// Which products this processor can run.
#include "gpuworker/resident/read/products.h"

void gpw_products_all(const gpw_products_t *all_p[4])
{
    uint32_t count = 0;
#if defined(__x86_64__)
    if (krn_cpu_named("avx512")) {
        all_p[count++] = &gpw_products_avx512;
    }
    if (krn_cpu_named("avx2")) {
        all_p[count++] = &gpw_products_avx2;
    }
#endif
    all_p[count++] = &gpw_products_portable;
    all_p[count] = NULL;
}
