# SPDX-License-Identifier: Apache-2.0
"""Writes smollm2_english.txt: what llama.cpp predicts on english.txt, for tests/unit/gpuworker/test_golden_model.c.

golden_model.py MODEL.gguf: runs llama.cpp (xllamacpp wheel) on MODEL (whose products round activations to 8 bits when
weights are Q4_1) and on its F16 twin (convert_f16.py). One line a position: token, top-1 after it by F16 and by MODEL,
and whether the two best logits of F16 are closer than 0.05. The head holds both perplexities.
"""
import subprocess
import sys
from pathlib import Path

import numpy as np

from llama_cpp import Llama

HERE = Path(__file__).parent
PREDICTIONS = 2000


def predict(path, tokens):
    model = Llama(path, n_ctx=2048, threads=2)
    logits = model.decode(tokens, 0, True)
    model.close()
    return logits


def perplexity(logits, targets):
    peak = logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp((logits - peak).astype(np.float64)).sum(axis=1)) + peak[:, 0]
    return float(np.exp(np.mean(log_sum - logits[np.arange(len(targets)), targets])))


def main():
    path = sys.argv[1]
    twin = subprocess.run([sys.executable, HERE / "convert_f16.py", path], check=True, capture_output=True,
                          text=True).stdout.strip()
    vocab = Llama(path, vocab_only=True)
    tokens = vocab.tokenize((HERE / "english.txt").read_text())[:PREDICTIONS + 1]
    quantised = predict(path, tokens[:PREDICTIONS])
    exact = predict(twin, tokens[:PREDICTIONS])
    targets = np.array(tokens[1:])
    best = np.sort(exact, axis=1)[:, -2:]
    with open(HERE / "smollm2_english.txt", "w") as out:
        out.write("# llama.cpp on english.txt, by golden_model.py: perplexity F16, perplexity MODEL, predictions;\n"
                  "# then token, top-1 after it (F16), top-1 (MODEL), near tie.\n")
        out.write(f"{perplexity(exact, targets):.6f} {perplexity(quantised, targets):.6f} {PREDICTIONS}\n")
        for i in range(PREDICTIONS):
            near = int(best[i, 1] - best[i, 0] < 0.05)
            out.write(f"{tokens[i]} {exact[i].argmax()} {quantised[i].argmax()} {near}\n")
        out.write(f"{tokens[PREDICTIONS]} -1 -1 0\n")
    agree = float(np.mean(exact.argmax(axis=1) == quantised.argmax(axis=1)))
    print(f"perplexity F16 {perplexity(exact, targets):.4f} MODEL {perplexity(quantised, targets):.4f}; "
          f"llama.cpp agrees with itself on {100 * agree:.2f} % of top-1")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
