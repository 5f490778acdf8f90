# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, with the library's own text. A miss is no error."""
from __future__ import annotations

from . import _library as lib


class AssayError(Exception):
    """Of all errors of this package. `result` is the library's number for it."""

    result = lib.FAILED


class Invalid(AssayError, ValueError):
    """An argument is wrong; the text says which and what to do."""

    result = lib.INVALID


class Busy(AssayError):
    """As many operations are in flight as in_flight_max allows, or the store is full: wait for one, and try again."""

    result = lib.BUSY


class Timeout(AssayError, TimeoutError):
    """Not done by its deadline."""

    result = lib.TIMEOUT


class Unreachable(AssayError, ConnectionError):
    """No scheduler or no store node answers."""

    result = lib.UNREACHABLE


class Conflict(AssayError):
    """The store has other bytes under this key: two writers compute different things."""

    result = lib.CONFLICT


class Denied(AssayError, PermissionError):
    """The stores refuse the token, or want one."""

    result = lib.DENIED


class Failed(AssayError):
    """Anything else."""


_BY_RESULT = {one.result: one for one in (Invalid, Busy, Timeout, Unreachable, Conflict, Denied)}


def error_of(result: int, text: str) -> AssayError:
    error = _BY_RESULT.get(result, Failed)(text)
    error.result = result
    return error
