// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for processors with AVX2. Not with FMA: the bits are to be those of the portable
// code.
#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_avx2(const gpw_kivi_part_t *part)
{
    attend(part);
}
