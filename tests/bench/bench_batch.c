// SPDX-License-Identifier: Apache-2.0
// Tokens per second of one worker at 1, 4 and 8 sessions: what steps that sessions share are worth.
//
// bench_batch --model FILE [--threads N] [--prompt TOKENS] [--decode TOKENS] [--rows N] [--horizon N]
//   [--lookup N] [--draft FILE] [--text FILE] [--arm NAME]
// (N proposed tokens of prompt lookup; a draft model; prompts from a text) runs three arms at each number of sessions, without stores: plain decoding on the full cache,
// kivi4 without verification, and kivi4 verified. It prints one line of JSON for each: tokens that
// left between the moment at which all sessions had their first and the one at which the first of
// them was complete, per second of that time, and the processor time of each. --rows 1 shows steps of one session at a time.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "gpuworker/metrics.h"
#include "gpuworker/model/forward.h"
#include "gpuworker/worker.h"
#include "tests/bench/clock.h"

#define SESSIONS_MAX   8u
#define TEXT_BYTES_MAX ((size_t)1 << 20)

typedef struct bench {
    const char *path;
    uint32_t threads, prompt, decode, rows, horizon, lookup;
    const char *text, *arm, *draft_path;
    gpw_model_t *model, *draft;
    int32_t *tokens; // of the text; NULL: made-up ones
    size_t token_count;
} bench_t;

typedef struct arm {
    const char *name, *compressor;
    gpw_verify_t verify;
} arm_t;

static const arm_t arms[] = {{"plain", "none", GPW_VERIFY_FULL},
                             {"kivi4 unverified", "kivi4", GPW_VERIFY_OFF},
                             {"kivi4 verified", "kivi4", GPW_VERIFY_FULL}};
static const uint32_t session_counts[] = {1, 4, 8};

typedef struct session {
    struct run *run;
    uint32_t count;
} session_t;

typedef struct run {
    session_t sessions[SESSIONS_MAX];
    uint32_t count, answering, finished, failed;
    uint64_t tokens, tokens_start, tokens_end; // of all
    uint64_t drafted, accepted, proposed, taken, modelled, modelled_taken;
    double start_s, end_s, cpu_start_s, cpu_end_s;
    int64_t layers_start, layers_end, passes_start, passes_end;
} run_t;

static void on_tokens(void *ctx, const gpw_token_event_t *tokens, uint32_t count)
{
    session_t *session = ctx;
    run_t *run = session->run;
    (void)tokens;
    run->answering += session->count == 0;
    session->count += count;
    run->tokens += count;
    if (run->answering == run->count && run->start_s == 0) {
        run->start_s = now_s();
        run->cpu_start_s = cpu_seconds(0);
        run->tokens_start = run->tokens;
        run->layers_start = gpw_metric_value(GPW_METRIC_BATCH_LAYERS_TOTAL);
        run->passes_start = gpw_metric_value(GPW_METRIC_BATCH_PASSES_TOTAL);
    }
}

static void on_finish(void *ctx, gpw_finish_t finish, as_status_t status, const char *error,
                      const gpw_usage_t *usage)
{
    session_t *session = ctx;
    run_t *run = session->run;
    (void)finish;
    if (status != AS_OK) {
        fprintf(stderr, "bench_batch: %s\n", error);
        run->failed++;
    }
    if (run->finished++ == 0) {
        run->end_s = now_s();
        run->cpu_end_s = cpu_seconds(0);
        run->tokens_end = run->tokens;
        run->layers_end = gpw_metric_value(GPW_METRIC_BATCH_LAYERS_TOTAL);
        run->passes_end = gpw_metric_value(GPW_METRIC_BATCH_PASSES_TOTAL);
    }
    run->drafted += usage->drafted_tokens;
    run->accepted += usage->accepted_tokens;
    run->proposed += usage->proposed_tokens;
    run->taken += usage->proposals_accepted;
    run->modelled += usage->model_proposed_tokens;
    run->modelled_taken += usage->model_proposals_accepted;
}

