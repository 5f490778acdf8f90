# SPDX-License-Identifier: Apache-2.0
"""The processes that the table of stores measures: ours and its peers, each started, waited for and ended here.

Every server is a child, listens on loopback on a port that was free, keeps everything in memory and is given its best
settings for one client. Use as contexts.
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import table

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ["ASSAY_BIN"])
START_SECONDS = 60  # on a machine that does other things too
END_SECONDS = 20
MIB = 1 << 20
LINK_BYTES_PER_S = 250000000  # 2 Gbit/s of a link between two namespaces: what two cores can carry beside both ends


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, what):
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"bench: not in time: {what}")
        select.select([], [], [], 0.02)


class Server:
    """A child process with a folder of its own. `run_in` is put before the command, as `nsenter ...`."""

    def __init__(self, run_in=()):
        self.run_in, self.children = list(run_in), []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="assay-bench-")
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def launch(self, *command, env=None):
        log = open(Path(self.folder.name) / f"log-{len(self.children)}", "wb")
        child = subprocess.Popen([*self.run_in, *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                 env={**os.environ, **(env or {})}, cwd=self.folder.name)
        log.close()
        self.children.append(child)
        return child

    def end(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait(END_SECONDS)
            child.stdout.close()
        self.folder.cleanup()

    def log(self, number):
        return (Path(self.folder.name) / f"log-{number}").read_text(errors="replace")[-2000:]

    def line(self, child):
        """The next line of a child's output."""
        deadline, line = time.monotonic() + START_SECONDS, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([child.stdout], [], [], left)[0]
            byte = os.read(child.stdout.fileno(), 1) if ready else b""
            if not byte:
                sys.exit(f"bench: {child.args[0]} did not start: {self.log(self.children.index(child))}")
            line += byte
        return line.decode(errors="replace")


# Of a pool as small as it is here, the usual 5 % are less than what a bench puts at a time.
ROOM = ["--evict-high=90", "--evict-low=85"]


class Assay(Server):
    """A scheduler and stores that have joined it. `pid` and `name` (of --store) are those of the first."""

    def __init__(self, ram_mib=192, options=(), host="127.0.0.1", run_in=(), client_in=(), scheduler_options=()):
        super().__init__(run_in)
        self.ram_mib, self.options, self.host, self.client_in = ram_mib, list(options), host, list(client_in)
        self.scheduler_options = list(scheduler_options)

    def start(self):
        scheduler = self.launch(BIN / "assay-scheduler", f"--listen={self.host}:0", f"--http={self.host}:0", *self.scheduler_options)
        self.scheduler = json.loads(self.line(scheduler))["rpc"]
        store, self.ready = self.launch_store(self.ram_mib, *self.options)
        self.pid = store.pid
        wait_until(lambda: self.node() is not None, "the store joins the scheduler")
        self.name = f"{self.node()['node_id']}@{self.ready['data']}"

    def launch_store(self, ram_mib, *options):
        """A store, and what it says once it is ready."""
        store = self.launch(BIN / "assay-kvstore", f"--scheduler={self.scheduler}", f"--ram={ram_mib}MiB", "--drain-timeout=0s", *ROOM,
                            *(f"--{which}-address={self.host}:0" for which in ("data", "rpc", "http")), *options)
        return store, json.loads(self.line(store))

    def node(self):
        """What the scheduler and the store tell of the store, as `assay stat --json` shows it."""
        done = subprocess.run([*self.run_in, BIN / "assay", "stat", "--json", f"--scheduler={self.scheduler}"], capture_output=True)
        nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        return next((node for node in nodes if node["state"] == "alive" and node["node_id"] == self.ready["node_id"] and node["store"]), None)

    def load(self, op, tls="tcp", **options):
        """One run of bench_store; tls names the transports (None: all, as a client has them)."""
        env = dict(os.environ, **({"UCX_TLS": tls} if tls else {}))
        command = [*self.client_in, BIN / "bench_store", "--store", self.name, "--op", op, "--pid", self.pid]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", value]
        result = table.one_line([str(part) for part in command], env)
        if result["errors"] or result["misses"] > result["reads"] / 50:
            table.say(f"{op} {options}: {result['errors']} errors, {result['misses']} misses of {result['reads']} reads")
        return result


