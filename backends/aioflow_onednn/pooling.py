"""Pools of float32 by oneDNN, max and average, with their gradients.

Images are NHWC and contiguous. A pool is split into blocks like a depthwise convolution, each of which runs in one
thread. oneDNN's maximum ignores NaN and begins with the lowest finite number. It is therefore used only for images of
moderate numbers, which the sum of squares tests while it brings the image into the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from aioflow.memory.values import Array, Shape
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, ArgumentRole, PropKind, Query
from aioflow_onednn.conv_blocks import ConvBlock, after, blocks, by_samples
from aioflow_onednn.filters import Filters
from aioflow_onednn.library import Library, library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described, dims_of, image_layout

_BLOCK: Final = 2**19  # minimum numbers that the windows of a block read: for fewer, waking a thread takes as long
_SLOW_BLOCK: Final = 2**17  # the same for the gradient of a maximum
_CACHED: Final = 2**19  # approximate numbers of the image per block, so that numbers read twice are in the cache
_LARGE: Final = 2**12  # elements of a window, or a stride: above, oneDNN may be slow or fail
_KEPT: Final = 1024  # prepared pools
_BYTE: Final = np.dtype(np.uint8)
_FLOAT: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The kind of a pool and its windows."""

    algorithm: Algorithm
    windows: Windows

    @property
    def made(self) -> Shape:
        """Shape of the result."""
        g = self.windows
        return g.n, g.oh, g.ow, g.c

    @property
    def image(self) -> Shape:
        """Shape of the image."""
        g = self.windows
        return g.n, g.h, g.w, g.c

    def layouts(self) -> tuple[MemoryLayout, MemoryLayout]:
        """Return the layouts of the image and of the result, consistent with `_geometry`."""
        g = self.windows.lying()
        return image_layout(g.n, g.h, g.w, g.c), image_layout(g.n, g.oh, g.ow, g.c)


def fits(g: Windows) -> bool:
    """Return True if oneDNN is fast and correct: nothing is empty, and every window reads some of the image."""
    below, beside = after(g)
    inside = max(g.top, below) < g.kh and max(g.left, beside) < g.kw
    usual = g.kh * g.kw <= _LARGE and max(g.sh, g.sw) <= _LARGE
    return inside and usual and g.rows * g.c > 0 and g.h * g.w > 0


