// SPDX-License-Identifier: Apache-2.0
// Under which host others reach a store.
#include "kvstore/advertise.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static int host_bytes(const char *address)
{
    const char *bracket = strrchr(address, ']');
    const char *colon = strrchr(bracket ? bracket : address, ':');
    return (int)(colon ? colon - address : (long)strlen(address));
}

bool kvs_is_every_interface(const char *address)
{
    char host[INET6_ADDRSTRLEN + 1];
    struct in_addr four;
    struct in6_addr six;
    int bytes = host_bytes(address);
    bool bracketed = bytes >= 2 && address[0] == '[' && address[bytes - 1] == ']';
    if (bytes >= (int)sizeof(host)) {
        return false; // a name
    }
    snprintf(host, sizeof(host), "%.*s", bytes - 2 * bracketed, address + bracketed);
    return host[0] == '\0' || (inet_aton(host, &four) && four.s_addr == htonl(INADDR_ANY)) ||
           (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six));
}

void kvs_advertise(const char *address, const char *advertise, const char *data_address,
                   char told[KVS_ADDRESS_BYTES_MAX])
{
    const char *from = kvs_is_every_interface(address) ? data_address : address;
    int bytes = advertise ? (int)strlen(advertise) : host_bytes(from);
    snprintf(told, KVS_ADDRESS_BYTES_MAX, "%.*s%s", bytes, advertise ? advertise : from,
             address + host_bytes(address));
}
