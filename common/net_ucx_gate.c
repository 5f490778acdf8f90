// SPDX-License-Identifier: Apache-2.0
// The gate before UCX's listener: a socket filter in the kernel that lets in only the addresses and
// ports that were admitted.
//
// UCX 1.13 ends the process when its listener is sent bytes that are not UCX's own, and has no way
// to ask who may connect. Its listening socket is ours to filter, though: what the filter drops,
// the first packet of a connection already, never was. An accepted connection keeps the filter of
// its time.
#include "common/net_ucx.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/assert.h"
#include "common/log.h"

#define ENTRY_INSTRUCTIONS 14u // of one admitted address at most

// Offsets in the packet: of the IP header, and of the TCP header.
#define IP(offset)   ((uint32_t)SKF_NET_OFF + (offset))
#define SOURCE_PORT  0u
#define IP4_SOURCE   12u
#define IP6_SOURCE   8u
#define VERSION_MASK 0xf0u

typedef struct program {
    struct sock_filter code[UCX_ADMITTED_MAX * ENTRY_INSTRUCTIONS + 1];
    unsigned count;
} program_t;

static void add(program_t *program, uint16_t code, uint32_t k)
{
    program->code[program->count++] = (struct sock_filter){code, 0, 0, k};
}

// Goes on if the value is `k`, else to the entry's end, which is filled in later.
static void add_check(program_t *program, uint16_t load, uint32_t offset, uint32_t k)
{
    add(program, BPF_LD | BPF_ABS | load, offset);
    if (load == BPF_B) {
        add(program, BPF_ALU | BPF_AND | BPF_K, VERSION_MASK);
    }
    add(program, BPF_JMP | BPF_JEQ | BPF_K, k);
}

static void add_entry(program_t *program, const struct sockaddr_storage *from)
{
    unsigned begin = program->count;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
    const struct sockaddr_in *in4 = (const struct sockaddr_in *)from;
    bool six = from->ss_family == AF_INET6;
    if (six && !IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        add_check(program, BPF_B, IP(0), 0x60);
        for (unsigned i = 0; i < 4; i++) {
            uint32_t word;
            memcpy(&word, in6->sin6_addr.s6_addr + 4 * i, 4);
            add_check(program, BPF_W, IP(IP6_SOURCE + 4 * i), ntohl(word));
        }
    } else {
        uint32_t word = in4->sin_addr.s_addr;
        if (six) {
            memcpy(&word, in6->sin6_addr.s6_addr + 12, 4);
        }
        add_check(program, BPF_B, IP(0), 0x40);
        add_check(program, BPF_W, IP(IP4_SOURCE), ntohl(word));
    }
    add_check(program, BPF_H, SOURCE_PORT, ntohs(six ? in6->sin6_port : in4->sin_port));
    add(program, BPF_RET | BPF_K, UINT32_MAX);
    for (unsigned i = begin; i < program->count; i++) {
        if (BPF_CLASS(program->code[i].code) == BPF_JMP) {
            program->code[i].jf = (uint8_t)(program->count - i - 1);
        }
    }
}

as_status_t ucx_gate_set(int fd, const struct sockaddr_storage *admitted, unsigned count)
{
    program_t program = {.count = 0};
    AS_ASSERT(count <= UCX_ADMITTED_MAX);
    for (unsigned i = 0; i < count; i++) {
        add_entry(&program, &admitted[i]);
    }
    add(&program, BPF_RET | BPF_K, 0);
    const struct sock_fprog filter = {(unsigned short)program.count, program.code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0) {
        AS_ERROR("net", "cannot filter UCX's listener: %s", strerror(errno));
        return AS_ERR_UNSUPPORTED;
    }
    return AS_OK;
}

uint16_t ucx_sockaddr_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

void ucx_sockaddr_set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)address)->sin_port = htons(port);
    }
}

bool ucx_sockaddr_is(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family || ucx_sockaddr_port(a) != ucx_sockaddr_port(b)) {
        return false;
    }
    return a->ss_family == AF_INET6
               ? memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                        &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0
               : ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
                     ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

static bool listens_on(int fd, const struct sockaddr_storage *address)
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound), int_bytes = sizeof(int);
    int listening = 0;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &int_bytes) == 0 && listening &&
           getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0 &&
           ucx_sockaddr_is(&bound, address);
}

int ucx_gate_find(const struct sockaddr_storage *address)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1;
    while (dir && found < 0 && (entry = readdir(dir))) {
        char *end;
        int fd = (int)strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && fd != dirfd(dir) && listens_on(fd, address)) {
            found = fd;
        }
    }
    if (dir) {
        closedir(dir);
    }
    if (found < 0) {
        AS_ERROR("net", "UCX's listener is not among the descriptors of this process");
    }
    return found;
}
