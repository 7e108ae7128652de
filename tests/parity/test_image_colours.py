"""Colors against TensorFlow: color spaces, hue, saturation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

CORNERS = np.stack(np.meshgrid(*[[0.0, 0.4, 1.0]] * 3, indexing="ij"), -1).reshape(
    1, 9, 3, 3
)  # all ties between channels


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        return rng.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
    made = rng.random(shape)
    if dtype == "bfloat16":
        return made.astype(pytest.importorskip("ml_dtypes").bfloat16)
    return made.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3,), (20, 3), (2, 5, 7, 3), (0, 3), (4, 0, 3)])
def test_hue_saturation_value(parity: Any, shape: tuple[int, ...], dtype: str) -> None:
    image = drawn(*shape, dtype=dtype)
    parity(lambda m, x: m.image.rgb_to_hsv(x), image, rtol=1e-4, atol=1e-5)
    parity(
        lambda m, x: m.image.hsv_to_rgb(x), image, rtol=1e-4, atol=1e-5, grad=False
    )  # TensorFlow has no gradient of it


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hsv_in_16_bit_floats(parity: Any, dtype: str) -> None:
    image = drawn(2, 5, 7, 3, dtype=dtype)
    parity(lambda m, x: m.image.rgb_to_hsv(x), image, rtol=3e-2, atol=3e-2, grad=False)
    parity(lambda m, x: m.image.hsv_to_rgb(x), image, rtol=3e-2, atol=3e-2, grad=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grey_and_pure_colours(parity: Any, dtype: str) -> None:
    image = CORNERS.astype(dtype)
    parity(lambda m, x: m.image.rgb_to_hsv(x), image, rtol=1e-4, atol=1e-5)
    parity(lambda m, x: m.image.hsv_to_rgb(x), image, rtol=1e-4, atol=1e-5, grad=False)
    parity(lambda m, x: m.image.rgb_to_hsv(x), image * 3 - 1, rtol=1e-4, atol=1e-5)


def test_hsv_to_rgb_of_values_out_of_range(parity: Any) -> None:
    image = drawn(4, 5, 3) * np.array([6.0, 2, 3], np.float32) - np.array([3, 0.5, 1], np.float32)
    parity(lambda m, x: m.image.hsv_to_rgb(x), image, rtol=1e-4, atol=1e-5, grad=False)


@pytest.mark.parametrize("name", ["rgb_to_yiq", "yiq_to_rgb", "rgb_to_yuv", "yuv_to_rgb"])
def test_yiq_and_yuv(parity: Any, name: str) -> None:
    for shape in ((3,), (4, 5, 3), (2, 4, 5, 3)):
        if shape != (3,) or name == "":
            parity(lambda m, x: getattr(m.image, name)(x), drawn(*shape), rtol=1e-4, atol=1e-5)
    parity(lambda m, x: getattr(m.image, name)(x), drawn(4, 5, 3, dtype="float64"), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
@pytest.mark.parametrize("by", [-1.0, -0.3, 0.0, 0.1, 0.5, 1.0])
def test_adjust_hue(parity: Any, by: float, dtype: str) -> None:
    for image in (drawn(2, 5, 7, 3, dtype=dtype), (CORNERS * (255 if dtype == "uint8" else 1)).astype(dtype)):
        parity(lambda m, x: m.image.adjust_hue(x, by), image, rtol=1e-4, atol=1e-5, grad=False)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 3.0])
def test_adjust_saturation(parity: Any, factor: float, dtype: str) -> None:
    for image in (drawn(2, 5, 7, 3, dtype=dtype), (CORNERS * (255 if dtype == "uint8" else 1)).astype(dtype)):
        parity(lambda m, x: m.image.adjust_saturation(x, factor), image, rtol=1e-4, atol=1e-5, grad=False)


def test_adjust_empty_images(parity: Any) -> None:
    for name in ("adjust_hue", "adjust_saturation"):
        parity(lambda m, x, name=name: getattr(m.image, name)(x, 0.5), drawn(0, 5, 3), grad=False)


WRONG: list[Any] = [
    lambda m: m.image.rgb_to_hsv(np.zeros((2, 4), np.float32)),
    lambda m: m.image.hsv_to_rgb(np.float32(1)),
    lambda m: m.image.adjust_hue(np.zeros((2, 2, 4), np.float32), 0.1),
    lambda m: m.image.adjust_hue(np.zeros((2, 3), np.float32), 0.1),
    lambda m: m.image.adjust_saturation(np.zeros((2, 2, 3), np.float32), [0.1, 0.2]),
    lambda m: m.image.random_hue(np.zeros((2, 2, 3), np.float32), 0.7),
    lambda m: m.image.random_hue(np.zeros((2, 2, 3), np.float32), -0.1),
    lambda m: m.image.random_saturation(np.zeros((2, 2, 3), np.float32), 0.5, 0.5),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:

    assert parity.either(lambda m: [build(m)]) == ("refused", "refused")
