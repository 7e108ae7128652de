"""Convolutions and their transposes.

Each one transposes to channels last, where aioflow's kernels are fastest, and back. The compiler removes transposes
that cancel out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.geometry import (
    SpatialWindows,
    channels_first,
    channels_last,
    framed,
    positive,
    quotient,
    windows_of,
)
from aioflow.interop.onnx.sizes import Size, int64, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.nn import activations, convolution, volumes


@translation("Conv")
def conv(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = _rank(node, x, w)
    if rank_of(node, w) != rank or rank < 3:
        raise node.wrong("the filter", f"rank {rank}, at least 3", rank_of(node, w))
    per_group, groups = (w.dims or ())[1], node.attr("group", 1)
    if groups > 1 and per_group is not None and (x.dims or ())[1] is None:
        # The kernel derives the number of groups from the channels, so their number must be in the static shape.
        x = ops.ensure_shape(x, [None, per_group * groups, *[None] * (rank - 2)])
    windows = windows_of(node, x, _kernel(node, w), keeps_same=True)
    # The kernel takes numbers only as paddings, so the images are padded by a node before.
    if windows.is_fed:
        x, windows = framed(x, windows, 0), windows.bare()
    if rank == 3:
        # A convolution along one axis is one of images that are one row high.
        image = ops.expand_dims(channels_last(x, 3), 1)
        y = _convolved(node, image, ops.expand_dims(w, 2), b, _in_two_axes(windows))
        return channels_first(ops.squeeze(y, [1]), 3)
    if rank == 4:
        return channels_first(_convolved(node, channels_last(x, 4), w, b, windows), 4)
    if rank == 5:
        return _convolved_volume(node, x, w, b, windows)
    return node.refuse(f"a convolution along {rank - 2} axes")


def _convolved_volume(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None, windows: SpatialWindows) -> Tensor:
    volume = channels_last(x, 5)
    if windows.pads is not None and windows.padded:
        volume = ops.pad(volume, [[0, 0], *windows.whole_pads(), [0, 0]])
    y = volumes.conv3d(
        volume,
        ops.transpose(w, [2, 3, 4, 1, 0]),
        strides=list(windows.strides),
        padding="SAME" if windows.pads is None else "VALID",
        dilations=list(windows.dilations),
    )
    return channels_first(y if b is None else activations.bias_add(y, b), 5)


def _rank(node: OnnxNode, x: Tensor, w: Tensor) -> int:
    """Return the rank of the images, or else that of the filter."""
    if x.dims is None:
        x.set_shape((None,) * rank_of(node, w))
    return rank_of(node, x)


def _kernel(node: OnnxNode, w: Tensor) -> list[int]:
    sizes: list[int] = [node.refuse("a filter of unknown size") if s is None else s for s in (w.dims or ())[2:]]
    given = node.attr("kernel_shape", []) or sizes
    if given != sizes:
        raise node.wrong("attribute 'kernel_shape'", sizes, given)
    return sizes


def _in_two_axes(windows: SpatialWindows) -> SpatialWindows:
    """Return the windows with a preceding axis of size 1."""
    pads = None if windows.pads is None else ((0, 0), *windows.pads)
    return SpatialWindows(
        (1, *windows.kernel), (1, *windows.strides), (1, *windows.dilations), pads, (0, *windows.extra)
    )


def _convolved(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None, windows: SpatialWindows) -> Tensor:
    """Return the convolution of images with their channels last."""
    channels, per_group, groups = (x.dims or ())[3], (w.dims or ())[1], node.attr("group", 1)
    if channels is not None and per_group is not None and channels != per_group * groups:
        raise node.wrong("the channels", f"{per_group} × {groups} groups", channels)
    y = convolution.conv2d(
        x,
        ops.transpose(w, [2, 3, 1, 0]),
        strides=list(windows.strides),
        padding="SAME" if windows.pads is None else [[0, 0], *windows.whole_pads(), [0, 0]],
        dilations=list(windows.dilations),
    )
    return y if b is None else activations.bias_add(y, b)


@translation("ConvTranspose")
def conv_transpose(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = _rank(node, x, w)
    axes = _spread_axes(node, x, w)
    if rank == 3:
        one = _SpreadAxis(1, 1, 1, 1, 0, 0)
        return ops.squeeze(_spread(node, ops.expand_dims(x, 2), ops.expand_dims(w, 2), b, [one, *axes]), [2])
    if rank == 4:
        return _spread(node, x, w, b, axes)
    if rank == 5:
        return _spread_volume(node, x, w, b, axes)
    return node.refuse(f"a transposed convolution along {rank - 2} axes")


class _SpreadAxis(NamedTuple):
    """One axis of a transposed convolution.

    Attributes:
        kernel: Size of the kernel.
        stride: Stride.
        dilation: Dilation.
        full: Size that all windows cover, a number or a tensor.
        before: Number of elements cropped at the start, negative for padding; a number or a tensor.
        after: Number of elements cropped at the end, negative for padding; a number or a tensor.
    """

    kernel: int
    stride: int
    dilation: int
    full: Size
    before: Size
    after: Size

    @property
    def size(self) -> Size:
        """Size after cropping and before padding."""
        return self.full - positive(self.before) - positive(self.after)


def _spread_axes(node: OnnxNode, x: Tensor, w: Tensor) -> list[_SpreadAxis]:
    kernel = [node.refuse("a filter of unknown size") if s is None else s for s in (w.dims or ())[2:]]
    count = len(kernel)
    strides, dilations = node.attr("strides", []) or [1] * count, node.attr("dilations", []) or [1] * count
    more, pads = node.attr("output_padding", []) or [0] * count, node.attr("pads", []) or [0] * (2 * count)
    wanted, mode = node.attr("output_shape", []), node.attr("auto_pad", "NOTSET")
    axes = []
    for i, size in enumerate(sizes_of(x)[2:]):
        # The size that all windows cover: (size - 1) · stride + (kernel - 1) · dilation + 1.
        full = (size - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        before, after = pads[i], pads[i + count]
        if wanted or mode.startswith("SAME"):
            # This total crops the size to that of x times the stride.
            reach = (kernel[i] - 1) * dilations[i] + 1 + more[i] - strides[i]
            total = full + more[i] - wanted[-count:][i] if wanted else reach
            # The odd element is cropped at the end for SAME_UPPER, and at the start otherwise.
            less = quotient(total, 2)
            before, after = (less, total - less) if mode == "SAME_UPPER" else (total - less, less)
        elif mode == "VALID":
            before, after = 0, 0
        # `output_padding` is cropped less at the end, or padded there.
        axes.append(_SpreadAxis(kernel[i], strides[i], dilations[i], full, before, after - more[i]))
    return axes


def _spread(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None, axes: list[_SpreadAxis]) -> Tensor:
    """Return the transposed convolution of images."""
    is_fed = any(isinstance(edge, Tensor) for axis in axes for edge in (axis.before, axis.after))
    # The kernel itself crops numbers of elements that are known; others are cropped afterwards.
    pads: list[Any] = [[0, 0], *([positive(axis.before), positive(axis.after)] for axis in axes), [0, 0]]
    y = convolution.conv2d_backprop_input(
        _shape([sizes_of(x)[0], *(axis.full if is_fed else axis.size for axis in axes), _channels(node, w)]),
        ops.transpose(w, [2, 3, 1, 0]),
        channels_last(x, 4),
        strides=[axis.stride for axis in axes],
        padding="VALID" if is_fed else pads,
        dilations=[axis.dilation for axis in axes],
    )
    y = _extended(_cut(y, axes) if is_fed else y, axes)
    return channels_first(y if b is None else activations.bias_add(y, b), 4)


def _spread_volume(node: OnnxNode, x: Tensor, w: Tensor, b: Tensor | None, axes: list[_SpreadAxis]) -> Tensor:
    y = volumes.conv3d_transpose(
        channels_last(x, 5),
        ops.transpose(w, [2, 3, 4, 1, 0]),
        _shape([sizes_of(x)[0], *(axis.full for axis in axes), _channels(node, w)]),
        strides=[axis.stride for axis in axes],
        padding="VALID",
        dilations=[axis.dilation for axis in axes],
    )
    y = _extended(_cut(y, axes), axes)
    return channels_first(y if b is None else activations.bias_add(y, b), 5)


def _channels(node: OnnxNode, w: Tensor) -> int:
    channels = (w.dims or ())[1]
    return node.refuse("a filter of unknown size") if channels is None else channels * int(node.attr("group", 1))


def _cut(y: Tensor, axes: list[_SpreadAxis]) -> Tensor:
    """Return the result cropped."""
    begin = [0, *(positive(axis.before) for axis in axes), 0]
    return ops.slice(y, _shape(begin), _shape([-1, *(axis.size for axis in axes), -1]))


def _extended(y: Tensor, axes: list[_SpreadAxis]) -> Tensor:
    """Return the result padded."""
    missing = [[positive(-axis.before), positive(-axis.after)] for axis in axes]
    if any(isinstance(edge, Tensor) or edge for pair in missing for edge in pair):
        return ops.pad(y, [[0, 0], *missing, [0, 0]])
    return y


def _shape(sizes: list[Size]) -> Tensor:
    if all(isinstance(s, int) for s in sizes):
        return convert_to_tensor(np.array(sizes, np.int32))
    return ops.cast(ops.stack([int64(s) for s in sizes]), "int32")
