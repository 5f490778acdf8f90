// SPDX-License-Identifier: Apache-2.0
// HTTP to a worker by libcurl: whole answers and streams of server-sent events.
//
// Proxies of the environment are not used: a worker is named by its own address.
#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "common/mem.h"

#define BODY_BYTES_MAX (64u << 20) // an answer, or one line of a stream
#define FILE_BYTES_MAX (4u << 20)
#define CONNECT_MS     5000L
#define SILENCE_S      660L // no byte for this long ends a call: a worker's own deadline comes first
#define WHOLE_S        3600L // and nothing lasts longer

bool cli_text_append(cli_text_t *text, const char *bytes, size_t count)
{
    if (text->count + count + 1 > text->capacity) {
        size_t capacity = 2 * (text->count + count + 1);
        char *grown = as_mem_realloc(text->bytes, capacity);
        if (!grown) {
            return false;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    text->bytes[text->count] = '\0';
    return true;
}

void cli_text_fini(cli_text_t *text)
{
    as_mem_free(text->bytes);
    memset(text, 0, sizeof(*text));
}

// What is wrong, or NULL.
static const char *read_whole(const char *path, cli_text_t *text)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    char piece[65536];
    size_t count;
    memset(text, 0, sizeof(*text));
    if (!file) {
        return strerror(errno);
    }
    const char *fault = cli_text_append(text, "", 0) ? NULL : "out of memory";
    errno = 0;
    while (!fault && (count = fread(piece, 1, sizeof(piece), file)) > 0) {
        fault = text->count + count > FILE_BYTES_MAX   ? "it is larger than 4 MiB"
                : !cli_text_append(text, piece, count) ? "out of memory"
                                                       : NULL;
    }
    if (!fault && ferror(file)) {
        fault = errno == EISDIR ? "it is a directory" : strerror(errno);
    }
    if (!standard) {
        fclose(file);
    }
    return fault;
}

bool cli_read_file(const char *path, cli_text_t *text)
{
    const char *fault = read_whole(path, text);
    const char *nul = fault ? NULL : memchr(text->bytes, '\0', text->count);
    if (fault) {
        cli_complain("cannot read %s: %s", path, fault);
    } else if (nul) {
        cli_complain("%s has a NUL byte at offset %zu: a prompt is text", path,
                     (size_t)(nul - text->bytes));
    }
    if (fault || nul) {
        cli_text_fini(text);
        return false;
    }
    return true;
}

// ---- One exchange

typedef struct exchange {
    CURL *curl;
    cli_text_t body; // whole, or the line of the stream that is not complete yet
    cli_event_fn on_event;
    void *ctx;
    bool ended;   // [DONE] came, or on_event ended it
    bool failed;  // an error event, or out of memory: said already
    long *code_p; // not NULL: takes the code of an answer, which then is one whatever it is
} exchange_t;

static void complain_reply(const char *url, long code, const cli_text_t *body)
{
    json_t *json = body->bytes ? json_loadb(body->bytes, body->count, 0, NULL) : NULL;
    const char *message =
        json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    if (message) {
        cli_complain("%s answered %ld: %s", url, code, message);
    } else {
        cli_complain("%s answered %ld: %.200s", url, code, body->bytes ? body->bytes : "(nothing)");
    }
    json_decref(json);
}

// One "data: ..." line. False ends the transfer.
static bool take_line(exchange_t *exchange, const char *line, size_t count)
{
    while (count > 0 && line[count - 1] == '\r') {
        count--;
    }
    if (count < 6 || memcmp(line, "data: ", 6) != 0) {
        return true; // a blank line, or a comment
    }
    if (count == 12 && memcmp(line + 6, "[DONE]", 6) == 0) {
        exchange->ended = true;
        return true;
    }
    json_t *event = json_loadb(line + 6, count - 6, 0, NULL);
    json_t *error = json_object_get(event, "error");
    if (!event || error) {
        const char *message = json_string_value(json_object_get(error, "message"));
        cli_complain("the worker ended the answer: %s",
                     message ? message : "an event that is not JSON");
        exchange->failed = true;
    } else if (!exchange->on_event(exchange->ctx, event)) {
        exchange->ended = true;
        exchange->failed = true; // the caller has said why
    }
    json_decref(event);
    return !exchange->failed;
}

static size_t on_data(char *data, size_t size, size_t count, void *ctx)
{
    exchange_t *exchange = ctx;
    long code = 0;
    count *= size;
    curl_easy_getinfo(exchange->curl, CURLINFO_RESPONSE_CODE, &code);
    if (exchange->body.count + count > BODY_BYTES_MAX ||
        !cli_text_append(&exchange->body, data, count)) {
        cli_complain("the answer is too large");
        exchange->failed = true;
        return 0;
    }
    if (!exchange->on_event || code != 200) {
        return count;
    }
    size_t at = 0;
    char *end;
    while ((end = memchr(exchange->body.bytes + at, '\n', exchange->body.count - at))) {
        size_t length = (size_t)(end - exchange->body.bytes) - at;
        if (!take_line(exchange, exchange->body.bytes + at, length)) {
            return 0;
        }
        at += length + 1;
    }
    exchange->body.count -= at;
    memmove(exchange->body.bytes, exchange->body.bytes + at, exchange->body.count);
    return count;
}

static bool perform(exchange_t *exchange, const char *url, const char *post)
{
    CURL *curl = exchange->curl;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    long code = 0;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, WHOLE_S);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, exchange);
    if (post) {
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(post));
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, post);
    }
    CURLcode result = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_slist_free_all(headers);
    if (exchange->failed) {
        return false;
    }
    if (result == CURLE_COULDNT_CONNECT) {
        cli_complain(
            "cannot connect to %s: is the worker running? (`assay stat` shows the cluster)", url);
    } else if (result == CURLE_OPERATION_TIMEDOUT) {
        cli_complain("%s: no answer in time: is the worker busy (`assay stat` shows its sessions), "
                     "or stopped?",
                     url);
    } else if (result != CURLE_OK) {
        cli_complain("%s: %s", url, curl_easy_strerror(result));
    } else if (exchange->code_p) {
        *exchange->code_p = code;
    } else if (code != 200) {
        complain_reply(url, code, &exchange->body);
    }
    return result == CURLE_OK && (exchange->code_p || code == 200);
}

