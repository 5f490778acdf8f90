// SPDX-License-Identifier: Apache-2.0
// Wiring of the worker's process.
//
// The io loop runs on the main thread (signals, HTTP, gRPC, UCX), the engine loop on a thread of
// its own. Start: model, loops, links to scheduler and stores, worker, HTTP port, ready line. End,
// on the first signal: no new generations; those in progress get the grace period; then
// publications in flight get a moment; then both loops stop and everything is freed in reverse. A
// second signal skips the waiting.
#include "gpuworker/serve/daemon.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/daemon.h"
#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/decode/draft_model.h"
#include "gpuworker/resident/calibration.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/serve/serve.h"
#include "gpuworker/serve/text.h"
#include "proto/scheduler.pb-c.h"

#define COMPONENT       "gpuworker"
#define IDLE_POLL_US    20000u
#define IDLE_POLLS_MAX  150u // 3 s for publications in flight
#define PROGRESS_SHARES 10   // one line for each tenth of the model

typedef struct daemon {
    const gpw_daemon_config_t *config;
    gpw_model_t *model, *draft_model;
    gpw_calibration_t calibration;
    char model_name[128];
    as_loop_t *io, *engine;
    assay_client_t *client;
    as_rpc_client_t *scheduler;
    gpw_worker_t *worker;
    gpw_serve_t *serve;
    pthread_t engine_thread;
    bool engine_running;
    as_daemon_signals_t *signals;
    as_timer_t *idle_timer;
    uint32_t idle_polls;
    bool draining;
    int progress;
} daemon_t;

// ---- Start

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    daemon_t *daemon = ctx;
    int share = total ? (int)(done * PROGRESS_SHARES / total) : 0;
    if (share > daemon->progress) {
        daemon->progress = share;
        AS_INFO(COMPONENT, "loading model, percent %d", share * 100 / PROGRESS_SHARES);
    }
}

// Of `option`, with the positions that it is for.
static as_status_t load(daemon_t *daemon, const char *option, const char *path, int64_t context,
                        gpw_model_t **model_p)
{
    char error[256] = "";
    gpw_model_options_t options = {
        .path = path,
        .weights = strcmp(daemon->config->weights, "f32") == 0 ? KRN_WEIGHT_F32 : KRN_WEIGHT_F16,
        .context_max = (uint32_t)context,
        .progress = on_progress,
        .ctx = daemon,
    };
    daemon->progress = 0;
    as_status_t status = gpw_model_load(&options, error, sizeof(error), model_p);
    if (status != AS_OK) {
        fprintf(stderr, "assay-gpuworker: cannot load %s %s: %s\n", option, path,
                error[0] ? error : as_status_str(status));
    }
    return status;
}

static as_status_t load_draft_model(daemon_t *daemon)
{
    const gpw_daemon_config_t *config = daemon->config;
    char error[256] = "";
    as_status_t status = load(daemon, "--draft-model", config->draft_model, config->draft_window,
                              &daemon->draft_model);
    if (status == AS_OK &&
        !gpw_draft_model_fits(daemon->model, daemon->draft_model, error, sizeof(error))) {
        fprintf(stderr,
                "assay-gpuworker: --draft-model %s does not fit --model: %s; give a model of the "
                "same family\n",
                config->draft_model, error);
        return AS_ERR_CONFIG;
    }
    return status;
}

// Before the model is loaded, which takes longer.
static as_status_t read_calibration(daemon_t *daemon)
{
    const char *path = daemon->config->calibration;
    char why[GPW_CALIBRATION_WHY_BYTES];
    as_status_t status = gpw_calibration_read(path, &daemon->calibration, why);
    if (status != AS_OK) {
        fprintf(stderr, "assay-gpuworker: --calibration %s %s\n", path, why);
    }
    return status;
}

