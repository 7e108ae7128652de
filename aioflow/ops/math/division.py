"""Division and remainders: true, rounded down, rounded towards zero, and with 0 for a zero divisor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, overload

import numpy as np

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.static_value import StaticValue, integers_only, known_by
from aioflow.graph.traits import FLOATS, Laws, Neutral, Traits, elementwise
from aioflow.memory.values import Array
from aioflow.ops import row_values
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.math.broadcasting import GradientPair, broadcast, conjugate, negated, same_dtype, unbroadcast
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.sparse.tensor import SparseTensor

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


def _define(name: str, allowed: str, traits: Traits, value: StaticValue | None = None) -> None:
    rule = row_values.quotient if name == "FloorDiv" else None
    define_op(name, "x: T, y: T", "z: T", [f"T: {allowed}"], shape=broadcast, value=value, rows=rule, traits=traits)


def _truncated(x: Array, y: Array) -> Array:
    # Integer division of absolute values rounds towards zero; `//` of NumPy rounds down.
    quotient: Array = np.where((x < 0) == (y < 0), abs(x) // abs(y), -(abs(x) // abs(y)))
    return quotient


def _known(function: Callable[[Array, Array], Array]) -> StaticValue:
    # Divisions by zero are left to the kernel, where those of integers raise an error.
    return known_by(lambda x, y: None if (y == 0).any() else function(x, y))


def _one(whole: int | None, floating: float | None = None) -> Laws:
    """Return the law x / 1 = x.

    It holds for integers, and for floats if the op does not round the quotient to a whole number.
    """
    return Laws(neutral=Neutral((1,), whole, floating))


_NUMBERS: Final = "{numbers}"
_SOME: Final = "{int32, int64, floats}"
# Div truncates the quotient of integers as C does; for other dtypes it is RealDiv.
_define("Div", _NUMBERS, elementwise(fuses=FLOATS, laws=_one(1, 1.0)), integers_only(_known(_truncated)))
_define("RealDiv", _NUMBERS, elementwise(in_c="{0} / {1}", fuses=FLOATS, laws=_one(None, 1.0)), _known(np.true_divide))
_define("FloorDiv", _NUMBERS, elementwise(fuses=FLOATS, laws=_one(1)), integers_only(_known(np.floor_divide)))
_define("TruncateDiv", _NUMBERS, elementwise(laws=_one(1)), integers_only(_known(_truncated)))
_define("DivNoNan", "{floats, complexes}", elementwise(fuses=FLOATS))
# Mod is the remainder of truncation for integers and floats, so it equals TruncateMod.
_define("Mod", _SOME, elementwise(), integers_only(_known(np.fmod)))
_define("FloorMod", "{reals}", elementwise(fuses=FLOATS), integers_only(_known(np.mod)))
_define("TruncateMod", _SOME, elementwise(), integers_only(_known(np.fmod)))

not_differentiable("FloorDiv", "TruncateDiv")


@gradient("Div", "RealDiv")
def _div_grad(op: Operation, grad: Tensor) -> GradientPair:
    return _quotient_grad(op, grad, "RealDiv")


@gradient("DivNoNan")
def _div_no_nan_grad(op: Operation, grad: Tensor) -> GradientPair:
    return _quotient_grad(op, grad, "DivNoNan")


def _quotient_grad(op: Operation, grad: Tensor, divide: str) -> GradientPair:
    """Return grad / y and -grad z / y, the gradients of z = x / y."""
    x, y = op.inputs
    divisor = conjugate(y)
    # Both gradients could share grad / y, but that may overflow where z is small.
    # z = x / y: ∂z/∂x = 1 / y, ∂z/∂y = -x / y² = -z / y. With z, the inputs' square is not formed.
    slope = make(divide, conjugate(op.outputs[0]), divisor)
    over_x, over_y = unbroadcast(x, y, make(divide, grad, divisor), make("Mul", grad, slope))
    return over_x, None if over_y is None else negated(over_y)


@gradient("FloorMod", takes_slices=True)
def _floor_mod_grad(op: Operation, grad: Gradient) -> GradientPair:
    x, y = op.inputs
    # z = x - y ⌊x / y⌋: ∂z/∂x = 1, ∂z/∂y = -⌊x / y⌋, where the floor is locally constant.
    return unbroadcast(x, y, grad, make("Neg", make("Mul", grad, make("FloorDiv", x, y))))


@gradient("Mod", "TruncateMod", takes_slices=True)
def _truncate_mod_grad(op: Operation, grad: Gradient) -> GradientPair:
    x, y = op.inputs
    # As for FloorMod, with the quotient rounded towards zero.
    return unbroadcast(x, y, grad, make("Neg", make("Mul", grad, make("TruncateDiv", x, y))))


# Dtypes whose true quotient has another dtype.
_QUOTIENTS: Final[dict[DType, DType]] = {
    **dict.fromkeys((dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16), dtypes.float32),
    **dict.fromkeys((dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64), dtypes.float64),
}


def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y as in Python 3.

    Integers are converted to floats first: those of 8 and 16 bits to float32, those of 32 and 64 bits to float64.

    Raises:
        DTypeError: the operands are bools or strings, or have different dtypes.
    """
    first, second = same_dtype(x, y)
    if not first.dtype.is_numeric:
        raise DTypeError("cannot divide", expected="numbers", actual=first.dtype).at(
            first.op.name, first.op.type, first.op.source
        )
    wanted = _QUOTIENTS.get(first.dtype)
    if wanted is not None:
        first, second = make("Cast", first, DstT=wanted), make("Cast", second, DstT=wanted)
    return make("RealDiv", first, second, name=name or "truediv")


@overload
def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def divide(x: SparseTensor, y: TensorLike, name: str | None = None) -> SparseTensor: ...


def divide(x: Any, y: TensorLike, name: str | None = None) -> Tensor | SparseTensor:
    """Return x / y as in Python 3; see `truediv`. The quotient of a SparseTensor is sparse."""
    return x / y if isinstance(x, SparseTensor) else truediv(x, y, name)


def div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y as in Python 2: integers are rounded down, other dtypes are divided truly."""
    first, second = same_dtype(x, y)
    kind = "FloorDiv" if first.dtype.is_integer else "RealDiv"
    return make(kind, first, second, name=name or "div")


def realdiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y for floating and complex dtypes."""
    return make("RealDiv", x, y, name=name)


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y rounded towards minus infinity.

    Raises:
        InvalidArgumentError: (at run time) an integer is divided by zero.
    """
    return make("FloorDiv", x, y, name=name or "floordiv")


def floor_div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y rounded towards minus infinity; see `floordiv`."""
    return make("FloorDiv", x, y, name=name)


def truncatediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y rounded towards zero.

    Raises:
        InvalidArgumentError: (at run time) an integer is divided by zero.
    """
    return make("TruncateDiv", x, y, name=name)


def div_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where y is 0."""
    return make("DivNoNan", x, y, name=name or "div_no_nan")


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Return 1 / x, and 0 where x is 0."""
    return make("DivNoNan", 1, convert_to_tensor(x), name=name or "reciprocal_no_nan")


def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the remainder of `floordiv`. It has the sign of y.

    Raises:
        InvalidArgumentError: (at run time) an integer is divided by zero.
    """
    return make("FloorMod", x, y, name=name)


mod = floormod


def truncatemod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the remainder of `truncatediv`. It has the sign of x.

    Raises:
        InvalidArgumentError: (at run time) an integer is divided by zero.
    """
    return make("TruncateMod", x, y, name=name)
