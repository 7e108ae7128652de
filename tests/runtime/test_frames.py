"""The core of tagged dataflow, one rule per test, on graphs made by hand (semantics: TensorFlow whitepaper, 4.4)."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.runtime.flow_program import FlowNode, FlowProgram
from aioflow.runtime.frames import Propagator, ReadyNode

_OUTPUTS = {"Switch": 2, "Merge": 2, "_Retval": 0, "Effect": 0, "ControlTrigger": 0}


class Builder:
    """A builder of client graphs, one node per call, with Python functions as kernels by node name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.log: list[str] = []

    def add(self, name: str, op: str, *inputs: str, control: Sequence[str] = (), **attrs: Any) -> str:
        edges = tuple(Edge(i.split(":")[0], int(i.split(":")[1]) if ":" in i else 0) for i in inputs)
        outputs = (OutputSpec(dtypes.int32, None),) * _OUTPUTS.get(op, 1)
        self.nodes[name] = Node(name, op, edges, tuple(control), attrs, outputs)
        return name

    def feed(self, name: str, index: int) -> str:
        return self.add(name, "_Arg", index=index)

    def kernel(self, name: str, function: Callable[..., Any], *inputs: str, control: Sequence[str] = ()) -> str:
        self.kernels[name] = function
        return self.add(name, "Kernel", *inputs, control=control)

    def effect(self, name: str, *inputs: str, control: Sequence[str] = ()) -> str:
        self.kernels[name] = lambda *values: self.log.append(name)
        return self.add(name, "Effect", *inputs, control=control)

    def enter(self, name: str, source: str, frame: str, constant: bool = False, parallel: int = 10) -> str:
        return self.add(name, "Enter", source, frame_name=frame, is_constant=constant, parallel_iterations=parallel)

    def fetch(self, *sources: str) -> None:
        for index, source in enumerate(sources):
            self.add(f"_retval_{index}", "_Retval", source, index=index)

    def back_edge(self, merge: str, source: str) -> None:
        node = self.nodes[merge]
        self.nodes[merge] = Node(
            merge, node.op, (*node.inputs, Edge(source, 0)), node.control, node.attrs, node.outputs
        )

    def run(self, *feeds: Any, seed: int = 0) -> list[Any]:
        """Run the graph with the ready activations taken in a random order."""
        fetches = sum(n.op == "_Retval" for n in self.nodes.values())
        core = Propagator(FlowProgram(ClientGraph(self.nodes, len(feeds), fetches), ()))
        rng = random.Random(seed)
        ready: list[ReadyNode] = core.start(feeds)
        while ready:
            activation = ready.pop(rng.randrange(len(ready)))
            name = activation.node.origin.name
            value = self.kernels[name](*activation.inputs)
            outputs = () if activation.node.origin.op == "Effect" else (value,)
            ready.extend(core.finish(activation, outputs))
        assert core.outstanding == 0
        return core.fetches()


def counting_loop(b: Builder, start: str, limit: str, frame: str = "loop", parallel: int = 10) -> str:
    """Add `while i < limit: i += 1` and return the name of its Exit."""
    b.enter(f"{frame}/enter", start, frame, parallel=parallel)
    b.enter(f"{frame}/limit", limit, frame, constant=True, parallel=parallel)
    b.add(f"{frame}/merge", "Merge", f"{frame}/enter")
    b.kernel(f"{frame}/less", lambda i, n: i < n, f"{frame}/merge", f"{frame}/limit")
    b.add(f"{frame}/cond", "LoopCond", f"{frame}/less")
    b.add(f"{frame}/switch", "Switch", f"{frame}/merge", f"{frame}/cond")
    b.add(f"{frame}/exit", "Exit", f"{frame}/switch:0")
    b.kernel(f"{frame}/add", lambda i: i + 1, f"{frame}/switch:1")
    b.add(f"{frame}/next", "NextIteration", f"{frame}/add")
    b.back_edge(f"{frame}/merge", f"{frame}/next")
    return f"{frame}/exit"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parallel", [1, 2, 10])
@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (50, 50), (-3, 0)])
def test_loop_counts_to_its_limit(limit: int, expected: int, parallel: int, seed: int) -> None:
    b = Builder()
    b.fetch(counting_loop(b, b.feed("start", 0), b.feed("limit", 1), parallel=parallel))
    assert b.run(0, limit, seed=seed) == [expected]


