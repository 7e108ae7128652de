"""Convolutions of float32 by oneDNN: dense, grouped and depthwise, with both gradients.

Images are NHWC. A convolution is cut into blocks, each of which runs in one of our threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_numpy.products import dot
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, Argument, PropKind, Query
from aioflow_onednn.conv_blocks import Block, blocks, by_samples
from aioflow_onednn.filters import Filters, PackedFilter, packings
from aioflow_onednn.library import Activation, Library, library
from aioflow_onednn.primitives import Array, Finish, Layout, Packing, Primitive, address, described, dims_of

__all__ = ["Activated", "backprop_filter", "backprop_input", "fits", "forward"]

_BLOCK: Final = 2**24  # multiplications of a block, at least: below, waking a thread takes as long
_KEPT: Final = 1024  # prepared convolutions
_FAR: Final = 1e38  # from infinity, with room for the rounding of sums
_BYTE: Final = np.dtype(np.uint8)
_FLOAT: Final = np.dtype(np.float32)


def fits(g: Windows) -> bool:
    """Whether each window reads something of the image, and none is larger than oneDNN is sure to take."""
    below, beside = _after(g)
    return max(g.top, below) < (g.kh - 1) * g.dh + 1 and max(g.left, beside) < (g.kw - 1) * g.dw + 1


class Activated:
    """An activation that oneDNN may do itself: where no number can be NaN, which it would take for a zero.

    No sum in a convolution is larger than the root of the sum of squares of the image, times that of the filter
    (Cauchy and Schwarz), plus the bias. Where that is far from infinity, nothing overflows, so that nothing is NaN.
    """

    def __init__(self, activation: Activation, filter_norm: float, bias: Array | None) -> None:
        self.activation = activation
        most = 0.0 if bias is None or not bias.size else float(np.abs(bias).max())
        self._bound = max(0.0, (_FAR - most) / max(filter_norm, 1.0)) ** 2

    def holds_for(self, x: Array) -> bool:
        """Whether the activation may be left to oneDNN with this image, which is contiguous."""
        flat = x.reshape(-1)
        return float(dot(flat, flat)) < self._bound  # not where it is NaN, or too large for a float32


class _Prepared:
    """A primitive with the packing of its filter."""

    def __init__(self, dnnl: Library, primitive: Primitive, plain: Layout, filter_: Argument) -> None:
        self.run = primitive.run
        self.packing = Packing(dnnl, plain, primitive, filter_)


_Plan: TypeAlias = list[tuple[Block, _Prepared]]


def forward(
    x: Array,
    kernel: Array | PackedFilter,
    g: Windows,
    filters: Filters,
    bias: Array | None = None,
    finish: Finish | None = None,
    activated: Activated | None = None,
) -> Array:
    """The convolution [n, oh, ow, outputs] of x [n, h, w, c], which is contiguous.

    Args:
        bias: [outputs], contiguous.
        finish: What follows, done with each block while it is in the cache.
        activated: The same as a part of the primitive, for images that it holds for.
    """
    out = np.empty((g.n, g.oh, g.ow, filters.outputs), np.float32)
    activation = activated.activation if activated and activated.holds_for(x) else None
    plan = _forward_plan(g, filters, bias is not None, activation, thread_count(), _BLOCK)
    packed = packings(kernel, ((prepared, block.outputs.start) for block, prepared in plan))

    def convolve(number: int) -> None:
        block, prepared = plan[number]
        image, target = x[block.samples, block.source], out[block.samples, block.lines]
        whole = block.outputs.stop - block.outputs.start == filters.outputs
        # oneDNN is slow where there are gaps between the pixels of a result.
        made = target if whole else scratch("channels", (*target.shape[:3], block.filters.outputs), _FLOAT)
        addresses = [address(image), address(packed[prepared, block.outputs.start]), address(made)]
        if bias is not None:
            addresses.append(address(bias[block.outputs]))
        prepared.run(*addresses)
        if finish is not None and activation is None:
            finish(made)
        if not whole:
            target[..., block.outputs] = made

    for_each(convolve, range(len(plan)))
    return out


def backprop_input(kernel: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """The gradient [n, h, w, c] of the image, from dy [n, oh, ow, outputs], which is contiguous."""
    out = np.empty((g.n, g.h, g.w, g.c), np.float32)
    plan = _by_input_plan(g, filters, thread_count(), _BLOCK)
    packed = packings(kernel, ((prepared, 0) for _, prepared in plan))

    def convolve(number: int) -> None:
        block, prepared = plan[number]
        prepared.run(address(out[block.samples]), address(packed[prepared, 0]), address(dy[block.samples]))

    for_each(convolve, range(len(plan)))
    return out


def backprop_filter(x: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """The gradient of the filter, in the order of `Filters.layout`, from contiguous x [n, h, w, c] and
    dy [n, oh, ow, outputs]. The gradients of the blocks are summed in their order.
    """
    size = filters.size(g)
    plan = _by_filter_plan(g, filters, thread_count(), _BLOCK)
    sums: list[Array] = [np.empty(0)] * len(plan)

    def convolve(number: int) -> None:
        block, prepared = plan[number]
        total = np.empty(size, np.float32)
        packing = prepared.packing
        made = scratch("packed", (packing.size,), _BYTE) if packing.is_needed else total
        prepared.run(address(x[block.samples]), address(made), address(dy[block.samples]))
        packing.back(address(made), address(total))
        sums[number] = total

    for_each(convolve, range(len(plan)))
    total = sums[0]
    for other in sums[1:]:
        total += other
    return total


# Plans are kept for the sizes that a net has: to make one takes longer than a small convolution.


@lru_cache(maxsize=_KEPT)
def _forward_plan(
    g: Windows, filters: Filters, has_bias: bool, activation: Activation | None, threads: int, least: int
) -> _Plan:
    parts = blocks(g, filters, threads, least)
    return [(each, _forward(each.windows, each.filters, has_bias, activation)) for each in parts]


@lru_cache(maxsize=_KEPT)
def _by_input_plan(g: Windows, filters: Filters, threads: int, least: int) -> _Plan:
    return [(each, _by_input(each.windows, filters)) for each in by_samples(g, filters, threads, least)]


@lru_cache(maxsize=_KEPT)
def _by_filter_plan(g: Windows, filters: Filters, threads: int, least: int) -> _Plan:
    return [(each, _by_filter(each.windows, filters)) for each in by_samples(g, filters, threads, least, threads)]


def _after(g: Windows) -> tuple[int, int]:
    """The padding below and at the right, negative where windows end before the image does."""
    return g.span_h - g.top - g.h, g.span_w - g.left - g.w


def _image(n: int, h: int, w: int, c: int) -> Layout:
    return Layout((n, c, h, w), (h * w * c, 1, w * c, c))


def _images(g: Windows, filters: Filters) -> tuple[Layout, Layout]:
    return _image(g.n, g.h, g.w, g.c), _image(g.n, g.oh, g.ow, filters.outputs)


def _geometry(g: Windows) -> tuple[object, ...]:
    """Strides, dilations and paddings, as the library takes them."""
    return tuple(dims_of(pair) for pair in ((g.sh, g.sw), (g.dh - 1, g.dw - 1), (g.top, g.left), _after(g)))


def _forward_descriptor(
    dnnl: Library, g: Windows, filters: Filters, has_bias: bool = False, activation: Activation | None = None
) -> int:
    image, result = _images(g, filters)
    biases = [Layout((filters.outputs,), (1,))] if has_bias else []
    layouts = (image, filters.free(g), result, *biases)
    with dnnl.attributes_with(activation) as attributes, described(dnnl, layouts) as (source, weights, target, *bias):
        return dnnl.made(
            "convolution_forward_primitive_desc_create",
            *(dnnl.engine, PropKind.FORWARD_INFERENCE, Algorithm.CONVOLUTION_DIRECT),
            *(source, weights, bias[0] if bias else None, target, *_geometry(g), attributes),
        )


@lru_cache(maxsize=_KEPT)
def _forward(g: Windows, filters: Filters, has_bias: bool, activation: Activation | None) -> _Prepared:
    dnnl = library()
    arguments = {Argument.SRC: Query.SRC, Argument.WEIGHTS: Query.WEIGHTS, Argument.DST: Query.DST}
    if has_bias:
        arguments[Argument.BIAS] = Query.BIAS
    primitive = Primitive(dnnl, _forward_descriptor(dnnl, g, filters, has_bias, activation), arguments)
    return _Prepared(dnnl, primitive, filters.layout(g), Argument.WEIGHTS)


@lru_cache(maxsize=_KEPT)
def _by_input(g: Windows, filters: Filters) -> _Prepared:
    dnnl = library()
    image, result = _images(g, filters)
    arguments = {
        Argument.DIFF_SRC: Query.DIFF_SRC,
        Argument.WEIGHTS: Query.WEIGHTS,
        Argument.DIFF_DST: Query.DIFF_DST,
    }
    primitive = _backward(dnnl, "data", g, filters, (image, filters.free(g), result), (), arguments)
    return _Prepared(dnnl, primitive, filters.layout(g), Argument.WEIGHTS)


@lru_cache(maxsize=_KEPT)
def _by_filter(g: Windows, filters: Filters) -> _Prepared:
    dnnl = library()
    image, result = _images(g, filters)
    arguments = {
        Argument.SRC: Query.SRC,
        Argument.DIFF_WEIGHTS: Query.DIFF_WEIGHTS,
        Argument.DIFF_DST: Query.DIFF_DST,
    }
    primitive = _backward(dnnl, "weights", g, filters, (image, filters.free(g)), (result,), arguments)
    return _Prepared(dnnl, primitive, filters.layout(g), Argument.DIFF_WEIGHTS)


def _backward(
    dnnl: Library,
    of: str,
    g: Windows,
    filters: Filters,
    before: tuple[Layout, ...],
    behind: tuple[Layout, ...],
    arguments: dict[Argument, Query],
) -> Primitive:
    """A gradient's primitive, whose arguments stand before and behind the place of the bias's gradient."""
    hint = _forward_descriptor(dnnl, g, filters)
    try:
        with described(dnnl, before) as first, described(dnnl, behind) as last:
            bias = (None,) if behind else ()
            made = dnnl.made(
                f"convolution_backward_{of}_primitive_desc_create",
                *(dnnl.engine, Algorithm.CONVOLUTION_DIRECT, *first, *bias, *last),
                *(*_geometry(g), hint, dnnl.attributes),
            )
    finally:
        dnnl.call("primitive_desc_destroy", hint)
    return Primitive(dnnl, made, arguments)
