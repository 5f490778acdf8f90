# SPDX-License-Identifier: Apache-2.0
"""Writes rate.txt: how many bits tokens and channels of seeded prompts get, for test_rate.c.

Computed here by numpy in double precision from the descriptions in gpuworker/resident/select/rate.h and mixed.h; only lambda and
what it multiplies are floats, as there. Of a prompt of `tokens` tokens the whole blocks before its newest 32 are chosen for.
Elements are golden_selectors's, i-th of the seed: K [kv head][token][dim] from i = 0, Q [row][query head][dim] from i = 2^32, and
how much each token is looked at, from i = 2^33: K's channel c is (value + sign * pull) * ((1 + c % 7) / 4)^3 in f16, with pull the
fourth power of the token's value times 32 / dim^(1/2), and Q's value + sign, with sign alternating along c. A seed is passed over
where weights that are slightly different would be given other bits.
"""
from pathlib import Path

import numpy as np

from golden_selectors import RESIDUAL, values

HERE = Path(__file__).parent
BITS = (0, 2, 4, 8, 16)
VALUE_LOSS = (1, 0.312, 0.0138, 4.8e-5, 0)
KEY_LOSS = (1, 0.277, 0.011, 6.1e-5)
FIELDS = "seed dim q_heads kv_heads block tokens window pool bits".split()
CASES = [  # dim q_heads kv_heads block tokens window pool bits
    (64, 9, 3, 64, 700, 32, 5, 2), (64, 4, 4, 16, 131, 32, 5, 2), (64, 8, 1, 32, 333, 16, 5, 2), (64, 9, 3, 64, 1500, 32, 7, 1),
    (64, 6, 2, 50, 419, 32, 1, 4), (80, 5, 1, 50, 617, 32, 5, 2), (80, 4, 4, 16, 200, 8, 5, 2), (80, 6, 2, 64, 512, 32, 3, 3),
    (80, 8, 8, 32, 255, 32, 5, 2), (80, 4, 2, 64, 300, 1, 5, 2), (128, 8, 2, 64, 520, 32, 5, 2), (128, 4, 4, 64, 300, 32, 5, 1),
    (128, 7, 1, 16, 177, 32, 9, 8), (128, 4, 1, 64, 1100, 32, 5, 2), (128, 2, 2, 32, 130, 32, 5, 2), (256, 4, 1, 64, 400, 32, 5, 2),
    (256, 2, 2, 64, 289, 32, 5, 2), (256, 8, 4, 16, 150, 16, 5, 2), (256, 3, 1, 50, 349, 32, 5, 2), (256, 2, 1, 256, 544, 32, 5, 1),
]
MARGIN, TRIALS = 1e-5, 20


