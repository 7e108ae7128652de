"""Pruning through function calls: edges, control edges, feeds and targets."""

from __future__ import annotations

from typing import Any

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.graph.calls import visible


def _prune(fetches: Any = (), feeds: Any = (), targets: Any = ()) -> ClientGraph:
    return verify(prune(StepRequest(tuple(feeds), tuple(fetches), tuple(targets))))


def _inner(graph: ClientGraph) -> list[str]:
    return [n.name for n in graph.nodes.values() if n.op not in ("_Arg", "_Retval")]


def _calls() -> tuple[Any, Any]:
    """Return x and (y, z) = f(x), where f calls g for y."""
    g = af.function(lambda a: af.exp(a, name="e"), name="g")
    f = af.function(lambda a: (g(a), af.negative(a, name="n")), name="f")
    x = af.placeholder("float32", [2], name="x")
    return x, f(x)


def test_edges_from_a_call_come_from_its_expansion() -> None:
    x, (y, z) = _calls()
    total = af.add(y, z, name="total")
    graph = _prune([total, y], [x])
    assert _inner(graph) == ["f/g/e", "f/n", "total"]
    assert graph.nodes["total"].inputs == (Edge("f/g/e", 0), Edge("f/n", 0))
    assert graph.nodes["_retval_1"].inputs == (Edge("f/g/e", 0),)
    assert _inner(_prune([y], [x])) == ["f/g/e"]


def test_a_call_as_a_target_runs_all_of_its_results() -> None:
    x, (y, _) = _calls()
    assert sorted(_inner(_prune([], [x], [y.op]))) == ["f/g/e", "f/n"]


def test_control_edge_on_a_call_waits_for_its_expansion() -> None:
    x, (y, _) = _calls()
    with af.control_dependencies([y]):
        after = af.no_op(name="after")
    graph = _prune([], [x], [after])
    assert sorted(graph.nodes["after"].control) == ["f/g/e", "f/n"]


def test_results_of_a_call_wait_for_its_effects() -> None:
    v = af.Variable(1.0, name="v")
    f = af.function(lambda a: (v.assign_add(a), a * 2.0)[1], name="f")
    y = f(af.constant(1.0, name="one"))
    graph = _prune([y])
    (edge,) = graph.nodes["_retval_0"].inputs
    assert graph.nodes[edge.node].control == ("f/AssignAddVariableOp",)
    with af.control_dependencies([y.op]):
        after = af.no_op(name="after")
    assert "f/AssignAddVariableOp" in _prune([], [], [after]).nodes["after"].control


def test_a_fed_output_of_a_call_is_not_computed() -> None:
    x, (y, z) = _calls()
    total = af.add(y, z, name="total")
    graph = _prune([total], [y, z])
    assert _inner(graph) == ["total"]
    assert graph.nodes["total"].inputs == (Edge("_arg_0", 0), Edge("_arg_1", 0))
    assert _inner(_prune([total], [y, x])) == ["f/n", "total"]


def test_a_definition_shows_calls_unless_something_reads_inside() -> None:
    _, (y, _) = _calls()
    operations = af.get_default_graph().get_operations()
    shown, opened = visible(operations)
    assert [op.name for op in shown] == ["x", "f"]
    assert opened == set()
    reader = af.negative(y.op.expansion[0].op.expansion[0], name="reader")
    for order in ([*operations, reader.op], [reader.op, *operations]):
        shown, opened = visible(order)
        assert sorted(op.name for op in shown) == ["f", "f/g", "f/g/e", "f/n", "reader", "x"]
        assert {op.name for op in opened} == {"f", "f/g"}


def test_effects_wait_for_earlier_reads_and_effects() -> None:
    v = af.Variable(1.0, name="v")

    @af.function
    def f(x: Any) -> Any:
        before = v.read_value()
        v.assign(x, name="first")
        af.cond(x > 0.0, lambda: v.assign_add(1.0).op, lambda: v.assign_sub(1.0).op)
        v.assign(x, name="last")
        return before

    y = f(af.placeholder("float32", [], name="x"))
    graph = _prune([y], [af.get_default_graph().get_tensor_by_name("x:0")])
    control = {name: set(node.control) for name, node in graph.nodes.items()}
    assert "f/Read/ReadVariableOp" in control["f/first"]
    for entry in ("f/cond/pred_id", "f/cond/switch_t", "f/cond/switch_f"):
        assert "f/first" in control[entry]
    assert "f/cond/Merge" in control["f/last"]
    result = graph.nodes["_retval_0"].inputs[0].node
    assert {"f/first", "f/cond/Merge", "f/last"} <= control[result]