static bool exchange(exchange_t *state, const char *url, const char *post)
{
    state->curl = curl_easy_init();
    if (!state->curl) {
        cli_complain("out of memory");
        return false;
    }
    bool done = perform(state, url, post);
    curl_easy_cleanup(state->curl);
    return done;
}

static json_t *json_of(exchange_t *state, const char *url, const char *post)
{
    json_t *json = NULL;
    if (exchange(state, url, post)) {
        json = json_loadb(state->body.bytes ? state->body.bytes : "", state->body.count, 0, NULL);
        if (!json) {
            cli_complain("%s did not answer with JSON: is it a worker?", url);
        }
    }
    cli_text_fini(&state->body);
    return json;
}

json_t *cli_http_get(const char *url)
{
    exchange_t state = {0};
    return json_of(&state, url, NULL);
}

json_t *cli_http_post(const char *url, const json_t *body, long *code_p)
{
    char *text = json_dumps(body, JSON_COMPACT);
    exchange_t state = {.code_p = code_p};
    json_t *json = NULL;
    if (text) {
        json = json_of(&state, url, text);
    } else {
        cli_complain("out of memory");
    }
    as_mem_free(text);
    return json;
}

bool cli_http_stream(const char *url, const json_t *body, cli_event_fn on_event, void *ctx)
{
    char *text = json_dumps(body, JSON_COMPACT);
    exchange_t state = {.on_event = on_event, .ctx = ctx};
    bool done = text && exchange(&state, url, text);
    if (done && !state.ended) {
        cli_complain("%s ended its answer early: is the worker still running?", url);
        done = false;
    }
    as_mem_free(text);
    cli_text_fini(&state.body);
    return done;
}
