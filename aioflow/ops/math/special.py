"""Special functions: the error function and its inverse, gamma, zeta and beta functions.

The gamma functions are the logarithm of the gamma function, its derivatives, and the incomplete gamma function.
"""

from __future__ import annotations

import math
from typing import Any, Final, overload

from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.traits import elementwise, transcendental
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import GradientPair, broadcast, unbroadcast
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = ["betainc", "digamma", "erf", "erfc", "igamma", "igammac", "lbeta", "lgamma", "polygamma", "zeta"]

_UNARY: Final = ("Erf", "Erfc", "Erfinv", "Ndtri", "Lgamma", "Digamma")
for _name, _factor in zip(_UNARY, (1, 1, 1, 5, 5, 5), strict=True):
    define_op(_name, "x: T", "y: T", ["T: {floats}"], shape=unchanged, traits=elementwise(cost=transcendental(_factor)))
define_op(
    "Polygamma",
    "a: T, x: T",
    "z: T",
    ["T: {float32, float64}"],
    shape=broadcast,
    traits=elementwise(cost=transcendental(5)),
)
define_op(
    "Zeta", "x: T, q: T", "z: T", ["T: {float32, float64}"], shape=broadcast, traits=elementwise(cost=transcendental(5))
)


def _one_shape(ctx: ShapeContext) -> Dims:
    """Infer the common shape of the inputs. Scalars are compatible with any shape."""
    dims: Dims = ()
    # Not NumPy's broadcasting: TensorFlow's Betainc takes equal shapes and scalars only.
    for tensor in ctx.tensors:
        if tensor.dims != ():
            dims = tensor.dims if dims == () else merge_dims(dims, tensor.dims)
    return dims


for _name in ("Igamma", "Igammac"):
    define_op(
        _name,
        "a: T, x: T",
        "z: T",
        ["T: {floats}"],
        shape=broadcast,
        traits=elementwise(cost=transcendental(10), on_host="SciPy computes it"),
    )
define_op(
    "IgammaGradA",
    "a: T, x: T",
    "z: T",
    ["T: {floats}"],
    shape=broadcast,
    traits=elementwise(cost=transcendental(50)),
)
define_op(
    "Betainc",
    "a: T, b: T, x: T",
    "z: T",
    ["T: {float32, float64}"],
    shape=_one_shape,
    traits=elementwise(cost=transcendental(20), on_host="SciPy computes it"),
)


def _scaled(grad: Tensor, factor: float, exponent: Tensor) -> Tensor:
    """Return grad · factor · exp(exponent)."""
    return make("Mul", grad, make("Mul", make("Exp", exponent), factor))


def _square(x: Tensor) -> Tensor:
    return make("Square", x)


@gradient("Erf")
def _erf_grad(op: Operation, grad: Tensor) -> Tensor:
    # erf'(x) = 2/√π exp(-x²).
    return _scaled(grad, 2 / math.sqrt(math.pi), make("Neg", _square(op.inputs[0])))


@gradient("Erfc")
def _erfc_grad(op: Operation, grad: Tensor) -> Tensor:
    # erfc = 1 - erf.
    return _scaled(grad, -2 / math.sqrt(math.pi), make("Neg", _square(op.inputs[0])))


@gradient("Erfinv")
def _erfinv_grad(op: Operation, grad: Tensor) -> Tensor:
    # y = erf⁻¹(x): y' = 1 / erf'(y) = √π/2 exp(y²).
    return _scaled(grad, math.sqrt(math.pi) / 2, _square(op.outputs[0]))


@gradient("Ndtri")
def _ndtri_grad(op: Operation, grad: Tensor) -> Tensor:
    # y = Φ⁻¹(x): y' = 1 / φ(y) = √(2π) exp(y²/2).
    return _scaled(grad, math.sqrt(2 * math.pi), make("Mul", _square(op.outputs[0]), 0.5))


@gradient("Lgamma")
def _lgamma_grad(op: Operation, grad: Tensor) -> Tensor:
    # (log Γ)' = ψ, the digamma function.
    return make("Mul", grad, make("Digamma", op.inputs[0]))


@gradient("Digamma")
def _digamma_grad(op: Operation, grad: Tensor) -> Tensor:
    x = op.inputs[0]
    # ψ' = ψ⁽¹⁾, the polygamma function of order 1.
    return make("Mul", grad, make("Polygamma", convert_to_tensor(1, x.dtype), x))


@gradient("Polygamma")
def _polygamma_grad(op: Operation, grad: Tensor) -> GradientPair:
    order, x = op.inputs
    # The order is an integer, so only x has a gradient: ψ⁽ⁿ⁾' = ψ⁽ⁿ⁺¹⁾.
    slope = make("Polygamma", make("AddV2", order, 1), x)
    return unbroadcast(order, x, None, make("Mul", grad, slope))


@gradient("Zeta")
def _zeta_grad(op: Operation, grad: Tensor) -> GradientPair:
    """Return the gradient with respect to q: ∂ζ(x, q)/∂q = -x ζ(x + 1, q).

    The derivative with respect to x has no closed form.
    """
    x, q = op.inputs
    slope = make("Mul", make("Neg", x), make("Zeta", make("AddV2", x, 1), q))
    return unbroadcast(x, q, None, make("Mul", grad, slope))


