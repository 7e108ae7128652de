"""Kernels of the CPU device for convolutions and pools over volumes, and for max pools that return positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_ints
from aioflow.kernels.nn.windows import Convolution, Pool, expect_shape
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Shape
from aioflow.ops.nn.geometry import Layout
from aioflow_numpy import pooling, volumes
from aioflow_numpy.volumes import Geometry


def _inside(layout: Layout, array: Array) -> Array:
    """Return the array as NDHWC, the layout of `volumes`."""
    return np.ascontiguousarray(layout.last(array))


def _outside(layout: Layout, array: Array) -> Array:
    """Return an NDHWC array in the node's layout."""
    return np.ascontiguousarray(layout.back(array))


@binder("Conv3D", device="CPU", fresh=True)
def conv(binding: Binding) -> Callable[[Array, Array], Array]:
    shared = Convolution(binding, Geometry)
    layout = shared.layout

    def body(image: Array, kernel: Array) -> Array:
        g, made = shared.of(image.shape, kernel.shape)
        if not math.prod(made):
            return np.zeros(made, image.dtype)
        return _outside(layout, volumes.conv(_inside(layout, image), kernel, g))

    return body


@binder("Conv3DBackpropInputV2", device="CPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> Callable[..., Array]:
    shared = Convolution(binding, Geometry)
    layout = shared.layout

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        g, made = shared.of(input_sizes, kernel.shape)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not math.prod(made):
            return np.zeros(input_sizes, out_backprop.dtype)
        sizes, gradient = layout.sizes_last(input_sizes), _inside(layout, out_backprop)
        return _outside(layout, volumes.conv_by_input(sizes, kernel, gradient, g))

    return body


@binder("Conv3DBackpropFilterV2", device="CPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> Callable[..., Array]:
    shared = Convolution(binding, Geometry)
    layout = shared.layout

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        g, made = shared.of(image.shape, filter_sizes)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not math.prod(made) or not image.size:
            return np.zeros(filter_sizes, out_backprop.dtype)
        return volumes.conv_by_filter(_inside(layout, image), filter_sizes, _inside(layout, out_backprop), g)

    return body


@binder("MaxPool3D", device="CPU", fresh=True)
@binder("AvgPool3D", device="CPU", fresh=True)
def pool(binding: Binding) -> Callable[[Array], Array]:
    shared = Pool(binding, Geometry)
    layout = shared.layout
    compute = volumes.max_pool if binding.op_type == "MaxPool3D" else volumes.avg_pool

    def body(image: Array) -> Array:
        g, made = shared.of(image.shape)
        if not math.prod(made):
            return np.zeros(made, image.dtype)
        return _outside(layout, compute(_inside(layout, image), g))

    return body


@binder("AvgPool3DGrad", device="CPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared = Pool(binding, Geometry)
    layout = shared.layout

    def body(orig_input_shape: Shape, grad: Array) -> Array:
        g, made = shared.of(orig_input_shape)
        expect_shape("grad", grad.shape, made)
        if not grad.size:
            return np.zeros(orig_input_shape, grad.dtype)
        sizes = layout.sizes_last(orig_input_shape)
        return _outside(layout, volumes.avg_pool_grad(sizes, _inside(layout, grad), g))

    return body


@binder("MaxPool3DGrad", device="CPU", fresh=True)
@binder("MaxPool3DGradGrad", device="CPU", fresh=True)
def max_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared, once = Pool(binding, Geometry), binding.op_type == "MaxPool3DGrad"
    layout = shared.layout
    compute = volumes.routed if once else volumes.picked

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        g, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, made if once else orig_input.shape)
        x, y, other = (_inside(layout, a) for a in (orig_input, orig_output, grad))
        return _outside(layout, compute(x, y, other, g))

    return body


# ── pools of images that return the position of the maximum ───────────────────────────────────────────────────────────


@binder("MaxPoolWithArgmax", device="CPU", fresh=True)
def max_pool_with_argmax(binding: Binding) -> Callable[[Array], tuple[Array, Array]]:
    shared, whole = Pool(binding, Geometry), binding.attrs["include_batch_in_index"]
    dtype = binding.output_dtypes[1].np_dtype

    def body(image: Array) -> tuple[Array, Array]:
        g, _ = shared.of(image.shape)
        y = pooling.max_pool(image, *g.flat_pool, "NHWC")
        places = np.arange(math.prod(image.shape if whole else image.shape[1:]), dtype=np.int64)
        at = np.broadcast_to(places.reshape(image.shape if whole else image.shape[1:]), image.shape)
        return y, volumes.picked(image, y, at, g).astype(dtype)

    return body


@binder("MaxPoolGradWithArgmax", device="CPU", fresh=True)
def max_pool_grad_with_argmax(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    whole = binding.attrs["include_batch_in_index"]

    def body(image: Array, grad: Array, argmax: Array) -> Array:
        expect_shape("argmax", argmax.shape, grad.shape)
        places, limit = argmax.astype(np.int64), math.prod(image.shape if whole else image.shape[1:])
        if places.size and not (places.min() >= 0 and places.max() < limit):
            raise InvalidArgumentError(
                "an index is outside of the image", expected=f"0 <= argmax < {limit}", actual="another"
            )
        if not whole and grad.ndim:
            # Indices count within one image, so the offset of the image is added.
            places += np.arange(len(grad)).reshape(-1, *(1,) * (grad.ndim - 1)) * limit
            expect_shape("grad", grad.shape[:1], image.shape[:1])
        out = np.zeros(image.size, grad.dtype)
        # Several windows may have the same maximum; `out[places] +=` would add only one of their gradients.
        np.add.at(out, places.reshape(-1), grad.reshape(-1))
        return out.reshape(image.shape)

    return body
