// SPDX-License-Identifier: Apache-2.0
// The metrics port that every daemon has: GET /metrics, /livez, /readyz.
#include "common/http_impl.h"

#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"

#define CONNECTIONS_MAX 64u // scrapers and probes

typedef struct metrics_port {
    bool (*ready)(void *ctx);
    void *ctx;
    void (*refresh)(void *ctx);
    void *refresh_ctx;
} metrics_port_t;

static void reply_text(as_http_request_t *request, int code, const char *text)
{
    as_http_reply(request, code, "text/plain; charset=utf-8", text, strlen(text));
}

static void reply_metrics(const metrics_port_t *port, as_http_request_t *request)
{
    if (port->refresh) {
        port->refresh(port->refresh_ctx);
    }
    char *text = as_metrics_render();
    if (!text) {
        reply_text(request, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory: try again later\n");
        return;
    }
    as_http_reply(request, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text,
                  strlen(text));
    as_mem_free(text);
}

static void reply_wrong_method(as_http_request_t *request)
{
    if (as_http_request_add_header(request, "Allow", "GET, HEAD") != AS_OK) {
        AS_WARN("http", "answer without Allow: out of memory");
    }
    reply_text(request, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
}

static void on_request(void *ctx, as_http_request_t *request, const as_http_call_t *call)
{
    const metrics_port_t *port = ctx;
    if (strcmp(call->method, "GET") != 0 && strcmp(call->method, "HEAD") != 0) {
        reply_wrong_method(request);
    } else if (strcmp(call->path, "/metrics") == 0) {
        reply_metrics(port, request);
    } else if (strcmp(call->path, "/livez") == 0) {
        reply_text(request, MHD_HTTP_OK, "ok\n");
    } else if (strcmp(call->path, "/readyz") == 0) {
        bool ready = !port->ready || port->ready(port->ctx);
        reply_text(request, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                   ready ? "ready\n" : "not ready\n");
    } else {
        reply_text(request, MHD_HTTP_NOT_FOUND,
                   "not found: /metrics, /livez and /readyz are here\n");
    }
}

as_status_t as_http_alloc_metrics(as_loop_t *loop, const char *address, bool (*ready)(void *ctx),
                                  void *ctx, as_http_t **http_p)
{
    metrics_port_t *port = as_mem_zalloc(1, sizeof(*port));
    if (!port) {
        return AS_ERR_NO_MEMORY;
    }
    port->ready = ready;
    port->ctx = ctx;
    const as_http_options_t options = {
        .address = address,
        .connections_max = CONNECTIONS_MAX,
        .handlers = {.ctx = port, .on_request = on_request},
    };
    as_http_t *http;
    as_status_t status = as_http_alloc(loop, &options, &http);
    if (status != AS_OK) {
        as_mem_free(port);
        return status;
    }
    http->owned = port;
    *http_p = http;
    return AS_OK;
}

void as_http_metrics_refresh_by(as_http_t *http, void (*refresh)(void *ctx), void *ctx)
{
    metrics_port_t *port = http->owned;
    port->refresh = refresh;
    port->refresh_ctx = ctx;
}
