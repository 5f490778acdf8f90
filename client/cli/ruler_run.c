// SPDX-License-Identifier: Apache-2.0
// `assay ruler run`: asks a worker every sample with every compressor, and shows the scores.
//
// The worker's tokenizer counts. A prompt goes as token ids: the conversation by the chat template,
// then the prefix of the answer, which the model goes on from; no text could spell the template.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/ruler.h"

static cli_ruler_set_t set;
static cli_ask_t ask;
static const char **compressors;
static const char *worker, *scheduler, *run_dir, *out_file, *verify;
static bool chat, as_json;

static const as_option_t table[] = {
    CLI_RULER_OPTIONS(set),
    {.name = "compressor",
     .type = AS_OPTION_LIST,
     .value = &compressors,
     .fallback = "none",
     .metavar = "NAME,...",
     .help = "which to compare, of those that the worker's /v1/models lists; none: the full cache"},
    {.name = "verify",
     .type = AS_OPTION_STRING,
     .value = &verify,
     .fallback = "off",
     .metavar = "full|off",
     .help =
         "off: what the compressors leave of the scores; full: all are those of the full cache"},
    {.name = "chat",
     .type = AS_OPTION_BOOL,
     .value = &chat,
     .fallback = "true",
     .help = "ask by the model's chat template; --chat=false: as a text to continue"},
    {.name = "out",
     .type = AS_OPTION_STRING,
     .value = &out_file,
     .metavar = "FILE",
     .help = "write each sample, answer and score there, one JSON object a line"},
    CLI_DRAFT_OPTIONS(ask),
    CLI_JSON_OPTION(as_json, "print JSON"),
    {.name = "worker",
     .type = AS_OPTION_STRING,
     .value = &worker,
     .metavar = "URL",
     .help = "which worker (default: the first of the cluster here), or"},
    {.name = "scheduler",
     .type = AS_OPTION_STRING,
     .value = &scheduler,
     .metavar = "HOST:PORT",
     .help = "of the cluster whose first worker is asked"},
    CLI_RUN_DIR_OPTION(run_dir),
    AS_TLS_OPTIONS(cli_tls),
};

