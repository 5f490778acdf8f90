# SPDX-License-Identifier: Apache-2.0
"""Shapes, namespaces and chains: what names a block."""
from __future__ import annotations

import array
import ctypes
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Sequence, Tuple, Union

from . import _library as lib
from ._errors import error_of


@dataclass(frozen=True)
class Shape:
    """The shape of one model's KV cache. element_bytes: 2 for f16, 4 for f32."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int = 64
    element_bytes: int = 2

    def struct(self) -> lib.ShapeStruct:
        try:
            return lib.ShapeStruct(self.layers, self.q_heads, self.kv_heads, self.head_dim, self.block_tokens,
                                   self.element_bytes)
        except TypeError as error:
            raise TypeError(f"a shape's members must be integers: {error}") from None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        count = lib.calls.assay_block_bytes(ctypes.byref(self.struct()))
        if count == 0:
            raise error_of(lib.INVALID, f"{self} is not valid: all counts must be positive, kv_heads divide q_heads, "
                                        "head_dim be a multiple of 16 and element_bytes 2 or 4")
        return count

    @property
    def block_shape(self) -> Tuple[int, int, int, int, int]:
        """Of one block as an array: layer, K or V, head, token, dimension."""
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)


class Keys(Sequence[bytes]):
    """Keys of 32 bytes: a chain in order, or any. Slices are Keys, items are bytes."""

    def __init__(self, keys: Union[bytes, bytearray, memoryview, Iterable[bytes]] = b""):
        if isinstance(keys, (bytes, bytearray, memoryview)):
            self.packed = bytes(keys)
        elif isinstance(keys, Keys):
            self.packed = keys.packed
        else:
            listed = list(keys)
            if not all(isinstance(key, (bytes, bytearray)) and len(key) == lib.KEY_BYTES for key in listed):
                raise error_of(lib.INVALID, "a key must be bytes, 32 of them")
            self.packed = b"".join(listed)
        if len(self.packed) % lib.KEY_BYTES:
            raise error_of(lib.INVALID, f"packed keys must be a multiple of 32 bytes, but are {len(self.packed)}")

    def __len__(self) -> int:
        return len(self.packed) // lib.KEY_BYTES

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            if index.step not in (None, 1):
                return Keys([self[i] for i in range(*index.indices(len(self)))])
            first, last, _ = index.indices(len(self))
            return Keys(self.packed[first * 32:max(first, last) * 32])
        at = range(len(self))[index]
        return self.packed[at * 32:at * 32 + 32]

    def __iter__(self) -> Iterator[bytes]:
        return (self.packed[at:at + 32] for at in range(0, len(self.packed), 32))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.packed == other.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"<assay.Keys: {len(self)}>"


def namespace(model_fingerprint: bytes, shape: Shape, numerics_id: str, tenant_salt: Union[str, None] = None) -> bytes:
    """The namespace key of a model: 32 bytes. docs/api.md says what the arguments are for blocks that Assay's workers
    share."""
    if len(model_fingerprint) != 32:
        raise error_of(lib.INVALID, f"model_fingerprint must be 32 bytes, but is {len(model_fingerprint)}")
    key = ctypes.create_string_buffer(32)
    result = lib.calls.assay_namespace(bytes(model_fingerprint), ctypes.byref(shape.struct()), numerics_id.encode(),
                                         None if tenant_salt is None else tenant_salt.encode(), key)
    if result != lib.OK:
        raise error_of(result, lib.last_error())
    return key.raw


def chain(namespace_key: bytes, tokens: Iterable[int], block_tokens: int = 64) -> Keys:
    """The keys of all whole blocks of `tokens`, in order."""
    if len(namespace_key) != 32:
        raise error_of(lib.INVALID, f"namespace_key must be 32 bytes, but is {len(namespace_key)}")
    if not 0 < block_tokens <= 256:
        raise error_of(lib.INVALID, f"block_tokens must be from 1 to 256, but is {block_tokens}")
    packed = array.array("i", tokens)  # 32 bits on every platform that libassay runs on
    count = len(packed) // block_tokens
    keys = ctypes.create_string_buffer(count * 32 or 1)
    made = lib.calls.assay_chain(bytes(namespace_key), packed.buffer_info()[0], len(packed), block_tokens, keys, count)
    return Keys(keys.raw[:made * 32])
