# SPDX-License-Identifier: Apache-2.0
"""One store: what it takes of the machine and gives back, and what it keeps on disk."""
import os
import re
import resource
import signal
import socket
import subprocess
import time
import urllib.request

from harness import BIN, END_SECONDS, Cluster, Process, ask, wait_until

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
        assert re.search(r"rw-s .*/memfd:assay-[0-9a-f]{32}", maps.read())
    store.kill()
    store.end()
    left = set(os.listdir("/dev/shm")) - before
    assert not [name for name in left if os.stat(f"/dev/shm/{name}").st_size >= 64 << 20]


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_descriptors_the_http_port_rests_and_says_so(tmp_path):
    store = Process("assay-kvstore", ["--ram=64MiB", "--drain-timeout=0s"], tmp_path / "store.log").wait_ready()
    host, port = store.address["http"].split(":")
    used = max(map(int, os.listdir(f"/proc/{store.pid}/fd"))) + 1
    hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (used, hard))
    waiting = [socket.create_connection((host, int(port)), 5) for _ in range(10)]
    wait_until(lambda: "too many files are open here" in store.log_text(), 10, "it says so")
    before, end = cpu_seconds(store), time.monotonic() + 1
    wait_until(lambda: time.monotonic() >= end, 5, "a second")
    assert cpu_seconds(store) - before < 0.1 and store.log_text().count("too many files") == 1
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (hard, hard))
    waiting[0].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert waiting[0].makefile("rb").readline().startswith(b"HTTP/1.1 200")
    for one in waiting:
        one.close()
    store.signal(signal.SIGTERM)
    assert store.end() == 0


def disk_blocks(store):
    text = urllib.request.urlopen(f"http://{store.address['http']}/metrics", timeout=30).read().decode()
    return float(re.search(r"^assay_kvstore_disk_stored_blocks (\S+)$", text, re.M).group(1))


def test_a_killed_store_finds_its_blocks_on_disk_again(tmp_path):
    disk = [f"--disk={tmp_path / 'disk'}", "--disk-size=256MiB"]
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "demo-text.txt")) as file:
        prompt = file.read()[:2400]
    with Cluster(tmp_path, store_options=disk) as world:
        first = ask(world.url(), prompt)
        assert first.cached == 0
        wait_until(lambda: disk_blocks(world.stores[0]) >= 6, 30, "the blocks are on disk")
        held = int(disk_blocks(world.stores[0]))
        world.stores[0].kill()
        world.start_store()
        assert disk_blocks(world.stores[1]) == held
        figures = [node["store"] for node in world.stat()["nodes"] if node["role"] == "store" and node["store"]]
        assert held in [figure["disk_blocks"] for figure in figures]
        wait_until(lambda: world.stat()["directory_blocks"] >= held, 30, "the new store has told its blocks")
        wait_until(lambda: ask(world.url(), prompt).cached > 0, 60, "the prefix comes from disk")
        again = ask(world.url(), prompt)
        assert again.bits == first.bits


def test_two_stores_do_not_share_a_directory(tmp_path):
    disk = f"--disk={tmp_path / 'disk'}"
    store = Process("assay-kvstore", ["--ram=16MiB", disk, "--disk-size=16MiB"], tmp_path / "store.log").wait_ready()
    done = subprocess.run([STORE, "--ram=16MiB", disk, "--disk-size=16MiB"], capture_output=True, text=True,
                          timeout=END_SECONDS)
    assert done.returncode == 1 and "in use by another store" in done.stderr
    assert store.end() == 0


def test_nodes_of_another_cluster_are_refused_and_both_sides_say_so(tmp_path):
    with Cluster(tmp_path, stores=0, workers=0, scheduler_options=["--cluster-id=blue"],
                 worker_options=["--cluster-id=green"]) as world:
        lost = world.start_store(["--cluster-id=green", "--name=stray"])
        worker = world.launch_worker()
        wait_until(lambda: "not joined: the scheduler is of another cluster" in lost.log_text(), 20, "the store says so")
        wait_until(lambda: "of another cluster than this worker's --cluster-id=green" in worker.log_text(), 30, "the worker says so")
        assert "store stray is of the cluster green and this is blue" in world.scheduler.log_text()
        own, other = world.start_store(["--cluster-id=blue"]), world.start_store([])
        wait_until(lambda: len(world.stat()["nodes"]) == 2, 10, "those of blue and of no name have joined")
        ids = {node["node_id"] for node in world.stat()["nodes"]}
        assert ids == {store.address["node_id"] for store in (own, other)}
        assert lost.log_text().count("not joined: the scheduler is of another cluster") == 1