def up(a, b):
    return -(-a // b)


def value_bytes(dim, counts):
    coded = sum(up(n, 32 // b) * (dim // 16) * 64 + up(n, 16) * 16 * 4 for b, n in zip(BITS[1:4], counts[1:4]))
    return coded + counts[4] * dim * 2


def key_bytes(dim, tokens, counts):
    def piece(sixteens):
        return sum(up(n // 4 * sixteens * b, 8) for b, n in zip(BITS[1:4], counts[1:4])) * 64
    return up(5 * dim, 64) * 64 + tokens // 64 * piece(4) + piece(up(tokens % 64, 16))


def rates_of(weights, steps, lam):
    return sum((weights > np.float32(lam) * step).astype(int) for step in steps)


def solve(weights, steps, cost, limit):
    """The rate of each item; `cost` is of how many have each rate."""
    weights = weights.astype(np.float32)

    def fits(rates):
        return cost(np.bincount(rates, minlength=5)) <= limit
    low, high = 0, 0x7f800000
    with np.errstate(over="ignore", invalid="ignore"):
        while low < high:
            middle = (low + high) // 2
            if fits(rates_of(weights, steps, np.uint32(middle).view(np.float32))):
                high = middle
            else:
                low = middle + 1
        rates = rates_of(weights, steps, np.uint32(high).view(np.float32))
        more = rates_of(weights, steps, np.uint32(max(high - 1, 0)).view(np.float32))
    for i in np.flatnonzero(more > rates):
        before, rates[i] = rates[i], more[i]
        if not fits(rates):
            rates[i] = before
            break
    return rates


def firmly(weights, *problem):
    """None where weights a little different have another solution."""
    rates = solve(weights, *problem)
    random = np.random.default_rng(1)
    for _ in range(TRIALS):
        near = weights * (1 + MARGIN * random.uniform(-1, 1, weights.shape))
        if not np.array_equal(solve(near, *problem), rates):
            return None
    return rates


def steps_of(loss, bytes_):
    return [np.float32((b - a) / (x - y)) for a, b, x, y in zip(bytes_, bytes_[1:], loss, loss[1:])]


class Case:
    def __init__(self, fields):
        self.__dict__.update(fields)
        self.sealed = (self.tokens - RESIDUAL) // self.block * self.block
        signs = np.where(np.arange(self.dim) % 2, -1, 1).astype(np.float32)
        pull = values(self.seed, 2**33, self.tokens)
        pull = pull * pull * pull * pull * np.float32(32) / np.sqrt(np.float32(self.dim))
        k = values(self.seed, 0, self.kv_heads * self.tokens * self.dim).reshape(self.kv_heads, self.tokens, self.dim)
        widths = ((1 + np.arange(self.dim) % 7)**3).astype(np.float32) / np.float32(64)
        self.k = ((k + signs * pull[:, None]) * widths).astype(np.float16).astype(np.float64)
        q = values(self.seed, 2**32, self.window * self.q_heads * self.dim).reshape(self.window, self.q_heads, self.dim)
        self.q = (q + signs).astype(np.float64)

    def heads(self, kv_head):
        group = self.q_heads // self.kv_heads
        return range(kv_head * group, (kv_head + 1) * group)

    def token_weights(self, kv_head):
        before, total = self.tokens - self.window, 0
        for head in self.heads(kv_head):
            for row in range(self.window):
                logits = self.k[kv_head, :before + row + 1] @ self.q[row, head] / np.sqrt(self.dim)
                p = np.exp(logits - logits.max())
                total = total + (p / p.sum())[:before]
        reach = min(self.pool // 2, before - 1)
        padded = np.pad(total, reach, mode="reflect")
        return np.convolve(padded, np.full(2 * reach + 1, 1 / (2 * reach + 1)), mode="valid")[:self.sealed]

    def channel_weights(self, kv_head):
        q = self.q[:, self.heads(kv_head)]
        return (q**2).mean(axis=(0, 1)) * self.k[kv_head, :self.sealed].var(axis=0)

    def allocate(self, kv_head):
        dim, limit = self.dim, self.sealed * self.dim * 2 * self.bits // 8 // 64 * 64
        each = [0] + [dim * b // 8 + (4 if b < 16 else 0) for b in BITS[1:]]
        tokens = firmly(self.token_weights(kv_head), steps_of(VALUE_LOSS, each), lambda n: value_bytes(dim, n),
                        min(limit // 2, limit - key_bytes(dim, 0, [0] * 5)))
        if tokens is None:
            return None
        counts = np.bincount(tokens, minlength=5)
        weights = self.channel_weights(kv_head)
        order = np.lexsort((np.arange(dim), -weights))
        near = np.diff(-weights[order]) / weights[order][:-1]
        fours = firmly(weights[order].reshape(-1, 4).sum(axis=1), steps_of(KEY_LOSS, BITS[:4]),
                       lambda n: key_bytes(dim, self.sealed - counts[0], 4 * n), limit - value_bytes(dim, counts))
        if fours is None or near.min() < MARGIN:
            return None
        channels = np.empty(dim, int)
        channels[order] = np.repeat(fours, 4)
        return tokens, channels


def main():
    seen = [set(), set()]
    with open(HERE / "rate.txt", "w") as out:
        out.write(f"# by golden_rate.py. case: {' '.join(FIELDS)}; then for each KV head a digit for each token, and for each "
                  f"channel: which of {BITS} bits\n")
        for number, shape in enumerate(CASES):
            for seed in range(number * 100 + 1, number * 100 + 100):
                fields = dict(zip(FIELDS, (seed, *shape)))
                heads = [Case(fields).allocate(head) for head in range(fields["kv_heads"])]
                if all(heads):
                    break
            else:
                raise SystemExit(f"case {number}: every seed is too close")
            out.write("case " + " ".join(str(fields[name]) for name in FIELDS) + "\n")
            for head in heads:
                for name, rates, kinds in zip(("tokens", "channels"), head, seen):
                    out.write(f"{name} {''.join(map(str, rates))}\n")
                    kinds.update(rates)
    assert seen == [{0, 1, 2, 3, 4}, {0, 1, 2, 3}], seen


if __name__ == "__main__":
    main()
