// SPDX-License-Identifier: Apache-2.0
// Attention over mixed widths for AVX-512 F, BW, VL, DQ and VNNI.
#if defined(__x86_64__)
#include "gpuworker/resident/dots_avx512.h"
#include "gpuworker/resident/mixed_attend.h"

void gpw_mixed_attend_avx512(const gpw_mixed_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_mixed_attend_avx512_is_empty; // a file may not be
#endif
