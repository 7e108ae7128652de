"""The geometry of convolutions and pools along any number of axes: layouts, padding schemes, numbers of windows.

Shape functions use it with sizes that may be unknown, kernels with known ones, so that both reject the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.shapes import Dims, format_dims
from aioflow.memory.values import Array, Shape

# The arguments of layers: "EXPLICIT" is an attribute that paddings per axis set.
PaddingScheme: TypeAlias = Literal["SAME", "VALID"]
PaddingLike: TypeAlias = PaddingScheme | Sequence[Sequence[int]]  # a scheme, or [[before, after]] for each axis
ImageFormat: TypeAlias = Literal["NHWC", "NCHW"]
VolumeFormat: TypeAlias = Literal["NDHWC", "NCDHW"]

Pair: TypeAlias = tuple[int, int]
StaticSize: TypeAlias = int | None
T = TypeVar("T")

_AXES: Final = ("depth", "height", "width")  # the last axes have these names in errors


class Layout(NamedTuple):
    """The order of a batch's axes: the batch first, adjacent spatial axes, channels before or after them.

    Attributes:
        axes: The number of spatial axes.
        first: The first spatial axis.
        channel: The axis of channels.
        to_last: The permutation that moves the channels last.
        from_last: The inverse of `to_last`.
    """

    axes: int
    first: int
    channel: int
    to_last: Shape
    from_last: Shape

    @classmethod
    def of(cls, axes: int, channels_first: bool) -> Layout:
        """Return the layout with this number of spatial axes."""
        # The axes are (batch, channels, spatial …) or (batch, spatial …, channels).
        around = (*range(2, axes + 2),) if channels_first else (*range(1, axes + 1),)
        channel = 1 if channels_first else axes + 1
        back = (0, axes + 1, *range(1, axes + 1)) if channels_first else (*range(axes + 2),)
        return cls(axes, around[0], channel, (0, *around, channel), back)

    @property
    def rank(self) -> int:
        """The number of all axes."""
        return self.axes + 2

    def spatial(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the entries of `values` for the spatial axes; `values` has one entry per axis."""
        return tuple(values[self.first : self.first + self.axes])

    def arrange(self, batch: StaticSize, sizes: Sequence[StaticSize], channel: StaticSize) -> tuple[StaticSize, ...]:
        """Return the sizes in the order of this layout."""
        return (batch, channel, *sizes) if self.channel == 1 else (batch, *sizes, channel)

    def last(self, array: Array) -> Array:
        """Return a view of `array`, which has this layout, with channels last."""
        return array.transpose(self.to_last) if self.channel == 1 else array

    def back(self, array: Array) -> Array:
        """Return a view of `array`, which has channels last, in this layout."""
        return array.transpose(self.from_last) if self.channel == 1 else array

    def sizes_last(self, shape: Shape) -> Shape:
        """Return a shape of this layout with channels last."""
        return (shape[0], *shape[2:], shape[1]) if self.channel == 1 else shape


_LAYOUTS: Final = {
    "NHWC": Layout.of(2, False),
    "NCHW": Layout.of(2, True),
    "NDHWC": Layout.of(3, False),
    "NCDHW": Layout.of(3, True),
}


def layout_of(data_format: str) -> Layout:
    """Return the layout named `data_format`. Raises UnimplementedError if the name is unknown."""
    found = _LAYOUTS.get(data_format)
    if found is None:
        raise UnimplementedError(
            f"data_format {data_format!r} is not supported",
            expected=f"one of {', '.join(_LAYOUTS)}",
            actual=data_format,
        )
    return found


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> Pair:
    """Return the padding (before, after) of SAME: ceil(size / stride) windows, the odd element after."""
    # padding = (windows − 1) · stride + span − size, with span = (kernel − 1) · dilation + 1.
    total = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size
    if total <= 0:
        return 0, 0
    before = total // 2
    return before, total - before


@dataclass(frozen=True, slots=True)
class Fit:
    """The windows of `kernel` positions over `size` elements. Each field has one entry per spatial axis.

    Attributes:
        pads: (before, after).
        count: The number of windows.
    """

    size: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: tuple[Pair, ...]
    count: Shape


