"""Tensors as `TensorProto` messages, as TensorFlow's SerializeTensor writes and its ParseTensor reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.protobuf import MASK64, PIECE, VARINT, read_fields, read_number, write_number, write_piece
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.work.stopping import batches, claim

__all__ = ["decode_tensor", "encode_tensor", "read_shape", "tensor_elements"]

_DTYPE, _SHAPE, _CONTENT, _STRINGS = 1, 2, 4, 8
_HALVES, _FLOATS8 = 13, 18
# Where other writers than this one may have put the elements: fields of fixed sizes, and fields of varints.
_FIXED: Final[Mapping[int, str]] = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_VARINTS: Final = frozenset({7, 10, 11, _HALVES, 16, 17})


def encode_tensor(value: Any, dtype: DType) -> bytes:
    """The message of an array."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=dtype.np_dtype)
    # A size of zero is written out too, which proto3 would leave out, so that each dimension is a piece.
    sizes = b"".join(write_piece(2, write_number(1 << 3) + write_number(size) if size else b"") for size in array.shape)
    head = write_number(_DTYPE << 3) + write_number(dtype.as_datatype_enum) + write_piece(_SHAPE, sizes)
    if dtype is dtypes.string:
        return head + b"".join(write_piece(_STRINGS, item) for item in batches(array.reshape(-1).tolist()))
    content = np.ascontiguousarray(array).tobytes()
    return head + (write_piece(_CONTENT, content) if content else b"")


def decode_tensor(data: bytes, dtype: DType) -> Any:
    """The array that a message holds.

    Raises:
        InvalidArgumentError: it is not a TensorProto, or has a different dtype.
    """
    try:
        return _decode(data, dtype)
    except InvalidArgumentError:
        raise
    except (DataLossError, OverflowError, TypeError, ValueError) as error:  # the last three are NumPy's
        raise InvalidArgumentError("not a TensorProto", expected="its bytes", actual=data[:60]) from error


def _decode(data: bytes, dtype: DType) -> Any:
    kind, shape = 0, tuple[int, ...]()
    for number, wire, begin, end in batches(read_fields(data, 0, len(data))):
        if number == _DTYPE and wire == VARINT:
            kind = begin
        elif number == _SHAPE and wire == PIECE:
            shape = read_shape(data, begin, end)
    if kind != dtype.as_datatype_enum:
        raise InvalidArgumentError(
            "the serialized tensor has a different dtype", expected=dtype.name, actual=_name(kind)
        )
    return tensor_elements(data, dtype, shape)


def tensor_elements(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Any:
    """The array of that dtype and shape whose elements a message holds, whatever it says of them itself.

    Raises:
        InvalidArgumentError, DataLossError, OverflowError, TypeError, ValueError: it does not hold them.
    """
    content, pieces = b"", list[tuple[int, Any]]()
    for number, wire, begin, end in batches(read_fields(data, 0, len(data))):
        if number == _CONTENT and wire == PIECE:
            content = data[begin:end]
        elif number not in (_DTYPE, _SHAPE):
            pieces.append((number, begin if wire == VARINT else data[begin:end]))
    count = math.prod(shape)
    claim(count * dtype.np_dtype.itemsize)  # one element may stand for all
    if dtype is dtypes.string:
        texts = [piece for number, piece in pieces if number == _STRINGS]
        found = _filled(_texts(content, count) if content else texts, count, np.dtype(object), b"")
    elif content:
        if len(content) != count * dtype.np_dtype.itemsize:
            raise InvalidArgumentError(
                "the serialized tensor is cut short", expected=shape, actual=f"{len(content)} bytes"
            )
        found = np.frombuffer(content, dtype.np_dtype).copy()
    else:
        found = _filled(_numbers(pieces, dtype), count, dtype.np_dtype, 0)
    return found.reshape(shape)


def _texts(content: bytes, count: int) -> list[bytes]:
    """Strings in one piece: first their lengths, then what is in them."""
    lengths: list[int] = []
    at = 0
    while len(lengths) < count:
        length, at = read_number(content, at, len(content))
        lengths.append(length)
    if at + sum(lengths) != len(content):
        raise InvalidArgumentError(
            "the serialized tensor is cut short", expected=at + sum(lengths), actual=f"{len(content)} bytes"
        )
    ends = list(accumulate(lengths, initial=at))
    return [content[begin:end] for begin, end in pairwise(ends)]


def _name(kind: int) -> str:
    try:
        return as_dtype(kind).name
    except InvalidArgumentError:
        return f"number {kind}"


def read_shape(data: bytes, begin: int, end: int) -> tuple[int, ...]:
    """The sizes in a TensorShapeProto. Raises InvalidArgumentError, DataLossError."""
    sizes: list[int] = []
    for number, wire, start, stop in read_fields(data, begin, end):
        if number == 2 and wire == PIECE:
            found = [value for field, kind, value, _ in read_fields(data, start, stop) if (field, kind) == (1, VARINT)]
            sizes.append(found[-1] if found else 0)
    if math.prod(max(1, size) for size in sizes) >= 2**63:  # one that is not known is negative, so 2**63 or more
        raise InvalidArgumentError("a serialized tensor has a size that is not known", expected="sizes", actual=sizes)
    return tuple(sizes)


def _filled(items: Any, count: int, np_dtype: Any, empty: Any) -> Any:
    """An array in which the last element stands for all that are left out."""
    if len(items) > count:
        raise InvalidArgumentError("the serialized tensor has too many elements", expected=count, actual=len(items))
    made = np.empty(count, dtype=np_dtype)
    made[: len(items)] = np.array(items, dtype=np_dtype)
    made[len(items) :] = items[-1] if len(items) else empty
    return made


def _numbers(pieces: list[tuple[int, Any]], dtype: DType) -> Any:
    packed = [np.frombuffer(piece, _FIXED[number]) for number, piece in pieces if number in _FIXED]
    if packed:
        joined = np.concatenate(packed)
        if joined.dtype.kind == "c" and not dtype.is_complex:
            raise InvalidArgumentError(
                "the serialized tensor has complex numbers", expected=dtype.name, actual="complex"
            )
        return joined
    found: list[Any] = []
    convert = _CONVERT.get(dtype, _signed)
    for number, piece in pieces:
        if number == _FLOATS8 and dtype.is_narrow and not isinstance(piece, int):
            found.extend(np.frombuffer(piece, dtype.np_dtype).tolist())
        elif number in _VARINTS:
            values = [piece] if isinstance(piece, int) else _unpacked(piece)
            found.extend(convert(value) for value in values)
    return found


def _unpacked(piece: bytes) -> list[int]:
    values: list[int] = []
    at = 0
    while at < len(piece):
        value, at = read_number(piece, at, len(piece))
        values.append(value)
    return values


def _signed(value: int) -> int:
    return value - (MASK64 + 1) if value >> 63 else value


def _bits(np_dtype: Any) -> Callable[[int], Any]:
    return lambda value: np.array(value, np.uint16).view(np_dtype)[()]


_CONVERT: Final[Mapping[DType, Callable[[int], Any]]] = {
    dtypes.bool_: bool,
    dtypes.uint64: int,
    dtypes.float16: _bits(dtypes.float16.np_dtype),
    dtypes.bfloat16: _bits(dtypes.bfloat16.np_dtype),
}
