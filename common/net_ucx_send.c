// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: progress, and a send to a peer that is gone.
//
// UCX 1.13 over TCP (uct_tcp_ep_sendv): when the rest of a message that is sent from where it lies meets an
// error, it is ended twice, and an assertion of UCX's ends the process. A read that meets the
// same error ends it once. So, while UCX progresses, a send that fails since the peer is gone says "not
// now", and the read that UCX does next tells. libucs finds the sendmsg of the program before that of
// libc; where it does not, as from a shared library, UCX is told to copy what it sends, which takes a third more
// of processor time.
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/net_ucx.h"

static _Thread_local bool progressing;

unsigned ucx_progress(ucp_worker_h worker)
{
    progressing = true;
    unsigned count = ucp_worker_progress(worker);
    progressing = false;
    return count;
}

static bool is_gone(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == ENOTCONN ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t sent = (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
    if (sent < 0 && progressing && is_gone(errno)) {
        errno = EAGAIN;
    }
    return sent;
}

bool ucx_send_is_ours(void)
{
    ssize_t (*ours)(int, const struct msghdr *, int) = sendmsg;
    return dlsym(RTLD_DEFAULT, "sendmsg") == (void *)(uintptr_t)ours;
}
