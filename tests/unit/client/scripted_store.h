// SPDX-License-Identifier: Apache-2.0
// What the tests share in which a store is a script on the simulated network: the client's network, and
// what every such store says.
#ifndef SCRIPTED_STORE_H
#define SCRIPTED_STORE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "common/checksum.h"
#include "common/log.h"
#include "common/net_sim.h"
#include "proto/wire.h"

static as_loop_t *loop;
static as_sim_t *sim;

static inline void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static inline void say(as_conn_t *conn, const void *header, size_t header_bytes, const void *data,
                       size_t bytes)
{
    as_status_t status = as_net_send(conn, header, header_bytes, bytes > 0 ? data : NULL, bytes,
                                     bytes > 0 ? on_sent : NULL, NULL);
    assert_int_equal(status, AS_OK);
}

static inline as_wire_hello_reply_t hello_reply(uint64_t node_id, uint64_t request)
{
    return (as_wire_hello_reply_t){.head = as_wire_head(AS_WIRE_HELLO_REPLY, request),
                                   .node_id = node_id,
                                   .pool_address = 4096,
                                   .pool_bytes = 1u << 20,
                                   .lease_ms_max = 30000,
                                   .keys_max = AS_WIRE_KEYS_MAX,
                                   .asks_max = 64,
                                   .ask_bytes_max = AS_WIRE_ASK_BYTES_MAX};
}

static inline void on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    (void)conn;
}

static inline void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)ctx;
    (void)status;
    as_net_close(conn);
}

static inline as_status_t net_alloc(void *ctx, as_loop_t *of, const as_net_handlers_t *handlers,
                                    as_net_t **net_p)
{
    (void)ctx;
    (void)of;
    return as_net_alloc_sim(sim, "client", handlers, net_p);
}

static inline void begin_sim(void)
{
    assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
    assert_int_equal(as_sim_alloc(loop, 1, &sim), AS_OK);
    as_sim_set_onesided(sim, false);
}

#endif
