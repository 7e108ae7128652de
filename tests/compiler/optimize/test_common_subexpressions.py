"""Tests of common subexpressions: equal nodes become one, nodes that only look equal do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.common_subexpressions import common_subexpressions
from aioflow.compiler.optimize.dead_code import dead_code
from tests.compiler.optimize.steps import assert_equivalent, assert_same_bits, ops, optimized, run, step

FEED = np.array([0.5, -1.0, np.nan], np.float32)


def _constants(graph: Any) -> int:
    return sum(n.op == "Const" for n in graph.nodes.values())


async def test_repeated_chain_is_computed_once() -> None:
    x = af.placeholder("float32", [3])

    def chain() -> Any:
        y = x
        for _ in range(5):
            y = af.tanh(y * 0.5) + 1.0
        return y

    result = await assert_equivalent(step([chain(), chain(), chain() * 2.0], [x]), [FEED], common_subexpressions)
    assert ops(result) == {"Tanh": 5, "Mul": 6, "AddV2": 5}
    assert _constants(result) == 3, "0.5, 1.0, 2.0"


async def test_two_fetches_of_one_node_are_two_arrays() -> None:
    x = af.placeholder("float32", [3])
    graph = optimized(step([af.exp(x), af.exp(x)], [x]), common_subexpressions)
    assert ops(graph) == {"Exp": 1}
    first, second = (await run(graph, [FEED])).values
    assert not np.shares_memory(first, second)


async def test_several_outputs_and_control_edges_are_redirected() -> None:
    x = af.placeholder("float32", [4])
    parts = [af.split(x, 2) for _ in range(2)]
    waits = []
    for _ in range(2):
        with af.control_dependencies([parts[1][0]]):
            waits.append(af.identity(x))
    graph = step([parts[0][1] + parts[1][1], *waits], [x], targets=[parts[1][0].op])
    feed = np.arange(4, dtype=np.float32)
    result = await assert_equivalent(graph, [feed], common_subexpressions)
    assert ops(result) == {"Split": 1, "AddV2": 1, "Identity": 1}
    assert result.targets == (parts[0][0].op.name,)


Build = Callable[[Any], tuple[Any, Any]]
DIFFERENT: list[tuple[str, Build]] = [
    ("another op", lambda x: (af.exp(x), af.tanh(x))),
    ("another input", lambda x: (af.exp(x), af.exp(x * 2.0))),
    ("another attribute", lambda x: (af.cumsum(x), af.cumsum(x, reverse=True))),
    ("zeros of two signs", lambda x: (x * af.constant(0.0), x * af.constant(-0.0))),
    ("numbers of two dtypes", lambda x: (af.cast(x, af.float64), af.cast(x, af.float16))),
    ("shapes of constants", lambda x: (x + af.constant([1.0]), x + af.constant([[1.0]]))),
    ("random numbers", lambda x: (af.random_uniform([3]), af.random_uniform([3]))),
    ("floats the other way round, of which the first NaN counts", lambda x: (x + 1.0, 1.0 + x)),
]


@pytest.mark.parametrize("build", [c[1] for c in DIFFERENT], ids=[c[0] for c in DIFFERENT])
def test_different_nodes_are_kept(build: Build) -> None:
    x = af.placeholder("float32", [3])
    graph = step(list(build(x)), [x])
    assert ops(optimized(graph, common_subexpressions)) == ops(graph)


def test_commuted_integer_operands_are_the_same() -> None:
    x, y = af.placeholder("int32", [3]), af.placeholder("int32", [3])
    graph = step([x + y, y + x, af.equal(x, y), af.equal(y, x), x - y, y - x], [x, y])
    assert ops(optimized(graph, common_subexpressions)) == {"AddV2": 1, "Equal": 1, "Sub": 2}


def test_nodes_on_different_devices_are_kept() -> None:
    x = af.placeholder("float32", [3])
    made = []
    for device in ("/cpu:0", "/cpu:1", "/cpu:0"):
        with af.device(device):
            made.append(af.exp(x))
    assert ops(optimized(step(made, [x]), common_subexpressions)) == {"Exp": 2}


def test_node_with_a_colocated_node_keeps_its_name() -> None:
    x = af.placeholder("float32", [3])
    first, second = af.exp(x), af.exp(x)
    with af.get_default_graph().colocate_with(second.op):
        near = af.tanh(x)
    graph = optimized(step([first, second, near, af.tanh(x)], [x]), common_subexpressions)
    assert ops(graph) == {"Exp": 2, "Tanh": 2}


async def test_node_with_another_control_dependency_is_kept() -> None:
    total = af.Variable(0.0)
    x = af.placeholder("float32", [3])
    first = af.exp(x)
    with af.control_dependencies([total.assign_add(1.0)]):
        second = af.exp(x)
        third = af.exp(x)
    graph = step([first, second, third], [x])
    result = optimized(graph, common_subexpressions, dead_code)
    assert ops(result)["Exp"] == 2
    before = step([], targets=[total.initializer])
    found, wanted = await run(result, [FEED], before=before), await run(graph, [FEED], before=before)
    assert found.effects == wanted.effects
    assert_same_bits(found.values, wanted.values)


async def test_effects_are_never_merged() -> None:
    total = af.Variable(0.0)
    graph = step([], targets=[total.assign_add(1.0).op, total.assign_add(1.0).op])
    result = optimized(graph, common_subexpressions)
    before = step([], targets=[total.initializer])
    assert sum((await run(result, before=before)).effects.values()) == 3, "a handle and two additions"


@pytest.mark.parametrize("taken", [True, False])
async def test_both_branches_keep_their_nodes(taken: bool) -> None:
    x, p = af.placeholder("float32", [3]), af.placeholder("bool", [])
    y = af.cond(p, lambda: af.exp(x) + 1.0, lambda: af.exp(x) * 1.5 + 1.0)
    graph = step([y, af.exp(x)], [x, p])
    result = await assert_equivalent(graph, [FEED, np.bool_(taken)], common_subexpressions)
    assert ops(result)["Exp"] == 3


@pytest.mark.parametrize("count", [0, 3])
async def test_equal_nodes_of_one_iteration_are_merged(count: int) -> None:
    x, n = af.placeholder("float32", [3]), af.placeholder("int32", [])
    made = af.while_loop(lambda i, _: i < n, lambda i, y: [i + 1, af.tanh(y) + af.tanh(y) + af.tanh(x)], [0, x])[1]
    result = await assert_equivalent(step([made, af.tanh(x)], [x, n]), [FEED, np.int32(count)], common_subexpressions)
    assert ops(result)["Tanh"] == 3


def test_large_constants_are_compared_by_their_bytes() -> None:
    values = np.random.default_rng(1).standard_normal((300, 300)).astype(np.float32)
    other = values.copy()
    other[150, 151] += 1.0  # an element that the hash does not cover, so that the bytes are compared
    graph = step([af.reduce_sum(af.constant(v)) for v in (values, values.copy(), other)])
    assert _constants(optimized(graph, common_subexpressions)) == 3, "two of them, and the axes"


def test_constants_with_different_layouts_are_kept() -> None:
    """The sums of arrays with different layouts are computed in different orders."""
    graph = step([af.reduce_sum(af.constant(np.ones((30, 20), np.float32)), 1) for _ in range(2)])
    nodes = dict(graph.nodes)
    name = next(n.name for n in reversed(list(nodes.values())) if n.outputs and n.outputs[0].dims == (30, 20))
    turned = np.asfortranarray(nodes[name].attrs["value"])
    nodes[name] = replace(nodes[name], attrs={**nodes[name].attrs, "value": turned})
    assert _constants(optimized(graph, common_subexpressions)) == 2, "the ones, and the axis"
    assert _constants(optimized(replace(graph, nodes=nodes), common_subexpressions)) == 3


def test_constants_that_are_views_of_different_orders_are_kept() -> None:
    graph = step([af.exp(af.constant(np.ones((2, 2, 2), np.float32))) for _ in range(2)])
    cube = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    orders = iter([cube.transpose(2, 1, 0).copy(order="F"), cube.transpose(2, 1, 0).copy().transpose(0, 2, 1)])
    views = {}
    for name, node in graph.nodes.items():
        made = replace(node, attrs={**node.attrs, "value": _same_values(next(orders))}) if node.op == "Const" else node
        views[name] = made
    assert _constants(optimized(replace(graph, nodes=views), common_subexpressions)) == 2


def _same_values(view: Any) -> Any:
    """Set the view to the values 0 to 7 in the order of its indices, and return it."""
    view[...] = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    return view


async def test_string_constants_are_compared() -> None:
    graph = step([af.strings.join([af.constant(["a", "b"]), af.constant([c, "c"])]) for c in ("a", "b", "a")])
    result = await assert_equivalent(graph, [], common_subexpressions)
    assert ops(result) == {"StringJoin": 2}


async def test_product_of_equal_matrices_does_not_become_a_product_with_itself() -> None:
    """BLAS multiplies a matrix by its own transpose with another routine, which rounds differently."""
    x = af.placeholder("float32", [120, 90])
    feed = np.random.default_rng(1).standard_normal((120, 90)).astype(np.float32)
    product = af.matmul(af.tanh(x), af.tanh(x), transpose_a=True)
    turned = af.matmul(af.transpose(af.reshape(af.sigmoid(x), [120, 90])), af.sigmoid(x))
    result = await assert_equivalent(step([product, turned], [x]), [feed], common_subexpressions)
    assert ops(result)["Tanh"] == ops(result)["Sigmoid"] == 2
    squares = step([af.matmul(af.tanh(x), af.exp(x), transpose_a=True), af.tanh(x) * af.tanh(x)], [x])
    assert ops(await assert_equivalent(squares, [feed], common_subexpressions))["Tanh"] == 1


async def test_error_names_the_remaining_node() -> None:
    x = af.placeholder("float32", None)
    first, second = (af.reshape(x, [2, 3], name=name) for name in ("first", "second"))
    graph = optimized(step([second + 1.0, first], [x]), common_subexpressions)
    with pytest.raises(af.errors.InvalidArgumentError) as caught:
        await run(graph, [np.zeros(5, np.float32)])
    assert caught.value.node == "second", "the first one of the step"
