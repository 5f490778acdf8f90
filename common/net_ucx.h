// SPDX-License-Identifier: Apache-2.0
// The objects of the UCX data plane, shared by net_ucx*.c and seen by nothing else.
//
// Life of a connection:
//
//   CONNECTING -> OPEN -> FAILED -> REPORTED        user_closed may come in any of them
//
// CONNECTING ends when the accepting side's greeting comes; until then sends are held back. A
// connecting side has no endpoint until it was admitted at the peer's data port (net_ucx_port.c).
// FAILED:
// UCX called the error handler; the endpoint is closed by force and the operations in flight run to
// their (failed) end. REPORTED: on_lost was called and the owner has yet to call as_net_close. A
// connection is in the list `dying` while there is something to do for its end (FAILED, or
// user_closed), else in `living`; it is freed when it is user_closed, its endpoint is gone and it
// has no operation left.
//
// UCX cannot close an endpoint whose peer is stopped and whose shared memory queue is full. So
// after UCX_GRACE_US a connection ends without it: its operations are called back and are left to
// UCX as orphans, which only the end of the endpoint, or of the worker, frees. A receive is left
// alone unless the peer is gone, since the peer may yet write to its buffer.
//
// Life of an operation: free list -> [`batches` ->] in UCX (list `inflight` of the net) -> `finished` (queue of
// the net) -> its callback -> free list. Callbacks other than on_message run from the finished queue,
// outside of UCX, so that a start call never calls back and a callback may close connections.
#ifndef AS_NET_UCX_H
#define AS_NET_UCX_H

#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "common/net_internal.h"
#include "common/net_ucx_hello.h"
#include "common/shared.h"

struct uv_stream_s;

#define UCX_OPS_PER_SLAB     64u
#define UCX_SLABS_MAX        128u    // of one net: 8192 operations, about 9 MiB
#define UCX_CONN_OPS_MAX     1024u   // of one connection, so that a stuck peer cannot take them all
#define UCX_CONN_BATCHES_MAX 128u    // of those, messages whose sender waits for no callback
#define UCX_CONNS_MAX        8192u   // of one net
#define UCX_GRACE_US         100000u // a close takes UCX well below 1 ms
#define UCX_ADMITTED_MAX     32u     // at the gate at one time, for milliseconds
#define UCX_DOORS_MAX        64u     // ports of UCX's own, one an interface
#define UCX_HOSTS_MAX        500u    // that may come to them
#define UCX_GUEST_HOSTS_MAX  (UCX_HELLO_HOSTS_MAX + 2u)
#define UCX_EP_BUCKETS       1024u // hash of connections by endpoint; a power of two

enum { UCX_AM_MESSAGE = 1, UCX_AM_GREETING = 2, UCX_AM_BATCH = 3 };

typedef struct ucx_net ucx_net_t;
typedef struct ucx_socket ucx_socket_t;
typedef struct ucx_listener ucx_listener_t;

typedef struct ucx_list {
    struct ucx_list *prev, *next;
} ucx_list_t;

// The hosts of one peer, as slots of the net's doors; UCX_HOSTS_MAX: there was none left.
typedef struct ucx_guest {
    uint32_t count;
    uint16_t slots[UCX_GUEST_HOSTS_MAX];
} ucx_guest_t;

typedef struct ucx_doors {
    int fds[UCX_DOORS_MAX];
    unsigned count;
    bool four, six;      // whether any is at an address of IPv4, of IPv6
    unsigned host_count; // slots that were ever used
    uint32_t refs[UCX_HOSTS_MAX];
    struct in6_addr hosts[UCX_HOSTS_MAX];
    uint32_t unlisted; // hosts of guests that have no slot: while there are any, the doors are open
    bool old;          // who may come is not what the kernel knows
    bool open;
} ucx_doors_t;

typedef struct ucx_before ucx_before_t;

typedef enum ucx_state { UCX_CONNECTING, UCX_OPEN, UCX_FAILED, UCX_REPORTED } ucx_state_t;

