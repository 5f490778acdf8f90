# SPDX-License-Identifier: Apache-2.0
"""The processes that `./dev bench engine` measures: a scheduler and a store on one host, a worker on another, a cable between them.

The prompts are computed once, by a worker beside the store, which keeps their blocks on disk: the next run finds them
(ASSAY_CACHE/bench/engine; remove it to have them computed again). Every worker that is measured fetches the same stored prefixes over
the cable, and is asked from its own host, so that only K and V, queries and partials cross the cable.
"""
import http.client
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import table
from peers import BIN, Server, wait_until

sys.path.insert(0, str(table.ROOT / "tests" / "tools"))
import netns  # noqa: E402

THREADS = 2
BLOCK_TOKENS = 64
CONTEXT = 8192
SALT = "bench-engine"
DISK_BYTES = 8 << 30
FOLDER = "{folder}"  # in an option: the worker's own
TCP = {"UCX_TLS": "tcp"}  # or the hosts would find each other in the memory of this machine
PUBLISH_S = 600
PATIENCE_S = 1800  # of one request: the slowest baseline takes 12 s of the link for a token of each session


def options_of_worker():
    """Names of the worker's options, without dashes: what it can be asked to do."""
    text = subprocess.run([BIN / "assay-gpuworker", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  --([a-z-]+)", text, re.M))


def connect(host, address):
    """A connection from a host of the cable; address as HOST:PORT."""
    name, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(name, int(port))
    connection.sock = host.socket(netns.socket.SOCK_STREAM)
    connection.sock.settimeout(PATIENCE_S)
    connection.sock.connect((name, int(port)))
    return connection


def counters(host, address):
    """The process's metrics without labels."""
    connection = connect(host, address)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}


def cpu_s(pid):
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_busy_s():
    """Processor seconds of everybody on this machine so far."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


class Session(threading.Thread):
    """One streamed request: when each token came, its id and the hash of its logits."""

    def __init__(self, host, address, body, news):
        super().__init__(daemon=True)
        self.host, self.address, self.body, self.news = host, address, body, news
        self.runs = []  # tokens of each event: of each verification, the first apart
        self.times, self.bits, self.usage, self.error, self.ended = [], [], None, None, False
        self.started, self.cut, self.connection = time.monotonic(), False, None

    def run(self):
        try:
            self.connection = connect(self.host, self.address)
            self.connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            self.read(self.connection.getresponse())
        except Exception as error:
            self.error = None if self.cut else repr(error)
        with self.news:
            self.ended = True
            self.news.notify_all()

    def read(self, reply):
        if reply.status != 200:
            raise RuntimeError(reply.read().decode(errors="replace"))
        for line in reply:
            if line.strip() == b"data: [DONE]":
                return
            if not line.startswith(b"data: "):
                continue
            event, now = json.loads(line[6:]), time.monotonic()
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                with self.news:
                    self.runs += [len(choice["assay"]["tokens"])] if choice["assay"]["tokens"] else []
                    self.times += [now] * len(choice["assay"]["tokens"])
                    self.bits += zip(choice["assay"]["tokens"], choice["assay"]["logits_hashes"])
                    self.news.notify_all()
        raise RuntimeError("the answer ended without [DONE]")

    def stop(self):
        """Leaves: the worker cancels the request."""
        self.cut = True
        if self.connection and self.connection.sock:
            self.connection.sock.shutdown(netns.socket.SHUT_RDWR)


class Worker(Server):
    """A worker on one of the hosts. Use as a context."""

    def __init__(self, cluster, number, options, env=None):
        super().__init__(cluster.cable.hosts[number].run_in)
        self.cluster, self.host, self.options, self.env = cluster, cluster.cable.hosts[number], list(options), env

    def start(self):
        env = {**(self.env or {}), "ASSAY_MODEL": self.cluster.model}
        self.child = self.launch(BIN / "assay-gpuworker", f"--scheduler={self.cluster.scheduler}", "--listen=127.0.0.1:0",
                                 f"--threads={THREADS}", f"--context={CONTEXT}", "--recompute-rate=-1", f"--request-deadline={PATIENCE_S}s",
                                 "--fetch-deadline=300s", "--log-level=warn",
                                 *(option.replace(FOLDER, self.folder.name) for option in self.options), env=env)
        self.address = json.loads(self.line(self.child))["http"]

    def counters(self):
        return counters(self.host, self.address)

    def end_process(self):
        """In order, so that what it writes is complete."""
        self.child.terminate()
        self.child.wait(60)

    def session(self, prompt, tokens, assay, news=None, **more):
        body = {"prompt": prompt["tokens"], "max_tokens": tokens, "temperature": 0, "cache_salt": prompt.get("salt", SALT), "stream": True,
                "stream_options": {"include_usage": True}, "assay": {"logits_hash": True, "ignore_end": True, **assay}, **more}
        return Session(self.host, self.address, body, news or threading.Condition())

    def ask(self, prompt, tokens, assay):
        """One request, to its end."""
        session = self.session(prompt, tokens, assay)
        session.run()
        if session.error:
            sys.exit(f"bench engine: {session.error}; the worker's log: {self.log(0)}")
        return session


class Cluster(Server):
    """Scheduler and store on host 0 of a cable. Use as a context."""

    def __init__(self, model, ram_bytes, folder=None):
        super().__init__()
        self.model, self.ram_bytes = model, ram_bytes
        self.disk = Path(folder or os.environ["ASSAY_CACHE"]) / "bench" / "engine"
        self.cable = netns.Cable(125e6)

    def start(self):
        self.disk.mkdir(parents=True, exist_ok=True)
        self.cable.__enter__()
        host = self.cable.hosts[0]
        self.run_in = host.run_in
        scheduler = self.launch(BIN / "assay-scheduler", f"--listen={host.address}:0", f"--http={host.address}:0")
        self.scheduler = json.loads(self.line(scheduler))["rpc"]
        self.store = self.launch(BIN / "assay-kvstore", f"--scheduler={self.scheduler}", f"--ram={self.ram_bytes}", "--drain-timeout=0s",
                                 f"--disk={self.disk}", f"--disk-size={DISK_BYTES}", "--scrub-rate=0",
                                 *(f"--{which}-address={host.address}:0" for which in ("data", "rpc", "http")))
        self.store_http = json.loads(self.line(self.store))["http"]
        wait_until(self.joined, "the store joins the scheduler")

    def end(self):
        super().end()
        self.cable.__exit__()

    def joined(self):
        done = subprocess.run([*self.run_in, BIN / "assay", "stat", "--json", f"--scheduler={self.scheduler}"], capture_output=True)
        nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        return any(node["state"] == "alive" and node["store"] for node in nodes)

    def worker(self, options):
        return Worker(self, 1, options, TCP)

    def fill(self, prompts):
        """Has every block of the prompts stored and in memory."""
        begin, computed = time.monotonic(), 0
        with Worker(self, 0, ["--sessions=1"]) as worker:
            for prompt in prompts:
                before = time.monotonic()
                missed = len(prompt["tokens"]) - self.asked(worker, prompt)
                if missed > BLOCK_TOKENS:
                    table.say(f"prompt '{prompt['kind']}': {missed} tokens computed in {time.monotonic() - before:.0f} s")
                computed += missed
                deadline = time.monotonic() + PUBLISH_S
                while self.asked(worker, prompt) < cached_tokens(prompt):
                    if time.monotonic() > deadline:
                        sys.exit(f"bench engine: the blocks of '{prompt['kind']}' did not reach the store within {PUBLISH_S} s")
        table.say(f"{len(prompts)} prompts of {len(prompts[0]['tokens'])} tokens are stored: {computed} tokens computed, "
                  f"{time.monotonic() - begin:.0f} s")

    def fill_sealed(self, prompt, options):
        """Has a prompt stored with its sealed form: by the worker that computes it. Its salt is its own."""
        with Worker(self, 0, ["--sessions=1", *options]) as worker:
            worker.ask(prompt, 1, {"compressor": "kivi4"})
            before, seen = -1, worker.counters()
            while seen["assay_worker_published_bytes_total"] != before:
                before = seen["assay_worker_published_bytes_total"]
                select.select([], [], [], 2)
                seen = worker.counters()
        table.say(f"sealed blocks of '{prompt['kind']}': {seen['assay_worker_sealed_published_bytes_total'] / 1e6:.1f} MB stored now")

    @staticmethod
    def asked(worker, prompt):
        return worker.ask(prompt, 1, {"compressor": "none"}).usage["prompt_tokens_details"]["cached_tokens"]


def cached_tokens(prompt, own=1):
    """That come from the store: whole blocks before the last `own` tokens, which the worker computes itself."""
    return (len(prompt["tokens"]) - own) // BLOCK_TOKENS * BLOCK_TOKENS
