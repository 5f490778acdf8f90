// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "gpuworker/resident/dots_avx2.h"
#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_avx2(const gpw_codec_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_kivi_attend_avx2_is_empty; // a file may not be
#endif
