"""Special functions: the error function and its inverse, the gamma function's logarithm and its derivatives, zeta."""

from __future__ import annotations

import math
from typing import Final

from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op, gradient
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.broadcasting import Pair, broadcast, unbroadcast
from aioflow.ops.core import unchanged

__all__ = ["digamma", "erf", "erfc", "lbeta", "lgamma", "polygamma", "zeta"]

_UNARY: Final = ("Erf", "Erfc", "Erfinv", "Ndtri", "Lgamma", "Digamma")
for _name in _UNARY:
    define_op(_name, "x: T", "y: T", ["T: {floats}"], shape=unchanged)
define_op("Polygamma", "a: T, x: T", "z: T", ["T: {float32, float64}"], shape=broadcast)
define_op("Zeta", "x: T, q: T", "z: T", ["T: {float32, float64}"], shape=broadcast)


def _scaled(grad: Tensor, factor: float, exponent: Tensor) -> Tensor:
    """grad · factor · exp(exponent)."""
    result: Tensor = apply_op("Mul", grad, apply_op("Mul", apply_op("Exp", exponent), factor))
    return result


def _square(x: Tensor) -> Tensor:
    result: Tensor = apply_op("Square", x)
    return result


@gradient("Erf")
def _erf_grad(op: Operation, grad: Tensor) -> Tensor:
    return _scaled(grad, 2 / math.sqrt(math.pi), apply_op("Neg", _square(op.inputs[0])))


@gradient("Erfc")
def _erfc_grad(op: Operation, grad: Tensor) -> Tensor:
    return _scaled(grad, -2 / math.sqrt(math.pi), apply_op("Neg", _square(op.inputs[0])))


@gradient("Erfinv")
def _erfinv_grad(op: Operation, grad: Tensor) -> Tensor:
    return _scaled(grad, math.sqrt(math.pi) / 2, _square(op.outputs[0]))


@gradient("Ndtri")
def _ndtri_grad(op: Operation, grad: Tensor) -> Tensor:
    return _scaled(grad, math.sqrt(2 * math.pi), apply_op("Mul", _square(op.outputs[0]), 0.5))


@gradient("Lgamma")
def _lgamma_grad(op: Operation, grad: Tensor) -> Tensor:
    result: Tensor = apply_op("Mul", grad, apply_op("Digamma", op.inputs[0]))
    return result


@gradient("Digamma")
def _digamma_grad(op: Operation, grad: Tensor) -> Tensor:
    x = op.inputs[0]
    result: Tensor = apply_op("Mul", grad, apply_op("Polygamma", convert_to_tensor(1, x.dtype), x))
    return result


@gradient("Polygamma")
def _polygamma_grad(op: Operation, grad: Tensor) -> Pair:
    order, x = op.inputs
    slope = apply_op("Polygamma", apply_op("AddV2", order, 1), x)
    return unbroadcast(order, x, None, apply_op("Mul", grad, slope))


@gradient("Zeta")
def _zeta_grad(op: Operation, grad: Tensor) -> Pair:
    """∂ζ(x, q)/∂q = -x ζ(x + 1, q). There is no closed form of the derivative by x."""
    x, q = op.inputs
    slope = apply_op("Mul", apply_op("Neg", x), apply_op("Zeta", apply_op("AddV2", x, 1), q))
    return unbroadcast(x, q, None, apply_op("Mul", grad, slope))


def _unary(op_type: str, x: TensorLike, name: str | None) -> Tensor:
    result: Tensor = apply_op(op_type, x, name=name)
    return result


def erf(x: TensorLike, name: str | None = None) -> Tensor:
    """The error function 2/√π ∫₀ˣ exp(-t²) dt."""
    return _unary("Erf", x, name)


def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """1 - erf(x), precise where that is small."""
    return _unary("Erfc", x, name)


def erfinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of `erf`; infinite at -1 and 1, NaN beyond."""
    return _unary("Erfinv", x, name)


def ndtri(x: TensorLike, name: str | None = None) -> Tensor:
    """The quantile function of the standard normal distribution."""
    return _unary("Ndtri", x, name)


def erfcinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of `erfc`."""
    tensor = convert_to_tensor(x)
    quantile = apply_op("Ndtri", apply_op("Mul", tensor, 0.5))
    result: Tensor = apply_op("Mul", quantile, -math.sqrt(0.5), name=name or "erfcinv")
    return result


def lgamma(x: TensorLike, name: str | None = None) -> Tensor:
    """log |Γ(x)|."""
    return _unary("Lgamma", x, name)


def digamma(x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of log Γ."""
    return _unary("Digamma", x, name)


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of order a (a whole number) of `digamma` at x."""
    result: Tensor = apply_op("Polygamma", a, x, name=name)
    return result


def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """The Hurwitz zeta function, the sum of (q + n)⁻ˣ over n >= 0, for x > 1."""
    result: Tensor = apply_op("Zeta", x, q, name=name)
    return result


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """log |B(x)|, the multivariate beta function over the last dimension: Σ lgamma(x) - lgamma(Σ x)."""
    tensor = convert_to_tensor(x)
    parts = apply_op("Sum", apply_op("Lgamma", tensor), [-1], keep_dims=False)
    whole = apply_op("Lgamma", apply_op("Sum", tensor, [-1], keep_dims=False))
    result: Tensor = apply_op("Sub", parts, whole, name=name or "lbeta")
    return result
