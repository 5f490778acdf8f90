// SPDX-License-Identifier: Apache-2.0
// The server: which path is answered by what, and how it shuts down.
//
// Draining: WAITING refuses new generations and waits for those in progress; after the grace period
// CANCELLED ends them with an error; LINGERING gives the last bytes a moment to leave the socket
// before the port is closed.
#include <string.h>
#include <sys/random.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "gpuworker/serve/serve_internal.h"

#define COMPONENT       "http"
#define LINGER_US       100000u
#define CANCEL_GRACE_US 2000000u // cancelled requests end within one engine step

#define RETRY_SECONDS_MAX 60u

#define CONTENT_JSON    "application/json"
#define CONTENT_METRICS "text/plain; version=0.0.4; charset=utf-8"

// ---- Replies

static const char no_memory[] =
    "{\"error\":{\"message\":\"out of memory: try again later\","
    "\"type\":\"server_error\",\"param\":null,\"code\":\"out_of_memory\"}}";

// The answer is right without it, too.
static void add_header(as_http_request_t *http, const char *name, const char *value)
{
    as_status_t status = as_http_request_add_header(http, name, value);
    if (status != AS_OK) {
        AS_WARN(COMPONENT, "answer without %s: %s", name, as_status_str(status));
    }
}

// `sessions` generations of the recent length run at once, so one of them ends after this long.
static uint32_t retry_seconds(const gpw_serve_t *serve)
{
    uint64_t us = serve->service_us / serve->options.sessions_max;
    uint64_t seconds = (us + 999999) / 1000000;
    return seconds < 1 ? 1 : seconds > RETRY_SECONDS_MAX ? RETRY_SECONDS_MAX : (uint32_t)seconds;
}

void gpw_serve_reply_json(as_http_request_t *http, int code, json_t *json)
{
    char *text = json ? json_dumps(json, GPW_REPLY_JSON) : NULL;
    json_decref(json);
    if (text) {
        as_http_reply(http, code, CONTENT_JSON, text, strlen(text));
    } else {
        gpw_http_metric_add(GPW_HTTP_FAILED, 1);
        as_http_reply(http, 503, CONTENT_JSON, no_memory, sizeof(no_memory) - 1);
    }
    as_mem_free(text);
}

void gpw_serve_reply_error(gpw_serve_t *serve, as_http_request_t *http,
                           const gpw_api_error_t *error)
{
    AS_ASSERT(error->code >= 400);
    bool server = error->code >= 500;
    gpw_http_metric_add(error->code == 429 ? GPW_HTTP_BUSY
                        : server           ? GPW_HTTP_FAILED
                                           : GPW_HTTP_REFUSED,
                        1);
    if (error->code == 429) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", retry_seconds(serve));
        add_header(http, "Retry-After", seconds);
    }
    gpw_serve_reply_json(http, error->code, gpw_reply_error(error));
}

// What the server refuses before a request is complete has the same form.
static const char *on_refuse(void *ctx, int code, const char *text, char *body, size_t bytes_max)
{
    gpw_api_error_t error;
    const char *reason = code == 400   ? "ambiguous_length"
                         : code == 408 ? "request_timeout"
                         : code == 413 ? "request_too_large"
                                       : "out_of_memory";
    (void)ctx;
    gpw_http_metric_add(GPW_HTTP_REQUESTS, 1);
    gpw_http_metric_add(code >= 500 ? GPW_HTTP_FAILED : GPW_HTTP_REFUSED, 1);
    gpw_api_error_set(&error, (gpw_api_fault_t){code, reason, NULL}, "%s", text);
    json_t *json = gpw_reply_error(&error);
    size_t bytes = json ? json_dumpb(json, body, bytes_max - 1, GPW_REPLY_JSON) : 0;
    bool written = bytes > 0 && bytes < bytes_max;
    json_decref(json);
    if (written) {
        body[bytes] = '\0';
    } else {
        snprintf(body, bytes_max, "%s", no_memory);
    }
    return CONTENT_JSON;
}

// ---- Paths

typedef void (*route_fn)(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call);

typedef struct route {
    const char *method, *path;
    route_fn answer;
} route_t;

static void post_completions(gpw_serve_t *serve, as_http_request_t *http,
                             const as_http_call_t *call)
{
    gpw_generation_start(serve, http, GPW_API_COMPLETION, call, false);
}

