// SPDX-License-Identifier: Apache-2.0
// Attention over rotated Lloyd-Max codes for any processor.
#include "gpuworker/resident/dots_portable.h"
#include "gpuworker/resident/turbo_attend.h"

void gpw_turbo_attend_portable(const gpw_codec_part_t *part)
{
    attend(part);
}
