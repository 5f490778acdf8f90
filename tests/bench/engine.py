#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench engine`: drafts that are verified, beside full-cache serving, at the same memory and over the same link.

main     8 sessions of 8,192 tokens (prompt and answer), each on a text of its own whose prefix a store has, over links of 1 and
         10 Gbit/s: the full cache brought for every token; kivi4, verified; the same without overlap and by push-down; the other
         compressors at 1, and at 10 push-down where it pays, prompt lookup, and kivi4 not verified. Every verified answer is
         compared, tokens and logits, with the one over a full cache that stays in memory. Beside them the ceiling that measured rates allow (engine_ceiling.py)
sweep    1 and 4 sessions of 8,192 tokens, 8 of 1,024 and 4,096, 16 of 1,024, at 1 Gbit/s
sixteen  16 sessions of 8,192 tokens at 1 Gbit/s; the store takes 3.7 GiB
shared   8 sessions on one prompt: verified in one swap, and each by itself. Where one swap serves all, the device binds before the
         link does, so the horizon is shorter, and bytes of a token tell of two things; at_equal_drafts both have the same one
first    one session whose prefix another host has, 1 Gbit/s: time to the first and to the 64th token against fetching all first; by
         push-down; by swaps; and where the sealed form is stored too. 32 tokens lie behind the stored blocks, the mean of prompts,
         since these are what push-down computes; and 1 and 64, the least and the most
runs     drafts of 64 by each compressor: how many verification accepts, by position
peer     prefill and decode tokens/s of the forward pass, one and 8 sequences, beside llama.cpp in F16 with as many threads

