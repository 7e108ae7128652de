"""com.microsoft: ops on quantized tensors, computed in float32 in between.

Each tensor has a single scale and zero point. An omitted zero point is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.layout import channels_first, channels_last, joined
from aioflow.interop.onnx.microsoft import microsoft
from aioflow.interop.onnx.sizes import axis_of, rank_of
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.interop.onnx.translations.normalization import along_axis, of_rows
from aioflow.interop.onnx.translations.pooling import average_pool, global_average_pool
from aioflow.interop.onnx.translations.quantization import (
    dequantize_linear,
    dequantized,
    qlinear_conv,
    quantize_linear,
    rounded,
)
from aioflow.ops import public as ops
from aioflow.ops.apply import make

_ROWS_UNTIL = 12  # the last opset whose Softmax treats its input as a matrix


def _scalar(node: OnnxNode, given: Tensor) -> Tensor:
    dims = given.dims
    if dims is not None and None not in dims and math.prod(d or 0 for d in dims) != 1:
        node.refuse("a scale or zero point that is not one number")
    return ops.reshape(given, [])


def _real(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    if not x.dtype.is_integer:
        node.refuse(f"a quantized tensor of {x.dtype}")
    return dequantized(x, _scalar(node, scale), None if zero is None else _scalar(node, zero))


def _quantized(node: OnnxNode, y: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    quotient = make("RealDiv", y, _scalar(node, scale))
    return rounded(quotient, None if zero is None else _scalar(node, zero), dtype)


# ── element by element ───────────────────────────────────────────────────────────────────────────────────────────────


def _binary(op: str) -> Callable[..., Tensor]:
    def translate(
        node: OnnxNode,
        a: Tensor,
        a_scale: Tensor,
        a_zero: Tensor | None,
        b: Tensor,
        b_scale: Tensor,
        b_zero: Tensor | None,
        c_scale: Tensor,
        c_zero: Tensor | None = None,
    ) -> Tensor:
        c = make(op, _real(node, a, a_scale, a_zero), _real(node, b, b_scale, b_zero))
        return _quantized(node, c, c_scale, c_zero, a.dtype)

    return translate


microsoft("QLinearAdd")(_binary("AddV2"))
microsoft("QLinearMul")(_binary("Mul"))


@microsoft("QLinearSigmoid")
def qlinear_sigmoid(
    node: OnnxNode, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None
) -> Tensor:
    return _quantized(node, make("Sigmoid", _real(node, x, x_scale, x_zero)), y_scale, y_zero, x.dtype)


@microsoft("QLinearLeakyRelu", "alpha")
def qlinear_leaky_relu(
    node: OnnxNode, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None
) -> Tensor:
    y = make("LeakyRelu", _real(node, x, x_scale, x_zero), alpha=node.attr("alpha", 0.01))
    return _quantized(node, y, y_scale, y_zero, x.dtype)


@microsoft("QLinearWhere")
def qlinear_where(
    node: OnnxNode,
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    z_scale: Tensor,
    z_zero: Tensor,
) -> Tensor:
    chosen = make("SelectV2", condition, _real(node, x, x_scale, x_zero), _real(node, y, y_scale, y_zero))
    return _quantized(node, chosen, z_scale, z_zero, x.dtype)


# ── others ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_images(node: OnnxNode, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of images with channels first to images in the node's layout."""
    if not node.attr("channels_last", 0):
        return function(x)
    rank = rank_of(node, x)
    return channels_last(function(channels_first(x, rank)), rank)


@microsoft("QLinearGlobalAveragePool", "channels_last")
def qlinear_global_average_pool(
    node: OnnxNode, x: Tensor, x_scale: Tensor, x_zero: Tensor, y_scale: Tensor, y_zero: Tensor
) -> Tensor:
    y = _of_images(node, _real(node, x, x_scale, x_zero), lambda image: global_average_pool(node, image))
    return _quantized(node, y, y_scale, y_zero, x.dtype)


@microsoft(
    "QLinearAveragePool",
    *("auto_pad", "ceil_mode", "channels_last", "count_include_pad", "kernel_shape", "pads", "strides"),
)
def qlinear_average_pool(
    node: OnnxNode, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None
) -> Tensor:
    y = _of_images(node, _real(node, x, x_scale, x_zero), lambda image: average_pool(node, image))
    return _quantized(node, y, y_scale, y_zero, x.dtype)


@microsoft("QLinearConv", "auto_pad", "channels_last", "dilations", "group", "kernel_shape", "pads", "strides")
def qlinear_conv_of_channels(node: OnnxNode, x: Tensor, *others: Tensor) -> Tensor:
    """Translate QLinearConv like the standard's. The filters always have their channels first."""
    return _of_images(node, x, lambda image: qlinear_conv(node, image, *others))


@microsoft("QLinearConcat", "axis")
def qlinear_concat(node: OnnxNode, y_scale: Tensor, y_zero: Tensor, *inputs: Tensor | None) -> Tensor:
    """Concatenate inputs given as triples: a tensor, its scale and its zero point."""
    if not inputs or len(inputs) % 3:
        raise node.wrong("the inputs", "a scale, a zero point, and three for each tensor", 2 + len(inputs))
    parts = []
    for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True):
        if x is None or scale is None:
            raise node.wrong("the inputs", "tensors and scales", "one is left out")
        # Requantized to the scale of the result, since the inputs' scales may differ.
        parts.append(_quantized(node, _real(node, x, scale, zero), y_scale, y_zero, y_zero.dtype))
    return joined(parts, axis_of(node, parts[0], node.required("axis")))


@microsoft("QLinearSoftmax", "axis", "opset")
def qlinear_softmax(
    node: OnnxNode, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor
) -> Tensor:
    """Translate QLinearSoftmax. `opset` is that of the Softmax that was quantized."""
    real, axis = _real(node, x, x_scale, x_zero), node.attr("axis", -1)
    softmax = of_rows if node.required("opset") <= _ROWS_UNTIL else along_axis
    return _quantized(node, softmax("Softmax", node, real, axis), y_scale, y_zero, y_zero.dtype)


microsoft("QuantizeLinear", "axis")(quantize_linear)
microsoft("DequantizeLinear", "axis")(dequantize_linear)
