"""Variable scopes: names, sharing, defaults, getters, and reentered scopes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate

af = aioflow


def value(variable: Any) -> Any:
    resources = ResourceManager()
    evaluate([], targets=[variable.initializer], resources=resources)
    return evaluate([variable.value()], resources=resources)[0]


def test_names_and_sharing() -> None:
    with af.variable_scope("a") as scope:
        v = af.get_variable("v", [2])
        with af.variable_scope("b"):
            assert af.get_variable("v", [2]).name == "a/b/v:0"
    assert v.name == "a/v:0"
    assert scope.name == "a"
    with af.variable_scope("a", reuse=True):
        assert af.get_variable("v", [2]) is v
        assert af.get_variable("v") is v
        with af.variable_scope("b"):
            assert af.get_variable("v").name == "a/b/v:0"
    with af.variable_scope("a", reuse=af.AUTO_REUSE):
        assert af.get_variable("v") is v
        assert af.get_variable("new", [1]) is af.get_variable("new", [1])
    with af.variable_scope(scope, reuse=True):
        assert af.get_variable("v") is v
    with af.variable_scope("a") as again:
        again.reuse_variables()
        assert af.get_variable("v") is v


def test_get_variable_rejects_conflicts_and_missing_variables() -> None:
    v = af.get_variable("v", [2])
    with pytest.raises(AlreadyExistsError) as taken:
        af.get_variable("v", [2])
    assert isinstance(taken.value, ValueError)
    assert __file__ in taken.value.message
    with af.variable_scope("", reuse=True):
        assert af.get_variable("v") is v
        with pytest.raises(InvalidArgumentError) as missing:
            af.get_variable("w", [2])
        assert missing.value.actual == "w"
        with pytest.raises(InvalidArgumentError) as shape:
            af.get_variable("v", [3])
        assert (shape.value.expected, shape.value.actual) == ("(2,)", "(3,)")
        with pytest.raises(DTypeError):
            af.get_variable("v", [2], "int32")
    with pytest.raises(InvalidArgumentError):
        af.get_variable("w", [None])
    with pytest.raises(InvalidArgumentError):
        af.get_variable("w")
    with pytest.raises(InvalidArgumentError):
        af.get_variable("w", [2], initializer=[1.0, 2.0])


def test_get_variable_ignores_name_scopes_and_opens_one() -> None:
    with af.name_scope("n"):
        assert af.get_variable("v", [1]).name == "v:0"
    with af.variable_scope("s"):
        assert af.no_op().name == "s/NoOp"
    with af.variable_scope("s") as scope:
        assert af.no_op().name == "s_1/NoOp"
        assert scope.original_name_scope == "s_1/"
    with af.variable_scope("s", auxiliary_name_scope=False) as scope:
        assert af.no_op().name == "NoOp"
        assert af.get_variable("v", [1]).name == "s/v:0"
        assert scope.original_name_scope == ""
    with af.variable_scope("outer"), af.variable_scope(scope):
        assert af.get_variable("w", [1]).name == "s/w:0"
        assert af.no_op().name == "outer/s/NoOp"


def test_default_names_are_made_unique() -> None:
    names = []
    for _ in range(3):
        with af.variable_scope(None, "dense"):
            names.append(af.get_variable("w", [1]).name)
    assert names == ["dense/w:0", "dense_1/w:0", "dense_2/w:0"]
    with af.variable_scope("model") as scope, af.variable_scope(None, "dense"):
        assert af.get_variable("w", [1]).name == "model/dense/w:0"
    with af.variable_scope(scope, reuse=True), af.variable_scope(None, "dense"):
        assert af.get_variable("w", [1]).name == "model/dense/w:0"
    with af.variable_op_scope([af.constant(1.0)], None, "dense"):
        assert af.get_variable("w", [1]).name == "dense_3/w:0"


def test_defaults_are_inherited_and_overridden() -> None:
    ones, twos = af.ones_initializer(), af.constant_initializer(2)
    with af.variable_scope("a", initializer=ones, dtype="float64"):
        assert value(af.get_variable("v", [1])) == 1
        assert af.get_variable("d", [1]).dtype.name == "float64"
        with af.variable_scope("b", initializer=twos):
            assert value(af.get_variable("v", [1])) == 2
        with af.variable_scope("c") as scope:
            scope.set_initializer(twos)
            scope.set_dtype("int32")
            assert value(af.get_variable("v", [1])) == 2
            assert af.get_variable("e", [1]).dtype.name == "int32"
            assert value(af.get_variable("w", [1], "float32", af.zeros_initializer)) == 0


def test_root_scope_defaults() -> None:
    af.get_variable_scope().set_initializer(af.ones_initializer())
    assert value(af.get_variable("v", [1])) == 1
    with af.variable_scope("a"):
        assert value(af.get_variable("v", [1])) == 1
    af.get_variable_scope().reuse_variables()
    assert af.get_variable("v").name == "v:0"
    with af.Graph().as_default():
        assert not af.get_variable_scope().reuse


@pytest.mark.parametrize(
    ("dtype", "zero"), [("float32", False), ("float64", False), ("int32", True), ("bool", True), ("uint8", True)]
)
def test_default_initializer_depends_on_the_dtype(dtype: str, zero: bool) -> None:
    v = af.get_variable("v", [20, 30], dtype)
    got = value(v)
    assert got.dtype == dtype
    if zero:
        assert not got.any()
    else:
        limit = np.sqrt(6 / 50)
        assert np.abs(got).max() <= limit
        assert np.abs(got).max() > 0.9 * limit
    with pytest.raises(InvalidArgumentError):
        af.get_variable("c", [2], "complex64")


def test_initializers_may_be_values() -> None:
    assert value(af.get_variable("a", initializer=[1.0, 2.0])).tolist() == [1, 2]
    assert af.get_variable("b", initializer=3).dtype.name == "int32"
    assert af.get_variable("c", dtype="float64", initializer=[1, 2]).dtype.name == "float64"
    assert value(af.get_variable("d", initializer=af.constant([5.0]))).tolist() == [5]
    assert value(af.get_variable("e", initializer=lambda: af.constant([6.0]))).tolist() == [6]
    assert value(af.get_variable("f", [2], initializer=lambda shape, dtype: af.ones(shape, dtype))).tolist() == [1, 1]
    with pytest.raises(DTypeError):
        af.get_variable("g", dtype="int32", initializer=af.constant(1.0))
    with af.variable_scope("", reuse=af.AUTO_REUSE):
        assert af.get_variable("b", initializer=3).dtype.name == "int32"


def test_getters_are_chained_outermost_last() -> None:
    seen: list[str] = []

    def getter(tag: str) -> Any:
        def get(make: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            seen.append(f"{tag} {name}")
            kwargs["trainable"] = False
            return make(name, *args, **kwargs)

        return get

    with af.variable_scope("a", custom_getter=getter("outer")), af.variable_scope("b", custom_getter=getter("inner")):
        v = af.get_variable("v", [1])
        af.get_variable("w", [1], custom_getter=getter("own"))
    assert seen == ["inner a/b/v", "outer a/b/v", "own a/b/w"]
    assert not v.trainable
    with af.variable_scope("c") as scope:
        scope.set_custom_getter(lambda make, name, **kwargs: make(name + "_renamed", **kwargs))
        assert af.get_variable("v", [1]).name == "c/v_renamed:0"


def test_regularizers_join_the_losses() -> None:
    with af.variable_scope("a", regularizer=lambda v: af.identity(v, name="loss")):
        v = af.get_variable("v", [1])
        af.get_variable("w", [1], regularizer=lambda v: None)
    (loss,) = af.get_collection(af.GraphKeys.REGULARIZATION_LOSSES)
    assert loss.op.name == "a/v/Regularizer/loss"
    assert loss.op.inputs[0] is v.value()
    with af.variable_scope("a", reuse=True) as scope:
        scope.set_regularizer(lambda v: af.identity(v))
        af.get_variable("v")
    assert len(af.get_collection(af.GraphKeys.REGULARIZATION_LOSSES)) == 1


def test_local_variables_and_scope_collections() -> None:
    with af.variable_scope("a") as scope:
        local = af.get_local_variable("l", [1])
        weight = af.get_variable("w", [1])
        fixed = af.get_variable("f", [1], trainable=False, collections=["mine", af.GraphKeys.GLOBAL_VARIABLES])
    other = af.get_variable("other", [1])
    assert scope.local_variables() == [local]
    assert scope.global_variables() == [weight, fixed]
    assert scope.trainable_variables() == [weight]
    assert scope.get_collection("mine") == [fixed]
    assert af.get_variable_scope().global_variables() == [weight, fixed, other]


def test_more_settings() -> None:
    with af.variable_scope("a", constraint=af.identity, caching_device="/device:CPU:0", use_resource=True) as scope:
        v = af.get_variable("v", [1])
        assert v.constraint is af.identity
        assert v.value().op.type == "Identity"
        scope.set_caching_device(None)
        scope.set_use_resource(None)
        scope.set_partitioner(None)
        assert scope.partitioner is None
        assert af.get_variable("w", [1]).value().op.type == "ReadVariableOp"
    with af.Graph().as_default():
        other = af.constant(1.0)
    with af.variable_scope("there", values=[other]):
        assert af.get_variable("v", [1]).graph is other.graph


def test_wrong_scope_arguments_are_refused() -> None:
    for bad in (
        af.variable_scope(None),
        af.variable_scope(None, "a", reuse=True),
        af.variable_scope(3),  # type: ignore[arg-type]  # wrong on purpose
        af.variable_scope("a", reuse="yes"),  # type: ignore[arg-type]  # wrong on purpose
    ):
        with pytest.raises(InvalidArgumentError), bad:
            pass
    with pytest.raises(InvalidArgumentError), af.variable_scope("a", partitioner=3):  # type: ignore[arg-type]
        pass


async def test_each_task_has_its_own_scope() -> None:
    async def build(name: str) -> str:
        with af.variable_scope(name):
            await asyncio.sleep(0)
            return str(af.get_variable("v", [1]).name)

    assert list(await asyncio.gather(build("a"), build("b"), build("c"))) == ["a/v:0", "b/v:0", "c/v:0"]


def test_threads_with_auto_reuse_share_one_variable() -> None:
    graph, found, gate = default_graph(), [], threading.Barrier(8)

    def work() -> None:
        gate.wait()
        with graph.as_default(), af.variable_scope("a", reuse=af.AUTO_REUSE):
            found.append(af.get_variable("v", [1]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
