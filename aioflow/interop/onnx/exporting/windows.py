"""How windows of convolutions and pools move, as ONNX says it: spatial axes alone, paddings in numbers.

ONNX's "SAME_UPPER" is TensorFlow's "SAME". It serves where the size of the image is not known and matters; otherwise
the paddings are written out, which every runtime takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aioflow.graph.shapes import Dims
from aioflow.graph.windows import Window, same_padding
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.values import Value

__all__ = ["Windows", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """The attributes of a node with windows, along its spatial axes."""

    window: Window

    @property
    def channels_first(self) -> bool:
        """Our graph has the channels in the second axis."""
        return self.window.layout.channel == 1

    @property
    def strides(self) -> list[int]:
        """How far apart windows are."""
        return list(self.window.strides)

    @property
    def dilations(self) -> list[int]:
        """How far apart taps are."""
        return list(self.window.dilations)

    def spatial(self, values: Sequence[Any]) -> list[Any]:
        """What `values`, given an axis of our graph, says of the spatial ones."""
        return list(self.window.layout.spatial(values))

    def padding(self, node: Node, images: Value, kernel: Sequence[int | None] | None) -> dict[str, Any]:
        """The attribute that says how to pad.

        Args:
            images: With its channels first.
            kernel: The sizes of the kernel.
        """
        pairs: Sequence[tuple[int, int]] = self.window.explicit
        if self.window.padding == "SAME":
            sizes: Dims = None if images.dims is None else images.dims[2:]
            known = [self._same(axis, sizes, kernel) for axis in range(self.window.layout.axes)]
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
        stride, dilation = self.window.strides[axis], self.window.dilations[axis]
        if own == 1:
            return 0, 0
        if own is None or (size is None and stride != 1):
            return None
        # With a stride of 1 every position has its window, whatever the size.
        return same_padding(1 if size is None else size, own, stride, dilation)


def windows_of(node: Node) -> Windows:
    """The windows of a node."""
    return Windows(Window.of(node.attrs))
