"""Metrics over two steps, with known and unknown shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

Build = Callable[..., Any]

RNG = np.random.default_rng(20)
LIMITS: Final = [0.2, 0.5, 0.7]

# ── programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def two_steps(build: Build, batches: list[list[Any]], *, shapes: list[Any], names: bool = True) -> Callable[..., Any]:
    """Return the program that updates a metric with each batch, and reads its value before and after."""

    def steps(m: Any, run: Callable[..., Any]) -> list[Any]:
        xs = [m.placeholder(np.asarray(each).dtype.name, shape) for each, shape in zip(batches[0], shapes, strict=True)]
        value, update = build(m, *xs)
        run(m.local_variables_initializer())
        found = [run(value)]
        for batch in batches:
            found += [run(update, dict(zip(xs, batch, strict=True))), run(value)]
        variables = m.get_collection(m.GraphKeys.METRIC_VARIABLES)
        assert variables == m.local_variables()
        listed = [each.name for each in variables]
        return [*found, [v.dtype.base_dtype.name for v in (value, update)], listed if names else len(listed)]

    return steps


def compare(parity: Any, build: Build, batches: list[list[Any]], names: bool = True) -> None:
    """Compare with shapes that are known, whose first size is unknown, and of unknown rank."""
    known = [np.shape(each) for each in batches[0]]
    for shapes in (known, [(None, *shape[1:]) if shape else () for shape in known], [None] * len(known)):
        parity.program(two_steps(build, batches, shapes=shapes, names=names))


def numbers(*shape: int) -> Any:
    return RNG.random(shape).astype(np.float32)


def bools(*shape: int) -> Any:
    return RNG.random(shape) > 0.5


# ── means ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

MEANS: Final[dict[str, Build]] = {
    "mean_absolute_error": lambda m, y, x, **how: m.metrics.mean_absolute_error(y, x, **how),
    "mean_squared_error": lambda m, y, x, **how: m.metrics.mean_squared_error(y, x, **how),
    "root_mean_squared_error": lambda m, y, x, **how: m.metrics.root_mean_squared_error(y, x, **how),
    "mean_relative_error": lambda m, y, x, **how: m.metrics.mean_relative_error(y, x, y - y * y, **how),
    "mean_of_products": lambda m, y, x, **how: m.metrics.mean(y * x, **how, name="products"),
}


@pytest.mark.parametrize("name", MEANS)
def test_means(parity: Any, name: str) -> None:
    build = MEANS[name]
    zero = np.zeros((3, 2), np.float32)
    compare(parity, build, [[numbers(3, 2), numbers(3, 2)], [zero, numbers(3, 2)]])
    weighted: Build = lambda m, y, x, w: build(m, y, x, weights=w)  # noqa: E731  (a table of functions)
    for weights in (np.float32(2), numbers(3, 1), numbers(3, 2), np.zeros((3, 2), np.float32)):
        batches = [[numbers(3, 2), numbers(3, 2), weights] for _ in range(2)]
        if np.ndim(weights):
            compare(parity, weighted, batches)
        else:
            parity.program(two_steps(weighted, batches, shapes=[(3, 2), None, ()]))


def test_accuracy(parity: Any) -> None:
    for labels, predictions in (
        (np.array([1, 2, 3]), np.array([1, 2, 0])),
        (np.array([[1], [2], [3]]), np.array([1, 2, 0])),
        (np.array([1, 2, 3]), np.array([[1.0], [2.5], [3.0]], np.float32)),
    ):
        parity.program(
            two_steps(
                lambda m, y, x: m.metrics.accuracy(y, x),
                [[labels, predictions]] * 2,
                shapes=[labels.shape, predictions.shape],
            )
        )
        for weights in (np.array([1.0, 0.5, 2.0]), np.array([[1], [2], [3]])):
            compare(parity, lambda m, y, x, w: m.metrics.accuracy(y, x, w), [[labels, predictions, weights]] * 2)


def test_mean_of_other_dtypes_and_collections(parity: Any) -> None:
    def steps(m: Any, run: Callable[..., Any]) -> list[Any]:
        m.metrics.mean([1, 2], metrics_collections=["a", "b"], updates_collections="u", name="first")
        m.metrics.mean([True, False])
        m.metrics.mean([1, 2])
        m.metrics.percentage_below([0.1, 0.5, 0.7], 0.5)
        run(m.local_variables_initializer())
        listed = [v.name for v in m.get_collection(m.GraphKeys.METRIC_VARIABLES)]
        tensors = [m.get_collection(name)[0] for name in ("a", "b", "u")]
        return [listed, [t.name for t in tensors], run(tensors[2]), run(tensors[0])]

    parity.program(steps)
    compare(parity, lambda m, x: m.metrics.percentage_below(x, 0.5), [[numbers(4)], [numbers(4)]])
    compare(parity, lambda m, x: m.metrics.mean(x), [[numbers(0, 3)], [numbers(0, 3)]])


def test_cosine_distance_and_mean_tensor(parity: Any) -> None:
    pairs = [[numbers(3, 2), numbers(3, 2)] for _ in range(2)]
    compare(parity, lambda m, y, x: m.metrics.mean_cosine_distance(y, x, dim=1), pairs)
    weighted = [[*pair, numbers(3, 1)] for pair in pairs]
    compare(parity, lambda m, y, x, w: m.metrics.mean_cosine_distance(y, x, 1, w), weighted)
    parity.program(two_steps(lambda m, x, w: m.metrics.mean_tensor(x, w), pairs, shapes=[(3, 2), (3, 2)]))
    parity.program(two_steps(lambda m, x, _: m.metrics.mean_tensor(x), pairs, shapes=[(3, 2), (3, 2)]))


@pytest.mark.parametrize("name", ["mean_per_class_accuracy", "mean_iou"])
def test_classes(parity: Any, name: str) -> None:
    batches = [[RNG.integers(0, 3, (2, 3)), RNG.integers(0, 3, (2, 3)), numbers(2, 3)] for _ in range(2)]
    open_sizes = [(None, 3)] * 3
    for shapes in ([(2, 3)] * 3, open_sizes):
        parity.program(
            two_steps(lambda m, y, x, _: getattr(m.metrics, name)(y, x, num_classes=4), batches, shapes=shapes)
        )
        parity.program(two_steps(lambda m, y, x, w: getattr(m.metrics, name)(y, x, 4, w), batches, shapes=shapes))


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

COUNTS: Final = (
    *("true_positives", "true_negatives", "false_positives", "false_negatives"),
    *("precision", "recall"),
)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(parity: Any, name: str) -> None:
    batches = [[bools(3, 2), bools(3, 2)], [bools(3, 2), np.zeros((3, 2), bool)]]
    compare(parity, lambda m, y, x: getattr(m.metrics, name)(y, x), batches)
    weighted = [[bools(3, 2), bools(3, 2), numbers(3, 2)] for _ in range(2)]
    compare(parity, lambda m, y, x, w: getattr(m.metrics, name)(y, x, w), weighted)
    scalar = [[bools(3, 1).astype(np.int32), bools(3), np.float32(2)]] * 2
    parity.program(two_steps(lambda m, y, x, w: getattr(m.metrics, name)(y, x, w), scalar, shapes=[(3, 1), (3,), ()]))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_at_thresholds(parity: Any, name: str) -> None:
    build: Build = lambda m, y, x, **how: getattr(m.metrics, f"{name}_at_thresholds")(y, x, LIMITS, **how)  # noqa: E731
    compare(parity, build, [[bools(3, 2), numbers(3, 2)] for _ in range(2)])
    weighted = [[bools(4), numbers(4), numbers(4)] for _ in range(2)]
    compare(parity, lambda m, y, x, w: build(m, y, x, weights=w), weighted)


CURVES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "few thresholds": {"num_thresholds": 5},
    "own thresholds": {"thresholds": [0.7, 0.1, 0.4]},
    "minoring": {"summation_method": "minoring"},
    "majoring": {"summation_method": "majoring"},
    "careful": {"summation_method": "careful_interpolation"},
    "precision and recall": {"curve": "PR"},
    "careful precision and recall": {"curve": "PR", "summation_method": "careful_interpolation"},
    "minoring precision and recall": {"curve": "PR", "summation_method": "minoring"},
}


@pytest.mark.parametrize("name", CURVES)
def test_auc(parity: Any, name: str) -> None:
    how = CURVES[name]
    batches = [[bools(20), numbers(20), numbers(20)] for _ in range(2)]
    for shapes in ([(20,)] * 3, [None] * 3):
        parity.program(two_steps(lambda m, y, x, _: m.metrics.auc(y, x, **how), batches, shapes=shapes))
        parity.program(two_steps(lambda m, y, x, w: m.metrics.auc(y, x, w, **how), batches, shapes=shapes))


@pytest.mark.parametrize("name", ["sensitivity_at_specificity", "specificity_at_sensitivity"])
def test_sensitivity_and_specificity(parity: Any, name: str) -> None:
    batches = [[bools(20), numbers(20), numbers(20)] for _ in range(2)]
    for target in (0.0, 0.3, 0.75, 1.0):
        compare(parity, lambda m, y, x, w, t=target: getattr(m.metrics, name)(y, x, t, w, 50), batches)


# ── rankings ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RANKINGS: Final = ("precision_at_k", "recall_at_k", "average_precision_at_k")


def of_rows(m: Any, name: str, labels: Any, scores: Any, **how: Any) -> Any:
    """Build a metric, of which TensorFlow requires int64 labels."""
    return getattr(m.metrics, name)(labels, scores, k=2, **how)


@pytest.mark.parametrize("name", RANKINGS)
def test_rankings(parity: Any, name: str) -> None:
    rows = [[np.array([[0, 1], [2, 2], [3, 9]]), numbers(3, 4), numbers(3)] for _ in range(2)]
    single = [[np.array([0, 1, 3]), numbers(3, 4), numbers(3)] for _ in range(2)]
    deep = [[RNG.integers(-1, 5, (2, 3, 2)), numbers(2, 3, 4), numbers(2, 1)] for _ in range(2)]
    for batches in (rows, single, deep):
        shapes = [np.shape(each) for each in batches[0]]
        open_shapes = [(None, *shape[1:]) for shape in shapes]
        for known in (shapes, open_shapes):
            parity.program(two_steps(lambda m, y, x, _: of_rows(m, name, y, x), batches, shapes=known, names=False))
            parity.program(
                two_steps(lambda m, y, x, w: of_rows(m, name, y, x, weights=w), batches, shapes=known, names=False)
            )
            if name != "average_precision_at_k":
                for chosen in (2, 3):
                    parity.program(
                        two_steps(
                            lambda m, y, x, _, c=chosen: of_rows(m, name, y, x, class_id=c),
                            batches,
                            shapes=known,
                            names=False,
                        )
                    )


@pytest.mark.parametrize("name", ["precision_at_top_k", "recall_at_top_k"])
def test_rankings_of_given_classes(parity: Any, name: str) -> None:
    batches = [[np.array([[0, 1, 1], [2, 2, -1]]), np.array([[1, 1], [2, 0]])]] * 2
    build: Build = lambda m, y, x: getattr(m.metrics, name)(y, x)  # noqa: E731  (a table of functions)
    parity.program(two_steps(build, batches, shapes=[(2, 3), (2, 2)], names=False))


@pytest.mark.parametrize("name", RANKINGS)
def test_rankings_with_sparse_labels(parity: Any, name: str) -> None:
    scores = [[numbers(3, 4)] for _ in range(2)]

    def build(m: Any, x: Any) -> Any:
        labels = m.SparseTensor([[0, 0], [0, 1], [2, 0]], m.constant([1, 0, 7], m.int64), [3, 2])
        return of_rows(m, name, labels, x)

    # The second row has no labels: its average precision is NaN, as TensorFlow's.
    parity.program(two_steps(build, scores, shapes=[(3, 4)], names=False))
