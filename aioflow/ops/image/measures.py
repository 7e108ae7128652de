"""Measures of images: similarity of two, total variation, and edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_op
from aioflow.ops.image.adjust import convert_image_dtype
from aioflow.ops.scoping import name_scope

# From Wang et al., 2003.
_SCALES: Final = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def _rank(dims: Dims, ranks: tuple[int, ...]) -> int:
    if dims is None or len(dims) not in ranks:
        raise InvalidArgumentError("images have the wrong rank", expected=f"one of {ranks}", actual=format_dims(dims))
    return len(dims)


def _sum(values: Tensor, axes: Sequence[int]) -> Tensor:
    return make("Sum", values, list(axes), keep_dims=False)


def _mean(values: Tensor, axes: Sequence[int]) -> Tensor:
    return make("Mean", values, list(axes), keep_dims=False)


# ── one image ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps(images: Tensor, axis: int) -> Tensor:
    """Return the differences of neighboring pixels along an axis: each pixel less the one before it."""
    rank = len(images.dims or ())
    begin = [int(i == axis) for i in range(rank)]
    later = make("StridedSlice", images, begin, [0] * rank, [1] * rank, end_mask=2**rank - 1)
    end = [-int(i == axis) for i in range(rank)]
    earlier = make(
        "StridedSlice", images, [0] * rank, end, [1] * rank, begin_mask=2**rank - 1, end_mask=2**rank - 1 - 2**axis
    )
    return make("Sub", later, earlier)


def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """Return the sum of the absolute differences between neighboring pixels, which is large for noise.

    `images` is [height, width, channels], for which the result is a scalar, or a batch of them, for which it is a
    vector.

    Raises:
        InvalidArgumentError: the images have another rank.
    """
    given = convert_to_tensor(images)
    first = _rank(given.dims, (3, 4)) - 3
    with name_scope(name, "total_variation"):
        axes = range(first, first + 3)
        down, across = (_sum(make("Abs", _steps(given, axis)), axes) for axis in (first, first + 1))
        return make("AddV2", down, across)


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the differences to the pixel below and to the pixel on the right; 0 in the last row and column.

    `image` is [batch, height, width, channels]; both results have its shape and dtype.

    Raises:
        InvalidArgumentError: the image has another rank.
    """
    given = convert_to_tensor(image)
    _rank(given.dims, (4,))
    found = []
    for axis in (1, 2):
        paddings = [[0, int(i == axis)] for i in range(4)]
        made = make("Pad", _steps(given, axis), paddings)
        made.set_shape(given.dims)
        found.append(made)
    return found[0], found[1]


_SOBEL: Final = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]], np.float32)


def sobel_edges(image: TensorLike) -> Tensor:
    """Return the vertical and horizontal changes of images by Sobel's filter.

    `image` is [batch, height, width, channels], floats.

    Returns:
        [batch, height, width, channels, 2].

    Raises:
        DTypeError: the images are not floats.
        InvalidArgumentError: they have another rank.
    """
    given = convert_to_tensor(image)
    if not given.dtype.is_floating:
        raise DTypeError("images have the wrong dtype", expected="floats", actual=given.dtype.name)
    _rank(given.dims, (4,))
    dims = given.dims or ()
    # Both filters as [3, 3, 1, 2]; tiling repeats them for each channel.
    both = constant(np.stack([_SOBEL, _SOBEL.T], axis=-1)[:, :, None, :], given.dtype)
    channels = make("StridedSlice", make("Shape", given), [3], [4], [1])
    kernel = make("Tile", both, make("ConcatV2", [[1, 1], channels, [1]], 0))
    padded = make("MirrorPad", given, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="REFLECT")
    edges = make("DepthwiseConv2dNative", padded, kernel, strides=[1, 1, 1, 1], padding="VALID")
    made = make("Reshape", edges, make("ConcatV2", [make("Shape", given), [2]], 0))
    made.set_shape((*dims, 2))
    return made


