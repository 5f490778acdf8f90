# SPDX-License-Identifier: Apache-2.0
"""Writes readers.txt: which tokens each reader chooses for seeded keys and queries, for test_readers.c.

Computed here by numpy in double precision from what the files of gpuworker/resident/read/ say, in single where a rounding to whole
numbers follows (KIVI's codes, and the steps of weights in kivi_attend.h). One row of queries chooses among `tokens` tokens, which are
held in blocks. Elements are golden_selectors': K [kv head][token][dim] in f16 from i = 0, Q [query head][dim] times 4 in f32 from i =
2^32. A seed is passed over where a choice is closer than single precision tells apart.
"""
from pathlib import Path

import numpy as np

from golden_selectors import TooClose, of, values

HERE = Path(__file__).parent
ITERATIONS = 20  # of k-means
FIELDS = "method seed dim q_heads kv_heads block tokens page sinks percent least channels bits span".split()
SHAPES = [  # dim q_heads kv_heads block tokens
    (64, 9, 3, 64, 704), (64, 4, 4, 16, 112), (64, 8, 1, 32, 320), (64, 9, 3, 50, 450), (64, 6, 2, 256, 1024),
    (80, 5, 1, 50, 600), (80, 4, 4, 16, 192), (80, 6, 2, 64, 512), (80, 8, 8, 32, 224), (80, 4, 2, 37, 148),
    (128, 8, 2, 64, 512), (128, 4, 4, 64, 256), (128, 7, 1, 16, 160), (128, 4, 1, 64, 1088), (128, 2, 2, 33, 99),
    (256, 4, 1, 64, 384), (256, 2, 2, 64, 256), (256, 8, 4, 16, 96), (256, 3, 1, 50, 350), (256, 2, 1, 256, 512),
]


