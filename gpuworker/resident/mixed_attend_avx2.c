// SPDX-License-Identifier: Apache-2.0
// Attention over mixed widths for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "gpuworker/resident/dots_avx2.h"
#include "gpuworker/resident/mixed_attend.h"

void gpw_mixed_attend_avx2(const gpw_mixed_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_mixed_attend_avx2_is_empty; // a file may not be
#endif
