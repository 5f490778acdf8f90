// SPDX-License-Identifier: Apache-2.0
// Builds the tokenizer's tables from the file's: texts, their hash, merges, special and end tokens.
//
// Texts are stored as the bytes they stand for, so that encoding looks input bytes up as they are
// and decoding is a copy. All counts are bounded by the file's own size, which gguf.c has checked.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/tokenizer_internal.h"

#define TOKENS_MAX     (1u << 20)
#define MERGES_MAX     (1u << 22)
#define TEXT_BYTES_MAX (1u << 28)
#define HASH_SEED      0xcbf29ce484222325ull // FNV-1a
#define HASH_PRIME     0x100000001b3ull

// What is needed of the byte-level alphabet: byte of a code point below 324, -1 for none.
#define ALPHABET_MAX 324u

typedef struct loader {
    gpw_tokenizer_t *tokenizer;
    const gpw_gguf_t *gguf;
    char *error;
    int16_t byte_of[ALPHABET_MAX];
} loader_t;

static as_status_t fail(const loader_t *loader, as_status_t status, const char *text)
{
    snprintf(loader->error, GPW_GGUF_ERROR_BYTES, "%s", text);
    return status;
}

// Byte-level BPE writes bytes as printable characters: those that are printable in Latin-1 as
// themselves, the others as U+0100 and up, in order.
static void make_alphabet(int16_t byte_of[ALPHABET_MAX])
{
    memset(byte_of, -1, ALPHABET_MAX * sizeof(byte_of[0]));
    uint32_t next = 256;
    for (int16_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        byte_of[printable ? (uint32_t)byte : next++] = byte;
    }
}

// Decodes one character of the byte-level alphabet at *at_p; -1 when it is not one, with *at_p
// unchanged.
static int take_byte(const loader_t *loader, gpw_gguf_string_t text, size_t *at_p)
{
    const uint8_t *bytes = (const uint8_t *)text.text + *at_p;
    size_t left = text.bytes - *at_p;
    uint32_t point = bytes[0];
    size_t length = 1;
    if (left >= 2 && (bytes[0] & 0xe0) == 0xc0 && (bytes[1] & 0xc0) == 0x80) {
        point = (bytes[0] & 0x1fu) << 6 | (bytes[1] & 0x3fu);
        length = 2;
    } else if (bytes[0] >= 0x80) {
        return -1;
    }
    if (point >= ALPHABET_MAX || loader->byte_of[point] < 0) {
        return -1;
    }
    *at_p += length;
    return loader->byte_of[point];
}

// Writes the bytes that a byte-level text stands for; what is not of the alphabet stays as it is.
static size_t decode_byte_level(const loader_t *loader, gpw_gguf_string_t text, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < text.bytes;) {
        int byte = take_byte(loader, text, &at);
        out[written++] = byte >= 0 ? (char)byte : text.text[at++];
    }
    return written;
}

// Writes a SentencePiece text with U+2581 as space.
static size_t decode_spaces(gpw_gguf_string_t text, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < text.bytes;) {
        if (text.bytes - at >= 3 && memcmp(text.text + at, "\xe2\x96\x81", 3) == 0) {
            out[written++] = ' ';
            at += 3;
        } else {
            out[written++] = text.text[at++];
        }
    }
    return written;
}

static bool plain(uint8_t type)
{
    return type == GPW_TOKEN_NORMAL || type == GPW_TOKEN_UNUSED;
}

static uint64_t hash_text(const char *text, size_t bytes)
{
    uint64_t hash = HASH_SEED;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)text[i]) * HASH_PRIME;
    }
    return hash ^ hash >> 29;
}

static bool text_is(const gpw_tokenizer_t *tokenizer, int32_t token, const char *text, size_t bytes)
{
    uint32_t start = tokenizer->start[token];
    return tokenizer->start[token + 1] - start == bytes &&
           memcmp(tokenizer->text + start, text, bytes) == 0;
}

