"""Tests of dead code: nodes that no fetch or target needs are removed; feeds and targets stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.verify import verify
from tests.compiler.optimize.steps import ops, optimized, run, step


def test_unread_node_is_removed_with_its_inputs() -> None:
    x = af.placeholder("float32", [2], name="x")
    y = af.exp(af.tanh(x) * 2.0)
    graph = step(af.negative(y, name="last"), [x])
    nodes = dict(graph.nodes)
    nodes["last"] = replace(nodes["last"], inputs=(Edge("_arg_0", 0),))
    result = optimized(verify(replace(graph, nodes=nodes)), dead_code)
    assert list(result.nodes) == ["_arg_0", "last", "_retval_0"]


def test_unread_feeds_are_kept() -> None:
    x, y = af.placeholder("float32", [2]), af.placeholder("float32", [2])
    result = optimized(step(y + 1.0, [x, y]), dead_code)
    assert [n for n in result.nodes if n.startswith("_arg")] == ["_arg_0", "_arg_1"]


async def test_targets_keep_their_control_dependencies() -> None:
    total = af.Variable(0.0)
    with af.control_dependencies([total.assign_add(1.0)]):
        target = af.no_op()
    result = optimized(step([af.constant(1.0)], targets=[target]), dead_code)
    before = step([], targets=[total.initializer])
    assert (await run(result, before=before)).effects["AssignAddVariableOp"] == 1


async def test_target_without_work_is_replaced_by_its_dependencies() -> None:
    a, b = af.Variable(0.0), af.Variable(0.0)
    inner = af.group(a.assign_add(1.0), name="inner")
    target = af.group(inner, b.assign_add(1.0), name="outer")
    result = optimized(step([af.constant(1.0)], targets=[target, af.no_op()]), dead_code)
    assert "NoOp" not in {node.op for node in result.nodes.values() if node.control}
    before = step([], targets=[af.group(a.initializer, b.initializer)])
    effects = (await run(result, before=before)).effects
    assert effects["AssignAddVariableOp"] == effects["AssignAddVariableOp_1"] == 1


async def test_loop_is_kept_as_a_whole() -> None:
    n = af.placeholder("int32", [])
    graph = step(af.while_loop(lambda i, _: i < n, lambda i, t: [i + 1, t + 2], [0, 0])[1], [n])
    assert optimized(graph, dead_code) is graph, "nothing is dead: the condition is what the loop needs"
    assert (await run(optimized(graph, dead_code), [np.int32(3)])).values == [6]


def test_graph_without_dead_code_is_returned_unchanged() -> None:
    x = af.placeholder("float32", [2])
    graph = step(x + 1.0, [x])
    assert dead_code(graph, lambda *_: None) is graph
    assert ops(graph) == {"AddV2": 1}
