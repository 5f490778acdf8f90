# SPDX-License-Identifier: Apache-2.0
"""Compressor `auto` of real processes: the bits of full-cache decoding, several compressors tried, each reply says which and why,
and metrics count them. Full caches are not kept on the worker, or plain decoding would be the fastest."""
import json
import os
import re
import subprocess
import urllib.request

import pytest
from harness import BIN, MODEL, Cluster, post

SESSIONS = 24


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    with Cluster(folder, worker_options=["--compressor=auto", "--context=2048", "--full-cache=swap", "--push-down=off"]) as running:
        yield running


def ask(world, text, **assay):
    body = {"prompt": text, "max_tokens": 24, "temperature": 0, "assay": {"logits_hash": True, "ignore_end": True, **assay}}
    status, reply = post(world.url() + "/v1/completions", body)
    assert status == 200, reply
    return reply["choices"][0]["assay"]


def by_compressor(world, name):
    text = urllib.request.urlopen(world.url() + "/metrics", timeout=30).read().decode()
    return {label: float(value) for label, value in re.findall(rf'^{name}{{compressor="([^"]+)"}} (\S+)$', text, re.M)}


def test_answers_are_the_same_and_say_what_was_chosen_and_why(world, prompt):
    names = json.loads(urllib.request.urlopen(world.url() + "/v1/models", timeout=30).read())["data"][0]["assay"]["compressors"]
    assert names[-2:] == ["none", "auto"]
    seen, reasons = set(), []
    for number in range(SESSIONS):
        text = prompt[40 * (number % 4):][:1200]
        drafted = ask(world, text) if number % 2 else ask(world, text, compressor="auto")
        plain = ask(world, text, compressor="none", horizon=0)
        assert (drafted["tokens"], drafted["logits_hashes"]) == (plain["tokens"], plain["logits_hashes"]), drafted["chosen"]
        assert drafted["compressor"] in names[:-1] and drafted["chosen"].startswith(drafted["compressor"])
        assert plain["compressor"] == "none" and "chosen" not in plain
        seen.add(drafted["compressor"])
        reasons.append(drafted["chosen"])
    assert reasons[0] == f"{names[0]} is the first that fits: nothing is measured yet"
    assert len(seen) >= 3 and any("is tried" in reason for reason in reasons)
    assert any(re.search(r"with [0-9.e+]+ tokens/s is expected to be the fastest", reason) for reason in reasons), reasons
    chosen = by_compressor(world, "assay_worker_chosen_total")
    assert set(chosen) >= set(names[:-1]) and sum(chosen.values()) == SESSIONS
    assert {name for name, count in chosen.items() if count > 0} == seen
    assert 0 < sum(by_compressor(world, "assay_worker_tried_total").values()) <= SESSIONS / 4
    assert max(by_compressor(world, "assay_worker_expected_tokens_per_1000_s").values()) > 0


def test_choices_of_one_prompt_are_told_each(world, prompt):
    body = {"prompt": prompt[:900], "max_tokens": 16, "n": 3, "seed": 4, "temperature": 0.9}
    status, reply = post(world.url() + "/v1/completions", body)
    assert status == 200, reply
    told = [choice["assay"] for choice in reply["choices"]]
    assert all(set(one) == {"compressor", "chosen"} for one in told)


def test_a_stream_says_it_in_its_last_event(world, prompt):
    body = {"prompt": prompt[:600], "max_tokens": 8, "temperature": 0, "stream": True, "assay": {"ignore_end": True}}
    request = urllib.request.Request(world.url() + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        events = [json.loads(line[6:]) for line in reply if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] == "length" and set(choices[-1]["assay"]) == {"compressor", "chosen"}
    assert not any("assay" in choice for choice in choices[:-1])


@pytest.mark.parametrize("assay", [{"verify": "off"}, {"verify": "off", "compressor": "auto"}])
def test_an_answer_that_is_not_verified_needs_a_name(world, assay):
    status, reply = post(world.url() + "/v1/completions", {"prompt": "x", "assay": assay})
    assert status == 400 and 'name one, such as "kivi4"' in reply["error"]["message"]
    assert post(world.url() + "/v1/completions", {"prompt": "x", "assay": {**assay, "compressor": "kivi4"}})[0] == 200


def test_the_command_line_tells_it(world, prompt):
    command = [os.path.join(BIN, "assay"), "run", f"--worker={world.url()}", "--compressor=auto", "--max-tokens=8", prompt[:400]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^compressor \S+ (with|is) ", done.stderr, re.M), done.stderr
    verify = [os.path.join(BIN, "assay"), "verify", f"--worker={world.url()}", "--compressor=auto", "--json", "--max-tokens=16",
              f"--prompt={prompt[:400]}"]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["identical"], done.stderr


def test_another_name_is_refused_with_auto_among_those_that_are_not(tmp_path):
    done = subprocess.run([os.path.join(BIN, "assay-gpuworker"), f"--model={MODEL}", "--compressor=best"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "none or auto" in done.stderr
