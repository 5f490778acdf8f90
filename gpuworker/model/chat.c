// SPDX-License-Identifier: Apache-2.0
// Chat templates: the known families, recognised from the template's text and rendered here.
//
// The templates are programs in a template language; running that language would be a dependency
// and an attack surface for what are five fixed forms. What differs between models of one family
// (default system prompt, spacing, trimming, where the system prompt goes) is read from the
// template's text. Families: ChatML (SmolLM2, Qwen2, Qwen2.5, Qwen3), Llama 3, Llama 2, Mistral
// (v1, v3, v3 tekken, v7).
//
// A prompt is rendered as segments: what the template says (`put`) and what a message says
// (`put_content`), so that only the template's control tokens are parsed.
#include <string.h>

#include "common/mem.h"
#include "gpuworker/model/tokenizer_internal.h"

#define CHATML_SYSTEM "<|im_start|>system\n"
#define LITERAL_MAX   32u

// Of Llama 3.1 and later: the date that their template falls back to, so that a prompt is the same
// tomorrow.
#define LLAMA3_DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

typedef enum role { SYSTEM, USER, ASSISTANT } role_t;

// A run of bytes of the messages or the template.
typedef struct span {
    const char *text;
    size_t bytes;
} span_t;

typedef struct chat {
    const gpw_tokenizer_t *tokenizer;
    const char *template;
    const gpw_chat_message_t *messages;
    size_t count;
    gpw_prompt_t prompt;
    size_t bytes, bytes_max, segments_max;
    bool out_of_memory;
} chat_t;

// ---- Text
// ----------------------------------------------------------------------------------------

static bool make_room(chat_t *chat, size_t bytes)
{
    gpw_prompt_t *prompt = &chat->prompt;
    if (chat->bytes_max - chat->bytes <= bytes && !chat->out_of_memory) {
        size_t wanted = 2 * chat->bytes_max + bytes + 256;
        char *grown = as_mem_realloc(prompt->text, wanted);
        chat->out_of_memory = grown == NULL;
        prompt->text = grown ? grown : prompt->text;
        chat->bytes_max = grown ? wanted : chat->bytes_max;
    }
    if (prompt->segment_count == chat->segments_max && !chat->out_of_memory) {
        size_t wanted = 2 * chat->segments_max + 8;
        gpw_prompt_segment_t *grown =
            as_mem_realloc(prompt->segments, wanted * sizeof(*prompt->segments));
        chat->out_of_memory = grown == NULL;
        prompt->segments = grown ? grown : prompt->segments;
        chat->segments_max = grown ? wanted : chat->segments_max;
    }
    return !chat->out_of_memory;
}

// Neighbours by one author are one segment, so that a control token may be put in parts.
static void put_span(chat_t *chat, span_t span, bool content)
{
    gpw_prompt_t *prompt = &chat->prompt;
    if (!make_room(chat, span.bytes)) {
        return;
    }
    memcpy(prompt->text + chat->bytes, span.text, span.bytes);
    chat->bytes += span.bytes;
    prompt->text[chat->bytes] = '\0';
    size_t count = prompt->segment_count;
    if (span.bytes > 0 && count > 0 && prompt->segments[count - 1].content == content) {
        prompt->segments[count - 1].bytes += span.bytes;
    } else if (span.bytes > 0) {
        prompt->segments[prompt->segment_count++] = (gpw_prompt_segment_t){span.bytes, content};
    }
}

static span_t span_of(const char *text)
{
    return (span_t){text, strlen(text)};
}

static void put(chat_t *chat, const char *text)
{
    put_span(chat, span_of(text), false);
}

static void put_content(chat_t *chat, span_t content)
{
    put_span(chat, content, true);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

static span_t trim(span_t span)
{
    while (span.bytes > 0 && is_space(span.text[0])) {
        span.text++;
        span.bytes--;
    }
    while (span.bytes > 0 && is_space(span.text[span.bytes - 1])) {
        span.bytes--;
    }
    return span;
}

static span_t trim_lines(span_t span, bool left, bool right)
{
    while (left && span.bytes > 0 && span.text[0] == '\n') {
        span.text++;
        span.bytes--;
    }
    while (right && span.bytes > 0 && span.text[span.bytes - 1] == '\n') {
        span.bytes--;
    }
    return span;
}

// Bytes of `text` that `pattern` matches at its start, 0 for none. A newline of the pattern also
// matches the two characters by which templates write it.
static size_t match_at(const char *text, const char *pattern)
{
    size_t at = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '\n' && text[at] == '\\' && text[at + 1] == 'n') {
            at += 2;
        } else if (text[at] == *pattern) {
            at++;
        } else {
            return 0;
        }
    }
    return at;
}

