"""The kernel of gamma distributed numbers from a key and a counter, equal to those of TensorFlow.

Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Each number has its own range of the
counter, so it does not depend on the number of tries of others. The numbers of a block try together until all succeed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.math.philox import FROM, Convert, first_counter, normal, uniform, words_at
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array

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