@dataclass(frozen=True, slots=True)
class Window:
    """The movement of windows: strides and dilations along the spatial axes, padding scheme and explicit paddings."""

    layout: Layout
    strides: Shape
    dilations: Shape
    padding: str
    explicit: tuple[Pair, ...]

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Window:
        """Return the window of a node with these attributes.

        Raises:
            InvalidArgumentError: a list does not have one element for each axis, a stride or dilation is not positive,
                or the explicit paddings do not match the padding scheme.
            UnimplementedError: windows move over batch or channels, or the data format is unknown.
        """
        layout = layout_of(attrs.get("data_format", "NHWC"))
        strides = _spatial_only("strides", attrs["strides"], layout)
        dilations = attrs.get("dilations")
        spread = (1,) * layout.axes if dilations is None else _spatial_only("dilations", dilations, layout)
        explicit = _explicit(attrs["padding"], attrs.get("explicit_paddings", ()), layout)
        return cls(layout, strides, spread, attrs["padding"], explicit)

    def outputs(self, sizes: Sequence[StaticSize], kernel: Sequence[StaticSize]) -> tuple[StaticSize, ...]:
        """Return the number of windows along each spatial axis; None if unknown.

        Raises:
            InvalidArgumentError: a kernel size is not positive, or the kernel is larger than the padded array.
        """
        return tuple([self._outputs_along(axis, size, kernel[axis]) for axis, size in enumerate(sizes)])

    def _outputs_along(self, axis: int, size: StaticSize, kernel: StaticSize) -> StaticSize:
        if kernel is not None and kernel < 1:
            raise InvalidArgumentError("a window has no size", expected="window sizes >= 1", actual=kernel)
        if size is None:
            return None
        if self.padding == "SAME":
            # ceil(size / stride), whatever the window: SAME pads as much as that needs.
            return -(-size // self.strides[axis])
        if kernel is None:
            return None
        # The distance between a window's first and last position, both included.
        span = (kernel - 1) * self.dilations[axis] + 1
        padded = size + sum(self.explicit[axis])
        if padded < span:
            raise InvalidArgumentError(
                "computed output size would be negative: the window is larger than the image",
                expected=f"a {_AXES[axis - self.layout.axes]} of at least {span}, padding included",
                actual=padded,
            )
        # windows = floor((size + padding − span) / stride) + 1
        return (padded - span) // self.strides[axis] + 1

    def pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Pair, ...]:
        """Return the padding (before, after) of each spatial axis."""
        if self.padding != "SAME":
            return self.explicit
        strides, dilations = self.strides, self.dilations
        return tuple([same_padding(size, kernel[i], strides[i], dilations[i]) for i, size in enumerate(sizes)])

    def fit(self, kind: Callable[..., T], image: Shape, kernel: Shape, made: Shape) -> T:
        """Call `kind` with the fields of a `Fit`: the windows over shape `image` that yield shape `made`."""
        size = self.layout.spatial(image)
        pads = self.pads(size, kernel)
        return kind(size, kernel, self.strides, self.dilations, pads, self.layout.spatial(made))


def _spatial_only(name: str, values: Sequence[int], layout: Layout) -> Shape:
    if len(values) != layout.axes + 2:
        raise InvalidArgumentError(
            f"attribute {name!r} needs one value per axis", expected=f"{layout.rank} values", actual=list(values)
        )
    if min(values) < 1:
        raise InvalidArgumentError(f"attribute {name!r} must be positive", expected=">= 1", actual=list(values))
    if values[0] != 1 or values[layout.channel] != 1:
        raise UnimplementedError(
            f"attribute {name!r} must be 1 for batch and channels: windows move over spatial axes only",
            expected="1 for batch and channels",
            actual=list(values),
        )
    return layout.spatial(values)


def _explicit(padding: str, values: Sequence[int], layout: Layout) -> tuple[Pair, ...]:
    if padding != "EXPLICIT":
        if values:
            raise InvalidArgumentError(
                "explicit_paddings can only be given with padding EXPLICIT",
                expected="no explicit_paddings",
                actual=list(values),
            )
        return ((0, 0),) * layout.axes
    # Two values per axis, batch and channels included, as in TensorFlow's attribute.
    if len(values) != 2 * layout.rank or min(values) < 0:
        raise InvalidArgumentError(
            "explicit_paddings needs (before, after) for each axis",
            expected=f"{2 * layout.rank} values >= 0",
            actual=list(values),
        )
    pairs = list(zip(values[::2], values[1::2], strict=True))
    if any(pairs[0]) or any(pairs[layout.channel]):
        raise InvalidArgumentError(
            "batch and channels cannot be padded", expected="0 for batch and channels", actual=list(values)
        )
    return layout.spatial(pairs)


