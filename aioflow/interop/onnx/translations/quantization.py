"""Quantized tensors, with a scale and a zero point per tensor, per position along an axis, or per block along an axis.

Products of integers are exact: they are computed in a float dtype that represents every sum exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import axis_of, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.convolution import conv
from aioflow.interop.onnx.translations.math import matmul
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make

# ── ONNX's casts: saturating ones to 8-bit floats, and those to powers of two with a choice of rounding ───────────────

_DIGITS: Final = 8  # digits of float32 in text, as other runtimes write them
_DIGITS_OF_DOUBLES: Final = 15  # the most that all float64 values keep
_PARSED: Final = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)
_SATURATING: Final = (dtypes.float8_e4m3fn, dtypes.float8_e4m3fnuz, dtypes.float8_e5m2, dtypes.float8_e5m2fnuz)


@translation("Cast")
def cast(node: OnnxNode, x: Tensor) -> Tensor:
    return cast_to(node, x, node.dtype("to"))


@translation("CastLike")
def cast_like(node: OnnxNode, x: Tensor, like: Tensor) -> Tensor:
    return cast_to(node, x, like.dtype)


@translation("BitCast")
def bit_cast(node: OnnxNode, x: Tensor) -> Tensor:
    wanted = node.dtype("to")
    if x.dtype is wanted:
        return x
    if x.dtype.is_bool or wanted.is_bool:  # the byte of a bool is 0 or 1
        return ops.cast(x, wanted)
    return make("Bitcast", x, type=wanted)


def cast_to(node: OnnxNode, x: Tensor, dtype: DType) -> Tensor:
    """Return the elements in another dtype. Casts from and to strings parse and format numbers."""
    if x.dtype is dtype:
        return x
    if dtype is dtypes.string:
        return _text(x) if x.dtype.is_floating else ops.as_string(x)
    if x.dtype is dtypes.string:
        # Text is parsed in a wide dtype first; the second cast saturates or rounds as for numbers.
        number = ops.string_to_number(x, out_type=dtype if dtype in _PARSED else dtypes.float64)
        return cast_to(node, number, dtype)
    if dtype is dtypes.float8_e8m0fnu:
        return _power_of_two(node, x)
    if dtype in _SATURATING and node.attr("saturate", 1):
        return saturated(x, dtype)
    return ops.cast(x, dtype)


def _text(x: Tensor) -> Tensor:
    """Return floats as decimal text, with ONNX's spelling of values that are not finite."""
    wide = x if x.dtype in (dtypes.float32, dtypes.float64) else ops.cast(x, "float32")
    digits = _DIGITS if wide.dtype is dtypes.float32 else _DIGITS_OF_DOUBLES
    text = ops.as_string(wide, precision=digits, shortest=True)
    text = ops.where_v2(ops.is_nan(wide), constant("NaN"), text)
    endless = ops.where_v2(ops.less(wide, ops.zeros_like(wide)), constant("-INF"), constant("INF"))
    return ops.where_v2(ops.is_inf(wide), endless, text)


def saturated(x: Tensor, dtype: DType) -> Tensor:
    """Return the elements as 8-bit floats. Values beyond the finite range become its last value."""
    wide = x if x.dtype in (dtypes.float16, dtypes.float32, dtypes.float64) else ops.cast(x, "float32")
    most = constant(np.asarray(float(dtype.max), wide.dtype.np_dtype))
    return ops.cast(ops.maximum(ops.minimum(wide, most), -most), dtype)


def _power_of_two(node: OnnxNode, x: Tensor) -> Tensor:
    """Return the exponents of x as float32, rounded by the fraction. Values that are not finite become NaN."""
    # Without the sign: bits 23 to 30 are the exponent, bits 0 to 22 the fraction.
    bits = make("BitwiseAnd", ops.bitcast(ops.cast(x, "float32"), "int32"), 0x7FFFFFFF)
    exponent, fraction = make("RightShift", bits, 23), make("BitwiseAnd", bits, 0x7FFFFF)
    mode = node.attr("round_mode", "up")
    if mode == "up":
        more = make("Greater", fraction, 0)
    elif mode == "nearest":  # a tie rounds up, except for denormal values
        half = make("LogicalAnd", make("Equal", fraction, 0x400000), make("Greater", exponent, 0))
        more = make("LogicalOr", make("Greater", fraction, 0x400000), half)
    elif mode == "down":
        more = make("Less", fraction, 0)
    else:
        raise node.wrong("attribute 'round_mode'", "up, down or nearest", mode)
    # 0xFE is the largest finite exponent, 0xFF is NaN.
    most = 0xFD if node.attr("saturate", 1) else 0xFE
    more = make("LogicalAnd", more, make("LessEqual", exponent, most))
    code = make("AddV2", exponent, ops.cast(more, "int32"))
    return ops.bitcast(ops.cast(code, "uint8"), dtypes.float8_e8m0fnu)


