// SPDX-License-Identifier: Apache-2.0
// The data plane as a seam: UCX (net_ucx.c) or a deterministic simulation (net_sim.c).
//
// A net is one endpoint of the data plane on one loop. Peers exchange messages: a small header
// (copied) and an optional payload (not copied: eager when small, rendezvous when large; the
// receiver names the buffer that it lands in). Where a connection has AS_NET_CAP_ONESIDED, memory
// of the peer that was mapped and whose packed rkey was sent over can be read without the peer's
// processor.
//
// Asynchronous contract: see loop.h. All callbacks run on the net's loop. The peer that is merely
// stopped is never reported by a network: every caller has its own deadline and closes the
// connection when it passes.
#ifndef AS_NET_H
#define AS_NET_H

#include <stddef.h>
#include "common/loop.h"

// Header of one message. Small, since a header travels in one fragment of the narrowest transport
// and is copied; arrays (keys, statuses, checksums) belong into the payload, which has no such
// limit.
#define AS_NET_HEADER_BYTES_MAX     1280u
#define AS_NET_RKEY_BYTES_MAX       512u // one packed remote key
#define AS_NET_CREDENTIAL_BYTES_MAX 128u

typedef struct as_net as_net_t;
typedef struct as_conn as_conn_t; // one connection to one peer
typedef struct as_net_mem as_net_mem_t;
typedef struct as_net_rkey as_net_rkey_t;

// as_net_get (and on shared memory as_net_rkey_ptr) work and do not involve the peer's processor.
// Learned from the peer's keys: a connection has it from the first as_net_rkey_unpack of a key that
// can be read that way; before, it is 0. Without it as_net_get answers AS_ERR_UNSUPPORTED: ask the
// peer to send the bytes.
enum { AS_NET_CAP_ONESIDED = 1u };

// A message while its handler runs. `data` is NULL when the payload is still at the sender
// (rendezvous). The header is aligned to 16 bytes; `data` to nothing. All lengths are the peer's
// word: bound them. Over UCX the messages of one connection come in the order in which they were
// sent, except that one with a large payload may come after smaller ones that were sent later; over
// the simulation any may.
typedef struct as_net_msg {
    const void *header;
    size_t header_bytes;
    const void *data;
    size_t data_bytes;
} as_net_msg_t;

typedef void (*as_net_done_fn)(void *ctx, as_status_t status);

#define AS_NET_IOV_MAX 32u

// A piece of a payload that lies in several places.
typedef struct as_net_iov {
    const void *data;
    size_t bytes;
} as_net_iov_t;

typedef struct as_net_handlers {
    void *ctx;
    // A peer connected to a listening net. The connection is owned by the receiver from here.
    void (*on_accept)(void *ctx, as_conn_t *conn);
    // A message came. The handler may call as_net_msg_recv once, before it returns; else the
    // payload is dropped.
    void (*on_message)(void *ctx, as_conn_t *conn, as_net_msg_t *msg);
    // The peer is gone or broke the transport. Called once, never after as_net_close. All
    // operations in flight complete with an error before it. The handler (or later code) must still
    // call as_net_close.
    void (*on_lost)(void *ctx, as_conn_t *conn, as_status_t status);
    // Whether a peer with that credential may connect to a listening net; NULL: every one may. Over UCX no byte of
    // one that may not gets as far as UCX. The simulation does not ask. What a peer may do once it is
    // connected is for its messages to prove.
    bool (*on_knock)(void *ctx, const void *credential, size_t bytes);
} as_net_handlers_t;

// Which interface UCX's own ports are opened on: the one of that name, or the one that has the host
// of "host:port" (all of them when it is 0.0.0.0 or ::, as without these calls). Before the first
// net of the process, and before other threads run; UCX_NET_DEVICES in the environment overrules.
as_status_t as_net_ucx_use_interface(const char *name) AS_MUST_USE;
as_status_t as_net_ucx_use_address(const char *address) AS_MUST_USE;
// UCX net on a uv loop. `handlers` is copied.
as_status_t as_net_alloc_ucx(as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p) AS_MUST_USE;
// Closes every connection. Operations in flight complete with AS_ERR_CANCELLED before it returns.
// Not to be called from a callback of the net; its memory and remote keys must be freed before.
// Never waits for a peer.
void as_net_free(as_net_t *net);

