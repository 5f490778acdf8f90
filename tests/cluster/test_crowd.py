# SPDX-License-Identifier: Apache-2.0
"""Thousands of clients at one real store: they are served, whoever is beyond a limit is refused and told so, and memory stays
within a bound. Each client has a network of its own (tests/tools/crowd.c)."""
import os
import resource
import subprocess

import pytest

from crash import FULL, LOAD
from crowd import RAM_MIB, SANITIZED, Crowd, metric, others_are_served, rss_kib, start
from harness import END_SECONDS, wait_until

CROWD = 2000 if FULL else 1100  # more than the 1024 descriptors of a usual soft limit, and UCX's usual 1024 connections
EACH_PROCESS = 550  # a client takes eight descriptors
BESIDE_KIB = (512 if SANITIZED else 64) * 1024  # of the process without its pool and connections
CONNECTION_KIB = 256 if SANITIZED else 16  # measured: 3.3
WRITERS = 24
SECONDS = 120


def open_files(store):
    return len(os.listdir(f"/proc/{store.pid}/fd"))


def refused(store):
    alone = Crowd(store, 1)
    assert alone.said() == {"right": 0, "wrong": 0, "failed": 1}
    alone.end()


def test_a_store_serves_a_crowd_in_bounded_memory_and_refuses_who_is_beyond_it(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2 * CROWD + 1024:
        pytest.skip(f"a process may have no more than {hard} descriptors here")
    store = start(tmp_path, (1024, hard), f"--connections-max={CROWD + 1}")
    before_kib = rss_kib(store)
    counts = [min(EACH_PROCESS, CROWD - at) for at in range(0, CROWD, EACH_PROCESS)]
    crowds = [Crowd(store, count) for count in counts]
    assert all(crowd.all_read(crowd.said()) for crowd in crowds)
    assert metric(store, "connections") == CROWD
    others_are_served(store, 100)
    assert all(crowd.all_read(crowd.again()) for crowd in crowds)
    assert rss_kib(store) - before_kib <= CROWD * CONNECTION_KIB
    assert rss_kib(store) <= RAM_MIB * 1024 + BESIDE_KIB + CROWD * CONNECTION_KIB
    last = Crowd(store, 1)
    assert last.all_read(last.said())
    refused(store)
    assert f"connection refused: {CROWD + 1} are open, of --connections-max={CROWD + 1}" in store.log_text()
    assert metric(store, "refused_connections_total") >= 1
    assert all(crowd.all_read(crowd.again()) for crowd in [*crowds, last])
    for crowd in [*crowds, last]:
        crowd.end()
    wait_until(lambda: metric(store, "connections") == 0, SECONDS, "the crowd is gone")
    others_are_served(store, 200)
    assert store.end() == 0
    store.check()


def test_a_store_that_runs_short_of_descriptors_refuses_and_goes_on(tmp_path):
    store = start(tmp_path, (256, 256))
    assert "the limit of open files, 256, is too low for --connections-max=4096" in store.log_text()
    crowd = Crowd(store, 150)
    said = crowd.said()
    assert said["wrong"] == 0 and said["right"] > 20 and said["failed"] > 20
    assert "too many files are open here: raise their limit" in store.log_text()
    assert crowd.again()["right"] == said["right"]
    crowd.end()
    wait_until(lambda: metric(store, "connections") == 0, SECONDS, "the crowd is gone")
    others_are_served(store, 100)
    assert store.end() == 0
    store.check()


def test_a_store_without_any_descriptor_listens_again_once_it_has_some(tmp_path):
    store = start(tmp_path, (1024, 1024))
    crowd = Crowd(store, 20)
    assert crowd.all_read(crowd.said())
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (open_files(store), 1024))
    refused(store)  # by libuv, which keeps one descriptor for that
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (4, 1024))
    refused(store)
    wait_until(lambda: "closed until connections can be taken again: too many files are open here" in store.log_text(), 30, "said")
    assert crowd.all_read(crowd.again())
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    wait_until(lambda: "connections are taken again" in store.log_text(), 30, "listens")
    others_are_served(store, 100)
    crowd.end()
    assert len(store.log_text()) < 100000
    assert store.end() == 0
    store.check()


def own_kib(store):
    """What it has in memory but the memory of its clients, which it can only read."""
    kib, own = 0, True
    with open(f"/proc/{store.pid}/smaps", encoding="ascii") as lines:
        for words in map(str.split, lines):
            if "-" in words[0] and len(words) > 4:
                own = not (words[1] == "r--s" and words[-2].startswith("/memfd:assay-"))
            elif words[0] == "Rss:" and own:
                kib += int(words[1])
    return kib


def test_writers_of_this_host_fill_a_store_in_bounded_memory(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    store = start(tmp_path, (1024, hard))
    most_kib = RAM_MIB * 1024 + BESIDE_KIB + WRITERS * CONNECTION_KIB
    writers = [subprocess.Popen([LOAD, "small", "put", store.address["data"], store.address["node_id"], str(first * 1000000), "1000000"],
                                stdout=subprocess.DEVNULL) for first in range(1, WRITERS + 1)]
    try:
        evictions = 'evicted_blocks_total{reason="capacity"}'
        wait_until(lambda: metric(store, evictions) > 0 and metric(store, "connections") >= WRITERS / 2, SECONDS, "they write, and it is full")
        wait_until(lambda: own_kib(store) < rss_kib(store) - 1024, SECONDS, "they share their memory")
        for _ in range(10):
            before = metric(store, evictions)
            wait_until(lambda: metric(store, evictions) > before, SECONDS, "they go on")
            assert own_kib(store) <= most_kib
        assert sum(writer.poll() is None for writer in writers) >= WRITERS / 2  # a busy machine may have made some give up
    finally:
        for writer in writers:
            writer.kill()
            writer.wait(END_SECONDS)
    wait_until(lambda: metric(store, "connections") == 0, SECONDS, "the writers are gone")
    assert rss_kib(store) <= most_kib
    others_are_served(store, 100)
    assert store.end() == 0
    store.check()
