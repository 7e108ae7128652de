"""Variable scopes against tensorflow-cpu: names of variables and nodes, sharing, getters, collections, initializers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow import initializers
from aioflow.testing.evaluate import evaluate


def names(m: Any) -> list[str]:
    return [v.name for v in m.global_variables()]


def nested(m: Any) -> Any:
    with m.variable_scope("a"):
        m.get_variable("v", [2])
        with m.variable_scope("b"):
            m.get_variable("v", [2])
            m.no_op()
    with m.variable_scope("a", reuse=True):
        shared = m.get_variable("v", [2])
        m.no_op()
        with m.variable_scope("b"):
            m.get_variable("v")
    return names(m), shared.name


def root_and_name_scopes(m: Any) -> Any:
    with m.name_scope("n"):
        m.get_variable("v", [1])
        with m.variable_scope("a") as scope:
            m.get_variable("v", [1])
            m.no_op()
    return names(m), scope.name, scope.original_name_scope


def entered_again(m: Any) -> Any:
    with m.variable_scope("a") as a, m.variable_scope("b") as b:
        m.get_variable("v", [1])
    with m.variable_scope("c"), m.variable_scope(b) as again:
        m.get_variable("w", [1])
        m.no_op()
    with m.variable_scope(b, auxiliary_name_scope=False) as quiet, m.name_scope(quiet.original_name_scope):
        m.no_op()
    with m.variable_scope(a), m.variable_scope("b", reuse=True):
        m.get_variable("v")
        m.no_op()
    return names(m), [s.original_name_scope for s in (a, b, again, quiet)], [s.name for s in (a, b, again, quiet)]


def without_name_scope(m: Any) -> Any:
    with m.variable_scope("a", auxiliary_name_scope=False) as scope:
        m.get_variable("v", [1])
        m.no_op()
        with m.variable_scope("b"):
            m.no_op()
    with m.name_scope("n"), m.variable_scope("a", auxiliary_name_scope=False) as inner:
        m.no_op()
    return names(m), scope.original_name_scope, inner.original_name_scope


def default_names(m: Any) -> Any:
    for _ in range(3):
        with m.variable_scope(None, "dense"):
            m.get_variable("w", [1])
            m.no_op()
    with m.variable_scope("model") as scope:
        for _ in range(2):
            with m.variable_scope(None, "dense"):
                m.get_variable("w", [1])
    with m.variable_scope("model", reuse=True), m.variable_scope(None, "dense"):
        m.get_variable("w", [1])
    with m.variable_scope(scope, reuse=True):
        for _ in range(2):
            with m.variable_scope(None, "dense"):
                m.get_variable("w", [1])
    with m.variable_scope(None, "dense"):
        m.get_variable("w", [1])
    return names(m)


def reuse_flags(m: Any) -> Any:
    flags = []
    with m.variable_scope("a", reuse=m.AUTO_REUSE) as scope:
        flags.append(scope.reuse == m.AUTO_REUSE)
        with m.variable_scope("b") as inner:
            flags.append(inner.reuse == m.AUTO_REUSE)
        with m.variable_scope("b", reuse=False) as inner:
            flags.append(inner.reuse == m.AUTO_REUSE)
        with m.variable_scope("b", reuse=True) as inner:
            flags.append(inner.reuse)
        scope.reuse_variables()
        flags.append(scope.reuse)
        with m.variable_scope("b") as inner:
            flags.append(inner.reuse)
    with m.variable_scope(scope) as again:
        flags.append(again.reuse)
    flags.append(bool(m.get_variable_scope().reuse))
    return flags


def dtypes(m: Any) -> Any:
    with m.variable_scope("a", dtype=m.as_dtype("float64")):
        made = [
            m.get_variable("a", [1]),
            m.get_variable("b", [1], m.as_dtype("int32")),
            m.get_variable("c", initializer=3),
            m.get_variable("d", initializer=[1.0]),
            m.get_variable("e", [1], initializer=m.zeros_initializer()),
            m.get_variable("f", [1], m.as_dtype("bool")),
            m.get_variable("g", shape=(), initializer=m.constant_initializer(5)),
        ]
    return [(v.name, v.dtype.base_dtype.name, v.get_shape().as_list()) for v in made]


def collections(m: Any) -> Any:
    with m.variable_scope("a") as scope:
        m.get_variable("w", [1])
        m.get_variable("f", [1], trainable=False)
        m.get_local_variable("l", [1])
        m.get_variable("m", [1], collections=["mine"])
    keys = ["variables", "trainable_variables", "local_variables", "mine"]
    return (
        {k: [v.name for v in m.get_collection(k)] for k in keys},
        [v.name for v in scope.global_variables()],
        [v.name for v in scope.trainable_variables()],
        [v.name for v in scope.local_variables()],
    )


def getters(m: Any) -> Any:
    seen = []

    def getter(tag: str) -> Any:
        def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            seen.append((tag, name, sorted(k for k in kwargs if kwargs[k] is not None and k in ("shape", "dtype"))))
            return getter(name + tag, *args, **kwargs)

        return get

    with m.variable_scope("a", custom_getter=getter("1")):
        with m.variable_scope("b", custom_getter=getter("2")):
            m.get_variable("v", [1])
            m.get_variable("w", [1], custom_getter=getter("3"))
        m.get_variable("x", [1])
    return seen, names(m)


def regularizers(m: Any) -> Any:
    with m.variable_scope("a", regularizer=lambda v: m.reduce_sum(v, name="loss")):
        m.get_variable("v", [1])
        m.get_variable("w", [1], regularizer=lambda v: None)
        with m.variable_scope("b"):
            m.get_variable("v", [1])
    return [t.name for t in m.get_collection("regularization_losses")]


def variables_in_scopes(m: Any) -> Any:
    with m.variable_scope("a"):
        first = m.Variable(1.0, name="v")
        m.get_variable("v", [1])
        m.Variable(1.0, name="v")
    m.get_variable("a/v_1", [1])
    return names(m), first.name


CASES = [
    nested,
    root_and_name_scopes,
    entered_again,
    without_name_scope,
    default_names,
    reuse_flags,
    dtypes,
    collections,
    getters,
    regularizers,
    variables_in_scopes,
]


@pytest.fixture
def resources(tf: Any) -> Any:
    had_them = tf.resource_variables_enabled()
    tf.enable_resource_variables()
    yield
    if not had_them:
        tf.disable_resource_variables()


@pytest.mark.parametrize("case", CASES)
def test_scopes(tf: Any, resources: Any, case: Callable[[Any], Any]) -> None:
    found = []
    for m in (aioflow, tf):
        with m.Graph().as_default() as graph:
            result = case(m)
            kinds = ("VarHandleOp", "NoOp", "AssignVariableOp", "VarIsInitializedOp")  # no reads: aioflow shares them
            kept = [o.name for o in graph.get_operations() if o.type in kinds]
            found.append((result, kept))
    assert found[0] == found[1]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "taken": lambda m: [m.get_variable("v", [1]), m.get_variable("v", [1])],
    "no shape": lambda m: m.get_variable("v"),
    "open shape": lambda m: m.get_variable("v", [None]),
    "shape of a value": lambda m: m.get_variable("v", [1], initializer=[1.0]),
    "no default": lambda m: m.get_variable("v", [1], m.as_dtype("complex64")),
    "no name": lambda m: m.variable_scope(None).__enter__(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_both_reject_wrong_arguments(tf: Any, resources: Any, case: str) -> None:
    for m in (tf, aioflow):
        with m.Graph().as_default(), pytest.raises((ValueError, TypeError)):
            REFUSED[case](m)


@pytest.mark.parametrize("reused", ["missing", "shape", "dtype"])
def test_reuse_rejects_missing_and_different_variables(tf: Any, resources: Any, reused: str) -> None:
    asked = {"missing": ("w", [2]), "shape": ("v", [3]), "dtype": ("v", [2], "int32")}[reused]
    for m in (tf, aioflow):
        with m.Graph().as_default():
            m.get_variable("v", [2])
            with m.variable_scope("", reuse=True), pytest.raises(ValueError):
                m.get_variable(*asked)


EXACT: list[tuple[str, tuple[Any, ...], tuple[int, ...], str]] = [
    ("zeros", (), (2, 3), "float32"),
    ("zeros", (), (2,), "int32"),
    ("ones", (), (2, 3), "float64"),
    ("ones", (), (), "bool"),
    ("constant", (3,), (2, 2), "int64"),
    ("constant", ([1, 2, 3, 4],), (2, 2), "float32"),
    ("constant", ([1, 2],), (2, 2), "float32"),
    ("identity", (2.0,), (3, 2), "float32"),
]


@pytest.mark.parametrize(("name", "arguments", "shape", "dtype"), EXACT)
def test_exact_initializers(tf: Any, name: str, arguments: Any, shape: Any, dtype: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = getattr(tf.initializers, name)(*arguments)(list(shape), dtype=tf.as_dtype(dtype))
        expected, dims = session.run(theirs), theirs.get_shape().as_list()
    with aioflow.Graph().as_default():
        ours = getattr(initializers, name)(*arguments)(list(shape), dtype=dtype)
        got = evaluate([ours])[0]
        assert ours.get_shape().as_list() == dims
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


DRAWN: list[tuple[str, tuple[Any, ...]]] = [
    ("random_uniform", (-1.0, 2.0)),
    ("random_uniform", ()),
    ("random_normal", (1.0, 2.0)),
    ("truncated_normal", (1.0, 2.0)),
    ("uniform_unit_scaling", (2.0,)),
    ("variance_scaling", (2.0, "fan_out", "uniform")),
    ("variance_scaling", (2.0, "fan_avg", "untruncated_normal")),
    ("glorot_uniform", ()),
    ("glorot_normal", ()),
    ("he_uniform", ()),
    ("he_normal", ()),
    ("lecun_uniform", ()),
    ("lecun_normal", ()),
    ("orthogonal", (2.0,)),
]


@pytest.mark.parametrize(("name", "arguments"), DRAWN)
@pytest.mark.parametrize("shape", [(120, 80), (3, 3, 30, 40)])
def test_random_initializers_have_the_same_distribution(tf: Any, name: str, arguments: Any, shape: Any) -> None:
    """Compare moments and quantiles, since the generators differ."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        expected = session.run(getattr(tf.initializers, name)(*arguments)(list(shape), dtype=tf.float32))
    with aioflow.Graph().as_default():
        aioflow.set_random_seed(1)
        got = evaluate([getattr(initializers, name)(*arguments)(list(shape), dtype="float32")])[0]
    assert got.dtype == expected.dtype
    spread = expected.std()
    assert abs(got.mean() - expected.mean()) < 0.05 * spread
    assert abs(got.std() / spread - 1) < 0.03
    points = [0.01, 0.1, 0.5, 0.9, 0.99]
    np.testing.assert_allclose(np.quantile(got, points), np.quantile(expected, points), atol=0.12 * spread)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(n, a) for n, a in DRAWN if not n.startswith(("he_", "lecun_"))] + [("zeros", ()), ("constant", (2,))],
)
def test_initializer_configurations(tf: Any, name: str, arguments: Any) -> None:
    assert (
        getattr(initializers, name)(*arguments).get_config() == getattr(tf.initializers, name)(*arguments).get_config()
    )
