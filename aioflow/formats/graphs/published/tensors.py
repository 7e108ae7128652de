"""Conversion of constants: `TensorData` to and from `TensorProto`, by the rules of `tensor_fields`."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError, ResourceExhaustedError
from aioflow.formats.tensor_fields import STRINGS, check_fields, elements, field_of, strings
from aioflow.graph.definitions import TensorData
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.values import Array
from aioflow.protos import Message

# The dtype number of a reference is that of its target plus this.
REFERENCE: Final = 100
# Limit for all constants of a graph that are written as one repeated element, in bytes after expansion.
_SPREAD: Final = 1 << 28


class Room:
    """A budget for the expansion of constants: a definition of a few bytes could otherwise expand to terabytes."""

    def __init__(self, limit: int = _SPREAD) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        """Reserve `size` bytes. Raise ResourceExhaustedError if the definition exceeds its limit."""
        if size > self._left:
            raise ResourceExhaustedError(
                "constants that are written as one element are too large",
                expected=f"at most {_SPREAD} bytes",
                actual=size,
            )
        self._left -= size


def dtype_of(number: int) -> DType:
    """Return the dtype with that number; for a reference, the dtype of its target.

    Raises:
        DTypeError: there is no such dtype.
    """
    return as_dtype(number - REFERENCE if number > REFERENCE else number)


def shape_of(proto: Message) -> tuple[int | None, ...] | None:
    """Return the sizes, with None for each unknown one, or None if the rank is unknown.

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
    """Write the sizes into the message."""
    # An empty message means a scalar's shape, and differs from none.
    proto.SetInParent()
    if dims is None:
        proto.unknown_rank = True
        return
    for size in dims:
        proto.dim.add(size=-1 if size is None else size)


def tensor_of(proto: Message, room: Room) -> TensorData:
    """Return the constant in a TensorProto.

    Raises:
        DTypeError: constants of that dtype are not supported.
        InvalidArgumentError: the elements do not fit the shape.
        ResourceExhaustedError: the constant is much larger than its encoded form.
    """
    dtype = dtype_of(proto.dtype)
    shape = shape_of(proto.tensor_shape)
    if shape is None or None in shape:
        raise InvalidArgumentError("a constant has no known shape", expected="sizes >= 0", actual=shape)
    sizes: Any = shape
    field, count = field_of(dtype), math.prod(sizes)
    check_fields(dtype, [known.name for known, _ in proto.ListFields()])
    content, listed = proto.tensor_content, getattr(proto, field.name)
    if field is STRINGS:
        return TensorData(dtype, sizes, strings(tuple(listed), content, count, room.take))
    if content:
        return TensorData(dtype, sizes, content)
    numbers = np.frombuffer(listed, np.uint8) if isinstance(listed, bytes) else np.array(listed, field.stored)
    values = elements(numbers, dtype, count, room.take)
    # `TensorData` is little-endian on every machine.
    return TensorData(dtype, sizes, values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())


def write_tensor(proto: Message, data: TensorData | Array) -> None:
    """Write the constant into the message, as bytes or as strings."""
    data = data if isinstance(data, TensorData) else TensorData.of(data)
    proto.dtype = data.dtype.as_datatype_enum
    write_shape(proto.tensor_shape, data.shape)
    if isinstance(data.data, tuple):
        proto.string_val.extend(data.data)
    else:
        proto.tensor_content = bytes(data.data)
