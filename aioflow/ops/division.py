"""Division and remainders in their kinds: true, rounding down, rounding towards zero, and with 0 for a zero divisor."""

from __future__ import annotations

from typing import Final

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op, gradient, not_differentiable
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.broadcasting import Pair, broadcast, conjugate, negated, same_dtype, unbroadcast
from aioflow.ops.indexed import Gradient

__all__ = [
    "div",
    "div_no_nan",
    "divide",
    "floor_div",
    "floordiv",
    "floormod",
    "mod",
    "realdiv",
    "truediv",
    "truncatediv",
    "truncatemod",
]

_DEFINITIONS: Final = {
    "Div": "{numbers}",
    "RealDiv": "{numbers}",
    "FloorDiv": "{numbers}",
    "TruncateDiv": "{numbers}",
    "DivNoNan": "{floats, complexes}",
    "Mod": "{int32, int64, floats}",
    "FloorMod": "{reals}",
    "TruncateMod": "{int32, int64, floats}",
}
for _name, _allowed in _DEFINITIONS.items():
    define_op(_name, "x: T, y: T", "z: T", [f"T: {_allowed}"], shape=broadcast)

not_differentiable("FloorDiv", "TruncateDiv")


@gradient("Div", "RealDiv")
def _div_grad(op: Operation, grad: Tensor) -> Pair:
    return _quotient_grad(op, grad, "RealDiv")


@gradient("DivNoNan")
def _div_no_nan_grad(op: Operation, grad: Tensor) -> Pair:
    return _quotient_grad(op, grad, "DivNoNan")


def _quotient_grad(op: Operation, grad: Tensor, divide: str) -> Pair:
    """d(x/y): 1/y and -z/y. Both could share grad/y, but that may overflow where z is small."""
    x, y = op.inputs
    divisor = conjugate(y)
    slope = apply_op(divide, conjugate(op.outputs[0]), divisor)
    over_x, over_y = unbroadcast(x, y, apply_op(divide, grad, divisor), apply_op("Mul", grad, slope))
    return over_x, None if over_y is None else negated(over_y)


@gradient("FloorMod", takes_slices=True)
def _floor_mod_grad(op: Operation, grad: Gradient) -> Pair:
    x, y = op.inputs
    return unbroadcast(x, y, grad, apply_op("Neg", apply_op("Mul", grad, apply_op("FloorDiv", x, y))))


@gradient("Mod", "TruncateMod", takes_slices=True)
def _truncate_mod_grad(op: Operation, grad: Gradient) -> Pair:
    x, y = op.inputs
    return unbroadcast(x, y, grad, apply_op("Neg", apply_op("Mul", grad, apply_op("TruncateDiv", x, y))))


# Dtypes whose true quotient is of another dtype.
_QUOTIENTS: Final[dict[DType, DType]] = {
    **dict.fromkeys((dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16), dtypes.float32),
    **dict.fromkeys((dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64), dtypes.float64),
}


def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as Python 3 has it: integers become floats first, of 8 and 16 bits float32, of 32 and 64 bits float64.

    Raises:
        DTypeError: the operands are bools or strings, or of different dtypes.
    """
    first, second = same_dtype(x, y)
    if not first.dtype.is_numeric:
        raise DTypeError("cannot divide", expected="numbers", actual=first.dtype).at(
            first.op.name, first.op.type, first.op.source
        )
    wanted = _QUOTIENTS.get(first.dtype)
    if wanted is not None:
        first, second = apply_op("Cast", first, DstT=wanted), apply_op("Cast", second, DstT=wanted)
    result: Tensor = apply_op("RealDiv", first, second, name=name or "truediv")
    return result


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as Python 3 has it; see `truediv`."""
    return truediv(x, y, name)


def div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as Python 2 had it: integers are divided rounding down, all else truly."""
    first, second = same_dtype(x, y)
    kind = "FloorDiv" if first.dtype.is_integer else "RealDiv"
    result: Tensor = apply_op(kind, first, second, name=name or "div")
    return result


def realdiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y for floating and complex dtypes."""
    result: Tensor = apply_op("RealDiv", x, y, name=name)
    return result


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y rounded towards minus infinity.

    Raises:
        InvalidArgumentError: (at run time) an integer division by zero.
    """
    result: Tensor = apply_op("FloorDiv", x, y, name=name or "floordiv")
    return result


def floor_div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y rounded towards minus infinity; see `floordiv`."""
    result: Tensor = apply_op("FloorDiv", x, y, name=name)
    return result


def truncatediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y rounded towards zero.

    Raises:
        InvalidArgumentError: (at run time) an integer division by zero.
    """
    result: Tensor = apply_op("TruncateDiv", x, y, name=name)
    return result


def div_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where y is 0."""
    result: Tensor = apply_op("DivNoNan", x, y, name=name or "div_no_nan")
    return result


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0."""
    result: Tensor = apply_op("DivNoNan", 1, convert_to_tensor(x), name=name or "reciprocal_no_nan")
    return result


def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The remainder of `floordiv`: it has the sign of y.

    Raises:
        InvalidArgumentError: (at run time) an integer division by zero.
    """
    result: Tensor = apply_op("FloorMod", x, y, name=name)
    return result


mod = floormod


def truncatemod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The remainder of `truncatediv`: it has the sign of x.

    Raises:
        InvalidArgumentError: (at run time) an integer division by zero.
    """
    result: Tensor = apply_op("TruncateMod", x, y, name=name)
    return result