static void post_chat(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    gpw_generation_start(serve, http, GPW_API_CHAT, call, false);
}

static void post_completion_tokens(gpw_serve_t *serve, as_http_request_t *http,
                                   const as_http_call_t *call)
{
    gpw_generation_start(serve, http, GPW_API_COMPLETION, call, true);
}

static void post_chat_tokens(gpw_serve_t *serve, as_http_request_t *http,
                             const as_http_call_t *call)
{
    gpw_generation_start(serve, http, GPW_API_CHAT, call, true);
}

static void get_models(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)call;
    gpw_serve_reply_json(http, 200, gpw_reply_models(serve));
}

static void get_model(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)call;
    gpw_serve_reply_json(http, 200, gpw_reply_model(serve));
}

static void get_compressors(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)call;
    gpw_serve_reply_json(http, 200, gpw_reply_compressors(serve));
}

// Alive: depends on nothing but the loop.
static void get_live(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)serve;
    (void)call;
    gpw_serve_reply_json(http, 200, json_pack("{s:s}", "status", "ok"));
}

// Ready for work: not while draining.
static void get_health(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)call;
    bool ready = serve->drain == GPW_DRAIN_NO;
    gpw_serve_reply_json(http, ready ? 200 : 503,
                         json_pack("{s:s, s:s, s:i}", "status", ready ? "ok" : "shutting down",
                                   "model", serve->options.model_name, "generations",
                                   (int)serve->generation_count));
}

static void get_metrics(gpw_serve_t *serve, as_http_request_t *http, const as_http_call_t *call)
{
    (void)serve;
    (void)call;
    char *text = as_metrics_render();
    if (!text) {
        gpw_serve_reply_json(http, 503, NULL);
        return;
    }
    as_http_reply(http, 200, CONTENT_METRICS, text, strlen(text));
    as_mem_free(text);
}

static const route_t routes[] = {
    {"POST", "/v1/completions", post_completions},
    {"POST", "/v1/chat/completions", post_chat},
    {"POST", "/v1/completions/tokenize", post_completion_tokens},
    {"POST", "/v1/chat/completions/tokenize", post_chat_tokens},
    {"GET", "/v1/models", get_models},
    {"GET", "/v1/compressors", get_compressors},
    {"GET", "/health", get_health},
    {"GET", "/livez", get_live},
    {"GET", "/readyz", get_health},
    {"GET", "/metrics", get_metrics},
};

// GET /v1/models/NAME.
static const route_t one_model = {"GET", "/v1/models/", get_model};

static const route_t *find_route(const gpw_serve_t *serve, const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(routes[i].path, path) == 0) {
            return &routes[i];
        }
    }
    size_t prefix = strlen(one_model.path);
    bool model = strncmp(one_model.path, path, prefix) == 0 &&
                 strcmp(path + prefix, serve->options.model_name) == 0;
    return model ? &one_model : NULL;
}

