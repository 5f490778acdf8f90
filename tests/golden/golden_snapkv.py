# SPDX-License-Identifier: Apache-2.0
"""Writes snapkv.txt: which tokens SnapKV keeps of seeded keys and queries, for test_snapkv.c.

Computed here by numpy in double precision from the method's description: softmax of the last `window` queries over all
tokens they see, summed over these rows and the query heads of a KV head, pooled by the maximum over `pool` tokens before
the window, the first `sinks` tokens kept always, and of the whole blocks that end before the last `window` (at least 32)
tokens the `keep` percent greatest, the lower position where they are equal.
Element i is splitmix64(seed * 2^40 + i) >> 40, mapped to [-1, 1): K [kv head][token][dim] in f16 from i = 0, Q
[row][query head][dim] times 4 in f32 from i = 2^32. A seed is passed over where two scores at the border of what is kept
are closer than single precision tells apart.
"""
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESIDUAL = 32  # newest tokens that are never sealed
MARGIN = 1e-4  # relative, between the last score that is kept and the first that is not
FIELDS = "seed dim q_heads kv_heads block tokens window pool sinks keep".split()
CASES = [  # dim q_heads kv_heads block tokens window pool sinks keep
    (64, 9, 3, 64, 700, 32, 7, 4, 25), (64, 4, 4, 16, 131, 32, 7, 4, 25), (64, 8, 1, 32, 333, 16, 5, 4, 25),
    (64, 9, 3, 64, 97, 32, 7, 4, 25), (64, 6, 2, 50, 419, 32, 1, 0, 10), (80, 5, 1, 50, 617, 32, 7, 4, 25),
    (80, 4, 4, 16, 200, 8, 7, 4, 25), (80, 6, 2, 64, 512, 32, 3, 1, 50), (80, 8, 8, 32, 255, 32, 7, 4, 25),
    (80, 4, 2, 64, 160, 1, 7, 4, 25), (128, 8, 2, 64, 520, 32, 7, 4, 25), (128, 4, 4, 64, 300, 32, 5, 4, 25),
    (128, 7, 1, 16, 177, 32, 7, 8, 12), (128, 4, 1, 64, 1100, 32, 7, 4, 25), (128, 2, 2, 32, 65, 32, 7, 4, 25),
    (256, 4, 1, 64, 400, 32, 7, 4, 25), (256, 2, 2, 64, 289, 32, 7, 4, 25), (256, 8, 4, 16, 96, 16, 7, 4, 75),
    (256, 3, 1, 50, 349, 32, 9, 4, 25), (256, 2, 1, 256, 544, 32, 7, 4, 1),
]


def values(seed, first, count):
    with np.errstate(over="ignore"):
        x = np.uint64(seed * 2**40 + first) + np.arange(count, dtype=np.uint64) + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        x = (x ^ (x >> np.uint64(31))) >> np.uint64(40)
    return x.astype(np.float32) / np.float32(2**23) - np.float32(1)


def scores(c, seed):
    """[kv head][token before the window]"""
    group = c["q_heads"] // c["kv_heads"]
    k = values(seed, 0, c["kv_heads"] * c["tokens"] * c["dim"]).astype(np.float16).astype(np.float64)
    k = k.reshape(c["kv_heads"], c["tokens"], c["dim"])
    q = (values(seed, 2**32, c["window"] * c["q_heads"] * c["dim"]) * np.float32(4)).astype(np.float64)
    q = q.reshape(c["window"], c["q_heads"], c["dim"])
    before = c["tokens"] - c["window"]
    visible = np.arange(c["tokens"])[None, :] <= (before + np.arange(c["window"]))[:, None]
    total = np.zeros((c["kv_heads"], before))
    for head in range(c["q_heads"]):
        logits = np.where(visible, q[:, head] @ k[head // group].T / np.sqrt(c["dim"]), -np.inf)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        total[head // group] += (p / p.sum(axis=1, keepdims=True))[:, :before].sum(axis=0)
    return total


def kept(c, seed):
    """Positions for each KV head; None where a choice is too close."""
    sealed = (c["tokens"] - RESIDUAL) // c["block"] * c["block"]
    keep = min(max(-(-sealed * c["keep"] // 100), c["sinks"]), sealed)
    reach, chosen = c["pool"] // 2, []
    for row in scores(c, seed):
        pooled = np.array([row[max(t - reach, 0):t + reach + 1].max() for t in range(sealed)])
        pooled[:c["sinks"]] = np.inf
        order = np.lexsort((np.arange(sealed), -pooled))
        different = np.unique(pooled[np.isfinite(pooled)])
        gaps = np.diff(different) / different[1:]
        border = np.searchsorted(different, pooled[order[keep - 1]])
        near = gaps[max(border - 1, 0):border + 1]
        if near.size and near.min() < MARGIN:
            return None
        chosen.append(sorted(order[:keep]))
    return chosen


def main():
    with open(HERE / "snapkv.txt", "w") as out:
        out.write(f"# by golden_snapkv.py. case: {' '.join(FIELDS)}; then the kept positions of each KV head\n")
        for number, fields in enumerate(CASES):
            c = dict(zip(FIELDS[1:], fields))
            seed = next(s for s in range(number * 100 + 1, number * 100 + 100) if kept(c, s) is not None)
            out.write("case " + " ".join(str(f) for f in (seed, *fields)) + "\n")
            for row in kept(c, seed):
                out.write("kept " + " ".join(str(t) for t in row) + "\n")


if __name__ == "__main__":
    main()
