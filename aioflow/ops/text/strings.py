"""Ops on strings, which are bytes: join, substring, length, and conversion from and to numbers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, broadcast_dims, merge_dims
from aioflow.graph.traits import text
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_n_to_tensor, make
from aioflow.ops.core import unchanged

TextUnit: TypeAlias = Literal["BYTE", "UTF8_CHAR"]

__all__ = ["as_string", "string_join", "string_to_number", "substr"]

_UNIT = "unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'"


def _joined(ctx: ShapeContext) -> Dims:
    shapes = [dims for dims in ctx.dims_list("inputs") if dims != ()]
    result: Dims = None if shapes else ()
    for dims in shapes:
        result = merge_dims(result, dims)
    return result


def _cut(ctx: ShapeContext) -> Dims:
    merge_dims(ctx.dims("pos"), ctx.dims("len"))
    return broadcast_dims([ctx.dims("input"), ctx.dims("pos")])


define_op(
    "StringToNumber",
    "string_tensor: string",
    "output: out_type",
    ["out_type: {float32, float64, int32, int64, uint32, uint64} = float32"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringJoin",
    "inputs: N*string",
    "output: string",
    ["N: int >= 0", "separator: string = ''"],
    shape=_joined,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringLength", "input: string", "output: int32", [_UNIT], shape=unchanged, rows=rows.each_element, traits=text()
)
define_op(
    "Substr",
    "input: string, pos: T, len: T",
    "output: string",
    ["T: {index}", _UNIT],
    shape=_cut,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "AsString",
    "input: T",
    "output: string",
    [
        "T: {floats, ints, complexes, bool, string}",
        "precision: int = -1",
        "scientific: bool = False",
        "shortest: bool = False",
        "width: int = -1",
        "fill: string = ''",
    ],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)

not_differentiable("StringToNumber", "StringJoin", "StringLength", "Substr", "AsString")


def string_to_number(
    string_tensor: TensorLike | None = None,
    out_type: DTypeLike = dtypes.float32,
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Parse each string as a number.

    Args:
        string_tensor: The strings.
        out_type: float32, float64, int32, int64, uint32 or uint64.
        name: Name of the node.
        input: Another name for `string_tensor`.

    Raises:
        InvalidArgumentError: a string is not a number, or the number does not fit `out_type`.
    """
    given = string_tensor if string_tensor is not None else input
    if given is None:
        raise InvalidArgumentError("string_to_number needs strings", expected="string_tensor", actual="None")
    return make("StringToNumber", given, out_type=out_type, name=name)


def string_join(inputs: list[TensorLike], separator: str = "", name: str | None = None) -> Tensor:
    """Concatenate the strings of several tensors elementwise; scalars are joined with every element.

    Raises:
        InvalidArgumentError: the shapes of the tensors that are not scalars differ.
    """
    return make("StringJoin", convert_n_to_tensor(inputs, dtypes.string), separator=separator, name=name)


def string_length(input: TensorLike, name: str | None = None, unit: TextUnit = "BYTE") -> Tensor:
    """Return the number of bytes (or UTF-8 characters) of each string, int32."""
    return make("StringLength", input, unit=unit, name=name)


def substr(
    input: TensorLike,
    pos: TensorLike,
    len: TensorLike,
    name: str | None = None,
    unit: TextUnit = "BYTE",
) -> Tensor:
    """Return the substrings from `pos` on of `len` bytes (or UTF-8 characters), or fewer at the end of the string.

    A negative `pos` counts from the end. `pos` and `len` have the same shape, which broadcasts with that of `input`.

    Raises:
        InvalidArgumentError: `pos` is outside its string.
    """
    return make("Substr", input, pos, len, unit=unit, name=name)


def as_string(
    input: TensorLike,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Format each element in decimal digits like C's printf.

    Args:
        input: The elements.
        precision: Digits after the point, for floating and complex dtypes.
        scientific: Whether to write floats in the form 1.5e+00.
        shortest: Whether to write floats in the shorter of both forms.
        width: Minimum number of characters.
        fill: Padding: spaces by default, "0", or "-" to pad on the right.
        name: Name of the node.
    """
    return make(
        "AsString",
        input,
        precision=precision,
        scientific=scientific,
        shortest=shortest,
        width=width,
        fill=fill,
        name=name,
    )
