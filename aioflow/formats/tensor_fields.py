"""The encoding rules of TensorProto: the field of each dtype's elements, and the values of omitted elements.

Two readers share these rules: of bytes (`formats.tensor_proto`) and of messages (`formats.graphs.published.tensors`).
Both pass the contents of a field as an array of the field's own number type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType

CONTENT: Final = 4  # number of the field that holds all elements in their memory layout
_STRING_BYTES: Final = 8  # bytes that each string element needs beside its contents
_LENGTH_BITS: Final = 63  # payload bits of all bytes of a varint except the last


class TensorField(NamedTuple):
    """A field with one entry per element.

    Attributes:
        number: The field's number in the message.
        name: The field's name in the message.
        stored: The dtype of its numbers; uint8 for a single bytes value, object for one bytes value per element.
    """

    number: int
    name: str
    stored: Any


STRINGS: Final = TensorField(8, "string_val", np.dtype(object))
# The numbers of protobuf's int32 hold all smaller integer types; half_val holds the bits of a 16-bit float.
_INTS: Final = TensorField(7, "int_val", np.dtype(np.int32))
_HALVES: Final = TensorField(13, "half_val", np.dtype(np.int32))
_BYTES: Final = TensorField(18, "float8_val", np.dtype(np.uint8))
_FIELDS: Final = {
    dtypes.float32: TensorField(5, "float_val", np.dtype("<f4")),
    dtypes.float64: TensorField(6, "double_val", np.dtype("<f8")),
    dtypes.string: STRINGS,
    dtypes.complex64: TensorField(9, "scomplex_val", np.dtype("<f4")),
    dtypes.int64: TensorField(10, "int64_val", np.dtype(np.int64)),
    dtypes.bool_: TensorField(11, "bool_val", np.dtype(np.bool_)),
    dtypes.complex128: TensorField(12, "dcomplex_val", np.dtype("<f8")),
    dtypes.uint32: TensorField(16, "uint32_val", np.dtype(np.uint32)),
    dtypes.uint64: TensorField(17, "uint64_val", np.dtype(np.uint64)),
    **dict.fromkeys((dtypes.float16, dtypes.bfloat16), _HALVES),
    **dict.fromkeys((t for t in dtypes.ALL if t.is_narrow and t.is_floating), _BYTES),
    **dict.fromkeys((t for t in dtypes.ALL if t.is_narrow and t.is_integer), _INTS),
    **dict.fromkeys((t for t in dtypes.ALL if t.is_quantized), _INTS),
    **dict.fromkeys((dtypes.int32, dtypes.uint8, dtypes.int16, dtypes.int8, dtypes.uint16), _INTS),
}
_NUMBERS: Final = {field.number: field.name for field in _FIELDS.values()}
_NAMES: Final = frozenset(_NUMBERS.values())


def field_of(dtype: DType) -> TensorField:
    """Return the field of the elements of a dtype. Raises DTypeError for resources and variants, which have none."""
    found = _FIELDS.get(dtype)
    if found is None:
        raise DTypeError(
            "not a dtype of constants", expected=f"one of {sorted(t.name for t in _FIELDS)}", actual=dtype.name
        )
    return found


def check_fields(dtype: DType, found: Sequence[int] | Sequence[str]) -> None:
    """Raise InvalidArgumentError if one of the fields, given by number or by name, belongs to another dtype."""
    # Field numbers that no dtype uses, such as those of the shape, are skipped.
    names = {name if isinstance(name, str) else _NUMBERS.get(name, "") for name in found}
    strange = names & _NAMES - {field_of(dtype).name}
    if strange:
        raise InvalidArgumentError(
            f"a tensor of {dtype.name} has elements of another dtype",
            expected=f"elements in {field_of(dtype).name}",
            actual=sorted(strange),
        )


def elements(listed: Any, dtype: DType, count: int, spread: Callable[[int], None]) -> Any:
    """Return the `count` elements of a dtype as a flat array, from the numbers in its field.

    The last number is repeated for all omitted elements.

    Args:
        listed: The numbers in the field.
        dtype: The dtype of the elements.
        count: The number of elements.
        spread: Called with the size in bytes before elements are repeated; it may raise.

    Raises:
        InvalidArgumentError: there are more elements, or half a complex number.
    """
    if dtype.is_complex:
        if len(listed) % 2:
            raise InvalidArgumentError("a complex number has half a pair", expected="pairs", actual=len(listed))
        # Pairs (real, imaginary) in a row are the memory layout of a complex number.
        values = listed.view(dtype.np_dtype.newbyteorder("<"))
    elif dtype.is_floating and dtype.size < 4:
        # The field has the bits of these floats, not their values.
        values = listed.astype(np.uint16 if dtype.size == 2 else np.uint8).view(dtype.np_dtype)
    else:
        values = listed
    _check_count(len(values), count)
    if len(values) == count:
        return values.astype(dtype.np_dtype)
    # Before the array is allocated: a few bytes may stand for terabytes.
    spread(count * dtype.size)
    made = np.empty(count, dtype.np_dtype)
    made[: len(values)] = values.astype(dtype.np_dtype)
    # As in TensorFlow, the last number fills the rest; without any, zero does.
    made[len(values) :] = made[len(values) - 1] if len(values) else np.zeros((), dtype.np_dtype)
    return made


def strings(listed: Sequence[bytes], content: bytes, count: int, spread: Callable[[int], None]) -> tuple[bytes, ...]:
    """Return the elements of a string tensor, stored one by one or all in one piece.

    Raises the same errors as `elements` and `cut_strings`.
    """
    if content:
        return cut_strings(content, count)
    _check_count(len(listed), count)
    if len(listed) < count:
        spread(count * _STRING_BYTES)
    return (*listed, *(listed[-1] if len(listed) else b"",) * (count - len(listed)))


def _check_count(given: int, count: int) -> None:
    if given > count:
        raise InvalidArgumentError("a tensor has too many elements", expected=count, actual=given)


def cut_strings(content: bytes, count: int) -> tuple[bytes, ...]:
    """Split the strings stored in one piece: all lengths as varints, then the contents.

    Raises:
        InvalidArgumentError: the lengths do not add up to the size, or a length does not end.
    """
    lengths: list[int] = []
    value = shift = at = 0
    for byte in batches(content):
        if len(lengths) == count:
            break
        # A varint holds 7 bits per byte, lowest first; the top bit tells that another byte follows.
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            lengths.append(value)
            value = shift = 0
        elif shift > _LENGTH_BITS:
            raise InvalidArgumentError("a string has a length that does not end", actual=len(lengths))
    # The contents begin where the lengths end.
    ends = list(accumulate(lengths, initial=at))
    if len(lengths) != count or ends[-1] != len(content):
        raise InvalidArgumentError("strings in one piece are cut short", expected=ends[-1], actual=len(content))
    # In batches, so that a step's checkpoints are reached while millions of strings are cut.
    return tuple(content[begin:end] for begin, end in pairwise(batches(ends)))