@gradient("Igamma")
def _igamma_grad(op: Operation, grad: Tensor) -> GradientPair:
    """Return the gradients with respect to a and x.

    The derivative with respect to x is the density of the gamma distribution. Its logarithm is (a - 1) log x - x - log
    Γ(a).
    """
    a, x = op.inputs
    # Xlogy, so that a = 1 and x = 0 give 0 · log 0 = 0 and not NaN.
    power = make("Sub", make("Xlogy", make("AddV2", a, -1), x), x)
    density = make("Exp", make("Sub", power, make("Lgamma", a)))
    return unbroadcast(a, x, make("Mul", grad, make("IgammaGradA", a, x)), make("Mul", grad, density))


@gradient("Igammac")
def _igammac_grad(op: Operation, grad: Tensor) -> GradientPair:
    # Q = 1 - P.
    return _igamma_grad(op, make("Neg", grad))


@gradient("Betainc")
def _betainc_grad(op: Operation, grad: Tensor) -> list[Gradient | None]:
    """Return the gradient with respect to x, the density of the beta distribution.

    As in TensorFlow, a and b have no gradients.
    """
    a, b, x = op.inputs
    # log of x^(a-1) (1 - x)^(b-1) / B(a, b), with log B(a, b) = log Γ(a) + log Γ(b) - log Γ(a + b).
    power = make("AddV2", make("Xlogy", make("AddV2", a, -1), x), make("Xlog1py", make("AddV2", b, -1), make("Neg", x)))
    parts = make("AddV2", make("Lgamma", a), make("Lgamma", b))
    density = make("Exp", make("Sub", power, make("Sub", parts, make("Lgamma", make("AddV2", a, b)))))
    # The output stands for the other operand, as it has the common shape.
    _, by_x = unbroadcast(op.outputs[0], x, None, make("Mul", grad, density))
    return [None, None, by_x]


def _unary(op_type: str, x: TensorLike, name: str | None) -> Tensor:
    return make(op_type, x, name=name)


@overload
def erf(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def erf(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def erf(x: Any, name: str | None = None) -> Any:
    """Return the error function 2/√π ∫₀ˣ exp(-t²) dt."""
    if isinstance(x, SparseTensor):
        return x.with_values(_unary("Erf", x.values, name))
    return _unary("Erf", x, name)


def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """Return 1 - erf(x), precise where that is small."""
    return _unary("Erfc", x, name)


def erfinv(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse of `erf`; infinite at -1 and 1, NaN beyond."""
    return _unary("Erfinv", x, name)


def ndtri(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the quantile function of the standard normal distribution."""
    return _unary("Ndtri", x, name)


def erfcinv(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse of `erfc`."""
    tensor = convert_to_tensor(x)
    # erfc⁻¹(x) = -Φ⁻¹(x/2) / √2. It is precise for small x, where erfinv(1 - x) is not.
    quantile = make("Ndtri", make("Mul", tensor, 0.5))
    return make("Mul", quantile, -math.sqrt(0.5), name=name or "erfcinv")


def lgamma(x: TensorLike, name: str | None = None) -> Tensor:
    """Return log |Γ(x)|."""
    return _unary("Lgamma", x, name)


def digamma(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the derivative of log Γ(x)."""
    return _unary("Digamma", x, name)


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Return the derivative of order a (an integer) of `digamma` at x."""
    return make("Polygamma", a, x, name=name)


def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Return the Hurwitz zeta function, the sum of (q + n)⁻ˣ over n >= 0, for x > 1."""
    return make("Zeta", x, q, name=name)


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """Return log |B(x)|, the multivariate beta function over the last dimension: Σ lgamma(x) - lgamma(Σ x)."""
    tensor = convert_to_tensor(x)
    parts = make("Sum", make("Lgamma", tensor), [-1], keep_dims=False)
    whole = make("Lgamma", make("Sum", tensor, [-1], keep_dims=False))
    return make("Sub", parts, whole, name=name or "lbeta")


def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Return the lower regularized incomplete gamma function P(a, x) = ∫₀ˣ tᵃ⁻¹ exp(-t) dt / Γ(a).

    It is defined for a > 0 and x >= 0.

    Raises:
        UnimplementedError: SciPy is not installed: `pip install 'aioflow-engine[special]'`.
    """
    return make("Igamma", a, x, name=name)


def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Return the upper incomplete gamma function 1 - igamma(a, x), precise where that is small. See `igamma`."""
    return make("Igammac", a, x, name=name)


def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Return the regularized incomplete beta function Iₓ(a, b) = ∫₀ˣ tᵃ⁻¹ (1 - t)ᵇ⁻¹ dt / B(a, b).

    Args:
        a: Positive. `a`, `b` and `x` have one shape; scalars are compatible with any shape.
        b: Positive.
        x: In [0, 1].
        name: Name of the node.

    Raises:
        UnimplementedError: SciPy is not installed: `pip install 'aioflow-engine[special]'`.
    """
    return make("Betainc", a, b, x, name=name)
