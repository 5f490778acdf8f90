// SPDX-License-Identifier: Apache-2.0
// The worker's options.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/daemon.h"
#include "common/http.h"
#include "gpuworker/model/forward.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/serve/daemon.h"
#include "gpuworker/serve/text.h"
#include "gpuworker/worker.h"

static gpw_daemon_config_t config;
static as_daemon_flags_t common;
static char compressor_help[1024]; // with the table's names

// One option, two or three lines.
// clang-format off
static const as_option_t table[] = {
    {.name = "model", .type = AS_OPTION_STRING, .value = &config.model, .metavar = "FILE",
     .help = "GGUF file of the model", .required = true},
    {.name = "model-name", .type = AS_OPTION_STRING, .value = &config.model_name, .metavar = "NAME",
     .help = "name of the model in the API (default: the file's, without .gguf)"},
    {.name = "listen", .type = AS_OPTION_STRING, .value = &config.listen,
     .fallback = "127.0.0.1:8000", .metavar = "HOST:PORT",
     .help = "address of the API; port 0 picks one"},
    {.name = "scheduler", .type = AS_OPTION_STRING, .value = &config.scheduler,
     .metavar = "HOST:PORT",
     .help = "the cluster's scheduler; without it the worker serves alone"},
    {.name = "data-interface", .type = AS_OPTION_STRING, .value = &config.data_interface,
     .metavar = "NAME",
     .help = "network interface to the stores, such as eth0 or lo (default: every one)"},
    {.name = "token", .type = AS_OPTION_STRING, .value = &config.token,
     .metavar = "FILE",
     .help = "token for stores that have tenants (`assay token issue`); read again when it changes"},
    {.name = "encrypt-key-file", .type = AS_OPTION_STRING, .value = &config.encrypt_key,
     .metavar = "FILE",
     .help = "key (`assay token key`) by which blocks are encrypted here; stores never see it"},
    {.name = "name", .type = AS_OPTION_STRING, .value = &config.name,
     .fallback = "worker", .metavar = "NAME",
     .help = "name of this worker, for people"},
    {.name = "cluster-id", .type = AS_OPTION_STRING, .value = &config.cluster_id, .fallback = "",
     .metavar = "NAME",
     .help = "join the cluster of this name only; without it that of --scheduler"},
    {.name = "threads", .type = AS_OPTION_INT, .value = &config.threads,
     .fallback = "0", .metavar = "N",
     .help = "threads that compute; 0: one for each processor", .min = 0, .max = 256},
    {.name = "context", .type = AS_OPTION_INT, .value = &config.context,
     .fallback = "0", .metavar = "TOKENS",
     .help = "most tokens of one request, prompt and answer; 0: the model's own",
     .min = 0, .max = 1048576},
    {.name = "compressor", .type = AS_OPTION_STRING, .value = &config.compressor,
     .fallback = "kivi4", .metavar = "NAME",
     .help = compressor_help},
    {.name = "calibration", .type = AS_OPTION_STRING, .value = &config.calibration, .metavar = "FILE",
     .help = "what `assay calibrate` found out of the model, for compressors that need it"},
    {.name = "horizon", .type = AS_OPTION_INT, .value = &config.horizon,
     .fallback = "64", .metavar = "TOKENS",
     .help = "most drafted tokens before a verification, up to which each session chooses; 0: plain "
             "decoding",
     .min = 0, .max = GPW_HORIZON_MAX},
    {.name = "prompt-lookup", .type = AS_OPTION_INT, .value = &config.prompt_lookup,
     .fallback = "8", .metavar = "TOKENS",
     .help = "most tokens of a step that are proposed because they followed the newest ones before; 0: off",
     .min = 0, .max = GPW_LOOKUP_MAX},
    {.name = "draft-model", .type = AS_OPTION_STRING, .value = &config.draft_model, .metavar = "FILE",
     .help = "GGUF file of a smaller model of the same vocabulary, which proposes tokens where prompt "
             "lookup has none"},
    {.name = "draft-tokens", .type = AS_OPTION_INT, .value = &config.draft_tokens,
     .fallback = "4", .metavar = "TOKENS",
     .help = "most tokens of a step that --draft-model proposes", .min = 1, .max = GPW_LOOKUP_MAX},
    {.name = "draft-window", .type = AS_OPTION_INT, .value = &config.draft_window,
     .fallback = "512", .metavar = "TOKENS",
     .help = "newest tokens of a session that --draft-model sees",
     .min = GPW_DRAFT_WINDOW_MIN, .max = GPW_DRAFT_WINDOW_MAX},
    {.name = "device-memory", .type = AS_OPTION_BYTES, .value = &config.device_bytes,
     .fallback = "2GiB", .metavar = "BYTES",
     .help = "limit of all caches of all sessions and of the computation's workspace, beside the "
             "models' weights", .min = 1048576, .max = 1e15},
    {.name = "sessions", .type = AS_OPTION_INT, .value = &config.sessions,
     .fallback = "8", .metavar = "N",
     .help = "requests that are computed at once; more wait", .min = 1, .max = GPW_REQUESTS_MAX},
    {.name = "batch-rows", .type = AS_OPTION_INT, .value = &config.batch_rows,
     .fallback = "256", .metavar = "TOKENS",
     .help = "most tokens, of all requests, that are computed together; less makes a long prompt "
             "hold up the others for a shorter time",
     .min = 1, .max = GPW_FORWARD_STEP_ROWS},
    {.name = "queue", .type = AS_OPTION_INT, .value = &config.queue,
     .fallback = "32", .metavar = "N",
     .help = "requests that wait; more are answered 429", .min = 0, .max = GPW_REQUESTS_MAX},
    {.name = "connections", .type = AS_OPTION_INT, .value = &config.connections,
     .fallback = "256", .metavar = "N",
     .help = "HTTP connections; more wait", .min = 1, .max = 65536},
    {.name = "weights", .type = AS_OPTION_STRING, .value = &config.weights,
     .fallback = "f16", .metavar = "TYPE",
     .help = "type of the weights in memory: f16 or f32"},
    {.name = "block-tokens", .type = AS_OPTION_INT, .value = &config.block_tokens,
     .fallback = "64", .metavar = "TOKENS",
     .help = "tokens of one block; the same in the whole cluster", .min = 16, .max = 256},
    {.name = "full-cache", .type = AS_OPTION_STRING, .value = &config.full_cache,
     .fallback = "auto", .metavar = "auto|drop|swap",
     .help = "auto: sessions keep their full cache here while nobody waits for the memory, and swap "
             "what they had to let go; drop: they let go of what stores have at once; swap: those "
             "without a compressor too, which then bring it for every token (slow; for comparison)"},
    {.name = "overlap", .type = AS_OPTION_STRING, .value = &config.overlap,
     .fallback = "on", .metavar = "on|off",
     .help = "swaps come while drafts are computed; off: swap, verify and draft in turn (slow; for "
             "comparison)"},
    {.name = "shared-verification", .type = AS_OPTION_STRING, .value = &config.shared_verification,
     .fallback = "on", .metavar = "on|off",
     .help = "sessions on one chain are verified in one swap of its blocks"},
    {.name = "swap-ring", .type = AS_OPTION_INT, .value = &config.swap_ring_layers,
     .fallback = "4", .metavar = "LAYERS",
     .help = "layers of the full cache under way to a verification", .min = 1, .max = 256},
    {.name = "push-down", .type = AS_OPTION_STRING, .value = &config.push_down,
     .fallback = "auto", .metavar = "off|on|auto",
     .help = "attention of verifications computed at the stores, to the same bits, instead of "
             "bringing the blocks: off, on, or auto: where that is expected to take less time"},
    {.name = "store-sealed", .type = AS_OPTION_STRING, .value = &config.store_sealed,
     .fallback = "off", .metavar = "on|off",
     .help = "KIVI's sealed blocks are stored beside the full ones, and of a stored prefix fetched "
             "first: the first token comes by push-down (not with --push-down off), before any block"},
    {.name = "trace", .type = AS_OPTION_STRING, .value = &config.trace,
     .metavar = "FILE",
     .help = "writes when each session drafted, swapped and verified to FILE, for chrome://tracing or "
             "ui.perfetto.dev"},
    {.name = "recompute-rate", .type = AS_OPTION_DOUBLE, .value = &config.recompute_rate,
     .fallback = "0", .metavar = "TOKENS",
     .help = "per second, of computing a prompt: a stored prefix is computed again where loading it "
             "is expected to take longer; 0: as measured; -1: always load",
     .min = -1, .max = 1e9},
    {.name = "receive-deadline", .type = AS_OPTION_DURATION, .value = &config.receive_deadline_us,
     .fallback = "60s", .metavar = "TIME",
     .help = "of a request's header, and of its body, in whole seconds; then 408",
     .min = AS_HTTP_RECEIVE_SECONDS_MIN * 1e6, .max = 3600e6},
    {.name = "request-deadline", .type = AS_OPTION_DURATION, .value = &config.request_deadline_us,
     .fallback = "10m", .metavar = "TIME",
     .help = "of a whole request", .min = 1000, .max = 86400e6},
    {.name = "route-deadline", .type = AS_OPTION_DURATION, .value = &config.route_deadline_us,
     .fallback = "1s", .metavar = "TIME",
     .help = "of the scheduler's answer", .min = 1000, .max = 60e6},
    {.name = "fetch-deadline", .type = AS_OPTION_DURATION, .value = &config.fetch_deadline_us,
     .fallback = "5s", .metavar = "TIME",
     .help = "of a fetch from the stores", .min = 1000, .max = 600e6},
    {.name = "put-deadline", .type = AS_OPTION_DURATION, .value = &config.put_deadline_us,
     .fallback = "10s", .metavar = "TIME",
     .help = "of a put to a store", .min = 1000, .max = 600e6},
    {.name = "grace", .type = AS_OPTION_DURATION, .value = &config.grace_us,
     .fallback = "15s", .metavar = "TIME",
     .help = "for requests in progress at a shutdown", .min = 0, .max = 3600e6},
    AS_DAEMON_OPTIONS(common),
};
// clang-format on

