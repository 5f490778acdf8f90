# SPDX-License-Identifier: Apache-2.0
"""The Python package, installed by pip into a fresh environment, against a real scheduler and real stores."""
import asyncio
import concurrent.futures
import gc
import importlib
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import venv

import numpy
import pytest

from harness import BIN, Cluster, wait_until

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PACKAGE = os.path.join(ROOT, "client", "python")
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(BIN)), "lib", "libassay.so")
STRUCTS = {"assay_config_t": "Config", "assay_shape_t": "ShapeStruct", "assay_request_t": "Request",
           "assay_stats_t": "StatsStruct", "assay_prediction_t": "PredictionStruct", "assay_store_info_t": "StoreStruct"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh environment with nothing but the package."""
    where = tmp_path_factory.mktemp("environment")
    venv.create(where, with_pip=True)
    done = subprocess.run([where / "bin" / "pip", "install", "--no-index", "--disable-pip-version-check", PACKAGE],
                          capture_output=True, text=True, env={**os.environ, "ASSAY_LIBRARY": LIBRARY})
    assert done.returncode == 0, done.stdout + done.stderr
    return where


@pytest.fixture(scope="module")
def assay(environment):
    """That package, here."""
    found = next((environment / "lib").glob("python*/site-packages"))
    sys.path.insert(0, str(found))
    try:
        module = importlib.import_module("assay")
    finally:
        sys.path.remove(str(found))
    assert module.__file__.startswith(str(found))
    return module


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), stores=2, workers=0, store_options=["--ram=64MiB"]) as cluster:
        yield cluster


@pytest.fixture
def client(assay, world):
    with assay.Client(world.scheduler.address["rpc"]) as one:
        yield one


class Chain:
    """A chain of its own for each test, and its blocks."""

    count = 0

    def __init__(self, assay, blocks=40):
        Chain.count += 1
        self.shape = assay.Shape(layers=4, q_heads=4, kv_heads=2, head_dim=16, block_tokens=16)
        self.space = assay.namespace(bytes(range(32)), self.shape, "test", f"salt {Chain.count}")
        self.keys = assay.chain(self.space, range(blocks * 16 + 5), 16)
        assert len(self.keys) == blocks
        random = numpy.random.default_rng(Chain.count)
        self.blocks = random.integers(0, 1 << 16, (blocks, *self.shape.block_shape), "u2").view("f2")

    def bits(self, first=0, count=None):
        return self.blocks[first:][:count].tobytes()


@pytest.fixture
def chain(assay):
    return Chain(assay)


@pytest.fixture
def stopped(world):
    """The whole cluster stands still."""
    daemons = [world.scheduler, *world.stores]
    for one in daemons:
        one.signal(signal.SIGSTOP)
    yield
    for one in daemons:
        one.signal(signal.SIGCONT)


def test_the_installed_package_works_by_itself(environment, world):
    code = ("import assay, sys; assert 'numpy' not in sys.modules\n"
            "client = assay.Client(sys.argv[1]); print(client.exists(b'x' * 32), assay.__version__)\n"
            "client.start_exists(b'x' * 32)")  # the interpreter ends with a client open and an operation under way
    done = subprocess.run([environment / "bin" / "python", "-c", code, world.scheduler.address["rpc"]],
                          capture_output=True, text=True, timeout=60, cwd=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0.1.0\n", "")


def test_a_fork_leaves_the_client_to_its_parent(environment, world):
    code = """if True:
        import assay, os, sys
        client = assay.Client(sys.argv[1])
        child = os.fork()
        if child == 0:
            try:
                client.exists(b'x' * 32)
            except assay.Invalid as error:
                print(error, flush=True)
            sys.exit(3)  # with all that runs at an end
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.exists(b'x' * 32))
    """
    done = subprocess.run([environment / "bin" / "python", "-c", code, world.scheduler.address["rpc"]],
                          capture_output=True, text=True, timeout=60, cwd=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["this client was opened before a fork: open one in each process", "3 0"]


def test_structs_are_those_of_the_header(assay, tmp_path):
    library = assay._client.lib
    lines = []
    for name, mirror in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));'
                  for field, _ in getattr(library, mirror)._fields_]
    source = tmp_path / "layout.c"
    source.write_text("#include <assay.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run(["cc", f"-I{ROOT}/client", source, "-o", tmp_path / "layout"], check=True)
    said = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()
    mirrored = []
    for name, mirror in STRUCTS.items():
        struct = getattr(library, mirror)
        mirrored.append(f"{name} {library.ctypes.sizeof(struct)}")
        mirrored += [f"{name}.{field} {getattr(struct, field).offset}" for field, _ in struct._fields_]
    assert mirrored == said


def test_arrays_come_back_bit_for_bit(client, chain):
    assert client.exists(chain.keys) == 0
    assert client.put_many(chain.keys[:30], chain.shape, chain.space, chain.blocks[:30]) == 30
    assert client.exists(chain.keys) == 30
    around = numpy.full((42, *chain.shape.block_shape), 7, "f2")
    out = around[1:41]  # in the middle: what is around it stays
    assert client.get_into(chain.keys, chain.shape, out) == 30
    assert out[:30].tobytes() == chain.bits(0, 30)
    assert (around[0] == 7).all() and (around[41] == 7).all()
    assert client.get(chain.keys, chain.shape) == chain.bits(0, 30)
    assert client.put(chain.keys, chain.shape, chain.space, 30, chain.blocks[30]) is True
    assert client.put(chain.keys, chain.shape, chain.space, 30, chain.blocks[30]) is False
    assert client.put_many(chain.keys, chain.shape, chain.space, chain.blocks[25:], first=25) == 9
    assert client.get(chain.keys, chain.shape) == chain.bits()


def test_blocks_lie_where_the_caller_wants(client, chain, tmp_path):
    path = tmp_path / "blocks"
    path.write_bytes(chain.bits())
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert client.put_many(chain.keys, chain.shape, chain.space, mapped) == 40  # read-only memory will do
    buffers = [bytearray(chain.shape.block_bytes) for _ in range(5)]
    asked = [chain.keys[i] for i in (39, 3, 0, 17, 18)]
    assert client.get_each_into(asked, chain.shape, buffers, urgent=True) == [True] * 5
    assert [bytes(one) for one in buffers] == [chain.bits(i, 1) for i in (39, 3, 0, 17, 18)]


def test_each_key_has_an_answer_and_layers_are_picked(client, chain):
    client.put_many(chain.keys[:20], chain.shape, chain.space, chain.blocks[:20])
    asked = [chain.keys[i] for i in (5, 33, 19, 20)]
    assert client.exists_each(asked) == [True, False, True, False]
    out = numpy.zeros((4, 2, *chain.shape.block_shape[1:]), "f2")
    assert client.get_each_into(asked, chain.shape, out, layers=range(1, 3)) == [True, False, True, False]
    assert out[0].tobytes() == chain.blocks[5, 1:3].tobytes() and out[2].tobytes() == chain.blocks[19, 1:3].tobytes()
    one = numpy.zeros((20, 1, *chain.shape.block_shape[1:]), "f2")
    assert client.get_into(chain.keys[:20], chain.shape, one, layers=range(3, 4)) == 20
    assert one.tobytes() == chain.blocks[:20, 3:4].tobytes()


def test_operations_are_futures_and_can_be_awaited(client, chain):
    outs = [numpy.zeros_like(chain.blocks) for _ in range(8)]
    put = client.start_put_many(chain.keys, chain.shape, chain.space, chain.blocks)
    assert put.result(timeout=30) == 40
    seen = []
    gets = [client.start_get_into(chain.keys, chain.shape, out) for out in outs]
    for one in gets:
        one.add_done_callback(lambda future: seen.append(threading.current_thread() is not threading.main_thread()))
    assert not concurrent.futures.wait(gets, timeout=30).not_done
    assert all(one.result() == 40 for one in gets) and len(seen) == 8
    assert all(out.tobytes() == chain.bits() for out in outs)

    async def main():
        return await asyncio.gather(client.start_exists(chain.keys), client.start_get_each_into(
            chain.keys[:2], chain.shape, outs[0]))

    assert asyncio.run(main()) == [40, [True, True]]


def test_other_threads_run_during_a_call(assay, client, chain, stopped):
    """A call that hangs for a second lets this thread go on all the while."""
    ended = threading.Event()
    took = []

    def call():
        try:
            with pytest.raises(assay.Timeout, match="not done in time"):
                client.exists(chain.keys, timeout=1)
            took.append(time.monotonic() - began)
        finally:
            ended.set()

    thread = threading.Thread(target=call)
    began = last = time.monotonic()
    longest = 0
    thread.start()
    while not ended.wait(0.001):
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    thread.join()
    assert took and took[0] > 0.9
    assert longest < 0.6


def test_operations_are_cancelled(assay, client, chain, stopped):
    out = bytearray(40 * chain.shape.block_bytes)
    operation = client.start_get_into(chain.keys, chain.shape, out)
    with pytest.raises(BufferError):
        out.append(0)  # the operation's until it is over
    assert operation.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        operation.result(timeout=10)
    assert operation.cancelled() and operation.cancel()
    out.append(0)

    async def main():
        task = asyncio.ensure_future(client.start_exists(chain.keys))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.05)

    asyncio.run(main())
    wait_until(lambda: client.stats().operations_cancelled == 2, 10, "both are counted")


def test_closing_ends_operations_and_is_final(assay, world, chain, stopped):
    world.scheduler.signal(signal.SIGCONT)
    one = assay.Client(world.scheduler.address["rpc"], in_flight_max=2)
    operations = [one.start_exists(chain.keys) for _ in range(2)]
    with pytest.raises(assay.Busy, match="in_flight_max"):
        one.exists(chain.keys)
    one.close()
    one.close()
    for operation in operations:
        with pytest.raises(concurrent.futures.CancelledError):
            operation.result(timeout=10)
    with pytest.raises(assay.Invalid, match="closed"):
        one.exists(chain.keys)


def test_a_callback_neither_waits_nor_closes(assay, client, chain):
    problems, done = [], threading.Event()

    def look(future):
        for what in (lambda: client.exists(chain.keys), client.close):
            try:
                what()
            except assay.Invalid as error:
                problems.append(str(error))
        done.set()

    client.start_exists(chain.keys).add_done_callback(look)
    if not done.wait(10):
        pytest.fail("no callback")
    # Where the operation was over before the callback was added, it ran here, and both calls were fine.
    assert len(problems) in (0, 2) or "closed" in problems[0]


def test_wrong_arguments_say_what_is_wrong(assay, client, chain):
    shape, space, keys = chain.shape, chain.space, chain.keys
    out = numpy.zeros((40, *shape.block_shape), "f2")
    for match, wrong in [
        ("must be a multiple of 32 bytes, but are 31", lambda: client.exists(b"x" * 31)),
        ("between 1 and", lambda: client.exists([])),
        ("32 of them", lambda: client.exists([b"short"])),
        ("out must be 40 times 8192 bytes, 327680 in all, but is 319488",
         lambda: client.get_into(keys, shape, out[:39])),
        ("contiguous", lambda: client.get_into(keys[:1], shape, out[..., ::2])),
        ("writable", lambda: client.get_into(keys[:1], shape, bytes(8192))),
        (r"blocks\[0\] must be 8192 bytes, but is 3", lambda: client.put(keys, shape, space, 0, b"abc")),
        ("index must be within the 40 keys", lambda: client.put(keys, shape, space, 40, bytes(8192))),
        ("out has 1 buffers, but 40 blocks", lambda: client.get_into(keys, shape, [out])),
        ("namespace_key must be 32 bytes", lambda: client.put(keys, shape, b"", 0, bytes(8192))),
        ("layers must be a range within 0 to 4", lambda: client.get_into(keys, shape, out, layers=range(2, 5))),
        ("timeout must be a positive", lambda: client.exists(keys, timeout=0)),
        ("is not valid", lambda: client.get(keys, assay.Shape(4, 4, 3, 16))),
        ("block_tokens must be from 1 to 256", lambda: assay.chain(space, range(600), 300)),
        ("host:port", lambda: assay.Client("nowhere")),
        ("in_flight_max must be", lambda: assay.Client("127.0.0.1:1", in_flight_max=0)),
    ]:
        with pytest.raises((assay.Invalid, ValueError), match=match):
            wrong()
    with pytest.raises(TypeError, match="buffer protocol"):
        client.get_into(keys, shape, 7)
    with pytest.raises(assay.Failed, match="--disk"):
        client.put(keys, shape, space, 0, out[0], durable=True)
    with pytest.raises(assay.Unreachable, match="127.0.0.1:1 does not answer"):
        assay.Client("127.0.0.1:1", timeout=0.3)
    assert client.exists(keys, timeout=5) in (0, 1)


def test_memory_is_registered_and_figures_add_up(client, chain):
    out = numpy.zeros_like(chain.blocks)
    with client.registered(out):
        assert client.stats().buffer_bytes == out.nbytes
        client.put_many(chain.keys, chain.shape, chain.space, chain.blocks)
        assert client.get_into(chain.keys, chain.shape, out) == 40
    figures = client.stats()
    assert (figures.buffer_bytes, figures.blocks_got, figures.bytes_got) == (0, 40, out.nbytes)
    assert (figures.blocks_put, figures.stores, figures.in_flight) == (40, 2, 0)


def test_loading_is_weighed_against_computing(assay, client, chain):
    client.put_many(chain.keys, chain.shape, chain.space, chain.blocks)
    first = client.predict(chain.keys, chain.shape, 1e9)
    assert (first.hit, first.load, first.load_seconds) == (40, True, None)
    out = numpy.zeros_like(chain.blocks)

    def known():
        client.get_into(chain.keys, chain.shape, out)
        return client.predict(chain.keys, chain.shape, 1e9).load_seconds

    wait_until(known, 30, "the stores are measured")
    fast, slow = client.predict(chain.keys, chain.shape, 1e12), client.predict(chain.keys, chain.shape, 0.001)
    assert not fast.load and slow.load and slow.recompute_seconds == 40 * 16 * 1000
    stores = client.stores()
    assert len(stores) == 2 and any(one.bytes_per_second and one.locate_seconds and one.connected for one in stores)
    with pytest.raises(assay.Conflict, match="other bytes"):
        client.put(chain.keys, chain.shape, chain.space, 0, chain.blocks[1])


def test_a_forgotten_client_is_closed(assay, world):
    def threads():
        return len(os.listdir("/proc/self/task"))

    one = assay.Client(world.scheduler.address["rpc"])
    del one
    gc.collect()
    before = threads()
    for _ in range(5):
        one = assay.Client(world.scheduler.address["rpc"])
        one.exists(b"x" * 32)
        del one
        gc.collect()
    wait_until(lambda: threads() <= before + 1, 20, "their threads have ended")


def test_the_wheel_is_built_from_the_repository(environment, world, tmp_path):
    """With nothing given, CMake compiles the library into it."""
    plain = {name: value for name, value in os.environ.items() if name != "ASSAY_LIBRARY"}
    subprocess.run([environment / "bin" / "pip", "wheel", "--no-index", "--disable-pip-version-check", "-w", tmp_path,
                    PACKAGE], check=True, capture_output=True, env=plain)
    wheel = next(tmp_path.glob("assay_client-0.1.0-py3-none-linux_*.whl"))
    venv.create(tmp_path / "other", with_pip=False)
    subprocess.run([environment / "bin" / "pip", "--python", tmp_path / "other" / "bin" / "python", "install", "--no-index",
                    "--disable-pip-version-check", wheel], check=True, capture_output=True)
    code = "import assay, sys; print(assay.Client(sys.argv[1]).exists(b'x' * 32))"
    done = subprocess.run([tmp_path / "other" / "bin" / "python", "-c", code, world.scheduler.address["rpc"]],
                          capture_output=True, text=True, timeout=60, env=plain, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
