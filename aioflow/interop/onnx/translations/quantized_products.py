"""com.microsoft: matrix products with one or two quantized factors."""

from __future__ import annotations

import math

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.microsoft import microsoft, refuse_inputs, refuse_unless
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.interop.onnx.translations.math import product
from aioflow.interop.onnx.translations.quantization import integer_product, rounded
from aioflow.interop.onnx.translations.recurrent import differing, lstm_layers, part
from aioflow.interop.onnx.translations.recurrent_cells import Product
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make


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


# ── recurrent layers ─────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── weights of a few bits ────────────────────────────────────────────────────────────────────────────────────────────


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
