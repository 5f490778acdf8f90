// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files in memory, well-formed or not, for the tests of what reads them.
#ifndef GGUF_BUILDER_H
#define GGUF_BUILDER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpuworker/model/gguf.h"

#define BUILDER_TENSORS_MAX 128u

// Entries, directory and data grow apart and are joined by builder_finish.
typedef struct buffer {
    uint8_t *data;
    size_t bytes, room;
} buffer_t;

typedef struct builder {
    buffer_t entries, directory, payload, file;
    uint32_t entry_count, tensor_count;
} builder_t;

static inline void buffer_put(buffer_t *buffer, const void *data, size_t bytes)
{
    if (buffer->bytes + bytes > buffer->room) {
        buffer->room = 2 * (buffer->bytes + bytes) + 256;
        buffer->data = realloc(buffer->data, buffer->room);
    }
    if (bytes > 0) {
        memcpy(buffer->data + buffer->bytes, data, bytes);
    }
    buffer->bytes += bytes;
}

static inline void buffer_u32(buffer_t *buffer, uint32_t value)
{
    buffer_put(buffer, &value, sizeof(value));
}

static inline void buffer_u64(buffer_t *buffer, uint64_t value)
{
    buffer_put(buffer, &value, sizeof(value));
}

static inline void buffer_text(buffer_t *buffer, const char *text)
{
    buffer_u64(buffer, strlen(text));
    buffer_put(buffer, text, strlen(text));
}

static inline void buffer_pad(buffer_t *buffer, size_t alignment)
{
    while (buffer->bytes % alignment != 0) {
        buffer_put(buffer, "", 1);
    }
}

static inline void builder_key(builder_t *builder, const char *key, gpw_gguf_type_t type)
{
    buffer_text(&builder->entries, key);
    buffer_u32(&builder->entries, type);
    builder->entry_count++;
}

static inline void builder_u32(builder_t *builder, const char *key, uint32_t value)
{
    builder_key(builder, key, GPW_GGUF_U32);
    buffer_u32(&builder->entries, value);
}

static inline void builder_f32(builder_t *builder, const char *key, float value)
{
    builder_key(builder, key, GPW_GGUF_F32);
    buffer_put(&builder->entries, &value, sizeof(value));
}

static inline void builder_bool(builder_t *builder, const char *key, uint8_t value)
{
    builder_key(builder, key, GPW_GGUF_BOOL);
    buffer_put(&builder->entries, &value, 1);
}

static inline void builder_text(builder_t *builder, const char *key, const char *value)
{
    builder_key(builder, key, GPW_GGUF_STRING);
    buffer_text(&builder->entries, value);
}

// The caller then puts `count` elements into builder->entries.
static inline void builder_array(builder_t *builder, const char *key, gpw_gguf_type_t element,
                                 uint64_t count)
{
    builder_key(builder, key, GPW_GGUF_ARRAY);
    buffer_u32(&builder->entries, element);
    buffer_u64(&builder->entries, count);
}

static inline void builder_tensor(builder_t *builder, const char *name, uint32_t type, uint64_t n,
                                  uint64_t rows, const void *data, size_t bytes)
{
    buffer_text(&builder->directory, name);
    buffer_u32(&builder->directory, rows > 0 ? 2 : 1);
    buffer_u64(&builder->directory, n);
    if (rows > 0) {
        buffer_u64(&builder->directory, rows);
    }
    buffer_u32(&builder->directory, type);
    buffer_pad(&builder->payload, 32);
    buffer_u64(&builder->directory, builder->payload.bytes);
    buffer_put(&builder->payload, data, bytes);
    builder->tensor_count++;
}

// Joins the file; builder->file holds it.
static inline void builder_finish(builder_t *builder)
{
    buffer_t *file = &builder->file;
    file->bytes = 0;
    buffer_put(file, "GGUF", 4);
    buffer_u32(file, 3);
    buffer_u64(file, builder->tensor_count);
    buffer_u64(file, builder->entry_count);
    buffer_put(file, builder->entries.data, builder->entries.bytes);
    buffer_put(file, builder->directory.data, builder->directory.bytes);
    buffer_pad(file, 32);
    buffer_put(file, builder->payload.data, builder->payload.bytes);
}

static inline void builder_free(builder_t *builder)
{
    free(builder->entries.data);
    free(builder->directory.data);
    free(builder->payload.data);
    free(builder->file.data);
    *builder = (builder_t){0};
}

// Writes the file to a new temporary path, which the caller unlinks.
static inline void builder_save(const builder_t *builder, char path[64])
{
    snprintf(path, 64, "/tmp/assay-test-gguf-XXXXXX");
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    fwrite(builder->file.data, 1, builder->file.bytes, file);
    fclose(file);
}

// A byte-level vocabulary: the 256 bytes (token i is byte i), "ab" by a merge, control tokens, then
// filler up to `count`.
static inline void builder_vocab(builder_t *builder, const char *pre, uint32_t count,
                                 const char *const *control, uint32_t control_count)
{
    builder_text(builder, "tokenizer.ggml.model", "gpt2");
    builder_text(builder, "tokenizer.ggml.pre", pre);
    builder_array(builder, "tokenizer.ggml.tokens", GPW_GGUF_STRING, count);
    uint32_t next = 256;
    for (uint32_t i = 0; i < count; i++) {
        char text[64];
        snprintf(text, sizeof(text), "t%u", i);
        if (i < 256) {
            int printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
            uint32_t point = printable ? i : next++;
            snprintf(text, sizeof(text), "%c", (char)point);
            if (point >= 128) {
                snprintf(text, sizeof(text), "%c%c", (char)(0xc0 | point >> 6),
                         (char)(0x80 | (point & 63)));
            }
        } else if (i == 256) {
            snprintf(text, sizeof(text), "ab");
        } else if (i - 257 < control_count) {
            snprintf(text, sizeof(text), "%s", control[i - 257]);
        }
        buffer_text(&builder->entries, text);
    }
    builder_array(builder, "tokenizer.ggml.token_type", GPW_GGUF_I32, count);
    for (uint32_t i = 0; i < count; i++) {
        buffer_u32(&builder->entries, i >= 257 && i - 257 < control_count ? 3 : 1);
    }
    builder_array(builder, "tokenizer.ggml.merges", GPW_GGUF_STRING, 1);
    buffer_text(&builder->entries, "a b");
}

#endif
