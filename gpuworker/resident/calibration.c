// SPDX-License-Identifier: Apache-2.0
// The text of a calibration.
//
// A line is taken by what it says, and then compared with what that would have been written as. So
// there is one text for a calibration, and nothing in it that is not read.
#include "gpuworker/resident/calibration.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/sha.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/small_file.h"
#include "gpuworker/resident/summary.h"

#define VERSION    2u
#define LINE_BYTES 96u // the longest are those with a checksum
#define PATH_BYTES 4096u

uint32_t gpw_calibration_held(const gpw_calibration_t *calibration)
{
    uint32_t held = 0;
    for (uint32_t l = 0; l < calibration->layers; l++) {
        held += calibration->source[l] == l;
    }
    return held;
}

size_t gpw_calibration_maps_bytes(const gpw_calibration_t *c)
{
    return (size_t)c->layers * (c->q_heads + c->kv_heads) * gpw_summary_floats(c->head_dim) *
           sizeof(float);
}

const float *gpw_calibration_map(const gpw_calibration_t *c, uint32_t layer, uint32_t head)
{
    return c->maps +
           ((size_t)layer * (c->q_heads + c->kv_heads) + head) * gpw_summary_floats(c->head_dim);
}

void gpw_calibration_fini(gpw_calibration_t *calibration)
{
    as_mem_free(calibration->maps);
    calibration->maps = NULL;
}

bool gpw_calibration_fits(const gpw_calibration_t *calibration, const as_key_t *model,
                          const as_shape_t *shape)
{
    return as_key_equal(&calibration->model, model) && calibration->layers == shape->layers &&
           calibration->q_heads == shape->q_heads && calibration->kv_heads == shape->kv_heads &&
           calibration->head_dim == shape->head_dim;
}

// ---- Writing -----------------------------------------------------------------------------------

typedef struct writer {
    char *text;
    size_t bytes;
} writer_t;

__attribute__((format(printf, 2, 3))) static void put(writer_t *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int written = vsnprintf(w->text + w->bytes, GPW_CALIBRATION_BYTES_MAX - w->bytes, format, args);
    va_end(args);
    w->bytes += (size_t)written;
    AS_ASSERT(w->bytes < GPW_CALIBRATION_BYTES_MAX);
}

size_t gpw_calibration_format(gpw_calibration_t *c, char text[GPW_CALIBRATION_BYTES_MAX])
{
    char hex[65];
    writer_t w = {text, 0};
    as_key_hex(&c->model, hex);
    put(&w, "assay-calibration %u\nmodel %s\n", VERSION, hex);
    put(&w, "shape %u %u %u %u\n", c->layers, c->q_heads, c->kv_heads, c->head_dim);
    for (uint32_t l = 0; l < c->layers; l++) {
        if (c->source[l] != l) {
            put(&w, "share %u %u\n", l, c->source[l]);
        }
    }
    if (c->maps) {
        as_key_t sum;
        SHA256((const uint8_t *)c->maps, gpw_calibration_maps_bytes(c), sum.bytes);
        as_key_hex(&sum, hex);
        put(&w, "summary %u %s\n", GPW_SUMMARY_FEATURES, hex);
    }
    SHA256((const uint8_t *)text, w.bytes, c->id.bytes);
    as_key_hex(&c->id, hex);
    put(&w, "checksum %s\n", hex);
    return w.bytes;
}

as_status_t gpw_calibration_write(const char *path, gpw_calibration_t *calibration)
{
    char text[GPW_CALIBRATION_BYTES_MAX], beside[PATH_BYTES];
    size_t bytes = gpw_calibration_format(calibration, text);
    if (snprintf(beside, sizeof(beside), "%s.new", path) >= (int)sizeof(beside)) {
        errno = ENAMETOOLONG;
        return AS_ERR_IO;
    }
    FILE *file = fopen(beside, "wb");
    if (!file) {
        return AS_ERR_IO;
    }
    size_t maps = calibration->maps ? gpw_calibration_maps_bytes(calibration) : 0;
    bool written = fwrite(text, 1, bytes, file) == bytes &&
                   (maps == 0 || fwrite(calibration->maps, 1, maps, file) == maps) &&
                   fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    written = fclose(file) == 0 && written;
    if (written && rename(beside, path) == 0) {
        return AS_OK;
    }
    error = written ? errno : error;
    unlink(beside);
    errno = error;
    return AS_ERR_IO;
}

