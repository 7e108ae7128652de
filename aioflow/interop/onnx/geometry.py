"""Images and windows in ONNX's terms: channels before the spatial axes, `auto_pad`, `pads`, any number of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.static_value import constant_value
from aioflow.interop.onnx.sizes import Size, int64, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.ops import public as ops
from aioflow.ops.apply import constant

# ── the layout of images ──────────────────────────────────────────────────────────────────────────────────────────────
#
# ONNX has the channels before the spatial axes; aioflow's kernels are fastest with them last. Ops on images therefore
# transpose to channels last and back. Ops in between keep the channels last if their inputs came that way: adjacent
# transposes then cancel out, and the compiler removes them. Elementwise nodes need no such care, since the compiler
# moves transposes past them.


_FAR: Final = 16  # longest chain of elementwise nodes to look through


def channels_last(x: Tensor, rank: int) -> Tensor:
    """Return [batch, channels, spatial …] as [batch, spatial …, channels]."""
    return ops.transpose(x, [0, *range(2, rank), 1])


def channels_first(x: Tensor, rank: int) -> Tensor:
    """Return [batch, spatial …, channels] as [batch, channels, spatial …]."""
    return ops.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def keeps_last(x: Tensor) -> bool:
    """Return whether a value is the result of `channels_first`, or an elementwise function of it."""
    rank = len(x.dims or ())
    for _ in range(_FAR if rank > 2 else 0):
        op = x.op
        if op.type == "Transpose":
            order = constant_value(op.inputs[1])
            return order is not None and order.tolist() == [0, rank - 1, *range(1, rank - 1)]
        # Operands of lower rank broadcast, and the compiler folds the transpose of a constant: neither decides the
        # layout.
        alike = [each for each in op.inputs if len(each.dims or ()) == rank and each.op.type != "Const"]
        if traits_of(op.type).kind != "elementwise" or not alike:
            return False
        x = alike[0]
    return False


def in_last(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to the images with channels last, and return the result with channels first."""
    rank = len(x.dims or ())
    return channels_first(function(channels_last(x, rank)), rank)


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate the tensors along an axis."""
    if not all(map(keeps_last, tensors)):
        return ops.concat(list(tensors), axis)
    rank = len(tensors[0].dims or ())
    return channels_first(ops.concat([channels_last(x, rank) for x in tensors], _axis(axis, rank)), rank)


def padded(x: Tensor, pairs: Sequence[Sequence[int | Tensor]], fill: Tensor) -> Tensor:
    """Pad the tensor with `fill`, (before, after) for each axis."""
    if not keeps_last(x):
        return ops.pad(x, list(pairs), constant_values=fill)
    # The channels' padding moves to the end with the channels.
    around = [pairs[0], *pairs[2:], pairs[1]]
    return in_last(x, lambda image: ops.pad(image, around, constant_values=fill))


def _axis(axis: int, rank: int) -> int:
    """Return the position of an axis when the channels are last."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


# ── windows ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A padding may depend on the size of the images. If the size is known only in the step, the padding is an int64 scalar
# tensor instead of a number.


SizePair: TypeAlias = tuple[Size, Size]


