# SPDX-License-Identifier: Apache-2.0
"""A store that is killed, with real processes and two copies of each block: the copies it had are made again, so that the
loss of another store costs nothing either."""
import pytest

from harness import Cluster, ask, wait_until

SCHEDULER = ["--replicas=2", "--heartbeat-ms=200", "--suspect-ms=600", "--dead-ms=1500"]
DEADLINES = ["--route-deadline=500ms", "--fetch-deadline=10s", "--put-deadline=3s", "--request-deadline=120s"]


@pytest.fixture()
def world(tmp_path):
    with Cluster(tmp_path, stores=3, workers=1, scheduler_options=SCHEDULER, worker_options=DEADLINES,
                 store_options=["--repair-wait=500ms"]) as running:
        yield running


def figures(world, what):
    return {node["node_id"]: node["store"][what] for node in world.stat()["nodes"]
            if node["role"] == "store" and node["state"] == "alive" and node["store"]}


def stored(world):
    return sum(figures(world, "blocks").values())


def kill_the_fullest(world):
    """Returns how many blocks it had."""
    held = figures(world, "blocks")
    victim = max((store for store in world.stores if store.address["node_id"] in held), key=lambda store: held[store.address["node_id"]])
    victim.kill()
    assert held[victim.address["node_id"]] > 0
    return held[victim.address["node_id"]]


def test_lost_copies_are_made_again_and_the_next_loss_costs_no_recompute(world, prompt):
    first = ask(world.url(), prompt)
    blocks = first.usage["prompt_tokens"] // 64
    wait_until(lambda: stored(world) >= 2 * blocks and world.stat()["directory_blocks"] >= blocks, 30,
               "two copies of each block are stored")
    all_blocks = stored(world)
    lost = kill_the_fullest(world)
    wait_until(lambda: len(figures(world, "blocks")) == 2 and stored(world) == all_blocks, 15, "the lost copies are made again")
    wait_until(lambda: sum(figures(world, "repair_pending").values()) == 0, 15, "the repair ends")
    assert sum(figures(world, "repaired_blocks").values()) == lost  # each once
    kill_the_fullest(world)
    answer = ask(world.url(), prompt)
    assert answer.bits == first.bits and answer.cached >= 5 * 64
    assert answer.usage["assay"]["recomputed_blocks"] == 0
