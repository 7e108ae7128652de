"""Kernels of batch norm and local response normalization; statistics are float32 for every dtype."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.nn.activations import column_sums, narrow, widen
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array, Namespace


class _Images:
    """Sums and broadcasts over all dimensions but the channels, for one data format."""

    def __init__(self, binding: Binding) -> None:
        data_format: str = binding.attrs["data_format"]
        self.rank, self.axis = len(data_format), data_format.index("C")
        self._xp = binding.xp
        self._columns = column_sums(binding.xp)

    def flat(self, x: Array) -> Array:
        """Return `x` in float32 as [windows, channels], or as [batch, channels, windows] if the channels come first.

        Raises:
            InvalidArgumentError: `x` does not have the rank of the data format.
        """
        if x.ndim != self.rank:
            raise InvalidArgumentError("the input has the wrong rank", expected=f"rank {self.rank}", actual=x.shape)
        channels = x.shape[self.axis]
        shape = (x.shape[0], channels, -1) if self.axis == 1 else (-1, channels)
        if x.size == 0:  # reshape cannot infer -1 for an empty array
            return self._xp.zeros([max(size, 0) for size in shape], np.float32)
        return widen(x).reshape(shape)

    def total(self, flat: Array) -> Array:
        """Return the sum of each channel."""
        return self._columns(flat) if flat.ndim == 2 else flat.sum(axis=2).sum(axis=0)

    def spread(self, per_channel: Array) -> Array:
        """Return one number per channel, shaped to broadcast over `flat`."""
        return per_channel if self.axis != 1 else per_channel[:, None]

    def check(self, x: Array, *per_channel: Array) -> None:
        """Raise InvalidArgumentError unless each vector has one element per channel."""
        wanted = (x.shape[self.axis],)
        for vector in per_channel:
            if vector.shape != wanted:
                raise InvalidArgumentError("one element per channel is needed", expected=wanted, actual=vector.shape)


@binder("FusedBatchNorm", fresh=True)
@binder("FusedBatchNormV2", fresh=True)
@binder("FusedBatchNormV3", fresh=True)
def batch_norm(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    xp, images = binding.xp, _Images(binding)
    epsilon, factor = np.float32(binding.attrs["epsilon"]), np.float32(binding.attrs["exponential_avg_factor"])
    training, third = binding.attrs["is_training"], len(binding.output_dtypes) == 6

    def body(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> tuple[Array, ...]:
        flat = images.flat(x)
        images.check(x, scale, offset)
        if training:
            centred, used_mean, used_variance = _moments(images, flat)
            outputs = _running(images, x, flat, (mean, variance), (used_mean, used_variance), factor)
        else:
            images.check(x, mean, variance)
            used_mean, used_variance = mean, variance
            centred = flat - images.spread(widen(mean))
            # `+ 0` copies, here and below: the outputs must not share memory with the inputs.
            outputs = (mean + 0, variance + 0)
        slope = widen(scale) / xp.sqrt(widen(used_variance) + epsilon)
        centred *= images.spread(slope)
        centred += images.spread(widen(offset))
        kept = tuple(narrow(v, scale.dtype) for v in (*outputs, used_mean + 0, used_variance + 0))
        y = narrow(centred.reshape(x.shape), x.dtype)
        return (y, *kept, xp.zeros((), scale.dtype)) if third else (y, *kept)

    return body


def _moments(images: _Images, flat: Array) -> tuple[Array, Array, Array]:
    count = np.float32(max(flat.size // max(flat.shape[-1 if flat.ndim == 2 else 1], 1), 1))
    # In two passes, because E[x²] - E[x]² cancels where the mean is large.
    mean = images.total(flat) / count
    centred = flat - images.spread(mean)
    return centred, mean, images.total(centred * centred) / count


def _running(
    images: _Images, x: Array, flat: Array, old: tuple[Array, Array], new: tuple[Array, Array], factor: np.float32
) -> tuple[Array, Array]:
    """Return the batch's mean and unbiased variance, averaged into the running ones unless `factor` is 1."""
    count = flat.size // max(x.shape[images.axis], 1)
    mean, variance = new[0], new[1] * np.float32(count / max(count - 1, 1))
    if factor == 1:
        return mean + 0, variance
    images.check(x, *old)
    keep = np.float32(1) - factor
    return old[0] * keep + mean * factor, old[1] * keep + variance * factor


