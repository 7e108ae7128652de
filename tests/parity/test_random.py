"""Random ops against TensorFlow: seeds, dtypes, static shapes and distributions are the same.

The numbers differ, since they come from another generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.testing.evaluate import evaluate

BUILDERS = {
    "random_uniform": lambda m, s: m.random_uniform(s, -1, 3),
    "random_uniform float64": lambda m, s: m.random_uniform(s, dtype="float64"),
    "random_uniform float16": lambda m, s: m.random_uniform(s, dtype="float16"),
    "random_uniform bfloat16": lambda m, s: m.random_uniform(s, dtype="bfloat16"),
    "random_uniform int32": lambda m, s: m.random_uniform(s, -5, 9, "int32"),
    "random_uniform int64": lambda m, s: m.random_uniform(s, 0, 2, "int64"),
    "random_normal": lambda m, s: m.random_normal(s, 2.0, 3.0),
    "random_normal float64": lambda m, s: m.random_normal(s, dtype="float64"),
    "random_normal bfloat16": lambda m, s: m.random_normal(s, dtype="bfloat16"),
    "truncated_normal": lambda m, s: m.truncated_normal(s, 2.0, 3.0),
    "truncated_normal float16": lambda m, s: m.truncated_normal(s, dtype="float16"),
    "random_gamma": lambda m, s: m.random_gamma(s, [0.5, 3.0], [[1.0], [2.0]]),
    "random_gamma float64": lambda m, s: m.random_gamma(s, 2.0, dtype="float64"),
    "random_poisson": lambda m, s: m.random_poisson([0.5, 30.0], s),
    "random_poisson int64": lambda m, s: m.random.poisson(4.0, s, dtype="int64"),
    "stateless_uniform": lambda m, s: m.random.stateless_uniform(s, [1, 2], -1, 3),
    "stateless_normal": lambda m, s: m.random.stateless_normal(s, [1, 2], 1.0, 2.0),
    "stateless_truncated_normal": lambda m, s: m.random.stateless_truncated_normal(s, [1, 2]),
}


def theirs(tf: Any, build: Any, *args: Any) -> tuple[Any, Any]:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)
        tensor = build(tf, *args)
        return tensor, session.run(tensor)


def ours(build: Any, *args: Any) -> tuple[Any, Any]:
    with aioflow.Graph().as_default():
        aioflow.set_random_seed(7)
        tensor = build(aioflow, *args)
        return tensor, evaluate([tensor])[0]


@pytest.mark.parametrize("name", BUILDERS)
def test_distribution(tf: Any, name: str) -> None:
    """Compare quantiles of 40,000 draws, for each element of broadcast parameters."""
    (a, mine), (b, other) = ours(BUILDERS[name], [40000]), theirs(tf, BUILDERS[name], [40000])
    assert a.dtype.name == b.dtype.name
    assert a.shape.as_list() == b.shape.as_list()
    assert mine.dtype == other.dtype
    assert mine.shape == other.shape
    levels = np.linspace(0.02, 0.98, 25)
    for x, y in zip(mine.reshape(40000, -1).T, other.reshape(40000, -1).T, strict=True):
        spread = float(np.std(y.astype(np.float64)))
        p, q = (np.quantile(v.astype(np.float64), levels, method="nearest") for v in (x, y))
        np.testing.assert_allclose(
            p, q, atol=0.06 * spread + (1.01 if x.dtype.kind in "iu" or "poisson" in name else 0)
        )
        assert abs(float(x.astype(np.float64).mean()) - float(y.astype(np.float64).mean())) < 0.03 * spread


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("shape", [[], [0], [1], [2, 0, 3], [2, 3]])
def test_shapes(tf: Any, name: str, shape: list[int]) -> None:
    (a, mine), (b, other) = ours(BUILDERS[name], shape), theirs(tf, BUILDERS[name], shape)
    assert mine.shape == other.shape
    assert mine.dtype == other.dtype
    assert a.shape.as_list() == b.shape.as_list()


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_multinomial(tf: Any, kind: str) -> None:
    logits = np.array([[0.0, 1.0, 2.0], [5.0, -np.inf, 5.0]], kind)

    def build(m: Any) -> Any:
        return m.multinomial(logits, 20000)

    (a, mine), (b, other) = ours(build), theirs(tf, build)
    assert mine.dtype == other.dtype
    assert a.shape.as_list() == b.shape.as_list()
    for x, y in zip(mine, other, strict=True):
        p, q = (np.bincount(v, minlength=3) / 20000 for v in (x, y))
        np.testing.assert_allclose(p, q, atol=0.02)
    assert not (mine[1] == 1).any()


@pytest.mark.parametrize("value", [np.arange(10), np.arange(12.0).reshape(4, 3), np.zeros((0, 2)), np.ones((1,), "f")])
def test_shuffle_permutes(tf: Any, value: Any) -> None:
    def build(m: Any) -> Any:
        return m.random_shuffle(value)

    (a, mine), (b, other) = ours(build), theirs(tf, build)
    assert mine.dtype == other.dtype
    assert a.shape.as_list() == b.shape.as_list()
    assert sorted(map(str, mine.tolist())) == sorted(map(str, other.tolist()))


def test_random_crop(tf: Any) -> None:
    value = np.arange(35).reshape(5, 7)
    (a, mine), (b, other) = (
        ours(lambda m: m.random_crop(value, [2, 3])),
        theirs(tf, lambda m: m.random_crop(value, [2, 3])),
    )
    assert a.shape.as_list() == b.shape.as_list()
    assert mine.dtype == other.dtype
    for crop in (mine, other):
        row, column = divmod(int(crop[0, 0]), 7)
        assert np.array_equal(crop, value[row : row + 2, column : column + 3])


def test_seeds(tf: Any) -> None:
    """Compare the seed pairs of ops with an op seed; TensorFlow's counter for other ops is an internal detail."""
    for graph_seed in (None, 0, 1, 2**31, 12345678901):
        for op_seed in (None, 0, 1, 2**31 + 5):
            if graph_seed is not None and op_seed is None:
                continue
            pairs = []
            for m in (tf, aioflow):
                with m.Graph().as_default():
                    if graph_seed is not None:
                        m.set_random_seed(graph_seed)
                    pairs.append(m.random.get_seed(op_seed))
            assert pairs[1] == tuple(pairs[0]), (graph_seed, op_seed)


def test_dropout(tf: Any) -> None:
    x = np.ones((300, 100), np.float32)
    for how in ({"rate": 0.25}, {"keep_prob": 0.75}, {"rate": 0.5, "noise_shape": [300, 1]}):

        def build(m: Any, how: Any = how) -> Any:
            return m.nn.dropout(x, **how)

        (_, mine), (_, other) = ours(build), theirs(tf, build)
        assert mine.dtype == other.dtype
        assert sorted(set(mine.ravel().tolist())) == pytest.approx(sorted(set(other.ravel().tolist())))
        assert abs((mine == 0).mean() - (other == 0).mean()) < 0.1
