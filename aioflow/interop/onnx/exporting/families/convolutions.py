"""Convolutions over any number of spatial axes, with the channels first or last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeVar

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found
from aioflow.interop.onnx.exporting.rules import composed, exporter
from aioflow.interop.onnx.exporting.types import computed_in
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.windows import WindowAttributes, windows_of
from aioflow.ops.nn.geometry import Layout

_Function = TypeVar("_Function", bound=Callable[..., Any])


@exporter("Conv2D", "Conv3D", any_layout=True)
def convolution(node: ExportedNode, x: ModelValue, kernel: ModelValue, bias: ModelValue | None = None) -> ModelValue:
    """Export a convolution, which is grouped if the kernel has fewer input channels than the image."""
    windows = windows_of(node)
    images = node.first(x, windows.channels_first)
    rank = node.rank(kernel)
    weights = node.transposed(node.rows(kernel), (rank - 1, rank - 2, *range(rank - 2)))
    group = groups_of(node, images, weights)
    return convolved(node, windows, images, weights, bias, group)


def groups_of(node: ExportedNode, images: ModelValue, weights: ModelValue) -> int:
    """Return the number of channel groups, given images and filters in ONNX's layout."""
    channels = None if images.dims is None else images.dims[1]
    own = None if weights.dims is None else weights.dims[1]
    if channels is None or own is None:
        return 1
    # An ONNX filter is [out, in / groups, sizes …].
    return channels // own if own else 1


@exporter("DepthwiseConv2dNative", any_layout=True)
def depthwise(node: ExportedNode, x: ModelValue, kernel: ModelValue, bias: ModelValue | None = None) -> ModelValue:
    """Export a convolution of each channel with its own kernels."""
    windows = windows_of(node)
    images = node.first(x, windows.channels_first)
    dims = node.rows(kernel).dims
    if dims is None or dims[2] is None or dims[3] is None:
        node.refuse("the number of channels is unknown")
    height, width = (-1 if d is None else d for d in dims[:2])
    if -1 in (height, width):
        node.refuse("the size of the kernel is unknown")
    # [height, width, channels, multiplier] to [channels, multiplier, height, width], of which the first two axes are
    # then joined.
    turned = node.transposed(node.rows(kernel), (2, 3, 0, 1))
    weights = node.reshaped(turned, [dims[2] * dims[3], 1, height, width]).of((dims[2] * dims[3], 1, height, width))
    return convolved(node, windows, images, weights, bias, dims[2])


def convolved(
    node: ExportedNode,
    windows: WindowAttributes,
    images: ModelValue,
    weights: ModelValue,
    bias: ModelValue | None,
    group: int,
) -> ModelValue:
    if images.dtype is dtypes.float64:
        node.refuse("onnxruntime has no float64 convolution")
    sizes = None if weights.dims is None else weights.dims[2:]
    made = node.make(
        "Conv",
        images,
        weights,
        bias,
        group=group,
        strides=windows.strides,
        dilations=windows.dilations,
        **windows.padding(node, images, sizes),
    )
    return node.last(made, windows.channels_first)


@exporter("Conv2DBackpropInput", "Conv3DBackpropInputV2", any_layout=True)
def transposed_convolution(
    node: ExportedNode, sizes: ModelValue, kernel: ModelValue, x: ModelValue, bias: ModelValue | None = None
) -> ModelValue:
    """Export the gradient of a convolution with respect to its input: ONNX's ConvTranspose."""
    rank = node.rank(kernel)
    windows = windows_of(node)
    images = node.first(x, windows.channels_first)
    weights = node.transposed(node.rows(kernel), (rank - 1, rank - 2, *range(rank - 2)))
    dims = node.outputs[0].dims
    spatial = _known(node, None if dims is None else windows.spatial(dims))
    given = _known(node, None if images.dims is None else images.dims[2:])
    own = _known(node, None if weights.dims is None else weights.dims[2:])
    # TensorFlow specifies the output size, ONNX the padding that leads to it.
    pads = windows.window.pads(spatial, own)
    more = []
    for axis, (before, after) in enumerate(pads):
        # ONNX: output = (input - 1) · stride + span - before - after + output_padding.
        span = (own[axis] - 1) * windows.dilations[axis] + 1
        more.append(spatial[axis] - (given[axis] - 1) * windows.strides[axis] - span + before + after)
    made = node.make(
        "ConvTranspose",
        images,
        weights,
        bias,
        group=_groups_of_image(node, windows, weights),
        strides=windows.strides,
        dilations=windows.dilations,
        pads=[before for before, _ in pads] + [after for _, after in pads],
        output_padding=more,
    )
    return node.last(made, windows.channels_first)


def _goes_with_channels(found: Found, opset: int) -> bool:
    bias, product = found.spec("bias").dims, found.node("product")
    if computed_in("Conv", product.outputs[0].dtype) is None:
        return False
    channels_first = str(product.attrs.get("data_format", "N")).startswith("NC")
    # BiasAdd finds the channels by its own data_format; a plain addition always broadcasts from the last axis.
    if found.root.op.startswith("BiasAdd"):
        return str(found.root.attrs.get("data_format", "N")).startswith("NC") is channels_first
    dims = product.outputs[0].dims
    return not channels_first and bias is not None and dims is not None and len(bias) == 1 and bias[0] == dims[-1]


