// SPDX-License-Identifier: Apache-2.0
// The network interfaces that UCX may use.
//
// UCX's TCP transport listens on a port of its own on every interface, and what comes there is
// parsed by UCX. So it gets the one interface that the process is to serve on, and beside it the
// RDMA devices, which have no such port; on loopback they are left out, since they reach nobody
// there.
#include "common/net_ucx.h"

#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"

#define DEVICES_BYTES_MAX 1024u
#define RDMA_DIR          "/sys/class/infiniband"

// Appends ",device:port" for every port of every RDMA device.
static void append_rdma(char *devices)
{
    DIR *dir = opendir(RDMA_DIR);
    struct dirent *device, *port;
    while (dir && (device = readdir(dir))) {
        char path[sizeof(RDMA_DIR) + 300];
        snprintf(path, sizeof(path), RDMA_DIR "/%s/ports", device->d_name);
        DIR *ports = device->d_name[0] == '.' ? NULL : opendir(path);
        while (ports && (port = readdir(ports))) {
            size_t used = strlen(devices);
            if (port->d_name[0] != '.' &&
                used + strlen(device->d_name) + strlen(port->d_name) + 3 < DEVICES_BYTES_MAX) {
                snprintf(devices + used, DEVICES_BYTES_MAX - used, ",%s:%s", device->d_name,
                         port->d_name);
            }
        }
        if (ports) {
            closedir(ports);
        }
    }
    if (dir) {
        closedir(dir);
    }
}

as_status_t as_net_ucx_use_interface(const char *name)
{
    char devices[DEVICES_BYTES_MAX];
    const char *set = getenv("UCX_NET_DEVICES");
    if (if_nametoindex(name) == 0) {
        AS_ERROR("net", "this machine has no network interface '%.32s'; `ip link` lists them",
                 name);
        return AS_ERR_CONFIG;
    }
    if (ucx_context_is_made()) {
        AS_ERROR("net", "the data plane's interface is chosen before its first net");
        return AS_ERR_INVALID;
    }
    if (set) {
        AS_INFO("net", "UCX_NET_DEVICES=%.200s stands; the data plane would use %s", set, name);
        return AS_OK;
    }
    snprintf(devices, sizeof(devices), "%s", name);
    if (strcmp(name, "lo") != 0) {
        append_rdma(devices);
    }
    setenv("UCX_NET_DEVICES", devices, 0);
    AS_DEBUG("net", "UCX may use %s", devices);
    return AS_OK;
}

static bool is_same_host(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    if (!a || a->sa_family != b->ss_family) {
        return false;
    }
    if (a->sa_family == AF_INET6) {
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    }
    return a->sa_family == AF_INET && ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
                                          ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

static bool is_every_host(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6
               ? IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr)
               : ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET &&
           ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

as_status_t as_net_ucx_use_address(const char *address)
{
    struct sockaddr_storage wanted;
    size_t bytes;
    struct ifaddrs *all, *at;
    as_status_t status = ucx_resolve(address, true, &wanted, &bytes);
    if (status != AS_OK || is_every_host(&wanted)) {
        return status;
    }
    if (is_loopback(&wanted)) { // all of 127/8, of which the interface lists one
        return as_net_ucx_use_interface("lo");
    }
    if (getifaddrs(&all) != 0) {
        AS_ERROR("net", "cannot list network interfaces: %s", strerror(errno));
        return AS_ERR_IO;
    }
    for (at = all; at && !is_same_host(at->ifa_addr, &wanted); at = at->ifa_next) {
    }
    if (at) {
        status = as_net_ucx_use_interface(at->ifa_name);
    } else {
        AS_ERROR("net", "no network interface of this machine has the address %s", address);
        status = AS_ERR_CONFIG;
    }
    freeifaddrs(all);
    return status;
}
