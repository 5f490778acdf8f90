// SPDX-License-Identifier: Apache-2.0
// Pools of one to three threads, for tests whose bits must not depend on them.
#ifndef TESTS_KERNELS_POOLS_H
#define TESTS_KERNELS_POOLS_H

#include "tests/unit/kernels/support.h"

static krn_pool_t *pools[3]; // 1, 2 and 3 threads

static int pools_setup(void **state)
{
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(krn_pool_alloc(i + 1, &pools[i]), AS_OK);
    return seed_setup(state);
}

static int pools_teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        krn_pool_free(pools[i]);
    return 0;
}

#endif
