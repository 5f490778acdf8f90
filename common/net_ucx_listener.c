// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: what listens at the data port; net_ucx_port.c has what comes in.
//
// A connection that cannot be taken, for want of a descriptor or of memory, stays in the kernel's queue, and
// libuv tells of it again and again without a pause. So the listener then goes, with what waits, and
// listens again at the same address a little later.
#include <sys/socket.h>
#include <uv.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/net_ucx.h"

#define BACKLOG     512
#define RELISTEN_US 250000u

struct ucx_listener {
    uv_tcp_t tcp;
    ucx_net_t *net; // NULL: closing
};

static void on_closed(uv_handle_t *handle)
{
    as_mem_free(handle->data);
}

static void close_it(ucx_listener_t *listener)
{
    listener->net->listener = NULL;
    listener->net = NULL;
    uv_close((uv_handle_t *)&listener->tcp, on_closed);
}

static void on_connection(uv_stream_t *stream, int error)
{
    ucx_listener_t *listener = stream->data;
    ucx_net_t *net = listener->net;
    if (!net || (!error && ucx_port_accept(net, stream) == AS_OK)) {
        return;
    }
    AS_WARN("net", "data port: closed until connections can be taken again: %s",
            error == UV_EMFILE ? "too many files are open here: raise their limit (ulimit -n)"
            : error            ? uv_strerror(error)
                               : "no memory");
    close_it(listener);
    as_timer_start(net->relisten, RELISTEN_US);
}

static as_status_t make(ucx_net_t *net)
{
    ucx_listener_t *listener = as_mem_zalloc(1, sizeof(*listener));
    if (!listener) {
        return AS_ERR_NO_MEMORY;
    }
    int bytes = sizeof(net->bound);
    struct sockaddr *bound = (struct sockaddr *)&net->bound;
    uv_tcp_init(as_loop_uv(net->head.loop), &listener->tcp);
    listener->tcp.data = listener;
    listener->net = net;
    net->listener = listener;
    int error = uv_tcp_bind(&listener->tcp, bound, 0);
    if (!error) {
        error = uv_listen((uv_stream_t *)&listener->tcp, BACKLOG, on_connection);
    }
    if (!error) {
        error = uv_tcp_getsockname(&listener->tcp, bound, &bytes);
    }
    if (error) {
        AS_ERROR("net", "cannot listen: %s", uv_strerror(error));
        close_it(listener);
        return error == UV_EADDRINUSE ? AS_ERR_EXISTS : AS_ERR_IO;
    }
    return AS_OK;
}

static void on_relisten(void *ctx)
{
    ucx_net_t *net = ctx;
    if (make(net) == AS_OK) {
        AS_INFO("net", "data port: connections are taken again");
    } else {
        as_timer_start(net->relisten, RELISTEN_US);
    }
}

as_status_t ucx_listener_make(ucx_net_t *net, const struct sockaddr_storage *local)
{
    as_status_t status = as_timer_alloc(net->head.loop, on_relisten, net, &net->relisten);
    if (status != AS_OK) {
        return status;
    }
    net->bound = *local;
    status = make(net);
    if (status != AS_OK) {
        ucx_listener_close(net);
    }
    return status;
}

void ucx_listener_close(ucx_net_t *net)
{
    as_timer_free(net->relisten);
    net->relisten = NULL;
    if (net->listener) {
        close_it(net->listener);
    }
}