// ---- Reading -----------------------------------------------------------------------------------

typedef struct reader {
    const char *at, *end;
    uint32_t line;
    char text[LINE_BYTES]; // of the line at hand
    char *why;
} reader_t;

__attribute__((format(printf, 2, 3))) static as_status_t refuse(const reader_t *r,
                                                                const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, GPW_CALIBRATION_WHY_BYTES, format, args);
    va_end(args);
    return AS_ERR_INVALID;
}

// The next line, which ends with a newline. False: there is none, or it is longer than any is.
static bool next_line(reader_t *r)
{
    const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at));
    r->line++;
    if (!stop || (size_t)(stop - r->at) >= LINE_BYTES || memchr(r->at, 0, (size_t)(stop - r->at))) {
        return false;
    }
    memcpy(r->text, r->at, (size_t)(stop - r->at));
    r->text[stop - r->at] = '\0';
    r->at = stop + 1;
    return true;
}

// Whether the line is what would be written.
__attribute__((format(printf, 2, 3))) static bool is_written(const reader_t *r, const char *format,
                                                             ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    return strcmp(line, r->text) == 0;
}

// "WORD HEX".
static bool take_key(const reader_t *r, const char *word, as_key_t *key_p)
{
    size_t length = strlen(word);
    char hex[65];
    if (strncmp(r->text, word, length) != 0 || r->text[length] != ' ' ||
        as_key_parse(r->text + length + 1, key_p) != AS_OK) {
        return false;
    }
    as_key_hex(key_p, hex);
    return is_written(r, "%s %s", word, hex);
}

static as_status_t take_head(reader_t *r, gpw_calibration_t *c)
{
    unsigned version;
    if (!next_line(r) || sscanf(r->text, "assay-calibration %9u", &version) != 1 ||
        !is_written(r, "assay-calibration %u", version)) {
        return refuse(r, "is no calibration: `assay calibrate` makes one");
    }
    if (version != VERSION) {
        refuse(r, "is of version %u, this worker knows %u: make it again by `assay calibrate`",
               version, VERSION);
        return AS_ERR_UNSUPPORTED;
    }
    if (!next_line(r) || !take_key(r, "model", &c->model)) {
        return refuse(r, "line %u must be `model` and 64 hexadecimal digits", r->line);
    }
    if (!next_line(r) ||
        sscanf(r->text, "shape %9u %9u %9u %9u", &c->layers, &c->q_heads, &c->kv_heads,
               &c->head_dim) != 4 ||
        !is_written(r, "shape %u %u %u %u", c->layers, c->q_heads, c->kv_heads, c->head_dim)) {
        return refuse(r, "line %u must be `shape` and four numbers", r->line);
    }
    as_shape_t shape = {c->layers, c->q_heads, c->kv_heads, c->head_dim, 16, AS_ELEMENT_F16};
    return as_shape_check(&shape) == AS_OK ? AS_OK
                                           : refuse(r, "line %u is the shape of no model", r->line);
}

// The line at hand: a layer that shares, behind `before`.
static as_status_t take_share(reader_t *r, gpw_calibration_t *c, uint32_t *before_p)
{
    unsigned layer, source;
    if (sscanf(r->text, "share %9u %9u", &layer, &source) != 2 ||
        !is_written(r, "share %u %u", layer, source)) {
        return refuse(r, "line %u must be `share` and two layers, or the checksum", r->line);
    }
    if (layer >= c->layers || source >= layer || layer <= *before_p ||
        c->source[source] != source) {
        return refuse(r,
                      "line %u is wrong: layers ascend, and each shares with an earlier one "
                      "that does not share itself",
                      r->line);
    }
    c->source[layer] = (uint16_t)source;
    *before_p = layer;
    return AS_OK;
}

// The line at hand: of the maps that lie behind the text, their SHA-256.
static as_status_t take_summary(const reader_t *r, as_key_t *sum_p)
{
    char word[32];
    snprintf(word, sizeof(word), "summary %u", GPW_SUMMARY_FEATURES);
    return take_key(r, word, sum_p)
               ? AS_OK
               : refuse(r, "line %u must be `summary %u` and 64 hexadecimal digits", r->line,
                        GPW_SUMMARY_FEATURES);
}

