"""Windows of convolutions and pools in ONNX's terms: spatial axes alone, paddings as numbers.

ONNX's "SAME_UPPER" is TensorFlow's "SAME". It is used if the padding depends on an unknown image size. Otherwise the
paddings are written as numbers, which every runtime accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.ops.nn.geometry import Window, same_padding

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WindowAttributes:
    """Attributes of a node with windows, along its spatial axes."""

    window: Window

    @property
    def channels_first(self) -> bool:
        """True if the graph has the channels in the second axis."""
        return self.window.layout.channel == 1

    @property
    def strides(self) -> list[int]:
        """Distances between windows."""
        return list(self.window.strides)

    @property
    def dilations(self) -> list[int]:
        """Distances between kernel positions."""
        return list(self.window.dilations)

    def spatial(self, values: Sequence[_T]) -> list[_T]:
        """Return those of `values`, one per axis of the graph's tensor, that belong to spatial axes."""
        return list(self.window.layout.spatial(values))

    def padding(self, node: ExportedNode, images: ModelValue, kernel: Sequence[int | None] | None) -> Attrs:
        """Return the attribute that specifies the padding.

        Args:
            node: Node being translated.
            images: Images with their channels first.
            kernel: Sizes of the kernel.
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

    def _check_spans(self, node: ExportedNode, kernel: Sequence[int | None] | None) -> None:
        """Refuse windows with gaps between them, for which onnxruntime computes negative paddings."""
        for own, stride, dilation in zip(kernel or (), self.strides, self.dilations, strict=False):
            if own is not None and own > 1 and (own - 1) * dilation + 1 < stride:
                node.refuse("padding='SAME' with gaps between windows, on images of unknown size")

    def _same(self, axis: int, sizes: Dims, kernel: Sequence[int | None] | None) -> tuple[int, int] | None:
        own = None if kernel is None else kernel[axis]
        size = None if sizes is None else sizes[axis]
        stride, dilation = self.window.strides[axis], self.window.dilations[axis]
        # A kernel of one element needs no padding at any stride.
        if own == 1:
            return 0, 0
        if own is None or (size is None and stride != 1):
            return None
        # With a stride of 1 every position has its window, so the padding does not depend on the size.
        return same_padding(1 if size is None else size, own, stride, dilation)


def windows_of(node: ExportedNode) -> WindowAttributes:
    """Return the windows of a node."""
    return WindowAttributes(Window.of(node.attrs))