def with_bias(op: str, *inputs: str) -> Callable[[_Function], _Function]:
    """Return a decorator for a convolution followed by a bias, which ONNX's convolutions add themselves."""
    product = f"(product := {op}({', '.join(inputs)}))"
    return composed(
        f"{op}+bias",
        f"BiasAdd({product}, bias)",
        f"BiasAddV1({product}, bias)",
        f"{product} + bias",
        where=_goes_with_channels,
        any_layout=True,
    )


@with_bias("Conv2D", "x", "kernel")
@with_bias("Conv3D", "x", "kernel")
def convolution_with_bias(node: ExportedNode, x: ModelValue, kernel: ModelValue, bias: ModelValue) -> ModelValue:
    """Export a convolution plus a bias per channel."""
    return convolution(node.within("product"), x, kernel, bias)


@with_bias("DepthwiseConv2dNative", "x", "kernel")
def depthwise_with_bias(node: ExportedNode, x: ModelValue, kernel: ModelValue, bias: ModelValue) -> ModelValue:
    """Export a depthwise convolution plus a bias per channel."""
    return depthwise(node.within("product"), x, kernel, bias)


@with_bias("Conv2DBackpropInput", "sizes", "kernel", "x")
@with_bias("Conv3DBackpropInputV2", "sizes", "kernel", "x")
def transposed_with_bias(
    node: ExportedNode, sizes: ModelValue, kernel: ModelValue, x: ModelValue, bias: ModelValue
) -> ModelValue:
    """Export a transposed convolution plus a bias per channel."""
    return transposed_convolution(node.within("product"), sizes, kernel, x, bias)


def _groups_of_image(node: ExportedNode, windows: WindowAttributes, weights: ModelValue) -> int:
    """Return the number of channel groups of the output image."""
    dims = node.outputs[0].dims
    own = None if weights.dims is None else weights.dims[1]
    channels = None if dims is None else dims[1 if windows.channels_first else -1]
    return 1 if channels is None or not own else channels // own


def _known(node: ExportedNode, sizes: Sequence[int | None] | None) -> list[int]:
    known = [size for size in sizes or () if size is not None]
    if sizes is None or len(known) != len(sizes):
        node.refuse("the size of its output image is unknown")
    return known


# ── convolutions along one axis, which aioflow computes as those of images with one row ───────────────────────────────


# The second form is the result of importing ONNX's filters.
_KERNELS: Final = ("ExpandDims(w, place)", "Transpose(ExpandDims(w, place), order)")
_FORMS: Final = ("(cut := Squeeze({}))", "(cut := Squeeze(BiasAdd({}, bias)))", "BiasAdd((cut := Squeeze({})), bias)")


def _is_of_rows(found: Found, opset: int) -> bool:
    conv, axis, place = found.node("conv"), found.number("axis"), found.number("place")
    if computed_in("Conv", conv.outputs[0].dtype) is None or len(found.spec("x").dims or ()) != 3:
        return False
    # Height is the axis of size 1 that the pattern inserts, so it must be the second of four.
    if str(conv.attrs["data_format"]) != "NHWC" or axis not in (1, -3):
        return False
    if [int(each) % 4 for each in found.node("cut").attrs["squeeze_dims"]] != [1]:
        return False
    if "bias" in found.edges and str(found.root.attrs.get("data_format", "NHWC")).startswith("NC"):
        return False
    if "order" not in found.edges:
        return place in (0, -4)
    order = found.constant("order")
    return place in (2, -2) and order is not None and order.tolist() == [2, 3, 1, 0]


@composed(
    "Conv of rows",
    *(form.format(f"(conv := Conv2D(ExpandDims(x, axis), {kernel}))") for form, kernel in product(_FORMS, _KERNELS)),
    where=_is_of_rows,
    any_layout=True,
)
def convolution_of_rows(
    node: ExportedNode,
    x: ModelValue,
    axis: ModelValue,
    w: ModelValue,
    place: ModelValue,
    order: ModelValue | None = None,
    bias: ModelValue | None = None,
) -> ModelValue:
    """Export a convolution of [batch, width, channels], with an optional bias per channel."""
    inner = node.within("conv")
    both = windows_of(inner).window
    layout = Layout.of(1, channels_first=False)
    along = replace(
        both, layout=layout, strides=both.strides[1:], dilations=both.dilations[1:], explicit=both.explicit[1:]
    )
    images, kernel = node.first(x), node.rows(w)
    # [width, in, out] to ONNX's [out, in, width]; an imported filter is in that order already.
    weights = node.transposed(kernel, (2, 1, 0)) if order is None else kernel
    made = convolved(inner, WindowAttributes(along), images, weights, bias, groups_of(inner, images, weights))
    return ModelValue(made.name, made.dtype, node.outputs[0].dims, None, True)
