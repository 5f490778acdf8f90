# SPDX-License-Identifier: Apache-2.0
"""Dropped blocks stay dropped: by their keys, over kill -9 and new starts, and the others stay."""
import json

from crash import FULL, assay, check, keys, put
from harness import Cluster, wait_until

ROUNDS = 20 if FULL else 4
BLOCKS = 60


def start_again(world):
    world.stores[-1].kill()
    world.start_store()

    def only_one():
        """The scheduler has given up the other ones."""
        live = [node for node in world.stat()["nodes"] if node["role"] == "store" and node["state"] != "dead"]
        return [node["data_address"] for node in live] == [world.stores[-1].address["data"]] and live[0]["state"] == "alive"

    wait_until(only_one, 30, "the new store is the only one")


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
