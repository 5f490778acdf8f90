#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench compressors`: compressors beside each other.

attention  tokens of context attended to a second by a draft's step straight from each method's codes, against the same over f16
           in turns, the median of the rounds (build/bin/bench_segments), 8 sessions of 1,024, 4,096 and 8,192 tokens, one thread and two
bytes      what the allocator gave for a segment, against what the method's paper says (compressors_bytes.py); and what a worker's session
           held of the device, of real prompts, against the same and its exact tail
sealing    choosing and sealing a prompt, against the rest of its prefill: the same requests (compressors_prefill.py)
runs       drafts of 64 tokens at 8,192: how many verification accepts; the last row is the best of those that hold an eighth or less
auto       8 sessions of 4,096 to 7,680 tokens (prompt and answer), texts of one kind (prose, code, JSON), links of 1 and 10 Gbit/s:
           each compressor by name, and `auto`, whose worker has learned from short answers on other cuts of these texts before it
           is measured. A compressor with which eight sessions do not fit at once is none to compare with, as plain decoding is not. The
           fastest are measured a second time in turns with `auto`, for longer: the row compares these. Answers are compared, tokens and logits

Processes, links, memory and moments are those of `./dev bench engine` (engine_cells.py): without prompt lookup and push-down, and no
full cache stays on the worker that a store has. --quick measures `auto` with 4 sessions of 4,096 tokens, four compressors and prose over 1 Gbit/s, and the rest at 4,096.
What others had of the processors is beside each result (others_cores; --json), and in the tables of compressors_tables.py.
"""
import json
import os
import re
import sys
import time

import compressors_bytes
import compressors_prefill
import engine
import engine_cells as cells
import engine_cluster
import engine_texts
import table
from engine_cells import Cell, Run
from engine_cluster import connect, netns

MODEL = os.environ["ASSAY_MODEL"]
RAM_BYTES = 1900 << 20  # of the store: eight prompts
LINKS = (1, 10)
SESSIONS, SESSIONS_QUICK = 8, 4
CONTEXTS = [4096 + 512 * number for number in range(SESSIONS)]
ANSWER = 512
QUICK = ("kivi4", "kivi2", "knorm", "snapkv")
WAVES, WAVES_QUICK = 14, 6  # of sessions from which `auto` learns, and the tokens of their answers
LEARNING_ANSWER = 64
CUT = 64                    # tokens, by which each wave's prompts are shorter than those of the one before
FIRST_S, FINAL_S = 40, 90   # seconds of a measurement
PATIENCE_S = 240            # to the last first token: a compressor that takes longer cannot hold all sessions
FINALISTS = 3
AUTO = cells.arm("auto", "auto")


def compressors_of(cluster):
    """Those that a worker has, but for plain decoding and `auto`."""
    with cluster.worker(["--sessions=1"]) as worker:
        connection = connect(worker.host, worker.address)
        connection.request("GET", "/v1/models")
        names = json.loads(connection.getresponse().read())["data"][0]["assay"]["compressors"]
        connection.close()
        worker.end_process()
    return [name for name in names if name not in ("none", "auto")]


def by_compressor(worker, name):
    connection = connect(worker.host, worker.address)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {label: int(value) for label, value in re.findall(rf'^{name}{{compressor="([^"]+)"}} (\d+)$', text, re.M)}


class Workload:
    """Texts of one kind over one link; all arms have the same prompts, memory and link."""

    def __init__(self, cluster, kind, gbit, prompts, quick):
        self.cluster, self.name, self.prompts, self.quick = cluster, f"{kind}_{gbit}gbit", prompts, quick
        self.cell = Cell(gbit, sum(len(prompt["tokens"]) for prompt in prompts) // len(prompts) + ANSWER, len(prompts), ANSWER, FIRST_S)
        self.reference, self.checked, self.results = {}, [], []

    def take(self, result, stage):
        """Notes a measurement; its answers are to be those of the first."""
        answers = result.pop("answers")
        if not self.reference:
            self.reference = answers
        result["identical"] = "no" if cells.same_bits(answers, self.reference) else "yes"
        result["stage"] = stage
        self.checked.append(result["identical"] == "yes")
        self.results.append(result)
        cells.show(result)
        return result["tokens_per_s"]

    def fixed(self, name, seconds, stage):
        """Tokens a second with one compressor; None where not all sessions fit at once."""
        cell = Cell(self.cell.gbit, self.cell.context, self.cell.sessions, ANSWER, seconds)
        run = Run(self.cluster, cell, cells.arm(name, name), self.prompts)
        self.cluster.cable.shape(cell.gbit * 125e6)
        try:
            with self.cluster.worker(run.options) as run.worker:
                result = run.measure(PATIENCE_S)
                run.worker.end_process()
        except RuntimeError as error:
            table.say(f"{self.name} {name}: left out: {error}")
            return None
        return self.take(result, stage) if result["tokens"] > 0 else None

    def learn(self, worker, waves):
        """Short answers on other cuts of the same texts, to their end."""
        begin, tokens = time.monotonic(), 0
        for wave in range(waves):
            cut = [{**prompt, "tokens": prompt["tokens"][:len(prompt["tokens"]) - CUT * (1 + wave)]} for prompt in self.prompts]
            run = Run(self.cluster, Cell(self.cell.gbit, self.cell.context, len(cut), LEARNING_ANSWER), AUTO, cut)
            run.worker = worker
            run.begin()
            if not run.wait(lambda run=run: all(session.ended for session in run.sessions), time.monotonic() + 1200):
                raise RuntimeError(f"{self.name}: a wave of sessions did not end within 1,200 s")
            tokens += sum(len(session.times) for session in run.sessions)
            expected = by_compressor(worker, "assay_worker_expected_tokens_per_1000_s")
            best = sorted(((rate / 1e3, name) for name, rate in expected.items() if rate), reverse=True)[:4]
            table.say(f"{self.name}: auto, wave {wave + 1}: expects {', '.join(f'{name} {rate:.1f}' for rate, name in best)} tokens/s")
        return tokens / (time.monotonic() - begin)

    def auto(self, others):
        """Tokens a second of auto once it has learned, and of the others, each measured by itself between two measurements of auto."""
        run = Run(self.cluster, Cell(self.cell.gbit, self.cell.context, self.cell.sessions, ANSWER, FINAL_S), AUTO, self.prompts)
        self.cluster.cable.shape(self.cell.gbit * 125e6)
        with self.cluster.worker(run.options) as run.worker:
            learning = self.learn(run.worker, WAVES_QUICK if self.quick else WAVES)
            trials = sum(by_compressor(run.worker, "assay_worker_tried_total").values())
            table.row(f"auto_learning_tokens_per_s_{self.name}", learning)
            table.row(f"auto_learning_sessions_tried_{self.name}", trials)
            rates, finals = [], {}
            for number in range(2):
                before = by_compressor(run.worker, "assay_worker_chosen_total")
                rates.append(self.take(run.measure(PATIENCE_S), f"auto {number + 1}"))
                after = by_compressor(run.worker, "assay_worker_chosen_total")
                chosen = {name: after[name] - before[name] for name in after if after[name] > before[name]}
                self.results[-1]["chosen"] = chosen
                table.say(f"{self.name}: auto chose {chosen}")
                if number == 0:
                    finals = {name: self.fixed(name, FINAL_S, "final") for name in others}
            run.worker.end_process()
        return sum(rates) / len(rates), {name: rate for name, rate in finals.items() if rate}

    def run(self, names):
        first = {name: self.fixed(name, FIRST_S, "first") for name in names}
        first = {name: rate for name, rate in first.items() if rate}
        if not first:
            raise RuntimeError(f"{self.name}: there is nothing to compare with")
        finalists = sorted(first, key=first.get, reverse=True)[:FINALISTS]
        auto, final = self.auto(finalists)
        best = max(final, key=final.get)
        table.say(f"{self.name}: auto {auto:.1f} tokens/s; {', '.join(f'{name} {rate:.1f}' for name, rate in final.items())}")
        table.row(f"auto_vs_best_{self.name}", auto / final[best], 0.95)
        for name, rate in first.items():
            table.row(f"{name}_vs_fastest_{self.name}", rate / max(first.values()))
        return {"workload": self.name, "first": first, "final": final, "auto": auto, "results": self.results}


def bench_auto(quick):
    missing = netns.missing_cable()
    if missing:
        sys.exit(f"bench compressors: {missing}")
    contexts = [CONTEXTS[0]] * SESSIONS_QUICK if quick else CONTEXTS
    raw, checked = [], []
    for kind in ("prose",) if quick else engine_texts.KINDS:
        prompts = engine_texts.load_kind(MODEL, kind, [context - ANSWER for context in contexts])
        with engine_cluster.Cluster(MODEL, RAM_BYTES) as cluster:
            cluster.fill(prompts)
            names = QUICK if quick else compressors_of(cluster)
            for gbit in LINKS[:1] if quick else LINKS:
                workload = Workload(cluster, kind, gbit, prompts, quick)
                raw.append(table.run_part(workload.name, lambda _, workload=workload: workload.run(names), quick))
                checked += workload.checked
    table.row("identical", sum(checked) / len(checked) if checked else 0, 1)
    return raw


# ---- attention, bytes, sealing

TOKENS, TOKENS_QUICK = (1024, 4096, 8192), (4096,)
OF_F16 = {"kivi4": 1.5, "turbo4": 1.5, "kivi2": 2}  # of attention's speed over f16
BYTES_OFF, SEALING = 0.02, 0.1


def segments(threads, tokens, sessions):
    """What bench_segments measures of each method, and what others had of the processors meanwhile."""
    begin, busy, own = time.monotonic(), cells.machine_busy_s(), os.times()
    methods = table.one_line([engine_cluster.BIN / "bench_segments", str(threads), str(tokens), str(sessions), "json"])
    used = os.times()
    cpu = used.children_user + used.children_system - own.children_user - own.children_system
    others = max(0.0, (cells.machine_busy_s() - busy - cpu) / (time.monotonic() - begin))
    table.say(f"{sessions} sessions of {tokens} tokens, {threads} threads: others have {others:.1f} cores")
    return {"tokens": tokens, "threads": threads, "sessions": sessions, "others_cores": others, "methods": methods}


def bench_attention(quick):
    results = [segments(threads, tokens, SESSIONS) for tokens in (TOKENS_QUICK if quick else TOKENS) for threads in (1, 2)]
    for result in results:
        for one in result["methods"][1:]:  # the first is f16 itself
            table.row(f"attention_vs_f16_{one['name']}_{result['tokens']}_{result['threads']}_threads", one["ratio"], OF_F16.get(one["name"]))
    return {"results": results}


def of_session(result):
    """Bytes of a session whose prompt a method holds, beside the formula's for what is sealed and the exact tail."""
    tokens = result["full_bytes"] // cells.FULL_TOKEN_BYTES
    sealed = compressors_bytes.sealed_tokens(tokens)
    formula, tail = compressors_bytes.bytes_of(sealed)[result["name"]], compressors_bytes.tail_bytes(tokens, compressors_prefill.HORIZON)
    return {**result, "tokens": tokens, "tail_bytes": tail, "formula_bytes": formula and formula * compressors_bytes.HEADS * sealed}


