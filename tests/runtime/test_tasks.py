"""Partition of a graph into tasks: by async ancestry, in dependency order, with each node in exactly one task."""

from __future__ import annotations

import random
from typing import Any

import pytest

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.runtime.tasks import Task, constant_values, split

if "TestHop" not in OPS:
    define_op("TestHop", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestHop"):

    @kernel("TestHop")
    async def _hop(x: Any) -> Any:
        return x


def _hop_over(x: Any, name: str) -> af.Tensor:
    return make("TestHop", x, name=name)


def _tasks(
    *fetches: af.Tensor, feeds: tuple[af.Tensor, ...] = (), targets: tuple[af.Operation, ...] = ()
) -> list[Task]:
    graph = prune(StepRequest(feeds, fetches, targets))
    bound = bind_graph(graph, host(), ResourceManager(), {})
    constants = constant_values(bound)
    tasks = split(graph, bound, constants)
    working = [b.node.name for b in bound if Edge(b.node.name, 0) not in constants]
    assert sorted(n for u in tasks for n in _names(u)) == sorted(working), "each node is in one task"
    done: set[str] = set()
    for index, task in enumerate(tasks):
        assert all(need < index for need in task.needs), "a task comes before one that it needs"
        for b in task.nodes:
            for source in b.node.predecessors():
                assert source in done or source not in working, f"{b.node.name} comes before {source}"
            done.add(b.node.name)
        assert not task.is_async or len(task.nodes) == 1
    return tasks


def _names(task: Task) -> list[str]:
    return [b.node.name for b in task.nodes]


def _needed(tasks: list[Task], name: str) -> list[list[str]]:
    """Return the node names of the tasks that the task of the named node needs."""
    (task,) = (u for u in tasks if name in _names(u))
    return [_names(tasks[i]) for i in task.needs]


@pytest.fixture
def x() -> af.Tensor:
    return af.placeholder("float32", [], name="x")


def test_graph_without_async_nodes_is_one_strand(x: af.Tensor) -> None:
    y = af.negative(af.negative(x, name="a"), name="b")
    (task,) = _tasks(y, feeds=(x,))
    assert _names(task) == ["a", "b"]
    assert (task.is_async, task.needs) == (False, ())
    assert task.inputs == (Edge("_arg_0", 0),)
    assert task.outputs == (Edge("b", 0),)


def test_independent_sync_nodes_share_a_strand(x: af.Tensor) -> None:
    (task,) = _tasks(af.negative(x, name="a"), af.square(x, name="b"), feeds=(x,))
    assert sorted(_names(task)) == ["a", "b"]


def test_async_node_separates_its_ancestors_from_its_descendants(x: af.Tensor) -> None:
    hop = _hop_over(af.negative(x, name="before"), "hop")
    tasks = _tasks(af.negative(hop, name="after"), feeds=(x,))
    assert [_names(u) for u in tasks] == [["before"], ["hop"], ["after"]]
    assert [u.is_async for u in tasks] == [False, True, False]
    assert [u.needs for u in tasks] == [(), (0,), (1,)]
    assert [u.outputs for u in tasks] == [(Edge("before", 0),), (Edge("hop", 0),), (Edge("after", 0),)]


def test_join_of_a_diamond_waits_for_both_sides(x: af.Tensor) -> None:
    first, second = _hop_over(x, "first"), _hop_over(x, "second")
    left, right = af.negative(first, name="left"), af.negative(second, name="right")
    tasks = _tasks(af.add(left, right, name="join"), feeds=(x,))
    assert len(tasks) == 5, "each side has an ancestry of its own, and so has the join"
    assert _needed(tasks, "left") == [["first"]]
    assert _needed(tasks, "right") == [["second"]]
    assert sorted(_needed(tasks, "join")) == [["left"], ["right"]]


def test_reader_of_one_side_does_not_wait_for_the_other(x: af.Tensor) -> None:
    first, second = _hop_over(x, "first"), _hop_over(x, "second")
    both = af.add(first, second, name="both")
    early = af.negative(first, name="early")
    tasks = _tasks(both, early, feeds=(x,))
    assert _needed(tasks, "early") == [["first"]]
    assert sorted(_needed(tasks, "both")) == [["first"], ["second"]]


def test_two_paths_to_one_async_node_are_one_ancestry(x: af.Tensor) -> None:
    hop = _hop_over(x, "hop")
    a, b = af.negative(hop, name="a"), af.square(hop, name="b")
    tasks = _tasks(af.add(a, b, name="c"), feeds=(x,))
    assert [sorted(_names(u)) for u in tasks] == [["hop"], ["a", "b", "c"]]


def test_consecutive_async_nodes_make_separate_strands(x: af.Tensor) -> None:
    first = _hop_over(x, "first")
    between = af.negative(first, name="between")
    second = _hop_over(between, "second")
    late = af.add(second, between, name="late")
    tasks = _tasks(late, feeds=(x,))
    assert [_names(u) for u in tasks] == [["first"], ["between"], ["second"], ["late"]]
    assert sorted(_needed(tasks, "late")) == [["between"], ["second"]]


def test_async_node_waits_for_a_strand_that_grows_late(x: af.Tensor) -> None:
    """The async node must wait for the whole first strand, although its second node comes late in the order.

    If tasks were sorted by the first appearance of a node, they would be in the wrong order.
    """
    one = af.negative(x, name="one")
    hop = _hop_over(one, "hop")
    after = af.negative(hop, name="after")
    two = af.square(one, name="two")  # the same, empty ancestry as `one`
    late_hop = _hop_over(two, "late_hop")
    tasks = _tasks(after, late_hop, feeds=(x,))
    assert sorted(_names(tasks[0])) == ["one", "two"]
    assert _needed(tasks, "hop") == [["one", "two"]]


def test_strand_that_begins_first_may_need_a_later_one(x: af.Tensor) -> None:
    """The strand behind `first` begins before the strand that it comes to need."""
    first = _hop_over(x, "first")
    begun = af.negative(first, name="begun")
    plain = af.negative(x, name="plain")  # begins after `begun`
    joined = af.add(begun, plain, name="joined")  # same ancestry as `begun`
    tasks = _tasks(joined, feeds=(x,))
    assert sorted(_needed(tasks, "joined")) == [["first"], ["plain"]]
    assert sorted(_names(tasks[-1])) == ["begun", "joined"]


def test_control_edges_count_as_ancestry(x: af.Tensor) -> None:
    hop = _hop_over(x, "hop")
    with af.control_dependencies([hop]):
        y = af.negative(x, name="y")
    z = af.negative(x, name="z")
    tasks = _tasks(y, z, feeds=(x,))
    assert _needed(tasks, "y") == [["hop"]]
    assert _needed(tasks, "z") == []
    (task,) = (u for u in tasks if "y" in _names(u))
    assert task.inputs == (Edge("_arg_0", 0),), "a control edge carries no value"


def test_constants_belong_to_no_unit(x: af.Tensor) -> None:
    hop = _hop_over(af.constant(2.0, name="c"), "hop")
    tasks = _tasks(af.add(hop, af.constant(1.0)), feeds=())
    assert [_names(u)[0] for u in tasks] == ["hop", "Add"]
    assert tasks[0].inputs == ()
    assert _tasks(af.constant(3.0)) == []


def test_control_inputs_of_a_constant_apply_to_its_readers(x: af.Tensor) -> None:
    """Cover a node that reads a constant of its block of control dependencies: the node has no control edge itself."""
    with af.control_dependencies([_hop_over(x, "hop")]):
        y = af.multiply(x, 2.0, name="y")
        with af.control_dependencies([_hop_over(x, "other")]):
            z = af.multiply(y, 3.0, name="z")
    assert y.op.control_inputs == z.op.control_inputs == []
    tasks = _tasks(y, z, feeds=(x,))
    assert _needed(tasks, "y") == [["hop"]]
    assert sorted(_needed(tasks, "z")) == [["hop"], ["other"], ["y"]]


def test_outputs_of_a_task_are_what_others_read_or_the_caller_fetches(x: af.Tensor) -> None:
    kept = af.negative(x, name="kept")
    inner = af.negative(kept, name="inner")
    crossing = af.negative(inner, name="crossing")
    hop = _hop_over(crossing, "hop")
    tasks = _tasks(af.negative(hop, name="end"), kept, feeds=(x,))
    assert tasks[0].outputs == (Edge("kept", 0), Edge("crossing", 0))


def test_node_without_outputs_is_in_a_task(x: af.Tensor) -> None:
    with af.control_dependencies([_hop_over(x, "hop")]):
        done = af.no_op(name="done")
    tasks = _tasks(feeds=(x,), targets=(done,))
    assert [_names(u) for u in tasks] == [["hop"], ["done"]]
    assert tasks[-1].outputs == ()


@pytest.mark.parametrize("seed", range(40))
def test_tasks_of_random_graphs_have_one_ancestry_each(seed: int, x: af.Tensor) -> None:
    """All nodes of a strand have the same async ancestry, and each ancestry has one strand."""
    rng = random.Random(seed)
    tensors = [x]
    ancestry: dict[str, frozenset[str]] = {}
    hops = set()
    for i in range(40):
        inputs = rng.choices(tensors[-6:], k=2)
        above = frozenset().union(*(ancestry.get(t.op.name, frozenset()) for t in inputs[: 1 if i % 5 == 0 else 2]))
        if i % 5 == 0:
            tensors.append(_hop_over(inputs[0], f"n{i}"))
            hops.add(f"n{i}")
            ancestry[f"n{i}"] = above | {f"n{i}"}
        else:
            tensors.append(af.add(inputs[0], inputs[1], name=f"n{i}"))
            ancestry[f"n{i}"] = above
    tasks = _tasks(*tensors[-5:], feeds=(x,))
    seen = []
    for task in tasks:
        kinds = {ancestry[name] for name in _names(task)}
        assert len(kinds) == 1
        if not task.is_async:
            seen.append(kinds.pop())
        assert task.is_async is (_names(task)[0] in hops)
    assert len(seen) == len(set(seen))
