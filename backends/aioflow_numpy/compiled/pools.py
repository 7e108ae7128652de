"""Pooling in machine code, with the checks that decide when to compile and use it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import OpError
from aioflow.kernels.math.elementwise import EXACT_C
from aioflow.memory.values import Array, NpDType
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.pieces import HEAD
from aioflow_numpy.compiled.wanted import CodeRequest, numbers, same
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows, windows
from aioflow_numpy.threads import for_each

# ── the program in C: one per dtype and fold, for all windows, which are passed as numbers ────────────────────────────
#
# Like NumPy's passes (`pooling`), it folds the lines of a window first and then the columns, in the order that the
# windows' lists define, so the bits are the same. A line of an image and its partial result stay in the cache.


TYPES: Final[Mapping[np.dtype[Any], str]] = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
# `g` is the height and width of an image, its channels, the windows along both axes, and the lengths of their lists.
# A window's list along an axis has the number of positions to fold, then these; the first may be -1, for the identity.
_TEXT: Final = """\
typedef __PTRDIFF_TYPE__ Index;
static void fold(const Index *list, const T *from, Index run, T identity, T *to)
{
    const Index count = list[0];
    const T *one = from + list[1] * run;
    if (list[1] < 0) {
        for (Index i = 0; i < run; i++) to[i] = identity;
    } else if (count == 1) {
        for (Index i = 0; i < run; i++) to[i] = one[i];
    } else {
        const T *other = from + list[2] * run;
        for (Index i = 0; i < run; i++) { const T a = one[i], b = other[i]; to[i] = FOLD; }
    }
    for (Index t = list[1] < 0 ? 2 : 3; t <= count; t++) {
        const T *other = from + list[t] * run;
        for (Index i = 0; i < run; i++) { const T a = to[i], b = other[i]; to[i] = FOLD; }
    }
}
void piece0(Index first, Index last, const Index *g, const Index *rows, const Index *columns, const T *x,
            const T *identity, T *folded, T *out)
{
    const Index height = g[0], width = g[1], c = g[2], oh = g[3], ow = g[4], of_row = g[5], of_column = g[6];
    for (Index line = first; line < last; line++) {
        fold(rows + line % oh * of_row, x + line / oh * height * width * c, width * c, *identity, folded);
        for (Index o = 0; o < ow; o++)
            fold(columns + o * of_column, folded, c, *identity, out + (line * ow + o) * c);
    }
}
"""


def pool_program(fold: np.ufunc, dtype: NpDType) -> str:
    """Return the text of `piece0`, which computes lines `first` to `last` of the result, of all images together.

    Its addresses are those of the windows, their lists along both axes, the images, the fold's identity, memory for a
    line, and the result.
    """
    expression = EXACT_C[fold.__name__].format("a", "b")
    text = _TEXT.replace("FOLD", expression).replace("for (Index i = 0;", "INDEPENDENT\n    for (Index i = 0;")
    return f"{HEAD}typedef {TYPES[dtype]} T;\n{text}"


# ── its use ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# As with chains (`compiled.blocks`), NumPy reduces windows until it has spent about as long as compiling takes. The
# compiled code is used only if it matches NumPy's results on numbers of every kind. A pool of a small image needs about
# ten calls of NumPy, each of which costs as much as the whole pool in machine code.


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
