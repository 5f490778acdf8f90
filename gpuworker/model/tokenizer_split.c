// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers: the regular expressions by which byte-level BPE vocabularies cut text into words.
//
// Each name that GGUF files use (tokenizer.ggml.pre) maps to one to four expressions, the
// vocabulary's own. What no expression matches is a word too. Subjects may be any bytes: invalid
// UTF-8 matches nothing and so becomes words of its own. \s is written out, because PCRE2's also
// takes U+180E, which Unicode's White_Space does not hold.
#include "gpuworker/model/tokenizer_internal.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define WS                                                                                         \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE "[" WS "]"
#define SPACES_BEFORE_WORD                                                                         \
    SPACE "+(?![^" WS "])|" SPACE "+" // a run leaves its last space to the word after it
#define SYMBOLS " ?[^" WS "\\p{L}\\p{N}]+"

#define GPT2_WORDS   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACES_BEFORE_WORD
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define LINE_ENDS    SPACE "*[\\r\\n]+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

// Backtracking within one match, far above what any of the expressions needs on a megabyte.
#define MATCH_LIMIT    50000000u
#define HEAP_LIMIT_KIB 65536u

typedef struct family {
    const char *names; // space before and after each
    bool add_bos, whole_words_first;
    const char *passes[GPW_SPLIT_PASSES_MAX];
} family_t;

static const family_t families[] = {
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ",
     false,
     false,
     {"\\p{N}", GPT2_WORDS}},
    {" gpt-2 phi-2 olmo mpt jais trillion ", false, false, {GPT2_WORDS}},
    {" default ",
     false,
     false,
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" llama-bpe llama3 llama-v3 falcon3 pixtral ",
     true,
     true,
     {CONTRACTIONS "|" LETTERS "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINE_ENDS
                   "|" SPACES_BEFORE_WORD}},
    {" dbrx smaug-bpe ",
     false,
     false,
     {CONTRACTIONS "|" LETTERS "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINE_ENDS
                   "|" SPACES_BEFORE_WORD}},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan ",
     false,
     false,
     {CONTRACTIONS "|" LETTERS "|\\p{N}|" SYMBOLS "[\\r\\n]*|" LINE_ENDS "|" SPACES_BEFORE_WORD}},
    {" tekken ",
     true,
     true,
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
      "*|\\p{N}|" SYMBOLS "[\\r\\n/]*|" LINE_ENDS "|" SPACES_BEFORE_WORD}},
};

// State of one gpw_split_run.
typedef struct run {
    const gpw_split_t *split;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    gpw_word_fn word;
    void *ctx;
} run_t;

static void *pcre_alloc(size_t bytes, void *ctx)
{
    (void)ctx;
    return as_mem_alloc(bytes);
}

static void pcre_free(void *memory, void *ctx)
{
    (void)ctx;
    as_mem_free(memory);
}

static const family_t *find_family(const char *name, size_t name_bytes)
{
    char wanted[64];
    if (name_bytes + 3 > sizeof(wanted) || memchr(name, ' ', name_bytes)) {
        return NULL;
    }
    wanted[0] = ' ';
    memcpy(wanted + 1, name, name_bytes);
    memcpy(wanted + 1 + name_bytes, " ", 2);
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strstr(families[i].names, wanted)) {
            return &families[i];
        }
    }
    return NULL;
}

as_status_t gpw_split_init(const char *name, size_t name_bytes, gpw_split_t *split, bool *add_bos_p,
                           bool *whole_words_first_p)
{
    const family_t *family = find_family(name, name_bytes);
    if (!family) {
        return AS_ERR_UNSUPPORTED;
    }
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    bool ok = context != NULL;
    for (uint32_t i = 0; ok && i < GPW_SPLIT_PASSES_MAX && family->passes[i]; i++) {
        int code = 0;
        size_t offset = 0;
        split->passes[i] =
            pcre2_compile((PCRE2_SPTR)family->passes[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &offset, context);
        ok = split->passes[i] != NULL;
        AS_ASSERT(ok || code == PCRE2_ERROR_HEAP_FAILED); // our own expressions are well formed
        if (ok) {
            pcre2_jit_compile(split->passes[i],
                              PCRE2_JIT_COMPLETE); // else interpreted: slower, same words
            split->count = i + 1;
        }
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (!ok) {
        gpw_split_fini(split);
        return AS_ERR_NO_MEMORY;
    }
    *add_bos_p = family->add_bos;
    *whole_words_first_p = family->whole_words_first;
    return AS_OK;
}

void gpw_split_fini(gpw_split_t *split)
{
    for (uint32_t i = 0; i < split->count; i++) {
        pcre2_code_free(split->passes[i]);
    }
    *split = (gpw_split_t){0};
}

// The next match from `at`; sets [*start_p, *end_p). AS_ERR_NOT_FOUND when there is none.
static as_status_t next_match(const run_t *run, uint32_t pass, const char *text, size_t bytes,
                              size_t at, size_t *start_p, size_t *end_p)
{
    const pcre2_code *code = run->split->passes[pass];
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int result = pcre2_match(code, subject, bytes, at, 0, run->match, run->limits);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
        result = pcre2_match(code, subject, bytes, at, PCRE2_NO_JIT, run->match, run->limits);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
        return AS_ERR_NOT_FOUND;
    }
    if (result < 0) {
        return result == PCRE2_ERROR_NOMEMORY ? AS_ERR_NO_MEMORY : AS_ERR_LIMIT;
    }
    const size_t *range = pcre2_get_ovector_pointer(run->match);
    AS_ASSERT(range[0] >= at && range[1] > range[0] &&
              range[1] <= bytes); // no expression matches nothing
    *start_p = range[0];
    *end_p = range[1];
    return AS_OK;
}

// Cuts one piece by the expressions from `pass` on. As deep as there are passes.
static as_status_t cut(const run_t *run, uint32_t pass, const char *text, size_t bytes)
{
    if (bytes == 0) {
        return AS_OK;
    }
    if (pass == run->split->count) {
        return run->word(run->ctx, text, bytes);
    }
    as_status_t status = AS_OK;
    size_t at = 0;
    while (at < bytes && status == AS_OK) {
        size_t start = bytes, end = bytes;
        status = next_match(run, pass, text, bytes, at, &start, &end);
        if (status != AS_OK && status != AS_ERR_NOT_FOUND) {
            return status;
        }
        status = cut(run, pass + 1, text + at, start - at);
        if (status == AS_OK) {
            status = cut(run, pass + 1, text + start, end - start);
        }
        at = end;
    }
    return status;
}

as_status_t gpw_split_run(const gpw_split_t *split, const char *text, size_t bytes,
                          gpw_word_fn word, void *ctx)
{
    run_t run = {.split = split, .word = word, .ctx = ctx};
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    run.match = general ? pcre2_match_data_create(1, general) : NULL;
    run.limits = general ? pcre2_match_context_create(general) : NULL;
    as_status_t status = AS_ERR_NO_MEMORY;
    if (run.match && run.limits) {
        pcre2_set_match_limit(run.limits, MATCH_LIMIT);
        pcre2_set_heap_limit(run.limits, HEAP_LIMIT_KIB);
        status = cut(&run, 0, text, bytes);
    }
    pcre2_match_context_free(run.limits);
    pcre2_match_data_free(run.match);
    pcre2_general_context_free(general);
    return status;
}
