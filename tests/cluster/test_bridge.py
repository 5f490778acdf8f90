# SPDX-License-Identifier: Apache-2.0
"""The bridge that other tests make a network of (tests/tools/bridge.c): what it does to packets, it does as it was told."""
import os
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import netns  # noqa: E402

MISSING = netns.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"skipped: {MISSING}")
PORT = 4000


def pair(network):
    """A socket on each of two hosts."""
    made = [host.socket() for host in network.hosts]
    for host, one in zip(network.hosts, made):
        one.bind((host.address, PORT))
    return made


def send(network, a, count, size=64):
    """Numbered packets from host 0 to host 1, and until the bridge has seen them all."""
    before = sum(network.tell("stat", 0, 1))
    for number in range(count):
        a.sendto(number.to_bytes(4, "big") + bytes(size - 4), (network.hosts[1].address, PORT))
    deadline = time.monotonic() + netns.SECONDS
    while sum(network.tell("stat", 0, 1)) < before + count:
        assert time.monotonic() < deadline, "the bridge has not seen the packets"


def receive(b, count):
    return [int.from_bytes(b.recvfrom(65536)[0][:4], "big") for _ in range(count)]


def test_what_is_sent_arrives_in_order():
    with netns.Network(2) as network:
        a, b = pair(network)
        send(network, a, 100)
        assert receive(b, 100) == list(range(100))


def test_a_delay_is_waited_for():
    with netns.Network(2) as network:
        a, b = pair(network)
        network.tell("delay", 0, 1, 30000)
        began = time.monotonic()
        send(network, a, 1)
        receive(b, 1)
        assert time.monotonic() - began >= 0.030


def test_a_rate_is_not_exceeded():
    with netns.Network(2) as network:
        a, b = pair(network)
        network.tell("rate", 0, 1, 1000000)
        began = time.monotonic()
        send(network, a, 100, 1000)
        receive(b, 100)
        assert time.monotonic() - began >= 0.1


def test_nothing_goes_over_a_link_that_is_cut_until_it_is_healed():
    with netns.Network(3) as network:
        a, b = pair(network)[:2]
        network.tell("cut", 0, 1)
        send(network, a, 10)
        assert network.tell("stat", 0, 1) == [0, 10]
        network.tell("heal", 0, 1)
        send(network, a, 1)
        assert receive(b, 1) == [0]
        assert network.tell("stat", 0, 2) == [0, 0]


def lost(seed):
    with netns.Network(2, seed=seed) as network:
        a, b = pair(network)
        network.tell("loss", 0, 1, 300000)
        send(network, a, 200)
        return receive(b, network.tell("stat", 0, 1)[0])


def test_the_same_packets_are_lost_for_the_same_seed():
    first = lost(7)
    assert 80 < len(first) < 190
    assert first == lost(7)
    assert first != lost(8)


def test_packets_are_reordered_and_none_is_lost():
    with netns.Network(2) as network:
        a, b = pair(network)
        network.tell("reorder", 0, 1, 200000)
        send(network, a, 200)
        got = receive(b, 200)
        assert got != sorted(got) and sorted(got) == list(range(200))


@pytest.mark.parametrize("command", ["cut 0 0", "cut 0 9", "delay 0 1", "loss 0 1 2000000", "loss 0 1 x", "melt 0 1 2", "x"])
def test_a_command_that_cannot_be_is_refused_with_a_reason(command):
    with netns.Network(2) as network:
        with pytest.raises(ValueError, match="error: "):
            network.tell(command)