@pytest.mark.parametrize("side", [True, False])
def test_switch_runs_one_side_and_merge_reports_its_index(side: bool) -> None:
    b = Builder()
    b.add("switch", "Switch", b.feed("x", 0), b.feed("pred", 1))
    b.kernel("double", lambda x: x * 2, "switch:1")
    b.effect("seen when true", "double")
    b.kernel("negate", lambda x: -x, "switch:0")
    b.effect("seen when false", "negate")
    b.add("merge", "Merge", "negate", "double")
    b.fetch("merge:0", "merge:1")
    assert b.run(21, side) == ([42, 1] if side else [-21, 0])
    assert b.log == ["seen when true" if side else "seen when false"], "a dead node has no effect"


def test_dead_control_input_deadens_a_node_but_not_a_merge_or_trigger() -> None:
    b = Builder()
    b.add("switch", "Switch", b.feed("x", 0), b.feed("pred", 1))
    b.kernel("dead", lambda x: x, "switch:1")
    b.effect("after the dead", control=["dead"])
    b.add("trigger", "ControlTrigger", control=["dead"])
    b.effect("after the trigger", control=["trigger"])
    b.add("merge", "Merge", "switch:0", control=["dead"])
    b.fetch("merge:0")
    assert b.run(7, False) == [7]
    assert b.log == ["after the trigger"]


def test_fetch_of_a_dead_tensor_names_it() -> None:
    b = Builder()
    b.add("switch", "Switch", b.feed("x", 0), b.feed("pred", 1))
    b.fetch("switch:1")
    with pytest.raises(InvalidArgumentError, match="'switch:1' does not have a value"):
        b.run(1, False)


def test_predicate_that_is_not_a_scalar_is_rejected() -> None:
    import numpy as np

    b = Builder()
    b.add("switch", "Switch", b.feed("x", 0), b.feed("pred", 1))
    b.fetch("switch:1")
    with pytest.raises(InvalidArgumentError, match="scalar"):
        b.run(1, np.ones(2, bool))


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_loops_nest(parallel: int, seed: int) -> None:
    """Compute total = sum over i < n of a loop that counts to m, that is n * m."""
    b = Builder()
    zero, n, m = b.feed("zero", 0), b.feed("n", 1), b.feed("m", 2)
    for name, source, constant in [
        ("i", zero, False),
        ("t", zero, False),
        ("n_", n, True),
        ("m_", m, True),
        ("z_", zero, True),
    ]:
        b.enter(f"o/{name}", source, "outer", constant, parallel)
    b.add("o/mi", "Merge", "o/i")
    b.add("o/mt", "Merge", "o/t")
    b.kernel("o/less", lambda i, n: i < n, "o/mi", "o/n_")
    b.add("o/cond", "LoopCond", "o/less")
    b.add("o/si", "Switch", "o/mi", "o/cond")
    b.add("o/st", "Switch", "o/mt", "o/cond")
    b.add("o/exit", "Exit", "o/st:0")
    b.kernel("o/start", lambda z, i: z, "o/z_", "o/si:1")
    inner = counting_loop(b, "o/start", "o/m_", "inner", parallel)
    b.kernel("o/sum", lambda t, c: t + c, "o/st:1", inner)
    b.kernel("o/inc", lambda i: i + 1, "o/si:1")
    b.add("o/ni", "NextIteration", "o/inc")
    b.add("o/nt", "NextIteration", "o/sum")
    b.back_edge("o/mi", "o/ni")
    b.back_edge("o/mt", "o/nt")
    b.fetch("o/exit")
    assert b.run(0, 6, 7, seed=seed) == [42]


@pytest.mark.parametrize("taken", [True, False])
def test_a_loop_on_an_untaken_branch_ends_at_once(taken: bool) -> None:
    b = Builder()
    b.add("s0", "Switch", b.feed("start", 0), b.feed("pred", 1))
    b.add("s1", "Switch", b.feed("limit", 2), "pred")
    exit_ = counting_loop(b, "s0:1", "s1:1")
    b.add("merge", "Merge", "s0:0", exit_)
    b.fetch("merge:0")
    assert b.run(3, taken, 9) == [9 if taken else 3]


def test_at_most_parallel_iterations_run_at_once() -> None:
    """The condition runs ahead of a slow body, but not beyond `parallel_iterations`."""
    b = Builder()
    counting_loop(b, b.feed("start", 0), b.feed("limit", 1), parallel=3)
    b.kernel("loop/slow", lambda i: i, "loop/switch:1")
    b.fetch("loop/exit")
    core = Propagator(FlowProgram(ClientGraph(b.nodes, 2, 1), ()))
    held: list[ReadyNode] = []
    ready, most = core.start((0, 20)), 0
    while ready or held:
        slow = [a for a in ready if a.node.origin.name == "loop/slow"]
        held += slow
        ready = [a for a in ready if a not in slow]
        most = max(most, len(held))
        activation = ready.pop() if ready else held.pop(0)
        value = b.kernels[activation.node.origin.name](*activation.inputs)
        ready.extend(core.finish(activation, (value,)))
    assert core.fetches() == [20]
    assert most == 3


