# SPDX-License-Identifier: Apache-2.0
"""A stored prefix is loaded or computed again, whichever the worker expects to be faster; the answer is the same."""
from harness import Cluster, ask, wait_until


def stored(world):
    return world.stat()["directory_blocks"] >= 6


def ask_twice(world, prompt):
    """The second time the prefix is stored, and the stores were read from by the first answer's verifications."""
    first = ask(world.url(), prompt)
    assert first.cached == 0
    wait_until(lambda: stored(world), 30, "the prompt's blocks are stored")
    again = ask(world.url(), prompt)
    assert again.bits == first.bits
    return again


def test_a_worker_that_computes_faster_than_it_loads_computes(tmp_path, prompt):
    with Cluster(tmp_path, worker_options=["--recompute-rate=1e9"]) as world:
        again = ask_twice(world, prompt)
        assert again.cached == 0 and again.usage["assay"]["recompute_chosen_blocks"] >= 6
        assert world.metric("assay_worker_recompute_chosen_blocks_total") >= 6


def test_by_its_own_measure_it_loads(tmp_path, prompt):
    with Cluster(tmp_path) as world:
        again = ask_twice(world, prompt)
        assert again.cached >= 6 * 64 and again.usage["assay"]["recompute_chosen_blocks"] == 0
        assert world.metric("assay_worker_recompute_chosen_blocks_total") == 0
