"""Convolutions of float32 by oneDNN: dense, grouped and depthwise, with both gradients.

Images are NHWC, and filters [kh, kw, c / groups, co] as TensorFlow has them; oneDNN chooses a layout of its own for the
filter, into which it is copied. The blocks of a convolution are samples, or lines where there are few samples, and each
runs in one of our threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

import numpy as np

from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, Argument, PropKind, Query
from aioflow_onednn.library import Library, library
from aioflow_onednn.primitives import Array, Layout, Packing, Primitive, address, described, dims_of, plain

__all__ = ["Filters", "PackedFilter", "backprop_filter", "backprop_input", "fits", "forward"]

_BLOCK: Final = 2**22  # multiplications of a block, at least
_LONG: Final = 2**28  # and at most, about: the step may be asked to stop after each
_KEPT: Final = 1024  # prepared convolutions
_USERS: Final = 64  # primitives for which a filter is kept; most have chosen one layout
_BYTE: Final = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a convolution: [kh, kw, c / groups, outputs], or in memory the same, [kh, kw, c, multiplier]."""

    groups: int
    inputs: int
    outputs: int

    def layout(self, g: Windows) -> Layout:
        """How they lie in memory."""
        last = self.outputs
        if self.groups == 1:
            return Layout((last, self.inputs, g.kh, g.kw), (1, last, g.kw * self.inputs * last, self.inputs * last))
        each, line = last // self.groups, self.inputs * last
        dims = (self.groups, each, self.inputs, g.kh, g.kw)
        return Layout(dims, (each, 1, last, g.kw * line, line))

    def free(self, g: Windows) -> Layout:
        """The same, as suits the primitive."""
        return Layout(self.layout(g).dims)

    def work(self, g: Windows) -> int:
        """Multiplications for each window."""
        return g.kh * g.kw * self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class _Block:
    """Some samples and lines of the result, with the windows that make them, and the lines of the image they read."""

    samples: slice
    lines: slice
    source: slice
    windows: Windows


def fits(g: Windows) -> bool:
    """Whether each window reads something of the image, and none is larger than oneDNN is sure to take."""
    below, beside = _after(g)
    return max(g.top, below) < (g.kh - 1) * g.dh + 1 and max(g.left, beside) < (g.kw - 1) * g.dw + 1


class PackedFilter:
    """A filter in the layouts that primitives have chosen for it, each made when it is first asked for."""

    def __init__(self, kernel: Array) -> None:
        self._kernel = kernel
        self._packed: OrderedDict[_Prepared, Array] = OrderedDict()

    def of(self, prepared: _Prepared) -> Array:
        """The filter for a primitive."""
        found = self._packed.get(prepared)
        if found is None:
            found = _packed(prepared, plain(self._kernel), _fresh, dict(self._packed))
            self._packed[prepared] = found
            if len(self._packed) > _USERS:
                self._packed.popitem(last=False)
        return found


class _Prepared:
    """A primitive with the packing of its filter."""

    def __init__(self, dnnl: Library, primitive: Primitive, plain: Layout, filter_: Argument) -> None:
        self.run = primitive.run
        self.packing = Packing(dnnl, plain, primitive, filter_)


def forward(x: Array, kernel: Array | PackedFilter, g: Windows, filters: Filters) -> Array:
    """The convolution [n, oh, ow, outputs] of x [n, h, w, c], which is contiguous."""
    out = np.empty((g.n, g.oh, g.ow, filters.outputs), np.float32)
    blocks, prepared = _forward_plan(g, filters, thread_count(), _BLOCK)
    packed = _packings(kernel, prepared)

    def convolve(number: int) -> None:
        block, each = blocks[number], prepared[number]
        image, target = x[block.samples, block.source], out[block.samples, block.lines]
        each.run(address(image), address(packed[each]), address(target))

    for_each(convolve, range(len(blocks)))
    return out