_FLOATS: Final = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
_EXACT_IN_FLOAT32: Final = 1 << 24


@translation("QuantizeLinear")
def quantize_linear(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    dtype = dtypes.uint8 if zero is None else zero.dtype
    if _names_type(node):
        dtype = node.dtype("output_dtype")
    scale = _along(node, x, scale)
    precision = node.dtype("precision") if node.attr("precision", 0) else None
    kind = precision or (x.dtype if x.dtype is scale.dtype and x.dtype in _FLOATS else dtypes.float32)
    y = make("RealDiv", ops.cast(x, kind), ops.cast(scale, kind))
    if dtype.is_integer:
        return rounded(y, None if zero is None else _along(node, x, zero), dtype)
    # Zero points of 8-bit floats are always 0.
    if zero is not None and dtype is dtypes.float4_e2m1fn:
        y = make("AddV2", y, ops.cast(_along(node, x, zero), kind))
    return cast_to(node, y, dtype)


def _names_type(node: OnnxNode) -> bool:
    return bool(node.attr("output_dtype", 0))


def rounded(y: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Return y + zero as an integer. Halves round to even, and values out of range saturate."""
    y = make("Round", y)
    if y.dtype in (dtypes.float16, dtypes.bfloat16):  # 16-bit floats do not represent all 16-bit integers
        y = ops.cast(y, "float32")
    if zero is not None:
        y = make("AddV2", y, ops.cast(zero, y.dtype))
    least, most = (constant(float(limit), y.dtype) for limit in (dtype.min, dtype.max))
    return ops.cast(make("Maximum", make("Minimum", y, most), least), dtype)


@translation("DequantizeLinear")
def dequantize_linear(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    wanted = node.dtype("output_dtype") if _names_type(node) else scale.dtype
    along = _along(node, x, scale)
    if x.dtype.is_integer:
        return ops.cast(dequantized(x, along, None if zero is None else _along(node, x, zero)), wanted)
    y = ops.cast(x, "float32")
    if zero is not None and x.dtype is dtypes.float4_e2m1fn:
        y = make("Sub", y, ops.cast(_along(node, x, zero), "float32"))
    return ops.cast(make("Mul", y, ops.cast(along, "float32")), wanted)


def dequantized(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Return (x - zero) * scale as float32. `x` has an integer dtype; the others broadcast to it."""
    y = ops.cast(x, "int32")
    if zero is not None:
        y = make("Sub", y, ops.cast(zero, "int32"))
    return make("Mul", ops.cast(y, "float32"), ops.cast(scale, "float32"))


def _along(node: OnnxNode, x: Tensor, given: Tensor) -> Tensor:
    """Return a scale or a zero point in a shape that broadcasts to x."""
    dims = given.dims
    if dims is None:
        return node.refuse("a scale of unknown rank")
    if dims == () or math.prod(d if d is not None else 0 for d in dims) == 1:
        return ops.reshape(given, [])
    axis, rank = axis_of(node, x, node.attr("axis", 1)), rank_of(node, x)
    block = node.attr("block_size", 0)
    if not block:
        if len(dims) != 1:
            raise node.wrong("the scale", "a scalar or a vector", f"rank {len(dims)}")
        return ops.reshape(given, [-1 if i == axis else 1 for i in range(rank)])
    # The block that each element along the axis belongs to.
    blocks = ops.floordiv(ops.range(sizes_of(x)[axis]), block)
    return ops.gather(given, blocks, axis=axis)


# ── products of integers ──────────────────────────────────────────────────────────────────────────────────────────────


def _differences(x: Tensor, zero: Tensor | None, kind: DType) -> Tensor:
    """Return x - zero, exactly."""
    if zero is None:
        return ops.cast(x, kind)
    return make("Sub", ops.cast(x, kind), ops.cast(zero, kind))


def _holding(node: OnnxNode, x: Tensor, x_zero: Tensor | None, weight: float, bias: Tensor | None = None) -> DType:
    """Return a float dtype that represents every sum of products exactly.

    The sums are of products of x - x_zero with numbers whose absolute values sum to at most `weight`, plus the bias.
    """
    most = _largest(node, x, x_zero) * weight
    if bias is not None:
        values = node.known(bias)
        most += math.inf if values is None else float(np.abs(values.astype(np.int64)).max(initial=0))
    # Integers below 2²⁴ are exact in float32; float64 holds all sums of bytes, up to 2⁵³.
    return dtypes.float32 if most < _EXACT_IN_FLOAT32 else dtypes.float64


def _largest(node: OnnxNode, x: Tensor, zero: Tensor | None) -> int:
    """Return a bound on |x - zero|."""
    least, most = int(x.dtype.min), int(x.dtype.max)
    given = np.zeros(1, np.int64) if zero is None else node.known(zero)
    if given is None or not given.size:
        return most - least
    # The differences are extreme where the element is the greatest and the zero point the least, or the reverse.
    return max(most - int(given.min()), int(given.max()) - least)


def _weight(node: OnnxNode, w: Tensor, zero: Tensor | None, axes: Sequence[int]) -> float:
    """Return a bound on all sums of |w - zero| along these axes. `zero` broadcasts to `w`."""
    values, zeros = node.known(w), None if zero is None else node.known(zero)
    if values is not None and values.size and (zero is None or zeros is not None):
        differences = values.astype(np.int64) - (0 if zeros is None else zeros.astype(np.int64))
        return float(np.abs(differences).sum(axis=tuple(axes)).max())
    terms = 1
    for size in (None,) if w.dims is None else (w.dims[axis] for axis in axes):
        if size is None:
            return math.inf
        terms *= size
    # Weights are unknown, so each may be the largest.
    return float(terms * _largest(node, w, zero))


def _per_filter(node: OnnxNode, w: Tensor, given: Tensor | None) -> Tensor | None:
    """Return one number per filter in a shape that broadcasts to the filters, or a single number as it is."""
    if given is None or given.dims == ():
        return given
    return ops.reshape(given, [-1, *[1] * (rank_of(node, w) - 1)])


@translation("ConvInteger")
def conv_integer(
    node: OnnxNode, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    zero = _per_filter(node, w, w_zero)
    kind = _holding(node, x, x_zero, _weight(node, w, zero, range(1, rank_of(node, w))))
    return ops.cast(conv(node, _differences(x, _one(x_zero), kind), _differences(w, zero, kind)), "int32")


def _one(given: Tensor | None) -> Tensor | None:
    """Return a scalar, which may be given as a vector of one element."""
    return given if given is None or given.dims == () else ops.reshape(given, [])


@translation("MatMulInteger")
def matmul_integer(
    node: OnnxNode, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return ops.cast(integer_product(node, a, b, a_zero, b_zero), "int32")


def integer_product(node: OnnxNode, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """Return the exact product of a - a_zero and b - b_zero in a float dtype."""
    kind = _holding(node, a, a_zero, _weight(node, b, b_zero, [-2 if len(b.dims or ()) > 1 else -1]))
    return matmul(
        node, _differences(a, None if a_zero is None else _per_row(a, a_zero), kind), _differences(b, b_zero, kind)
    )


def _per_row(a: Tensor, given: Tensor) -> Tensor:
    """Return one number per row of a matrix in a shape that broadcasts to it, or a single number as it is."""
    if given.dims is None or len(given.dims) != 1 or given.dims == (1,) or len(a.dims or ()) < 2:
        return given
    return ops.expand_dims(given, -1)


@translation("QLinearMatMul")
def qlinear_matmul(
    node: OnnxNode,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    if not a.dtype.is_integer:
        return node.refuse(f"factors of {a.dtype}")
    factor = make("RealDiv", make("Mul", _per_row(a, a_scale), b_scale), _per_row(a, y_scale))
    return _requantized(integer_product(node, a, b, a_zero, b_zero), factor, _per_row(a, y_zero))


def _requantized(sums: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    # In float64, because the sum of an int32 range is not exact in float32.
    y = make("Mul", ops.cast(sums, "float64"), ops.cast(factor, "float64"))
    return rounded(y, zero, zero.dtype)


@translation("QLinearConv")
def qlinear_conv(
    node: OnnxNode,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
) -> Tensor:
    zero = _per_filter(node, w, w_zero)
    kind = _holding(node, x, x_zero, _weight(node, w, zero, range(1, rank_of(node, w))), b)
    image, filters = _differences(x, _one(x_zero), kind), _differences(w, zero, kind)
    sums = conv(node, image, filters, None if b is None else ops.cast(b, kind))
    if w_scale.dims not in ((), (1,)):
        w_scale = ops.reshape(w_scale, [1, -1, *[1] * (rank_of(node, w) - 2)])
    factor = make("RealDiv", make("Mul", x_scale, w_scale), y_scale)
    return _requantized(sums, factor, y_zero)
