"""Pools in C: one program per dtype and fold (a sum, or a maximum) for all windows, which are passed as numbers.

Like NumPy's passes (`pooling`), it folds the lines of a window first and then the columns, in the order that the
windows' lists define, so the bits are the same. A line of an image and its partial result stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aioflow.kernels.math.elementwise import EXACT_C
from aioflow.memory.values import NpDType
from aioflow_numpy.compiled.pieces import HEAD

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
