"""Random numbers, and dropout.

A node without a seed draws different numbers in each session, as aioflow's ops do.
"""

from __future__ import annotations

import struct

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import scalar_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import TensorLike, constant, make
from aioflow.ops.math.random import multinomial as make_multinomial
from aioflow.ops.math.random import random_normal, random_uniform


def _seed(node: OnnxNode) -> int | None:
    """Return the upper 31 bits of the node's seed, a float32, as an integer; None if the node has no seed."""
    seed = node.attr("seed")
    return None if seed is None else int(struct.unpack("<I", struct.pack("<f", seed))[0] >> 1)


def _uniform(node: OnnxNode, shape: TensorLike, dtype: DType) -> Tensor:
    return random_uniform(shape, node.attr("low", 0.0), node.attr("high", 1.0), dtype, _seed(node))


def _normal(node: OnnxNode, shape: TensorLike, dtype: DType) -> Tensor:
    return random_normal(shape, node.attr("mean", 0.0), node.attr("scale", 1.0), dtype, _seed(node))


@translation("RandomUniform")
def uniform(node: OnnxNode) -> Tensor:
    return _uniform(node, np.array(node.required("shape"), np.int64), node.dtype("dtype", dtypes.float32))


@translation("RandomUniformLike")
def uniform_like(node: OnnxNode, x: Tensor) -> Tensor:
    return _uniform(node, make("Shape", x), node.dtype("dtype", x.dtype))


@translation("RandomNormal")
def normal(node: OnnxNode) -> Tensor:
    return _normal(node, np.array(node.required("shape"), np.int64), node.dtype("dtype", dtypes.float32))


@translation("RandomNormalLike")
def normal_like(node: OnnxNode, x: Tensor) -> Tensor:
    return _normal(node, make("Shape", x), node.dtype("dtype", x.dtype))


@translation("Bernoulli")
def bernoulli(node: OnnxNode, x: Tensor) -> Tensor:
    drawn = random_uniform(make("Shape", x), 0.0, 1.0, x.dtype, _seed(node))
    return make("Cast", make("Less", drawn, x), DstT=node.dtype("dtype", x.dtype))


@translation("Multinomial")
def multinomial(node: OnnxNode, x: Tensor) -> Tensor:
    count = node.attr("sample_size", 1)
    return make_multinomial(x, count, _seed(node), output_dtype=node.dtype("dtype", dtypes.int32))


@translation("Dropout")
def dropout_of_inference(node: OnnxNode, x: Tensor) -> tuple[Tensor, ...]:
    """Translate Dropout up to opset 11, which drops nothing."""
    # The mask is bool from opset 10 on, and has the input's dtype before.
    return _nothing_dropped(x, dtypes.bool_ if node.version >= 10 else x.dtype)


@translation("Dropout", since=12)
def dropout(
    node: OnnxNode, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, ...]:
    known = node.constant(training)
    if training is None or (known is not None and not known):
        return _nothing_dropped(x, dtypes.bool_)
    share = constant(np.array(0.5, x.dtype.np_dtype)) if ratio is None else make("Cast", scalar_of(ratio), DstT=x.dtype)
    if known is None:
        # A ratio of 0 drops nothing.
        share = make("SelectV2", scalar_of(training), share, 0)
    mask = make("GreaterEqual", random_uniform(make("Shape", x), 0.0, 1.0, x.dtype, _seed(node)), share)
    # Division by the share that is kept preserves the expected value.
    return make("SelectV2", mask, x / (1 - share), 0), mask


def _nothing_dropped(x: Tensor, mask: DType) -> tuple[Tensor, ...]:
    return make("Identity", x), make("Cast", make("OnesLike", x), DstT=mask)
