"""Elementwise arithmetic, comparison, logic and functions; matrix products, einsum and running sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.tensor_like import TensorLike
from aioflow.interop.onnx.sizes import axis_of, flat_from, scalar_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import constant, make
from aioflow.ops.array.making import one_hot

_Translation = Callable[..., Tensor]

# ONNX's name → the equivalent op of aioflow, of one tensor.
_UNARY: Final = {
    **{name: name for name in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh")},
    **{name: name for name in ("Exp", "Floor", "Log", "Neg", "Reciprocal", "Sigmoid", "Sin", "Sinh")},
    **{name: name for name in ("Softplus", "Softsign", "Sqrt", "Tan", "Tanh")},
    "BitwiseNot": "Invert",
    "Not": "LogicalNot",
    "IsNaN": "IsNan",
    "Det": "MatrixDeterminant",
    "Round": "Round",  # rounds halves to even
}
# The same for two tensors of one dtype, which broadcast.
_BINARY: Final = {
    "Add": "AddV2",
    "Sub": "Sub",
    "Mul": "Mul",
    "Less": "Less",
    "LessOrEqual": "LessEqual",
    "Greater": "Greater",
    "GreaterOrEqual": "GreaterEqual",
    "Equal": "Equal",
    "And": "LogicalAnd",
    "Or": "LogicalOr",
    "Xor": "NotEqual",  # of bools
    "BitwiseAnd": "BitwiseAnd",
    "BitwiseOr": "BitwiseOr",
    "BitwiseXor": "BitwiseXor",
}
# The same for any number of tensors, which broadcast.
_MANY: Final = {"Max": "Maximum", "Min": "Minimum", "Sum": "AddV2"}


def _unary(op: str) -> _Translation:
    return lambda node, x: make(op, x)


def _binary(op: str) -> _Translation:
    return lambda node, x, y: make(op, x, y)


def _many(op: str) -> _Translation:
    return lambda node, *xs: reduce(lambda x, y: make(op, x, y), xs) if len(xs) > 1 else make("Identity", xs[0])


for _table, _kind in ((_UNARY, _unary), (_BINARY, _binary), (_MANY, _many)):
    for _name, _op in _table.items():
        translation(_name)(_kind(_op))


# ── arithmetic ────────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("Abs")
def absolute(node: OnnxNode, x: Tensor) -> Tensor:
    return make("Identity" if x.dtype.is_unsigned else "Abs", x)


@translation("Sign")
def sign(node: OnnxNode, x: Tensor) -> Tensor:
    if x.dtype.is_unsigned:
        return make("Cast", make("NotEqual", x, 0), DstT=x.dtype)
    return make("Sign", x)


@translation("Erf")
def erf(node: OnnxNode, x: Tensor) -> Tensor:
    if x.dtype.is_floating:
        return make("Erf", x)
    return make("Cast", make("Erf", make("Cast", x, DstT=dtypes.float64)), DstT=x.dtype)


@translation("Mean")
def mean(node: OnnxNode, *xs: Tensor) -> Tensor:
    return make("RealDiv", reduce(lambda x, y: make("AddV2", x, y), xs), len(xs))


@translation("Div")
def div(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """Divide. Integer quotients are rounded toward zero."""
    return make("TruncateDiv" if x.dtype.is_integer else "RealDiv", x, y)


@translation("Mod")
def mod(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder. With `fmod` it has the sign of x, without it that of y."""
    if not node.attr("fmod", 0) or x.dtype.is_unsigned:
        return make("FloorMod", x, y)
    # TruncateMod has no kernels for 8-bit and 16-bit integers.
    if x.dtype in (dtypes.int8, dtypes.int16):
        wide = make("TruncateMod", make("Cast", x, DstT=dtypes.int32), make("Cast", y, DstT=dtypes.int32))
        return make("Cast", wide, DstT=x.dtype)
    return make("TruncateMod", x, y)


