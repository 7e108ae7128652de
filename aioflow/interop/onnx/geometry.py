"""Windows of convolutions and pools as ONNX gives them: `auto_pad`, `pads`, `ceil_mode`, any number of axes.

What a padding comes to may depend on the size of the images. Where that is known only in the step, so is the padding: a
scalar of int64 in the place of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.layout import padded
from aioflow.interop.onnx.sizes import int64, rank_of, sizes_of
from aioflow.interop.onnx.translating import Node
from aioflow.ops import public as ops
from aioflow.ops.apply import constant

__all__ = ["Windows", "framed", "positive", "quotient", "windows_of"]

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along each spatial axis.

    Attributes:
        kernel, strides, dilations: One number an axis.
        pads: (before, after) an axis; None for what keeps the size, the odd element after, where sizes are not known.
        extra: How much more is needed after the end, so that the last window is whole (`ceil_mode`).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Pair, ...] | None
    extra: tuple[Any, ...]

    @property
    def padded(self) -> bool:
        """Whether something is put around, or may be."""
        return self.pads is None or any(map(_is_some, self._around()))

    @property
    def grown(self) -> bool:
        """Whether the last windows need more than the padding, or may do so."""
        return any(map(_is_some, self.extra))

    @property
    def is_fed(self) -> bool:
        """Whether the step tells what is put around."""
        return any(isinstance(each, Tensor) for each in self._around())

    def whole_pads(self) -> list[list[Any]]:
        """The paddings with what the last windows need. They are not None."""
        return [[before, after + more] for (before, after), more in zip(self.pads or (), self.extra, strict=True)]

    def bare(self) -> Windows:
        """The same over images that are padded already."""
        none = (0,) * len(self.kernel)
        return replace(self, pads=tuple(zip(none, none, strict=True)), extra=none)

    def _around(self) -> Iterator[Any]:
        for pair in self.pads or ():
            yield from pair
        yield from self.extra


def _is_some(number: Any) -> bool:
    return isinstance(number, Tensor) or number != 0


def framed(x: Tensor, windows: Windows, fill: Any) -> Tensor:
    """Images of [batch, channels, spatial …] with what the windows need around them."""
    if not windows.padded:
        return x
    return padded(x, [[0, 0], [0, 0], *windows.whole_pads()], constant(fill, x.dtype))


def windows_of(node: Node, x: Tensor, kernel: Sequence[int], keeps_same: bool = False) -> Windows:
    """The windows of a node over images of [batch, channels, spatial …].

    Args:
        keeps_same: Leave a padding None that keeps the size, where the sizes are not known: for kernels that pad so.
    """
    count = rank_of(node, x) - 2
    strides = _each(node, "strides", count)
    dilations = _each(node, "dilations", count)
    if len(kernel) != count:
        raise node.wrong("the kernel", f"{count} sizes", list(kernel))
    sizes = sizes_of(x)[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(node, sizes, spans, strides, keeps_same)
    extra: list[Any] = [0] * count
    if node.attr("ceil_mode", 0):
        extra = [_extra(*each) for each in zip(sizes, spans, strides, pads or ((0, 0),) * count, strict=True)]
    return Windows(tuple(kernel), tuple(strides), tuple(dilations), pads, tuple(extra))


def _each(node: Node, name: str, count: int) -> list[int]:
    values: list[int] = node.attr(name, []) or [1] * count
    if len(values) != count or min(values, default=1) < 1:
        raise node.wrong(f"attribute {name!r}", f"{count} positive numbers", values)
    return values


def _pads(
    node: Node, sizes: Sequence[Any], spans: Sequence[int], strides: Sequence[int], keeps_same: bool
) -> tuple[Pair, ...] | None:
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


def _same(mode: str, size: Any, span: int, stride: int) -> Pair:
    if stride == 1:  # each element has its window, whatever the size
        total: Any = span - 1
    else:
        total = positive((quotient(size + stride - 1, stride) - 1) * stride + span - size)
    less = quotient(total, 2)
    more = total - less
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _extra(size: Any, span: int, stride: int, pads: Pair) -> Any:
    """What is missing to one more window; a window that begins beyond the image and its first padding is none."""
    if stride == 1:
        return 0
    room = size + sum(pads) - span
    last = quotient(room + stride - 1, stride) * stride  # where the last window begins
    if isinstance(last, Tensor):
        last = ops.where_v2(ops.greater_equal(last, size + pads[0]), last - stride, last)
    elif last >= size + pads[0]:
        last -= stride
    return positive(last - room)


def quotient(number: Any, by: int) -> Any:
    """Rounded down."""
    return ops.floordiv(number, int64(by)) if isinstance(number, Tensor) else number // by


def positive(number: Any) -> Any:
    """The number, or 0 where it is less."""
    return ops.maximum(number, int64(0)) if isinstance(number, Tensor) else max(0, number)
