"""Sampling of images and volumes at positions between their elements.

Coordinates count elements, and the first element is at 0. A position outside reads zero, the element at the border, or
the mirrored image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import Size, int64, product_of, sizes_of
from aioflow.ops import public as ops

_CUBIC: Final = -0.75


@dataclass(frozen=True, slots=True)
class SamplingMethod:
    """The method of sampling.

    Attributes:
        mode: "nearest", "linear" or "cubic".
        padding: "zeros", "border" or "reflection".
        aligned: Whether the border is the center of the outermost elements, rather than their outer edges.
    """

    mode: str = "linear"
    padding: str = "zeros"
    aligned: bool = True


def shape_of_sizes(sizes: Sequence[Size]) -> Tensor:
    """Return an int64 vector of sizes, which are numbers or scalars."""
    if all(isinstance(size, int) for size in sizes):
        return int64(list(sizes))
    return ops.stack([int64(size) for size in sizes])


def sampled(x: Tensor, coordinates: Sequence[Tensor], how: SamplingMethod) -> Tensor:
    """Return the values [batch, places, channels] of x [batch, channels, sizes …] at places.

    Args:
        x: The images or volumes.
        coordinates: Coordinates of the places, [batch, places], for each spatial axis in order.
        how: The method of sampling.
    """
    batch, channels, *sizes = sizes_of(x)
    flat = ops.transpose(ops.reshape(x, shape_of_sizes([batch, channels, product_of(sizes)])), [0, 2, 1])
    axes = [_axis(at, size, how) for at, size in zip(coordinates, sizes, strict=True)]
    parts = []
    for taps in product(*axes):
        place: Any = None
        weight: Any = None
        for size, (index, own) in zip(sizes, taps, strict=True):
            # Row-major index into the flattened axes.
            place = index if place is None else place * size + index
            weight = own if weight is None else weight * own
        value = ops.gather(flat, place, axis=1, batch_dims=1)
        parts.append(value * ops.cast(ops.expand_dims(weight, 2), x.dtype))
    return ops.add_n(parts)


def _axis(at: Tensor, size: Size, how: SamplingMethod) -> list[tuple[Tensor, Tensor]]:
    """Return the elements of an axis that are read for each place, each with its weight."""
    if how.mode == "nearest":
        # Rounding precedes the padding rule, so a place at the border may move in.
        at = ops.round(at)
    at = _brought_in(at, size, how)
    if how.mode == "nearest":
        return [_fetched(ops.cast(at, "int64"), ops.ones_like(at), size, how)]
    base = ops.floor(at)
    fraction = at - base
    first = ops.cast(base, "int64")
    weights = _linear(fraction) if how.mode == "linear" else _cubic(fraction)
    offset = 0 if how.mode == "linear" else -1
    return [_fetched(first + (offset + i), weight, size, how) for i, weight in enumerate(weights)]


def _linear(fraction: Tensor) -> list[Tensor]:
    return [1.0 - fraction, fraction]


def _cubic(fraction: Tensor) -> list[Tensor]:
    near: Callable[[Tensor], Tensor] = lambda d: ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1.0  # noqa: E731
    # Keys' cubic convolution with a = -0.75.
    # Near (d ≤ 1): (a + 2) d³ - (a + 3) d² + 1. Far: a d³ - 5 a d² + 8 a d - 4 a.
    far: Callable[[Tensor], Tensor] = lambda d: ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC  # noqa: E731
    # The distances of the four elements from the place, first to last.
    return [far(fraction + 1.0), near(fraction), near(1.0 - fraction), far(2.0 - fraction)]


def _borders(size: Size, how: SamplingMethod, dtype: DType) -> tuple[float | Tensor, float | Tensor]:
    wide = ops.cast(size, dtype) if isinstance(size, Tensor) else float(size)
    # Aligned corners are the centers of the outermost elements; otherwise their outer edges, half an element farther.
    return (0.0, wide - 1.0) if how.aligned else (-0.5, wide - 0.5)


def _brought_in(at: Tensor, size: Size, how: SamplingMethod) -> Tensor:
    """Return the coordinates with those outside of the borders moved as the padding specifies."""
    if how.padding == "zeros" or how.mode == "cubic":  # for cubic, `_fetched` moves each element instead
        return at
    least, most = _borders(size, how, at.dtype)
    if how.padding == "reflection":
        return _mirrored(at, least, most)
    last = ops.cast(size - 1, at.dtype)
    clamped = ops.maximum(ops.minimum(at, last), ops.zeros_like(at))
    return ops.where_v2(ops.logical_or(at < least, at > most), clamped, at)


def _mirrored(at: Tensor, least: float | Tensor, most: float | Tensor) -> Tensor:
    """Return the coordinates reflected at both borders, as often as needed."""
    span = most - least
    # An axis of one element has no span with aligned corners; 1 avoids a division by 0.
    span = ops.where_v2(span > 0.0, span, ops.ones_like(span)) if isinstance(span, Tensor) else span or 1.0
    below = at < least
    beyond = ops.where_v2(below, least - at, at - most)
    turns = ops.floor(beyond / span)
    rest = beyond - turns * span
    even = ops.equal(ops.floormod(turns, 2.0), 0.0)
    from_least = ops.equal(below, even)  # True if the result is counted from the lower border
    inside = ops.where_v2(from_least, least + rest, most - rest)
    return ops.where_v2(ops.logical_or(below, at > most), inside, at)


def _fetched(index: Tensor, weight: Tensor, size: Size, how: SamplingMethod) -> tuple[Tensor, Tensor]:
    """Return an element's index within the axis, and its weight, which is 0 outside with "zeros" padding."""
    if how.padding == "zeros":
        inside = ops.logical_and(index >= 0, index < size)
        weight = ops.where_v2(inside, weight, ops.zeros_like(weight))
    elif how.padding == "reflection":
        least, most = _borders(size, how, weight.dtype)
        index = ops.cast(_mirrored(ops.cast(index, weight.dtype), least, most), "int64")
    # With zeros the element at the border is read as well, but its weight is 0.
    return ops.maximum(ops.minimum(index, size - 1), 0), weight
