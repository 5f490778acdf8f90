// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, activation, conversions and merge for any processor.
#include "kernels/cpu/simd_portable.h"

#include "kernels/cpu/elementwise_simd.h"
