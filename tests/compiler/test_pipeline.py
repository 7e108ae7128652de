"""The pipeline from request to plan: every stage leaves a valid graph with the same feeds and fetches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.optimize import passes
from aioflow.compiler.optimize.passes import PASSES
from aioflow.compiler.pipeline import CompileOptions, compile_step
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.placement import place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.errors import InternalError
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

CLUSTER = ClusterView(("/job:localhost/replica:0/task:0/device:CPU:0",))
CHECKED = CompileOptions(verify=True)


def _boundary(graph: ClientGraph, op: str) -> list[object]:
    return sorted(n.attrs["index"] for n in graph.nodes.values() if n.op == op)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 60), gradients=st.booleans())
def test_random_programs_stay_valid_through_every_stage(seed: int, size: int, gradients: bool) -> None:
    with af.Graph().as_default():
        program = random_program(seed, size=max(size, 4), rows=1)
        fetches = list(program.fetches)
        if gradients:
            grads = af.gradients(fetches[0], list(program.feeds))
            fetches += [g for g in grads if isinstance(g, af.Tensor)]
        request = StepRequest(tuple(program.feeds), tuple(fetches))
        graph = verify(prune(request))
        for optimization in PASSES:
            graph = verify(optimization.run(graph, lambda *_: None))
        graph = verify(place(graph, CLUSTER))
        plan = compile_step(request, CLUSTER, replace(CHECKED, optimizations=False))
    (part,) = plan.parts.values()
    for compiled in (graph, *part.subgraphs.values()):
        verify(compiled)
        assert _boundary(compiled, "_Arg") == list(range(len(program.feeds)))
        assert _boundary(compiled, "_Retval") == list(range(len(fetches)))
        for index, tensor in enumerate(fetches):
            spec = compiled.spec(compiled.nodes[f"_retval_{index}"].inputs[0])
            assert spec.dtype is tensor.dtype
    assert set(graph.nodes) <= set(part.subgraphs[CLUSTER.devices[0]].nodes)


def test_compiling_leaves_the_users_graph_alone(graph: af.Graph) -> None:
    x = af.placeholder("float32", [])
    y = x * 2.0 + 1.0
    before = (graph.version, graph.mutations, [dict(op.attrs) for op in graph.get_operations()])
    for _ in range(2):
        compile_step(StepRequest((x,), (y,)), CLUSTER, CHECKED)
    assert (graph.version, graph.mutations, [dict(op.attrs) for op in graph.get_operations()]) == before


def _lose_a_fetch(graph: ClientGraph) -> ClientGraph:
    return replace(graph, nodes={k: v for k, v in graph.nodes.items() if k != "_retval_0"})


def _cross_wires(graph: ClientGraph) -> ClientGraph:
    nodes = dict(graph.nodes)
    nodes["_retval_0"] = replace(nodes["_retval_0"], inputs=(Edge("nowhere", 0),))
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("broken", [_lose_a_fetch, _cross_wires])
def test_a_pass_that_breaks_the_graph_is_caught_when_checking_is_on(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[ClientGraph], ClientGraph]
) -> None:
    monkeypatch.setattr(passes, "PASSES", (passes.Pass("broken", lambda graph, _: broken(graph)),))
    with pytest.raises(InternalError):
        compile_step(StepRequest((), (af.constant(1.0),)), CLUSTER, CHECKED)
    trusting = CompileOptions(optimizations={"order_memory": False})  # order_memory would fail on the broken graph
    compile_step(StepRequest((), (af.constant(1.0),)), CLUSTER, trusting)
