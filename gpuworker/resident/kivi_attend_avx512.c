// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for AVX-512 F, BW, VL, DQ and VNNI.
#if defined(__x86_64__)
#include "gpuworker/resident/dots_avx512.h"
#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_avx512(const gpw_codec_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_kivi_attend_avx512_is_empty; // a file may not be
#endif