def forward(x: Array, pool: PoolSpec) -> Array | None:
    """Return the pool of x; None if x has numbers for which oneDNN's maximum would be wrong."""
    out = np.empty(pool.made, _FLOAT)
    plan = _plan(pool, max(thread_count(), x.size // _CACHED), _BLOCK)
    strange: list[int] = []

    def fold(number: int) -> None:
        block, primitive = plan[number]
        # Another block has found such numbers, so the kernel below computes everything.
        if strange:
            return
        image = x[block.samples, block.source]
        if pool.algorithm is Algorithm.POOLING_MAX and not _is_moderate(image):
            strange.append(number)
            return
        primitive.run(address(image), address(out[block.samples, block.lines]))

    for_each(fold, range(len(plan)))
    return None if strange else out


def backprop(dy: Array, pool: PoolSpec) -> Array:
    """Return the gradient of the image of an average pool, from that of the result."""
    out = np.empty(pool.image, _FLOAT)
    plan = _average_plan(pool, max(thread_count(), out.size // _CACHED), _BLOCK)

    def spread(number: int) -> None:
        block, primitive = plan[number]
        primitive.run(address(out[block.samples]), address(dy[block.samples]))

    for_each(spread, range(len(plan)))
    return out


def max_backprop(x: Array, dy: Array, pool: PoolSpec) -> Array | None:
    """Return the gradient of the image of a max pool, from the image and the gradient of the result.

    The gradient of each window goes to its first maximum in row-major order. Return None if oneDNN's maximum would be
    wrong.
    """
    out = np.empty(pool.image, _FLOAT)
    plan = _max_plan(pool, max(thread_count(), out.size // _CACHED), _SLOW_BLOCK)
    strange: list[int] = []

    def route(number: int) -> None:
        block, prepared = plan[number]
        if strange:
            return
        image, gradient = x[block.samples], dy[block.samples]
        if not _is_moderate(image):
            strange.append(number)
            return
        prepared.run(image, gradient, out[block.samples])

    for_each(route, range(len(plan)))
    return None if strange else out


def _is_moderate(x: Array) -> bool:
    """Return True if there is no NaN and no number near infinity."""
    return sum_of_squares(x) < FAR


class _MaxGradient:
    """A max pool that records the positions of its maxima, and its gradient."""

    def __init__(self, pool: PoolSpec) -> None:
        training = {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST, ArgumentRole.WORKSPACE: Query.WORKSPACE}
        dnnl = library()
        descriptor = _descriptor(dnnl, pool, PropKind.FORWARD_TRAINING)
        self._forward = Primitive(dnnl, descriptor, training)
        self._backward = _gradient(pool, {ArgumentRole.WORKSPACE: Query.WORKSPACE})
        self._noted = dnnl.size(self._forward.describes(ArgumentRole.WORKSPACE))
        g = pool.windows
        self._made = g.rows * g.c

    def run(self, image: Array, gradient: Array, out: Array) -> None:
        """Write the gradient for all samples of the pool to `out`."""
        noted = scratch("noted", (self._noted,), _BYTE)
        made = scratch("made", (self._made,), _FLOAT)
        # The gradient reads the positions of the maxima, which only this pass writes. Its result is not used.
        self._forward.run(address(image), address(made), address(noted))
        self._backward.run(address(out), address(gradient), address(noted))


_Plan: TypeAlias = list[tuple[ConvBlock, Primitive]]


@lru_cache(maxsize=_KEPT)
def _plan(pool: PoolSpec, most: int, least: int) -> _Plan:
    parts = blocks(pool.windows, _taps(pool), most, least)
    return [(each, prepared(_part(pool, each))) for each in parts]


@lru_cache(maxsize=_KEPT)
def _average_plan(pool: PoolSpec, most: int, least: int) -> _Plan:
    parts = by_samples(pool.windows, _taps(pool), most, least)
    return [(each, _average_gradient(_part(pool, each))) for each in parts]


@lru_cache(maxsize=_KEPT)
def _max_plan(pool: PoolSpec, most: int, least: int) -> list[tuple[ConvBlock, _MaxGradient]]:
    parts = by_samples(pool.windows, _taps(pool), most, least)
    return [(each, _max_gradient(_part(pool, each))) for each in parts]


def _taps(pool: PoolSpec) -> Filters:
    """Return the windows as filters, one per channel."""
    return Filters(pool.windows.c, 1, pool.windows.c)


def _part(pool: PoolSpec, block: ConvBlock) -> PoolSpec:
    return PoolSpec(pool.algorithm, block.windows)


@lru_cache(maxsize=_KEPT)
def prepared(pool: PoolSpec, threads: int = 1) -> Primitive:
    """Return the pool of (image, result), for this number of OpenMP threads. A maximum needs moderate numbers."""
    dnnl = library()
    arguments = {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST}
    return Primitive(dnnl, _descriptor(dnnl, pool, PropKind.FORWARD_INFERENCE, threads), arguments, threads)


_max_gradient = lru_cache(maxsize=_KEPT)(_MaxGradient)


@lru_cache(maxsize=_KEPT)
def _average_gradient(pool: PoolSpec) -> Primitive:
    return _gradient(pool, {})


def _gradient(pool: PoolSpec, more: dict[ArgumentRole, Query]) -> Primitive:
    dnnl = library()
    hint = _descriptor(dnnl, pool, PropKind.FORWARD_TRAINING)
    try:
        with described(dnnl, pool.layouts()) as (image, result):
            made = dnnl.made(
                *("pooling_backward_primitive_desc_create", dnnl.engine, pool.algorithm, image, result),
                *(*_geometry(pool.windows), hint, dnnl.attributes),
            )
    finally:
        dnnl.call("primitive_desc_destroy", hint)
    return Primitive(dnnl, made, {ArgumentRole.DIFF_SRC: Query.DIFF_SRC, ArgumentRole.DIFF_DST: Query.DIFF_DST, **more})


def _descriptor(dnnl: Library, pool: PoolSpec, kind: PropKind, threads: int = 1) -> int:
    with described(dnnl, pool.layouts()) as (image, result):
        return dnnl.made(
            *("pooling_forward_primitive_desc_create", dnnl.engine, kind, pool.algorithm, image, result),
            *(*_geometry(pool.windows), dnnl.attributes),
            threads=threads,
        )


def _geometry(g: Windows) -> tuple[object, ...]:
    """Return strides, kernel, dilations (all 0) and paddings as arguments of the library."""
    g = g.lying()  # oneDNN takes twice as long for columns
    return tuple(dims_of(pair) for pair in ((g.sh, g.sw), (g.kh, g.kw), (0, 0), (g.top, g.left), after(g)))
