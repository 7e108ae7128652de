"""Raised loops against the primitive form: the same values, errors and rejections."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.opdef import traits_of
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.dataflow import Dataflow
from aioflow.runtime.device import host
from aioflow.runtime.executable import Executable, make_executable
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.loop_raising import raise_loops
from aioflow.runtime.step import Step

_THREADS = DeviceThreads("-test", 2)
_TYPE: dict[str, Any] = {"T": dtypes.int32}


class Loops:
    """A builder of `while` loops over int32 scalars in primitive form, from real ops."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.feeds = 0

    def add(self, name: str, op: str, *inputs: Edge, dtype: Any = dtypes.int32, outputs: int = 1, **attrs: Any) -> Edge:
        self.nodes[name] = Node(name, op, inputs, (), attrs, (OutputSpec(dtype, ()),) * outputs)
        return Edge(name, 0)

    def feed(self) -> Edge:
        self.feeds += 1
        return self.add(f"_arg_{self.feeds - 1}", "_Arg", index=self.feeds - 1)

    def loop(self, frame: str, start: list[Edge], invariant: Edge, body: Any) -> list[Edge]:
        """Add `while v[0] < invariant: v = body(v, invariant)` and return its Exits."""
        attrs: dict[str, Any] = {"frame_name": frame, "parallel_iterations": 10}
        limit = self.add(f"{frame}/limit", "Enter", invariant, is_constant=True, **attrs)
        merges = [
            self.add(
                f"{frame}/merge{i}",
                "Merge",
                self.add(f"{frame}/enter{i}", "Enter", s, is_constant=False, **attrs),
                outputs=2,
            )
            for i, s in enumerate(start)
        ]
        less = self.add(f"{frame}/less", "Less", merges[0], limit, dtype=dtypes.bool_, **_TYPE)
        test = self.add(f"{frame}/cond", "LoopCond", less, dtype=dtypes.bool_)
        switches = [self.add(f"{frame}/switch{i}", "Switch", m, test, outputs=2) for i, m in enumerate(merges)]
        exits = [self.add(f"{frame}/exit{i}", "Exit", s) for i, s in enumerate(switches)]
        values = body([Edge(s.node, 1) for s in switches], limit)
        for i, value in enumerate(values):
            back = self.add(f"{frame}/next{i}", "NextIteration", value)
            merge = self.nodes[f"{frame}/merge{i}"]
            self.nodes[merge.name] = Node(merge.name, "Merge", (*merge.inputs, back), (), {}, merge.outputs)
        return exits

    def graph(self, *fetches: Edge) -> ClientGraph:
        for i, edge in enumerate(fetches):
            self.add(f"_retval_{i}", "_Retval", edge, outputs=0, index=i)
        return ClientGraph(self.nodes, self.feeds, len(fetches))


def counting() -> ClientGraph:
    """Return a graph of i += 1, total += i and two variables that swap places, while i < n."""
    b = Loops()
    n, zero, one = b.feed(), b.feed(), b.feed()

    def body(v: list[Edge], limit: Edge) -> list[Edge]:
        i = b.add("inc", "AddV2", v[0], one_inside(b, v[0]), **_TYPE)
        return [i, b.add("sum", "AddV2", v[1], i, **_TYPE), v[3], v[2]]

    exits = b.loop("loop", [zero, zero, zero, one], n, body)
    return b.graph(*exits)


def one_inside(b: Loops, like: Edge) -> Edge:
    """Make a 1 inside the loop, from a comparison, since x // x would fail for 0."""
    same = b.add(f"same/{like.node}", "Equal", like, like, dtype=dtypes.bool_, incompatible_shape_error=True, **_TYPE)
    return b.add(f"one/{like.node}", "Cast", same, SrcT=dtypes.bool_, DstT=dtypes.int32, Truncate=False)


def nested() -> ClientGraph:
    """Return a graph of total += m for each i < n, where an inner loop counts m."""
    b = Loops()
    n, zero = b.feed(), b.feed()

    def outer(v: list[Edge], limit: Edge) -> list[Edge]:
        start = b.add("start", "Sub", v[0], v[0], **_TYPE)
        (count,) = b.loop(
            "inner", [start], limit, lambda w, _: [b.add("inc", "AddV2", w[0], one_inside(b, w[0]), **_TYPE)]
        )
        return [b.add("i", "AddV2", v[0], one_inside(b, v[0]), **_TYPE), b.add("t", "AddV2", v[1], count, **_TYPE)]

    return b.graph(*b.loop("outer", [zero, zero], n, outer))


