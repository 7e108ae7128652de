"""Arg max, top k, sorting and counting against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.ops.apply import make_list
from tests.parity.samples import sample

REALS = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"]


@pytest.mark.parametrize("dtype", [*REALS, "bool"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_dtypes(parity: Any, name: str, dtype: str) -> None:
    x = sample(dtype, (3, 4))
    parity(lambda m, t: getattr(m, name)(t, 1), x)
    parity(lambda m, t: getattr(m, name)(t, 0, output_type="int32"), x)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5,), None), ((5,), -1), ((3, 4), None), ((2, 3, 4), 1), ((2, 3, 4), -3), ((0, 3), 1), ((3, 1), 1)],
)
def test_arg_axes(parity: Any, name: str, shape: tuple[int, ...], axis: Any) -> None:
    parity(lambda m, t: getattr(m, name)(t, axis), sample("float32", shape))


def test_arg_with_deprecated_names(parity: Any) -> None:
    x = sample("float32", (3, 4))
    parity(lambda m, t: [m.arg_max(t, 1), m.arg_min(t, 0), m.argmax(t, dimension=1)], x)
    parity(lambda m, t, a: m.argmax(t, a), x, np.array(1, np.int32))
    parity(lambda m, t: m.argmax(t, 0), x, shapes=[None])


@pytest.mark.parametrize("dtype", REALS)
def test_top_k_dtypes(parity: Any, dtype: str) -> None:
    parity(lambda m, t: list(m.nn.top_k(t, 3)), sample(dtype, (4, 7)), grad=dtype in ("float32", "float64"))


@pytest.mark.parametrize(("shape", "k"), [((5,), 1), ((5,), 5), ((2, 3, 4), 2), ((3, 4), 0), ((0, 4), 2), ((1,), 1)])
def test_top_k_shapes(parity: Any, shape: tuple[int, ...], k: int) -> None:
    x = sample("float32", shape)
    parity(lambda m, t: list(m.nn.top_k(t, k)), x)
    parity(lambda m, t, n: list(m.nn.top_k(t, n)), x, np.array(k, np.int32))
    parity(lambda m, t: list(m.nn.top_k(t, k)), x, shapes=[None])


@pytest.mark.parametrize("k", [1, 5, 20, 400])
@pytest.mark.parametrize("ties", [False, True])
def test_top_k_of_long_rows(parity: Any, k: int, ties: bool) -> None:
    x = np.random.default_rng(4).standard_normal((3, 600)).astype(np.float32)
    parity(lambda m, t: list(m.nn.top_k(t, k)), np.round(x) if ties else x)


def test_top_k_op(parity: Any) -> None:
    """Compare with the successor of TopK, which TensorFlow no longer accepts in a new graph."""
    x = sample("float32", (3, 4))
    parity(lambda m, t: list(m.nn.top_k(t, 2) if m is not aioflow else make_list("TopK", t, k=2)), x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [0, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_nth_element(parity: Any, dtype: str, n: int, reverse: bool) -> None:
    x = sample(dtype, (3, 4))
    parity(lambda m, t: m.raw_ops.NthElement(input=t, n=n, reverse=reverse), x)


@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_sort(parity: Any, dtype: str, axis: int, direction: str) -> None:
    x = sample(dtype, (3, 4, 2))
    parity(lambda m, t: m.sort(t, axis, direction), x)
    parity(lambda m, t: m.argsort(t, axis, direction), x)


@pytest.mark.parametrize("values", [[np.iinfo(np.int32).min, 0, np.iinfo(np.int32).max], []])
def test_sort_extremes(parity: Any, values: list[int]) -> None:
    parity(lambda m, t: m.sort(t), np.array(values, np.int32))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_in_top_k(parity: Any, k: int) -> None:
    x = sample("float32", (6, 4))
    x[1, 2], x[2, 0], x[3] = np.nan, np.inf, 1.0
    targets = np.array([0, 1, 0, 2, 7, -1])
    for kind in (np.int32, np.int64):
        parity(lambda m, p, t: m.nn.in_top_k(p, t, k), x, targets.astype(kind), grad=False)
    parity(lambda m, p, t: m.raw_ops.InTopK(predictions=p, targets=t, k=k), x, targets.astype(np.int32), grad=False)


@pytest.mark.parametrize("values", [[1, 1, 3, 0, 5], [], [2], [[1, 2], [2, 0]]])
@pytest.mark.parametrize("bounds", [{}, {"minlength": 8}, {"maxlength": 3}, {"minlength": 1, "maxlength": 4}])
def test_bincount(parity: Any, values: Any, bounds: dict[str, int]) -> None:
    x = np.array(values, np.int32)
    # The result's length is known only in the step, and TensorFlow's shape function infers less for an empty input.
    parity(lambda m, t: m.bincount(t, **bounds), x, static=False)
    parity(lambda m, t: m.bincount(t, dtype="float32", **bounds), x, static=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_bincount_weights(parity: Any, dtype: str) -> None:
    x, w = np.array([1, 1, 3, 0], np.int32), np.array([2, 3, 5, 7]).astype(dtype)
    # aioflow has a gradient by the weights; TensorFlow has none.
    parity(lambda m, t, u: m.bincount(t, weights=u), x, w, static=False, grad=False)


def test_bincount_op(parity: Any) -> None:
    x, w = np.array([1, 1, 3, 0], np.int32), np.array([2, 3, 5, 7], np.float32)
    for size in (2, 6):
        for weights in (w, w[:0]):
            parity(
                lambda m, t, u, n=size: m.raw_ops.Bincount(arr=t, size=n, weights=u),
                x,
                weights,
                grad=False,
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("nbins", [1, 5, 100])
def test_histogram(parity: Any, dtype: str, nbins: int) -> None:
    x = np.array([-10, 0, 1, 2, 4, 5, 7, 200]).astype(dtype)
    span = np.array([0, 5]).astype(dtype)
    parity(lambda m, t, r: m.histogram_fixed_width(t, r, nbins), x, span, grad=False)
    parity(lambda m, t, r: m.histogram_fixed_width(t, r, nbins, dtype="int64"), x.reshape(2, 4), span, grad=False)
    if "float" in dtype:
        parity(lambda m, t, r: m.histogram_fixed_width_bins(t, r, nbins), x, span, grad=False)


def test_histogram_of_no_values(parity: Any) -> None:
    parity(lambda m, t: m.histogram_fixed_width(t, [0.0, 1.0], 3), np.zeros(0, np.float32), grad=False)


def test_confusion_matrix(parity: Any) -> None:
    labels, predictions = np.array([0, 1, 2, 1], np.int32), np.array([0, 2, 2, 1], np.int32)
    parity(lambda m, a, b: m.confusion_matrix(a, b), labels, predictions, static=False)
    parity(lambda m, a, b: m.confusion_matrix(a, b, 4), labels, predictions)
    parity(lambda m, a, b: m.confusion_matrix(a, b, 4, dtype="float32"), labels.astype(np.int64), predictions)
    parity(
        lambda m, a, b: m.confusion_matrix(a, b[:, None], 3, weights=[1, 2, 3, 4]), labels, predictions, static=False
    )