// HEAD is a GET whose body the server keeps.
static bool takes(const route_t *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(route->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static void on_request(void *ctx, as_http_request_t *http, const as_http_call_t *call)
{
    gpw_serve_t *serve = ctx;
    gpw_api_error_t error;
    const route_t *known = find_route(serve, call->path);
    gpw_http_metric_add(GPW_HTTP_REQUESTS, 1);
    if (known && takes(known, call->method)) {
        known->answer(serve, http, call);
        return;
    }
    if (known) {
        add_header(http, "Allow", strcmp(known->method, "GET") == 0 ? "GET, HEAD" : known->method);
        gpw_api_error_set(&error, (gpw_api_fault_t){405, "method_not_allowed", NULL}, "%s takes %s",
                          call->path, known->method);
    } else {
        gpw_api_error_set(&error, (gpw_api_fault_t){404, "not_found", NULL},
                          "there is nothing at this path; there are POST /v1/completions, POST "
                          "/v1/chat/completions, "
                          "GET /v1/models, GET /health and GET /metrics");
    }
    gpw_serve_reply_error(serve, http, &error);
}

static void on_abort(void *ctx, as_http_request_t *http)
{
    (void)ctx;
    gpw_generation_t *generation = as_http_request_user(http);
    if (generation) {
        gpw_generation_abort(generation);
    }
}

// ---- Draining

static void linger(gpw_serve_t *serve)
{
    serve->drain = GPW_DRAIN_LINGERING;
    as_timer_start(serve->drain_timer, LINGER_US);
}

void gpw_serve_generation_ended(gpw_serve_t *serve)
{
    bool draining = serve->drain == GPW_DRAIN_WAITING || serve->drain == GPW_DRAIN_CANCELLED;
    if (draining && serve->generation_count == 0) {
        linger(serve);
    }
}

static void on_drain_timer(void *ctx)
{
    gpw_serve_t *serve = ctx;
    if (serve->drain == GPW_DRAIN_WAITING) {
        AS_WARN(COMPONENT, "grace period over, cancelling generations %u", serve->generation_count);
        serve->drain = GPW_DRAIN_CANCELLED;
        as_timer_start(serve->drain_timer, CANCEL_GRACE_US);
        for (gpw_generation_t *generation = serve->generations; generation;
             generation = generation->next) {
            gpw_generation_cancel(generation);
        }
        return;
    }
    if (serve->drain == GPW_DRAIN_CANCELLED) {
        AS_WARN(COMPONENT, "leaving generations behind %u", serve->generation_count);
    }
    serve->drained(serve->drained_ctx);
}

void gpw_serve_drain(gpw_serve_t *serve, uint64_t grace_us, as_loop_fn done, void *ctx)
{
    if (serve->drain != GPW_DRAIN_NO) {
        return;
    }
    AS_INFO(COMPONENT, "draining, generations %u", serve->generation_count);
    serve->drained = done;
    serve->drained_ctx = ctx;
    serve->drain = GPW_DRAIN_WAITING;
    if (serve->generation_count == 0) {
        linger(serve);
    } else {
        as_timer_start(serve->drain_timer, grace_us);
    }
}

// ---- Life

as_status_t gpw_serve_alloc(const gpw_serve_options_t *options, gpw_serve_t **serve_p)
{
    gpw_serve_t *serve = as_mem_zalloc(1, sizeof(*serve));
    if (!serve) {
        return AS_ERR_NO_MEMORY;
    }
    serve->options = *options;
    serve->limits = (gpw_api_limits_t){
        .vocab = gpw_tokenizer_vocab(options->model->tokenizer),
        .context_max = options->context_max,
        .compressors = gpw_worker_compressors(0), // what one lacks the worker says
    };
    if (getrandom(&serve->ids, sizeof(serve->ids), 0) != sizeof(serve->ids)) {
        AS_WARN(COMPONENT, "no randomness: ids of requests begin at 0");
    }
    as_status_t status =
        gpw_tokenize_alloc(options->loop, options->model->tokenizer, &serve->tokenize);
    if (status != AS_OK) {
        goto fail_serve;
    }
    status = as_timer_alloc(options->loop, on_drain_timer, serve, &serve->drain_timer);
    if (status != AS_OK) {
        goto fail_tokenize;
    }
    const as_http_options_t http = {
        .address = options->address,
        .connections_max = options->connections_max,
        .receive_seconds = options->receive_seconds,
        .handlers = {.ctx = serve,
                     .on_request = on_request,
                     .on_abort = on_abort,
                     .on_refuse = on_refuse},
    };
    status = as_http_alloc(options->loop, &http, &serve->http);
    if (status != AS_OK) {
        goto fail_timer;
    }
    gpw_http_metrics_register();
    *serve_p = serve;
    return AS_OK;
fail_timer:
    as_timer_free(serve->drain_timer);
fail_tokenize:
    gpw_tokenize_free(serve->tokenize);
fail_serve:
    as_mem_free(serve);
    return status;
}

void gpw_serve_open(gpw_serve_t *serve, gpw_worker_t *worker)
{
    AS_ASSERT(worker && !serve->worker);
    serve->worker = worker;
}

const char *gpw_serve_address(const gpw_serve_t *serve)
{
    return as_http_address(serve->http);
}

void gpw_serve_close(gpw_serve_t *serve)
{
    if (!serve->http) {
        return;
    }
    as_http_free(serve->http);
    as_timer_free(serve->drain_timer);
    serve->http = NULL;
    serve->drain_timer = NULL;
}

void gpw_serve_free(gpw_serve_t *serve)
{
    if (!serve) {
        return;
    }
    AS_ASSERT(!serve->http);
    serve->drain = GPW_DRAIN_LINGERING;
    gpw_tokenize_free(serve->tokenize); // before what it works on
    while (serve->generations) {
        gpw_generation_free(serve->generations);
    }
    as_mem_free(serve);
}