static const char *find(const char *text, const char *pattern)
{
    for (; *text; text++) {
        if (match_at(text, pattern)) {
            return text;
        }
    }
    return NULL;
}

static bool template_has(const chat_t *chat, const char *pattern)
{
    return find(chat->template, pattern) != NULL;
}

// The quoted string of the template that holds `marker`, without its quotes; "" when there is none.
static void find_literal(const chat_t *chat, const char *marker, char literal[LITERAL_MAX])
{
    literal[0] = '\0';
    const char *at = strstr(chat->template, marker);
    if (!at) {
        return;
    }
    const char *start = at;
    while (start > chat->template && start[-1] != '\'' && start[-1] != '"') {
        start--;
    }
    const char *end = at + strlen(marker);
    while (*end && *end != '\'' && *end != '"') {
        end++;
    }
    if ((size_t)(end - start) < LITERAL_MAX) {
        memcpy(literal, start, (size_t)(end - start));
        literal[end - start] = '\0';
    }
}

static void put_token(chat_t *chat, int32_t token)
{
    if (token >= 0) {
        uint32_t start = chat->tokenizer->start[token];
        put_span(chat,
                 (span_t){chat->tokenizer->text + start, chat->tokenizer->start[token + 1] - start},
                 false);
    }
}

// ---- Messages
// ------------------------------------------------------------------------------------

static role_t role_of(const chat_t *chat, size_t index)
{
    const char *role = chat->messages[index].role;
    return strcmp(role, "user") == 0 ? USER : strcmp(role, "assistant") == 0 ? ASSISTANT : SYSTEM;
}

static span_t content_of(const chat_t *chat, size_t index)
{
    return span_of(chat->messages[index].content);
}

static bool roles_known(const chat_t *chat)
{
    for (size_t i = 0; i < chat->count; i++) {
        const char *role = chat->messages[i].role;
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0) {
            return false;
        }
    }
    return chat->count > 0;
}

// The form that Llama 2 and Mistral ask for: after an optional system message, user and assistant
// in turn.
static bool roles_alternate(const chat_t *chat, size_t first)
{
    for (size_t i = first; i < chat->count; i++) {
        if (role_of(chat, i) != ((i - first) % 2 == 0 ? USER : ASSISTANT)) {
            return false;
        }
    }
    return chat->count > first;
}

// ---- ChatML
// --------------------------------------------------------------------------------------

// The text between "<|im_start|>system\n" and "<|im_end|>" where it is one literal; the default
// system prompt.
static span_t default_system(const chat_t *chat)
{
    const char *at = chat->template;
    while ((at = find(at, CHATML_SYSTEM)) != NULL) {
        at += match_at(at, CHATML_SYSTEM);
        const char *end = strstr(at, "<|im_end|>");
        span_t text = {at, end ? (size_t)(end - at) : 0};
        if (end && !memchr(at, '{', text.bytes) && !memchr(at, '\'', text.bytes)) {
            return text;
        }
    }
    return (span_t){"", 0};
}

static void put_turn(chat_t *chat, const char *role, span_t text, bool content)
{
    put(chat, "<|im_start|>");
    put(chat, role);
    put(chat, "\n");
    put_span(chat, text, content);
    put(chat, "<|im_end|>\n");
}

// The last occurrence of `pattern` in a span, or NULL.
static const char *find_last(span_t span, const char *pattern)
{
    size_t bytes = strlen(pattern);
    for (size_t at = span.bytes; at >= bytes; at--) {
        if (memcmp(span.text + at - bytes, pattern, bytes) == 0) {
            return span.text + at - bytes;
        }
    }
    return NULL;
}

static const char *find_first(span_t span, const char *pattern)
{
    return memmem(span.text, span.bytes, pattern, strlen(pattern));
}

// An assistant's turn of a reasoning model: thoughts of turns before the last question are left
// out.
static void put_reasoned_turn(chat_t *chat, size_t index, size_t last_question)
{
    span_t whole = content_of(chat, index);
    span_t content = whole, thought = {"", 0};
    const char *end = find_last(whole, "</think>");
    if (end) {
        const char *after = end + strlen("</think>");
        content =
            trim_lines((span_t){after, (size_t)(whole.text + whole.bytes - after)}, true, false);
        const char *first_end = find_first(whole, "</think>");
        thought = trim_lines((span_t){whole.text, (size_t)(first_end - whole.text)}, false, true);
        const char *start = find_last(thought, "<think>");
        if (start) {
            start += strlen("<think>");
            thought.bytes = (size_t)(thought.text + thought.bytes - start);
            thought.text = start;
        }
        thought = trim_lines(thought, true, false);
    }
    bool shown = index > last_question && (index + 1 == chat->count || thought.bytes > 0);
    put(chat, "<|im_start|>assistant\n");
    if (shown) {
        put(chat, "<think>\n");
        put_content(chat, trim_lines(thought, true, true));
        put(chat, "\n</think>\n\n");
        content = trim_lines(content, true, false);
    }
    put_content(chat, content);
    put(chat, "<|im_end|>\n");
}

