#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench spine`: each figure is a ratio against a peer or a baseline, measured in this run.

model   prefill and decode tokens/s of our forward pass over llama.cpp's on the same weights in F16, same threads, in
        alternating rounds; the ratio of medians
fetch   fetch.py: a 64-block chain against ucx_perftest, over shared memory and over TCP
prefix  a real cluster: time to first token of a 2,000-token prompt whose prefix comes from the stores over the time of
        the same prompt recomputed; the median of the prompts

Prints `row value target pass|miss`, after lines that name the machine, the commit and the command.
"""
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(os.environ["ASSAY_BIN"])
MODEL = os.environ["ASSAY_MODEL"]
THREADS = 2
PREFIX_TOKENS = 2000


def bench_model(quick):
    shape = ["--threads", str(THREADS), "--prompt", "512", "--decode", "64" if quick else "128", "--repeat", "1" if quick else "3"]
    ours, theirs = [], []
    for i in range(2 if quick else 3):
        table.say(f"model: round {i + 1}")
        ours.append(table.one_line([BIN / "bench_model", "--model", MODEL, *shape]))
        theirs.append(table.one_line([sys.executable, HERE / "llama_cpp.py", MODEL, *shape]))
    for what, target in (("decode", 0.8), ("prefill", 0.6)):
        key = f"{what}_tokens_per_s"
        mine, other = (statistics.median(r[key] for r in runs) for runs in (ours, theirs))
        table.say(f"{what}: {mine:.1f} tokens/s, llama.cpp {other:.1f}, {THREADS} threads")
        table.row(f"{what}_vs_llama_cpp", mine / other, target)
    return {"assay": ours, "llama.cpp": theirs}


def bench_fetch(quick):
    table.say("fetch: a 64-block chain beside ucx_perftest")
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        options = ["--rounds", "2" if quick else "5", "--json", out.name]
        subprocess.run([sys.executable, HERE / "fetch.py", "--program", BIN / "bench_fetch", *options], check=True,
                       stdout=subprocess.DEVNULL)
        measured = json.load(open(out.name))
    for name, value, target in measured["rows"]:
        if target:
            table.row(name, value, target)
        else:
            table.say(f"{name} {value:.3f}")
    return measured


class Cluster:
    """One scheduler, two stores and two workers, by `assay up`, for the length of a with block."""

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory()
        command = [BIN / "assay", "up", "--model", MODEL, "--stores=2", "--workers=2", "--port=0",
                   f"--threads={THREADS}", f"--run-dir={self.dir.name}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.wait_ready(time.monotonic() + 120)
        nodes = json.loads((Path(self.dir.name) / "cluster.json").read_text())["nodes"]
        self.workers = [node["http_address"] for node in nodes if node["role"] == "worker"]
        return self

    def wait_ready(self, deadline):
        """Until `assay up` has said how to end it, which comes last."""
        said = b""
        while b"Ctrl-C" not in said:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            more = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not more:
                sys.exit(f"the cluster did not start; logs are in {self.dir.name}")
            said += more

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()
        self.dir.cleanup()

    def first_token(self, worker, prompt, salt):
        """Milliseconds to the first token, and how many prompt tokens came from stores."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt}).encode()
        url = f"http://{self.workers[worker]}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        usage = json.load(urllib.request.urlopen(request, timeout=300))["usage"]
        return usage["assay"]["first_token_ms"], usage["prompt_tokens_details"]["cached_tokens"]

    def wait_published(self, salt, prompt, want):
        """Publishing runs behind the request; a warm request counts once the whole prefix is stored."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            warm, cached = self.first_token(1, prompt, salt)
            if cached >= want:
                return warm
        sys.exit(f"the prefix of {want} tokens did not reach the stores within 30 s")


def bench_prefix(quick):
    prompt = (ROOT / "tests" / "golden" / "english.txt").read_text()
    ratios, samples = [], []
    with Cluster() as cluster:
        for i in range(2 if quick else 5):
            salt = f"bench-{i}"
            cold, cached = cluster.first_token(0, prompt, salt)
            assert cached == 0, "the cold prompt must not be in the stores"
            warm = cluster.wait_published(salt, prompt, PREFIX_TOKENS * 9 // 10 // 64 * 64)
            warm = min(warm, cluster.first_token(1, prompt, salt)[0])
            table.say(f"prefix: first token {cold:.0f} ms recomputed, {warm:.0f} ms with the prefix from the stores")
            ratios.append(warm / cold)
            samples.append({"cold_ms": cold, "warm_ms": warm})
    table.row("first_token_remote_prefix_vs_recompute", statistics.median(ratios), 0.15, at_most=True)
    return samples


PARTS = {"model": bench_model, "fetch": bench_fetch, "prefix": bench_prefix}

if __name__ == "__main__":
    sys.exit(table.main("spine", __doc__, PARTS))
