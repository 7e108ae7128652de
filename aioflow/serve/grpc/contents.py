"""Tensors as numbers in a message, in the field of their dtype. Half precision, without a field, is sent as bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.memory.values import Array
from aioflow.protos.messages import Message
from aioflow.serve.protocol import MalformedRequestError, datatype_of, spelled

FIELDS: Final[Mapping[DType, str]] = {
    dtypes.bool_: "bool_contents",
    dtypes.int8: "int_contents",
    dtypes.int16: "int_contents",
    dtypes.int32: "int_contents",
    dtypes.int64: "int64_contents",
    dtypes.uint8: "uint_contents",
    dtypes.uint16: "uint_contents",
    dtypes.uint32: "uint_contents",
    dtypes.uint64: "uint64_contents",
    dtypes.float32: "fp32_contents",
    dtypes.float64: "fp64_contents",
    dtypes.string: "bytes_contents",
}
_WIDE: Final = {"int_contents": np.int32, "uint_contents": np.uint32}  # fields that also hold narrower types


def from_contents(contents: Message, dtype: DType, shape: tuple[int, ...], name: str) -> Array:
    """Return the array in the contents of an input.

    Raises:
        MalformedRequestError: the elements are in another field, too many or too few, or do not fit the dtype.
    """
    wanted = FIELDS.get(dtype)
    if wanted is None:
        raise MalformedRequestError(
            f"input {name!r} has a datatype that can be sent only as raw bytes",
            expected="raw_input_contents",
            actual=datatype_of(dtype, f"input {name!r}"),
        )
    given = [field.name for field, _ in contents.ListFields()]
    # Protocol buffers do not send empty lists, so a tensor without elements may have no field at all.
    if given not in ([wanted], []):
        raise MalformedRequestError(
            f"input {name!r} has contents that do not match its datatype", expected=wanted, actual=", ".join(given)
        )
    values = getattr(contents, wanted)
    count = math.prod(shape)
    if len(values) != count:
        raise MalformedRequestError(
            f"input {name!r} has a number of elements that does not match its shape",
            expected=f"{count} for {list(shape)}",
            actual=len(values),
        )
    if dtype is dtypes.string:
        array = np.empty(count, np.object_)
        # Assigned element by element: `np.array` would cut trailing null bytes off by choosing a fixed-width dtype.
        array[:] = values
        return array.reshape(shape)
    array = np.fromiter(values, _WIDE.get(wanted, dtype.np_dtype), count)
    # A 32-bit field also carries 8 and 16 bits, and a value out of range would wrap around silently.
    narrow = array.astype(dtype.np_dtype, copy=False)
    if narrow is not array and not np.array_equal(narrow, array):
        raise MalformedRequestError(f"an element of input {name!r} does not fit its datatype", expected=spelled(dtype))
    return narrow.reshape(shape)


def to_contents(array: Array, dtype: DType, contents: Message) -> None:
    """Write an array into the field of its dtype, which must be in `FIELDS`."""
    getattr(contents, FIELDS[dtype]).extend(array.reshape(-1).tolist())
