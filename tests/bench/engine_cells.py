# SPDX-License-Identifier: Apache-2.0
"""Arms and cells of `./dev bench engine`: how one arm is run at one link rate, context and count of sessions, and what is counted.

A cell is measured between two moments: all sessions have their first token; the first of them ends, or as much time has passed as
the cell may take. Counters of the worker, bytes of the cable and processor time are read at both, tokens are counted in between.
"""
import json
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import table
from engine_cluster import CONTEXT, FOLDER, cached_tokens, cpu_s, machine_busy_s

FULL_TOKEN_BYTES = 23040  # of SmolLM2-135M: 30 layers, 3 heads of K and V, 64 elements of f16
TRACE = "trace.json"  # in the worker's folder
WORKSPACE_BYTES = 80 << 20
TAIL_TOKENS = 192  # of a session: not sealed, and drafted; of 8,192 it is little
COUNTED = ("tokens", "drafted_tokens", "accepted_tokens", "swapped_bytes", "pushed_bytes", "pushed_verifications", "fetched_bytes",
           "recomputed_blocks", "recompute_chosen_blocks", "restarts", "push_refused", "verify", "batch_layers", "batch_passes",
           "requests_failed", "swap_hidden_us", "swap_moving_us", "proposed_tokens", "proposals_accepted", "shared_swaps")
HORIZON = 64  # most drafted tokens; below it horizons adapt
EQUAL = 48    # of arms that are compared at equal drafts


@dataclass(frozen=True)
class Arm:
    name: str
    assay: dict            # of the request
    options: tuple = ()    # of the worker
    verified: bool = True  # the answer is to be that of full-cache decoding
    in_turn: bool = False  # sessions one after the other

    def lacks(self, known):
        """The worker's options that this build does not have."""
        return [option for option in self.options if option.split("=")[0].lstrip("-") not in known]

    def own_tokens(self):
        """Of a prompt, that the worker computes itself whatever is stored; at most."""
        return 32 if self.assay["compressor"] in OBSERVING else 1


def arm(name, compressor, *options, verified=True, in_turn=False, **assay):
    """Without prompt lookup and push-down, and holding no full cache that a store has, unless said otherwise."""
    usual = {"--push-down": "off", "--prompt-lookup": "0", "--full-cache": "drop"}
    given = {option.split("=")[0] for option in options}
    options += tuple(f"{name}={value}" for name, value in usual.items() if name not in given)
    if not verified:
        assay["verify"] = "off"
    return Arm(name, {"compressor": compressor, **assay}, options, verified, in_turn)


def long_arm(compressor):
    """Drafts as long as may be, whatever the horizon would say of each."""
    return arm(f"drafts_of_{HORIZON}_{compressor}", compressor, horizon=HORIZON)


COMPRESSORS = ("kivi4", "kivi2", "streaming", "snapkv")
OBSERVING = ("snapkv", "pyramidkv", "adakv", "expected", "h2o-window", "rdkv", "rocketkv", "auto")  # look at a prompt's last 32 tokens
RESIDENT = arm("resident", "none", in_turn=True)      # the full cache in the worker's memory, sessions one after the other
SWAP = arm("full_swap", "none", "--full-cache=swap")  # the full cache brought for every token
DRAFTING = {name: arm(name, name) for name in COMPRESSORS}
NO_OVERLAP = arm("no_overlap", "kivi4", "--overlap=off")
PUSH = arm("push_down", "kivi4", "--push-down=on")
AUTO = arm("push_down_auto", "kivi4", "--push-down=auto")
LOOKUP = arm("prompt_lookup", "kivi4", "--prompt-lookup=8")
SHARED = arm("shared", "kivi4", "--shared-verification=on")
SEPARATE = arm("separate", "kivi4", "--shared-verification=off")
# The same with drafts of one length, whatever the horizon would say of each.
SHARED_EQUAL = arm(f"shared_drafts_of_{EQUAL}", "kivi4", "--shared-verification=on", horizon=EQUAL)
SEPARATE_EQUAL = arm(f"separate_drafts_of_{EQUAL}", "kivi4", "--shared-verification=off", horizon=EQUAL)
# The first token of a stored prefix by push-down, then its sealed form.
SEALED_PUSH = arm("sealed_push_down", "kivi4", "--push-down=on", "--store-sealed=on")
SEALED = arm("sealed", "kivi4", "--push-down=auto", "--store-sealed=on")
SEALED_LOOKUP = arm("sealed_lookup", "kivi4", "--push-down=auto", "--store-sealed=on", "--prompt-lookup=8")
LOSSY = {name: arm(f"lossy_{name}", name, verified=False) for name in COMPRESSORS}
TRACED = (DRAFTING["kivi4"], NO_OVERLAP, SHARED)  # of these, lanes are kept
# Every draft as long as it gets, to see how far one is right.
LONG = {name: long_arm(name) for name in COMPRESSORS}