typedef struct ucx_conn {
    as_conn_t head;
    ucx_list_t link;      // living or dying
    ucx_list_t held;      // operations that wait for OPEN, in order
    uint32_t batches;     // operations that are batches
    struct ucx_op *batch; // messages that leave together; NULL: none wait
    struct ucx_conn *bucket_next;
    ucx_guest_t guest;
    ucx_socket_t *socket;   // of the connecting side at the data port; NULL when closed
    ucp_ep_h ep;            // NULL before and after
    void *ep_closing;       // UCX's request of the close, while it runs
    uint64_t ep_closing_us; // when it began
    ucx_state_t state;
    bool user_closed;
    bool dying;
    as_status_t lost_status;
    uint32_t ops; // in flight or finished and not called back
    char transport[48];
} ucx_conn_t;

typedef struct ucx_op {
    ucx_list_t link; // batches, inflight or finished, or free list
    ucx_net_t *net;
    ucx_conn_t *conn; // NULL: an orphan, called back already
    as_net_done_fn done;
    void *ctx;
    as_status_t status;
    bool batched;     // counts among the connection's batches
    bool receiving;   // UCX may write to the caller's buffer
    const void *data; // of a send, with the three below
    size_t data_bytes;
    bool offered;     // it stays until the receiver takes it
    size_t iov_count; // 0: the payload is `data`
    ucp_dt_iov_t iov[AS_NET_IOV_MAX];
    size_t header_bytes;
    _Alignas(16) unsigned char header[AS_NET_HEADER_BYTES_MAX];
} ucx_op_t;

typedef struct ucx_loop_glue ucx_loop_glue_t;

struct ucx_net {
    as_net_t head;
    ucp_context_h context;
    ucp_worker_h worker;
    ucx_listener_t
        *listener; // of the data port; NULL: none, or closed until it can take connections again
    as_timer_t *relisten;
    struct sockaddr_storage bound; // where it listens
    ucx_list_t sockets, half_open;
    ucp_listener_h ucx_listener; // behind the gate
    uint16_t ucx_port;
    int gate; // its descriptor
    bool gate_is_old;
    ucx_doors_t doors;
    char address[300];
    ucx_loop_glue_t *glue;
    ucx_list_t living, dying; // connections
    ucx_list_t inflight, finished, orphans, free_ops;
    ucx_list_t batches; // operations that wait to be started, one of a connection
    as_timer_t *grace;  // runs while an endpoint is slow to close
    bool grace_runs;
    as_timer_t *nap;    // between turns when UCX cannot wake us
    ucx_list_t accepts; // connection requests, as ucx_accept_t
    ucx_op_t *slabs[UCX_SLABS_MAX];
    uint32_t slab_count;
    uint32_t conn_count;
    uint32_t mem_count;         // as_net_mem and as_net_rkey that still refer to the net
    bool ticking;               // inside UCX or a callback of this net
    bool reaping;               // as_net_free waits for operations to end
    struct ucx_mem *freed_mems; // freed while connections were open: unmapped with the net
    bool abandoned;             // as_net_free has called back every operation; UCX may yet end some
    ucx_conn_t *buckets[UCX_EP_BUCKETS];
};

// net_ucx_context.c: what all nets of the process share.
as_status_t ucx_context_get(ucp_context_h *context_p) AS_MUST_USE;
void ucx_context_put(void);
bool ucx_context_is_made(void);
as_status_t ucx_status(ucs_status_t status);
as_status_t ucx_resolve(const char *address, bool passive, struct sockaddr_storage *storage,
                        size_t *bytes_p) AS_MUST_USE;

// net_ucx_conn.c: connections and operations; net_ucx.c: progress.
as_status_t ucx_op_take(ucx_conn_t *conn, as_net_done_fn done, void *ctx,
                        ucx_op_t **op_p) AS_MUST_USE;
