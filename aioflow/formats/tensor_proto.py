"""Tensors as `TensorProto` messages, as TensorFlow's SerializeTensor writes and its ParseTensor reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from aioflow.concurrency.stopping import batches, reserve
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.protobuf import (
    FIXED32,
    FIXED64,
    PIECE,
    VARINT,
    damaged,
    read_fields,
    read_number,
    write_number,
    write_piece,
)
from aioflow.formats.tensor_fields import CONTENT, STRINGS, TensorField, check_fields, elements, field_of, strings
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.copying import native
from aioflow.memory.values import Array, Value

_DTYPE, _SHAPE = 1, 2


def encode_tensor(value: Value, dtype: DType) -> bytes:
    """Encode an array as a TensorProto."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=dtype.np_dtype)
    # As in proto3, a size of zero is omitted, but its Dim message is written empty so that each dimension has a field.
    sizes = b"".join(write_piece(2, write_number(1 << 3) + write_number(size) if size else b"") for size in array.shape)
    head = write_number(_DTYPE << 3) + write_number(dtype.as_datatype_enum) + write_piece(_SHAPE, sizes)
    if dtype is dtypes.string:
        return head + b"".join(write_piece(STRINGS.number, item) for item in batches(array.reshape(-1).tolist()))
    content = native(array).tobytes()
    return head + (write_piece(CONTENT, content) if content else b"")


def decode_tensor(data: bytes, dtype: DType) -> Array:
    """Decode the array in a TensorProto.

    Raises:
        InvalidArgumentError: the bytes are not a TensorProto, or have a different dtype.
    """
    try:
        return _decode(data, dtype)
    except InvalidArgumentError:
        raise
    except (DataLossError, OverflowError, TypeError, ValueError) as error:  # NumPy raises the last three
        raise InvalidArgumentError("not a TensorProto", expected="its bytes", actual=data[:60]) from error


def _decode(data: bytes, dtype: DType) -> Array:
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


def tensor_elements(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Decode the elements of a message as an array of `dtype` and `shape`, ignoring the message's own.

    Raises:
        InvalidArgumentError, DataLossError, OverflowError, TypeError, ValueError: the elements do not fit.
    """
    field, content = field_of(dtype), b""
    pieces = list[tuple[int, Any]]()
    numbers: set[int] = set()
    for number, wire, begin, end in batches(read_fields(data, 0, len(data))):
        numbers.add(number)
        if number == CONTENT and wire == PIECE:
            content = data[begin:end]
        elif number == field.number:
            pieces.append((wire, begin if wire == VARINT else data[begin:end]))
    check_fields(dtype, sorted(numbers))
    count = math.prod(shape)
    reserve(count * dtype.np_dtype.itemsize)  # one element may stand for all, so the message's size is no bound
    if field is STRINGS:
        found = np.empty(count, object)
        found[:] = strings([piece for wire, piece in pieces if wire == PIECE], content, count, reserve)
    elif not content:
        found = elements(_listed(pieces, field), dtype, count, reserve)
    elif len(content) != count * dtype.np_dtype.itemsize:
        raise InvalidArgumentError("the serialized tensor is cut short", expected=shape, actual=f"{len(content)} bytes")
    else:
        found = np.frombuffer(content, dtype.np_dtype).copy()
    return found.reshape(shape)


def _name(kind: int) -> str:
    try:
        return as_dtype(kind).name
    except InvalidArgumentError:
        return f"number {kind}"


def read_shape(data: bytes, begin: int, end: int) -> tuple[int, ...]:
    """Return the sizes in a TensorShapeProto.

    Raises:
        InvalidArgumentError: a size is unknown, or there are 2**63 elements or more.
        DataLossError: the message is damaged.
    """
    sizes: list[int] = []
    for number, wire, start, stop in read_fields(data, begin, end):
        if number == 2 and wire == PIECE:
            found = [value for field, kind, value, _ in read_fields(data, start, stop) if (field, kind) == (1, VARINT)]
            sizes.append(found[-1] if found else 0)
    # An unknown size is negative, which as an unsigned varint is at least 2**63.
    if math.prod(max(1, size) for size in sizes) >= 2**63:
        raise InvalidArgumentError("a serialized tensor has a size that is not known", expected="sizes", actual=sizes)
    return tuple(sizes)


def _listed(pieces: list[tuple[int, Any]], field: TensorField) -> Array:
    """Return the numbers in a field, separate or packed, as an array of the field's own type.

    Raises:
        DataLossError: the field has another wire type, or is damaged.
        ValueError: the bytes are not a whole number of elements.
    """
    alone = {4: FIXED32, 8: FIXED64}.get(field.stored.itemsize, VARINT) if field.stored.kind == "f" else VARINT
    strange = [wire for wire, _ in pieces if wire not in (PIECE, alone)]
    if strange or (field.stored == np.uint8 and any(wire != PIECE for wire, _ in pieces)):
        raise damaged(f"field {field.name} of another type")
    if field.stored == np.uint8:
        # A single `bytes` value: of several occurrences the last one counts, as for any field of protocol buffers.
        return np.frombuffer(pieces[-1][1] if pieces else b"", np.uint8)
    if field.stored.kind == "f":
        return np.frombuffer(b"".join(piece for _, piece in pieces), field.stored)
    values: list[int] = []
    for wire, piece in batches(pieces):
        values.extend([piece] if wire == VARINT else _unpacked(piece))
    # Negative numbers are varints of their two's complement, and wrap around to it in uint64.
    return np.array(values, np.uint64).astype(field.stored)


def _unpacked(piece: bytes) -> Iterator[int]:
    at = 0
    for _ in batches(piece):  # a number has at least one byte, so this bounds the loop
        if at == len(piece):
            break
        value, at = read_number(piece, at, len(piece))
        yield value
