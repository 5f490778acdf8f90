# SPDX-License-Identifier: Apache-2.0
"""Writes tiny_models.txt: logits of small models with weights from a formula, for test_forward.c.

Each model is computed here in double precision by numpy, with K and V rounded to f16 as Assay does; without
that rounding it must agree with llama.cpp (xllamacpp) on the same weights as an F32 GGUF to 1e-3, so that layout, RoPE
and scaling are the format's own.
Weights: element i of tensor NAME is ((splitmix64(fnv1a64(NAME) + i) >> 40) / 2^24 - 0.5) * 2 * scale in f32; the scales
stand in `tensors`. test_forward.c makes the same tensors. One "model" line holds the shape, "row" lines the logits.
"""
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

from llama_cpp import TYPE_F32, Llama

HERE = Path(__file__).parent
VOCAB, CONTEXT, TOKENS, EPS = 288, 512, 48, 1e-5
ROWS = [0, 17, 47]
FIELDS = ["name", "arch", "embed", "layers", "q_heads", "kv_heads", "dim", "ffn", "bias", "tied", "rope_dim", "scaling"]
MODELS = [
    ("llama-gqa", "llama", 64, 2, 4, 2, 16, 96, 0, 1, 16, "none"),
    ("llama-mha-80", "llama", 160, 2, 2, 2, 80, 96, 0, 0, 80, "none"),
    ("llama-linear", "llama", 64, 1, 2, 1, 32, 64, 0, 0, 32, "linear"),
    ("llama-yarn", "llama", 64, 2, 2, 1, 32, 64, 0, 0, 32, "yarn"),
    ("llama3-freqs", "llama", 64, 2, 2, 1, 32, 64, 0, 1, 32, "freqs"),
    ("qwen2", "qwen2", 64, 2, 4, 2, 16, 96, 1, 1, 16, "none"),
    ("qwen3", "qwen3", 64, 2, 4, 2, 32, 96, 0, 0, 32, "none"),
]


def splitmix(x):
    x = x + np.uint64(0x9e3779b97f4a7c15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def values(name, count):
    seed = 0xcbf29ce484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001b3) % 2**64
    with np.errstate(over="ignore"):
        bits = splitmix(np.uint64(seed) + np.arange(count, dtype=np.uint64)) >> np.uint64(40)
    return (bits.astype(np.float32) / np.float32(2**24) - np.float32(0.5)) * np.float32(2)


def tensors(m):
    q, kv = m["q_heads"] * m["dim"], m["kv_heads"] * m["dim"]
    weights = {}

    def matrix(name, rows, k, scale=0.1875):
        weights[name] = (values(name, rows * k) * np.float32(scale)).reshape(rows, k)

    def norm(name, n):
        weights[name] = np.float32(1) + values(name, n) * np.float32(0.25)

    matrix("token_embd.weight", VOCAB, m["embed"], 1)
    for i in range(m["layers"]):
        b = f"blk.{i}."
        norm(b + "attn_norm.weight", m["embed"])
        norm(b + "ffn_norm.weight", m["embed"])
        matrix(b + "attn_q.weight", q, m["embed"])
        matrix(b + "attn_k.weight", kv, m["embed"])
        matrix(b + "attn_v.weight", kv, m["embed"])
        matrix(b + "attn_output.weight", m["embed"], q)
        matrix(b + "ffn_gate.weight", m["ffn"], m["embed"])
        matrix(b + "ffn_up.weight", m["ffn"], m["embed"])
        matrix(b + "ffn_down.weight", m["embed"], m["ffn"])
        if m["bias"]:
            for part, n in (("q", q), ("k", kv), ("v", kv)):
                weights[b + f"attn_{part}.bias"] = values(b + f"attn_{part}.bias", n) * np.float32(0.5)
        if m["arch"] == "qwen3":
            norm(b + "attn_q_norm.weight", m["dim"])
            norm(b + "attn_k_norm.weight", m["dim"])
    norm("output_norm.weight", m["embed"])
    if not m["tied"]:
        matrix("output.weight", VOCAB, m["embed"])
    if m["scaling"] == "freqs":
        weights["rope_freqs.weight"] = np.float32(4) + values("rope_freqs.weight", m["rope_dim"] // 2) * np.float32(2)
    return weights


def frequencies(m, weights):
    """Inverse frequencies and the factor on cosine and sine."""
    n = m["rope_dim"]
    freq = 10000.0 ** (-np.arange(0, n, 2) / n)
    if m["scaling"] == "linear":
        return freq / 4, 1.0
    if m["scaling"] == "freqs":
        return freq / weights["rope_freqs.weight"].astype(np.float64), 1.0
    if m["scaling"] == "yarn":
        def dim_of(beta):
            return n * np.log(128 / (beta * 2 * np.pi)) / (2 * np.log(10000.0))
        low, high = max(np.floor(dim_of(32)), 0), min(np.ceil(dim_of(1)), n - 1)
        kept = 1 - np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0, 1)
        return freq / 4 * (1 - kept) + freq * kept, 1 + 0.1 * np.log(4)
    return freq, 1.0


