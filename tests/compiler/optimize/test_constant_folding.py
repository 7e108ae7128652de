"""Tests of constant folding: nodes that depend on constants only are computed once, if allowed and not too large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.constant_folding import constant_folding
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.runtime.folding import fold
from tests.compiler.optimize.steps import assert_equivalent, fetched, ops, optimized, run, step


async def test_chain_is_folded_in_one_sweep_and_keeps_its_name() -> None:
    y = af.constant([1.0, -0.0, 2.0])
    for _ in range(5):
        y = af.tanh(y * 0.5) - 1.0
    result = await assert_equivalent(step(y), [], constant_folding, dead_code)
    assert len(result.nodes) == 2
    assert fetched(result).name == y.op.name
    assert fetched(result).source == y.op.source


async def test_several_outputs_are_several_constants() -> None:
    values = af.constant([3, 1, 3, 2])
    unique, index = af.unique(values)
    graph = step([unique, index * 2, *af.split(values, 4)])
    assert not ops(await assert_equivalent(graph, [], constant_folding, dead_code))


async def test_all_kinds_of_values() -> None:
    fetches = [
        af.strings.join([af.constant("a"), af.constant("b")]),
        af.strings.join([af.constant(["a"]), af.constant(["b"])]),
        af.cast(af.constant([1.5, 2.5]), af.bfloat16) * 2,
        af.complex(af.constant(1.0), af.constant(2.0)),
        af.constant(1) < 2,
        af.constant([[1, 2], [3, 4]], af.int64) // 2,
        af.zeros([0, 3]) + 1.0,
        af.transpose(af.constant(np.arange(6).reshape(2, 3))),
    ]
    result = await assert_equivalent(step(fetches), [], constant_folding, dead_code)
    assert not ops(result)


async def test_sum_of_a_folded_view_has_the_same_bits() -> None:
    """The transposed constant stays a transposed array, whose sum is computed in another order."""
    values = np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32)
    x = af.placeholder("float32", [])
    graph = step(af.reduce_sum(af.transpose(af.constant(values)) * x, axis=1), [x])
    result = await assert_equivalent(graph, [np.float32(1.1)], constant_folding, dead_code)
    assert ops(result) == {"Mul": 1, "Sum": 1}


KEPT = [
    ("random numbers", lambda: af.random_uniform([3])),
    ("a variable", lambda: af.Variable(1.0, name="v").read_value()),
    ("Python", lambda: af.numpy_function(np.sin, [af.constant(1.0)], af.float32)),
    ("Python without effects", lambda: af.py_func(np.sin, [af.constant(1.0)], af.float32, stateful=False)),
    ("NaN, for which one may be looking", lambda: af.log(af.constant(-1.0))),
    ("what grows", lambda: af.fill([300, 300], 1.0)),
]


@pytest.mark.parametrize("build", [c[1] for c in KEPT], ids=[c[0] for c in KEPT])
def test_nodes_that_must_run_in_the_step_are_kept(build: Any) -> None:
    graph = step(build())
    assert ops(optimized(graph, constant_folding, dead_code)) == ops(graph)


async def test_failing_node_is_kept_and_names_itself() -> None:
    row = af.gather(af.constant([1.0]), af.constant(1) + 4, name="user")
    graph = optimized(step(row), constant_folding, dead_code)
    with pytest.raises(af.errors.OpError) as caught:
        await run(graph)
    assert caught.value.node == "user"
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__


def test_size_limit_of_folded_constants() -> None:
    small, large = af.constant(np.ones(100, np.float32)), af.constant(np.ones((300, 300), np.float32))
    limits: list[tuple[Any, int, bool]] = [
        (af.exp(small), 400, True),
        (af.exp(small), 399, False),
        (af.exp(large), 10 * 2**20, True),  # no larger than its input
        (af.tile(small, [2]), 10 * 2**20, True),  # larger than its input, but small
        (af.tile(small, [300]), 10 * 2**20, False),
        (af.concat([large, large], 0), 10 * 2**20, True),
        (
            af.cast(af.constant(np.ones((300, 300), np.int8)), "float32"),
            10 * 2**20,
            True,
        ),  # typical of quantized weights
    ]
    for tensor, limit, folded in limits:
        graph = constant_folding(step(tensor), fold, limit)
        assert (fetched(graph).op == "Const") is folded, (tensor, limit)


def test_large_nodes_are_rejected_without_evaluation() -> None:
    asked: list[str] = []

    def evaluate(node: Node, graph: ClientGraph, inputs: Sequence[Any]) -> None:
        asked.append(node.op)

    constant_folding(step([af.fill([10**6, 10**6], 1.0), af.exp(af.constant(1.0)), af.random_uniform([2])]), evaluate)
    assert set(asked) <= {"Exp", "Mul", "AddV2", "Sub"}, "neither what is too large nor what has effects"
    assert "Exp" in asked


def test_folding_without_an_evaluation_changes_nothing() -> None:
    graph = step(af.exp(af.constant(1.0)))
    assert constant_folding(graph, lambda *_: None) is graph


@pytest.mark.parametrize("taken", [True, False])
async def test_folded_constant_stays_in_its_branch(taken: bool) -> None:
    p = af.placeholder("bool", [])
    y = af.cond(p, lambda: af.exp(af.constant(1.0)) + 2.0, lambda: af.tanh(af.constant(1.0)))
    result = await assert_equivalent(step(y, [p]), [np.bool_(taken)], constant_folding, dead_code)
    assert "Exp" not in ops(result)
    assert "Tanh" not in ops(result)
    constants = [n for n in result.nodes.values() if n.op == "Const"]
    assert constants
    assert all(n.control for n in constants)


@pytest.mark.parametrize("count", [0, 1, 4])
async def test_folded_constant_stays_in_its_loop(count: int) -> None:
    n = af.placeholder("int32", [])
    y = af.while_loop(
        lambda i, _: i < n, lambda i, t: [i + 1, t + af.exp(af.constant(1.0)) * af.constant(2.0)], [0, 0.0]
    )[1]
    result = await assert_equivalent(step(y, [n]), [np.int32(count)], constant_folding, dead_code)
    assert "Exp" not in ops(result)
    assert "Mul" not in ops(result)


async def test_folded_constant_keeps_control_dependencies() -> None:
    total = af.Variable(1.0)
    with af.control_dependencies([total.assign_add(1.0)]):
        one = af.constant(1.0)
    with af.control_dependencies([total.assign_add(1.0, read_value=False)]):
        y = af.exp(one)
    graph = step(y)
    result = optimized(graph, constant_folding, dead_code)
    assert "Exp" not in ops(result)
    assert len(fetched(result).control) == 2
    before = step([], targets=[total.initializer])
    assert (await run(result, before=before)).effects == (await run(graph, before=before)).effects


@pytest.mark.parametrize(
    "build",
    [
        lambda x, two: af.raw_ops.Sum(input=x, reduction_indices=two - 1, keep_dims=False),
        lambda x, two: af.raw_ops.Mean(input=x, reduction_indices=two - 1, keep_dims=False),
        lambda x, two: af.pow(x, af.cast(two, af.float32)),
    ],
    ids=["sum", "mean", "pow"],
)
async def test_inputs_that_change_a_kernels_rounding_are_not_folded(build: Any) -> None:
    """Sums over known axes are computed as products with ones, and a known power of 2 as a square."""
    x = af.placeholder("float32", [30, 2000])
    feed = np.random.default_rng(1).standard_normal((30, 2000)).astype(np.float32) ** 2
    graph = step(build(x, af.constant(2)), [x])
    result = await assert_equivalent(graph, [feed], constant_folding, dead_code)
    assert ops(result) == ops(graph)


# -- the evaluation itself ------------------------------------------------------------------------------------------


def _fold(tensor: Any, *inputs: Any) -> Any:
    graph = step(tensor)
    return fold(graph.nodes[tensor.op.name], graph, inputs)


def test_fold_returns_arrays_as_constants_hold_them() -> None:
    (found,) = _fold(af.constant(2.0) * af.constant(3.0), np.float32(2.0), np.float32(4.0))
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape, found.item()) == (np.float32, (), 8.0)
    (text,) = _fold(af.strings.join([af.constant("a"), af.constant("b")]), *(_text(t) for t in "xy"))
    assert (text.dtype, text.shape, text.item()) == (object, (), b"xy")
    assert [v.tolist() for v in _fold(af.unique(af.constant([1, 1]))[0], np.array([7, 7]))] == [[7], [0, 0]]


def _text(value: str) -> Any:
    made = np.empty((), object)
    made[()] = value.encode()
    return made


def test_fold_rejects_effects_and_async_nodes_and_survives_failures() -> None:
    assert _fold(af.random_uniform([2]), np.array([2], np.int32)) is None
    assert _fold(af.numpy_function(np.sin, [af.constant(1.0)], af.float32), np.float32(1.0)) is None
    assert _fold(af.io.decode_jpeg(af.constant(b"")), _text("")) is None
    assert (
        _fold(af.reshape(af.placeholder_with_default([1.0], None), [1]), np.ones(3, np.float32), np.array([2])) is None
    )


def test_fold_ignores_the_producers_of_its_inputs() -> None:
    x = af.placeholder("float32", [2])
    graph = step(af.exp(x) * x, [x])
    node = next(n for n in graph.nodes.values() if n.op == "Mul")
    assert Edge("Exp", 0) in node.inputs
    (found,) = fold(node, graph, [np.full(2, 2.0, np.float32), np.full(2, 5.0, np.float32)]) or ()
    assert found.tolist() == [10.0, 10.0]
