# SPDX-License-Identifier: Apache-2.0
"""Writes selectors.txt: which tokens each selector keeps of seeded keys, values and queries, for test_selectors.c.

Computed here by numpy in double precision from the methods' papers, and from what their files in gpuworker/resident/select/
say that is done otherwise. Of a prompt of `tokens` tokens the whole blocks before its newest 32 are chosen from.
Element i is splitmix64(seed * 2^40 + i) >> 40, mapped to [-1, 1): K [kv head][token][dim] in f16 from i = 0, Q
[row][query head][dim] times 4 in f32 from i = 2^32, V as K from i = 2^33. A seed is passed over where a choice is closer
than single precision tells apart.
"""
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESIDUAL = 32  # newest tokens that are never sealed
FUTURE = 512  # positions of expected queries
MARGIN = 1e-4  # relative, between the last score that is kept and the first that is not
FIELDS = ("method seed dim q_heads kv_heads block tokens window pool sinks keep recent slope layers layer floor drop "
          "rope_dim neox positions").split()
SHAPES = [  # dim q_heads kv_heads block tokens window pool sinks keep
    (64, 9, 3, 64, 700, 32, 7, 4, 25), (64, 4, 4, 16, 131, 32, 7, 4, 25), (64, 8, 1, 32, 333, 16, 5, 4, 25),
    (64, 9, 3, 64, 97, 32, 7, 4, 25), (64, 6, 2, 50, 419, 32, 1, 0, 10), (80, 5, 1, 50, 617, 32, 7, 4, 25),
    (80, 4, 4, 16, 200, 8, 7, 4, 25), (80, 6, 2, 64, 512, 32, 3, 1, 50), (80, 8, 8, 32, 255, 32, 7, 4, 25),
    (80, 4, 2, 64, 160, 1, 7, 4, 25), (128, 8, 2, 64, 520, 32, 7, 4, 25), (128, 4, 4, 64, 300, 32, 5, 4, 25),
    (128, 7, 1, 16, 177, 32, 7, 8, 12), (128, 4, 1, 64, 1100, 32, 7, 4, 25), (128, 2, 2, 32, 65, 32, 7, 4, 25),
    (256, 4, 1, 64, 400, 32, 7, 4, 25), (256, 2, 2, 64, 289, 32, 7, 4, 25), (256, 8, 4, 16, 96, 16, 7, 4, 75),
    (256, 3, 1, 50, 349, 32, 9, 4, 25), (256, 2, 1, 256, 544, 32, 7, 4, 1),
]


class TooClose(Exception):
    pass