def rotate(x, m, positions, freq, factor):
    half = m["rope_dim"] // 2
    angle = positions[:, None, None] * freq
    c, s = np.cos(angle) * factor, np.sin(angle) * factor
    out = x.copy()
    if m["arch"] == "llama":
        a, b = x[..., 0::2], x[..., 1::2]
        out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
    else:
        a, b = x[..., :half], x[..., half:]
        out[..., :half], out[..., half:] = a * c - b * s, a * s + b * c
    return out


def rms(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def forward(m, weights, tokens, cache_type):
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    freq, factor = frequencies(m, weights)
    rows, positions = len(tokens), np.arange(len(tokens), dtype=np.float64)
    group = m["q_heads"] // m["kv_heads"]
    x = w["token_embd.weight"][tokens]
    mask = np.where(np.tri(rows, dtype=bool), 0.0, -np.inf)
    for i in range(m["layers"]):
        b = f"blk.{i}."
        h = rms(x, w[b + "attn_norm.weight"])
        q, k, v = (h @ w[b + f"attn_{p}.weight"].T + (w[b + f"attn_{p}.bias"] if m["bias"] else 0) for p in "qkv")
        q, k, v = (t.reshape(rows, -1, m["dim"]) for t in (q, k, v))
        if m["arch"] == "qwen3":
            q, k = rms(q, w[b + "attn_q_norm.weight"]), rms(k, w[b + "attn_k_norm.weight"])
        q, k = rotate(q, m, positions, freq, factor), rotate(k, m, positions, freq, factor)
        k, v = (t.astype(cache_type).astype(np.float64) for t in (k, v))
        out = np.empty_like(q)
        for head in range(m["q_heads"]):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(m["dim"]) + mask
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, head // group]
        x = x + out.reshape(rows, -1) @ w[b + "attn_output.weight"].T
        h = rms(x, w[b + "ffn_norm.weight"])
        gate, up = h @ w[b + "ffn_gate.weight"].T, h @ w[b + "ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[b + "ffn_down.weight"].T
    return rms(x, w["output_norm.weight"]) @ w["token_embd.weight" if m["tied"] else "output.weight"].T


def write_gguf(m, weights, path):
    writer = GGUFWriter(path, m["arch"])
    writer.add_block_count(m["layers"])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(m["embed"])
    writer.add_feed_forward_length(m["ffn"])
    writer.add_head_count(m["q_heads"])
    writer.add_head_count_kv(m["kv_heads"])
    writer.add_key_length(m["dim"])
    writer.add_value_length(m["dim"])
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_dimension_count(m["rope_dim"])
    writer.add_rope_freq_base(10000.0)
    if m["scaling"] in ("linear", "yarn"):
        writer.add_string(f"{m['arch']}.rope.scaling.type", m["scaling"])
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = [chr(c) for c in range(33, 127)]
    writer.add_token_list(letters + [f"t{i}" for i in range(len(letters), VOCAB)])
    writer.add_token_types([TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["t 1"])
    for name, value in weights.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    tokens = [(i * 37 + 11) % VOCAB for i in range(TOKENS)]
    with open(HERE / "tiny_models.txt", "w") as out:
        out.write(f"# by golden_forward.py. model: {' '.join(FIELDS)}; then rows of {VOCAB} logits\n")
        for fields in MODELS:
            m = dict(zip(FIELDS, fields))
            weights = tensors(m)
            logits = forward(m, weights, tokens, np.float16)
            unrounded = forward(m, weights, tokens, np.float32)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "tiny.gguf"
                write_gguf(m, weights, path)
                llama = Llama(path, n_ctx=TOKENS, kv_type=TYPE_F32, flash=0)
                other = llama.decode(tokens, 0, True)
                llama.close()
            error = np.abs(unrounded - other).max()
            print(f"{m['name']}: logits' deviation {logits.std():.3f}, llama.cpp differs by at most {error:.2g}")
            assert error < 1e-3, "numpy and llama.cpp compute different models"
            out.write("model " + " ".join(str(f) for f in fields) + "\n")
            for row in ROWS:
                out.write(f"row {row} " + " ".join(f"{v:.6g}" for v in logits[row]) + "\n")


if __name__ == "__main__":
    main()