int32_t gpw_tokenizer_find(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes)
{
    if (bytes > tokenizer->word_bytes_max) {
        return -1;
    }
    uint32_t slot = (uint32_t)hash_text(text, bytes) & tokenizer->slot_mask;
    while (tokenizer->slots[slot] >= 0) {
        if (text_is(tokenizer, tokenizer->slots[slot], text, bytes)) {
            return tokenizer->slots[slot];
        }
        slot = (slot + 1) & tokenizer->slot_mask;
    }
    return -1;
}

// The later of two tokens with one text wins.
static void hash_token(gpw_tokenizer_t *tokenizer, int32_t token)
{
    const char *text = tokenizer->text + tokenizer->start[token];
    uint32_t bytes = tokenizer->start[token + 1] - tokenizer->start[token];
    uint32_t slot = (uint32_t)hash_text(text, bytes) & tokenizer->slot_mask;
    while (tokenizer->slots[slot] >= 0 &&
           !text_is(tokenizer, tokenizer->slots[slot], text, bytes)) {
        slot = (slot + 1) & tokenizer->slot_mask;
    }
    tokenizer->slots[slot] = token;
    if (bytes > tokenizer->word_bytes_max) {
        tokenizer->word_bytes_max = bytes;
    }
}

// A power of two of at least twice `count`: probes stay short.
static uint32_t table_size(uint32_t count)
{
    uint32_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    return size;
}

static uint32_t merge_slot(const gpw_tokenizer_t *tokenizer, int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(hash >> 32) & tokenizer->merge_mask;
}

const gpw_merge_t *gpw_tokenizer_find_merge(const gpw_tokenizer_t *tokenizer, int32_t left,
                                            int32_t right)
{
    uint32_t slot = merge_slot(tokenizer, left, right);
    while (tokenizer->merges[slot].left >= 0) {
        const gpw_merge_t *merge = &tokenizer->merges[slot];
        if (merge->left == left && merge->right == right) {
            return merge;
        }
        slot = (slot + 1) & tokenizer->merge_mask;
    }
    return NULL;
}

// The first of two equal merges has the better rank and stays.
static void add_merge(gpw_tokenizer_t *tokenizer, gpw_merge_t merge)
{
    uint32_t slot = merge_slot(tokenizer, merge.left, merge.right);
    while (tokenizer->merges[slot].left >= 0) {
        if (tokenizer->merges[slot].left == merge.left &&
            tokenizer->merges[slot].right == merge.right) {
            return;
        }
        slot = (slot + 1) & tokenizer->merge_mask;
    }
    tokenizer->merges[slot] = merge;
}

static as_status_t load_types(loader_t *loader)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    const gpw_gguf_entry_t *types = gpw_gguf_find(loader->gguf, "tokenizer.ggml.token_type");
    const gpw_gguf_entry_t *scores = gpw_gguf_find(loader->gguf, "tokenizer.ggml.scores");
    bool typed = types && types->type == GPW_GGUF_ARRAY && types->count == tokenizer->count &&
                 (types->element == GPW_GGUF_I32 || types->element == GPW_GGUF_U32);
    bool scored = scores && scores->type == GPW_GGUF_ARRAY && scores->count == tokenizer->count &&
                  scores->element == GPW_GGUF_F32;
    if (!typed || (tokenizer->spm && !scored)) {
        return fail(loader, AS_ERR_INVALID,
                    typed
                        ? "tokenizer.ggml.scores is missing or not one number for each token"
                        : "tokenizer.ggml.token_type is missing or not one number for each token");
    }
    tokenizer->type = as_mem_alloc(tokenizer->count);
    tokenizer->scores = tokenizer->spm ? as_mem_zalloc(tokenizer->count, sizeof(float)) : NULL;
    if (!tokenizer->type || (tokenizer->spm && !tokenizer->scores)) {
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < tokenizer->count; i++) {
        int32_t type = gpw_gguf_element_i32(types, i);
        tokenizer->type[i] =
            type >= GPW_TOKEN_NORMAL && type <= GPW_TOKEN_BYTE ? (uint8_t)type : GPW_TOKEN_UNUSED;
        if (tokenizer->spm) {
            float score = gpw_gguf_element_f32(scores, i);
            tokenizer->scores[i] = score == score ? score : -1e30f; // an order needs numbers
        }
    }
    return AS_OK;
}

