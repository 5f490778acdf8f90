// SPDX-License-Identifier: Apache-2.0
// Attention for any processor.
#include "kernels/cpu/simd_portable.h"

#include "kernels/cpu/attention_simd.h"
