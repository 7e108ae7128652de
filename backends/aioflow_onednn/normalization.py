"""Batch normalization of float32 by oneDNN, and its gradient.

Images are [windows, channels] and contiguous. Where the statistics are given, threads normalize blocks of windows.
oneDNN adds one window after another, which loses precision with many windows. The statistics of a large image, and the
sums for its gradient, are therefore combined from those of its parts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import ArgumentRole, Normalization, PropKind, Query
from aioflow_onednn.library import Library, library
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described

WORTHWHILE: Final = 2**16  # numbers of an image: below, NumPy is as fast
_BLOCK: Final = 2**18  # minimum numbers of a block
_MANY: Final = 2**16  # windows: above, sums are computed in parts, which takes up to twice the processor time
_SUMMED: Final = 2**13  # maximum windows of a part
_KEPT: Final = 1024  # prepared normalizations
_FLOAT: Final = np.dtype(np.float32)
_AFFINE: Final = Normalization.SCALE | Normalization.SHIFT
_GIVEN: Final = {
    ArgumentRole.MEAN: Query.MEAN,
    ArgumentRole.VARIANCE: Query.VARIANCE,
    ArgumentRole.SCALE: Query.SCALE,
}
_FORWARD: Final = {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST, **_GIVEN, ArgumentRole.SHIFT: Query.SHIFT}
_BACKWARD: Final = {
    ArgumentRole.SRC: Query.SRC,
    ArgumentRole.DIFF_DST: Query.DIFF_DST,
    ArgumentRole.DIFF_SRC: Query.DIFF_SRC,
    **_GIVEN,
    ArgumentRole.DIFF_SCALE: Query.DIFF_SCALE,
    ArgumentRole.DIFF_SHIFT: Query.DIFF_SHIFT,
}


def normalized(x: Array, mean: Array, variance: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    """Return the image, normalized with these statistics. All vectors are contiguous, with one number per channel."""
    out = np.empty(x.shape, np.float32)
    rows, channels = x.shape
    blocks = max(1, min(rows, thread_count(), x.size // _BLOCK))
    vectors = [address(vector) for vector in (mean, variance, scale, shift)]

    def normalize(number: int) -> None:
        part = slice(rows * number // blocks, rows * (number + 1) // blocks)
        prepared = _forward(part.stop - part.start, channels, epsilon, is_training=False)
        prepared.run(address(x[part]), address(out[part]), *vectors)

    for_each(normalize, range(blocks))
    return out


def trained(x: Array, scale: Array, shift: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """Return the image, normalized with its own statistics, and these statistics: the mean and the variance."""
    if len(x) > _MANY:
        mean, variance = _statistics(x, scale, shift, epsilon)
        return normalized(x, mean, variance, scale, shift, epsilon), mean, variance
    out, (mean, variance) = np.empty(x.shape, np.float32), np.empty((2, x.shape[1]), np.float32)
    addresses = [address(each) for each in (x, out, mean, variance, scale, shift)]
    _forward(*x.shape, epsilon, is_training=True).run(*addresses)
    return out, mean, variance


def _statistics(x: Array, scale: Array, shift: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the mean and the variance of many windows; the bits do not depend on the number of threads."""
    parts = _parts(len(x))
    means, variances = np.empty((2, len(parts), x.shape[1]), _FLOAT)

    def measure(number: int) -> None:
        part = x[parts[number]]
        # oneDNN computes statistics only together with the normalized image, which is not needed here.
        unused = scratch("normalized", part.shape, _FLOAT)
        addresses = [address(each) for each in (part, unused, means[number], variances[number], scale, shift)]
        _forward(*part.shape, epsilon, is_training=True).run(*addresses)

    for_each(measure, range(len(parts)))
    # With the share s of each part: mean = sum of s * mean_k, variance = sum of s * (variance_k + (mean_k - mean)**2).
    # In float64.
    shares = np.array([[part.stop - part.start] for part in parts]) / len(x)
    mean = (shares * means).sum(axis=0)
    variance = (shares * (variances + np.square(means - mean))).sum(axis=0)
    return mean.astype(_FLOAT), variance.astype(_FLOAT)


