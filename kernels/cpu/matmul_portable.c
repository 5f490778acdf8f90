// SPDX-License-Identifier: Apache-2.0
// Matrix products for any processor.
#include "kernels/cpu/simd_portable.h"

#include "kernels/cpu/matmul_simd.h"
