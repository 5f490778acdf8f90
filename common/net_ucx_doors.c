// SPDX-License-Identifier: Apache-2.0
// The doors: UCX's own port on each interface, and the hosts that may come to them.
//
// UCX's TCP transport listens at a port that it picks, on every interface that it may use, and trusts
// what has its magic. Which port a peer's connection will come from nobody knows before, so a door asks for
// the host alone: only those of peers that the data port has let in, or that we have dialled, for
// as long as they are connected, get a connection at all; the kernel drops what others send.
//
// UCX does not say which descriptors they are. They are those that listen when its worker has been
// made, did not before, and whose port is in the address that the worker hands out.
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/net_ucx.h"

#define FDS_MAX 1024u

static bool is_listening(int fd, struct sockaddr_storage *bound)
{
    socklen_t bytes = sizeof(*bound), int_bytes = sizeof(int);
    int listening = 0;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &int_bytes) == 0 && listening &&
           getsockname(fd, (struct sockaddr *)bound, &bytes) == 0 &&
           (bound->ss_family == AF_INET || bound->ss_family == AF_INET6);
}

// The descriptors of this process that listen. FDS_MAX + 1: they cannot be told.
static unsigned listening(int fds[FDS_MAX])
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    unsigned count = 0;
    if (!dir) {
        return FDS_MAX + 1;
    }
    while (count <= FDS_MAX && (entry = readdir(dir))) {
        char *end;
        struct sockaddr_storage bound;
        int fd = (int)strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || fd == dirfd(dir) || !is_listening(fd, &bound)) {
            continue;
        }
        if (count < FDS_MAX) {
            fds[count] = fd;
        }
        count++;
    }
    closedir(dir);
    return count;
}

static ino_t inode(int fd)
{
    struct stat stat;
    return fstat(fd, &stat) == 0 ? stat.st_ino : 0;
}

int ucx_gate_find(const struct sockaddr_storage *address)
{
    int fds[FDS_MAX];
    unsigned count = listening(fds);
    for (unsigned i = 0; i < count && count <= FDS_MAX; i++) {
        struct sockaddr_storage bound;
        if (is_listening(fds[i], &bound) && ucx_sockaddr_is(&bound, address)) {
            return fds[i];
        }
    }
    AS_ERROR("net", "UCX's listener is not among the descriptors of this process");
    return -1;
}

// ---- which they are

struct ucx_before {
    unsigned count;
    ino_t inodes[FDS_MAX];
};

// Of each descriptor the inode: its number may be another's by then.
as_status_t ucx_doors_before(ucx_before_t **before_p)
{
    int fds[FDS_MAX];
    ucx_before_t *before = as_mem_alloc(sizeof(*before));
    if (!before) {
        return AS_ERR_NO_MEMORY;
    }
    before->count = listening(fds);
    for (unsigned i = 0; i < before->count && before->count <= FDS_MAX; i++) {
        before->inodes[i] = inode(fds[i]);
    }
    *before_p = before;
    return AS_OK;
}

static bool was_there(const ucx_before_t *before, int fd)
{
    ino_t wanted = inode(fd);
    for (unsigned i = 0; i < before->count; i++) {
        if (before->inodes[i] == wanted) {
            return true;
        }
    }
    return false;
}

static bool names_port(const ucp_address_t *address, size_t bytes, int fd)
{
    struct sockaddr_storage bound;
    if (!is_listening(fd, &bound)) {
        return false;
    }
    const uint16_t port = htons(ucx_sockaddr_port(&bound));
    return memmem(address, bytes, &port, sizeof(port)) != NULL;
}

static void doors_add(ucx_doors_t *doors, int fd)
{
    struct sockaddr_storage bound = {0};
    bool six = is_listening(fd, &bound) && bound.ss_family == AF_INET6;
    doors->six |= six;
    doors->four |= !six;
    doors->fds[doors->count++] = fd;
}

void ucx_doors_find(ucx_net_t *net, ucx_before_t *before)
{
    ucx_doors_t *doors = &net->doors;
    int fds[FDS_MAX];
    ucp_address_t *address = NULL;
    size_t bytes = 0;
    unsigned count = listening(fds);
    bool told = before->count <= FDS_MAX && count <= FDS_MAX &&
                ucp_worker_get_address(net->worker, &address, &bytes) == UCS_OK;
    for (unsigned i = 0; i < count && told && doors->count < UCX_DOORS_MAX; i++) {
        if (!was_there(before, fds[i]) && names_port(address, bytes, fds[i])) {
            doors_add(doors, fds[i]);
        }
    }
    if (address) {
        ucp_worker_release_address(net->worker, address);
    }
    as_mem_free(before);
    if (!told) {
        AS_WARN("net", "UCX's own ports are not found among the descriptors of this process, and "
                       "stay open to every host");
    }
    doors->old = true;
    ucx_doors_update(net);
}

// An endpoint of UCX 1.13 has room for an address of its interface's family. Where it connects by IPv6 and the
// interface is at an address of IPv4, it writes over what lies behind.
as_status_t ucx_doors_take(const ucx_net_t *net, const struct sockaddr_storage *address)
{
    if (address->ss_family != AF_INET6 || !net->doors.four) {
        return AS_OK;
    }
    AS_WARN("net",
            "no data over IPv6 here: for it set UCX_TCP_AF_PRIO=inet6,inet in the environment "
            "of every process, and name its interface, which is not lo");
    return AS_ERR_UNSUPPORTED;
}

