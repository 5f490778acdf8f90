// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for any processor.
#include "gpuworker/resident/dots_portable.h"
#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_portable(const gpw_codec_part_t *part)
{
    attend(part);
}
