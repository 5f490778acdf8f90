// SPDX-License-Identifier: Apache-2.0
// Reader of GGUF files, versions 2 and 3: metadata and tensor directory over a read-only mapping.
//
// A file is outside input. Every count, length and offset in it is checked against the bytes that
// are there before it is used, so that after a successful open every pointer handed out stays
// inside the mapping; nothing is allocated in proportion to a number that the file only claims.
// Names are unique, tensors lie inside the data section. Pointers and strings live as long as the
// gguf; strings are not NUL-terminated.
#ifndef GPW_GGUF_H
#define GPW_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define GPW_GGUF_DIMS_MAX    4u
#define GPW_GGUF_ENTRIES_MAX 65536u // metadata entries, and tensors
#define GPW_GGUF_ERROR_BYTES 256u

typedef enum gpw_gguf_type {
    GPW_GGUF_U8,
    GPW_GGUF_I8,
    GPW_GGUF_U16,
    GPW_GGUF_I16,
    GPW_GGUF_U32,
    GPW_GGUF_I32,
    GPW_GGUF_F32,
    GPW_GGUF_BOOL,
    GPW_GGUF_STRING,
    GPW_GGUF_ARRAY,
    GPW_GGUF_U64,
    GPW_GGUF_I64,
    GPW_GGUF_F64,
    GPW_GGUF_TYPE_COUNT
} gpw_gguf_type_t;

typedef struct gpw_gguf_string {
    const char *text;
    size_t bytes;
} gpw_gguf_string_t;

// A value: a scalar or string at `data`, or an array of `count` elements of `element` type at
// `data`.
typedef struct gpw_gguf_entry {
    gpw_gguf_string_t key;
    gpw_gguf_type_t type;
    gpw_gguf_type_t element; // of an array
    uint64_t count;          // of an array
    const uint8_t *data;
} gpw_gguf_entry_t;

typedef struct gpw_gguf_tensor {
    gpw_gguf_string_t name;
    uint32_t type; // gpw_tensor_type_t, or one that this build does not know
    uint32_t dims;
    uint64_t size[GPW_GGUF_DIMS_MAX]; // fastest first; 1 beyond dims
    const uint8_t *data;
    size_t bytes_max; // up to the end of the file; the exact size depends on the type
} gpw_gguf_tensor_t;

typedef struct gpw_gguf gpw_gguf_t;

// Errors: AS_ERR_IO, AS_ERR_INVALID (the text says what and where), AS_ERR_UNSUPPORTED (version),
// AS_ERR_LIMIT, AS_ERR_NO_MEMORY. `error` of GPW_GGUF_ERROR_BYTES gets a sentence.
as_status_t gpw_gguf_open(const char *path, char *error, gpw_gguf_t **gguf_p) AS_MUST_USE;
// The same over bytes in memory, which must outlive the gguf.
as_status_t gpw_gguf_open_memory(const void *data, size_t bytes, char *error,
                                 gpw_gguf_t **gguf_p) AS_MUST_USE;
void gpw_gguf_close(gpw_gguf_t *gguf);

const uint8_t *gpw_gguf_data(const gpw_gguf_t *gguf, size_t *bytes_p); // the whole file
const gpw_gguf_entry_t *gpw_gguf_find(const gpw_gguf_t *gguf, const char *key);
uint32_t gpw_gguf_tensor_count(const gpw_gguf_t *gguf);
const gpw_gguf_tensor_t *gpw_gguf_tensor(const gpw_gguf_t *gguf,
                                         uint32_t index); // in order of names
const gpw_gguf_tensor_t *gpw_gguf_find_tensor(const gpw_gguf_t *gguf, const char *name);

// Typed reads. False when the key is absent or of another kind; then *value_p keeps its value.
// Integers of any width and sign convert when the value fits.
bool gpw_gguf_u32(const gpw_gguf_t *gguf, const char *key, uint32_t *value_p);
bool gpw_gguf_f64(const gpw_gguf_t *gguf, const char *key, double *value_p); // from f32 or f64
bool gpw_gguf_bool(const gpw_gguf_t *gguf, const char *key, bool *value_p);
bool gpw_gguf_text(const gpw_gguf_t *gguf, const char *key, gpw_gguf_string_t *value_p);
bool gpw_gguf_string_is(gpw_gguf_string_t string, const char *text);

// Arrays of strings are walked: start with cursor = entry->data, call at most entry->count times.
gpw_gguf_string_t gpw_gguf_next_string(const uint8_t **cursor_p);
// Element `index` of an array of 32-bit integers or f32 (unaligned in the file).
int32_t gpw_gguf_element_i32(const gpw_gguf_entry_t *entry, uint64_t index);
float gpw_gguf_element_f32(const gpw_gguf_entry_t *entry, uint64_t index);

#endif
