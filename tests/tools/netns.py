# SPDX-License-Identifier: Apache-2.0
"""A network of hosts on this machine: network namespaces joined by the bridge (bridge.c).

A host is a namespace that a child process of ours holds open: it goes with that process, whatever happens to us. Programs
run on a host by `nsenter`; each sees the host's devices under /sys too, where UCX looks for them. Needs root and /dev/net/tun:
`missing()` says what is not there.
"""
import contextlib
import ctypes
import os
import select
import socket
import subprocess
import threading

BIN = os.environ.get("ASSAY_BIN", os.path.join(os.path.dirname(__file__), "..", "..", "build", "bin"))
HOLD = ["unshare", "--net", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys && echo held && exec cat"]
SECONDS = 20
CLONE_NEWNET = 0x40000000


def missing():
    """Why there can be no such network here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    assert os.path.exists(os.path.join(BIN, "bridge")), "build the bridge first: ./dev build"
    try:
        with Network(2):
            return None
    except (OSError, RuntimeError) as error:
        return f"no network of namespaces: {error}"


def read_line(child, what):
    line = b""
    while not line.endswith(b"\n"):
        ready = select.select([child.stdout], [], [], SECONDS)[0]
        byte = os.read(child.stdout.fileno(), 1) if ready else b""
        if not byte:
            child.kill()
            raise RuntimeError(f"{what}: {child.communicate()[1].decode(errors='replace').strip() or 'no answer'}")
        line += byte
    return line.decode().strip()


def set_netns(netns):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(netns.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Host:
    def __init__(self, address):
        self.address = address
        self.child = subprocess.Popen(HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        read_line(self.child, "unshare")
        # What `run_in` is put before: the command is the same process, so its pid is the program's.
        self.run_in = ["nsenter", f"--net=/proc/{self.child.pid}/ns/net", f"--mount=/proc/{self.child.pid}/ns/mnt"]

    @contextlib.contextmanager
    def entered(self):
        """This thread, and those that it starts meanwhile, are on this host's network."""
        with open("/proc/thread-self/ns/net") as own, open(f"/proc/{self.child.pid}/ns/net") as netns:
            set_netns(netns)
            try:
                yield
            finally:
                set_netns(own)

    def socket(self, kind=socket.SOCK_DGRAM):
        """A socket of this host. A thread goes there to make it; the others stay where they are."""
        made = []

        def make():
            with self.entered():
                made.append(socket.socket(socket.AF_INET, kind))
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        made[0].settimeout(SECONDS)
        return made[0]

    def close(self):
        self.child.stdin.close()
        self.child.wait(SECONDS)
        self.child.stdout.close()
        self.child.stderr.close()


class Network:
    """`count` hosts, 10.77.0.1 and on, each linked to each. Use as a context."""

    def __init__(self, count, seed=1, mtu=9000):
        self.count, self.options, self.hosts, self.bridge = count, ["--seed", str(seed), "--mtu", str(mtu)], [], None

    def __enter__(self):
        try:
            self.hosts = []
            for number in range(self.count):
                self.hosts.append(Host(f"10.77.0.{number + 1}"))
            ports = [f"/proc/{host.child.pid}/ns/net={host.address}" for host in self.hosts]
            self.bridge = subprocess.Popen([os.path.join(BIN, "bridge"), *self.options, *ports], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert read_line(self.bridge, "bridge") == "ready"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.bridge:
            self.bridge.stdin.close()
            self.bridge.wait(SECONDS)
            self.bridge.stdout.close()
            self.bridge.stderr.close()
        for host in self.hosts:
            host.close()

    def tell(self, *words):
        """One command of the bridge, such as "cut", 0, 1; returns the numbers of its answer."""
        line = " ".join(map(str, words))
        self.bridge.stdin.write(f"{line}\n".encode())
        self.bridge.stdin.flush()
        answer = read_line(self.bridge, "bridge").split()
        if answer[0] != "ok":
            raise ValueError(" ".join(answer))
        return [int(word) for word in answer[1:]]


class Cable:
    """Two hosts, 10.78.0.1 and 10.78.0.2, joined by a cable of so many bytes a second each way (the kernel's token bucket on a
    veth pair). Carries 10 Gbit/s at little processor time, but delays nothing: for a delay take a Network. Use as a context."""
    DEVICE = "assay0"
    MTU = 65000  # few packets, as a network card's offloads make them
    BURST_S = 0.0005  # of its rate, what the bucket holds: as coarse as the kernel's clock needs, and no more
    BURST_MIN = 1 << 17  # two packets

    def __init__(self, rate_bytes):
        self.rate_bytes, self.hosts = rate_bytes, []

    def __enter__(self):
        try:
            self.hosts = [Host("10.78.0.1")]
            self.hosts.append(Host("10.78.0.2"))
            other = str(self.hosts[1].child.pid)
            self.ip(0, "link", "add", self.DEVICE, "type", "veth", "peer", "name", self.DEVICE, "netns", other)
            for number, host in enumerate(self.hosts):
                self.ip(number, "address", "add", f"{host.address}/24", "dev", self.DEVICE)
                self.ip(number, "link", "set", self.DEVICE, "up", "mtu", str(self.MTU))
                self.ip(number, "link", "set", "lo", "up")
            self.shape(self.rate_bytes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.close()

    def run(self, number, *command):
        done = subprocess.run([*self.hosts[number].run_in, *command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def ip(self, number, *words):
        return self.run(number, "ip", *words)

    def shape(self, rate_bytes):
        """Another rate, from now on."""
        self.rate_bytes = rate_bytes
        burst = max(int(rate_bytes * self.BURST_S), self.BURST_MIN)
        for number in range(len(self.hosts)):
            self.run(number, "tc", "qdisc", "replace", "dev", self.DEVICE, "root", "tbf", "rate", f"{int(rate_bytes)}bps",
                     "burst", f"{burst}b", "latency", "50ms")

    def sent_bytes(self):
        """That have left each host by the cable so far, headers and all."""
        return [int(self.run(number, "cat", f"/sys/class/net/{self.DEVICE}/statistics/tx_bytes")) for number in range(2)]


def missing_cable():
    """Why there can be no cable here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Cable(1e9):
            return None
    except (OSError, RuntimeError) as error:
        return f"no cable between namespaces: {error}"
