// SPDX-License-Identifier: Apache-2.0
// The tokenizer's face: which kind it is, cutting text at special tokens, encoding the rest,
// decoding.
//
// At each place the longest special token that fits wins. User-defined tokens are always found;
// control tokens only in text that is a template's own, so that a user's text cannot forge the
// turns of a conversation. Control tokens are found first: a user-defined token that begins in a
// message cannot swallow one of the template.
#include "gpuworker/model/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/tokenizer_internal.h"

static as_status_t fail_name(char *error, const char *what, gpw_gguf_string_t name,
                             const char *known)
{
    snprintf(error, GPW_GGUF_ERROR_BYTES, "%s \"%.*s\" is not supported (%s)", what,
             name.bytes < 60 ? (int)name.bytes : 60, name.text, known);
    return AS_ERR_UNSUPPORTED;
}

static as_status_t init_kind(gpw_tokenizer_t *tokenizer, const gpw_gguf_t *gguf, char *error)
{
    gpw_gguf_string_t model = {"none", 4};
    gpw_gguf_string_t pre = {"default", 7};
    gpw_gguf_text(gguf, "tokenizer.ggml.model", &model);
    gpw_gguf_text(gguf, "tokenizer.ggml.pre", &pre);
    tokenizer->spm = gpw_gguf_string_is(model, "llama");
    if (tokenizer->spm) {
        tokenizer->add_bos = true;
        tokenizer->add_space_prefix = true;
        return AS_OK;
    }
    if (!gpw_gguf_string_is(model, "gpt2")) {
        return fail_name(error, "tokenizer", model, "gpt2 and llama are");
    }
    as_status_t status = gpw_split_init(pre.text, pre.bytes, &tokenizer->split, &tokenizer->add_bos,
                                        &tokenizer->whole_words_first);
    if (status == AS_ERR_UNSUPPORTED) {
        return fail_name(error, "pre-tokenizer", pre,
                         "smollm, gpt-2, default, llama-bpe, qwen2, tekken and kin are");
    }
    if (status != AS_OK) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "out of memory for the tokenizer");
    }
    return status;
}

