#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench divergence`: why drafts are verified. Answers of each compressor without verification
(`assay.verify: off`) beside those of the full cache, greedy, on real prompts of 230 to 1,300 tokens (tests/tools/prompts.py), a part a kind
of text. Every answer of the same prompts with verification is the full cache's (tests/cluster/test_identical.py).

first_divergence   the median number of tokens before the first that the full cache would not have said; that of an answer which
                   has none counts as its length
same_at_64, _128   share of the answers whose first 64, 128 tokens are the full cache's
kl_a_token         mean of KL(lossy || full) in nats over the tokens up to the first divergence, where both have said the
                   same so far; of the 20 most likely tokens of each and the rest as one, so a little less than it is

Prints `row value target pass|miss`, after lines that name the machine, the commit and the command. No row has a target.
"""
import contextlib
import math
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import table

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("cluster", "tools")]
import prompts  # noqa: E402
from harness import Cluster, post  # noqa: E402

COMPRESSORS = ["kivi4", "kivi2", "streaming", "snapkv"]
TOKENS = 128
ALTERNATIVES = 20


def answer(url, text, compressor):
    """Token ids, and the most likely ones of each place with their log-probabilities."""
    assay = {"compressor": compressor, "verify": "off", "logits_hash": True, "ignore_end": True}
    body = {"prompt": text, "max_tokens": TOKENS, "temperature": 0, "logprobs": ALTERNATIVES, "assay": assay}
    status, reply = post(url + "/v1/completions", body, seconds=1800)
    assert status == 200, reply
    choice = reply["choices"][0]
    return choice["assay"]["tokens"], choice["logprobs"]["top_logprobs"]


def divergence(lossy, full):
    """KL over what both list, and the rest as one token."""
    both = [token for token in lossy if token in full]
    pairs = [(math.exp(lossy[token]), math.exp(full[token])) for token in both]
    rest = [max(1 - sum(pair[side] for pair in pairs), 1e-6) for side in (0, 1)]
    return sum(p * math.log(p / q) for p, q in [*pairs, rest] if p > 0 and q > 0)


def compare(lossy, full):
    """How many tokens agree, and the divergences up to the first that does not."""
    agree = next((n for n in range(TOKENS) if lossy[0][n] != full[0][n]), TOKENS)
    return agree, [divergence(lossy[1][n], full[1][n]) for n in range(min(agree + 1, TOKENS))]


def answers(url, text):
    """Of the full cache and of each compressor, computed together."""
    results = {}

    def run(compressor):
        results[compressor] = answer(url, text, compressor)

    threads = [threading.Thread(target=run, args=(name,)) for name in ["none", *COMPRESSORS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def bench_kind(url, kind, quick):
    chosen = [prompt for prompt in prompts.cut(longest=1300) if prompt.kind == kind and prompt.tokens >= 230]
    agree, distances = {name: [] for name in COMPRESSORS}, {name: [] for name in COMPRESSORS}
    for prompt in chosen[::3] if quick else chosen:
        table.say(prompt.name)
        results = answers(url, prompt.text)
        for name in COMPRESSORS:
            count, divergences = compare(results[name], results["none"])
            agree[name].append(count)
            distances[name] += divergences
    for name in COMPRESSORS:
        table.row(f"{kind}_{name}_first_divergence", statistics.median(agree[name]))
        for tokens in 64, TOKENS:
            table.row(f"{kind}_{name}_same_at_{tokens}", sum(count >= tokens for count in agree[name]) / len(agree[name]))
        table.row(f"{kind}_{name}_kl_a_token", statistics.mean(distances[name]))
    return {"agree": agree, "kl_a_token": {name: statistics.mean(distances[name]) for name in COMPRESSORS}}


def part(kind, world):
    return lambda quick: bench_kind(world.url(), kind, quick)


KINDS = ["prose", "code", "json", "tools", "languages"]
PARTS = dict.fromkeys(KINDS)  # made when there is a worker

if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        if "--help" not in sys.argv and "-h" not in sys.argv:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options = ["--sessions=8", "--prompt-lookup=0"]
            running = stack.enter_context(Cluster(folder, stores=0, scheduler=False, worker_options=options))
            PARTS = {kind: part(kind, running) for kind in KINDS}
        sys.exit(table.main("divergence", __doc__, PARTS))
