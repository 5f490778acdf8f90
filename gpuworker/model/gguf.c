// SPDX-License-Identifier: Apache-2.0
// Parses a GGUF file in one pass with a cursor that cannot leave the mapping.
//
// Layout: magic, version, tensor count, entry count; entries (key, type, value); tensor directory
// (name, dims, type, offset); padding to general.alignment; tensor data. Directory and entries are
// then sorted by name: look-ups are binary searches, and duplicates are neighbours.
#include "gpuworker/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/mem.h"

#define GGUF_MAGIC        0x46554747u // "GGUF"
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX     65536u
#define NAME_BYTES_MAX    65535u
#define ENTRY_BYTES_MIN   12u // key length, type; what follows is longer still
#define TENSOR_BYTES_MIN  24u // name length, dims, type, offset

struct gpw_gguf {
    const uint8_t *data;
    size_t bytes;
    bool mapped;
    gpw_gguf_entry_t *entries;
    uint32_t entry_count;
    gpw_gguf_tensor_t *tensors;
    uint32_t tensor_count;
};

// Where the parser stands. `status` stays at the first error; reads after it give zero.
typedef struct reader {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    char *error;
    as_status_t status;
} reader_t;

static const uint8_t element_bytes[GPW_GGUF_TYPE_COUNT] = {
    [GPW_GGUF_U8] = 1,  [GPW_GGUF_I8] = 1,  [GPW_GGUF_U16] = 2, [GPW_GGUF_I16] = 2,
    [GPW_GGUF_U32] = 4, [GPW_GGUF_I32] = 4, [GPW_GGUF_F32] = 4, [GPW_GGUF_BOOL] = 1,
    [GPW_GGUF_U64] = 8, [GPW_GGUF_I64] = 8, [GPW_GGUF_F64] = 8,
};

static as_status_t parse(gpw_gguf_t *gguf, char *error);

as_status_t gpw_gguf_open_memory(const void *data, size_t bytes, char *error, gpw_gguf_t **gguf_p)
{
    gpw_gguf_t *gguf = as_mem_zalloc(1, sizeof(*gguf));
    if (!gguf) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "out of memory");
        return AS_ERR_NO_MEMORY;
    }
    gguf->data = data;
    gguf->bytes = bytes;
    as_status_t status = parse(gguf, error);
    if (status != AS_OK) {
        gpw_gguf_close(gguf);
        return status;
    }
    *gguf_p = gguf;
    return AS_OK;
}

as_status_t gpw_gguf_open(const char *path, char *error, gpw_gguf_t **gguf_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO would wait for its writer
    if (fd < 0) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "cannot open %.160s: %s", path, strerror(errno));
        return AS_ERR_IO;
    }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "%.160s is not a regular file with content", path);
        close(fd);
        return AS_ERR_IO;
    }
    size_t bytes = (size_t)info.st_size;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int map_errno = errno;
    close(fd);
    if (data == MAP_FAILED) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "cannot map %.160s: %s", path, strerror(map_errno));
        return AS_ERR_IO;
    }
    madvise(data, bytes, MADV_SEQUENTIAL);
    as_status_t status = gpw_gguf_open_memory(data, bytes, error, gguf_p);
    if (status != AS_OK) {
        munmap(data, bytes);
        return status;
    }
    (*gguf_p)->mapped = true;
    return AS_OK;
}

void gpw_gguf_close(gpw_gguf_t *gguf)
{
    if (!gguf) {
        return;
    }
    if (gguf->mapped) {
        munmap((void *)(uintptr_t)gguf->data, gguf->bytes);
    }
    as_mem_free(gguf->entries);
    as_mem_free(gguf->tensors);
    as_mem_free(gguf);
}

// ---- Parsing ----------------------------------------------------------------------------------

__attribute__((format(printf, 3, 4))) static void fail(reader_t *reader, as_status_t status,
                                                       const char *format, ...)
{
    if (reader->status != AS_OK) {
        return;
    }
    reader->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->error, GPW_GGUF_ERROR_BYTES, format, arguments);
    va_end(arguments);
}

