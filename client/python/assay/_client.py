# SPDX-License-Identifier: Apache-2.0
"""The client, and operations that are not waited for."""
from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import itertools
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generator, Iterator, List, Optional, Sequence, Union

from . import _library as lib
from ._errors import error_of
from ._keys import Keys, Shape

Buffer = Any  # bytes, bytearray, memoryview, numpy array, ...
Path = Union[str, bytes, "os.PathLike[str]"]
KeysLike = Union[Keys, bytes, Sequence[bytes]]


@dataclass(frozen=True)
class Stats:
    """What a client did since it was opened."""

    operations: int
    operations_busy: int
    operations_timeout: int
    operations_cancelled: int
    operations_failed: int
    blocks_found: int
    blocks_missed: int
    blocks_got: int
    bytes_got: int
    blocks_put: int
    bytes_put: int
    blocks_existed: int
    blocks_put_failed: int
    buffer_bytes: int
    in_flight: int
    in_flight_max: int
    stores: int


@dataclass(frozen=True)
class Prediction:
    """Whether to load a stored prefix or compute it again. load_seconds: None where no store was read from lately, or not all
    of them: then load is True."""

    hit: int
    load: bool
    load_seconds: Optional[float]
    recompute_seconds: float


@dataclass(frozen=True)
class Store:
    """A store as this client sees it. None: not known, or measured too long ago."""

    node_id: int
    address: str
    connected: bool
    locate_seconds: Optional[float]
    bytes_per_second: Optional[int]


class _Call:
    """A request, and all that its memory is: lives until the library no longer refers to it."""

    def __init__(self, kind: int, keys: KeysLike, timeout: Optional[float]):
        self.keys = keys if isinstance(keys, Keys) else Keys(keys)
        self.pins: List[lib.Pinned] = []
        self.request = lib.Request(kind=kind, keys=self.keys.packed, count=len(self.keys))
        if timeout is not None:
            if not 0 < timeout < 4e6:
                raise error_of(lib.INVALID, f"timeout must be a positive number of seconds, but is {timeout}")
            self.request.timeout_ms = max(1, round(timeout * 1000))
        self.answer: Callable[[int, int], Any] = lambda result, hit: hit

    def want_results(self, count: int) -> Any:
        self.results = (ctypes.c_int32 * max(count, 1))()
        self.request.results = self.results
        return self.results

    def take_shape(self, shape: Shape) -> None:
        self.shape = shape.struct()
        self.request.shape = ctypes.pointer(self.shape)

    def take_blocks(self, what: str, blocks: Any, each_bytes: int, count: int, writable: bool) -> None:
        """One buffer of all blocks, or one for each."""
        if isinstance(blocks, (list, tuple)):
            if len(blocks) != count:
                raise error_of(lib.INVALID, f"{what} has {len(blocks)} buffers, but {count} blocks are asked for")
            self.pins = [lib.Pinned(one, writable, f"{what}[{i}]") for i, one in enumerate(blocks)]
            for i, pin in enumerate(self.pins):
                if pin.nbytes != each_bytes:
                    raise error_of(lib.INVALID, f"{what}[{i}] must be {each_bytes} bytes, but is {pin.nbytes}")
            self.pointers = (ctypes.c_void_p * max(count, 1))(*[pin.address for pin in self.pins])
            self.request.blocks = self.pointers
            return
        pin = lib.Pinned(blocks, writable, what)
        self.pins = [pin]
        if pin.nbytes < count * each_bytes:
            raise error_of(lib.INVALID, f"{what} must be {count} times {each_bytes} bytes, {count * each_bytes} in all, "
                                        f"but is {pin.nbytes}")
        self.request.buffer = pin.address

    def finish(self, result: int, hit: int, text: Callable[[], str]) -> Any:
        for pin in self.pins:
            pin.release()
        if result < 0:
            raise error_of(result, text())
        return self.answer(result, hit)