def test_inputs_from_different_frames_are_rejected() -> None:
    b = Builder()
    counting_loop(b, b.feed("start", 0), b.feed("limit", 1))
    b.kernel("mixed", lambda a, c: a, "loop/switch:1", "start")
    b.fetch("loop/exit")
    with pytest.raises(InvalidArgumentError, match="different frames") as caught:
        b.run(0, 3)
    assert caught.value.node == "mixed"


def test_an_exit_without_an_enter_is_rejected() -> None:
    b = Builder()
    b.add("exit", "Exit", b.feed("x", 0))
    b.fetch("exit")
    with pytest.raises(InvalidArgumentError, match="corresponding Enter"):
        b.run(1)


def test_finished_iterations_and_frames_are_freed() -> None:
    b = Builder()
    b.fetch(counting_loop(b, b.feed("start", 0), b.feed("limit", 1), parallel=2))
    core = Propagator(FlowProgram(ClientGraph(b.nodes, 2, 1), ()))
    ready = core.start((0, 500))
    frame = next(iter(ready[0].iteration.frame.parent.children.values())) if ready[0].iteration.frame.parent else None
    assert frame is not None
    most = 0
    while ready:
        activation = ready.pop()
        ready.extend(core.finish(activation, (b.kernels[activation.node.origin.name](*activation.inputs),)))
        most = max(most, len(frame.iterations))
    assert core.fetches() == [500]
    assert most <= 3
    assert not frame.iterations
    assert not frame.parent.children  # type: ignore[union-attr]  # the frame had a parent above


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parallel", [1, 2, 10])
def test_loop_invariant_is_available_in_every_iteration(parallel: int, seed: int) -> None:
    """Read the invariant alone, with a changing value, with another invariant, twice, and as one of three inputs."""
    b = Builder()
    exit_ = counting_loop(b, b.feed("start", 0), b.feed("limit", 1), parallel=parallel)
    b.enter("loop/a", b.feed("a", 2), "loop", constant=True, parallel=parallel)
    b.enter("loop/b", b.feed("b", 3), "loop", constant=True, parallel=parallel)
    seen: list[Any] = []
    b.kernel("loop/alone", lambda a: a * 10, "loop/a")
    b.kernel("loop/with", lambda i, a: i + a, "loop/switch:1", "loop/a")
    b.kernel("loop/both", lambda a, c: a - c, "loop/a", "loop/b")
    b.kernel("loop/twice", lambda a, c: a + c, "loop/b", "loop/b")
    b.kernel("loop/three", lambda a, i, c: (a, i, c), "loop/a", "loop/switch:1", "loop/b")
    parts = ["loop/alone", "loop/with", "loop/both", "loop/twice", "loop/three"]
    b.kernel("loop/see", lambda *values: seen.append(values), *parts)
    b.fetch(exit_)
    assert b.run(0, 6, 3, 5, seed=seed) == [6]
    assert sorted(seen, key=lambda v: v[1]) == [(30, i + 3, -2, 10, (3, i, 5)) for i in range(6)]


@pytest.mark.parametrize("parallel", [1, 10])
def test_a_dead_loop_invariant_deadens_its_readers_in_every_iteration(parallel: int) -> None:
    b = Builder()
    exit_ = counting_loop(b, b.feed("start", 0), b.feed("limit", 1), parallel=parallel)
    b.add("s", "Switch", b.feed("x", 2), b.feed("pred", 3))
    b.enter("loop/dead", "s:1", "loop", constant=True, parallel=parallel)
    b.effect("loop/seen", "loop/switch:1", "loop/dead")
    b.effect("loop/alone", "loop/dead")
    b.effect("loop/after", control=["loop/dead"])
    b.effect("loop/alive", "loop/switch:1")
    b.fetch(exit_)
    assert b.run(0, 4, 1, False) == [4]
    assert b.log == ["loop/alive"] * 4


