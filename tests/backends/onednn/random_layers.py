"""Random layers without filters, to compare oneDNN's kernels with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.graph.dtypes import float32
from tests.backends.onednn.random_cases import Array, Case, body, normal

__all__ = ["LAYERS", "layers"]


def odd(rng: np.random.Generator, array: Array, large: float = 3e38) -> Array:
    """Return the array: sometimes rounded, for many ties, or with a few NaN, infinite or large elements."""
    match int(rng.integers(6)):
        case 0:
            return np.round(array)
        case 1:
            made = array.copy()
            made[rng.random(made.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf, large])
            return made
        case _:
            return array


def pool(rng: np.random.Generator, most: int = 20) -> Case:
    """Return a pool or its gradient."""
    n, h, w, c = (int(rng.integers(1, limit)) for limit in (5, most, most, 40))
    kh, kw, sh, sw = (int(rng.integers(1, limit)) for limit in (6, 6, 4, 4))
    if rng.random() < 0.2:  # a single column
        w = kw = 1
    attrs: dict[str, Any] = {"ksize": (1, kh, kw, 1), "strides": (1, sh, sw, 1), "data_format": "NHWC"}
    attrs["padding"] = "SAME" if rng.integers(2) else "VALID"
    if attrs["padding"] == "VALID":
        h, w = max(h, kh), max(w, kw)
    image = odd(rng, normal(rng, n, h, w, c))
    name = "MaxPool" if rng.integers(2) else "AvgPool"
    made = body(name, attrs, (image,), reproducible=True)(image)
    if rng.integers(2):
        return Case(name, attrs, (image,), kh * kw)
    gradient = odd(rng, normal(rng, *made.shape))
    inputs = (image, made, gradient) if name == "MaxPool" else (image.shape, gradient)
    return Case(f"{name}Grad", attrs, inputs, kh * kw)


def softmax(rng: np.random.Generator) -> Case:
    """Return a softmax of vectors, or its logarithm."""
    shape = [int(rng.integers(1, limit)) for limit in (40, 9, 70)][int(rng.integers(3)) :]
    logits = odd(rng, normal(rng, *shape) * np.float32(rng.choice([1.0, 30.0])))
    return Case(str(rng.choice(["Softmax", "LogSoftmax"])), {}, (logits,), 1)


def batch_norm(rng: np.random.Generator) -> Case:
    """Return a batch normalization or its gradient."""
    version, data_format = str(rng.choice(["", "V2", "V3"])), str(rng.choice(["NHWC", "NCHW"]))
    if version == "V3" and not rng.integers(3):
        data_format = "NDHWC"
    channels, is_training = int(rng.integers(1, 70)), bool(rng.integers(2))
    shape = [channels if axis == "C" else int(rng.integers(1, 8)) for axis in data_format]
    attrs: dict[str, Any] = {"data_format": data_format, "is_training": is_training, "epsilon": 1e-2, "U": float32}
    x, scale, shift = normal(rng, *shape), normal(rng, channels), normal(rng, channels)
    mean, variance = normal(rng, channels), np.abs(normal(rng, channels)) + np.float32(0.1)
    depth = x.size // channels
    if rng.integers(2):
        attrs["exponential_avg_factor"] = float(rng.choice([1.0, 0.1]))
        return Case(f"FusedBatchNorm{version}", attrs, (odd(rng, x, 1e10), scale, shift, mean, variance), depth)
    more = (mean,) if version == "V3" else ()
    inputs = (normal(rng, *shape), x, scale, mean, variance, *more)
    return Case(f"FusedBatchNormGrad{version}", attrs, inputs, 100 * depth)


def batch_product(rng: np.random.Generator) -> Case:
    """Return a product of two batches of matrices."""
    batch = [int(rng.integers(1, 6)) for _ in range(int(rng.integers(1, 3)))]
    rows, inner, columns = (int(rng.integers(1, 40)) for _ in range(3))
    a, b = bool(rng.integers(2)), bool(rng.integers(2))
    left = normal(rng, *batch, *((inner, rows) if a else (rows, inner)))
    right = normal(rng, *batch, *((columns, inner) if b else (inner, columns)))
    return Case(str(rng.choice(["BatchMatMul", "BatchMatMulV2"])), {"adj_x": a, "adj_y": b}, (left, right), inner)


def lrn(rng: np.random.Generator) -> Case:
    """Return a local response normalization or its gradient, mostly with attributes for which oneDNN has fast code."""
    channels = 8 * int(rng.integers(2, 13)) if rng.integers(4) else int(rng.integers(1, 40))
    image = odd(rng, normal(rng, *(int(rng.integers(1, 9)) for _ in range(3)), channels), 1e10)
    attrs: dict[str, Any] = {"depth_radius": int(rng.choice([0, 1, 2, 2, 3, 4, 5, 7, 50]))}
    attrs |= {name: float(rng.choice(values)) for name, values in _LRN.items()}
    if rng.integers(2):
        return Case("LRN", attrs, (image,), 10)
    made = body("LRN", attrs, (image,), reproducible=True)(image)
    if not rng.integers(8):  # not the result of the normalization
        made = normal(rng, *image.shape)
    return Case("LRNGrad", attrs, (odd(rng, normal(rng, *image.shape), np.inf), image, made), 100)


def layer_norm(rng: np.random.Generator) -> Case:
    """Return a layer normalization."""
    columns = int(rng.integers(1, 200))
    shape = [int(rng.integers(1, 20)) for _ in range(int(rng.integers(3)))]
    x = odd(rng, normal(rng, *shape, columns) + np.float32(rng.choice([0.0, 0.0, 10.0])), 1e10)
    return Case("_LayerNorm", {"epsilon": 1e-2}, (x, normal(rng, columns), normal(rng, columns)), 10 * columns)


_LRN = {"bias": [1.0, 1.0, 2.0, 0.0], "alpha": [1.0, 1e-4, 0.2], "beta": [0.75, 0.75, 0.75, 0.5, 1.0]}
LAYERS = (pool, softmax, batch_norm, batch_product, lrn, layer_norm)


def layers(seed: int, count: int) -> list[Case]:
    """Return `count` layers, of every kind in turn."""
    rng = np.random.default_rng(seed)
    return [LAYERS[number % len(LAYERS)](rng) for number in range(count)]
