"""Kernels of the random ops. A node's generator belongs to the session and serves all its steps, under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import batches, blocks, critical_section
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, claim_array, taken, written
from aioflow.kernels.convert import as_int, as_ints, as_sizes
from aioflow.kernels.math.large_sorts import bucket_by_bucket
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType

Draw: TypeAlias = Callable[[np.random.Generator, int, NpDType], Array]
_MANTISSA: Final = {"float16": 10, "bfloat16": 7}
_MANY_ROWS: Final = 1 << 20  # rows above which a shuffle is done in buckets
# Replaces the seed (0, 0), for which the backend would use a seed from the operating system.
_SOME_SEED: Final = 0x9E3779B97F4A7C15


class _Stream:
    """A generator, and the lock under which one step at a time draws from it."""

    def __init__(self, binding: Binding) -> None:
        self.generator = binding.backend.generator(binding.attrs["seed"], binding.attrs["seed2"])
        self.lock = threading.Lock()


def _stream(binding: Binding) -> _Stream:
    return binding.shared(lambda: _Stream(binding))


def _uniform(generator: np.random.Generator, count: int, dtype: NpDType) -> Array:
    if dtype.itemsize != 2:
        return generator.random(count, dtype=dtype)
    # As many bits as the dtype has, so that no number is rounded up to 1.
    bits = np.float32(2 ** _MANTISSA[dtype.name])
    steps = generator.random(count, dtype=np.float32)
    steps *= bits
    return (steps.astype(np.int32) / bits).astype(dtype)


def _normal(generator: np.random.Generator, count: int, dtype: NpDType) -> Array:
    if dtype.itemsize != 2:
        return generator.standard_normal(count, dtype=dtype)
    return generator.standard_normal(count, dtype=np.float32).astype(dtype)


def _truncated(generator: np.random.Generator, count: int, dtype: NpDType) -> Array:
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    sample = generator.standard_normal(count, dtype=wide)
    # Numbers beyond two standard deviations are drawn again.
    outside = abs(sample) > 2
    while (left := int(outside.sum())) > 0:
        sample[outside] = generator.standard_normal(left, dtype=wide)
        outside = abs(sample) > 2
    return sample.astype(dtype, copy=False)


_DRAWS: Final[dict[str, Draw]] = {
    "RandomUniform": _uniform,
    "RandomStandardNormal": _normal,
    "TruncatedNormal": _truncated,
    "StatelessRandomUniform": _uniform,
    "StatelessRandomNormal": _normal,
    "StatelessTruncatedNormal": _truncated,
}


class _Sampler:
    """The sampler of one node, which draws block by block on the CPU, so that a large sample can be stopped.

    Numbers that were drawn are not drawn again even if the step is stopped: the generator's state is the effect.
    """

    def __init__(self, binding: Binding, stream: _Stream | None = None, nanoseconds: float = 10.0) -> None:
        self._dtype = binding.output_dtypes[0].np_dtype
        self._in_blocks = binding.is_host
        self._stream = stream
        self._nanoseconds = nanoseconds  # cost of one element

    def reserve(self, shape: tuple[int, ...]) -> int:
        """Claim memory for a sample of that shape, as `stopping.reserve`, and return its number of elements."""
        return claim_array(shape, self._dtype, self._nanoseconds)

    def sample(self, shape: tuple[int, ...], draw: Callable[[slice], Array]) -> Array:
        """Return a sample of that shape; `draw` returns the elements of each block, numbered in row-major order."""
        count = self.reserve(shape)
        if count <= BLOCK or not self._in_blocks:
            return self._drawn(slice(0, count), draw).reshape(shape)
        return written(shape, self._dtype, lambda part: self._drawn(part, draw))

    def _drawn(self, part: slice, draw: Callable[[slice], Array]) -> Array:
        if self._stream is None:
            return draw(part)
        # A draw advances the generator, an effect that a stop must not interrupt.
        with critical_section(), self._stream.lock:
            return draw(part)


@binder("RandomUniform", host={"shape": as_sizes}, fresh=True, elastic=True, acts_itself=True)
@binder("RandomStandardNormal", host={"shape": as_sizes}, fresh=True, elastic=True, acts_itself=True)
@binder("TruncatedNormal", host={"shape": as_sizes}, fresh=True, elastic=True, acts_itself=True, synchronises=True)
def stateful(binding: Binding) -> Callable[[tuple[int, ...]], Array]:
    draw, stream, dtype = _DRAWS[binding.op_type], _stream(binding), binding.output_dtypes[0].np_dtype
    sampler = _Sampler(binding, stream)
    return lambda shape: sampler.sample(shape, lambda part: draw(stream.generator, part.stop - part.start, dtype))


@binder("StatelessRandomUniform", host={"shape": as_sizes, "seed": as_ints}, fresh=True, elastic=True)
@binder("StatelessRandomNormal", host={"shape": as_sizes, "seed": as_ints}, fresh=True, elastic=True)
@binder(
    "StatelessTruncatedNormal", host={"shape": as_sizes, "seed": as_ints}, fresh=True, elastic=True, synchronises=True
)
def stateless(binding: Binding) -> KernelBody:
    draw, dtype, backend = _DRAWS[binding.op_type], binding.output_dtypes[0].np_dtype, binding.backend
    sampler = _Sampler(binding)

    def body(shape: tuple[int, ...], seed: tuple[int, ...]) -> Array:
        if len(seed) != 2:
            raise InvalidArgumentError(
                "seed must hold two integers", expected="shape (2,)", actual=f"{len(seed)} elements"
            )
        generator = backend.generator(*(seed if any(seed) else (0, _SOME_SEED)))
        return sampler.sample(shape, lambda part: draw(generator, part.stop - part.start, dtype))

    return body


@binder(
    "RandomUniformInt",
    host={"shape": as_sizes, "minval": as_int, "maxval": as_int},
    fresh=True,
    elastic=True,
    acts_itself=True,
)
def uniform_int(binding: Binding) -> KernelBody:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp
    sampler = _Sampler(binding, stream)

    def body(shape: tuple[int, ...], minval: int, maxval: int) -> Array:
        # An empty result needs no valid range.
        if 0 in shape:
            return xp.empty(shape, dtype)
        if minval >= maxval:
            raise InvalidArgumentError("need minval < maxval", expected=f"maxval > {minval}", actual=maxval)
        integers = stream.generator.integers
        return sampler.sample(shape, lambda part: integers(minval, maxval, part.stop - part.start, dtype=dtype))

    return body


@binder("RandomShuffle", fresh=True, acts_itself=True)
def shuffle(binding: Binding) -> Callable[[Array], Array]:
    stream, xp = _stream(binding), binding.xp
    in_blocks = binding.is_host

    def body(value: Array) -> Array:
        if value.ndim == 0 or value.shape[0] <= 1:
            return value.copy()
        count = value.shape[0]
        if in_blocks and count > _MANY_ROWS:
            return taken(value, _large_permutation(stream, count))
        with critical_section(), stream.lock:
            if hasattr(stream.generator, "permutation"):
                order = stream.generator.permutation(count)
            else:
                # The order of random keys is a permutation, too.
                order = xp.argsort(stream.generator.random(count))
        return taken(value, order)

    return body


def _large_permutation(stream: _Stream, count: int) -> Array:
    """Return a uniformly random order: numbers go into random buckets, which are shuffled one by one.

    Sources: Rao, 1961; Sandelius, 1962.
    """
    buckets = count // BLOCK + 1
    chosen = np.empty(count, np.uint16)
    for part in blocks(count, BLOCK):
        with critical_section(), stream.lock:
            chosen[part] = stream.generator.integers(0, buckets, part.stop - part.start, dtype=np.uint16)
    order, ends = bucket_by_bucket(chosen)
    begin = 0
    for end in batches(ends.tolist(), 1):
        with critical_section(), stream.lock:
            stream.generator.shuffle(order[begin:end])
        begin = end
    return order


@binder("Multinomial", host={"num_samples": as_int}, fresh=True, elastic=True, acts_itself=True)
def multinomial(binding: Binding) -> KernelBody:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp
    sampler = _Sampler(binding, stream, nanoseconds=100.0)

    def body(logits: Array, num_samples: int) -> Array:
        if logits.ndim != 2:
            raise InvalidArgumentError("logits must be a matrix", expected="rank 2", actual=logits.shape)
        if num_samples < 0:
            raise InvalidArgumentError("num_samples cannot be negative", expected=">= 0", actual=num_samples)
        sampler.reserve((logits.shape[0], num_samples))
        batch, classes = logits.shape
        if classes == 0:
            raise InvalidArgumentError(
                "there must be at least one class", expected="(batch, classes >= 1)", actual=logits.shape
            )
        if batch == 0 or num_samples == 0:
            return xp.empty((batch, num_samples), dtype)
        choose = _chooser(xp, logits.astype(np.float64), num_samples)

        def draw(part: slice) -> Array:
            return choose(part, stream.generator.random(part.stop - part.start)).astype(dtype)

        return sampler.sample((batch, num_samples), draw)

    return body


def _chooser(xp: Namespace, logits: Array, samples: int) -> Callable[[slice, Array], Array]:
    """Return a function from a block of the samples, and a draw in [0, 1) for each, to classes.

    A draw chooses the class whose interval of the row's cumulative distribution contains it.
    """
    batch, classes = logits.shape
    # A class whose logit is not finite never occurs.
    logits = xp.where(xp.isfinite(logits), logits, -np.inf)
    # With the greatest logit subtracted, no exponential overflows.
    peak = logits.max(axis=1, keepdims=True)
    weights = xp.exp(logits - xp.where(xp.isfinite(peak), peak, 0))
    cumulative = xp.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    cumulative /= xp.where(total > 0, total, 1)
    # All rows in one search: row i's distribution lies between i and i + 1.
    steps = (cumulative + xp.arange(batch)[:, None]).reshape(-1)
    # Rounding must not choose a class past the last one that can occur.
    last = xp.where(total[:, 0] > 0, classes - 1 - xp.argmax(weights[:, ::-1] > 0, axis=1), 0)

    def choose(part: slice, draws: Array) -> Array:
        rows = xp.arange(part.start, part.stop) // samples
        found = xp.searchsorted(steps, draws + rows, side="right") - rows * classes
        return xp.minimum(found, last[rows])

    return choose


@binder("RandomGamma", host={"shape": as_sizes}, fresh=True, elastic=True, acts_itself=True)
def gamma(binding: Binding) -> KernelBody:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp
    wide = np.float32 if dtype.itemsize == 2 else dtype
    sampler = _Sampler(binding, stream, nanoseconds=50.0)

    def body(shape: tuple[int, ...], alpha: Array) -> Array:
        given = alpha.astype(wide).reshape(-1)

        def draw(part: slice) -> Array:
            # One invalid parameter would make the generator refuse the block, so it becomes 1, and its result NaN.
            concentration = _repeated(xp, given, part)
            sample = stream.generator.standard_gamma(xp.where(concentration > 0, concentration, 1), dtype=wide)
            return xp.where(concentration > 0, sample, xp.nan).astype(dtype)

        return sampler.sample((*shape, *alpha.shape), draw)

    return body


def _repeated(xp: Namespace, given: Array, part: slice) -> Array:
    """Return a part of the vector `given` repeated cyclically."""
    return (
        given[xp.arange(part.start, part.stop) % given.size]
        if given.size != 1
        else xp.repeat(given, part.stop - part.start)
    )


@binder("RandomPoissonV2", host={"shape": as_sizes}, fresh=True, elastic=True, acts_itself=True)
def poisson(binding: Binding) -> KernelBody:
    stream, dtype, xp = _stream(binding), binding.output_dtypes[0].np_dtype, binding.xp
    sampler = _Sampler(binding, stream, nanoseconds=100.0)

    def body(shape: tuple[int, ...], rate: Array) -> Array:
        given = rate.astype(np.float64).reshape(-1)

        def draw(part: slice) -> Array:
            means = _repeated(xp, given, part)
            valid = xp.isfinite(means) & (means >= 0)
            sample = stream.generator.poisson(xp.where(valid, means, 0))
            return xp.where(valid, sample, 0 if dtype.kind in "iu" else xp.nan).astype(dtype)

        return sampler.sample((*shape, *rate.shape), draw)

    return body
