// SPDX-License-Identifier: Apache-2.0
// Prompts of `assay compare` out of one text: pieces of it, and its sentences as lines of JSON.
//
// A text is units: words, or lines. A prompt is as many units in a row as the context holds, by the
// worker's tokenizer; the units behind it are its continuation. Samples begin evenly over the text.
#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/compare.h"
#include "common/mem.h"

#define WORDS_SHOWN     3  // of a sentence's begin and end, in its line
#define LINE_TOKENS_MIN 16 // a line has more
#define SHORT_PERCENT   90 // of the context that all of a text fills, or it is too short

static const char head[] = "Each line describes one sentence of a text, as JSON.\n\n";

typedef struct unit {
    const char *bytes;
    size_t count;
} unit_t;

typedef struct source {
    const char *name, *head; // head: before the first unit
    bool is_json;
    uint32_t behind; // units that a prompt leaves as its continuation
    unit_t *units;
    uint32_t count, capacity;
    cli_text_t lines; // what units of lines point to
} source_t;

static bool add_unit(source_t *source, const char *bytes, size_t count)
{
    if (source->count == source->capacity) {
        uint32_t capacity = source->capacity ? 2 * source->capacity : 256;
        unit_t *grown = as_mem_realloc(source->units, capacity * sizeof(*grown));
        if (!grown) {
            cli_complain("out of memory");
            return false;
        }
        source->units = grown;
        source->capacity = capacity;
    }
    source->units[source->count++] = (unit_t){bytes, count};
    return true;
}

// ---- Words

static bool is_space(char c)
{
    return isspace((unsigned char)c);
}

// Each with the white space before it.
static bool split_words(const char *text, size_t count, source_t *source)
{
    size_t at = 0;
    bool good = true;
    while (good && at < count) {
        size_t begin = at;
        while (at < count && is_space(text[at])) {
            at++;
        }
        bool more = at < count;
        while (at < count && !is_space(text[at])) {
            at++;
        }
        good = !more || add_unit(source, text + begin, at - begin);
    }
    return good;
}

// ---- Sentences

static bool ends_sentence(const unit_t *word)
{
    return word->count > 0 && strchr(".!?", word->bytes[word->count - 1]);
}

// Words, with single spaces between them. NULL: out of memory, or not UTF-8.
static json_t *join(const unit_t *words, uint32_t count)
{
    cli_text_t text = {0};
    bool good = cli_text_append(&text, "", 0);
    for (uint32_t i = 0; good && i < count; i++) {
        size_t blank = 0;
        while (is_space(words[i].bytes[blank])) {
            blank++;
        }
        good = (i == 0 || cli_text_append(&text, " ", 1)) &&
               cli_text_append(&text, words[i].bytes + blank, words[i].count - blank);
    }
    json_t *json = good ? json_stringn(text.bytes, text.count) : NULL;
    cli_text_fini(&text);
    return json;
}

static bool add_line(source_t *source, const unit_t *words, uint32_t count, uint32_t number)
{
    uint32_t shown = count < WORDS_SHOWN ? count : WORDS_SHOWN;
    json_t *json =
        json_pack("{s:i, s:i, s:o, s:o}", "sentence", (int)number, "words", (int)count, "begins",
                  join(words, shown), "ends", join(words + count - shown, shown));
    char *line = json ? json_dumps(json, 0) : NULL;
    bool good = line && cli_text_append(&source->lines, line, strlen(line)) &&
                cli_text_append(&source->lines, "\n", 1);
    as_mem_free(line);
    json_decref(json);
    if (!good) {
        cli_complain("cannot make a line of JSON of sentence %u: is the text UTF-8?", number);
    }
    return good;
}

// Lines grow in one piece of memory, so units are made when it no longer moves.
static bool split_lines(const source_t *words, source_t *source)
{
    uint32_t first = 0, number = 1;
    bool good = cli_text_append(&source->lines, "", 0);
    for (uint32_t i = 0; good && i < words->count; i++) {
        if (ends_sentence(&words->units[i])) {
            good = add_line(source, words->units + first, i + 1 - first, number++);
            first = i + 1;
        }
    }
    const char *at = source->lines.bytes, *newline;
    while (good && (newline = strchr(at, '\n'))) {
        good = add_unit(source, at, (size_t)(newline + 1 - at));
        at = newline + 1;
    }
    return good;
}

// ---- Prompts

// The bytes of a line with which an answer begins: up to its second member.
static size_t prefix_bytes(const source_t *source, uint32_t unit)
{
    const unit_t *line = &source->units[unit];
    const char *comma = source->is_json ? memchr(line->bytes, ',', line->count) : NULL;
    return comma ? (size_t)(comma + 1 - line->bytes) : 0;
}

static bool append_units(cli_text_t *text, const source_t *source, uint32_t first, uint32_t count)
{
    bool good = cli_text_append(text, "", 0);
    for (uint32_t i = first; good && i < first + count; i++) {
        good = cli_text_append(text, source->units[i].bytes, source->units[i].count);
    }
    return good;
}

