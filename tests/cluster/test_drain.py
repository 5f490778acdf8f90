# SPDX-License-Identifier: Apache-2.0
"""A store that is ended in order, with real processes: what it has is at the others before it goes."""
import json
import os
import signal
import subprocess
import time

import pytest

from harness import BIN, END_SECONDS, Cluster, ask, wait_until


@pytest.fixture()
def world(tmp_path):
    with Cluster(tmp_path, stores=2, workers=1, store_options=["--drain-timeout=20s"]) as running:
        yield running


def node_of(world, store):
    return next(node for node in world.stat()["nodes"] if node["node_id"] == store.address["node_id"])


def blocks(world, store):
    return node_of(world, store)["store"]["blocks"]


def warm(world, prompt):
    """Computes the prefix, and waits until all of it is stored and known. Returns the answer, and who has more of it."""
    answer = ask(world.url(), prompt)
    wanted = answer.usage["prompt_tokens"] // 64
    wait_until(lambda: sum(blocks(world, store) for store in world.stores) >= wanted and
               world.stat()["directory_blocks"] >= wanted, 30, "the prefix is stored")
    again = ask(world.url(), prompt)
    assert again.bits == answer.bits and again.cached >= 5 * 64
    return again, max(world.stores, key=lambda store: blocks(world, store))


def expect_nothing_computed(world, prompt, before):
    wait_until(lambda: sum(node["role"] == "store" and node["state"] == "alive" for node in world.stat()["nodes"]) == 1, 10,
               "the scheduler knows that it has gone")
    answer = ask(world.url(), prompt)
    assert answer.bits == before.bits and answer.cached == before.cached
    assert answer.usage["assay"]["recomputed_blocks"] == 0


def test_a_store_that_is_terminated_hands_its_blocks_over_and_ends_well(world, prompt):
    before, leaving = warm(world, prompt)
    staying = next(store for store in world.stores if store is not leaving)
    all_blocks = blocks(world, leaving) + blocks(world, staying)
    leaving.signal(signal.SIGTERM)
    assert leaving.child.wait(END_SECONDS) == 0, leaving.log_text()
    assert blocks(world, staying) == all_blocks
    assert node_of(world, leaving)["state"] == "dead"  # it said so: nobody waits for its silence
    expect_nothing_computed(world, prompt, before)
    began = time.monotonic()
    staying.signal(signal.SIGTERM)  # nobody is left
    assert staying.child.wait(END_SECONDS) == 0
    assert time.monotonic() - began < 5 and "there is no other store" in staying.log_text()


def test_the_command_line_drains_a_store_and_tells_how_it_went(world, prompt):
    before, leaving = warm(world, prompt)
    own = blocks(world, leaving)
    command = [os.path.join(BIN, "assay"), "drain", "--json", f"--scheduler={world.scheduler.address['rpc']}"]
    none = subprocess.run([*command, "nobody"], capture_output=True, timeout=30)
    assert none.returncode == 1 and b"there is no store nobody" in none.stderr
    idle = subprocess.run([*command, "--show", leaving.address["data"]], capture_output=True, timeout=30)
    assert idle.returncode == 0 and json.loads(idle.stdout)["is_over"] is False
    done = subprocess.run([*command, leaving.address["node_id"]], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["is_over"] and told["handed_blocks"] == told["blocks"] == own and told["left_blocks"] == 0
    assert leaving.child.wait(END_SECONDS) == 0
    expect_nothing_computed(world, prompt, before)


def test_the_last_store_tells_what_is_on_its_disk_and_what_ends_with_it(tmp_path, prompt):
    for options, on_disk in ([f"--disk={tmp_path / 'disk'}"], True), ([], False):
        with Cluster(tmp_path, stores=1, workers=1, store_options=["--drain-timeout=20s", *options]) as world:
            _, last = warm(world, prompt)
            own = blocks(world, last)
            command = [os.path.join(BIN, "assay"), "drain", *world.link(), last.address["node_id"]]
            done = subprocess.run(command, capture_output=True, timeout=30, text=True)
            assert last.child.wait(END_SECONDS) == 0
            rest = f"{own} are on its disk for its next start, 0 ended" if on_disk else f"had copies, {own} ended with it"
            assert rest in done.stdout and done.returncode == (0 if on_disk else 1), done.stdout + done.stderr


def test_a_second_signal_ends_a_drain_at_once(world, prompt):
    _, leaving = warm(world, prompt)
    staying = next(store for store in world.stores if store is not leaving)
    staying.signal(signal.SIGSTOP)  # it takes nothing, and nobody knows yet
    leaving.signal(signal.SIGTERM)
    wait_until(lambda: "handing" in leaving.log_text(), 10, "it drains")
    assert leaving.child.poll() is None
    began = time.monotonic()
    leaving.signal(signal.SIGTERM)
    assert leaving.child.wait(END_SECONDS) == 0
    assert time.monotonic() - began < 5
