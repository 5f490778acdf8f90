// SPDX-License-Identifier: Apache-2.0
// What the files that load a model share.
#ifndef GPW_MODEL_INTERNAL_H
#define GPW_MODEL_INTERNAL_H

#include <stdbool.h>

#include "gpuworker/model/gguf.h"
#include "gpuworker/model/model.h"

// State of one load.
typedef struct gpw_loader {
    const gpw_model_options_t *options;
    gpw_gguf_t *gguf;
    gpw_model_t *model;
    const char *prefix; // of the architecture's metadata keys: "llama"
    char error[GPW_GGUF_ERROR_BYTES];
    bool *tensor_used; // [tensor count]
    float *rows;       // dequantised rows on their way to a panel
    uint64_t bytes_done, bytes_total;
} gpw_loader_t;

// Writes the sentence for people and returns `status`.
as_status_t gpw_loader_fail(gpw_loader_t *loader, as_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4))) AS_MUST_USE;
void gpw_loader_progress(gpw_loader_t *loader, uint64_t bytes);
// Metadata "<architecture>.<name>". The u32 read fails the load when the key is there with another
// type or is out of bounds, or is absent and `fallback` is 0.
as_status_t gpw_loader_u32(gpw_loader_t *loader, const char *name, uint32_t fallback, uint32_t max,
                           uint32_t *value_p) AS_MUST_USE;
const char *gpw_loader_key(const gpw_loader_t *loader, const char *name, char key[128]);

// model_rope.c: frequencies and table, with the scaling that the file asks for.
as_status_t gpw_loader_rope(gpw_loader_t *loader) AS_MUST_USE;
// model_weights.c: allocates the arena and fills every weight.
as_status_t gpw_loader_weights(gpw_loader_t *loader) AS_MUST_USE;
// A tensor by name, marked as used, or NULL.
const gpw_gguf_tensor_t *gpw_loader_tensor(gpw_loader_t *loader, const char *name);
// Checks type, size and bounds of a tensor of size[0] = n (and size[1] = rows) and dequantises rows
// of it.
as_status_t gpw_loader_check(gpw_loader_t *loader, const gpw_gguf_tensor_t *tensor, uint64_t n,
                             uint64_t rows) AS_MUST_USE;

#endif
