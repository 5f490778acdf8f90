// SPDX-License-Identifier: Apache-2.0
// The JSON config file: one object whose keys are the options' names.
//
// Values may be JSON numbers and booleans or the same texts that a flag takes; a list is an array
// of texts. An unknown key is an error, so that a typing mistake in a file does not go unseen.
#include "common/options_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "common/mem.h"

static as_status_t read_whole(const as_options_t *options, const char *file, char **text_p,
                              size_t *bytes_p)
{
    FILE *stream = fopen(file, "rb");
    if (!stream) {
        fprintf(stderr, "%s: --config: cannot open %s: %s\n", options->program, file,
                strerror(errno));
        return AS_ERR_IO;
    }
    as_status_t status = AS_OK;
    char *text = as_mem_alloc(AS_OPTIONS_FILE_BYTES_MAX + 1);
    size_t bytes = 0;
    if (!text) {
        status = AS_ERR_NO_MEMORY;
    } else {
        bytes = fread(text, 1, AS_OPTIONS_FILE_BYTES_MAX + 1, stream);
        if (ferror(stream)) {
            fprintf(stderr, "%s: --config: cannot read %s: %s\n", options->program, file,
                    strerror(errno));
            status = AS_ERR_IO;
        } else if (bytes > AS_OPTIONS_FILE_BYTES_MAX) {
            fprintf(stderr, "%s: --config: %s is larger than %u bytes\n", options->program, file,
                    AS_OPTIONS_FILE_BYTES_MAX);
            status = AS_ERR_LIMIT;
        }
    }
    fclose(stream);
    if (status != AS_OK) {
        as_mem_free(text);
        return status;
    }
    *text_p = text;
    *bytes_p = bytes;
    return AS_OK;
}

// The line of the key in the outermost object; 0 when it is written with escapes. The text is valid
// JSON.
static int line_of_key(const char *text, size_t bytes, const char *key)
{
    size_t key_bytes = strlen(key);
    int line = 1, depth = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n') {
            line++;
        } else if (text[i] == '{' || text[i] == '[') {
            depth++;
        } else if (text[i] == '}' || text[i] == ']') {
            depth--;
        } else if (text[i] == '"') {
            size_t start = ++i;
            while (i < bytes && text[i] != '"') {
                i += text[i] == '\\' ? 2 : 1;
            }
            size_t after = i + 1;
            while (after < bytes && strchr(" \t\r\n", text[after])) {
                after++;
            }
            bool is_key = after < bytes && text[after] == ':' && depth == 1;
            if (is_key && i - start == key_bytes && memcmp(text + start, key, key_bytes) == 0) {
                return line;
            }
        }
    }
    return 0;
}

// Writes a JSON scalar as the text that a flag would have. False for what no flag could say.
static bool scalar_text(const as_option_t *option, const json_t *value, char number[64],
                        const char **text_p)
{
    bool wants_text = option->type == AS_OPTION_STRING || option->type == AS_OPTION_LIST;
    *text_p = number;
    if (json_is_string(value)) {
        *text_p = json_string_value(value);
        return strlen(*text_p) == json_string_length(value);
    }
    if (wants_text) {
        return false;
    }
    if (json_is_boolean(value)) {
        *text_p = json_is_true(value) ? "true" : "false";
        return true;
    }
    if (json_is_integer(value)) {
        snprintf(number, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return true;
    }
    if (json_is_real(value)) {
        snprintf(number, 64, "%.17g", json_real_value(value));
        return true;
    }
    return false;
}

static as_status_t complain_json(const as_option_text_t *text, const json_t *value)
{
    char dump[128]; // enough to find it by; json_dumpb says how long it would be
    size_t bytes = json_dumpb(value, dump, sizeof(dump) - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    dump[bytes < sizeof(dump) - 1 ? bytes : sizeof(dump) - 1] = '\0';
    as_option_complain(text, dump);
    return AS_ERR_INVALID;
}

static as_status_t store_value(const as_option_text_t *text, const json_t *value)
{
    char number[64];
    const char *scalar;
    if (!json_is_array(value)) {
        if (!scalar_text(text->option, value, number, &scalar)) {
            return complain_json(text, value);
        }
        return as_option_store(text, scalar, true);
    }
    if (text->option->type != AS_OPTION_LIST || json_array_size(value) == 0) {
        return complain_json(text, value);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!scalar_text(text->option, json_array_get(value, i), number, &scalar)) {
            return complain_json(text, value);
        }
        as_status_t status = as_option_store(text, scalar, i == 0);
        if (status != AS_OK) {
            return status;
        }
    }
    return AS_OK;
}

static as_status_t store_object(as_option_text_t *text, json_t *object, bool *set,
                                const char *bytes, size_t count)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const as_option_t *option = as_options_find(text->options, key, strlen(key));
        text->line = line_of_key(bytes, count, key);
        if (!option) {
            fprintf(stderr, "%s: --config: %s line %d: unknown option \"%s\"\n",
                    text->options->program, text->file, text->line, key);
            return AS_ERR_INVALID;
        }
        text->option = option;
        as_status_t status = store_value(text, value);
        if (status != AS_OK) {
            return status;
        }
        set[option - text->options->table] = true;
    }
    return AS_OK;
}

as_status_t as_options_read_file(const as_options_t *options, const char *file, bool *set)
{
    char *bytes;
    size_t count;
    as_status_t status = read_whole(options, file, &bytes, &count);
    if (status != AS_OK) {
        return status;
    }
    json_error_t error;
    json_t *object = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        const char *reason = object ? "must be one JSON object of options" : error.text;
        fprintf(stderr, "%s: --config: %s line %d: %s\n", options->program, file,
                object ? 1 : error.line, reason);
        status = AS_ERR_INVALID;
    } else {
        as_option_text_t text = {.options = options, .source = AS_SOURCE_FILE, .file = file};
        status = store_object(&text, object, set, bytes, count);
    }
    json_decref(object);
    as_mem_free(bytes);
    return status;
}
