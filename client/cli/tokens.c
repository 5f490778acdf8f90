// SPDX-License-Identifier: Apache-2.0
// Tokens of texts, as a worker's tokenizer has them, and the context that has to hold them.
#include <string.h>

#include "client/cli/cli.h"

bool cli_tokenize(const char *url, const char *path, const json_t *body, json_t **tokens_p)
{
    char whole[CLI_PATH_BYTES];
    long code = 0;
    snprintf(whole, sizeof(whole), "%s/v1/%s/tokenize", url, path);
    json_t *reply = body ? cli_http_post(whole, body, &code) : NULL;
    json_t *tokens = json_object_get(reply, "tokens"), *error = json_object_get(reply, "error");
    const char *reason = json_string_value(json_object_get(error, "code"));
    bool too_long = reason && strcmp(reason, "context_length_exceeded") == 0;
    bool good = code == 200 && json_is_array(tokens);
    if (reply && !good && !too_long) {
        const char *message = json_string_value(json_object_get(error, "message"));
        cli_complain("%s answered %ld: %s", whole, code,
                     message ? message : "no tokens; is the worker of this version?");
    }
    *tokens_p = good ? json_incref(tokens) : NULL;
    json_decref(reply);
    return good || too_long;
}

bool cli_tokenize_text(const char *url, const char *text, json_t **tokens_p)
{
    json_t *body = json_pack("{s:s}", "prompt", text);
    *tokens_p = NULL;
    if (!body) {
        cli_complain("a text is not UTF-8");
    }
    bool done = cli_tokenize(url, "completions", body, tokens_p);
    json_decref(body);
    return done;
}

// A letter is one token, so what else comes is what the model wants before a text.
bool cli_tokenize_lead(const char *url, size_t *lead_p)
{
    json_t *tokens = NULL;
    bool found = cli_tokenize_text(url, "x", &tokens) && json_array_size(tokens) > 0;
    *lead_p = found ? json_array_size(tokens) - 1 : 0;
    if (tokens && !found) {
        cli_complain("%s has no token for the letter x", url);
    }
    json_decref(tokens);
    return found;
}

bool cli_check_context(const char *url, const char *option, int64_t tokens)
{
    char path[CLI_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/v1/models", url);
    json_t *models = cli_http_get(path);
    json_t *model = json_array_get(json_object_get(models, "data"), 0);
    json_int_t context =
        json_integer_value(json_object_get(json_object_get(model, "assay"), "context_tokens"));
    bool good = models && tokens <= context;
    if (models && !good) {
        cli_complain("%s %lld: the worker's context is %lld: give fewer, or start it with "
                     "--context %lld",
                     option, (long long)tokens, (long long)context, (long long)tokens);
    }
    json_decref(models);
    return good;
}
