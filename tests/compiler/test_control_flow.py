"""Loops and predicates of nodes: what the stages, the executors and the exporter know of a graph's control flow."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow import raw_ops
from aioflow.compiler.control_flow import Predicates, frames_behind, loop_variable, loops_of, may_be_dead
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.prune import StepRequest, prune


def pruned(*fetches: Any) -> ClientGraph:
    return prune(StepRequest((), fetches))


def guard(graph: ClientGraph, name: str) -> Any:
    """Return the predicates of a node, by name, with their sides; None if it never runs."""
    found = Predicates(graph).at(name)
    return None if found is None else {edge.node: side for edge, side in found}


@pytest.fixture
def p(graph: af.Graph) -> af.Tensor:
    return af.placeholder_with_default(True, [], name="p")


@pytest.fixture
def q(graph: af.Graph) -> af.Tensor:
    return af.placeholder_with_default(True, [], name="q")


def test_nested_branches_add_predicates_and_merges_drop_them(p: af.Tensor, q: af.Tensor) -> None:
    x = af.fill([2], 1.0)

    def both() -> Any:
        inner = af.cond(q, lambda: af.tanh(x, name="inner"), lambda: x)
        return af.negative(inner, name="outer")

    result = af.exp(af.cond(p, both, lambda: af.sin(x, name="other")), name="behind")
    graph = pruned(result)
    names = {n.rpartition("/")[2]: n for n in graph.nodes}
    assert guard(graph, names["inner"]) == {"p": True, "q": True}
    assert guard(graph, names["outer"]) == {"p": True}
    assert guard(graph, names["other"]) == {"p": False}
    assert guard(graph, "behind") == {}
    dead = {edge.node for edge in may_be_dead(graph)}
    assert {names["inner"], names["outer"], names["other"]} <= dead
    assert "behind" not in dead


def test_branch_that_its_surroundings_exclude_never_runs(p: af.Tensor) -> None:
    x = af.fill([2], 1.0)
    inner: list[Any] = []

    def again() -> Any:
        inner.append(af.cond(p, lambda: af.tanh(x), lambda: af.sin(x, name="never")))
        return inner[0]

    graph = pruned(af.exp(af.cond(p, again, lambda: x), name="behind"))
    (never,) = (n for n in graph.nodes if n.endswith("never"))
    assert guard(graph, never) is None
    assert guard(graph, inner[0].op.name) == {"p": True}
    assert Predicates(graph).alternatives[inner[0].op.name] == (None, (1,))
    assert Edge("behind", 0) not in may_be_dead(graph)


def test_merge_of_unrelated_branches_is_irregular_and_may_be_dead(p: af.Tensor, q: af.Tensor) -> None:
    x = af.fill([2], 1.0)
    one, other = raw_ops.Switch(data=x, pred=p)[0], raw_ops.Switch(data=x, pred=q)[1]
    merged = raw_ops.Merge(inputs=[one, other], name="merged")[0]
    graph = pruned(af.exp(merged, name="behind"), af.sin(one, name="side"))
    predicates = Predicates(graph)
    assert predicates.irregular == {"merged"}
    assert not predicates.is_known("behind")
    assert predicates.is_known("side")
    assert predicates.at("behind") == predicates.at("merged")
    assert Edge("behind", 0) in may_be_dead(graph)


def test_predicate_that_is_the_value_of_an_irregular_merge(p: af.Tensor, q: af.Tensor) -> None:
    one, other = raw_ops.Switch(data=p, pred=p)[0], raw_ops.Switch(data=p, pred=q)[1]
    merged = raw_ops.Merge(inputs=[one, other], name="merged")[0]
    graph = pruned(af.sin(raw_ops.Switch(data=af.fill([2], 1.0), pred=merged)[0], name="side"))
    assert guard(graph, "side") == {"merged": False}  # it runs if the Merge is alive and false


def test_nodes_under_very_many_predicates_are_unknown(graph: af.Graph) -> None:
    value = af.fill([2], 1.0)
    for i in range(90):
        pred = af.placeholder_with_default(True, [], name=f"p{i}")
        value = raw_ops.Switch(data=value, pred=pred)[1]
    found = pruned(af.sin(value, name="deep"))
    assert not Predicates(found).is_known("deep")
    assert Edge("deep", 0) in may_be_dead(found)


def test_nodes_of_nested_loops(graph: af.Graph) -> None:
    def body(i: Any, v: Any) -> Any:
        _, inner = af.while_loop(lambda j, _: j < 2, lambda j, w: (j + 1, af.tanh(w, name="inside")), [0, v])
        return i + 1, af.negative(inner, name="around")

    found = pruned(af.exp(af.while_loop(lambda i, _: i < 3, body, [0, af.fill([2], 1.0)])[1], name="behind"))
    behind, loop_of = frames_behind(found), loops_of(found)
    inner, outer = (next(loop_of[n] for n in found.nodes if n.endswith(end)) for end in ("inside", "around"))
    assert outer is not None
    assert inner is not None
    assert (inner.parent, outer.parent, inner.outermost) == (outer, None, outer)
    assert inner.path == (outer.name, inner.name)
    assert behind["behind"] is None
    assert found.nodes[inner.condition].op == "LoopCond"
    left = {frame.path: behind[name] for name, frame in loop_of.items() if frame and found.nodes[name].op == "Exit"}
    assert {path: around and around.path for path, around in left.items()} == {inner.path: outer.path, outer.path: None}
    variables = [v for node in found.nodes.values() if (v := loop_variable(found, node)) is not None]
    assert len(variables) == 4
    assert {loop_of[v.merge] for v in variables} == {inner, outer}


def test_values_of_a_loop_are_as_alive_as_those_that_enter_it(p: af.Tensor) -> None:
    x = af.fill([2], 1.0)

    def loop() -> Any:
        return af.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, af.tanh(v, name="inside")), [0, x])[1]

    graph = pruned(af.exp(af.cond(p, loop, lambda: x), name="behind"), af.sin(loop(), name="free"))
    inside = sorted(n for n in graph.nodes if n.endswith("inside"))
    assert [guard(graph, n) for n in inside] == [{"p": True}, {}]
    assert guard(graph, "behind") == guard(graph, "free") == {}
