// SPDX-License-Identifier: Apache-2.0
// A calibration: what was learnt of one model beforehand, for compressors that need it.
//
// It is a small text, made by `assay calibrate` and read by a worker with --calibration:
//   assay-calibration 2
//   model HEX               SHA-256 of the model's file
//   shape 30 9 3 64         layers, query heads, KV heads, head size
//   share 17 5              layer 17 attends to what layer 5 has sealed; ascending
//   summary 8 HEX           features, and SHA-256 of the maps of summaries; where there are any
//   checksum HEX            SHA-256 of all above
// and behind that the maps (summary.h), floats, little-endian: [layers][query heads, KV heads][map].
// A layer that shares has a source before it which does not share itself. It is written in one way
// only, and read only as it is written: a file that somebody has changed is refused.
//
// The checksum is the calibration's id: stored segments that were made with it are found under names
// that have it in them (stored.h).
#ifndef GPW_CALIBRATION_H
#define GPW_CALIBRATION_H

#include <stdbool.h>

#include "common/block.h"

#define GPW_CALIBRATION_BYTES_MAX 8192u        // of the text
#define GPW_CALIBRATION_MAPS_MAX  (256u << 20) // bytes of the maps
#define GPW_CALIBRATION_WHY_BYTES 192u

typedef struct gpw_calibration {
    as_key_t id, model;
    uint32_t layers, q_heads, kv_heads, head_dim;
    uint16_t
        source[AS_LAYERS_MAX]; // of each layer: whose keys and values it attends to; its own, or
                               // those of an earlier one whose source is itself
    float *maps; // of summaries, as in the file; NULL: none. Copies of the struct do not own them
} gpw_calibration_t;

// Layers that are their own source.
uint32_t gpw_calibration_held(const gpw_calibration_t *calibration);
// Bytes of the maps that a calibration of this shape has or may have.
size_t gpw_calibration_maps_bytes(const gpw_calibration_t *calibration);
// Of a query head (head < q_heads), or of KV head head - q_heads.
const float *gpw_calibration_map(const gpw_calibration_t *calibration, uint32_t layer,
                                 uint32_t head);
// Frees the maps; a second time is fine.
void gpw_calibration_fini(gpw_calibration_t *calibration);
// Writes the text, without what is behind it, of which it sets the id; returns its length, below GPW_CALIBRATION_BYTES_MAX.
size_t gpw_calibration_format(gpw_calibration_t *calibration, char text[GPW_CALIBRATION_BYTES_MAX]);
// AS_ERR_INVALID, or AS_ERR_UNSUPPORTED for a version that is not known, AS_ERR_NO_MEMORY; `why` says what
// is wrong, as the end of a sentence about the file. `text` is all of a file. gpw_calibration_fini is for
// what was parsed or read.
as_status_t gpw_calibration_parse(const char *text, size_t bytes, gpw_calibration_t *calibration_p,
                                  char why[GPW_CALIBRATION_WHY_BYTES]) AS_MUST_USE;
// Reads a file. Also AS_ERR_IO.
as_status_t gpw_calibration_read(const char *path, gpw_calibration_t *calibration_p,
                                 char why[GPW_CALIBRATION_WHY_BYTES]) AS_MUST_USE;
// Writes the file beside its place first, so that it is there whole or not at all. AS_ERR_IO: errno
// says why.
as_status_t gpw_calibration_write(const char *path, gpw_calibration_t *calibration) AS_MUST_USE;
// Whether it is of a model with this fingerprint and shape.
bool gpw_calibration_fits(const gpw_calibration_t *calibration, const as_key_t *model,
                          const as_shape_t *shape);

#endif