static size_t left(const reader_t *reader)
{
    return reader->bytes - reader->at;
}

// The next `bytes` bytes; NULL after an error.
static const uint8_t *take(reader_t *reader, uint64_t bytes, const char *what)
{
    if (reader->status == AS_OK && bytes > left(reader)) {
        fail(reader, AS_ERR_INVALID,
             "the file ends inside %s: %llu bytes wanted at offset %zu of %zu", what,
             (unsigned long long)bytes, reader->at, reader->bytes);
    }
    if (reader->status != AS_OK) {
        return NULL;
    }
    const uint8_t *taken = reader->data + reader->at;
    reader->at += bytes;
    return taken;
}

static uint32_t take_u32(reader_t *reader, const char *what)
{
    uint32_t value = 0;
    const uint8_t *data = take(reader, sizeof(value), what);
    if (data) {
        memcpy(&value, data, sizeof(value));
    }
    return value;
}

static uint64_t take_u64(reader_t *reader, const char *what)
{
    uint64_t value = 0;
    const uint8_t *data = take(reader, sizeof(value), what);
    if (data) {
        memcpy(&value, data, sizeof(value));
    }
    return value;
}

static gpw_gguf_string_t take_string(reader_t *reader, const char *what)
{
    gpw_gguf_string_t string = {"", 0};
    uint64_t bytes = take_u64(reader, what);
    const uint8_t *text = take(reader, bytes, what);
    if (text) {
        string.text = (const char *)text;
        string.bytes = (size_t)bytes;
    }
    return string;
}

static gpw_gguf_string_t take_name(reader_t *reader, const char *what)
{
    gpw_gguf_string_t name = take_string(reader, what);
    if (name.bytes > NAME_BYTES_MAX || (reader->status == AS_OK && name.bytes == 0)) {
        fail(reader, AS_ERR_INVALID, "%s has %zu bytes; 1 to %u are allowed", what, name.bytes,
             NAME_BYTES_MAX);
    }
    return name;
}

static void take_array(reader_t *reader, gpw_gguf_entry_t *entry)
{
    uint32_t element = take_u32(reader, "an array's type");
    entry->count = take_u64(reader, "an array's count");
    if (element >= GPW_GGUF_TYPE_COUNT || element == GPW_GGUF_ARRAY) {
        fail(reader, AS_ERR_INVALID, "metadata %.*s: arrays of type %u are not allowed",
             (int)entry->key.bytes, entry->key.text, element);
        return;
    }
    entry->element = element;
    entry->data = reader->data + reader->at;
    if (element != GPW_GGUF_STRING) {
        uint64_t count_max = left(reader) / element_bytes[element];
        uint64_t count = entry->count <= count_max ? entry->count : count_max + 1;
        take(reader, count * element_bytes[element], "an array");
        return;
    }
    for (uint64_t i = 0; i < entry->count && reader->status == AS_OK; i++) {
        take_string(reader, "an array's string");
    }
}

static void take_entry(reader_t *reader, gpw_gguf_entry_t *entry)
{
    entry->key = take_name(reader, "a metadata key");
    uint32_t type = take_u32(reader, "a metadata type");
    if (type >= GPW_GGUF_TYPE_COUNT) {
        fail(reader, AS_ERR_INVALID, "metadata %.*s has the unknown type %u", (int)entry->key.bytes,
             entry->key.text, type);
        return;
    }
    entry->type = type;
    entry->data = reader->data + reader->at;
    if (type == GPW_GGUF_ARRAY) {
        take_array(reader, entry);
    } else if (type == GPW_GGUF_STRING) {
        take_string(reader, "a metadata string");
    } else {
        take(reader, element_bytes[type], "a metadata value");
    }
}

