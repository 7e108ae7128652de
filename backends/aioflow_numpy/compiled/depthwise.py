"""Depthwise convolutions in machine code, with the checks that decide when to compile and use it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import OpError
from aioflow.memory.values import Array, NpDType
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.pieces import EXACT_FLOATS
from aioflow_numpy.compiled.wanted import CodeRequest, Spent, numbers, same
from aioflow_numpy.conv_shapes import Windows

# ── the program in C: one for all windows, whose geometry is passed as numbers ────────────────────────────────────────
#
# The sum of a window stays in registers while the products are added, in NumPy's order and starting from 0, for as many
# channels at once as fit. Outside the image there are zeros, which are multiplied like all other elements.


MOST_TAPS: Final = 256
TYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
# `g` has the fields of `Windows`. Compilers keep vectors in registers only if they are no longer than the processor's.
_TEXT: Final = """\
typedef TYPE T;
typedef __PTRDIFF_TYPE__ Index;
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef T V __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
enum { LANES = BYTES / sizeof(T), MANY = 8 };
static inline __attribute__((always_inline)) void window(
    const T *const *taps, Index count, const T *w, Index c, T *out)
{
    Index k = 0;
    for (; k + MANY * LANES <= c; k += MANY * LANES) {
        V sums[MANY] = {};
        for (Index t = 0; t < count; t++) {
            const V *a = (const V *)(taps[t] + k), *b = (const V *)(w + t * c + k);
            for (int v = 0; v < MANY; v++) sums[v] += a[v] * b[v];
        }
        for (int v = 0; v < MANY; v++) ((V *)(out + k))[v] = sums[v];
    }
    for (; k + LANES <= c; k += LANES) {
        V sum = {};
        for (Index t = 0; t < count; t++) sum += *(const V *)(taps[t] + k) * *(const V *)(w + t * c + k);
        *(V *)(out + k) = sum;
    }
    for (; k < c; k++) {
        T sum = 0;
        for (Index t = 0; t < count; t++) sum += taps[t][k] * w[t * c + k];
        out[k] = sum;
    }
}
void piece0(Index first, Index last, const Index *g, const T *x, const T *w, const T *zeros, T *out)
{
    const Index height = g[1], width = g[2], c = g[3], kh = g[4], kw = g[5], sh = g[6], sw = g[7];
    const Index dh = g[8], dw = g[9], top = g[10], left = g[11], oh = g[12], ow = g[13];
    const T *taps[MOST_TAPS];
    for (Index line = first; line < last; line++) {
        const T *image = x + line / oh * height * width * c;
        const Index y = line % oh * sh - top;
        for (Index o = 0; o < ow; o++) {
            Index t = 0;
            for (Index i = y; i < y + kh * dh; i += dh)
                for (Index j = o * sw - left; j < o * sw - left + kw * dw; j += dw, t++) {
                    const int inside = i >= 0 && i < height && j >= 0 && j < width;
                    taps[t] = inside ? image + (i * width + j) * c : zeros;
                }
            window(taps, t, w, c, out + (line * ow + o) * c);
        }
    }
}
"""


def depthwise_program(dtype: np.dtype[np.generic]) -> str:
    """Return the text of `piece0`, which computes lines `first` to `last` of the result, of all images together.

    Its windows have at most `MOST_TAPS` positions. Its addresses are those of the windows, the images, the filter, a
    pixel of zeros, and the result.
    """
    return EXACT_FLOATS + _TEXT.replace("TYPE T;", f"{TYPES[dtype]} T;").replace("MOST_TAPS", str(MOST_TAPS))


# ── its use ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# As with chains (`compiled.blocks`), NumPy convolves until it has spent about as long as compiling takes. The compiled
# code is used only if it matches NumPy's results on numbers of every kind; each geometry of windows is tried
# separately.


_log = logging.getLogger("aioflow.compiled")

PlainConvolution: TypeAlias = Callable[[Array, Array, Windows], Array]

# Multiplications over all depthwise convolutions of a dtype: NumPy takes 0.1 to 0.2 s for that many.
_WORTH: Final = 1 << 28
_CHANNELS: Final = 16  # minimum: with fewer, NumPy's inner loop, which runs over a whole line, is longer
_REMEMBERED: Final = 256
_TRIALS: Final = 8  # every second one uses ordinary numbers only
_TRIED: Final = (4, 5)  # lines and columns of windows in a trial; the borders make the first and last differ
_STRIPS: Final = 128  # channels: a multiple of the number that the code processes at once


class CompiledDepthwise:
    """The convolution of one geometry of windows in machine code, once it is compiled.

    Args:
        g: Geometry of the windows.
        dtype: Dtype of the images and filters.
        plain: The same convolution by NumPy.
    """

    def __init__(self, g: Windows, dtype: NpDType, plain: PlainConvolution) -> None:
        self._g, self._dtype, self._plain = g, dtype, plain
        # The C code reads the fields of `Windows` by their positions.
        self._geometry, self._zeros = np.array(astuple(g), np.intp), np.zeros(g.c, dtype)
        self._function: MachineFunction | None = None
        self._work = g.rows * g.c * g.kh * g.kw
        self._wanted = CodeRequest(_spent[dtype])

    @property
    def is_ready(self) -> bool:
        """True if the machine code is compiled and accepted."""
        return self._function is not None

    def convolve(self, x: Array, w: Array, out: Array, lines: slice) -> None:
        """Write the results of the given output lines, counted over all images, if the code is ready.

        All arrays must be C-contiguous and of the dtype. This method keeps references to them until the function has
        returned.
        """
        if self._function is not None:
            given = (self._geometry, x, w, self._zeros, out)
            self._function(lines.start, lines.stop, *map(address, given))

    def worked(self) -> None:
        """Record that NumPy has convolved once."""
        self._wanted.worked(self._work, _WORTH, self.prepare, self._text)

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        try:
            (function,) = programs().functions(self._text(), [5])  # geometry, images, filter, zeros, result
        except OpError as error:
            _log.info("not compiling a depthwise convolution: %s", error)
            return
        if self._agrees(function):
            self._function = function
        else:
            _log.warning("not using a compiled depthwise convolution: its results differ from NumPy's")

    def _text(self) -> str:
        return depthwise_program(self._dtype)

    def _agrees(self, function: MachineFunction) -> bool:
        g = _part(self._g)
        trial = CompiledDepthwise(g, self._dtype, self._plain)
        trial._function = function
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            for k in range(_TRIALS):
                shapes = (g.n, g.h, g.w, g.c), (g.kh, g.kw, g.c, 1)
                x, w = (
                    numbers(rng, self._dtype, shape) if k % 2 else np.asarray(rng.random(shape), self._dtype)
                    for shape in shapes
                )
                made = np.empty((g.n, g.oh, g.ow, g.c), self._dtype)
                trial.convolve(x, w, made, slice(0, g.n * g.oh))
                if not same(self._plain(x, w, g), made):
                    return False
        return True


def _part(g: Windows) -> Windows:
    """Return a smaller geometry whose windows cross the borders of the image as those of `g` do."""
    oh, h = _fewer(g.oh, g.h, g.sh, _TRIED[0])
    ow, w = _fewer(g.ow, g.w, g.sw, _TRIED[1])
    # With the same remainder of channels, the trial runs every loop of the code that `g` runs.
    return replace(g, n=min(g.n, 2), h=h, w=w, c=min(g.c, _STRIPS + g.c % _STRIPS), oh=oh, ow=ow)


def _fewer(outputs: int, size: int, stride: int, most: int) -> tuple[int, int]:
    """Return fewer (windows, elements) of an axis; the last window exceeds the border by as much as before."""
    less = min(max(0, outputs - most), (size - 1) // stride)
    return outputs - less, size - less * stride


_spent: defaultdict[np.dtype[Any], Spent] = defaultdict(Spent)


@lru_cache(maxsize=_REMEMBERED)
def compiled_depthwise(g: Windows, dtype: NpDType, plain: PlainConvolution) -> CompiledDepthwise | None:
    """Return the convolution for these windows and this dtype, with one filter per channel.

    Return None where NumPy is as fast.
    """
    if dtype not in TYPES or g.c < _CHANNELS or g.kh * g.kw > MOST_TAPS:
        return None
    return CompiledDepthwise(g, dtype, plain)
