// SPDX-License-Identifier: Apache-2.0
// Tokenizer from the GGUF's own tables: byte-level BPE ("gpt2") and SentencePiece-BPE ("llama").
#ifndef GPW_TOKENIZER_H
#define GPW_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

typedef struct gpw_tokenizer gpw_tokenizer_t;
struct gpw_gguf;

// Builds the tokenizer of an open file; nothing of the file is needed afterwards. AS_ERR_INVALID
// (damaged tables), AS_ERR_UNSUPPORTED (model or pre-tokenizer, named in `error` of
// GPW_GGUF_ERROR_BYTES), AS_ERR_NO_MEMORY.
as_status_t gpw_tokenizer_alloc(const struct gpw_gguf *gguf, char *error,
                                gpw_tokenizer_t **tokenizer_p) AS_MUST_USE;
void gpw_tokenizer_free(gpw_tokenizer_t *tokenizer);

typedef struct gpw_encode_options {
    bool add_bos; // as the model's own setting says, if it wants one; never a second one before a
                  // parsed BOS
    bool parse_special; // text such as "<|im_start|>" becomes its control token: only for text that
                        // no user wrote
} gpw_encode_options_t;

// Tokens of `text`. Writes at most tokens_max and AS_ERR_LIMIT beyond; count_p gets the count. Any
// bytes are accepted; those that the vocabulary cannot express are left out, as the models' own
// tokenizers do. Thread-safe (the tokenizer is immutable). O(n log n) in the text, of which little
// is looked at beyond what fills tokens_max.
as_status_t gpw_tokenizer_encode(const gpw_tokenizer_t *tokenizer, const char *text,
                                 size_t text_bytes, gpw_encode_options_t options, int32_t *tokens,
                                 size_t tokens_max, size_t *count_p) AS_MUST_USE;
// Most bytes of text that so many tokens can spell: a longer text needs more of them, or none for
// most of its bytes.
size_t gpw_tokenizer_text_bytes_max(const gpw_tokenizer_t *tokenizer, size_t tokens);
// Bytes of one token: may be part of a UTF-8 character; control tokens give "" unless `special`.
// Writes at most text_bytes_max bytes, without a NUL, and returns the token's whole length.
size_t gpw_tokenizer_decode(const gpw_tokenizer_t *tokenizer, int32_t token, bool special,
                            char *text, size_t text_bytes_max);
bool gpw_tokenizer_is_end(const gpw_tokenizer_t *tokenizer,
                          int32_t token); // EOS, EOT, <|im_end|> ...
int32_t gpw_tokenizer_vocab(const gpw_tokenizer_t *tokenizer);

typedef struct gpw_chat_message {
    const char *role;
    const char *content;
} gpw_chat_message_t;
// A run of a prompt's bytes by one author.
typedef struct gpw_prompt_segment {
    size_t bytes;
    bool content; // from a message; else the template's own
} gpw_prompt_segment_t;
typedef struct gpw_prompt {
    char *text;                     // ends with a NUL
    gpw_prompt_segment_t *segments; // in order, all of the text
    size_t segment_count;
} gpw_prompt_t;
// The prompt of a conversation by the model's chat template, with the assistant's turn opened;
// gpw_prompt_fini it. AS_ERR_UNSUPPORTED when the template is of no known family; AS_ERR_INVALID
// for an unknown role, or an order of roles that the template forbids; *prompt is then unchanged.
as_status_t gpw_tokenizer_chat(const gpw_tokenizer_t *tokenizer, const gpw_chat_message_t *messages,
                               size_t count, gpw_prompt_t *prompt) AS_MUST_USE;
void gpw_prompt_fini(gpw_prompt_t *prompt);
// Tokens of a prompt, with a BOS as the model wants it. A control token is parsed only where the
// template spells all of it, so no message can forge one. What is between two control tokens is
// encoded as one text, whoever wrote it. Otherwise as gpw_tokenizer_encode.
as_status_t gpw_tokenizer_encode_prompt(const gpw_tokenizer_t *tokenizer,
                                        const gpw_prompt_t *prompt, int32_t *tokens,
                                        size_t tokens_max, size_t *count_p) AS_MUST_USE;

#endif
