"""Times of the NumPy backend's convolutions and pools, against np.matmul and TensorFlow's ops.

Run: `python benchmarks/convolution.py [rounds]` with aioflow installed; without TensorFlow its columns stay empty. The
candidates of a row alternate, and each number is a median. "of matmul" is the rate of the convolution divided by that
of a single matrix product with as many multiply-adds and no copies.
"""

from __future__ import annotations

import os
import sys

# Idle BLAS threads otherwise spin for about 25 ms after each product, on the cores that the next candidate needs.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aioflow_numpy import blas

blas.choose_core_type()

import numpy as np  # noqa: E402 - the core type must be chosen before NumPy is imported

from aioflow.ops.nn.geometry import same_padding  # noqa: E402
from aioflow_numpy import convolution, pooling  # noqa: E402

try:
    import tensorflow as tf
except ImportError:
    tf = None

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], object]

_random = np.random.default_rng(0)


@dataclass(frozen=True)
class Layer:
    """A SAME convolution of [batch, size, size, inputs] with kernel x kernel filters."""

    name: str
    batch: int
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1


@dataclass(frozen=True)
class Row:
    """The calls that one row of the table compares."""

    name: str
    ours: Call
    matmul: Call | None
    tensorflow: Call | None


LAYERS = [
    Layer("LeNet 1", 64, 28, 1, 32, 5),
    Layer("LeNet 2", 64, 14, 32, 64, 5),
    Layer("3x3 28²", 32, 28, 64, 64, 3),
    Layer("3x3 56²", 8, 56, 64, 64, 3),
    Layer("3x3 56² narrow", 8, 56, 32, 32, 3),
    Layer("3x3 14² wide", 16, 14, 256, 256, 3),
    Layer("3x3 28² stride 2", 32, 28, 64, 128, 3, 2),
    Layer("7x7 112² stride 2", 4, 112, 3, 64, 7, 2),
    Layer("1x1 14²", 64, 14, 256, 256, 1),
    Layer("1x1 56²", 8, 56, 64, 256, 1),
    Layer("1x1 28² stride 2", 32, 28, 128, 256, 1, 2),
]
POOLS = [("LeNet 1", 64, 28, 32, 2, 2), ("LeNet 2", 64, 14, 64, 2, 2), ("3x3 56² stride 2", 8, 56, 64, 3, 2)]
LENET_INFERENCE = ["LeNet 1 forward", "LeNet 2 forward", "LeNet 1 max pool", "LeNet 2 max pool"]
LENET_TRAINING = [
    *LENET_INFERENCE,
    "LeNet 1 filter gradient",
    "LeNet 2 filter gradient",
    "LeNet 2 input gradient",
    "LeNet 1 max pool gradient",
    "LeNet 2 max pool gradient",
]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    print("; ".join(f"{key}: {value}" for key, value in blas.describe().items()))
    print(f"{'':36}{'ms':>8}{'of matmul':>11}{'TF ms':>9}{'TF / ours':>11}")
    taken: dict[str, tuple[float, float | None]] = {}
    for row in _rows():
        ours, matmul, theirs = _measure([row.ours, row.matmul, row.tensorflow], rounds)
        taken[row.name] = ours or 0.0, theirs
        _print_row(row.name, ours or 0.0, matmul, theirs)
    for name, parts in (("LeNet inference, layers", LENET_INFERENCE), ("LeNet training, layers", LENET_TRAINING)):
        theirs = None if tf is None else sum(taken[part][1] or 0.0 for part in parts)
        _print_row(name, sum(taken[part][0] for part in parts), None, theirs)


def _rows() -> Iterator[Row]:
    for layer in LAYERS:
        yield from _convolution_rows(layer)
    yield from _depthwise_rows(8, 28, 128)
    for pool in POOLS:
        yield from _pool_rows(*pool)