# ── two images ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_floats(first: TensorLike, second: TensorLike, most: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """Return as floats: two images of one shape, and the largest possible value in them."""
    one = convert_to_tensor(first)
    other = convert_to_tensor(second, one.dtype)
    for image in (one, other):
        if image.dims is not None and len(image.dims) < 3:
            raise InvalidArgumentError("an image has the wrong rank", expected=">= 3", actual=format_dims(image.dims))
    if not is_compatible(one.dims, other.dims):
        raise InvalidArgumentError(
            "the images have different shapes", expected=format_dims(one.dims), actual=format_dims(other.dims)
        )
    if None in (one.dims, other.dims) or None in (*(one.dims or ()), *(other.dims or ())):
        one = _if_as_large(one, other)
    limit = make("Cast", convert_to_tensor(most), DstT=one.dtype)
    floats = [convert_image_dtype(value, dtypes.float32) for value in (one, other, limit)]
    return floats[0], floats[1], floats[2]


def _if_as_large(one: Tensor, other: Tensor) -> Tensor:
    """Return `one` after a check in the run that `other` has the same shape."""
    # Without the check, images of different shapes might broadcast against one another.
    shapes = [make("Shape", image) for image in (one, other)]
    alike = make("All", make("Equal", *shapes), [0], keep_dims=False)
    check = make_op("Assert", alike, [constant("the images have different shapes"), *shapes])
    with one.graph.control_dependencies([check]):
        found = make("Identity", one)
    return found


def psnr(a: TensorLike, b: TensorLike, max_val: TensorLike, name: str | None = None) -> Tensor:
    """Return the peak signal-to-noise ratio of images, in decibels; it is larger for more similar images.

    Args:
        a: [..., height, width, channels].
        b: Images of the same shape and dtype.
        max_val: Largest possible value less the smallest: 1 for floats, 255 for uint8.
        name: Name scope of the nodes.

    Returns:
        float32 [...], infinite for equal images.

    Raises:
        InvalidArgumentError: the shapes differ, or the rank is below 3.
    """
    with name_scope(name, "psnr"):
        one, other, limit = _as_floats(a, b, max_val)
        error = _mean(make("SquaredDifference", one, other), (-3, -2, -1))
        # 10 log₁₀(max² / error) = 10 / ln 10 · (2 ln max - ln error).
        per_decade = constant(10 / np.log(10), dtypes.float32)
        return per_decade * (constant(2, dtypes.float32) * make("Log", limit) - make("Log", error))


