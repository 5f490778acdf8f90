// SPDX-License-Identifier: Apache-2.0
// Samples of `assay ruler`, each asked of a worker with every compressor.
//
// The worker's tokenizer counts. A prompt goes as token ids: the conversation by the chat template,
// then the prefix of the answer, which the model goes on from; no text could spell the template.
#include <string.h>
#include <unistd.h>

#include "client/cli/ruler.h"

// ---- Tokens

// The prompt as a user's message, then the prefix behind the template's beginning of an answer.
static bool tokenize_chat(const cli_ruler_run_t *run, const ruler_sample_t *sample,
                          json_t **tokens_p)
{
    json_t *body = json_pack("{s:[{s:s, s:s++}]}", "messages", "role", "user", "content",
                             sample->context, sample->question, "");
    json_t *prompt = NULL, *prefix = NULL;
    bool done = cli_tokenize(run->ask.url, "chat/completions", body, &prompt) &&
                cli_tokenize_text(run->ask.url, sample->prefix, &prefix);
    json_decref(body);
    for (size_t i = run->lead; done && prompt && i < json_array_size(prefix); i++) {
        done = json_array_append(prompt, json_array_get(prefix, i)) == 0;
    }
    json_decref(prefix);
    *tokens_p = prompt;
    return done;
}

static bool tokenize_sample(const cli_ruler_run_t *run, const ruler_sample_t *sample,
                            json_t **tokens_p)
{
    if (run->chat) {
        return tokenize_chat(run, sample, tokens_p);
    }
    const char *const parts[] = {sample->context, sample->question, "\n\n", sample->prefix};
    cli_text_t whole = {0};
    bool done = true;
    for (size_t i = 0; done && i < sizeof(parts) / sizeof(parts[0]); i++) {
        done = cli_text_append(&whole, parts[i], strlen(parts[i]));
    }
    done = done && cli_tokenize_text(run->ask.url, whole.bytes, tokens_p);
    cli_text_fini(&whole);
    return done;
}

static as_status_t count_tokens(void *ctx, const ruler_sample_t *sample, uint32_t *tokens_p)
{
    json_t *tokens = NULL;
    if (!tokenize_sample(ctx, sample, &tokens)) {
        json_decref(tokens);
        return AS_ERR_IO;
    }
    *tokens_p = tokens ? (uint32_t)json_array_size(tokens) : RULER_TOKENS_MAX;
    json_decref(tokens);
    return AS_OK;
}

// ---- Asking

static bool write_answer(const cli_ruler_run_t *run, const ruler_sample_t *sample,
                         const char *answer, double score)
{
    json_t *json = ruler_sample_json(sample);
    bool written = json &&
                   json_object_set_new(json, "compressor", json_string(run->ask.compressor)) == 0 &&
                   json_object_set_new(json, "answer", json_string(answer)) == 0 &&
                   json_object_set_new(json, "score", json_real(100 * score)) == 0 &&
                   json_dumpf(json, run->out, JSON_COMPACT) == 0 && fputc('\n', run->out) != EOF &&
                   fflush(run->out) == 0;
    json_decref(json);
    if (!written) {
        cli_complain("cannot write to %s", run->out_file);
    }
    return written;
}

static void add(cli_ruler_cell_t *cell, const cli_answer_t *answer, double score)
{
    cell->score += score;
    cell->resident_bytes += cli_usage(answer, "assay.resident_bytes");
    cell->full_bytes += cli_usage(answer, "assay.full_bytes");
    cell->drafted += cli_usage(answer, "assay.drafted_tokens");
    cell->accepted += cli_usage(answer, "assay.accepted_tokens");
    cell->verifications += cli_usage(answer, "assay.verifications");
    cell->ms += answer->total_ms;
    cell->samples++;
}

static void show_progress(const cli_ruler_run_t *run, const ruler_sample_t *sample)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%llu of %llu: %s, sample %u, %s\033[K",
                (unsigned long long)run->asked + 1,
                (unsigned long long)run->set->task_count * (unsigned long long)run->set->samples *
                    run->compressor_count,
                ruler_task_name(sample->ask.task), sample->ask.index, run->ask.compressor);
    }
}

// One sample to every compressor.
static bool ask_sample(cli_ruler_run_t *run, const ruler_sample_t *sample)
{
    json_t *tokens = NULL;
    bool good = tokenize_sample(run, sample, &tokens) && tokens;
    run->ask.tokens = tokens;
    run->ask.max_tokens = sample->ask.answer_tokens;
    for (uint32_t i = 0; good && i < run->compressor_count; i++) {
        cli_answer_t answer;
        run->ask.compressor = run->compressors[i];
        show_progress(run, sample);
        good = cli_ask(&run->ask, &answer);
        if (good) {
            double score = ruler_score(sample, answer.text.bytes);
            add(&run->scores.cells[sample->ask.task][run->columns[i]], &answer, score);
            good = !run->out || write_answer(run, sample, answer.text.bytes, score);
        }
        cli_answer_fini(&answer);
        run->asked++;
    }
    json_decref(tokens);
    return good;
}

static bool make_columns(cli_ruler_run_t *run)
{
    for (uint32_t i = 0; i < run->compressor_count; i++) {
        run->columns[i] = cli_ruler_column(&run->scores, run->compressors[i]);
        if (run->columns[i] < 0) {
            cli_complain("--compressor: %.60s... is no compressor's name", run->compressors[i]);
            return false;
        }
    }
    return true;
}

bool cli_ruler_ask_all(cli_ruler_run_t *run)
{
    const cli_ruler_set_t *set = run->set;
    bool good = make_columns(run) && cli_tokenize_lead(run->ask.url, &run->lead);
    for (uint32_t i = 0; good && i < set->task_count; i++) {
        for (uint32_t index = 0; good && index < (uint32_t)set->samples; index++) {
            const ruler_ask_t wanted = {.task = set->tasks[i], .index = index};
            ruler_sample_t sample;
            good = cli_ruler_fit(set, wanted, count_tokens, run, &sample);
            if (good) {
                good = ask_sample(run, &sample);
                ruler_sample_fini(&sample);
            }
        }
    }
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
    return good;
}