// address: "host:port"; port 0 picks one. Only once per net.
as_status_t as_net_listen(as_net_t *net, const char *address) AS_MUST_USE;
// The bound address, "host:port"; valid while the net lives; NULL when not listening.
const char *as_net_address(const as_net_t *net);
// A host given as a name is looked up in the call, which may take the resolver's timeout; a numeric
// one never waits. Otherwise returns at once; a connection that cannot be made is reported by
// on_lost with AS_ERR_UNREACHABLE (and operations started on it meanwhile complete with that), or, when the
// peer's on_knock has said no, with AS_ERR_DENIED.
as_status_t as_net_connect(as_net_t *net, const char *address, as_conn_t **conn_p) AS_MUST_USE;
// What peers are shown from the next connection on; it is copied.
void as_net_set_credential(as_net_t *net, const void *credential, size_t bytes);
// Ends the connection; operations in flight on it complete with AS_ERR_CANCELLED, later, from the
// loop. The pointer is dead after this call.
void as_net_close(as_conn_t *conn);
uint32_t as_conn_caps(const as_conn_t *conn);
// How a payload of so many bytes is best sent: in pieces of so many, the last one shorter. Each comes with
// its message, in the order sent, and is best taken from there. `bytes` itself: in one.
size_t as_conn_piece_bytes(const as_conn_t *conn, size_t bytes);
// A message was refused as BUSY for this connection's own sake: its peer takes none, and the network has as many
// for it as it may have for one. Other refusals may be for want of what all connections share.
bool as_conn_is_deaf(const as_conn_t *conn);
// What carries the connection, such as "tcp", "posix tcp" or "sim"; for logs and benches. Empty
// while connecting.
const char *as_conn_transport(const as_conn_t *conn);
// The owner's pointer, for finding one's own state in handlers.
void as_conn_set_user(as_conn_t *conn, void *user);
void *as_conn_user(const as_conn_t *conn);

// Sends header and payload. The header is copied; the payload must stay unchanged until done.
// `done` may be NULL when there is no payload.
as_status_t as_net_send(as_conn_t *conn, const void *header, size_t header_bytes, const void *data,
                        size_t data_bytes, as_net_done_fn done, void *ctx) AS_MUST_USE;
// The same, but the payload stays here until the receiver takes it, however small it is: for what the
// receiver may have already.
as_status_t as_net_offer(as_conn_t *conn, const void *header, size_t header_bytes, const void *data,
                         size_t data_bytes, as_net_done_fn done, void *ctx) AS_MUST_USE;
// The same with a payload that is gathered from 1 to AS_NET_IOV_MAX non-empty pieces, which arrive
// as one. `iov` is copied; the pieces must stay unchanged until done.
as_status_t as_net_sendv(as_conn_t *conn, const void *header, size_t header_bytes,
                         const as_net_iov_t *iov, size_t iov_count, as_net_done_fn done,
                         void *ctx) AS_MUST_USE;
// Inside on_message: take the payload into `buffer` (msg->data_bytes long).
as_status_t as_net_msg_recv(as_net_msg_t *msg, void *buffer, as_net_done_fn done,
                            void *ctx) AS_MUST_USE;

// Allocates memory that peers may read one-sidedly (shared memory, huge pages if there are any) and
// registers it. memory_p is page-aligned, zeroed, and freed with as_net_mem_free: it goes then, or,
// while operations on closed connections may still touch it, with the net.
as_status_t as_net_mem_alloc(as_net_t *net, size_t bytes, void **memory_p,
                             as_net_mem_t **mem_p) AS_MUST_USE;
void as_net_mem_free(as_net_mem_t *mem);
// The key is good for the peers of every net of the process. Writes the packed remote key, at most
// AS_NET_RKEY_BYTES_MAX bytes.
as_status_t as_net_mem_pack(const as_net_mem_t *mem, void *rkey, size_t *rkey_bytes_p) AS_MUST_USE;
as_status_t as_net_rkey_unpack(as_conn_t *conn, const void *rkey, size_t rkey_bytes,
                               as_net_rkey_t **rkey_p) AS_MUST_USE;
void as_net_rkey_free(as_net_rkey_t *rkey);
// A local pointer to the peer's memory (shared memory only), else AS_ERR_UNSUPPORTED. Valid until
// the rkey is freed, also after the peer's death; then its contents no longer change.
as_status_t as_net_rkey_ptr(as_net_rkey_t *rkey, uint64_t remote_address,
                            const void **pointer_p) AS_MUST_USE;
// One-sided read.
as_status_t as_net_get(as_conn_t *conn, as_net_rkey_t *rkey, uint64_t remote_address, void *buffer,
                       size_t bytes, as_net_done_fn done, void *ctx) AS_MUST_USE;

#endif
