# SPDX-License-Identifier: Apache-2.0
"""libassay by ctypes: its structs and functions as client/assay.h has them, and addresses of buffers.

ctypes lets go of the interpreter lock for the time of each call.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

OK, MISS, EXISTS, PENDING = 0, 1, 2, 3
INVALID, BUSY, TIMEOUT, UNREACHABLE, FAILED, CANCELLED, CONFLICT, DENIED = -1, -2, -3, -4, -5, -6, -7, -8
KIND_EXISTS, KIND_GET, KIND_PUT = 1, 2, 3
PREFIX, DURABLE, URGENT = 1, 2, 4
KEY_BYTES = 32


class Config(ctypes.Structure):
    """assay_config_t"""

    _fields_ = [("scheduler", c_char_p), ("timeout_ms", c_uint32), ("in_flight_max", c_uint32),
                ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p), ("token_file", c_char_p),
                ("encrypt_key_file", c_char_p), ("reserved", c_uint64 * 9)]


class ShapeStruct(ctypes.Structure):
    """assay_shape_t"""

    _fields_ = [(name, c_uint32) for name in ("layers", "q_heads", "kv_heads", "head_dim", "block_tokens",
                                              "element_bytes")]


DONE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int)


class Request(ctypes.Structure):
    """assay_request_t"""

    _fields_ = [("kind", c_uint32), ("flags", c_uint32), ("keys", c_char_p), ("count", c_uint32), ("first", c_uint32),
                ("timeout_ms", c_uint32), ("shape", POINTER(ShapeStruct)), ("namespace_key", c_char_p),
                ("blocks", POINTER(c_void_p)), ("buffer", c_void_p), ("first_layer", c_uint32),
                ("layer_count", c_uint32), ("results", POINTER(c_int32)), ("on_done", DONE), ("ctx", c_void_p),
                ("ttl_ms", c_uint64), ("reserved", c_uint64 * 7)]


class StatsStruct(ctypes.Structure):
    """assay_stats_t"""

    _fields_ = [(name, c_uint64) for name in
                ("operations", "operations_busy", "operations_timeout", "operations_cancelled", "operations_failed",
                 "blocks_found", "blocks_missed", "blocks_got", "bytes_got", "blocks_put", "bytes_put",
                 "blocks_existed", "blocks_put_failed", "buffer_bytes")]
    _fields_ += [(name, c_uint32) for name in ("in_flight", "in_flight_max", "stores", "reserved")]


class PredictionStruct(ctypes.Structure):
    """assay_prediction_t"""

    _fields_ = [("hit", c_uint32), ("load", c_uint32), ("load_us", c_uint64), ("recompute_us", c_uint64),
                ("reserved", c_uint64 * 4)]


class StoreStruct(ctypes.Structure):
    """assay_store_info_t"""

    _fields_ = [("node_id", c_uint64), ("address", ctypes.c_char * 64), ("locate_us", c_uint64),
                ("bytes_per_s", c_uint64), ("connected", c_uint32), ("reserved", c_uint32)]


_FUNCTIONS = {
    "assay_last_error": (c_char_p, []),
    "assay_version": (c_char_p, []),
    "assay_open": (c_int, [POINTER(Config), POINTER(c_void_p)]),
    "assay_close": (None, [c_void_p]),
    "assay_run": (c_int, [c_void_p, POINTER(Request), POINTER(c_uint32)]),
    "assay_start": (c_int, [c_void_p, POINTER(Request), POINTER(c_void_p)]),
    "assay_op_hit": (c_uint32, [c_void_p]),
    "assay_op_error": (c_char_p, [c_void_p]),
    "assay_op_cancel": (None, [c_void_p]),
    "assay_op_free": (None, [c_void_p]),
    "assay_predict": (c_int, [c_void_p, POINTER(ShapeStruct), c_char_p, c_uint32, ctypes.c_double,
                              POINTER(PredictionStruct)]),
    "assay_stores": (c_int, [c_void_p, POINTER(StoreStruct), c_size_t, c_uint32, POINTER(c_uint32)]),
    "assay_buffer_register": (c_int, [c_void_p, c_void_p, c_size_t]),
    "assay_buffer_unregister": (c_int, [c_void_p, c_void_p]),
    "assay_stats": (c_int, [c_void_p, POINTER(StatsStruct), c_size_t]),
    "assay_namespace": (c_int, [c_char_p, POINTER(ShapeStruct), c_char_p, c_char_p, c_char_p]),
    "assay_chain": (c_uint32, [c_char_p, c_void_p, c_size_t, c_uint32, c_void_p, c_uint32]),
    "assay_block_bytes": (c_size_t, [POINTER(ShapeStruct)]),
}


def _load() -> ctypes.CDLL:
    here = os.path.dirname(os.path.abspath(__file__))
    tried = [os.environ.get("ASSAY_LIBRARY"), os.path.join(here, "libassay.so.1"),
             os.path.join(here, "..", "..", "..", "build", "lib", "libassay.so.1"), "libassay.so.1"]
    problem = None
    for path in tried:
        if path and (os.path.sep not in path or os.path.exists(path)):
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                problem = problem or error
    raise ImportError(f"libassay.so.1 cannot be loaded ({problem}): install the package again (pip install ./client/python), "
                      "or name the library in ASSAY_LIBRARY")


calls: Any = _load()
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(calls, _name)
    _function.restype, _function.argtypes = _result, _arguments


def version() -> str:
    """The library's version."""
    return calls.assay_version().decode()


def last_error() -> str:
    return calls.assay_last_error().decode()


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, POINTER(_PyBuffer), c_int], c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [POINTER(_PyBuffer)], None
_WRITABLE, _C_CONTIGUOUS = 0x1, 0x38


class Pinned:
    """The memory of an object with the buffer protocol: where it is, for as long as this is held. Nothing is copied."""

    def __init__(self, thing: Any, writable: bool, what: str):
        self._buffer = None
        buffer = _PyBuffer()
        try:
            _get_buffer(thing, ctypes.byref(buffer), _C_CONTIGUOUS | (_WRITABLE if writable else 0))
        except TypeError:
            raise TypeError(f"{what} must have the buffer protocol (bytes, bytearray, a numpy array), but is "
                            f"{type(thing).__name__}; of a torch tensor pass tensor.cpu().numpy()") from None
        except (BufferError, ValueError) as error:
            raise ValueError(f"{what} must be {'writable and ' if writable else ''}contiguous in C order: {error}") from None
        self._buffer = buffer
        self.address: int = buffer.buf or 0
        self.nbytes: int = buffer.len

    def release(self) -> None:
        if self._buffer is not None:
            _release_buffer(ctypes.byref(self._buffer))
            self._buffer = None

    def __del__(self) -> None:
        self.release()
