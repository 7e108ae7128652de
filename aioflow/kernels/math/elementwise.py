"""Elementwise kernels that are one function of the array namespace, or a few functions fused in one buffer.

A fused body works in the buffer of its own first result. It computes 16-bit floats in float32: rounding each operation
to 16 bits would lose digits, and bfloat16 times a Python float is float32 anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.narrowing import narrowed
from aioflow.kernels.registry import Binding, KernelBody, Ufunc, binder, elementwise, kernel
from aioflow.memory.values import Array, Namespace, NpDType

_FLOATING: Final = {"T": "floats complexes"}
_NUMBERS: Final = {"T": "numbers"}

_UFUNCS: Final[Mapping[str, Ufunc | str]] = {
    "Add": Ufunc("add", "{0} + {1}", _NUMBERS, "{0} + {1}"),
    "AddV2": Ufunc("add", "{0} + {1}", exact_c="{0} + {1}"),
    "Sub": Ufunc("subtract", "{0} - {1}", exact_c="{0} - {1}"),
    "Mul": Ufunc("multiply", "{0} * {1}", exact_c="{0} * {1}"),
    "RealDiv": Ufunc("divide", "{0} / {1}", _FLOATING, "{0} / {1}"),
    "Div": Ufunc("divide", "{0} / {1}", _FLOATING, "{0} / {1}"),
    # NaN is propagated; of two equal numbers, such as 0 and -0, the result is the second.
    "Maximum": Ufunc("maximum", exact_c="({0} != {0} || {0} > {1}) ? {0} : {1}"),
    "Minimum": Ufunc("minimum", exact_c="({0} != {0} || {0} < {1}) ? {0} : {1}"),
    "Atan2": "arctan2",
    "NextAfter": "nextafter",
    "Neg": Ufunc("negative", "-{0}", exact_c="-{0}"),
    "Abs": Ufunc("absolute", exact_c="fabs({0})"),
    "Sign": Ufunc("sign", exact_c="{0} > 0 ? (T)1 : ({0} < 0 ? (T)-1 : ({0} == 0 ? (T)0 : {0}))"),
    "Square": Ufunc("square", exact_c="{0} * {0}"),
    "Sqrt": Ufunc("sqrt", exact_c="sqrt({0})"),
    "Reciprocal": Ufunc("reciprocal", None, _FLOATING, "1 / {0}"),
    "Inv": Ufunc("reciprocal", None, _FLOATING, "1 / {0}"),
    "Exp": "exp",
    "Expm1": "expm1",
    "Log": "log",
    "Log1p": "log1p",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "arcsin",
    "Acos": "arccos",
    "Atan": "arctan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "arcsinh",
    "Acosh": "arccosh",
    "Atanh": "arctanh",
    "Floor": Ufunc("floor", exact_c="floor({0})"),
    "Ceil": Ufunc("ceil", exact_c="ceil({0})"),
    "Rint": Ufunc("rint", exact_c="rint({0})"),
    "Round": Ufunc("rint", None, _FLOATING, "rint({0})"),
    "Conj": Ufunc("conjugate", None, {"T": "complexes"}),
    "Less": Ufunc("less", "{0} < {1}", exact_c="{0} < {1}"),
    "LessEqual": Ufunc("less_equal", "{0} <= {1}", exact_c="{0} <= {1}"),
    "Greater": Ufunc("greater", "{0} > {1}", exact_c="{0} > {1}"),
    "GreaterEqual": Ufunc("greater_equal", "{0} >= {1}", exact_c="{0} >= {1}"),
    "IsNan": Ufunc("isnan", exact_c="{0} != {0}"),
    # For an infinite number the difference is NaN, which is not equal to 0.
    "IsInf": Ufunc("isinf", exact_c="{0} == {0} && {0} - {0} != 0"),
    "IsFinite": Ufunc("isfinite", exact_c="{0} - {0} == 0"),
    "LogicalAnd": Ufunc("logical_and", "{0} & {1}", exact_c="{0} && {1}"),
    "LogicalOr": Ufunc("logical_or", "{0} | {1}", exact_c="{0} || {1}"),
    "LogicalNot": Ufunc("logical_not", "~{0}", exact_c="!{0}"),
    "BitwiseAnd": Ufunc("bitwise_and", "{0} & {1}"),
    "BitwiseOr": Ufunc("bitwise_or", "{0} | {1}"),
    "BitwiseXor": Ufunc("bitwise_xor", "{0} ^ {1}"),
    "Invert": Ufunc("invert", "~{0}"),
    # Floating-point remainders by zero are NaN; checked.py checks the divisors of integers.
    "Mod": Ufunc("fmod", None, {"T": "floats"}),
    "TruncateMod": Ufunc("fmod", None, {"T": "floats"}),
    "FloorMod": Ufunc("remainder", None, {"T": "floats"}),
}
elementwise(_UFUNCS)
# `KernelDef.exact_c` of these kernels, by the names of the array namespace's functions.
EXACT_C: Final[Mapping[str, str]] = {
    row.name: row.exact_c for row in _UFUNCS.values() if isinstance(row, Ufunc) and row.exact_c
}


@kernel("Round", dtypes={"T": "ints"})
def round_integers(x: Array) -> Array:
    return x


def own(value: Array) -> Array | None:
    """Return the value as the buffer of the next operation, or None for a scalar, which has no buffer."""
    return value if value.ndim else None


def fused(
    *ops: str, takes_out: bool = False, allowed: str = "floats complexes", exact_c: str = ""
) -> Callable[[KernelBody], KernelBody]:
    """Register a body `f(xp, *inputs)`, or with `takes_out` `f(xp, *inputs, out=None)`, that returns a fresh result."""

    def register(body: KernelBody) -> KernelBody:
        def bind(binding: Binding) -> KernelBody:
            made: KernelBody = partial(body, binding.xp)
            dtype = binding.output_dtypes[0]
            if dtype is dtypes.float16 or dtype is dtypes.bfloat16:
                return _through_float32(made, dtype.np_dtype)
            return made

        for op in ops:
            binder(op, dtypes={"T": allowed}, fresh=True, takes_out=takes_out, exact_c=exact_c)(bind)
        return body

    return register


def _through_float32(body: Callable[..., Array], dtype: NpDType) -> KernelBody:
    def narrow(*inputs: Array, out: Array | None = None) -> Array:
        result = narrowed(body(*(a.astype(np.float32) for a in inputs)), dtype)
        if out is None:
            return result
        out[...] = result
        return out

    return narrow


def _holomorphic(xp: Namespace, y: Array) -> Array:
    """Return the conjugate of a complex output `y`, which the gradients of these ops use."""
    # Not for TanhGrad and SigmoidGrad, whose callers pass the conjugate.
    return xp.conjugate(y) if y.dtype.kind == "c" else y


@fused("Sigmoid", takes_out=True)
def sigmoid(xp: Namespace, x: Array, out: Array | None = None) -> Array:
    """Return 1 / (1 + exp(-x)). If exp overflows, 1 / inf is the correct 0."""
    t = xp.negative(x, out)
    t = xp.exp(t, own(t))
    t = xp.add(t, 1, own(t))
    return xp.reciprocal(t, own(t))


@fused("Rsqrt", takes_out=True, exact_c="1 / sqrt({0})")
def rsqrt(xp: Namespace, x: Array, out: Array | None = None) -> Array:
    t = xp.sqrt(x, out)
    return xp.reciprocal(t, own(t))


def _zeroed(xp: Namespace, t: Array, zero: Array) -> Array:
    """Return `t` with 0 where the incoming gradient is 0: an infinite slope would make NaN there."""
    if t.ndim:
        xp.copyto(t, t.dtype.type(0), where=zero)
        return t
    return xp.where(zero, t.dtype.type(0), t)[()]


@fused("SqrtGrad", takes_out=True, exact_c="{1} == 0 ? (T)0 : {1} / {0} * (T)0.5")
def sqrt_grad(xp: Namespace, y: Array, dy: Array, out: Array | None = None) -> Array:
    # Before `divide`, whose `out` may be `dy`.
    zero = dy == 0
    t = xp.divide(dy, _holomorphic(xp, y), out)
    return _zeroed(xp, xp.multiply(t, 0.5, own(t)), zero)


@fused("RsqrtGrad", exact_c="{1} == 0 ? (T)0 : {1} * {0} * ({0} * {0}) * (T)-0.5")
def rsqrt_grad(xp: Namespace, y: Array, dy: Array) -> Array:
    y = _holomorphic(xp, y)
    t = xp.multiply(dy, y)
    t = xp.multiply(t, xp.multiply(y, y), own(t))
    return _zeroed(xp, xp.multiply(t, -0.5, own(t)), dy == 0)


@fused("ReciprocalGrad", "InvGrad", exact_c="{1} == 0 ? (T)0 : -({0} * {1} * {0})")
def reciprocal_grad(xp: Namespace, y: Array, dy: Array) -> Array:
    y = _holomorphic(xp, y)
    t = xp.multiply(y, dy)
    t = xp.multiply(t, y, own(t))
    return _zeroed(xp, xp.negative(t, own(t)), dy == 0)


@fused("TanhGrad", exact_c="(1 - {0} * {0}) * {1}")
def tanh_grad(xp: Namespace, y: Array, dy: Array) -> Array:
    t = xp.multiply(y, y)
    t = xp.subtract(1, t, own(t))
    return xp.multiply(t, dy, own(t))


@fused("SigmoidGrad", exact_c="(1 - {0}) * {0} * {1}")
def sigmoid_grad(xp: Namespace, y: Array, dy: Array) -> Array:
    t = xp.subtract(1, y)
    t = xp.multiply(t, y, own(t))
    return xp.multiply(t, dy, own(t))


@fused(
    "SquaredDifference",
    takes_out=True,
    allowed="floats complexes int32 int64",
    exact_c="({0} - {1}) * ({0} - {1})",
)
def squared_difference(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    t = xp.subtract(x, y, out)
    if t.dtype.kind == "c":
        return xp.multiply(t, xp.conjugate(t), own(t))
    return xp.multiply(t, t, own(t))


@fused("FloorDiv", takes_out=True, allowed="floats", exact_c="floor({0} / {1})")
def floor_div(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    t = xp.divide(x, y, out)
    return xp.floor(t, own(t))


@fused("TruncateDiv", takes_out=True, allowed="floats")
def truncate_div(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    t = xp.divide(x, y, out)
    return xp.trunc(t, own(t))


def _zero_where(xp: Namespace, condition: Array, value: Array) -> Array:
    return xp.where(condition, value.dtype.type(0), value)[()]


@fused("DivNoNan", exact_c="{1} == 0 ? (T)0 : {0} / {1}")
def div_no_nan(xp: Namespace, x: Array, y: Array) -> Array:
    return _zero_where(xp, y == 0, xp.divide(x, y))


@fused("MulNoNan", exact_c="{1} == 0 ? (T)0 : {0} * {1}")
def mul_no_nan(xp: Namespace, x: Array, y: Array) -> Array:
    return _zero_where(xp, y == 0, xp.multiply(x, y))


@fused("Xdivy")
def xdivy(xp: Namespace, x: Array, y: Array) -> Array:
    return _zero_where(xp, x == 0, xp.divide(x, y))


@fused("Xlogy")
def xlogy(xp: Namespace, x: Array, y: Array) -> Array:
    return _zero_where(xp, x == 0, xp.multiply(x, xp.log(y)))


@fused("Xlog1py")
def xlog1py(xp: Namespace, x: Array, y: Array) -> Array:
    return _zero_where(xp, x == 0, xp.multiply(x, xp.log1p(y)))


# ── powers ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _square(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    return xp.multiply(x, x, out)


def _cube(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    # Not into `out`, which may be `x`: `x` is read once more.
    t = xp.multiply(x, x)
    return xp.multiply(t, x, own(t) if out is None else out)


def _fourth(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    t = xp.multiply(x, x, out)
    return xp.multiply(t, t, own(t))


def _inverse_square(xp: Namespace, x: Array, y: Array, out: Array | None = None) -> Array:
    t = xp.multiply(x, x, out)
    return xp.reciprocal(t, own(t))


# Constant scalar exponents with a faster function than `power`, which costs tens of multiplications.
_POWERS: Final[dict[float, KernelBody]] = {
    1.0: lambda xp, x, y, out=None: xp.positive(x, out),
    2.0: _square,
    3.0: _cube,
    4.0: _fourth,
    0.5: lambda xp, x, y, out=None: xp.sqrt(x, out),
    -0.5: lambda xp, x, y, out=None: rsqrt(xp, x, out),
    -1.0: lambda xp, x, y, out=None: xp.reciprocal(x, out),
    -2.0: _inverse_square,
}


def _special_power(binding: Binding) -> KernelBody | None:
    exponent = binding.constants[1]
    if exponent is None or exponent.ndim or exponent != exponent.real:
        return None
    return _POWERS.get(float(exponent.real))


@binder("Pow", dtypes=_FLOATING, fresh=True, takes_out=True)
def power(binding: Binding) -> KernelBody:
    body = _special_power(binding)
    if body is None:
        return binding.xp.power
    made: KernelBody = partial(body, binding.xp)
    dtype = binding.output_dtypes[0]
    return _through_float32(made, dtype.np_dtype) if dtype.size == 2 else made


@binder("Pow", dtypes={"T": "int8 int16 int32 int64"}, fresh=True, synchronises=True)
def integer_power(binding: Binding) -> KernelBody:
    xp, exponent = binding.xp, binding.constants[1]
    if exponent is not None and exponent.size and exponent.min() >= 0:
        body = _special_power(binding)
        found: KernelBody = xp.power if body is None else partial(body, xp)
        return found

    def checked(x: Array, y: Array) -> Array:
        if (y < 0).any():
            raise InvalidArgumentError(
                "integers to negative integer powers are not allowed", expected="exponents >= 0", actual=int(y.min())
            )
        return xp.power(x, y)

    return checked


# ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("AddN", dtypes=_NUMBERS, fresh=True)
def add_n(xp: Namespace, inputs: Sequence[Array]) -> Array:
    first = inputs[0]
    for other in inputs[1:]:
        if other.shape != first.shape:
            raise InvalidArgumentError(
                "the inputs of AddN must have the same shape", expected=first.shape, actual=other.shape
            )
    if len(inputs) == 1:
        # A copy: the kernel is `fresh`, so the result must not be its input.
        return xp.positive(first)
    total = xp.add(first, inputs[1])
    for other in inputs[2:]:
        total = xp.add(total, other, own(total))
    return total
