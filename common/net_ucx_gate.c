// SPDX-License-Identifier: Apache-2.0
// The gates before UCX's ports: socket filters in the kernel that let in only who was admitted; to its listener
// by address and port, to its port on an interface (net_ucx_doors.c) by address.
//
// UCX 1.13 ends the process when its listener is sent bytes that are not UCX's own, and has no way
// to ask who may connect. Its listening socket is ours to filter, though: what the filter drops,
// the first packet of a connection already, never was. An accepted connection keeps the filter of
// its time.
#include "common/net_ucx.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"

// A socket may have two filters, as while one replaces another, of net.core.optmem_max bytes together: 20 KiB
// before Linux 6.8. An instruction becomes 8 or 16 bytes there, a load from the packet 80: so what
// the packet says is loaded once.
#define INSTRUCTIONS_MAX 1200u
#define CHUNK            200u // instructions that jump to the end of their chunk: 255 at most

// Offsets in the packet: of the IP header, and of the TCP header.
#define IP(offset)  ((uint32_t)SKF_NET_OFF + (offset))
#define SOURCE_PORT 0u
#define FLAGS       13u
#define FLAG_SYN    0x02u
#define IP4_SOURCE  12u
#define IP6_SOURCE  8u
#define VERSION     0xf0u

// Cells of the filter's memory.
enum { CELL_HOST, CELL_PORT = CELL_HOST + 4 };

typedef struct program {
    struct sock_filter code[INSTRUCTIONS_MAX];
    unsigned count; // INSTRUCTIONS_MAX + 1: it has no room
} program_t;

static void add(program_t *program, uint16_t code, uint32_t k)
{
    if (program->count < INSTRUCTIONS_MAX) {
        program->code[program->count++] = (struct sock_filter){code, 0, 0, k};
    } else {
        program->count = INSTRUCTIONS_MAX + 1;
    }
}

// Goes on if the word in memory is `k`, else to the entry's end, which is filled in later.
static void add_check(program_t *program, uint32_t cell, uint32_t k)
{
    add(program, BPF_LD | BPF_MEM, cell);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, k);
}

// Out of the packet, into memory.
static void add_load(program_t *program, uint16_t load, uint32_t offset, uint32_t cell)
{
    add(program, BPF_LD | BPF_ABS | load, offset);
    add(program, BPF_ST, cell);
}

// Lets in what has come through the entry's checks.
static void end_entry(program_t *program, unsigned begin)
{
    add(program, BPF_RET | BPF_K, UINT32_MAX);
    for (unsigned i = begin; i < program->count && program->count <= INSTRUCTIONS_MAX; i++) {
        if (BPF_CLASS(program->code[i].code) == BPF_JMP) {
            program->code[i].jf = (uint8_t)(program->count - i - 1);
        }
    }
}

static uint32_t word_of(const struct in6_addr *host, unsigned i)
{
    uint32_t word;
    memcpy(&word, host->s6_addr + 4 * i, sizeof(word));
    return ntohl(word);
}

// What follows is for packets of IPv4, up to add_six.
static unsigned add_four(program_t *program)
{
    add(program, BPF_LD | BPF_ABS | BPF_B, IP(0));
    add(program, BPF_ALU | BPF_AND | BPF_K, VERSION);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, 0x40);
    program->code[program->count - 1].jt = 1; // over the next, which leads to IPv6
    add(program, BPF_JMP | BPF_JA, 0);
    add_load(program, BPF_W, IP(IP4_SOURCE), CELL_HOST + 3);
    return program->count - 3;
}

static void add_six(program_t *program, unsigned to_six)
{
    add(program, BPF_RET | BPF_K, 0);
    program->code[to_six].k = program->count - to_six - 1;
    for (unsigned i = 0; i < 4; i++) {
        add_load(program, BPF_W, IP(IP6_SOURCE + 4 * i), CELL_HOST + i);
    }
}

// Drops what no entry has let in.
static as_status_t attach(int fd, program_t *program)
{
    add(program, BPF_RET | BPF_K, 0);
    if (program->count > INSTRUCTIONS_MAX) {
        return AS_ERR_LIMIT;
    }
    const struct sock_fprog filter = {(unsigned short)program->count, program->code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0) {
        return AS_OK;
    }
    if (errno == ENOMEM) {
        return AS_ERR_LIMIT;
    }
    AS_ERROR("net", "cannot filter a port of UCX's: %s", strerror(errno));
    return AS_ERR_UNSUPPORTED;
}

