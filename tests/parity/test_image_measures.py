"""Image measures against TensorFlow: similarity, total variation, edges; also rotation and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    made = np.random.default_rng(seed).random(shape)
    return (made * 255).astype(dtype) if "int" in dtype else made.astype(dtype)


def noisy(image: Any) -> Any:
    noise = np.random.default_rng(9).normal(size=image.shape) * (20 if image.dtype == np.uint8 else 0.1)
    return np.clip(image + noise, 0, 255 if image.dtype == np.uint8 else 1).astype(image.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("shape", [(14, 17, 3), (2, 14, 17, 3), (2, 3, 13, 12, 1)])
def test_psnr_and_ssim(parity: Any, shape: tuple[int, ...], dtype: str) -> None:
    one, most = drawn(*shape, dtype=dtype), 255 if dtype == "uint8" else 1.0
    other, grad = noisy(one), dtype == "float32"
    how = {"rtol": 1e-4, "atol": 1e-4, "grad": grad, "static": False}
    parity(lambda m, x, y: m.image.psnr(x, y, most), one, other, **how)
    parity(lambda m, x, y: m.image.ssim(x, y, most), one, other, **how)
    options = {"filter_size": 5, "filter_sigma": 1.1, "k1": 0.02, "k2": 0.05}
    parity(lambda m, x, y: m.image.ssim(x, y, most, **options), one, other, **how)
    parity(lambda m, x, y: m.image.ssim(x, y, most, return_index_map=True), one, other, **how)


@pytest.mark.parametrize("size", [(48, 64), (45, 53)])
def test_ssim_multiscale(parity: Any, size: tuple[int, int]) -> None:
    one = drawn(2, *size, 3)

    def build(m: Any, x: Any, y: Any) -> Any:
        return m.image.ssim_multiscale(x, y, 1.0, power_factors=(0.3, 0.4, 0.3), filter_size=7)

    parity(build, one, noisy(one), rtol=1e-3, atol=1e-4, static=False)


def test_psnr_and_ssim_of_equal_images(parity: Any) -> None:
    image = drawn(12, 12, 3)
    parity(lambda m, x, y: [m.image.psnr(x, y, 1.0), m.image.ssim(x, y, 1.0)], image, image, grad=False, static=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_total_variation_and_image_gradients(parity: Any, dtype: str) -> None:
    parity(lambda m, x: m.image.total_variation(x), drawn(5, 7, 3, dtype=dtype), rtol=1e-4)
    parity(lambda m, x: m.image.total_variation(x), drawn(2, 5, 7, 3, dtype=dtype), rtol=1e-4)
    parity(lambda m, x: list(m.image.image_gradients(x)), drawn(2, 5, 7, 3, dtype=dtype), rtol=1e-4)


def test_sobel_edges(parity: Any) -> None:
    parity(lambda m, x: m.image.sobel_edges(x), drawn(2, 5, 7, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 3)])
def test_transpose_and_rot90(parity: Any, shape: tuple[int, ...]) -> None:
    image = drawn(*shape)
    parity(lambda m, x: m.image.transpose_image(x), image)
    for k in range(-1, 5):
        # TensorFlow has neither the gradient (the shapes of its branches differ) nor the static size.
        parity(lambda m, x, k=k: m.image.rot90(x, k), image, static=False, grad=False)
        parity(lambda m, x, k=k: m.image.rot90(x, m.placeholder_with_default(k, [])), image, static=False, grad=False)


@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 3)])
@pytest.mark.parametrize("target", [(10, 10), (4, 9), (3, 2), (5, 7), (13, 3)])
@pytest.mark.parametrize("method", [0, 1, 2])
def test_resize_with_pad(parity: Any, shape: tuple[int, ...], target: tuple[int, int], method: int) -> None:
    parity(lambda m, x: m.image.resize_image_with_pad(x, *target, method), drawn(*shape), rtol=1e-4, atol=1e-5)


WRONG: list[Any] = [
    lambda m: m.image.ssim(drawn(5, 20, 3), drawn(5, 20, 3), 1.0),
    lambda m: m.image.psnr(drawn(5, 20, 3), drawn(5, 21, 3), 1.0),
    lambda m: m.image.psnr(drawn(5, 20), drawn(5, 20), 1.0),
    lambda m: m.image.total_variation(m.constant(drawn(5, 20))),
    lambda m: m.image.image_gradients(m.constant(drawn(5, 20, 3)))[0],
    lambda m: m.image.transpose_image(drawn(5, 20)),
    lambda m: m.image.resize_image_with_pad(drawn(5, 20, 3), 0, 3),
    lambda m: m.image.ssim(m.placeholder_with_default(drawn(5, 20, 3), [None] * 3), drawn(5, 20, 3), 1.0),
    lambda m: m.image.psnr(m.placeholder_with_default(drawn(5, 1, 3), [None] * 3), drawn(5, 20, 3), 1.0),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:
    assert parity.either(lambda m: [build(m)]) == ("refused", "refused")
