"""Layers of networks other than convolutions and pools."""

from __future__ import annotations

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.tensor_like import TensorLike
from aioflow.interop.onnx.geometry import channels_first, channels_last
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make_list
from aioflow.ops.nn import activations, normalization


@translation("Relu")
def relu(node: OnnxNode, x: Tensor) -> Tensor:
    return activations.relu(x)


@translation("Gemm")
def gemm(node: OnnxNode, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    y = ops.matmul(a, b, transpose_a=bool(node.attr("transA", 0)), transpose_b=bool(node.attr("transB", 0)))
    y = _times(node, y, "alpha")
    if c is None:
        return y
    c = _times(node, c, "beta")
    # A vector over the columns is a bias.
    fits = c.dims is not None and y.dims is not None and c.dims == y.dims[1:] and None not in c.dims
    return activations.bias_add(y, c) if fits else ops.add(y, c)


def _times(node: OnnxNode, x: Tensor, name: str) -> Tensor:
    factor = node.attr(name, 1.0)
    if factor == 1.0:
        return x
    return ops.multiply(x, constant(np.asarray(factor).astype(x.dtype.np_dtype)))


@translation("BatchNormalization")
def batch_normalization(
    node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor | tuple[Tensor, ...]:
    if not node.attr("spatial", 1):
        return node.refuse("spatial=0")
    if (node.version < 7 and not node.attr("is_test", 0)) or (node.version < 14 and any(map(node.wants, range(1, 5)))):
        return node.refuse("training by opset 13 or earlier")
    if not node.attr("training_mode", 0):
        return _normalized(node, x, scale, bias, mean, variance)
    rank = rank_of(node, x)
    wide = ops.cast(x, mean.dtype)
    own_mean, own_variance = normalization.moments(wide, [0, *range(2, rank)])
    momentum = constant(node.attr("momentum", 0.9), mean.dtype)
    # ONNX's momentum is the share of the old moments.
    kept = [old * momentum + new * (1 - momentum) for old, new in ((mean, own_mean), (variance, own_variance))]
    return (_normalized(node, x, scale, bias, own_mean, own_variance), *kept)


def _normalized(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    epsilon = node.attr("epsilon", 1e-5)
    rank = 2 if x.dims is None else len(x.dims)
    if rank == 4 and all(t.dtype is dtypes.float32 for t in (x, scale, bias, mean, variance)):
        outputs = make_list(
            "FusedBatchNormV3", channels_last(x, 4), scale, bias, mean, variance, epsilon=epsilon, is_training=False
        )
        return channels_first(outputs[0], 4)
    own: TensorLike = [-1] + [1] * (rank - 2)
    if x.dims is None:
        own = ops.concat([[-1], ops.ones_like(ops.shape(x)[2:])], 0)
    # (x - mean) · scale / √(variance + ε) + bias = x · factor + shift, with two operations per element.
    factor = ops.cast(scale, variance.dtype) * ops.rsqrt(variance + constant(epsilon, variance.dtype))
    shift = ops.cast(bias, variance.dtype) - mean * factor
    wide = ops.cast(x, variance.dtype)
    return ops.cast(wide * ops.reshape(factor, own) + ops.reshape(shift, own), x.dtype)


@translation("LRN")
def lrn(node: OnnxNode, x: Tensor) -> Tensor:
    size = node.required("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    # The op's window is symmetric, and its alpha is not divided by the size.
    if rank_of(node, x) == 4 and size % 2 and x.dtype is dtypes.float32:
        y = normalization.local_response_normalization(
            channels_last(x, 4), depth_radius=size // 2, bias=bias, alpha=alpha / size, beta=beta
        )
        return channels_first(y, 4)
    # The sum is unrolled into one slice for each channel of the window.
    if not 0 < size <= 64:
        return node.refuse(f"size={size}")
    edges = [[0, 0]] * rank_of(node, x)
    # The window of channel c is [c - ⌊(size - 1) / 2⌋, c + ⌈(size - 1) / 2⌉].
    edges[1] = [(size - 1) // 2, size // 2]
    squares = ops.pad(ops.square(x), edges)
    count, parts = rank_of(node, x), []
    for i in range(size):
        # Slice i has element i of every window; an end of 0 is masked, since it would mean an empty slice.
        end = [0, i - size + 1, *[0] * (count - 2)]
        open_ended = sum(1 << axis for axis in range(count) if not end[axis])
        parts.append(ops.strided_slice(squares, [0, i, *[0] * (count - 2)], end, end_mask=open_ended))
    # x / (bias + alpha / size · Σ x²)^beta, with the sum over the window of channels.
    scale = constant(bias, x.dtype) + constant(alpha / size, x.dtype) * ops.add_n(parts)
    return ops.divide(x, ops.pow(scale, constant(beta, x.dtype)))
