// SPDX-License-Identifier: Apache-2.0
// Attention over rotated Lloyd-Max codes for AVX-512 F, BW, VL, DQ and VNNI.
#if defined(__x86_64__)
#include "gpuworker/resident/dots_avx512.h"
#include "gpuworker/resident/turbo_attend.h"

void gpw_turbo_attend_avx512(const gpw_codec_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_turbo_attend_avx512_is_empty; // a file may not be
#endif
