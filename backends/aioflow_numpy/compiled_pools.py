"""Pooling in machine code, with the checks that decide when to compile and use it.

As with chains (`compiled_blocks`), NumPy reduces windows until it has spent about as long as compiling takes. The
compiled code is used only if it matches NumPy's results on numbers of every kind. A pool of a small image needs about
ten calls of NumPy, each of which costs as much as the whole pool in machine code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import OpError
from aioflow.memory.values import Array, NpDType
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.pools import TYPES, pool_program
from aioflow_numpy.compiled.trials import numbers, same
from aioflow_numpy.compiled.wanted import CodeRequest
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows, windows
from aioflow_numpy.threads import for_each

_log = logging.getLogger("aioflow.compiled")

# For each axis, the lines or columns that each window combines, in order; the first may be -1, for the identity.
WindowOrder: TypeAlias = tuple[list[list[int]], list[list[int]]]
PlainPool: TypeAlias = Callable[[np.ufunc, Array, Windows, Array, Array | int], None]

_WORTH: Final = 1 << 29  # bytes read: NumPy takes 0.1 to 0.2 s for that many
_CALL: Final = 1 << 16  # fixed cost of NumPy's calls, expressed in bytes
_PART: Final = 1 << 20  # bytes read from which on waking a thread pays off
_TRIALS: Final = 4
_TRIED: Final[tuple[Any, ...]] = (  # image, kernel, strides, padding
    ((2, 7, 6, 19), (3, 3), (1, 1), ((1, 1), (1, 1))),
    ((1, 9, 8, 8), (2, 3), (2, 3), ((0, 1), (2, 0))),
    ((1, 2, 3, 5), (4, 5), (2, 2), ((2, 2), (2, 3))),
    ((3, 6, 6, 1), (2, 2), (2, 2), ((0, 0), (0, 0))),
)


class CompiledPool:
    """The reduction of windows by one ufunc, for one dtype, in machine code once it is compiled.

    Args:
        fold: The binary ufunc.
        dtype: Dtype of the images.
        plain: The same reduction by NumPy.
        order: Returns the order in which `plain` combines the elements of the windows.
    """

    def __init__(
        self, fold: np.ufunc, dtype: NpDType, plain: PlainPool, order: Callable[[Windows], WindowOrder]
    ) -> None:
        self._fold, self._dtype, self._plain = fold, dtype, plain
        self._lists = lru_cache(maxsize=256)(lambda g: _lists(g, order(g)))
        self._function: MachineFunction | None = None
        self._wanted = CodeRequest()

    def run(self, images: Array, g: Windows, out: Array, identity: Array | int) -> bool:
        """Write the reductions of all windows to the C-contiguous `out`; return False if NumPy must do it."""
        function = self._function
        if function is None:
            self._wanted.worked(images.nbytes + _CALL, _WORTH, self.prepare, self._text)
            return False
        if not images.flags.c_contiguous or not images.flags.aligned or not out.size:
            return False
        self._call(function, images, g, out, identity)
        return True

    def _call(self, function: MachineFunction, images: Array, g: Windows, out: Array, identity: Array | int) -> None:
        """Run `function` over all lines of outputs, in several threads if the images are large."""
        # `given` keeps the arrays alive until the code, which has only their addresses, has returned.
        given = (*self._lists(g), images, np.array(identity, self._dtype))
        places, lines = [address(array) for array in given], g.n * g.oh

        def work(part: slice) -> None:
            folded = scratch("total", (g.w * g.c,), self._dtype)
            function(part.start, part.stop, *places, address(folded), address(out))

        count = max(1, min(lines, images.nbytes // _PART))
        for_each(work, [slice(lines * k // count, lines * (k + 1) // count) for k in range(count)])

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        try:
            # The addresses of the geometry, two tables, the images, the identity, a line of scratch memory, and the
            # result.
            (function,) = programs().functions(self._text(), [7])
        except OpError as error:
            _log.info("not compiling a pool: %s", error)
            return
        if self._agrees(function):
            self._function = function
        else:
            _log.warning("not using a compiled pool: its results differ from NumPy's")

    def _text(self) -> str:
        return pool_program(self._fold, self._dtype)

    def _agrees(self, function: MachineFunction) -> bool:
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            for _ in range(_TRIALS):
                for shape, *geometry in _TRIED:
                    g = windows(shape, *geometry)
                    images, identity = numbers(rng, self._dtype, shape), numbers(rng, self._dtype, ())[()]
                    wanted, found = np.empty((2, g.n, g.oh, g.ow, g.c), self._dtype)
                    self._plain(self._fold, images, g, wanted, identity)
                    self._call(function, images, g, found, identity)
                    if not same(wanted, found):
                        return False
        return True


def _lists(g: Windows, order: WindowOrder) -> tuple[Array, Array, Array]:
    """Return the geometry as numbers, and the tables of the lines and of the columns that each window combines."""
    rows, columns = (_table(lists) for lists in order)
    numbers = np.array([g.h, g.w, g.c, g.oh, g.ow, rows.shape[1], columns.shape[1]], np.intp)
    return numbers, rows, columns


def _table(lists: list[list[int]]) -> Array:
    longest = max(map(len, lists), default=1)
    return np.array([[len(each), *each, *[0] * (longest - len(each))] for each in lists], np.intp)


@lru_cache(maxsize=8)
def compiled_pool(
    fold: np.ufunc, dtype: NpDType, plain: PlainPool, order: Callable[[Windows], WindowOrder]
) -> CompiledPool | None:
    """Return the pool for images of that dtype; None where C has no such type."""
    return CompiledPool(fold, dtype, plain, order) if dtype in TYPES else None
