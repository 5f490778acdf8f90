// SPDX-License-Identifier: Apache-2.0
// What the files of the tokenizer share: its tables, and the list of tokens that encoding appends
// to.
#ifndef GPW_TOKENIZER_INTERNAL_H
#define GPW_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "gpuworker/model/gguf.h"
#include "gpuworker/model/tokenizer.h"

#define GPW_SPLIT_PASSES_MAX 4u

// The numbers are the file format's.
typedef enum gpw_token_type {
    GPW_TOKEN_NORMAL = 1,
    GPW_TOKEN_UNKNOWN = 2,
    GPW_TOKEN_CONTROL = 3,
    GPW_TOKEN_USER_DEFINED = 4,
    GPW_TOKEN_UNUSED = 5,
    GPW_TOKEN_BYTE = 6
} gpw_token_type_t;

// One merge of two tokens into a third; `left` is -1 in a free slot.
typedef struct gpw_merge {
    int32_t left, right;
    int32_t rank;
    int32_t result;
} gpw_merge_t;

// The regular expressions that cut text into words. Each pass cuts the pieces of the one before.
typedef struct gpw_split {
    pcre2_code *passes[GPW_SPLIT_PASSES_MAX];
    uint32_t count;
} gpw_split_t;

struct gpw_tokenizer {
    bool spm;
    uint32_t count;
    // Text of token i: text[start[i] .. start[i + 1]), as the bytes that it stands for: byte-level
    // characters are decoded, U+2581 is a space.
    char *text;
    uint32_t *start;
    uint8_t *type;
    float *scores;  // SentencePiece; NULL otherwise
    int32_t *slots; // hash of the texts that words may become; -1 free
    uint32_t slot_mask;
    uint32_t word_bytes_max;  // longest text in the hash
    uint32_t token_bytes_max; // longest text of all tokens
    int32_t byte_token[256];  // -1: no token for this byte
    gpw_merge_t *merges;      // hash by (left, right)
    uint32_t merge_mask;
    int32_t *special; // control and user-defined tokens, longest first
    uint32_t special_count;
    // By first byte: bit 0, a user-defined token begins with it; bit 1, another special token does.
    uint8_t special_first[256];
    bool *end;        // [count]
    int32_t bos, eos; // -1: none
    bool add_bos, add_space_prefix, whole_words_first;
    gpw_split_t split;
    char *chat_template; // NULL: none
};

// Tokens being written.
typedef struct gpw_token_list {
    int32_t *tokens;
    size_t count, max;
} gpw_token_list_t;

as_status_t gpw_token_list_add(gpw_token_list_t *list, int32_t token) AS_MUST_USE;
// Token of exactly this text among normal and user-defined ones, or -1.
int32_t gpw_tokenizer_find(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes);
const gpw_merge_t *gpw_tokenizer_find_merge(const gpw_tokenizer_t *tokenizer, int32_t left,
                                            int32_t right);

// tokenizer_split.c
typedef as_status_t (*gpw_word_fn)(void *ctx, const char *word, size_t bytes);
as_status_t gpw_split_init(const char *name, size_t name_bytes, gpw_split_t *split, bool *add_bos_p,
                           bool *whole_words_first_p) AS_MUST_USE;
void gpw_split_fini(gpw_split_t *split);
as_status_t gpw_split_run(const gpw_split_t *split, const char *text, size_t bytes,
                          gpw_word_fn word, void *ctx) AS_MUST_USE;

// tokenizer_tables.c
as_status_t gpw_tokenizer_load_tables(gpw_tokenizer_t *tokenizer, const gpw_gguf_t *gguf,
                                      char *error) AS_MUST_USE;

// tokenizer_bpe.c, tokenizer_spm.c: text without special tokens.
as_status_t gpw_bpe_encode(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                           gpw_token_list_t *list) AS_MUST_USE;
as_status_t gpw_spm_encode(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                           bool space_before, gpw_token_list_t *list) AS_MUST_USE;

#endif
