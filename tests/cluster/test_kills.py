# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed or stopped in the middle of transfers, again and again: who is left goes on, within its deadlines,
with right bytes, and holds nothing for the dead."""
import random
import signal
import subprocess

import pytest

from crash import FULL, LOAD, check, start_store
from harness import Cluster, wait_until
from load import Load

LOOPS = 100 if FULL else 10
DEADLINE_MS = 1500
LATE_MS = 1000  # by what other processes take of the machine
FAST = ["--replicas=2", "--heartbeat-ms=100", "--suspect-ms=300", "--dead-ms=600"]


def cluster(tmp_path, transport, stores):
    return Cluster(tmp_path, stores=stores, workers=0, scheduler_options=FAST, store_options=["--ram=64MiB"],
                   environment={"UCX_TLS": transport})


def held(world):
    """What all stores hold for clients; None: one does not answer."""
    stores = [node["store"] for node in world.stat()["nodes"] if node["role"] == "store" and node["state"] == "alive"]
    return sum(store[what] for store in stores for what in ("leases", "pins", "reservations")) if all(stores) else None


@pytest.mark.parametrize("transport", ["all", "tcp"])
def test_a_reader_outlives_stores_that_are_killed_and_stopped(tmp_path, transport):
    chance = random.Random(3)
    with cluster(tmp_path, transport, 2) as world:
        running = list(world.stores)
        load = Load(world.scheduler.address["rpc"], DEADLINE_MS, environment={"UCX_TLS": transport})
        for number in range(LOOPS):
            load.goes_on(chance.randrange(20, 200), "hit_blocks")
            victim = running.pop(chance.randrange(2))
            if number % 2:
                victim.signal(signal.SIGSTOP)
                load.goes_on(20)
                victim.signal(signal.SIGCONT)
                running.append(victim)
            else:
                victim.kill()
                running.append(world.start_store())
        load.goes_on(200, "hit_blocks")
        counts = load.end()
        wait_until(lambda: held(world) == 0, 30, "nothing is held any more")
    assert counts["wrong"] == 0, counts
    assert counts["longest_us"] <= (DEADLINE_MS + LATE_MS) * 1000, counts


@pytest.mark.parametrize("transport", ["all", "tcp"])
def test_a_store_outlives_clients_that_are_killed_and_holds_nothing_for_them(tmp_path, transport):
    chance = random.Random(4)
    with cluster(tmp_path, transport, 1) as world:
        for _ in range(LOOPS // 2):
            load = Load(world.scheduler.address["rpc"], DEADLINE_MS, environment={"UCX_TLS": transport})
            load.goes_on(chance.randrange(1, 40))
            load.kill()
        wait_until(lambda: held(world) == 0, 30, "nothing is held for the dead")
        load = Load(world.scheduler.address["rpc"], DEADLINE_MS, environment={"UCX_TLS": transport})
        load.goes_on()
        assert load.end()["wrong"] == 0


def test_two_processes_that_put_the_same_blocks_at_once_store_each_once(tmp_path):
    count = 600
    store = start_store(tmp_path, tmp_path / "disk")
    command = [LOAD, "put", store.address["data"], store.address["node_id"], "0", str(count)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert {word for words in said for word in words[::2]} == {"durable", "taken"}
    # A durable put that finds the other at it is told to come again, and the other's counts.
    assert {int(number) for words in said for number in words[1::2]} == set(range(count))
    assert len(check(store, range(count))["right"]) == count
    store.kill()
    store.end()
    store = start_store(tmp_path, tmp_path / "disk")
    found = check(store, range(count))
    assert not found["wrong"] and set(range(0, count, 2)) <= set(found["right"])
    assert store.end() == 0
