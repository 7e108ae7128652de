"""Kernels of the random ops. A node's generator belongs to the session and goes on from step to step, under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int, as_ints
from aioflow.kernels.registry import Binding, binder

__all__: list[str] = []

Draw = Callable[[Any, tuple[int, ...], Any], Any]
_MANTISSA: Final = {"float16": 10, "bfloat16": 7}
_SOME_SEED: Final = 0x9E3779B97F4A7C15  # stands for (0, 0), which asks the backend for a seed of the operating system's


class _Stream:
    """A generator, and the lock that one step at a time takes to draw from it."""

    def __init__(self, binding: Binding) -> None:
        self.generator = binding.backend.generator(binding.attrs["seed"], binding.attrs["seed2"])
        self.lock = threading.Lock()


def _stream(binding: Binding) -> _Stream:
    return binding.shared(lambda: _Stream(binding))


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(size < 0 for size in shape):
        raise InvalidArgumentError("a size cannot be negative", expected="sizes >= 0", actual=shape)
    return shape


def _uniform(generator: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.itemsize != 2:
        return generator.random(shape, dtype=dtype)
    # As many bits as the dtype has, so that nothing is rounded up to 1.
    bits = np.float32(2 ** _MANTISSA[dtype.name])
    steps = generator.random(shape, dtype=np.float32)
    steps *= bits
    return (steps.astype(np.int32) / bits).astype(dtype)


def _normal(generator: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.itemsize != 2:
        return generator.standard_normal(shape, dtype=dtype)
    return generator.standard_normal(shape, dtype=np.float32).astype(dtype)


def _truncated(generator: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    sample = generator.standard_normal(shape, dtype=wide).reshape(-1)
    outside = abs(sample) > 2
    while (count := int(outside.sum())) > 0:
        sample[outside] = generator.standard_normal(count, dtype=wide)
        outside = abs(sample) > 2
    return sample.reshape(shape).astype(dtype, copy=False)


_DRAWS: Final[dict[str, Draw]] = {
    "RandomUniform": _uniform,
    "RandomStandardNormal": _normal,
    "TruncatedNormal": _truncated,
    "StatelessRandomUniform": _uniform,
    "StatelessRandomNormal": _normal,
    "StatelessTruncatedNormal": _truncated,
}


@binder("RandomUniform", host={"shape": as_ints}, fresh=True)
@binder("RandomStandardNormal", host={"shape": as_ints}, fresh=True)
@binder("TruncatedNormal", host={"shape": as_ints}, fresh=True)
def stateful(binding: Binding) -> Callable[[tuple[int, ...]], Any]:
    draw, stream, dtype = _DRAWS[binding.op_type], _stream(binding), binding.output_dtypes[0].np_dtype

    def body(shape: tuple[int, ...]) -> Any:
        with stream.lock:
            return draw(stream.generator, _checked_shape(shape), dtype)

    return body


@binder("StatelessRandomUniform", host={"shape": as_ints, "seed": as_ints}, fresh=True)
@binder("StatelessRandomNormal", host={"shape": as_ints, "seed": as_ints}, fresh=True)
@binder("StatelessTruncatedNormal", host={"shape": as_ints, "seed": as_ints}, fresh=True)
def stateless(binding: Binding) -> Callable[..., Any]:
    draw, dtype, backend = _DRAWS[binding.op_type], binding.output_dtypes[0].np_dtype, binding.backend

    def body(shape: tuple[int, ...], seed: tuple[int, ...]) -> Any:
        if len(seed) != 2:
            raise InvalidArgumentError(
                "seed must hold two integers", expected="shape (2,)", actual=f"{len(seed)} elements"
            )
        generator = backend.generator(*(seed if any(seed) else (0, _SOME_SEED)))
        return draw(generator, _checked_shape(shape), dtype)

    return body


@binder("RandomUniformInt", host={"shape": as_ints, "minval": as_int, "maxval": as_int}, fresh=True)
def uniform_int(binding: Binding) -> Callable[..., Any]:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp

    def body(shape: tuple[int, ...], minval: int, maxval: int) -> Any:
        if 0 in _checked_shape(shape):
            return xp.empty(shape, dtype)
        if minval >= maxval:
            raise InvalidArgumentError("need minval < maxval", expected=f"maxval > {minval}", actual=maxval)
        with stream.lock:
            return stream.generator.integers(minval, maxval, shape, dtype=dtype)

    return body


@binder("RandomShuffle", fresh=True)
def shuffle(binding: Binding) -> Callable[[Any], Any]:
    stream, xp = _stream(binding), binding.xp

    def body(value: Any) -> Any:
        if value.ndim == 0 or value.shape[0] <= 1:
            return value.copy()
        with stream.lock:
            if hasattr(stream.generator, "permutation"):
                order = stream.generator.permutation(value.shape[0])
            else:
                order = xp.argsort(stream.generator.random(value.shape[0]))
        return value[order]

    return body


@binder("Multinomial", host={"num_samples": as_int}, fresh=True)
def multinomial(binding: Binding) -> Callable[..., Any]:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp

    def body(logits: Any, num_samples: int) -> Any:
        if logits.ndim != 2:
            raise InvalidArgumentError("logits must be a matrix", expected="rank 2", actual=logits.shape)
        if num_samples < 0:
            raise InvalidArgumentError("num_samples cannot be negative", expected=">= 0", actual=num_samples)
        batch, classes = logits.shape
        if classes == 0:
            raise InvalidArgumentError(
                "there must be at least one class", expected="(batch, classes >= 1)", actual=logits.shape
            )
        if batch == 0 or num_samples == 0:
            return xp.empty((batch, num_samples), dtype)
        with stream.lock:
            draws = stream.generator.random((batch, num_samples))
        return _choose(xp, logits.astype(np.float64), draws).astype(dtype)

    return body


def _choose(xp: Any, logits: Any, draws: Any) -> Any:
    """For each draw in [0, 1) the class whose share of its row's cumulative distribution it falls in."""
    batch, classes = logits.shape
    logits = xp.where(xp.isfinite(logits), logits, -xp.inf)
    peak = logits.max(axis=1, keepdims=True)
    weights = xp.exp(logits - xp.where(xp.isfinite(peak), peak, 0))
    cumulative = xp.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    cumulative /= xp.where(total > 0, total, 1)
    # All rows in one search: row i's distribution lies between i and i + 1.
    rows = xp.arange(batch)[:, None]
    found = xp.searchsorted((cumulative + rows).reshape(-1), (draws + rows).reshape(-1), side="right")
    found = found.reshape(batch, -1) - rows * classes
    # Rounding must not choose a class past the last one that can occur.
    last = classes - 1 - xp.argmax(weights[:, ::-1] > 0, axis=1)[:, None]
    return xp.minimum(found, xp.where(total > 0, last, 0))