static as_status_t check_calibration(const daemon_t *daemon)
{
    as_shape_t shape = gpw_model_shape(daemon->model, (uint32_t)daemon->config->block_tokens);
    const gpw_compressor_t *compressor = gpw_compressor_find(daemon->config->compressor);
    if (compressor && compressor->flags & GPW_COMPRESSOR_SUMMARIZES && !daemon->calibration.maps) {
        fprintf(stderr,
                "assay-gpuworker: --compressor=%s needs a summary, which --calibration %s was made "
                "without: make it again by `assay calibrate --model %s --output FILE`, without "
                "--summary-epochs 0\n",
                compressor->name, daemon->config->calibration, daemon->config->model);
        return AS_ERR_CONFIG;
    }
    if (gpw_calibration_fits(&daemon->calibration, &daemon->model->fingerprint, &shape)) {
        return AS_OK;
    }
    fprintf(stderr,
            "assay-gpuworker: --calibration %s is of another model: make one of this by `assay "
            "calibrate --model %s --output FILE`\n",
            daemon->config->calibration, daemon->config->model);
    return AS_ERR_CONFIG;
}

static as_status_t load_models(daemon_t *daemon)
{
    const gpw_daemon_config_t *config = daemon->config;
    as_status_t status = config->calibration ? read_calibration(daemon) : AS_OK;
    if (status == AS_OK) {
        status = load(daemon, "--model", config->model, config->context, &daemon->model);
    }
    if (status == AS_OK && config->calibration) {
        status = check_calibration(daemon);
    }
    return status == AS_OK && config->draft_model ? load_draft_model(daemon) : status;
}

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static as_status_t use_cipher(daemon_t *daemon)
{
    as_cipher_t *cipher;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    const char *path = daemon->config->encrypt_key;
    as_status_t status = as_cipher_alloc_file(path, &cipher, why);
    if (status == AS_OK) {
        assay_client_take_cipher(daemon->client, cipher);
    } else {
        AS_ERROR(COMPONENT, "--encrypt-key-file %s: %s", path, why);
    }
    return status;
}

// Without a scheduler there is nobody to name stores: every cache stays in this process.
static as_status_t link_cluster(daemon_t *daemon)
{
    const char *target = daemon->config->scheduler;
    if (!target || !target[0]) {
        AS_INFO(COMPONENT, "no --scheduler: serving alone, without stores");
        return AS_OK;
    }
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = daemon->io;
    options.net_alloc = net_alloc;
    const char *interface = daemon->config->data_interface;
    as_status_t status = interface ? as_net_ucx_use_interface(interface) : AS_OK;
    if (status == AS_OK) {
        status = assay_client_alloc(&options, &daemon->client);
    }
    if (status == AS_OK && daemon->config->encrypt_key) {
        status = use_cipher(daemon);
    }
    if (status == AS_OK && daemon->config->token) {
        status = assay_client_use_token_file(daemon->client, daemon->config->token);
    }
    if (status != AS_OK) {
        return status;
    }
    return as_rpc_client_alloc(daemon->io, target, &assay__scheduler__descriptor,
                               daemon->config->tls, &daemon->scheduler);
}

// Positions are limited by the file, or by --context.
static uint32_t context_max(const daemon_t *daemon)
{
    uint32_t positions = daemon->model->rope.position_count, trained = daemon->model->context_max;
    return positions < trained ? positions : trained;
}

