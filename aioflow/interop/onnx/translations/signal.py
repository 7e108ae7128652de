"""Fourier transforms of signals whose last axis holds real and imaginary parts, and related ops."""

from __future__ import annotations

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import Size, count_of, int64, rank_of, sizes_of, with_dims
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import make
from aioflow.ops.math import fourier


@translation("DFT")
def dft_by_attribute(node: OnnxNode, x: Tensor, length: Tensor | None = None) -> Tensor:
    return _transformed(node, x, length, node.attr("axis", 1))


@translation("DFT", since=20)
def dft(node: OnnxNode, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    known = None if axis is None else node.constant(axis)
    if axis is not None and known is None:
        return _along_unknown(node, x, length, axis)
    return _transformed(node, x, length, -2 if known is None else int(known))


def _along_unknown(node: OnnxNode, x: Tensor, length: Tensor | None, axis: Tensor) -> Tensor:
    """Return the transform along an axis known only in the step, which is swapped with the last axis of the signal."""
    rank = rank_of(node, x)
    order = ops.range(rank)
    wanted = ops.floormod(ops.cast(ops.reshape(axis, []), "int32"), rank)
    # A swap of two axes is its own inverse.
    swapped = ops.where_v2(ops.equal(order, rank - 2), wanted, ops.where_v2(ops.equal(order, wanted), rank - 2, order))
    moved = with_dims(ops.transpose(x, swapped), (*[None] * (rank - 1), (x.dims or ())[-1]))
    return ops.transpose(_transformed(node, moved, length, -2), swapped)


def _transformed(node: OnnxNode, x: Tensor, length: Tensor | None, axis: int) -> Tensor:
    rank = rank_of(node, x)
    axis %= rank
    parts = (x.dims or ())[-1]
    if axis == rank - 1 or parts not in (1, 2, None):
        raise node.wrong("the signal", "[batch, …, 1 or 2], transformed along one axis before the last", x.dims)
    kind = x.dtype
    wide = x if kind in (dtypes.float32, dtypes.float64) else ops.cast(x, "float32")
    # The transforms work along the last axis of complex numbers.
    order = [i for i in range(rank - 1) if i != axis] + [axis]
    moved = ops.transpose(wide, [*order, rank - 1])
    inverse, half = node.attr("inverse", 0), node.attr("onesided", 0)
    size = None if length is None else count_of(length)
    if half and parts is None:  # a one-sided transform has real input, or output if inverse
        parts = 2 if inverse else 1
    if half and inverse:
        whole = _complex(moved, parts)
        result = ops.expand_dims(fourier.irfft(whole, None if size is None else [size]), -1)
    elif half and parts == 1:
        # Real input: the other half of the spectrum is the complex conjugate.
        result = _pairs(fourier.rfft(moved[..., 0], None if size is None else [size]))
    else:
        result = _pairs(_whole(_complex(moved, parts), size, bool(inverse)))
        if half:
            # The first ⌊n / 2⌋ + 1 frequencies.
            result = ops.gather(result, ops.range(int64(sizes_of(result)[rank - 2]) // 2 + 1), axis=rank - 2)
    back = [order.index(i) for i in range(rank - 1)] + [rank - 1]
    return ops.cast(ops.transpose(result, back), kind)


def _complex(pairs: Tensor, parts: int | None) -> Tensor:
    """Return complex numbers from a last axis of real parts and possibly imaginary ones."""
    real = pairs[..., 0]
    if parts is None:  # if there is no imaginary part, the sum is 0
        return ops.complex(real, ops.reduce_sum(pairs[..., 1:], -1))
    return ops.complex(real, pairs[..., 1] if parts == 2 else ops.zeros_like(real))


def _whole(numbers: Tensor, size: Tensor | None, inverse: bool) -> Tensor:
    if size is not None:
        numbers = _fitted(numbers, size)
    return fourier.ifft(numbers) if inverse else fourier.fft(numbers)


def _fitted(x: Tensor, size: Tensor) -> Tensor:
    """Return the tensor cropped, or padded with zeros, at the end of the last axis."""
    rank = len(x.dims or ())
    own = ops.cast(sizes_of(x)[-1], "int32")
    missing = ops.maximum(size - own, 0)
    widths = ops.concat([np.zeros((rank - 1, 2), np.int32), ops.reshape(ops.stack([0, missing]), [1, 2])], 0)
    return ops.gather(ops.pad(x, widths), ops.range(size), axis=rank - 1)


def _pairs(numbers: Tensor) -> Tensor:
    return ops.stack([ops.real(numbers), ops.imag(numbers)], -1)


@translation("STFT")
def stft(
    node: OnnxNode, signal: Tensor, step: Tensor, window: Tensor | None = None, frame_length: Tensor | None = None
) -> Tensor:
    """Return the transforms of frames, each weighted by the window. Frames begin `step` samples apart."""
    parts = (signal.dims or ())[-1]
    samples = sizes_of(signal)[1]
    if rank_of(node, signal) != 3 or parts not in (1, 2, None):
        raise node.wrong("the signal", "[batch, samples, 1 or 2]", signal.dims)
    length: Size = samples
    if frame_length is not None:
        length = ops.reshape(int64(frame_length), [])
    elif window is not None:
        length = sizes_of(window)[0]
    hop = ops.reshape(int64(step), [])
    # Only frames that fit into the signal.
    frames = (int64(samples) - length) // hop + 1
    begins = ops.reshape(ops.range(frames) * hop, [-1, 1])
    places = begins + ops.reshape(ops.range(int64(length)), [1, -1])
    taken = ops.gather(signal, places, axis=1)  # [batch, frames, length, parts]
    if window is not None:
        taken = taken * ops.reshape(ops.cast(window, signal.dtype), [1, 1, -1, 1])
    kind = signal.dtype
    wide = taken if kind in (dtypes.float32, dtypes.float64) else ops.cast(taken, "float32")
    if parts != 2 and node.attr("onesided", 1):
        return ops.cast(_pairs(fourier.rfft(wide[..., 0])), kind)
    result = _pairs(_whole(_complex(wide, parts), None, False))
    if node.attr("onesided", 1):
        result = ops.gather(result, ops.range(int64(length) // 2 + 1), axis=2)
    return ops.cast(result, kind)


@translation("MelWeightMatrix")
def mel_weight_matrix(
    node: OnnxNode, bins: Tensor, length: Tensor, rate: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """Return triangles over the bins of a spectrum, equidistant on the mel scale.

    If the left edge of a triangle equals its center, that bin has weight 1.
    """
    count, size = (ops.reshape(int64(each), []) for each in (bins, length))
    low, high = (_mel(ops.cast(ops.reshape(each, []), "float64")) for each in (lower, upper))
    places = ops.cast(ops.range(count + 2), "float64")
    mels = places * ((high - low) / ops.cast(count + 2, "float64")) + low
    # The inverse of mel = 2595 · log₁₀(1 + hertz / 700).
    hertz = 700.0 * ops.expm1(mels / 2595.0 * float(np.log(10)))
    # Bins of the edges: ⌊(size + 1) · hertz / rate⌋.
    edges = ops.floor(ops.cast(size + 1, "float64") * hertz / ops.cast(ops.reshape(rate, []), "float64"))
    left, middle, right = (ops.slice(edges, [i], ops.reshape(count, [1])) for i in range(3))
    at = ops.expand_dims(ops.cast(ops.range(size // 2 + 1), "float64"), 1)
    rising = ops.where_v2(ops.logical_and(at >= left, at <= middle), _part(at - left, middle - left), 0.0 * at)
    rising = ops.where_v2(ops.logical_and(ops.equal(at, middle), ops.equal(left, middle)), 0.0 * at + 1.0, rising)
    falling = ops.logical_and(at >= middle, at < right)
    result = ops.where_v2(falling, _part(right - at, right - middle), rising)
    return ops.cast(result, node.dtype("output_datatype", dtypes.float32))


def _mel(hertz: Tensor) -> Tensor:
    return 2595.0 / float(np.log(10)) * ops.log1p(hertz / 700.0)


def _part(some: Tensor, whole: Tensor) -> Tensor:
    return make("DivNoNan", some + 0.0 * whole, whole + 0.0 * some)
