# SPDX-License-Identifier: Apache-2.0
"""Power cuts and disks that fail, on a file system of the tests' own (tests/tools/powercut/): what was not synced is lost,
torn or comes in another order. What a store has acknowledged as durable is there again, nothing is ever wrong, and the store
starts."""
import errno
import os
import random
import re
import subprocess
import urllib.request

import pytest

from crash import FULL, Acknowledged, assay, check, expect_kept, keys, load, put, start_store
from harness import BIN, Cluster, wait_until

POWERCUT = os.path.join(BIN, "powercut")
ROUNDS = 100 if FULL else 6


class Disk:
    """The file system, mounted."""

    def __init__(self, folder):
        self.path = folder / "disk"
        self.path.mkdir()
        self.log = open(folder / "powercut.log", "w+")
        self.child = subprocess.Popen([POWERCUT, str(self.path)], stderr=self.log)
        wait_until(lambda: os.path.ismount(self.path) or self.child.poll() is not None, 30, "the mount")

    def mounted(self):
        return self.child.poll() is None and os.path.ismount(self.path)

    def tell(self, command):
        fd = os.open(self.path / ".control", os.O_WRONLY)
        try:
            os.write(fd, command.encode())
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # the kernel still closes files of a killed process
        finally:
            os.close(fd)

    def shorts_left(self):
        fd = os.open(self.path / ".control", os.O_RDONLY)
        try:
            return int(os.read(fd, 64))
        finally:
            os.close(fd)

    def cut(self, seed):
        wait_until(lambda: self.tell(f"cut {seed}"), 30, "all files are closed")

    def end(self):
        self.child.terminate()
        assert self.child.wait(30) == 0
        self.log.close()


@pytest.fixture
def disk(tmp_path):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse here (a container: give it --device /dev/fuse --cap-add SYS_ADMIN)")
    if not os.path.exists(POWERCUT):
        pytest.skip("powercut was not built: ./dev setup installs libfuse3-dev")
    made = Disk(tmp_path)
    if not made.mounted():
        made.log.seek(0)
        pytest.skip(f"FUSE cannot mount here: {made.log.read().strip()}")
    yield made
    made.end()


def write(path, content, sync):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, content)
    if sync:
        os.fsync(fd)
    os.close(fd)


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(disk):
    write(disk.path / "safe", b"safe" * 4096, True)
    write(disk.path / "named", b"named" * 4096, False)
    sync_folder(disk.path)
    write(disk.path / "lost", b"lost", True)  # its bytes are safe, its name is not
    os.rename(disk.path / "named", disk.path / "renamed")
    disk.cut(0)  # all that may go
    assert sorted(os.listdir(disk.path)) == ["named", "safe"]
    assert (disk.path / "safe").read_bytes() == b"safe" * 4096 and (disk.path / "named").read_bytes() == b""
    kept = set()
    for seed in range(1, 40):
        write(disk.path / "safe", os.urandom(64 * 1024), False)
        disk.cut(seed)
        kept.add((disk.path / "safe").read_bytes())
    assert len(kept) > 20  # parts of it


def test_what_was_acknowledged_as_durable_survives_power_cuts(disk, tmp_path):
    chance, acknowledged = random.Random(2), Acknowledged()
    for number in range(ROUNDS):
        store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
        expect_kept(store, acknowledged, last=1000)
        load(store, acknowledged, chance.randrange(1, 120), store.kill)
        store.end()
        store.check()
        disk.cut(number)
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    expect_kept(store, acknowledged, last=1000)
    assert store.end() == 0
    assert len(acknowledged.durable) >= 10 * ROUNDS


# The first start makes everything, and power may go at any moment of it.
def test_a_store_starts_after_a_power_cut_in_its_first_moments(disk, tmp_path):
    for seed in range(8 if FULL else 3):
        store = start_store(tmp_path, disk.path / f"store-{seed}", "--disk-size=64MiB")
        store.kill()
        store.end()
        disk.cut(seed)
        acknowledged = Acknowledged()
        store = start_store(tmp_path, disk.path / f"store-{seed}", "--disk-size=64MiB")
        load(store, acknowledged, 0, None, count=20)
        expect_kept(store, acknowledged)
        assert store.end() == 0


def test_a_durable_put_of_a_block_that_was_there_survives_a_power_cut(disk, tmp_path):
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    first = Acknowledged()
    load(store, first, 0, None, count=1000)
    # store_load puts even numbers as durable; a second time they are there already.
    second = Acknowledged()
    load(store, second, 0, None, count=1000)
    assert len(second.durable) == 500
    store.kill()
    store.end()
    disk.cut(0)
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    expect_kept(store, second)
    assert store.end() == 0


def test_a_dropped_block_stays_dropped_after_a_power_cut(disk, tmp_path):
    options = [f"--disk={disk.path / 'store'}", "--disk-size=64MiB"]
    with Cluster(tmp_path, workers=0, store_options=options) as world:
        put(world.stores[0], 0, 200)
        held = keys(world)
        dropped = {number for number in held if number % 3 == 0}
        assert len(dropped) > 60
        assay(world, "drop", *(held[number] for number in dropped))
        world.stores[0].kill()
        disk.cut(0)
        found = check(world.start_store(), range(200))
        assert not found["wrong"] and not dropped & set(found["right"])
        assert {number for number in range(0, 200, 2)} - dropped <= set(found["right"])
        assert world.stores[1].end() == 0


