"""The geometry of convolutions and pools over volumes: as `windows`, with a depth beside rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.shapes import Dims, format_dims

__all__ = ["VolumeWindow", "conv3d_dims", "pool3d_dims", "pool3d_kernel"]

Size: TypeAlias = int | None
Triple: TypeAlias = tuple[int, int, int]

_CHANNEL: Final = {"NDHWC": 4, "NCDHW": 1}
_ONES: Final = (1, 1, 1, 1, 1)
_AXES: Final = ("depth", "height", "width")


@dataclass(frozen=True, slots=True)
class VolumeWindow:
    """How windows move: (depth, rows, columns) of strides and dilations, and the padding scheme.

    Attributes:
        channel: The axis of channels, 4 or 1; batch is axis 0, and the spatial axes are the others in order.
    """

    channel: int
    strides: Triple
    dilations: Triple
    padding: str

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> VolumeWindow:
        """The window of a node with these attributes.

        Raises:
            InvalidArgumentError: a list does not have five elements, or a stride or dilation is not positive.
            UnimplementedError: windows that move over batch or channels.
        """
        channel = _CHANNEL[attrs["data_format"]]
        strides = _spatial_only("strides", attrs["strides"], channel)
        dilations = _spatial_only("dilations", attrs.get("dilations", _ONES), channel)
        return cls(channel, strides, dilations, attrs["padding"])

    def spatial(self, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        """What `values`, given an axis, says of depth, rows and columns."""
        first = 1 if self.channel == 4 else 2
        return values[first], values[first + 1], values[first + 2]

    def arrange(self, batch: Size, sizes: Sequence[Size], channel: Size) -> tuple[Size, ...]:
        """The five sizes in the order of axes."""
        return (batch, *sizes, channel) if self.channel == 4 else (batch, channel, *sizes)

    def outputs(self, sizes: Sequence[Size], kernel: Sequence[Size]) -> tuple[Size, ...]:
        """How many windows fit along each spatial axis; None where it is not known.

        Raises:
            InvalidArgumentError: a kernel size is not positive, or the kernel is larger than the volume.
        """
        return tuple(self._outputs_along(axis, sizes[axis], kernel[axis]) for axis in range(3))

    def _outputs_along(self, axis: int, size: Size, kernel: Size) -> Size:
        if kernel is not None and kernel < 1:
            raise InvalidArgumentError("a window has no size", expected="window sizes >= 1", actual=kernel)
        if size is None:
            return None
        if self.padding == "SAME":
            return -(-size // self.strides[axis])
        if kernel is None:
            return None
        span = (kernel - 1) * self.dilations[axis] + 1
        if size < span:
            raise InvalidArgumentError(
                "computed output size would be negative: the window is larger than the volume",
                expected=f"a {_AXES[axis]} of at least {span}",
                actual=size,
            )
        return (size - span) // self.strides[axis] + 1

    def pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
        """The padding (before, after) of each spatial axis."""
        return [self._pads_along(axis, sizes[axis], kernel[axis]) for axis in range(3)]

    def _pads_along(self, axis: int, size: int, kernel: int) -> tuple[int, int]:
        if self.padding != "SAME":
            return 0, 0
        stride = self.strides[axis]
        span = (kernel - 1) * self.dilations[axis] + 1
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        return total // 2, total - total // 2  # the odd element comes after


def _spatial_only(name: str, values: Sequence[int], channel: int) -> Triple:
    if len(values) != 5:
        raise InvalidArgumentError(
            f"attribute {name!r} needs one value per axis", expected="5 values", actual=list(values)
        )
    if min(values) < 1:
        raise InvalidArgumentError(f"attribute {name!r} must be positive", expected=">= 1", actual=list(values))
    if values[0] != 1 or values[channel] != 1:
        raise UnimplementedError(
            f"attribute {name!r} must be 1 for batch and channels",
            expected="1 for batch and channels",
            actual=list(values),
        )
    depth, rows, columns = (values[axis] for axis in range(1, 5) if axis != channel)
    return depth, rows, columns


def _rank5(name: str, dims: Dims) -> tuple[Size, ...]:
    if dims is None:
        return (None,) * 5
    if len(dims) != 5:
        raise InvalidArgumentError(f"{name} has the wrong rank", expected="rank 5", actual=format_dims(dims))
    return dims


def conv3d_dims(window: VolumeWindow, image: Dims, kernel: Dims) -> Dims:
    """Shape of the convolution of `image` by `kernel` [depth, rows, columns, channels / groups, outputs].

    Raises:
        InvalidArgumentError: a rank, a channel count or a size does not fit.
    """
    sizes, taps = _rank5("input", image), _rank5("filter", kernel)
    if 0 in taps[:4]:
        raise InvalidArgumentError(
            "filter must not be empty", expected="sizes >= 1, except for outputs", actual=format_dims(kernel)
        )
    channels, per_group, made = sizes[window.channel], taps[3], taps[4]
    if not _channels_fit(channels, per_group, made):
        raise InvalidArgumentError(
            "input depth must be a multiple of the filter's, and output depth of the groups that makes",
            expected=f"input of depth {per_group}, or a multiple of it",
            actual=f"input {format_dims(image)}, filter {format_dims(kernel)}",
        )
    return window.arrange(sizes[0], window.outputs(window.spatial(sizes), taps[:3]), made)


def _channels_fit(channels: Size, per_group: Size, made: Size) -> bool:
    if channels is None or per_group is None:
        return True
    return channels > 0 and channels % per_group == 0 and (made is None or made % (channels // per_group) == 0)


def pool3d_dims(window: VolumeWindow, ksize: Sequence[int], image: Dims) -> Dims:
    """Shape of a pool over `image`.

    Raises:
        InvalidArgumentError: the rank or a size does not fit.
        UnimplementedError: windows over batch or channels.
    """
    kernel = pool3d_kernel(window, ksize)
    sizes = _rank5("input", image)
    return window.arrange(sizes[0], window.outputs(window.spatial(sizes), kernel), sizes[window.channel])


def pool3d_kernel(window: VolumeWindow, ksize: Sequence[int]) -> Triple:
    """(depth, rows, columns) of a pool's window size."""
    return _spatial_only("ksize", ksize, window.channel)