class Case:
    """A prompt of one layer, and the parameters of a method."""

    def __init__(self, fields):
        self.__dict__.update(fields)
        self.group = self.q_heads // self.kv_heads
        self.sealed = (self.tokens - RESIDUAL) // self.block * self.block
        shape = (self.kv_heads, self.tokens, self.dim)
        self.k = values(self.seed, 0, np.prod(shape)).astype(np.float16).astype(np.float64).reshape(shape)
        self.v = values(self.seed, 2**33, np.prod(shape)).astype(np.float16).astype(np.float64).reshape(shape)
        q = values(self.seed, 2**32, self.window * self.q_heads * self.dim) * np.float32(4)
        self.q = q.astype(np.float64).reshape(self.window, self.q_heads, self.dim)

    def attention(self, head, row):
        """Of one query head and row of the window, on every token."""
        last = self.tokens - self.window + row
        logits = self.k[head // self.group, :last + 1] @ self.q[row, head] / np.sqrt(self.dim)
        p = np.exp(logits - logits.max())
        return np.pad(p / p.sum(), (0, self.tokens - last - 1))

    def group_attention(self, kv_head):
        """Summed over the window and the query heads of a KV head."""
        heads = range(kv_head * self.group, (kv_head + 1) * self.group)
        return sum(self.attention(head, row) for head in heads for row in range(self.window))

    def budget(self):
        keep = min(max(-(-self.sealed * self.keep // 100), self.sinks), self.sealed)
        if self.slope == 0 or self.layers < 2:
            return keep
        least = keep // self.slope
        most = 2 * keep - least
        if most > self.sealed:
            most, least = self.sealed, 2 * keep - self.sealed
        if least < min(self.sinks, self.sealed):
            return keep
        line = [most - Fraction(layer * (most - least), self.layers - 1) for layer in range(self.layers)]
        return floor(sum(line[:self.layer + 1])) - floor(sum(line[:self.layer]))


def values(seed, first, count):
    with np.errstate(over="ignore"):
        x = np.uint64(seed * 2**40 + first) + np.arange(count, dtype=np.uint64) + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        x = (x ^ (x >> np.uint64(31))) >> np.uint64(40)
    return x.astype(np.float32) / np.float32(2**23) - np.float32(1)


def greatest(scores, keep):
    """Places of the `keep` greatest, of equal ones the lower; no two near the border may be nearly equal."""
    order = np.lexsort((np.arange(scores.size), -scores))
    if 0 < keep < scores.size:
        last = scores[order[keep - 1]]
        others = np.unique(scores[np.isfinite(scores) & (scores != last)])
        if np.isfinite(last) and others.size and np.abs(others - last).min() < MARGIN * abs(last):
            raise TooClose
    return np.sort(order[:keep])


def best(case, scores, first_sinks, keep):
    """For each KV head, of scores [kv head][token]."""
    scores = np.array(scores, dtype=np.float64)
    scores[:, :first_sinks] = np.inf
    if case.floor == 0:
        return [list(greatest(row, keep)) for row in scores]
    for row in scores:
        row[greatest(row, keep * case.floor // 100)] = np.inf
    flat = greatest(scores.reshape(-1), case.kv_heads * keep)
    return [[i % scores.shape[1] for i in flat if i // scores.shape[1] == head] for head in range(case.kv_heads)]


# ---- Of each block -------------------------------------------------------------------------------------------------


def by_blocks(case, score):
    kept = [[] for _ in range(case.kv_heads)]
    keep = -(-case.block * case.keep // 100)
    for first in range(0, case.sealed, case.block):
        keys = case.k[:, first:first + case.block]
        sinks = min(max(case.sinks - first, 0), keep)
        for head, chosen in enumerate(best(case, [score(rows) for rows in keys], sinks, keep)):
            kept[head] += [first + i for i in chosen]
    return kept


def norms(case):
    return by_blocks(case, lambda keys: -np.linalg.norm(keys, axis=1)**2)


def key_difference(case):
    def score(keys):
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        anchor = unit.mean(axis=0)
        return -(unit @ anchor) / np.linalg.norm(anchor)
    return by_blocks(case, score)


def positions(case):
    """StreamingLLM: the sinks and the newest, in whole blocks; `window` tokens are new."""
    blocks = case.sealed // case.block
    sinks, newest = -(-case.sinks // case.block), max(-(-case.window // case.block), 1)
    held = [b for b in range(blocks) if b < sinks or b >= blocks - newest]
    return [[b * case.block + t for b in held for t in range(case.block)]] * case.kv_heads


# ---- Of the prompt -------------------------------------------------------------------------------------------------


def window(case):
    before, reach, scores = case.tokens - case.window, case.pool // 2, []
    for head in range(case.kv_heads):
        row = case.group_attention(head)[:before]
        scores.append([row[max(t - reach, 0):t + reach + 1].max() for t in range(case.sealed)])
    return best(case, scores, case.sinks, case.budget())


def last_query(case):
    row = sum(case.attention(head, case.window - 1) for head in range(case.q_heads))[:case.sealed]
    return best(case, [row] * case.kv_heads, case.sinks, case.budget())


def cumulative(case):
    scores = np.array([case.group_attention(head)[:case.sealed] for head in range(case.kv_heads)])
    recent = (case.budget() - min(case.sinks, case.budget())) * case.recent // 100
    scores[:, case.sealed - recent:] = np.inf
    return best(case, scores, case.sinks, case.budget())


def norm_stop(case):
    rows = [case.attention(head, case.window - 1) for head in range(case.q_heads)]
    norm = [np.mean([np.sqrt((row[i:]**2).sum()) for row in rows]) for i in range(case.tokens)]
    sinks = min(case.sinks, case.sealed)
    lost = [(norm[sinks] - norm[i]) / norm[sinks] for i in range(sinks, case.sealed + 1)]
    if min(abs(part - case.drop / 1000) for part in lost) < MARGIN * case.drop / 1000:
        raise TooClose
    first = sinks + max(i for i, part in enumerate(lost) if part <= case.drop / 1000)
    return [[*range(sinks), *range(first, case.sealed)]] * case.kv_heads


def rotation(case, position):
    """The matrix by which a head is rotated at a position."""
    matrix, half = np.eye(case.dim), case.rope_dim // 2
    for pair in range(half):
        x, y = (pair, pair + half) if case.neox else (2 * pair, 2 * pair + 1)
        angle = position * 10000.0**(-2.0 * pair / case.rope_dim)
        matrix[x, x] = matrix[y, y] = np.cos(angle)
        matrix[y, x] = np.sin(angle)
        matrix[x, y] = -np.sin(angle)
    return matrix


def expected(case):
    first = min(case.tokens, case.positions - 1)
    future = np.mean([rotation(case, p) for p in range(first, min(first + FUTURE, case.positions))], axis=0)
    scores, back = [], [rotation(case, case.tokens - case.window + row).T for row in range(case.window)]
    for head in range(case.kv_heads):
        total = np.zeros(case.sealed)
        for query in range(head * case.group, (head + 1) * case.group):
            q = np.array([back[row] @ case.q[row, query] for row in range(case.window)])
            mean = future @ q.mean(axis=0)
            covariance = future @ np.cov(q.T, bias=True) @ future.T
            k = case.k[head, case.sinks:]
            z = k @ mean / np.sqrt(case.dim) + np.einsum("ti,ij,tj->t", k, covariance, k) / (2 * case.dim)
            p = np.exp(z - z.max())
            total += np.concatenate([np.zeros(case.sinks), p / p.sum()])[:case.sealed]
        scores.append(total / case.group * np.linalg.norm(case.v[head, :case.sealed], axis=1))
    return best(case, scores, case.sinks, case.budget())


# ---- Cases ---------------------------------------------------------------------------------------------------------


def of(number, *choices):
    return choices[number % len(choices)]


METHODS = {  # what differs from SHAPES in case `number`
    "norms": (norms, lambda n: {}),
    "key_difference": (key_difference, lambda n: {}),
    "positions": (positions, lambda n: {"window": of(n, 256, 100, 64, 1)}),
    "expected": (expected, lambda n: {"rope_dim": of(n, "dim", "dim", 32, 0), "neox": n % 2,
                                      "positions": of(n, 4096, 1200, "tokens", "tokens")}),
    "window": (window, lambda n: {}),
    "pyramid": (window, lambda n: {"slope": of(n, 20, 5, 2), "layers": of(n, 30, 2, 7, 1), "layer": "any",
                                   "keep": of(n, 25, 40, 60)}),
    "adaptive": (window, lambda n: {"floor": of(n, 20, 50, 1, 100)}),
    "last_query": (last_query, lambda n: {"window": of(n, 1, 1, 8), "sinks": of(n, 0, 4)}),
    "cumulative": (cumulative, lambda n: {"recent": of(n, 50, 25, 0, 100), "sinks": of(n, 0, 4)}),
    "norm_stop": (norm_stop, lambda n: {"window": 1, "keep": 100, "drop": of(n, 10, 50, 200, 600)}),
}
DEFAULTS = {"recent": 0, "slope": 0, "layers": 1, "layer": 0, "floor": 0, "drop": 0, "rope_dim": 0, "neox": 0, "positions": 1}


def fields_of(method, number, seed):
    shape = dict(zip("dim q_heads kv_heads block tokens window pool sinks keep".split(), SHAPES[number]))
    fields = {"method": method, "seed": seed, **DEFAULTS, **shape, **METHODS[method][1](number)}
    if fields["layer"] == "any":
        fields["layer"] = seed % fields["layers"]
    return {name: fields.get(value, value) if name not in ("method", "seed") else value for name, value in fields.items()}


def solve(method, number):
    for seed in range(number * 100 + 1, number * 100 + 100):
        fields = fields_of(method, number, seed)
        try:
            return fields, METHODS[method][0](Case(fields))
        except TooClose:
            continue
    raise SystemExit(f"{method}, case {number}: every seed is too close")


def main():
    with open(HERE / "selectors.txt", "w") as out:
        out.write(f"# by golden_selectors.py. case: {' '.join(FIELDS)}; then for each KV head the kept positions, "
                  "bit p % 4 of digit p / 4\n")
        for method in METHODS:
            for number in range(len(SHAPES)):
                fields, kept = solve(method, number)
                out.write("case " + " ".join(str(fields[name]) for name in FIELDS) + "\n")
                for head in kept:
                    bits = sum(1 << int(t) for t in head)
                    digits = -(-((fields["tokens"] - RESIDUAL) // fields["block"] * fields["block"]) // 4)
                    out.write("kept " + f"{bits:0{digits}x}"[::-1] + "\n")


if __name__ == "__main__":
    main()
