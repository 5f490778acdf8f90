// SPDX-License-Identifier: Apache-2.0
// A small network in user space, for tests: network namespaces joined by TUN devices, with links that
// delay, lose, reorder, limit and cut what goes over them, the same way for the same seed.
//
//     bridge [--seed N] [--mtu BYTES] NETNS=ADDRESS...     such as /proc/123/ns/net=10.77.0.1
//
// Each port is a device `assay0` of 255.255.255.0 in its namespace, whose loopback is brought up too.
// "ready" on stdout, then one answer, "ok ..." or "error ...", for each line on stdin; ends with it.
// A and B are ports, counted from 0; both directions between them are meant.
//
//     cut A B | heal A B        nothing goes over it; as before
//     delay A B MICROSECONDS    one way
//     rate A B BYTES_A_SECOND   0: no limit; QUEUE_BYTES may wait for it, more is lost
//     loss A B PPM | reorder A B PPM
//     stat A B                  ok SENT LOST, both directions
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORTS_MAX    16u
#define PACKET_BYTES 65536u
#define HELD_MAX     16384u      // packets under way
#define HELD_BYTES   (96u << 20) // and their bytes
#define QUEUE_BYTES  (2u << 20)  // that wait for the rate of a link
#define LATE_NS      2000000u    // a packet that is reordered is as much later
#define TURN_PACKETS 64u         // read from one port before others are looked at
#define PPM          1000000u
#define DEVICE       "assay0"

typedef struct link {
    uint64_t delay_ns, rate, free_ns; // free_ns: when what goes before has gone
    uint32_t loss_ppm, reorder_ppm;
    bool cut;
    uint64_t random;
    uint64_t sent, lost;
} link_t;

typedef struct packet {
    uint64_t due_ns, order;
    uint32_t to, bytes;
    uint8_t *data;
} packet_t;

static struct {
    uint32_t ports;
    int fd[PORTS_MAX];
    uint32_t address[PORTS_MAX]; // network order
    link_t links[PORTS_MAX][PORTS_MAX];
    packet_t held[HELD_MAX]; // a heap by (due, order)
    uint32_t held_count;
    size_t held_bytes;
    uint64_t order;
    char line[256];
    size_t line_bytes;
} bridge;

static void die(const char *what)
{
    fprintf(stderr, "bridge: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool chance(link_t *link, uint32_t ppm)
{
    uint64_t x = link->random += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) % PPM < ppm;
}

// ---- ports

static void configure(int sock, const char *name, const char *address, int mtu)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    struct sockaddr_in *in = (struct sockaddr_in *)(void *)&request.ifr_addr;
    if (address) {
        in->sin_family = AF_INET;
        if (inet_pton(AF_INET, address, &in->sin_addr) != 1) {
            errno = EINVAL;
            die(address);
        }
        if (ioctl(sock, SIOCSIFADDR, &request) != 0 ||
            inet_pton(AF_INET, "255.255.255.0", &in->sin_addr) != 1 ||
            ioctl(sock, SIOCSIFNETMASK, &request) != 0) {
            die("setting the address of " DEVICE);
        }
        request.ifr_mtu = mtu;
        if (ioctl(sock, SIOCSIFMTU, &request) != 0) {
            die("setting --mtu");
        }
        request.ifr_qlen = 8192; // what a whole window of TCP puts there at once
        if (ioctl(sock, SIOCSIFTXQLEN, &request) != 0) {
            die("setting the queue of " DEVICE);
        }
    }
    if (ioctl(sock, SIOCGIFFLAGS, &request) != 0) {
        die(name);
    }
    request.ifr_flags |= IFF_UP;
    if (ioctl(sock, SIOCSIFFLAGS, &request) != 0) {
        die("bringing up a device");
    }
}

// The device is made inside of its namespace; its descriptor works from ours.
static int port_open(const char *netns, const char *address, int mtu)
{
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int other = open(netns, O_RDONLY | O_CLOEXEC);
    if (own < 0 || other < 0 || setns(other, CLONE_NEWNET) != 0) {
        die(netns);
    }
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(request.ifr_name, sizeof(request.ifr_name), DEVICE);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
        die("/dev/net/tun");
    }
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0) {
        die("socket");
    }
    configure(sock, DEVICE, address, mtu);
    configure(sock, "lo", NULL, 0);
    close(sock);
    if (setns(own, CLONE_NEWNET) != 0) {
        die("going back to our own namespace");
    }
    close(own);
    close(other);
    return fd;
}

