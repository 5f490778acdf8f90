# SPDX-License-Identifier: Apache-2.0
"""A worker with a draft model says what it says without; one of another vocabulary is refused."""
import os
import subprocess

from harness import BIN, MODEL, Cluster, ask

PROMPT = "A store keeps blocks, a worker computes, and between them"


def test_a_worker_whose_draft_model_proposes_says_the_same(tmp_path):
    options = [f"--draft-model={MODEL}", "--draft-window=128", "--prompt-lookup=0"]
    with Cluster(tmp_path, stores=0, scheduler=False, worker_options=options) as world:
        plain = ask(world.url(), PROMPT, horizon=0, tokens=48)
        assert plain.usage["assay"]["model_proposed_tokens"] == 0
        drafted = ask(world.url(), PROMPT, horizon=None, tokens=48)
        assert drafted.bits == plain.bits
        usage = drafted.usage["assay"]
        assert 0 < usage["model_proposals_accepted"] <= usage["model_proposed_tokens"]  # tried, though as large
        assert usage["proposed_tokens"] == 0
        assert world.metric("assay_worker_model_proposed_tokens_total") == usage["model_proposed_tokens"]
        assert world.metric("assay_worker_model_rows_total") >= usage["model_proposed_tokens"]


def start(draft):
    return subprocess.run([os.path.join(BIN, "assay-gpuworker"), f"--model={MODEL}", "--listen=127.0.0.1:0", "--context=256",
                           f"--draft-model={draft}"], capture_output=True, text=True, timeout=60)


def test_a_draft_model_of_another_vocabulary_is_refused_with_the_difference(tmp_path):
    other = tmp_path / "other.gguf"
    with open(MODEL, "rb") as file:
        data = file.read()
    tokens = data.index(b"tokenizer.ggml.tokens")
    word = data.index(b"<|im_start|>", tokens)
    other.write_bytes(data[:word] + b"<|xx_start|>" + data[word + 12:])
    done = start(other)
    assert done.returncode == 1
    assert f"--draft-model {other} does not fit --model: its token 1 is \"<|xx_start|>\", that of the model \"<|im_start|>\"" \
        in done.stderr, done.stderr
    done = start(tmp_path / "none.gguf")
    assert done.returncode == 2 and "cannot read --draft-model" in done.stderr
