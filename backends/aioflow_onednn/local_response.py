"""Local response normalization (LRN) of float32 by oneDNN, and its gradient.

Images are [pixels, channels] and contiguous; each pixel is normalized by itself. oneDNN raises the norm to the power of
three before it takes roots. It is therefore used only for norms of moderate size, which the sum of squares tests.
Measured on images of AlexNet and GoogLeNet, it takes a half to a tenth of NumPy's time, and less for larger batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, ArgumentRole, PropKind, Query
from aioflow_onednn.library import Library, library
from aioflow_onednn.magnitudes import sum_of_squares
from aioflow_onednn.primitives import Primitive, address, described, image_layout

WORTHWHILE: Final = 2**13  # numbers: below, NumPy is as fast
_BLOCK: Final = 2**16  # minimum numbers of a block: for fewer, waking a thread takes as long
_CACHED: Final = 2**17  # approximate maximum of the same
_KEPT: Final = 1024  # prepared primitives
_VECTOR: Final = 16  # channels in the longest vector
_LEAST, _MOST = 1e-6, 1e12  # norms whose third power float32 represents with full precision
_SAME: Final = 1e-10  # ratio of sums of squares up to which two results differ by rounding only
_BYTE: Final = np.dtype(np.uint8)
_FLOAT: Final = np.dtype(np.float32)
_RESULT: Final = {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST}
_GRADIENT: Final = {
    ArgumentRole.SRC: Query.SRC,
    ArgumentRole.DIFF_DST: Query.DIFF_DST,
    ArgumentRole.DIFF_SRC: Query.DIFF_SRC,
    ArgumentRole.WORKSPACE: Query.WORKSPACE,
}


@dataclass(frozen=True, slots=True)
class LrnSpec:
    """The attributes of a local response normalization: x * (bias + alpha * sum of x² in the window) ** -beta."""

    radius: int
    bias: float
    alpha: float
    beta: float

    @property
    def fits(self) -> bool:
        """Return True if the norm of every pixel is at least `_LEAST`."""
        return self.bias >= _LEAST and self.alpha >= 0

    def has_gradient(self, channels: int) -> bool:
        """Return True if oneDNN's gradient is correct.

        In oneDNN 3.2 it crashes for a radius of 0. For one above 2 it is wrong if a vector of channels is not full.
        """
        return 1 <= self.radius <= 2 or (self.radius > 2 and channels % _VECTOR == 0)

    def is_moderate(self, x: Array) -> bool:
        """Return True if x has no NaN and no norm above `_MOST`."""
        return sum_of_squares(x) * self.alpha + self.bias < _MOST


def forward(x: Array, lrn: LrnSpec) -> Array | None:
    """Return the normalized pixels; None where oneDNN has no fast code, or x is too large for it."""
    out = np.empty(x.shape, _FLOAT)
    parts, strange = _parts(x), list[int]()

    def normalize(number: int) -> None:
        part = x[parts[number]]
        prepared = _forward(lrn, *part.shape)
        if strange or prepared is None or not lrn.is_moderate(part):
            strange.append(number)
            return
        prepared.run(address(part), address(out[parts[number]]))

    for_each(normalize, range(len(parts)))
    return None if strange else out


def gradient(dy: Array, x: Array, y: Array, lrn: LrnSpec) -> Array | None:
    """Return the gradient of the pixels x, given that of the result; None as for `forward`.

    oneDNN computes the result again. The gradient is None, too, if that is not y.
    """
    out = np.empty(x.shape, _FLOAT)
    parts, strange = _parts(x), list[int]()
    if not lrn.has_gradient(x.shape[1]):
        return None

    def route(number: int) -> None:
        at = parts[number]
        part = x[at]
        prepared = _gradient(lrn, *part.shape)
        if strange or prepared is None or not lrn.is_moderate(part):
            strange.append(number)
            return
        if not prepared.run(dy[at], part, y[at], out[at]):
            strange.append(number)

    for_each(route, range(len(parts)))
    return None if strange else out


class _LrnGradient:
    """A normalization that records its norms, and its gradient."""

    def __init__(self, lrn: LrnSpec, pixels: int, channels: int) -> None:
        dnnl = library()
        hint = _descriptor(dnnl, lrn, PropKind.FORWARD_TRAINING, pixels, channels)
        self._forward = Primitive(dnnl, hint, {**_RESULT, ArgumentRole.WORKSPACE: Query.WORKSPACE})
        layout = image_layout(1, 1, pixels, channels)
        with described(dnnl, (layout, layout, layout)) as layouts:
            made = dnnl.made(
                "lrn_backward_primitive_desc_create",
                *(dnnl.engine, Algorithm.LRN_ACROSS_CHANNELS, *layouts, *_numbers(lrn), hint, dnnl.attributes),
            )
        self._backward = Primitive(dnnl, made, _GRADIENT)
        self.is_fast = not (self._forward.is_reference or self._backward.is_reference)
        self._noted = dnnl.size(self._forward.describes(ArgumentRole.WORKSPACE))

    def run(self, dy: Array, x: Array, y: Array, out: Array) -> bool:
        """Write the gradient to `out`. Return False if y is not the result of x."""
        noted, made = scratch("noted", (self._noted,), _BYTE), scratch("normalized", x.shape, _FLOAT)
        self._forward.run(address(x), address(made), address(noted))
        made -= y
        if not sum_of_squares(made) <= _SAME * sum_of_squares(y):
            return False
        self._backward.run(address(x), address(dy), address(out), address(noted))
        return True


def _parts(x: Array) -> list[slice]:
    """Return ranges of pixels."""
    pixels = len(x)
    count = max(1, min(pixels, max(min(thread_count(), x.size // _BLOCK), x.size // _CACHED)))
    return [slice(pixels * number // count, pixels * (number + 1) // count) for number in range(count)]


@lru_cache(maxsize=_KEPT)
def _forward(lrn: LrnSpec, pixels: int, channels: int) -> Primitive | None:
    """Return the normalization of (pixels, result); None where oneDNN would use its reference implementation."""
    dnnl = library()
    made = Primitive(dnnl, _descriptor(dnnl, lrn, PropKind.FORWARD_INFERENCE, pixels, channels), _RESULT)
    return None if made.is_reference else made


@lru_cache(maxsize=_KEPT)
def _gradient(lrn: LrnSpec, pixels: int, channels: int) -> _LrnGradient | None:
    made = _LrnGradient(lrn, pixels, channels)
    return made if made.is_fast else None


def _descriptor(dnnl: Library, lrn: LrnSpec, kind: PropKind, pixels: int, channels: int) -> int:
    layout = image_layout(1, 1, pixels, channels)
    with described(dnnl, (layout, layout)) as (source, target):
        return dnnl.made(
            *("lrn_forward_primitive_desc_create", dnnl.engine, kind, Algorithm.LRN_ACROSS_CHANNELS, source, target),
            *(*_numbers(lrn), dnnl.attributes),
        )


def _numbers(lrn: LrnSpec) -> tuple[object, ...]:
    """Return the size of the window, alpha, beta and bias as arguments of the library, whose norm is a mean."""
    size = 2 * lrn.radius + 1
    return size, lrn.alpha * size, lrn.beta, lrn.bias