// A prompt of units [first, first + count), with the prefix or without.
static bool write_prompt(const source_t *source, uint32_t first, uint32_t count, bool with_prefix,
                         cli_text_t *text)
{
    const unit_t *next = &source->units[first + count];
    bool good =
        cli_text_append(text, source->head, strlen(source->head)) &&
        append_units(text, source, first, count) &&
        (!with_prefix || cli_text_append(text, next->bytes, prefix_bytes(source, first + count)));
    if (!good) {
        cli_complain("out of memory");
    }
    return good;
}

// False: a message was printed.
static bool count_tokens(const cli_compare_texts_t *texts, const source_t *source, uint32_t first,
                         uint32_t count, size_t *tokens_p)
{
    cli_text_t text = {0};
    json_t *tokens = NULL;
    bool good = write_prompt(source, first, count, true, &text) &&
                cli_tokenize_text(texts->url, text.bytes, &tokens);
    *tokens_p = tokens ? json_array_size(tokens) : SIZE_MAX;
    json_decref(tokens);
    cli_text_fini(&text);
    return good;
}

// The most units from `first` on, at most `most`, that the context holds, and their tokens. False: a
// message was printed.
static bool fit(const cli_compare_texts_t *texts, const source_t *source, uint32_t first,
                uint32_t most, uint32_t *count_p, size_t *tokens_p)
{
    uint32_t low = 0, high = most;
    size_t tokens;
    *tokens_p = 0;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (!count_tokens(texts, source, first, middle, &tokens)) {
            return false;
        }
        if (tokens <= (size_t)texts->context) {
            low = middle;
            *tokens_p = tokens;
        } else {
            high = middle - 1;
        }
    }
    *count_p = low;
    return true;
}

// Units [first, first + count) are the prompt, of which there is a next one.
static bool add_prompt(const source_t *source, int64_t context, uint32_t first, uint32_t count,
                       json_t *prompts)
{
    cli_text_t prompt = {0}, rest = {0};
    size_t prefix = prefix_bytes(source, first + count), at = 0;
    char name[64];
    snprintf(name, sizeof(name), "%s from %u", source->name, first);
    bool good = write_prompt(source, first, count, false, &prompt) &&
                append_units(&rest, source, first + count, source->behind);
    while (good && is_space(prompt.bytes[at])) {
        at++; // before the first word
    }
    json_t *json = good
                       ? json_pack("{s:s, s:I, s:s, s:s, s:s#, s:s}", "name", name, "context",
                                   (json_int_t)context, "format", source->is_json ? "json" : "text",
                                   "prompt", prompt.bytes + at, "prefix", rest.bytes, (int)prefix,
                                   "continuation", rest.bytes + prefix)
                       : NULL;
    good = json && json_array_append_new(prompts, json) == 0;
    if (!good) {
        cli_complain("cannot make a prompt of the text: is it UTF-8?");
    }
    cli_text_fini(&prompt);
    cli_text_fini(&rest);
    return good;
}

static bool add_samples(const cli_compare_texts_t *texts, const source_t *source, json_t *prompts)
{
    uint32_t usable = source->count > source->behind ? source->count - source->behind : 0;
    uint32_t count = 0, samples = (uint32_t)texts->samples;
    size_t tokens = 0;
    if (usable > 0 && !fit(texts, source, 0, usable, &count, &tokens)) {
        return false;
    }
    bool is_short = count == usable && tokens * 100 < (size_t)texts->context * SHORT_PERCENT;
    if (count == 0 || is_short) {
        cli_complain("%s of %lld tokens, and %lld behind them, are more than the text has: give a "
                     "longer one with --text, or fewer with --context",
                     source->name, (long long)texts->context, (long long)texts->tokens);
        return false;
    }
    uint32_t slack = usable - count;
    for (uint32_t i = 0; i < samples; i++) {
        uint32_t first = samples > 1 ? (uint32_t)((uint64_t)slack * i / (samples - 1)) : 0;
        if (i > 0 && !fit(texts, source, first, usable - first, &count, &tokens)) {
            return false;
        }
        if (!add_prompt(source, texts->context, first, count, prompts)) {
            return false;
        }
    }
    return true;
}

bool cli_compare_make(const cli_compare_texts_t *texts, json_t *prompts)
{
    char path[CLI_PATH_BYTES];
    cli_text_t text = {0};
    source_t words = {.name = "prose", .head = "", .behind = (uint32_t)texts->tokens};
    source_t lines = {.name = "JSON",
                      .head = head,
                      .is_json = true,
                      .behind = (uint32_t)texts->tokens / LINE_TOKENS_MIN + 1};
    if (!cli_find_text(texts->path, path) || !cli_read_file(path, &text)) {
        return false;
    }
    bool good = split_words(text.bytes, text.count, &words) && split_lines(&words, &lines) &&
                add_samples(texts, &words, prompts) && add_samples(texts, &lines, prompts);
    as_mem_free(words.units);
    as_mem_free(lines.units);
    cli_text_fini(&lines.lines);
    cli_text_fini(&text);
    return good;
}
