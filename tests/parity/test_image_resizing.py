"""Bicubic, area and filtered resizing of images, against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SIZES = [(5, 7), (10, 14), (3, 3), (1, 1), (13, 2), (1, 20)]
ALIGNED = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
FILTERS = ["lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic"]


def pixels(*shape: int, dtype: str = "float32") -> Any:
    drawn = np.random.default_rng(0).random(shape)
    if dtype == "bfloat16":
        return drawn.astype(pytest.importorskip("ml_dtypes").bfloat16)
    return (drawn * 100).astype(dtype) if "int" in dtype else drawn.astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", ALIGNED)
def test_bicubic(parity: Any, size: tuple[int, int], options: dict[str, Any]) -> None:
    image = pixels(2, 5, 7, 3)
    parity(lambda m, x: m.image.resize_bicubic(x, size, **options), image, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_area(parity: Any, size: tuple[int, int], align_corners: bool) -> None:
    """Skip gradients: TensorFlow has none of `resize_area`."""
    image = pixels(2, 5, 7, 3)
    parity(lambda m, x: m.image.resize_area(x, size, align_corners), image, rtol=1e-4, atol=1e-5, grad=False)


@pytest.mark.parametrize("size", [(40, 40), (17, 400), (1, 3), (150, 120)])
def test_area_of_large_images(parity: Any, size: tuple[int, int]) -> None:
    parity(lambda m, x: m.image.resize_area(x, size), pixels(1, 170, 120, 2), rtol=1e-4, atol=1e-5, grad=False)


def _placed(m: Any, x: Any, size: Any, scale: Any, translation: Any, **options: Any) -> Any:
    return m.raw_ops.ScaleAndTranslate(images=x, size=size, scale=scale, translation=translation, **options)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("kernel_type", FILTERS)
def test_scale_and_translate(parity: Any, kernel_type: str, antialias: bool) -> None:
    image = pixels(2, 5, 7, 3)
    for size in SIZES:
        for scale, moved in (([size[0] / 5, size[1] / 7], [0.0, 0.0]), ([0.7, 2.1], [1.3, -2.0]), ([3, 0.3], [0.5, 4])):

            def build(m: Any, x: Any, size: Any = size, scale: Any = scale, moved: Any = moved) -> Any:
                return _placed(m, x, size, scale, moved, kernel_type=kernel_type, antialias=antialias)

            parity(build, image, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(parity: Any, dtype: str) -> None:
    """Skip the gradients that TensorFlow lacks: by 16-bit floats, and of filters by dtypes other than float32."""
    image = pixels(1, 4, 5, 2, dtype=dtype)
    same = dtype in ("float32", "float64") or "int" in dtype
    parity(lambda m, x: m.image.resize_bicubic(x, [3, 8]), image, rtol=1e-4, atol=1e-4, grad=same)
    parity(lambda m, x: m.image.resize_area(x, [3, 8]), image, rtol=1e-4, atol=1e-4, grad=False)
    parity(lambda m, x: _placed(m, x, [3, 8], [0.75, 1.6], [0.0, 0.0]), image, rtol=1e-4, atol=1e-3, grad=False)


@pytest.mark.parametrize("method", [2, 3])
@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 3)])
def test_resize_images(parity: Any, shape: tuple[int, ...], method: int) -> None:
    for size in ([10, 21], [5, 7], [2, 2]):
        parity(
            lambda m, x, size=size: m.image.resize_images(x, size, method),
            pixels(*shape),
            rtol=1e-4,
            atol=1e-5,
            grad=method == 2,
        )


def test_empty_batches(parity: Any) -> None:
    parity(lambda m, x: m.image.resize_bicubic(x, [3, 8]), pixels(0, 5, 7, 3))
    parity(lambda m, x: m.image.resize_area(x, [3, 8]), pixels(0, 5, 7, 3), grad=False)
    parity(lambda m, x: _placed(m, x, [3, 8], [0.75, 1.6], [0.0, 0.0]), pixels(0, 5, 7, 3))


def test_nan_and_infinite_pixels_spread_equally(parity: Any) -> None:
    image = pixels(1, 12, 12, 1)
    image[0, 3, 4] = np.nan
    image[0, 8, 9] = np.inf
    for name in ("resize_bicubic", "resize_area"):
        for size in ([12, 12], [24, 20], [6, 4]):
            parity(lambda m, x, name=name, size=size: getattr(m.image, name)(x, size), image, rtol=1e-4, grad=False)


WRONG: list[Any] = [
    lambda m, x: m.image.resize_bicubic(x, [0, 3]),
    lambda m, x: m.image.resize_area(x, [3, 3, 3]),
    lambda m, x: m.image.resize_bicubic(x[0], [3, 3]),
    lambda m, x: m.image.resize_bicubic(x, [3, 3], align_corners=True, half_pixel_centers=True),
    lambda m, x: _placed(m, x, [3, 3], [0.0, 1.0], [0.0, 0.0]),
    lambda m, x: _placed(m, x, [3, 3], [1.0, 1.0], [0.0, 0.0, 0.0]),
    lambda m, x: _placed(m, x, [3, 3], [1.0, 1.0], [0.0, 0.0], kernel_type="square"),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:

    assert parity.either(lambda m: [build(m, m.constant(pixels(1, 5, 7, 3)))]) == ("refused", "refused")
