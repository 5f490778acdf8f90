// SPDX-License-Identifier: Apache-2.0
// Attention over mixed widths for any processor.
#include "gpuworker/resident/dots_portable.h"
#include "gpuworker/resident/mixed_attend.h"

void gpw_mixed_attend_portable(const gpw_mixed_part_t *part)
{
    attend(part);
}
