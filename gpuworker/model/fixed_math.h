// SPDX-License-Identifier: Apache-2.0
// Natural logarithm and exponential in double precision, of IEEE operations only.
//
// RoPE's frequencies and the sampler's noise must be the same bits on every machine, whatever its
// libm. Error below 2 ulp.
#ifndef GPW_FIXED_MATH_H
#define GPW_FIXED_MATH_H

double gpw_ln(double x);  // x positive, finite and normal
double gpw_exp(double x); // |x| <= 700

#endif