static int refuse(const char *option, const char *value, const char *accepted)
{
    fprintf(stderr, "assay-gpuworker: --%s=%s is not known: give %s\n", option, value, accepted);
    return 2;
}

// Names go into JSON.
static bool is_utf8(const char *option, const char *value)
{
    if (!value || gpw_utf8_valid(value, strlen(value))) {
        return true;
    }
    fprintf(stderr, "assay-gpuworker: --%s is not valid UTF-8: give it in that encoding\n", option);
    return false;
}

static bool is_on_or_off(const char *value)
{
    return strcmp(value, "on") == 0 || strcmp(value, "off") == 0;
}

static bool needs_calibration(const char *compressor)
{
    const gpw_compressor_t *found = gpw_compressor_find(compressor);
    return found && found->flags & GPW_COMPRESSOR_CALIBRATED;
}

static bool is_compressor(const char *value)
{
    const char *const *name = gpw_compressor_names(0);
    while (*name && strcmp(*name, value) != 0) {
        name++;
    }
    return *name != NULL;
}

// Checks what the table cannot. Returns an exit code.
static int check(void)
{
    if (strcmp(config.weights, "f16") != 0 && strcmp(config.weights, "f32") != 0) {
        return refuse("weights", config.weights, "f16 or f32");
    }
    if (strcmp(config.full_cache, "auto") != 0 && strcmp(config.full_cache, "drop") != 0 &&
        strcmp(config.full_cache, "swap") != 0) {
        return refuse("full-cache", config.full_cache, "auto, drop or swap");
    }
    if (!is_on_or_off(config.overlap)) {
        return refuse("overlap", config.overlap, "on or off");
    }
    if (!is_on_or_off(config.store_sealed)) {
        return refuse("store-sealed", config.store_sealed, "on or off");
    }
    if (!is_on_or_off(config.shared_verification)) {
        return refuse("shared-verification", config.shared_verification, "on or off");
    }
    if (!gpw_push_down_find(config.push_down, &config.push_down_mode)) {
        return refuse("push-down", config.push_down, "off, on or auto");
    }
    if (!is_compressor(config.compressor)) {
        return refuse("compressor", config.compressor, gpw_compressor_list());
    }
    if (!config.calibration && needs_calibration(config.compressor)) {
        fprintf(stderr,
                "assay-gpuworker: --compressor=%s needs --calibration FILE: `assay calibrate "
                "--model %s --output FILE` makes it\n",
                config.compressor, config.model);
        return 2;
    }
    if (!is_utf8("name", config.name) || !is_utf8("model-name", config.model_name)) {
        return 2;
    }
    if (config.block_tokens % 16 != 0) {
        fprintf(stderr, "assay-gpuworker: --block-tokens must be a multiple of 16\n");
        return 2;
    }
    if (access(config.model, R_OK) != 0) {
        fprintf(stderr, "assay-gpuworker: cannot read --model %s: give a GGUF file\n",
                config.model);
        return 2;
    }
    if (config.draft_model && access(config.draft_model, R_OK) != 0) {
        fprintf(stderr, "assay-gpuworker: cannot read --draft-model %s: give a GGUF file\n",
                config.draft_model);
        return 2;
    }
    return 0;
}

bool gpw_daemon_options(int argc, char **argv, gpw_daemon_config_t *config_p, int *code_p)
{
    const as_options_t options = {
        .program = "assay-gpuworker",
        .summary = "Serves a model over the OpenAI API, with its KV cache in the cluster's stores.",
        .usage = "--model FILE [OPTIONS]",
        .table = table,
        .count = sizeof(table) / sizeof(table[0]),
    };
    snprintf(compressor_help, sizeof(compressor_help),
             "how caches are compressed: %s; auto: as is fastest by what was measured",
             gpw_compressor_list());
    as_options_outcome_t outcome;
    *code_p = 2;
    if (as_daemon_parse(&options, argc, argv, &common, &outcome) != AS_OK) {
        return false;
    }
    if (outcome == AS_OPTIONS_EXIT) {
        *code_p = 0;
        return false;
    }
    config.tls = common.use_tls;
    *code_p = check();
    *config_p = config;
    return *code_p == 0;
}