@binder("RandomGamma", host={"shape": as_ints}, fresh=True)
def gamma(binding: Binding) -> Callable[..., Any]:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp
    wide = np.float32 if dtype.itemsize == 2 else dtype

    def body(shape: tuple[int, ...], alpha: Any) -> Any:
        sizes = (*_checked_shape(shape), *alpha.shape)
        concentration = xp.broadcast_to(alpha.astype(wide), sizes)
        with stream.lock:
            sample = stream.generator.standard_gamma(xp.where(concentration > 0, concentration, 1), sizes, dtype=wide)
        return xp.where(concentration > 0, sample, xp.nan).astype(dtype)

    return body


@binder("RandomPoissonV2", host={"shape": as_ints}, fresh=True)
def poisson(binding: Binding) -> Callable[..., Any]:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp

    def body(shape: tuple[int, ...], rate: Any) -> Any:
        sizes = (*_checked_shape(shape), *rate.shape)
        means = xp.broadcast_to(rate.astype(np.float64), sizes)
        valid = xp.isfinite(means) & (means >= 0)
        with stream.lock:
            sample = stream.generator.poisson(xp.where(valid, means, 0), sizes)
        if dtype.kind in "iu":
            return xp.where(valid, sample, 0).astype(dtype)
        return xp.where(valid, sample, xp.nan).astype(dtype)

    return body
