"""ONNX's casts: saturating ones to 8-bit floats, and those to powers of two with a choice of rounding."""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import Node, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make

_DIGITS: Final = 8  # digits of float32 in text, as other runtimes write them
_DIGITS_OF_DOUBLES: Final = 15  # the most that all float64 values keep
_PARSED: Final = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)
_SATURATING: Final = (dtypes.float8_e4m3fn, dtypes.float8_e4m3fnuz, dtypes.float8_e5m2, dtypes.float8_e5m2fnuz)


@translation("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    return cast_to(node, x, node.dtype("to"))


@translation("CastLike")
def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    return cast_to(node, x, like.dtype)


@translation("BitCast")
def bit_cast(node: Node, x: Tensor) -> Tensor:
    wanted = node.dtype("to")
    if x.dtype is wanted:
        return x
    if x.dtype.is_bool or wanted.is_bool:  # the byte of a bool is 0 or 1
        return ops.cast(x, wanted)
    return make("Bitcast", x, type=wanted)


def cast_to(node: Node, x: Tensor, dtype: DType) -> Tensor:
    """Return the elements in another dtype. Casts from and to strings parse and format numbers."""
    if x.dtype is dtype:
        return x
    if dtype is dtypes.string:
        return _text(x) if x.dtype.is_floating else ops.as_string(x)
    if x.dtype is dtypes.string:
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


def _power_of_two(node: Node, x: Tensor) -> Tensor:
    """Return the exponents of x as float32, rounded by the fraction. Values that are not finite become NaN."""
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
    most = 0xFD if node.attr("saturate", 1) else 0xFE
    more = make("LogicalAnd", more, make("LessEqual", exponent, most))
    code = make("AddV2", exponent, ops.cast(more, "int32"))
    return ops.bitcast(ops.cast(code, "uint8"), dtypes.float8_e8m0fnu)