// What a file may leave unsaid, or call user-defined, is known by its text. A mark of turns that is
// user-defined would be found in every text, also in a message.
static void load_mark(gpw_tokenizer_t *tokenizer, int32_t token)
{
    static const char *const ends[] = {"<|im_end|>",      "<|endoftext|>",   "<|eot_id|>",
                                       "<|eom_id|>",      "<|end_of_text|>", "<|end|>",
                                       "<|end_of_turn|>", "<end_of_turn>",   "</s>"};
    static const char *const others[] = {
        "<s>",    "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
        "[INST]", "[/INST]",      "[SYSTEM_PROMPT]",   "[/SYSTEM_PROMPT]"};
    uint8_t *type = &tokenizer->type[token];
    if (*type < GPW_TOKEN_UNKNOWN || *type > GPW_TOKEN_USER_DEFINED) {
        return;
    }
    bool mark = tokenizer->end[token];
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        mark |= text_is(tokenizer, token, ends[i], strlen(ends[i]));
    }
    tokenizer->end[token] = mark;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        mark |= text_is(tokenizer, token, others[i], strlen(others[i]));
    }
    if (mark && *type == GPW_TOKEN_USER_DEFINED) {
        *type = GPW_TOKEN_CONTROL;
    }
}

static void mark_end(gpw_tokenizer_t *tokenizer, const gpw_gguf_t *gguf, const char *key)
{
    uint32_t token;
    if (gpw_gguf_u32(gguf, key, &token) && token < tokenizer->count) {
        tokenizer->end[token] = true;
    }
}

// The end tokens that the file names; load_mark finds the rest.
static as_status_t load_ends(loader_t *loader)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    tokenizer->end = as_mem_zalloc(tokenizer->count, sizeof(bool));
    if (!tokenizer->end) {
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    mark_end(tokenizer, loader->gguf, "tokenizer.ggml.eos_token_id");
    mark_end(tokenizer, loader->gguf, "tokenizer.ggml.eot_token_id");
    mark_end(tokenizer, loader->gguf, "tokenizer.ggml.eom_token_id");
    return AS_OK;
}

static size_t decode_text(const loader_t *loader, uint32_t token, gpw_gguf_string_t text, char *out)
{
    const gpw_tokenizer_t *tokenizer = loader->tokenizer;
    if (!tokenizer->spm && plain(tokenizer->type[token])) {
        return decode_byte_level(loader, text, out);
    }
    if (tokenizer->spm && tokenizer->type[token] == GPW_TOKEN_BYTE) {
        unsigned byte;
        char written[8] = {0};
        memcpy(written, text.text, text.bytes < 7 ? text.bytes : 7);
        if (text.bytes == 6 && sscanf(written, "<0x%2X>", &byte) == 1) {
            out[0] = (char)byte;
            return 1;
        }
    }
    if (tokenizer->spm && tokenizer->type[token] != GPW_TOKEN_CONTROL) {
        return decode_spaces(text, out);
    }
    memcpy(out, text.text, text.bytes);
    return text.bytes;
}

