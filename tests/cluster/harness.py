# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests: a cluster on loopback, requests to it, and faults.

Every process is a child of the test, found by its pid and ended by it. Ports are picked by the processes (port 0), which
say in one line of JSON on stdout where they listen. Every wait has a deadline.
"""
import http.client
import json
import os
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request

BIN = os.environ.get("ASSAY_BIN", os.path.join(os.path.dirname(__file__), "..", "..", "build", "bin"))
MODEL = os.environ.get("ASSAY_MODEL", "")
START_SECONDS = 120  # a sanitized worker on a busy machine
END_SECONDS = 30
REQUEST_SECONDS = 180
DAMAGE = re.compile(r"Sanitizer|runtime error:|assertion failed|assert failed|SUMMARY:", re.I)


class Process:
    """One daemon. `address` holds what its ready line says: rpc, data, http. run_in: a command that runs it on another host."""

    def __init__(self, program, arguments, log, environment=None, run_in=()):
        self.program, self.log_path = program, log
        self.expected_end = [0]
        self.log = open(log, "wb")
        environment = {**os.environ, **(environment or {})}
        environment.pop("ASSAY_MODEL", None)  # would be --model
        self.child = subprocess.Popen([*run_in, os.path.join(BIN, program), *arguments], stdout=subprocess.PIPE,
                                      stderr=self.log, env=environment)
        self.pid = self.child.pid

    def wait_ready(self):
        deadline, line = time.monotonic() + START_SECONDS, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            assert left > 0, f"{self.program} was not ready in time: {self.log_text()}"
            if select.select([self.child.stdout], [], [], min(left, 1))[0]:
                byte = os.read(self.child.stdout.fileno(), 1)
                assert byte, f"{self.program} ended before it was ready: {self.log_text()}"
                line += byte
        self.address = json.loads(line)
        return self

    def signal(self, number):
        assert self.child.returncode is None
        os.kill(self.pid, number)

    def kill(self):
        self.expected_end = [-signal.SIGKILL]
        self.signal(signal.SIGKILL)
        self.child.wait(END_SECONDS)

    def end(self):
        """Asks it to end, and insists. Returns the exit code."""
        if self.child.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait(END_SECONDS)
        self.child.stdout.close()
        self.log.close()
        return self.child.returncode

    def log_text(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def check(self):
        assert self.child.returncode in self.expected_end, (self.program, self.child.returncode, self.log_text()[-2000:])
        assert not DAMAGE.search(self.log_text()), self.log_text()[-4000:]


class Cluster:
    """A scheduler, stores and workers. Use as a context: all are ended and checked at its end."""

    def __init__(self, folder, stores=1, workers=1, scheduler=True, worker_options=(), store_options=(),
                 scheduler_options=(), cli_options=(), environment=None):
        self.folder, self.counts, self.environment = str(folder), {}, environment
        self.want = (scheduler, stores, workers)
        self.worker_options, self.store_options = list(worker_options), list(store_options)
        self.scheduler_options, self.cli_options = list(scheduler_options), list(cli_options)
        self.all, self.stores, self.workers, self.scheduler, self.run_in = [], [], [], None, ()

    def __enter__(self):
        assert os.path.isfile(MODEL), "set ASSAY_MODEL to a GGUF file"
        try:
            scheduler, stores, workers = self.want
            if scheduler:
                self.start_scheduler()
            for _ in range(stores):
                self.start_store()
            self.workers = [self.launch_worker() for _ in range(workers)]
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind, *_):
        self.end()
        if kind is None:
            for process in self.all:
                process.check()

    def end(self):
        for process in reversed(self.all):
            process.end()

    def launch(self, program, arguments):
        number = self.counts[program] = self.counts.get(program, 0) + 1
        log = os.path.join(self.folder, f"{program}-{number}.log")
        process = Process(program, arguments, log, self.environment, self.run_in)
        self.all.append(process)
        return process

    def start_scheduler(self, listen="127.0.0.1:0"):
        self.scheduler = self.launch("assay-scheduler", [f"--listen={listen}", "--http=127.0.0.1:0"] +
                                     self.scheduler_options).wait_ready()
        return self.scheduler

    def link(self):
        return [f"--scheduler={self.scheduler.address['rpc']}"] if self.scheduler else []

    def start_store(self, options=None):
        options = self.store_options if options is None else options
        store = self.launch("assay-kvstore", self.link() + ["--ram=256MiB", "--drain-timeout=0s"] + options).wait_ready()
        self.stores.append(store)
        return store

    def launch_worker(self):
        return self.launch("assay-gpuworker", self.link() + [f"--model={MODEL}", "--listen=127.0.0.1:0",
                                                             "--context=2048", "--full-cache=drop"] + self.worker_options)

    def url(self, worker=0):
        return "http://" + self.workers[worker].address["http"]

    def stat(self):
        """The scheduler's and the stores' figures, by the command line."""
        command = [os.path.join(BIN, "assay"), "stat", "--json", f"--scheduler={self.scheduler.address['rpc']}",
                   *self.cli_options]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)

    def metric(self, name, worker=0):
        text = urllib.request.urlopen(self.url(worker) + "/metrics", timeout=30).read().decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        select.select([], [], [], 0.05)


def post(url, body, seconds=REQUEST_SECONDS):
    """Status and parsed JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Stream:
    """A streamed completion, read event by event."""

    def __init__(self, url, body, path="/v1/completions", seconds=REQUEST_SECONDS):
        self.connection = http.client.HTTPConnection(url.split("//")[1], timeout=seconds)
        self.connection.request("POST", path, json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        self.reply = None

    def events(self):
        if self.reply is None:
            self.reply = self.connection.getresponse()
            assert self.reply.status == 200, self.reply.read()
        for line in self.reply:
            line = line.strip()
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                yield event

    def close(self):
        self.connection.close()


class Answer:
    """Token ids with their logits hashes, choice after choice, and the usage."""

    def __init__(self, bits, usage, text):
        self.bits, self.usage, self.text = bits, usage, text
        self.cached = usage["prompt_tokens_details"]["cached_tokens"]


def ask(url, prompt, compressor="kivi4", salt="a", tokens=24, horizon=4, on_event=None, verify="full", seconds=REQUEST_SECONDS,
        **more):
    """One completion, greedy. on_event(n) is called after the n-th event of the stream; horizon None: the worker's own."""
    assay = {"compressor": compressor, "logits_hash": True, "ignore_end": True, "verify": verify}
    if horizon is not None:
        assay["horizon"] = horizon
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_salt": salt, "assay": assay,
            "stream_options": {"include_usage": True}, **more}
    stream, choices, usage, text = Stream(url, body, seconds=seconds), {}, None, ""
    for number, event in enumerate(stream.events()):
        for choice in event["choices"]:
            text += choice["text"]
            bits = choices.setdefault(choice["index"], [])
            bits += zip(choice["assay"]["tokens"], choice["assay"]["logits_hashes"])
        usage = event.get("usage") or usage
        if on_event:
            on_event(number)
    stream.close()
    return Answer([pair for index in sorted(choices) for pair in choices[index]], usage, text)