def _primitive(graph: ClientGraph) -> Dataflow:
    return Dataflow(graph, bind_graph(graph, host(), ResourceManager(), {}), _THREADS, 1e-3)


def _executable(graph: ClientGraph) -> Executable:
    return make_executable(graph, host(), ResourceManager(), {}, _THREADS, SessionConfig())


@pytest.mark.parametrize("make", [counting, nested])
@pytest.mark.parametrize("n", [0, 1, 2, 25])
async def test_raised_loop_equals_primitive_form(make: Any, n: int) -> None:
    graph = make()
    feeds = [np.int32(n), np.int32(0), np.int32(1)][: graph.feeds]
    expected = await _primitive(graph).run(feeds, Step())
    assert await _executable(graph).run(feeds, Step()) == expected
    if make is counting:
        assert expected == [n, n * (n + 1) // 2, n % 2, 1 - n % 2]
    else:
        assert expected == [n, n * n]


@pytest.mark.parametrize("make", [counting, nested])
def test_raised_graph_has_no_control_flow_ops(make: Any) -> None:
    graph = make()
    bound = bind_graph(graph, host(), ResourceManager(), {})
    lifted, _ = raise_loops(graph, bound)
    assert not [n for n in lifted.nodes.values() if traits_of(n.op).is_control_flow]
    assert sum(n.op == "/Loop" for n in lifted.nodes.values()) == 1


async def test_exit_of_a_merge_index_in_a_loop() -> None:
    b = Loops()
    n, zero = b.feed(), b.feed()
    b.loop("loop", [zero], n, lambda v, _: [b.add("inc", "AddV2", v[0], one_inside(b, v[0]), **_TYPE)])
    i, test = Edge("loop/merge0", 0), Edge("loop/cond", 0)
    same = b.add("same", "Equal", i, i, dtype=dtypes.bool_, incompatible_shape_error=True, **_TYPE)
    b.add("chosen", "Merge", b.add("side", "Switch", i, same, outputs=2), Edge("side", 1), outputs=2)
    left = b.add("left", "Switch", Edge("chosen", 1), test, outputs=2)
    graph = b.graph(b.add("exit", "Exit", left))
    assert await _executable(graph).run([np.int32(3), np.int32(0)], Step()) == [1]


async def test_large_invariant_may_leave_its_loop() -> None:
    """`while_loop` makes no such Exit, but an imported graph may have one."""
    with af.Graph().as_default() as graph:
        fed = af.placeholder(af.float32, [100_000], name="fed")
        af.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + af.reduce_sum(fed)), [af.constant(0), 0.0])
    enter, test, switch, leaving = (
        next(n for n in graph.as_graph_def().nodes if n.op == op and (op != "Enter" or n.inputs[0] == "fed"))
        for op in ("Enter", "LoopCond", "Switch", "Exit")
    )
    of_floats = {"T": af.float32}
    added = (
        replace(switch, name="switch", inputs=(enter.name, test.name), attrs=of_floats),
        replace(leaving, name="exit", inputs=("switch",), attrs={**leaving.attrs, **of_floats}),
    )
    definition = graph.as_graph_def()
    with af.Graph().as_default() as imported:
        af.import_graph_def(replace(definition, nodes=(*definition.nodes, *added)), name="")
    fetches = [node.outputs[0] for node in imported.get_operations() if node.type == "Exit"]
    value = np.ones(100_000, np.float32)
    async with af.Session(graph=imported) as session:
        *_, found = await session.run(fetches, {imported.get_tensor_by_name("fed:0"): value})
    assert (found == value).all()


async def test_a_raised_loop_stops_on_request() -> None:
    executable = _executable(counting())
    step = Step()

    async def stopped() -> None:
        with pytest.raises(CancelledError, match="enough"):
            await executable.run([np.int32(2**31 - 1), np.int32(0), np.int32(1)], step)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tg:  # the loop itself would take minutes
        tg.create_task(stopped())
        await asyncio.sleep(0.05)
        step.stop(CancelledError("enough"))


async def test_an_error_in_a_raised_loop_names_its_node() -> None:
    b = Loops()
    n, zero = b.feed(), b.feed()

    def body(v: list[Edge], limit: Edge) -> list[Edge]:
        return [b.add("divide", "FloorDiv", v[0], v[0], **_TYPE)]

    graph = b.graph(*b.loop("loop", [zero], n, body))
    for run in (_executable(graph), _primitive(graph)):
        with pytest.raises(InvalidArgumentError) as caught:
            await run.run([np.int32(5), np.int32(0)], Step())
        assert caught.value.node == "divide"
