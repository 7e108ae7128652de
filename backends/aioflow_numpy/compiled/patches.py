"""Patches of images in C: one program for all windows, whose geometry is passed as numbers, and for all dtypes.

Elements are bytes here. Without dilation, the positions of a window's line that are inside the image are contiguous
there, and are copied at once. Positions outside are zero.
"""

from __future__ import annotations

from typing import Final

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