static void port_add(char *text, int mtu, uint64_t seed)
{
    char *address = strchr(text, '=');
    if (!address || bridge.ports == PORTS_MAX) {
        fprintf(stderr, "bridge: %s: give at most %u ports as NETNS=ADDRESS\n", text, PORTS_MAX);
        exit(2);
    }
    *address++ = '\0';
    uint32_t port = bridge.ports++;
    bridge.fd[port] = port_open(text, address, mtu);
    inet_pton(AF_INET, address, &bridge.address[port]);
    for (uint32_t other = 0; other < PORTS_MAX; other++) {
        bridge.links[port][other].random = seed ^ ((uint64_t)port * PORTS_MAX + other) << 32;
    }
}

// ---- packets

static bool before(const packet_t *a, const packet_t *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void hold(const packet_t *packet)
{
    uint32_t at = bridge.held_count++;
    bridge.held_bytes += packet->bytes;
    while (at > 0 && before(packet, &bridge.held[(at - 1) / 2])) {
        bridge.held[at] = bridge.held[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    bridge.held[at] = *packet;
}

static packet_t take_first(void)
{
    packet_t first = bridge.held[0], last = bridge.held[--bridge.held_count];
    bridge.held_bytes -= first.bytes;
    uint32_t at = 0, child;
    while ((child = 2 * at + 1) < bridge.held_count) {
        child +=
            child + 1 < bridge.held_count && before(&bridge.held[child + 1], &bridge.held[child]);
        if (!before(&bridge.held[child], &last)) {
            break;
        }
        bridge.held[at] = bridge.held[child];
        at = child;
    }
    bridge.held[at] = last;
    return first;
}

static void deliver(uint32_t to, const uint8_t *data, size_t bytes)
{
    // A device that takes nothing loses the packet, as any wire may.
    ssize_t written = write(bridge.fd[to], data, bytes);
    (void)written;
}

// When a packet that came now arrives, or 0: it is lost.
static uint64_t due_of(link_t *link, size_t bytes, uint64_t now)
{
    if (link->cut || chance(link, link->loss_ppm)) {
        return 0;
    }
    uint64_t begin = link->free_ns > now ? link->free_ns : now;
    uint64_t wait_bytes = (uint64_t)((double)(begin - now) * (double)link->rate / 1e9);
    if (link->rate > 0 && wait_bytes > QUEUE_BYTES) {
        return 0;
    }
    link->free_ns =
        begin + (link->rate > 0 ? (uint64_t)((double)bytes / (double)link->rate * 1e9) : 0);
    uint64_t late = link->reorder_ppm > 0 && chance(link, link->reorder_ppm) ? LATE_NS : 0;
    return link->free_ns + link->delay_ns + late;
}

static void route(uint32_t from, const uint8_t *data, size_t bytes, uint64_t now)
{
    uint32_t to = 0, address;
    if (bytes < 20 || data[0] >> 4 != 4) {
        return; // IPv6 looks for its neighbours
    }
    memcpy(&address, data + 16, sizeof(address));
    while (to < bridge.ports && bridge.address[to] != address) {
        to++;
    }
    if (to == bridge.ports) {
        return;
    }
    link_t *link = &bridge.links[from][to];
    uint64_t due = due_of(link, bytes, now);
    bool full = bridge.held_count == HELD_MAX || bridge.held_bytes + bytes > HELD_BYTES;
    if (due == 0 || (due > now && full)) {
        link->lost++;
        return;
    }
    link->sent++;
    if (due <= now && bridge.held_count == 0) {
        deliver(to, data, bytes);
        return;
    }
    packet_t packet = {due, bridge.order++, to, (uint32_t)bytes, malloc(bytes)};
    if (!packet.data) {
        die("memory");
    }
    memcpy(packet.data, data, bytes);
    hold(&packet);
}

static void deliver_due(void)
{
    while (bridge.held_count > 0 && bridge.held[0].due_ns <= now_ns()) {
        packet_t packet = take_first();
        deliver(packet.to, packet.data, packet.bytes);
        free(packet.data);
    }
}

static void receive(uint32_t port)
{
    static uint8_t data[PACKET_BYTES];
    for (uint32_t i = 0; i < TURN_PACKETS; i++) {
        ssize_t bytes = read(bridge.fd[port], data, sizeof(data));
        if (bytes < 0 && errno != EAGAIN && errno != EINTR) {
            die("reading a device");
        }
        if (bytes <= 0) {
            return;
        }
        route(port, data, (size_t)bytes, now_ns());
    }
}

// ---- commands

static bool set_link(link_t *link, const char *what, uint64_t value)
{
    if (strcmp(what, "cut") == 0 || strcmp(what, "heal") == 0) {
        link->cut = what[0] == 'c';
    } else if (strcmp(what, "delay") == 0 && value <= 60000000) {
        link->delay_ns = value * 1000;
    } else if (strcmp(what, "rate") == 0) {
        link->rate = value;
        link->free_ns = 0;
    } else if (strcmp(what, "loss") == 0 && value <= PPM) {
        link->loss_ppm = (uint32_t)value;
    } else if (strcmp(what, "reorder") == 0 && value <= PPM) {
        link->reorder_ppm = (uint32_t)value;
    } else {
        return false;
    }
    return true;
}

static void obey(const char *line)
{
    char what[16];
    unsigned a, b;
    unsigned long long value = 0;
    int fields = sscanf(line, "%15s %u %u %llu", what, &a, &b, &value);
    bool bare = fields == 3 && (strcmp(what, "cut") == 0 || strcmp(what, "heal") == 0);
    if (fields < 3 || a >= bridge.ports || b >= bridge.ports || a == b) {
        printf("error: %s: COMMAND and two of the %u ports are needed\n", line, bridge.ports);
    } else if (fields == 3 && strcmp(what, "stat") == 0) {
        const link_t *there = &bridge.links[a][b], *back = &bridge.links[b][a];
        printf("ok %llu %llu\n", (unsigned long long)(there->sent + back->sent),
               (unsigned long long)(there->lost + back->lost));
    } else if ((bare || fields == 4) && set_link(&bridge.links[a][b], what, value) &&
               set_link(&bridge.links[b][a], what, value)) {
        printf("ok\n");
    } else {
        printf("error: %s: no such command, or a number that cannot be\n", line);
    }
    fflush(stdout);
}

// False: stdin has ended.
static bool take_commands(void)
{
    char *room = bridge.line + bridge.line_bytes;
    ssize_t got = read(0, room, sizeof(bridge.line) - 1 - bridge.line_bytes);
    if (got <= 0) {
        return got < 0 && errno == EINTR;
    }
    bridge.line_bytes += (size_t)got;
    bridge.line[bridge.line_bytes] = '\0';
    for (char *end; (end = strchr(bridge.line, '\n'));) {
        *end = '\0';
        obey(bridge.line);
        bridge.line_bytes -= (size_t)(end + 1 - bridge.line);
        memmove(bridge.line, end + 1, bridge.line_bytes + 1);
    }
    return bridge.line_bytes < sizeof(bridge.line) - 1;
}

static void run(void)
{
    struct pollfd ready[PORTS_MAX + 1] = {{0, POLLIN, 0}};
    for (uint32_t i = 0; i < bridge.ports; i++) {
        ready[i + 1] = (struct pollfd){bridge.fd[i], POLLIN, 0};
    }
    for (;;) {
        uint64_t now = now_ns();
        uint64_t due = bridge.held_count > 0 ? bridge.held[0].due_ns : UINT64_MAX;
        uint64_t wait = due <= now ? 0 : due - now;
        const struct timespec time = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        if (ppoll(ready, bridge.ports + 1, due == UINT64_MAX ? NULL : &time, NULL) < 0 &&
            errno != EINTR) {
            die("poll");
        }
        deliver_due();
        for (uint32_t i = 0; i < bridge.ports; i++) {
            if (ready[i + 1].revents) {
                receive(i);
            }
        }
        if (ready[0].revents && !take_commands()) {
            return;
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int mtu = 9000, first = 1;
    while (first + 1 < argc && strncmp(argv[first], "--", 2) == 0) {
        uint64_t value = strtoull(argv[first + 1], NULL, 10);
        if (strcmp(argv[first], "--seed") == 0) {
            seed = value;
        } else if (strcmp(argv[first], "--mtu") == 0) {
            mtu = (int)value;
        } else {
            break;
        }
        first += 2;
    }
    if (argc - first < 2 || argv[first][0] == '-') {
        fprintf(stderr, "usage: bridge [--seed N] [--mtu BYTES] NETNS=ADDRESS NETNS=ADDRESS...\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = first; i < argc; i++) {
        port_add(argv[i], mtu, seed);
    }
    printf("ready\n");
    fflush(stdout);
    run();
    return 0;
}
