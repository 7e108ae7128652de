"""Tensors on the wire: a description (dtype, shape, bytes) for the header, and the elements as raw bytes beside it.

Numbers are little-endian in C order. A string tensor consists of the lengths of its elements, 32 bits each, and then
their bytes. Nothing else can be sent: arrays of objects may only hold byte strings, and pickle is never used. Large
arrays that arrive use recycled memory (`Blocks`).
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from aioflow.arguments import brief
from aioflow.concurrency.forking import renew_in_child
from aioflow.errors import DataLossError, DTypeError, ResourceExhaustedError
from aioflow.graph.dtypes import ALL, DType, string
from aioflow.memory.values import Array, Buffer, NpDType, Value
from aioflow.net.limits import Limits

# ── recycled memory for large arrays that arrive ──────────────────────────────────────────────────────────────────────
#
# The kernel clears fresh pages first, which takes about a quarter of the receiver's time. The returned array has a
# `_Loan` as its base, and so does every object made over its memory: views, buffers, memory shared with other
# libraries. When the last of them is freed, the loan ends and its block can be used again.

_Block: TypeAlias = "ctypes.Array[ctypes.c_char]"


class Blocks:
    """A pool of free memory blocks, matched by size. Thread-safe.

    Args:
        room: Maximum bytes of free blocks; the oldest are dropped first.
        smallest: Bytes below which an array is allocated without the pool.
    """

    def __init__(self, room: int, smallest: int = 1 << 20) -> None:
        self._room = room
        self._smallest = smallest
        self._lock = threading.Lock()
        self._waiting: deque[_Block] = deque()
        self._bytes = 0
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held, and drop the free blocks."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Bytes of free blocks."""
        return self._bytes

    def empty(self, shape: tuple[int, ...], dtype: NpDType) -> Array:
        """Return an uninitialized array, like `numpy.empty`, in recycled memory if it is large. Raises MemoryError."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not self._smallest <= nbytes <= self._room:
            return np.empty(shape, dtype)
        block = self._take(nbytes)
        if block is None:
            # A ctypes block, not an array: NumPy collapses chains of bases, so views would refer to the array and the
            # loan could end before them.
            block = (ctypes.c_char * nbytes).from_buffer(np.empty(nbytes, np.uint8).data)
        loan = _Loan(shape, dtype, cast("Any", block))
        loan.home, loan.block = self, block
        return loan.view(np.ndarray)

    def _take(self, nbytes: int) -> _Block | None:
        with self._lock:
            for index, block in enumerate(self._waiting):
                if len(block) == nbytes:
                    del self._waiting[index]
                    self._bytes -= nbytes
                    return block
        return None

    def give(self, block: _Block) -> None:
        """Add a block that is no longer used."""
        # Arrays may be freed anywhere, even inside `_take` of this thread, where waiting for the lock would deadlock:
        # then drop the block.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._waiting.append(block)
            self._bytes += len(block)
            while self._bytes > self._room:
                self._bytes -= len(self._waiting.popleft())
        finally:
            self._lock.release()


class _Loan(Array):
    """The array over a block that all other arrays over it have as their base."""

    home: Blocks | None = None  # None for views of a loan, which own no block
    block: _Block | None = None

    def __del__(self) -> None:
        if self.home is not None and self.block is not None:
            self.home.give(self.block)


RECEIVED: Final = Blocks(room=256 << 20)


# ── tensors as headers and bytes ──────────────────────────────────────────────────────────────────────────────────────


WIRE_DTYPES: Final = {d.name: d for d in ALL if d is string or d.is_plain}
_OF_NUMPY: Final = {d.np_dtype: d for d in WIRE_DTYPES.values() if d is not string}
_LITTLE_ENDIAN: Final = {d: d.np_dtype.newbyteorder("<") for d in _OF_NUMPY.values()}
_LENGTH: Final = np.dtype("<u4")
_MOST_BYTES: Final = 2**63 - 1
_STRING: Final = 48  # overhead of a byte string in bytes
_SMALL: Final = 1024  # bytes up to which a copy is cheaper than a view
_TURN: Final = 1 << 13  # maximum strings per `take`
_TURN_BYTES: Final = 4 << 20  # maximum bytes per `take` (unless one string is longer), about a millisecond of work


class TensorHeader(NamedTuple):
    """The description of one tensor in a header."""

    dtype: DType
    shape: tuple[int, ...]
    nbytes: int

    def document(self) -> list[object]:
        """Return the description in the form of the header."""
        return [self.dtype.name, list(self.shape), self.nbytes]


def dtype_of(array: Array) -> DType | None:
    """Return the dtype of an array of numbers or bools, in any byte order; None for other arrays."""
    return _OF_NUMPY.get(array.dtype) or _OF_NUMPY.get(array.dtype.newbyteorder("="))


def to_wire(value: Value, limits: Limits) -> tuple[TensorHeader, Buffer]:
    """Return the description of an array (or NumPy scalar) and its bytes.

    The bytes share the array's memory where possible.

    Raises:
        DTypeError: the array holds values that cannot be sent, such as resource handles.
        ResourceExhaustedError: the rank, the number of strings or the length of one exceeds a limit.
    """
    array = np.asarray(value)
    if array.ndim > limits.rank:
        raise ResourceExhaustedError("the rank of a tensor", expected=f"at most {limits.rank}", actual=array.ndim)
    dtype = dtype_of(array)
    if dtype is None:
        return _strings_to_wire(array, limits)
    # Copies only if the byte order or the layout differs.
    little = np.asarray(array, dtype=_LITTLE_ENDIAN[dtype], order="C")
    if little.nbytes <= _SMALL:
        return TensorHeader(dtype, array.shape, little.nbytes), little.tobytes()
    # Flattened first, since NumPy does not view a 0-d array with another item size.
    return TensorHeader(dtype, array.shape, little.nbytes), little.reshape(-1).view(np.uint8).data


def _strings_to_wire(array: Array, limits: Limits) -> tuple[TensorHeader, Buffer]:
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
    # Lengths are uint32 on the wire.
    if lengths.size and int(lengths.max()) >= 2**32:
        raise ResourceExhaustedError("the length of a string", expected="below 2**32", actual=int(lengths.max()))
    data = b"".join([lengths.astype(_LENGTH).tobytes(), *items])
    return TensorHeader(string, array.shape, len(data)), data


def bytes_of(value: Any) -> int:
    """Return the memory of a value in bytes, including the contents of strings."""
    size = int(getattr(value, "nbytes", 0))
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        size += sum(_STRING + len(item) for item in value.flat if isinstance(item, bytes))
    return size


def parse_spec(document: object, limits: Limits) -> TensorHeader:
    """Parse a description received from a peer.

    Raises:
        DataLossError: the description is malformed, or shape and bytes do not match.
        ResourceExhaustedError: a limit is exceeded.
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
    # NumPy also checks the product of the nonzero sizes, and refuses arrays whose indices would overflow.
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
    return TensorHeader(dtype, tuple(shape), nbytes)