static bool is_tool_response(span_t content)
{
    const char *begin = "<tool_response>", *end = "</tool_response>";
    return content.bytes >= strlen(begin) + strlen(end) &&
           memcmp(content.text, begin, strlen(begin)) == 0 &&
           memcmp(content.text + content.bytes - strlen(end), end, strlen(end)) == 0;
}

static size_t last_question(const chat_t *chat)
{
    for (size_t i = chat->count; i-- > 0;) {
        if (role_of(chat, i) == USER && !is_tool_response(content_of(chat, i))) {
            return i;
        }
    }
    return chat->count - 1;
}

static as_status_t render_chatml(chat_t *chat)
{
    span_t system = default_system(chat);
    bool reasons = template_has(chat, "last_query_index");
    if (role_of(chat, 0) != SYSTEM && system.bytes > 0) {
        put_turn(chat, "system", system, false);
    }
    for (size_t i = 0; i < chat->count; i++) {
        if (reasons && role_of(chat, i) == ASSISTANT) {
            put_reasoned_turn(chat, i, last_question(chat));
        } else {
            put_turn(chat, chat->messages[i].role, content_of(chat, i), true);
        }
    }
    put(chat, "<|im_start|>assistant\n");
    if (template_has(chat, "<|im_start|>assistant\n<think>\n'") && !reasons) {
        put(chat, "<think>\n");
    }
    return AS_OK;
}

// ---- Llama 3
// -------------------------------------------------------------------------------------

static void put_header(chat_t *chat, const char *role)
{
    put(chat, "<|start_header_id|>");
    put(chat, role);
    put(chat, "<|end_header_id|>\n\n");
}

static as_status_t render_llama3(chat_t *chat)
{
    size_t first = 0;
    put_token(chat, chat->tokenizer->bos);
    if (template_has(chat, "Cutting Knowledge Date: December 2023")) {
        put_header(chat, "system");
        put(chat, LLAMA3_DATES);
        if (role_of(chat, 0) == SYSTEM) {
            put_content(chat, trim(content_of(chat, 0)));
            first = 1;
        }
        put(chat, "<|eot_id|>");
    }
    for (size_t i = first; i < chat->count; i++) {
        put_header(chat, chat->messages[i].role);
        put_content(chat, trim(content_of(chat, i)));
        put(chat, "<|eot_id|>");
    }
    put_header(chat, "assistant");
    return AS_OK;
}

// ---- Llama 2
// -------------------------------------------------------------------------------------

// The system prompt is part of the first question, and that is trimmed as a whole.
static void put_llama2_question(chat_t *chat, size_t index, size_t first)
{
    span_t content = content_of(chat, index);
    put(chat, "[INST] ");
    if (index == first && first == 1) {
        put(chat, "<<SYS>>\n");
        put_content(chat, content_of(chat, 0));
        put(chat, "\n<</SYS>>");
        while (content.bytes > 0 && is_space(content.text[content.bytes - 1])) {
            content.bytes--;
        }
        // Trimming the whole of an empty question would eat the line ends before it.
        put(chat, content.bytes > 0 ? "\n\n" : "");
    } else {
        content = trim(content);
    }
    put_content(chat, content);
    put(chat, " [/INST]");
}

static as_status_t render_llama2(chat_t *chat)
{
    size_t first = role_of(chat, 0) == SYSTEM ? 1 : 0;
    if (!roles_alternate(chat, first)) {
        return AS_ERR_INVALID;
    }
    bool bos_each_turn = template_has(chat, "bos_token + '[INST]");
    for (size_t i = first; i < chat->count; i++) {
        if (role_of(chat, i) == USER) {
            if (i == first || bos_each_turn) {
                put_token(chat, chat->tokenizer->bos);
            }
            put_llama2_question(chat, i, first);
        } else {
            put(chat, " ");
            put_content(chat, trim(content_of(chat, i)));
            put(chat, " ");
            put_token(chat, chat->tokenizer->eos);
        }
    }
    return AS_OK;
}

// ---- Mistral
// -------------------------------------------------------------------------------------

