"""Convolutions of float32 by oneDNN: dense, grouped and depthwise, with both gradients.

Images are NHWC. A gradient is split into blocks, each of which runs in one thread; `Forward` chooses the threads of a
convolution itself. Images that are columns are computed as lines, which are the same numbers in memory: oneDNN takes a
half to a fifth of the time for lines.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.memory.values import Array
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn import conv_blocks
from aioflow_onednn.codes import Algorithm, ArgumentRole, PropKind, Query
from aioflow_onednn.conv_blocks import ConvBlock, after, by_samples, shares
from aioflow_onednn.filters import Filters, packings
from aioflow_onednn.library import Library, PostOps, library
from aioflow_onednn.primitives import MemoryLayout, Packing, Primitive, address, described, dims_of, image_layout

_FAR_APART: Final = 2**12  # strides and dilations above which oneDNN may fail
_KEPT: Final = 1024  # prepared convolutions
_BYTE: Final = np.dtype(np.uint8)
_TRIED: Final = 4093  # length of the repeated test data: a prime, so that the data is at another position in each line


def fits(g: Windows) -> bool:
    """Return True if each window reads some of the image and oneDNN supports the strides and dilations."""
    below, beside = after(g)
    if max(g.sh, g.sw, g.dh, g.dw) > _FAR_APART:
        return False
    return max(g.top, below) < (g.kh - 1) * g.dh + 1 and max(g.left, beside) < (g.kw - 1) * g.dw + 1


class Prepared:
    """A primitive with the packing of its filter."""

    def __init__(self, dnnl: Library, primitive: Primitive, plain: MemoryLayout, filter_: ArgumentRole) -> None:
        self.primitive, self.run = primitive, primitive.run
        self.packing = Packing(dnnl, plain, primitive, filter_)


_Plan: TypeAlias = list[tuple[ConvBlock, Prepared]]


def backprop_input(kernel: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """Return the gradient [n, h, w, c] of the image, from the contiguous dy [n, oh, ow, outputs]."""
    out = np.empty((g.n, g.h, g.w, g.c), np.float32)
    plan = _by_input_plan(g, filters, thread_count(), conv_blocks.LEAST)
    packed = packings(kernel, ((prepared, 0) for _, prepared in plan))

    def convolve(number: int) -> None:
        block, prepared = plan[number]
        prepared.run(address(out[block.samples]), packed[prepared, 0].at, address(dy[block.samples]))

    for_each(convolve, range(len(plan)))
    return out


def backprop_filter(x: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """Return the gradient of the filter, from contiguous x [n, h, w, c] and dy [n, oh, ow, outputs].

    The gradient is in the order of `Filters.layout`. The gradients of the blocks are summed in a fixed order, for each
    thread in memory of its own.
    """
    size = filters.size(g)
    plan = _by_filter_plan(g, filters, thread_count(), conv_blocks.LEAST)
    sums = [np.zeros(0, np.float32)] * len(plan)

    def convolve(number: int) -> None:
        for block, prepared in plan[number]:
            checkpoint()
            total = np.empty(size, np.float32)
            packing = prepared.packing
            # If the layouts are the same, the primitive writes to `total` itself, and `back` does nothing.
            made = scratch("packed", (packing.size,), _BYTE) if packing.is_needed else total
            source, target = x[block.samples, block.source], dy[block.samples, block.lines]
            prepared.run(address(source), address(made), address(target))
            packing.back(address(made), address(total))
            if sums[number].size:
                total += sums[number]
            sums[number] = total

    for_each(convolve, range(len(plan)))
    total = sums[0]
    for other in sums[1:]:
        total += other
    return total


# Plans are cached for the sizes of a network: making one takes longer than a small convolution.


@lru_cache(maxsize=_KEPT)
def _by_input_plan(g: Windows, filters: Filters, threads: int, least: int) -> _Plan:
    return [(each, _by_input(each.windows, filters)) for each in by_samples(g, filters, threads, least)]


@lru_cache(maxsize=_KEPT)
def _by_filter_plan(g: Windows, filters: Filters, threads: int, least: int) -> list[_Plan]:
    return [
        [(each, _by_filter(each.windows, filters)) for each in share] for share in shares(g, filters, threads, least)
    ]


def _images(g: Windows, filters: Filters) -> tuple[MemoryLayout, MemoryLayout]:
    return image_layout(g.n, g.h, g.w, g.c), image_layout(g.n, g.oh, g.ow, filters.outputs)


def _geometry(g: Windows) -> tuple[object, ...]:
    """Return strides, dilations and paddings as arguments of the library."""
    # oneDNN counts the elements between two positions of a kernel: 0 where others say a dilation of 1.
    return tuple(dims_of(pair) for pair in ((g.sh, g.sw), (g.dh - 1, g.dw - 1), (g.top, g.left), after(g)))


def _forward_descriptor(
    dnnl: Library,
    g: Windows,
    filters: Filters,
    has_bias: bool = False,
    activation: PostOps | None = None,
    threads: int = 1,
) -> int:
    image, result = _images(g, filters)
    biases = [MemoryLayout((filters.outputs,), (1,))] if has_bias else []
    layouts = (image, filters.free(g), result, *biases)
    with (
        described(dnnl, layouts) as (source, weights, target, *bias),
        dnnl.attributes_with(activation, target) as attributes,
    ):
        return dnnl.made(
            "convolution_forward_primitive_desc_create",
            *(dnnl.engine, PropKind.FORWARD_INFERENCE, Algorithm.CONVOLUTION_DIRECT),
            *(source, weights, bias[0] if bias else None, target, *_geometry(g), attributes),
            threads=threads,
        )


@lru_cache(maxsize=_KEPT)
def adds_as_well(g: Windows, filters: Filters, has_bias: bool, activation: PostOps) -> bool:
    """Return True if oneDNN uses the same implementation when it adds an array; others may be slow."""
    dnnl, g = library(), g.lying()
    found = [_forward_descriptor(dnnl, g, filters, has_bias, each) for each in (None, activation)]
    names = [dnnl.implementation(each) for each in found]
    # Descriptors are owned here, since no primitive is made of them.
    for each in found:
        dnnl.call("primitive_desc_destroy", each)
    return names[0] == names[1]


@lru_cache(maxsize=_KEPT)
def forward(
    g: Windows, filters: Filters, has_bias: bool = False, activation: PostOps | None = None, threads: int = 1
) -> Prepared:
    """Return the prepared convolution of (image, packed filter, result, bias, added array).

    It runs in `threads` threads of OpenMP, or in one thread where several would result in other bits.
    """
    dnnl, g = library(), g.lying()
    arguments = {ArgumentRole.SRC: Query.SRC, ArgumentRole.WEIGHTS: Query.WEIGHTS, ArgumentRole.DST: Query.DST}
    if has_bias:
        arguments[ArgumentRole.BIAS] = Query.BIAS
    if activation is not None and activation.adds:
        arguments[ArgumentRole.ADDED] = Query.ADDED
    primitive = Primitive(
        dnnl, _forward_descriptor(dnnl, g, filters, has_bias, activation, threads), arguments, threads
    )
    made = Prepared(dnnl, primitive, filters.layout(g), ArgumentRole.WEIGHTS)
    # Most implementations add in the same order for any number of threads. Others are tried once.
    if threads == 1 or not primitive.may_vary:
        return made
    alone = forward(g, filters, has_bias, activation)
    return made if _agree(made, alone, g, filters, arguments) else alone


def _agree(one: Prepared, other: Prepared, g: Windows, filters: Filters, arguments: Collection[ArgumentRole]) -> bool:
    """Return True if two convolutions result in the same bits, tried on one image and filter."""
    some = np.random.default_rng(0).standard_normal(_TRIED, np.float32)
    shape = (g.n, g.oh, g.ow, filters.outputs)
    image, kernel = np.resize(some, (g.n, g.h, g.w, g.c)), np.resize(some, (g.kh, g.kw, filters.inputs, shape[3]))
    others = [np.resize(some, shape) for argument in arguments if argument in (ArgumentRole.BIAS, ArgumentRole.ADDED)]
    made: list[Array] = []
    for each in (one, other):
        made.append(np.empty(shape, np.float32))
        packed = packings(kernel, [(each, 0)])[each, 0]
        each.run(address(image), packed.at, address(made[-1]), *map(address, others))
    return made[0].tobytes() == made[1].tobytes()


@lru_cache(maxsize=_KEPT)
def _by_input(g: Windows, filters: Filters) -> Prepared:
    dnnl, g = library(), g.lying()
    image, result = _images(g, filters)
    arguments = {
        ArgumentRole.DIFF_SRC: Query.DIFF_SRC,
        ArgumentRole.WEIGHTS: Query.WEIGHTS,
        ArgumentRole.DIFF_DST: Query.DIFF_DST,
    }
    primitive = _backward(dnnl, "data", g, filters, (image, filters.free(g), result), (), arguments)
    return Prepared(dnnl, primitive, filters.layout(g), ArgumentRole.WEIGHTS)


@lru_cache(maxsize=_KEPT)
def _by_filter(g: Windows, filters: Filters) -> Prepared:
    dnnl, g = library(), g.lying()
    image, result = _images(g, filters)
    arguments = {
        ArgumentRole.SRC: Query.SRC,
        ArgumentRole.DIFF_WEIGHTS: Query.DIFF_WEIGHTS,
        ArgumentRole.DIFF_DST: Query.DIFF_DST,
    }
    primitive = _backward(dnnl, "weights", g, filters, (image, filters.free(g)), (result,), arguments)
    return Prepared(dnnl, primitive, filters.layout(g), ArgumentRole.DIFF_WEIGHTS)


def _backward(
    dnnl: Library,
    of: str,
    g: Windows,
    filters: Filters,
    before: tuple[MemoryLayout, ...],
    behind: tuple[MemoryLayout, ...],
    arguments: dict[ArgumentRole, Query],
) -> Primitive:
    """Return a gradient's primitive.

    `before` and `behind` are the layouts of the arguments before and after the bias's gradient, which is left out.
    """
    # oneDNN requires the descriptor of the forward pass, from which it takes only hints.
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