// Reads the directory entry; `data` is set to the offset's place by locate_tensors.
static void take_tensor(reader_t *reader, gpw_gguf_tensor_t *tensor, uint64_t *offset_p)
{
    tensor->name = take_name(reader, "a tensor's name");
    tensor->dims = take_u32(reader, "a tensor's dimension count");
    if (tensor->dims == 0 || tensor->dims > GPW_GGUF_DIMS_MAX) {
        fail(reader, AS_ERR_INVALID, "tensor %.*s has %u dimensions; 1 to %u are allowed",
             (int)tensor->name.bytes, tensor->name.text, tensor->dims, GPW_GGUF_DIMS_MAX);
        return;
    }
    uint64_t elements = 1;
    for (uint32_t i = 0; i < GPW_GGUF_DIMS_MAX; i++) {
        tensor->size[i] = i < tensor->dims ? take_u64(reader, "a tensor's size") : 1;
        bool fits = tensor->size[i] > 0 && tensor->size[i] <= (UINT64_C(1) << 48) / elements;
        if (!fits) {
            fail(reader, AS_ERR_INVALID, "tensor %.*s has an impossible size",
                 (int)tensor->name.bytes, tensor->name.text);
            return;
        }
        elements *= tensor->size[i];
    }
    tensor->type = take_u32(reader, "a tensor's type");
    *offset_p = take_u64(reader, "a tensor's offset");
}