@dataclass(frozen=True)
class Cell:
    gbit: float
    context: int     # prompt and answer
    sessions: int
    answer: int = 256
    seconds: float = 60  # at most, from the moment when all have their first token

    @property
    def name(self):
        return f"{self.sessions}x{self.context}@{self.gbit:g}"


def full_bytes(cell):
    return cell.context * FULL_TOKEN_BYTES


def budget(cell, arm):
    """Device memory of all arms of a cell: four tenths of a full cache a session and its tail and draft, what admitting one of them
    needs at a time, and the computation's workspace. A swap without overlap takes a whole cache, which that arm has besides, or it could not have as many
    sessions at a time."""
    own = 0.38 * full_bytes(cell) + TAIL_TOKENS * FULL_TOKEN_BYTES
    return int(own * cell.sessions + full_bytes(cell) * (1.25 + (arm == NO_OVERLAP))) + WORKSPACE_BYTES


class Run:
    """Sessions of one arm in one cell."""

    def __init__(self, cluster, cell, arm, prompts):
        self.cluster, self.cell, self.arm, self.prompts = cluster, cell, arm, prompts
        trace = [f"--trace={FOLDER}/{TRACE}"] if arm in TRACED else []
        self.options = [f"--device-memory={budget(cell, arm)}", f"--sessions={1 if arm.in_turn else cell.sessions}", f"--queue={cell.sessions}",
                        f"--horizon={HORIZON}", *arm.options, *trace]
        self.news = threading.Condition()

    def wait(self, condition, deadline):
        """Until the condition holds or a session failed; False when it is too late."""
        with self.news:
            while not condition():
                failed = next((session.error for session in self.sessions if session.error), None)
                if failed:
                    raise RuntimeError(f"{self.arm.name}: {failed}; the worker's log: {self.worker.log(0)}")
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self.news.wait(left)
        return True

    def lanes(self):
        """What the sessions did when: [lane, session, begin, end], seconds from the first; of arms with a trace."""
        path = Path(self.worker.folder.name) / TRACE
        if not path.exists():
            return None
        spans = [json.loads(line.rstrip(",\n")) for line in path.read_text().splitlines() if line.startswith('{"ph": "X"')]
        first = min((span["ts"] for span in spans), default=0)
        return [[span["name"], span["tid"], (span["ts"] - first) / 1e6, (span["ts"] + span["dur"] - first) / 1e6] for span in spans]

    def moment(self):
        seen = self.worker.counters()
        one = {what: seen.get(f"assay_worker_{what}_total", 0) for what in COUNTED}
        one.update(time=time.monotonic(), cable_bytes=sum(self.cluster.cable.sent_bytes()), worker_cpu_s=cpu_s(self.worker.child.pid),
                   store_cpu_s=cpu_s(self.cluster.store.pid), machine_s=machine_busy_s(),
                   cached_tokens=seen["assay_worker_cached_tokens_total"])
        return one

    def run(self):
        self.cluster.cable.shape(self.cell.gbit * 125e6)
        with self.cluster.worker(self.options) as self.worker:
            result = self.measure()
            self.worker.end_process()
            result["lanes"] = self.lanes()
            return result

    def begin(self):
        """Starts the sessions, on a worker that is there."""
        answer = min(self.cell.answer, CONTEXT - max(len(prompt["tokens"]) for prompt in self.prompts))
        self.sessions = [self.worker.session(prompt, answer, self.arm.assay, self.news) for prompt in self.prompts]
        start = self.moment()
        for session in self.sessions:
            session.start()
        return start

    def measure(self, patience=600):
        """All of one cell, on a worker that is there; `patience`: seconds to the last first token."""
        start = self.begin()
        if self.arm.in_turn:
            first = start
            self.wait(lambda: all(session.ended for session in self.sessions), time.monotonic() + self.cell.seconds * 20)
        else:
            if not self.wait(lambda: all(session.times for session in self.sessions), time.monotonic() + patience):
                raise RuntimeError(f"{self.arm.name}: no first token of each session within {patience} s")
            first = self.moment()
            self.wait(lambda: any(session.ended for session in self.sessions), time.monotonic() + self.cell.seconds)
        last = self.moment()
        for session in self.sessions:
            session.stop()
        for session in self.sessions:
            session.join(30)
        return self.result(start, first, last)

    def result(self, start, first, last):
        """What was counted between the two moments. In turn: from the first token of all, since there is no moment when all run."""
        begin = min(session.times[0] for session in self.sessions) if self.arm.in_turn else first["time"]
        tokens = sum(begin < at <= last["time"] for session in self.sessions for at in session.times)
        seconds = last["time"] - begin
        own = {what: last[what] - first[what] for what in COUNTED}
        cpu = {what: last[what] - first[what] for what in ("worker_cpu_s", "store_cpu_s", "machine_s")}
        want = sum(cached_tokens(prompt, self.arm.own_tokens()) for prompt in self.prompts)
        per = max(tokens, 1)
        result = {
            "arm": self.arm.name, "compressor": self.arm.assay["compressor"], "cell": self.cell.name, "gbit": self.cell.gbit, "context": self.cell.context,
            "sessions": self.cell.sessions, "budget_bytes": budget(self.cell, self.arm), "options": self.options,
            "tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds,
            "cable_bytes_per_token": (last["cable_bytes"] - first["cable_bytes"]) / per,
            "swapped_bytes_per_token": own["swapped_bytes"] / per, "pushed_bytes_per_token": own["pushed_bytes"] / per,
            "verifications": own["verify"], "accepted": own["accepted_tokens"], "drafted": own["drafted_tokens"],
            "mean_accepted_run": own["accepted_tokens"] / own["verify"] if own["verify"] else None,
            "mean_draft": own["drafted_tokens"] / own["verify"] if own["verify"] else None,
            "riders": own["verify"] / (own["verify"] - own["shared_swaps"]) if own["verify"] > own["shared_swaps"] else None,
            "batch": own["batch_passes"] / own["batch_layers"] if own["batch_layers"] else None,
            "hidden": own["swap_hidden_us"] / own["swap_moving_us"] if own["swap_moving_us"] else None, "first_token_s": sorted(session.times[0] - session.started for session in self.sessions),
            "cpu_s_per_token": {"worker": cpu["worker_cpu_s"] / per, "store": cpu["store_cpu_s"] / per},
            "others_cores": max(0.0, (cpu["machine_s"] - cpu["worker_cpu_s"] - cpu["store_cpu_s"]) / max(last["time"] - first["time"], 1e-9)),
            "counters": own, "cached_tokens": last["cached_tokens"] - start["cached_tokens"], "cached_wanted": want,
            "token_64_s": sorted(s.times[63] - s.started for s in self.sessions if len(s.times) > 63),
            "runs": [run for session in self.sessions for run in session.runs[1:]],
            "answers": {prompt["kind"]: session.bits for prompt, session in zip(self.prompts, self.sessions)},
        }
        problems = [what for what in ("recomputed_blocks", "restarts", "requests_failed", "push_refused") if own[what]]
        if result["cached_tokens"] < want:
            problems.append(f"{result['cached_tokens']:.0f} of {want} prompt tokens came from the store")
        if problems:
            table.say(f"{self.cell.name} {self.arm.name}: beware: {', '.join(problems)}")
        result["problems"] = problems
        return result


def same_bits(answers, reference):
    """Whether each answer is, token for token and bit for bit of the logits, a prefix of the reference's; where it is not, the
    first place: {kind: place}."""
    differ = {}
    for kind, bits in answers.items():
        expected = reference[kind]
        count = min(len(bits), len(expected))
        place = next((i for i in range(count) if tuple(bits[i]) != tuple(expected[i])), None)
        if place is not None or count == 0:
            differ[kind] = place or 0
    return differ


def show(result):
    run = "" if result["mean_accepted_run"] is None else f"run {result['mean_accepted_run']:.1f} of {result['mean_draft']:.1f}, "
    table.say(f"{result['cell']} {result['arm']}: {result['tokens_per_s']:.2f} tokens/s ({result['tokens']} in {result['seconds']:.1f} s), "
              f"{result['cable_bytes_per_token'] / 1e6:.2f} MB a token, {run}"
              f"first token {statistics.median(result['first_token_s']):.1f} s, worker {result['cpu_s_per_token']['worker'] * 1e3:.0f} ms "
              f"of processor a token, identical: {result.get('identical', '-')}, others have {result['others_cores']:.1f} cores")
