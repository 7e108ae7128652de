"""Arithmetic of two tensors: the ops, their gradients, and the builders with TensorFlow 1's names.

Operands broadcast as in NumPy and must have the same dtype; Python values take the dtype of the other operand.
Gradients are `_…_grad` functions that end in `unbroadcast`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.static_value import StaticValue, constant_value, integers_only, known_by
from aioflow.graph.traits import FLOATS, NUMBERS, Half, Laws, Neutral, Traits, elementwise, transcendental
from aioflow.memory.values import Array
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.math.broadcasting import GradientPair, broadcast, conjugate, negated, same_dtype, unbroadcast
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient

__all__ = [
    "add",
    "atan2",
    "maximum",
    "minimum",
    "multiply",
    "pow",
    "squared_difference",
    "subtract",
]


def _define(
    name: str, allowed: str, traits: Traits, value: StaticValue | None = None, *, commutative: bool = False
) -> None:
    define_op(
        name,
        "x: T, y: T",
        "z: T",
        [f"T: {allowed}"],
        shape=broadcast,
        value=value,
        traits=traits,
        commutative=commutative,
    )


def _known_power(x: Array, y: Array) -> Array | None:
    # NumPy raises for negative powers of integers; so does the kernel, with an error that names the node.
    return None if (y < 0).any() else np.power(x, y)


_ANY_FLOAT: Final = "{floats, complexes}"
# x + 0.0 turns -0.0 into 0.0, so the neutral element of floats is -0.0.
_SUM: Final = elementwise(in_c="{0} + {1}", fuses=NUMBERS, laws=Laws(neutral=Neutral((0, 1), 0, -0.0)))
# Add is not commutative, because it also concatenates strings.
_define("Add", "{floats, complexes, uint8, int8, int16, int32, int64, string}", _SUM, known_by(np.add))
_define("AddV2", "{numbers}", _SUM, known_by(np.add), commutative=True)
_define(
    "Sub",
    "{numbers}",
    # x - 0.0 leaves even -0.0 unchanged, so here the neutral element is 0.0.
    elementwise(in_c="{0} - {1}", fuses=NUMBERS, laws=Laws(neutral=Neutral((1,), 0, 0.0)), half=Half.WIDE),
    known_by(np.subtract),
)
_define(
    "Mul",
    "{numbers}",
    elementwise(in_c="{0} * {1}", fuses=NUMBERS, laws=Laws(neutral=Neutral((0, 1), 1, 1.0))),
    known_by(np.multiply),
    commutative=True,
)
_define(
    "Pow",
    "{floats, int8, int16, int32, int64, complexes}",
    # x¹ = x holds for NaN and infinities, too.
    elementwise(cost=transcendental(), rounded_by="y", fuses=FLOATS, laws=Laws(neutral=Neutral((1,), 1, 1.0))),
    integers_only(known_by(_known_power)),
)
# Both propagate NaN, as NumPy does.
for _name, _function, _sign in (("Maximum", np.maximum, ">"), ("Minimum", np.minimum, "<")):
    # {0} != {0} holds only for NaN, which is then the result. A NaN in {1} fails the comparison and is taken.
    _in_c = f"({{0}} != {{0}} || {{0}} {_sign} {{1}}) ? {{0}} : {{1}}"
    _extreme = elementwise(in_c=_in_c, fuses=NUMBERS, laws=Laws(of_equals=True))
    _define(_name, "{reals}", _extreme, known_by(_function))
_define("MulNoNan", _ANY_FLOAT, elementwise(fuses=FLOATS))
_define("Xdivy", _ANY_FLOAT, elementwise())
_define("Xlogy", _ANY_FLOAT, elementwise(cost=transcendental()))
_define("Xlog1py", _ANY_FLOAT, elementwise(cost=transcendental()))
_define(
    "SquaredDifference",
    "{floats, int32, int64, complexes}",
    elementwise(in_c="({0} - {1}) * ({0} - {1})", fuses=NUMBERS, half=Half.WIDE),
    commutative=True,
)
define_op("Atan2", "y: T, x: T", "z: T", ["T: {floats}"], shape=broadcast, traits=elementwise(cost=transcendental()))
define_op(
    "NextAfter",
    "x1: T, x2: T",
    "output: T",
    ["T: {float32, float64} = float32"],
    shape=broadcast,
    traits=elementwise(half=Half.WIDE),
)


def _mul(x: TensorLike, y: TensorLike) -> Tensor:
    return make("Mul", x, y)


def _neg(x: Tensor) -> Tensor:
    return make("Neg", x)


@gradient("Add", "AddV2", takes_slices=True)
def _add_grad(op: Operation, grad: Gradient) -> GradientPair:
    return unbroadcast(op.inputs[0], op.inputs[1], grad, grad)


@gradient("Sub", takes_slices=True)
def _sub_grad(op: Operation, grad: Gradient) -> GradientPair:
    grad_x, grad_y = unbroadcast(op.inputs[0], op.inputs[1], grad, grad)
    # Negated after the sum, when there are fewer elements.
    return grad_x, None if grad_y is None else negated(grad_y)


@gradient("Mul")
def _mul_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # z = x y: ∂z/∂x = y, ∂z/∂y = x; complex factors are conjugated.
    return unbroadcast(x, y, _mul(grad, conjugate(y)), _mul(grad, conjugate(x)))


@gradient("MulNoNan")
def _mul_no_nan_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # The factor that may be zero is the second operand of MulNoNan, so 0 · inf stays 0 in the gradient, too.
    return unbroadcast(x, y, make("MulNoNan", grad, conjugate(y)), make("MulNoNan", conjugate(x), grad))


@gradient("Pow")
def _pow_grad(op: Operation, grad: Tensor) -> GradientPair:
    """Return y x^(y-1) and z log x, times the gradient."""
    x, y, z = *op.inputs, op.outputs[0]
    # The gradient is the first factor: the product of the other two may overflow where the gradient is 0.
    grad_x = _mul(_mul(grad, conjugate(y)), conjugate(_power_below(x, y)))
    grad_y = _mul(_mul(grad, conjugate(z)), conjugate(_safe_log(x)))
    return unbroadcast(x, y, grad_x, grad_y)


def _power_below(x: Tensor, y: Tensor) -> Tensor:
    """Return x^(y-1)."""
    # A constant exponent stays a constant: its kernel multiplies instead of raising to a power.
    exponent = constant_value(y)
    if exponent is None:
        below = make("Pow", x, make("Sub", y, 1))
    elif exponent.ndim == 0 and exponent == 2:
        # The gradient 2x of a square needs no Pow: x¹ = x.
        return x
    else:
        below = make("Pow", x, convert_to_tensor((exponent - 1).astype(exponent.dtype)))
    return below


def _safe_log(x: Tensor) -> Tensor:
    """Return log x, and 0 where the power is not differentiable with respect to its exponent.

    That is at x <= 0, for complex dtypes at x = 0.
    """
    zero = convert_to_tensor(0, x.dtype)
    usable = make("NotEqual" if x.dtype.is_complex else "Greater", x, zero)
    return make("SelectV2", usable, make("Log", x), zero)


@gradient("Maximum")
def _maximum_grad(op: Operation, grad: Tensor) -> GradientPair:
    return _selected(op, grad, "GreaterEqual")


@gradient("Minimum")
def _minimum_grad(op: Operation, grad: Tensor) -> GradientPair:
    return _selected(op, grad, "LessEqual")


def _selected(op: Operation, grad: Tensor, takes_x: str) -> GradientPair:
    """Route the gradient to the operand that the op selected; to x where both are equal."""
    x, y = op.inputs
    mask, zero = make(takes_x, x, y), convert_to_tensor(0, grad.dtype)
    return unbroadcast(x, y, make("SelectV2", mask, grad, zero), make("SelectV2", mask, zero, grad))


@gradient("SquaredDifference")
def _squared_difference_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # z = (x - y)²: ∂z/∂x = 2 (x - y) = -∂z/∂y.
    slope = _mul(_mul(grad, 2), make("Sub", x, y))
    grad_x, grad_y = unbroadcast(x, y, slope, slope)
    return grad_x, None if grad_y is None else negated(grad_y)


@gradient("Atan2")
def _atan2_grad(op: Operation, grad: Tensor) -> GradientPair:
    y, x = op.inputs
    # z = atan2(y, x): ∂z/∂y = x / (x² + y²), ∂z/∂x = -y / (x² + y²).
    slope = make("RealDiv", grad, make("AddV2", make("Square", x), make("Square", y)))
    return unbroadcast(y, x, _mul(x, slope), _neg(_mul(y, slope)))


def _nonzero(x: Tensor) -> Tensor:
    """Return 1 where x is not 0, otherwise 0."""
    return make("Cast", make("NotEqual", x, 0), DstT=x.dtype)


@gradient("Xdivy")
def _xdivy_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # z = x / y, and 0 at x = 0: ∂z/∂x = 1 / y, ∂z/∂y = -x / y². Both are 0 where x is 0.
    by_x = make("Xdivy", _nonzero(x), y)
    by_y = make("Xdivy", _neg(x), make("Square", y))
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("Xlogy")
def _xlogy_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # z = x log y: ∂z/∂x = log y and ∂z/∂y = x / y. Both are 0 where x is 0.
    by_x, by_y = make("Xlogy", _nonzero(x), y), make("Xdivy", x, y)
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("Xlog1py")
def _xlog1py_grad(op: Operation, grad: Tensor) -> GradientPair:
    x, y = op.inputs
    # z = x log(1 + y): ∂z/∂x = log(1 + y), ∂z/∂y = x / (1 + y). Both are 0 where x is 0.
    by_x, by_y = make("Xlog1py", _nonzero(x), y), make("Xdivy", x, make("AddV2", y, 1))
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("NextAfter", takes_slices=True)
def _nextafter_grad(op: Operation, grad: Gradient) -> GradientPair:
    # The result moves with x1 by the same step; x2 only gives the direction.
    grad_x, _ = unbroadcast(op.inputs[0], op.inputs[1], grad, None)
    return grad_x, make("ZerosLike", op.inputs[1])


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x + y, elementwise with broadcasting. Byte strings are concatenated."""
    first, second = same_dtype(x, y)
    # AddV2 is commutative and does not take strings.
    return make("Add" if first.dtype is dtypes.string else "AddV2", first, second, name=name or "Add")


