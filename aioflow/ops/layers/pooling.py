"""Pooling layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from aioflow.graph.graph import Tensor
from aioflow.ops.apply import TensorLike
from aioflow.ops.layers.base import InputSpec, Layer
from aioflow.ops.layers.windows import layout, one_per_axis, padding_of
from aioflow.ops.nn.any_rank import avg_pool_v2, max_pool_v2
from aioflow.ops.nn.windows import Ints


class _Pooling(Layer):
    """Pooling of windows along the spatial axes.

    Args:
        pool_size: Size of a window: one value, or one per spatial axis.
        strides: Distance between windows, in the same forms.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
        name: Name of the layer.
    """

    _axes: ClassVar[int]
    _pool: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        pool_size: Ints,
        strides: Ints,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool_size = one_per_axis(pool_size, self._axes, "pool_size")
        self.strides = one_per_axis(strides, self._axes, "strides")
        self.padding = padding_of(padding)
        self.layout = layout(self._axes, data_format)
        self.input_spec = InputSpec(ndim=self._axes + 2)

    def call(self, inputs: Tensor) -> Tensor:
        """Return the pooled inputs."""
        return type(self)._pool(inputs, self.pool_size, self.strides, self.padding.upper(), self.layout)


class MaxPooling1D(_Pooling):
    """The maximum of each window of rows. Arguments as for `max_pooling1d`."""

    _axes = 1
    _pool = max_pool_v2


class MaxPooling2D(_Pooling):
    """The maximum of each window of images. Arguments as for `max_pooling2d`."""

    _axes = 2
    _pool = max_pool_v2


class MaxPooling3D(_Pooling):
    """The maximum of each window of volumes. Arguments as for `max_pooling3d`."""

    _axes = 3
    _pool = max_pool_v2


class AveragePooling1D(_Pooling):
    """The mean of each window of rows, not counting padding. Arguments as for `average_pooling1d`."""

    _axes = 1
    _pool = avg_pool_v2


class AveragePooling2D(_Pooling):
    """The mean of each window of images, not counting padding. Arguments as for `average_pooling2d`."""

    _axes = 2
    _pool = avg_pool_v2


class AveragePooling3D(_Pooling):
    """The mean of each window of volumes, not counting padding. Arguments as for `average_pooling3d`."""

    _axes = 3
    _pool = avg_pool_v2


def max_pooling1d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the maximum of each window of rows.

    Args:
        inputs: [batch, width, channels], or [batch, channels, width] for "channels_first".
        pool_size: Size of a window.
        strides: Distance between windows.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
        name: Name of the layer.
    """
    return MaxPooling1D(pool_size, strides, padding, data_format, name)(inputs)


def max_pooling2d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the maximum of each window of images. Arguments as for `max_pooling1d`, one value or two."""
    return MaxPooling2D(pool_size, strides, padding, data_format, name)(inputs)


def max_pooling3d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the maximum of each window of volumes. Arguments as for `max_pooling1d`, one value or three."""
    return MaxPooling3D(pool_size, strides, padding, data_format, name)(inputs)


def average_pooling1d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the mean of each window of rows, not counting padding. Arguments as for `max_pooling1d`."""
    return AveragePooling1D(pool_size, strides, padding, data_format, name)(inputs)


def average_pooling2d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the mean of each window of images, not counting padding. Arguments as for `max_pooling2d`."""
    return AveragePooling2D(pool_size, strides, padding, data_format, name)(inputs)


def average_pooling3d(
    inputs: TensorLike,
    pool_size: Ints,
    strides: Ints,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """Return the mean of each window of volumes, not counting padding. Arguments as for `max_pooling3d`."""
    return AveragePooling3D(pool_size, strides, padding, data_format, name)(inputs)
