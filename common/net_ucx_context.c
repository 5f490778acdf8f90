// SPDX-License-Identifier: Apache-2.0
// The one UCX context of the process: its settings, its log, its statuses and addresses.
//
// All nets share one context, so that memory registered through one net can be named to the peers
// of any other. It is made with the first net and goes with the last.
//
// The settings below are what measurements on UCX 1.13 asked for. Transports read theirs from the
// environment only (ucp_config_modify accepts and ignores them), hence setenv, which does not
// overrule what the operator has set. Since setenv is not safe against getenv in other threads, the
// first net should be made before other threads run.
#include "common/net_ucx.h"

#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include "common/log.h"

static const struct {
    const char *name;
    const char *value;
} settings[] = {
    // A message of up to 256 KiB and its headers is sent from where it lies and received at once, and
    // is still in the second-level cache when it is taken from the buffer: 1 MiB extents in pieces
    // of 256 KiB cost each side a quarter less processor time than 64 KiB messages or a rendezvous.
    // Both ends must have the same: UCX sends what its own buffer would hold.
    {"UCX_TCP_RX_SEG_SIZE", "264K"},
    // What lies in more than 8 places is gathered by a copy, of 64 KiB and headers at most.
    {"UCX_TCP_MAX_IOV", "12"},
    {"UCX_TCP_TX_SEG_SIZE", "80K"},
    // Else a listener cannot bind its port again soon after a crash.
    {"UCX_TCP_CM_REUSEADDR", "y"},
    // Else the loop stands still, for minutes, while UCX connects to a port of a peer that does not answer.
    {"UCX_TCP_CONN_NB", "y"},
    // No messages by shared memory (shared.c tells why).
    {"UCX_TLS", AS_SHARED_NO_MESSAGES},
    // A cut link is noticed in seconds, not in the half minute of the defaults.
    {"UCX_KEEPALIVE_INTERVAL", "2s"},
    {"UCX_TCP_KEEPIDLE", "2s"},
    {"UCX_TCP_KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "3"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
};

// UCX watches a descriptor for each connection that it has accepted, of 1024 at most by default. At the next
// one its listener leaves a freed connection in its list, and the end of the worker ends the process.
#define EVENTS_NAME "ASYNC_MAX_EVENTS"
#define EVENTS_MAX  "16384"
_Static_assert(UCX_CONNS_MAX + UCX_ADMITTED_MAX + 1024 < 16384, "of EVENTS_MAX");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ucp_context_h shared;
static unsigned users;

// UCX would print on stdout. What it calls an error is mostly the loss of a peer, which the owner
// of the connection is told anyway.
static ucs_log_func_rc_t on_log(const char *file, unsigned line, const char *function,
                                ucs_log_level_t level, const ucs_log_component_config_t *component,
                                const char *message, va_list args)
{
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    char text[512];
    vsnprintf(text, sizeof(text), message, args);
    as_log_level_t to = level == UCS_LOG_LEVEL_FATAL   ? AS_LOG_ERROR
                        : level == UCS_LOG_LEVEL_ERROR ? AS_LOG_INFO
                                                       : AS_LOG_DEBUG;
    as_log_write(to, "ucx", "%s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

// Read by UCX before main, so the environment comes too late for it.
static void raise_events(void)
{
    ucs_status_t status =
        getenv("UCX_" EVENTS_NAME) ? UCS_OK : ucs_global_opts_set_value(EVENTS_NAME, EVENTS_MAX);
    if (status != UCS_OK) {
        AS_WARN("net", "UCX will take no more than 1000 connections: %s",
                ucs_status_string(status));
    }
}

static as_status_t context_make(void)
{
    raise_events();
    if (!ucx_send_is_ours()) {
        setenv("UCX_ZCOPY_THRESH", "inf", 0);
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        setenv(settings[i].name, settings[i].value, 0);
    }
    if (ucs_log_num_handlers() < 2) { // once: the default one is always there
        ucs_log_push_handler(on_log);
    }
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        AS_ERROR("net", "cannot read the settings of UCX: %s", ucs_status_string(status));
        return AS_ERR_CONFIG;
    }
    const ucp_params_t params = {
        .field_mask =
            UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1,
        .name = "assay",
    };
    status = ucp_init(&params, config, &shared);
    ucp_config_release(config);
    if (status != UCS_OK) {
        AS_ERROR("net", "cannot start UCX: %s", ucs_status_string(status));
        return ucx_status(status);
    }
    return AS_OK;
}

as_status_t ucx_context_get(ucp_context_h *context_p)
{
    pthread_mutex_lock(&lock);
    as_status_t status = users > 0 ? AS_OK : context_make();
    if (status == AS_OK) {
        users++;
        *context_p = shared;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void ucx_context_put(void)
{
    pthread_mutex_lock(&lock);
    if (--users == 0) {
        ucp_cleanup(shared);
        shared = NULL;
    }
    pthread_mutex_unlock(&lock);
}

bool ucx_context_is_made(void)
{
    pthread_mutex_lock(&lock);
    bool made = users > 0;
    pthread_mutex_unlock(&lock);
    return made;
}

as_status_t ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return AS_OK;
    case UCS_ERR_CANCELED:
        return AS_ERR_CANCELLED;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return AS_ERR_NO_MEMORY;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return AS_ERR_INVALID;
    case UCS_ERR_UNSUPPORTED:
        return AS_ERR_UNSUPPORTED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
        return AS_ERR_UNREACHABLE;
    case UCS_ERR_BUSY:
        return AS_ERR_BUSY;
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_NO_DEVICE:
        return AS_ERR_IO;
    default:
        return AS_ERR_PEER_LOST;
    }
}

// Of the addresses of a name the first of the family that UCX's own ports are of.
static const struct addrinfo *preferred(const struct addrinfo *found)
{
    const char *set = getenv("UCX_TCP_AF_PRIO");
    int family = set && strncmp(set, "inet6", 5) == 0 ? AF_INET6 : AF_INET;
    const struct addrinfo *at = found;
    while (at && at->ai_family != family) {
        at = at->ai_next;
    }
    return at ? at : found;
}

// A numeric address is only parsed; a name is looked up here and now, which may take the resolver's
// timeout.
as_status_t ucx_resolve(const char *address, bool passive, struct sockaddr_storage *storage,
                        size_t *bytes_p)
{
    const char *colon = strrchr(address, ':');
    size_t host_bytes = colon ? (size_t)(colon - address) : 0;
    const char *host_begin = address;
    if (host_bytes >= 2 && address[0] == '[' && address[host_bytes - 1] == ']') {
        host_begin++;
        host_bytes -= 2;
    }
    char host[256];
    if (!colon || colon[1] == '\0' || colon[1 + strspn(colon + 1, "0123456789")] != '\0' ||
        host_bytes == 0 || host_bytes >= sizeof(host)) {
        AS_WARN("net", "address '%.80s' is not of the form host:port", address);
        return AS_ERR_INVALID;
    }
    memcpy(host, host_begin, host_bytes);
    host[host_bytes] = '\0';
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
    };
    struct addrinfo *found;
    int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error) {
        AS_WARN("net", "address '%.80s' cannot be resolved: %s", address, gai_strerror(error));
        return AS_ERR_UNREACHABLE;
    }
    const struct addrinfo *taken = preferred(found);
    memcpy(storage, taken->ai_addr, taken->ai_addrlen);
    *bytes_p = taken->ai_addrlen;
    freeaddrinfo(found);
    return AS_OK;
}
