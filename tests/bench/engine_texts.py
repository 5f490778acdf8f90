# SPDX-License-Identifier: Apache-2.0
"""The prompts of `./dev bench engine`: long texts of this repository, of different kinds, as token ids of the model.

A prompt is the beginning of its text, so a shorter one is a prefix of the longer: what is stored of one serves the other. Two
prompts have no block in common.
"""
import sys

from table import ROOT

sys.path.insert(0, str(ROOT / "tests" / "golden"))
from llama_cpp import Llama  # noqa: E402

# Kind, and the files that are put one behind the other. The first eight are those of most cells.
TEXTS = [
    ("prose", ["tests/golden/english.txt", "docs/demo-text.txt", "README.md", "docs/quick-start.md", "ARCHITECTURE.md"]),
    ("manual", ["docs/operating.md"]),
    ("code", ["client/fetch.c", "client/read.c"]),
    ("json", ["tests/golden/chat.json"]),
    ("tables", ["docs/measurements.md", "docs/api.md"]),
    ("python", ["tests/cluster/test_cli.py"]),
    ("header", ["proto/wire.h"]),
    ("readmes", ["kvstore/README.md", "client/README.md", "gpuworker/README.md", "kernels/README.md", "common/README.md"]),
    ("faults", ["docs/faults.md", "tests/README.md"]),
    ("tests", ["tests/unit/gpuworker/test_openai.c", "tests/unit/gpuworker/test_request.c"]),
    ("changes", ["CHANGELOG.md", "scheduler/README.md", "gpuworker/model/README.md", "kernels/cuda/README.md", "client/cli/README.md"]),
    ("languages", ["tests/golden/tokenizer.json"]),
    ("store", ["kvstore/drain.c", "kvstore/store.c"]),
    ("gpu", ["kernels/cuda/attention.cu", "kernels/reference.c"]),
    ("numbers", ["tests/golden/prompt.json"]),
    ("network", ["common/net_ucx.c", "common/net_ucx_port.c"]),
]


# Of one kind, for cells that compare kinds: longer than any cell's prompts together.
KINDS = {
    "prose": ["tests/golden/english.txt", "docs/demo-text.txt", "README.md", "ARCHITECTURE.md", "docs/*.md", "*/README.md", "*/*/README.md",
              "CHANGELOG.md"],
    "code": ["client/*.c", "kvstore/*.c"],
    "json": ["tests/golden/chat.json", "tests/golden/prompt.json", "tests/golden/tokenizer.json"],
}


def load_kind(model, kind, lengths):
    """Prompts of so many tokens, one behind the other in the texts of a kind: [{"kind", "tokens"}]."""
    files = list(dict.fromkeys(path for name in KINDS[kind] for path in sorted(ROOT.glob(name))))
    llama = Llama(model, vocab_only=True)
    ids = llama.tokenize(b"\n".join(path.read_bytes() for path in files))
    llama.close()
    if len(ids) < sum(lengths):
        sys.exit(f"bench: the texts of the kind '{kind}' have {len(ids)} tokens, not {sum(lengths)}: give it other files in {__file__}")
    ends = [sum(lengths[:number + 1]) for number in range(len(lengths))]
    return [{"kind": f"{kind} {number}", "tokens": ids[end - length:end]} for number, (end, length) in enumerate(zip(ends, lengths))]


def load(model, count, tokens):
    """`count` prompts of so many tokens: [{"kind", "tokens"}]."""
    llama, prompts = Llama(model, vocab_only=True), []
    for kind, files in TEXTS[:count]:
        text = b"\n".join((ROOT / name).read_bytes() for name in files)
        ids = llama.tokenize(text)[:tokens]
        if len(ids) < tokens:
            sys.exit(f"bench engine: the text '{kind}' has {len(ids)} tokens, not {tokens}: give it another file in {__file__}")
        prompts.append({"kind": kind, "tokens": ids})
    llama.close()
    if len(prompts) < count:
        sys.exit(f"bench engine: there are {len(prompts)} texts, not {count}")
    return prompts
