"""com.microsoft: ops on quantized tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.geometry import channels_first, channels_last, joined
from aioflow.interop.onnx.sizes import axis_of, rank_of
from aioflow.interop.onnx.translating import OnnxNode, microsoft, refuse_inputs, refuse_unless
from aioflow.interop.onnx.translations.math import product
from aioflow.interop.onnx.translations.normalization import along_axis, of_rows
from aioflow.interop.onnx.translations.pooling import average_pool, global_average_pool
from aioflow.interop.onnx.translations.quantization import (
    dequantize_linear,
    dequantized,
    integer_product,
    qlinear_conv,
    quantize_linear,
    rounded,
)
from aioflow.interop.onnx.translations.recurrent import differing, lstm_layers, part
from aioflow.interop.onnx.translations.recurrent_cells import Product
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make

# ── ops computed in float32 in between ────────────────────────────────────────────────────────────────────────────────
#
# Each tensor has a single scale and zero point. An omitted zero point is 0.


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


# ── element by element ────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── matrix products with one or two quantized factors ─────────────────────────────────────────────────────────────────


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    node: OnnxNode,
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


def _scaled_product(node: OnnxNode, a: _Quantized, b: _Quantized, bias: Tensor | None) -> Tensor:
    scale = make("Mul", _single(node, a[1]), b[1])
    sums = integer_product(node, a[0], b[0], None if a[2] is None else _single(node, a[2]), b[2])
    y = make("Mul", ops.cast(sums, scale.dtype), scale)
    return y if bias is None else make("AddV2", y, bias)


def _single(node: OnnxNode, given: Tensor) -> Tensor:
    """Return the one number for a whole tensor. Refuse a node that has several."""
    dims = given.dims
    if dims is not None and None not in dims and math.prod(d or 0 for d in dims) != 1:
        node.refuse("a scale or zero point of the first factor that is not a scalar")
    return ops.reshape(given, [])


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    node: OnnxNode, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    return _scaled_product(node, _dynamic(a), (b, b_scale, b_zero), bias)


def _dynamic(x: Tensor) -> _Quantized:
    """Quantize the tensor to 8 bits by the range of its values, extended to include 0."""
    least, most = ops.minimum(ops.reduce_min(x), 0.0), ops.maximum(ops.reduce_max(x), 0.0)
    scale = make("RealDiv", make("Sub", most, least), 255.0)
    # A tensor of zeros has no range; any scale but 0 represents it.
    scale = make("SelectV2", make("Equal", scale, 0.0), 1.0, scale)
    # The zero point represents 0 exactly, so the range was extended to include it.
    zero = rounded(make("RealDiv", make("Neg", least), scale), None, dtypes.uint8)
    return rounded(make("RealDiv", x, scale), zero, dtypes.uint8), scale, zero


@microsoft("QGemm", "alpha", "transA", "transB")
def qgemm(
    node: OnnxNode,
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
    """Translate QGemm. The result is a float without `y_scale`.

    `c` is an integer, added before the scales are applied.
    """
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
    # y = sums · (scale of a · scale of b · alpha) / scale of y.
    factor = make("RealDiv", factor, _single(node, y_scale))
    dtype = a.dtype if y_zero is None else y_zero.dtype
    zero = None if y_zero is None else _single(node, y_zero)
    return rounded(make("Mul", sums, ops.cast(factor, "float64")), zero, dtype)


# ── recurrent layers ──────────────────────────────────────────────────────────────────────────────────────────────────


@microsoft(
    "DynamicQuantizeLSTM",
    *("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget"),
)
def dynamic_quantize_lstm(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    peepholes: Tensor | None,
    *scales: Tensor,
) -> tuple[Tensor, ...]:
    """Translate DynamicQuantizeLSTM.

    The weights have one column per gate and unit. The input and the state are quantized by the range of their values.
    """
    if differing(node, lengths, x) is not None:
        return node.refuse("sequences of different lengths: their padding would affect the range of the input")
    if len(scales) != 4:
        raise node.wrong("the inputs", "a scale and a zero point for both weights", len(scales))

    def products(number: int) -> tuple[Product, Product]:
        given = (part(each, number) for each in (w, *scales[:2], r, *scales[2:]))
        of_input, input_scale, input_zero, of_state, state_scale, state_zero = given
        return (
            lambda rows: _scaled_product(node, _dynamic(rows), (of_input, input_scale, input_zero), None),
            lambda rows: _scaled_product(node, _dynamic(rows), (of_state, state_scale, state_zero), None),
        )

    # ONNX's LSTM has a row for each gate and unit instead.
    rows = [ops.transpose(weights, [0, 2, 1]) for weights in (w, r)]
    return lstm_layers(node, (x, rows[0], rows[1], b, None), [h, c], peepholes, products)


# ── weights of a few bits ─────────────────────────────────────────────────────────────────────────────────────────────


@microsoft("MatMulNBits", "K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked")
def matmul_n_bits(
    node: OnnxNode,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Translate MatMulNBits, with the weights as floats.

    That is more accurate than the minimum that `accuracy_level` requires.
    """
    refuse_unless(node, weight_prepacked=0)
    refuse_inputs(node, g_idx=order)
    bits, size = node.attr("bits", 4), node.required("block_size")
    if bits not in (2, 4, 8) or b.dtype is not dtypes.uint8:
        return node.refuse(f"{bits} bits in {b.dtype}")
    rows, columns = node.required("N"), node.required("K")
    # ⌈columns / size⌉.
    blocks = -(-columns // size)
    whole = ops.reshape(ops.cast(_unpacked(b, bits), scales.dtype), [rows, blocks, size])
    # Without zero points, numbers are symmetric around the middle of their range, 2^(bits - 1).
    offset: Tensor | float = float(1 << (bits - 1))
    if zeros is not None and zeros.dtype is dtypes.uint8:
        # The zero points of a row are padded to whole bytes.
        offset = ops.reshape(_unpacked(zeros, bits), [rows, -1])[:, :blocks]
        offset = ops.reshape(ops.cast(offset, scales.dtype), [rows, blocks, 1])
    elif zeros is not None:
        offset = ops.reshape(ops.cast(zeros, scales.dtype), [rows, blocks, 1])
    weights = make("Mul", make("Sub", whole, offset), ops.reshape(scales, [rows, blocks, 1]))
    # The last block of a row may be padded.
    y = product(a, ops.reshape(weights, [rows, blocks * size])[:, :columns], transpose_b=True)
    return y if bias is None else make("AddV2", y, bias)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return the numbers packed in each byte, lowest bits first, along an additional axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = make("RightShift", ops.expand_dims(packed, -1), constant(shifts))
    return make("BitwiseAnd", spread, constant(np.uint8((1 << bits) - 1)))
