# SPDX-License-Identifier: Apache-2.0
"""A store that is killed under load: what it has acknowledged as durable is there again, and nothing is ever wrong."""
import random
import subprocess
import time

from crash import BY_MESSAGES, FULL, LOAD, Acknowledged, check, expect_kept, load, start_store
from crowd import SANITIZED, metric
from harness import END_SECONDS, wait_until

ROUNDS = 100 if FULL else 8
BLOCKS = 100000 if FULL else 20000  # of 4 KiB on disk
AT_ONCE = 2000  # what the queue of the disk takes
READY_SECONDS = 10 if SANITIZED else 2


class Reader:
    """Reads these blocks again and again, until its store is gone."""

    def __init__(self, store, numbers, env=None):
        command = [LOAD, "check", store.address["data"], store.address["node_id"]]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.child.stdin.write(" ".join(map(str, numbers * (20000 // len(numbers)))))
        self.child.stdin.close()
        self.first = self.child.stdout.readline()

    def end(self):
        """Whether it was at it when the store went."""
        words = [self.first.split()[0]] + [line.split()[0] for line in self.child.stdout]
        self.child.stdout.close()
        self.child.wait(END_SECONDS)
        here = words.index("missing") if "missing" in words else len(words)
        assert "wrong" not in words and "right" not in words[here + 16:]  # but for those in flight
        return 0 < here < len(words)


def test_what_a_killed_store_has_acknowledged_is_there_again(tmp_path):
    chance, acknowledged, read = random.Random(1), Acknowledged(), 0
    for number in range(ROUNDS):
        how = BY_MESSAGES if number % 2 else None
        store = start_store(tmp_path, tmp_path / "disk")
        expect_kept(store, acknowledged, 500, how)
        reader = Reader(store, acknowledged.durable[-200:], how) if acknowledged.durable else None
        load(store, acknowledged, chance.randrange(1, 160), store.kill, env=how)
        read += reader is not None and reader.end()
        store.end()
        store.check()
    assert read >= ROUNDS // 2
    store = start_store(tmp_path, tmp_path / "disk")
    expect_kept(store, acknowledged)
    assert store.end() == 0
    assert len(acknowledged.durable) >= 10 * ROUNDS


# A disk of 12 segments of 1 MiB, and a memory of a few hundred blocks.
TIGHT = ("--ram=3MiB", "--disk-size=12MiB")
# Numbers of blocks whose place nobody has taken yet: a block has 12 KiB there, half of what is written may be blocks that memory
# still wanted when their segment went, and one segment is being written.
SAFE = 12 * 1024 // 12 // 2 - 1024 // 12


def expect_newest_kept(store, acknowledged, env):
    """What the disk has had room for since is right, what is older is right or gone with its segment. How many are gone."""
    found = check(store, acknowledged.durable[-2000:], env)
    assert not found["wrong"] and not check(store, acknowledged.taken[-1000:], env)["wrong"]
    assert all(number < acknowledged.next - SAFE for number in found["missing"]), (acknowledged.next, found["missing"])
    return len(found["missing"])


def test_a_store_that_is_killed_while_it_evicts_keeps_what_its_disk_has_room_for(tmp_path):
    chance, acknowledged, read, seen, gone = random.Random(2), Acknowledged(), 0, {"evicted_blocks_total": 0, "disk_dropped_blocks": 0}, 0
    rounds = ROUNDS // 2
    for number in range(rounds):
        how = BY_MESSAGES if number % 2 else None
        store = start_store(tmp_path, tmp_path / "disk", *TIGHT)
        gone += expect_newest_kept(store, acknowledged, how)
        reader = Reader(store, acknowledged.durable[-50:], how) if acknowledged.durable else None

        def look_and_kill(store=store):
            for name in seen:
                seen[name] += metric(store, name)
            store.kill()

        load(store, acknowledged, chance.randrange(600, 1400), look_and_kill, env=how)
        read += reader is not None and reader.end()
        store.end()
        store.check()
    print(seen, f"{gone} durable blocks went with their segments")
    assert all(seen.values()) and gone > 0 and read >= rounds // 4
    store = start_store(tmp_path, tmp_path / "disk", *TIGHT)
    expect_newest_kept(store, acknowledged, None)
    assert store.end() == 0


def test_a_store_that_ends_in_order_keeps_everything(tmp_path):
    acknowledged = Acknowledged()
    store = start_store(tmp_path, tmp_path / "disk")
    load(store, acknowledged, 0, None, count=300)
    assert store.end() == 0
    store = start_store(tmp_path, tmp_path / "disk")
    assert len(check(store, range(300))["right"]) == 300
    assert store.end() == 0


def small(command, store, *arguments, numbers=()):
    done = subprocess.run([LOAD, "small", command, store.address["data"], store.address["node_id"], *map(str, arguments)],
                          input=" ".join(map(str, numbers)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_a_killed_store_with_many_blocks_is_ready_again_at_once(tmp_path):
    store = start_store(tmp_path, tmp_path / "disk", "--disk-size=2GiB")
    for first in range(0, BLOCKS, AT_ONCE):
        assert small("put", store, first, AT_ONCE) == ["taken"] * AT_ONCE
        wait_until(lambda first=first: metric(store, "disk_stored_blocks") == first + AT_ONCE, 120, "they are on disk")
    store.kill()
    store.end()
    begun = time.monotonic()
    store = start_store(tmp_path, tmp_path / "disk", "--disk-size=2GiB")
    took = time.monotonic() - begun
    print(f"{BLOCKS} blocks: ready after {took:.3f} s")
    assert took < READY_SECONDS
    assert metric(store, "disk_stored_blocks") == BLOCKS
    numbers = random.Random(1).sample(range(BLOCKS), 1000)
    assert small("check", store, numbers=numbers) == ["right"] * 1000
    assert store.end() == 0
    store.check()