def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x - y, elementwise with broadcasting."""
    return make("Sub", x, y, name=name)


def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x * y, elementwise with broadcasting."""
    return make("Mul", x, y, name=name)


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x * y, and 0 where y is 0, even if x is infinite or NaN."""
    return make("MulNoNan", x, y, name=name)


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x to the power of y.

    A constant exponent such as 2, 3 or 0.5 costs only multiplications or a square root.

    Raises:
        InvalidArgumentError: (at run time) an integer is raised to a negative integer power.
    """
    return make("Pow", x, y, name=name)


def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the larger of x and y, elementwise with broadcasting; NaN where either is NaN.

    Where both are equal, the gradient flows to x.
    """
    return make("Maximum", x, y, name=name)


def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the smaller of x and y, elementwise with broadcasting; NaN where either is NaN.

    Where both are equal, the gradient flows to x.
    """
    return make("Minimum", x, y, name=name)


def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return (x - y)²; for complex dtypes |x - y|²."""
    return make("SquaredDifference", x, y, name=name)


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Return the angle of the point (x, y), in [-π, π]."""
    return make("Atan2", y, x, name=name)


def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """Return the next representable value from x1 towards x2, for float32 or float64."""
    return make("NextAfter", x1, x2, name=name)


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where x is 0."""
    return make("Xdivy", x, y, name=name)


def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x log y, and 0 where x is 0."""
    return make("Xlogy", x, y, name=name)


def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x log(1 + y), and 0 where x is 0."""
    return make("Xlog1py", x, y, name=name)


def polyval(coeffs: Sequence[TensorLike], x: TensorLike, name: str | None = None) -> Tensor:
    """Evaluate the polynomial with these coefficients, highest power first, at x by Horner's rule.

    Without coefficients the result is 0.

    Raises:
        InvalidArgumentError: `coeffs` is not a list.
    """
    if not isinstance(coeffs, list | tuple):
        raise InvalidArgumentError("polyval needs a list of coefficients", expected="a list", actual=repr(coeffs))
    tensor = convert_to_tensor(x)
    with name_scope(name, "polyval", [tensor]):
        if not coeffs:
            return make("ZerosLike", tensor)
        result = convert_to_tensor(coeffs[0], tensor.dtype)
        # Horner: ((c₀ x + c₁) x + c₂) x + …
        for coefficient in coeffs[1:]:
            result = add(convert_to_tensor(coefficient, tensor.dtype), multiply(result, tensor))
    return result