def bench_bytes(quick):
    contexts = TOKENS_QUICK if quick else TOKENS
    results = [segments(1, tokens, 1) for tokens in contexts]
    for result in results:
        formulas, tokens = compressors_bytes.bytes_of(result["tokens"]), result["tokens"]
        for one in result["methods"]:
            formula = one["formula"] = formulas[one["name"]] and formulas[one["name"]] * compressors_bytes.HEADS
            if formula is None:
                table.row(f"bytes_a_token_{one['name']}_{tokens}", one["allocated"])
            else:
                table.row(f"bytes_off_formula_{one['name']}_{tokens}", abs(one["allocated"] / formula - 1), BYTES_OFF, at_most=True)
    sessions = [of_session(result) for result in compressors_prefill.prefills(contexts)]
    for one in sessions:
        if one["formula_bytes"] is None:
            table.row(f"session_bytes_of_f16_{one['name']}_{one['context']}", one["resident_bytes"] / one["full_bytes"])
        else:
            off = one["resident_bytes"] / (one["formula_bytes"] + one["tail_bytes"]) - 1
            table.row(f"session_bytes_off_formula_{one['name']}_{one['context']}", abs(off), BYTES_OFF, at_most=True)
    return {"results": results, "sessions": sessions}


def bench_sealing(quick):
    results = compressors_prefill.prefills(TOKENS_QUICK if quick else TOKENS)
    for one in results:
        table.row(f"sealing_of_prefill_{one['name']}_{one['context']}", one["share"], SEALING, at_most=True)
    return {"results": results}


# ---- runs

EIGHTH = ("rdkv", "streaming")  # hold an eighth of 8,192 tokens, or less


def bench_runs(quick):
    context, sessions = (4096, 4) if quick else (8192, 8)
    arms = {name: cells.long_arm(name) for name in ("kivi4", "snapkv", *EIGHTH)}
    raw = engine.measure_runs(arms, context, sessions, 30 if quick else 45, {"kivi4": 30, "snapkv": 10})
    best = max((raw["runs"][name] for name in EIGHTH if name in raw["runs"]), default=0)
    table.row("accepted_run_best_of_an_eighth", best, 8)
    return raw


PARTS = {"attention": bench_attention, "bytes": bench_bytes, "sealing": bench_sealing, "runs": bench_runs, "auto": bench_auto}

if __name__ == "__main__":
    sys.exit(table.main("compressors", __doc__, PARTS))