static const as_options_t options = {
    .program = "assay ruler run",
    .summary = "Asks a running worker long-context tasks with known answers, and shows the scores.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

typedef struct run {
    char url[CLI_URL_BYTES];
    uint32_t compressor_count;
    int columns[CLI_RULER_COLUMNS_MAX];
    size_t lead; // tokens that the model wants before any text (BOS)
    FILE *out;
    uint64_t asked, to_ask;
    bool terminal;
    cli_ruler_scores_t scores;
} run_t;

// ---- Tokens

// Tokens of a request's prompt. *tokens_p is NULL where it is longer than the worker's context.
static bool tokenize(const run_t *run, const char *path, const json_t *body, json_t **tokens_p)
{
    char url[CLI_PATH_BYTES];
    long code = 0;
    snprintf(url, sizeof(url), "%s/v1/%s/tokenize", run->url, path);
    json_t *reply = body ? cli_http_post(url, body, &code) : NULL;
    json_t *tokens = json_object_get(reply, "tokens"), *error = json_object_get(reply, "error");
    const char *reason = json_string_value(json_object_get(error, "code"));
    bool too_long = reason && strcmp(reason, "context_length_exceeded") == 0;
    bool good = code == 200 && json_is_array(tokens);
    if (reply && !good && !too_long) {
        const char *message = json_string_value(json_object_get(error, "message"));
        cli_complain("%s answered %ld: %s", url, code,
                     message ? message : "no tokens; is the worker of this version?");
    }
    *tokens_p = good ? json_incref(tokens) : NULL;
    json_decref(reply);
    return good || too_long;
}

static bool tokenize_text(const run_t *run, const char *text, json_t **tokens_p)
{
    json_t *body = json_pack("{s:s}", "prompt", text);
    bool done = tokenize(run, "completions", body, tokens_p);
    json_decref(body);
    return done;
}

// The prompt as a user's message, then the prefix behind the template's beginning of an answer.
static bool tokenize_chat(const run_t *run, const ruler_sample_t *sample, json_t **tokens_p)
{
    json_t *body = json_pack("{s:[{s:s, s:s++}]}", "messages", "role", "user", "content",
                             sample->context, sample->question, "");
    json_t *prompt = NULL, *prefix = NULL;
    bool done = tokenize(run, "chat/completions", body, &prompt) &&
                tokenize_text(run, sample->prefix, &prefix);
    json_decref(body);
    for (size_t i = run->lead; done && prompt && i < json_array_size(prefix); i++) {
        done = json_array_append(prompt, json_array_get(prefix, i)) == 0;
    }
    json_decref(prefix);
    *tokens_p = prompt;
    return done;
}

static bool tokenize_sample(const run_t *run, const ruler_sample_t *sample, json_t **tokens_p)
{
    if (chat) {
        return tokenize_chat(run, sample, tokens_p);
    }
    json_t *body = json_pack("{s:s++}", "prompt", sample->context, sample->question, "\n\n");
    json_t *text = json_object_get(body, "prompt");
    cli_text_t whole = {0};
    bool done = text &&
                cli_text_append(&whole, json_string_value(text), json_string_length(text)) &&
                cli_text_append(&whole, sample->prefix, strlen(sample->prefix)) &&
                tokenize_text(run, whole.bytes, tokens_p);
    cli_text_fini(&whole);
    json_decref(body);
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

// A letter is one token, so what else comes is what the model wants before a text.
static bool find_lead(run_t *run)
{
    json_t *tokens = NULL;
    bool found = tokenize_text(run, "x", &tokens) && json_array_size(tokens) > 0;
    run->lead = found ? json_array_size(tokens) - 1 : 0;
    if (tokens && !found) {
        cli_complain("%s has no token for the letter x", run->url);
    }
    json_decref(tokens);
    return found;
}

static bool check_context(const run_t *run)
{
    char path[CLI_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/v1/models", run->url);
    json_t *models = cli_http_get(path);
    json_t *model = json_array_get(json_object_get(models, "data"), 0);
    json_int_t context =
        json_integer_value(json_object_get(json_object_get(model, "assay"), "context_tokens"));
    bool good = models && set.length_tokens <= context;
    if (models && !good) {
        cli_complain("--tokens %lld: the worker's context is %lld: give fewer, or start it with "
                     "--context %lld",
                     (long long)set.length_tokens, (long long)context,
                     (long long)set.length_tokens);
    }
    json_decref(models);
    return good;
}

// ---- Asking

static bool write_answer(const run_t *run, const ruler_sample_t *sample, const char *answer,
                         double score)
{
    json_t *json = ruler_sample_json(sample);
    bool written = json &&
                   json_object_set_new(json, "compressor", json_string(ask.compressor)) == 0 &&
                   json_object_set_new(json, "answer", json_string(answer)) == 0 &&
                   json_object_set_new(json, "score", json_real(100 * score)) == 0 &&
                   json_dumpf(json, run->out, JSON_COMPACT) == 0 && fputc('\n', run->out) != EOF &&
                   fflush(run->out) == 0;
    json_decref(json);
    if (!written) {
        cli_complain("cannot write to %s", out_file);
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

static void show_progress(const run_t *run, const ruler_sample_t *sample)
{
    if (run->terminal) {
        fprintf(stderr, "\r%llu of %llu: %s, sample %u, %s\033[K",
                (unsigned long long)run->asked + 1, (unsigned long long)run->to_ask,
                ruler_task_name(sample->ask.task), sample->ask.index, ask.compressor);
    }
}

// One sample to every compressor.
static bool ask_sample(run_t *run, const ruler_sample_t *sample)
{
    json_t *tokens = NULL;
    bool good = tokenize_sample(run, sample, &tokens) && tokens;
    ask.tokens = tokens;
    ask.max_tokens = sample->ask.answer_tokens;
    for (uint32_t i = 0; good && i < run->compressor_count; i++) {
        cli_answer_t answer;
        ask.compressor = compressors[i];
        show_progress(run, sample);
        good = cli_ask(&ask, &answer);
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

static bool ask_all(run_t *run)
{
    bool good = true;
    for (uint32_t i = 0; good && i < set.task_count; i++) {
        for (uint32_t index = 0; good && index < (uint32_t)set.samples; index++) {
            const ruler_ask_t wanted = {.task = set.tasks[i], .index = index};
            ruler_sample_t sample;
            good = cli_ruler_fit(&set, wanted, count_tokens, run, &sample);
            if (good) {
                good = ask_sample(run, &sample);
                ruler_sample_fini(&sample);
            }
        }
    }
    if (run->terminal) {
        fputs("\r\033[K", stderr);
    }
    return good;
}

// ---- Showing

static void print_table(const run_t *run)
{
    cli_ruler_print(&run->scores);
    printf("\nscores in percent, of %lld samples a task with %lld tokens, seed %lld, verify %s; "
           "resident: the cache\non the device against the full cache\n",
           (long long)set.samples, (long long)set.length_tokens, (long long)set.seed, verify);
}

static void print_json(const run_t *run)
{
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:s, s:b, s:o}", "tokens", (json_int_t)set.length_tokens,
                  "samples", (json_int_t)set.samples, "seed", (json_int_t)set.seed, "verify",
                  verify, "chat", chat, "compressors", cli_ruler_json(&run->scores));
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

// ---- The verb

static bool check_options(run_t *run)
{
    if (strcmp(verify, "full") != 0 && strcmp(verify, "off") != 0) {
        cli_complain("--verify=%s: give full or off", verify);
        return false;
    }
    ask.verify_off = strcmp(verify, "off") == 0;
    bool good = cli_ruler_find_tasks(&set) &&
                cli_count_names(compressors, CLI_RULER_COLUMNS_MAX, &run->compressor_count);
    for (uint32_t i = 0; good && i < run->compressor_count; i++) {
        ask.compressor = compressors[i];
        run->columns[i] = cli_ruler_column(&run->scores, compressors[i]);
        good = cli_check_ask(&ask);
        if (good && run->columns[i] < 0) {
            cli_complain("--compressor: %.60s... is no compressor's name", compressors[i]);
            good = false;
        }
    }
    return good;
}

// The worker that --worker names, or the scheduler's, or of the cluster here. The exit code.
static int find_worker(char url[CLI_URL_BYTES])
{
    if (!scheduler || worker) {
        return cli_find_worker(worker, run_dir, url);
    }
    Assay__StatReply *stat = cli_stat_of_cluster(scheduler);
    const char *address = NULL;
    for (size_t i = 0; stat && !address && i < stat->n_nodes; i++) {
        const Assay__NodeStat *node = stat->nodes[i];
        bool usable = node->role == ASSAY__ROLE__ROLE_WORKER && node->http_address[0] &&
                      node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE;
        address = usable ? node->http_address : NULL;
    }
    int code = address ? cli_find_worker(address, run_dir, url) : 1;
    if (stat && !address) {
        cli_complain("the scheduler at %s knows no worker that is alive (`assay stat`)", scheduler);
    }
    if (stat) {
        assay__stat_reply__free_unpacked(stat, NULL);
    }
    return code;
}

static bool open_out(run_t *run)
{
    run->out = out_file ? fopen(out_file, "w") : NULL;
    if (out_file && !run->out) {
        cli_complain("cannot write %s: %s", out_file, strerror(errno));
        return false;
    }
    return true;
}

static bool close_out(run_t *run)
{
    if (run->out && fclose(run->out) != 0) {
        cli_complain("cannot write to %s: %s", out_file, strerror(errno));
        return false;
    }
    return true;
}

int cli_ruler_run(int argc, char **argv)
{
    static run_t run;
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    if (!check_options(&run)) {
        return 2;
    }
    code = find_worker(run.url);
    if (code != 0) {
        return code;
    }
    ask.url = run.url;
    run.to_ask = (uint64_t)set.task_count * (uint64_t)set.samples * run.compressor_count;
    run.terminal = isatty(STDERR_FILENO);
    if (!check_context(&run) || !find_lead(&run) || !open_out(&run)) {
        return 1;
    }
    bool good = ask_all(&run);
    good = close_out(&run) && good;
    if (good && as_json) {
        print_json(&run);
    } else if (good) {
        print_table(&run);
    }
    return good ? 0 : 1;
}
