"""com.microsoft: products of matrices of which one factor is quantized, or both."""

from __future__ import annotations

import math

from aioflow.graph import dtypes
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.microsoft import microsoft
from aioflow.interop.onnx.translating import Node
from aioflow.interop.onnx.translations.quantization import integer_product, rounded
from aioflow.ops import public as ops
from aioflow.ops.apply import make

__all__: list[str] = []


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    node: Node,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    return _scaled_product(node, (a, a_scale, a_zero), (b, b_scale, b_zero), bias)


_Quantized = tuple[Tensor, Tensor, Tensor | None]  # a tensor, its scale, its zero point


def _scaled_product(node: Node, a: _Quantized, b: _Quantized, bias: Tensor | None) -> Tensor:
    scale = make("Mul", _single(node, a[1]), b[1])
    sums = integer_product(node, a[0], b[0], None if a[2] is None else _single(node, a[2]), b[2])
    y = make("Mul", ops.cast(sums, scale.dtype), scale)
    return y if bias is None else make("AddV2", y, bias)


def _single(node: Node, given: Tensor) -> Tensor:
    """One number for a whole tensor."""
    dims = given.dims
    if dims is not None and None not in dims and math.prod(d or 0 for d in dims) != 1:
        node.refuse("a scale or zero point of the first factor that is not one number")
    return ops.reshape(given, [])


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    node: Node, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    return _scaled_product(node, _dynamic(a), (b, b_scale, b_zero), bias)


def _dynamic(x: Tensor) -> _Quantized:
    """The tensor in 8 bits, by the range of its values, of which 0 is one."""
    least, most = ops.minimum(ops.reduce_min(x), 0.0), ops.maximum(ops.reduce_max(x), 0.0)
    scale = make("RealDiv", make("Sub", most, least), 255.0)
    scale = make("SelectV2", make("Equal", scale, 0.0), 1.0, scale)
    zero = rounded(make("RealDiv", make("Neg", least), scale), None, dtypes.uint8)
    return rounded(make("RealDiv", x, scale), zero, dtypes.uint8), scale, zero


@microsoft("QGemm", "alpha", "transA", "transB")
def qgemm(
    node: Node,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    """A float where the result has no scale. `c` is an integer, added before the scales are multiplied with."""
    if node.attr("transA", 0):
        a = ops.transpose(a, [1, 0])
    if node.attr("transB", 0):
        b = ops.transpose(b, [1, 0])
    sums = ops.cast(integer_product(node, a, b, _single(node, a_zero), b_zero), "float64")
    if c is not None:
        sums = make("AddV2", sums, ops.cast(c, "float64"))
    factor = make("Mul", make("Mul", _single(node, a_scale), b_scale), node.attr("alpha", 1.0))
    if y_scale is None:
        return ops.cast(make("Mul", sums, ops.cast(factor, "float64")), "float32")
    factor = make("RealDiv", factor, _single(node, y_scale))
    dtype = a.dtype if y_zero is None else y_zero.dtype
    zero = None if y_zero is None else _single(node, y_zero)
    return rounded(make("Mul", sums, ops.cast(factor, "float64")), zero, dtype)
