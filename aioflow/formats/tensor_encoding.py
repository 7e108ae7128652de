"""Encoding of tensors as bytes, in pieces.

Dtypes that the `safetensors` layout lacks are stored as others: complex numbers as pairs of floats, strings as lengths
and bytes, numbers of fewer than 8 bits as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, TypeAlias, cast

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.copying import copied, native
from aioflow.memory.values import Array, NpDType

CODES: Final[Mapping[DType, str]] = {
    dtypes.bool_: "BOOL",
    dtypes.uint8: "U8",
    dtypes.int8: "I8",
    dtypes.uint16: "U16",
    dtypes.int16: "I16",
    dtypes.uint32: "U32",
    dtypes.int32: "I32",
    dtypes.uint64: "U64",
    dtypes.int64: "I64",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    dtypes.float8_e5m2: "F8_E5M2",
    dtypes.float8_e4m3fn: "F8_E4M3",
    dtypes.float8_e8m0fnu: "F8_E8M0",
}
# The last three are codes that other programs write, for dtypes that aioflow stores as another one.
BY_CODE: Final = {
    **{code: dtype for dtype, code in CODES.items()},
    "C64": dtypes.complex64,
    "F8_E4M3FNUZ": dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": dtypes.float8_e5m2fnuz,
}
# Codes of dtypes that aioflow lacks, with their width in bits.
UNKNOWN: Final[Mapping[str, int]] = {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
_PAIRS: Final[Mapping[DType, DType]] = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
PIECE: Final = 1 << 20  # bytes hashed, read or written at a time


class ArrayReader(Protocol):
    """An array that is read once, in order, some rows at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes; there is at least one."""

    @property
    def dtype(self) -> NpDType:
        """Dtype of the elements, which are numbers."""

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from `start` to `stop`, contiguous in memory."""

    def release(self, stop: int) -> None:
        """Release the rows before `stop`: they are not read again."""


Storable: TypeAlias = Array | np.generic | ArrayReader


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """The encoded form of a tensor.

    Attributes:
        code, shape: Dtype code and shape in the `safetensors` layout.
        nbytes: Number of bytes.
        logical: The dtype that the program sees.
        source: The bytes as a flat uint8 array, which may share the tensor's memory, or the rows to read them from.
    """

    code: str
    shape: tuple[int, ...]
    nbytes: int
    logical: DType
    source: Array | ArrayReader

    def pieces(self, size: int = PIECE) -> Iterator[Array]:
        """Yield the bytes in pieces.

        Pieces of an array have `size` bytes, except for the last. Pieces of rows are as many whole rows as fit into
        `size` bytes, at least one.
        """
        source = self.source
        if isinstance(source, np.ndarray):
            yield from (source[part] for part in blocks(self.nbytes, size))
            return
        # At least 1, so that empty rows do not divide by zero below.
        row = max(1, self.nbytes // max(1, source.shape[0]))
        for part in blocks(source.shape[0], max(1, size // row)):
            yield source.rows(part.start, part.stop).reshape(-1).view(np.uint8)
            source.release(part.stop)


def is_stored_as_another(dtype: DType) -> bool:
    """Return True if the layout lacks the dtype and another dtype represents it."""
    return dtype is dtypes.string or dtype in _PAIRS or (dtype.is_narrow and dtype not in CODES)


def encode(name: str, value: Storable) -> EncodedTensor:
    """Return the encoded form of a tensor.

    Raises:
        InvalidArgumentError: the dtype cannot be stored.
    """
    dtype = logical = as_dtype(value.dtype)
    if dtype is dtypes.string:
        data = _pack_strings(np.asarray(value))
        return EncodedTensor("U8", data.shape, data.nbytes, logical, data)
    shape: tuple[int, ...] = value.shape
    nbytes = math.prod(shape) * value.dtype.itemsize
    if dtype in _PAIRS:
        # Real and imaginary part become a last axis of size 2.
        dtype, shape = _PAIRS[dtype], (*shape, 2)
    elif is_stored_as_another(dtype):
        dtype = dtypes.uint8
    if dtype not in CODES:
        known = sorted(t.name for t in CODES)
        raise InvalidArgumentError(f"tensor {name} cannot be stored", expected=f"one of {known}", actual=dtype)
    if hasattr(value, "rows"):
        return EncodedTensor(
            CODES[dtype], shape, nbytes, logical, cast("ArrayReader", value)
        )  # mypy thinks that a NumPy scalar may have rows, too
    array = native(value)
    flat = (array if array.flags.c_contiguous else copied(array)).reshape(-1).view(np.uint8)
    return EncodedTensor(CODES[dtype], shape, nbytes, logical, flat)


def decode(data: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return the tensor with these bytes. Except for strings, it shares their memory.

    Raises:
        ValueError: the bytes do not fit the dtype and shape.
    """
    if dtype is dtypes.string:
        items = _unpack_strings(data, math.prod(shape))
        result = np.empty(len(items), dtype=object)
        result[:] = items
        return result.reshape(shape)
    if dtype is dtypes.bool_ and any(int(data[part].max()) > 1 for part in blocks(data.size, PIECE)):
        raise ValueError("a byte that is neither true nor false")
    return data.view(dtype.np_dtype).reshape(shape)


def pieces(data: Array) -> Iterator[memoryview]:
    """Yield the bytes of a flat array in pieces, since files may be large and disks slow."""
    return (data.data[part] for part in blocks(data.nbytes, PIECE))


def _pack_strings(array: Array) -> Array:
    items = [bytes(item) for item in array.reshape(-1)]
    lengths = np.array([len(item) for item in items], dtype="<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(items), dtype=np.uint8)


def _unpack_strings(data: Array, count: int) -> list[bytes]:
    raw = data.tobytes()
    if len(raw) < 8 * count:
        raise ValueError("the lengths are cut off")
    # Python's ints, since the sum of damaged lengths could overflow 64 bits.
    lengths = np.frombuffer(raw[: 8 * count], dtype="<u8").astype(object)
    ends = np.cumsum(np.concatenate([[8 * count], lengths]))
    if int(ends[-1]) != len(raw):
        raise ValueError("the lengths do not add up")
    return [raw[int(a) : int(b)] for a, b in pairwise(ends)]
