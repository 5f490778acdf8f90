// SPDX-License-Identifier: Apache-2.0
// Sealed blocks as stores keep them, beside the full blocks that they were made of.
//
// Of methods whose blocks stand alone, follow from keys and values only (`slot` and
// GPW_COMPRESSOR_QUERY_FREE) and are smaller than the full ones: the bytes of a slot, layer by layer, as a
// block of a shape and under a key of its own, so a store, a client and their checksums know nothing of it.
// The key is SHA-256 over the full block's key and all that decides the bytes: the method's name and
// parameters, the version of the form, and where there is one the calibration's id. So nothing else is ever
// found under it. Where layers share, a stored block has those that are held. What comes from there is
// drafted on only: an error in it could cost drafts, never a token.
#ifndef GPW_STORED_H
#define GPW_STORED_H

#include "gpuworker/resident/compressor.h"

// The shape under which sealed blocks of full blocks of `shape` are stored. False: this method's are not.
bool gpw_stored_shape(const gpw_compressor_t *compressor, const as_shape_t *shape,
                      as_shape_t *stored_p);
// Of a block's key, its parent's or a namespace.
void gpw_stored_key(const gpw_compressor_t *compressor, const as_key_t *key, as_key_t *stored_p);
// Seals block `number` of a chain by itself: as_block_bytes of the stored shape, by as_mem. NULL: no
// memory.
uint8_t *gpw_stored_pack(const gpw_compressor_t *compressor, const as_shape_t *shape,
                         const krn_ops_t *ops, uint32_t number, const uint8_t *block);

#endif
