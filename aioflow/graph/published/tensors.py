"""Constants: `TensorData` to and from `TensorProto`, in each of the forms that a writer may have chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError
from aioflow.graph import dtypes
from aioflow.graph.arrays import Array
from aioflow.graph.definitions import TensorData
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.protos import Message

__all__ = ["REFERENCE", "Room", "dtype_of", "shape_of", "tensor_of", "write_shape", "write_tensor"]

REFERENCE: Final = 100  # what the number of a dtype is more, where it is one of references
_SPREAD: Final = 1 << 28  # bytes that one element, which stands for all, may become in all constants of a graph
_STRING_BYTES: Final = 8  # that an element of strings takes, beside its own
_LENGTH_BITS: Final = 63  # that all bytes of a varint but the last may have
# The field that has the elements, and of which type its numbers are.
_LISTS: Final[Mapping[str, tuple[str, Any]]] = {
    **dict.fromkeys(("int32", "uint8", "int16", "int8", "uint16"), ("int_val", np.int32)),
    "float32": ("float_val", np.float32),
    "float64": ("double_val", np.float64),
    "complex64": ("scomplex_val", np.float32),
    "complex128": ("dcomplex_val", np.float64),
    "int64": ("int64_val", np.int64),
    "bool": ("bool_val", np.bool_),
    "float16": ("half_val", np.uint16),
    "bfloat16": ("half_val", np.uint16),
    "uint32": ("uint32_val", np.uint32),
    "uint64": ("uint64_val", np.uint64),
}


class Room:
    """How much of one definition may be spread: a few bytes of it could stand for terabytes."""

    def __init__(self, limit: int = _SPREAD) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        """Raise ResourceExhaustedError where the definition has asked for too much."""
        if size > self._left:
            raise ResourceExhaustedError(
                "constants that are written as one element are too large",
                expected=f"at most {_SPREAD} bytes",
                actual=size,
            )
        self._left -= size


def dtype_of(number: int) -> DType:
    """The dtype of that number; of a reference, what is referred to. Raises DTypeError."""
    return as_dtype(number - REFERENCE if number > REFERENCE else number)


def shape_of(proto: Message) -> tuple[int | None, ...] | None:
    """The sizes, None for each that is not known, and None where not even the rank is.

    Raises:
        InvalidArgumentError: a size is below -1.
    """
    if proto.unknown_rank:
        return None
    sizes = tuple(dim.size for dim in proto.dim)
    if any(size < -1 for size in sizes):
        raise InvalidArgumentError("a shape has a negative size", expected="sizes >= -1", actual=sizes)
    return tuple(None if size == -1 else size for size in sizes)


def write_shape(proto: Message, dims: Any) -> None:
    """Give the message the sizes."""
    proto.SetInParent()
    if dims is None:
        proto.unknown_rank = True
        return
    for size in dims:
        proto.dim.add(size=-1 if size is None else size)


def tensor_of(proto: Message, room: Room) -> TensorData:
    """The constant that a TensorProto holds.

    Raises:
        DTypeError: constants of that dtype are not supported.
        InvalidArgumentError: the elements do not fit the shape.
        ResourceExhaustedError: it is much larger than what is written.
    """
    dtype = dtype_of(proto.dtype)
    shape = shape_of(proto.tensor_shape)
    if shape is None or None in shape:
        raise InvalidArgumentError("a constant has no known shape", expected="sizes >= 0", actual=shape)
    sizes: Any = shape
    if dtype is dtypes.string:
        return TensorData(dtype, sizes, _strings(proto, math.prod(sizes), room))
    if dtype.name not in _LISTS:
        raise DTypeError("not a dtype of constants", expected=f"string or one of {sorted(_LISTS)}", actual=dtype.name)
    return TensorData(dtype, sizes, proto.tensor_content or _listed(proto, dtype, math.prod(sizes), room))


def _listed(proto: Message, dtype: DType, count: int, room: Room) -> bytes:
    """The elements of a list of numbers, whose last one stands for all that follow."""
    field, kind = _LISTS[dtype.name]
    values = np.array(getattr(proto, field), kind)
    if dtype.is_complex:
        if len(values) % 2:
            raise InvalidArgumentError("a complex number has half a pair", expected="pairs", actual=len(values))
        values = values.view(dtype.np_dtype)
    elif field == "half_val":
        values = values.view(dtype.np_dtype)
    elif kind is np.int32 and dtype is not dtypes.int32:
        values = values.astype(dtype.np_dtype)
    if len(values) > count:
        raise InvalidArgumentError("a constant has too many elements", expected=count, actual=len(values))
    if len(values) < count:
        room.take(count * dtype.size)
        last = values[-1:] if len(values) else np.zeros(1, dtype.np_dtype)
        values = np.concatenate([values, np.broadcast_to(last, count - len(values))])
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _strings(proto: Message, count: int, room: Room) -> tuple[bytes, ...]:
    if proto.tensor_content:
        return _cut(proto.tensor_content, count)
    values = tuple(proto.string_val)
    if len(values) > count:
        raise InvalidArgumentError("a constant has too many elements", expected=count, actual=len(values))
    if len(values) < count:
        room.take(count * _STRING_BYTES)
        values += (values[-1] if values else b"",) * (count - len(values))
    return values


def _cut(content: bytes, count: int) -> tuple[bytes, ...]:
    """Strings in one piece: their lengths, each a varint, and then what is in them."""
    lengths: list[int] = []
    at = value = shift = 0
    while len(lengths) < count and at < len(content):
        byte = content[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            lengths.append(value)
            value = shift = 0
        elif shift > _LENGTH_BITS:
            raise InvalidArgumentError("a constant of strings has a length that does not end", actual=len(lengths))
    ends = list(accumulate(lengths, initial=at))
    if len(lengths) != count or ends[-1] != len(content):
        raise InvalidArgumentError("a constant of strings is cut short", expected=ends[-1], actual=len(content))
    return tuple(content[begin:end] for begin, end in pairwise(ends))


def write_tensor(proto: Message, data: TensorData | Array) -> None:
    """Give the message the constant: its bytes, or its strings."""
    data = data if isinstance(data, TensorData) else TensorData.of(data)
    proto.dtype = data.dtype.as_datatype_enum
    write_shape(proto.tensor_shape, data.shape)
    if isinstance(data.data, tuple):
        proto.string_val.extend(data.data)
    else:
        proto.tensor_content = bytes(data.data)