void ucx_op_drop(ucx_op_t *op);                       // undoes take: no callback
void ucx_op_finish(ucx_op_t *op, as_status_t status); // the callback follows from the loop
// Takes what UCX returned at its start: done already, under way, or not started.
as_status_t ucx_op_started(ucx_op_t *op, ucs_status_ptr_t request) AS_MUST_USE;
void ucx_op_on_sent(void *request, ucs_status_t status, void *user_data);
void ucx_net_kick(ucx_net_t *net);                        // there is something to do: progress soon
void ucx_conn_fail(ucx_conn_t *conn, as_status_t status); // the connection broke
void ucx_op_report(ucx_op_t *op);                         // calls back, now
as_status_t ucx_conn_make(ucx_net_t *net, ucx_conn_t **conn_p) AS_MUST_USE; // no endpoint yet
as_status_t ucx_conn_begin(ucx_conn_t *conn, ucp_ep_params_t *params) AS_MUST_USE;
as_status_t ucx_conn_join(ucx_conn_t *conn, const struct sockaddr_storage *to,
                          const struct sockaddr_storage *from) AS_MUST_USE;
void ucx_conn_drop(ucx_conn_t *conn); // undoes make: no callback
bool ucx_conn_bury(ucx_conn_t *conn); // one step of its end; true if something happened
as_status_t ucx_connect(as_net_t *head, const char *address, as_conn_t **conn_p);
void ucx_close(as_conn_t *head);
const char *ucx_transport(const as_conn_t *head);
// Where reads without the peer's processor are real: by an RDMA card.
bool ucx_conn_has_rdma(const ucx_conn_t *conn);
ucx_conn_t *ucx_conn_find(ucx_net_t *net, ucp_ep_h ep);
static inline ucx_net_t *ucx_conn_net(const ucx_conn_t *conn)
{
    return (ucx_net_t *)conn->head.net;
}
static inline bool ucx_conn_alive(const ucx_conn_t *conn)
{
    return conn->state <= UCX_OPEN && !conn->user_closed;
}

// net_ucx_port.c: the data port. A socket belongs to its connection until either closes it.
as_status_t ucx_socket_make(ucx_net_t *net, const struct sockaddr_storage *remote,
                            ucx_socket_t **socket_p) AS_MUST_USE;
void ucx_socket_dial(ucx_socket_t *socket, ucx_conn_t *conn);
void ucx_socket_close(ucx_socket_t *socket);
as_status_t ucx_port_accept(ucx_net_t *net, struct uv_stream_s *from) AS_MUST_USE;
void ucx_port_admit(ucx_net_t *net);
// UCX's connection has come: its hosts go to *guest. False: it is nobody's who is admitted.
bool ucx_port_connected(ucx_net_t *net, const struct sockaddr_storage *from, ucx_guest_t *guest);
void ucx_port_close(ucx_net_t *net); // all sockets, and the listener

// net_ucx_batch.c
as_status_t ucx_batch_add(ucx_conn_t *conn, const void *header, size_t header_bytes) AS_MUST_USE;
void ucx_batch_send(ucx_conn_t *conn);
void ucx_batch_drop(ucx_conn_t *conn); // of a connection that has ended
void ucx_batches_send(ucx_net_t *net); // of all connections

// net_ucx_send.c
unsigned ucx_progress(ucp_worker_h worker);
bool ucx_send_is_ours(void); // a send that fails does no harm

// net_ucx_listener.c
as_status_t ucx_listener_make(ucx_net_t *net, const struct sockaddr_storage *local) AS_MUST_USE;
void ucx_listener_close(ucx_net_t *net);

// net_ucx_gate.c: filters before ports that listen.
as_status_t ucx_gate_set(int fd, const struct sockaddr_storage *admitted,
                         unsigned count) AS_MUST_USE;
