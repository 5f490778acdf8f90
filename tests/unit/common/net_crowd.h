// SPDX-License-Identifier: Apache-2.0
// Another net beside the client's, with many connections to the same peer.
#ifndef NET_CROWD_H
#define NET_CROWD_H

#include "net_client.h"

enum { CROWD = 40 };

typedef struct crowd {
    client_t *client;
    as_net_t *net;
    as_conn_t *conns[CROWD];
    unsigned answers[CROWD];
    unsigned received, lost, wrong;
} crowd_t;

static void crowd_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    (void)conn;
}

static void crowd_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    crowd_t *crowd = ctx;
    ask_t answer;
    memcpy(&answer, msg->header, sizeof(answer));
    crowd->wrong += crowd->conns[answer.id % CROWD] != conn;
    crowd->answers[answer.id % CROWD]++;
    crowd->received++;
}

static void crowd_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)conn;
    (void)status;
    ((crowd_t *)ctx)->lost++;
}

static void crowd_ask(crowd_t *crowd, unsigned i)
{
    const ask_t ask = {ASK_ECHO, i, 0};
    assert_int_equal(as_net_send(crowd->conns[i], &ask, sizeof(ask), NULL, 0, NULL, NULL), AS_OK);
}

static void crowd_connect(crowd_t *crowd, unsigned i)
{
    assert_int_equal(as_net_connect(crowd->net, crowd->client->peer.address, &crowd->conns[i]),
                     AS_OK);
}

static void crowd_init(crowd_t *crowd, client_t *client)
{
    memset(crowd, 0, sizeof(*crowd));
    crowd->client = client;
    const as_net_handlers_t handlers = {crowd, crowd_accept, crowd_message, crowd_lost, NULL};
    assert_int_equal(as_net_alloc_ucx(client->loop, &handlers, &crowd->net), AS_OK);
}

#endif