// ---- who may come

static bool is_host(const struct in6_addr *a, const struct in6_addr *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

void ucx_guest_add(ucx_net_t *net, ucx_guest_t *guest, const struct in6_addr *host)
{
    ucx_doors_t *doors = &net->doors;
    unsigned slot = UCX_HOSTS_MAX;
    if (!(IN6_IS_ADDR_V4MAPPED(host) ? doors->four : doors->six)) {
        return; // it cannot come to any
    }
    for (unsigned i = 0; i < doors->host_count; i++) {
        if (doors->refs[i] > 0 && is_host(&doors->hosts[i], host)) {
            slot = i;
            break;
        }
        slot = doors->refs[i] == 0 ? i : slot;
    }
    if (slot == UCX_HOSTS_MAX && doors->host_count < UCX_HOSTS_MAX) {
        slot = doors->host_count++;
    }
    AS_ASSERT(guest->count < UCX_GUEST_HOSTS_MAX);
    guest->slots[guest->count++] = (uint16_t)slot;
    if (slot == UCX_HOSTS_MAX) {
        doors->old |= doors->unlisted++ == 0;
        return;
    }
    if (doors->refs[slot]++ == 0) {
        doors->hosts[slot] = *host;
        doors->old = true;
    }
}

void ucx_guest_add_all(ucx_net_t *net, ucx_guest_t *guest, const struct sockaddr_storage *remote,
                       const struct sockaddr_storage *local, const ucx_hello_t *hello)
{
    static const struct in6_addr loopback = {{{[10] = 0xff, 0xff, 127, 0, 0, 1}}};
    struct in6_addr host, own;
    ucx_sockaddr_host(remote, &host);
    ucx_sockaddr_host(local, &own);
    ucx_guest_add(net, guest, &host);
    if (is_host(&host, &own) && !is_host(&host, &loopback)) {
        ucx_guest_add(net, guest, &loopback); // it is on this host: UCX may take that interface
    }
    for (unsigned i = 0; i < hello->host_count; i++) {
        if (!is_host(&hello->hosts[i], &host)) {
            ucx_guest_add(net, guest, &hello->hosts[i]);
        }
    }
    ucx_doors_update(net);
}

void ucx_guest_move(ucx_guest_t *from, ucx_guest_t *to)
{
    *to = *from;
    from->count = 0;
}

void ucx_guest_leave(ucx_net_t *net, ucx_guest_t *guest)
{
    ucx_doors_t *doors = &net->doors;
    for (unsigned i = 0; i < guest->count; i++) {
        uint32_t *refs =
            guest->slots[i] == UCX_HOSTS_MAX ? &doors->unlisted : &doors->refs[guest->slots[i]];
        AS_ASSERT(*refs > 0);
        doors->old |= --*refs == 0;
    }
    guest->count = 0;
}

void ucx_doors_update(ucx_net_t *net)
{
    ucx_doors_t *doors = &net->doors;
    struct in6_addr hosts[UCX_HOSTS_MAX];
    unsigned count = 0;
    if (!doors->old) {
        return;
    }
    doors->old = false;
    for (unsigned i = 0; i < doors->host_count; i++) {
        if (doors->refs[i] > 0) {
            hosts[count++] = doors->hosts[i];
        }
    }
    bool fits = doors->unlisted == 0;
    for (unsigned i = 0; i < doors->count && fits; i++) {
        fits = ucx_gate_set_hosts(doors->fds[i], hosts, count) == AS_OK;
    }
    for (unsigned i = 0; i < doors->count && !fits; i++) {
        ucx_gate_open(doors->fds[i]);
    }
    if (!fits && !doors->open) {
        AS_WARN("net",
                "%u hosts are connected, more than the kernel's filter takes: UCX's own "
                "ports are open to every host",
                count + doors->unlisted);
    }
    doors->open = !fits;
}

// ---- ours

static bool is_used(const struct ifaddrs *at)
{
    const char *devices = getenv("UCX_NET_DEVICES");
    bool is_ip =
        at->ifa_addr && (at->ifa_addr->sa_family == AF_INET || at->ifa_addr->sa_family == AF_INET6);
    return is_ip && (at->ifa_flags & IFF_UP) && !(at->ifa_flags & IFF_LOOPBACK) &&
           (!devices || strcmp(devices, "all") == 0 || strstr(devices, at->ifa_name));
}

unsigned ucx_hosts_of_ours(struct in6_addr hosts[UCX_HELLO_HOSTS_MAX])
{
    struct ifaddrs *all;
    unsigned count = 0;
    if (getifaddrs(&all) != 0) {
        AS_WARN("net", "cannot list network interfaces: %s", strerror(errno));
        return 0;
    }
    for (struct ifaddrs *at = all; at && count < UCX_HELLO_HOSTS_MAX; at = at->ifa_next) {
        if (is_used(at)) {
            ucx_sockaddr_host((const struct sockaddr_storage *)(const void *)at->ifa_addr,
                              &hosts[count++]);
        }
    }
    freeifaddrs(all);
    return count;
}