def _string_bytes_fit(count: int, nbytes: int, limits: Limits) -> bool:
    if count > limits.strings:
        raise ResourceExhaustedError("strings in a tensor", expected=f"at most {limits.strings}", actual=count)
    return nbytes >= _LENGTH.itemsize * count


class Destination:
    """The memory for the bytes of one tensor as they arrive; for numbers, the memory of the final array.

    The memory is reserved but not written: the system provides a page when the first bytes for it arrive.

    Raises:
        ResourceExhaustedError: there is not enough memory.
    """

    __slots__ = ("_array", "_spec", "buffer")

    buffer: memoryview

    def __init__(self, spec: TensorHeader) -> None:
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
        """Return the tensor, once all bytes have arrived. Raises DataLossError if they are not values of the dtype."""
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
        """Return the tensor, or its `Strings` if there are too many to decode at once. Raises as `finish`."""
        if self._spec.dtype is string and (self.buffer.nbytes > _TURN_BYTES or math.prod(self._spec.shape) > _TURN):
            return Strings(self.buffer, self._spec.shape)
        return self.finish()


class Strings:
    """The elements of a string tensor, decoded from its bytes in pieces.

    Attributes:
        array: The tensor, once all elements are decoded.

    Raises:
        DataLossError: the lengths do not match the bytes.
    """

    __slots__ = ("_at", "_count", "_data", "_ends", "_flat", "array")

    def __init__(self, buffer: memoryview, shape: Sequence[int]) -> None:
        count = math.prod(shape)
        self._data = buffer[_LENGTH.itemsize * count :]
        # int64, since the sum of uint32 lengths may exceed 2**32.
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
        """Decode elements for about a millisecond. Return True if all are decoded."""
        first, begin = self._count, self._at
        # At least one string, however long it is, or the loop would make no progress.
        stop = max(first + 1, int(np.searchsorted(self._ends, begin + _TURN_BYTES, "right")))
        ends = self._ends[first : min(stop, first + _TURN)].tolist()
        for index, end in enumerate(ends, first):
            self._flat[index] = bytes(self._data[begin:end])
            begin = end
        self._count, self._at = first + len(ends), begin
        return self._count == len(self._flat)
