"""Patch extraction (im2col) in machine code, with the checks that decide when to compile and use it."""

from __future__ import annotations

import logging
from ctypes import addressof, c_ssize_t
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from aioflow.errors import OpError
from aioflow.memory.values import Array
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.crew import MOST_PARTS
from aioflow_numpy.compiled.wanted import CodeRequest
from aioflow_numpy.conv_shapes import Windows, windows
from aioflow_numpy.crew import CREW
from aioflow_numpy.deep_products import bounds_of
from aioflow_numpy.threads import thread_count, wake_helpers

# ── the program in C: one for all windows, whose geometry is passed as numbers, and for all dtypes ────────────────────
#
# Elements are bytes here. Without dilation, the positions of a window's line that are inside the image are contiguous
# there, and are copied at once. Positions outside are zero.


# `g` has the fields of `Windows`, with the bytes of a pixel instead of its channels. `piece1` is a crew's loop over
# lines, and `of` holds the number of its first line and the arguments of `piece0`.
PATCHES_PROGRAM: Final = """\
typedef __PTRDIFF_TYPE__ Index;
void piece0(Index first, Index last, const Index *g, const char *x, char *out)
{
    const Index height = g[1], width = g[2], pixel = g[3], kh = g[4], kw = g[5], sh = g[6], sw = g[7];
    const Index dh = g[8], dw = g[9], top = g[10], left = g[11], oh = g[12], ow = g[13];
    for (Index line = first; line < last; line++) {
        const char *image = x + line / oh * height * width * pixel;
        const Index y = line % oh * sh - top;
        for (Index o = 0; o < ow; o++)
            for (Index i = y; i < y + kh * dh; i += dh) {
                Index j = o * sw - left;
                const char *from = image + i * width * pixel;
                if (i < 0 || i >= height) {
                    __builtin_memset(out, 0, kw * pixel);
                    out += kw * pixel;
                } else if (dw == 1 && j >= 0 && j + kw <= width) {
                    __builtin_memcpy(out, from + j * pixel, kw * pixel);
                    out += kw * pixel;
                } else
                    for (Index k = 0; k < kw; k++, j += dw, out += pixel) {
                        if (j < 0 || j >= width)
                            __builtin_memset(out, 0, pixel);
                        else
                            __builtin_memcpy(out, from + j * pixel, pixel);
                    }
            }
    }
}
void piece1(Index from, Index to, const Index *of)
{
    const Index *g = (const Index *)of[1], line = g[13] * g[4] * g[5] * g[3];
    piece0(of[0] + from, of[0] + to, g, (const char *)of[2], (char *)of[3] + from * line);
}
"""


# ── its use ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# As with chains (`compiled.blocks`), NumPy copies patches until it has spent about as long as compiling takes. NumPy
# first copies the image with its padding, and each of the calls for that costs as much as the patches of a small image.


_log = logging.getLogger("aioflow.compiled")

_WORTH: Final = 1 << 28  # bytes of all patches so far: NumPy takes 0.1 s for that many
_CALL: Final = 1 << 15  # fixed cost of NumPy's calls, expressed in bytes
_PART: Final = 1 << 18  # bytes from which on another thread that is already awake pays off
_TRIED: Final[tuple[Any, ...]] = (  # image, kernel, strides, padding, dilations
    ((2, 7, 6, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((1, 9, 8, 3), (2, 3), (2, 3), ((0, 1), (2, 0)), (1, 1)),
    ((3, 8, 9, 2), (3, 2), (1, 1), ((2, 2), (1, 3)), (2, 3)),
    ((1, 2, 2, 4), (3, 3), (1, 1), ((3, 3), (4, 4)), (1, 1)),
)


@dataclass(frozen=True, slots=True)
class _Code:
    """The functions `piece0` and `piece1`, and the address of the latter."""

    copy: MachineFunction
    loop: MachineFunction
    loop_at: int


class CompiledPatches:
    """The patch extraction code of this process, once it is compiled."""

    def __init__(self) -> None:
        self._code: _Code | None = None
        self._wanted = CodeRequest()

    def copy(self, x: Array, g: Windows, first: int, last: int, out: Array) -> bool:
        """Write the patches of lines `first` to `last` of windows; return False if NumPy must do it.

        Lines are counted over all images. `out` is C-contiguous. The caller must keep `x` and `out` alive until this
        returns.
        """
        code = self._code
        if code is None:
            self._wanted.worked(out.nbytes + _CALL, _WORTH, self.prepare, lambda: PATCHES_PROGRAM)
            return False
        if not x.flags.c_contiguous or x.dtype.hasobject or x.shape != (g.n, g.h, g.w, g.c):
            return False
        # Local names keep `geometry` and the arrays alive while the code uses their addresses.
        geometry = _geometry(g, x.itemsize)
        places = address(geometry), address(x), address(out)
        count = min(out.nbytes // _PART, last - first, MOST_PARTS)
        # `thread_count` takes a lock, so it is called only for images that are large enough.
        if count > 1 and (count := min(count, thread_count())) > 1:
            table = (c_ssize_t * 4)(first, *places)
            if CREW.loop(code.loop_at, addressof(table), bounds_of(last - first, count), wake_helpers):
                return True
        code.copy(first, last, *places)
        return True

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        try:
            copy, loop = programs().functions(PATCHES_PROGRAM, [3, 1])  # geometry, images, patches; table
        except OpError as error:
            _log.info("patches of images are not copied in machine code: %s", error)
            return
        code = _Code(copy, loop, address_of(loop))
        if _agrees(code):
            self._code = code
        else:
            _log.warning("compiled patches of images are other than NumPy's, and are not used")


def _agrees(code: _Code) -> bool:
    for shape, *geometry in _TRIED:
        g = windows(shape, *geometry)
        # No element is 0 or -1: padding is 0, and -1 is left where the code writes nothing.
        x = np.arange(1, 1 + g.n * g.h * g.w * g.c, dtype=np.int16).reshape(shape)
        wanted = _by_taps(x, g)
        wanted = wanted.reshape(g.n * g.oh, -1)
        found = np.full_like(wanted, -1)
        geometry = _geometry(g, x.itemsize)
        code.copy(0, len(found), address(geometry), address(x), address(found))
        if not np.array_equal(wanted, found):
            return False
        # The loop as the helpers run it: from the second line on, in two parts.
        found[1:] = -1
        table = (c_ssize_t * 4)(1, address(geometry), address(x), address(found[1:]))
        for part in pairwise((0, len(found) // 2, len(found) - 1)):
            code.loop(*part, addressof(table))
        if not np.array_equal(wanted, found):
            return False
    return True


def _by_taps(x: Array, g: Windows) -> Array:
    """Return the patches, gathered one kernel position at a time."""
    bottom, right = (
        max(0, span - before - size) for span, before, size in ((g.span_h, g.top, g.h), (g.span_w, g.left, g.w))
    )
    padded = np.pad(x, ((0, 0), (g.top, bottom), (g.left, right), (0, 0)))
    taps = [padded[:, i * g.dh :: g.sh, j * g.dw :: g.sw][:, : g.oh, : g.ow] for i in range(g.kh) for j in range(g.kw)]
    return np.ascontiguousarray(np.stack(taps, 3))


@lru_cache(maxsize=1024)
def _geometry(g: Windows, itemsize: int) -> Array:
    return np.array(astuple(replace(g, c=g.c * itemsize)), np.intp)


PATCHES: Final = CompiledPatches()