static int compare_names(gpw_gguf_string_t a, gpw_gguf_string_t b)
{
    int order = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_entries(const void *a, const void *b)
{
    return compare_names(((const gpw_gguf_entry_t *)a)->key, ((const gpw_gguf_entry_t *)b)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_names(((const gpw_gguf_tensor_t *)a)->name,
                         ((const gpw_gguf_tensor_t *)b)->name);
}

static void parse_entries(gpw_gguf_t *gguf, reader_t *reader)
{
    for (uint32_t i = 0; i < gguf->entry_count && reader->status == AS_OK; i++) {
        take_entry(reader, &gguf->entries[i]);
    }
    if (reader->status != AS_OK) {
        return;
    }
    qsort(gguf->entries, gguf->entry_count, sizeof(gguf->entries[0]), compare_entries);
    for (uint32_t i = 1; i < gguf->entry_count; i++) {
        gpw_gguf_string_t key = gguf->entries[i].key;
        if (compare_names(gguf->entries[i - 1].key, key) == 0) {
            fail(reader, AS_ERR_INVALID, "metadata %.*s is there twice", (int)key.bytes, key.text);
        }
    }
}

// `data` holds the offset (as a number) until here.
static void parse_tensors(gpw_gguf_t *gguf, reader_t *reader)
{
    uint64_t *offsets = as_mem_zalloc(gguf->tensor_count, sizeof(*offsets));
    if (!offsets) {
        fail(reader, AS_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < gguf->tensor_count && reader->status == AS_OK; i++) {
        take_tensor(reader, &gguf->tensors[i], &offsets[i]);
    }
    uint32_t alignment = ALIGNMENT_DEFAULT;
    gpw_gguf_u32(gguf, "general.alignment", &alignment);
    if (alignment == 0 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0) {
        fail(reader, AS_ERR_INVALID, "general.alignment %u is not a power of two up to %u",
             alignment, ALIGNMENT_MAX);
        alignment = ALIGNMENT_DEFAULT;
    }
    size_t start = (reader->at + alignment - 1) / alignment * alignment;
    for (uint32_t i = 0; i < gguf->tensor_count && reader->status == AS_OK; i++) {
        gpw_gguf_tensor_t *tensor = &gguf->tensors[i];
        bool inside = start <= gguf->bytes && offsets[i] <= gguf->bytes - start;
        if (!inside || offsets[i] % alignment != 0) {
            fail(reader, AS_ERR_INVALID, "tensor %.*s: offset %llu is %s", (int)tensor->name.bytes,
                 tensor->name.text, (unsigned long long)offsets[i],
                 inside ? "not aligned" : "beyond the end of the file");
            break;
        }
        tensor->data = gguf->data + start + offsets[i];
        tensor->bytes_max = gguf->bytes - start - (size_t)offsets[i];
    }
    as_mem_free(offsets);
    if (reader->status != AS_OK) {
        return;
    }
    qsort(gguf->tensors, gguf->tensor_count, sizeof(gguf->tensors[0]), compare_tensors);
    for (uint32_t i = 1; i < gguf->tensor_count; i++) {
        gpw_gguf_string_t name = gguf->tensors[i].name;
        if (compare_names(gguf->tensors[i - 1].name, name) == 0) {
            fail(reader, AS_ERR_INVALID, "tensor %.*s is there twice", (int)name.bytes, name.text);
        }
    }
}

static void check_count(reader_t *reader, uint64_t count, size_t bytes_min, const char *what)
{
    if (count > GPW_GGUF_ENTRIES_MAX) {
        fail(reader, AS_ERR_LIMIT, "%llu %s; at most %u are allowed", (unsigned long long)count,
             what, GPW_GGUF_ENTRIES_MAX);
    } else if (count > left(reader) / bytes_min) {
        fail(reader, AS_ERR_INVALID, "%llu %s do not fit in a file of %zu bytes",
             (unsigned long long)count, what, reader->bytes);
    }
}

static as_status_t parse(gpw_gguf_t *gguf, char *error)
{
    reader_t reader = {.data = gguf->data, .bytes = gguf->bytes, .error = error};
    uint32_t magic = take_u32(&reader, "the header");
    uint32_t version = take_u32(&reader, "the header");
    if (magic != GGUF_MAGIC) {
        fail(&reader, AS_ERR_INVALID, "not a GGUF file: it begins with %02x %02x %02x %02x",
             magic & 255, magic >> 8 & 255, magic >> 16 & 255, magic >> 24);
    }
    if (version < 2 || version > 3) {
        bool swapped = (version & 0xffffffu) == 0;
        fail(&reader, AS_ERR_UNSUPPORTED,
             swapped ? "the GGUF file is big-endian (version %u)"
                     : "GGUF version %u; 2 and 3 are supported",
             swapped ? version >> 24 : version);
    }
    uint64_t tensor_count = take_u64(&reader, "the header");
    uint64_t entry_count = take_u64(&reader, "the header");
    check_count(&reader, entry_count, ENTRY_BYTES_MIN, "metadata entries");
    check_count(&reader, tensor_count, TENSOR_BYTES_MIN, "tensors");
    if (reader.status != AS_OK) {
        return reader.status;
    }
    gguf->entry_count = (uint32_t)entry_count;
    gguf->tensor_count = (uint32_t)tensor_count;
    gguf->entries = as_mem_zalloc(gguf->entry_count, sizeof(gguf->entries[0]));
    gguf->tensors = as_mem_zalloc(gguf->tensor_count, sizeof(gguf->tensors[0]));
    if (!gguf->entries || !gguf->tensors) {
        fail(&reader, AS_ERR_NO_MEMORY, "out of memory");
        return reader.status;
    }
    parse_entries(gguf, &reader);
    if (reader.status == AS_OK) {
        parse_tensors(gguf, &reader);
    }
    return reader.status;
}

// ---- Look-ups
// -----------------------------------------------------------------------------------------------------

const uint8_t *gpw_gguf_data(const gpw_gguf_t *gguf, size_t *bytes_p)
{
    *bytes_p = gguf->bytes;
    return gguf->data;
}

const gpw_gguf_entry_t *gpw_gguf_find(const gpw_gguf_t *gguf, const char *key)
{
    gpw_gguf_entry_t wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, gguf->entries, gguf->entry_count, sizeof(wanted), compare_entries);
}

uint32_t gpw_gguf_tensor_count(const gpw_gguf_t *gguf)
{
    return gguf->tensor_count;
}

const gpw_gguf_tensor_t *gpw_gguf_tensor(const gpw_gguf_t *gguf, uint32_t index)
{
    AS_ASSERT(index < gguf->tensor_count);
    return &gguf->tensors[index];
}

const gpw_gguf_tensor_t *gpw_gguf_find_tensor(const gpw_gguf_t *gguf, const char *name)
{
    gpw_gguf_tensor_t wanted = {.name = {name, strlen(name)}};
    return bsearch(&wanted, gguf->tensors, gguf->tensor_count, sizeof(wanted), compare_tensors);
}

// ---- Values -----------------------------------------------------------------------------------

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, data,
           bytes); // the format is little-endian, and so are the machines we build for
    return value;
}

