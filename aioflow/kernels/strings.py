"""Kernels on strings, which are object arrays of bytes. They run on the host, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.number_text import number_parser
from aioflow.kernels.registry import Binding, binder, kernel

__all__ = ["as_strings", "string_values"]


def string_values(value: Any) -> Any:
    """The value as an object array, also where it is a bare scalar."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)


def as_strings(items: list[bytes], shape: tuple[int, ...] = (-1,)) -> Any:
    """An object array of that shape, by default a vector."""
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made.reshape(shape)


@binder("StringToNumber", device="CPU", fresh=True)
def string_to_number(binding: Binding) -> Callable[[Any], Any]:
    dtype = binding.output_dtypes[0]
    parse = number_parser(dtype)

    def convert(strings: Any) -> Any:
        strings = string_values(strings)
        texts = strings.reshape(-1).tolist()
        numbers = [parse(text) for text in texts]
        if None in numbers:
            raise InvalidArgumentError("not a number", expected=dtype.name, actual=texts[numbers.index(None)])
        return np.array(numbers, dtype=dtype.np_dtype).reshape(strings.shape)

    return convert


@kernel("StringJoin", device="CPU", fresh=True)
def string_join(inputs: tuple[Any, ...], *, separator: str) -> Any:
    arrays = [string_values(array) for array in inputs]
    shapes = {array.shape for array in arrays if array.shape}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            "strings of different shapes cannot be joined", expected="one shape, and scalars", actual=sorted(shapes)
        )
    shape = shapes.pop() if shapes else ()
    columns = [np.broadcast_to(array, shape).reshape(-1).tolist() for array in arrays]
    if not columns:
        return as_strings([b""], shape)
    between = separator.encode()
    return as_strings([between.join(row) for row in zip(*columns, strict=True)], shape)


@kernel("StringLength", device="CPU", fresh=True)
def string_length(value: Any, *, unit: str) -> Any:
    strings = string_values(value)
    measure: Callable[[bytes], int] = len if unit == "BYTE" else _characters
    return np.array([measure(text) for text in strings.reshape(-1).tolist()], dtype=np.int32).reshape(strings.shape)


def _characters(text: bytes) -> int:
    """Every byte but those that continue a character."""
    return sum(byte & 0xC0 != 0x80 for byte in text)


@kernel("Substr", device="CPU", fresh=True)
def substr(value: Any, pos: Any, length: Any, *, unit: str) -> Any:
    strings = string_values(value)
    if np.shape(pos) != np.shape(length):
        raise InvalidArgumentError("pos and len need one shape", expected=np.shape(pos), actual=np.shape(length))
    try:
        shape = np.broadcast_shapes(strings.shape, np.shape(pos))
    except ValueError:
        raise InvalidArgumentError(
            "pos does not broadcast with the strings", expected=strings.shape, actual=np.shape(pos)
        ) from None
    columns = [np.broadcast_to(array, shape).reshape(-1).tolist() for array in (strings, pos, length)]
    cut = _cut if unit == "BYTE" else _cut_characters
    return as_strings([cut(*row) for row in zip(*columns, strict=True)], shape)


def _span(size: int, pos: int, length: int) -> slice:
    if not -size <= pos <= size:
        raise InvalidArgumentError("the position is outside of the string", expected=f"-{size}..{size}", actual=pos)
    start = pos if pos >= 0 else pos + size
    return slice(start, size if length < 0 else start + length)  # as in TensorFlow, a negative length has no limit


def _cut(text: bytes, pos: int, length: int) -> bytes:
    return text[_span(len(text), pos, length)]


def _cut_characters(text: bytes, pos: int, length: int) -> bytes:
    starts = [i for i, byte in enumerate(text) if byte & 0xC0 != 0x80]
    chosen = _span(len(starts), pos, max(0, length))  # of characters TensorFlow gives none, of bytes all
    starts.append(len(text))
    return text[starts[chosen.start] : starts[min(chosen.stop, len(starts) - 1)]]


_FILLS: Final = ("", " ", "0", "-", "+")


@binder("AsString", device="CPU", fresh=True)
def as_string(binding: Binding) -> Callable[[Any], Any]:
    attrs, dtype = binding.attrs, binding.input_dtypes[0]
    precise = attrs["precision"] >= 0 or attrs["scientific"] or attrs["shortest"]
    if attrs["scientific"] and attrs["shortest"]:
        raise InvalidArgumentError("a number has one format", expected="scientific or shortest", actual="both")
    if precise and not (dtype.is_floating or dtype.is_complex):
        raise InvalidArgumentError(
            "precision, scientific and shortest are for floats", expected="a floating dtype", actual=dtype.name
        )
    if attrs["fill"] not in _FILLS:
        raise InvalidArgumentError("no such fill", expected=f"one of {_FILLS}", actual=attrs["fill"])
    write = _writer(dtype, attrs)

    def convert(value: Any) -> Any:
        array = np.asarray(value)
        return as_strings([write(item) for item in array.reshape(-1).tolist()], array.shape)

    return (lambda value: string_values(value).copy()) if dtype.name == "string" else convert


def _writer(dtype: Any, attrs: Any) -> Callable[[Any], bytes]:
    size = str(attrs["width"]) if attrs["width"] >= 0 else ""
    digits = f".{attrs['precision']}" if attrs["precision"] >= 0 else ""
    kind = "e" if attrs["scientific"] else "g" if attrs["shortest"] else "f"
    fill = attrs["fill"]
    if dtype.name == "bool":
        return lambda item: b"true" if item else b"false"
    if dtype.is_integer:
        form = f"%{'' if dtype.is_unsigned and fill in ' +' else fill}{size}d"
        return lambda item: (form % item).encode()
    form = f"%{fill}{size}{digits}{kind}"
    without_zeros = f"%{'' if fill == '0' else fill}{size}{digits}{kind}"  # which C does not put before inf and nan

    def write(item: float) -> str:
        return (form if math.isfinite(item) else without_zeros) % item

    if dtype.is_complex:
        return lambda item: f"({write(item.real)},{write(item.imag)})".encode()
    return lambda item: write(item).encode()