def _sizes(name: str, dims: Dims, rank: int) -> tuple[StaticSize, ...]:
    if dims is None:
        return (None,) * rank
    if len(dims) != rank:
        raise InvalidArgumentError(f"{name} has the wrong rank", expected=f"rank {rank}", actual=format_dims(dims))
    return dims


def _operands(window: Window, image: Dims, kernel: Dims) -> tuple[tuple[StaticSize, ...], tuple[StaticSize, ...]]:
    """Return the sizes of an image and of a filter, which always has its spatial axes first and the outputs last."""
    rank = window.layout.rank
    sizes, taps = _sizes("input", image, rank), _sizes("filter", kernel, rank)
    if 0 in taps[:-1]:
        raise InvalidArgumentError(
            "filter must not be empty", expected="sizes >= 1, except for outputs", actual=format_dims(taps)
        )
    return sizes, taps


def _made(window: Window, sizes: tuple[StaticSize, ...], kernel: Sequence[StaticSize], channels: StaticSize) -> Dims:
    layout = window.layout
    return layout.arrange(sizes[0], window.outputs(layout.spatial(sizes), kernel), channels)


def conv_dims(window: Window, image: Dims, kernel: Dims) -> Dims:
    """Return the shape of the convolution of `image` by `kernel` [spatial sizes …, channels / groups, outputs].

    Raises:
        InvalidArgumentError: a rank, a channel count or a size does not fit.
    """
    sizes, taps = _operands(window, image, kernel)
    channels, per_group, made = sizes[window.layout.channel], taps[-2], taps[-1]
    if channels is not None and per_group is not None:
        if channels == 0 or channels % per_group:
            raise InvalidArgumentError(
                f"input depth must be a multiple of the filter's input depth: {channels} against {per_group}",
                expected=f"input of depth {per_group}, or a multiple of it",
                actual=f"input {format_dims(image)}, filter {format_dims(kernel)}",
            )
        # Grouped convolution: each group of input channels has its own outputs.
        groups = channels // per_group
        if made is not None and made % groups:
            raise InvalidArgumentError(
                f"output depth must be a multiple of the {groups} groups",
                expected=f"a multiple of {groups}",
                actual=made,
            )
    return _made(window, sizes, taps[:-2], made)


def depthwise_dims(window: Window, image: Dims, kernel: Dims) -> Dims:
    """Return the shape of the depthwise convolution of `image` by `kernel` [spatial sizes …, channels, multiplier].

    Raises:
        InvalidArgumentError: a rank, the channel count or a size does not fit.
    """
    sizes, taps = _operands(window, image, kernel)
    channels, own = sizes[window.layout.channel], taps[-2]
    if channels is not None and own is not None and channels != own:
        raise InvalidArgumentError(
            f"input and filter must have the same depth: {channels} against {own}",
            expected=f"depth {own}",
            actual=channels,
        )
    depth = channels if own is None else own
    return _made(window, sizes, taps[:-2], None if depth is None or taps[-1] is None else depth * taps[-1])


def pool_dims(window: Window, ksize: Sequence[int], image: Dims) -> Dims:
    """Return the shape of a pool over `image`.

    Raises:
        InvalidArgumentError: the rank or a size does not fit.
        UnimplementedError: windows move over batch or channels.
    """
    sizes = _sizes("input", image, window.layout.rank)
    return _made(window, sizes, pool_kernel(window, ksize), sizes[window.layout.channel])


def pool_kernel(window: Window, ksize: Sequence[int]) -> Shape:
    """Return the spatial sizes of a pool's windows.

    Raises:
        InvalidArgumentError: `ksize` does not have one positive element for each axis.
        UnimplementedError: windows cover several elements of the batch or several channels.
    """
    return _spatial_only("ksize", ksize, window.layout)
