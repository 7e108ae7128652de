"""Elementwise functions of one tensor: the ops, their gradients and their builders.

Where the derivative is cheap to compute from the result, TensorFlow has an op for the gradient (such as `TanhGrad`).
Its inputs are the result and the incoming gradient. These ops are here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, overload

import numpy as np

from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import both_merged, define_op
from aioflow.graph.static_value import StaticValue, known_by
from aioflow.graph.traits import FLOATS, NUMBERS, Half, Laws, Traits, elementwise, transcendental
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import conjugate, negated
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "log_sigmoid",
    "negative",
    "reciprocal",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]

_SIGNED: Final = "{floats, int8, int16, int32, int64, complexes}"
_ANALYTIC: Final = "{floats, complexes}"


def _define(name: str, allowed: str, traits: Traits, value: StaticValue | None = None) -> None:
    define_op(name, "x: T", "y: T", [f"T: {allowed}"], shape=unchanged, value=value, traits=traits)


_IDEMPOTENT: Final = Laws(idempotent=True)
_define("Neg", _SIGNED, elementwise(in_c="-{0}", fuses=NUMBERS, laws=Laws(undoes_itself=True)), known_by(np.negative))
_define("Sign", _SIGNED, elementwise(fuses=NUMBERS, laws=_IDEMPOTENT), known_by(np.sign))
_define("Square", "{numbers}", elementwise(in_c="{0} * {0}", fuses=NUMBERS, half=Half.WIDE), known_by(np.square))
_define("Round", _SIGNED, elementwise(fuses=FLOATS, laws=_IDEMPOTENT), known_by(np.round))
for _name, _round in (("Floor", np.floor), ("Ceil", np.ceil), ("Rint", np.rint)):
    _in_c = f"{_name.lower()}({{0}})"
    _define(_name, "{floats}", elementwise(in_c=_in_c, fuses=FLOATS, laws=_IDEMPOTENT), known_by(_round))
for _name in ("Reciprocal", "Inv"):
    _define(_name, _SIGNED, elementwise(in_c="1 / {0}", fuses=FLOATS, half=Half.WIDE))
_define("Sqrt", _ANALYTIC, elementwise(in_c="sqrt({0})", fuses=FLOATS, half=Half.WIDE))
_define("Rsqrt", _ANALYTIC, elementwise(in_c="1 / sqrt({0})", fuses=FLOATS, half=Half.WIDE))
_BOUNDED: Final = elementwise(cost=transcendental(), fuses=FLOATS, half=Half.FOLLOWS)
_define("Sigmoid", _ANALYTIC, replace(_BOUNDED, in_c="1 / (1 + exp(-{0}))"))
_define("Tanh", _ANALYTIC, replace(_BOUNDED, in_c="tanh({0})"))
for _name in (
    *("Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
):
    # The names of the C functions are those of the ops in lower case: exp, expm1, log, …
    _in_c = f"{_name.lower()}({{0}})"
    _define(_name, _ANALYTIC, elementwise(in_c=_in_c, cost=transcendental(), fuses=FLOATS))
for _name, _in_c, _half in (
    *((f"{_root}Grad", "", Half.WIDE) for _root in ("Sqrt", "Rsqrt", "Reciprocal", "Inv")),
    ("TanhGrad", "(1 - {0} * {0}) * {1}", Half.FOLLOWS),
    ("SigmoidGrad", "(1 - {0}) * {0} * {1}", Half.FOLLOWS),
):
    _traits = elementwise(in_c=_in_c, fuses=FLOATS, half=_half)
    define_op(_name, "y: T, dy: T", "z: T", [f"T: {_ANALYTIC}"], shape=both_merged, traits=_traits)

not_differentiable("Floor", "Ceil", "Rint", "Round")


def _mul(x: TensorLike, y: TensorLike) -> Tensor:
    return make("Mul", x, y)


def _div(x: TensorLike, y: TensorLike) -> Tensor:
    return make("RealDiv", x, y)


def _of(op_type: str, x: TensorLike) -> Tensor:
    return make(op_type, x)


def _one_plus(x: TensorLike) -> Tensor:
    return make("AddV2", x, 1)


def _one_minus(x: Tensor) -> Tensor:
    return make("Sub", 1, x)


@gradient("Neg", takes_slices=True)
def _neg_grad(op: Operation, grad: Gradient) -> Gradient:
    return negated(grad)


@gradient("Sign")
def _sign_grad(op: Operation, grad: Tensor) -> Tensor:
    return _of("ZerosLike", op.inputs[0])


@gradient("Square")
def _square_grad(op: Operation, grad: Tensor) -> Tensor:
    # (x²)' = 2x.
    return _mul(grad, _mul(conjugate(op.inputs[0]), 2))


@gradient("Sqrt")
def _sqrt_grad(op: Operation, grad: Tensor) -> Tensor:
    # (√x)' = 1 / (2 √x) = 1 / 2y: the input need not be kept.
    return make("SqrtGrad", op.outputs[0], grad)


@gradient("SqrtGrad")
def _sqrt_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients of z = dy / 2y."""
    # z = dy / 2y: ∂z/∂y = -dy / 2y² = -z / y, ∂z/∂dy = 1 / 2y.
    over_y = _div(grad, conjugate(op.inputs[0]))
    return [_of("Neg", _mul(over_y, conjugate(op.outputs[0]))), _mul(over_y, 0.5)]


