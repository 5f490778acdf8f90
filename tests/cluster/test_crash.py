# SPDX-License-Identifier: Apache-2.0
"""A store that is killed under load: what it has acknowledged as durable is there again, and nothing is ever wrong."""
import random

from crash import FULL, Acknowledged, check, expect_kept, load, start_store

ROUNDS = 100 if FULL else 8


def test_what_a_killed_store_has_acknowledged_is_there_again(tmp_path):
    chance, acknowledged = random.Random(1), Acknowledged()
    for _ in range(ROUNDS):
        store = start_store(tmp_path, tmp_path / "disk")
        expect_kept(store, acknowledged, last=500)
        load(store, acknowledged, chance.randrange(1, 160), store.kill)
        store.end()
        store.check()
    store = start_store(tmp_path, tmp_path / "disk")
    expect_kept(store, acknowledged)
    assert store.end() == 0
    assert len(acknowledged.durable) >= 10 * ROUNDS


def test_a_store_that_ends_in_order_keeps_everything(tmp_path):
    acknowledged = Acknowledged()
    store = start_store(tmp_path, tmp_path / "disk")
    load(store, acknowledged, 0, None, count=300)
    assert store.end() == 0
    store = start_store(tmp_path, tmp_path / "disk")
    assert len(check(store, range(300))["right"]) == 300
    assert store.end() == 0
