# SPDX-License-Identifier: Apache-2.0
"""What people type first: the README's commands, `./dev` and the tools."""
import os
import re
import socket
import subprocess

from harness import BIN, MODEL

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
PASTE_SECONDS = 180


def script(*arguments, **environment):
    return subprocess.run(arguments, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=60)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_the_commands_of_the_readme_work_when_pasted(tmp_path):
    with open(os.path.join(ROOT, "README.md")) as file:
        block = re.search(r"## Use it\n\n```\n(.*?)```", file.read(), re.S).group(1)
    port = free_port()
    for old, new in (("./dev build\n", ""), ("$(tools/fetch-model)", f"'{MODEL}'"), ("build/bin/", f"{BIN}/"),
                     ("assay up", f"assay up --port={port} --ram=64MiB"), ("localhost:8000", f"127.0.0.1:{port}")):
        assert old in block
        block = block.replace(old, new)
    done = subprocess.run(["bash", "-c", block + "wait\n"], cwd=ROOT, capture_output=True, text=True,
                          timeout=PASTE_SECONDS, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 0, done
    assert '"completion_tokens":64' in done.stdout and "identical: yes" in done.stdout, done
    assert "ending the cluster" in done.stderr


def test_lint_explains_itself_without_the_python_environment():
    for command in ([os.path.join(ROOT, "tools", "lint"), "--help"], ["./dev", "lint", "--help"]):
        done = script(*command)
        assert done.returncode == 0 and "banned calls" in done.stdout, done
    assert script("python3", "tools/lint", "nonsense").returncode == 2


def test_dev_takes_the_named_model_before_it_sets_anything_up(tmp_path):
    for command in ("demo", "test"):
        for arguments in (["--model", "/nonexistent.gguf"], ["--model=/nonexistent.gguf"]):
            done = script("./dev", command, *arguments, ASSAY_CACHE=str(tmp_path))
            assert done.returncode == 1 and "cannot read the model file /nonexistent.gguf" in done.stderr
    assert not os.listdir(tmp_path)  # nothing was fetched


def test_dev_help_lists_what_test_takes():
    assert re.search(r"test .*--model FILE", script("./dev", "help").stdout)