@gradient("Rsqrt")
def _rsqrt_grad(op: Operation, grad: Tensor) -> Tensor:
    # y = x^(-1/2): y' = -x^(-3/2) / 2 = -y³ / 2.
    return make("RsqrtGrad", op.outputs[0], grad)


@gradient("RsqrtGrad")
def _rsqrt_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients of z = -dy y³ / 2."""
    y, dy = conjugate(op.inputs[0]), op.inputs[1]
    # ∂z/∂y = -3/2 dy y².
    by_y = _mul(_mul(conjugate(grad), -1.5), _mul(dy, _of("Square", y)))
    return [by_y, make("RsqrtGrad", y, grad)]


@gradient("Reciprocal")
def _reciprocal_grad(op: Operation, grad: Tensor) -> Tensor:
    # y = 1 / x: y' = -1 / x² = -y².
    return make("ReciprocalGrad", op.outputs[0], grad)


@gradient("Inv")
def _inv_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("InvGrad", op.outputs[0], grad)


@gradient("ReciprocalGrad", "InvGrad")
def _reciprocal_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients of z = -dy y²."""
    y, dy = conjugate(op.inputs[0]), op.inputs[1]
    # ∂z/∂y = -2 dy y.
    return [_mul(_mul(conjugate(grad), -2), _mul(dy, y)), make(op.type, y, grad)]


@gradient("Exp")
def _exp_grad(op: Operation, grad: Tensor) -> Tensor:
    # exp' = exp: the result is the slope.
    return _mul(grad, conjugate(op.outputs[0]))


@gradient("Expm1")
def _expm1_grad(op: Operation, grad: Tensor) -> Tensor:
    # Not y + 1, which loses the digits of a small exp(x).
    return _mul(grad, conjugate(_of("Exp", op.inputs[0])))


@gradient("Log")
def _log_grad(op: Operation, grad: Tensor) -> Tensor:
    return _div(grad, conjugate(op.inputs[0]))


@gradient("Log1p")
def _log1p_grad(op: Operation, grad: Tensor) -> Tensor:
    return _div(grad, conjugate(_one_plus(op.inputs[0])))


@gradient("Sin")
def _sin_grad(op: Operation, grad: Tensor) -> Tensor:
    return _mul(grad, conjugate(_of("Cos", op.inputs[0])))


@gradient("Cos")
def _cos_grad(op: Operation, grad: Tensor) -> Tensor:
    return _of("Neg", _mul(grad, conjugate(_of("Sin", op.inputs[0]))))


