// SPDX-License-Identifier: Apache-2.0
// Sealed blocks as stores keep them.
//
// What is hashed: "assay-sealed", then as little-endian u32 the form's version, the length of the method's
// name, its six parameters; then the name; then the 32 bytes of the key, and of the calibration's id where
// the method has one.
#include "gpuworker/resident/stored.h"

#include <string.h>

#include <openssl/sha.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/resident/calibration.h"

#define FORM_VERSION 1u  // of the bytes of slots: another when a method's layout changes
#define DIM          16u // of the stored shape: the least there is
#define HEADS_MAX    1024u
#define NAME_MAX     32u

static const char domain[] = "assay-sealed";

static gpw_segment_options_t options_of(const gpw_compressor_t *compressor, const as_shape_t *shape)
{
    return (gpw_segment_options_t){.params = &compressor->params, .shape = *shape, .blocks_max = 1};
}

bool gpw_stored_shape(const gpw_compressor_t *compressor, const as_shape_t *shape,
                      as_shape_t *stored_p)
{
    if (!compressor || !compressor->slot || !(compressor->flags & GPW_COMPRESSOR_QUERY_FREE)) {
        return false;
    }
    gpw_segment_options_t options = options_of(compressor, shape);
    const gpw_calibration_t *calibration = compressor->params.calibration;
    uint32_t layers = calibration ? gpw_calibration_held(calibration) : shape->layers;
    uint64_t layer =
        (compressor->bytes_max(&options, 1) - compressor->bytes_max(&options, 0)) / layers;
    as_shape_t stored = {
        .layers = layers, .head_dim = DIM, .block_tokens = 1, .element = AS_ELEMENT_F16};
    if (layer >= as_extent_bytes(shape)) {
        return false; // the full block is the smaller one
    }
    uint64_t unit = 2 * DIM * sizeof(krn_f16); // K and V of one token and head
    uint64_t units = layer / unit;
    while (stored.block_tokens < AS_BLOCK_TOKENS_MAX &&
           (units % stored.block_tokens != 0 || units / stored.block_tokens > HEADS_MAX)) {
        stored.block_tokens++;
    }
    stored.q_heads = stored.kv_heads = (uint32_t)(units / stored.block_tokens);
    *stored_p = stored;
    return units > 0 && as_extent_bytes(&stored) == layer && as_shape_check(&stored) == AS_OK;
}

static uint8_t *put_u32(uint8_t *to, uint32_t number)
{
    for (uint32_t i = 0; i < 4; i++) {
        *to++ = (uint8_t)(number >> (8 * i));
    }
    return to;
}

void gpw_stored_key(const gpw_compressor_t *compressor, const as_key_t *key, as_key_t *stored_p)
{
    const gpw_compressor_params_t *p = &compressor->params;
    const uint32_t numbers[] = {FORM_VERSION,    (uint32_t)strlen(compressor->name),
                                p->bits,         p->group,
                                p->sink_tokens,  p->window_tokens,
                                p->keep_percent, p->pool_tokens};
    uint8_t bytes[sizeof(domain) + sizeof(numbers) + NAME_MAX + 2 * sizeof(*key)];
    uint8_t *to = bytes;
    AS_ASSERT(numbers[1] <= NAME_MAX);
    memcpy(to, domain, sizeof(domain));
    to += sizeof(domain);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        to = put_u32(to, numbers[i]);
    }
    memcpy(to, compressor->name, numbers[1]);
    to += numbers[1];
    memcpy(to, key->bytes, sizeof(key->bytes));
    to += sizeof(key->bytes);
    if (p->calibration) {
        memcpy(to, p->calibration->id.bytes, sizeof(p->calibration->id.bytes));
        to += sizeof(p->calibration->id.bytes);
    }
    SHA256(bytes, (size_t)(to - bytes), stored_p->bytes);
}

uint8_t *gpw_stored_pack(const gpw_compressor_t *compressor, const as_shape_t *shape,
                         const krn_ops_t *ops, uint32_t number, const uint8_t *block)
{
    gpw_segment_options_t options = options_of(compressor, shape);
    gpw_compressor_params_t params = compressor->params;
    gpw_segment_t *segment = NULL;
    uint8_t *packed = NULL;
    // Sealed as the first of a chain, whose sinks are those that are not in the blocks before.
    uint32_t before = number * shape->block_tokens;
    params.sink_tokens = params.sink_tokens > before ? params.sink_tokens - before : 0;
    options.params = &params;
    options.ops = ops;
    if (compressor->open(&options, &segment) != AS_OK) {
        return NULL;
    }
    if (compressor->reserve(segment, 1) == AS_OK) {
        size_t bytes;
        for (uint32_t layer = 0; layer < shape->layers; layer++) {
            compressor->seal(segment, layer, 0, block + layer * as_extent_bytes(shape));
        }
        uint8_t **slot = compressor->slot(segment, 0, &bytes);
        packed = *slot; // taken: close leaves a NULL alone
        *slot = NULL;
    }
    compressor->close(segment);
    return packed;
}
