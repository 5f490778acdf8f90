# SPDX-License-Identifier: Apache-2.0
"""Speed of llama.cpp on the F16 twin of the model, as bench_model measures ours; one line of JSON.

llama_cpp.py MODEL.gguf [--threads N] [--prompt TOKENS] [--decode TOKENS] [--repeat N] [--batch N]. Needs the PyPI
packages xllamacpp, gguf and numpy. The same shape of work: a prompt in one go, then greedy decoding one token at a time
after it, all layers on the CPU, F16 weights and cache; with --batch N prompts together, tokens per second of them all;
the best of the repeats.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
from llama_cpp import Llama  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    twin = subprocess.run([sys.executable, GOLDEN / "convert_f16.py", options.model], check=True, capture_output=True,
                          text=True).stdout.strip()
    best = {}
    for flash in (0, 1):
        batch = options.batch
        llama = Llama(twin, n_ctx=batch * (options.prompt + options.decode + 64), threads=options.threads, flash=flash, sequences=batch)
        tokens = [[(i * 7919 + 13) % llama.n_vocab for i in range(b * options.prompt, (b + 1) * options.prompt)] for b in range(batch)]
        for _ in range(options.repeat):
            llama.clear()
            start = time.perf_counter()
            logits = llama.decode_many(tokens, 0)
            middle = time.perf_counter()
            for i in range(options.decode):
                logits = llama.decode_many([[int(row.argmax())] for row in logits], options.prompt + i)
            end = time.perf_counter()
            best["prefill"] = max(best.get("prefill", 0), batch * options.prompt / (middle - start))
            best["decode"] = max(best.get("decode", 0), batch * options.decode / (end - middle))
        system = llama.lib.llama_print_system_info().decode()
        llama.close()
    print(json.dumps({"engine": "llama.cpp", "system": system, "threads": options.threads, "batch": options.batch,
                      "prompt_tokens": options.prompt, "decode_tokens": options.decode,
                      "prefill_tokens_per_s": round(best["prefill"], 1),
                      "decode_tokens_per_s": round(best["decode"], 1)}))


if __name__ == "__main__":
    main()