def test_a_drop_that_the_disk_does_not_take_says_so(disk, tmp_path):
    options = [f"--disk={disk.path / 'store'}", "--disk-size=64MiB"]
    with Cluster(tmp_path, workers=0, store_options=options) as world:
        put(world.stores[0], 0, 20)
        disk.tell("fail catalog 1000")
        done = assay(world, "drop", "--all", expect=1)
        assert "may be there again at its next start" in done
        put(world.stores[0], 100, 40)  # those that need no disk are taken all the same
        assert set(range(101, 140, 2)) <= set(check(world.stores[0], range(100, 140))["right"])
        disk.tell("fail catalog 0")
        assert world.stores[0].end() == 0


# ---- disks that fail


def metric(store, name):
    text = urllib.request.urlopen(f"http://{store.address['http']}/metrics", timeout=30).read().decode()
    return float(re.search(rf"^assay_kvstore_{name} (\S+)$", text, re.M).group(1))


def test_on_a_full_disk_a_store_keeps_to_what_there_is(disk, tmp_path):
    disk.tell(f"limit {40 << 20}")
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")  # segments of 8 MiB: four fit
    acknowledged = Acknowledged()
    load(store, acknowledged, 0, None, count=6000)  # 72 MB
    assert len(acknowledged.durable) + len(acknowledged.taken) > 5000  # some came while room was made
    wait_until(lambda: metric(store, "disk_queue_bytes") == 0, 60, "the queue is empty")
    assert 1300 < metric(store, "disk_stored_blocks") < 2100 and metric(store, "disk_read_only") == 0
    found = check(store, range(6000))
    assert not found["wrong"]
    assert store.end() == 0


def test_where_the_catalog_meets_the_end_of_the_disk_the_oldest_segment_makes_room(disk, tmp_path):
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    load(store, Acknowledged(), 0, None, count=1500)  # three segments of 8 MiB
    disk.tell("limit 4096")  # somebody else has filled it: what is there is there, and no more
    acknowledged = Acknowledged()
    acknowledged.next = 10000
    load(store, acknowledged, 0, None, count=50)
    assert len(acknowledged.durable) < 25 and len(acknowledged.taken) >= 25  # the rest is in RAM
    assert "disk full: catalog" in store.log_text() and "the tier keeps to" in store.log_text()
    disk.tell(f"limit {40 << 20}")
    load(store, acknowledged, 0, None, count=200)
    durable = len(acknowledged.durable)
    load(store, acknowledged, 0, None, count=200)
    assert len(acknowledged.durable) == durable + 100 and metric(store, "disk_read_only") == 0
    store.kill()
    store.end()
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    expect_kept(store, acknowledged)
    assert store.end() == 0


def test_blocks_that_a_failing_disk_cannot_read_or_write_are_misses(disk, tmp_path):
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    load(store, Acknowledged(), 0, None, count=100)
    assert store.end() == 0
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    disk.tell("fail read 5")
    found = check(store, range(0, 100, 2))
    assert len(found["missing"]) == 5 and len(found["right"]) == 45
    disk.tell("short 20")  # is gone on with (a short write is EIO by the kernel's FUSE before a program sees it)
    assert len(check(store, range(1, 100, 2))["right"]) == 50
    assert disk.shorts_left() == 0
    disk.tell("fail sync 1")
    acknowledged = Acknowledged()
    acknowledged.next = 200
    load(store, acknowledged, 0, None, count=50)
    assert 10 <= len(acknowledged.durable) < 25 and len(acknowledged.taken) == 25
    disk.tell("fail catalog 1")  # it is opened anew, and nothing is lost
    durable = len(acknowledged.durable)
    load(store, acknowledged, 0, None, count=50)
    assert len(acknowledged.durable) == durable + 25
    disk.tell("fail catalog 30")  # also when it is opened
    load(store, acknowledged, 0, None, count=50)
    disk.tell("fail catalog 0")
    store.kill()
    store.end()
    disk.cut(0)
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    expect_kept(store, acknowledged)
    assert store.end() == 0


def test_a_disk_that_turns_read_only_is_only_read(disk, tmp_path):
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    load(store, Acknowledged(), 0, None, count=100)
    wait_until(lambda: metric(store, "disk_stored_blocks") == 100, 30, "the blocks are on disk")
    disk.tell("readonly 1")
    acknowledged = Acknowledged()
    acknowledged.next = 200
    load(store, acknowledged, 0, None, count=100)
    assert not acknowledged.durable and len(acknowledged.taken) == 50  # they are in RAM
    wait_until(lambda: metric(store, "disk_read_only") == 1, 30, "it has given up writing")
    assert len(check(store, range(100))["right"]) == 100
    assert store.end() == 0
    store.check()
    disk.tell("readonly 0")
    store = start_store(tmp_path, disk.path / "store", "--disk-size=64MiB")
    assert len(check(store, range(100))["right"]) == 100
    assert store.end() == 0