def backprop_input(kernel: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """The gradient [n, h, w, c] of the image, from dy [n, oh, ow, outputs], which is contiguous."""
    out = np.empty((g.n, g.h, g.w, g.c), np.float32)
    blocks, prepared = _by_input_plan(g, filters, thread_count(), _BLOCK)
    packed = _packings(kernel, prepared)

    def convolve(number: int) -> None:
        block, each = blocks[number], prepared[number]
        each.run(address(out[block.samples]), address(packed[each]), address(dy[block.samples]))

    for_each(convolve, range(len(blocks)))
    return out


def backprop_filter(x: Array, dy: Array, g: Windows, filters: Filters) -> Array:
    """The gradient of the filter, in the order of `Filters.layout`, from contiguous x [n, h, w, c] and
    dy [n, oh, ow, outputs]. The gradients of the blocks are summed in their order.
    """
    size = g.kh * g.kw * filters.inputs * filters.outputs
    blocks, prepared = _by_filter_plan(g, filters, thread_count(), _BLOCK)
    sums: list[Array] = [np.empty(0)] * len(blocks)

    def convolve(number: int) -> None:
        block, each = blocks[number], prepared[number]
        total = np.empty(size, np.float32)
        made = scratch("packed", (each.packing.size,), _BYTE) if each.packing.is_needed else total
        each.run(address(x[block.samples]), address(made), address(dy[block.samples]))
        each.packing.back(address(made), address(total))
        sums[number] = total

    for_each(convolve, range(len(blocks)))
    total = sums[0]
    for other in sums[1:]:
        total += other
    return total


# Plans are kept for the sizes that a net has: to make one takes longer than a small convolution.


@lru_cache(maxsize=_KEPT)
def _forward_plan(g: Windows, filters: Filters, threads: int, least: int) -> tuple[list[_Block], list[_Prepared]]:
    blocks = _blocks(g, _count(g, filters, threads, least))
    return blocks, [_forward(block.windows, filters) for block in blocks]


@lru_cache(maxsize=_KEPT)
def _by_input_plan(g: Windows, filters: Filters, threads: int, least: int) -> tuple[list[_Block], list[_Prepared]]:
    blocks = _by_samples(g, _count(g, filters, threads, least))
    return blocks, [_by_input(block.windows, filters) for block in blocks]


@lru_cache(maxsize=_KEPT)
def _by_filter_plan(g: Windows, filters: Filters, threads: int, least: int) -> tuple[list[_Block], list[_Prepared]]:
    blocks = _by_samples(g, min(_count(g, filters, threads, least), threads))
    return blocks, [_by_filter(block.windows, filters) for block in blocks]


def _blocks(g: Windows, count: int) -> list[_Block]:
    """Samples where there are enough of them, and else lines, too."""
    if g.n >= count:
        return _by_samples(g, count)
    each = -(-count // g.n)
    lines = [slice(g.oh * k // each, g.oh * (k + 1) // each) for k in range(min(each, g.oh))] if each <= g.oh else []
    lines = lines or [slice(k, k + 1) for k in range(g.oh)]
    return [_block(g, slice(sample, sample + 1), part) for sample in range(g.n) for part in lines]


def _by_samples(g: Windows, count: int) -> list[_Block]:
    count = min(count, g.n)
    parts = [slice(g.n * k // count, g.n * (k + 1) // count) for k in range(count)]
    return [_block(g, part, slice(0, g.oh)) for part in parts]


def _count(g: Windows, filters: Filters, threads: int, least: int) -> int:
    """How many blocks there are, each of at least so many multiplications."""
    work = g.rows * filters.work(g)
    return max(1, min(work // least, threads), work // _LONG)


def _block(g: Windows, samples: slice, lines: slice) -> _Block:
    n, oh = samples.stop - samples.start, lines.stop - lines.start
    if oh == g.oh:
        return _Block(samples, lines, slice(0, g.h), replace(g, n=n))
    first = lines.start * g.sh - g.top
    last = (lines.stop - 1) * g.sh + (g.kh - 1) * g.dh - g.top
    source = slice(max(0, first), min(g.h, last + 1))
    part = replace(g, n=n, h=source.stop - source.start, top=source.start - first, oh=oh)
    return _Block(samples, lines, source, part)


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


def _forward_descriptor(dnnl: Library, g: Windows, filters: Filters) -> int:
    image, result = _images(g, filters)
    with described(dnnl, (image, filters.free(g), result)) as (source, weights, target):
        return dnnl.made(
            "convolution_forward_primitive_desc_create",
            *(dnnl.engine, PropKind.FORWARD_INFERENCE, Algorithm.CONVOLUTION_DIRECT),
            *(source, weights, None, target, *_geometry(g), dnnl.attributes),
        )


@lru_cache(maxsize=_KEPT)
def _forward(g: Windows, filters: Filters) -> _Prepared:
    dnnl = library()
    arguments = {Argument.SRC: Query.SRC, Argument.WEIGHTS: Query.WEIGHTS, Argument.DST: Query.DST}
    primitive = Primitive(dnnl, _forward_descriptor(dnnl, g, filters), arguments)
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


def _packings(kernel: Array | PackedFilter, users: Iterable[_Prepared]) -> dict[_Prepared, Array]:
    """The filter as each primitive takes it: kept ones, or copies in this thread's scratch memory."""
    packed: dict[_Prepared, Array] = {}
    if isinstance(kernel, PackedFilter):
        return {user: kernel.of(user) for user in users}
    kernel = plain(kernel)
    for user in users:
        if user not in packed:
            packed[user] = _packed(user, kernel, partial(_lent, len(packed)), packed)
    return packed


def _packed(
    prepared: _Prepared, kernel: Array, memory: Callable[[int], Array], packed: Mapping[_Prepared, Array]
) -> Array:
    """The contiguous filter in the layout that the primitive has chosen: one of those `packed`, or in new memory."""
    if not prepared.packing.is_needed:
        return kernel
    for other, found in packed.items():
        if prepared.packing.is_as(other.packing):
            return found
    made = memory(prepared.packing.size)
    prepared.packing.to(address(kernel), address(made))
    return made


def _fresh(size: int) -> Array:
    return np.empty(size, np.uint8)


def _lent(number: int, size: int) -> Array:
    return scratch(f"packed{number}", (size,), _BYTE)