@dataclass(frozen=True, slots=True)
class SpatialWindows:
    """Windows along each spatial axis.

    Attributes:
        kernel: Size per axis.
        strides: Stride per axis.
        dilations: Dilation per axis.
        pads: (before, after) per axis; None for SAME padding of unknown sizes, with the odd element at the end.
        extra: Padding needed after `pads` to complete the last window (`ceil_mode`), per axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[SizePair, ...] | None
    extra: tuple[Size, ...]

    @property
    def padded(self) -> bool:
        """True if the images need padding, or may need it."""
        return self.pads is None or any(map(_is_some, self._around()))

    @property
    def grown(self) -> bool:
        """True if the last windows need more than `pads`, or may need it."""
        return any(map(_is_some, self.extra))

    @property
    def is_fed(self) -> bool:
        """True if a padding is known only in the step."""
        return any(isinstance(each, Tensor) for each in self._around())

    def whole_pads(self) -> list[list[Any]]:
        """Return `pads` with `extra` added. `pads` must not be None."""
        return [[before, after + more] for (before, after), more in zip(self.pads or (), self.extra, strict=True)]

    def bare(self) -> SpatialWindows:
        """Return the same windows for images that are padded already."""
        none = (0,) * len(self.kernel)
        return replace(self, pads=tuple(zip(none, none, strict=True)), extra=none)

    def _around(self) -> Iterator[Size]:
        for pair in self.pads or ():
            yield from pair
        yield from self.extra


def _is_some(number: Size) -> bool:
    return isinstance(number, Tensor) or number != 0


def framed(x: Tensor, windows: SpatialWindows, fill: float) -> Tensor:
    """Pad images of [batch, channels, spatial …] as the windows need."""
    if not windows.padded:
        return x
    return padded(x, [[0, 0], [0, 0], *windows.whole_pads()], constant(fill, x.dtype))


def windows_of(node: OnnxNode, x: Tensor, kernel: Sequence[int], keeps_same: bool = False) -> SpatialWindows:
    """Return the windows of a node over images of [batch, channels, spatial …].

    Args:
        node: The node.
        x: The images.
        kernel: Sizes of the kernel.
        keeps_same: Whether to leave SAME padding as None if the sizes are unknown, for kernels that pad that way.

    Raises:
        InvalidArgumentError: the kernel or an attribute does not fit the number of spatial axes.
    """
    count = rank_of(node, x) - 2
    strides = _each(node, "strides", count)
    dilations = _each(node, "dilations", count)
    if len(kernel) != count:
        raise node.wrong("the kernel", f"{count} sizes", list(kernel))
    sizes = sizes_of(x)[2:]
    # A dilated kernel of k elements covers (k - 1) · dilation + 1.
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(node, sizes, spans, strides, keeps_same)
    extra: list[Size] = [0] * count
    if node.attr("ceil_mode", 0):
        extra = [_extra(*each) for each in zip(sizes, spans, strides, pads or ((0, 0),) * count, strict=True)]
    return SpatialWindows(tuple(kernel), tuple(strides), tuple(dilations), pads, tuple(extra))


def _each(node: OnnxNode, name: str, count: int) -> list[int]:
    values: list[int] = node.attr(name, []) or [1] * count
    if len(values) != count or min(values, default=1) < 1:
        raise node.wrong(f"attribute {name!r}", f"{count} positive numbers", values)
    return values


def _pads(
    node: OnnxNode, sizes: Sequence[Size], spans: Sequence[int], strides: Sequence[int], keeps_same: bool
) -> tuple[SizePair, ...] | None:
    mode = node.attr("auto_pad", "NOTSET")
    count = len(spans)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = tuple(_same(mode, *each) for each in zip(sizes, spans, strides, strict=True))
        is_fed = any(isinstance(edge, Tensor) for pair in pads for edge in pair)
        return None if is_fed and keeps_same and mode == "SAME_UPPER" and not node.attr("ceil_mode", 0) else pads
    values = node.attr("pads", []) or [0] * (2 * count)
    if mode == "VALID":
        values = [0] * (2 * count)
    elif mode != "NOTSET" or len(values) != 2 * count:
        raise node.wrong("the padding", f"{2 * count} numbers, or a known auto_pad", (mode, values))
    return tuple(zip(values[:count], values[count:], strict=True))


def _same(mode: str, size: Size, span: int, stride: int) -> SizePair:
    if stride == 1:  # each element has its window, so the size does not matter
        total: Size = span - 1
    else:
        # (⌈size / stride⌉ - 1) · stride + span - size, as in TensorFlow's SAME.
        total = positive((quotient(size + stride - 1, stride) - 1) * stride + span - size)
    # An odd padding puts the additional element at the end (UPPER) or at the start (LOWER).
    less = quotient(total, 2)
    more = total - less
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _extra(size: Size, span: int, stride: int, pads: SizePair) -> Size:
    """Return the padding that is missing at the end to complete one more window.

    A window that would begin beyond the image and its leading padding is not added.
    """
    if stride == 1:
        return 0
    room = size + sum(pads) - span
    last = quotient(room + stride - 1, stride) * stride  # start of the last window
    if isinstance(last, Tensor):
        last = ops.where_v2(ops.greater_equal(last, size + pads[0]), last - stride, last)
    elif last >= size + pads[0]:
        last -= stride
    return positive(last - room)


def quotient(number: Size, by: int) -> Size:
    """Divide, rounding down."""
    return ops.floordiv(number, int64(by)) if isinstance(number, Tensor) else number // by


def positive(number: Size) -> Size:
    """Return the number, or 0 if it is negative."""
    return ops.maximum(number, int64(0)) if isinstance(number, Tensor) else max(0, number)
