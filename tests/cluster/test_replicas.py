# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks, with real processes: a store that is killed or stopped costs nothing that is computed again."""
import signal

import pytest

from harness import Cluster, ask, wait_until

COPIES = {"stores": 3, "workers": 1, "scheduler_options": ["--replicas=2"]}
DEADLINES = ["--route-deadline=500ms", "--fetch-deadline=10s", "--put-deadline=3s", "--request-deadline=120s"]


@pytest.fixture()
def world(tmp_path):
    with Cluster(tmp_path, worker_options=DEADLINES, **COPIES) as running:
        yield running


def figures(world, what):
    """A figure of each store that answers, by node id."""
    return {node["node_id"]: node["store"][what] for node in world.stat()["nodes"]
            if node["role"] == "store" and node["store"]}


def reads_from(world):
    """The process of the store that the blocks are read from."""
    hits = figures(world, "hits")
    return next(store for store in world.stores if store.address["node_id"] == max(hits, key=hits.get))


def warm(world, prompt, tokens=24):
    """Computes the prefix, waits until two copies of each of its blocks are stored and known, and reads them once."""
    answer = ask(world.url(), prompt, tokens=tokens)
    blocks = answer.usage["prompt_tokens"] // 64
    wait_until(lambda: sum(figures(world, "blocks").values()) >= 2 * blocks and world.stat()["directory_blocks"] >= blocks, 30,
               "two copies of each block are stored")
    again = ask(world.url(), prompt, tokens=tokens)
    assert again.bits == answer.bits and again.cached >= 5 * 64
    return again


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_store_lost_between_verifications_costs_no_recompute(world, prompt, number):
    expected = warm(world, prompt, tokens=48)
    victim = reads_from(world)

    def on_event(count):
        if count == 2:
            if number == signal.SIGKILL:
                victim.kill()
            else:
                victim.signal(number)

    answer = ask(world.url(), prompt, tokens=48, on_event=on_event)
    assert answer.bits == expected.bits
    assert answer.usage["assay"]["verifications"] > 4 and answer.usage["assay"]["recomputed_blocks"] == 0
    assert world.metric("assay_client_rescued_blocks_total") > 0


def test_a_store_killed_before_a_request_costs_no_recompute(world, prompt):
    expected = warm(world, prompt)
    assert world.stat()["replicas"] == 2
    reads_from(world).kill()
    answer = ask(world.url(), prompt)  # the scheduler has not noticed yet
    assert answer.bits == expected.bits and answer.cached == expected.cached
    assert answer.usage["assay"]["recomputed_blocks"] == 0