class Redis(Server):
    kind = "redis"

    def start(self):
        self.port, self.socket = free_port(), Path(self.folder.name) / "socket"
        child = self.launch("redis-server", "--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.socket, "--save", "",
                            "--appendonly", "no", "--daemonize", "no")
        self.pid = child.pid
        while "Ready to accept connections" not in self.line(child):
            pass

    def address(self, tls):
        return f"127.0.0.1:{self.port}" if tls == "tcp" else self.socket


class Memcached(Server):
    """Two of them, since one listens either on a port or on a socket."""
    kind = "memcached"

    def start(self):
        self.port, self.socket = free_port(), Path(self.folder.name) / "socket"
        own = ["memcached", "-u", "root", "-m", "160", "-I", "16m", "-t", "1"]
        self.pids = {"tcp": self.launch(*own, "-l", "127.0.0.1", "-p", self.port).pid,
                     None: self.launch(*own, "-s", self.socket).pid}
        wait_until(lambda: all(self.answers(tls) for tls in self.pids), "memcached listens")

    def answers(self, tls):
        family, where = (socket.AF_INET, ("127.0.0.1", self.port)) if tls else (socket.AF_UNIX, str(self.socket))
        with socket.socket(family) as probe:
            return probe.connect_ex(where) == 0

    def address(self, tls):
        return f"127.0.0.1:{self.port}" if tls == "tcp" else self.socket


def peer_load(server, op, tls, size, depth, set_mib, seconds):
    """One run of bench_peer; tls None is the Unix socket."""
    pid = server.pids[tls] if server.kind == "memcached" else server.pid
    result = table.one_line([str(part) for part in (BIN / "bench_peer", server.kind, server.address(tls), op, size, set_mib, depth,
                                                    seconds, pid)])
    if result["misses"]:
        table.say(f"{server.kind} {op} of {size}: {result['misses']} misses")
    return result


MOONCAKE = Path(os.environ.get("ASSAY_CACHE", "")) / "mooncake"  # a python environment that has it


class Mooncake(Server):
    """Its master, and a process that gives it memory: the store side."""

    def start(self):
        self.port = free_port()
        (program,) = MOONCAKE.glob("lib/python3*/site-packages/mooncake/mooncake_master")
        quiet = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "1"}
        self.launch(program, "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
                    f"--metrics_port={free_port()}", "--default_kv_lease_ttl=1s", env=quiet)
        wait_until(lambda: port_answers(self.port), "mooncake_master listens")
        segment = self.launch(MOONCAKE / "bin" / "python", HERE / "mooncake_load.py", "segment", f"127.0.0.1:{self.port}", 192 * MIB,
                              env=quiet)
        self.pid = segment.pid
        while self.line(segment) != "ready\n":
            pass

    def load(self, size, batch, set_mib, seconds):
        """What reads and writes have moved: two results."""
        done = subprocess.run([str(part) for part in (MOONCAKE / "bin" / "python", HERE / "mooncake_load.py", "load",
                                                      f"127.0.0.1:{self.port}", size, set_mib, batch, seconds, self.pid)],
                              capture_output=True, text=True, cwd=self.folder.name,
                              env={**os.environ, "GLOG_logtostderr": "1", "GLOG_minloglevel": "2"})
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 2:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no answer"])[-1])
        return {one["op"]: one for one in lines}


class Iperf(Server):
    def __init__(self, host="127.0.0.1", run_in=(), client_in=()):
        super().__init__(run_in)
        self.host, self.client_in = host, list(client_in)

    def start(self):
        self.port = free_port()
        child = self.launch("iperf3", "-s", "-B", self.host, "-p", self.port, "--forceflush")
        while "Server listening" not in self.line(child):
            pass

    def gb_per_s(self, seconds, omit=0):
        """From the server to the client, as blocks are read."""
        done = subprocess.run([*self.client_in, "iperf3", "-c", self.host, "-p", str(self.port), "-t", str(seconds), "-O", str(omit),
                               "-R", "-J"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"bench store: iperf3: {done.stdout[-500:]} {done.stderr[-500:]}")
        return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9
