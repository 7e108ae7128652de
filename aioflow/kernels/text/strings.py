"""Kernels on strings, which are object arrays of bytes. They run on the host, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.stopping import blocks, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.formats.number_text import number_parser
from aioflow.graph.dtypes import DType
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array, Value

_BATCH: Final = 256  # strings between two checkpoints
_OBJECTS: Final = 1 << 16  # objects that are stored while nothing else can run
LEAST_STRING: Final = 64  # bytes that a short string takes, with its reference


def string_values(value: Value) -> Array:
    """Return the value as an object array, also if it is a bare scalar."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)


def as_strings(items: list[bytes], shape: tuple[int, ...] = (-1,)) -> Array:
    """Return an object array of that shape, by default a vector."""
    if not shape:
        # Takes a quarter of the time of the assignment to an empty array.
        return np.array(items[0], dtype=object)
    made = np.empty(len(items), dtype=object)
    if len(items) <= _OBJECTS:
        made[:] = items
    else:
        for part in blocks(len(items), _OBJECTS):
            made[part] = items[part]
    return made.reshape(shape)


def each(convert: Callable[[Any], object], array: Array, dtype: npt.DTypeLike = object) -> Array:
    """Return an array of `convert(item)` for each element, with checkpoints."""
    flat = array.reshape(-1)
    made = np.empty(flat.shape, dtype)
    for part in blocks(flat.size, _BATCH):
        made[part] = [convert(item) for item in flat[part].tolist()]
    return made.reshape(array.shape)


@binder("StringToNumber", device="CPU", fresh=True)
def string_to_number(binding: Binding) -> Callable[[Value], Array]:
    dtype = binding.output_dtypes[0]
    parse = number_parser(dtype)

    def number(text: bytes) -> object:
        found = parse(text)
        if found is None:
            raise InvalidArgumentError("not a number", expected=dtype.name, actual=text)
        return found

    def convert(strings: Value) -> Array:
        return each(number, string_values(strings), dtype.np_dtype)

    return convert


@kernel("StringJoin", device="CPU", fresh=True)
def string_join(inputs: tuple[Value, ...], *, separator: str) -> Array:
    arrays = [string_values(array) for array in inputs]
    shapes = {array.shape for array in arrays if array.shape}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            "strings of different shapes cannot be joined", expected="one shape, and scalars", actual=sorted(shapes)
        )
    shape = shapes.pop() if shapes else ()
    if not arrays:
        return as_strings([b""], shape)
    between = separator.encode()
    return as_strings([between.join(row) for row in side_by_side(arrays, shape)], shape)


def side_by_side(arrays: Sequence[Array], shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the corresponding elements of arrays that are broadcast to a shape."""
    columns = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
    for part in blocks(columns[0].size, _BATCH):
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


@kernel("StringLength", device="CPU", fresh=True)
def string_length(value: Value, *, unit: str) -> Array:
    strings = string_values(value)
    measure: Callable[[bytes], int] = len if unit == "BYTE" else _characters
    return each(measure, strings, np.int32)


def _begins(text: bytes) -> Array:
    """Return for each byte whether a UTF-8 character begins there, which holds for all but continuation bytes."""
    leads: Array = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return leads


def _characters(text: bytes) -> int:
    return int(np.count_nonzero(_begins(text)))


@kernel("Substr", device="CPU", fresh=True)
def substr(value: Value, pos: Array, length: Array, *, unit: str) -> Array:
    strings = string_values(value)
    if np.shape(pos) != np.shape(length):
        raise InvalidArgumentError(
            "pos and len must have the same shape", expected=np.shape(pos), actual=np.shape(length)
        )
    shape = broadcast_shape(strings.shape, np.shape(pos))
    cut = _cut if unit == "BYTE" else _cut_characters
    return as_strings([cut(*row) for row in side_by_side((strings, pos, length), shape)], shape)


def _span(size: int, pos: int, length: int) -> slice:
    if not -size <= pos <= size:
        raise InvalidArgumentError("the position is outside the string", expected=f"-{size}..{size}", actual=pos)
    start = pos if pos >= 0 else pos + size
    # As in TensorFlow, a negative length means no limit.
    return slice(start, size if length < 0 else start + length)


def _cut(text: bytes, pos: int, length: int) -> bytes:
    return text[_span(len(text), pos, length)]


def _cut_characters(text: bytes, pos: int, length: int) -> bytes:
    starts = np.append(np.flatnonzero(_begins(text)), len(text))
    # In TensorFlow a negative length selects no characters, but all bytes.
    chosen = _span(len(starts) - 1, pos, max(0, length))
    return text[starts[chosen.start] : starts[min(chosen.stop, len(starts) - 1)]]


_LONGEST_NUMBER: Final = 2**31 - 1  # characters, as in C
_FILLS: Final = ("", " ", "0", "-", "+")


@binder("AsString", device="CPU", fresh=True)
def as_string(binding: Binding) -> Callable[[Value], Array]:
    attrs, dtype = binding.attrs, binding.input_dtypes[0]
    precise = attrs["precision"] >= 0 or attrs["scientific"] or attrs["shortest"]
    if attrs["scientific"] and attrs["shortest"]:
        raise InvalidArgumentError(
            "scientific and shortest cannot both be set", expected="scientific or shortest", actual="both"
        )
    if precise and not (dtype.is_floating or dtype.is_complex):
        raise InvalidArgumentError(
            "precision, scientific and shortest are only for floats", expected="a floating dtype", actual=dtype.name
        )
    if attrs["fill"] not in _FILLS:
        raise InvalidArgumentError("unknown fill", expected=f"one of {_FILLS}", actual=attrs["fill"])
    longest = max(attrs["width"], attrs["precision"])
    if longest > _LONGEST_NUMBER:
        raise InvalidArgumentError("the text is too long", expected=f"<= {_LONGEST_NUMBER} characters", actual=longest)
    write = _writer(dtype, attrs)

    def convert(value: Value) -> Array:
        array = np.asarray(value)
        reserve(array.size * max(LEAST_STRING, longest))
        return each(write, array)

    return (lambda value: string_values(value).copy()) if dtype.name == "string" else convert


def _writer(dtype: DType, attrs: Attrs) -> Callable[[Any], bytes]:
    size = str(attrs["width"]) if attrs["width"] >= 0 else ""
    digits = f".{attrs['precision']}" if attrs["precision"] >= 0 else ""
    kind = "e" if attrs["scientific"] else "g" if attrs["shortest"] else "f"
    fill = attrs["fill"]
    if dtype.name == "bool":
        return lambda item: b"true" if item else b"false"
    if dtype.is_integer:
        # In C, the flags " " and "+" apply to signed numbers only.
        form = f"%{'' if dtype.is_unsigned and fill in ' +' else fill}{size}d"
        return lambda item: (form % item).encode()
    form = f"%{fill}{size}{digits}{kind}"
    # C does not pad inf and nan with zeros.
    without_zeros = f"%{'' if fill == '0' else fill}{size}{digits}{kind}"

    def write(item: float) -> str:
        return (form if math.isfinite(item) else without_zeros) % item

    if dtype.is_complex:
        return lambda item: f"({write(item.real)},{write(item.imag)})".encode()
    return lambda item: write(item).encode()