static as_status_t make_worker(daemon_t *daemon, const char *http_address)
{
    const gpw_daemon_config_t *config = daemon->config;
    gpw_worker_options_t options;
    gpw_worker_options_init(&options);
    options.model = daemon->model;
    options.ops = krn_cpu();
    options.threads = config->threads ? (uint32_t)config->threads : (uint32_t)get_nprocs();
    options.block_tokens = (uint32_t)config->block_tokens;
    options.context_max = context_max(daemon);
    options.sessions_max = (uint32_t)config->sessions;
    options.batch_rows = (uint32_t)config->batch_rows;
    options.queue_max = (uint32_t)config->queue;
    options.compressor = config->compressor;
    options.calibration = config->calibration ? &daemon->calibration : NULL;
    options.horizon = (uint32_t)config->horizon;
    options.prompt_lookup = (uint32_t)config->prompt_lookup;
    options.draft_model = daemon->draft_model;
    options.draft_tokens = (uint32_t)config->draft_tokens;
    options.draft_window = (uint32_t)config->draft_window;
    options.push_down = config->push_down_mode;
    options.store_sealed = strcmp(config->store_sealed, "on") == 0;
    options.overlap = strcmp(config->overlap, "on") == 0;
    options.shared_verification = strcmp(config->shared_verification, "on") == 0;
    options.trace_path = config->trace;
    options.keep_while_room = strcmp(config->full_cache, "auto") == 0;
    options.swap_full_cache = strcmp(config->full_cache, "swap") == 0;
    options.swap_ring_layers = (uint32_t)config->swap_ring_layers;
    options.device_bytes_max = (uint64_t)config->device_bytes;
    options.request_deadline_us = (uint64_t)config->request_deadline_us;
    options.route_deadline_us = (uint64_t)config->route_deadline_us;
    options.fetch_deadline_us = (uint64_t)config->fetch_deadline_us;
    options.put_deadline_us = (uint64_t)config->put_deadline_us;
    options.recompute_tokens_per_s = config->recompute_rate;
    options.engine_loop = daemon->engine;
    options.io_loop = daemon->io;
    options.client = daemon->client;
    options.scheduler = daemon->scheduler;
    options.name = config->name;
    options.cluster_id = config->cluster_id;
    options.http_address = http_address;
    return gpw_worker_alloc(&options, &daemon->worker);
}

// The name in the API: as given, or the file's without folder and ".gguf" (what the file calls
// itself is often the name of a training run).
static void name_model(daemon_t *daemon)
{
    const char *given = daemon->config->model_name, *path = daemon->config->model;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);
    if (given && given[0]) {
        snprintf(daemon->model_name, sizeof(daemon->model_name), "%s", given);
        return;
    }
    if (length > 5 && strcmp(name + length - 5, ".gguf") == 0) {
        length -= 5;
    }
    snprintf(daemon->model_name, sizeof(daemon->model_name), "%.*s", (int)length, name);
    if (!gpw_utf8_valid(daemon->model_name, strlen(daemon->model_name))) {
        snprintf(daemon->model_name, sizeof(daemon->model_name), "model");
    }
}

static as_status_t fail_listen(const daemon_t *daemon, as_status_t status)
{
    fprintf(stderr, "assay-gpuworker: cannot listen on --listen %s: %s; %s\n",
            daemon->config->listen, as_status_str(status),
            status == AS_ERR_INVALID ? "give HOST:PORT of this machine" : "is the port taken?");
    return status;
}

// The port is opened once there is something to answer with; loading a large model takes minutes,
// too long to learn then that the port is taken.
static as_status_t check_listen(const daemon_t *daemon)
{
    as_status_t status = as_http_check_address(daemon->config->listen);
    return status == AS_OK ? AS_OK : fail_listen(daemon, status);
}

static as_status_t make_face(daemon_t *daemon)
{
    name_model(daemon);
    const gpw_serve_options_t options = {
        .loop = daemon->io,
        .model = daemon->model,
        .address = daemon->config->listen,
        .model_name = daemon->model_name,
        .context_max = context_max(daemon),
        .connections_max = (uint32_t)daemon->config->connections,
        .receive_seconds = (uint32_t)(daemon->config->receive_deadline_us / 1000000),
        .sessions_max = (uint32_t)daemon->config->sessions,
        .without = !daemon->config->calibration ? GPW_COMPRESSOR_CALIBRATED
                   : !daemon->calibration.maps  ? GPW_COMPRESSOR_SUMMARIZES
                                                : 0,
    };
    as_status_t status = gpw_serve_alloc(&options, &daemon->serve);
    if (status != AS_OK) {
        return fail_listen(daemon, status);
    }
    status = make_worker(daemon, gpw_serve_address(daemon->serve));
    if (status != AS_OK) {
        fprintf(stderr, "assay-gpuworker: cannot start the worker: %s\n", as_status_str(status));
        return status;
    }
    gpw_serve_open(daemon->serve, daemon->worker);
    return AS_OK;
}

static void print_ready(const daemon_t *daemon)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:I}", "ready", "assay-gpuworker", "http",
                             gpw_serve_address(daemon->serve), "model", daemon->model_name, "name",
                             daemon->config->name, "pid", (json_int_t)getpid());
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text) {
        puts(text);
        fflush(stdout);
    }
    as_mem_free(text);
    json_decref(line);
}

