// SPDX-License-Identifier: Apache-2.0
// The objects of the simulated data plane, shared by net_sim*.c and seen by nothing else.
#ifndef AS_NET_SIM_IMPL_H
#define AS_NET_SIM_IMPL_H

#include "common/net_internal.h"
#include "common/net_sim_world.h"

#define SIM_NAME_BYTES_MAX    64u
#define SIM_ADDRESS_BYTES_MAX (SIM_NAME_BYTES_MAX + 16u)

typedef enum sim_state { SIM_CONNECTING, SIM_OPEN, SIM_LOST } sim_state_t;

typedef struct sim_conn {
    as_conn_t head;
    struct sim_conn *next;
    uint64_t id;
    uint64_t peer_id; // 0 while connecting
    sim_state_t state;
    as_status_t lost_status;
    uint64_t link_free_us; // when the outgoing direction has sent all that it was given
    uint32_t ops;
    sim_parked_t held; // messages sent while connecting
} sim_conn_t;

typedef struct sim_op {
    struct sim_op *next;
    uint64_t id;
    uint64_t conn_id;
    as_net_done_fn done;
    void *ctx;
    as_status_t status; // that it ends with
    bool ended;         // its end is on the way
    const void *data;   // of a send: the caller's payload
    void *buffer;       // of a receive or read
    size_t bytes;
} sim_op_t;

typedef struct sim_mem {
    as_net_mem_t head;
    struct sim_mem *next;
    sim_net_t *net;
    uint64_t id;
    unsigned char *memory;
    size_t bytes;
} sim_mem_t;

typedef struct sim_rkey {
    as_net_rkey_t head;
    sim_net_t *net; // that unpacked it
    uint64_t mem_id;
    uint64_t address;
    uint64_t bytes;
} sim_rkey_t;

struct sim_net {
    as_net_t head;
    sim_net_t *next;
    as_sim_t *sim;
    uint64_t id;
    char name[SIM_NAME_BYTES_MAX];
    char address[SIM_ADDRESS_BYTES_MAX];
    bool listening, killed, stopped;
    bool freeing; // as_net_free ends what is in flight, also of a killed net
    sim_conn_t *conns;
    sim_op_t *ops;
    sim_mem_t *mems;
    uint32_t rkey_count;
    sim_parked_t waiting; // events while stopped
};

// Every event of this file. Which members count depends on what it is.
typedef struct net_event {
    sim_event_t base;
    uint64_t from_net, to_net; // ids; equal for what happens inside a net
    uint64_t conn_id;          // at to_net
    uint64_t op_id;
    uint64_t other_op_id; // of a rendezvous: the sender's
    uint64_t mem_id, address;
    as_status_t status;
    size_t data_bytes;
    char target[SIM_ADDRESS_BYTES_MAX];
    size_t header_bytes;
    _Alignas(16) unsigned char header[AS_NET_HEADER_BYTES_MAX];
} net_event_t;

// net_sim.c: nets and what others find them by.
sim_net_t *sim_net_find(as_sim_t *sim, uint64_t id);
net_event_t *sim_net_event_make(sim_net_t *from, uint64_t to_net, void (*fire)(sim_event_t *event));
// The net that the event is for; NULL when it must not happen now: a net is gone, killed (the event
// ends) or stopped (the event is parked there).
sim_net_t *sim_net_event_arrive(net_event_t *event);

// net_sim_conn.c: connections and operations.
static inline sim_net_t *sim_conn_net(const sim_conn_t *conn)
{
    return (sim_net_t *)conn->head.net;
}
sim_conn_t *sim_conn_find(sim_net_t *net, uint64_t id);
sim_conn_t *sim_conn_find_anywhere(as_sim_t *sim, uint64_t id);
// How long from now until `bytes` more have come out of the connection's outgoing direction.
uint64_t sim_link_delay_us(sim_conn_t *conn, size_t bytes);
uint64_t sim_link_busy_us(const sim_conn_t *conn); // until it has taken all that was sent
// Sends a message event, or loses it.
void sim_conn_transmit(sim_conn_t *conn, net_event_t *event);
// The owner of a connection learns, after a while, that its other end has gone.
void sim_conn_tell_lost(as_sim_t *sim, uint64_t conn_id, as_status_t status);
sim_op_t *sim_op_find(sim_net_t *net, uint64_t id);
as_status_t sim_op_make(sim_conn_t *conn, as_net_done_fn done, void *ctx,
                        sim_op_t **op_p) AS_MUST_USE;
void sim_op_end(sim_net_t *net, sim_op_t *op, as_status_t status); // calls back
void sim_op_end_later(sim_net_t *net, sim_op_t *op, as_status_t status, uint64_t delay_us);
as_status_t sim_connect(as_net_t *head, const char *address, as_conn_t **conn_p);
void sim_close(as_conn_t *head);
const char *sim_transport(const as_conn_t *head);
size_t sim_piece_bytes(const as_conn_t *head);

// net_sim_msg.c: messages and memory.
as_status_t sim_send(as_conn_t *head, const as_net_send_params_t *params);
as_status_t sim_msg_recv(as_net_msg_t *head, void *buffer, as_net_done_fn done, void *ctx);
as_status_t sim_mem_alloc(as_net_t *head, size_t bytes, void **memory_p, as_net_mem_t **mem_p);
void sim_mem_free(as_net_mem_t *head);
as_status_t sim_mem_pack(const as_net_mem_t *head, void *rkey, size_t *rkey_bytes_p);
as_status_t sim_rkey_unpack(as_conn_t *head, const void *rkey, size_t rkey_bytes,
                            as_net_rkey_t **rkey_p);
void sim_rkey_free(as_net_rkey_t *head);
as_status_t sim_rkey_ptr(as_net_rkey_t *head, uint64_t remote_address, const void **pointer_p);
as_status_t sim_get(as_conn_t *head, const as_net_get_params_t *params);

#endif