@pytest.mark.parametrize("seed", range(5))
def test_control_edges_from_nodes_of_a_loop_run_once_an_iteration(seed: int) -> None:
    """A Merge and a LoopCond pass on their input, but must still notify the nodes behind their control edges."""
    b = Builder()
    exit_ = counting_loop(b, b.feed("start", 0), b.feed("limit", 1))
    for name in ("merge", "cond", "switch", "add", "enter", "limit"):
        b.effect(f"after {name}", control=[f"loop/{name}"])
    b.fetch(exit_)
    assert b.run(0, 3, seed=seed) == [3]
    times = {name: b.log.count(f"after {name}") for name in ("merge", "cond", "switch", "add", "enter", "limit")}
    assert times == {"merge": 4, "cond": 4, "switch": 4, "add": 3, "enter": 1, "limit": 4}


def test_merge_of_a_loop_reports_the_index_of_its_input() -> None:
    b = Builder()
    exit_ = counting_loop(b, b.feed("start", 0), b.feed("limit", 1))
    seen: list[int] = []
    b.kernel("loop/index", lambda i: seen.append(int(i)), "loop/merge:1")
    b.fetch(exit_)
    assert b.run(0, 3) == [3]
    assert seen == [0, 1, 1, 1]


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_execute_hook_runs_kernels_inline_and_can_pause(every: int) -> None:
    b = Builder()
    b.fetch(counting_loop(b, b.feed("start", 0), b.feed("limit", 1)))
    ran = 0

    def execute(core: Propagator, node: FlowNode, inputs: Sequence[Any]) -> Sequence[Any] | None:
        nonlocal ran
        if node.origin.name == "loop/add":
            return None
        ran += 1
        if ran % every == 0:
            core.pause()
        return (b.kernels[node.origin.name](*inputs),)

    core = Propagator(FlowProgram(ClientGraph(b.nodes, 2, 1), ()))
    core.execute = execute
    ready = core.start((0, 10))
    assert ran == 1 or every > 1
    while ready or core.unfinished:
        if core.unfinished:
            ready += core.resume()
        else:
            activation = ready.pop()
            number: Any = activation.inputs[0]
            ready += core.finish(activation, (number + 1,))
    assert core.fetches() == [10]
    assert (ran, core.outstanding) == (11, 0)


def test_the_exits_of_a_dead_loop_are_dead() -> None:
    b = Builder()
    b.add("s0", "Switch", b.feed("start", 0), b.feed("pred", 1))
    b.add("s1", "Switch", b.feed("limit", 2), "pred")
    exit_ = counting_loop(b, "s0:1", "s1:1")
    b.effect("after the exit", exit_)
    b.add("trigger", "ControlTrigger", control=[exit_])
    b.effect("after the loop", control=["trigger"])
    b.fetch("start")
    assert b.run(3, False, 9) == [3]
    assert b.log == ["after the loop"]


@pytest.mark.parametrize("seed", range(5))
def test_merge_of_a_loop_waits_for_its_control_input(seed: int) -> None:
    b = Builder()
    exit_ = counting_loop(b, b.feed("start", 0), b.feed("limit", 1))
    b.effect("gate", "loop/limit")
    merge = b.nodes["loop/merge"]
    b.nodes["loop/merge"] = Node(merge.name, merge.op, merge.inputs, ("gate",), {}, merge.outputs)
    b.effect("seen", "loop/merge")
    b.fetch(exit_)
    assert b.run(0, 4, seed=seed) == [4]
    assert b.log.count("gate") == b.log.count("seen") == 5
    passed = [sum(name == "gate" for name in b.log[:i]) for i, name in enumerate(b.log) if name == "seen"]
    assert all(gates > i for i, gates in enumerate(passed)), "a value passed before its iteration's gate"


class Tracked:
    """A value that supports weak references."""


@pytest.mark.parametrize("others", [0, 1])
def test_value_dies_with_its_last_reader(others: int) -> None:
    """Cover a reader with two inputs and one with three, while the iteration goes on."""
    b = Builder()
    x = b.feed("x", 0)
    names = [b.feed(f"y{i}", i + 1) for i in range(others)]
    b.kernel("make", lambda x: Tracked(), x)
    b.kernel("slow", lambda x: x, x)
    b.kernel("read", lambda *values: 1, "make", "slow", *names)
    b.kernel("later", lambda v: v, "read")
    b.fetch("later")
    core = Propagator(FlowProgram(ClientGraph(b.nodes, others + 1, 1), ()))
    make, slow = core.start([0] * (others + 1))
    value = Tracked()
    watched = weakref.ref(value)
    assert core.finish(make, (value,)) == []
    (read,) = core.finish(slow, (0,))
    del value
    assert watched() is not None
    (later,) = core.finish(read, (1,))
    del read
    assert watched() is None
    core.finish(later, (1,))
    assert core.fetches() == [1]
