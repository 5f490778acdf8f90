# SPDX-License-Identifier: Apache-2.0
"""Writes dequant_blocks.txt: seeded blocks of every tensor type and what the `gguf` package makes of them.

One line a block: type number, bytes in hex, f32 values as hex bit patterns. Scales are finite f16 of either sign, among
them zero and subnormals; all other bytes are random.
"""
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, dequantize

# Offsets of the f16 scales in a block.
TYPES = {T.F32: None, T.F16: None, T.BF16: None, T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
         T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
SCALES = np.array([0.0, 6e-8, -3e-5, 0.0123, -1.75, 311.0], dtype=np.float16)


def plain_block(kind, random):
    if kind == T.F32:
        return random.normal(size=8).astype(np.float32).view(np.uint8)
    halves = np.concatenate([SCALES, random.normal(size=10).astype(np.float16)])
    if kind == T.F16:
        return halves.view(np.uint8)
    return (halves.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def main():
    random = np.random.default_rng(20240607)
    with open(Path(__file__).parent / "dequant_blocks.txt", "w") as out:
        out.write("# type, block bytes, f32 bits; by golden_dequant.py from the gguf package\n")
        for kind, scales in TYPES.items():
            for repeat in range(3):
                if scales is None:
                    block = plain_block(kind, random)
                else:
                    block = random.integers(0, 256, GGML_QUANT_SIZES[kind][1], dtype=np.uint8)
                    for offset in scales:
                        block[offset:offset + 2] = random.choice(SCALES).reshape(1).view(np.uint8)
                values = dequantize(block.reshape(1, -1), kind).astype(np.float32).reshape(-1)
                bits = " ".join(f"{b:08x}" for b in values.view(np.uint32))
                out.write(f"{int(kind)} {block.tobytes().hex()} {bits}\n")


if __name__ == "__main__":
    main()
