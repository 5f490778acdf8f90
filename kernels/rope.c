// SPDX-License-Identifier: Apache-2.0
// The table of rotations: our own sine and cosine in double precision, rounded to float once.
//
// libm's results change with its version and the machine; these do not. The angle is reduced by pi
// / 2, held in two doubles, with fused multiply-adds: exact to 1e-16 for angles to 2^30, more than
// any context. The kernels on
// [-pi/4, pi/4] are the polynomials of fdlibm. The table's error is that of the rounding to float.
#include <math.h>

#include "kernels/kernels.h"

#define TWO_OVER_PI 6.36619772367581382433e-01
#define PIO2_HIGH   1.57079632679489655800e+00
#define PIO2_LOW    6.12323399573676603587e-17
#define ROUND_MAGIC 6755399441055744.0 // 1.5 * 2^52: adding it rounds to the nearest integer

static double sin_kernel(double r)
{
    double z = r * r;
    double p = 1.58969099521155010221e-10;

    p = fma(p, z, -2.50507602534068634195e-08);
    p = fma(p, z, 2.75573137070700676789e-06);
    p = fma(p, z, -1.98412698298579493134e-04);
    p = fma(p, z, 8.33333333332248946124e-03);
    p = fma(p, z, -1.66666666666666324348e-01);
    return fma(p, z * r, r);
}

static double cos_kernel(double r)
{
    double z = r * r;
    double p = -1.13596475577881948265e-11;

    p = fma(p, z, 2.08757232129817482790e-09);
    p = fma(p, z, -2.75573143513906633035e-07);
    p = fma(p, z, 2.48015872894767294178e-05);
    p = fma(p, z, -1.38888888888741095749e-03);
    p = fma(p, z, 4.16666666666666019037e-02);
    return fma(p, z * z, fma(-0.5, z, 1.0));
}

static void sin_cos(double angle, double *sin_p, double *cos_p)
{
    double n = fma(angle, TWO_OVER_PI, ROUND_MAGIC) - ROUND_MAGIC;
    double r = fma(-n, PIO2_LOW, fma(-n, PIO2_HIGH, angle));
    double s = sin_kernel(r), c = cos_kernel(r);

    switch ((int64_t)n & 3) {
    case 0:
        *sin_p = s, *cos_p = c;
        break;
    case 1:
        *sin_p = c, *cos_p = -s;
        break;
    case 2:
        *sin_p = -s, *cos_p = -c;
        break;
    default:
        *sin_p = -c, *cos_p = s;
        break;
    }
}

void krn_rope_fill(float *cos_sin, uint32_t dim, const double *inv_freq, float attention_factor,
                   uint32_t first, uint32_t count)
{
    for (uint32_t position = first; position < first + count; position++) {
        float *row = cos_sin + (size_t)position * dim;
        for (uint32_t i = 0; i < dim / 2; i++) {
            double s, c;
            sin_cos((double)position * inv_freq[i], &s, &c);
            row[2 * i] = (float)(c * (double)attention_factor);
            row[2 * i + 1] = (float)(s * (double)attention_factor);
        }
    }
}
