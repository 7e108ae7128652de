"""Convolutions over any number of spatial axes, with channels in either place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import Value
from aioflow.interop.onnx.exporting.windows import Windows, windows_of


@exporter("Conv2D", "Conv3D", any_layout=True)
def convolution(node: Node, x: Value, kernel: Value) -> Value:
    """A convolution, grouped if the kernel has a part of the channels."""
    windows = windows_of(node, node.rank(kernel))
    images = node.first(x, windows.channels_first)
    rank = node.rank(kernel)
    weights = node.transposed(node.rows(kernel), (rank - 1, rank - 2, *range(rank - 2)))
    group = _groups(node, images, weights)
    return _convolved(node, windows, images, weights, group)


def _groups(node: Node, images: Value, weights: Value) -> int:
    channels = None if images.dims is None else images.dims[1]
    own = None if weights.dims is None else weights.dims[1]
    if channels is None or own is None:
        return 1
    return channels // own if own else 1


@exporter("DepthwiseConv2dNative", any_layout=True)
def depthwise(node: Node, x: Value, kernel: Value) -> Value:
    """A convolution of every channel by kernels of its own."""
    windows = windows_of(node, 4)
    images = node.first(x, windows.channels_first)
    dims = node.rows(kernel).dims
    if dims is None or dims[2] is None or dims[3] is None:
        node.refuse("the number of channels is not known")
    height, width = (-1 if d is None else d for d in dims[:2])
    if -1 in (height, width):
        node.refuse("the size of the kernel is not known")
    turned = node.transposed(node.rows(kernel), (2, 3, 0, 1))
    weights = node.reshaped(turned, [dims[2] * dims[3], 1, height, width]).of((dims[2] * dims[3], 1, height, width))
    return _convolved(node, windows, images, weights, dims[2])


def _convolved(node: Node, windows: Windows, images: Value, weights: Value, group: int) -> Value:
    if images.dtype is dtypes.float64:
        node.refuse("onnxruntime convolves no float64")
    sizes = None if weights.dims is None else weights.dims[2:]
    made = node.make(
        "Conv",
        images,
        weights,
        group=group,
        strides=windows.strides,
        dilations=windows.dilations,
        **windows.padding(node, images, sizes),
    )
    return node.last(made, windows.channels_first)


@exporter("Conv2DBackpropInput", "Conv3DBackpropInputV2", any_layout=True)
def transposed_convolution(node: Node, sizes: Value, kernel: Value, x: Value) -> Value:
    """The image that a convolution has made `x` of, as if it was linear: ONNX's ConvTranspose."""
    rank = node.rank(kernel)
    windows = windows_of(node, rank)
    images = node.first(x, windows.channels_first)
    weights = node.transposed(node.rows(kernel), (rank - 1, rank - 2, *range(rank - 2)))
    dims = node.outputs[0].dims
    spatial = None if dims is None else [dims[axis] for axis in windows.spatial]
    given = None if images.dims is None else images.dims[2:]
    own = None if weights.dims is None else weights.dims[2:]
    if _unknown(spatial) or _unknown(given) or _unknown(own):
        node.refuse("the size of the image that it gives is not known")
    begins, ends, more = [], [], []
    for axis in range(rank - 2):
        stride, span = windows.strides[axis], (_at(own, axis) - 1) * windows.dilations[axis] + 1
        before, after = windows.pads_of(axis, _at(spatial, axis), _at(own, axis))
        full = (_at(given, axis) - 1) * stride + span - before - after
        begins.append(before)
        ends.append(after)
        more.append(_at(spatial, axis) - full)
    made = node.make(
        "ConvTranspose",
        images,
        weights,
        group=_groups_of(node, windows, weights),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=[*begins, *ends],
        output_padding=more,
    )
    return node.last(made, windows.channels_first)


def _groups_of(node: Node, windows: Windows, weights: Value) -> int:
    """How many groups of channels of the image there are."""
    dims = node.outputs[0].dims
    own = None if weights.dims is None else weights.dims[1]
    channels = None if dims is None else dims[1 if windows.channels_first else -1]
    return 1 if channels is None or not own else channels // own


def _unknown(sizes: Sequence[int | None] | None) -> bool:
    return sizes is None or None in sizes


def _at(sizes: Any, axis: int) -> int:
    return int(sizes[axis])
