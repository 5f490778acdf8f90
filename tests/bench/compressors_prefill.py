# SPDX-License-Identifier: Apache-2.0
"""Real prompts that a worker without stores prefills and holds by each method, for `./dev bench compressors`: how much of the prefill
sealing took, and what the session then held of the device. Both are of one request, so what else the machine does meets both alike.
"""
import functools
import http.client
import json
import os
import re
import statistics
import time

import engine_texts
import table
from engine_cluster import THREADS, cpu_s, machine_busy_s
from peers import BIN, Server

MODEL = os.environ["ASSAY_MODEL"]
CONTEXT = 8192
ANSWER = 2           # tokens: with the second, all that the method does not keep has been let go of
HORIZON = 1          # of a draft: the least room
REPEATS = {1024: 3}  # of which the median counts: short prompts tell less


class Worker(Server):
    """A worker alone. Use as a context."""

    def start(self):
        self.child = self.launch(BIN / "assay-gpuworker", "--listen=127.0.0.1:0", f"--threads={THREADS}", f"--context={CONTEXT}", "--sessions=1",
                                 "--log-level=warn", env={"ASSAY_MODEL": MODEL})
        self.address = json.loads(self.line(self.child))["http"]

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=1800)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {text}; the worker's log: {self.log(0)}")
        return text

    def compressors(self):
        """Those that it serves: without a calibration, so without those that need one."""
        names = json.loads(self.request("GET", "/v1/models"))["data"][0]["assay"]["compressors"]
        return [name for name in names if name not in ("none", "auto")]

    def spent_s(self):
        """Seconds of all prefills so far, and of sealing in them."""
        seen = dict(re.findall(r"^(\w+) (\S+)$", self.request("GET", "/metrics"), re.M))
        return [float(seen[f"assay_worker_{name}"]) / 1e6 for name in ("prefill_us_sum", "sealing_us_total")]

    def prefill(self, name, tokens):
        """One prompt, not verified, so that its session keeps nothing but what the method holds and its tail."""
        body = {"prompt": tokens, "max_tokens": ANSWER, "temperature": 0,
                "assay": {"compressor": name, "verify": "off", "horizon": HORIZON, "ignore_end": True}}
        before, begin, busy, own = self.spent_s(), time.monotonic(), machine_busy_s(), cpu_s(self.child.pid)
        usage = json.loads(self.request("POST", "/v1/completions", body))["usage"]["assay"]
        others = (machine_busy_s() - busy - cpu_s(self.child.pid) + own) / (time.monotonic() - begin)
        prefill, sealing = (after - so_far for after, so_far in zip(self.spent_s(), before))
        return {"name": name, "prompt_tokens": len(tokens), "prefill_s": prefill, "sealing_s": sealing, "share": sealing / (prefill - sealing),
                "resident_bytes": usage["resident_bytes"], "full_bytes": usage["full_bytes"], "others_cores": max(0.0, others)}


@functools.cache
def prefills(contexts):
    """Of each context and method; all methods have the same prompts."""
    text = engine_texts.load(MODEL, 1, CONTEXT)[0]["tokens"]
    results = []
    with Worker() as worker:
        names = worker.compressors()
        for context in contexts:
            for name in names:
                repeats = [worker.prefill(name, text[:context - ANSWER]) for _ in range(REPEATS.get(context, 1))]
                result = sorted(repeats, key=lambda one: one["share"])[len(repeats) // 2]
                results.append({**result, "context": context, "others_cores": statistics.mean(one["others_cores"] for one in repeats)})
                table.say(f"{name}, {context} tokens: prefill {result['prefill_s']:.2f} s, of which sealing {result['sealing_s']:.3f} s; "
                          f"{result['resident_bytes'] / 1e6:.2f} MB; others have {result['others_cores']:.1f} cores")
    return results
