"""Depthwise convolution in C: one program for all windows, whose geometry is passed as numbers.

The sum of a window stays in registers while the products are added, in NumPy's order and starting from 0, for as many
channels at once as fit. Outside the image there are zeros, which are multiplied like all other elements.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow_numpy.compiled.pieces import EXACT_FLOATS

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
