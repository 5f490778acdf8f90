# SPDX-License-Identifier: Apache-2.0
"""`assay ruler` against a real worker, and the tokens of a prompt, by which it counts."""
import json
import os
import subprocess

import pytest

from harness import BIN, post

CHAT = {"messages": [{"role": "user", "content": "Name a colour."}], "temperature": 0, "max_tokens": 4}


def ruler(*arguments):
    return subprocess.run([os.path.join(BIN, "assay"), "ruler", *arguments], capture_output=True, text=True, timeout=180)


def test_tokens_are_those_that_a_prompt_is_answered_by(cluster):
    for path, body in (("completions", {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}),
                       ("chat/completions", CHAT)):
        before = cluster.metric("assay_gpuworker_http_completion_tokens_total")
        status, reply = post(f"{cluster.url()}/v1/{path}/tokenize", body)
        assert status == 200 and reply["count"] == len(reply["tokens"]) > 3 and reply["max_model_len"] == 2048
        assert cluster.metric("assay_gpuworker_http_completion_tokens_total") == before
        answer = post(f"{cluster.url()}/v1/{path}", body)[1]
        by_tokens = post(f"{cluster.url()}/v1/completions", {"prompt": reply["tokens"], "temperature": 0, "max_tokens": 4})[1]
        assert answer["usage"]["prompt_tokens"] == reply["count"]
        choice = answer["choices"][0]
        assert by_tokens["choices"][0]["text"] == (choice.get("text") or choice["message"]["content"]) != ""
    ids = [5, 6, 7]
    assert post(f"{cluster.url()}/v1/completions/tokenize", {"prompt": ids})[1]["tokens"] == ids
    long = "word " * 1500  # parsed by the tokenizer's thread
    assert post(f"{cluster.url()}/v1/completions/tokenize", {"prompt": long})[1]["count"] >= 1500


@pytest.mark.parametrize("body,code,says", [
    ({"prompt": 7}, "invalid_value", "but is 7"), ({}, "missing_parameter", "missing"),
    ({"prompt": "word " * 5000}, "context_length_exceeded", "longer than the context of 2048")])
def test_tokens_of_what_is_no_prompt_are_refused_as_the_prompt_is(cluster, body, code, says):
    status, reply = post(f"{cluster.url()}/v1/completions/tokenize", body)
    assert status == 400 and reply["error"]["code"] == code and says in reply["error"]["message"]


def test_verified_scores_are_those_of_the_full_cache(cluster, tmp_path):
    out = tmp_path / "answers"
    done = ruler("run", f"--scheduler={cluster.scheduler.address['rpc']}", "--task=niah_single_2,niah_multikey_2", "--samples=1", "--tokens=240",
                 "--answer-tokens=12", "--compressor=none,kivi2", "--verify=full", f"--out={out}", "--json")
    assert done.returncode == 0, done.stderr
    none, kivi2 = json.loads(done.stdout)["compressors"]
    scores = [{task: cell["score"] for task, cell in one["tasks"].items()} for one in (none, kivi2)]
    assert scores[0] == scores[1] and list(scores[0]) == ["niah_single_2", "niah_multikey_2"]
    assert none["total"]["score"] == sum(scores[0].values()) / 2 > 0  # the model finds a number in so short a text
    assert kivi2["total"]["samples"] == 2 and kivi2["total"]["verifications"] > 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["compressor"] for line in lines] == ["none", "kivi2"] * 2
    for first, second in zip(lines[::2], lines[1::2]):
        assert first["answer"] == second["answer"] and first["context"] == second["context"]
        assert 200 < first["prompt_tokens"] + 12 <= 240
        found = sum(one.lower() in first["answer"].lower() for one in first["references"])
        assert first["score"] == 100 * found / len(first["references"])
    again = json.loads(ruler("score", "--json", str(out)).stdout)["compressors"]
    assert [{task: cell["score"] for task, cell in one["tasks"].items()} for one in again] == scores


def test_what_cannot_be_asked_is_told(cluster, tmp_path):
    for code, text, arguments in [
        (2, "there is no task 'x'", ["--task=x"]), (2, "full or off", ["--verify=some"]),
        (1, "context is 2048", ["--tokens=4096"]), (1, "cwe does not fit into 200", ["--task=cwe", "--tokens=200"]),
        (1, "must be one of", ["--task=qa_1", "--tokens=300", "--compressor=zip"]),
        (1, "cannot write", ["--out=/nowhere/x"]),
    ]:
        done = ruler("run", f"--worker={cluster.url()}", *arguments)
        assert done.returncode == code and text in done.stderr, (arguments, done.returncode, done.stderr)
    assert ruler("generate", "--task=vt", "--tokens=100").returncode == 1
    answers = tmp_path / "answers"
    good = '{"task": "vt", "answer": "abc", "references": ["AB", "x"]}\n'
    answers.write_text(good)
    done = ruler("score", str(answers))
    assert done.returncode == 0 and [line.split() for line in done.stdout.splitlines()][1] == ["vt", "50.0"]
    for text, says in [("\n" + good + "{", "line 3: it is not JSON"), ("", "has no answers"),
                       (good + good.replace("vt", "tv"), 'line 2: its "task"')]:
        answers.write_text(text)
        done = ruler("score", str(answers))
        assert done.returncode == 1 and says in done.stderr, done.stderr
    assert ruler("score").returncode == 2 and ruler("score", "/nowhere").returncode == 1
    assert ruler().returncode == 2 and ruler("--help").returncode == 0


def test_a_seed_gives_the_same_lines_again():
    arguments = ["generate", "--tokens=1024", "--samples=2", "--json"]
    first, second, other = ruler(*arguments), ruler(*arguments), ruler(*arguments, "--seed=43")
    lines = [json.loads(line) for line in first.stdout.splitlines()]
    assert first.returncode == 0 and len(lines) == 26 and first.stdout == second.stdout != other.stdout
    assert [line.split()[0] for line in ruler("tasks").stdout.splitlines()] == [line["task"] for line in lines[::2]]
    for line in lines:
        assert all(one in line["context"] for one in line["references"])
        assert line["prompt_tokens"] + line["answer_tokens"] <= 1024
