# SPDX-License-Identifier: Apache-2.0
"""Dropped blocks stay dropped: by their keys, over kill -9 and new starts, and the others stay."""
import json
import os
import subprocess

from crash import FULL, check
from harness import BIN, Cluster, wait_until

ROUNDS = 20 if FULL else 4
BLOCKS = 60


def assay(world, *arguments):
    command = [os.path.join(BIN, "assay"), *arguments, f"--scheduler={world.scheduler.address['rpc']}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def keys(world):
    """Of the blocks in memory, by their numbers, which lie in them (store_load.c)."""
    listed = json.loads(assay(world, "ls", "--json", "--limit=10000"))
    return {int.from_bytes(bytes.fromhex(block["key"])[16:20], "little"): block["key"] for block in listed}


def put(store, first, count):
    """Every second one durable; the others may still be on their way to disk when it returns."""
    command = [os.path.join(BIN, "store_load"), "put", store.address["data"], store.address["node_id"], str(first), str(count)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def start_again(world):
    world.stores[-1].kill()
    world.start_store()
    alive = lambda: [node["data_address"] for node in world.stat()["nodes"]  # noqa: E731
                     if node["role"] == "store" and node["state"] == "alive" and node["store"]]
    wait_until(lambda: alive() == [world.stores[-1].address["data"]], 30, "the new store has joined alone")


def test_a_block_that_was_dropped_is_gone_after_kills_and_starts(tmp_path):
    disk = [f"--disk={tmp_path / 'disk'}", "--disk-size=64MiB"]
    options = ["--heartbeat-ms=100", "--suspect-ms=300", "--dead-ms=600"]
    with Cluster(tmp_path, workers=0, store_options=disk, scheduler_options=options) as world:
        dropped, kept = set(), set()
        for number in range(ROUNDS):
            fresh = range(number * BLOCKS, (number + 1) * BLOCKS)
            put(world.stores[-1], number * BLOCKS, BLOCKS)
            held = keys(world)
            now = {n for n in held if n % 3 == 0} - dropped
            assert assay(world, "drop", *(held[n] for n in now)) == f"{len(now)} blocks are dropped\n"
            dropped |= now
            kept |= {n for n in fresh if n % 2 == 0} - now  # durable
            start_again(world)
            found = check(world.stores[-1], range((number + 1) * BLOCKS))
            assert not found["wrong"] and not dropped & set(found["right"])
            assert kept <= set(found["right"])
        assert len(dropped) >= 20 * ROUNDS
        owner = json.loads(assay(world, "ls", "--json", "--limit=1"))[0]["namespace"]
        put(world.stores[-1], ROUNDS * BLOCKS, BLOCKS)
        assay(world, "drop", f"--namespace={owner}")
        start_again(world)
        assert not check(world.stores[-1], range((ROUNDS + 1) * BLOCKS))["right"]
