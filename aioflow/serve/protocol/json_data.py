"""The `data` of a tensor in JSON: conversion from and to nested or flat lists."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.memory.values import Array
from aioflow.serve.protocol.datatypes import spelled
from aioflow.serve.protocol.errors import MalformedRequestError
from aioflow.serve.protocol.json_text import INFINITE, PIECE

Nan: TypeAlias = Literal["error", "null"]

_NUMBERS: Final = frozenset({int, float})
_OTHERS: Final[Mapping[DType, frozenset[type]]] = {dtypes.bool_: frozenset({bool}), dtypes.string: frozenset({str})}


def from_json(data: object, dtype: DType, shape: tuple[int, ...], name: str, *, has_base64: bool = False) -> Array:
    """Return the array in a list that is nested like the shape, or flat in row-major order.

    Args:
        data: The list.
        dtype: The dtype of the input.
        shape: Its shape.
        name: Its name, for errors.
        has_base64: Whether strings may also be objects `{"b64": …}`, as in TensorFlow Serving's API.

    Raises:
        MalformedRequestError: the number of elements is wrong, the list is ragged, or elements have another type.
    """
    flat = _flat(data, shape, name)
    if has_base64 and dtype is dtypes.string:
        flat = [from_base64(each, name) if type(each) is dict else each for each in flat]
    allowed = _OTHERS.get(dtype) or (_NUMBERS if dtype.is_floating else frozenset({int}))
    # The exact types: `bool` is a subclass of `int`, but true is not a number here.
    found = set(map(type, flat)) - {bytes}  # JSON has no bytes: those here were base64
    if not found <= allowed:
        raise MalformedRequestError(
            f"the data of input {name!r} has elements of the wrong type",
            expected=f"{spelled(dtype)}: {', '.join(sorted(each.__name__ for each in allowed))}",
            actual=", ".join(sorted(each.__name__ for each in found - allowed)),
        )
    try:
        if dtype is dtypes.string:
            array = np.empty(len(flat), np.object_)
            array[:] = [each if type(each) is bytes else each.encode() for each in flat]
        else:
            # By way of float64: the conversion to a smaller dtype then raises for a number that is too large.
            with np.errstate(over="raise"):
                array = np.array(flat, np.float64 if dtype.is_floating else dtype.np_dtype)
                if dtype.is_floating and np.isinf(array).any():
                    _check_infinite(flat)
                array = array.astype(dtype.np_dtype)
    except (OverflowError, ArithmeticError, UnicodeError) as error:
        raise MalformedRequestError(
            f"an element of input {name!r} does not fit its datatype", expected=spelled(dtype), actual=str(error)
        ) from error
    return array.reshape(shape)


def from_base64(value: Mapping[str, object], name: str) -> bytes:
    """Return the bytes in an object `{"b64": …}`; padding is optional. Raise MalformedRequestError."""
    text = value.get("b64")
    if type(text) is str and len(value) == 1:
        digits = text.rstrip("=")
        try:
            return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
        except ValueError:
            pass
    raise MalformedRequestError(
        f"input {name!r} has an object that is no byte string", expected='{"b64": TEXT} in base64', actual="another"
    )


def _check_infinite(flat: list[object]) -> None:
    """Raise OverflowError if an infinity was a number in the text, such as 1e400."""
    # The parser returns the very objects in INFINITE for `Infinity` and `-Infinity`.
    # Identity, since all infinities are equal.
    written = set(map(id, INFINITE.values()))
    if any(type(each) is float and math.isinf(each) and id(each) not in written for each in flat):
        raise OverflowError("a number is too large for a float")


def _flat(data: object, shape: tuple[int, ...], name: str) -> list[Any]:
    """Return the elements in row-major order."""
    count = math.prod(shape)
    level: list[Any] = data if type(data) is list else [data]
    if len(level) == count and not (level and type(level[0]) is list):
        return level  # flat, or with one axis
    if shape and len(level) == shape[0]:
        for size in shape[1:]:
            if not all(type(each) is list and len(each) == size for each in level):
                break
            level = list(chain.from_iterable(level))
        else:
            return level
    raise MalformedRequestError(
        f"the data of input {name!r} does not match its shape",
        expected=f"{list(shape)}: {count} elements, flat or nested",
        actual="lists of other lengths",
    )


def to_json(array: Array, dtype: DType, name: str, nan: Nan = "error") -> str:
    """Return the elements in row-major order as a JSON list.

    Args:
        array: The array.
        dtype: Its dtype.
        name: The name of the output, for errors.
        nan: The form of NaN and infinities, as in `ModelOptions.json_nan`.

    Raises:
        MalformedRequestError: strings are not text, or a number is NaN or infinite; request such outputs as bytes.
    """
    if dtype is dtypes.bfloat16:  # its elements convert to objects of ml_dtypes, which json cannot write
        array = array.astype(np.float32)
    flat = array.reshape(-1)
    # In pieces, because `tolist` and `dumps` hold the GIL until they return.
    pieces = (flat[at : at + PIECE].tolist() for at in range(0, flat.size, PIECE))
    if dtype is dtypes.string:
        pieces = (_texts(piece, name) for piece in pieces)
    elif dtype.is_floating and not np.isfinite(flat).all():
        if nan == "error":
            raise MalformedRequestError(
                f"output {name!r} has NaN or infinities, which JSON cannot represent",
                expected="a request for binary_data",
                actual=f"{np.count_nonzero(~np.isfinite(flat))} of {flat.size} numbers",
            )
        pieces = ([number if math.isfinite(number) else None for number in piece] for piece in pieces)
    # Each piece loses its brackets, so the joined pieces form one list.
    return f"[{','.join(json.dumps(piece, separators=(',', ':'))[1:-1] for piece in pieces)}]"


def _texts(items: list[bytes], name: str) -> list[str]:
    try:
        return [item.decode() for item in items]
    except UnicodeDecodeError as error:
        raise MalformedRequestError(
            f"output {name!r} is not UTF-8 text",
            expected="a request for binary_data",
            actual="bytes that are not UTF-8",
        ) from error