class Operation(concurrent.futures.Future):
    """A call under way. A concurrent.futures.Future that can be awaited as well. cancel() ends it soon, where it is not over
    by then; until it is, its buffers are the operation's. Callbacks of the future run in the client's thread: they must be
    short and must not wait for another operation."""

    def __init__(self, call: _Call):
        super().__init__()
        self._call = call
        self._handle: Optional[int] = None
        self._guard = threading.Lock()
        self._over = False

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Asks for its end. False: it is over. Whether it was in time, result() tells: CancelledError, or the result."""
        with self._guard:
            if self._over:
                return self.cancelled()
            if self._handle is not None:
                lib.calls.assay_op_cancel(self._handle)
            return True

    def _started(self, handle: int) -> None:
        with self._guard:
            if not self._over:
                self._handle = handle
                return
        lib.calls.assay_op_free(handle)

    def _ended(self, op: int, result: int) -> None:
        text = lib.calls.assay_op_error(op).decode()
        hit = lib.calls.assay_op_hit(op)
        with self._guard:
            self._over = True
            handle, self._handle = self._handle, None
        if handle is not None:
            lib.calls.assay_op_free(handle)
        try:
            answer = self._call.finish(result, hit, lambda: text)
        except Exception as error:  # goes to whoever asks for the result
            if result == lib.CANCELLED:
                super().cancel()
                self.set_running_or_notify_cancel()
            else:
                self.set_exception(error)
        else:
            self.set_result(answer)


_operations: Dict[int, Operation] = {}
_numbers = itertools.count(1)


_here = threading.local()  # .inside: this is the library's thread, in a callback


@lib.DONE
def _on_done(number: int, op: int, result: int) -> None:
    _here.inside = True
    try:
        operation = _operations.pop(number, None)
        if operation is not None:
            operation._ended(op, result)
    finally:
        _here.inside = False


_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_open_clients):  # before the interpreter goes, which the library's thread calls
        client.close()


class Client:
    """A client of one cluster. Its calls may be made from any thread, and let other threads of Python run meanwhile.

    scheduler: "host:port". timeout: seconds of each call that names none. in_flight_max: operations at once; one more is
    Busy. tls_ca, tls_cert, tls_key: PEM files of mutual TLS with the scheduler, all three. token_file: file with the token that
    stores with tenants admit this client by; it is read again when it changes. encrypt_key_file: file with the key by
    which blocks are encrypted before a put and decrypted after a get; stores never see it.

    keys are a Keys, bytes (32 for each) or a sequence of 32 bytes each. Buffers are anything with the buffer protocol that
    is contiguous: they are read and written where they lie, and are the library's until the call is over.

    Every call has a form `start_...` with the same arguments, which returns an Operation at once.
    """

    def __init__(self, scheduler: str, *, timeout: float = 10.0, in_flight_max: int = 64, tls_ca: Optional[Path] = None,
                 tls_cert: Optional[Path] = None, tls_key: Optional[Path] = None, token_file: Optional[Path] = None,
                 encrypt_key_file: Optional[Path] = None):
        if not isinstance(scheduler, str) or ":" not in scheduler:
            raise error_of(lib.INVALID, f'scheduler must be "host:port", but is {scheduler!r}')
        if not 0 < timeout < 4e6:
            raise error_of(lib.INVALID, f"timeout must be a positive number of seconds, but is {timeout}")
        if not 0 < in_flight_max <= 1024:
            raise error_of(lib.INVALID, f"in_flight_max must be from 1 to 1024, but is {in_flight_max}")
        self._handle: Optional[int] = None
        self._guard = threading.Condition()
        self._calls = 0  # that are inside the library
        self._process = os.getpid()  # a fork has the client, but not its thread
        files = {name: os.fsencode(path) for name, path in
                 (("tls_ca", tls_ca), ("tls_cert", tls_cert), ("tls_key", tls_key), ("token_file", token_file),
                  ("encrypt_key_file", encrypt_key_file))
                 if path is not None}
        config = lib.Config(scheduler=scheduler.encode(), timeout_ms=max(1, round(timeout * 1000)),
                            in_flight_max=in_flight_max, **files)
        handle = ctypes.c_void_p()
        result = lib.calls.assay_open(ctypes.byref(config), ctypes.byref(handle))
        if result != lib.OK:
            raise error_of(result, lib.last_error())
        self._handle = handle.value
        self.scheduler = scheduler
        _open_clients.add(self)

    def close(self) -> None:
        """Waits for calls of other threads; operations end as cancelled. Again is fine. Not from a callback."""
        if getattr(_here, "inside", False):
            raise error_of(lib.INVALID, "a callback cannot close a client: it would wait for itself")
        if self._process != os.getpid():
            self._handle = None
            return
        with self._guard:
            handle, self._handle = self._handle, None
            self._guard.wait_for(lambda: self._calls == 0)
        if handle is not None:
            lib.calls.assay_close(handle)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)  # nobody is in a call, else it would be referred to
        if handle is not None and self._process == os.getpid():
            self._handle = None
            threading.Thread(target=lib.calls.assay_close, args=(handle,)).start()  # this may be any thread

    @contextlib.contextmanager
    def _inside(self) -> Iterator[int]:
        if self._process != os.getpid():
            raise error_of(lib.INVALID, "this client was opened before a fork: open one in each process")
        with self._guard:
            if self._handle is None:
                raise error_of(lib.INVALID, "this client is closed")
            handle = self._handle
            self._calls += 1
        try:
            yield handle
        finally:
            with self._guard:
                self._calls -= 1
                self._guard.notify_all()

    def _run(self, call: _Call) -> Any:
        hit = ctypes.c_uint32()
        with self._inside() as handle:
            result = lib.calls.assay_run(handle, ctypes.byref(call.request), ctypes.byref(hit))
        return call.finish(result, hit.value, lib.last_error)

    def _start(self, call: _Call) -> Operation:
        operation, number = Operation(call), next(_numbers)
        call.request.on_done, call.request.ctx = _on_done, number
        op = ctypes.c_void_p()
        with self._inside() as handle:
            _operations[number] = operation
            result = lib.calls.assay_start(handle, ctypes.byref(call.request), ctypes.byref(op))
        if result != lib.OK:
            del _operations[number]
            call.finish(result, 0, lib.last_error)
        operation._started(op.value)
        return operation

    # ---- exists

    def exists(self, keys: KeysLike, *, timeout: Optional[float] = None) -> int:
        """How many blocks of a chain are stored, from the first on without a gap."""
        return self._run(self._exists(keys, timeout))

    def start_exists(self, keys: KeysLike, *, timeout: Optional[float] = None) -> "Operation":
        """exists, not waited for."""
        return self._start(self._exists(keys, timeout))

    def exists_each(self, keys: KeysLike, *, timeout: Optional[float] = None) -> List[bool]:
        """For each key, which need be no chain, whether its block is stored."""
        return self._run(self._exists_each(keys, timeout))

    def start_exists_each(self, keys: KeysLike, *, timeout: Optional[float] = None) -> "Operation":
        """exists_each, not waited for."""
        return self._start(self._exists_each(keys, timeout))

    @staticmethod
    def _exists(keys: KeysLike, timeout: Optional[float]) -> _Call:
        call = _Call(lib.KIND_EXISTS, keys, timeout)
        call.request.flags = lib.PREFIX
        return call

    @staticmethod
    def _exists_each(keys: KeysLike, timeout: Optional[float]) -> _Call:
        call = _Call(lib.KIND_EXISTS, keys, timeout)
        results = call.want_results(len(call.keys))
        call.answer = lambda result, hit: [one == lib.OK for one in results[:len(call.keys)]]
        return call

    # ---- get

    def get_into(self, keys: KeysLike, shape: Shape, out: Buffer, *, layers: Optional[range] = None,
                 urgent: bool = False, timeout: Optional[float] = None) -> int:
        """Reads blocks of a chain into `out`: one buffer of all, or a list of one for each. Returns how many from the first
        on are there and checked; what lies behind them in `out` means nothing. layers: only these, such as range(0, 8).
        urgent: overtakes gets that are not, at the stores too."""
        return self._run(self._get(keys, shape, out, layers, urgent, timeout, each=False))

    def start_get_into(self, keys: KeysLike, shape: Shape, out: Buffer, *, layers: Optional[range] = None,
                       urgent: bool = False, timeout: Optional[float] = None) -> "Operation":
        """get_into, not waited for."""
        return self._start(self._get(keys, shape, out, layers, urgent, timeout, each=False))

    def get_each_into(self, keys: KeysLike, shape: Shape, out: Buffer, *, layers: Optional[range] = None,
                      urgent: bool = False, timeout: Optional[float] = None) -> List[bool]:
        """For each key, which need be no chain, whether its block is there now, checked, in its place of `out`."""
        return self._run(self._get(keys, shape, out, layers, urgent, timeout, each=True))

    def start_get_each_into(self, keys: KeysLike, shape: Shape, out: Buffer, *, layers: Optional[range] = None,
                            urgent: bool = False, timeout: Optional[float] = None) -> "Operation":
        """get_each_into, not waited for."""
        return self._start(self._get(keys, shape, out, layers, urgent, timeout, each=True))

    def get(self, keys: KeysLike, shape: Shape, *, timeout: Optional[float] = None) -> memoryview:
        """The blocks of a chain that are there, from the first on without a gap, one after the other."""
        keys = keys if isinstance(keys, Keys) else Keys(keys)
        out = bytearray(len(keys) * shape.block_bytes)
        return memoryview(out)[:self.get_into(keys, shape, out, timeout=timeout) * shape.block_bytes]

    @staticmethod
    def _get(keys: KeysLike, shape: Shape, out: Buffer, layers: Optional[range], urgent: bool,
             timeout: Optional[float], *, each: bool) -> _Call:
        call = _Call(lib.KIND_GET, keys, timeout)
        call.take_shape(shape)
        each_bytes = shape.block_bytes
        if layers is not None:
            if layers.step != 1 or not 0 <= layers.start < layers.stop <= shape.layers:
                raise error_of(lib.INVALID, f"layers must be a range within 0 to {shape.layers}, but is {layers}")
            call.request.first_layer, call.request.layer_count = layers.start, len(layers)
            each_bytes = each_bytes // shape.layers * len(layers)
        call.take_blocks("out", out, each_bytes, len(call.keys), writable=True)
        if each:
            results = call.want_results(len(call.keys))
            call.answer = lambda result, hit: [one == lib.OK for one in results[:len(call.keys)]]
        call.request.flags = (0 if each else lib.PREFIX) | (lib.URGENT if urgent else 0)
        return call

    # ---- put

    def put(self, keys: KeysLike, shape: Shape, namespace_key: bytes, index: int, block: Buffer, *, durable: bool = False,
            timeout: Optional[float] = None) -> bool:
        """Stores block `index` of a chain. True: it was not there before. durable: returns once a power cut can no longer
        lose it."""
        return self._run(self._put_one(keys, shape, namespace_key, index, block, durable, timeout))

    def start_put(self, keys: KeysLike, shape: Shape, namespace_key: bytes, index: int, block: Buffer, *,
                  durable: bool = False, timeout: Optional[float] = None) -> "Operation":
        """put, not waited for."""
        return self._start(self._put_one(keys, shape, namespace_key, index, block, durable, timeout))

    def put_many(self, keys: KeysLike, shape: Shape, namespace_key: bytes, blocks: Buffer, *, first: int = 0,
                 durable: bool = False, timeout: Optional[float] = None) -> int:
        """Stores the blocks of a chain from `first` on: one buffer of all, or a list of one for each. Returns how many of
        them were not there before."""
        return self._run(self._put(keys, shape, namespace_key, blocks, first, durable, timeout))

    def start_put_many(self, keys: KeysLike, shape: Shape, namespace_key: bytes, blocks: Buffer, *, first: int = 0,
                       durable: bool = False, timeout: Optional[float] = None) -> "Operation":
        """put_many, not waited for."""
        return self._start(self._put(keys, shape, namespace_key, blocks, first, durable, timeout))

    def _put_one(self, keys: KeysLike, shape: Shape, namespace_key: bytes, index: int, block: Buffer, durable: bool,
                 timeout: Optional[float]) -> _Call:
        keys = keys if isinstance(keys, Keys) else Keys(keys)
        if not 0 <= index < len(keys):
            raise error_of(lib.INVALID, f"index must be within the {len(keys)} keys of the chain, but is {index}")
        call = self._put(keys[:index + 1], shape, namespace_key, [block], index, durable, timeout)
        call.answer = lambda result, hit: result != lib.EXISTS
        return call

    @staticmethod
    def _put(keys: KeysLike, shape: Shape, namespace_key: bytes, blocks: Buffer, first: int, durable: bool,
             timeout: Optional[float]) -> _Call:
        if len(namespace_key) != lib.KEY_BYTES:
            raise error_of(lib.INVALID, f"namespace_key must be 32 bytes, but is {len(namespace_key)}")
        call = _Call(lib.KIND_PUT, keys, timeout)
        if not 0 <= first < max(len(call.keys), 1):
            raise error_of(lib.INVALID, f"first must be within the {len(call.keys)} keys of the chain, but is {first}")
        call.take_shape(shape)
        call.namespace_key = bytes(namespace_key)
        call.request.namespace_key = call.namespace_key
        call.request.flags = lib.DURABLE if durable else 0
        call.request.first = first
        count = len(call.keys) - first
        call.take_blocks("blocks", blocks, shape.block_bytes, count, writable=False)
        results = call.want_results(count)
        call.answer = lambda result, hit: sum(one == lib.OK for one in results[:count])
        return call

    # ---- memory, figures

    @contextlib.contextmanager
    def registered(self, buffer: Buffer) -> Iterator[Buffer]:
        """For a buffer that is read into again and again: brings its pages before the first read."""
        pin = lib.Pinned(buffer, True, "buffer")
        with self._inside() as handle:
            result = lib.calls.assay_buffer_register(handle, pin.address, pin.nbytes)
        if result != lib.OK:
            raise error_of(result, lib.last_error())
        try:
            yield buffer
        finally:
            with contextlib.suppress(Exception), self._inside() as handle:
                lib.calls.assay_buffer_unregister(handle, pin.address)
            pin.release()

    def predict(self, keys: KeysLike, shape: Shape, tokens_per_second: float) -> Prediction:
        """What is faster for the stored prefix of a chain: loading it, or computing its tokens again at that rate."""
        keys, struct = keys if isinstance(keys, Keys) else Keys(keys), lib.PredictionStruct()
        with self._inside() as handle:
            result = lib.calls.assay_predict(handle, ctypes.byref(shape.struct()), keys.packed, len(keys),
                                               tokens_per_second, ctypes.byref(struct))
        if result < 0:
            raise error_of(result, lib.last_error())
        return Prediction(struct.hit, bool(struct.load), struct.load_us / 1e6 or None, struct.recompute_us / 1e6)

    def stores(self) -> List[Store]:
        """The present stores, and what was measured of them."""
        structs, count = (lib.StoreStruct * 64)(), ctypes.c_uint32()
        with self._inside() as handle:
            result = lib.calls.assay_stores(handle, structs, ctypes.sizeof(lib.StoreStruct), 64, ctypes.byref(count))
        if result != lib.OK:
            raise error_of(result, lib.last_error())
        return [Store(one.node_id, one.address.decode(), bool(one.connected), one.locate_us / 1e6 or None,
                      one.bytes_per_s or None) for one in structs[:count.value]]

    def stats(self) -> Stats:
        """What this client did since it was opened."""
        struct = lib.StatsStruct()
        with self._inside() as handle:
            result = lib.calls.assay_stats(handle, ctypes.byref(struct), ctypes.sizeof(struct))
        if result != lib.OK:
            raise error_of(result, lib.last_error())
        return Stats(**{name: getattr(struct, name) for name, _ in lib.StatsStruct._fields_ if name != "reserved"})
