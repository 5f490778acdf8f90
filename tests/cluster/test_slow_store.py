# SPDX-License-Identifier: Apache-2.0
"""A store whose link slows to a hundredth of its rate in the middle of answers: what it had is computed again or waited for, the
answers keep their bits, other sessions go on, and nothing is held afterwards."""
import os
import sys
import threading
import time

import pytest

from harness import ask, wait_until
from hosts import HostsCluster
from test_worker_killed import held

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import netns  # noqa: E402

MISSING = netns.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"skipped: {MISSING}")
RATE_BYTES = 50_000_000  # a second, of each link
HANG_SECONDS = 100  # a swap's deadline is a second, and few of them are missed before a store is asked less
SESSIONS = 3
OPTIONS = ["--fetch-deadline=1s", "--put-deadline=3s", "--recompute-rate=-1", "--sessions=8"]


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_store_that_slows_to_a_hundredth_costs_time_only(tmp_path, prompt, mode):
    prompts = [f"Part {number}. {prompt[:1100]}" for number in range(SESSIONS)]
    with netns.Network(3) as network, network.hosts[0].entered():
        for store in 1, 2:
            network.tell("rate", 0, store, RATE_BYTES)
        with HostsCluster(network, tmp_path, stores=2, worker_options=[*OPTIONS, f"--push-down={mode}"],
                          environment={"UCX_TLS": "tcp"}) as world:
            expected = [ask(world.url(), text, compressor="none", salt="plain", tokens=12).bits for text in prompts]
            for text in prompts:
                assert ask(world.url(), text, tokens=2).bits == expected[prompts.index(text)][:2]
            wait_until(lambda: world.stat()["directory_blocks"] >= 3 * SESSIONS, 30, "the prompts are stored")

            def slow(number):
                if number == 1:
                    network.tell("rate", 0, 1, RATE_BYTES // 100)

            answers, begun = {}, time.monotonic()

            def run(number):
                answers[number] = ask(world.url(), prompts[number], horizon=2, tokens=12, on_event=slow if number == 0 else None)

            threads = [threading.Thread(target=run, args=(number,)) for number in range(SESSIONS)]
            for thread in threads:
                thread.start()
            # Another session, that needs no store.
            beside = ask(world.url(), prompts[0], compressor="none", salt="beside", tokens=12)
            assert beside.bits == expected[0]
            for thread in threads:
                thread.join(HANG_SECONDS)
            assert time.monotonic() - begun < HANG_SECONDS
            assert [answers[number].bits for number in range(SESSIONS)] == expected
            network.tell("rate", 0, 1, RATE_BYTES)
            wait_until(lambda: world.metric("assay_worker_reserved_bytes") == 0, 60, "the worker holds nothing")
            wait_until(lambda: sum(held(store) for store in world.stores) == 0, 60, "nor do the stores")
