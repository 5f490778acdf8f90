# SPDX-License-Identifier: Apache-2.0
"""Verifications whose attention the stores compute, by real processes over TCP: the bits of full-cache decoding, few bytes
over the link, also when a store goes in the middle of an answer or computes none."""
import re
import urllib.request

from harness import Cluster, ask, wait_until

TCP = {"UCX_TLS": "tcp"}


def store_metric(store, name):
    text = urllib.request.urlopen(f"http://{store.address['http']}/metrics", timeout=30).read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))


def reference(world, prompt, worker=0):
    """Plain decoding over the full cache, under a salt of its own."""
    return ask(world.url(worker), prompt, horizon=0, salt="reference")


def per_token(answer, what):
    return answer.usage["assay"][what] / len(answer.bits)


def test_a_pushed_answer_has_the_same_bits_and_moves_a_fraction_of_the_bytes(tmp_path, prompt):
    with Cluster(tmp_path, stores=2, workers=0, environment=TCP) as world:
        for mode in "on", "off":
            world.worker_options = [f"--push-down={mode}", "--recompute-rate=-1"]
            world.workers.append(world.launch_worker())
        for worker in world.workers:
            worker.wait_ready()
        expected = reference(world, prompt)
        pushed = ask(world.url(0), prompt, salt="pushed")
        swapped = ask(world.url(1), prompt, salt="swapped")
        assert pushed.bits == expected.bits and swapped.bits == expected.bits
        usage = pushed.usage["assay"]
        assert usage["pushed_verifications"] > 0 and usage["swapped_bytes"] == 0
        assert 0 < 10 * per_token(pushed, "pushed_bytes") < per_token(swapped, "swapped_bytes")
        assert swapped.usage["assay"]["pushed_bytes"] == 0
        assert sum(store_metric(store, "assay_kvstore_attends_total") for store in world.stores) > 0
        assert world.metric("assay_worker_push_refused_total") == 0


def test_a_store_that_is_killed_in_the_middle_costs_no_token(tmp_path, prompt):
    with Cluster(tmp_path, worker_options=["--push-down=on", "--recompute-rate=-1"], environment=TCP) as world:
        expected = reference(world, prompt)

        def kill_once(number):
            if number == 5 and world.stores[0].child.returncode is None:
                world.stores[0].kill()

        answer = ask(world.url(), prompt, salt="killed", horizon=2, on_event=kill_once)
        assert world.stores[0].child.returncode is not None
        assert answer.bits == expected.bits
        usage = answer.usage["assay"]
        assert usage["pushed_verifications"] > 0 and usage["recomputed_blocks"] > 0


def test_stores_that_compute_none_are_swapped_from(tmp_path, prompt):
    with Cluster(tmp_path, worker_options=["--push-down=on"], store_options=["--attend-threads=0"]) as world:
        expected = reference(world, prompt)
        answer = ask(world.url(), prompt, salt="swapped")
        assert answer.bits == expected.bits
        usage = answer.usage["assay"]
        assert usage["pushed_verifications"] == 0 and usage["swapped_bytes"] > 0
        wait_until(lambda: world.metric("assay_worker_push_refused_total") > 0, 10, "the refusals are counted")
