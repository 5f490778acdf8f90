# SPDX-License-Identifier: Apache-2.0
"""Writes turbo.txt: rotated Lloyd-Max codes of seeded keys and values, for test_turbo.c.

Computed here by numpy in double precision from the description in gpuworker/resident/turbo.h, the rotation as a dense matrix.
Element i of a seed is golden_selectors's; K is [kv head][token][dim] from i = 0, channel c plus c % 5 - 2, V the same from i =
2^32, token t times t % 4 (so that some are zero), both in f16. For each vector the file has FNV-1a of its codes and the bits of
its scale; for each head FNV-1a of the bits of the mean key. A seed is passed over where single precision might
round another way.
"""
from pathlib import Path

import numpy as np

from golden_selectors import values

HERE = Path(__file__).parent
SIGN_SEED = 0x5475726271756e74
BOOKS = {3: ([7, 22, 39, 63], 29.21), 4: ([3, 9, 15, 22, 29, 37, 48, 63], 23.08)}
CASES = [  # bits dim kv_heads tokens
    (4, 64, 3, 16), (3, 64, 3, 16), (4, 64, 1, 64), (3, 64, 1, 64), (4, 80, 1, 50), (3, 80, 1, 50), (4, 80, 2, 7),
    (3, 80, 2, 7), (4, 128, 2, 16), (3, 128, 2, 16), (4, 128, 1, 33), (3, 128, 1, 33), (4, 256, 1, 16), (3, 256, 1, 16),
    (4, 256, 2, 3), (3, 256, 2, 3), (4, 16, 2, 17), (3, 16, 2, 17), (4, 48, 1, 32), (3, 96, 1, 32),
]


def splitmix(x):
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))


def rotation(dim):
    with np.errstate(over="ignore"):
        bits = splitmix(np.uint64(SIGN_SEED) + np.arange(3 * 256, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15))
    signs = [np.diag(s) for s in np.where(bits >> np.uint64(63), -1.0, 1.0).reshape(3, 256)[:, :dim]]
    power = 2 ** int(np.log2(dim))
    hadamard = np.ones((1, 1))
    while len(hadamard) < power:
        hadamard = np.kron(hadamard, [[1, 1], [1, -1]])
    first, last = np.eye(dim), np.eye(dim)
    first[:power, :power] = hadamard / np.sqrt(power)
    last[dim - power:, dim - power:] = hadamard / np.sqrt(power)
    return first @ signs[0] if power == dim else first @ signs[2] @ last @ signs[1] @ first @ signs[0]


def to_f16(x, margin=1e-6):
    """The nearest; None where one in the neighbourhood has another."""
    f16 = np.asarray(x).astype(np.float16)
    near = [(np.asarray(x) * (1 + sign * margin)).astype(np.float16) for sign in (-1, 1)]
    return f16 if all(np.array_equal(f16, other) for other in near) else None


def encode(x, bits):
    """Codes and scales of the rows of x; None where one is too close."""
    half, unit = BOOKS[bits]
    levels = np.array([-level for level in reversed(half)] + half)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    z = x / np.where(norm > 0, norm, 1) * np.sqrt(x.shape[1]) * unit
    middles = (levels[1:] + levels[:-1]) / 2
    gaps = np.abs(z[norm[:, 0] > 0][:, :, None] - middles)
    codes = np.searchsorted(middles, z, side="right")
    scales = to_f16(8 * norm[:, 0] / np.linalg.norm(levels[codes], axis=1))
    return None if scales is None or gaps.min() < 1e-4 else (codes, scales)


def case(bits, dim, kv_heads, tokens, seed):
    count, rotate = kv_heads * tokens * dim, rotation(dim)
    k = values(seed, 0, count).reshape(kv_heads, tokens, dim) + (np.arange(dim) % 5 - 2).astype(np.float32)
    v = values(seed, 2**32, count).reshape(kv_heads, tokens, dim) * (np.arange(tokens) % 4).astype(np.float32)[:, None]
    heads = []
    for head in range(kv_heads):
        keys, vals = (x[head].astype(np.float16).astype(np.float64) @ rotate.T for x in (k, v))
        centre = to_f16(keys.mean(axis=0))
        if centre is None:
            return None
        parts = [encode(keys - centre.astype(np.float64), bits), encode(vals, bits)]
        if None in parts:
            return None
        heads.append((centre, parts))
    return heads


def fnv(data):
    number = 0x811c9dc5
    for byte in bytes(data):
        number = (number ^ byte) * 0x01000193 % 2**32
    return number


def main():
    with open(HERE / "turbo.txt", "w") as out:
        out.write("# by golden_turbo.py. case: seed bits dim kv_heads tokens; then of each head its centre, K and V: codes scale\n")
        for number, fields in enumerate(CASES):
            seeds = range(number * 1000 + 1, number * 1000 + 1000)
            seed, heads = next((s, c) for s in seeds if (c := case(*fields, s)) is not None)
            out.write("case " + " ".join(str(f) for f in (seed, *fields)) + "\n")
            for centre, parts in heads:
                out.write(f"centre {fnv(centre.tobytes()):08x}\n")
                for codes, scales in parts:
                    vectors = zip(codes.astype(np.uint8), scales.view(np.uint16))
                    out.write("codes " + " ".join(f"{fnv(c.tobytes()):08x} {s:04x}" for c, s in vectors) + "\n")


if __name__ == "__main__":
    main()
