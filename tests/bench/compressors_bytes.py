# SPDX-License-Identifier: Apache-2.0
"""Bytes that one KV head of one layer holds for a prompt of T tokens, by what each method's paper says, at head size D and with
two bytes for each exact number and each scale.

Where this project departs from a paper, the formula says so: here a token is held in blocks of BLOCK, which what keeps a part
of a prompt keeps whole or a part of; and what is newest is not in the segment at all (it stays exact, in the session's tail).
"""
from math import ceil

D = 64           # SmolLM2-135M
HEADS = 3 * 30   # KV heads of all layers
BLOCK = 64
RESIDUAL = 32    # newest tokens that no method has yet
EXACT = 2 * 2 * D  # a key and a value


def grouped(bits, group):
    """KIVI (Liu et al. 2024): keys by channel and values by token, each `group` of them with a scale and a zero."""
    return 2 * (D * bits / 8 + 4 * D / group)


def rotated(bits):
    """TurboQuant (Zandieh et al. 2025) without its sketch: codes and a norm for each vector; and, ours, the mean key of a block."""
    return 2 * (D * bits / 8 + 2) + 2 * D / BLOCK


def kept(share):
    """Methods that drop: what an exact token takes, by the share that stays."""
    return share * EXACT


def blocks(tokens):
    return ceil(tokens / BLOCK) * BLOCK


def sealed_tokens(tokens):
    """Of a session's cache of so many tokens those that its segment covers: whole blocks before the newest 32."""
    return max(0, tokens - RESIDUAL) // BLOCK * BLOCK


def tail_bytes(tokens, horizon):
    """Of all heads, the session's exact tail: pages of the 32 to 95 newest tokens, and of a draft of `horizon` tokens wherever it begins.
    KIVI's residual of up to 128 exact tokens is this."""
    pages = ceil(tokens / BLOCK) - sealed_tokens(tokens) // BLOCK + (horizon + 2 * BLOCK - 2) // BLOCK
    return pages * BLOCK * EXACT * HEADS


def bytes_of(tokens):
    """Of each method, a token; None where the text decides (DBudgetKV keeps as many as its rule says)."""
    quarter = kept(0.25)
    return {
        "f16": EXACT,
        "kivi4": grouped(4, 32),
        "kivi2": grouped(2, 32),
        "turbo4": rotated(4),
        "turbo3": rotated(3),
        # StreamingLLM (Xiao et al. 2024): 4 sinks and a window of 256, in whole blocks.
        "streaming": min(tokens, blocks(4) + blocks(256)) / tokens * EXACT,
        "knorm": quarter, "keydiff": quarter, "expected": quarter, "snapkv": quarter,
        # Other layers, other heads, and the same in all.
        "pyramidkv": quarter, "adakv": quarter,
        "tova": quarter, "h2o-window": quarter,
        "dbudgetkv": None,
        # RDKV (2026): as many bits as an eighth of the tokens would take.
        "rdkv": EXACT / 8,
        # Quest (Tang et al. 2024): the least and the most of each channel of a page's keys.
        "quest": EXACT + 2 * 2 * D / 16,
        # ClusterKV (Liu et al. 2024): a centroid for 16 tokens, and a token's cluster.
        "clusterkv": EXACT + 2 * D / 16 + 1,
        # SpeCache (Jie et al. 2025): a copy in 2 bits, groups of 64.
        "specache": EXACT + grouped(2, 64),
        # RocketKV (Behnam et al. 2025): what its first stage keeps, in pages of 3 with both bounds.
        "rocketkv": kept(0.3) + 0.3 / 3 * 2 * 2 * D,
    }