def gradient(
    dy: Array, x: Array, mean: Array, variance: Array, scale: Array, epsilon: float, is_training: bool
) -> tuple[Array, Array, Array]:
    """Return the gradients of the image, the scale and the shift."""
    if len(x) > _MANY:
        return _gradient_by_parts(dy, x, mean, variance, scale, epsilon, is_training)
    out, (by_scale, by_shift) = np.empty(x.shape, np.float32), np.empty((2, x.shape[1]), np.float32)
    addresses = [address(each) for each in (x, dy, out, mean, variance, scale, by_scale, by_shift)]
    _backward(*x.shape, epsilon, is_training).run(*addresses)
    return out, by_scale, by_shift


def _gradient_by_parts(
    dy: Array, x: Array, mean: Array, variance: Array, scale: Array, epsilon: float, is_training: bool
) -> tuple[Array, Array, Array]:
    """Return the gradients as `gradient` does, for many windows.

    The gradients are first computed with the statistics as constants; then the gradient through the statistics is
    added.
    """
    parts, out = _parts(len(x)), np.empty(x.shape, _FLOAT)
    by_scales, by_shifts = np.empty((2, len(parts), x.shape[1]), _FLOAT)

    def route(number: int) -> None:
        arrays = x[parts[number]], dy[parts[number]], out[parts[number]]
        sums = by_scales[number], by_shifts[number]
        addresses = [address(each) for each in (*arrays, mean, variance, scale, *sums)]
        _backward(*arrays[0].shape, epsilon, is_training=False).run(*addresses)

    for_each(route, range(len(parts)))
    by_scale, by_shift = (sums.sum(axis=0, dtype=np.float64) for sums in (by_scales, by_shifts))
    # Through the statistics: -scale / (n * deviation) * (x' * sum(dy * x') + sum(dy)), where x' is the normalized x.
    share = -scale / np.sqrt(variance + np.float64(epsilon)) / len(x)
    # The gradient through the statistics is itself a normalization of x, with these factors as scale and shift.
    factors = [(share * total).astype(_FLOAT) for total in (by_scale, by_shift)]

    def add(number: int) -> None:
        part = x[parts[number]]
        through = scratch("normalized", part.shape, _FLOAT)
        addresses = [address(each) for each in (part, through, mean, variance, *factors)]
        _forward(*part.shape, epsilon, is_training=False).run(*addresses)
        out[parts[number]] += through

    if is_training:
        for_each(add, range(len(parts)))
    return out, by_scale.astype(_FLOAT), by_shift.astype(_FLOAT)


def _parts(rows: int) -> list[slice]:
    """Return ranges of windows, each of which oneDNN sums sequentially."""
    count = -(-rows // _SUMMED)
    return [slice(rows * number // count, rows * (number + 1) // count) for number in range(count)]


@lru_cache(maxsize=_KEPT)
def _forward(rows: int, channels: int, epsilon: float, is_training: bool) -> Primitive:
    dnnl = library()
    kind = PropKind.FORWARD_TRAINING if is_training else PropKind.FORWARD_INFERENCE
    return Primitive(dnnl, _descriptor(dnnl, kind, rows, channels, epsilon, is_training), _FORWARD)


def _descriptor(dnnl: Library, kind: PropKind, rows: int, channels: int, epsilon: float, is_training: bool) -> int:
    layout = MemoryLayout((rows, channels), (channels, 1))
    with described(dnnl, (layout, layout)) as (source, target):
        return dnnl.made(
            *("batch_normalization_forward_primitive_desc_create", dnnl.engine, kind, source, target),
            *(epsilon, _flags(is_training), dnnl.attributes),
        )


@lru_cache(maxsize=_KEPT)
def _backward(rows: int, channels: int, epsilon: float, is_training: bool) -> Primitive:
    dnnl, layout = library(), MemoryLayout((rows, channels), (channels, 1))
    hint = _descriptor(dnnl, PropKind.FORWARD_TRAINING, rows, channels, epsilon, is_training)
    try:
        with described(dnnl, (layout, layout, layout)) as layouts:
            made = dnnl.made(
                "batch_normalization_backward_primitive_desc_create",
                *(dnnl.engine, PropKind.BACKWARD, *layouts, epsilon, _flags(is_training), hint, dnnl.attributes),
            )
    finally:
        dnnl.call("primitive_desc_destroy", hint)
    return Primitive(dnnl, made, _BACKWARD)


def _flags(is_training: bool) -> Normalization:
    return _AFFINE if is_training else _AFFINE | Normalization.STATISTICS