static int submit(const bench_t *bench, gpw_worker_t *worker, const arm_t *arm, session_t *session)
{
    int32_t *tokens = as_mem_alloc(bench->prompt * sizeof(int32_t));
    uint32_t number = (uint32_t)(session - session->run->sessions);
    char error[256] = "";
    uint64_t id;
    size_t from = bench->tokens ? number * 997u % (bench->token_count - bench->prompt) : 0;
    for (uint32_t i = 0; tokens && i < bench->prompt; i++) {
        tokens[i] = bench->tokens
                        ? bench->tokens[from + i]
                        : (int32_t)((i * 7919u + number * 104729u + 13) % bench->model->vocab);
    }
    gpw_request_params_t params = {.tokens = tokens,
                                   .token_count = bench->prompt,
                                   .max_tokens = bench->decode,
                                   .choose = {.top_p = 1},
                                   .compressor = arm->compressor,
                                   .horizon = bench->horizon,
                                   .prompt_lookup = bench->lookup,
                                   .horizon_set = true,
                                   .prompt_lookup_set = true,
                                   .verify = arm->verify,
                                   .ignore_end = true};
    gpw_request_events_t events = {session, on_tokens, on_finish, NULL};
    as_status_t status =
        tokens ? gpw_worker_submit(worker, &params, &events, error, sizeof(error), &id)
               : AS_ERR_NO_MEMORY;
    as_mem_free(tokens);
    if (status != AS_OK) {
        fprintf(stderr, "bench_batch: %s\n", error);
    }
    return status == AS_OK;
}

static void print_row(const bench_t *bench, const arm_t *arm, const run_t *run)
{
    double seconds = run->end_s - run->start_s;
    double tokens = (double)(run->tokens_end - run->tokens_start);
    int64_t layers = run->layers_end - run->layers_start;
    printf(
        "{\"arm\": \"%s\", \"sessions\": %u, \"threads\": %u, \"prompt_tokens\": %u, "
        "\"rows_max\": %u, \"horizon\": %u, \"tokens_per_s\": %.1f, \"cpu_ms_per_token\": %.2f, "
        "\"mean_batch\": %.2f, \"lookup\": %u, \"proposed\": %llu, \"proposals_accepted\": %llu, "
        "\"model_proposed\": %llu, \"model_proposals_accepted\": %llu, "
        "\"drafted\": %llu, \"accepted\": %.2f}\n",
        arm->name, run->count, bench->threads, bench->prompt, bench->rows, bench->horizon,
        tokens / seconds, (run->cpu_end_s - run->cpu_start_s) * 1000 / tokens,
        (double)(run->passes_end - run->passes_start) / (double)(layers ? layers : 1),
        bench->lookup, (unsigned long long)run->proposed, (unsigned long long)run->taken,
        (unsigned long long)run->modelled, (unsigned long long)run->modelled_taken,
        (unsigned long long)run->drafted,
        run->drafted ? (double)run->accepted / (double)run->drafted : 0.0);
    fflush(stdout);
}

static int run_arm(const bench_t *bench, const arm_t *arm, uint32_t sessions)
{
    as_loop_t *loop = NULL;
    gpw_worker_t *worker = NULL;
    gpw_worker_options_t options;
    run_t run = {.count = sessions};
    gpw_worker_options_init(&options);
    if (as_loop_alloc_uv(&loop) != AS_OK) {
        return 0;
    }
    options.model = bench->model;
    options.ops = krn_cpu();
    options.draft_model = bench->draft;
    options.threads = bench->threads;
    options.sessions_max = SESSIONS_MAX;
    options.batch_rows = bench->rows;
    options.context_max = bench->prompt + bench->decode;
    options.engine_loop = options.io_loop = loop;
    int good = gpw_worker_alloc(&options, &worker) == AS_OK;
    for (uint32_t i = 0; good && i < sessions; i++) {
        run.sessions[i].run = &run;
        good = submit(bench, worker, arm, &run.sessions[i]);
    }
    while (good && !gpw_worker_idle(worker)) {
        as_loop_run_once(loop, true);
    }
    gpw_worker_free(worker);
    as_loop_free(loop);
    if (good && run.failed == 0 && (run.start_s == 0 || run.start_s >= run.end_s)) {
        fprintf(stderr,
                "bench_batch: a session was complete before the last began: raise --decode\n");
        return 0;
    }
    if (good && run.failed == 0) {
        print_row(bench, arm, &run);
    }
    return good && run.failed == 0;
}

