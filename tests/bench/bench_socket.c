// SPDX-License-Identifier: Apache-2.0
// What any transfer over TCP on one host is limited by: one process sends pieces of a set of memory, another
// receives each into a buffer that stays in its cache. Prints a line of JSON: GB/s, and processor seconds
// of either side for each GB.
//
//     bench_socket PIECE_BYTES SET_MIB SECONDS
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/bench/clock.h"

static void die(const char *what)
{
    fprintf(stderr, "bench_socket: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double cpu_s(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The receiver's end: until the sender closes.
static void receive_all(int fd, size_t piece_bytes)
{
    uint8_t *piece = as_mem_aligned(4096, piece_bytes);
    ssize_t got = piece ? 1 : 0;
    while (got > 0) {
        got = recv(fd, piece, piece_bytes, 0);
    }
    _exit(got < 0 || !piece);
}

static uint64_t send_for(int fd, const uint8_t *set, size_t set_bytes, size_t piece_bytes,
                         double seconds)
{
    uint64_t sent = 0;
    for (double began = now_s(); now_s() - began < seconds;) {
        for (size_t done = 0; done < piece_bytes;) {
            ssize_t some = send(fd, set + sent % set_bytes, piece_bytes - done, 0);
            if (some < 0) {
                die("send");
            }
            done += (size_t)some;
            sent += (size_t)some;
        }
    }
    return sent;
}

// Two ends of a connection through the loopback interface.
static void connect_ends(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || ends[0] < 0 || bind(listener, (void *)&address, bytes) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (void *)&address, &bytes) != 0 ||
        connect(ends[0], (void *)&address, bytes) != 0) {
        die("connect");
    }
    ends[1] = accept(listener, NULL, NULL);
    if (ends[1] < 0 || setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) {
        die("accept");
    }
    close(listener);
}

int main(int argc, char **argv)
{
    size_t piece = argc == 4 ? strtoul(argv[1], NULL, 10) : 0;
    size_t set = argc == 4 ? strtoul(argv[2], NULL, 10) << 20 : 0;
    double seconds = argc == 4 ? strtod(argv[3], NULL) : 0;
    if (piece == 0 || set < piece || set % piece != 0 || seconds <= 0) {
        fprintf(stderr, "usage: bench_socket PIECE_BYTES SET_MIB SECONDS, the set a multiple of "
                        "the piece, and longer than no time\n");
        return 2;
    }
    uint8_t *memory = as_mem_aligned(4096, set);
    if (!memory) {
        die("no memory");
    }
    memset(memory, 1, set);
    int ends[2], status;
    connect_ends(ends);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        receive_all(ends[1], piece);
    }
    close(ends[1]);
    double cpu = cpu_s(RUSAGE_SELF), began = now_s();
    uint64_t bytes = send_for(ends[0], memory, set, piece, seconds);
    double own = cpu_s(RUSAGE_SELF) - cpu;
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        die("receiver");
    }
    double gb = (double)bytes * 1e-9;
    printf("{\"bench\":\"socket\",\"gb_per_s\":%.3f,\"send_cpu_s_per_gb\":%.4f,"
           "\"receive_cpu_s_per_gb\":%.4f}\n",
           gb / (now_s() - began), own / gb, cpu_s(RUSAGE_CHILDREN) / gb);
    as_mem_free(memory);
    return 0;
}