static as_status_t load_texts(loader_t *loader, const gpw_gguf_entry_t *tokens)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    const uint8_t *cursor = tokens->data;
    size_t bytes = 0;
    for (uint32_t i = 0; i < tokenizer->count; i++) {
        bytes += gpw_gguf_next_string(&cursor).bytes;
        if (bytes > TEXT_BYTES_MAX) {
            return fail(loader, AS_ERR_LIMIT, "the vocabulary's texts exceed 256 MiB");
        }
    }
    tokenizer->text = as_mem_alloc(bytes + 1);
    tokenizer->start = as_mem_zalloc((size_t)tokenizer->count + 1, sizeof(uint32_t));
    uint32_t slots = table_size(tokenizer->count);
    tokenizer->slots = as_mem_alloc(slots * sizeof(int32_t));
    tokenizer->slot_mask = slots - 1;
    if (!tokenizer->text || !tokenizer->start || !tokenizer->slots) {
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    memset(tokenizer->slots, -1, slots * sizeof(int32_t));
    memset(tokenizer->byte_token, -1, sizeof(tokenizer->byte_token));
    cursor = tokens->data;
    for (uint32_t i = 0; i < tokenizer->count; i++) {
        gpw_gguf_string_t text = gpw_gguf_next_string(&cursor);
        uint32_t at = tokenizer->start[i];
        uint32_t length = (uint32_t)decode_text(loader, i, text, tokenizer->text + at);
        tokenizer->start[i + 1] = at + length;
        tokenizer->token_bytes_max =
            length > tokenizer->token_bytes_max ? length : tokenizer->token_bytes_max;
        load_mark(tokenizer, (int32_t)i);
        bool user = tokenizer->spm && tokenizer->type[i] == GPW_TOKEN_USER_DEFINED;
        if (plain(tokenizer->type[i]) || user) {
            hash_token(tokenizer, (int32_t)i);
        }
        bool byte = length == 1 && (tokenizer->spm ? tokenizer->type[i] == GPW_TOKEN_BYTE
                                                   : plain(tokenizer->type[i]));
        if (byte) {
            tokenizer->byte_token[(uint8_t)tokenizer->text[at]] = (int32_t)i;
        }
    }
    return AS_OK;
}

// "left right", both byte-level texts.
static as_status_t load_merge(loader_t *loader, gpw_gguf_string_t line, int32_t rank, char *buffer)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    const char *space = line.bytes > 1 ? memchr(line.text + 1, ' ', line.bytes - 1) : NULL;
    if (!space) {
        return fail(loader, AS_ERR_INVALID,
                    "tokenizer.ggml.merges holds a line that is not a pair");
    }
    gpw_gguf_string_t left = {line.text, (size_t)(space - line.text)};
    gpw_gguf_string_t right = {space + 1, line.bytes - left.bytes - 1};
    size_t left_bytes = decode_byte_level(loader, left, buffer);
    size_t right_bytes = decode_byte_level(loader, right, buffer + left_bytes);
    gpw_merge_t merge = {.left = gpw_tokenizer_find(tokenizer, buffer, left_bytes),
                         .right = gpw_tokenizer_find(tokenizer, buffer + left_bytes, right_bytes),
                         .rank = rank,
                         .result = gpw_tokenizer_find(tokenizer, buffer, left_bytes + right_bytes)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
        return fail(loader, AS_ERR_INVALID,
                    "tokenizer.ggml.merges names a token that is not in the vocabulary");
    }
    add_merge(tokenizer, merge);
    return AS_OK;
}

static as_status_t load_merges(loader_t *loader)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    const gpw_gguf_entry_t *merges = gpw_gguf_find(loader->gguf, "tokenizer.ggml.merges");
    if (!merges || merges->type != GPW_GGUF_ARRAY || merges->element != GPW_GGUF_STRING ||
        merges->count > MERGES_MAX) {
        return fail(loader, AS_ERR_INVALID,
                    "tokenizer.ggml.merges is missing or not a list of up to 4 million strings");
    }
    uint32_t size = table_size((uint32_t)merges->count);
    tokenizer->merges = as_mem_alloc(size * sizeof(gpw_merge_t));
    tokenizer->merge_mask = size - 1;
    char *buffer = as_mem_alloc(2 * (size_t)tokenizer->word_bytes_max + 64);
    if (!tokenizer->merges || !buffer) {
        as_mem_free(buffer);
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    memset(tokenizer->merges, -1, size * sizeof(gpw_merge_t));
    as_status_t status = AS_OK;
    const uint8_t *cursor = merges->data;
    for (uint64_t i = 0; i < merges->count && status == AS_OK; i++) {
        gpw_gguf_string_t line = gpw_gguf_next_string(&cursor);
        if (line.bytes > 2 * (size_t)tokenizer->word_bytes_max + 1) {
            status = fail(loader, AS_ERR_INVALID, "tokenizer.ggml.merges holds an overlong line");
            break;
        }
        status = load_merge(loader, line, (int32_t)i, buffer);
    }
    as_mem_free(buffer);
    return status;
}

