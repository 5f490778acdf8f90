// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: words from the pre-tokenizer, each merged pair by pair in order of rank.
//
// A word is a linked list of tokens, at first one a byte. A heap holds the pairs that have a merge,
// by (rank, place). A popped pair whose tokens have changed since is stale and skipped: a token
// never comes back to a place once it has been merged away, because merges only make longer ones.
// Each merge pushes at most two pairs, so a word of n bytes costs O(n log n) and 3 n heap entries.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/tokenizer_internal.h"

#define WORD_BYTES_SMALL 64u // on the stack; nearly all words
#define NONE             UINT32_MAX

typedef struct node {
    int32_t token; // -1: merged into its left neighbour
    uint32_t previous, next;
} node_t;

typedef struct pair {
    const gpw_merge_t *merge;
    uint32_t left; // node
} pair_t;

typedef struct word {
    const gpw_tokenizer_t *tokenizer;
    node_t *nodes;
    pair_t *heap;
    uint32_t heap_count, heap_max;
} word_t;

typedef struct encoding {
    const gpw_tokenizer_t *tokenizer;
    gpw_token_list_t *list;
} encoding_t;

static bool before(pair_t a, pair_t b)
{
    return a.merge->rank != b.merge->rank ? a.merge->rank < b.merge->rank : a.left < b.left;
}

static void heap_push(word_t *word, pair_t pair)
{
    AS_ASSERT(word->heap_count < word->heap_max);
    uint32_t at = word->heap_count++;
    while (at > 0 && before(pair, word->heap[(at - 1) / 2])) {
        word->heap[at] = word->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    word->heap[at] = pair;
}

static pair_t heap_pop(word_t *word)
{
    pair_t top = word->heap[0];
    pair_t last = word->heap[--word->heap_count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < word->heap_count; child = 2 * at + 1) {
        if (child + 1 < word->heap_count && before(word->heap[child + 1], word->heap[child])) {
            child++;
        }
        if (!before(word->heap[child], last)) {
            break;
        }
        word->heap[at] = word->heap[child];
        at = child;
    }
    word->heap[at] = last;
    return top;
}

// Pushes the pair that begins at `left`, if it has a merge.
static void offer(word_t *word, uint32_t left)
{
    if (left == NONE || word->nodes[left].next == NONE) {
        return;
    }
    const gpw_merge_t *merge = gpw_tokenizer_find_merge(word->tokenizer, word->nodes[left].token,
                                                        word->nodes[word->nodes[left].next].token);
    if (merge) {
        heap_push(word, (pair_t){.merge = merge, .left = left});
    }
}

static void merge_all(word_t *word)
{
    node_t *nodes = word->nodes;
    while (word->heap_count > 0) {
        pair_t pair = heap_pop(word);
        node_t *left = &nodes[pair.left];
        bool fresh = left->token == pair.merge->left && left->next != NONE &&
                     nodes[left->next].token == pair.merge->right;
        if (!fresh) {
            continue;
        }
        node_t *right = &nodes[left->next];
        right->token = -1;
        left->token = pair.merge->result;
        left->next = right->next;
        if (left->next != NONE) {
            nodes[left->next].previous = pair.left;
        }
        offer(word, left->previous);
        offer(word, pair.left);
    }
}

static as_status_t encode_word(encoding_t *encoding, word_t *word, const char *text, uint32_t bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        int32_t token = word->tokenizer->byte_token[(uint8_t)text[i]];
        if (token >= 0) { // a byte without a token is left out
            word->nodes[count] = (node_t){.token = token, .previous = count - 1, .next = count + 1};
            count++;
        }
    }
    if (count == 0) {
        return AS_OK;
    }
    word->nodes[0].previous = NONE;
    word->nodes[count - 1].next = NONE;
    for (uint32_t i = 0; i + 1 < count; i++) {
        offer(word, i);
    }
    merge_all(word);
    as_status_t status = AS_OK;
    for (uint32_t at = 0; at != NONE && status == AS_OK; at = word->nodes[at].next) {
        status = gpw_token_list_add(encoding->list, word->nodes[at].token);
    }
    return status;
}

// Whether even the longest tokens would not bring the word into the room that is left. Then it is
// not worth merging.
static bool beyond_room(const encoding_t *encoding, const char *text, size_t bytes)
{
    const gpw_tokenizer_t *tokenizer = encoding->tokenizer;
    size_t room = encoding->list->max - encoding->list->count, spelled = 0;
    for (size_t i = 0; i < bytes; i++) {
        spelled += tokenizer->byte_token[(uint8_t)text[i]] >= 0;
    }
    return spelled > room * tokenizer->word_bytes_max;
}

static as_status_t encode_long_word(encoding_t *encoding, const char *text, size_t bytes)
{
    if (bytes > UINT32_MAX / 4 || beyond_room(encoding, text, bytes)) {
        return AS_ERR_LIMIT;
    }
    word_t word = {.tokenizer = encoding->tokenizer, .heap_max = 3 * (uint32_t)bytes};
    word.nodes = as_mem_alloc(bytes * sizeof(node_t));
    word.heap = as_mem_alloc(word.heap_max * sizeof(pair_t));
    as_status_t status = AS_ERR_NO_MEMORY;
    if (word.nodes && word.heap) {
        status = encode_word(encoding, &word, text, (uint32_t)bytes);
    }
    as_mem_free(word.nodes);
    as_mem_free(word.heap);
    return status;
}

static as_status_t on_word(void *ctx, const char *text, size_t bytes)
{
    encoding_t *encoding = ctx;
    if (encoding->tokenizer->whole_words_first) {
        int32_t token = gpw_tokenizer_find(encoding->tokenizer, text, bytes);
        if (token >= 0) {
            return gpw_token_list_add(encoding->list, token);
        }
    }
    if (bytes > WORD_BYTES_SMALL) {
        return encode_long_word(encoding, text, bytes);
    }
    node_t nodes[WORD_BYTES_SMALL];
    pair_t heap[3 * WORD_BYTES_SMALL];
    word_t word = {.tokenizer = encoding->tokenizer,
                   .nodes = nodes,
                   .heap = heap,
                   .heap_max = 3 * WORD_BYTES_SMALL};
    return encode_word(encoding, &word, text, (uint32_t)bytes);
}

as_status_t gpw_bpe_encode(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                           gpw_token_list_t *list)
{
    encoding_t encoding = {.tokenizer = tokenizer, .list = list};
    return gpw_split_run(&tokenizer->split, text, bytes, on_word, &encoding);
}
