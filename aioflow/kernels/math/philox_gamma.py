"""The kernel of gamma distributed numbers from a key and a counter: the very ones that TensorFlow draws.

Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Each number has values of the counter for
itself, so that it does not matter how often others tried before; those of a block try all at once, again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.math.philox import FROM, first_counter, normal, uniform, words_at
from aioflow.kernels.registry import Binding, binder
from aioflow.work.stopping import blocks, checkpoint

__all__: list[str] = []

_OF_EACH: Final = 256  # values of the counter that a number may use
_BLOCK: Final = 1 << 15
_F64: Final = np.dtype(np.float64)
_Words = Callable[[Any], Any]


class _Pairs:
    """Draws by twos, of which each number takes the second first, and its next value of the counter when both are used.

    Args:
        words: Makes the words of values of the counter.
        convert: Makes pairs of them.
        steps: Of all numbers, the next value of the counter; all draws of one number share it.
    """

    def __init__(self, words: _Words, convert: Callable[..., Any], steps: Any) -> None:
        self._words, self._convert, self._steps = words, convert, steps
        self._pairs = np.empty((len(steps), 2))
        self._left = np.zeros(len(steps), np.int64)

    def of(self, which: Any) -> Any:
        """One draw for each of those."""
        empty = which[self._left[which] == 0]
        if len(empty):
            self._pairs[empty] = self._convert(np, self._words(self._steps[empty]), _F64).reshape(-1, 2)
            self._steps[empty] += np.uint64(1)
            self._left[empty] = 2
        self._left[which] -= 1
        return self._pairs[which, self._left[which]]


def _drawn(words: _Words, numbers: Any, alpha: Any) -> Any:
    """The numbers of those positions, float64."""
    steps = numbers.astype(np.uint64) * np.uint64(_OF_EACH)
    uniforms, normals = _Pairs(words, uniform, steps), _Pairs(words, normal, steps)
    made = np.empty(len(numbers))
    plain = np.flatnonzero(alpha == 1)  # an exponential distribution
    made[plain] = -np.log1p(-uniforms.of(plain))
    small = alpha < 1  # then by a number of alpha + 1
    size = alpha + np.where(small, 2 / 3, -1 / 3)
    spread = 1 / 3 / np.sqrt(size)
    trying = np.flatnonzero(alpha != 1)
    while len(trying):
        checkpoint()
        x = normals.of(trying)
        cube = (1 + spread[trying] * x) ** 3
        positive = ~(cube <= 0)  # what is no number ends here
        at, x, cube = trying[positive], x[positive], cube[positive]
        u = uniforms.of(at)
        bound = 0.5 * x * x + size[at] * (1 - cube + np.log(cube))
        taken = (u < 1 - 0.0331 * (x * x) * (x * x)) | (np.log(u) < bound) | np.isnan(cube)
        done = at[taken]
        made[done] = size[done] * cube[taken]
        fewer = done[small[done]]
        made[fewer] *= uniforms.of(fewer) ** (1 / alpha[fewer])
        left = np.ones(len(made), bool)
        left[done] = False
        trying = trying[left[trying]]
    return made


@binder("StatelessRandomGammaV3", device="CPU", host=FROM, fresh=True, elastic=True)
def bind_gamma(binding: Binding) -> Callable[..., Any]:
    dtype = binding.output_dtypes[0].np_dtype

    def body(shape: tuple[int, ...], key: tuple[int, ...], counter: tuple[int, ...], alg: int, alpha: Any) -> Any:
        first = first_counter(key, counter, alg)
        if alpha.shape != shape[len(shape) - alpha.ndim :]:
            raise InvalidArgumentError("the shape does not end with that of alpha", expected=alpha.shape, actual=shape)
        count = claim_array(shape, dtype, 300.0)
        if not count:
            return np.empty(shape, dtype)
        parameters = alpha.reshape(-1).astype(np.float64)
        each = count // parameters.size  # of each alpha, one after the other
        made = np.empty(count, dtype)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for part in blocks(count, _BLOCK):
                numbers = np.arange(part.start, part.stop)
                found = _drawn(lambda steps: words_at(np, key[0], first, steps), numbers, parameters[numbers // each])
                made[part] = found.astype(dtype)
        return np.ascontiguousarray(made.reshape(parameters.size, -1).T).reshape(shape)

    return body
