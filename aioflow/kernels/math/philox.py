"""Kernels of random numbers from a key and a counter: uniform, normal and gamma distributed.

Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. Each value of the 128-bit counter
yields four 32-bit numbers. Their conversion to numbers of a dtype follows TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.kernels.blockwise import BLOCK, claim_array, written
from aioflow.kernels.convert import as_int, as_ints, as_sizes
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType

_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)  # increments of the key per round
_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF
# TensorFlow's key for scrambling a seed into a key and a counter.
_KEY_OF_KEYS: Final = 0x02461E293EC8F720
_ALGORITHMS: Final = (1, 3)  # Philox, and the choice of the device
Convert: TypeAlias = Callable[[Namespace, Array, NpDType], Array]
_SMALLEST: Final = 1e-7  # the smallest argument of the logarithm


def _words(xp: Namespace, key: int, counter: int, groups: int) -> Array:
    """Return four 32-bit numbers for each of `groups` values of the counter: uint64 [4, groups]."""
    return words_at(xp, key, counter, xp.arange(groups, dtype=np.uint64))


def words_at(xp: Namespace, key: int, counter: int, steps: Array) -> Array:
    """Return four 32-bit numbers for each value of the counter at `counter + steps`: uint64 [4, steps]."""
    low = steps + np.uint64(counter & (1 << 64) - 1)  # wraps around
    # A sum below one of its terms has wrapped around.
    carry = (low < np.uint64(counter & (1 << 64) - 1)).astype(np.uint64)
    high = carry + np.uint64(counter >> 64)
    mask, half = np.uint64(_WORD), np.uint64(32)
    c0, c1, c2, c3 = low & mask, low >> half, high & mask, high >> half
    k0, k1 = key & _WORD, key >> 32
    for _ in range(_ROUNDS):
        first, second = c0 * np.uint64(_FACTORS[0]), c2 * np.uint64(_FACTORS[1])
        c0, c1, c2, c3 = (
            second >> half ^ c1 ^ np.uint64(k0),
            second & mask,
            first >> half ^ c3 ^ np.uint64(k1),
            first & mask,
        )
        k0, k1 = k0 + _STEPS[0] & _WORD, k1 + _STEPS[1] & _WORD
    return xp.stack([c0, c1, c2, c3])


def _flat(xp: Namespace, words: Array, bits: int) -> Array:
    """Return the numbers in order, of 32 or of 64 bits."""
    if bits == 64:
        words = words[0::2] | words[1::2] << np.uint64(32)
    return xp.ascontiguousarray(words.T).reshape(-1)


def uniform(xp: Namespace, words: Array, dtype: NpDType) -> Array:
    """Return numbers in [0, 1): the fraction bits of a number in [1, 2)."""
    if dtype.itemsize == 8:
        # 52 fraction bits: 20 of the first word and all 32 of the second. The exponent 1023 stands for [1, 2).
        mixed = (words[0::2] & np.uint64(0xFFFFF)) << np.uint64(32) | words[1::2]
        return (_flat(xp, mixed, 32) | np.uint64(1023 << 52)).view(np.float64) - 1.0
    flat = _flat(xp, words, 32).astype(np.uint32)
    if dtype.itemsize == 4:
        # 23 fraction bits. The exponent 127 stands for [1, 2).
        return (flat & np.uint32(0x7FFFFF) | np.uint32(127 << 23)).view(np.float32) - np.float32(1)
    bits = 10 if dtype.name == "float16" else 7
    return ((flat & np.uint32((1 << bits) - 1)).astype(np.float32) / np.float32(1 << bits)).astype(dtype)


def normal(xp: Namespace, words: Array, dtype: NpDType) -> Array:
    """Return normal numbers by the Box-Muller method: two from two uniform numbers."""
    wide = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    pairs = uniform(xp, words, wide).reshape(-1, 2)
    radius = xp.sqrt(wide.type(-2) * xp.log(xp.maximum(pairs[:, 0], wide.type(_SMALLEST))))
    angle = wide.type(2 * np.pi) * pairs[:, 1]
    made = xp.stack([xp.sin(angle) * radius, xp.cos(angle) * radius], axis=1)
    return made.reshape(-1).astype(dtype, copy=False)


def first_counter(key: tuple[int, ...], counter: tuple[int, ...], alg: int) -> int:
    """Return the counter as one number.

    Raises:
        InvalidArgumentError: the key or the counter has another size.
        UnimplementedError: the algorithm is not Philox.
    """
    if len(key) != 1 or len(counter) < 2:
        raise InvalidArgumentError("not a key and a counter", expected="1 and 2 numbers", actual=(key, counter))
    if alg not in _ALGORITHMS:
        raise UnimplementedError("an algorithm that is not there", expected=f"one of {_ALGORITHMS}", actual=alg)
    return counter[0] | counter[1] << 64


@binder("StatelessRandomGetKeyCounter", host={"seed": as_ints}, fresh=True)
def bind_key_and_counter(binding: Binding) -> KernelBody:
    xp = binding.xp

    def body(seed: tuple[int, ...]) -> tuple[Array, Array]:
        if len(seed) != 2:
            raise InvalidArgumentError("seed must hold two integers", expected="shape (2,)", actual=len(seed))
        low, high = (value & (1 << 64) - 1 for value in seed)
        mixed = [int(word) for word in _words(np, _KEY_OF_KEYS, low | high << 64, 1)[:, 0]]
        key, counter = mixed[0] | mixed[1] << 32, mixed[2] | mixed[3] << 32
        return xp.asarray(np.array([key], np.uint64)), xp.asarray(np.array([0, counter], np.uint64))

    return body


_DRAWS: Final[dict[str, Convert]] = {
    "StatelessRandomUniformV2": uniform,
    "StatelessRandomNormalV2": normal,
}
FROM: Final = {"shape": as_sizes, "key": as_ints, "counter": as_ints, "alg": as_int}


@binder("StatelessRandomUniformV2", host=FROM, fresh=True, elastic=True)
@binder("StatelessRandomNormalV2", host=FROM, fresh=True, elastic=True)
def bind_floats(binding: Binding) -> KernelBody:
    draw, dtype, xp = _DRAWS[binding.op_type], binding.output_dtypes[0].np_dtype, binding.xp
    each = 2 if dtype.itemsize == 8 else 4  # numbers from one value of the counter

    def body(shape: tuple[int, ...], key: tuple[int, ...], counter: tuple[int, ...], alg: int) -> Array:
        return _filled(binding, shape, key, counter, alg, each, lambda words: draw(xp, words, dtype))

    return body


@binder("StatelessRandomUniformIntV2", host={**FROM, "minval": as_int, "maxval": as_int}, fresh=True, elastic=True)
def bind_integers(binding: Binding) -> KernelBody:
    dtype, xp = binding.output_dtypes[0].np_dtype, binding.xp
    each = 2 if dtype.itemsize == 8 else 4

    def body(
        shape: tuple[int, ...], key: tuple[int, ...], counter: tuple[int, ...], alg: int, minval: int, maxval: int
    ) -> Array:
        if minval >= maxval:
            raise InvalidArgumentError("Need minval < maxval", expected=f"maxval > {minval}", actual=maxval)
        span, low = np.uint64(maxval - minval), np.uint64(minval & (1 << 64) - 1)

        def draw(words: Array) -> Array:
            return (_flat(xp, words, 8 * dtype.itemsize) % span + low).astype(dtype)  # wraps around for a negative low

        return _filled(binding, shape, key, counter, alg, each, draw)

    return body


def _filled(
    binding: Binding,
    shape: tuple[int, ...],
    key: tuple[int, ...],
    counter: tuple[int, ...],
    alg: int,
    each: int,
    draw: Callable[[Array], Array],
) -> Array:
    first = first_counter(key, counter, alg)
    dtype, xp = binding.output_dtypes[0].np_dtype, binding.xp
    count = claim_array(shape, dtype, 20.0)

    def part_of(part: slice) -> Array:
        # A block may begin within the numbers of one counter value. Those before it are computed and dropped.
        begin = part.start // each
        words = _words(xp, key[0], first + begin & (1 << 128) - 1, -(-part.stop // each) - begin)
        return draw(words)[part.start - begin * each :][: part.stop - part.start]

    if count <= BLOCK or not binding.is_host:
        return part_of(slice(0, count)).reshape(shape)
    return written(shape, dtype, part_of)


# ── gamma distributed numbers, equal to those of TensorFlow ───────────────────────────────────────────────────────────
#
# Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Each number has its own range of the
# counter, so it does not depend on the number of tries of others. The numbers of a block try together until all
# succeed.


_OF_EACH: Final = 256  # values of the counter reserved for each number
_BLOCK: Final = 1 << 15
_F64: Final = np.dtype(np.float64)
_Words = Callable[[Array], Array]


class _Pairs:
    """Draws in pairs. Each number uses the second of a pair first, and its next value of the counter after both.

    Args:
        words: Returns the random words for values of the counter.
        convert: Converts words to pairs of draws.
        steps: The next value of the counter of each number, shared by all draws of the number.
    """

    def __init__(self, words: _Words, convert: Convert, steps: Array) -> None:
        self._words, self._convert, self._steps = words, convert, steps
        self._pairs = np.empty((len(steps), 2))
        self._left = np.zeros(len(steps), np.int64)

    def of(self, which: Array) -> Array:
        """Return one draw for each of the numbers `which`."""
        empty = which[self._left[which] == 0]
        if len(empty):
            self._pairs[empty] = self._convert(np, self._words(self._steps[empty]), _F64).reshape(-1, 2)
            self._steps[empty] += np.uint64(1)
            self._left[empty] = 2
        self._left[which] -= 1
        return self._pairs[which, self._left[which]]


def _drawn(words: _Words, numbers: Array, alpha: Array) -> Array:
    """Return the gamma distributed numbers at these positions, as float64."""
    steps = numbers.astype(np.uint64) * np.uint64(_OF_EACH)
    uniforms, normals = _Pairs(words, uniform, steps), _Pairs(words, normal, steps)
    made = np.empty(len(numbers))
    plain = np.flatnonzero(alpha == 1)  # an exponential distribution
    made[plain] = -np.log1p(-uniforms.of(plain))
    small = alpha < 1  # computed from a number for alpha + 1
    # The paper's d = a - 1/3 and c = 1 / √(9d), for a = alpha or alpha + 1.
    size = alpha + np.where(small, 2 / 3, -1 / 3)
    spread = 1 / 3 / np.sqrt(size)
    trying = np.flatnonzero(alpha != 1)
    while len(trying):
        checkpoint()
        x = normals.of(trying)
        cube = (1 + spread[trying] * x) ** 3
        positive = ~(cube <= 0)  # NaN counts as positive, so that its loop ends
        at, x, cube = trying[positive], x[positive], cube[positive]
        u = uniforms.of(at)
        bound = 0.5 * x * x + size[at] * (1 - cube + np.log(cube))
        # The first comparison, a cheap bound, accepts most tries. The logarithm decides the others.
        taken = (u < 1 - 0.0331 * (x * x) * (x * x)) | (np.log(u) < bound) | np.isnan(cube)
        done = at[taken]
        made[done] = size[done] * cube[taken]
        fewer = done[small[done]]
        # A number for a is one for a + 1, times U^(1/a).
        made[fewer] *= uniforms.of(fewer) ** (1 / alpha[fewer])
        left = np.ones(len(made), bool)
        left[done] = False
        trying = trying[left[trying]]
    return made


@binder("StatelessRandomGammaV3", device="CPU", host=FROM, fresh=True, elastic=True)
def bind_gamma(binding: Binding) -> KernelBody:
    dtype = binding.output_dtypes[0].np_dtype

    def body(shape: tuple[int, ...], key: tuple[int, ...], counter: tuple[int, ...], alg: int, alpha: Array) -> Array:
        first = first_counter(key, counter, alg)
        if alpha.shape != shape[len(shape) - alpha.ndim :]:
            raise InvalidArgumentError("the shape does not end with that of alpha", expected=alpha.shape, actual=shape)
        count = claim_array(shape, dtype, 300.0)
        if not count:
            return np.empty(shape, dtype)
        parameters = alpha.reshape(-1).astype(np.float64)
        each = count // parameters.size  # consecutive numbers per alpha
        made = np.empty(count, dtype)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for part in blocks(count, _BLOCK):
                numbers = np.arange(part.start, part.stop)
                found = _drawn(lambda steps: words_at(np, key[0], first, steps), numbers, parameters[numbers // each])
                made[part] = found.astype(dtype)
        return np.ascontiguousarray(made.reshape(parameters.size, -1).T).reshape(shape)

    return body