// What is behind the text: nothing, or the maps.
static as_status_t take_maps(const reader_t *r, const as_key_t *expected, gpw_calibration_t *c)
{
    size_t bytes = (size_t)(r->end - r->at), wanted = gpw_calibration_maps_bytes(c);
    as_key_t sum;
    if (wanted > GPW_CALIBRATION_MAPS_MAX) {
        return refuse(r, "has a shape whose maps of summaries would be too large");
    }
    SHA256((const uint8_t *)r->at, bytes, sum.bytes);
    if (bytes != wanted || !as_key_equal(&sum, expected)) {
        return refuse(r, "is damaged or was changed: the maps behind its text are others");
    }
    c->maps = as_mem_alloc(bytes);
    if (!c->maps) {
        refuse(r, "finds no memory for its maps");
        return AS_ERR_NO_MEMORY;
    }
    memcpy(c->maps, r->at, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        if (!isfinite(c->maps[i])) {
            gpw_calibration_fini(c);
            return refuse(r, "has a map with a weight that is no number");
        }
    }
    return AS_OK;
}

as_status_t gpw_calibration_parse(const char *text, size_t bytes, gpw_calibration_t *calibration_p,
                                  char why[GPW_CALIBRATION_WHY_BYTES])
{
    reader_t r = {.at = text, .end = text + bytes, .why = why};
    gpw_calibration_t c = {.layers = 0};
    as_key_t sum, maps;
    bool has_maps = false;
    uint32_t before = 0;
    as_status_t status = take_head(&r, &c);
    for (uint32_t l = 0; l < AS_LAYERS_MAX; l++) {
        c.source[l] = (uint16_t)l;
    }
    while (status == AS_OK) {
        size_t above = (size_t)(r.at - text);
        if (!next_line(&r)) {
            return refuse(&r, "ends before its checksum, or line %u is too long", r.line);
        }
        if (!has_maps && strncmp(r.text, "summary ", 8) == 0) {
            status = take_summary(&r, &maps);
            has_maps = status == AS_OK;
            continue;
        }
        if (strncmp(r.text, "checksum ", 9) != 0) {
            if (has_maps) {
                return refuse(&r, "line %u must be the checksum", r.line);
            }
            status = take_share(&r, &c, &before);
            continue;
        }
        SHA256((const uint8_t *)text, above, c.id.bytes);
        if (!take_key(&r, "checksum", &sum) || !as_key_equal(&sum, &c.id) ||
            (!has_maps && r.at != r.end)) {
            return refuse(&r, "is damaged or was changed: its checksum is another one");
        }
        status = has_maps ? take_maps(&r, &maps, &c) : AS_OK;
        if (status == AS_OK) {
            *calibration_p = c;
        }
        return status;
    }
    return status;
}

as_status_t gpw_calibration_read(const char *path, gpw_calibration_t *calibration_p,
                                 char why[GPW_CALIBRATION_WHY_BYTES])
{
    struct stat about;
    size_t bytes = 0, max = GPW_CALIBRATION_BYTES_MAX + GPW_CALIBRATION_MAPS_MAX;
    max = stat(path, &about) == 0 && about.st_size >= 0 && (uint64_t)about.st_size < max
              ? (size_t)about.st_size
              : max;
    char *text = as_mem_alloc(max + 1);
    if (!text) {
        snprintf(why, GPW_CALIBRATION_WHY_BYTES, "finds no memory to be read to");
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status = as_file_read(path, text, max, &bytes);
    if (status == AS_ERR_LIMIT) {
        snprintf(why, GPW_CALIBRATION_WHY_BYTES, "is no calibration: it is longer than any is");
        status = AS_ERR_INVALID;
    } else if (status != AS_OK) {
        snprintf(why, GPW_CALIBRATION_WHY_BYTES, "cannot be read: %s", strerror(errno));
    } else {
        status = gpw_calibration_parse(text, bytes, calibration_p, why);
    }
    as_mem_free(text);
    return status;
}
