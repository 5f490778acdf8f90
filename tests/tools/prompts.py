# SPDX-License-Identifier: Apache-2.0
"""Prompts cut out of real text: prose, code, JSON, tool calls and other languages, from 16 to 8,000 tokens.

The text is the repository's: `cut(count)` gives the same prompts as long as that is the same. A length in tokens is meant
for SmolLM2's tokenizer and is about right. `python3 tests/tools/prompts.py` lists them; with `--jsonl TOKENS ...` it prints prompts for `assay compare`.
"""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LENGTHS = [16, 24, 33, 48, 63, 65, 90, 128, 150, 192, 230, 260, 330, 400, 512, 640, 900, 1300, 2000]
LONGEST = {"prose": 8000, "code": 8000, "json": 4000, "tools": 6000, "languages": 4000}
# Bytes of a token, a little less than there are: a prompt is not to outgrow the model's context.
BYTES = {"prose": 3.4, "code": 2.8, "json": 2.0, "tools": 2.6, "languages": 2.3}
STRIDE = 0.6180339887  # of the text, from one prompt to the next: they begin everywhere


@dataclass
class Prompt:
    kind: str
    number: int
    tokens: int  # about
    text: str

    @property
    def name(self):
        return f"{self.kind}-{self.number}, {self.tokens} tokens"


def read(*patterns):
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    assert paths, patterns
    return "\n".join(path.read_text() for path in paths)


def transcript():
    """An agent's calls of tools, with what they answer: files of this repository."""
    tools = [{"type": "function", "function": {"name": name, "description": text, "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in keys.items()}, "required": list(keys)}}}
        for name, text, keys in (
            ("read_lines", "Returns lines of a file.", {"path": "string", "first": "integer", "count": "integer"}),
            ("find", "Returns the numbers of the lines that have a word.", {"path": "string", "word": "string"}))]
    said = ["You have tools:\n" + json.dumps(tools, indent=1), "user: Which files does the engine stand on, and what is in them?"]
    for path in sorted(ROOT.glob("gpuworker/decode/*.h")) + sorted(ROOT.glob("common/*.h")):
        name, lines = str(path.relative_to(ROOT)), path.read_text().splitlines()
        calls = [("find", {"path": name, "word": "struct"}, [n + 1 for n, line in enumerate(lines) if "struct" in line])]
        calls += [("read_lines", {"path": name, "first": first + 1, "count": 8}, lines[first:first + 8]) for first in (0, 8, 16)]
        for number, (tool, arguments, result) in enumerate(calls):
            said.append("assistant: <tool_call>" + json.dumps({"name": tool, "arguments": arguments}) + "</tool_call>")
            said.append("tool: " + json.dumps({"id": f"call_{number}", "result": result}))
    return "\n".join(said)


def texts():
    return {"prose": read("docs/demo-text.txt", "tests/golden/english.txt", "docs/*.md", "*.md"),
            "code": read("kernels/*.c", "gpuworker/decode/*.c", "tests/cluster/*.py"),
            "json": read("tests/golden/chat.json", "tests/golden/prompt.json"),
            "tools": transcript(),
            "languages": read("tests/golden/languages.txt")}


def cut(per_kind=None, longest=8000):
    """per_kind of each kind (all: 20), none longer than `longest` tokens."""
    prompts = []
    for kind, text in texts().items():
        text = text.encode()
        lengths = [length for length in [*LENGTHS, LONGEST[kind]] if length <= longest]
        step = len(lengths) / (per_kind or len(lengths))
        chosen = [lengths[int((n + 1) * step) - 1] for n in range(per_kind or len(lengths))]
        for number, tokens in enumerate(chosen):
            size = int(tokens * BYTES[kind])
            begin = int(number * STRIDE % 1 * max(len(text) - size, 0))
            prompts.append(Prompt(kind, number, tokens, text[begin:begin + size].decode(errors="ignore")))
    return prompts


def lines(tokens, samples=2):
    """Prompts for `assay compare --prompts`: of each kind some of about so many tokens, with the text that follows them."""
    for kind, text in texts().items():
        text = text.encode()
        size, follows = int(tokens * BYTES[kind]), 2048
        for number in range(samples):
            begin = int(number * STRIDE % 1 * max(len(text) - size - follows, 0))
            prompt, rest = (text[at:to].decode(errors="ignore") for at, to in ((begin, begin + size), (begin + size, begin + size + follows)))
            yield json.dumps({"name": f"{kind}-{number}", "context": tokens, "prompt": prompt, "continuation": rest})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--jsonl"]:
        for length in sys.argv[2:]:
            print("\n".join(lines(int(length))))
    else:
        for prompt in cut():
            print(prompt.name, len(prompt.text), repr(prompt.text[:60]))