class Case:
    """The held tokens of one layer, one row's queries, and the parameters of a reader."""

    def __init__(self, fields):
        self.__dict__.update(fields)
        heads = self.q_heads // self.kv_heads  # of one KV head
        self.f16 = values(self.seed, 0, self.kv_heads * self.tokens * self.dim).astype(np.float16)
        self.f16 = self.f16.reshape(self.kv_heads, self.tokens, self.dim)
        self.k = self.f16.astype(np.float64)
        q = values(self.seed, 2**32, self.q_heads * self.dim) * np.float32(4)
        self.q = q.reshape(self.kv_heads, heads, self.dim)

    def budget(self):
        return min(max(-(-self.tokens * self.percent // 100), self.least), self.tokens)

    def pages(self):
        """First and last token of each; none crosses a block."""
        for block in range(0, self.tokens, self.block):
            for first in range(block, block + self.block, self.page):
                yield first, min(first + self.page, block + self.block)


def take(scores, sizes, budget, margin):
    """(unit, tokens) by descending score until the budget is reached, of equal ones the first; the last may be cut."""
    order = np.lexsort((np.arange(len(scores)), -np.asarray(scores)))
    taken, left = [], budget
    for place, unit in enumerate(order):
        if left <= 0:
            gap = scores[order[place - 1]] - scores[unit]
            if 0 < gap < margin:
                raise TooClose
            break
        if sizes[unit]:
            taken.append((unit, min(sizes[unit], left)))
            left -= sizes[unit]
            cut = sizes[unit] + min(left, 0)
            if cut < sizes[unit] and np.abs(np.delete(scores, unit) - scores[unit]).min() < margin:
                raise TooClose  # which one is cut
    return taken


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def page_bounds(case):
    chosen, pages = [], list(case.pages())
    for k, q in zip(case.k, case.q.astype(np.float64)):
        scores = [sum(np.maximum(one * k[a:b].max(axis=0), one * k[a:b].min(axis=0)).sum() for one in q) for a, b in pages]
        sizes = [b - a for a, b in pages]
        order, tokens, place = np.lexsort((np.arange(len(pages)), -np.array(scores))), [], 0
        while len(tokens) < case.budget():
            tokens += range(*pages[order[place]])
            place += 1
        if place < len(order) and scores[order[place - 1]] - scores[order[place]] < 1e-5 * np.abs(scores).max():
            raise TooClose
        assert sum(sizes[u] for u in order[:place]) == len(tokens)
        chosen.append(sorted(tokens))
    return chosen


def k_means(keys, count):
    """Centroids, and the cluster of each key."""
    centroids, owner = keys[[i * len(keys) // count for i in range(count)]], None
    norms = np.linalg.norm(keys, axis=1, keepdims=True)
    for _ in range(ITERATIONS):
        cosines = keys / norms @ (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).T
        if count > 1:
            best = np.sort(cosines, axis=1)
            if (best[:, -1] - best[:, -2]).min() < 1e-6:
                raise TooClose
        owner = cosines.argmax(axis=1)
        centroids = np.array([keys[owner == i].mean(axis=0) if (owner == i).any() else centroids[i] for i in range(count)])
    return centroids, owner


def clusters(case):
    chosen, sinks = [], min(case.sinks, case.tokens)
    for k, q in zip(case.k, case.q.astype(np.float64).sum(axis=1)):
        scores, members = [], []
        for block in range(0, case.tokens, case.block):
            first = max(block, min(sinks, block + case.block))
            keys = k[first:block + case.block]
            if len(keys):
                centroids, owner = k_means(keys, -(-len(keys) // case.page))
                scores += list(centroids.astype(np.float16).astype(np.float64) @ q)
                members += [first + np.flatnonzero(owner == i) for i in range(len(centroids))]
        sizes = [len(tokens) for tokens in members]
        tokens = list(range(sinks))
        for unit, count in take(np.array(scores), sizes, case.budget() - sinks, 1e-3 * np.abs(scores).max()):
            tokens += list(members[unit][:count])
        chosen.append(sorted(tokens))
    return chosen


def two_dimensional(case):
    chosen, pages = [], list(case.pages())
    for k, q in zip(case.k, case.q.astype(np.float64)):
        size, count = np.abs(q).sum(axis=0), -(-case.dim * case.channels // 100)
        order = np.argsort(-size, kind="stable")
        if count < case.dim and size[order[count - 1]] - size[order[count]] < 1e-5:
            raise TooClose
        some, sign = np.sort(order[:count]), q.sum(axis=0) > 0
        if np.abs(q.sum(axis=0))[some].min() < 1e-5:
            raise TooClose
        bound = np.array([np.where(sign, k[a:b].max(axis=0), k[a:b].min(axis=0)) for a, b in pages])
        scores = sum(softmax(bound[:, some] @ one[some] / np.sqrt(case.dim * np.abs(one[some]).sum() / np.abs(one).sum())) for one in q)
        tokens = np.concatenate([np.full(b - a, scores[i]) for i, (a, b) in enumerate(pages)])
        best = np.lexsort((np.arange(case.tokens), -tokens))
        last = tokens[best[case.budget() - 1]]
        others = scores[scores != last]
        if len(others) and np.abs(others - last).min() < 1e-4 * last:
            raise TooClose
        chosen.append(sorted(best[:case.budget()]))
    return chosen


def codes_of(case, k):
    """KIVI's codes of one head's keys, by channel, in single precision: codes, scales, minima, of each token."""
    codes, scales, lows = (np.zeros(k.shape, np.float32) for _ in range(3))
    levels = np.float32(2**case.bits - 1)
    for block in range(0, case.tokens, case.block):
        for first in range(block, block + case.block, case.span):
            rows = slice(first, min(first + case.span, block + case.block))
            x = k[rows].astype(np.float32)
            low, high = x.min(axis=0), x.max(axis=0)
            scale = ((high - low) / levels).astype(np.float16).astype(np.float32)
            inverse = np.where(scale > 0, np.float32(1) / np.where(scale > 0, scale, 1), np.float32(0)).astype(np.float32)
            codes[rows] = np.clip(np.floor((x - low) * inverse + np.float32(0.5)), 0, levels)
            scales[rows], lows[rows] = scale, low
    return codes, scales, lows


def low_bits(case):
    chosen, mid = [], (2**case.bits - 1) / 2
    for k, q in zip(case.f16, case.q):
        codes, scales, lows = codes_of(case, k)
        scores = np.zeros(case.tokens)
        for one in q:
            logits = np.zeros(case.tokens)
            for block in range(0, case.tokens, case.block):
                rows = slice(block, block + case.block)
                step = np.abs(one * scales[rows]).max() * (np.float32(1) / np.float32(127))
                steps = np.rint((one * (np.float32(1) / step)).astype(np.float64) * scales[rows])
                centre = lows[rows].astype(np.float64) + mid * scales[rows].astype(np.float64)
                logits[rows] = (float(step) * steps * (codes[rows] - mid) + one.astype(np.float64) * centre).sum(axis=1)
            scores += softmax(logits / np.sqrt(case.dim))
        order = np.lexsort((np.arange(case.tokens), -scores))
        keep = case.budget()
        if keep < case.tokens and scores[order[keep - 1]] - scores[order[keep]] < 1e-4 * scores[order[keep]]:
            raise TooClose
        chosen.append(sorted(order[:keep]))
    return chosen


READERS = {  # what differs from DEFAULTS in case `number`
    "page_bounds": (page_bounds, lambda n: {"page": of(n, 16, 16, 10, 64), "least": of(n, 0, 48)}),
    "clusters": (clusters, lambda n: {"page": of(n, 16, 8), "sinks": of(n, 16, 0, 5, 70)}),
    "two_dimensional": (two_dimensional, lambda n: {"page": of(n, 3, 2, 4, 1, 16), "percent": of(n, 11, 25, 50),
                                                    "channels": of(n, 64, 25, 50, 100)}),
    "low_bits": (low_bits, lambda n: {"percent": of(n, 0, 0, 25), "least": of(n, 64, 10, 0), "bits": of(n, 2, 2, 4),
                                      "span": of(n, 64, 32)}),
}
DEFAULTS = {"page": 1, "sinks": 0, "percent": 25, "least": 0, "channels": 0, "bits": 0, "span": 0}


def solve(method, number):
    for seed in range(number * 100 + 1, number * 100 + 100):
        shape = dict(zip("dim q_heads kv_heads block tokens".split(), SHAPES[number]))
        fields = {"method": method, "seed": seed, **DEFAULTS, **shape, **READERS[method][1](number)}
        try:
            return fields, READERS[method][0](Case(fields))
        except TooClose:
            continue
    raise SystemExit(f"{method}, case {number}: every seed is too close")


def main():
    with open(HERE / "readers.txt", "w") as out:
        out.write(f"# by golden_readers.py. case: {' '.join(FIELDS)}; then for each KV head the chosen tokens, bit t % 4 of digit t / 4\n")
        for method in READERS:
            for number in range(len(SHAPES)):
                fields, chosen = solve(method, number)
                out.write("case " + " ".join(str(fields[name]) for name in FIELDS) + "\n")
                for tokens in chosen:
                    bits = sum(1 << int(t) for t in tokens)
                    out.write("read " + f"{bits:0{-(-fields['tokens'] // 4)}x}"[::-1] + "\n")


if __name__ == "__main__":
    main()
