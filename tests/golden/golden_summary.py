# SPDX-License-Identifier: Apache-2.0
"""Writes summary.txt: attention with a low-rank summary of dropped tokens, for test_summary.c.

Computed here by numpy in double precision from the formula in gpuworker/resident/summary.h. Of `blocks` blocks the first and the
newest `window` stay. Element i of a seed is golden_selectors's; K is [kv head][token][dim] from i = 0, V the same from 2^32, both in
f16; Q [row][query head][dim] from 2^33; maps from 2^34, those of query heads, then of KV heads: 8 rows of dim weights, times 0.2, then 8
biases. For each row and query head the file has the logarithm of the sum of exponentials, and channels 0, dim / 2 and dim - 1.
"""
from pathlib import Path

import numpy as np

from golden_selectors import values

HERE = Path(__file__).parent
FEATURES = 8
CASES = [  # dim q_heads kv_heads block blocks window rows
    (64, 9, 3, 64, 7, 2, 2), (64, 4, 4, 16, 11, 3, 3), (64, 8, 1, 32, 5, 1, 1), (64, 6, 2, 50, 6, 2, 1), (64, 2, 2, 16, 40, 4, 2),
    (80, 5, 1, 50, 6, 2, 2), (80, 4, 4, 16, 9, 1, 1), (80, 6, 2, 64, 4, 1, 2), (80, 8, 8, 32, 5, 2, 1), (80, 4, 2, 16, 20, 2, 3),
    (128, 8, 2, 64, 5, 2, 2), (128, 4, 4, 32, 6, 2, 1), (128, 7, 1, 16, 12, 3, 1), (128, 4, 1, 64, 8, 3, 1), (128, 2, 2, 32, 4, 1, 2),
    (256, 4, 1, 64, 5, 1, 2), (256, 2, 2, 64, 4, 2, 1), (256, 8, 4, 16, 9, 2, 2), (256, 3, 1, 50, 5, 1, 1), (256, 2, 1, 16, 30, 4, 3),
]


def map_of(weights, x):
    dim = x.shape[-1]
    return np.exp(np.clip(x @ weights[:FEATURES * dim].reshape(FEATURES, dim).T + weights[FEATURES * dim:], -30, 30))


def main():
    lines = ["# by golden_summary.py. case: seed dim q_heads kv_heads block blocks window rows; of each row and head: lse, channels"]
    for seed, (dim, q_heads, kv_heads, block, blocks, window, rows) in enumerate(CASES, 1):
        tokens, floats = block * blocks, FEATURES * (dim + 1)

        def cached(first):
            x = values(seed, first, kv_heads * tokens * dim).astype(np.float16)
            return x.astype(np.float64).reshape(kv_heads, tokens, dim)
        k, v = cached(0), cached(2**32)
        q = values(seed, 2**33, rows * q_heads * dim).astype(np.float64).reshape(rows, q_heads, dim)
        maps = values(seed, 2**34, (q_heads + kv_heads) * floats).reshape(-1, floats).astype(np.float32)
        maps[:, :FEATURES * dim] *= np.float32(0.2)
        maps = maps.astype(np.float64)
        number = np.arange(tokens) // block
        kept = (number == 0) | (number >= blocks - window)
        lines.append(f"case {seed} {dim} {q_heads} {kv_heads} {block} {blocks} {window} {rows}")
        for row in range(rows):
            for head in range(q_heads):
                h = head // (q_heads // kv_heads)
                features = map_of(maps[q_heads + h], k[h, ~kept])
                big_h, z = features.T @ v[h, ~kept], features.sum(0)
                psi = map_of(maps[head], q[row, head])
                exact = np.exp(k[h, kept] @ q[row, head] / np.sqrt(dim))
                total = exact.sum() + psi @ z
                out = (exact @ v[h, kept] + psi @ big_h) / total
                lines.append(" ".join(f"{x:.8g}" for x in (np.log(total), out[0], out[dim // 2], out[dim - 1])))
    (HERE / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