static int32_t text_bytes(const gpw_tokenizer_t *tokenizer, int32_t token)
{
    return (int32_t)(tokenizer->start[token + 1] - tokenizer->start[token]);
}

// Longest first, then by id.
static int compare_special(const void *a, const void *b, void *ctx)
{
    int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    int32_t first_bytes = text_bytes(ctx, first), second_bytes = text_bytes(ctx, second);
    if (first_bytes != second_bytes) {
        return first_bytes > second_bytes ? -1 : 1;
    }
    return first < second ? -1 : 1;
}

static as_status_t load_special(loader_t *loader)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    uint32_t count = 0;
    for (uint32_t i = 0; i < tokenizer->count; i++) {
        uint8_t type = tokenizer->type[i];
        count += type >= GPW_TOKEN_UNKNOWN && type <= GPW_TOKEN_USER_DEFINED;
    }
    tokenizer->special = as_mem_zalloc(count, sizeof(int32_t));
    if (!tokenizer->special) {
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < tokenizer->count; i++) {
        uint8_t type = tokenizer->type[i];
        bool special = type >= GPW_TOKEN_UNKNOWN && type <= GPW_TOKEN_USER_DEFINED;
        if (special && text_bytes(tokenizer, (int32_t)i) > 0) {
            tokenizer->special[tokenizer->special_count++] = (int32_t)i;
            tokenizer->special_first[(uint8_t)tokenizer->text[tokenizer->start[i]]] |=
                type == GPW_TOKEN_USER_DEFINED ? 1 : 2;
        }
    }
    qsort_r(tokenizer->special, tokenizer->special_count, sizeof(int32_t), compare_special,
            tokenizer);
    return AS_OK;
}

static int32_t read_token(const loader_t *loader, const char *key)
{
    uint32_t token;
    bool known = gpw_gguf_u32(loader->gguf, key, &token) && token < loader->tokenizer->count;
    return known ? (int32_t)token : -1;
}

static as_status_t load_settings(loader_t *loader)
{
    gpw_tokenizer_t *tokenizer = loader->tokenizer;
    tokenizer->bos = read_token(loader, "tokenizer.ggml.bos_token_id");
    tokenizer->eos = read_token(loader, "tokenizer.ggml.eos_token_id");
    gpw_gguf_bool(loader->gguf, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos);
    gpw_gguf_bool(loader->gguf, "tokenizer.ggml.add_space_prefix", &tokenizer->add_space_prefix);
    gpw_gguf_string_t text = {"", 0};
    if (!gpw_gguf_text(loader->gguf, "tokenizer.chat_template", &text)) {
        return AS_OK;
    }
    tokenizer->chat_template = as_mem_zalloc(text.bytes + 1, 1);
    if (!tokenizer->chat_template) {
        return fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    memcpy(tokenizer->chat_template, text.text, text.bytes);
    return AS_OK;
}

as_status_t gpw_tokenizer_load_tables(gpw_tokenizer_t *tokenizer, const gpw_gguf_t *gguf,
                                      char *error)
{
    loader_t loader = {.tokenizer = tokenizer, .gguf = gguf, .error = error};
    make_alphabet(loader.byte_of);
    const gpw_gguf_entry_t *tokens = gpw_gguf_find(gguf, "tokenizer.ggml.tokens");
    if (!tokens || tokens->type != GPW_GGUF_ARRAY || tokens->element != GPW_GGUF_STRING ||
        tokens->count == 0 || tokens->count > TOKENS_MAX) {
        return fail(&loader, AS_ERR_INVALID,
                    "tokenizer.ggml.tokens is missing or not a list of up to a million strings");
    }
    tokenizer->count = (uint32_t)tokens->count;
    as_status_t status = load_types(&loader);
    if (status == AS_OK) {
        status = load_ends(&loader);
    }
    if (status == AS_OK) {
        status = load_texts(&loader, tokens);
    }
    if (status == AS_OK && !tokenizer->spm) {
        status = load_merges(&loader);
    }
    if (status == AS_OK) {
        status = load_special(&loader);
    }
    if (status == AS_OK) {
        status = load_settings(&loader);
    }
    return status;
}