as_status_t gpw_tokenizer_alloc(const gpw_gguf_t *gguf, char *error, gpw_tokenizer_t **tokenizer_p)
{
    gpw_tokenizer_t *tokenizer = as_mem_zalloc(1, sizeof(*tokenizer));
    if (!tokenizer) {
        snprintf(error, GPW_GGUF_ERROR_BYTES, "out of memory");
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status = init_kind(tokenizer, gguf, error);
    if (status == AS_OK) {
        status = gpw_tokenizer_load_tables(tokenizer, gguf, error);
    }
    if (status != AS_OK) {
        gpw_tokenizer_free(tokenizer);
        return status;
    }
    *tokenizer_p = tokenizer;
    return AS_OK;
}

void gpw_tokenizer_free(gpw_tokenizer_t *tokenizer)
{
    if (!tokenizer) {
        return;
    }
    gpw_split_fini(&tokenizer->split);
    as_mem_free(tokenizer->text);
    as_mem_free(tokenizer->start);
    as_mem_free(tokenizer->type);
    as_mem_free(tokenizer->scores);
    as_mem_free(tokenizer->slots);
    as_mem_free(tokenizer->merges);
    as_mem_free(tokenizer->special);
    as_mem_free(tokenizer->end);
    as_mem_free(tokenizer->chat_template);
    as_mem_free(tokenizer);
}

as_status_t gpw_token_list_add(gpw_token_list_t *list, int32_t token)
{
    if (list->count == list->max) {
        return AS_ERR_LIMIT;
    }
    list->tokens[list->count++] = token;
    return AS_OK;
}

static size_t token_bytes(const gpw_tokenizer_t *tokenizer, int32_t token)
{
    return tokenizer->start[token + 1] - tokenizer->start[token];
}

// The longest special token that `text` begins with, or -1.
static int32_t special_at(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                          bool control)
{
    if (!(tokenizer->special_first[(uint8_t)text[0]] & (control ? 3 : 1))) {
        return -1;
    }
    for (uint32_t i = 0; i < tokenizer->special_count; i++) {
        int32_t token = tokenizer->special[i];
        size_t length = token_bytes(tokenizer, token);
        bool wanted = control || tokenizer->type[token] == GPW_TOKEN_USER_DEFINED;
        if (wanted && length <= bytes &&
            memcmp(tokenizer->text + tokenizer->start[token], text, length) == 0) {
            return token;
        }
    }
    return -1;
}

// Reads the control tokens of a prompt's template text, in order.
typedef struct reader {
    const gpw_tokenizer_t *tokenizer;
    const char *text;
    const gpw_prompt_segment_t *segments;
    size_t segment_count;
    size_t segment, segment_start, at; // segment: the one that holds `at`
} reader_t;

// The next control token, and where it begins; -1: none, and where the prompt ends. A user-defined
// token that the template spells hides what is inside it.
static int32_t next_control(reader_t *reader, size_t *start_p)
{
    for (; reader->segment < reader->segment_count; reader->segment++) {
        const gpw_prompt_segment_t *segment = &reader->segments[reader->segment];
        size_t end = reader->segment_start + segment->bytes;
        while (!segment->content && reader->at < end) {
            size_t at = reader->at;
            int32_t token = special_at(reader->tokenizer, reader->text + at, end - at, true);
            reader->at += token < 0 ? 1 : token_bytes(reader->tokenizer, token);
            if (token >= 0 && reader->tokenizer->type[token] != GPW_TOKEN_USER_DEFINED) {
                *start_p = at;
                return token;
            }
        }
        reader->segment_start = reader->at = end;
    }
    *start_p = reader->at;
    return -1;
}

// Bytes of `text` before the next user-defined token, which is *token_p (-1: none, all of it).
static size_t plain_bytes(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                          int32_t *token_p)
{
    for (size_t at = 0; at < bytes; at++) {
        *token_p = special_at(tokenizer, text + at, bytes - at, false);
        if (*token_p >= 0) {
            return at;
        }
    }
    *token_p = -1;
    return bytes;
}

// Text between two control tokens.
static as_status_t encode_between(const gpw_tokenizer_t *tokenizer, const char *text,
                                  size_t text_bytes, gpw_token_list_t *list)
{
    as_status_t status = AS_OK;
    for (size_t at = 0; at < text_bytes && status == AS_OK;) {
        int32_t special;
        size_t bytes = plain_bytes(tokenizer, text + at, text_bytes - at, &special);
        if (bytes > 0 && tokenizer->spm) { // always after a special token, or at the beginning
            status = gpw_spm_encode(tokenizer, text + at, bytes, tokenizer->add_space_prefix, list);
        } else if (bytes > 0) {
            status = gpw_bpe_encode(tokenizer, text + at, bytes, list);
        }
        at += bytes;
        if (status == AS_OK && special >= 0) {
            status = gpw_token_list_add(list, special);
            at += token_bytes(tokenizer, special);
        }
    }
    return status;
}

static as_status_t encode_segments(reader_t reader, bool add_bos, gpw_token_list_t *list)
{
    const gpw_tokenizer_t *tokenizer = reader.tokenizer;
    as_status_t status = AS_OK;
    size_t start, from = 0;
    int32_t control = next_control(&reader, &start);
    bool has_bos = control >= 0 && control == tokenizer->bos && start == 0;
    if (add_bos && tokenizer->add_bos && tokenizer->bos >= 0 && !has_bos) {
        status = gpw_token_list_add(list, tokenizer->bos);
    }
    while (status == AS_OK) {
        status = encode_between(tokenizer, reader.text + from, start - from, list);
        if (control < 0 || status != AS_OK) {
            break;
        }
        status = gpw_token_list_add(list, control);
        from = start + token_bytes(tokenizer, control);
        control = next_control(&reader, &start);
    }
    return status;
}

as_status_t gpw_tokenizer_encode(const gpw_tokenizer_t *tokenizer, const char *text,
                                 size_t text_bytes, gpw_encode_options_t options, int32_t *tokens,
                                 size_t tokens_max, size_t *count_p)
{
    gpw_token_list_t list = {.tokens = tokens, .max = tokens_max};
    gpw_prompt_segment_t whole = {.bytes = text_bytes, .content = !options.parse_special};
    reader_t reader = {
        .tokenizer = tokenizer, .text = text, .segments = &whole, .segment_count = 1};
    as_status_t status = encode_segments(reader, options.add_bos, &list);
    if (status == AS_OK) {
        *count_p = list.count;
    }
    return status;
}

as_status_t gpw_tokenizer_encode_prompt(const gpw_tokenizer_t *tokenizer,
                                        const gpw_prompt_t *prompt, int32_t *tokens,
                                        size_t tokens_max, size_t *count_p)
{
    gpw_token_list_t list = {.tokens = tokens, .max = tokens_max};
    reader_t reader = {.tokenizer = tokenizer,
                       .text = prompt->text,
                       .segments = prompt->segments,
                       .segment_count = prompt->segment_count};
    as_status_t status = encode_segments(reader, true, &list);
    if (status == AS_OK) {
        *count_p = list.count;
    }
    return status;
}

size_t gpw_tokenizer_text_bytes_max(const gpw_tokenizer_t *tokenizer, size_t tokens)
{
    size_t space_bytes = tokenizer->spm ? 3 : 1; // a text's U+2581 is the one byte of a space
    return tokens * tokenizer->token_bytes_max * space_bytes;
}

size_t gpw_tokenizer_decode(const gpw_tokenizer_t *tokenizer, int32_t token, bool special,
                            char *text, size_t text_bytes_max)
{
    AS_ASSERT(token >= 0 && (uint32_t)token < tokenizer->count);
    uint8_t type = tokenizer->type[token];
    if (!special && (type == GPW_TOKEN_CONTROL || type == GPW_TOKEN_UNKNOWN)) {
        return 0;
    }
    size_t bytes = token_bytes(tokenizer, token);
    memcpy(text, tokenizer->text + tokenizer->start[token],
           bytes < text_bytes_max ? bytes : text_bytes_max);
    return bytes;
}

bool gpw_tokenizer_is_end(const gpw_tokenizer_t *tokenizer, int32_t token)
{
    AS_ASSERT(token >= 0 && (uint32_t)token < tokenizer->count);
    return tokenizer->end[token];
}

int32_t gpw_tokenizer_vocab(const gpw_tokenizer_t *tokenizer)
{
    return (int32_t)tokenizer->count;
}