def _convolution_rows(layer: Layer) -> Iterator[Row]:
    x = _values(layer.batch, layer.size, layer.size, layer.inputs)
    w = _values(layer.kernel, layer.kernel, layer.inputs, layer.outputs)
    padding = same_padding(layer.size, layer.kernel, layer.stride, 1)
    args: Any = ((layer.stride, layer.stride), (padding, padding), (1, 1), "NHWC")
    dy = _values(*convolution.conv2d(x, w, *args).shape)
    matmuls = _matmuls(dy.size // layer.outputs, w.size // layer.outputs, layer.outputs)
    theirs = _tensorflow_convolutions(x, w, dy, layer.stride)
    yield Row(f"{layer.name} forward", lambda: convolution.conv2d(x, w, *args), matmuls[0], theirs[0])
    yield Row(
        f"{layer.name} input gradient",
        lambda: convolution.conv2d_backprop_input(x.shape, w, dy, *args),
        matmuls[1],
        theirs[1],
    )
    yield Row(
        f"{layer.name} filter gradient",
        lambda: convolution.conv2d_backprop_filter(x, w.shape, dy, *args),
        matmuls[2],
        theirs[2],
    )


def _depthwise_rows(batch: int, size: int, channels: int) -> Iterator[Row]:
    x, w = _values(batch, size, size, channels), _values(3, 3, channels, 1)
    args: Any = ((1, 1), ((1, 1), (1, 1)), (1, 1), "NHWC")
    theirs: list[Call | None] = [None] * 3
    if tf is not None:
        tx, tw = tf.constant(x), tf.constant(w)
        how = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        raw = tf.raw_ops
        theirs = [
            lambda: raw.DepthwiseConv2dNative(input=tx, filter=tw, **how).numpy(),
            lambda: raw.DepthwiseConv2dNativeBackpropInput(
                input_sizes=x.shape, filter=tw, out_backprop=tx, **how
            ).numpy(),
            lambda: raw.DepthwiseConv2dNativeBackpropFilter(
                input=tx, filter_sizes=w.shape, out_backprop=tx, **how
            ).numpy(),
        ]
    yield Row("depthwise forward", lambda: convolution.depthwise_conv2d(x, w, *args), None, theirs[0])
    yield Row(
        "depthwise input gradient",
        lambda: convolution.depthwise_conv2d_backprop_input(x.shape, w, x, *args),
        None,
        theirs[1],
    )
    yield Row(
        "depthwise filter gradient",
        lambda: convolution.depthwise_conv2d_backprop_filter(x, w.shape, x, *args),
        None,
        theirs[2],
    )


def _pool_rows(name: str, batch: int, size: int, channels: int, kernel: int, stride: int) -> Iterator[Row]:
    x = _values(batch, size, size, channels)
    padding = same_padding(size, kernel, stride, 1)
    args: Any = ((kernel, kernel), (stride, stride), (padding, padding), "NHWC")
    y = pooling.max_pool(x, *args)
    theirs: list[Call | None] = [None] * 4
    if tf is not None:
        tx, ty = tf.constant(x), tf.constant(y)
        how = {"ksize": [1, kernel, kernel, 1], "strides": [1, stride, stride, 1], "padding": "SAME"}
        raw = tf.raw_ops
        theirs = [
            lambda: raw.MaxPool(input=tx, **how).numpy(),
            lambda: raw.MaxPoolGrad(orig_input=tx, orig_output=ty, grad=ty, **how).numpy(),
            lambda: raw.AvgPool(value=tx, **how).numpy(),
            lambda: raw.AvgPoolGrad(orig_input_shape=x.shape, grad=ty, **how).numpy(),
        ]
    yield Row(f"{name} max pool", lambda: pooling.max_pool(x, *args), None, theirs[0])
    yield Row(f"{name} max pool gradient", lambda: pooling.max_pool_grad(x, y, y, *args), None, theirs[1])
    yield Row(f"{name} average pool", lambda: pooling.avg_pool(x, *args), None, theirs[2])
    yield Row(f"{name} average pool gradient", lambda: pooling.avg_pool_grad(x.shape, y, *args), None, theirs[3])


def _tensorflow_convolutions(x: Array, w: Array, dy: Array, stride: int) -> list[Call | None]:
    if tf is None:
        return [None] * 3
    tx, tw, tdy = tf.constant(x), tf.constant(w), tf.constant(dy)
    how = {"strides": [1, stride, stride, 1], "padding": "SAME"}
    raw = tf.raw_ops
    # An eager op may return before its kernel ends; numpy() waits, and copies nothing.
    return [
        lambda: raw.Conv2D(input=tx, filter=tw, **how).numpy(),
        lambda: raw.Conv2DBackpropInput(input_sizes=x.shape, filter=tw, out_backprop=tdy, **how).numpy(),
        lambda: raw.Conv2DBackpropFilter(input=tx, filter_sizes=w.shape, out_backprop=tdy, **how).numpy(),
    ]


def _matmuls(rows: int, inner: int, outputs: int) -> list[Call]:
    """Return the matrix products of the three directions, each without a copy."""
    patches, w, dy = _values(rows, inner), _values(inner, outputs), _values(rows, outputs)
    like_patches, like_w, like_dy = np.empty_like(patches), np.empty_like(w), np.empty_like(dy)
    return [
        lambda: np.matmul(patches, w, out=like_dy),
        lambda: np.matmul(dy, w.T, out=like_patches),
        lambda: np.matmul(patches.T, dy, out=like_w),
    ]


def _values(*shape: int) -> Array:
    return _random.standard_normal(shape, dtype=np.float32)


def _measure(calls: list[Call | None], rounds: int) -> list[float | None]:
    """Return the median milliseconds of each call; the calls alternate, so that other load affects all equally."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 2):
        for call, taken in zip(calls, times, strict=True):
            if call is not None:
                start = time.perf_counter()
                call()
                if turn >= 2:  # the first turns allocate
                    taken.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(taken) if taken else None for taken in times]


def _print_row(name: str, ours: float, matmul: float | None, theirs: float | None) -> None:
    of_matmul = "" if matmul is None else f"{matmul / ours:.0%}"
    ratio = "" if theirs is None else f"{theirs / ours:.2f}"
    print(f"{name:36}{ours:8.2f}{of_matmul:>11}{'' if theirs is None else f'{theirs:.2f}':>9}{ratio:>11}", flush=True)


if __name__ == "__main__":
    main()