// ---- End

static void stop_loops(daemon_t *daemon)
{
    if (daemon->engine_running) {
        as_loop_stop(daemon->engine);
        pthread_join(daemon->engine_thread, NULL);
        daemon->engine_running = false;
    }
    as_loop_stop(daemon->io);
}

static void on_idle_timer(void *ctx)
{
    daemon_t *daemon = ctx;
    if (!gpw_worker_idle(daemon->worker) && ++daemon->idle_polls < IDLE_POLLS_MAX) {
        as_timer_start(daemon->idle_timer, IDLE_POLL_US);
        return;
    }
    stop_loops(daemon);
}

static void on_drained(void *ctx)
{
    daemon_t *daemon = ctx;
    gpw_serve_close(daemon->serve);
    on_idle_timer(daemon);
}

static void on_end(void *ctx, int number)
{
    daemon_t *daemon = ctx;
    AS_INFO(COMPONENT, "signal %d", number);
    if (daemon->draining) {
        stop_loops(daemon);
        return;
    }
    daemon->draining = true;
    gpw_serve_drain(daemon->serve, (uint64_t)daemon->config->grace_us, on_drained, daemon);
}

static void on_reload(void *ctx)
{
    daemon_t *daemon = ctx;
    if (daemon->client) {
        assay_client_reload(daemon->client);
    }
}

// Links before the worker: what is in flight completes into it when they are freed.
static void fini(daemon_t *daemon)
{
    if (daemon->serve) {
        gpw_serve_close(daemon->serve);
    }
    as_rpc_client_free(daemon->scheduler);
    assay_client_free(daemon->client);
    gpw_worker_free(daemon->worker);
    gpw_serve_free(daemon->serve);
    as_timer_free(daemon->idle_timer);
    as_daemon_signals_free(daemon->signals);
    as_loop_free(daemon->engine);
    as_loop_free(daemon->io);
    gpw_calibration_fini(&daemon->calibration);
    gpw_model_free(daemon->draft_model);
    gpw_model_free(daemon->model);
}

// ---- Run

static void *engine_main(void *ctx)
{
    daemon_t *daemon = ctx;
    pthread_setname_np(pthread_self(), "engine");
    as_loop_run(daemon->engine);
    return NULL;
}

static as_status_t start(daemon_t *daemon)
{
    as_status_t status = check_listen(daemon);
    if (status == AS_OK) {
        status = load_models(daemon);
    }
    if (status == AS_OK) {
        status = as_loop_alloc_uv(&daemon->io);
    }
    if (status == AS_OK) {
        status = as_loop_alloc_uv(&daemon->engine);
    }
    if (status == AS_OK) {
        status = as_timer_alloc(daemon->io, on_idle_timer, daemon, &daemon->idle_timer);
    }
    if (status == AS_OK) {
        const as_daemon_handlers_t handlers = {on_end, on_reload, daemon};
        status = as_daemon_signals_alloc(daemon->io, &handlers, &daemon->signals);
    }
    if (status == AS_OK) {
        status = link_cluster(daemon);
    }
    if (status == AS_OK) {
        status = make_face(daemon);
    }
    if (status == AS_OK) {
        daemon->engine_running =
            pthread_create(&daemon->engine_thread, NULL, engine_main, daemon) == 0;
        status = daemon->engine_running ? AS_OK : AS_ERR_NO_MEMORY;
    }
    return status;
}

int gpw_daemon_run(const gpw_daemon_config_t *config)
{
    daemon_t daemon = {.config = config};
    json_set_alloc_funcs(as_mem_alloc, as_mem_free);
    as_status_t status = start(&daemon);
    if (status == AS_OK) {
        print_ready(&daemon);
        as_loop_run(daemon.io);
        AS_INFO(COMPONENT, "stopped");
    } else {
        AS_ERROR(COMPONENT, "cannot start: %s", as_status_str(status));
    }
    fini(&daemon);
    return status == AS_OK ? 0 : 1;
}