Real processes on two hosts of this machine (network namespaces), joined by a veth pair with the kernel's token bucket: it shapes
the rate exactly and delays nothing, since this kernel has no netem and the bridge of tests/tools, which delays, is a process that
would take part of the two cores. Needs root, iproute2 and iperf3. All arms of a cell have the same prompts, memory, link and programs;
what others took of the processors meanwhile is in the raw results (others_cores), which --json prints and plots.py draws. The
prompts are computed once and kept on disk (engine_cluster.py). --quick measures 4 sessions of 4,096 tokens.
"""
import os
import statistics
import sys

import engine_ceiling
import engine_cells as cells
import engine_cluster
import engine_texts
import table
from engine_cells import Cell, Run
from engine_cluster import BLOCK_TOKENS, netns

MODEL = os.environ["ASSAY_MODEL"]
THREADS = engine_cluster.THREADS
RAM_BYTES = 1900 << 20          # of the store: eight prompts of 8k
RAM_BYTES_SIXTEEN = 3700 << 20  # sixteen
ANSWER = 256
ANSWER_64 = 64     # whose last token is read
ANSWER_FIRST = 4   # whose first token is
TAIL = 32          # tokens behind the stored blocks: the mean of prompts
TAILS = (TAIL, 1, 64)
ANSWER_MAIN = 512  # longer, so that in arms where sessions begin late none has ended before all run
LINKS = (1, 10)
REACH_MIN = 4


class Bench:
    """A cluster with its prompts stored, the answers over the full cache, and what was measured."""

    def __init__(self, context, count, ram_bytes=RAM_BYTES):
        missing = netns.missing_cable()
        if missing:
            sys.exit(f"bench engine: {missing}")
        self.known, self.results, self.references = engine_cluster.options_of_worker(), [], {}
        self.prompts = engine_texts.load(MODEL, count, context - ANSWER)
        self.cluster = engine_cluster.Cluster(MODEL, ram_bytes)

    def __enter__(self):
        self.cluster.__enter__()
        self.cluster.fill(self.prompts)
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def cut(self, cell, one_chain=False):
        """The prompts of a cell: beginnings of what is stored."""
        prompts = self.prompts[:1] * cell.sessions if one_chain else self.prompts[:cell.sessions]
        return [{**prompt, "tokens": prompt["tokens"][:cell.context - cell.answer]} for prompt in prompts]

    def rates(self, links):
        """What the machine and the cable can do (engine_ceiling.py); the fetches at the highest rate."""
        return engine_ceiling.measure(self.cluster, links, self.prompts[:4], cells.RESIDENT.options)

    def run(self, cell, arm, one_chain=False):
        """One arm in one cell; None where this build has no such arm, or it failed, which is a row that misses."""
        lacking = arm.lacks(self.known)
        if lacking:
            table.say(f"{cell.name} {arm.name}: left out: this worker has no {', '.join(lacking)}")
            return None
        try:
            result = Run(self.cluster, cell, arm, self.cut(cell, one_chain)).run()
            if result["tokens"] == 0:
                raise RuntimeError(f"{arm.name}: one session ended before the last began: nothing was measured")
        except RuntimeError as error:
            table.say(f"{cell.name}: {error}")
            table.row(f"{arm.name}_{cell.name}_runs", 0, 1)
            return None
        answers, reference = result.pop("answers"), self.references.setdefault(cell.context, {})
        if arm == cells.RESIDENT:
            reference.update(answers)
        elif all(kind in reference for kind in answers):
            result["differ"] = cells.same_bits(answers, reference)
            result["identical"] = "no" if result["differ"] else "yes"
            result["verified"] = arm.verified
        cells.show(result)
        self.results.append(result)
        return result

    def rows_identical(self):
        """Of all arms that verify; and where those that do not first differ."""
        checked = [result for result in self.results if result.get("verified")]
        table.row("identical", sum(result["identical"] == "yes" for result in checked) / len(checked) if checked else 0, 1)
        for result in self.results:
            if result.get("verified") is False:
                places = list(result["differ"].values())
                table.row(f"{result['arm']}_sessions_that_differ", len(places) / result["sessions"])
                if places:
                    table.row(f"{result['arm']}_first_differs_at_token", statistics.median(places))


def ratio(one, other, key="tokens_per_s"):
    return one[key] / other[key] if one and other and other[key] else None


def row(name, value, target=None, at_most=False):
    """A row, where there is something to compare."""
    if value is not None:
        table.row(name, value, target, at_most)


def moved(one, other):
    """Bytes over the link for verifications, of a token: a ratio; None where there is nothing to compare."""
    bytes_of = [result["swapped_bytes_per_token"] + result["pushed_bytes_per_token"] if result else 0 for result in (one, other)]
    return bytes_of[0] / bytes_of[1] if bytes_of[1] else None


# ---- main

def rows_of_link(gbit, of, resident):
    """Of the arms of a cell by name."""
    draft = of.get("kivi4")
    if not draft:
        return
    row(f"tokens_vs_full_swap_{gbit}gbit", ratio(draft, of.get("full_swap")), 20 if gbit == 1 else 5)
    row(f"tokens_vs_no_overlap_{gbit}gbit", ratio(draft, of.get("no_overlap")), 1.3)
    row(f"swap_hidden_{gbit}gbit", draft["hidden"], 0.95)
    row(f"tokens_vs_ceiling_{gbit}gbit", ratio(draft, draft.get("ceiling")), 0.9)
    if "ceiling" in draft:
        row(f"tokens_vs_ceiling_with_moving_{gbit}gbit", draft["tokens_per_s"] / draft["ceiling"]["with_moving_tokens_per_s"])
    row(f"tokens_vs_resident_in_turn_{gbit}gbit", ratio(draft, resident))
    row(f"tokens_vs_unverified_{gbit}gbit", ratio(draft, of.get("lossy_kivi4")))
    for name in [*cells.COMPRESSORS[1:], "push_down", "push_down_auto", "prompt_lookup"]:
        row(f"{name}_tokens_vs_full_swap_{gbit}gbit", ratio(of.get(name), of.get("full_swap")))
    push = of.get("push_down")
    if push:
        row(f"link_bytes_push_down_vs_swap_{gbit}gbit", moved(push, draft), 0.02, at_most=True)
        row(f"link_bytes_push_down_vs_full_swap_{gbit}gbit", moved(push, of.get("full_swap")))


def binds(results):
    """Which limit binds in each cell."""
    for result in results:
        if "ceiling" in result:
            c = result["ceiling"]
            table.say(f"{result['cell']} {result['arm']}: {result['tokens_per_s']:.1f} of {c['tokens_per_s']:.1f} tokens/s; {c['binds']} binds; "
                      f"a round: link {c['link_s']:.2f} s; drafts: products {c['draft_products_s']:.2f}, attention {c['draft_attention_s']:.2f}; "
                      f"verification: products {c['verify_products_s']:.2f}, attention {c['verify_attention_s']:.2f}; "
                      f"processors for the bytes {c['moving_s']:.2f}: {c['with_moving_tokens_per_s']:.1f}")


def add_ceilings(results, rates):
    for result in results:
        if result["verifications"] and result["drafted"]:
            result["ceiling"] = engine_ceiling.ceiling(result, rates)
    binds(results)


def bench_main(quick):
    context, sessions = (4096, 4) if quick else (8192, 8)
    links = LINKS[:1] if quick else LINKS
    arms = [cells.SWAP, cells.DRAFTING["kivi4"], cells.NO_OVERLAP, cells.PUSH]
    more = {1: [cells.DRAFTING[name] for name in cells.COMPRESSORS[1:]], 10: [cells.AUTO, cells.LOOKUP, cells.LOSSY["kivi4"]]}
    with Bench(context, sessions) as bench:
        rates = bench.rates(links)
        answer = ANSWER_MAIN
        resident = bench.run(Cell(10, context, sessions, answer), cells.RESIDENT)
        for gbit in links:
            ran = [bench.run(Cell(gbit, context, sessions, answer, 20 if quick else 45 if arm == cells.SWAP else 30), arm)
                   for arm in arms + ([] if quick else more[gbit])]
            of = {result["arm"]: result for result in ran if result}
            add_ceilings(list(of.values()), rates)
            rows_of_link(gbit, of, resident)
        bench.rows_identical()
        return {"rates": rates, "results": bench.results}


# ---- sweep

def sweep(shapes, seconds):
    """The full cache swapped and kivi4 over 1 Gbit/s, by (sessions, context)."""
    most = max(sessions for sessions, _ in shapes)
    longest = max(context for _, context in shapes)
    with Bench(longest, most, RAM_BYTES_SIXTEEN if most * longest > 8 * 8192 else RAM_BYTES) as bench:
        rates = bench.rates(LINKS[:1])
        for context in {context for _, context in shapes}:
            bench.run(Cell(10, context, max(count for count, length in shapes if length == context)), cells.RESIDENT)
        for sessions, context in shapes:
            ran = [bench.run(Cell(1, context, sessions, seconds=seconds), arm) for arm in (cells.SWAP, cells.DRAFTING["kivi4"])]
            add_ceilings([result for result in ran if result], rates)
            row(f"tokens_vs_full_swap_{sessions}x{context}", ratio(ran[1], ran[0]))
        bench.rows_identical()
        return {"rates": rates, "results": bench.results}


def bench_sweep(quick):
    if quick:
        return sweep([(1, 4096), (4, 4096), (4, 1024)], 15)
    some, many = sweep([(1, 8192), (4, 8192), (8, 1024), (8, 4096)], 30), sweep([(16, 1024)], 30)
    return {"rates": some["rates"], "results": some["results"] + many["results"]}


def bench_sixteen(quick):
    return sweep([(16, 4096 if quick else 8192)], 30)


# ---- shared

def bench_shared(quick):
    context, sessions = (4096, 4) if quick else (8192, 8)
    with Bench(context, 1) as bench:
        bench.run(Cell(10, context, 1), cells.RESIDENT)
        cell = Cell(1, context, sessions, seconds=20 if quick else 45)
        shared, separate = (bench.run(cell, arm, one_chain=True) for arm in (cells.SHARED, cells.SEPARATE))
        row("shared_bytes_vs_separate", moved(shared, separate) if shared else None, 1 / 6, at_most=True)
        row("shared_tokens_vs_separate", ratio(shared, separate), 1.5)
        row("shared_riders_of_a_swap", shared["riders"] if shared else None)
        shared, separate = (bench.run(cell, arm, one_chain=True) for arm in (cells.SHARED_EQUAL, cells.SEPARATE_EQUAL))
        row("shared_bytes_vs_separate_at_equal_drafts", moved(shared, separate) if shared else None, 1 / 6, at_most=True)
        row("shared_tokens_vs_separate_at_equal_drafts", ratio(shared, separate))
        bench.rows_identical()
        return {"results": bench.results}


# ---- first

def first_cell(context, tail, answer):
    """A prompt of which `tail` tokens lie behind the last stored block."""
    return Cell(1, context - ANSWER - BLOCK_TOKENS + tail + answer, 1, answer=answer)


def bench_first(quick):
    context = 4096 if quick else 8192
    with Bench(context, 1) as bench:
        stored = bench.prompts[0]
        of_tail = {tail: first_cell(context, tail, ANSWER_64 if tail == TAIL else ANSWER_FIRST) for tail in TAILS}
        fetched = {tail: bench.run(cell, cells.RESIDENT) for tail, cell in of_tail.items()}  # fetches all, then decodes
        push, swap = (bench.run(of_tail[TAIL], arm) for arm in (cells.PUSH, cells.DRAFTING["kivi4"]))
        row("first_token_push_down_without_sealed_form_vs_fetch_all", earlier(push, fetched[TAIL], "first_token_s"))
        row("token_64_swap_vs_fetch_all", earlier(swap, fetched[TAIL], "token_64_s"), 0.7, at_most=True)
        stored["salt"] = "sealed"
        bench.cluster.fill_sealed(stored, cells.SEALED_PUSH.options)
        for tail, cell in of_tail.items():
            name = "first_token_push_down_vs_fetch_all" + (f"_{tail}_behind" if tail != TAIL else "")
            row(name, earlier(bench.run(cell, cells.SEALED_PUSH), fetched[tail], "first_token_s"), 0.3, at_most=True)
        for arm in (cells.SEALED, cells.SEALED_LOOKUP):
            row(f"token_64_{arm.name}_vs_fetch_all", earlier(bench.run(of_tail[TAIL], arm), fetched[TAIL], "token_64_s"), 0.7, at_most=True)
        bench.rows_identical()
        return {"results": bench.results}


def earlier(one, other, key):
    """How much of the other's time it takes; None where one of them did not come so far."""
    return one[key][0] / other[key][0] if one and other and one[key] and other[key] else None