static bool is_four(const struct in6_addr *host)
{
    return IN6_IS_ADDR_V4MAPPED(host);
}

// Of those of IPv4, or of IPv6.
static void add_admitted(program_t *program, const struct sockaddr_storage *admitted,
                         unsigned count, bool four)
{
    for (unsigned i = 0; i < count; i++) {
        struct in6_addr host;
        unsigned begin = program->count;
        ucx_sockaddr_host(&admitted[i], &host);
        if (is_four(&host) != four) {
            continue;
        }
        for (unsigned word = four ? 3 : 0; word < 4; word++) {
            add_check(program, CELL_HOST + word, word_of(&host, word));
        }
        add_check(program, CELL_PORT, ucx_sockaddr_port(&admitted[i]));
        end_entry(program, begin);
    }
}

as_status_t ucx_gate_set(int fd, const struct sockaddr_storage *admitted, unsigned count)
{
    program_t program = {.count = 0};
    add_load(&program, BPF_H, SOURCE_PORT, CELL_PORT);
    unsigned to_six = add_four(&program);
    add_admitted(&program, admitted, count, true);
    add_six(&program, to_six);
    add_admitted(&program, admitted, count, false);
    return attach(fd, &program);
}

// Lets in where one of the chunk's jumps leads to: the first of the two that are added.
static void end_chunk(program_t *program, unsigned begin)
{
    add(program, BPF_JMP | BPF_JA, 1);
    for (unsigned i = begin; i < program->count && program->count <= INSTRUCTIONS_MAX; i++) {
        if (program->code[i].code == (BPF_JMP | BPF_JEQ | BPF_K)) {
            program->code[i].jt = (uint8_t)(program->count - i - 1);
        }
    }
    add(program, BPF_RET | BPF_K, UINT32_MAX);
}

// An instruction each, as there may be many.
static void add_hosts4(program_t *program, const struct in6_addr *hosts, unsigned count)
{
    unsigned begin = program->count;
    for (unsigned i = 0; i < count; i++) {
        if (is_four(&hosts[i])) {
            add(program, BPF_JMP | BPF_JEQ | BPF_K, word_of(&hosts[i], 3));
        }
        if (program->count - begin >= CHUNK) {
            end_chunk(program, begin);
            begin = program->count;
        }
    }
    end_chunk(program, begin);
}

static void add_hosts6(program_t *program, const struct in6_addr *hosts, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned begin = program->count;
        for (unsigned word = 0; word < 4 && !is_four(&hosts[i]); word++) {
            add_check(program, CELL_HOST + word, word_of(&hosts[i], word));
        }
        if (program->count > begin) {
            end_entry(program, begin);
        }
    }
}

as_status_t ucx_gate_set_hosts(int fd, const struct in6_addr *hosts, unsigned count)
{
    program_t program = {.count = 0};
    add(&program, BPF_LD | BPF_ABS | BPF_B, FLAGS);
    add(&program, BPF_ALU | BPF_AND | BPF_K, FLAG_SYN);
    add(&program, BPF_JMP | BPF_JEQ | BPF_K, 0); // of a connection that is there
    end_entry(&program, 0);
    unsigned to_six = add_four(&program);
    add_hosts4(&program, hosts, count);
    add_six(&program, to_six);
    add_hosts6(&program, hosts, count);
    return attach(fd, &program);
}

void ucx_gate_open(int fd)
{
    int none = 0;
    setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none));
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

void ucx_sockaddr_host(const struct sockaddr_storage *address, struct in6_addr *host)
{
    if (address->ss_family == AF_INET6) {
        *host = ((const struct sockaddr_in6 *)address)->sin6_addr;
        return;
    }
    const struct in_addr *in4 = &((const struct sockaddr_in *)address)->sin_addr;
    memset(host, 0, sizeof(*host));
    memset(host->s6_addr + 10, 0xff, 2);
    memcpy(host->s6_addr + 12, in4, sizeof(*in4));
}