static int parse(bench_t *bench, int argc, char **argv)
{
    static const struct option names[] = {{"model", required_argument, NULL, 'm'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"prompt", required_argument, NULL, 'p'},
                                          {"decode", required_argument, NULL, 'd'},
                                          {"rows", required_argument, NULL, 'r'},
                                          {"horizon", required_argument, NULL, 'h'},
                                          {"lookup", required_argument, NULL, 'l'},
                                          {"text", required_argument, NULL, 'x'},
                                          {"arm", required_argument, NULL, 'a'},
                                          {"draft", required_argument, NULL, 'w'},
                                          {NULL, 0, NULL, 0}};
    int name;
    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        bool counts = name != 'm' && name != 'x' && name != 'a' && name != 'w' && name != '?';
        uint32_t number = counts ? (uint32_t)strtoul(optarg, NULL, 10) : 1;
        uint32_t *target = name == 't'   ? &bench->threads
                           : name == 'p' ? &bench->prompt
                           : name == 'd' ? &bench->decode
                           : name == 'r' ? &bench->rows
                           : name == 'l' ? &bench->lookup
                                         : &bench->horizon;
        if (name == 'm') {
            bench->path = optarg;
        } else if (name == 'a') {
            bench->arm = optarg;
        } else if (name == 'w') {
            bench->draft_path = optarg;
        } else if (name == 'x') {
            bench->text = optarg;
        } else if (name == '?' || (number == 0 && name != 'l')) {
            return 0;
        } else {
            *target = number;
        }
    }
    return bench->path != NULL;
}

static int load(const char *path, gpw_model_t **model_p)
{
    char error[256] = "";
    gpw_model_options_t options = {.path = path};
    if (gpw_model_load(&options, error, sizeof(error), model_p) != AS_OK) {
        fprintf(stderr, "bench_batch: %s: %s\n", path, error);
        return 0;
    }
    return 1;
}

// Prompts from a file, each session's from another place.
static int read_text(bench_t *bench)
{
    FILE *file = bench->text ? fopen(bench->text, "r") : NULL;
    char *text = as_mem_alloc(TEXT_BYTES_MAX);
    bench->tokens = as_mem_alloc(TEXT_BYTES_MAX * sizeof(int32_t));
    size_t bytes = file && text ? fread(text, 1, TEXT_BYTES_MAX, file) : 0;
    gpw_encode_options_t encode = {0};
    int good = bench->tokens && bytes > 0 &&
               gpw_tokenizer_encode(bench->model->tokenizer, text, bytes, encode, bench->tokens,
                                    TEXT_BYTES_MAX, &bench->token_count) == AS_OK &&
               bench->token_count > bench->prompt;
    if (file) {
        fclose(file);
    }
    as_mem_free(text);
    if (!good) {
        as_mem_free(bench->tokens);
        bench->tokens = NULL;
    }
    if (bench->text && !good) {
        fprintf(stderr, "bench_batch: %s cannot be read, or is shorter than --prompt\n",
                bench->text);
    }
    return good || !bench->text;
}

int main(int argc, char **argv)
{
    bench_t bench = {.path = getenv("ASSAY_MODEL"),
                     .threads = 2,
                     .prompt = 128,
                     .decode = 256,
                     .rows = GPW_FORWARD_STEP_ROWS,
                     .horizon = 16};
    if (!parse(&bench, argc, argv)) {
        fprintf(stderr, "usage: bench_batch --model FILE [--threads N] [--prompt TOKENS] "
                        "[--decode TOKENS] [--rows N] [--horizon N] [--lookup N] [--draft FILE] "
                        "[--text FILE] [--arm NAME]\n");
        return 2;
    }
    int good = load(bench.path, &bench.model) &&
               (!bench.draft_path || load(bench.draft_path, &bench.draft)) && read_text(&bench);
    for (size_t a = 0; good && a < sizeof(arms) / sizeof(arms[0]); a++) {
        for (size_t s = 0; good && s < sizeof(session_counts) / sizeof(session_counts[0]); s++) {
            bool chosen = !bench.arm || strcmp(bench.arm, arms[a].name) == 0;
            good = !chosen || run_arm(&bench, &arms[a], session_counts[s]);
        }
    }
    as_mem_free(bench.tokens);
    gpw_model_free(bench.draft);
    gpw_model_free(bench.model);
    return good ? 0 : 1;
}