class _Window:
    """A Gaussian window over images, and the stabilizing constants of the similarity."""

    def __init__(self, size: int, sigma: float, k1: float, k2: float, most: Tensor) -> None:
        # Distances from the middle of the window, in pixels.
        away = np.arange(size, dtype=np.float64) - (size - 1) / 2
        line = np.exp(-0.5 * (away / sigma) ** 2)
        window = np.outer(line, line)
        # The weights add up to 1.
        self._window = (window / window.sum()).astype(np.float32)[:, :, None, None]
        self._size = size
        # c₁ = (k₁ L)² and c₂ = (k₂ L)², where L is the range of the values.
        self._least = [make("Square", make("Mul", constant(k, dtypes.float32), most)) for k in (k1, k2)]

    def _smoothed(self, images: Tensor) -> Tensor:
        """Return [..., height, width, channels], smaller by the margin that the window needs around a pixel."""
        shape = make("Shape", images)
        channels = make("StridedSlice", shape, [-1], [0], [1], end_mask=1)
        kernel = make("Tile", self._window, make("ConcatV2", [[1, 1], channels, [1]], 0))
        flat = make("Reshape", images, make("ConcatV2", [[-1], _tail(shape)], 0))
        made = make("DepthwiseConv2dNative", flat, kernel, strides=[1, 1, 1, 1], padding="VALID")
        head = make("StridedSlice", shape, [0], [-3], [1], begin_mask=1)
        return make("Reshape", made, make("ConcatV2", [head, _tail(make("Shape", made))], 0))

    def compare(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Return the similarity of luminance, and that of contrast and structure, at each pixel."""
        for image in (one, other):
            sizes = () if image.dims is None else image.dims[-3:-1]
            if any(size is not None and size < self._size for size in sizes):
                raise InvalidArgumentError(
                    "the image is smaller than the window", expected=self._size, actual=format_dims(image.dims)
                )
        two = constant(2, dtypes.float32)
        means = [self._smoothed(image) for image in (one, other)]
        product = two * means[0] * means[1]
        squares = make("Square", means[0]) + make("Square", means[1])
        # (2 μ₁ μ₂ + c₁) / (μ₁² + μ₂² + c₁).
        luminance = (product + self._least[0]) / (squares + self._least[0])
        products = two * self._smoothed(one * other)
        both = self._smoothed(make("Square", one) + make("Square", other))
        # (2 σ₁₂ + c₂) / (σ₁² + σ₂² + c₂), with σ₁₂ = E[x₁ x₂] - μ₁ μ₂ and σ² = E[x²] - μ².
        return luminance, (products - product + self._least[1]) / (both - squares + self._least[1])


def _tail(shape: Tensor) -> Tensor:
    return make("StridedSlice", shape, [-3], [0], [1], end_mask=1)


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> Tensor:
    """Return the structural similarity of images, up to 1.

    See Wang et al., "Image quality assessment", 2004.

    Args:
        img1: [..., height, width, channels].
        img2: Images of the same shape and dtype.
        max_val: Largest possible value less the smallest: 1 for floats, 255 for uint8.
        filter_size: Size of the Gaussian window, in pixels; images must not be smaller.
        filter_sigma: Standard deviation of the window, in pixels.
        k1: Stabilizer of the luminance quotients of small numbers.
        k2: Stabilizer of the contrast quotients of small numbers.
        return_index_map: Whether to return the similarity at each pixel at which the window is inside.

    Returns:
        float32 [...], or [..., height - filter_size + 1, width - filter_size + 1].

    Raises:
        InvalidArgumentError: a shape does not fit.
    """
    with name_scope(None, "SSIM"):
        one, other, limit = _as_floats(img1, img2, max_val)
        luminance, structure = _Window(filter_size, filter_sigma, k1, k2, limit).compare(one, other)
        alike = luminance * structure
        return _mean(alike, (-1,) if return_index_map else (-3, -2, -1))


def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    power_factors: Sequence[float] = _SCALES,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """Return the structural similarity of images at several scales, each half as large as the one before.

    See Wang et al., 2003.

    Args:
        img1: [..., height, width, channels]; the smallest scale must not be smaller than the window.
        img2: Images of the same shape and dtype.
        max_val: See `ssim`.
        power_factors: Weight of each scale.
        filter_size: See `ssim`.
        filter_sigma: See `ssim`.
        k1: See `ssim`.
        k2: See `ssim`.

    Returns:
        float32 [...].

    Raises:
        InvalidArgumentError: a shape does not fit.
    """
    with name_scope(None, "MS-SSIM"):
        one, other, limit = _as_floats(img1, img2, max_val)
        window = _Window(filter_size, filter_sigma, k1, k2, limit)
        found: list[Tensor] = []
        for number in range(len(power_factors)):
            if number:
                one, other = _halved(one), _halved(other)
            luminance, structure = window.compare(one, other)
            # The luminance counts only at the last scale.
            last = number == len(power_factors) - 1
            # A negative mean has no real power.
            found.append(make("Relu", _mean(luminance * structure if last else structure, (-3, -2))))
        powers = constant(list(power_factors), dtypes.float32)
        scales = make("Pow", make("Pack", found, axis=-1), powers)
        return _mean(make("Prod", scales, [-1], keep_dims=False), (-1,))


def _halved(images: Tensor) -> Tensor:
    """Return the means of 2×2 pixels. An odd last row or column is repeated."""
    shape = make("Shape", images)
    tail = _tail(shape)
    flat = make("Reshape", images, make("ConcatV2", [[-1], tail], 0))
    more = make("ConcatV2", [[0], make("FloorMod", tail, [2, 2, 1])], 0)
    padded = make("MirrorPad", flat, make("Pack", [make("ZerosLike", more), more], axis=1), mode="SYMMETRIC")
    made = make("AvgPool", padded, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    head = make("StridedSlice", shape, [0], [-3], [1], begin_mask=1)
    return make("Reshape", made, make("ConcatV2", [head, _tail(make("Shape", made))], 0))
