"""The partition of a convolution into blocks, each of which runs in one thread.

A block is a range of samples if there are enough of them. Otherwise it is a range of lines of the result, or of its
channels where the filter is larger than the image. Every thread then reads only the smaller of the two as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from aioflow_numpy.conv_shapes import Windows
from aioflow_onednn.filters import Filters

LEAST: Final = 2**24  # minimum multiplications of a block: for fewer, waking a thread takes as long

_LONG: Final = 2**28  # approximate maximum multiplications of a block; cancellation is checked after each
_LONG_SUM: Final = 2**30  # the same for gradients of a filter, which are added up after each block
_CHANNELS: Final = 16  # oneDNN is fastest with multiples of this number of channels


@dataclass(frozen=True, slots=True)
class ConvBlock:
    """Some samples, lines and channels of the result.

    Attributes:
        samples: Range of samples.
        lines: Range of lines of the result.
        source: Range of lines of the image that the block reads.
        outputs: Range of channels of the result.
        windows: Windows of the block.
        filters: Filters of the block.
    """

    samples: slice
    lines: slice
    source: slice
    outputs: slice
    windows: Windows
    filters: Filters


def blocks(g: Windows, filters: Filters, threads: int, least: int) -> list[ConvBlock]:
    """Return the blocks, each of at least `least` multiplications."""
    count = _count(g, filters, threads, least)
    if g.n >= count:
        return _by_samples(g, filters, count)
    # The blocks of each sample, rounded up.
    each = -(-count // g.n)
    if filters.groups == 1 and filters.size(g) > g.h * g.w * g.c and filters.outputs >= each * _CHANNELS:
        samples, parts = [slice(sample, sample + 1) for sample in range(g.n)], _parts(filters.outputs, each, _CHANNELS)
        return [_of_channels(replace(g, n=1), filters, sample, part) for part in parts for sample in samples]
    return _by_lines(g, filters, each)


def by_samples(g: Windows, filters: Filters, threads: int, least: int) -> list[ConvBlock]:
    """Return blocks of whole samples; otherwise like `blocks`."""
    return _by_samples(g, filters, _count(g, filters, threads, least))


def shares(g: Windows, filters: Filters, threads: int, least: int) -> list[list[ConvBlock]]:
    """Return at most `threads` lists of blocks of samples or lines, whose gradients of the filter are to be added."""
    work = g.rows * filters.size(g)
    most = max(1, min(work // least, threads))
    count = max(most, work // _LONG_SUM)
    made = _by_samples(g, filters, count) if g.n >= count else _by_lines(g, filters, -(-count // g.n))
    return [made[share] for share in _parts(len(made), min(most, len(made)))]


def _by_samples(g: Windows, filters: Filters, count: int) -> list[ConvBlock]:
    lines, parts = slice(0, g.oh), _parts(g.n, min(count, g.n))
    return [_of_lines(replace(g, n=part.stop - part.start), filters, part, lines) for part in parts]


def _by_lines(g: Windows, filters: Filters, each: int) -> list[ConvBlock]:
    """Return up to `each` blocks of each sample."""
    one, parts = replace(g, n=1), _parts(g.oh, min(each, g.oh))
    return [_of_lines(one, filters, slice(sample, sample + 1), part) for sample in range(g.n) for part in parts]


def _count(g: Windows, filters: Filters, threads: int, least: int) -> int:
    work = g.rows * filters.size(g)
    return max(1, min(work // least, threads), work // _LONG)


def _parts(size: int, count: int, unit: int = 1) -> list[slice]:
    """Split `size` into `count` parts of nearly equal size; all but the last are multiples of `unit`."""
    units = -(-size // unit)
    ends = [min(size, units * number // count * unit) for number in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def _of_channels(g: Windows, filters: Filters, samples: slice, outputs: slice) -> ConvBlock:
    part = filters.part(outputs.stop - outputs.start)
    return ConvBlock(samples, slice(0, g.oh), slice(0, g.h), outputs, g, part)


def _of_lines(g: Windows, filters: Filters, samples: slice, lines: slice) -> ConvBlock:
    """Return a block of lines; `g` has as many samples as the block."""
    outputs, oh = slice(0, filters.outputs), lines.stop - lines.start
    # Whole images keep the windows, and so share the primitive with other blocks of as many samples.
    if oh == g.oh:
        return ConvBlock(samples, lines, slice(0, g.h), outputs, g, filters)
    # In lines of the image: negative above it, where the block has its padding.
    first = lines.start * g.sh - g.top
    last = (lines.stop - 1) * g.sh + (g.kh - 1) * g.dh - g.top
    source = slice(max(0, first), min(g.h, last + 1))
    part = replace(g, h=source.stop - source.start, top=source.start - first, oh=oh)
    return ConvBlock(samples, lines, source, outputs, part, filters)


def after(g: Windows) -> tuple[int, int]:
    """Return the padding (below, right), negative where windows end before the image does."""
    return g.span_h - g.top - g.h, g.span_w - g.left - g.w
