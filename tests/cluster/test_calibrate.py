# SPDX-License-Identifier: Apache-2.0
"""Calibrations: made of the real model, read by a worker that then verifies to the same bits, and refused where they are wrong."""
import os
import subprocess

import pytest

from harness import BIN, MODEL, Cluster, ask, post, wait_until

SECONDS = 600


def run(program, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "ASSAY_MODEL"}
    return subprocess.run([os.path.join(BIN, program), *arguments], capture_output=True, text=True, timeout=SECONDS,
                          env=environment)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration") / "model.calibration"
    done = run("assay", "calibrate", f"--model={MODEL}", f"--output={path}", "--share-layers=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(", shares (") == 2 and "--compressor kvsharer" in done.stdout
    return path


def test_the_file_is_a_text_with_a_layer_a_line(calibration):
    lines = calibration.read_text().splitlines()
    assert lines[0] == "assay-calibration 1" and lines[-1].startswith("checksum ")
    shares = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("share ")]
    assert len(shares) == 2 and all(source < layer for layer, source in shares)
    assert len(lines) == 6


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


def test_without_one_kvsharer_is_refused_with_what_to_do():
    assert "needs --calibration FILE" in refusal("--compressor=kvsharer")


def test_a_damaged_one_and_one_of_another_model_are_refused(calibration, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_text(calibration.read_text().replace("share ", "share 1", 1))
    assert "is damaged" in refusal(f"--calibration={damaged}") or "is wrong" in refusal(f"--calibration={damaged}")
    assert "No such file" in refusal(f"--calibration={tmp_path}/nothing")
    damaged.write_text("GGUF")
    assert "is no calibration" in refusal(f"--calibration={damaged}")


def test_calibrate_says_what_is_wrong(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    done = run("assay", "calibrate", f"--model={MODEL}", f"--output={tmp_path}/out", f"--text={short}")
    assert done.returncode == 1 and "is too short" in done.stderr
    assert run("assay", "calibrate", "--output=x").returncode == 2
    assert "usage" in run("assay", "calibrate", "--help").stdout.lower()
    done = run("assay", "calibrate", f"--model={short}", f"--output={tmp_path}/out")
    assert done.returncode == 1 and "cannot load --model" in done.stderr
    assert not os.path.exists(f"{tmp_path}/out")
