// SPDX-License-Identifier: Apache-2.0
// Weights in panels: data[n/16][k][16], so that a kernel reads 16 outputs' weights for one k as one
// vector, and a panel from its start to its end.
#include "common/assert.h"
#include "kernels/f16.h"
#include "kernels/kernels.h"

static size_t element_bytes(krn_weight_type_t type)
{
    return type == KRN_WEIGHT_F32 ? sizeof(float) : sizeof(krn_f16);
}

size_t krn_weight_bytes(krn_weight_type_t type, uint32_t n, uint32_t k)
{
    size_t panels = ((size_t)n + KRN_PANEL - 1) / KRN_PANEL;

    return panels * KRN_PANEL * k * element_bytes(type);
}

// Element 0 of row `row`; the next is KRN_PANEL further.
static size_t row_start(const krn_weight_t *weight, uint32_t row)
{
    return (size_t)(row / KRN_PANEL) * weight->k * KRN_PANEL + row % KRN_PANEL;
}

static void pack_row(krn_weight_t *weight, uint32_t row, const float *source)
{
    size_t start = row_start(weight, row);

    if (weight->type == KRN_WEIGHT_F32) {
        float *data = (float *)weight->data + start;
        for (uint32_t k = 0; k < weight->k; k++)
            data[(size_t)k * KRN_PANEL] = source[k];
    } else {
        krn_f16 *data = (krn_f16 *)weight->data + start;
        for (uint32_t k = 0; k < weight->k; k++)
            data[(size_t)k * KRN_PANEL] = krn_f16_from_float(source[k]);
    }
}

void krn_weight_pack(krn_weight_t *weight, uint32_t row0, uint32_t rows, const float *source)
{
    AS_ASSERT(row0 <= weight->n && rows <= weight->n - row0);
    for (uint32_t r = 0; r < rows; r++)
        pack_row(weight, row0 + r, source + (size_t)r * weight->k);
}

void krn_weight_row(const krn_weight_t *weight, uint32_t row, float *out)
{
    AS_ASSERT(row < weight->n);
    size_t start = row_start(weight, row);

    if (weight->type == KRN_WEIGHT_F32) {
        const float *data = (const float *)weight->data + start;
        for (uint32_t k = 0; k < weight->k; k++)
            out[k] = data[(size_t)k * KRN_PANEL];
    } else {
        const krn_f16 *data = (const krn_f16 *)weight->data + start;
        for (uint32_t k = 0; k < weight->k; k++)
            out[k] = krn_f16_to_float(data[(size_t)k * KRN_PANEL]);
    }
}
