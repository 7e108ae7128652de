"""Projective transforms of images, with their gradients, against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

MODES = ["CONSTANT", "NEAREST", "REFLECT", "WRAP"]
METHODS = ["NEAREST", "BILINEAR"]
TRANSFORMS = {
    "as it is": [[1, 0, 0, 0, 1, 0, 0, 0]],
    "moved": [[1, 0, 1.3, 0, 1, -2.4, 0, 0]],
    "moved far": [[1, 0, 61.3, 0, 1, -45.4, 0, 0]],
    "moved far back": [[1, 0, -61.3, 0, 1, 45.4, 0, 0]],
    "turned": [[0.8, -0.61, 1.2, 0.6, 0.79, -0.7, 0, 0]],
    "sheared": [[1.1, 0.3, -3.3, 0.05, 0.9, 0.7, 0, 0]],
    "seen from aside": [[1.1, 0.3, -0.3, 0.05, 0.9, 0.7, 0.011, -0.013]],
    "each its own": [[1, 0.11, 0.37, -0.13, 1, -0.6, 0, 0], [0.53, 0, 0.1, 0, 2.03, -1.1, 0.01, 0]],
}


def drawn(*shape: int, dtype: str = "float32") -> Any:
    made = np.random.default_rng(0).random(shape)
    if dtype == "bfloat16":
        return made.astype(pytest.importorskip("ml_dtypes").bfloat16)
    return (made * 100).astype(dtype) if "int" in dtype else made.astype(dtype)


def _transformed(m: Any, x: Any, transforms: Any, size: Any, fill: float | None = None, **how: Any) -> Any:
    given = {"images": x, "transforms": m.constant(transforms, "float32"), "output_shape": size}
    if fill is None:
        return m.raw_ops.ImageProjectiveTransformV2(**given, **how)
    return m.raw_ops.ImageProjectiveTransformV3(**given, fill_value=fill, **how)


@pytest.mark.parametrize("fill_mode", MODES)
@pytest.mark.parametrize("interpolation", METHODS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(parity: Any, name: str, interpolation: str, fill_mode: str) -> None:
    for size in ([5, 7], [8, 3]):
        for fill in (None, 0.5):

            def build(m: Any, x: Any, size: Any = size, fill: Any = fill) -> Any:
                how = {"interpolation": interpolation, "fill_mode": fill_mode}
                return _transformed(m, x, TRANSFORMS[name], size, fill, **how)

            parity(build, drawn(2, 5, 7, 3), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("interpolation", METHODS)
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_dtypes(parity: Any, dtype: str, interpolation: str) -> None:
    for fill in (0.0, 7.6):

        def build(m: Any, x: Any, fill: float = fill) -> Any:
            return _transformed(m, x, TRANSFORMS["turned"], [5, 7], fill, interpolation=interpolation)

        rtol = 2e-2 if dtype in ("float16", "bfloat16") else 1e-4
        grad = dtype != "bfloat16"  # TensorFlow rejects bfloat16 gradients
        parity(build, drawn(2, 5, 7, 3, dtype=dtype), rtol=rtol, atol=rtol, grad=grad)


@pytest.mark.parametrize("fill_mode", MODES)
def test_images_of_one_pixel_and_empty_images(parity: Any, fill_mode: str) -> None:
    for shape in ((1, 1, 1, 2), (0, 3, 3, 1), (1, 3, 3, 0)):

        def build(m: Any, x: Any) -> Any:
            how = {"interpolation": "BILINEAR", "fill_mode": fill_mode}
            return _transformed(m, x, TRANSFORMS["turned"], [4, 4], 0.5, **how)

        parity(build, drawn(*shape), rtol=1e-4, atol=1e-5, grad=False)


def test_points_at_infinity_get_the_fill_value(parity: Any) -> None:
    away = [[1, 0, 0, 0, 1, 0, -0.5, 0]]  # pixels at x = 2 map to infinity
    for method in METHODS:
        parity(
            lambda m, x, method=method: _transformed(m, x, away, [4, 4], 0.25, interpolation=method),
            drawn(1, 4, 4, 1),
            rtol=1e-4,
            grad=False,
        )


def test_nan_pixels_spread_equally(parity: Any) -> None:
    image = drawn(1, 6, 6, 1)
    image[0, 2, 3] = np.nan
    for method in METHODS:
        parity(
            lambda m, x, method=method: _transformed(m, x, TRANSFORMS["moved"], [6, 6], 0.0, interpolation=method),
            image,
            rtol=1e-4,
            grad=False,
        )


WRONG: list[Any] = [
    lambda m, x: _transformed(m, x[0], TRANSFORMS["moved"], [4, 4], interpolation="NEAREST"),
    lambda m, x: _transformed(m, x, [[1.0] * 7], [4, 4], interpolation="NEAREST"),
    lambda m, x: _transformed(m, x, [[1.0] * 8] * 3, [4, 4], interpolation="NEAREST"),
    lambda m, x: _transformed(m, x, TRANSFORMS["moved"], [4, 4, 4], interpolation="NEAREST"),
    lambda m, x: _transformed(m, x, TRANSFORMS["moved"], [4, 0], interpolation="NEAREST"),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:

    assert parity.either(lambda m: [build(m, m.constant(drawn(2, 4, 4, 1)))]) == ("refused", "refused")
