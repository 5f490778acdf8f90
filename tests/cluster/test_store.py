# SPDX-License-Identifier: Apache-2.0
"""One store by itself: what it takes of the machine, and gives back."""
import os
import subprocess

from harness import BIN, END_SECONDS, Process

STORE = os.path.join(BIN, "assay-kvstore")


def test_a_pool_that_does_not_fit_is_refused_before_anything_is_taken():
    done = subprocess.run([STORE, "--ram=9TiB"], capture_output=True, text=True, timeout=END_SECONDS)
    assert done.returncode == 1
    assert "--ram asks for 9437184 MiB" in done.stderr and "are free here" in done.stderr
    assert done.stdout == ""


def test_a_killed_store_leaves_no_shared_memory(tmp_path):
    before = set(os.listdir("/dev/shm"))
    store = Process("assay-kvstore", ["--ram=64MiB"], tmp_path / "store.log").wait_ready()
    with open(f"/proc/{store.pid}/maps") as maps:
        assert "/dev/shm/" in maps.read()  # it is in shared memory
    store.kill()
    store.end()
    left = set(os.listdir("/dev/shm")) - before
    assert not [name for name in left if os.stat(f"/dev/shm/{name}").st_size >= 64 << 20]
