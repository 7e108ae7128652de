"""Windows of convolutions and pools as ONNX gives them: `auto_pad`, `pads`, `ceil_mode`, any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aioflow.graph.shapes import Dims
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import Node

__all__ = ["Windows", "windows_of"]

Pair = tuple[int, int]


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
    extra: tuple[int, ...]

    @property
    def padded(self) -> bool:
        """Whether something is put around."""
        return self.pads is None or any(map(any, self.pads)) or any(self.extra)

    def whole_pads(self) -> list[list[int]]:
        """The paddings with what the last windows need. They are known."""
        pads = self.pads or ()
        return [[before, after + more] for (before, after), more in zip(pads, self.extra, strict=True)]


def windows_of(node: Node, x: Tensor, kernel: Sequence[int]) -> Windows:
    """The windows of a node over images of [batch, channels, spatial …]. Refuses one where a size is not known and
    the padding depends on it.
    """
    count = rank_of(node, x) - 2
    strides = _each(node, "strides", count)
    dilations = _each(node, "dilations", count)
    if len(kernel) != count:
        raise node.wrong("the kernel", f"{count} sizes", list(kernel))
    sizes = (x.dims or ())[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(node, sizes, spans, strides)
    extra = [0] * count
    if node.attr("ceil_mode", 0):
        extra = [_extra(node, *each) for each in zip(sizes, spans, strides, pads or ((0, 0),) * count, strict=True)]
    return Windows(tuple(kernel), tuple(strides), tuple(dilations), pads, tuple(extra))


def _each(node: Node, name: str, count: int) -> list[int]:
    values: list[int] = node.attr(name, []) or [1] * count
    if len(values) != count or min(values, default=1) < 1:
        raise node.wrong(f"attribute {name!r}", f"{count} positive numbers", values)
    return values


def _pads(node: Node, sizes: Dims, spans: Sequence[int], strides: Sequence[int]) -> tuple[Pair, ...] | None:
    mode = node.attr("auto_pad", "NOTSET")
    count = len(spans)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        if sizes is None or None in sizes:
            return None if mode == "SAME_UPPER" else node.refuse("auto_pad=SAME_LOWER of images of unknown size")
        return tuple(_same(mode, *each) for each in zip(sizes, spans, strides, strict=True))
    values = node.attr("pads", []) or [0] * (2 * count)
    if mode == "VALID":
        values = [0] * (2 * count)
    elif mode != "NOTSET" or len(values) != 2 * count:
        raise node.wrong("the padding", f"{2 * count} numbers, or a known auto_pad", (mode, values))
    return tuple(zip(values[:count], values[count:], strict=True))


def _same(mode: str, size: int | None, span: int, stride: int) -> Pair:
    total = max(0, (-(-(size or 0) // stride) - 1) * stride + span - (size or 0))
    less, more = total // 2, total - total // 2
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _extra(node: Node, size: int | None, span: int, stride: int, pads: Pair) -> int:
    """What is missing to one more window; a window that begins beyond the image and its first padding is none."""
    if size is None:
        return node.refuse("ceil_mode of images of unknown size")
    room = size + sum(pads) - span
    count = -(-room // stride) + 1
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return max(0, (count - 1) * stride - room)
