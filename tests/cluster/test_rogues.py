# SPDX-License-Identifier: Apache-2.0
"""Peers of a real store that say HELLO and then stop taking what they asked for, send messages again, or too large ones
(tests/tools/rogue.c): the store holds little for them, answers others meanwhile, and holds nothing afterwards."""
import os
import resource
import signal
import subprocess

import pytest

from crash import FULL
from crowd import BY_MESSAGES, SANITIZED, metric, others_are_served, rss_kib, start
from harness import BIN, END_SECONDS, wait_until

LOOPS = 100 if FULL else 6
STANDING = 12
CROWDED = 24  # together they ask for more answers than a store has in all
ASKED = 240  # answers of 64 KiB that one who stands still asks for: more than sockets take
# What is handed to the network of a connection is 2 MiB, and that is in the pool: what is added are buffers of UCX.
STANDING_KIB = 4 * 1024 if SANITIZED else 1024
NOT_FOUND, EXISTS, INVALID, LEASE = 1, 2, 5, 6  # statuses of proto/wire.h


@pytest.fixture()
def store(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    running = start(tmp_path, limits, "--lease-max-ms=60000", blocks=32)
    yield running
    for rogue in list(Rogue.all):  # of a test that failed
        rogue.kill()
    wait_until(lambda: metric(running, "connections") == 0 and metric(running, "leases") == 0, 30, "nothing is held")
    assert running.end() == 0
    running.check()


class Rogue:
    all = []

    def __init__(self, store, what, env=BY_MESSAGES):
        Rogue.all.append(self)
        self.child = subprocess.Popen([os.path.join(BIN, "rogue"), store.address["data"], what], stdout=subprocess.PIPE, text=True,
                                      env=env)

    def until(self, word):
        while (line := self.child.stdout.readline().strip()) != word:
            assert line, f"it ended before it said {word}"

    def said(self):
        words = self.child.communicate(timeout=90)[0].split()
        assert self.child.returncode == 0
        Rogue.all.remove(self)
        return words

    def kill(self):
        self.child.kill()
        self.child.wait(END_SECONDS)
        self.child.stdout.close()
        Rogue.all.remove(self)


def test_readers_that_stop_taking_hold_up_nobody_and_cost_little(store):
    before_kib = rss_kib(store)
    rogues = [Rogue(store, "stand_still") for _ in range(STANDING)]
    for rogue in rogues:
        rogue.until("stopped")
    for first in range(100, 180, 20):
        others_are_served(store, first, BY_MESSAGES)
    assert rss_kib(store) - before_kib <= STANDING * STANDING_KIB
    wait_until(lambda: metric(store, "leases") == STANDING, 30, "all of them hold their leases, nobody else any")
    for rogue in rogues[::2]:
        rogue.kill()
    for rogue in rogues[1::2]:
        rogue.child.send_signal(signal.SIGCONT)
        assert rogue.said() == ["DATA=0"] * (ASKED - 1) + ["open"]
    assert rss_kib(store) - before_kib <= STANDING * STANDING_KIB


def test_readers_that_stop_taking_leave_answers_to_others_however_many_they_are(store):
    before_kib = rss_kib(store)
    rogues = [Rogue(store, "ask_for_all_and_stand_still") for _ in range(CROWDED)]
    for rogue in rogues:
        rogue.until("stopped")
    for first in range(100, 160, 20):
        others_are_served(store, first, BY_MESSAGES)
    assert rss_kib(store) - before_kib <= CROWDED * STANDING_KIB
    assert metric(store, "busy_total") > 0, "there was not enough for all"


def test_a_peer_that_asks_on_and_takes_no_answers_is_closed_at_once(store):
    rogue = Rogue(store, "ask_on_and_stand_still")
    rogue.until("stopped")
    wait_until(lambda: metric(store, "connections") == 0, 20, "it is closed, long before it is taken for one that is stopped")
    assert "its peer asks, and takes no answers" in store.log_text()
    others_are_served(store, 100, BY_MESSAGES)


def test_a_client_outlives_a_store_that_is_killed_in_mid_transfer(tmp_path):
    for number in range(LOOPS):
        folder = tmp_path / str(number)
        folder.mkdir()
        store = start(folder, resource.getrlimit(resource.RLIMIT_NOFILE), "--lease-max-ms=60000", blocks=32)
        rogues = [Rogue(store, "stand_still") for _ in range(2)]
        for rogue in rogues:
            rogue.until("stopped")
        store.kill()
        store.end()
        store.check()
        for rogue in rogues:
            rogue.child.send_signal(signal.SIGCONT)
            words = rogue.said()
            assert words[-1] == "closed" and len(words) < ASKED and set(words[:-1]) <= {"DATA=0"}, words


def test_a_store_outlives_clients_that_are_killed_in_mid_transfer(store):
    for _ in range(LOOPS):
        rogues = [Rogue(store, "stand_still") for _ in range(2)]
        for rogue in rogues:
            rogue.until("stopped")
            rogue.kill()
    others_are_served(store, 100)


def test_messages_that_come_again_are_answered_again_and_do_nothing_more(store):
    words = Rogue(store, "replay").said()
    assert sorted(words) == sorted(["HELLO_REPLY=0"] * 2 + ["LOCATED=0"] * 2 + ["DATA=0", "RENEWED=0"] * 2 +
                                   [f"DATA={LEASE}", f"RENEWED={LEASE}", "open"])


def test_a_lease_of_somebody_else_gives_nothing(store):
    assert Rogue(store, "read_of_a_lease_that_is_not_its_own").said() == ["HELLO_REPLY=0", "LOCATED=0", f"DATA={LEASE}",
                                                                          f"DATA={LEASE}", "open"]


def test_messages_of_other_sizes_than_they_say_harm_nobody(store):
    before_kib = rss_kib(store)
    for _ in range(5):
        for what in ("hello_with_a_payload", "release_with_a_payload"):  # which nobody looks at
            assert Rogue(store, what).said()[-1] == "open", what
        for what in ("locate_with_more_than_its_keys", "locate_with_less_than_its_keys", "locate_of_too_many_keys",
                     "read_of_too_many", "header_of_the_largest_size", "header_that_is_cut", "answer_in_place_of_a_question"):
            assert Rogue(store, what).said()[-1] == "closed", what
    others_are_served(store, 100)
    assert metric(store, "protocol_errors_total") == 5 * 7
    assert rss_kib(store) - before_kib <= 4 * STANDING_KIB


def test_puts_that_are_not_what_they_say_are_refused(store):
    said = {"put_again": ["STORED=0", f"STORED={EXISTS}", "open"],
            "put_with_more_than_its_bytes": [f"STORED={INVALID}", "open"],
            "put_whose_pieces_do_not_follow": [f"STORED={INVALID}", "open"],
            "put_of_too_many_layers": ["closed"],
            "put_out_of_memory_that_it_has_not_shared": [f"STORED={INVALID}", "open"],
            "share_what_is_not_its_own": [f"SHARED={NOT_FOUND}", "open"],
            "share_more_than_there_is": [f"SHARED={NOT_FOUND}", "open"],
            "share_twice": ["closed"]}
    for what, words in said.items():
        heard = [word for word in Rogue(store, what, os.environ).said() if word != "SHARED=0"]  # which a close may overtake
        assert heard[:1 + len(words)] == ["HELLO_REPLY=0", *words], what  # it may ask for the last word twice
    others_are_served(store, 100)


def test_memory_that_is_not_there_is_not_shared(store):
    before_kib = rss_kib(store)
    heard = Rogue(store, "put_out_of_holes", os.environ).said()
    assert heard[:6] == ["HELLO_REPLY=0", f"SHARED={NOT_FOUND}", *[f"STORED={INVALID}"] * 4], heard
    assert rss_kib(store) - before_kib <= STANDING_KIB
    others_are_served(store, 100)
