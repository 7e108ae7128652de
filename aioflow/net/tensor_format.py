"""Tensors on the wire: a description (dtype, shape, bytes) for the header, and the elements as raw bytes beside it.

Numbers are little-endian in C order. A string tensor is the lengths of its elements, 32 bits each, and then their
bytes. Nothing else can be sent: an array of objects is never more than byte strings, and there is no pickle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.checks.brief import brief
from aioflow.errors import DataLossError, DTypeError, ResourceExhaustedError
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import ALL, DType, string
from aioflow.net.limits import Limits
from aioflow.net.recycling import RECEIVED

__all__ = ["Buffer", "Destination", "Strings", "TensorSpec", "bytes_of", "dtype_of", "parse_spec", "to_wire"]

Buffer: TypeAlias = bytes | bytearray | memoryview

WIRE_DTYPES: Final = {d.name: d for d in ALL if d is string or d.is_plain}
_OF_NUMPY: Final = {d.np_dtype: d for d in WIRE_DTYPES.values() if d is not string}
_LITTLE_ENDIAN: Final = {d: d.np_dtype.newbyteorder("<") for d in _OF_NUMPY.values()}
_LENGTH: Final = np.dtype("<u4")
_MOST_BYTES: Final = 2**63 - 1
_STRING: Final = 48  # bytes that a byte string takes beside its content
_SMALL: Final = 1024  # bytes that are copied sooner than looked at
_TURN: Final = 1 << 13  # strings that are taken apart at a time, or
_TURN_BYTES: Final = 4 << 20  # so many bytes of them: about a millisecond


class TensorSpec(NamedTuple):
    """What the header says of one tensor."""

    dtype: DType
    shape: tuple[int, ...]
    nbytes: int

    def document(self) -> list[Any]:
        """As it stands in the header."""
        return [self.dtype.name, list(self.shape), self.nbytes]


def dtype_of(array: Array) -> DType | None:
    """What an array of numbers or bools is of, in any byte order; None for all others."""
    return _OF_NUMPY.get(array.dtype) or _OF_NUMPY.get(array.dtype.newbyteorder("="))


def to_wire(value: Any, limits: Limits) -> tuple[TensorSpec, Buffer]:
    """The description of an array (or NumPy scalar) and its bytes, which share the array's memory where they can.

    Raises:
        DTypeError: the array holds something that cannot be sent, such as resource handles.
        ResourceExhaustedError: its rank or its number of strings is over the limit.
    """
    array = np.asarray(value)
    if array.ndim > limits.rank:
        raise ResourceExhaustedError("the rank of a tensor", expected=f"at most {limits.rank}", actual=array.ndim)
    dtype = dtype_of(array)
    if dtype is None:
        return _strings_to_wire(array, limits)
    little = np.asarray(array, dtype=_LITTLE_ENDIAN[dtype], order="C")
    if little.nbytes <= _SMALL:
        return TensorSpec(dtype, array.shape, little.nbytes), little.tobytes()
    return TensorSpec(dtype, array.shape, little.nbytes), little.reshape(-1).view(np.uint8).data


def _strings_to_wire(array: Array, limits: Limits) -> tuple[TensorSpec, Buffer]:
    items = array.reshape(-1).tolist() if array.dtype == object else []
    if array.dtype != object or not all(type(item) is bytes for item in items):
        raise DTypeError(
            "a tensor that cannot be sent to another process",
            expected=f"an array of {', '.join(WIRE_DTYPES)} (as byte strings)",
            actual=f"an array of {array.dtype}" + (" that are not all bytes" if array.dtype == object else ""),
        )
    if len(items) > limits.strings:
        raise ResourceExhaustedError("strings in a tensor", expected=f"at most {limits.strings}", actual=len(items))
    lengths = np.fromiter(map(len, items), np.int64, len(items))
    if lengths.size and int(lengths.max()) >= 2**32:
        raise ResourceExhaustedError("the length of a string", expected="below 2**32", actual=int(lengths.max()))
    data = b"".join([lengths.astype(_LENGTH).tobytes(), *items])
    return TensorSpec(string, array.shape, len(data)), data


def bytes_of(value: Any) -> int:
    """The memory that a value takes, of strings with their contents."""
    size = int(getattr(value, "nbytes", 0))
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        size += sum(_STRING + len(item) for item in value.flat if isinstance(item, bytes))
    return size


def parse_spec(document: Any, limits: Limits) -> TensorSpec:
    """A description that came from a peer.

    Raises:
        DataLossError: it is not one, or its shape does not fit its bytes.
        ResourceExhaustedError: it is over a limit.
    """
    if not (isinstance(document, list) and len(document) == 3):
        raise DataLossError(
            "a malformed description of a tensor", expected="dtype, shape and bytes", actual=brief(document)
        )
    name, shape, nbytes = document
    dtype = WIRE_DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise DataLossError("a dtype that is not sent", expected=f"one of {sorted(WIRE_DTYPES)}", actual=brief(name))
    if not (isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)):
        raise DataLossError("a malformed shape", expected="sizes >= 0", actual=brief(shape))
    if len(shape) > limits.rank:
        raise ResourceExhaustedError("the rank of a tensor", expected=f"at most {limits.rank}", actual=len(shape))
    # NumPy multiplies the sizes other than 0 too, and refuses what does not fit an index
    if math.prod(d for d in shape if d) * max(dtype.size, 1) > _MOST_BYTES:
        raise DataLossError(
            "the size of a tensor overflows", expected=f"at most {_MOST_BYTES} bytes", actual=brief(shape)
        )
    count = math.prod(shape)
    fits = type(nbytes) is int and (_string_bytes_fit(count, nbytes, limits) if dtype is string else True)
    if not fits or (dtype is not string and nbytes != count * dtype.size):
        raise DataLossError(
            f"the bytes of a tensor do not fit {dtype.name} of shape {brief(shape)}",
            expected=f"at least {4 * count} bytes" if dtype is string else f"{count * dtype.size} bytes",
            actual=brief(nbytes),
        )
    return TensorSpec(dtype, tuple(shape), nbytes)


def _string_bytes_fit(count: int, nbytes: int, limits: Limits) -> bool:
    if count > limits.strings:
        raise ResourceExhaustedError("strings in a tensor", expected=f"at most {limits.strings}", actual=count)
    return nbytes >= _LENGTH.itemsize * count


class Destination:
    """Where the bytes of one tensor go as they arrive: for numbers, straight into the final array.

    Its memory is reserved, and nothing is written there: the system gives a page when the first bytes of it arrive.

    Raises:
        ResourceExhaustedError: there is no memory for it.
    """

    __slots__ = ("_array", "_spec", "buffer")

    buffer: memoryview

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        try:
            if spec.dtype is string:
                self.buffer = np.empty(spec.nbytes, np.uint8).data
                return
            self._array = RECEIVED.empty(spec.shape, _LITTLE_ENDIAN[spec.dtype])
        except MemoryError as error:
            raise ResourceExhaustedError(f"no memory for a tensor of {spec.nbytes} bytes") from error
        self.buffer = self._array.reshape(-1).view(np.uint8).data

    def finish(self) -> Array:
        """The tensor, all of whose bytes are there. Raises DataLossError where they are not values of the dtype."""
        dtype = self._spec.dtype
        if dtype is string:
            strings = Strings(self.buffer, self._spec.shape)
            while not strings.take():
                pass
            return strings.array
        if dtype.is_bool and self.buffer.nbytes and int(np.frombuffer(self.buffer, np.uint8).max()) > 1:
            raise DataLossError("a bool is neither 0 nor 1", expected="bytes 0 and 1", actual="another byte")
        return self._array.astype(dtype.np_dtype, copy=False)

    def begin(self) -> Array | Strings:
        """As `finish`; many strings are still to be taken apart. Raises as `finish`."""
        if self._spec.dtype is string and (self.buffer.nbytes > _TURN_BYTES or math.prod(self._spec.shape) > _TURN):
            return Strings(self.buffer, self._spec.shape)
        return self.finish()


class Strings:
    """The elements of a string tensor, which are taken from its bytes piece by piece.

    Attributes:
        array: The tensor, once all of them are taken.

    Raises:
        DataLossError: their lengths do not fit the bytes.
    """

    __slots__ = ("_at", "_count", "_data", "_ends", "_flat", "array")

    def __init__(self, buffer: memoryview, shape: Sequence[int]) -> None:
        count = math.prod(shape)
        self._data = buffer[_LENGTH.itemsize * count :]
        self._ends = np.cumsum(np.frombuffer(buffer, _LENGTH, count), dtype=np.int64)
        total = int(self._ends[-1]) if count else 0
        if total != self._data.nbytes:
            raise DataLossError(
                "the lengths of strings do not fit their bytes", expected=self._data.nbytes, actual=total
            )
        self._flat = np.empty(count, dtype=object)
        self.array = self._flat.reshape(shape)
        self._count = self._at = 0

    def take(self) -> bool:
        """Some more of them, for about a millisecond; returns whether that were all."""
        first, begin = self._count, self._at
        stop = max(first + 1, int(np.searchsorted(self._ends, begin + _TURN_BYTES, "right")))
        ends = self._ends[first : min(stop, first + _TURN)].tolist()
        for index, end in enumerate(ends, first):
            self._flat[index] = bytes(self._data[begin:end])
            begin = end
        self._count, self._at = first + len(ends), begin
        return self._count == len(self._flat)
