// SPDX-License-Identifier: Apache-2.0
// SentencePiece-BPE: characters merged pair by pair in order of score, bytes for what the
// vocabulary lacks.
//
// Symbols are runs of the text, in a linked list; two neighbours may merge when the text they cover
// is a token. A heap holds such pairs by (score, place), and stale ones (a symbol's length has
// changed) are skipped, as in tokenizer_bpe.c. Spaces are spaces here: the tables hold U+2581 as
// one, so the text's own U+2581 are turned into them too.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/tokenizer_internal.h"

#define NONE           UINT32_MAX
#define TEXT_BYTES_MAX (1u << 28)

typedef struct symbol {
    uint32_t start, bytes; // 0 bytes: merged into its left neighbour
    uint32_t previous, next;
} symbol_t;

typedef struct pair {
    float score;
    uint32_t left;  // symbol
    uint32_t bytes; // of both
} pair_t;

typedef struct work {
    const gpw_tokenizer_t *tokenizer;
    char *text;
    uint32_t bytes;
    symbol_t *symbols;
    uint32_t count;
    pair_t *heap;
    uint32_t heap_count, heap_max;
} work_t;

static bool before(pair_t a, pair_t b)
{
    return a.score != b.score ? a.score > b.score : a.left < b.left;
}

static void heap_push(work_t *work, pair_t pair)
{
    AS_ASSERT(work->heap_count < work->heap_max);
    uint32_t at = work->heap_count++;
    while (at > 0 && before(pair, work->heap[(at - 1) / 2])) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = pair;
}

static pair_t heap_pop(work_t *work)
{
    pair_t top = work->heap[0];
    pair_t last = work->heap[--work->heap_count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < work->heap_count; child = 2 * at + 1) {
        if (child + 1 < work->heap_count && before(work->heap[child + 1], work->heap[child])) {
            child++;
        }
        if (!before(work->heap[child], last)) {
            break;
        }
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = last;
    return top;
}

static void offer(work_t *work, uint32_t left)
{
    if (left == NONE || work->symbols[left].next == NONE) {
        return;
    }
    const symbol_t *symbol = &work->symbols[left];
    uint32_t bytes = symbol->bytes + work->symbols[symbol->next].bytes;
    int32_t token = gpw_tokenizer_find(work->tokenizer, work->text + symbol->start, bytes);
    if (token >= 0) {
        heap_push(work, (pair_t){work->tokenizer->scores[token], left, bytes});
    }
}

static void merge_all(work_t *work)
{
    symbol_t *symbols = work->symbols;
    while (work->heap_count > 0) {
        pair_t pair = heap_pop(work);
        symbol_t *left = &symbols[pair.left];
        bool fresh = left->bytes > 0 && left->next != NONE &&
                     left->bytes + symbols[left->next].bytes == pair.bytes;
        if (!fresh) {
            continue;
        }
        symbol_t *right = &symbols[left->next];
        left->bytes = pair.bytes;
        left->next = right->next;
        right->bytes = 0;
        if (left->next != NONE) {
            symbols[left->next].previous = pair.left;
        }
        offer(work, left->previous);
        offer(work, pair.left);
    }
}

// The text with its spaces as the tables have them.
static void copy_text(work_t *work, const char *text, size_t bytes, bool space_before)
{
    uint32_t written = 0;
    if (space_before) {
        work->text[written++] = ' ';
    }
    for (size_t at = 0; at < bytes;) {
        if (bytes - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0) {
            work->text[written++] = ' ';
            at += 3;
        } else {
            work->text[written++] = text[at++];
        }
    }
    work->bytes = written;
}

// Length of the character that begins with this byte, as its first bits claim; whether the rest
// follows is no matter, since what is not in the vocabulary becomes bytes.
static uint32_t character_bytes(uint8_t first)
{
    return first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static void make_symbols(work_t *work)
{
    for (uint32_t at = 0; at < work->bytes;) {
        uint32_t bytes = character_bytes((uint8_t)work->text[at]);
        bytes = bytes < work->bytes - at ? bytes : work->bytes - at;
        work->symbols[work->count] = (symbol_t){
            .start = at, .bytes = bytes, .previous = work->count - 1, .next = work->count + 1};
        work->count++;
        at += bytes;
    }
    work->symbols[0].previous = NONE;
    work->symbols[work->count - 1].next = NONE;
}

static as_status_t add_symbol(const work_t *work, const symbol_t *symbol, gpw_token_list_t *list)
{
    const char *text = work->text + symbol->start;
    int32_t token = gpw_tokenizer_find(work->tokenizer, text, symbol->bytes);
    if (token >= 0) {
        return gpw_token_list_add(list, token);
    }
    as_status_t status = AS_OK;
    for (uint32_t i = 0; i < symbol->bytes && status == AS_OK; i++) {
        int32_t byte = work->tokenizer->byte_token[(uint8_t)text[i]];
        if (byte >= 0) {
            status = gpw_token_list_add(list, byte);
        }
    }
    return status;
}

// Whether even the longest tokens would not bring the text into the room that is left. Then it is
// not worth merging. A vocabulary that lacks a byte may leave any of it out.
static bool beyond_room(const work_t *work, const gpw_token_list_t *list)
{
    const gpw_tokenizer_t *tokenizer = work->tokenizer;
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (tokenizer->byte_token[byte] < 0) {
            return false;
        }
    }
    return work->bytes > (list->max - list->count) * tokenizer->word_bytes_max;
}

static as_status_t encode_text(work_t *work, gpw_token_list_t *list)
{
    work->symbols = as_mem_alloc(work->bytes * sizeof(symbol_t));
    work->heap_max = 3 * work->bytes;
    work->heap = as_mem_alloc(work->heap_max * sizeof(pair_t));
    if (!work->symbols || !work->heap) {
        return AS_ERR_NO_MEMORY;
    }
    make_symbols(work);
    for (uint32_t i = 0; i + 1 < work->count; i++) {
        offer(work, i);
    }
    merge_all(work);
    as_status_t status = AS_OK;
    for (uint32_t at = 0; at != NONE && status == AS_OK; at = work->symbols[at].next) {
        status = add_symbol(work, &work->symbols[at], list);
    }
    return status;
}

as_status_t gpw_spm_encode(const gpw_tokenizer_t *tokenizer, const char *text, size_t bytes,
                           bool space_before, gpw_token_list_t *list)
{
    if (bytes > TEXT_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    work_t work = {.tokenizer = tokenizer, .text = as_mem_alloc(bytes + 1)};
    as_status_t status = AS_ERR_NO_MEMORY;
    if (work.text) {
        copy_text(&work, text, bytes, space_before);
        status = beyond_room(&work, list) ? AS_ERR_LIMIT : encode_text(&work, list);
    }
    as_mem_free(work.text);
    as_mem_free(work.symbols);
    as_mem_free(work.heap);
    return status;
}
