// SPDX-License-Identifier: Apache-2.0
// Any text through every kind of tokenizer: encoded, decoded, and the same again where the
// vocabulary holds all bytes.
//
// The first byte chooses the vocabulary (tests/golden/tokenizer_*.gguf) and the options, the rest
// is the text.
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
enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

static gpw_tokenizer_t *open_one(const char *name)
{
    char path[512], error[GPW_GGUF_ERROR_BYTES];
    const char *file = __FILE__;
    int folder = (int)(strstr(file, "fuzz/") - file);
    snprintf(path, sizeof(path), "%.*sgolden/tokenizer_%s.gguf", folder, file, name);
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
    free(tokens);
    free(text);
    return 0;
}
