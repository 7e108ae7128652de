"""The geometry of convolutions and pools: layouts, padding schemes, and how many windows fit.

Shape functions use it with sizes that may be unknown, kernels with known ones, so that both refuse the same things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.shapes import Dims, format_dims

__all__ = ["Layout", "Window", "conv2d_dims", "depthwise_dims", "layout_of", "pool_dims"]

Pair: TypeAlias = tuple[int, int]
Size: TypeAlias = int | None


class Layout(NamedTuple):
    """Positions of the axes of an image batch."""

    batch: int
    rows: int
    columns: int
    channel: int

    def spatial(self, values: Sequence[Any]) -> tuple[Any, Any]:
        """What `values`, given an axis, says of rows and columns."""
        return values[self.rows], values[self.columns]

    def arrange(self, batch: Size, rows: Size, columns: Size, channel: Size) -> tuple[Size, ...]:
        """The four sizes in this order of axes."""
        sizes = {self.batch: batch, self.rows: rows, self.columns: columns, self.channel: channel}
        return tuple(sizes[i] for i in range(4))


_LAYOUTS: Final = {"NHWC": Layout(0, 1, 2, 3), "NCHW": Layout(0, 2, 3, 1)}


def layout_of(data_format: str) -> Layout:
    """The layout of that name. Raises UnimplementedError."""
    found = _LAYOUTS.get(data_format)
    if found is None:
        raise UnimplementedError(
            f"data_format {data_format!r} is not supported", expected="NHWC or NCHW", actual=data_format
        )
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """How windows move: (rows, columns) of strides and dilations, the padding scheme and its explicit sizes."""

    layout: Layout
    strides: Pair
    dilations: Pair
    padding: str
    explicit: tuple[Pair, Pair]

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Window:
        """The window of a node with these attributes.

        Raises:
            InvalidArgumentError: a list does not have four elements, a stride or dilation is not positive, or the
                explicit paddings do not match the padding scheme.
            UnimplementedError: windows that move over batch or channels.
        """
        layout = layout_of(attrs["data_format"])
        strides = _spatial_only("strides", attrs["strides"], layout)
        dilations = _spatial_only("dilations", attrs.get("dilations", (1, 1, 1, 1)), layout)
        explicit = _explicit(attrs["padding"], attrs.get("explicit_paddings", ()), layout)
        return cls(layout, strides, dilations, attrs["padding"], explicit)

    def outputs(self, sizes: tuple[Size, Size], kernel: tuple[Size, Size]) -> tuple[Size, Size]:
        """How many windows fit along rows and columns; None where it is not known.

        Raises:
            InvalidArgumentError: a kernel size is not positive, or the kernel is larger than the padded image.
        """
        return self._outputs_along(0, sizes[0], kernel[0]), self._outputs_along(1, sizes[1], kernel[1])

    def _outputs_along(self, axis: int, size: Size, kernel: Size) -> Size:
        if kernel is not None and kernel < 1:
            raise InvalidArgumentError("a window has no size", expected="window sizes >= 1", actual=kernel)
        stride = self.strides[axis]
        if size is None:
            return None
        if self.padding == "SAME":
            return -(-size // stride)
        if kernel is None:
            return None
        span = (kernel - 1) * self.dilations[axis] + 1
        padded = size + sum(self.explicit[axis])
        if padded < span:
            raise InvalidArgumentError(
                "computed output size would be negative: the window is larger than the image",
                expected=f"a {('height', 'width')[axis]} of at least {span}, padding included",
                actual=padded,
            )
        return (padded - span) // stride + 1

    def pads(self, sizes: Pair, kernel: Pair) -> tuple[Pair, Pair]:
        """The padding ((top, bottom), (left, right))."""
        if self.padding != "SAME":
            return self.explicit
        return self._same(0, sizes[0], kernel[0]), self._same(1, sizes[1], kernel[1])

    def _same(self, axis: int, size: int, kernel: int) -> Pair:
        stride = self.strides[axis]
        span = (kernel - 1) * self.dilations[axis] + 1
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        return total // 2, total - total // 2  # the odd element comes after


def _spatial_only(name: str, values: Sequence[int], layout: Layout) -> Pair:
    if len(values) != 4:
        raise InvalidArgumentError(
            f"attribute {name!r} needs one value per axis", expected="4 values", actual=list(values)
        )
    if min(values) < 1:
        raise InvalidArgumentError(f"attribute {name!r} must be positive", expected=">= 1", actual=list(values))
    if values[layout.batch] != 1 or values[layout.channel] != 1:
        raise UnimplementedError(
            f"attribute {name!r} must be 1 for batch and channels: windows move over rows and columns only",
            expected="1 for batch and channels",
            actual=list(values),
        )
    return layout.spatial(values)


def _explicit(padding: str, values: Sequence[int], layout: Layout) -> tuple[Pair, Pair]:
    if padding != "EXPLICIT":
        if values:
            raise InvalidArgumentError(
                "explicit_paddings can only be given with padding EXPLICIT",
                expected="no explicit_paddings",
                actual=list(values),
            )
        return (0, 0), (0, 0)
    if len(values) != 8 or min(values) < 0:
        raise InvalidArgumentError(
            "explicit_paddings needs (before, after) for each of four axes",
            expected="8 values >= 0",
            actual=list(values),
        )
    pairs = [(values[2 * i], values[2 * i + 1]) for i in range(4)]
    if any(pairs[layout.batch]) or any(pairs[layout.channel]):
        raise InvalidArgumentError(
            "batch and channels cannot be padded", expected="0 for batch and channels", actual=list(values)
        )
    return layout.spatial(pairs)


def _rank4(name: str, dims: Dims) -> tuple[Size, ...]:
    if dims is None:
        return (None,) * 4
    if len(dims) != 4:
        raise InvalidArgumentError(f"{name} has the wrong rank", expected="rank 4", actual=format_dims(dims))
    return dims


def _checked_filter(dims: Dims) -> tuple[Size, ...]:
    sizes = _rank4("filter", dims)
    if 0 in sizes[:3]:
        raise InvalidArgumentError(
            "filter must not be empty", expected="sizes >= 1, except for outputs", actual=format_dims(dims)
        )
    return sizes


def conv2d_dims(window: Window, image: Dims, kernel: Dims) -> Dims:
    """Shape of the convolution of `image` by `kernel` [rows, columns, channels / groups, outputs].

    Raises:
        InvalidArgumentError: a rank, a channel count or a size does not fit.
    """
    sizes, taps = _rank4("input", image), _checked_filter(kernel)
    channels, per_group, made = sizes[window.layout.channel], taps[2], taps[3]
    if channels is not None and per_group is not None:
        if channels == 0 or channels % per_group:
            raise InvalidArgumentError(
                f"input depth must be a multiple of the filter's input depth: {channels} against {per_group}",
                expected=f"input of depth {per_group}, or a multiple of it",
                actual=f"input {format_dims(image)}, filter {format_dims(kernel)}",
            )
        groups = channels // per_group
        if made is not None and made % groups:
            raise InvalidArgumentError(
                f"output depth must be a multiple of the {groups} groups",
                expected=f"a multiple of {groups}",
                actual=made,
            )
    rows, columns = window.outputs(window.layout.spatial(sizes), (taps[0], taps[1]))
    return window.layout.arrange(sizes[window.layout.batch], rows, columns, made)


def depthwise_dims(window: Window, image: Dims, kernel: Dims) -> Dims:
    """Shape of the depthwise convolution of `image` by `kernel` [rows, columns, channels, multiplier].

    Raises:
        InvalidArgumentError: a rank, the channel count or a size does not fit.
    """
    sizes, taps = _rank4("input", image), _checked_filter(kernel)
    channels, own = sizes[window.layout.channel], taps[2]
    if channels is not None and own is not None and channels != own:
        raise InvalidArgumentError(
            f"input and filter must have the same depth: {channels} against {own}",
            expected=f"depth {own}",
            actual=channels,
        )
    depth = channels if own is None else own
    made = None if depth is None or taps[3] is None else depth * taps[3]
    rows, columns = window.outputs(window.layout.spatial(sizes), (taps[0], taps[1]))
    return window.layout.arrange(sizes[window.layout.batch], rows, columns, made)


def pool_dims(window: Window, ksize: Sequence[int], image: Dims) -> Dims:
    """Shape of a pool over `image`.

    Raises:
        InvalidArgumentError: the rank or a size does not fit.
        UnimplementedError: windows over batch or channels.
    """
    kernel = pool_kernel(window, ksize)
    sizes = _rank4("input", image)
    rows, columns = window.outputs(window.layout.spatial(sizes), kernel)
    return window.layout.arrange(sizes[window.layout.batch], rows, columns, sizes[window.layout.channel])


def pool_kernel(window: Window, ksize: Sequence[int]) -> Pair:
    """(rows, columns) of a pool's window size."""
    return _spatial_only("ksize", ksize, window.layout)
