# SPDX-License-Identifier: Apache-2.0
"""Calibrations: made of the real model, read by a worker that then verifies to the same bits, and refused where they are wrong."""
import hashlib
import json
import os
import re
import subprocess
import urllib.request

import pytest

from harness import BIN, MODEL, Cluster, ask, post, wait_until

SECONDS = 600


def run(program, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "ASSAY_MODEL"}
    return subprocess.run([os.path.join(BIN, program), *arguments], capture_output=True, text=True, timeout=SECONDS,
                          env=environment)


def usable_on(cluster):
    with urllib.request.urlopen(cluster.url() + "/v1/models", timeout=60) as reply:
        return json.load(reply)["data"][0]["assay"]["compressors"]


def calibrate(path, *options):
    done = run("assay", "calibrate", f"--model={MODEL}", f"--output={path}", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A calibration with summaries, and what was printed."""
    path = tmp_path_factory.mktemp("calibration") / "model.calibration"
    return path, calibrate(path, "--share-layers=2", "--summary-epochs=15")


@pytest.fixture(scope="module")
def calibration(made):
    return made[0]


@pytest.fixture(scope="module")
def shares_alone(tmp_path_factory):
    """One without summaries."""
    path = tmp_path_factory.mktemp("calibration") / "shares.calibration"
    calibrate(path, "--share-layers=1", "--summary-epochs=0")
    return path


def test_the_file_is_a_text_with_a_layer_a_line_and_the_maps_behind_it(made):
    path, said = made
    assert said.count(", shares (") == 2 and "--compressor kvsharer|less" in said
    head, line, rest = path.read_bytes().partition(b"checksum ")
    assert line and rest[64:65] == b"\n" and rest[:64].decode() == hashlib.sha256(head).hexdigest()
    maps, lines = rest[65:], head.decode().splitlines()
    assert lines[0] == "assay-calibration 2" and len(lines) == 6
    shares = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("share ")]
    assert len(shares) == 2 and all(source < layer for layer, source in shares)
    layers, q_heads, kv_heads, dim = map(int, lines[2].split()[1:])
    assert len(maps) == layers * (q_heads + kv_heads) * 8 * (dim + 1) * 4
    assert lines[5] == f"summary 8 {hashlib.sha256(maps).hexdigest()}"


def test_summaries_lower_the_error_of_attention_on_text_they_were_not_learnt_from(made):
    errors = [tuple(map(float, pair)) for pair in re.findall(r"summary of layer .*: error (\S+) without, (\S+) with", made[1])]
    assert len(errors) == 30
    assert sum(with_it < without for without, with_it in errors) >= 27, errors
    assert sum(with_it for _, with_it in errors) < .95 * sum(without for without, _ in errors), errors


def test_less_answers_as_the_full_cache(calibration, tmp_path, prompt):
    options = ["--compressor=less", f"--calibration={calibration}", "--full-cache=drop"]
    with Cluster(tmp_path, worker_options=options) as cluster:
        assert "less" in usable_on(cluster)
        long = (prompt + "\n") * (1 + 6000 // len(prompt))  # beyond what is kept as it is
        plain = ask(cluster.url(), long, "none", salt="plain")
        summed = ask(cluster.url(), long, "less")
        assert summed.usage["prompt_tokens"] > 64 + 256 + 160
        assert summed.bits == plain.bits and summed.usage["assay"]["drafted_tokens"] > 0


def test_a_calibration_without_summaries_serves_kvsharer_and_refuses_less(shares_alone, tmp_path, prompt):
    assert "make it again by `assay calibrate" in refusal("--compressor=less", f"--calibration={shares_alone}")
    with Cluster(tmp_path, worker_options=["--compressor=kvsharer", f"--calibration={shares_alone}"]) as cluster:
        usable = usable_on(cluster)
        assert "kvsharer" in usable and "less" not in usable
        assert ask(cluster.url(), prompt, "kvsharer").bits == ask(cluster.url(), prompt, "none", salt="plain").bits
        status, reply = post(cluster.url() + "/v1/completions", {"prompt": "x", "assay": {"compressor": "less"}})
        assert status == 400 and "assay calibrate" in reply["error"]["message"]


def test_workers_with_it_answer_as_the_full_cache_and_share_its_stored_form(calibration, tmp_path, prompt):
    options = ["--compressor=kvsharer", f"--calibration={calibration}", "--store-sealed=on", "--push-down=on",
               "--full-cache=drop"]
    with Cluster(tmp_path, workers=2, worker_options=options) as cluster:
        plain = ask(cluster.url(0), prompt, "none", salt="plain")
        shared = ask(cluster.url(0), prompt, "kvsharer")
        assert shared.bits == plain.bits and shared.usage["assay"]["drafted_tokens"] > 0
        blocks = 3 * (shared.usage["prompt_tokens"] // 64)  # of the salted prompt, of this one, and sealed ones
        wait_until(lambda: cluster.stat()["directory_blocks"] >= blocks, 30, "sealed blocks are stored")
        again = ask(cluster.url(1), prompt, "kvsharer", horizon=64)
        assert again.bits == plain.bits and again.cached > 0
        assert cluster.metric("assay_worker_sealed_fetched_blocks_total", 1) > 0


def test_a_worker_without_one_says_what_a_request_lacks(cluster, prompt):
    status, reply = post(cluster.url() + "/v1/completions", {"prompt": "x", "assay": {"compressor": "kvsharer"}})
    assert status == 400 and "--calibration FILE" in reply["error"]["message"]


def refusal(*options):
    done = run("assay-gpuworker", f"--model={MODEL}", "--listen=127.0.0.1:0", *options)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("compressor", ["kvsharer", "less"])
def test_without_one_it_is_refused_with_what_to_do(compressor):
    assert "needs --calibration FILE" in refusal(f"--compressor={compressor}")


def test_a_damaged_one_and_one_of_another_model_are_refused(calibration, tmp_path):
    damaged = tmp_path / "damaged"
    whole = calibration.read_bytes()
    damaged.write_bytes(whole.replace(b"share ", b"share 1", 1))
    assert "is damaged" in refusal(f"--calibration={damaged}") or "is wrong" in refusal(f"--calibration={damaged}")
    damaged.write_bytes(whole[:-4] + b"wxyz")
    assert "maps behind its text are others" in refusal(f"--calibration={damaged}")
    assert "No such file" in refusal(f"--calibration={tmp_path}/nothing")
    damaged.write_text("GGUF")
    assert "is no calibration" in refusal(f"--calibration={damaged}")


def test_calibrate_says_what_is_wrong(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    done = run("assay", "calibrate", f"--model={MODEL}", f"--output={tmp_path}/out", f"--text={short}")
    assert done.returncode == 1 and "is too short" in done.stderr
    short.write_text("Too short for summaries. " * 30)
    done = run("assay", "calibrate", f"--model={MODEL}", f"--output={tmp_path}/out", f"--text={short}", "--share-layers=1")
    assert done.returncode == 1 and "--summary-epochs 0" in done.stderr
    assert run("assay", "calibrate", "--output=x").returncode == 2
    assert "usage" in run("assay", "calibrate", "--help").stdout.lower()
    done = run("assay", "calibrate", f"--model={short}", f"--output={tmp_path}/out")
    assert done.returncode == 1 and "cannot load --model" in done.stderr
    assert not os.path.exists(f"{tmp_path}/out")
