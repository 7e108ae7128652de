"""Kernels of the CPU device for convolutions and pools over volumes, and for pools that tell where the maximum is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.volumes import VolumeWindow, conv3d_dims, pool3d_dims, pool3d_kernel
from aioflow.graph.windows import Window, pool_dims, pool_kernel
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder
from aioflow_numpy import pooling, volumes
from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.volumes import Geometry

__all__: list[str] = []

Shape = tuple[int, ...]


def _expect(name: str, actual: Shape, expected: Any) -> None:
    if actual != expected:
        raise InvalidArgumentError(f"{name} has the wrong shape", expected=expected, actual=actual)


class _Volume:
    """What the ops over volumes share: everything inside is NDHWC, whatever the node says."""

    def __init__(self, binding: Binding) -> None:
        self.window = VolumeWindow.of(binding.attrs)
        self.ksize = binding.attrs.get("ksize")
        self.last = self.window.channel == 4

    def inside(self, array: Array) -> Array:
        """The array as NDHWC."""
        return np.ascontiguousarray(array if self.last else array.transpose(0, 2, 3, 4, 1))

    def outside(self, array: Array) -> Array:
        """The array in the node's layout."""
        return array if self.last else np.ascontiguousarray(array.transpose(0, 4, 1, 2, 3))

    def shape(self, shape: Shape) -> Shape:
        """A shape of the node's layout as NDHWC."""
        return shape if self.last else (shape[0], *shape[2:], shape[1])

    def conv(self, image: Shape, kernel: Shape) -> tuple[Geometry, Shape]:
        """The windows of a convolution, and the shape that it makes. Raises InvalidArgumentError."""
        made: Any = conv3d_dims(self.window, image, kernel)
        return self._geometry(image, kernel[:3], made), made

    def pool(self, image: Shape) -> tuple[Geometry, Shape]:
        """The windows of a pool, and the shape that it makes. Raises InvalidArgumentError."""
        made: Any = pool3d_dims(self.window, self.ksize or (), image)
        return self._geometry(image, pool3d_kernel(self.window, self.ksize or ()), made), made

    def _geometry(self, image: Shape, kernel: Shape, made: Shape) -> Geometry:
        window = self.window
        pads = window.pads(window.spatial(image), kernel)
        return Geometry(kernel, window.strides, window.dilations, pads, window.spatial(made))


@binder("Conv3D", device="CPU", fresh=True)
def conv(binding: Binding) -> Callable[[Array, Array], Array]:
    shared = _Volume(binding)

    def body(image: Array, kernel: Array) -> Array:
        g, made = shared.conv(image.shape, kernel.shape)
        if not math.prod(made):
            return np.zeros(made, image.dtype)
        return shared.outside(volumes.conv(shared.inside(image), kernel, g))

    return body


@binder("Conv3DBackpropInputV2", device="CPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> Callable[..., Array]:
    shared = _Volume(binding)

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        g, made = shared.conv(input_sizes, kernel.shape)
        _expect("out_backprop", out_backprop.shape, made)
        if not math.prod(made):
            return np.zeros(input_sizes, out_backprop.dtype)
        sizes, gradient = shared.shape(input_sizes), shared.inside(out_backprop)
        return shared.outside(volumes.conv_by_input(sizes, kernel, gradient, g))

    return body


@binder("Conv3DBackpropFilterV2", device="CPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> Callable[..., Array]:
    shared = _Volume(binding)

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        g, made = shared.conv(image.shape, filter_sizes)
        _expect("out_backprop", out_backprop.shape, made)
        if not math.prod(made) or not image.size:
            return np.zeros(filter_sizes, out_backprop.dtype)
        return volumes.conv_by_filter(shared.inside(image), filter_sizes, shared.inside(out_backprop), g)

    return body


@binder("MaxPool3D", device="CPU", fresh=True)
@binder("AvgPool3D", device="CPU", fresh=True)
def pool(binding: Binding) -> Callable[[Array], Array]:
    shared = _Volume(binding)
    compute = volumes.max_pool if binding.op_type == "MaxPool3D" else volumes.avg_pool

    def body(image: Array) -> Array:
        g, made = shared.pool(image.shape)
        if not math.prod(made):
            return np.zeros(made, image.dtype)
        return shared.outside(compute(shared.inside(image), g))

    return body


@binder("AvgPool3DGrad", device="CPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared = _Volume(binding)

    def body(orig_input_shape: Shape, grad: Array) -> Array:
        g, made = shared.pool(orig_input_shape)
        _expect("grad", grad.shape, made)
        if not grad.size:
            return np.zeros(orig_input_shape, grad.dtype)
        return shared.outside(volumes.avg_pool_grad(shared.shape(orig_input_shape), shared.inside(grad), g))

    return body


@binder("MaxPool3DGrad", device="CPU", fresh=True)
@binder("MaxPool3DGradGrad", device="CPU", fresh=True)
def max_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared, once = _Volume(binding), binding.op_type == "MaxPool3DGrad"
    compute = volumes.routed if once else volumes.picked

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        g, made = shared.pool(orig_input.shape)
        _expect("orig_output", orig_output.shape, made)
        _expect("grad", grad.shape, made if once else orig_input.shape)
        x, y, other = map(shared.inside, (orig_input, orig_output, grad))
        return shared.outside(compute(x, y, other, g))

    return body


# -- pools of images that tell where the maximum is ---------------------------------------------------


@binder("MaxPoolWithArgmax", device="CPU", fresh=True)
def max_pool_with_argmax(binding: Binding) -> Callable[[Array], tuple[Array, Array]]:
    attrs = {**binding.attrs, "data_format": "NHWC"}
    window, whole = Window.of(attrs), binding.attrs["include_batch_in_index"]
    kernel, dtype = pool_kernel(window, attrs["ksize"]), binding.output_dtypes[1].np_dtype

    def body(image: Array) -> tuple[Array, Array]:
        made: Any = pool_dims(window, attrs["ksize"], image.shape)
        pads = window.pads(image.shape[1:3], kernel)
        y = pooling.max_pool(image, kernel, window.strides, pads, "NHWC")
        g = Geometry(kernel, window.strides, (1, 1), pads, made[1:3])
        places = np.arange(math.prod(image.shape if whole else image.shape[1:]), dtype=np.int64)
        at = np.broadcast_to(places.reshape(image.shape if whole else image.shape[1:]), image.shape)
        return y, volumes.picked(image, y, at, g).astype(dtype)

    return body


@binder("MaxPoolGradWithArgmax", device="CPU", fresh=True)
def max_pool_grad_with_argmax(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    whole = binding.attrs["include_batch_in_index"]

    def body(image: Array, grad: Array, argmax: Array) -> Array:
        _expect("argmax", argmax.shape, grad.shape)
        places, limit = argmax.astype(np.int64), math.prod(image.shape if whole else image.shape[1:])
        if places.size and not (places.min() >= 0 and places.max() < limit):
            raise InvalidArgumentError(
                "an index is outside of the image", expected=f"0 <= argmax < {limit}", actual="another"
            )
        if not whole and grad.ndim:
            places += np.arange(len(grad)).reshape(-1, *(1,) * (grad.ndim - 1)) * limit
            _expect("grad", grad.shape[:1], image.shape[:1])
        out = np.zeros(image.size, grad.dtype)
        np.add.at(out, places.reshape(-1), grad.reshape(-1))
        return out.reshape(image.shape)

    return body