# ---- runs

def survival(runs, horizon):
    """For each position of a draft: of the drafts that are right so far, the share whose token there is accepted; None where fewer
    than REACH_MIN are."""
    lengths = [run - 1 for run in runs]
    reach = [[length for length in lengths if length >= position] for position in range(horizon)]
    return [sum(length > position for length in those) / len(those) if len(those) >= REACH_MIN else None for position, those in enumerate(reach)]


def measure_runs(arms, context, sessions, seconds, targets):
    """Rows of accepted drafts, by compressor; raw results, and the mean runs."""
    by_position, runs = {}, {}
    with Bench(context, sessions) as bench:
        bench.run(Cell(10, context, sessions), cells.RESIDENT)
        for name, arm in arms.items():
            result = bench.run(Cell(10, context, sessions, seconds=seconds), arm)
            if result:
                # Above what a text of a few rounds yields: accepted tokens by verifications, as `assay.mean_accepted_run`.
                runs[name] = result["mean_accepted_run"]
                row(f"accepted_run_{name}", runs[name], targets.get(name))
                by_position[name] = survival(result["runs"], cells.HORIZON)
        bench.rows_identical()
        return {"results": bench.results, "by_position": by_position, "runs": runs}


def bench_runs(quick):
    context, sessions = (4096, 4) if quick else (8192, 8)
    return measure_runs(cells.LONG, context, sessions, 30 if quick else 45, {"kivi4": 30, "snapkv": 10})


