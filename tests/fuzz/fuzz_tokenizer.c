// SPDX-License-Identifier: Apache-2.0
// Any text through every kind of tokenizer: encoded, decoded, and the same again where the
// vocabulary holds all bytes.
//
// The first byte chooses the vocabulary (tests/golden/tokenizer_*.gguf) and the options, the rest
// is the text. It is encoded again as a prompt of a template and messages, cut before each
// byte 0xfe: no message may hold a control token.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/model/gguf.h"
#include "gpuworker/model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const names[] = {"gpt-2", "llama-bpe", "qwen2", "tekken", "default", "spm"};
enum { NAME_COUNT = sizeof(names) / sizeof(names[0]), CUT = 0xfe };

static gpw_tokenizer_t *open_one(const char *name)
{
    char path[512], error[GPW_GGUF_ERROR_BYTES];
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizer_%s.gguf", ASSAY_SOURCE_DIR, name);
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    if (gpw_gguf_open(path, error, &gguf) != AS_OK ||
        gpw_tokenizer_alloc(gguf, error, &tokenizer) != AS_OK) {
        fprintf(stderr, "fuzz_tokenizer: %s: %s\n", path, error);
        abort();
    }
    gpw_gguf_close(gguf);
    return tokenizer;
}

static void check_same_bytes(const gpw_tokenizer_t *tokenizer, const int32_t *tokens, size_t count,
                             const char *text, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        char piece[256];
        size_t length = gpw_tokenizer_decode(tokenizer, tokens[i], true, piece, sizeof(piece));
        AS_ASSERT(length <= bytes - at && memcmp(piece, text + at, length) == 0);
        at += length;
    }
    AS_ASSERT(at == bytes);
}

static bool is_control(const gpw_tokenizer_t *tokenizer, int32_t token)
{
    char piece[1];
    return gpw_tokenizer_decode(tokenizer, token, true, piece, 0) > 0 &&
           gpw_tokenizer_decode(tokenizer, token, false, piece, 0) == 0;
}

// Control tokens that a template's text spells.
static size_t count_controls(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes)
{
    size_t count = 0, controls = 0, room = 2 * bytes + 8;
    int32_t *tokens = malloc(room * sizeof(int32_t));
    gpw_encode_options_t options = {.parse_special = true};
    AS_ASSERT(gpw_tokenizer_encode(tokenizer, text, bytes, options, tokens, room, &count) == AS_OK);
    for (size_t i = 0; i < count; i++) {
        controls += is_control(tokenizer, tokens[i]);
    }
    free(tokens);
    return controls;
}

// Each control token lies inside one segment of the template.
static void check_places(const gpw_tokenizer_t *tokenizer, const gpw_prompt_t *prompt,
                         const int32_t *tokens, size_t count)
{
    size_t at = 0, segment = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        char piece[1];
        size_t length = gpw_tokenizer_decode(tokenizer, tokens[i], true, piece, 0);
        while (segment < prompt->segment_count && end + prompt->segments[segment].bytes <= at) {
            end += prompt->segments[segment++].bytes;
        }
        AS_ASSERT(!is_control(tokenizer, tokens[i]) ||
                  (!prompt->segments[segment].content &&
                   at + length <= end + prompt->segments[segment].bytes));
        at += length;
    }
}

// A prompt has the control tokens that its template spells, and perhaps a BOS before them.
static void check_prompt(const gpw_tokenizer_t *tokenizer, char *text, size_t bytes, bool spm)
{
    gpw_prompt_segment_t *segments = malloc((bytes + 1) * sizeof(*segments));
    int32_t *tokens = malloc((2 * bytes + 8) * sizeof(int32_t));
    gpw_prompt_t prompt = {text, segments, 0};
    size_t count = 0, expected = 0, found = 0, from = 0;
    for (size_t at = 0; at <= bytes; at++) {
        if (at == bytes || (uint8_t)text[at] == CUT) {
            bool content = prompt.segment_count % 2 == 1;
            segments[prompt.segment_count++] = (gpw_prompt_segment_t){at - from, content};
            expected += content ? 0 : count_controls(tokenizer, text + from, at - from);
            from = at;
        }
    }
    AS_ASSERT(gpw_tokenizer_encode_prompt(tokenizer, &prompt, tokens, 2 * bytes + 8, &count) ==
              AS_OK);
    for (size_t i = 0; i < count; i++) {
        found += is_control(tokenizer, tokens[i]);
    }
    size_t bos = found - expected;
    AS_ASSERT(bos == 0 || (bos == 1 && is_control(tokenizer, tokens[0])));
    if (!spm) { // whose bytes are not those of the text
        check_places(tokenizer, &prompt, tokens + bos, count - bos);
    }
    free(tokens);
    free(segments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static gpw_tokenizer_t *tokenizers[NAME_COUNT];
    if (bytes == 0) {
        return 0;
    }
    uint32_t which = data[0] % NAME_COUNT;
    gpw_encode_options_t options = {.parse_special = data[0] >= 128};
    if (!tokenizers[which]) {
        tokenizers[which] = open_one(names[which]);
    }
    size_t text_bytes = bytes - 1, count = 0;
    char *text = malloc(text_bytes + 1);
    int32_t *tokens = malloc((2 * text_bytes + 8) * sizeof(int32_t));
    memcpy(text, data + 1, text_bytes);
    as_status_t status = gpw_tokenizer_encode(tokenizers[which], text, text_bytes, options, tokens,
                                              2 * text_bytes + 8, &count);
    AS_ASSERT(status == AS_OK);
    if (which != NAME_COUNT - 1) { // SentencePiece adds a space, and takes U+2581 for one
        check_same_bytes(tokenizers[which], tokens, count, text, text_bytes);
    }
    check_prompt(tokenizers[which], text, text_bytes, which == NAME_COUNT - 1);
    free(tokens);
    free(text);
    return 0;
}