@gradient("Tan")
def _tan_grad(op: Operation, grad: Tensor) -> Tensor:
    # tan' = 1 + tan².
    return _mul(grad, conjugate(_one_plus(_of("Square", op.outputs[0]))))


@gradient("Asin")
def _asin_grad(op: Operation, grad: Tensor) -> Tensor:
    # asin' = 1 / √(1 - x²).
    return _div(grad, conjugate(_of("Sqrt", _one_minus(_of("Square", op.inputs[0])))))


@gradient("Acos")
# acos = π/2 - asin, so only the sign differs.
def _acos_grad(op: Operation, grad: Tensor) -> Tensor:
    return _of("Neg", _asin_grad(op, grad))


@gradient("Atan")
def _atan_grad(op: Operation, grad: Tensor) -> Tensor:
    # atan' = 1 / (1 + x²).
    return _div(grad, conjugate(_one_plus(_of("Square", op.inputs[0]))))


@gradient("Sinh")
def _sinh_grad(op: Operation, grad: Tensor) -> Tensor:
    return _mul(grad, conjugate(_of("Cosh", op.inputs[0])))


@gradient("Cosh")
def _cosh_grad(op: Operation, grad: Tensor) -> Tensor:
    return _mul(grad, conjugate(_of("Sinh", op.inputs[0])))


@gradient("Tanh")
def _tanh_grad(op: Operation, grad: Tensor) -> Tensor:
    # tanh' = 1 - tanh².
    return make("TanhGrad", conjugate(op.outputs[0]), grad)


@gradient("TanhGrad")
def _tanh_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients of z = dy (1 - y²)."""
    y, dy = conjugate(op.inputs[0]), conjugate(op.inputs[1])
    # ∂z/∂y = -2 dy y; z is linear in dy.
    return [_mul(_mul(grad, -2), _mul(dy, y)), make("TanhGrad", y, grad)]


@gradient("Asinh")
def _asinh_grad(op: Operation, grad: Tensor) -> Tensor:
    # cosh y = √(x² + 1), but the square of a large x overflows.
    return _div(grad, conjugate(_of("Cosh", op.outputs[0])))


@gradient("Acosh")
def _acosh_grad(op: Operation, grad: Tensor) -> Tensor:
    # acosh' = 1 / √(x² - 1) = 1 / sinh y, for the same reason as in asinh.
    return _div(grad, conjugate(_of("Sinh", op.outputs[0])))


@gradient("Atanh")
def _atanh_grad(op: Operation, grad: Tensor) -> Tensor:
    # atanh' = 1 / (1 - x²).
    return _div(grad, conjugate(_one_minus(_of("Square", op.inputs[0]))))


@gradient("Sigmoid")
def _sigmoid_grad(op: Operation, grad: Tensor) -> Tensor:
    # σ' = σ (1 - σ).
    return make("SigmoidGrad", conjugate(op.outputs[0]), grad)


@gradient("SigmoidGrad")
def _sigmoid_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    """Return the gradients of z = dy y (1 - y)."""
    y, dy = conjugate(op.inputs[0]), conjugate(op.inputs[1])
    # ∂z/∂y = dy (1 - 2y).
    by_y = _mul(_mul(grad, dy), _one_minus(_mul(y, 2)))
    return [by_y, make("SigmoidGrad", y, grad)]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unary(op_type: str, x: TensorLike, name: str | None) -> Tensor:
    return make(op_type, x, name=name)


def _of_any(op_type: str, x: Any, name: str | None) -> Any:
    """Apply an op that maps 0 to 0 to a tensor or to the entries of a `SparseTensor`."""
    if isinstance(x, SparseTensor):
        return x.with_values(make(op_type, x.values, name=name))
    return make(op_type, x, name=name)


@overload
def negative(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def negative(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def negative(x: Any, name: str | None = None) -> Any:
    """Return -x."""
    return _of_any("Neg", x, name)


@overload
def sign(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def sign(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def sign(x: Any, name: str | None = None) -> Any:
    """Return -1, 0 or 1 by the sign of x; x / |x| for complex dtypes."""
    return _of_any("Sign", x, name)


@overload
def square(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def square(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def square(x: Any, name: str | None = None) -> Any:
    """Return x²."""
    return _of_any("Square", x, name)


@overload
def sqrt(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def sqrt(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def sqrt(x: Any, name: str | None = None) -> Any:
    """Return the square root; NaN below 0."""
    return _of_any("Sqrt", x, name)


def rsqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """Return 1 / √x."""
    return _unary("Rsqrt", x, name)


def reciprocal(x: TensorLike, name: str | None = None) -> Tensor:
    """Return 1 / x, for floating and complex dtypes."""
    return _unary("Reciprocal", x, name)


def exp(x: TensorLike, name: str | None = None) -> Tensor:
    """Return e to the power of x."""
    return _unary("Exp", x, name)


def expm1(x: TensorLike, name: str | None = None) -> Tensor:
    """Return exp(x) - 1, precise near 0."""
    return _unary("Expm1", x, name)


def log(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the natural logarithm; NaN below 0."""
    return _unary("Log", x, name)