# ---- peer

def bench_peer(quick):
    raw = {}
    for batch in (1, 8):
        shape = ["--threads", THREADS, "--prompt", 256 if quick else 512, "--decode", 32 if quick else 64, "--batch", batch, "--repeat", 1]
        ours, theirs = [], []
        for i in range(1 if quick else 3):
            table.say(f"peer: batch {batch}, round {i + 1}")
            ours.append(table.one_line([engine_cluster.BIN / "bench_model", "--model", MODEL, *map(str, shape)]))
            theirs.append(table.one_line([sys.executable, table.ROOT / "tests" / "bench" / "llama_cpp.py", MODEL, *map(str, shape)]))
        for what in ("decode", "prefill"):
            mine, other = (statistics.median(one[f"{what}_tokens_per_s"] for one in runs) for runs in (ours, theirs))
            table.say(f"{what}, batch {batch}: {mine:.1f} tokens/s, llama.cpp {other:.1f}, {THREADS} threads")
            row(f"{what}_vs_llama_cpp_batch_{batch}", mine / other, 1.0)
        raw[str(batch)] = {"assay": ours, "llama.cpp": theirs}
    return raw


PARTS = {"main": bench_main, "sweep": bench_sweep, "sixteen": bench_sixteen, "shared": bench_shared, "first": bench_first, "runs": bench_runs, "peer": bench_peer}

if __name__ == "__main__":
    sys.exit(table.main("engine", __doc__, PARTS))