typedef struct mistral {
    char open[LITERAL_MAX], close[LITERAL_MAX]; // around a question, with the template's own spaces
    const char *answer;                         // before an answer
    bool trims_answers;
    bool takes_system, system_last; // in the last question, else in the first
} mistral_t;

static mistral_t read_mistral(const chat_t *chat)
{
    mistral_t form = {.answer = ""};
    find_literal(chat, "[INST]", form.open);
    find_literal(chat, "[/INST]", form.close);
    if (template_has(chat, "' ' + message['content']") ||
        template_has(chat, "\" \" + message[\"content\"]") ||
        template_has(chat, "\" \" + message.content")) {
        form.answer = " ";
    }
    form.trims_answers = template_has(chat, "message[\"content\"]|trim") ||
                         template_has(chat, "message['content']|trim") ||
                         template_has(chat, "message.content|trim");
    form.system_last = template_has(chat, "loop.last and system_message");
    form.takes_system = form.system_last || template_has(chat, "loop.first and system_message");
    return form;
}

static as_status_t render_mistral(chat_t *chat)
{
    mistral_t form = read_mistral(chat);
    size_t first = role_of(chat, 0) == SYSTEM ? 1 : 0;
    if (!roles_alternate(chat, first) || (first == 1 && !form.takes_system)) {
        return AS_ERR_INVALID;
    }
    // The last message holds the system prompt only if it is a question: the templates say so.
    size_t holder = form.system_last ? chat->count - 1 : first;
    put_token(chat, chat->tokenizer->bos);
    for (size_t i = first; i < chat->count; i++) {
        if (role_of(chat, i) == ASSISTANT) {
            span_t answer = content_of(chat, i);
            put(chat, form.answer);
            put_content(chat, form.trims_answers ? trim(answer) : answer);
            put_token(chat, chat->tokenizer->eos);
            continue;
        }
        put(chat, form.open);
        if (first == 1 && i == holder) {
            put_content(chat, content_of(chat, 0));
            put(chat, "\n\n");
        }
        put_content(chat, content_of(chat, i));
        put(chat, form.close);
    }
    return AS_OK;
}

// v7 has turns of its own for system prompts, anywhere.
static as_status_t render_mistral_v7(chat_t *chat)
{
    mistral_t form = read_mistral(chat);
    char open[LITERAL_MAX], close[LITERAL_MAX];
    find_literal(chat, "[SYSTEM_PROMPT]", open);
    find_literal(chat, "[/SYSTEM_PROMPT]", close);
    put_token(chat, chat->tokenizer->bos);
    for (size_t i = 0; i < chat->count; i++) {
        role_t role = role_of(chat, i);
        put(chat, role == SYSTEM ? open : role == USER ? form.open : form.answer);
        put_content(chat, content_of(chat, i));
        if (role == ASSISTANT) {
            put_token(chat, chat->tokenizer->eos);
        } else {
            put(chat, role == SYSTEM ? close : form.close);
        }
    }
    return AS_OK;
}

// ---- Families
// ------------------------------------------------------------------------------------

// The first whose marks are all in the template.
static const struct {
    const char *marks[2];
    as_status_t (*render)(chat_t *chat);
} families[] = {
    {{"<|im_start|>", "<|im_end|>"}, render_chatml},
    {{"<|start_header_id|>", "<|eot_id|>"}, render_llama3},
    {{"[INST]", "<<SYS>>"}, render_llama2},
    {{"[INST]", "[SYSTEM_PROMPT]"}, render_mistral_v7},
    {{"[INST]", "[/INST]"}, render_mistral},
};

as_status_t gpw_tokenizer_chat(const gpw_tokenizer_t *tokenizer, const gpw_chat_message_t *messages,
                               size_t count, gpw_prompt_t *prompt)
{
    chat_t chat = {.tokenizer = tokenizer,
                   .template = tokenizer->chat_template ? tokenizer->chat_template : "",
                   .messages = messages,
                   .count = count};
    if (!roles_known(&chat)) {
        return AS_ERR_INVALID;
    }
    as_status_t status = AS_ERR_UNSUPPORTED;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (template_has(&chat, families[i].marks[0]) &&
            template_has(&chat, families[i].marks[1])) {
            status = families[i].render(&chat);
            break;
        }
    }
    if (status == AS_OK && chat.out_of_memory) {
        status = AS_ERR_NO_MEMORY;
    }
    if (status != AS_OK) {
        gpw_prompt_fini(&chat.prompt);
        return status;
    }
    *prompt = chat.prompt;
    return AS_OK;
}

void gpw_prompt_fini(gpw_prompt_t *prompt)
{
    as_mem_free(prompt->text);
    as_mem_free(prompt->segments);
    *prompt = (gpw_prompt_t){0};
}
