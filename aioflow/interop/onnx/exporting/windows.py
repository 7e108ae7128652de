"""How windows of convolutions and pools move, as ONNX says it: spatial axes alone, paddings in numbers.

ONNX's "SAME_UPPER" is TensorFlow's "SAME". It serves where the size of the image is not known and matters; otherwise
the paddings are written out, which every runtime takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aioflow.graph.shapes import Dims
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.values import Value

__all__ = ["Windows", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """The attributes of a node with windows, along its spatial axes.

    Attributes:
        channels_first: Our graph has the channels in the second axis.
        spatial: The places of the spatial axes in our graph.
        scheme: "SAME", "VALID" or "EXPLICIT".
        explicit: Paddings before and after, for the last.
    """

    channels_first: bool
    spatial: tuple[int, ...]
    strides: list[int]
    dilations: list[int]
    scheme: str
    explicit: list[tuple[int, int]]

    def pads_of(self, axis: int, size: int, kernel: int) -> tuple[int, int]:
        """The paddings of an image of `size`, before and after; of two that differ the greater is after."""
        if self.scheme != "SAME":
            return self.explicit[axis]
        stride = self.strides[axis]
        span = (kernel - 1) * self.dilations[axis] + 1
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        return total // 2, total - total // 2

    def padding(self, node: Node, images: Value, kernel: Sequence[int | None] | None) -> dict[str, Any]:
        """The attribute that says how to pad.

        Args:
            images: With its channels first.
            kernel: The sizes of the kernel.
        """
        if self.scheme != "SAME":
            pairs = self.explicit
        else:
            sizes: Dims = None if images.dims is None else images.dims[2:]
            known = [self._same(axis, sizes, kernel) for axis in range(len(self.strides))]
            if None in known:
                self._check_spans(node, kernel)
                return {"auto_pad": "SAME_UPPER"}
            pairs = [pair for pair in known if pair is not None]
        return {"pads": [before for before, _ in pairs] + [after for _, after in pairs]}

    def _check_spans(self, node: Node, kernel: Sequence[int | None] | None) -> None:
        """onnxruntime pads less than nothing where windows leave gaps between them."""
        for own, stride, dilation in zip(kernel or (), self.strides, self.dilations, strict=False):
            if own is not None and own > 1 and (own - 1) * dilation + 1 < stride:
                node.refuse("padding='SAME' with gaps between windows, on images of unknown size")

    def _same(self, axis: int, sizes: Dims, kernel: Sequence[int | None] | None) -> tuple[int, int] | None:
        own = None if kernel is None else kernel[axis]
        size = None if sizes is None else sizes[axis]
        if own == 1:
            return 0, 0
        if own is None or (size is None and self.strides[axis] != 1):
            return None
        if size is None:  # every position has its window, whatever the size
            total = (own - 1) * self.dilations[axis]
            return total // 2, total - total // 2
        return self.pads_of(axis, size, own)


def windows_of(node: Node, rank: int) -> Windows:
    """The windows of a node on images of that rank."""
    layout = str(node.attr("data_format", "NHWC"))
    channels_first = layout.startswith("NC")
    spatial = tuple(range(2, rank)) if channels_first else tuple(range(1, rank - 1))
    strides = [int(node.attr("strides")[axis]) for axis in spatial]
    dilations = [int(node.attr("dilations", (1,) * rank)[axis]) for axis in spatial]
    explicit = node.attr("explicit_paddings", ())
    pairs = [(int(explicit[2 * axis]), int(explicit[2 * axis + 1])) if explicit else (0, 0) for axis in spatial]
    scheme = node.attr("padding")
    return Windows(channels_first, spatial, strides, dilations, scheme if isinstance(scheme, str) else "", pairs)