@binder("FusedBatchNormGrad", fresh=True)
@binder("FusedBatchNormGradV2", fresh=True)
@binder("FusedBatchNormGradV3", fresh=True)
def batch_norm_grad(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    xp, images = binding.xp, _Images(binding)
    epsilon, training = np.float32(binding.attrs["epsilon"]), binding.attrs["is_training"]

    def body(
        y_backprop: Array, x: Array, scale: Array, mean: Array, variance: Array, *unused: Array
    ) -> tuple[Array, ...]:
        if y_backprop.shape != x.shape:
            raise InvalidArgumentError("y_backprop must have the shape of x", expected=x.shape, actual=y_backprop.shape)
        dy, unit = images.flat(y_backprop), images.flat(x)
        images.check(x, scale, mean, variance)
        inverse = 1 / xp.sqrt(variance + epsilon)
        unit = unit - images.spread(mean)
        unit *= images.spread(inverse)
        by_scale, by_offset = images.total(dy * unit), images.total(dy)
        # dx = scale / σ · (dy - mean(dy) - x̂ · mean(dy · x̂)), where x̂ is the normalized input.
        if training:
            count = np.float32(max(dy.size // max(x.shape[images.axis], 1), 1))
            unit *= images.spread(-by_scale / count)
            unit += dy
            unit -= images.spread(by_offset / count)
        else:
            unit = dy
        by_x = unit * images.spread(inverse * scale)
        empty = xp.zeros(0, scale.dtype)
        return narrow(by_x.reshape(x.shape), x.dtype), by_scale, by_offset, empty, empty

    return body


@kernel("LRN", fresh=True)
def lrn(xp: Namespace, input: Array, *, depth_radius: int, bias: float, alpha: float, beta: float) -> Array:
    x = _images4(input)
    return narrow(x * _shrunk(xp, _norm(x, depth_radius, bias, alpha), beta), input.dtype)


@kernel("LRNGrad", fresh=True)
def lrn_grad(
    xp: Namespace,
    grads: Array,
    image: Array,
    output: Array,
    *,
    depth_radius: int,
    bias: float,
    alpha: float,
    beta: float,
) -> Array:
    dy, x, y = _images4(grads), _images4(image), _images4(output)
    if not dy.shape == x.shape == y.shape:
        raise InvalidArgumentError(
            "all three inputs must have the same shape", expected=x.shape, actual=(dy.shape, y.shape)
        )
    norm = _norm(x, depth_radius, bias, alpha)
    # y = x · norm^-β, hence dx = dy · norm^-β - 2αβ · x · Σ dy · y / norm over the window.
    shares = _window_sum(dy * y / norm, depth_radius)
    made = dy * _shrunk(xp, norm, beta) - x * shares * np.float32(2 * alpha * beta)
    return narrow(made, grads.dtype)


def _images4(value: Array) -> Array:
    if value.ndim != 4:
        raise InvalidArgumentError("the input has the wrong rank", expected="rank 4", actual=value.shape)
    return widen(value)


def _norm(x: Array, radius: int, bias: float, alpha: float) -> Array:
    return _window_sum(x * x, radius) * np.float32(alpha) + np.float32(bias)


def _shrunk(xp: Namespace, norm: Array, beta: float) -> Array:
    """Return norm ** -beta. Square roots take a fraction of the time of a power."""
    if beta == 0.5:
        return 1 / xp.sqrt(norm)
    if beta == 0.75:
        root = xp.sqrt(norm)
        root *= xp.sqrt(root)
        return 1 / root
    return norm ** np.float32(-beta)


def _window_sum(x: Array, radius: int) -> Array:
    """Return, for each channel, the sum over the channels at most `radius` away."""
    depth = x.shape[-1]
    total = x.copy()
    for step in range(1, min(radius, depth - 1) + 1):
        total[..., step:] += x[..., :-step]
        total[..., :-step] += x[..., step:]
    return total