def log1p(x: TensorLike, name: str | None = None) -> Tensor:
    """Return log(1 + x), precise near 0."""
    return _unary("Log1p", x, name)


@overload
def sin(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def sin(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def sin(x: Any, name: str | None = None) -> Any:
    """Return the sine of x in radians."""
    return _of_any("Sin", x, name)


def cos(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the cosine of x in radians."""
    return _unary("Cos", x, name)


@overload
def tan(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def tan(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def tan(x: Any, name: str | None = None) -> Any:
    """Return the tangent of x in radians."""
    return _of_any("Tan", x, name)


@overload
def asin(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def asin(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def asin(x: Any, name: str | None = None) -> Any:
    """Return the angle in [-π/2, π/2] whose sine is x."""
    return _of_any("Asin", x, name)


def acos(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the angle in [0, π] whose cosine is x."""
    return _unary("Acos", x, name)


@overload
def atan(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def atan(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def atan(x: Any, name: str | None = None) -> Any:
    """Return the angle in [-π/2, π/2] whose tangent is x."""
    return _of_any("Atan", x, name)


def sinh(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the hyperbolic sine."""
    return _unary("Sinh", x, name)


def cosh(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the hyperbolic cosine."""
    return _unary("Cosh", x, name)


@overload
def tanh(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def tanh(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def tanh(x: Any, name: str | None = None) -> Any:
    """Return the hyperbolic tangent."""
    return _of_any("Tanh", x, name)


@overload
def asinh(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def asinh(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def asinh(x: Any, name: str | None = None) -> Any:
    """Return the inverse hyperbolic sine."""
    return _of_any("Asinh", x, name)


def acosh(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    return _unary("Acosh", x, name)


@overload
def atanh(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def atanh(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def atanh(x: Any, name: str | None = None) -> Any:
    """Return the inverse hyperbolic tangent; NaN outside [-1, 1]."""
    return _of_any("Atanh", x, name)


def sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return _unary("Sigmoid", x, name)


def log_sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the logarithm of `sigmoid`, as -softplus(-x), which does not overflow."""
    return make("Neg", make("Softplus", make("Neg", x)), name=name or "LogSigmoid")


def floor(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the largest integer that is not above x."""
    return _unary("Floor", x, name)


def ceil(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the smallest integer that is not below x."""
    return _unary("Ceil", x, name)


def round(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the nearest integer; halves are rounded to the even one."""
    tensor = convert_to_tensor(x)
    # Round has a kernel for integers as well, but a node that returns its input is not worth a call.
    return tensor if tensor.dtype.is_integer else _unary("Round", tensor, name)


def rint(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the nearest integer; halves are rounded to the even one."""
    return _unary("Rint", x, name)