@translation("Pow")
def power(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """Return the power in the dtype of the base. The exponent may have another dtype."""
    if x.dtype is y.dtype:
        return make("Pow", x, y)
    # Only an integer base with a float exponent must be computed in floats, and is truncated afterwards.
    if x.dtype.is_floating or y.dtype.is_integer:
        return make("Pow", x, _as(y, x.dtype, node))
    wide = make("Pow", make("Cast", x, DstT=dtypes.float64), make("Cast", y, DstT=dtypes.float64))
    return make("Cast", wide, DstT=x.dtype)


def _as(tensor: Tensor, dtype: dtypes.DType, node: OnnxNode) -> Tensor:
    """Cast a tensor. A constant stays one, so that kernels see a known exponent."""
    known = node.constant(tensor)
    return make("Cast", tensor, DstT=dtype) if known is None else constant(known.astype(dtype.np_dtype))


@translation("BitShift")
def bit_shift(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """Shift bits. A count that is negative or at least the number of bits shifts all bits out."""
    bits = x.dtype.size * 8
    all_go = make("GreaterEqual", y, bits)
    if not y.dtype.is_unsigned:
        all_go = make("LogicalOr", all_go, make("Less", y, 0))
    if node.attr("direction") == "LEFT":
        return make("SelectV2", all_go, 0, make("LeftShift", x, y))
    if x.dtype.is_unsigned:
        return make("SelectV2", all_go, 0, make("RightShift", x, y))
    # A signed shift fills with the sign, as does a shift by all bits but one.
    return make("RightShift", x, make("SelectV2", all_go, bits - 1, y))


@translation("Clip")
def clip_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    return _clipped(x, node.attr("min"), node.attr("max"))


@translation("Clip", since=11)
def clip(node: OnnxNode, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clip to the bounds. If they are in the wrong order, the upper one applies."""
    return _clipped(x, low, high)


def _clipped(x: Tensor, low: TensorLike | None, high: TensorLike | None) -> Tensor:
    # The lower bound first, so that the upper one wins.
    y = x if low is None else make("Maximum", x, low)
    y = y if high is None else make("Minimum", y, high)
    return make("Identity", x) if y is x else y


@translation("Where")
def where(node: OnnxNode, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return make("SelectV2", condition, x, y)


@translation("IsInf")
def is_inf(node: OnnxNode, x: Tensor) -> Tensor:
    negative, positive = node.attr("detect_negative", 1), node.attr("detect_positive", 1)
    infinite = make("IsInf", x)
    if negative and positive:
        return infinite
    if not negative and not positive:
        return make("ZerosLike", infinite)
    return make("LogicalAnd", infinite, make("Less" if negative else "Greater", x, 0))


# ── activations ───────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("HardSigmoid")
def hard_sigmoid(node: OnnxNode, x: Tensor) -> Tensor:
    return hard_sigmoid_of(x, node.attr("alpha", 0.2), node.attr("beta", 0.5))


def hard_sigmoid_of(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Return alpha x + beta, clipped to [0, 1]."""
    return make("Minimum", make("Maximum", x * alpha + beta, 0), 1)


@translation("HardSwish")
def hard_swish(node: OnnxNode, x: Tensor) -> Tensor:
    # x · max(0, min(1, x / 6 + ½)).
    return x * hard_sigmoid_of(x, 1 / 6, 0.5)


@translation("Mish")
def mish(node: OnnxNode, x: Tensor) -> Tensor:
    # Mish: x · tanh(log(1 + exp(x))).
    return x * make("Tanh", make("Softplus", x))


@translation("Elu")
def elu(node: OnnxNode, x: Tensor) -> Tensor:
    return elu_of(x, node.attr("alpha", 1.0))


def elu_of(x: Tensor, alpha: float) -> Tensor:
    """Return x, or alpha (eˣ - 1) if x is negative."""
    if alpha == 1:
        return make("Elu", x)
    return make("SelectV2", make("Less", x, 0), make("Elu", x) * alpha, x)


@translation("Celu")
def celu(node: OnnxNode, x: Tensor) -> Tensor:
    alpha: float = node.attr("alpha", 1.0)
    # CELU: max(0, x) + min(0, α (exp(x / α) - 1)).
    return make("Elu", x) if alpha == 1 else make("Elu", x / alpha) * alpha


@translation("Selu")
def selu(node: OnnxNode, x: Tensor) -> Tensor:
    alpha, gamma = float(node.attr("alpha", _SELU_ALPHA)), float(node.attr("gamma", _SELU_GAMMA))
    # ONNX's attributes are float32, so the defaults may arrive rounded.
    if abs(alpha - _SELU_ALPHA) < 1e-6 and abs(gamma - _SELU_GAMMA) < 1e-6:
        return make("Selu", x)
    return elu_of(x, alpha) * gamma


_SELU_ALPHA: Final = 1.6732632423543772
_SELU_GAMMA: Final = 1.0507009873554805


@translation("Gelu")
def gelu(node: OnnxNode, x: Tensor) -> Tensor:
    return gelu_of(x, node.attr("approximate", "none") == "tanh")


def gelu_of(x: Tensor, approximate: bool) -> Tensor:
    """Return x · Φ(x), where Φ is the standard normal CDF, or its approximation by tanh."""
    if approximate:
        # √(2/π) = 0.7978845608.
        return x * 0.5 * (make("Tanh", (x + x * x * x * 0.044715) * 0.7978845608028654) + 1)
    return x * 0.5 * (make("Erf", x * 0.7071067811865476) + 1)


@translation("LeakyRelu")
def leaky_relu(node: OnnxNode, x: Tensor) -> Tensor:
    return make("LeakyRelu", x, alpha=node.attr("alpha", 0.01))


@translation("ThresholdedRelu")
def thresholded_relu(node: OnnxNode, x: Tensor) -> Tensor:
    return thresholded_relu_of(x, node.attr("alpha", 1.0))


def thresholded_relu_of(x: Tensor, alpha: float) -> Tensor:
    """Return x if it is above alpha, otherwise 0."""
    return make("SelectV2", make("Greater", x, alpha), x, 0)


@translation("PRelu")
def prelu_of_channels(node: OnnxNode, x: Tensor, slope: Tensor) -> Tensor:
    """Translate PRelu before opset 7, with one slope or one per channel."""
    if x.dims is not None and slope.dims not in ((), (1,)):
        # One slope per channel, which is axis 1.
        slope = make("Reshape", slope, constant([-1] + [1] * (len(x.dims) - 2)))
    return prelu(node, x, slope)


@translation("PRelu", since=7)
def prelu(node: OnnxNode, x: Tensor, slope: Tensor) -> Tensor:
    return make("SelectV2", make("Less", x, 0), x * slope, x)


@translation("Shrink")
def shrink(node: OnnxNode, x: Tensor) -> Tensor:
    wide = make("Cast", x, DstT=dtypes.float64) if x.dtype.is_integer else x  # the bounds are floats
    kind = wide.dtype.np_dtype.type
    # Numbers of x's own dtype, so that the comparison does not widen it.
    limit, bias = kind(node.attr("lambd", 0.5)), kind(node.attr("bias", 0.0))
    above = make("SelectV2", make("Greater", wide, limit), wide - bias, make("ZerosLike", wide))
    shrunk = make("SelectV2", make("Less", wide, -limit), wide + bias, above)
    return make("Cast", shrunk, DstT=x.dtype) if x.dtype.is_integer else shrunk


@translation("Swish")
def swish(node: OnnxNode, x: Tensor) -> Tensor:
    return swish_of(x, node.attr("alpha", 1.0))


@translation("SwiGLU")
def swiglu(node: OnnxNode, gate: Tensor, value: Tensor) -> Tensor:
    return swish_of(gate, node.attr("alpha", 1.0)) * value


def swish_of(x: Tensor, alpha: float) -> Tensor:
    """Return x · sigmoid(alpha x)."""
    return x * make("Sigmoid", x if alpha == 1 else x * alpha)


@translation("Hardmax")
def hardmax_of_rows(node: OnnxNode, x: Tensor) -> Tensor:
    """Translate Hardmax up to opset 12, which treats `x` as a matrix whose columns begin at `axis`."""
    return make("Reshape", _hardmax(flat_from(x, node.attr("axis", 1)), 1), make("Shape", x))


@translation("Hardmax", since=13)
def hardmax(node: OnnxNode, x: Tensor) -> Tensor:
    return _hardmax(x, axis_of(node, x, node.attr("axis", -1), from_end=True))


def _hardmax(x: Tensor, axis: int) -> Tensor:
    if x.dims is not None and 0 in x.dims:
        return make("ZerosLike", x)
    return one_hot(make("ArgMax", x, axis), size_of(x, axis), axis=axis, dtype=x.dtype)


# ── products and running sums ─────────────────────────────────────────────────────────────────────────────────────────


@translation("MatMul")
def matmul(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


def product(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Multiply as NumPy does: vectors become a row or a column, all but the last two dimensions are broadcast.

    Args:
        a: First factor.
        b: Second factor.
        transpose_a: Whether to swap the last two dimensions of `a` first; a vector stays as it is.
        transpose_b: Whether to swap the last two dimensions of `b` first; a vector stays as it is.
    """
    # A tensor of unknown rank is treated as a matrix: whether it is a vector is not known here.
    ranks = [None if t.dims is None else len(t.dims) for t in (a, b)]
    flips = [flip and rank != 1 for flip, rank in zip((transpose_a, transpose_b), ranks, strict=True)]
    if ranks == [2, 2]:
        return make("MatMul", a, b, transpose_a=flips[0], transpose_b=flips[1])
    rows = make("ExpandDims", a, 0) if ranks[0] == 1 else a
    columns = make("ExpandDims", b, -1) if ranks[1] == 1 else b
    y = make("BatchMatMulV2", rows, columns, adj_x=flips[0], adj_y=flips[1])
    # The axes that vectors got for the product are removed again.
    gone = [axis for axis, rank in ((-2, ranks[0]), (-1, ranks[1])) if rank == 1]
    return make("Squeeze", y, squeeze_dims=gone) if gone else y


@translation("Einsum")
def einsum(node: OnnxNode, *inputs: Tensor) -> Tensor:
    return make("Einsum", list(inputs), equation=_explicit(node.attr("equation").replace(" ", "")))


def _explicit(equation: str) -> str:
    """Return the equation with its right-hand side: the ellipsis, then all letters that occur once, in ASCII order."""
    if "->" in equation:
        return equation
    letters = equation.replace("...", "").replace(",", "")
    # A letter that occurs twice is summed over, as in NumPy.
    once = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    return f"{equation}->{'...' if '...' in equation else ''}{once}"


@translation("CumSum")
def cumsum(node: OnnxNode, x: Tensor, axis: Tensor) -> Tensor:
    return _running("Cumsum", node, x, axis)


@translation("CumProd")
def cumprod(node: OnnxNode, x: Tensor, axis: Tensor) -> Tensor:
    return _running("Cumprod", node, x, axis)


def _running(op: str, node: OnnxNode, x: Tensor, axis: Tensor) -> Tensor:
    exclusive, reverse = bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))
    return make(op, x, scalar_of(axis), exclusive=exclusive, reverse=reverse)
