"""com.microsoft: matrix products and convolutions fused with the ops around them, and variants of GELU."""

from __future__ import annotations

from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import OnnxNode, microsoft
from aioflow.interop.onnx.translations.convolution import conv
from aioflow.interop.onnx.translations.math import gelu_of, product, swish_of
from aioflow.interop.onnx.translations.nn import gemm
from aioflow.interop.onnx.translations.recurrent_cells import activation_of
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make

_QUICK: Final = 1.702  # the factor for which the sigmoid approximates Φ best


@microsoft("FusedMatMul", "alpha", "transA", "transB", "transBatchA", "transBatchB")
def fused_matmul(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    a, b = _batch_last(node, a, "transBatchA"), _batch_last(node, b, "transBatchB")
    y = product(a, b, bool(node.attr("transA", 0)), bool(node.attr("transB", 0)))
    alpha = node.attr("alpha", 1.0)
    return y if alpha == 1 else make("Mul", y, constant(alpha, y.dtype))


def _batch_last(node: OnnxNode, x: Tensor, attribute: str) -> Tensor:
    """Move the first axis behind the other batch axes if the node's attribute is set."""
    if not node.attr(attribute, 0):
        return x
    rank = rank_of(node, x)
    return x if rank < 3 else ops.transpose(x, [*range(1, rank - 1), 0, rank - 1])


@microsoft(
    "FusedGemm",
    *("alpha", "beta", "transA", "transB"),
    *("activation", "activation_alpha", "activation_beta", "activation_gamma"),
)
def fused_gemm(node: OnnxNode, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    name = node.attr("activation", "")
    y = gemm(node, a, b, c)
    return activation_of(node, name, node.attr("activation_alpha"), node.attr("activation_beta"))(y) if name else y


@microsoft(
    "FusedConv",
    *("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    *("activation", "activation_params"),
)
def fused_conv(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None = None, z: Tensor | None = None) -> Tensor:
    """Return the sum of the convolution and `z`, activated."""
    y = conv(node, x, w, b)
    return _activated(node, y if z is None else make("AddV2", y, z))


def _activated(node: OnnxNode, y: Tensor) -> Tensor:
    name, parameters = node.attr("activation", ""), node.attr("activation_params", [])
    if not name:
        return y
    if name == "Clip" and len(parameters) == 2:
        low, high = (constant(limit, y.dtype) for limit in parameters)
        return make("Minimum", make("Maximum", y, low), high)
    return activation_of(node, name, *parameters[:2])(y)


# ── GELU ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@microsoft("Gelu")
def gelu(node: OnnxNode, x: Tensor) -> Tensor:
    return gelu_of(x, approximate=False)


@microsoft("BiasGelu")
def bias_gelu(node: OnnxNode, x: Tensor, bias: Tensor) -> Tensor:
    return gelu_of(make("AddV2", x, bias), approximate=False)


@microsoft("FastGelu")
def fast_gelu(node: OnnxNode, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu_of(x if bias is None else make("AddV2", x, bias), approximate=True)


@microsoft("QuickGelu", "alpha")
def quick_gelu(node: OnnxNode, x: Tensor) -> Tensor:
    return swish_of(x, node.attr("alpha", _QUICK))