// AS_ERR_LIMIT: the kernel takes no filter for so many.
as_status_t ucx_gate_set_hosts(int fd, const struct in6_addr *hosts, unsigned count) AS_MUST_USE;
void ucx_gate_open(int fd);
void ucx_sockaddr_host(const struct sockaddr_storage *address, struct in6_addr *host);
bool ucx_sockaddr_is(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
uint16_t ucx_sockaddr_port(const struct sockaddr_storage *address);
void ucx_sockaddr_set_port(struct sockaddr_storage *address, uint16_t port);

// net_ucx_doors.c: UCX's ports on interfaces, and the hosts that may come to them.
int ucx_gate_find(const struct sockaddr_storage *address); // the descriptor that listens; -1: none
as_status_t ucx_doors_before(ucx_before_t **before_p) AS_MUST_USE; // the worker is made
void ucx_doors_find(ucx_net_t *net, ucx_before_t *before);         // after; takes `before`
void ucx_doors_update(ucx_net_t *net);
// AS_ERR_UNSUPPORTED: UCX cannot connect by an address of that family.
as_status_t ucx_doors_take(const ucx_net_t *net,
                           const struct sockaddr_storage *address) AS_MUST_USE;
void ucx_guest_add(ucx_net_t *net, ucx_guest_t *guest, const struct in6_addr *host);
// The address that a peer was seen at, from ours, and the others that it names; they may come when it returns.
void ucx_guest_add_all(ucx_net_t *net, ucx_guest_t *guest, const struct sockaddr_storage *remote,
                       const struct sockaddr_storage *local, const ucx_hello_t *hello);
void ucx_guest_move(ucx_guest_t *from, ucx_guest_t *to);
void ucx_guest_leave(ucx_net_t *net, ucx_guest_t *guest);
unsigned ucx_hosts_of_ours(struct in6_addr hosts[UCX_HELLO_HOSTS_MAX]);

// net_ucx_msg.c: messages; net_ucx_mem.c: memory.
as_status_t ucx_msg_register(ucx_net_t *net) AS_MUST_USE; // sets the worker's message handlers
as_status_t ucx_msg_greet(ucx_conn_t *conn) AS_MUST_USE;
as_status_t ucx_msg_start(ucx_op_t *op, unsigned am_id) AS_MUST_USE; // its header, alone
as_status_t ucx_send(as_conn_t *conn, const as_net_send_params_t *params);
size_t ucx_piece_bytes(const as_conn_t *conn);
as_status_t ucx_msg_recv(as_net_msg_t *msg, void *buffer, as_net_done_fn done, void *ctx);
as_status_t ucx_mem_alloc(as_net_t *net, size_t bytes, void **memory_p, as_net_mem_t **mem_p);
as_status_t ucx_sendv(as_conn_t *conn, const as_net_sendv_params_t *params);
void ucx_mem_free(as_net_mem_t *mem);
void ucx_mems_unmap(ucx_net_t *net); // those that were freed while connections were open
as_status_t ucx_mem_pack(const as_net_mem_t *mem, void *rkey, size_t *rkey_bytes_p);
as_status_t ucx_rkey_unpack(as_conn_t *conn, const void *rkey, size_t rkey_bytes,
                            as_net_rkey_t **rkey_p);
void ucx_rkey_free(as_net_rkey_t *rkey);
as_status_t ucx_rkey_ptr(as_net_rkey_t *rkey, uint64_t remote_address, const void **pointer_p);
as_status_t ucx_get(as_conn_t *conn, const as_net_get_params_t *params);

static inline void ucx_list_init(ucx_list_t *list)
{
    list->prev = list->next = list;
}

static inline bool ucx_list_is_empty(const ucx_list_t *list)
{
    return list->next == list;
}

static inline void ucx_list_remove(ucx_list_t *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    ucx_list_init(item);
}

static inline void ucx_list_append(ucx_list_t *list, ucx_list_t *item)
{
    item->prev = list->prev;
    item->next = list;
    list->prev->next = item;
    list->prev = item;
}

// All of `from`, to the empty list `to`.
static inline void ucx_list_move(ucx_list_t *from, ucx_list_t *to)
{
    ucx_list_init(to);
    if (!ucx_list_is_empty(from)) {
        *to = *from;
        to->next->prev = to->prev->next = to;
        ucx_list_init(from);
    }
}

#define UCX_LIST_OF(item, type) ((type *)((char *)(item)-offsetof(type, link)))

#endif
