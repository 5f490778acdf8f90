// SPDX-License-Identifier: Apache-2.0
// Calibrations: any bytes are one that is written as it was read, or an error with a reason.
//
// A checksum that is right is nothing that a fuzzer finds, so what it makes is signed first.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <openssl/sha.h>

#include "common/assert.h"
#include "gpuworker/resident/calibration.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const char *text, size_t bytes)
{
    static char again[GPW_CALIBRATION_BYTES_MAX];
    char why[GPW_CALIBRATION_WHY_BYTES] = "";
    gpw_calibration_t c;
    if (gpw_calibration_parse(text, bytes, &c, why) != AS_OK) {
        AS_ASSERT(why[0]);
        return;
    }
    AS_ASSERT(gpw_calibration_held(&c) > 0 && c.layers <= AS_LAYERS_MAX);
    for (uint32_t l = 0; l < c.layers; l++) {
        AS_ASSERT(c.source[l] <= l && c.source[c.source[l]] == c.source[l]);
    }
    AS_ASSERT(bytes <= GPW_CALIBRATION_BYTES_MAX || c.maps);
    as_key_t id = c.id;
    size_t maps = c.maps ? gpw_calibration_maps_bytes(&c) : 0;
    AS_ASSERT(maps < bytes && (!maps || memcmp(c.maps, text + bytes - maps, maps) == 0));
    bytes -= maps;
    AS_ASSERT(gpw_calibration_format(&c, again) == bytes && memcmp(again, text, bytes) == 0);
    AS_ASSERT(as_key_equal(&id, &c.id));
    gpw_calibration_fini(&c);
}

// The bytes as the maps of a small model.
static void check_maps(const uint8_t *data, size_t bytes)
{
    static const char head[] = "assay-calibration 2\nmodel %s\nshape 1 1 1 16\nsummary 8 %s\n";
    static char text[GPW_CALIBRATION_BYTES_MAX];
    as_key_t sum;
    char hex[65];
    SHA256(data, bytes, sum.bytes);
    as_key_hex(&sum, hex);
    size_t length = (size_t)snprintf(text, sizeof(text), head, hex, hex);
    SHA256((const uint8_t *)text, length, sum.bytes);
    as_key_hex(&sum, hex);
    length += (size_t)snprintf(text + length, sizeof(text) - length, "checksum %s\n", hex);
    if (bytes <= sizeof(text) - length) {
        memcpy(text + length, data, bytes);
        check(text, length + bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char text[GPW_CALIBRATION_BYTES_MAX + 128];
    as_key_t sum;
    char hex[65];
    check((const char *)data, bytes);
    if (bytes <= GPW_CALIBRATION_BYTES_MAX) {
        memcpy(text, data, bytes);
        SHA256(data, bytes, sum.bytes);
        as_key_hex(&sum, hex);
        int line = snprintf(text + bytes, sizeof(text) - bytes, "checksum %s\n", hex);
        check(text, bytes + (size_t)line);
    }
    check_maps(data, bytes);
    return 0;
}
