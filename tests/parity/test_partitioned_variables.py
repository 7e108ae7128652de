"""Partitioned variables and their lookups against tensorflow-cpu: names, partitions, values, gradients, updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate

TABLE = np.random.default_rng(5).standard_normal((11, 3)).astype(np.float32)
IDS = np.array([0, 10, 4, 4, 7, 3, 0], np.int64)

PARTITIONERS: dict[str, Any] = {
    "fixed": lambda m: m.fixed_size_partitioner(3),
    "fixed, the other axis": lambda m: m.fixed_size_partitioner(2, axis=1),
    "fixed, more than rows": lambda m: m.fixed_size_partitioner(40),
    "fixed, one": lambda m: m.fixed_size_partitioner(1),
    "bytes": lambda m: m.variable_axis_size_partitioner(50),
    "bytes of a row and a bit": lambda m: m.variable_axis_size_partitioner(13),
    "bytes, less than a row": lambda m: m.variable_axis_size_partitioner(1),
    "bytes, at most": lambda m: m.variable_axis_size_partitioner(13, max_shards=4),
    "bytes, the other axis": lambda m: m.variable_axis_size_partitioner(44, axis=1),
    "slices of a size": lambda m: m.min_max_variable_partitioner(5, min_slice_size=40),
    "slices of a size, at most": lambda m: m.min_max_variable_partitioner(2, min_slice_size=40),
    "slices of a size, larger than all": lambda m: m.min_max_variable_partitioner(5),
    "slices of a size, the other axis": lambda m: m.min_max_variable_partitioner(5, 1, 40),
}


def _described(m: Any, v: Any) -> Any:
    infos = [part._get_save_slice_info() for part in v]
    return (
        v.name,
        v.get_shape().as_list(),
        v._get_partitions(),
        [(part.name, part.get_shape().as_list()) for part in v],
        [(i.full_name, list(i.full_shape), list(i.var_offset), list(i.var_shape), i.spec) for i in infos],
        [x.name for x in m.global_variables()],
        [x.name for x in m.trainable_variables()],
        [x.name for x in m.get_collection("regularization_losses")],
    )


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_partitions_of_variables(tf: Any, partitioner: str) -> None:
    found = []
    for m in (tf, aioflow):
        with m.Graph().as_default(), m.variable_scope("s", use_resource=True, regularizer=m.nn.l2_loss):
            found.append(_described(m, m.get_variable("v", [11, 3], partitioner=PARTITIONERS[partitioner](m))))
    assert found[1] == found[0]


def test_partitioners_use_bytes_per_string_element(tf: Any) -> None:
    made: list[Callable[[Any], Any]] = [
        lambda m: m.variable_axis_size_partitioner(50, bytes_per_string_element=10),
        lambda m: m.min_max_variable_partitioner(7, min_slice_size=30, bytes_per_string_element=10),
    ]
    for make in made:
        asked = {"shape": [12], "dtype": "string"}
        answers = [make(m)(shape=m.TensorShape(asked["shape"]), dtype=asked["dtype"]) for m in (tf, aioflow)]
        assert answers[1] == answers[0]


def _updated(m: Any, run: Any, optimizer: Any, strategy: str, max_norm: float | None) -> Any:
    v = m.get_variable("v", initializer=m.constant(TABLE), partitioner=m.fixed_size_partitioner(3), use_resource=True)
    rows = m.nn.embedding_lookup(v, m.constant(IDS), strategy, max_norm=max_norm)
    loss = m.reduce_sum(m.square(rows) * m.constant(np.arange(1.0, 8.0, dtype=np.float32)[:, None]))
    pairs = optimizer(m.train).compute_gradients(loss)
    assert all(type(g).__name__ == "IndexedSlices" for g, _ in pairs)
    train = optimizer(m.train).minimize(loss)
    run(m.global_variables_initializer())
    first = run(rows)
    dense = [run(m.convert_to_tensor(g)) for g, _ in pairs]
    for _ in range(3):
        run(train)
    return [first, *dense, *(run(m.identity(part)) for part in v)]


OPTIMIZERS: dict[str, Any] = {
    "gradient descent": lambda train: train.GradientDescentOptimizer(0.05),
    "momentum": lambda train: train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda train: train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adagrad": lambda train: train.AdagradOptimizer(0.05),
    "adadelta": lambda train: train.AdadeltaOptimizer(0.5),
    "adam": lambda train: train.AdamOptimizer(0.05),
    "ftrl": lambda train: train.FtrlOptimizer(0.05),
    "rmsprop": lambda train: train.RMSPropOptimizer(0.05),
    "rmsprop, centered": lambda train: train.RMSPropOptimizer(0.05, centered=True),
    "proximal gradient descent": lambda train: train.ProximalGradientDescentOptimizer(0.05, 0.01),
    "proximal adagrad": lambda train: train.ProximalAdagradOptimizer(0.05, l1_regularization_strength=0.01),
}


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparse_updates_of_partitions(tf: Any, optimizer: str, strategy: str, max_norm: float | None) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = _updated(tf, session.run, OPTIMIZERS[optimizer], strategy, max_norm)
    kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}

    def run(fetch: Any) -> Any:
        if isinstance(fetch, aioflow.Operation):
            return evaluate([], targets=[fetch], **kept)
        return evaluate([fetch], **kept)[0]

    with aioflow.Graph().as_default():
        ours = _updated(aioflow, run, OPTIMIZERS[optimizer], strategy, max_norm)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


def _sparse(m: Any, values: Any, dtype: str) -> Any:
    indices = [[0, 0], [0, 2], [1, 1], [2, 0], [2, 1], [2, 3]]
    return m.SparseTensor(indices, m.constant(np.array(values, dtype)), [3, 4])


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", None])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_sparse_lookups(parity: Any, parts: int, weighted: bool, combiner: str | None, max_norm: float | None) -> None:
    tables = np.array_split(TABLE, parts)

    def build(m: Any, *params: Any) -> Any:
        ids = _sparse(m, [4, 10, 0, 4, 4, 7], "int64")
        weights = _sparse(m, [1, 2, 0.5, 3, 1, 0.25], "float32") if weighted else None
        given: Any = list(params)
        return m.nn.embedding_lookup_sparse(given, ids, weights, "div", combiner=combiner, max_norm=max_norm)

    parity(build, *tables, static=False)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("default", [None, 0, 5])
def test_safe_sparse_lookups(parity: Any, default: int | None, weighted: bool, combiner: str) -> None:
    indices = [[0, 0, 0], [0, 0, 2], [0, 2, 1], [1, 0, 0], [1, 0, 1], [1, 1, 3]]  # shape [2, 3, 4], with empty rows

    def build(m: Any, *params: Any) -> Any:
        ids = m.SparseTensor(indices, m.constant(np.array([4, -1, -3, 10, 4, 7])), [2, 3, 4])
        counts = m.constant(np.array([1, 2, 0.5, -1, 1, 0], np.float32))
        weights = m.SparseTensor(indices, counts, [2, 3, 4]) if weighted else None
        return m.nn.safe_embedding_lookup_sparse(list(params), ids, weights, combiner, default)

    parity(build, *np.array_split(TABLE, 3), static=False)


REFUSED: dict[str, Any] = {
    "two axes": lambda m: m.get_variable("v", [4, 4], partitioner=lambda **_: [2, 2]),
    "too few numbers": lambda m: m.get_variable("v", [4, 4], partitioner=lambda **_: [2]),
    "no parts": lambda m: m.get_variable("v", [4, 4], partitioner=lambda **_: [0, 1]),
    "an unknown shape": lambda m: m.get_variable("v", [None, 4], partitioner=m.fixed_size_partitioner(2)),
    "more parts than rows": lambda m: m.get_variable("v", [2, 4], partitioner=lambda **_: [3, 1]),
    "no bytes": lambda m: m.variable_axis_size_partitioner(0),
    "no shards": lambda m: m.variable_axis_size_partitioner(1, max_shards=-1),
    "twice": lambda m: [m.get_variable("v", [4], partitioner=m.fixed_size_partitioner(2)) for _ in range(2)],
    "then whole": lambda m: [m.get_variable("v", [4], partitioner=p) for p in (m.fixed_size_partitioner(2), None)],
    "whole, then in parts": lambda m: [
        m.get_variable("v", [4], partitioner=p) for p in (None, m.fixed_size_partitioner(2))
    ],
    "slicing": lambda m: m.create_partitioned_variables([4, 4], [2], m.zeros_initializer()),
    "a combiner": lambda m: m.nn.embedding_lookup_sparse(
        m.constant(TABLE), _sparse(m, [0] * 6, "int64"), None, combiner="max"
    ),
    "dense ids": lambda m: m.nn.embedding_lookup_sparse(m.constant(TABLE), m.constant([0]), None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_both_reject_wrong_arguments(tf: Any, case: str) -> None:
    for m in (tf, aioflow):
        with m.Graph().as_default(), pytest.raises((ValueError, TypeError)):
            REFUSED[case](m)