bool gpw_gguf_u32(const gpw_gguf_t *gguf, const char *key, uint32_t *value_p)
{
    const gpw_gguf_entry_t *entry = gpw_gguf_find(gguf, key);
    if (!entry) {
        return false;
    }
    uint64_t value;
    switch (entry->type) {
    case GPW_GGUF_U8:
    case GPW_GGUF_U16:
    case GPW_GGUF_U32:
    case GPW_GGUF_U64:
        value = load(entry->data, element_bytes[entry->type]);
        break;
    case GPW_GGUF_I8:
    case GPW_GGUF_I16:
    case GPW_GGUF_I32:
    case GPW_GGUF_I64: {
        size_t bytes = element_bytes[entry->type];
        value = load(entry->data, bytes);
        if (value >> (8 * bytes - 1)) {
            return false; // negative
        }
        break;
    }
    default:
        return false;
    }
    if (value > UINT32_MAX) {
        return false;
    }
    *value_p = (uint32_t)value;
    return true;
}

bool gpw_gguf_f64(const gpw_gguf_t *gguf, const char *key, double *value_p)
{
    const gpw_gguf_entry_t *entry = gpw_gguf_find(gguf, key);
    if (entry && entry->type == GPW_GGUF_F32) {
        float value;
        memcpy(&value, entry->data, sizeof(value));
        *value_p = (double)value;
        return true;
    }
    if (entry && entry->type == GPW_GGUF_F64) {
        memcpy(value_p, entry->data, sizeof(*value_p));
        return true;
    }
    return false;
}

bool gpw_gguf_bool(const gpw_gguf_t *gguf, const char *key, bool *value_p)
{
    const gpw_gguf_entry_t *entry = gpw_gguf_find(gguf, key);
    if (!entry || entry->type != GPW_GGUF_BOOL) {
        return false;
    }
    *value_p = entry->data[0] != 0;
    return true;
}

bool gpw_gguf_text(const gpw_gguf_t *gguf, const char *key, gpw_gguf_string_t *value_p)
{
    const gpw_gguf_entry_t *entry = gpw_gguf_find(gguf, key);
    if (!entry || entry->type != GPW_GGUF_STRING) {
        return false;
    }
    const uint8_t *cursor = entry->data;
    *value_p = gpw_gguf_next_string(&cursor);
    return true;
}

bool gpw_gguf_string_is(gpw_gguf_string_t string, const char *text)
{
    return string.bytes == strlen(text) && memcmp(string.text, text, string.bytes) == 0;
}

gpw_gguf_string_t gpw_gguf_next_string(const uint8_t **cursor_p)
{
    uint64_t bytes = load(*cursor_p, sizeof(bytes)); // was bounded when the file was opened
    gpw_gguf_string_t string = {(const char *)*cursor_p + sizeof(bytes), (size_t)bytes};
    *cursor_p += sizeof(bytes) + bytes;
    return string;
}

int32_t gpw_gguf_element_i32(const gpw_gguf_entry_t *entry, uint64_t index)
{
    AS_ASSERT(index < entry->count && element_bytes[entry->element] == sizeof(int32_t));
    int32_t value;
    memcpy(&value, entry->data + index * sizeof(value), sizeof(value));
    return value;
}

float gpw_gguf_element_f32(const gpw_gguf_entry_t *entry, uint64_t index)
{
    AS_ASSERT(index < entry->count && entry->element == GPW_GGUF_F32);
    float value;
    memcpy(&value, entry->data + index * sizeof(value), sizeof(value));
    return value;
}
